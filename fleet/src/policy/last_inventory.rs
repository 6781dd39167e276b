//! PURE: nodes of the last reading, and which of them count although the backend has lost the
//! published values.
//!
//! A value that is missing from a reading was removed, unless the backend has lost its data since
//! the previous reading. In that case the earlier nodes stay until they publish again or are
//! removed.

use std::collections::BTreeMap;

use again_base::model::{Moment, Span, Walltime};

use super::term::Term;
use crate::wire::name::Node;
use crate::wire::value::Value;

/// Time after a loss in which a node may publish its facts again before it is reported as missing.
pub const RETURN: Span = Span::from_secs(300);
/// Largest number of nodes of which only an invalid value is remembered.
const MOST_INVALID: usize = 20_000;

/// Content of the backend at one reading.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Name of the store, as the backend lists it.
    pub store: String,
    /// Revision up to which the reading is complete.
    pub revision: u64,
    /// Values that their nodes have signed.
    pub values: Vec<(Node, Value)>,
    /// Invalid values, without their bytes, by the nodes whose keys they have. The last signed
    /// value of the node stays.
    pub invalid: Vec<(Node, Value)>,
}

/// Nodes of the last reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastInventory {
    /// Wall-clock time of the last reading; none before the first.
    pub read: Option<Walltime>,
    /// Name of the store that was read.
    pub store: String,
    /// Revision up to which it was read.
    pub revision: u64,
    /// Time of the reading that last showed a loss, or of the first reading, since the backend may
    /// have lost its data before that.
    pub lost: Option<Moment>,
    /// Entries by node.
    pub nodes: BTreeMap<Node, Entry>,
}

/// Known value of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Last value that the node has signed; empty if there was none.
    pub bytes: Vec<u8>,
    /// Revision of the first write at its key, from the last reading.
    pub first: u64,
    /// Revision of the last write at its key, from the last reading.
    pub revision: u64,
    /// Whether that write wrote these bytes; otherwise the key had an invalid value.
    pub is_current: bool,
    /// Time at which the value was found to be lost; none if the backend has it.
    pub missing_since: Option<Walltime>,
}

/// Loss of published values in the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Evidence of the loss, as a sentence.
    pub why: String,
    /// Number of missing nodes.
    pub missing: usize,
}

impl LastInventory {
    /// Applies a reading. Returns a loss, if the reading shows one.
    pub fn update(&mut self, reading: Reading, now: &Moment) -> Option<Loss> {
        let is_first = self.read.is_none();
        let loss = self.loss(&reading);
        let before = std::mem::take(&mut self.nodes);
        let entry = |(node, value): (Node, Value)| {
            let entry = Entry {
                is_current: !value.bytes.is_empty(),
                bytes: value.bytes,
                first: value.first,
                revision: value.revision,
                missing_since: None,
            };
            (node, entry)
        };
        self.nodes = reading.values.into_iter().map(entry).collect();
        let mut invalid: BTreeMap<Node, Entry> = reading.invalid.into_iter().map(entry).collect();
        for (node, mut entry) in before {
            if entry.bytes.is_empty() || self.nodes.contains_key(&node) {
                continue;
            }
            let read = invalid.remove(&node);
            if let Some(read) = &read {
                (entry.first, entry.revision) = (read.first, read.revision);
                entry.is_current = false;
            }
            // After a restore from a backup, an invalid value may be an older one of the node.
            if loss.is_some() {
                entry.missing_since = entry.missing_since.or(Some(now.wall));
            } else if read.is_none() && entry.missing_since.is_none() {
                continue;
            }
            self.nodes.insert(node, entry);
        }
        self.nodes.extend(invalid.into_iter().take(MOST_INVALID));
        (self.store, self.revision) = (reading.store, reading.revision);
        self.read = Some(now.wall);
        if loss.is_some() || is_first {
            self.lost = Some(now.clone());
        }
        let missing = self.missing().count();
        loss.map(|why| Loss { why, missing })
    }

    /// Reason why a reading cannot be a later state of the same data; none if it can be. A store
    /// that was created again in the same way has the same name.
    fn loss(&self, reading: &Reading) -> Option<String> {
        self.read?;
        if self.store != reading.store {
            return Some("it is another store".to_owned());
        }
        let (before, now) = (self.revision, reading.revision);
        if now < before {
            return Some(format!("its revision is {now} after {before}"));
        }
        let invalid = reading.invalid.iter();
        let invalid = invalid.filter(|(node, _)| self.has_published(node));
        let mut values = reading.values.iter().chain(invalid);
        let (node, revision) =
            values.find_map(|(node, value)| Some((node, self.contradiction(node, value)?)))?;
        Some(format!(
            "{node}'s value of revision {revision} was not there at revision {before}"
        ))
    }

