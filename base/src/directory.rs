//! Directories of our own: opened component by component, without following a link that another
//! user may replace; created if they are missing; used through the descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use crate::sys::links::{MOST_LINKS, steps};
use crate::sys::trust::{self, Owned, is_trusted};
use crate::sys::user;

/// Remedy that the error about an unusable directory ends with.
const REMEDY: &str = "remove it, or name another one with --state-dir or AGAIN_STATE_DIR";

/// Kind of files that a directory contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// State. Only we and root may be able to replace the directory.
    State,
    /// Logs: each is new, private, and opened without following links. If root owns the parent, its
    /// group may write to it: Debian's and Ubuntu's /var/log is root:syslog.
    Logs,
}

/// Directory that only we can change, held open so that no other one can replace it.
#[derive(Debug, Clone)]
pub struct Directory(Rc<Held>);

#[derive(Debug)]
struct Held {
    fd: OwnedFd,
    path: PathBuf,
}

/// Flags of a descriptor that is only used to reach other files: open(2), O_PATH.
const ON_THE_WAY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Directory {
    /// Opens a directory; creates it if it is missing.
    ///
    /// # Errors
    /// A sentence that names the directory, the problem and the remedy.
    pub fn open(path: &Path, keeps: Keeps) -> Result<Self> {
        let mut left: Vec<OsString> = steps(path);
        let root =
            || rustix::fs::open("/", ON_THE_WAY, Mode::empty()).map_err(std::io::Error::from);
        let (mut at, mut shown) = (root()?, PathBuf::from("/"));
        let mut stat = fstat(&at)?;
        let mut links = 0;
        while let Some(name) = left.pop() {
            let unsafe_by = |at: &Path, why: String| {
                let (path, at) = (path.display(), at.display());
                anyhow!(
                    "{path} is not safe: {at} {why}, who could put another in its place; {REMEDY}"
                )
            };
            if let Some(why) = replaceable_by_others(&stat, keeps) {
                return Err(unsafe_by(&shown, why));
            }
            let here = shown.join(&name);
            let opened = step(&at, &name, &|| here.clone(), (0o755, left.is_empty()));
            let (next, found) = opened.map_err(|e| elsewhere(e, path, keeps))?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
                if left.is_empty() {
                    check_own(&found, &|| here.clone())?;
                }
                (at, stat, shown) = (next, found, here);
                continue;
            }
            links += 1;
            if left.is_empty() || links > MOST_LINKS {
                bail!("{} is a symbolic link; {REMEDY}", here.display());
            }
            if !is_trusted(found.st_uid) {
                return Err(unsafe_by(
                    &here,
                    format!("belongs to {}", user::name(found.st_uid)),
                ));
            }
            let target = readlinkat(&next, "", Vec::new())
                .with_context(|| format!("cannot read the link {}", here.display()))?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.is_absolute() {
                (at, shown) = (root()?, PathBuf::from("/"));
                stat = fstat(&at)?;
            }
            left.extend(steps(&target));
        }
        Ok(Directory::held(at))
    }

    fn held(fd: OwnedFd) -> Self {
        let path = PathBuf::from(format!("{HELD}{}", fd.as_raw_fd()));
        Directory(Rc::new(Held { fd, path }))
    }

    /// Opens a subdirectory; creates it with this mode if it is missing.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn below(&self, name: &str, mode: u32) -> Result<Self> {
        let here = || shown(&self.0.path.join(name));
        let (next, stat) = step(&self.0.fd, OsStr::new(name), &here, (mode, true))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            bail!("{} is a symbolic link; {REMEDY}", here().display());
        }
        check_own(&stat, &here)?;
        Ok(Directory::held(next))
    }

    /// Path through the descriptor. It leads to this very directory as long as `self` lives.
    pub fn path(&self) -> PathBuf {
        self.0.path.clone()
    }

    /// Whether the path leads to this directory, which is still ours and writable by us alone.
    pub fn is_at(&self, path: &Path) -> bool {
        let found = rustix::fs::stat(path);
        found.is_ok_and(|stat| {
            let is_ours = stat.st_uid == user::effective();
            let held = fstat(&self.0.fd).map(|held| (held.st_dev, held.st_ino));
            is_ours && stat.st_mode & 0o722 == 0o700 && held == Ok((stat.st_dev, stat.st_ino))
        })
    }

    /// Whether both are the same directory.
    pub fn is(&self, other: &Self) -> bool {
        let file = |one: &Self| fstat(&one.0.fd).map(|stat| (stat.st_dev, stat.st_ino));
        file(self).is_ok_and(|one| file(other) == Ok(one))
    }

    /// Duplicate of the descriptor, which the caller keeps open as long as the process lives.
    ///
    /// # Errors
    /// The errors of dup(2).
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.0.fd.try_clone()
    }
}

