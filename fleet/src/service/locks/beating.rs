//! Beats for the locks that this node holds or takes, and the holders whose beats it watches as a
//! candidate.

use again_base::model::Boottime;

use super::{Effect, LockState, Locks, Seen};
use crate::policy::beat::{SURE, Watched};
use crate::wire::beat::Covered;
use crate::wire::inventory::MOST_LOCKS;
use crate::wire::key::Key;

impl Locks {
    /// Locks that this node holds or takes, for its next beat.
    pub fn covered(&self) -> Vec<Covered> {
        let all = self.all.0.iter().filter_map(|(name, one)| {
            let (name, first) = (name.clone(), one.place?.first);
            Some(Covered { name, first })
        });
        all.take(MOST_LOCKS).collect()
    }

    /// Records the answer to a beat that was sent at this time and covered these locks; `stands`
    /// says which of them this node still had after that.
    pub fn beaten(
        &mut self,
        covered: &[Covered],
        sent: Boottime,
        stands: impl Fn(&Covered) -> bool,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for lock in covered {
            let one = self.all.get_mut(&lock.name);
            let one = one.filter(|one| one.place.is_some_and(|place| place.first == lock.first));
            match one {
                Some(one) if stands(lock) => {
                    one.beaten = one.beaten.max(sent + SURE);
                    one.has_ended &= one.ends() <= self.now;
                }
                Some(_) => effects.extend(self.gone(&lock.name)),
                None => {}
            }
        }
        effects
    }

    /// Values of other holders that this node watches as a candidate.
    pub fn watched(&self) -> Vec<Watched> {
        let all = self.all.0.iter().filter(|(_, one)| one.lock.is_some());
        let watched = all.filter_map(|(name, one)| match &one.seen {
            Seen::Held(word) if word.beats && word.node != self.me => Some(Watched {
                key: Key::Lock(name.clone()),
                node: word.node.clone(),
                first: word.first,
                revision: one.at,
            }),
            _ => None,
        });
        watched.collect()
    }
}

impl LockState {
    /// Time until which this node is certain of the lock, unless lease and beat are renewed before.
    pub(super) fn ends(&self) -> Boottime {
        self.ends.min(self.beaten)
    }
}
