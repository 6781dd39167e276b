//! Locks: their candidates, the values that count, and the order in which candidates try to take a
//! free lock.

use again_base::model::Span;

use crate::wire::lock::{Lock as Word, Published};
use crate::wire::name::{Name, Node};

/// Additional pause of each further node of the order, in seconds.
const STEP: u64 = 2;
/// Maximum number of such pauses.
const STEPS: usize = 3;
/// Beginning of the name of the trigger that runs Puppet on all candidates after a change of
/// holder.
const TRIGGER: &str = "lock ";

/// Maximum by which another token may exceed the highest token that a node knows.
pub const AHEAD: u64 = 1 << 20;

/// Tokens that a node knows of a lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// Highest token since that reset.
    pub token: u64,
    /// Number of the newest reset that the node has accepted; 0 for none.
    pub reset: u64,
    /// Number that orders the versions of the published value.
    pub serial: u64,
}

impl Known {
    /// Whether a node published this before a reset that it has not accepted, according to the list
    /// in the reset. Another token that it published afterwards may have been assigned since, and
    /// counts. A connected node signs the same token anew from time to time.
    pub fn is_before(self, reset: u64, was: Option<&Published>) -> bool {
        // A node that publishes another token under the same serial has published it since then.
        let is_before = |was: &Published| {
            (self.serial, self.token) <= (was.serial, was.token)
                || (self.token, self.reset) == (was.token, was.reset)
        };
        self.reset < reset && was.is_some_and(is_before)
    }
}

/// Number of a new reset: the clock in milliseconds, or one more than the highest of the known
/// resets, which nodes have written or accepted. Resets that are ahead of the clock by more than
/// the skew do not count, since no candidate accepts them.
///
/// # Errors
/// A known reset is so far ahead of the clock that candidates may reject a higher number; the
/// message names the node that it is known from.
pub fn next_number(now: u64, skew: u64, known: &[(Node, u64)]) -> Result<u64, String> {
    let taken = known.iter().filter(|(_, number)| *number <= now + skew);
    match taken.max_by_key(|(_, number)| *number) {
        Some((node, number)) if *number > now + skew / 2 => {
            let seconds = (number - now).div_ceil(1000);
            Err(format!(
                "the last reset, known from {node}, is {seconds} s ahead of this node's clock: set the clocks or wait; if {node} is not to be trusted, see 'locks reset' in again-fleet(8)"
            ))
        }
        highest => Ok(highest.map_or(now, |(_, number)| now.max(number + 1))),
    }
}

/// Second highest of the tokens that candidates publish; 0 for fewer than two tokens. A node that
/// knows a lower token, because it is new or was disconnected, adopts this one. A token that only
/// one candidate publishes does not count, so that one lying candidate cannot raise the token.
pub fn vouched(tokens: impl Iterator<Item = u64>) -> u64 {
    let mut two = [0, 0];
    for token in tokens {
        // The lower of the two is replaced.
        two[0] = two[0].max(token);
        two.sort_unstable();
    }
    two[0]
}

/// Whether a token is plausible if `known` is the highest known token.
pub fn is_near(token: u64, known: u64) -> bool {
    token <= known.saturating_add(AHEAD)
}

/// Lock for which this node is a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Name of the lock.
    pub name: Name,
    /// Nodes that may hold the lock.
    pub candidates: Vec<Node>,
    /// Preferred candidates, in the order in which they try to take the lock.
    pub prefer: Vec<Node>,
}

impl Lock {
    /// Whether a node may hold the lock.
    pub fn has(&self, node: &Node) -> bool {
        self.candidates.contains(node)
    }

    /// Pause of a node before it tries to take the lock, so that nodes before it in the order try
    /// first.
    pub fn pause(&self, node: &Node) -> Span {
        let rank = self.prefer.iter().position(|one| one == node);
        let rank = rank.unwrap_or(self.prefer.len()).min(STEPS);
        Span::from_secs(STEP * rank as u64)
    }

    /// Checks that a signed value counts: the node wrote it itself, at the revision that it names
    /// and only once. `first` is the revision of the first write at the key, `writes` the number of
    /// writes.
    ///
    /// # Errors
    /// The value does not count.
    pub fn judge(&self, word: &Word, first: u64, writes: u64) -> Result<(), String> {
        if !self.has(&word.node) {
            return Err(format!("{} is no candidate", word.node));
        }
        if word.first != first || writes != 2 || word.to.is_some() {
            return Err("it was put there another time".to_owned());
        }
        Ok(())
    }

    /// Name of the trigger with which a new holder runs Puppet on all candidates.
    pub fn trigger(&self) -> Name {
        let name = format!("{TRIGGER}{}", self.name);
        // The name is always shorter than the longest allowed name.
        name.parse().unwrap_or_else(|_| self.name.clone())
    }
}