    /// Revision of a write that the previous reading should have shown but did not. Only a store
    /// that reports first writes can prove that: in a NATS cluster, a member that lags behind may
    /// show an older value.
    fn contradiction(&self, node: &Node, value: &Value) -> Option<u64> {
        if value.first == 0 || value.first > self.revision {
            return None;
        }
        let Some(entry) = self.nodes.get(node) else {
            return (!self.is_cut()).then_some(value.first);
        };
        if entry.first != value.first {
            return Some(value.first);
        }
        let has_both = entry.is_current && !value.bytes.is_empty();
        let is_same = entry.revision == value.revision && (!has_both || entry.bytes == value.bytes);
        (value.revision <= self.revision && !is_same).then_some(value.revision)
    }

    /// Whether nodes may be unknown because of too many invalid values.
    fn is_cut(&self) -> bool {
        let invalid = self.nodes.values().filter(|entry| entry.bytes.is_empty());
        invalid.count() >= MOST_INVALID
    }

    /// Time that nodes may still take to publish again after a loss, at most [`RETURN`]. Jumps of
    /// the wall clock do not shorten it.
    pub fn returns_for(&self, now: &Moment) -> Span {
        let left = self.lost.clone().map(|began| {
            let until = began.wall + RETURN;
            Term { began, until }.left(now)
        });
        left.unwrap_or(Span::ZERO).min(RETURN)
    }

    fn has_published(&self, node: &Node) -> bool {
        let entry = self.nodes.get(node);
        entry.is_some_and(|entry| !entry.bytes.is_empty())
    }

    /// Removes the value of a node. Returns whether there was one.
    pub fn forget(&mut self, node: &Node) -> bool {
        self.has_published(node) && self.nodes.remove(node).is_some()
    }

