//! Users.

use std::path::PathBuf;

use nix::unistd::{Gid, Group, Uid, User, geteuid};

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

/// The name of a group, or its number in words where no name is known.
pub fn group_name(gid: u32) -> String {
    match Group::from_gid(Gid::from_raw(gid)) {
        Ok(Some(group)) => group.name,
        _ => gid.to_string(),
    }
}

/// Whether a group is the one that has our user's name and nobody else in it, as
/// useradd(8) makes one for each user.
pub fn is_private_group(gid: u32) -> bool {
    let own = name(effective());
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    group.is_some_and(|group| group.name == own && group.mem.iter().all(|one| *one == own))
}

/// Whether we are in a user namespace that knows only some of the machine's users.
pub fn is_in_namespace() -> bool {
    let map = super::process::read_whole("/proc/self/uid_map").unwrap_or_default();
    String::from_utf8_lossy(&map)
        .split_ascii_whitespace()
        .ne(["0", "0", "4294967295"])
}
