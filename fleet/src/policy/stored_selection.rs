//! PURE: selections that are stored because the backend did not show all nodes, and resolved when it does.

use std::collections::BTreeSet;

use again_base::model::{Boottime, Moment, Span};
use serde::{Deserialize, Serialize};

use super::fire::Request;
use super::select::Criteria;
use crate::wire::inventory::Inventory;
use crate::wire::name::Node;

/// Largest number of stored selections.
pub const MOST: usize = 1_000;
/// Largest size of all of them, in bytes.
pub const MOST_BYTES: usize = 16 << 20;
/// How long at most the backend has to be reached before a selection is resolved: the longest pause between two attempts of other
/// nodes to connect.
const SETTLE: Span = Span::from_secs(30);
/// Memory that a node takes beside its name, in bytes.
const OF_A_NODE: usize = 64;

/// Request with a selection that is resolved later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSelection {
    /// The request. Its targets are nodes that it names and that it was not sent to.
    pub request: Request,
    /// Nodes that it is not sent to: it was sent to them already, or was cancelled for them.
    pub excluded: BTreeSet<Node>,
}

impl StoredSelection {
    /// Selection of an open request; nothing of another one.
    pub fn new(mut request: Request) -> Option<StoredSelection> {
        request.selection.as_ref().filter(|_| request.is_open)?;
        let mut excluded = BTreeSet::new();
        if !request.is_deferred() {
            excluded.extend(std::mem::take(&mut request.targets));
        }
        Some(StoredSelection { request, excluded })
    }

    /// Whether it is over. What is removed from the disk may be there again after a crash.
    pub fn is_over(&self) -> bool {
        !self.request.is_open
    }

    /// Size of the selection in memory, in bytes.
    pub fn size(&self) -> usize {
        let named = self.request.targets.iter().chain(&self.excluded);
        let named = named.map(|node| node.as_str().len() + OF_A_NODE);
        let criteria = self.request.selection.as_ref().map_or(0, Criteria::size);
        named.sum::<usize>() + criteria + size_of::<StoredSelection>()
    }

    /// The same without a node; nothing if it excludes it already.
    pub fn without(&self, node: &Node) -> Option<StoredSelection> {
        let mut less = self.clone();
        less.request.targets.retain(|target| target != node);
        less.excluded.insert(node.clone()).then_some(less)
    }

    /// Request for the nodes that it was not sent to, which may be none; it lives for as long as is left. The firing node is no target
    /// unless it is named.
    ///
    /// # Errors
    /// A condition is invalid.
    pub fn resolve(&self, me: &Node, nodes: &[Inventory], left: Span) -> Result<Request, String> {
        let request = &self.request;
        let criteria = request.selection.as_ref().ok_or("it has no conditions")?;
        let selection = criteria.selection()?;
        let firing = request.on_behalf.as_ref().unwrap_or(me);
        let selected = nodes.iter().filter(|node| selection.has(Some(node)));
        let selected = selected.map(|node| &node.node);
        let selected = selected.filter(|node| *node != firing);
        let targets = selected.chain(&request.targets);
        let targets: BTreeSet<&Node> = targets
            .filter(|node| !self.excluded.contains(*node))
            .collect();
        Ok(Request {
            targets: targets.into_iter().cloned().collect(),
            ttl: left.min(self.request.ttl),
            selection: None,
            is_open: false,
            ..request.clone()
        })
    }
}

