//! PURE: contents of the backend as bytes: keys and values, versioned, bounded, and parsed as
//! untrusted input.
//!
//! A value is an [`envelope`]: a kind, a namespace and a body under one signature. The body cannot
//! be read before a verifier has accepted the signature over exactly these bytes. Bodies are JSON;
//! every bound is checked on writing and on reading.

/// Beat of a node with slots or locks.
pub mod beat;
/// Bodies of all kinds.
pub mod body;
/// Kind, namespace and body, and the signature over them.
pub mod envelope;
/// Events of runs, published as they happen.
pub mod event;
/// Inventory that a node publishes.
pub mod inventory;
/// Keys of values.
pub mod key;
/// Origins of a trigger.
pub mod lineage;
/// Holder of a lock.
pub mod lock;
/// Status of a trigger.
pub mod outcome;
/// Limits of what is stored for each sender.
pub mod quota;
/// Event that matched a rule, as it is handed over.
pub mod rule_match;
/// Slot of a node in a group.
pub mod slot;
/// Targets of a rolling run.
pub mod targets;
/// Request that Puppet runs on another node.
pub mod trigger;
/// Value at its key, with its revision.
pub mod value;

pub use again_base::schema::{Malformed, name, shown};

/// Error about bytes that do not begin with `magic`, which ends with the version. If they are
/// of another version, the message names it.
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
