//! Settings as they are written, in a file and in the environment, before anybody knows what they mean.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A value as it is written.
#[derive(Debug)]
pub enum Written {
    /// `true` or `false` in the file.
    Switch(bool),
    /// A string or a whole number of the file.
    Text(String),
    /// A list of strings in the file.
    List(Vec<String>),
    /// A table of such lists.
    Table(BTreeMap<String, Vec<String>>),
    /// What an environment variable holds.
    Variable(OsString),
}

impl Written {
    /// The text of a single value; `wanted` is what it should be.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(self, wanted: &str) -> Result<String, String> {
        match self {
            Written::Switch(value) => Ok(value.to_string()),
            Written::Text(text) => Ok(text),
            Written::Variable(text) => utf8(text),
            Written::List(_) | Written::Table(_) => Err(format!("expected {wanted}")),
        }
    }

    /// The texts of several values, which in a variable stand between commas.
    ///
    /// # Errors
    /// It is something else.
    pub fn list(self, wanted: &str) -> Result<Vec<String>, String> {
        match self {
            Written::List(list) => Ok(list),
            Written::Variable(text) => Ok(utf8(text)?
                .split(',')
                .map(|part| part.trim().to_owned())
                .collect()),
            _ => Err(format!("expected {wanted}")),
        }
    }
}

fn utf8(text: OsString) -> Result<String, String> {
    text.into_string().map_err(|_| "it is not UTF-8".to_owned())
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Written;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, a string, true, false, a list of strings or a table of such lists")
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<Written, E> {
                Ok(Written::Switch(value))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Written, E> {
                Ok(Written::Text(number.to_string()))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Written, E> {
                Ok(Written::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Written, A::Error> {
                let texts = std::iter::from_fn(|| list.next_element().transpose());
                texts.collect::<Result<_, _>>().map(Written::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Written, A::Error> {
                let rows = std::iter::from_fn(|| table.next_entry().transpose());
                rows.collect::<Result<_, _>>().map(Written::Table)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The number of the line that sets a key.
pub fn line_of(text: &str, key: &str) -> usize {
    let sets = |line: &str| {
        let found = line.split(['=', '.', ']']).next().unwrap_or_default();
        found.trim_matches([' ', '\t', '"', '\'', '[']) == key
    };
    text.lines().position(sets).map_or(1, |at| at + 1)
}

/// Whether a line sets a key to a word, whatever the others say.
pub fn says(text: &str, key: &str, word: &str) -> bool {
    let sets = |line: &str| {
        let line = line.split('#').next().unwrap_or_default();
        let pair = line.split_once('=');
        pair.is_some_and(|(name, value)| name.trim() == key && value.trim() == word)
    };
    text.lines().any(sets)
}

/// Parses a file of settings and puts each value where `put` wants it.
///
/// # Errors
/// What is wrong with which key, and in which line.
pub fn read(
    text: &str,
    known: &[&str],
    put: &mut dyn FnMut(&str, Written) -> Result<(), String>,
) -> Result<(), String> {
    let table: BTreeMap<String, Written> = basic_toml::from_str(text).map_err(|e| e.to_string())?;
    for (key, written) in table {
        let line = line_of(text, &key);
        if !known.contains(&key.as_str()) {
            return Err(format!(
                "line {line}: unknown key '{key}'; known are {}",
                known.join(", ")
            ));
        }
        put(&key, written).map_err(|e| format!("line {line}: key '{key}': {e}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::says;

    #[test]
    fn what_a_line_says_counts_whatever_the_others_are() {
        let text = "= broken [\n  wanted= true # by all means\nother = \"true\"\n# hidden = true\n";
        assert!(says(text, "wanted", "true"));
        for key in ["other", "hidden", "# hidden", "want", ""] {
            assert!(!says(text, key, "true"), "{key}");
        }
        assert!(!says(text, "wanted", "false"));
    }
}
