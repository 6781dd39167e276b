//! PURE: regular expressions, as far as selecting nodes needs them: literals, `.`, `[]`, `*`, `+`, `?`, `|`, groups, `^`, `$`, and
//! `\d`, `\w`, `\s`. The time that one takes grows with its length times that of the text, whatever it is (Thompson's way).

use std::iter::Peekable;
use std::str::{Chars, FromStr};

/// The longest expression, in bytes.
const MOST: usize = 512;
/// How deep groups may be in one another.
const DEEPEST: usize = 30;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Inst>);

/// What is to be done; jumps count from where they stand.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Inst {
    One(Set),
    Both(isize, isize),
    Jump(isize),
    Begin,
    End,
}

/// A set of characters: one is in it if it is in one of the parts, unless the set is of all others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Set {
    parts: Vec<Part>,
    others: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    ranges: Vec<(char, char)>,
    others: bool,
}

impl Set {
    fn of(part: Part) -> Set {
        Set {
            parts: vec![part],
            others: false,
        }
    }

    fn has(&self, c: char) -> bool {
        let is_in = |part: &Part| {
            let mut ranges = part.ranges.iter();
            ranges.any(|(first, last)| (*first..=*last).contains(&c)) != part.others
        };
        self.parts.iter().any(is_in) != self.others
    }
}

impl Part {
    fn of(first: char, last: char) -> Part {
        Part {
            ranges: vec![(first, last)],
            others: false,
        }
    }

    /// What a letter after a backslash stands for; punctuation stands for itself.
    fn escaped(c: char) -> Result<Part, String> {
        let ranges = match c.to_ascii_lowercase() {
            'd' => vec![('0', '9')],
            'w' => vec![('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            's' => vec![('\t', '\r'), (' ', ' ')],
            _ if c.is_ascii_punctuation() || c == ' ' => return Ok(Part::of(c, c)),
            _ => return Err(format!("'\\{c}' is not known here")),
        };
        let others = c.is_ascii_uppercase();
        Ok(Part { ranges, others })
    }
}

impl Pattern {
    /// Whether it is found somewhere in a text.
    pub fn is_in(&self, text: &str) -> bool {
        let chars: Vec<char> = text.chars().collect();
        let mut live = Vec::new();
        for at in 0..=chars.len() {
            let edges = (at == 0, at == chars.len());
            // It may begin here as well.
            live.push(0);
            if self.follow(&mut live, edges) {
                return true;
            }
            let goes_on = |pc: &usize| match &self.0[*pc] {
                Inst::One(set) => chars.get(at).is_some_and(|c| set.has(*c)),
                _ => false,
            };
            live.retain(goes_on);
            live.iter_mut().for_each(|pc| *pc += 1);
        }
        false
    }

    /// Follows all that takes no character from here; whether the end is among it.
    fn follow(&self, live: &mut Vec<usize>, (begin, end): (bool, bool)) -> bool {
        let mut seen = vec![false; self.0.len() + 1];
        let mut open = std::mem::take(live);
        while let Some(pc) = open.pop() {
            if std::mem::replace(&mut seen[pc], true) {
                continue;
            }
            let to = |by: isize| pc.wrapping_add_signed(by);
            match self.0.get(pc) {
                None => return true,
                Some(Inst::One(_)) => live.push(pc),
                Some(Inst::Both(one, other)) => open.extend([to(*one), to(*other)]),
                Some(Inst::Jump(by)) => open.push(to(*by)),
                Some(Inst::Begin) if begin => open.push(pc + 1),
                Some(Inst::End) if end => open.push(pc + 1),
                Some(Inst::Begin | Inst::End) => {}
            }
        }
        false
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            format!(
                "'{}' is no regular expression: {why}",
                crate::wire::shown(text)
            )
        };
        if text.len() > MOST {
            return Err(wrong(format!("it is longer than {MOST} bytes")));
        }
        let mut parser = Parser(text.chars().peekable());
        let all = parser.either(0).map_err(wrong)?;
        match parser.0.next() {
            None => Ok(Pattern(all)),
            Some(c) => Err(wrong(format!("'{c}' closes nothing"))),
        }
    }
}

struct Parser<'a>(Peekable<Chars<'a>>);

type Parsed = Result<Vec<Inst>, String>;

fn by(length: usize) -> isize {
    // An expression is short.
    isize::try_from(length).unwrap_or(isize::MAX)
}

