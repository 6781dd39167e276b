//! Slot of a node in a group: the node runs, or waits for its turn.

use serde::{Deserialize, Serialize};

use super::Malformed;
use super::body::{Content, Placed, at_most};
use super::key::Key;
use super::name::{Name, Node};

/// Most slots in a group.
pub const MOST_SLOTS: u32 = 100_000;
/// Longest reason, in bytes.
pub const MOST_WHY: usize = 128;

/// Value at `slot/GROUP/NODE`.
///
/// A node writes the key twice: first an empty value, whose revision it learns, then this value,
/// which names that revision. The value is therefore valid only for that first write, and a copy
/// that is written there after the node has left is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Name of the group.
    pub group: Name,
    /// Node that runs or waits, which signs this.
    pub node: Node,
    /// Revision of the first write there.
    pub first: u64,
    /// Number of slots of the group, as far as this node knows.
    pub limit: u32,
    /// Time since which it waits, in milliseconds of its wall clock after 1970.
    pub since: u64,
    /// Reason for which it needs the slot, in its own words.
    pub why: String,
    /// Whether the node beats for this slot ([`Beat`](super::beat::Beat)), so that other nodes may
    /// remove it if the beats stop.
    pub beats: bool,
}

impl Placed for Slot {
    fn place(&self) -> (Key, &Node) {
        let (group, node) = (self.group.clone(), self.node.clone());
        (Key::Slot { group, node }, &self.node)
    }
}

impl Content for Slot {
    const KIND: &'static str = "slot.1";

    fn check(&self) -> Result<(), Malformed> {
        at_most("bytes of a reason", self.why.len(), MOST_WHY)?;
        if self.why.chars().any(char::is_control) {
            return Err(Malformed::new("a reason has control characters"));
        }
        if (1..=MOST_SLOTS).contains(&self.limit) {
            return Ok(());
        }
        let limit = self.limit;
        Err(Malformed::new(format!(
            "{limit} slots: 1 to {MOST_SLOTS} are allowed"
        )))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::body::{decode, encode};

    pub fn slot(node: &str, first: u64, limit: u32) -> Slot {
        Slot {
            group: "puppetserver".parse().expect("a name"),
            node: node.parse().expect("a certname"),
            first,
            limit,
            since: 1000,
            why: "process 7".to_owned(),
            beats: true,
        }
    }

    #[test]
    fn what_breaks_a_bound_is_neither_written_nor_read() {
        let good = slot("web1", 5, 3);
        assert_eq!(decode(&encode(&good).expect("written")), Ok(good));
        let why = |why: String| Slot {
            why,
            ..slot("web1", 5, 3)
        };
        for bad in [
            slot("web1", 5, 0),
            slot("web1", 5, MOST_SLOTS + 1),
            why("a\nb".to_owned()),
            why("x".repeat(MOST_WHY + 1)),
        ] {
            assert!(encode(&bad).is_err(), "{bad:?}");
            assert!(decode::<Slot>(&serde_json::to_vec(&bad).expect("JSON")).is_err());
        }
    }

    proptest! {
        #[test]
        fn it_comes_back_or_is_refused(first: u64, limit: u32, since: u64, why in "\\PC{0,140}") {
            let slot = Slot { since, why, ..slot("web1", first, limit) };
            if let Ok(bytes) = encode(&slot) {
                prop_assert_eq!(decode(&bytes), Ok(slot));
            } else {
                prop_assert!(decode::<Slot>(&serde_json::to_vec(&slot).expect("JSON")).is_err());
            }
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), json in "[{}\":,a-z0-9]{0,60}") {
            let _ = (decode::<Slot>(&bytes), decode::<Slot>(json.as_bytes()));
        }
    }
}
