//! Path resolution, link by link: path_resolution(7).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::trust::{Owned, is_trusted, replaceable_by_others};

/// Most links that the kernel follows.
pub const MOST_LINKS: u32 = 40;

/// End of a path after all links are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leads {
    /// A name without links.
    To(PathBuf),
    /// A descriptor of a process: proc_pid_fd(5).
    ToDescriptor {
        /// Link of the descriptor, such as `/proc/7/fd/3`.
        link: PathBuf,
        /// Rest of the path, below a directory that the descriptor refers to; may be empty.
        rest: PathBuf,
    },
}

/// Resolves an absolute path as the process `pid` would, whose own directory `/proc/self` is.
/// `look` is called with each directory on the way, and with the path that is looked up in it.
///
/// # Errors
/// The errors of lstat(2) and readlink(2), and those of `look`.
pub fn follow(
    path: &Path,
    pid: i32,
    look: &mut dyn FnMut(&Path, &Path) -> io::Result<()>,
) -> io::Result<Leads> {
    let mut left = steps(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        if is_descriptor(&next) {
            let rest = left.iter().rev().collect();
            return Ok(Leads::ToDescriptor { link: next, rest });
        }
        look(&at, &next)?;
        match next.to_str() {
            Some("/proc/self") => at = format!("/proc/{pid}").into(),
            Some("/proc/thread-self") => at = format!("/proc/{pid}/task/{pid}").into(),
            _ if fs::symlink_metadata(&next)?.is_symlink() => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(nix::libc::ELOOP));
                }
                let target = fs::read_link(&next)?;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                left.extend(steps(&target));
            }
            _ => at = next,
        }
    }
    Ok(Leads::To(at))
}

/// Names in a path, the first one last. A slash at the end, `//` and `/.` add none.
pub fn steps(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        _ => None,
    });
    names.collect()
}

/// Whether the path is the link of a descriptor: `/proc/PID/fd/N`, `/proc/PID/task/TID/fd/N`.
fn is_descriptor(path: &Path) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let words: Vec<&str> = path.to_str().unwrap_or_default().split('/').collect();
    match words.as_slice() {
        ["", "proc", pid, "fd", fd] => number(pid) && number(fd),
        ["", "proc", pid, "task", task, "fd", fd] => number(pid) && number(task) && number(fd),
        _ => false,
    }
}

/// Whether a path leads to this directory (device and inode), and no user but us and root can make
/// it lead elsewhere.
pub fn leads_safely(path: &Path, directory: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    if !path.is_absolute()
        || !file(path).is_ok_and(|found| file(directory).is_ok_and(|d| d == found))
    {
        return false;
    }
    let mut check = |at: &Path, next: &Path| {
        let owned = |path| {
            fs::symlink_metadata(path).map(|meta| Owned {
                uid: meta.uid(),
                gid: meta.gid(),
                mode: meta.mode(),
            })
        };
        let (directory, found) = (owned(at)?, owned(next)?);
        let is_ours = !directory.is_sticky() || is_trusted(found.uid);
        match replaceable_by_others(directory, false) {
            None if is_ours => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
        }
    };
    let me = std::process::id().cast_signed();
    matches!(follow(path, me, &mut check), Ok(Leads::To(_)))
}
