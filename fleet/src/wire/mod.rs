//! PURE: what stands in the engine, as bytes: keys and values, versioned, bounded, and read as if an enemy had written them.
//!
//! A value is an [`envelope`]: a kind, a namespace and a body under one signature. Its body cannot be had before a verifier
//! has said yes to those very bytes. Bodies are JSON; every bound is checked when one is written and when one is read.

/// An enum whose variants are words, the same in JSON and for people.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($name::$variant => $word,)*
                })
            }
        }
    };
}

/// That a node with places is alive.
pub mod beat;
/// What the bodies of all kinds have in common.
pub mod body;
/// A kind, a namespace and a body, and the signature over them.
pub mod envelope;
/// What runs did, told when it happens.
pub mod event;
/// What a node tells of itself.
pub mod inventory;
/// Where values stand.
pub mod key;
/// What a trigger carries of its past.
pub mod lineage;
/// Which of some nodes it is.
pub mod lock;
/// An event that met a rule, as it is handed over.
pub mod met;
/// Names that may stand in a key.
pub mod name;
/// What became of a trigger.
pub mod outcome;
/// How much is kept of what each sender causes.
pub mod quota;
/// The right to run now.
pub mod slot;
/// The targets of a rolling run.
pub mod targets;
/// A request that Puppet runs on another node.
pub mod trigger;
/// A value at its key, with its revision.
pub mod value;

use std::fmt;

/// Why bytes are not what they should be, or why something cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// With a sentence that names the thing and what is wrong with it.
    pub fn new(what: impl Into<String>) -> Self {
        Malformed(what.into())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// Why bytes that begin otherwise than `magic`, which ends with the version, are not read. If they are of another version, it is named.
pub fn other_version(magic: &[u8; 4], bytes: &[u8], what: &str) -> Malformed {
    let [family @ .., known] = magic;
    let is_other = |version: &&u8| version.is_ascii_alphanumeric() && *version != known;
    let version = bytes.strip_prefix(family).and_then(<[u8]>::first);
    Malformed::new(match version.filter(is_other) {
        Some(version) => format!(
            "version {} of {what}: this program knows version {}",
            char::from(*version),
            char::from(*known)
        ),
        None => format!("that is not {what}"),
    })
}

/// A text of somebody else's for a message: at most 60 characters, controls escaped.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_is_shown_short_and_without_controls() {
        assert_eq!(shown("web1"), "web1");
        assert_eq!(shown("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(shown(&"x".repeat(61)).chars().count(), 63);
        assert!(shown(&"x".repeat(1000)).ends_with("..."));
    }
}
