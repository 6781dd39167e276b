//! Targets of a rolling run that stops after failures, as its sender lists them once.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Malformed;
use super::body::{Content, Placed};
use super::key::Key;
use super::name::{Id, Node};

/// Value at `story/SENDER/ID/targets`. About 5,000 certnames fit into the longest body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Targets {
    /// Id of the run's triggers.
    pub id: Id,
    /// Node that sent them, which signs this.
    pub sender: Node,
    /// Origin below which each target publishes the status of its trigger: all of the triggers have
    /// it.
    pub origin: Id,
    /// Targets of the rolling run.
    pub targets: BTreeSet<Node>,
}

impl Targets {
    /// Key at which the list is stored.
    pub fn key(&self) -> Key {
        Key::Targets {
            sender: self.sender.clone(),
            id: self.id.clone(),
        }
    }
}

impl Placed for Targets {
    fn place(&self) -> (Key, &Node) {
        (self.key(), &self.sender)
    }
}

impl Content for Targets {
    const KIND: &'static str = "targets.1";

    fn check(&self) -> Result<(), Malformed> {
        match self.targets.is_empty() {
            true => Err(Malformed::new("a rolling run has at least one target")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body::{decode, encode};
    use proptest::prelude::*;

    fn targets(count: usize) -> Targets {
        Targets {
            id: Id::from_bits(1),
            sender: "web1.example.com".parse().expect("a certname"),
            origin: Id::from_bits(2),
            targets: (0..count)
                .map(|n| {
                    format!("web{n:06}.example.com")
                        .parse()
                        .expect("a certname")
                })
                .collect(),
        }
    }

    #[test]
    fn five_thousand_certnames_fit_and_a_longer_list_is_neither_written_nor_read() {
        let good = targets(5_000);
        assert_eq!(decode(&encode(&good).expect("written")), Ok(good));
        for bad in [targets(0), targets(6_000)] {
            assert!(encode(&bad).is_err());
            assert!(decode::<Targets>(&serde_json::to_vec(&bad).expect("JSON")).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), json in "[{}\":,a-z0-9]{0,60}") {
            let _ = (decode::<Targets>(&bytes), decode::<Targets>(json.as_bytes()));
        }
    }
}