/// Prefix of a path through a descriptor: proc_pid_fd(5).
const HELD: &str = "/proc/self/fd/";

/// Path for messages: the prefix of a path through a descriptor is replaced with the path that the
/// kernel shows for that descriptor.
pub fn shown(path: &Path) -> PathBuf {
    let known = || {
        let mut parts = path.strip_prefix(HELD).ok()?.components();
        let held = std::fs::read_link(Path::new(HELD).join(parts.next()?)).ok()?;
        let rest = parts.as_path();
        Some(match rest.as_os_str().is_empty() {
            true => held,
            false => held.join(rest),
        })
    };
    known().unwrap_or_else(|| path.to_owned())
}

/// Adds the remedy to an error about a directory that we have no permission to create, such as one
/// below a missing home.
fn elsewhere(error: anyhow::Error, path: &Path, keeps: Keeps) -> anyhow::Error {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let kind = error
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind);
    if !matches!(kind, Some(PermissionDenied | ReadOnlyFilesystem)) {
        return error;
    }
    let (what, key, variable) = match keeps {
        Keeps::State => ("state", "state_dir", "AGAIN_STATE_DIR"),
        Keeps::Logs => ("logs", "log_dir", "AGAIN_LOG_DIR"),
    };
    let path = path.display();
    error.context(format!(
        "cannot keep {what} in {path} (name another directory with {key} in /etc/again.toml, or with {variable})"
    ))
}

/// Opens the directory or link of this name. Creates a missing directory, with exactly this mode if
/// it is our own rather than an intermediate one.
fn step(
    at: &OwnedFd,
    name: &OsStr,
    here: &dyn Fn() -> PathBuf,
    (mode, is_own): (u32, bool),
) -> Result<(OwnedFd, Stat)> {
    let open = || openat(at, name, ON_THE_WAY, Mode::empty());
    let mut made = None;
    let opened = open().or_else(|e| {
        if e != Errno::NOENT {
            return Err(e);
        }
        // If two processes create it at the same time, one succeeds.
        let make = mkdirat(at, name, Mode::from_raw_mode(mode));
        made = Some(make);
        open().map_err(|e| make.err().unwrap_or(e))
    });
    // As an `io::Error`, whose kind `elsewhere` checks.
    let opened = opened.map_err(std::io::Error::from);
    let fd = opened.with_context(|| match made {
        Some(_) => format!("cannot make the directory {}", here().display()),
        None => format!("cannot open the directory {}", here().display()),
    })?;
    let stat = fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => return Ok((fd, stat)),
        _ => bail!("{} is not a directory; {REMEDY}", here().display()),
    }
    // The umask of the run may have cleared bits that others or we need. Existing intermediate
    // directories stay unchanged, and our own existing directory gets only the bits that we need:
    // an operator may want it private.
    let made_by_us = made == Some(Ok(()));
    let lacks = (is_own || made.is_some()) && stat.st_mode & 0o700 != 0o700;
    if stat.st_uid == user::effective() && (made_by_us && is_own || lacks) {
        let mode = match made_by_us && is_own {
            true => mode,
            false => stat.st_mode & 0o7777 | 0o700,
        };
        let path = format!("{HELD}{}", fd.as_raw_fd());
        std::fs::set_permissions(path, Permissions::from_mode(mode))
            .with_context(|| format!("cannot set the mode of {}", here().display()))?;
        let stat = fstat(&fd)?;
        return Ok((fd, stat));
    }
    Ok((fd, stat))
}

