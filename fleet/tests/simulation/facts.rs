//! Facts that nodes publish at their own keys, and the inventories of the nodes that read them,
//! with the real policies.

use std::collections::{BTreeMap, BTreeSet};

use again_fleet::policy::last_inventory::{LastInventory, Reading};
use again_fleet::policy::newest::Newest;
use again_fleet::step::model::{Content, EntryId, Event};
use again_fleet::step::own_key::OwnKey;
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::key::{Key, Prefix};
use again_fleet::wire::name::Node;
use again_fleet::wire::value::Value;

use crate::seal;
use crate::world::{Mutant, World, inventory};

/// Inventory of other nodes that a node keeps on its disk.
#[derive(Debug, Default)]
pub struct Reader {
    last: LastInventory,
    newest: Newest,
    witness: Witness,
}

/// Independent record of what a reader was shown, and of the nodes that it must count.
#[derive(Debug, Default)]
struct Witness {
    store: String,
    read_up_to: Option<u64>,
    /// First and last revision of each value in the last reading.
    seen: BTreeMap<Node, (u64, u64)>,
    expected: BTreeSet<Node>,
    lost: BTreeSet<Node>,
    serials: BTreeMap<Node, u64>,
}

impl Witness {
    /// Whether a reading proves that the backend has lost data. Otherwise no reader can know.
    fn shows_loss(&self, reading: &Reading) -> bool {
        let Some(up_to) = self.read_up_to else {
            return false;
        };
        let contradicts = |(node, value): &(Node, Value)| {
            let known = self.seen.get(node);
            let is_known = known.is_some_and(|(first, revision)| {
                *first == value.first && (value.revision > up_to || *revision == value.revision)
            });
            value.first <= up_to && !is_known
        };
        self.store != reading.store
            || reading.revision < up_to
            || reading.values.iter().any(contradicts)
    }

    /// Checks that a node disappears only if its value was removed, and that none goes back to an
    /// older version. Returns the number of nodes that the backend has lost.
    fn reads(&mut self, me: &Node, reading: &Reading, last: &LastInventory) -> usize {
        let shown = reading.values.iter().map(|(node, _)| node.clone());
        let shown: BTreeSet<Node> = shown.collect();
        let all = || reading.values.iter().chain(&reading.invalid);
        if self.shows_loss(reading) {
            self.lost = &self.expected - &shown;
        } else {
            self.lost = &self.lost - &shown;
            let stand: BTreeSet<Node> = all().map(|(node, _)| node.clone()).collect();
            self.expected = &(&self.expected & &stand) | &self.lost;
        }
        self.expected.extend(shown);
        for node in &self.expected {
            let entry = last.nodes.get(node);
            assert!(
                entry.is_some_and(|entry| !entry.bytes.is_empty()),
                "{me} counts {node} no longer, which nobody has removed"
            );
        }
        for (node, entry) in &last.nodes {
            if let Ok(inventory) = seal::inventory(node, &entry.bytes) {
                let newest = self.serials.entry(node.clone()).or_default();
                assert!(
                    inventory.serial >= *newest,
                    "{me} goes back to older facts of {node}"
                );
                *newest = inventory.serial;
            }
        }
        (self.store, self.read_up_to) = (reading.store.clone(), Some(reading.revision));
        let revisions =
            |(node, value): &(Node, Value)| (node.clone(), (value.first, value.revision));
        self.seen = all().map(revisions).collect();
        self.lost.len()
    }
}

impl World {
    fn own_key(&self, n: usize) -> String {
        Key::Node(self.machines[n].name.clone()).encode(&seal::namespace())
    }

    /// Publishes the facts of a node.
    pub fn publish(&mut self, n: usize) {
        if !self.has_facts || self.machines[n].service.is_none() {
            return;
        }
        let fact = ("runs".to_owned(), self.machines[n].facts.to_string());
        let inventory = Inventory {
            at: self.moment(n).wall.millis(),
            serial: 0,
            facts: BTreeMap::from([fact]),
            version: "1".to_owned(),
            ..inventory(&self.machines[n].name)
        };
        self.feed(n, Event::Inventory(inventory));
    }