    /// Nodes that are missing because of a loss, and the time since when.
    pub fn missing(&self) -> impl Iterator<Item = (&Node, Walltime)> {
        let all = self.nodes.iter();
        all.filter_map(|(node, entry)| Some((node, entry.missing_since?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::term::tests::moment;
    use super::*;

    fn node(name: &str) -> Node {
        name.parse().expect("a certname")
    }

    fn at(millis: u64) -> Walltime {
        Walltime::from_millis(millis)
    }

    fn then(millis: u64) -> Moment {
        moment("a", millis, millis)
    }

    fn value(name: &str, bytes: &[u8], first: u64, revision: u64) -> (Node, Value) {
        let mut value = Value::new(format!("node/{name}"), bytes.to_vec(), revision);
        value.first = first;
        (node(name), value)
    }

    fn reading(revision: u64, values: &[(Node, Value)]) -> Reading {
        Reading {
            store: "etcd 1".to_owned(),
            revision,
            values: values.to_vec(),
            invalid: Vec::new(),
        }
    }

    /// After a reading at revision 9 that showed web1, web2 and web3.
    fn known() -> LastInventory {
        let values = [
            value("web1", b"1", 3, 3),
            value("web2", b"2", 4, 8),
            value("web3", b"3", 5, 5),
        ];
        let mut last = LastInventory::default();
        assert_eq!(last.update(reading(9, &values), &then(1)), None);
        last
    }

    fn names(last: &LastInventory) -> Vec<&str> {
        last.nodes.keys().map(Node::as_str).collect()
    }

    fn missing(last: &LastInventory) -> Vec<(&str, u64)> {
        let all = last.missing();
        all.map(|(node, since)| (node.as_str(), since.millis()))
            .collect()
    }

    #[test]
    fn node_that_is_not_read_any_more_was_removed() {
        let mut last = known();
        let values = [value("web1", b"1", 3, 3), value("web2", b"4", 4, 12)];
        assert_eq!(last.update(reading(12, &values), &then(2)), None);
        assert_eq!(
            (names(&last), last.read),
            (vec!["web1", "web2"], Some(at(2)))
        );
    }

    #[test]
    fn loss_is_another_store_or_a_contradiction_and_keeps_all_nodes() {
        let same = value("web1", b"1", 3, 3);
        let other_store = Reading {
            store: "etcd 2".to_owned(),
            ..reading(20, std::slice::from_ref(&same))
        };
        for (reading, why) in [
            (other_store, "another store"),
            (reading(8, std::slice::from_ref(&same)), "8 after 9"),
            (reading(0, &[]), "0 after 9"),
            // Written before the last reading, which did not see it, or not so.
            (reading(20, &[value("web9", b"9", 9, 9)]), "web9"),
            (
                reading(20, &[value("web1", b"1", 2, 12)]),
                "web1's value of revision 2 was not there at revision 9",
            ),
            (
                reading(20, &[value("web1", b"1", 3, 4)]),
                "web1's value of revision 4 was not there at revision 9",
            ),
            (
                reading(20, &[value("web1", b"x", 3, 3)]),
                "web1's value of revision 3 was not there at revision 9",
            ),
        ] {
            let mut last = known();
            let read: BTreeSet<Node> = reading
                .values
                .iter()
                .map(|(node, _)| node.clone())
                .collect();
            let loss = last.update(reading, &then(2)).expect(why);
            assert!(loss.why.contains(why), "{loss:?}");
            let is_missing = ["web1", "web2", "web3"].into_iter();
            let is_missing = is_missing.filter(|name| !read.contains(&node(name)));
            let is_missing: Vec<_> = is_missing.map(|name| (name, 2)).collect();
            assert_eq!(missing(&last), is_missing, "{why}");
            assert_eq!(loss.missing, is_missing.len());
        }
        // What was written since contradicts nothing, nor does what a store without first writes says.
        for values in [
            [value("web1", b"x", 10, 10)],
            [value("web1", b"x", 3, 10)],
            [value("web1", b"x", 0, 2)],
        ] {
            let mut last = known();
            assert_eq!(last.update(reading(20, &values), &then(2)), None);
            assert_eq!(names(&last), ["web1"]);
        }
    }

    #[test]
    fn missing_node_counts_until_it_is_back_or_forgotten() {
        let mut last = known();
        assert!(last.update(reading(0, &[]), &then(2)).is_some());
        let back = value("web1", b"4", 1, 1);
        assert_eq!(
            last.update(reading(1, std::slice::from_ref(&back)), &then(3)),
            None
        );
        assert_eq!(missing(&last), [("web2", 2), ("web3", 2)]);
        // Another loss does not begin its time anew.
        let loss = last.update(reading(0, &[]), &then(4)).expect("a loss");
        assert_eq!(loss.missing, 3);
        assert_eq!(missing(&last), [("web1", 4), ("web2", 2), ("web3", 2)]);
        assert!(last.forget(&node("web2")) && !last.forget(&node("web2")));
        assert_eq!(last.update(reading(2, &[back]), &then(5)), None);
        assert_eq!(missing(&last), [("web3", 2)]);
    }

    #[test]
    fn invalid_value_leaves_what_the_node_has_signed() {
        let mut last = known();
        let junk = [
            value("web2", b"", 4, 10),
            value("web3", b"", 11, 11),
            value("x", b"", 12, 12),
        ];
        let reading_with_junk = Reading {
            invalid: junk.to_vec(),
            ..reading(12, &[])
        };
        assert_eq!(last.update(reading_with_junk, &then(2)), None);
        assert_eq!(names(&last), ["web2", "web3", "x"]);
        assert_eq!(last.nodes[&node("web2")].bytes, b"2");
        assert_eq!(missing(&last), []);
        // Good values over the junk contradict nothing.
        let good = [value("web3", b"5", 11, 13), value("x", b"6", 12, 14)];
        assert_eq!(last.update(reading(14, &good), &then(3)), None);
        assert_eq!(names(&last), ["web3", "x"]);
        // Of an invalid value nothing is missing.
        let junk = Reading {
            invalid: vec![value("y", b"", 15, 15)],
            ..reading(15, &good)
        };
        assert_eq!(last.update(junk, &then(4)), None);
        assert_eq!(
            last.update(reading(1, &[]), &then(5))
                .expect("a loss")
                .missing,
            2
        );
        assert!(!last.forget(&node("y")) && names(&last) == ["web3", "x"]);
    }

    #[test]
    fn node_whose_value_is_invalid_since_a_loss_is_missing() {
        let older = |revision| Reading {
            invalid: vec![value("web2", b"", 4, 4)],
            ..reading(revision, &[value("web1", b"1", 3, 3)])
        };
        // The older value alone shows the loss if other writes have raised the revision.
        for (revision, why) in [
            (6, "its revision is 6 after 9"),
            (20, "web2's value of revision 4 was not there at revision 9"),
        ] {
            let mut last = known();
            let loss = last.update(older(revision), &then(2)).expect("a loss");
            assert_eq!((loss.why.as_str(), loss.missing), (why, 2));
            assert_eq!(missing(&last), [("web2", 2), ("web3", 2)]);
            assert_eq!(last.nodes[&node("web2")].bytes, b"2");
            assert_eq!(last.update(older(revision), &then(3)), None);
            assert_eq!(missing(&last), [("web2", 2), ("web3", 2)]);
        }
    }

    #[test]
    fn nodes_return_for_five_minutes_after_a_loss_whatever_the_clock_does() {
        let at = |boot, uptime: u64, wall: u64| moment(boot, uptime * 1000, wall * 1000);
        assert_eq!(LastInventory::default().returns_for(&then(1)), Span::ZERO);
        let mut last = known();
        // The first reading may be one after a loss.
        assert_eq!(last.returns_for(&at("a", 100, 100)).secs(), 200);
        // Also if nobody is missing.
        let values = last
            .nodes
            .keys()
            .map(|node| value(node.as_str(), b"new", 1, 1));
        let values: Vec<_> = values.collect();
        let loss = last.update(reading(1, &values), &at("a", 1000, 9000));
        assert_eq!(loss.expect("a loss").missing, 0);
        for (boot, uptime, wall, left) in [
            ("a", 1000, 9000, 300),
            ("a", 1299, 9299, 1),
            ("a", 1300, 9300, 0),
            // The clock was set back, or ahead.
            ("a", 1001, 8999, 300),
            ("a", 1001, 5400, 300),
            ("a", 1001, 9600, 299),
            ("a", 1300, 9600, 0),
            // After a reboot.
            ("b", 10, 9900, 290),
            ("b", 300, 9900, 0),
        ] {
            let left = Span::from_secs(left);
            let now = at(boot, uptime, wall);
            assert_eq!(last.returns_for(&now), left, "{now:?}");
        }
    }

    #[test]
    fn value_that_is_valid_again_is_no_loss() {
        let mut last = known();
        let unreadable = Reading {
            invalid: vec![value("web2", b"", 4, 10)],
            ..reading(10, &[])
        };
        assert_eq!(last.update(unreadable, &then(2)), None);
        let readable = reading(12, &[value("web2", b"new", 4, 10)]);
        assert_eq!(last.update(readable, &then(3)), None);
        assert_eq!(last.nodes[&node("web2")].bytes, b"new");
    }

    #[test]
    fn node_behind_too_many_invalid_values_is_no_loss() {
        let junk = (0..=MOST_INVALID).map(|n| value(&format!("a{n}"), b"", 1, 1));
        let junk = junk.chain([value("web1", b"", 1, 2)]).collect();
        let mut last = LastInventory::default();
        let invalid = Reading {
            invalid: junk,
            ..reading(9, &[])
        };
        assert_eq!(last.update(invalid, &then(1)), None);
        assert!(!last.nodes.contains_key(&node("web1")));
        // An invalid value stays known, so that the list still counts as cut.
        assert!(!last.forget(&node("a1")));
        let valid = reading(12, &[value("web1", b"1", 1, 10)]);
        assert_eq!(last.update(valid, &then(2)), None);
    }

    /// A store, and the nodes that were seen there and not removed since.
    #[derive(Default)]
    struct Model {
        name: u8,
        revision: u64,
        values: BTreeMap<u8, Value>,
        writes: u64,
        /// Revision and values of the last backup.
        backup: (u64, BTreeMap<u8, Value>),
        /// The newest value of each node that was read: an older one is invalid.
        newest: BTreeMap<u8, Vec<u8>>,
        /// Whether the values could be verified when they were read last.
        is_readable: bool,
        expected: BTreeSet<u8>,
        last: LastInventory,
    }

    /// The node whose service reads. It is connected, so that nobody forgets it and it publishes again first.
    const READER: u8 = 0;

    #[derive(Debug, Clone)]
    enum Step {
        Publish(u8),
        Forget(u8),
        /// The store is set up again, under this name. Left out: the reader's first write has the same revision as before, and the revision
        /// has grown beyond that of the last reading before it reads.
        Lose(u8),
        Backup,
        /// The reader reads as soon as it has connected.
        Restore,
        Write(u8),
        /// Whether the values can be verified.
        Read(bool),
    }

    impl Model {
        fn publish(&mut self, n: u8) {
            (self.revision, self.writes) = (self.revision + 1, self.writes + 1);
            let first = self
                .values
                .get(&n)
                .map_or(self.revision, |value| value.first);
            // A node signs with a new serial or at least with a new salt.
            let bytes = self.writes.to_be_bytes();
            let (_, value) = value(&format!("n{n}"), &bytes, first, self.revision);
            self.values.insert(n, value);
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Publish(n) => self.publish(n),
                Step::Forget(n) if n != READER => {
                    self.revision += u64::from(self.values.remove(&n).is_some());
                    self.last.forget(&node(&format!("n{n}")));
                    self.expected.remove(&n);
                }
                Step::Forget(_) => {}
                Step::Lose(name) => {
                    let reader = self.last.nodes.get(&node("n0")).map_or(0, |one| one.first);
                    // Other keys come first, and not as many as before.
                    (self.name, self.revision) = (name, u64::from(reader == 1));
                    self.values.clear();
                    self.publish(READER);
                    // A backup is one of the same store.
                    self.backup = (self.revision, self.values.clone());
                }
                Step::Write(count) => self.revision += u64::from(count),
                Step::Backup => self.backup = (self.revision, self.values.clone()),
                Step::Restore => {
                    (self.revision, self.values) = self.backup.clone();
                    self.publish(READER);
                    self.read(true);
                }
                Step::Read(is_readable) => self.read(is_readable),
            }
        }

        fn read(&mut self, is_readable: bool) {
            let mut reading = Reading {
                store: self.name.to_string(),
                revision: self.revision,
                ..Reading::default()
            };
            self.is_readable = is_readable;
            for (n, value) in &self.values {
                let (node, mut value) = (node(&format!("n{n}")), value.clone());
                let newest = self.newest.get(n);
                if is_readable && newest.is_none_or(|newest| *newest <= value.bytes) {
                    self.newest.insert(*n, value.bytes.clone());
                    self.expected.insert(*n);
                    reading.values.push((node, value));
                } else {
                    value.bytes.clear();
                    reading.invalid.push((node, value));
                }
            }
            self.last.update(reading, &then(1));
        }

        /// Whether a node is shown with what it has signed.
        fn counts(&self, n: u8) -> bool {
            let entry = self.last.nodes.get(&node(&format!("n{n}")));
            entry.is_some_and(|entry| {
                let is_shown = entry.is_current || entry.missing_since.is_some();
                !entry.bytes.is_empty() && (is_shown || !self.is_readable)
            })
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u8..5).prop_map(Step::Publish),
            1 => (0_u8..5).prop_map(Step::Forget),
            1 => (0_u8..2).prop_map(Step::Lose),
            1 => Just(Step::Backup),
            1 => Just(Step::Restore),
            1 => (0_u8..9).prop_map(Step::Write),
            1 => Just(Step::Read(false)),
            4 => Just(Step::Read(true)),
        ]
    }

    proptest! {
        #[test]
        fn nobody_goes_without_being_removed(steps in prop::collection::vec(step(), 0..60)) {
            let mut model = Model::default();
            model.publish(READER);
            for step in steps {
                model.step(step);
                let gone = model.expected.iter().filter(|n| !model.counts(**n));
                let gone: Vec<_> = gone.collect();
                prop_assert!(gone.is_empty(), "{gone:?} have gone");
            }
        }

        #[test]
        fn removed_node_goes_without_a_loss(steps in prop::collection::vec(step(), 0..60)) {
            let mut model = Model::default();
            model.publish(READER);
            for step in steps {
                if matches!(step, Step::Lose(_) | Step::Restore) {
                    continue;
                }
                model.step(step.clone());
                if matches!(step, Step::Read(_)) {
                    let known: Vec<&str> = model.last.nodes.keys().map(Node::as_str).collect();
                    let stand: Vec<String> = model.values.keys().map(|n| format!("n{n}")).collect();
                    prop_assert_eq!(known, stand);
                }
            }
        }
    }
}
