//! Private files of a target: an order for each timer, and its command line.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::files::{self, Draft, GUARDED, cannot_write, read_bounded, token};
use super::order::CommandLine;
use super::store::{Store, is_id, names};

/// File name of a target's command line.
const COMMAND: &str = "command";

/// Opens an order and locks it. The file is opened for reading only, because a file that a waiter
/// holds open for writing keeps a file system from being remounted read-only. On NFS, flock(2)
/// fails with EBADF unless the file is open for writing (see its section on NFS), so there it is
/// opened for writing too.
fn open_locked(path: &Path, lock: impl Fn(&File) -> io::Result<()>) -> io::Result<File> {
    let file = File::open(path)?;
    match lock(&file) {
        Err(e) if e.raw_os_error() == Some(nix::libc::EBADF) => {
            let file = File::options().read(true).write(true).open(path)?;
            lock(&file).map(|()| file)
        }
        locked => locked.map(|()| file),
    }
}

impl Store {
    /// Writes a timer's order, readable by its owner only, and locks it. The lock belongs to the
    /// descriptor, and so to every process that has a copy of it.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn write_order(&self, id: &str, token: &str, text: &[u8]) -> Result<File> {
        self.add_entry_to_index(id, token)?;
        let path = self.order_path(id, token);
        let write = || -> io::Result<File> {
            let mut options = File::options();
            let new = options.write(true).create_new(true);
            files::open(&path, 0o600, new)?.write_all(text)?;
            open_locked(&path, File::lock)
        };
        write()
            .inspect_err(|e| {
                if e.kind() != io::ErrorKind::AlreadyExists {
                    self.remove_order(id, token);
                }
            })
            .map_err(|e| cannot_write(&path, e))
    }

    /// Stores a target's command line, unless it is stored already. After a failure it merely
    /// cannot be shown.
    pub fn keep_command(&self, id: &str, line: &CommandLine) {
        if self.command(id).is_none()
            && let Ok(text) = serde_json::to_vec(line)
            && let Err(e) =
                Draft::write(&self.target_dir(id), COMMAND, &text, 0o600).and_then(Draft::publish)
        {
            tracing::debug!("{e:#}");
        }
    }

    /// A target's command line, if the caller may see it.
    pub fn command(&self, id: &str) -> Option<CommandLine> {
        CommandLine::read(&read_bounded(&self.target_dir(id).join(COMMAND)).ok()?)
    }

    /// Creates a file without a name, for use when memory_file is refused: some system call filters
    /// refuse memfd_create(2), and Linux before 3.17 does not have it.
    ///
    /// # Errors
    /// Errors of open(2) and write(2).
    pub fn unnamed_order(&self, id: &str, text: &[u8]) -> io::Result<OwnedFd> {
        // Named like an order, so that it is cleaned up if this process dies right now.
        let path = self.order_path(id, &token());
        let mut options = File::options();
        let mut file = files::open(&path, 0o600, options.write(true).create_new(true))?;
        // Opened for reading only, since a waiter holds it: see `write_order`.
        let readable = File::open(&path);
        std::fs::remove_file(&path)?;
        file.write_all(text)?;
        Ok(readable?.into())
    }

    /// Path of a timer's order.
    pub fn order_path(&self, id: &str, token: &str) -> PathBuf {
        self.target_dir(id).join("orders").join(token)
    }

    /// Reads a timer's order.
    ///
    /// # Errors
    /// Errors of open(2) and read(2).
    pub fn read_order(&self, id: &str, token: &str) -> io::Result<Vec<u8>> {
        read_bounded(&self.order_path(id, token))
    }

    /// Empties the order of a rerun that is to be ended, so that it is not started again if it has
    /// not begun yet.
    pub fn empty_order(&self, id: &str, token: &str) {
        let mut options = File::options();
        let emptied = options.write(true).truncate(true).custom_flags(GUARDED);
        if let Err(e) = emptied.open(self.order_path(id, token)) {
            tracing::debug!("the order of a rerun cannot be emptied: {e}");
        }
    }

    pub(super) fn has_order(&self, id: &str, token: &str) -> bool {
        let order = self.order_path(id, token).symlink_metadata();
        !order.is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    }

    /// Whether an order still has its content, that is, the rerun of its timer has not begun.
    pub fn order_is_whole(&self, id: &str, token: &str) -> bool {
        let order = self.order_path(id, token).symlink_metadata();
        order.is_ok_and(|meta| meta.is_file() && meta.len() > 0)
    }

    /// Whether a process may hold the lock on a timer's order, as far as can be seen now.
    pub fn order_may_be_held(&self, id: &str, token: &str) -> bool {
        files::may_be_locked(&self.order_path(id, token))
    }

    /// Removes the file of a timer's order. Its entry in the index stays while the record has that
    /// timer or rerun: see [`Store::remove_strays`].
    pub fn remove_order_file(&self, id: &str, token: &str) {
        let _ = std::fs::remove_file(self.order_path(id, token));
    }

    /// Removes a timer's order once nothing refers to it.
    pub fn remove_order(&self, id: &str, token: &str) {
        self.remove_order_file(id, token);
        // The caller may lack the right to remove it.
        if !self.has_order(id, token) {
            self.remove_entry(id, token);
        }
    }

    /// Whether a process holds the lock on a timer's order, as a living waiter in any pid namespace
    /// does. `None` if unknown.
    pub fn order_is_held(&self, id: &str, token: &str) -> Option<bool> {
        files::is_locked(&self.order_path(id, token))
    }

    /// Whether a target has an order whose lock no process holds: its waiter has died, or its rerun
    /// has ended.
    pub fn has_loose_order(&self, id: &str) -> bool {
        let orders = self.target_dir(id).join("orders");
        let is_loose = |token: &str| self.order_is_held(id, token) == Some(false);
        names(&orders).any(|name| is_id(&name) && is_loose(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    fn mode(file: &File) -> OFlag {
        let flags = fcntl(file, FcntlArg::F_GETFL).expect("a descriptor");
        OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE
    }

    /// The second lock fails where the client of NFS would have it fail: by the access mode.
    #[test]
    fn an_order_is_open_for_writing_only_where_its_lock_needs_that() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let local = open_locked(file.path(), File::lock).expect("locked");
        assert_eq!(mode(&local), OFlag::O_RDONLY);
        drop(local);
        let nfs = open_locked(file.path(), |file| match mode(file) {
            OFlag::O_RDONLY => Err(io::Error::from_raw_os_error(nix::libc::EBADF)),
            _ => file.lock(),
        });
        assert_eq!(mode(&nfs.expect("locked")), OFlag::O_RDWR);
        assert_eq!(super::files::is_locked(file.path()), Some(false));
    }
}
