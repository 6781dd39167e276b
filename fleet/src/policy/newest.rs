//! Newest version of each node's facts that this program has read. Older versions are ignored.

use std::collections::BTreeMap;

use again_base::model::Walltime;

use super::term;
use crate::wire::inventory::Inventory;
use crate::wire::name::Node;

/// Largest number of nodes that are remembered.
const MOST: usize = 20_000;

/// Newest versions by node.
#[derive(Debug, Default)]
pub struct Newest {
    versions: BTreeMap<Node, Version>,
    is_changed: bool,
}

#[derive(Debug)]
struct Version {
    /// Number from [`Inventory::order`].
    order: u64,
    /// Whether an older version was reported since this one was read.
    is_reported: bool,
}

/// Reason why a value is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// Sentence for the log.
    pub why: String,
    /// Whether this is the first report of it.
    pub is_news: bool,
}

impl From<String> for Ignored {
    fn from(why: String) -> Ignored {
        Ignored { why, is_news: true }
    }
}

impl Newest {
    /// Reads the output of [`Newest::written`]. Malformed lines are ignored.
    pub fn read(text: &str) -> Newest {
        let version = |line: &str| {
            let (order, node) = line.split_once(' ')?;
            let version = Version {
                order: order.parse().ok()?,
                is_reported: false,
            };
            Some((node.parse().ok()?, version))
        };
        Newest {
            versions: text.lines().filter_map(version).take(MOST).collect(),
            is_changed: false,
        }
    }

    /// Text of all versions, if they have changed since [`Newest::kept`].
    pub fn written(&self) -> Option<String> {
        let lines = self.versions.iter();
        let lines = lines.map(|(node, version)| format!("{} {node}\n", version.order));
        self.is_changed.then(|| lines.collect())
    }

    /// Notes that the text is stored on disk.
    pub fn kept(&mut self) {
        self.is_changed = false;
    }

    /// Newest version of a node that was read: a number from [`Inventory::order`].
    pub fn of(&self, node: &Node) -> Option<u64> {
        self.versions.get(node).map(|one| one.order)
    }

    /// Stores a version that its node has signed.
    ///
    /// # Errors
    /// The version is older than one that was read before.
    pub fn judge(&mut self, inventory: &Inventory) -> Result<(), Ignored> {
        let (node, order) = (&inventory.node, inventory.order());
        match self.versions.get_mut(node) {
            Some(newest) if order < newest.order => {
                let at = term::shown(Walltime::from_millis(inventory.at));
                let is_news = !std::mem::replace(&mut newest.is_reported, true);
                let newer = newest.order;
                let why = format!(
                    "version {order}, published at {at}, is older than version {newer} of {node}, which was read before"
                );
                Err(Ignored { why, is_news })
            }
            Some(newest) if order == newest.order => Ok(()),
            _ => {
                self.remember(node, order);
                Ok(())
            }
        }
    }

    /// Stores the newest version of a node. If there are too many nodes, the one with the lowest
    /// order is removed.
    fn remember(&mut self, node: &Node, order: u64) {
        if self.versions.len() >= MOST && !self.versions.contains_key(node) {
            let oldest = self.versions.iter().min_by_key(|(_, one)| one.order);
            let oldest = oldest.map(|(node, _)| node.clone());
            oldest.and_then(|node| self.versions.remove(&node));
        }
        let version = Version {
            order,
            is_reported: false,
        };
        self.versions.insert(node.clone(), version);
        self.is_changed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::select::tests::node as inventory;

    fn version(name: &str, at: u64, serial: u64) -> Inventory {
        Inventory {
            node: name.parse().expect("a certname"),
            at,
            serial,
            ..inventory(&[])
        }
    }

    #[test]
    fn older_version_counts_for_nothing_and_is_reported_once() {
        let mut newest = Newest::default();
        let is_news = |newest: &mut Newest, one: Inventory| {
            newest.judge(&one).map_err(|ignored| ignored.is_news)
        };
        assert_eq!(is_news(&mut newest, version("web1", 1, 7)), Ok(()));
        assert_eq!(is_news(&mut newest, version("web1", 2, 9)), Ok(()));
        // Another node's numbers are its own.
        assert_eq!(is_news(&mut newest, version("web2", 1, 1)), Ok(()));
        for news in [true, false] {
            assert_eq!(is_news(&mut newest, version("web1", 9, 8)), Err(news));
        }
        assert_eq!(is_news(&mut newest, version("web1", 2, 9)), Ok(()));
        assert_eq!(is_news(&mut newest, version("web1", 1, 7)), Err(false));
        assert_eq!(is_news(&mut newest, version("web1", 3, 10)), Ok(()));
        assert_eq!(is_news(&mut newest, version("web1", 1, 7)), Err(true));
        let ignored = newest.judge(&version("web1", 1000, 7)).expect_err("older");
        let why = "version 7, published at 1970-01-01 00:00:01 UTC, is older than version 10 of web1, which was read before";
        assert_eq!(ignored.why, why);
    }

    #[test]
    fn memory_is_written_when_it_changes_and_is_bounded() {
        let mut newest = Newest::default();
        assert_eq!(newest.written(), None);
        for _ in 0..2 {
            newest.judge(&version("web1", 1, 7)).expect("new");
            newest.judge(&version("lb1", 1, 3)).expect("new");
        }
        // A disk that is full is tried again.
        for _ in 0..2 {
            assert_eq!(newest.written().as_deref(), Some("3 lb1\n7 web1\n"));
        }
        newest.kept();
        newest.judge(&version("web1", 1, 7)).expect("the same");
        assert_eq!(newest.written(), None);
        let mut again = Newest::read("3 lb1\n7 web1\nx web2\n8\n");
        assert_eq!((again.versions.len(), again.written()), (2, None));
        assert!(again.judge(&version("web1", 1, 6)).is_err());
        for n in 0..MOST - 1 {
            again.judge(&version(&format!("n{n}"), 1, 5)).expect("new");
        }
        assert_eq!(again.versions.len(), MOST);
        assert!(again.judge(&version("web1", 1, 6)).is_err());
        assert!(!again.versions.keys().any(|node| node.as_str() == "lb1"));
    }
}
