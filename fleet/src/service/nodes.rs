//! Requests for nodes, and lists that are shown to clients.

use std::io;
use std::vec::IntoIter;

use super::last_inventory::File;
use super::small_map::SmallMap;
use crate::backend::Value;
use crate::policy::last_inventory::{LastInventory, Reading};
use crate::step::model::Client;
use crate::wire::name::Node;

/// Requests for nodes, and the last inventory.
pub struct Nodes {
    file: File,
    /// Last inventory, while the disk refuses it or it is too large for the file.
    unwritten: Option<LastInventory>,
    /// Clients that the backend has not answered, and whether the last inventory was shown to them
    /// instead.
    pub asked: SmallMap<Client, bool>,
    /// Number of readings that the backend has shown.
    pub readings: u64,
    /// Readings up to this one do not change the last inventory any more.
    pub kept: u64,
    /// Error of the last write of the last inventory, as it was logged.
    pub why: String,
}

/// List that is shown in portions.
pub struct Shown {
    /// Client that receives the list.
    pub client: Client,
    /// Values that are not shown yet.
    pub values: IntoIter<Value>,
    /// Source of the list.
    pub source: Source,
}

/// Source of a list.
pub enum Source {
    /// The backend.
    Backend,
    /// The backend, with a reading of all nodes and its number. The valid values become the last
    /// inventory, unless a reading with a higher number already has.
    Nodes(Reading, u64),
    /// The last inventory.
    Stored,
}

impl Nodes {
    /// Creates the state, with the last inventory in this file.
    pub fn new(file: File) -> Nodes {
        Nodes {
            file,
            unwritten: None,
            asked: SmallMap::default(),
            readings: 0,
            kept: 0,
            why: String::new(),
        }
    }

    /// Whether the nodes were read before.
    pub fn has_last(&self) -> bool {
        self.unwritten.is_some() || self.file.exists()
    }

    /// Last inventory, from memory or from the file.
    pub fn last(&self) -> LastInventory {
        let unwritten = self.unwritten.clone();
        unwritten.unwrap_or_else(|| self.file.read())
    }

    /// Stores the last inventory; in memory while it cannot be written.
    ///
    /// # Errors
    /// Any error of [`File::write`].
    pub fn keep(&mut self, last: &LastInventory) -> io::Result<()> {
        let written = self.file.write(last);
        self.unwritten = written.is_err().then(|| last.clone());
        written
    }

    /// Removes a node from the last inventory. Returns whether it was there. The node stays if the
    /// disk refuses the change, unless the inventory is too large for the file.
    ///
    /// # Errors
    /// Any error of [`File::write`].
    pub fn forget(&mut self, node: &Node) -> io::Result<bool> {
        let mut last = self.last();
        if !last.forget(node) {
            return Ok(false);
        }
        match self.file.write(&last) {
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => self.unwritten = Some(last),
            written => {
                written?;
                self.unwritten = None;
            }
        }
        // Readings from before may still contain the node.
        self.kept = self.readings;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use again_base::model::Moment;

    use super::*;
    use crate::policy::term::tests::moment;

    fn at(millis: u64) -> Moment {
        moment("a", millis, millis)
    }

    fn reading(revision: u64, node: &str) -> Reading {
        let value = Value::new(format!("node/{node}"), b"{}".to_vec(), revision);
        Reading {
            revision,
            values: vec![(node.parse().expect("a certname"), value)],
            ..Reading::default()
        }
    }

    #[test]
    fn disk_that_refuses_the_inventory_neither_hides_a_loss_nor_forgets_a_node() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = || File::new(dir.path(), "a".parse().expect("a fleet"));
        let mut nodes = Nodes::new(file());
        let mut last = nodes.last();
        assert_eq!(last.update(reading(9, "web1"), &at(1)), None);
        nodes.keep(&last).expect("written");
        // What a full disk does, also to root.
        let new = dir.path().join("inventory.new");
        fs::create_dir(&new).expect("made");
        let loss = last.update(reading(1, "lb1"), &at(2));
        assert!(loss.is_some() && nodes.keep(&last).is_err());
        assert_eq!(nodes.last(), last);
        let mut later = nodes.last();
        assert_eq!(later.update(reading(1, "lb1"), &at(3)), None);
        assert_eq!(nodes.last(), last);
        let web1: Node = "web1".parse().expect("a certname");
        assert!(nodes.forget(&web1).is_err());
        assert!(nodes.last().nodes.contains_key(&web1));
        fs::remove_dir(&new).expect("removed");
        nodes.readings = 2;
        assert!(nodes.forget(&web1).expect("written"));
        assert_eq!(nodes.kept, 2, "a list that was read before is not kept");
        assert!(!nodes.forget(&web1).expect("nothing to write"));
        assert!(!file().read().nodes.contains_key(&web1));
    }

    #[test]
    fn inventory_that_is_too_large_for_the_disk_shows_one_loss_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::new(dir.path(), "a".parse().expect("a fleet"));
        let mut nodes = Nodes::new(file);
        let mut last = nodes.last();
        last.update(reading(9, "web1"), &at(1));
        nodes.keep(&last).expect("written");
        let large = |revision| {
            let mut reading = reading(revision, "web1");
            reading.values[0].1.bytes = vec![b'x'; 17 << 20];
            reading
        };
        for (time, is_loss) in [(2, true), (3, false), (4, false)] {
            let mut last = nodes.last();
            let loss = last.update(large(time), &at(time));
            assert_eq!(loss.is_some(), is_loss, "{time}");
            assert!(nodes.keep(&last).is_err());
            assert_eq!(last.lost, Some(at(2)));
        }
        let web1 = "web1".parse().expect("a certname");
        assert!(nodes.forget(&web1).expect("forgotten") && !nodes.forget(&web1).expect("gone"));
    }
}
