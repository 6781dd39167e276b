//! Users and groups.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nix::unistd::{Gid, Group, Uid, User, geteuid};

/// Effective user id of this process.
pub fn effective() -> u32 {
    geteuid().as_raw()
}

fn find(uid: u32) -> Option<User> {
    User::from_uid(Uid::from_raw(uid)).ok().flatten()
}

/// Name of a user, or its number if it has no known name. Known names are cached for the lifetime
/// of the process.
pub fn name(uid: u32) -> String {
    static NAMES: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if !names.contains_key(&uid)
        && let Some(user) = find(uid)
    {
        names.insert(uid, user.name);
    }
    names.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
}

/// Home directory in the user database.
pub fn home(uid: u32) -> Option<PathBuf> {
    find(uid).map(|user| user.dir)
}

/// Name of a group, or its number if it has no known name.
pub fn group_name(gid: u32) -> String {
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    group.map_or_else(|| gid.to_string(), |group| group.name)
}

/// Whether a group has our user's name and no other members, like the one that useradd(8) creates
/// for each user.
pub fn is_private_group(gid: u32) -> bool {
    let own = name(effective());
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    group.is_some_and(|group| group.name == own && group.mem.iter().all(|one| *one == own))
}

/// Whether we are in a user namespace that maps only some of the machine's users.
pub fn is_in_namespace() -> bool {
    let map = super::process::read_whole("/proc/self/uid_map").unwrap_or_default();
    String::from_utf8_lossy(&map)
        .split_ascii_whitespace()
        .ne(["0", "0", "4294967295"])
}
