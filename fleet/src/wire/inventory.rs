//! Inventory that a node publishes, so that other nodes can select it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Malformed;
use super::body::{Content, Placed, at_most};
use super::key::Key;
use super::lock::MOST_TOKEN;
use super::name::{Name, Node};
use super::outcome::{Outcome, Ran};

/// Most facts.
const MOST_FACTS: usize = 100;
/// Most classes.
const MOST_CLASSES: usize = 2000;
/// Most locks that a node may be a candidate for.
pub const MOST_LOCKS: usize = 64;
/// Longest name of a fact or a class, and longest value of a fact, in bytes.
pub const MOST_TEXT: usize = 512;
/// Most bytes of all facts and classes together.
const MOST_TOGETHER: usize = 48 << 10;

/// Value at `node/NODE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inventory {
    /// Node that publishes and signs this.
    pub node: Node,
    /// Time in milliseconds of its wall clock after 1970.
    pub at: u64,
    /// Counter of the node's versions: the greater of its clock in milliseconds and the last one
    /// plus 1.
    pub serial: u64,
    /// Facts that its operator has chosen, as text.
    pub facts: BTreeMap<String, String>,
    /// Classes of the node.
    pub classes: BTreeSet<String>,
    /// Environment of the node.
    pub environment: String,
    /// Version of this program on the node.
    pub version: String,
    /// Version of Puppet on the node; may be empty.
    pub puppet: String,
    /// Start of the run that is under way there, in milliseconds of its wall clock after 1970. A
    /// killed run has published no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// Outcome of its last run: changed, unchanged, failed or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Outcome>,
    /// End of its last run, in milliseconds of its wall clock after 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// Number of triggers that wait there.
    pub pending: u32,
    /// Whether reruns are disabled there, so that it accepts no triggers.
    pub disabled: bool,
    /// Number of reruns that its cap allows, and number of these that were used when its last run
    /// began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<(u32, u32)>,
    /// Highest token that it knows of each lock for which it is a candidate, as text like facts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, String>,
    /// Number of the newest reset of each such lock that it has accepted, if there was one; its
    /// token is from after that.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resets: BTreeMap<String, u64>,
}

impl Inventory {
    /// Highest token that it knows of a lock; 0 if it knows none, or the text is not a token.
    pub fn token(&self, lock: &Name) -> u64 {
        let token = self.tokens.get(lock.as_str());
        let token = token.and_then(|token| token.parse().ok());
        token.filter(|token| *token <= MOST_TOKEN).unwrap_or(0)
    }

    /// Whether a run published it; otherwise the service did, only to show that the node is
    /// connected.
    pub fn is_of_a_run(&self) -> bool {
        !self.environment.is_empty()
    }

    /// Number that orders the versions of one node.
    pub fn order(&self) -> u64 {
        self.serial
    }

    /// Number of the newest reset of a lock that it has accepted; 0 for none.
    pub fn reset(&self, lock: &Name) -> u64 {
        self.resets.get(lock.as_str()).copied().unwrap_or(0)
    }

    /// Whether the inventories differ only in time and serial.
    pub fn tells_the_same(&self, other: &Inventory) -> bool {
        let (at, serial) = (other.at, other.serial);
        let this = self.clone();
        Inventory { at, serial, ..this } == *other
    }

    /// Records the end of a run there, as `again` reports it. The end that the run itself or a
    /// later one has published takes precedence.
    pub fn heard_of_end(&mut self, ran: &Ran, outcome: Outcome) {
        let Some(at) = ran.ended.filter(|_| outcome.ends_a_run()) else {
            return;
        };
        let began = ran.began.unwrap_or(at);
        if self.ended.is_none_or(|ended| ended < began) {
            (self.last, self.ended) = (Some(outcome), Some(at));
        }
        // A killed run has published no end.
        if self.running.is_some_and(|since| since <= at) {
            self.running = None;
        }
    }

    /// Whether facts, classes and environment are equal, so that every selection matches both or
    /// neither.
    pub fn is_selected_as(&self, other: &Inventory) -> bool {
        self.facts == other.facts
            && self.classes == other.classes
            && self.environment == other.environment
    }
}

impl Placed for Inventory {
    fn place(&self) -> (Key, &Node) {
        (Key::Node(self.node.clone()), &self.node)
    }
}

impl Content for Inventory {
    const KIND: &'static str = "node.1";

