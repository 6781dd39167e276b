//! What a target remembers, so that it acts on nothing twice: the highest number of each sender and name.
//!
//! It remembers a number as long as anything that bears it, or a lower one, could still be taken: all of that was fired no
//! later than the number says, and nothing may wait longer than a day. What it has forgotten has therefore expired; should
//! the clock be set back later, the time up to which it has forgotten counts instead of the clock.

use std::collections::BTreeMap;

use again::model::{Moment, Span, Walltime};
use serde::{Deserialize, Serialize};

use super::rule::COUNTS;
use super::term::Term;
use crate::wire::name::{Id, Name, Node};
use crate::wire::outcome::Outcome;
use crate::wire::trigger::{MOST_TTL, Trigger};

/// A trigger among all of its target's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Which {
    /// Who fired.
    pub sender: Node,
    /// Its name.
    pub name: Name,
    /// Its number.
    pub number: u64,
    /// Its id.
    pub id: Id,
}

impl From<&Trigger> for Which {
    fn from(trigger: &Trigger) -> Self {
        Which {
            sender: trigger.sender.clone(),
            name: trigger.name.clone(),
            number: trigger.number,
            id: trigger.id.clone(),
        }
    }
}

/// How many names of one sender are remembered.
pub const MOST_NAMES: usize = 1000;
/// How many of events that called a program.
pub const MOST_CALLS: usize = 10_000;

/// What is known of the highest number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The number.
    pub number: u64,
    /// What became of its trigger, as far as this book goes.
    pub outcome: Outcome,
    /// Why.
    pub why: String,
    /// The trigger of this name that was taken last, with whatever number.
    pub taken: Option<Id>,
    /// How long all this matters.
    term: Term,
}

/// The books of one target.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Books {
    senders: BTreeMap<Node, BTreeMap<Name, Seen>>,
    /// Nothing that expires earlier than this is remembered any more.
    forgotten: Walltime,
}

impl Books {
    /// What is known of this sender and name.
    pub fn seen(&self, sender: &Node, name: &Name) -> Option<&Seen> {
        self.senders.get(sender)?.get(name)
    }

    /// Whether there is room for this name.
    pub fn has_room(&self, sender: &Node, name: &Name) -> bool {
        let is_call = name.is_of_a_call();
        let most = if is_call { MOST_CALLS } else { MOST_NAMES };
        let of_its_kind = |names: &BTreeMap<Name, Seen>| {
            let names = names.keys().filter(|one| one.is_of_a_call() == is_call);
            names.count()
        };
        self.senders
            .get(sender)
            .is_none_or(|names| names.contains_key(name) || of_its_kind(names) < most)
    }

    /// The time that counts when something has to be unexpired.
    pub fn time(&self, now: &Moment) -> Walltime {
        now.wall.max(self.forgotten)
    }

    /// Writes down what becomes of a trigger. A number that is not the highest changes nothing.
    pub fn enter(&mut self, which: &Which, outcome: Outcome, why: &str, skew: Span, now: &Moment) {
        let names = self.senders.entry(which.sender.clone()).or_default();
        let known = names.get(&which.name);
        if known.is_some_and(|seen| seen.number > which.number) {
            return;
        }
        let taken = if outcome == Outcome::Taken {
            Some(which.id.clone())
        } else {
            known.and_then(|seen| seen.taken.clone())
        };
        // The name of a call is that of one event, and its number the event's time.
        let longest = if which.name.is_of_a_call() {
            COUNTS
        } else {
            MOST_TTL
        };
        let seen = Seen {
            number: which.number,
            outcome,
            why: why.to_owned(),
            taken,
            term: Term {
                began: now.clone(),
                until: Walltime::from_millis(which.number.saturating_add(longest)) + skew,
            },
        };
        names.insert(which.name.clone(), seen);
    }