/// Rejects a directory of our own that others could write to.
fn check_own(stat: &Stat, here: &dyn Fn() -> PathBuf) -> Result<()> {
    if stat.st_uid != user::effective() {
        let remedy = match stat.st_uid {
            0 => "run this as root, or name another one with --state-dir or AGAIN_STATE_DIR",
            _ => REMEDY,
        };
        bail!(
            "{} belongs to {}, not to {}; {remedy}",
            here().display(),
            user::name(stat.st_uid),
            user::name(user::effective())
        );
    }
    if stat.st_mode & 0o022 != 0 {
        bail!(
            "{} can be written to by others (mode {:o}); {REMEDY}",
            here().display(),
            stat.st_mode & 0o7777
        );
    }
    Ok(())
}

/// Reason why a user other than us and root could replace the contents of this directory, if one
/// could.
fn replaceable_by_others(stat: &Stat, keeps: Keeps) -> Option<String> {
    let owned = Owned {
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode,
    };
    trust::replaceable_by_others(owned, keeps == Keeps::Logs && stat.st_uid == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn open(path: &Path) -> Result<Directory> {
        Directory::open(path, Keeps::State)
    }

    fn refused(path: &Path, why: &str) {
        let error = format!("{:#}", open(path).expect_err("refused"));
        assert!(error.contains(why), "{error}");
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    }

    #[test]
    fn refuses_a_directory_that_others_can_write_to_or_a_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let wide = dir.path().join("open");
        std::fs::create_dir(&wide).expect("made");
        set(&wide, 0o777);
        refused(&wide, "written to by others");
        refused(&wide.join("below"), "can be written to by everybody");
        let link = dir.path().join("link");
        symlink(dir.path(), &link).expect("linked");
        // However it is written, the last name is a link.
        for ending in ["", "/", "//", "/.", "/./"] {
            refused(
                &PathBuf::from(format!("{}{ending}", link.display())),
                "symbolic link",
            );
        }
        let looped = dir.path().join("loop");
        symlink("loop", &looped).expect("linked");
        refused(&looped.join("below"), "symbolic link");
        // A link of ours on the way is ours to replace.
        open(&link.join("made/../made")).expect("opened");
        assert!(dir.path().join("made").is_dir());
    }

    #[test]
    fn an_operators_mode_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        let state = open(&path).expect("made");
        assert_eq!(mode(&path), 0o755);
        for kept in [0o700, 0o750, 0o711] {
            set(&path, kept);
            open(&path).expect("opened");
            assert_eq!(mode(&path), kept);
        }
        // We get what we need, and nobody else gets anything.
        for (found, left) in [(0o500, 0o700), (0o000, 0o700)] {
            set(&path, found);
            open(&path).expect("opened");
            assert_eq!(mode(&path), left);
        }
        set(dir.path(), 0o550);
        open(&path).expect("opened");
        assert_eq!(mode(dir.path()), 0o550);
        state.below("orders", 0o700).expect("made");
        assert_eq!(mode(&path.join("orders")), 0o700);
    }

    #[test]
    fn what_is_held_stays_the_same_whatever_takes_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        let held = open(&path).expect("made");
        assert!(held.is(&open(&path).expect("opened")));
        std::fs::rename(&path, dir.path().join("moved")).expect("moved");
        assert!(!held.is(&open(&path).expect("made")));
        std::fs::write(held.path().join("file"), "").expect("written");
        assert!(dir.path().join("moved/file").exists());
        assert_eq!(
            shown(&held.path().join("a/b")),
            dir.path().join("moved/a/b")
        );
        assert_eq!(shown(&held.path()), dir.path().join("moved"));
        assert_eq!(shown(&path), path);
    }
}
