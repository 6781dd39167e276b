//! Files of the state directory: read whole, and replaced with a rename, so that no reader ever
//! sees half a file.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use again_base::directory::shown;
use again_base::sys::file::sync;
use again_base::sys::machine::look;

/// Flags for opening files, so that a link or a fifo of the same name does no harm.
pub(super) const GUARDED: i32 = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;

/// Maximum file size in bytes. No record is nearly that large; a larger file is not one of ours.
const LARGEST: u64 = 64 << 20;

/// Time that a command which changes something waits for a lock that another process holds.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Random name for a request or a temporary file: 16 hexadecimal digits.
pub fn token() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Reads a file of ours, without following a link.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    again_base::sys::file::read_regular(path, LARGEST, nix::libc::O_NOFOLLOW)
}

/// Whether a process holds a lock on a file or directory of ours. `None` if unknown.
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

/// Whether a process may hold a lock on this file. An error counts as held, so that a living
/// process is not considered dead; but a caller who may not open the file cannot act on it, and
/// sees it as free.
pub(super) fn may_be_locked(path: &Path) -> bool {
    let file = File::options().read(true).custom_flags(GUARDED).open(path);
    match file.map(|file| file.try_lock_shared()) {
        Ok(Ok(())) => false,
        Ok(Err(TryLockError::WouldBlock)) => true,
        Ok(Err(TryLockError::Error(_))) => true,
        Err(e) => !is_unopened(&e),
    }
}

/// Whether nobody can have opened a file through its name, or the caller may not open it.
fn is_unopened(e: &io::Error) -> bool {
    use nix::libc::{EACCES, ELOOP, ENOENT, ENOTDIR, ENXIO, EPERM};
    let errno = e.raw_os_error().unwrap_or_default();
    [ENOENT, ENOTDIR, ELOOP, ENXIO, EACCES, EPERM].contains(&errno)
}

/// Whether an error is transient: no descriptors, no memory, EAGAIN, or a signal.
pub(super) fn is_transient(e: &io::Error) -> bool {
    use nix::libc::{EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM};
    let errno = e.raw_os_error().unwrap_or_default();
    [EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM].contains(&errno)
}

/// Opens a file of ours with these options, and sets its mode, whatever the umask of the run.
pub(super) fn open(path: &Path, mode: u32, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(mode).open(path)?;
    if file.metadata()?.mode() & 0o777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Opens a file that no other user may open or lock; creates it if missing.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    open(path, 0o600, options.custom_flags(GUARDED))
}

/// Waits until the names in a directory are on disk.
///
/// # Errors
/// The failed operation and its directory.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|opened| sync(&opened));
    synced.with_context(|| format!("cannot sync {}", shown(directory).display()))
}

/// Writes a temporary file, syncs it, and renames it to `name`.
pub(super) fn replace_file(directory: &Path, name: &str, text: &[u8], mode: u32) -> Result<()> {
    Draft::write(directory, name, text, mode)?
        .on_disk(File::sync_data)?
        .publish()?;
    Ok(())
}

/// Next content of a file, written to a temporary file beside it, which is removed unless it is
/// published.
#[derive(Debug)]
pub struct Draft {
    file: File,
    temporary: Temporary,
    path: PathBuf,
}

#[derive(Debug)]
struct Temporary(PathBuf);

impl Draft {
    /// Writes the temporary file, without a sync.
    pub(super) fn write(directory: &Path, name: &str, text: &[u8], mode: u32) -> Result<Self> {
        let path = directory.join(name);
        let temporary = Temporary(directory.join(format!(".{name}.{}", token())));
        let mut options = File::options();
        let mut write = || {
            let new = options.write(true).create_new(true);
            let mut file = open(&temporary.0, mode, new)?;
            file.write_all(text)?;
            Ok(file)
        };
        let file = write().map_err(|e: io::Error| cannot_write(&path, e))?;
        Ok(Draft {
            file,
            temporary,
            path,
        })
    }

    /// Waits for the disk using `sync`.
    pub(super) fn on_disk(self, sync: impl FnOnce(&File) -> io::Result<()>) -> Result<Self> {
        sync(&self.file).map_err(|e| cannot_write(&self.path, e))?;
        Ok(self)
    }

    /// Renames the temporary file over the file: all or nothing.
    ///
    /// # Errors
    /// The failed rename; the old content then still exists.
    pub fn publish(mut self) -> Result<File> {
        look();
        std::fs::rename(&self.temporary.0, &self.path).map_err(|e| cannot_write(&self.path, e))?;
        self.temporary.0.clear();
        look();
        Ok(self.file)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Error for a file that cannot be written.
pub(super) fn cannot_write(path: &Path, e: io::Error) -> anyhow::Error {
    anyhow::Error::from(e).context(format!("cannot write {}", shown(path).display()))
}
