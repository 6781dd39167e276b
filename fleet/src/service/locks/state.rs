//! State of one lock, and its changes.

use again_base::model::{Boottime, Span};

use super::{Effect, LEFT, LockState, Seen, Stage};
use crate::backend::LEASE;
use crate::wire::name::{Name, Node};

impl LockState {
    /// Whether this node holds the lock, as far as it knows.
    pub(super) fn is_mine(&self, me: &Node) -> bool {
        let first = self
            .place
            .filter(|place| place.revision > 0)
            .map(|place| place.first);
        matches!(&self.seen, Seen::Held(word) if word.node == *me && Some(word.first) == first)
    }

    /// Whether an attempt to take the lock is worthwhile.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.seen, Seen::Unknown | Seen::Nobody)
    }

    /// Sets the time of the attempt to take the lock, which nobody holds.
    pub(super) fn will_try(&mut self, me: &Node, now: Boottime, jitter: Span) {
        let Some(lock) = &self.lock else { return };
        if self.place.is_some() || self.stage != Stage::Idle {
            return;
        }
        let passed = self.passed.as_ref();
        let passed = passed.filter(|(token, _)| *token == self.token);
        let due = match passed {
            Some((_, to)) if to == me => now,
            Some(_) => now + lock.pause(me) + jitter + LEFT,
            None => now + lock.pause(me) + jitter,
        };
        self.due = Some(due.max(self.rests));
    }

    /// Whether this node holds the lock, and it was not reported that the lock may have ended.
    pub(super) fn can_end(&self) -> bool {
        !self.has_ended
            && self.place.is_some_and(|place| place.revision > 0)
            && self.ends() > Boottime::default()
    }

    /// Records that the backend has confirmed a request: the lease lives from when it was sent.
    pub(super) fn confirmed(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.ends = asked + Span::from_secs(LEASE);
            self.has_ended &= self.ends() <= asked;
        }
    }

    /// Gives up the entry of this node.
    pub(super) fn leave(&mut self, name: &Name, effects: &mut Vec<Effect>) {
        (self.stage, self.asked) = (Stage::Idle, None);
        (self.ends, self.beaten) = Default::default();
        if let Some(place) = self.place.take() {
            effects.extend([Effect::Leave(name.clone(), place.lease), Effect::Save]);
        }
    }

    /// Gives up the entry, which is gone already, and reports a lock that is lost.
    pub(super) fn lose(&mut self, name: &Name, effects: &mut Vec<Effect>) {
        if self.place.is_some_and(|place| place.revision > 0) {
            effects.push(Effect::Say(format!(
                "this node does not hold the lock '{name}' any more: its lease has ended, other nodes saw no beat for 90 s, or whoever may write to the backend has removed it"
            )));
            // While this node believed that it held the lock, it accepted no reset.
            effects.push(Effect::Look(name.clone()));
        }
        self.leave(name, effects);
    }

    /// Gives the lock up if an operator moves it to another node from the token that this node
    /// holds.
    pub(super) fn heed(&mut self, name: &Name, me: &Node, effects: &mut Vec<Effect>) {
        if let Some((token, to)) = &self.passed
            && let Seen::Held(word) = &self.seen
            && word.token == *token
            && to != me
            && self.is_mine(me)
        {
            effects.push(Effect::Note(format!(
                "an operator passes the lock '{name}' on to {to}"
            )));
            self.leave(name, effects);
        }
    }
}
