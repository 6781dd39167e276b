//! Names that may be part of a key, and their encoding in keys.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Malformed, shown};

/// Defines a type of names that is checked when it is made, so that every value is valid.
macro_rules! names {
    ($($(#[$meta:meta])* $name:ident, $word:literal, $most:literal, $check:expr;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// Most bytes in a name.
            pub const MOST: usize = $most;

            /// Name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Malformed;

            fn from_str(text: &str) -> Result<Self, Malformed> {
                let check: fn(&str) -> Result<(), &'static str> = $check;
                let wrong = |why: &str| Malformed::new(format!("'{}' is no {}: {why}", shown(text), $word));
                match text.len() {
                    0 => Err(wrong("it is empty")),
                    1..=$most => check(text).map_err(wrong).map(|()| $name(text.into())),
                    _ => Err(wrong(concat!("it is longer than ", $most, " bytes"))),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = Malformed;
            fn try_from(text: String) -> Result<Self, Malformed> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

names! {
    /// Certname: a name that Puppet's server signs (printable ASCII in lower case, no slash, no
    /// asterisk).
    Node, "certname", 253, certname;
    /// Name of a trigger: any text without control characters.
    Name, "name", 128, printable;
    /// Name of a fleet; nodes of different namespaces share a backend and nothing else.
    Namespace, "namespace", 64, word;
    /// Id of a trigger or of an origin: 32 hexadecimal digits.
    Id, "id", 32, digits;
}

/// Rules of Puppet's `lib/puppet/ssl/base.rb` (`VALID_CERTNAME`), and those that puppetserver adds
/// when it signs.
fn certname(text: &str) -> Result<(), &'static str> {
    let may =
        |b: u8| (b' '..=b'~').contains(&b) && b != b'/' && b != b'*' && !b.is_ascii_uppercase();
    if text.bytes().all(may) {
        Ok(())
    } else {
        Err("a certname has printable ASCII in lower case, no '/' and no '*'")
    }
}

fn printable(text: &str) -> Result<(), &'static str> {
    if text.chars().any(char::is_control) {
        Err("it has control characters")
    } else {
        Ok(())
    }
}

fn word(text: &str) -> Result<(), &'static str> {
    if text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    {
        Ok(())
    } else {
        Err("a namespace has letters, digits, '-' and '_' only")
    }
}

fn digits(text: &str) -> Result<(), &'static str> {
    if text.len() == Id::MOST && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        Ok(())
    } else {
        Err("an id has 32 digits out of 0-9 and a-f")
    }
}

impl Node {
    /// Name encoded for a key, or for another text in which dots and spaces are special.
    pub fn segment(&self) -> String {
        let mut segment = String::new();
        encode(self.as_str(), &mut segment);
        segment
    }
}

/// Prefixes of the names of triggers that are made from events which matched a rule: those that run
/// Puppet, and those that call a program. No other trigger may use them.
pub const OF_RULES: [&str; 2] = ["rule/", "call/"];

impl Name {
    /// Whether this is the name of a trigger that is made from an event.
    pub fn is_of_a_rule(&self) -> bool {
        OF_RULES.iter().any(|begin| self.0.starts_with(begin))
    }

    /// Whether this is the name of a trigger that is made from an event and calls a program.
    pub fn is_of_a_call(&self) -> bool {
        self.0.starts_with(OF_RULES[1])
    }
}

impl Id {
    /// Id from 128 random bits.
    pub fn from_bits(bits: u128) -> Self {
        Id(format!("{bits:032x}").into())
    }
}

/// Writes a text as one segment of a key: letters, digits, `-` and `_` as they are, a dot as `=`,
/// any other byte as `%XX`.
///
/// The segment has no slash (etcd's separator), and no dot, space, `*` or `>` (special in a subject
/// of NATS).
pub fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'.' => out.push('='),
            b'-' | b'_' => out.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                out.push('%');
                out.push(HEX[usize::from(byte >> 4)].into());
                out.push(HEX[usize::from(byte & 15)].into());
            }
        }
    }
}

/// Reads a segment in the exact form that [`encode`] writes, so that a name has one key.
pub fn decode(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'=' => b'.',
            b'%' => hex(rest.next()?)? << 4 | hex(rest.next()?)?,
            _ => byte,
        });
    }
    let text = String::from_utf8(bytes).ok()?;
    let mut again = String::with_capacity(segment.len());
    encode(&text, &mut again);
    (again == segment).then_some(text)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(text: &str) -> String {
        let mut out = String::new();
        encode(text, &mut out);
        out
    }

    #[test]
    fn certnames_are_those_that_puppet_signs() {
        for good in ["web1.example.com", "a", "x_y-1", "host@site", "with space"] {
            assert!(good.parse::<Node>().is_ok(), "{good}");
        }
        for bad in ["", "Web1", "a/b", "web*", "a\nb", "caf\u{e9}", "a\u{7f}"] {
            assert!(bad.parse::<Node>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(253).parse::<Node>().is_ok());
        assert!("x".repeat(254).parse::<Node>().is_err());
    }

    #[test]
    fn a_name_is_any_text_without_control_characters() {
        for good in [
            "refresh load balancers",
            "a/b",
            "..",
            "\u{e9}t\u{e9}",
            "%2F",
            "*",
        ] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "a\0", "a\u{1b}[0m", "\u{85}"] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn namespaces_and_ids_are_plain() {
        assert!("production-2".parse::<Namespace>().is_ok());
        assert!("a/b".parse::<Namespace>().is_err());
        assert_eq!(Id::from_bits(0xab).to_string(), format!("{:0>32}", "ab"));
        assert!(Id::from_bits(u128::MAX).as_str().parse::<Id>().is_ok());
        assert!("AB".repeat(16).parse::<Id>().is_err());
        assert!("ab".parse::<Id>().is_err());
    }

    #[test]
    fn a_refused_name_says_which_and_why() {
        let error = "a/b".parse::<Node>().expect_err("refused").to_string();
        assert_eq!(
            error,
            "'a/b' is no certname: a certname has printable ASCII in lower case, no '/' and no '*'"
        );
    }

    #[test]
    fn segments_are_as_documented() {
        assert_eq!(encoded("web1.example.com"), "web1=example=com");
        assert_eq!(encoded("a/b =%"), "a%2Fb%20%3D%25");
        assert_eq!(encoded(".."), "==");
        for other in [
            "a%2fb", "%41", "%", "%2", "a.b", "a/b", "\u{e9}", "%FF", "a b",
        ] {
            assert_eq!(decode(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back_and_stays_in_its_place(text in "\\PC*|.{0,20}") {
            let segment = encoded(&text);
            let may = |c: char| c.is_ascii_alphanumeric() || "-_=%".contains(c);
            prop_assert!(segment.chars().all(may));
            prop_assert_eq!(decode(&segment), Some(text));
        }

        #[test]
        fn a_segment_has_one_form(segment in "[a-c0-9A-F=%._/-]{0,8}") {
            if let Some(text) = decode(&segment) {
                prop_assert_eq!(encoded(&text), segment);
            }
        }
    }
}
