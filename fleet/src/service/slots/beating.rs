//! Beats for this node's places in groups, and the nodes before it whose beats it watches.

use again_base::model::Boottime;

use super::{Effect, Group, Slots, Stage};
use crate::policy::beat::{SURE, Watched};
use crate::wire::beat::{Covered, MOST_GROUPS};
use crate::wire::key::Key;

/// How many places from its turn a node watches those before it, beside as many as there are slots. If only the next ones did, they could
/// be dead as well.
const NEAR: usize = 8;
/// How many it watches in a group at most, the first ones.
const MOST_WATCHED: usize = 64;

impl Slots {
    /// This node's places, for its next beat.
    pub fn covered(&self) -> Vec<Covered> {
        let all = self.groups.0.iter().filter_map(|(name, group)| {
            let (name, first) = (name.clone(), group.place?.first);
            Some(Covered { name, first })
        });
        all.take(MOST_GROUPS).collect()
    }

    /// A beat was answered that had covered these places and was sent then; which of them stood there after that.
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
                // Where it is given up, that is answered itself.
                Some(group) if !group.is_over => effects.extend(self.gone(&place.name, true)),
                _ => {}
            }
        }
        effects.extend(self.look());
        effects
    }

    /// The places of others that this node watches, since its turn comes when a few of them have ended.
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
    /// When its place ends, unless lease and beat are renewed before.
    pub(super) fn ends(&self) -> Boottime {
        self.beaten
            .map_or(self.ends, |beaten| beaten.min(self.ends))
    }

    /// Whether nobody else can have taken its place for that of a dead node by now. A place that this node only remembers may have gone.
    pub(super) fn is_sure(&self, now: Boottime) -> bool {
        self.stage == Stage::Stands && self.beaten.is_some() && now < self.ends()
    }
}
