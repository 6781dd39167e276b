//! Records that a newer version of the program wrote.

use super::record::VERSION;

/// A record's version that this program does not know: a newer one wrote it.
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
