//! Slots of a group: the first nodes of the queue may run, in the order of their writes to the
//! backend.

use crate::wire::slot::Slot;

/// Number of a lease.
pub type Lease = i64;

/// Node that runs or waits, according to its signed value in the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Signed value.
    pub slot: Slot,
    /// Revision of the value, which is the position in the queue. Renewing the lease does not
    /// change it.
    pub revision: u64,
}

impl Standing {
    /// Accepts a signed value only if it was written second at its key and never again, after a
    /// first write at the revision that it names. A copy that somebody else wrote does not count.
    pub fn new(slot: Slot, revision: u64, first: u64, writes: u64) -> Option<Standing> {
        let is_its_own = slot.first == first && writes == 2;
        is_its_own.then_some(Standing { slot, revision })
    }
}

/// Queue of a group: all nodes that run or wait.
#[derive(Debug)]
pub struct Line<'s> {
    /// Number of slots: the smallest limit that a running node or the first waiting node names.
    pub limit: usize,
    /// Number of nodes that may run.
    pub run: usize,
    /// Nodes, in the order of the queue.
    pub nodes: Vec<&'s Standing>,
}

impl<'s> Line<'s> {
    /// Queues of all groups, in the order of the group names.
    pub fn all(mut nodes: Vec<&'s Standing>) -> Vec<Line<'s>> {
        nodes.sort_unstable_by(|one, other| one.slot.group.cmp(&other.slot.group));
        let groups = nodes.chunk_by(|one, other| one.slot.group == other.slot.group);
        groups.map(|group| Line::new(group.to_vec())).collect()
    }

    /// Queue of the nodes of one group. A node may run if fewer nodes are before it than the
    /// smallest limit that any of them, or the node itself, names.
    pub fn new(mut nodes: Vec<&'s Standing>) -> Line<'s> {
        nodes.sort_unstable_by_key(|one| one.revision);
        let (mut limit, mut run) = (usize::MAX, 0);
        for one in &nodes {
            limit = limit.min(usize::try_from(one.slot.limit).unwrap_or(usize::MAX));
            if run >= limit {
                break;
            }
            run += 1;
        }
        Line { limit, run, nodes }
    }

    /// Whether the node at this position, counted from 0, may run.
    pub fn may_run(&self, place: usize) -> bool {
        place < self.run
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::slot::tests::slot;

    fn standing(n: usize, revision: u64, limit: u32) -> Standing {
        let slot = slot(&format!("n{n}"), revision - 1, limit);
        Standing::new(slot, revision, revision - 1, 2).expect("its own")
    }

    #[test]
    fn a_word_counts_where_its_node_put_it_and_nowhere_else() {
        let of = |first, writes| Standing::new(slot("n1", 5, 3), 9, first, writes);
        assert!(of(5, 2).is_some());
        // Put there again when it was gone; written over; never signed there.
        assert_eq!((of(7, 2), of(5, 3), of(5, 1)), (None, None, None));
    }

    #[test]
    fn each_goes_by_the_smallest_limit_up_to_its_own() {
        let all = [standing(1, 4, 8), standing(2, 6, 2), standing(3, 8, 5)];
        let line = Line::new(all.iter().collect());
        assert_eq!((line.limit, line.run), (2, 2));
        assert_eq!(line.nodes[2].slot.node.as_str(), "n3");
        assert!(line.may_run(1) && !line.may_run(2));
        // One that names fewer waits by itself, and holds up those behind it, not those before it.
        let all = [
            standing(1, 4, 5),
            standing(2, 6, 5),
            standing(3, 8, 1),
            standing(4, 9, 5),
        ];
        let line = Line::new(all.iter().collect());
        assert_eq!((line.limit, line.run), (1, 2));
        let none = Line::new(Vec::new());
        assert!(none.nodes.is_empty() && none.run == 0);
    }

    proptest! {
        /// However they come and go, those who may run are never more than the limit, are those who came first, and whoever may run goes
        /// on to until it ends, as long as nobody comes with a smaller limit.
        #[test]
        fn places_are_kept(comes in prop::collection::vec((0..12_usize, any::<bool>()), 1..60), limit in 1..5_u32) {
            let mut all: Vec<Standing> = Vec::new();
            let mut ran = BTreeSet::new();
            for (at, (n, goes)) in comes.into_iter().enumerate() {
                let revision = 2 * at as u64 + 2;
                let known = all.iter().position(|one| one.slot.node == slot(&format!("n{n}"), 1, 1).node);
                match known {
                    Some(place) if goes => drop(all.remove(place)),
                    Some(_) => {}
                    None => all.insert(all.len() / 2, standing(n, revision, limit)),
                }
                let line = Line::new(all.iter().collect());
                let running: BTreeSet<u64> = (0..all.len())
                    .filter(|place| line.may_run(*place))
                    .map(|place| line.nodes[place].revision)
                    .collect();
                prop_assert!(running.len() <= limit as usize);
                let there: BTreeSet<u64> = all.iter().map(|one| one.revision).collect();
                prop_assert_eq!(running.len(), there.len().min(limit as usize));
                prop_assert!(ran.intersection(&there).all(|one| running.contains(one)));
                let last = running.last().copied().unwrap_or(0);
                prop_assert!(there.difference(&running).all(|one| *one > last));
                ran = running;
            }
        }
    }
}