    fn check(&self) -> Result<(), Malformed> {
        at_most("facts", self.facts.len(), MOST_FACTS)?;
        at_most("classes", self.classes.len(), MOST_CLASSES)?;
        at_most("locks", self.tokens.len(), MOST_LOCKS)?;
        at_most("locks", self.resets.len(), MOST_LOCKS)?;
        let facts = self.facts.iter().chain(&self.tokens);
        let facts = facts.flat_map(|(name, value)| [name, value]);
        let texts = facts.chain(&self.classes).chain(self.resets.keys()).chain([
            &self.environment,
            &self.version,
            &self.puppet,
        ]);
        let mut together = 0;
        for text in texts {
            at_most("bytes of a fact or class", text.len(), MOST_TEXT)?;
            if text.chars().any(char::is_control) {
                return Err(Malformed::new("a fact or class has control characters"));
            }
            together += text.len();
        }
        at_most("bytes of facts and classes", together, MOST_TOGETHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body::{decode, encode};

    fn inventory() -> Inventory {
        Inventory {
            node: "web1".parse().expect("a certname"),
            at: 1,
            serial: 1,
            facts: BTreeMap::from([("role".to_owned(), "frontend".to_owned())]),
            classes: BTreeSet::from(["profile::lb".to_owned()]),
            environment: "production".to_owned(),
            version: "0.1.0".to_owned(),
            puppet: "7.23.0".to_owned(),
            running: Some(2),
            last: Some(Outcome::Changed),
            ended: Some(1),
            pending: 2,
            disabled: false,
            cap: Some((5, 2)),
            tokens: BTreeMap::from([("db".to_owned(), "7".to_owned())]),
            resets: BTreeMap::from([("db".to_owned(), 5)]),
        }
    }

    #[test]
    fn an_inventory_comes_back() {
        let bytes = encode(&inventory()).expect("written");
        assert_eq!(decode(&bytes), Ok(inventory()));
    }

    #[test]
    fn a_token_is_a_number_that_may_be_one() {
        let lock: Name = "db".parse().expect("a name");
        let of = |token: &str| {
            let tokens = BTreeMap::from([("db".to_owned(), token.to_owned())]);
            let one = Inventory {
                tokens,
                ..inventory()
            };
            one.token(&lock)
        };
        let most = MOST_TOKEN.to_string();
        assert_eq!((of("7"), of(&most)), (7, MOST_TOKEN));
        let above = (MOST_TOKEN + 1).to_string();
        for none in ["", "x", "-1", &above, "99999999999999999999999"] {
            assert_eq!(of(none), 0, "{none}");
        }
        let other = "other".parse().expect("a name");
        assert_eq!(
            (inventory().token(&other), inventory().reset(&other)),
            (0, 0)
        );
        assert_eq!(inventory().reset(&lock), 5);
    }

    #[test]
    fn the_newest_run_counts_and_its_own_word_first() {
        let ran = |began, ended| Ran {
            log: "c-1".to_owned(),
            began: Some(began),
            ended,
            reruns: 0,
            last: None,
            more: false,
        };
        let told = Inventory {
            last: Some(Outcome::Unchanged),
            ended: Some(50),
            running: Some(60),
            ..inventory()
        };
        let after = |ran: &Ran, outcome| {
            let mut told = told.clone();
            told.heard_of_end(ran, outcome);
            (told.last, told.ended, told.running)
        };
        let same = (told.last, told.ended, told.running);
        // The same run, whose helper has seen its end a little later; one before it; one that goes on; and no run at all.
        assert_eq!(after(&ran(40, Some(51)), Outcome::Changed), same);
        assert_eq!(after(&ran(10, Some(20)), Outcome::Failed), same);
        assert_eq!(after(&ran(60, None), Outcome::Started), same);
        assert_eq!(after(&ran(60, Some(70)), Outcome::Satisfied), same);
        // The one that runs was killed.
        let failed = (Some(Outcome::Failed), Some(70), None);
        assert_eq!(after(&ran(59, Some(70)), Outcome::Failed), failed);
    }

    #[test]
    fn what_breaks_a_bound_is_neither_written_nor_read() {
        let text = |n: usize| n.to_string();
        let fact = |value: String| BTreeMap::from([("x".to_owned(), value)]);
        for bad in [
            Inventory {
                facts: (0..101).map(|n| (text(n), text(n))).collect(),
                ..inventory()
            },
            Inventory {
                classes: (0..2001).map(text).collect(),
                ..inventory()
            },
            Inventory {
                facts: fact("x".repeat(513)),
                ..inventory()
            },
            Inventory {
                facts: fact("a\nb".to_owned()),
                ..inventory()
            },
            Inventory {
                environment: "x".repeat(513),
                ..inventory()
            },
            Inventory {
                tokens: (0..65).map(|n| (text(n), text(1))).collect(),
                ..inventory()
            },
            Inventory {
                resets: (0..65).map(|n| (text(n), 1)).collect(),
                ..inventory()
            },
            Inventory {
                classes: (0..200).map(|n| format!("{n:0400}")).collect(),
                ..inventory()
            },
        ] {
            assert!(encode(&bad).is_err());
            assert!(decode::<Inventory>(&serde_json::to_vec(&bad).expect("JSON")).is_err());
        }
        let many = Inventory {
            classes: (0..2000).map(|n| format!("profile::{n}")).collect(),
            ..inventory()
        };
        assert!(encode(&many).is_ok());
    }
}
