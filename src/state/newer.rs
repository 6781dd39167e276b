//! State that a newer version of the program wrote.

use anyhow::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Version written into records. A program that knows only a lower one leaves such a record alone,
/// and so do its waiters. A change that raises this must therefore also give the timers of each
/// target new waiters when it first writes that target's record, under the same lock.
pub const VERSION: u32 = 1;

/// A value that carries the record's version.
pub trait Versioned: DeserializeOwned {
    /// Version of the record.
    fn version(&self) -> u32;
}

/// Reads a value from JSON.
///
/// # Errors
/// [`Newer`] if the version is higher, whatever the shape of the value; otherwise the parse error.
pub fn read<T: Versioned>(text: &[u8]) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let value = serde_json::from_slice::<T>(text);
    let version = match &value {
        Ok(value) => value.version(),
        Err(_) => serde_json::from_slice(text).map_or(0, |Version { version }| version),
    };
    if version > VERSION {
        return Err(Newer(version).into());
    }
    Ok(value?)
}

/// Version that this program does not know, because a newer program wrote the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newer(pub u32);

impl std::fmt::Display for Newer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = self.0;
        write!(
            f,
            "a newer version of again wrote it (record version {version}, this program reads up to \
             {VERSION}); upgrade again on this machine"
        )
    }
}

impl std::error::Error for Newer {}
