//! Settings from a file or the environment, not yet interpreted.

use std::collections::BTreeMap;
use std::ffi::OsString;

use ::toml::Spanned;
use ::toml::de::{DeString, DeTable, DeValue};

/// Value of a setting, not yet interpreted.
#[derive(Debug)]
pub enum Written {
    /// `true` or `false` in the file.
    Switch(bool),
    /// A string or a whole number of the file.
    Text(String),
    /// A list of strings in the file.
    List(Vec<String>),
    /// A table of lists of strings.
    Table(BTreeMap<String, Vec<String>>),
    /// The value of an environment variable.
    Variable(OsString),
}

impl Written {
    /// Text of a single value; `wanted` is its expected form, for the error.
    ///
    /// # Errors
    /// The value is a list or a table, or is not UTF-8.
    pub fn text(self, wanted: &str) -> Result<String, String> {
        match self {
            Written::Switch(value) => Ok(value.to_string()),
            Written::Text(text) => Ok(text),
            Written::Variable(text) => utf8(text),
            Written::List(_) | Written::Table(_) => Err(format!("expected {wanted}")),
        }
    }

    /// Texts of several values; an environment variable separates them with commas.
    ///
    /// # Errors
    /// The value is neither a list nor a variable, or is not UTF-8.
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

/// Offset of the byte at which an error begins, and its message.
type Wrong = (usize, String);

/// Value of the file.
///
/// # Errors
/// The type of the value is not one that settings have.
fn written(value: &Spanned<DeValue<'_>>) -> Result<Written, Wrong> {
    let wrong = |why: &str| Err((value.span().start, why.to_owned()));
    match value.get_ref() {
        DeValue::Boolean(value) => Ok(Written::Switch(*value)),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Ok(Written::Text(number.to_string())),
            Err(_) => wrong("the number is too large"),
        },
        DeValue::String(text) => Ok(Written::Text(text.to_string())),
        DeValue::Array(_) => texts(value).map(Written::List),
        DeValue::Table(rows) => {
            let row = |(key, list): (&Spanned<DeString<'_>>, _)| {
                let key = key.get_ref().to_string();
                let list = texts(list).map_err(|(at, e)| (at, format!("in the row '{key}': {e}")));
                Ok((key, list?))
            };
            let rows = rows.iter().map(row);
            rows.collect::<Result<_, Wrong>>().map(Written::Table)
        }
        DeValue::Float(_) | DeValue::Datetime(_) => wrong(
            "expected a whole number, a string, true, false, a list of strings or a table of such lists",
        ),
    }
}

fn texts(value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, Wrong> {
    let DeValue::Array(list) = value.get_ref() else {
        return Err((value.span().start, "expected a list of strings".to_owned()));
    };
    let text = |one: &Spanned<DeValue<'_>>| match one.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        _ => Err((one.span().start, "expected a string".to_owned())),
    };
    list.iter().map(text).collect()
}

fn parse(text: &str) -> Result<DeTable<'_>, String> {
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().unwrap_or_default();
        let line = line(text, at.start);
        match (e.message(), text.get(at)) {
            (message @ "duplicate key", Some(key)) => format!("line {line}: {message} '{key}'"),
            (message, _) => format!("line {line}: {message}"),
        }
    })?;
    Ok(table.into_inner())
}

/// Number of the line with the byte at an offset, from 1.
fn line(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|b| *b == b'\n').count()
}

/// Number of the line that sets a key; 1 if no line does.
pub fn line_of(text: &str, key: &str) -> usize {
    let table = parse(text).unwrap_or_default();
    let found = table.keys().find(|found| found.get_ref() == key);
    found.map_or(1, |key| line(text, key.span().start))
}

/// Whether a line sets a key to a word, even if other lines are invalid.
pub fn says(text: &str, key: &str, word: &str) -> bool {
    let sets = |line: &str| {
        let line = line.split('#').next().unwrap_or_default();
        let pair = line.split_once('=');
        pair.is_some_and(|(name, value)| name.trim() == key && value.trim() == word)
    };
    text.lines().any(sets)
}

/// Parses a file of settings and passes each key and value to `put`.
///
/// # Errors
/// A message that names the line, the key and the problem.
pub fn read(
    text: &str,
    known: &[&str],
    put: &mut dyn FnMut(&str, Written) -> Result<(), String>,
) -> Result<(), String> {
    for (key, value) in parse(text)? {
        let at = key.span().start;
        let key = key.into_inner();
        if !known.contains(&&*key) {
            return Err(format!(
                "line {}: unknown key '{key}'; known are {}",
                line(text, at),
                known.join(", ")
            ));
        }
        let put = written(&value).and_then(|written| put(&key, written).map_err(|e| (at, e)));
        put.map_err(|(at, e)| format!("line {}: key '{key}': {e}", line(text, at)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{line_of, read, says};

    fn error(text: &str) -> String {
        read(text, &["a", "b"], &mut |_, _| Err("unusable".to_owned())).expect_err(text)
    }

    #[test]
    fn error_names_the_line_also_behind_text_that_looks_like_the_key() {
        let text = "b = \"\"\"\na = 1\n\"\"\"\n# a = 1\n'a' = 1\n";
        assert_eq!(line_of(text, "a"), 5);
        assert_eq!(error(text), "line 5: key 'a': unusable");
        assert_eq!(line_of("b = 1\n\n[a]\nx = []\n", "a"), 3);
        assert_eq!(line_of("b = 1\na.x = []\n", "a"), 2);
        assert_eq!(line_of("= broken", "a"), 1);
    }

    #[test]
    fn error_of_the_syntax_is_one_line_with_its_number() {
        for (text, line, words) in [
            ("b = 1\na", 2, "expected `=`"),
            ("b = 1\na = [1\n", 2, "array"),
            ("b = 1\nb = 2\n", 2, "duplicate key 'b'"),
            ("[b]\nx = []\n[b]\n", 3, "duplicate key 'b'"),
            ("[b]\nx = []\nx = []\n", 3, "duplicate key 'x'"),
            ("b = 1\n\na = \"x\n", 3, "string"),
        ] {
            let error = error(text);
            assert!(error.starts_with(&format!("line {line}: ")), "{error}");
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn error_names_the_value_that_no_setting_is() {
        for value in ["1.5", "1979-05-27", "{ x = 1 }", "['x', 3]"] {
            let error = error(&format!("\na = {value}"));
            assert!(error.starts_with("line 2: key 'a': "), "{error}");
            assert!(error.contains("expected a"), "{error}");
        }
        let row = "[b]\nx = ['y']\nz = 1\n";
        assert_eq!(
            error(row),
            "line 3: key 'b': in the row 'z': expected a list of strings"
        );
        let many = "a = [\n  'x',\n  3,\n]\n";
        assert_eq!(error(many), "line 3: key 'a': expected a string");
        let large = "b = 9223372036854775808";
        assert_eq!(error(large), "line 1: key 'b': the number is too large");
    }

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
