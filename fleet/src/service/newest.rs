//! File with the newest versions of nodes' facts that this service has read.

use std::io;
use std::path::{Path, PathBuf};
use tracing::warn;

use again_base::sys::file::{OnDisk, atomic_write};
use rustix::fs::OFlags;

use crate::policy::newest::Newest;

/// Largest size of the file in bytes, for as many nodes as are remembered.
const LONGEST: u64 = 8 << 20;

/// File with the newest versions.
pub struct File(PathBuf);

impl File {
    /// Opens the file in this directory, and reads it. A file that cannot be read holds nothing.
    pub fn open(directory: &Path) -> (File, Newest) {
        let path = directory.join("newest");
        let bytes =
            again_base::sys::file::read_regular(&path, LONGEST, OFlags::NOFOLLOW.bits() as i32);
        let bytes = bytes.unwrap_or_else(|e| {
            if e.kind() != io::ErrorKind::NotFound {
                warn!(
                    "the newest versions of other nodes' facts are not known: {}: {e}",
                    path.display()
                );
            }
            Vec::new()
        });
        let newest = Newest::read(&String::from_utf8_lossy(&bytes));
        (File(path), newest)
    }

    /// Writes the versions if they have changed. Readers see the old text or the new one.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn write(&self, newest: &mut Newest) -> io::Result<()> {
        let Some(text) = newest.written() else {
            return Ok(());
        };
        atomic_write(&self.0, text.as_bytes(), 0o600, OnDisk::Content)?;
        newest.kept();
        Ok(())
    }
}
