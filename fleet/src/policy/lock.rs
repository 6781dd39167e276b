//! Locks: who may hold one, whose word counts, and who tries first when nobody holds it.

use again::model::Span;

use crate::wire::lock::Lock as Word;
use crate::wire::name::{Name, Node};

/// How much later each further node of the order tries than the one before it.
const STEP: u64 = 2;
/// How many steps there are.
const STEPS: usize = 3;
/// What the trigger begins with by which a new holder has all candidates run.
const TRIGGER: &str = "lock ";

/// A lock for which this node is a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Its name.
    pub name: Name,
    /// Who may hold it.
    pub candidates: Vec<Node>,
    /// Some of them, in the order in which they try.
    pub prefer: Vec<Node>,
}

impl Lock {
    /// Whether a node may hold it.
    pub fn has(&self, node: &Node) -> bool {
        self.candidates.contains(node)
    }

    /// How long a node lets others try before.
    pub fn pause(&self, node: &Node) -> Span {
        let rank = self.prefer.iter().position(|one| one == node);
        let rank = rank.unwrap_or(self.prefer.len()).min(STEPS);
        Span::from_secs(STEP * rank as u64)
    }

    /// Whether a word counts that its node has signed, by the first revision there and the number of writes since: where its node put it,
    /// and once.
    ///
    /// # Errors
    /// It does not.
    pub fn judge(&self, word: &Word, first: u64, writes: u64) -> Result<(), String> {
        if !self.has(&word.node) {
            return Err(format!("{} is no candidate", word.node));
        }
        if word.first != first || writes != 2 || word.to.is_some() {
            return Err("it was put there another time".to_owned());
        }
        Ok(())
    }

    /// The name of the trigger by which a new holder has all candidates run.
    pub fn trigger(&self) -> Name {
        let name = format!("{TRIGGER}{}", self.name);
        // It is shorter than any name may be.
        name.parse().unwrap_or_else(|_| self.name.clone())
    }
}

/// Whether a trigger of this name comes from a candidate of one of these locks, to say that another one holds it now: for that it need
/// not be accepted.
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
