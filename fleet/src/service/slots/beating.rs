//! Beats for this node's entries in queues, and the nodes before it whose beats it watches.

use again_base::model::{Boottime, Span};

use super::{Effect, Group, LEASE, Slots, Stage};
use crate::policy::beat::{SURE, Watched};
use crate::wire::beat::{Covered, MOST_GROUPS};
use crate::wire::key::Key;

/// Distance from its turn, in addition to the number of slots, at which a node begins to watch
/// those before it. If only the next nodes watched them, these could all be dead as well.
const NEAR: usize = 8;
/// Largest number of entries that a node watches in a group, the first ones.
const MOST_WATCHED: usize = 64;

impl Slots {
    /// Entries of this node, for its next beat.
    pub fn covered(&self) -> Vec<Covered> {
        let all = self.groups.0.iter().filter_map(|(name, group)| {
            let (name, first) = (name.clone(), group.place?.first);
            Some(Covered { name, first })
        });
        all.take(MOST_GROUPS).collect()
    }

    /// Records the answer to a beat that was sent at this time and covered these entries; `stands`
    /// says which of them existed after that.
    pub fn beaten(
        &mut self,
        covered: &[Covered],
        sent: Boottime,
        stands: impl Fn(&Covered) -> bool,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for place in covered {
            let group = self.groups.get_mut(&place.name);
            let group = group.filter(|group| group.place.is_some_and(|at| at.first == place.first));
            match group {
                Some(group) if stands(place) => {
                    group.beaten = group.beaten.max(Some(sent + SURE));
                    group.has_ended &= group.ends() <= self.now;
                }
                // If the entry is being given up, the answer to that ends it.
                Some(group) if !group.is_over => effects.extend(self.gone(&place.name, true)),
                _ => {}
            }
        }
        effects.extend(self.look());
        effects
    }

    /// Entries of other nodes that this node watches, because its turn comes when a few of them
    /// have ended.
    pub fn watched(&self) -> Vec<Watched> {
        let mut watched = Vec::new();
        for (name, group) in &self.groups.0 {
            let line = group.line.as_deref().unwrap_or_default();
            let is_near = group.is_all && line.len() < 2 * group.limit as usize + NEAR;
            if group.had_turn || !is_near {
                continue;
            }
            let beating = line.iter().filter(|one| one.slot.beats);
            watched.extend(beating.take(MOST_WATCHED).map(|one| Watched {
                key: Key::Slot {
                    group: name.clone(),
                    node: one.slot.node.clone(),
                },
                node: one.slot.node.clone(),
                first: one.slot.first,
                revision: one.revision,
            }));
        }
        watched
    }
}

impl Group {
    /// Time at which the entry ends, unless lease and beat are renewed before.
    pub(super) fn ends(&self) -> Boottime {
        self.beaten
            .map_or(self.ends, |beaten| beaten.min(self.ends))
    }

    /// Whether no other node can have removed the entry yet as that of a dead node. An entry that
    /// this node only remembers may be gone.
    pub(super) fn is_sure(&self, now: Boottime) -> bool {
        self.stage == Stage::Stands && self.beaten.is_some() && now < self.ends()
    }
}

impl Group {
    /// Records that the backend has confirmed a request: the lease lives from when it was sent.
    pub(super) fn confirmed(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.ends = asked + Span::from_secs(LEASE);
            self.has_ended &= self.ends() <= asked;
        }
    }

    /// Whether the turn comes when a few more nodes have finished.
    pub(super) fn is_near(&self) -> bool {
        let line = self.line.as_ref();
        let line = line.filter(|_| !self.had_turn && !self.is_looking);
        line.is_some_and(|line| line.len() < 2 * self.limit as usize)
    }

    /// Whether a run has a slot whose end was not reported.
    pub(super) fn can_end(&self) -> bool {
        self.had_turn && !self.has_ended && !self.runs.is_empty()
    }
}
