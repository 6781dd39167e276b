//! Requests that commands leave on disk while the service of their node is down. The directory is
//! beside the spool of events and belongs to root. Root may write there, and so may the directory's
//! group if the directory is group-writable: the group that may send triggers. The service only
//! reads the files; the executor removes them.
//!
//! A file's name is the id of its request; its mtime is the time when the request was sent.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use again_base::model::{Span, Walltime};
use rustix::fs::OFlags;

use crate::wire::name::Id;

/// Maximum number of files. Users other than root leave half of them at most.
pub const MOST: usize = 500;
/// Largest size of a file, in bytes; no request is longer.
pub const LARGEST: u64 = (6 << 20) + 8;
/// Prefix of the name of an incomplete file.
const NEW: &str = "new-";
/// Age from which a file that is not a request is removed; writing a request takes less time.
const ABANDONED: Span = Span::from_secs(3600);

/// Directory of the requests.
#[derive(Debug, Clone)]
pub struct Requests(PathBuf);

/// Entries of the directory, at most [`MOST`].
#[derive(Debug, Default)]
pub struct Listing {
    /// Time and id of each request.
    pub files: BTreeSet<(Walltime, Id)>,
    /// Names of all other entries.
    pub others: BTreeSet<OsString>,
}

impl Listing {
    /// Number of entries; if it is [`MOST`], there may be more in the directory.
    pub fn count(&self) -> usize {
        self.files.len() + self.others.len()
    }

    /// Whether this user may leave no more requests.
    pub fn is_full(&self) -> bool {
        self.count() >= most()
    }
}

impl Requests {
    /// The directory beside this spool of events.
    pub fn beside(spool: &Path) -> Requests {
        let mut path = spool.as_os_str().to_owned();
        path.push("-requests");
        Requests(path.into())
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Stores a request durably.
    ///
    /// # Errors
    /// The directory does not exist or is full, or this user may not write there.
    pub fn leave(&self, id: &Id, bytes: &[u8]) -> io::Result<()> {
        if self.listing()?.is_full() {
            let most = most();
            return Err(io::Error::other(format!(
                "it is full: {most} requests may wait there"
            )));
        }
        let new = self.0.join(format!("{NEW}{id}"));
        let written = write(&new, bytes)
            .and_then(|()| fs::rename(&new, self.0.join(id.as_str())))
            .and_then(|()| File::open(&self.0)?.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    /// The entries of the directory.
    ///
    /// # Errors
    /// The directory does not exist or cannot be read, or users other than root and one group may
    /// write there.
    pub fn listing(&self) -> io::Result<Listing> {
        self.check()?;
        let mut found = Listing::default();
        for entry in fs::read_dir(&self.0)?.take(MOST) {
            let entry = entry?;
            // The executor may have removed the file.
            let Ok(meta) = entry.metadata() else { continue };
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.parse::<Id>().ok());
            match id {
                Some(id) if meta.is_file() => drop(found.files.insert((written_at(&meta), id))),
                _ => drop(found.others.insert(name)),
            }
        }
        Ok(found)
    }

    /// Checks that only root and one group can write there, and that no one can replace another
    /// user's file.
    fn check(&self) -> io::Result<fs::Metadata> {
        let found = fs::symlink_metadata(&self.0)?;
        if !found.is_dir() {
            return Err(io::Error::other("it is not a directory; remove it"));
        }
        if !is_roots(&found) || found.mode() & 0o002 != 0 || found.mode() & 0o1020 == 0o020 {
            return Err(io::Error::other(
                "others than root and one group may write there, or replace files there; run 'chown root' and 'chmod o-w,+t' on it",
            ));
        }
        Ok(found)
    }

    /// Bytes of a request, and the time when it was sent.
    ///
    /// # Errors
    /// The file cannot be read. With [`io::ErrorKind::InvalidData`], it is not a file left by root
    /// or by a member of the group that may write there.
    pub fn read(&self, id: &Id) -> io::Result<(Vec<u8>, Walltime)> {
        let directory = self.check()?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::options()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(self.0.join(id.as_str()))?;
        let found = opened.metadata()?;
        if !found.is_file() || found.nlink() != 1 || found.len() > LARGEST {
            return Err(refusal(format!(
                "it is not a regular file of at most {LARGEST} bytes with one link"
            )));
        }
        let is_groups = directory.mode() & 0o020 != 0 && found.gid() == directory.gid();
        if !is_roots(&found) && !is_groups {
            let (user, group) = (found.uid(), found.gid());
            return Err(refusal(format!(
                "it belongs to user {user} and group {group}, who may not send triggers here"
            )));
        }
        let mut bytes = Vec::new();
        let at = written_at(&found);
        opened.take(LARGEST).read_to_end(&mut bytes)?;
        Ok((bytes, at))
    }

    /// Removes these requests, and abandoned files that are not requests. Directories remain.
    ///
    /// # Errors
    /// The directory cannot be used, or a file cannot be removed; the other files are removed.
    pub fn remove(&self, ids: &[Id], now: Walltime) -> io::Result<()> {
        let found = match self.listing() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        let names = ids.iter().map(|id| (OsString::from(id.as_str()), true));
        let others = found.others.into_iter().map(|name| (name, false));
        let mut removed = Ok(());
        for (name, is_asked) in names.chain(others) {
            let path = self.0.join(&name);
            // The owner of a file cannot set its ctime.
            let is_old = |meta: &fs::Metadata| millis(meta.ctime()) + ABANDONED < now;
            let is_meant = |meta: &fs::Metadata| !meta.is_dir() && (is_asked || is_old(meta));
            if fs::symlink_metadata(&path).is_ok_and(|meta| is_meant(&meta))
                && let Err(e) = fs::remove_file(&path)
                && e.kind() != io::ErrorKind::NotFound
            {
                removed = Err(e);
            }
        }
        removed
    }
}

fn millis(seconds: i64) -> Walltime {
    Walltime::from_millis(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000))
}

fn refusal(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn written_at(meta: &fs::Metadata) -> Walltime {
    millis(meta.mtime())
}

/// Number of entries that this user may leave; root may fill the directory.
fn most() -> usize {
    let is_root = rustix::process::geteuid().is_root();
    if is_root { MOST } else { MOST / 2 }
}

/// Whether root owns the file; in tests without root, this user.
fn is_roots(found: &fs::Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&found.uid())
}

/// Writes a new file that everyone with access to the directory can read.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    // Independent of the umask.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as the class makes it.
    fn spool() -> (tempfile::TempDir, Requests) {
        let dir = tempfile::tempdir().expect("a directory");
        let requests = Requests::beside(&dir.path().join("spool"));
        fs::create_dir(requests.path()).expect("made");
        (dir, requests)
    }

