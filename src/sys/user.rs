//! Users.

use std::path::PathBuf;

use nix::unistd::{Uid, User, geteuid};

/// Our own effective user id.
pub fn effective() -> u32 {
    geteuid().as_raw()
}

/// The name of a user, or its number in words where no name is known.
pub fn name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// The home directory that the user database names.
pub fn home(uid: u32) -> Option<PathBuf> {
    User::from_uid(Uid::from_raw(uid))
        .ok()
        .flatten()
        .map(|user| user.dir)
}

/// Whether we are in a user namespace that knows only some of the machine's users.
pub fn is_in_namespace() -> bool {
    let map = super::process::read_whole("/proc/self/uid_map").unwrap_or_default();
    String::from_utf8_lossy(&map)
        .split_ascii_whitespace()
        .ne(["0", "0", "4294967295"])
}