impl Parser<'_> {
    fn takes(&mut self, c: char) -> bool {
        self.0.next_if_eq(&c).is_some()
    }

    fn either(&mut self, depth: usize) -> Parsed {
        let mut one = self.sequence(depth)?;
        if self.takes('|') {
            let other = self.either(depth)?;
            one.insert(0, Inst::Both(1, by(one.len() + 2)));
            one.push(Inst::Jump(by(other.len() + 1)));
            one.extend(other);
        }
        Ok(one)
    }

    fn sequence(&mut self, depth: usize) -> Parsed {
        let mut all = Vec::new();
        while let Some(c) = self.0.next_if(|c| !['|', ')'].contains(c)) {
            let one = self.one(c, depth)?;
            all.extend(self.repeated(one));
        }
        Ok(all)
    }

    fn repeated(&mut self, mut one: Vec<Inst>) -> Vec<Inst> {
        while let Some(c) = self.0.next_if(|c| ['*', '+', '?'].contains(c)) {
            // As few as it can be found with are found as well.
            self.takes('?');
            let length = by(one.len());
            match c {
                '+' => one.push(Inst::Both(-length, 1)),
                '?' => one.insert(0, Inst::Both(1, length + 1)),
                _ => {
                    one.insert(0, Inst::Both(1, length + 2));
                    one.push(Inst::Jump(-length - 1));
                }
            }
        }
        one
    }

    fn one(&mut self, c: char, depth: usize) -> Parsed {
        let set = match c {
            '(' => return self.group(depth),
            '^' => return Ok(vec![Inst::Begin]),
            '$' => return Ok(vec![Inst::End]),
            '[' => self.set()?,
            '.' => Set {
                others: true,
                ..Set::of(Part::of('\n', '\n'))
            },
            '\\' => match self.0.next().ok_or("it ends with a backslash")? {
                'A' => return Ok(vec![Inst::Begin]),
                'z' | 'Z' => return Ok(vec![Inst::End]),
                c => Set::of(Part::escaped(c)?),
            },
            '*' | '+' | '?' => return Err(format!("'{c}' repeats nothing")),
            '{' | '}' => {
                return Err(format!(
                    "'{c}' is not known here; '\\{c}' stands for itself"
                ));
            }
            c => Set::of(Part::of(c, c)),
        };
        Ok(vec![Inst::One(set)])
    }

    fn group(&mut self, depth: usize) -> Parsed {
        if depth >= DEEPEST {
            return Err(format!("groups are more than {DEEPEST} deep"));
        }
        if self.takes('?') && !self.takes(':') {
            return Err("'(?' is not known here but as '(?:'".to_owned());
        }
        let inner = self.either(depth + 1)?;
        if self.takes(')') {
            return Ok(inner);
        }
        Err("a ')' is missing".to_owned())
    }

    fn set(&mut self) -> Result<Set, String> {
        let mut set = Set {
            others: self.takes('^'),
            ..Set::default()
        };
        loop {
            let first = match self.0.next().ok_or("a ']' is missing")? {
                ']' if !set.parts.is_empty() => return Ok(set),
                '[' => {
                    return Err("'[' in '[]' is not known here; '\\[' stands for itself".to_owned());
                }
                '\\' => {
                    let c = self.0.next().ok_or("it ends with a backslash")?;
                    let part = Part::escaped(c)?;
                    if c.is_ascii_alphabetic() {
                        set.parts.push(part);
                        continue;
                    }
                    c
                }
                c => c,
            };
            let last = self.last_after(first)?;
            set.parts.push(Part::of(first, last));
        }
    }

    /// The end of a range that begins with this, which may be that itself.
    fn last_after(&mut self, first: char) -> Result<char, String> {
        let mut ahead = self.0.clone();
        if ahead.next() != Some('-') || ahead.next().is_none_or(|c| c == ']') {
            return Ok(first);
        }
        self.0.next();
        let last = match self.0.next().ok_or("a ']' is missing")? {
            '\\' => self
                .0
                .next()
                .filter(char::is_ascii_punctuation)
                .ok_or("a range has no end")?,
            c => c,
        };
        if last < first {
            return Err(format!("the range {first}-{last} is empty"));
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::bytes::RegexBuilder;

    use super::*;

    fn read(text: &str) -> Result<Pattern, String> {
        text.parse()
    }

    #[test]
    fn what_is_not_known_is_said() {
        for (text, words) in [
            ("a{2}", "'{' is not known"),
            ("(a", "a ')' is missing"),
            ("a)", "')' closes nothing"),
            ("[a", "a ']' is missing"),
            ("[]", "a ']' is missing"),
            ("*a", "repeats nothing"),
            ("(?i)a", "'(?' is not known"),
            ("\\b", "'\\b' is not known"),
            ("a\\", "ends with a backslash"),
            ("[z-a]", "the range z-a is empty"),
            ("[[:alpha:]]", "'[' in '[]'"),
            (&"(".repeat(31), "more than 30 deep"),
            (&"a".repeat(513), "longer than 512"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_others_are_slow_with_takes_no_time() {
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

    fn expression() -> impl Strategy<Value = String> {
        let atom = prop_oneof![
            "[ab1_. -]".prop_map(|c| if c == "." { "\\.".to_owned() } else { c }),
            prop::sample::select(vec![
                ".", "^", "$", "\\d", "\\W", "\\s", "[ab]", "[^a]", "[a-c1]", "[]a]", "[^\\d_]",
                "[a-]", "[\\-b]", "\\A", "\\z"
            ])
            .prop_map(str::to_owned),
        ];
        atom.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|all| all.concat()),
                prop::collection::vec(inner.clone(), 1..3)
                    .prop_map(|all| format!("({})", all.join("|"))),
                (
                    inner,
                    prop::sample::select(vec!["*", "+", "?", "*?", "+?", "??", "**"])
                )
                    .prop_map(|(one, how)| format!("(?:{one}){how}")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn it_finds_what_others_find(expression in expression(), text in "[ab1c_. -]{0,8}") {
            let theirs = RegexBuilder::new(&expression).unicode(false).build().expect("an expression");
            let ours = read(&expression).expect("an expression");
            prop_assert_eq!(ours.is_in(&text), theirs.is_match(text.as_bytes()), "{} in {:?}", expression, text);
        }

        #[test]
        fn any_text_is_read_or_refused(expression in "\\PC{0,20}", text in "\\PC{0,10}") {
            if let Ok(pattern) = read(&expression) {
                let _ = pattern.is_in(&text);
            }
        }
    }
}