/// When a selection that was stored then may be resolved, if the backend is reached since that time: other nodes connect again, and
/// publish what is new, within the time for which the backend was away, or [`SETTLE`].
pub fn due(stored: &Moment, reached: &Moment) -> Boottime {
    let is_of_this_boot = stored.boot == reached.boot;
    let waited = is_of_this_boot.then(|| reached.uptime.since(stored.uptime));
    reached.uptime + waited.map_or(SETTLE, |waited| waited.min(SETTLE))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::super::fire::tests::request;
    use super::super::lineage::tests::node;
    use super::super::select::tests::node as published;
    use super::super::term::tests::moment;
    use super::*;

    /// Open request of web1 for these nodes and all with the role lb.
    pub fn open(targets: &[&str], at_once: u32) -> Request {
        Request {
            targets: targets.iter().map(|name| node(name)).collect(),
            at_once,
            selection: Some(Criteria {
                facts: vec!["role=lb".to_owned()],
                ..Criteria::default()
            }),
            is_open: true,
            ..request(&["1: a"])
        }
    }

    /// What a node with a role publishes.
    pub fn inventory(name: &str, role: &str) -> Inventory {
        Inventory {
            node: node(name),
            ..published(&[("role", role)])
        }
    }

    fn targets(stored: &StoredSelection, nodes: &[Inventory]) -> Vec<String> {
        let left = Span::from_secs(60);
        let resolved = stored.resolve(&node("web1"), nodes, left);
        let request = resolved.expect("valid conditions");
        assert_eq!((request.ttl, request.is_open), (left, false));
        assert_eq!(
            (&request.id, &request.run),
            (&stored.request.id, &stored.request.run)
        );
        request.targets.iter().map(Node::to_string).collect()
    }

    #[test]
    fn selection_is_resolved_for_nodes_that_it_was_not_sent_to() {
        let nodes = [
            inventory("lb1", "lb"),
            inventory("lb2", "lb"),
            inventory("db1", "db"),
            inventory("web1", "lb"),
        ];
        let sent = StoredSelection::new(open(&["lb1", "other"], 0)).expect("open");
        assert_eq!(targets(&sent, &nodes), ["lb2"]);
        assert_eq!(targets(&sent, &[]), [""; 0]);
        // A rolling run was sent to nobody; the node that sends it is a target only if it is named.
        let rolling = StoredSelection::new(open(&["other"], 1)).expect("open");
        assert_eq!(targets(&rolling, &nodes), ["lb1", "lb2", "other"]);
        let named = StoredSelection::new(open(&["web1"], 1)).expect("open");
        assert_eq!(targets(&named, &nodes), ["lb1", "lb2", "web1"]);
        let without = |stored: &StoredSelection, name| stored.without(&node(name));
        let less = without(&rolling, "other").expect("less");
        let less = without(&less, "lb1").expect("less");
        assert_eq!(targets(&less, &nodes), ["lb2"]);
        assert_eq!(without(&less, "lb1"), None);
        let closed = Request {
            is_open: false,
            ..open(&[], 0)
        };
        assert_eq!(StoredSelection::new(closed), None);
    }

    #[test]
    fn others_have_as_long_to_connect_as_the_backend_was_away() {
        let at = |boot, seconds: u64| moment(boot, seconds * 1000, 2_000_000_000);
        let after = |stored: &Moment, reached: &Moment| due(stored, reached).since(reached.uptime);
        let stored = at("a", 100);
        for (seconds, wait) in [(90, 0), (100, 0), (103, 3), (130, 30), (9000, 30)] {
            let wait = Span::from_secs(wait);
            assert_eq!(after(&stored, &at("a", seconds)), wait, "{seconds}");
        }
        assert_eq!(after(&stored, &at("b", 101)), SETTLE);
    }

    proptest! {
        /// Whoever is selected at either time gets it once, and nobody else.
        #[test]
        fn each_selected_node_gets_it_once(before in prop::collection::btree_set(0..8_u8, 0..8), after in prop::collection::btree_set(0..8_u8, 0..8), cancelled in 0..8_u8) {
            let name = |n: &u8| format!("n{n}");
            let sent: Vec<String> = before.iter().map(name).collect();
            let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
            let stored = StoredSelection::new(open(&sent, 0)).expect("open");
            let stored = stored.without(&node(&name(&cancelled))).unwrap_or(stored);
            let nodes: Vec<Inventory> = (0..8).map(|n| inventory(&name(&n), if after.contains(&n) { "lb" } else { "db" })).collect();
            let expected = after.difference(&before).filter(|n| **n != cancelled);
            prop_assert_eq!(targets(&stored, &nodes), expected.map(name).collect::<Vec<_>>());
        }
    }
}
