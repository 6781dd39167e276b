//! Check whether a user other than us and root could replace the file at the end of a path.

use super::user;

/// Owner that files of an unmapped user seem to have in a user namespace.
const OVERFLOW: u32 = 65534;

/// Owner, group and mode of a file from stat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// Id of the owner.
    pub uid: u32,
    /// Id of the group.
    pub gid: u32,
    /// Mode, with or without the file's type.
    pub mode: u32,
}

impl Owned {
    /// Whether only the owner of an entry, or of the directory, can rename the entry.
    pub fn is_sticky(self) -> bool {
        self.mode & 0o1000 != 0
    }
}

/// Whether this user is root or us.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == user::effective() || (uid == OVERFLOW && user::is_in_namespace())
}

/// Reason why a user other than us and root could replace an entry of this directory, if one could.
/// With `allows_group`, a group may write to it.
pub fn replaceable_by_others(directory: Owned, allows_group: bool) -> Option<String> {
    let Owned { uid, gid, mode } = directory;
    if !is_trusted(uid) {
        return Some(format!("belongs to {}", user::name(uid)));
    }
    // In a sticky directory nobody else can rename our files.
    if directory.is_sticky() {
        return None;
    }
    if mode & 0o002 != 0 {
        return Some("can be written to by everybody".to_owned());
    }
    let by_group = mode & 0o020 != 0 && !allows_group && !is_ours_alone(gid);
    by_group.then(|| {
        format!(
            "can be written to by the group {} (chmod g-w takes that away)",
            user::group_name(gid)
        )
    })
}

/// Whether a group has no members but us and root, as far as the group database shows.
fn is_ours_alone(gid: u32) -> bool {
    gid == 0 || user::is_private_group(gid) || (gid == OVERFLOW && user::is_in_namespace())
}