    #[test]
    fn full_directory_refuses_requests() {
        let (_dir, requests) = spool();
        let id = Id::from_bits(1);
        requests.leave(&id, b"x").expect("left");
        assert_eq!(requests.read(&id).expect("read").0, b"x");
        for n in 1..most() {
            fs::write(requests.path().join(format!("other {n}")), "").expect("written");
        }
        let error = requests.leave(&Id::from_bits(2), b"x").expect_err("full");
        assert!(error.to_string().contains("it is full"), "{error}");
        let found = requests.listing().expect("listed");
        assert!(found.is_full() && found.files.len() == 1);
        requests
            .remove(&[id], again_base::sys::clock::walltime())
            .expect("removed");
        requests
            .leave(&Id::from_bits(2), b"x")
            .expect("there is room");
    }

    #[test]
    fn links_and_files_with_other_names_are_not_read() {
        let (dir, requests) = spool();
        let ids = [1, 2, 3].map(Id::from_bits);
        let path = |n: usize| requests.path().join(ids[n].as_str());
        let target = dir.path().join("target");
        fs::write(&target, "x").expect("written");
        std::os::unix::fs::symlink(&target, path(0)).expect("linked");
        fs::hard_link(&target, path(1)).expect("linked");
        fs::create_dir(path(2)).expect("made");
        let found = requests.listing().expect("a spool");
        assert_eq!((found.files.len(), found.others.len()), (1, 2));
        assert!(ids.iter().all(|id| requests.read(id).is_err()));
        // The executor removes them, not their targets, and no directory.
        requests
            .remove(&ids, Walltime::from_millis(0))
            .expect("removed");
        assert!(target.exists() && path(2).exists());
        assert!(requests.listing().expect("a spool").files.is_empty());
    }

    #[test]
    fn spool_in_which_others_may_write_or_replace_files_is_refused() {
        let (_dir, requests) = spool();
        for (mode, is_good) in [
            (0o2750, true),
            (0o3775, true),
            (0o2775, false),
            (0o3777, false),
        ] {
            fs::set_permissions(requests.path(), Permissions::from_mode(mode)).expect("its mode");
            let left = requests.leave(&Id::from_bits(mode.into()), b"x");
            assert_eq!(left.is_ok(), is_good, "{mode:o}: {left:?}");
        }
        let none = Requests::beside(Path::new("/nonexistent/spool"));
        let error = none.leave(&Id::from_bits(1), b"x").expect_err("none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        none.remove(&[], Walltime::from_millis(0))
            .expect("nothing to remove");
    }

    #[test]
    fn file_of_a_command_that_was_killed_is_removed_after_an_hour() {
        let (_dir, requests) = spool();
        fs::write(requests.path().join("new-x"), "half").expect("written");
        let now = again_base::sys::clock::walltime();
        for (seconds, count) in [(3500, 1), (3700, 0)] {
            requests
                .remove(&[], now + Span::from_secs(seconds))
                .expect("looked");
            assert_eq!(requests.listing().expect("a spool").others.len(), count);
        }
    }
}