/// Whether a trigger announces a new holder: its name is that of one of these locks, and its signer
/// is a candidate of the lock. Such a trigger need not be listed in `accept`.
pub fn is_change(locks: &[Lock], name: &Name, signer: &Node) -> bool {
    let mut locks = locks.iter();
    name.as_str().starts_with(TRIGGER)
        && locks.any(|lock| lock.has(signer) && lock.trigger() == *name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::lock::tests::lock as word;

    pub fn lock(candidates: &[&str], prefer: &[&str]) -> Lock {
        let nodes = |names: &[&str]| {
            let node = |name: &&str| name.parse().expect("a certname");
            names.iter().map(node).collect()
        };
        Lock {
            name: "db".parse().expect("a name"),
            candidates: nodes(candidates),
            prefer: nodes(prefer),
        }
    }

    #[test]
    fn a_word_counts_where_a_candidate_put_it_and_nowhere_else() {
        let lock = lock(&["n0", "n1"], &[]);
        assert_eq!(lock.judge(&word("n1", 5, 3), 5, 2), Ok(()));
        // Put there again when it was gone; written over; written at once.
        for (first, writes) in [(7, 2), (5, 3), (5, 1)] {
            assert!(lock.judge(&word("n1", 5, 3), first, writes).is_err());
        }
        assert!(lock.judge(&word("n2", 5, 3), 5, 2).is_err());
        let pass = Word {
            to: Some("n0".parse().expect("a certname")),
            ..word("n1", 5, 3)
        };
        assert!(lock.judge(&pass, 5, 2).is_err(), "an operator's word");
    }

    #[test]
    fn no_single_candidate_raises_the_highest_token() {
        let of = |tokens: &[u64]| vouched(tokens.iter().copied());
        assert_eq!([of(&[]), of(&[1 << 40]), of(&[1 << 40, 0])], [0; 3]);
        // In any order: the one that lies, and those that are behind.
        for tokens in [[1 << 40, 7, 5], [5, 1 << 40, 7], [7, 5, 1 << 40]] {
            assert_eq!(of(&tokens), 7);
        }
        assert_eq!(of(&[9, 9, 9]), 9);
        assert!(is_near(7 + AHEAD, 7) && !is_near(8 + AHEAD, 7) && is_near(3, 7));
        assert!(is_near(u64::MAX, u64::MAX));
    }

    #[test]
    fn only_what_was_published_before_a_reset_is_from_before_it() {
        let was = |token, serial| Published {
            node: "n1".parse().expect("a certname"),
            token,
            reset: 0,
            serial,
        };
        let known = Known {
            token: 7,
            reset: 5,
            serial: 30,
        };
        for (reset, was, is_before) in [
            (6, Some(was(7, 30)), true),
            (6, Some(was(8, 31)), true),
            // It has signed the same anew since.
            (
                6,
                Some(Published {
                    reset: 5,
                    ..was(7, 29)
                }),
                true,
            ),
            (6, Some(was(7, 29)), false),
            // It has published a token since, or may have.
            (6, Some(was(6, 30)), false),
            (6, Some(was(9, 29)), false),
            // A version from before an earlier reset.
            (6, Some(was(5, 31)), true),
            (6, None, false),
            // It has taken the reset, or a later one.
            (5, Some(was(7, 30)), false),
            (4, Some(was(7, 30)), false),
        ] {
            assert_eq!(known.is_before(reset, was.as_ref()), is_before, "{was:?}");
        }
    }

    #[test]
    fn number_of_a_reset_is_above_those_that_were_written_or_taken() {
        let next = |known: &[u64]| {
            let nodes = known
                .iter()
                .map(|number| ("n1".parse().expect("a certname"), *number));
            next_number(10_000, 3_000, &nodes.collect::<Vec<_>>())
        };
        assert_eq!([next(&[]), next(&[9_000, 5])], [Ok(10_000), Ok(10_000)]);
        // Of an operator whose clock is ahead of this one's.
        assert_eq!(next(&[0, 11_000, 10_500]), Ok(11_001));
        // Of somebody who lies.
        assert_eq!(next(&[u64::MAX, 13_001, 10_000]), Ok(10_001));
        let why = next(&[13_000]).expect_err("too far ahead");
        for part in ["known from n1, is 3 s ahead", "if n1 is not to be trusted"] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn those_that_are_preferred_try_first() {
        let lock = lock(&["a", "b", "c", "d", "e", "f"], &["c", "a", "d", "b"]);
        let pause = |name: &str| lock.pause(&name.parse().expect("a certname")).secs();
        assert_eq!(
            ["c", "a", "d", "b", "e", "f"].map(pause),
            [0, 2, 4, 6, 6, 6]
        );
        let none = super::tests::lock(&["a", "b"], &[]);
        assert_eq!(none.pause(&"b".parse().expect("a certname")).secs(), 0);
        assert_eq!(none.trigger().as_str(), "lock db");
    }
}
