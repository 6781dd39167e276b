//! Whether a user other than us and root could replace what a path leads to.

use super::user;

/// The owner that files seem to have in a user namespace that does not know their user.
const OVERFLOW: u32 = 65534;

/// The owner, group and mode of a file, as stat(2) tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// The owner's id.
    pub uid: u32,
    /// The group's id.
    pub gid: u32,
    /// The mode, with or without the file's type.
    pub mode: u32,
}

impl Owned {
    /// Whether nobody but the owner, or the owner of the directory, can rename what is in it.
    pub fn is_sticky(self) -> bool {
        self.mode & 0o1000 != 0
    }
}

/// Whether this user is root or us.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == user::effective() || (uid == OVERFLOW && user::is_in_namespace())
}

/// The reason why a user other than us and root could replace an entry of this directory, if one could.
/// With `allows_group`, a group may write to it.
pub fn replaceable_by_others(directory: Owned, allows_group: bool) -> Option<String> {
    let Owned { uid, gid, mode } = directory;
    if !is_trusted(uid) {
        return Some(format!("belongs to {}", user::name(uid)));
    }
    // In a sticky directory nobody can rename what is ours.
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

/// Whether nobody but us and root is in a group, as far as the group database tells.
fn is_ours_alone(gid: u32) -> bool {
    gid == 0 || user::is_private_group(gid) || (gid == OVERFLOW && user::is_in_namespace())
}
