//! PURE: selection of nodes by what they publish of themselves.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use crate::wire::inventory::Inventory;
use crate::wire::{Malformed, shown};

/// Largest number of conditions, classes and environments of criteria.
const MOST_CRITERIA: usize = 100;
/// Length of the longest of these, in bytes.
const LONGEST_CRITERION: usize = 1024;

/// Selection as text, for the socket and the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Criteria {
    /// Conditions on facts.
    pub facts: Vec<String>,
    /// Names of classes; none for any.
    pub classes: Vec<String>,
    /// Environment; none for any.
    pub environment: Option<String>,
}

impl Criteria {
    /// Parsed selection.
    ///
    /// # Errors
    /// A condition is invalid.
    pub fn selection(&self) -> Result<Selection, String> {
        let facts = self.facts.iter().map(|fact| fact.parse());
        Ok(Selection {
            facts: facts.collect::<Result<_, _>>()?,
            classes: self.classes.clone(),
            environment: self.environment.clone(),
        })
    }

    /// Checks the limits on number and length, and that there is at least one condition.
    ///
    /// # Errors
    /// A limit is exceeded, or a condition is invalid; the message says which.
    pub fn check(&self) -> Result<(), Malformed> {
        let (count, most) = (self.all().count(), MOST_CRITERIA);
        if !(1..=most).contains(&count) {
            let why = format!("{count} conditions: 1 to {most} are allowed");
            return Err(Malformed::new(why));
        }
        if let Some(long) = self.all().find(|text| text.len() > LONGEST_CRITERION) {
            let (long, most) = (long.len(), LONGEST_CRITERION);
            let why = format!("a condition has {long} bytes: {most} are allowed");
            return Err(Malformed::new(why));
        }
        self.selection().map(|_| ()).map_err(Malformed::new)
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        let named = self.facts.iter().chain(&self.classes);
        named.chain(&self.environment)
    }

    /// Length of all text, in bytes.
    pub fn size(&self) -> usize {
        self.all().map(String::len).sum()
    }
}

/// Output for a line: `role=web, class profile::lb, environment production`.
impl fmt::Display for Criteria {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = self.facts.iter().map(|fact| shown(fact));
        let classes = self
            .classes
            .iter()
            .map(|one| format!("class {}", shown(one)));
        let environment = self.environment.iter();
        let environment = environment.map(|one| format!("environment {}", shown(one)));
        let all: Vec<String> = facts.chain(classes).chain(environment).collect();
        f.write_str(&all.join(", "))
    }
}

/// Nodes that match all conditions on facts, have one of the classes, and are in the environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Conditions on facts.
    pub facts: Vec<Condition>,
    /// Names of classes; none for any.
    pub classes: Vec<String>,
    /// Environment; none for any.
    pub environment: Option<String>,
}

impl Selection {
    /// Selection as text.
    pub fn criteria(&self) -> Criteria {
        Criteria {
            facts: self.facts.iter().map(|fact| fact.text.clone()).collect(),
            classes: self.classes.clone(),
            environment: self.environment.clone(),
        }
    }

    /// Whether the selection has no condition, so that it selects all nodes.
    pub fn is_of_all(&self) -> bool {
        self.facts.is_empty() && self.classes.is_empty() && self.environment.is_none()
    }

    /// Whether a node is selected. A node that has published no facts is selected only if all nodes
    /// are.
    pub fn has(&self, node: Option<&Inventory>) -> bool {
        let Some(node) = node.filter(|node| node.is_of_a_run()) else {
            return self.is_of_all();
        };
        let is_class = |wanted: &String| is_class(wanted, &node.classes);
        self.facts.iter().all(|fact| fact.is_met_by(node))
            && (self.classes.is_empty() || self.classes.iter().any(is_class))
            && self
                .environment
                .as_ref()
                .is_none_or(|one| *one == node.environment)
    }
}

/// Whether a class is one of these. Letter case and a leading `::` do not matter.
pub(super) fn is_class<'a>(wanted: &str, classes: impl IntoIterator<Item = &'a String>) -> bool {
    let wanted = wanted.trim_start_matches("::");
    let mut classes = classes.into_iter();
    classes.any(|class| class.eq_ignore_ascii_case(wanted))
}

