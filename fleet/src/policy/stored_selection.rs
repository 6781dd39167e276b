//! PURE: selections that are stored because the backend did not show all nodes, and are resolved
//! when it does.

use std::collections::BTreeSet;

use again_base::model::{Boottime, Span};
use serde::{Deserialize, Serialize};

use super::fire::Request;
use super::select::Criteria;
use crate::wire::inventory::Inventory;
use crate::wire::name::Node;

/// Largest number of stored selections.
pub const MOST: usize = 1_000;
/// Largest size of all of them, in bytes.
pub const MOST_BYTES: usize = 16 << 20;
/// Time for which the backend has to be connected before selections are resolved. Other nodes
/// reconnect after pauses of up to 30 s, and then publish.
const SETTLE: Span = Span::from_secs(60);
/// Memory that a node takes in addition to its name, in bytes.
const OF_A_NODE: usize = 64;

/// Request with a selection that is resolved later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSelection {
    /// Request. Its targets are the named nodes or, once resolved, all nodes that it is sent to
    /// then.
    pub request: Request,
    /// Nodes that the request is not sent to: it was sent to them already, or was cancelled for
    /// them.
    pub excluded: BTreeSet<Node>,
    /// Whether the targets are final. They are stored before any trigger is sent, so that the
    /// service sends to the same nodes after a crash.
    pub is_resolved: bool,
}

impl StoredSelection {
    /// Selection of an open request; none for any other request.
    pub fn new(mut request: Request) -> Option<StoredSelection> {
        request.selection.as_ref().filter(|_| request.is_open)?;
        let mut excluded = BTreeSet::new();
        if !request.is_deferred() {
            excluded.extend(std::mem::take(&mut request.targets));
        }
        Some(StoredSelection {
            request,
            excluded,
            is_resolved: false,
        })
    }

    /// Whether the selection is finished. A file that was removed may reappear after a crash.
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

    /// Copy that also excludes this node; none if the node is excluded already.
    pub fn without(&self, node: &Node) -> Option<StoredSelection> {
        let mut less = self.clone();
        less.excluded.insert(node.clone()).then_some(less)
    }

    /// Excludes nodes to which triggers were sent. The selection is finished if these are all its
    /// resolved targets.
    pub fn recover(&mut self, sent: impl IntoIterator<Item = Node>) {
        self.excluded.extend(sent);
        let is_sent = |node| self.excluded.contains(node);
        self.request.is_open = !(self.is_resolved && self.request.targets.iter().all(is_sent));
    }

    /// Copy with its final targets, which may be none: the named nodes, and those of `nodes` that
    /// match the conditions, without the excluded ones. The sending node is a target only if it is
    /// named. A resolved selection is returned unchanged.
    ///
    /// # Errors
    /// A condition is invalid.
    pub fn resolve(&self, me: &Node, nodes: &[Inventory]) -> Result<StoredSelection, String> {
        let mut resolved = self.clone();
        if self.is_resolved {
            return Ok(resolved);
        }
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
        resolved.request.targets = targets.into_iter().cloned().collect();
        resolved.is_resolved = true;
        Ok(resolved)
    }

    /// Request for the resolved targets. Its lifetime is `left`, and its delta is reduced by the
    /// time that has passed.
    pub fn request_now(&self, left: Span) -> Request {
        let request = &self.request;
        let left = left.min(request.ttl);
        let waited = request.ttl.nanos() - left.nanos();
        Request {
            ttl: left,
            delta: Span::from_nanos(request.delta.nanos().saturating_sub(waited)),
            selection: None,
            is_open: false,
            ..request.clone()
        }
    }
}

/// Time at which stored selections may be resolved if the backend stays connected from `reached`
/// on.
pub fn due(reached: Boottime) -> Boottime {
    reached + SETTLE
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::super::fire::tests::request;
    use super::super::lineage::tests::node;
    use super::super::select::tests::node as published;
    use super::*;

    /// Open request of web1 for these nodes and all with the role lb.
    pub fn open(targets: &[&str], parallel: u32) -> Request {
        Request {
            targets: targets.iter().map(|name| node(name)).collect(),
            parallel,
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
        let resolved = stored.resolve(&node("web1"), nodes);
        let resolved = resolved.expect("valid conditions");
        // Later lists of nodes change nothing.
        assert_eq!(resolved.resolve(&node("web1"), &[]), Ok(resolved.clone()));
        let request = resolved.request_now(Span::from_secs(60));
        assert_eq!((request.ttl, request.is_open), (Span::from_secs(60), false));
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
    fn request_lives_no_longer_and_waits_no_longer_than_was_asked() {
        let day = Span::from_secs(86_400);
        let stored = StoredSelection::new(Request {
            ttl: day,
            delta: Span::from_secs(1800),
            ..open(&[], 1)
        });
        let stored = stored.expect("open");
        let times = |left: u64| {
            let request = stored.request_now(Span::from_secs(left));
            (request.ttl.secs(), request.delta.secs())
        };
        // The clock was set back by more than has passed.
        assert_eq!(times(86_490), (86_400, 1800));
        assert_eq!(times(86_400 - 600), (85_800, 1200));
        assert_eq!(times(86_400 - 2400), (84_000, 0));
    }

    #[test]
    fn recovered_selection_is_over_when_all_its_targets_have_triggers() {
        let nodes = [inventory("lb1", "lb"), inventory("lb2", "lb")];
        let stored = StoredSelection::new(open(&[], 1)).expect("open");
        let mut resolved = stored.resolve(&node("web1"), &nodes).expect("valid");
        resolved.recover([node("lb1")]);
        assert!(!resolved.is_over());
        // All targets know how many there are.
        assert_eq!(resolved.request_now(Span::ZERO).targets.len(), 2);
        resolved.recover([node("lb2")]);
        assert!(resolved.is_over());
        let mut unresolved = stored;
        unresolved.recover([node("lb1"), node("lb2")]);
        assert!(!unresolved.is_over());
        assert_eq!(targets(&unresolved, &nodes), [""; 0]);
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
