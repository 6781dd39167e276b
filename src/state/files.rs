//! The files of the state directory: read whole, and replaced by another under the
//! same name, so that nobody ever sees half of one.

use std::fs::{File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use crate::sys::rename;

/// Files are opened so that a link or a fifo in their place does no harm.
pub(super) const GUARDED: i32 = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;

/// No record is anywhere near this size; a larger file is not one of ours.
const LARGEST: u64 = 64 << 20;

/// A random name for a request or a temporary file: 16 hexadecimal digits.
pub fn token() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Reads a file of ours, and no link in its place.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    crate::sys::file::read_regular(path, LARGEST, nix::libc::O_NOFOLLOW)
}

/// Whether somebody holds a lock on a file or directory of ours. `None` where that
/// cannot be told.
pub(super) fn is_locked(path: &Path) -> Option<bool> {
    let file = File::options()
        .read(true)
        .custom_flags(GUARDED)
        .open(path)
        .ok()?;
    match file.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

/// A file that nobody else may open, and so nobody else can lock; made where missing.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(GUARDED)
        .open(path)
}

/// Waits until the disk has the names in a directory.
///
/// # Errors
/// What failed on which directory.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    let sync = || File::open(directory)?.sync_all();
    sync().with_context(|| format!("cannot sync {}", directory.display()))
}

/// Writes a temporary file, syncs it, and renames it to `name`.
pub(super) fn replace_file(directory: &Path, name: &str, text: &[u8], mode: u32) -> Result<()> {
    let temporary = format!(".{name}.{}", token());
    Draft::write(directory, name, temporary, text, mode)?.publish()
}

/// A file that is in no directory yet: open(2), `O_TMPFILE`. [`rename::name`] puts it there.
///
/// # Errors
/// Those of open(2).
pub fn unnamed_file(directory: &Path, mode: u32) -> io::Result<File> {
    let file = File::options()
        .append(true)
        .mode(mode)
        .custom_flags(nix::libc::O_TMPFILE)
        .open(directory)?;
    // Whatever the umask of the run.
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// A file's next content, written beside it. It goes away unless it is published.
#[derive(Debug)]
pub struct Draft {
    file: File,
    is_on_disk: bool,
    temporary: PathBuf,
    path: PathBuf,
}

impl Draft {
    /// What has been written to `file`, whose name is `temporary`.
    pub(super) fn of(file: File, temporary: PathBuf, path: PathBuf) -> Self {
        Draft {
            file,
            is_on_disk: false,
            temporary,
            path,
        }
    }

    /// Writes it, and waits for no disk.
    pub(super) fn write(
        directory: &Path,
        name: &str,
        temporary: String,
        text: &[u8],
        mode: u32,
    ) -> Result<Self> {
        let path = directory.join(name);
        let temporary = directory.join(temporary);
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)
            .with_context(|| cannot_write(&path))?;
        let mut draft = Draft::of(file, temporary, path);
        // A strict umask of the run must not hide from others what is theirs to see.
        let written = draft
            .file
            .set_permissions(Permissions::from_mode(mode))
            .and_then(|()| draft.file.write_all(text));
        written.map_err(|e| draft.blame(e))?;
        Ok(draft)
    }

    /// Waits until it would outlast a loss of power: fdatasync(2). Publishing does it
    /// where it was not done before.
    ///
    /// # Errors
    /// Those of fdatasync(2), such as a full disk.
    pub fn sync(&mut self) -> Result<()> {
        if !self.is_on_disk {
            self.file.sync_data().map_err(|e| self.blame(e))?;
            self.is_on_disk = true;
        }
        Ok(())
    }

    fn blame(&self, e: io::Error) -> anyhow::Error {
        anyhow!(e).context(cannot_write(&self.path))
    }

    /// Puts it in the place of the file: all or nothing.
    ///
    /// # Errors
    /// What failed; the old content is then still there.
    pub fn publish(mut self) -> Result<()> {
        self.sync()?;
        std::fs::rename(&self.temporary, &self.path).map_err(|e| self.blame(e))?;
        self.temporary.clear();
        Ok(())
    }

    /// [`Draft::publish`] for who is in a hurry: the disk is not waited for, and the old
    /// content, which takes as long to be freed as the new to be synced, stays under the
    /// draft's own name, where [`super::store::Store::remove_strays`] finds it.
    ///
    /// # Errors
    /// As for [`Draft::publish`].
    pub fn exchange(mut self) -> Result<()> {
        if rename::exchange(&self.temporary, &self.path).is_err() {
            return self.publish();
        }
        self.temporary.clear();
        Ok(())
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
