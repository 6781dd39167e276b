//! Beat that a node signs periodically while it has slots or locks: other nodes conclude from it
//! that the node is alive, and not from its leases, which others could renew.

use serde::{Deserialize, Serialize};

use super::Malformed;
use super::body::{Content, Placed, at_most};
use super::inventory::MOST_LOCKS;
use super::key::Key;
use super::name::{Name, Node};

/// Most groups that a node is in at the same time.
pub const MOST_GROUPS: usize = 64;

/// Value at `beat/NODE`.
///
/// It names each slot and lock with the revision of the first write there, so that it does not
/// count for another one at the same key. A copy that is written again has a counter that other
/// nodes have seen before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Node that signs this.
    pub node: Node,
    /// Counter, which increases with each beat.
    pub counter: u64,
    /// Slots that the node has or waits for.
    pub slots: Vec<Covered>,
    /// Locks that the node holds or is acquiring.
    pub locks: Vec<Covered>,
}

/// Slot or lock that a beat covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// Group of the slot, or name of the lock.
    pub name: Name,
    /// Revision of the first write there.
    pub first: u64,
}

impl Beat {
    /// Whether it covers the slot or lock at this key with this first revision.
    pub fn covers(&self, key: &Key, first: u64) -> bool {
        let (places, at) = match key {
            Key::Slot { group, node } if *node == self.node => (&self.slots, group),
            Key::Lock(name) => (&self.locks, name),
            _ => return false,
        };
        let mut places = places.iter();
        places.any(|place| place.name == *at && place.first == first)
    }
}

impl Placed for Beat {
    fn place(&self) -> (Key, &Node) {
        (Key::Beat(self.node.clone()), &self.node)
    }
}

impl Content for Beat {
    const KIND: &'static str = "beat.1";

    fn check(&self) -> Result<(), Malformed> {
        at_most("groups", self.slots.len(), MOST_GROUPS)?;
        at_most("locks", self.locks.len(), MOST_LOCKS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::body::{decode, encode};

    fn covered(name: &str, first: u64) -> Covered {
        let name = name.parse().expect("a name");
        Covered { name, first }
    }

    fn beat(slots: Vec<Covered>, locks: Vec<Covered>) -> Beat {
        Beat {
            node: "web1".parse().expect("a certname"),
            counter: u64::MAX,
            slots,
            locks,
        }
    }

    #[test]
    fn beat_covers_a_place_at_its_key_and_revision_only() {
        let beat = beat(vec![covered("g", 5)], vec![covered("db", 7)]);
        let slot = |group: &str, node: &str| Key::Slot {
            group: group.parse().expect("a name"),
            node: node.parse().expect("a certname"),
        };
        let lock = |name: &str| Key::Lock(name.parse().expect("a name"));
        assert!(beat.covers(&slot("g", "web1"), 5) && beat.covers(&lock("db"), 7));
        for (key, first) in [
            (slot("g", "web1"), 6),
            (slot("g", "web2"), 5),
            (slot("db", "web1"), 7),
            (lock("db"), 5),
            (lock("g"), 5),
            (Key::Node(beat.node.clone()), 5),
        ] {
            assert!(!beat.covers(&key, first), "{key:?}");
        }
    }

    #[test]
    fn largest_beat_fits_and_more_places_are_refused() {
        let long = "\"".repeat(Name::MOST);
        let of = |count| vec![covered(&long, u64::MAX); count];
        let largest = beat(of(MOST_GROUPS), of(MOST_LOCKS));
        assert_eq!(decode(&encode(&largest).expect("it fits")), Ok(largest));
        for bad in [
            beat(of(MOST_GROUPS + 1), Vec::new()),
            beat(Vec::new(), of(MOST_LOCKS + 1)),
        ] {
            assert!(encode(&bad).is_err());
            assert!(decode::<Beat>(&serde_json::to_vec(&bad).expect("JSON")).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), json in "[{}\":,a-z0-9]{0,60}") {
            let _ = (decode::<Beat>(&bytes), decode::<Beat>(json.as_bytes()));
        }
    }
}
