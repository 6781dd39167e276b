//! Data that one program writes and the other one reads. The types are the same on both sides, and
//! check their bounds when they are read.
#![forbid(unsafe_code)]

/// Output of `again history --json`.
pub mod history;
/// Names of nodes, triggers and fleets.
pub mod name;
/// Origin of a run that other nodes requested.
pub mod origin;
/// Lines of `again-fleet slot --json`.
pub mod slot;
/// Output of `again status --json`.
pub mod status;

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error};

/// Version of `again status --json` and `again history --json`.
pub const SCHEMA: u32 = 1;

/// Reads the version of an output.
///
/// # Errors
/// The version is not [`SCHEMA`].
fn of_schema<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    match u32::deserialize(input)? {
        SCHEMA => Ok(SCHEMA),
        other => Err(D::Error::custom(format!(
            "its schema is {other}, and this program reads {SCHEMA}"
        ))),
    }
}

/// Reads a word; `None` if it is unknown.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(input: D) -> Result<Option<T>, D::Error> {
    let word = serde_json::Value::deserialize(input)?;
    Ok(serde_json::from_value(word).ok())
}

/// Reason why bytes are invalid, or why something cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// Error with this sentence, which names the thing and its problem.
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

/// Text from outside for a message: at most 60 characters, control characters escaped.
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
