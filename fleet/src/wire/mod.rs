//! PURE: what stands in the backend, as bytes: keys and values, versioned, bounded, and read as if an enemy had written them.
//!
//! A value is an [`envelope`]: a kind, a namespace and a body under one signature. Its body cannot be had before a verifier
//! has said yes to those very bytes. Bodies are JSON; every bound is checked when one is written and when one is read.

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
/// What became of a trigger.
pub mod outcome;
/// How much is kept of what each sender causes.
pub mod quota;
/// An event that matched a rule, as it is handed over.
pub mod rule_match;
/// The right to run now.
pub mod slot;
/// The targets of a rolling run.
pub mod targets;
/// A request that Puppet runs on another node.
pub mod trigger;
/// A value at its key, with its revision.
pub mod value;

pub use again_base::schema::{Malformed, name, shown};

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