    /// Reports to a node the value at its own key.
    pub fn see_own_key(&mut self, n: usize) {
        match self.backend.get(&self.own_key(n), self.now).cloned() {
            Some(value) => self.own_key_is(n, value.revision, Some(&value.bytes)),
            None if self.has_facts => self.own_key_is(n, self.backend.revision, None),
            None => {}
        }
    }

    pub fn own_key_is(&mut self, n: usize, revision: u64, bytes: Option<&[u8]>) {
        let me = &self.machines[n].name;
        let found = match bytes.map(|bytes| seal::inventory(me, bytes)) {
            None => OwnKey::Absent,
            Some(Ok(inventory)) => OwnKey::Signed(Box::new(inventory)),
            Some(Err(why)) => OwnKey::Foreign(why.to_string()),
        };
        self.feed(n, Event::OwnKey { revision, found });
    }

    /// Whether a node's newest facts are stored in the backend.
    pub fn is_published(&self, n: usize) -> bool {
        let service = self.machines[n].service.as_ref();
        let entry = service.and_then(|service| service.state.entry(&EntryId::Node));
        let Some(Content::Node(known)) = entry else {
            return true;
        };
        let value = self.backend.get(&self.own_key(n), self.now);
        let value = value.and_then(|value| seal::inventory(&known.node, &value.bytes).ok());
        value.as_ref() == Some(known)
    }

    /// Reads the facts of all nodes, as a service does.
    pub fn read_nodes(&mut self, n: usize) {
        if !self.has_facts || !self.has_backend(n) {
            return;
        }
        let mut reading = Reading {
            store: format!("store {}", self.backend.store),
            revision: self.backend.revision,
            ..Reading::default()
        };
        let nodes = Prefix::Nodes.encode(&seal::namespace());
        let takes_older = self.mutant == Some(Mutant::TakesOlderFacts);
        let forgets = self.mutant == Some(Mutant::ForgetsLostNodes);
        let now = self.moment(n);
        let machine = &mut self.machines[n];
        let Reader {
            last,
            newest,
            witness,
        } = &mut machine.reader;
        for (text, value) in self.backend.list(&nodes, self.now) {
            let Ok(Key::Node(node)) = Key::decode(&text, &seal::namespace()) else {
                continue;
            };
            let inventory = seal::inventory(&node, &value.bytes);
            let is_valid = inventory.is_ok_and(|one| newest.judge(&one).is_ok() || takes_older);
            let mut shown = Value::new(text, value.bytes, value.revision);
            shown.first = value.first;
            if is_valid {
                reading.values.push((node, shown));
            } else {
                self.promises.count("facts that do not count");
                shown.bytes.clear();
                reading.invalid.push((node, shown));
            }
        }
        let loss = last.update(reading.clone(), &now);
        if self.is_traced {
            let (at, name, up_to) = (self.now, &machine.name, witness.read_up_to);
            println!("{at} {name}: {up_to:?} {reading:?}\n    ▸ {loss:?}");
        }
        if forgets {
            let missing: Vec<Node> = last.missing().map(|(node, _)| node.clone()).collect();
            for node in &missing {
                last.forget(node);
            }
        }
        if witness.reads(&machine.name, &reading, last) > 0 {
            self.promises.count("lost and still counted");
        }
    }

    /// Removes a decommissioned node, as an operator does.
    pub fn forget_node(&mut self, n: usize) {
        let Some(node) = self.gone().pop_first().filter(|_| self.has_backend(n)) else {
            return;
        };
        let key = Key::Node(node.clone()).encode(&seal::namespace());
        self.backend.delete(&key);
        let reader = &mut self.machines[n].reader;
        if reader.last.forget(&node) {
            self.promises.count("node forgotten");
        }
        reader.witness.expected.remove(&node);
        reader.witness.lost.remove(&node);
    }
}
