//! Files on disk. Puppet renews and revokes certificates while the service runs: changed files are
//! read again.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use again_base::sys::file::read_named;

use super::authority::{Authority, Revocation};
use super::own::Own;
use crate::wire::Malformed;

/// Largest file of certificates that is read, in bytes; real ones are much smaller.
pub const LARGEST: u64 = 64 << 20;

/// Paths of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Certificate of this node.
    pub certificate: PathBuf,
    /// Private key of this node.
    pub key: PathBuf,
    /// Certificates of the CA.
    pub ca: PathBuf,
    /// Revocation lists of the CA.
    pub crl: PathBuf,
    /// Extent of the revocation check.
    pub revocation: Revocation,
}

/// Identity of this node and its CA, from the last usable versions of the files.
pub struct Identity {
    paths: Paths,
    stamps: [Option<Stamp>; 4],
    own: Own,
    authority: Authority,
}

/// Metadata that changes when a file is replaced or modified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Identity {
    /// Reads the files.
    ///
    /// # Errors
    /// A message that says which file cannot be used, and why.
    pub fn read(paths: Paths) -> Result<Identity, Malformed> {
        // Read before the files, so that a change meanwhile is noticed the next time.
        let stamps = stamps(&paths);
        let (own, authority) = load(&paths)?;
        Ok(Identity {
            paths,
            stamps,
            own,
            authority,
        })
    }

    /// Reads the files again if one has changed; returns whether one has. If one cannot be used,
    /// everything stays unchanged, and the files are read again at the next change.
    ///
    /// # Errors
    /// A message that says which file cannot be used, and why.
    pub fn refresh(&mut self) -> Result<bool, Malformed> {
        let stamps = stamps(&self.paths);
        if stamps == self.stamps {
            return Ok(false);
        }
        self.stamps = stamps;
        (self.own, self.authority) = load(&self.paths)?;
        Ok(true)
    }

    /// Certificate and key of this node.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// Authority of the CA.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }
}

fn stamps(paths: &Paths) -> [Option<Stamp>; 4] {
    let stamp = |metadata: Metadata| Stamp {
        inode: metadata.ino(),
        size: metadata.size(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    };
    let all = [&paths.certificate, &paths.key, &paths.ca, &paths.crl];
    all.map(|path| fs::metadata(path).ok().map(stamp))
}

fn load(paths: &Paths) -> Result<(Own, Authority), Malformed> {
    let own = Own::new(&bytes(&paths.certificate)?, &bytes(&paths.key)?)?;
    Ok((own, authority(&paths.ca, &paths.crl, paths.revocation)?))
}

/// Authority of the CA alone, from the current content of these files.
///
/// # Errors
/// A message that says which file cannot be used, and why.
pub fn authority(ca: &Path, crl: &Path, revocation: Revocation) -> Result<Authority, Malformed> {
    let crl = if revocation == Revocation::Off {
        Vec::new()
    } else {
        bytes(crl)?
    };
    Authority::new(&bytes(ca)?, &crl, revocation)
}

/// Content of a file.
///
/// # Errors
/// A message that says why it cannot be read.
pub fn bytes(path: &Path) -> Result<Vec<u8>, Malformed> {
    read_named(path, LARGEST)
        .map_err(|e| Malformed::new(format!("{} cannot be read: {e}", path.display())))
}