    /// Forgets what no longer matters.
    pub fn forget(&mut self, now: &Moment) {
        for names in self.senders.values_mut() {
            names.retain(|_, seen| {
                let stays = !seen.term.is_over(now);
                if !stays {
                    self.forgotten = self.forgotten.max(seen.term.until);
                }
                stays
            });
        }
        self.senders.retain(|_, names| !names.is_empty());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::term::tests::moment;
    use super::*;
    use crate::wire::trigger::tests::trigger;

    const SKEW: Span = Span::from_secs(300);
    const DAY: u64 = MOST_TTL;

    fn numbered(number: u64) -> Which {
        Which {
            number,
            id: Id::from_bits(number.into()),
            ..Which::from(&trigger())
        }
    }

    #[test]
    fn only_the_highest_number_is_kept() {
        let mut books = Books::default();
        let now = moment("a", 0, 1_000_000);
        let (first, second) = (numbered(1_000_001), numbered(1_000_002));
        books.enter(&second, Outcome::Taken, "", SKEW, &now);
        books.enter(&first, Outcome::Expired, "late", SKEW, &now);
        let seen = books.seen(&first.sender, &first.name).expect("known");
        assert_eq!((seen.number, seen.outcome), (1_000_002, Outcome::Taken));
        // What was taken stays known under a newer number.
        books.enter(&numbered(1_000_003), Outcome::TooLate, "", SKEW, &now);
        let seen = books.seen(&first.sender, &first.name).expect("known");
        assert_eq!(seen.number, 1_000_003);
        assert_eq!(seen.taken, Some(second.id));
    }

    #[test]
    fn it_forgets_what_has_expired_and_then_knows_that_it_has() {
        let mut books = Books::default();
        let one = numbered(1_000_000);
        books.enter(&one, Outcome::Taken, "", SKEW, &moment("a", 0, 1_000_000));
        let end = 1_000_000 + DAY + 300_000;
        for early in [
            moment("a", DAY, end - 1),
            moment("a", DAY + 299_999, end),
            moment("b", 1000, end),
        ] {
            books.forget(&early);
            assert!(books.seen(&one.sender, &one.name).is_some(), "{early:?}");
        }
        books.forget(&moment("a", DAY + 300_000, end));
        assert_eq!(books.seen(&one.sender, &one.name), None);
        // The clock is set back: the trigger is as old as it was.
        let time = books.time(&moment("a", DAY + 400_000, 1_000_000));
        assert!(time >= trigger().expires() + SKEW);
    }

    /// An older trigger may have had the longer ttl.
    #[test]
    fn a_number_is_remembered_longer_than_any_older_trigger_lives() {
        let mut books = Books::default();
        let newer = numbered(1_000_001);
        books.enter(&newer, Outcome::Taken, "", SKEW, &moment("a", 0, 1_000_001));
        let older = Trigger {
            ttl: DAY,
            ..trigger()
        };
        let last = older.expires().millis() + 299_999;
        books.forget(&moment("a", last, last));
        assert!(books.seen(&newer.sender, &newer.name).is_some());
    }

    #[test]
    fn a_sender_has_so_many_names() {
        let mut books = Books::default();
        let now = moment("a", 0, 1_000_000);
        let named = |n: usize| Which {
            name: n.to_string().parse().expect("a name"),
            ..numbered(1_000_000)
        };
        for n in 0..MOST_NAMES {
            assert!(books.has_room(&named(n).sender, &named(n).name));
            books.enter(&named(n), Outcome::Taken, "", SKEW, &now);
        }
        assert!(!books.has_room(&named(0).sender, &named(MOST_NAMES).name));
        assert!(books.has_room(&named(0).sender, &named(7).name));
        assert!(books.has_room(&"web2".parse().expect("a certname"), &named(0).name));
    }

    #[test]
    fn what_called_a_program_has_room_of_its_own_and_is_remembered_for_its_hour() {
        let mut books = Books::default();
        let now = moment("a", 0, 1_000_000);
        let call = |n: usize| Which {
            name: format!("call/x/{n}").parse().expect("a name"),
            ..numbered(1_000_000)
        };
        for n in 0..MOST_CALLS {
            books.enter(&call(n), Outcome::Called, "", SKEW, &now);
        }
        assert!(!books.has_room(&call(0).sender, &call(MOST_CALLS).name));
        assert!(books.has_room(&call(0).sender, &call(7).name));
        let other = numbered(1_000_000);
        assert!(books.has_room(&other.sender, &other.name));
        let end = COUNTS + 300_000;
        books.forget(&moment("a", end - 1, 1_000_000 + end - 1));
        assert!(books.seen(&call(1).sender, &call(1).name).is_some());
        books.forget(&moment("a", end, 1_000_000 + end));
        assert!(books.seen(&call(1).sender, &call(1).name).is_none());
    }

    #[test]
    fn books_come_back_from_json() {
        let mut books = Books::default();
        let now = moment("a", 0, 1_000_000);
        books.enter(&numbered(1_000_001), Outcome::Taken, "", SKEW, &now);
        let text = serde_json::to_string(&books).expect("JSON");
        assert_eq!(serde_json::from_str::<Books>(&text).expect("books"), books);
    }
}
