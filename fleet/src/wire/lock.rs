//! Values of locks: the holder publishes that it holds one, and an operator requests a move or
//! resets its tokens.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Malformed;
use super::body::{Content, Placed, at_most};
use super::key::Key;
use super::name::{Name, Node};

/// Most candidates of a lock.
pub const MOST_CANDIDATES: usize = 64;
/// Highest token: the largest number that JSON represents exactly everywhere.
pub const MOST_TOKEN: u64 = 1 << 53;

/// Value at `lock/NAME`.
///
/// The holder writes the key twice, as a node does for a slot: first an empty value, whose revision
/// it learns, then this value, which names that revision. A copy that is written there again
/// therefore counts for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Name of the lock.
    pub lock: Name,
    /// Holder of the lock, which signs this.
    pub node: Node,
    /// Revision of the first write there.
    pub first: u64,
    /// Token, which increases with each holder.
    pub token: u64,
    /// Time since which the node holds it, in milliseconds of its wall clock after 1970.
    pub since: u64,
    /// Candidates for the lock, as far as the holder knows.
    pub candidates: Vec<Node>,
    /// New holder, in a value at `move/NAME/NODE`, which an operator's node signs to move the lock
    /// away from the holder with this token. The other fields mean nothing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Node>,
    /// Whether the holder beats for the lock ([`Beat`](super::beat::Beat)), so that other nodes may
    /// remove this if the beats stop.
    pub beats: bool,
}

impl Placed for Lock {
    fn place(&self) -> (Key, &Node) {
        let (lock, node) = (self.lock.clone(), self.node.clone());
        let key = match self.to {
            Some(_) => Key::Move { lock, node },
            None => Key::Lock(lock),
        };
        (key, &self.node)
    }
}

impl Content for Lock {
    const KIND: &'static str = "lock.1";

    fn check(&self) -> Result<(), Malformed> {
        at_most("candidates", self.candidates.len(), MOST_CANDIDATES)?;
        if (1..=MOST_TOKEN).contains(&self.token) {
            return Ok(());
        }
        Err(Malformed::new(format!("{} is no token", self.token)))
    }
}

/// Reset of a lock's tokens, which an operator's node signs at `move/NAME/NODE/reset`: the token
/// from which on a lock without a holder may be acquired. It stays there for disconnected
/// candidates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// Name of the lock.
    pub lock: Name,
    /// Node of the operator, which signs this.
    pub node: Node,
    /// Token that counts as the last one; the next holder has one more.
    pub token: u64,
    /// Milliseconds of the operator's wall clock after 1970, and higher than any number of this
    /// lock that its node knows. A candidate accepts each number once, and no lower one afterwards.
    pub number: u64,
    /// Tokens that nodes had published of the lock by then. From these a candidate determines which
    /// tokens are from before the reset, and whether it knows one that is not.
    pub before: Vec<Published>,
}

/// Token of a lock that a node published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Node that published it.
    pub node: Node,
    /// Highest token that the node knew.
    pub token: u64,
    /// Number of the newest reset that it had accepted; 0 for none.
    pub reset: u64,
    /// Number that orders the node's inventories
    /// ([`Inventory::order`](super::inventory::Inventory::order)).
    pub serial: u64,
}

impl Placed for Reset {
    fn place(&self) -> (Key, &Node) {
        let (lock, node) = (self.lock.clone(), self.node.clone());
        (Key::Reset { lock, node }, &self.node)
    }
}

impl Content for Reset {
    const KIND: &'static str = "reset.1";

    fn check(&self) -> Result<(), Malformed> {
        at_most("candidates", self.before.len(), MOST_CANDIDATES)?;
        let most = MOST_TOKEN - 1;
        if self.token > most {
            return Err(Malformed::new(format!(
                "a lock cannot be reset to token {}: up to {most} is allowed",
                self.token
            )));
        }
        if self.number == 0 {
            return Err(Malformed::new(
                "invalid reset number 0: numbers begin at 1".to_owned(),
            ));
        }
        let nodes: BTreeSet<&Node> = self.before.iter().map(|one| &one.node).collect();
        if nodes.len() < self.before.len() {
            return Err(Malformed::new(
                "a reset names a node twice among those that had published tokens".to_owned(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::body::{decode, encode};

    pub fn lock(node: &str, first: u64, token: u64) -> Lock {
        Lock {
            lock: "db".parse().expect("a name"),
            node: node.parse().expect("a certname"),
            first,
            token,
            since: 1000,
            candidates: ["n0", "n1", "n2"]
                .map(|name| name.parse().expect("a certname"))
                .to_vec(),
            to: None,
            beats: true,
        }
    }

    #[test]
    fn what_breaks_a_bound_is_neither_written_nor_read() {
        let many = Lock {
            candidates: vec!["n0".parse().expect("a certname"); MOST_CANDIDATES + 1],
            ..lock("n0", 5, 1)
        };
        for bad in [lock("n0", 5, 0), lock("n0", 5, MOST_TOKEN + 1), many] {
            assert!(encode(&bad).is_err(), "{bad:?}");
            assert!(decode::<Lock>(&serde_json::to_vec(&bad).expect("JSON")).is_err());
        }
        let long: Node = "\"".repeat(Node::MOST).parse().expect("a certname");
        let largest = Lock {
            candidates: vec![long.clone(); MOST_CANDIDATES],
            to: Some(long),
            ..lock("n0", u64::MAX, MOST_TOKEN)
        };
        assert_eq!(decode(&encode(&largest).expect("it fits")), Ok(largest));
    }

    #[test]
    fn reset_comes_back_with_a_token_that_leaves_room_for_another() {
        let long = |n| {
            let name = format!("{}{n:02}", "\"".repeat(Node::MOST - 2));
            name.parse::<Node>().expect("a certname")
        };
        let published = |n| Published {
            node: long(n),
            token: MOST_TOKEN,
            reset: u64::MAX,
            serial: u64::MAX,
        };
        let reset = |token, number, count| Reset {
            lock: "db".parse().expect("a name"),
            node: "n0".parse().expect("a certname"),
            token,
            number,
            before: (0..count).map(published).collect(),
        };
        for good in [
            reset(0, 1, 0),
            reset(MOST_TOKEN - 1, u64::MAX, MOST_CANDIDATES),
        ] {
            assert_eq!(decode(&encode(&good).expect("written")), Ok(good));
        }
        let twice = Reset {
            before: vec![published(1); 2],
            ..reset(1, 1, 0)
        };
        for (bad, named) in [
            (reset(MOST_TOKEN, 1, 0), "to token"),
            (reset(1, 0, 0), "number 0"),
            (reset(1, 1, MOST_CANDIDATES + 1), "candidates"),
            (twice, "twice"),
        ] {
            let why = encode(&bad).expect_err("bad").to_string();
            assert!(why.contains(named), "{why}");
        }
    }

    proptest! {
        #[test]
        fn it_comes_back(first: u64, token in 1..=MOST_TOKEN, since: u64) {
            let lock = Lock { since, ..lock("n1", first, token) };
            prop_assert_eq!(decode(&encode(&lock).expect("written")), Ok(lock));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), json in "[{}\":,a-z0-9]{0,60}") {
            let _ = (decode::<Lock>(&bytes), decode::<Lock>(json.as_bytes()));
        }
    }
}
