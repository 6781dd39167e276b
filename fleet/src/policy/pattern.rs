//! PURE: regular expressions that select nodes.

use std::str::FromStr;

use regex::{Regex, RegexBuilder};

/// Length of the longest expression, in bytes.
const MOST: usize = 512;
/// Size of the largest compiled expression, in bytes; a `\w` takes about 20,000. The time of a
/// search is proportional to it.
const LARGEST: usize = 512 << 10;

/// Regular expression.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl Pattern {
    /// Whether the expression matches a part of a text.
    pub fn is_in(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            let shown = crate::wire::shown(text);
            format!("invalid regular expression '{shown}': {why}")
        };
        if text.len() > MOST {
            return Err(wrong(&format!("it is longer than {MOST} bytes")));
        }
        let mut builder = RegexBuilder::new(text);
        let built = builder.size_limit(LARGEST).build();
        built.map(Pattern).map_err(|e| {
            let text = e.to_string();
            // The lines before the last one show the position of the error.
            let last = text.lines().last().unwrap_or_default();
            wrong(last.trim_start_matches("error: "))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Pattern, String> {
        text.parse()
    }

    #[test]
    fn expression_that_cannot_be_used_says_why() {
        for (text, words) in [
            ("(a", "unclosed group"),
            ("a)", "unopened group"),
            ("[a", "unclosed character class"),
            ("*a", "repetition operator missing expression"),
            ("a\\", "incomplete escape sequence"),
            ("[z-a]", "invalid character class range"),
            ("(?=a)", "look-around"),
            (
                &format!("{}a{}", "(".repeat(251), ")".repeat(251)),
                "exceed the maximum number of nested",
            ),
            ("(\\w{50}){50}", "exceeds size limit"),
            (&"a".repeat(513), "longer than 512"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn expression_matches_a_part_of_a_text() {
        for (expression, text, is_in) in [
            ("web", "the web1", true),
            ("^web[0-9]{2}$", "web01", true),
            ("^web[0-9]{2}$", "web1", false),
            ("(?i)debian", "Debian", true),
            (r"^\w+\.\d+\s?$", "Tür.12 ", true),
            ("^[[:alpha:]]+$", "web", true),
            (r"^\w+-\w+\.\w+\.\w+\.\w+$", "a-b.c.d.e", true),
            (r"^[\w.-]+:\d+$", "a-b.c:1", true),
        ] {
            let found = read(expression).expect(expression).is_in(text);
            assert_eq!(found, is_in, "{expression} in {text}");
        }
    }

    #[test]
    fn nested_repetitions_end() {
        let text = "a".repeat(512);
        for slow in [
            "(a*)*b",
            "(a|a)*b",
            "(a|aa)+$b",
            "(.*)(.*)(.*)(.*)b",
            "((a*)*)*b",
        ] {
            assert!(!read(slow).expect(slow).is_in(&text));
        }
        let long = format!("{}b", "a?".repeat(255));
        assert!(!read(&long).expect("short enough").is_in(&text));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(expression in "\\PC{0,20}", text in "\\PC{0,10}") {
            if let Ok(pattern) = read(&expression) {
                let _ = pattern.is_in(&text);
            }
        }
    }
}
