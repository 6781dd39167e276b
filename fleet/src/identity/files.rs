//! The files on disk. Puppet renews and revokes certificates while the service runs: what has changed is read again.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use again_base::sys::file::read_named;

use super::authority::{Authority, Revocation};
use super::own::Own;
use crate::wire::Malformed;

/// No file of certificates is anywhere near this size.
pub const LARGEST: u64 = 64 << 20;

/// Where the files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// This node's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CA's certificates.
    pub ca: PathBuf,
    /// The CA's revocation lists.
    pub crl: PathBuf,
    /// How far revocation is looked at.
    pub revocation: Revocation,
}

/// This node and its CA, as the files last said it well.
pub struct Identity {
    paths: Paths,
    stamps: [Option<Stamp>; 4],
    own: Own,
    authority: Authority,
}

/// What a file has that another in its place has not.
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
    /// Which one cannot be used, and why.
    pub fn read(paths: Paths) -> Result<Identity, Malformed> {
        // Before the files, so that a change meanwhile is seen the next time.
        let stamps = stamps(&paths);
        let (own, authority) = load(&paths)?;
        Ok(Identity {
            paths,
            stamps,
            own,
            authority,
        })
    }

    /// Reads the files again if one has changed; whether one has. What cannot be used leaves everything as it was, and is
    /// read again at its next change.
    ///
    /// # Errors
    /// Which one cannot be used, and why.
    pub fn refresh(&mut self) -> Result<bool, Malformed> {
        let stamps = stamps(&self.paths);
        if stamps == self.stamps {
            return Ok(false);
        }
        self.stamps = stamps;
        (self.own, self.authority) = load(&self.paths)?;
        Ok(true)
    }

    /// This node.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// The CA.
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

/// The CA alone, as these files say it now.
///
/// # Errors
/// Which one cannot be used, and why.
pub fn authority(ca: &Path, crl: &Path, revocation: Revocation) -> Result<Authority, Malformed> {
    let crl = if revocation == Revocation::Off {
        Vec::new()
    } else {
        bytes(crl)?
    };
    Authority::new(&bytes(ca)?, &crl, revocation)
}

/// The content of one of them.
///
/// # Errors
/// Why it cannot be read.
pub fn bytes(path: &Path) -> Result<Vec<u8>, Malformed> {
    read_named(path, LARGEST)
        .map_err(|e| Malformed::new(format!("{} cannot be read: {e}", path.display())))
}