/// Condition on a fact: `role=haproxy`, `role!=db`, `uptime>10`, `hostname=~^web`.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// Text as the user wrote it.
    text: String,
    fact: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Is(String),
    IsNot(String),
    Below(f64),
    Above(f64),
    Finds(Pattern),
}

impl Condition {
    /// Name of the fact that a node has to publish: none for `!=`.
    pub fn needed_fact(&self) -> Option<&str> {
        let is_needed = !matches!(self.test, Test::IsNot(_));
        is_needed.then_some(self.fact.as_str())
    }

    /// Whether the published facts of a node meet the condition. A fact that is not published
    /// differs from every value.
    pub(super) fn is_met_by(&self, node: &Inventory) -> bool {
        let value = node.facts.get(&self.fact);
        let number = || value.and_then(|value| number(value));
        match &self.test {
            Test::Is(wanted) => value == Some(wanted),
            Test::IsNot(other) => value != Some(other),
            Test::Below(bound) => number().is_some_and(|number| number < *bound),
            Test::Above(bound) => number().is_some_and(|number| number > *bound),
            Test::Finds(pattern) => value.is_some_and(|value| pattern.is_in(value)),
        }
    }
}

/// Number in the text of a fact. Words such as `inf` are not numbers.
fn number(text: &str) -> Option<f64> {
    let is_plain = |b: u8| b.is_ascii_digit() || b"+-.eE".contains(&b);
    let number = text.bytes().all(is_plain).then(|| text.parse::<f64>().ok());
    number.flatten().filter(|number| number.is_finite())
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shown = shown(text);
        let wrong = || {
            format!(
                "'{shown}' is no condition on a fact, such as role=haproxy, role!=db, 'uptime>10' or 'hostname=~^web'"
            )
        };
        let at = text.find(['=', '!', '<', '>']).ok_or_else(wrong)?;
        let (fact, rest) = text.split_at(at);
        let fact = fact.trim();
        if fact.is_empty() {
            return Err(wrong());
        }
        let of = |value: &str| value.trim_start_matches(' ').to_owned();
        let bound = |value: &str| {
            number(value.trim()).ok_or_else(|| format!("'{shown}' compares with what is no number"))
        };
        let test = if let Some(pattern) = rest.strip_prefix("=~") {
            Test::Finds(of(pattern).parse()?)
        } else if let Some(value) = rest.strip_prefix("!=") {
            Test::IsNot(of(value))
        } else if let Some(value) = rest.strip_prefix('=') {
            Test::Is(of(value))
        } else if let Some(value) = rest.strip_prefix('<') {
            Test::Below(bound(value)?)
        } else if let Some(value) = rest.strip_prefix('>') {
            Test::Above(bound(value)?)
        } else {
            return Err(wrong());
        };
        Ok(Condition {
            text: text.to_owned(),
            fact: fact.to_owned(),
            test,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A node that tells these facts.
    pub fn node(facts: &[(&str, &str)]) -> Inventory {
        let fact = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Inventory {
            node: "web1".parse().expect("a certname"),
            at: 1,
            serial: 1,
            facts: facts.iter().map(fact).collect(),
            classes: BTreeSet::from(["profile::lb".to_owned()]),
            environment: "production".to_owned(),
            version: "0.1.0".to_owned(),
            puppet: String::new(),
            running: None,
            last: None,
            ended: None,
            pending: 0,
            disabled: false,
            cap: None,
            tokens: std::collections::BTreeMap::new(),
            resets: std::collections::BTreeMap::new(),
        }
    }

    fn condition(text: &str) -> Result<Condition, String> {
        text.parse()
    }

    #[test]
    fn conditions_hold_or_do_not() {
        let node = node(&[
            ("role", "a=b"),
            ("os.name", "Debian"),
            ("uptime", "10"),
            ("word", "inf"),
            ("load", "1e1"),
            ("tilde", "~a"),
        ]);
        for (text, holds) in [
            ("role=a=b", true),
            ("role = a=b", true),
            ("role=a", false),
            ("tilde= ~a", true),
            ("none=", false),
            ("role!=a", true),
            ("role!=a=b", false),
            ("none!=x", true),
            ("uptime>9", true),
            ("uptime>9.5", true),
            ("uptime > 10", false),
            ("uptime<100", true),
            ("uptime<9", false),
            ("uptime=10.0", false),
            ("load>9", true),
            ("word>1", false),
            ("none<1", false),
            ("os.name=~^Deb", true),
            ("os.name=~^eb|n$", true),
            ("os.name=~ ^deb", false),
            ("none=~.*", false),
        ] {
            assert_eq!(
                condition(text).expect(text).is_met_by(&node),
                holds,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_condition_is_said() {
        for (text, words) in [
            ("role", "no condition"),
            ("=x", "no condition"),
            ("role!x", "no condition"),
            ("uptime>soon", "no number"),
            ("uptime>=1", "no number"),
            ("uptime<nan", "no number"),
            ("role=~(", "invalid regular expression"),
        ] {
            let error = condition(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn all_facts_one_class_and_the_environment() {
        let node = node(&[("role", "lb"), ("uptime", "10")]);
        let select = |facts: &[&str], classes: &[&str], environment: Option<&str>| Selection {
            facts: facts
                .iter()
                .map(|one| condition(one).expect("good"))
                .collect(),
            classes: classes.iter().map(|one| (*one).to_owned()).collect(),
            environment: environment.map(str::to_owned),
        };
        for (selection, is_meant) in [
            (select(&[], &[], None), true),
            (select(&["role=lb", "uptime>9"], &[], None), true),
            (select(&["role=lb", "uptime>10"], &[], None), false),
            (select(&[], &["x", "::Profile::LB"], None), true),
            (select(&[], &["profile"], None), false),
            (
                select(&["role=lb"], &["profile::lb"], Some("production")),
                true,
            ),
            (select(&[], &[], Some("test")), false),
        ] {
            assert_eq!(selection.has(Some(&node)), is_meant, "{selection:?}");
            assert_eq!(selection.has(None), selection.is_of_all());
        }
    }

    #[test]
    fn criteria_are_bounded_and_say_what_they_select() {
        let of = |facts: &[&str]| Criteria {
            facts: facts.iter().map(|one| (*one).to_owned()).collect(),
            ..Criteria::default()
        };
        let all = Criteria {
            classes: vec!["profile::lb".to_owned()],
            environment: Some("production".to_owned()),
            ..of(&["role=lb", "uptime>9"])
        };
        assert_eq!(
            all.to_string(),
            "role=lb, uptime>9, class profile::lb, environment production"
        );
        let selection = all.selection().expect("valid");
        assert_eq!(selection.criteria(), all);
        assert!(selection.has(Some(&node(&[("role", "lb"), ("uptime", "10")]))));
        let long = format!("role={}", "x".repeat(LONGEST_CRITERION));
        for (criteria, why) in [
            (of(&[]), "0 conditions"),
            (of(&["a=b"; MOST_CRITERIA + 1]), "101 conditions"),
            (of(&[&long]), "1029 bytes"),
            (of(&["role"]), "no condition"),
        ] {
            let error = criteria.check().expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(all.check(), Ok(()));
    }

    proptest! {
        #[test]
        fn numbers_compare_as_numbers(a in -1e9..1e9f64, b in -1e9..1e9f64) {
            let node = node(&[("x", &a.to_string())]);
            let holds = |text: String| condition(&text).expect("good").is_met_by(&node);
            prop_assert_eq!(holds(format!("x<{b}")), a < b);
            prop_assert_eq!(holds(format!("x>{b}")), a > b);
        }

        #[test]
        fn any_value_is_itself_and_no_other(a in "[^ ]\\PC{0,9}", b in "[^~ ]\\PC{0,9}") {
            let node = node(&[("x", &b)]);
            let holds = |text: String| condition(&text).expect("good").is_met_by(&node);
            let (is, is_not) = (holds(format!("x={b}")), holds(format!("x!={b}")));
            prop_assert_eq!((is, is_not), (true, false));
            prop_assert_eq!(holds(format!("x!={a}")), a != b);
        }

        #[test]
        fn any_text_is_a_condition_or_none(text in "\\PC{0,20}") {
            let _ = condition(&text);
        }
    }
}
