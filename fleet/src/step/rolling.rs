//! Triggers that are part of a rolling run: each waits at its target for its turn among all
//! targets.
//!
//! Before such a trigger is sent to the executor, its status on disk says that its turn has come. A
//! service that restarts sends it to the executor immediately, since it may have been accepted.
//! Failures of other targets count before that, and not after it.

use again_base::model::Moment;

use super::model::{Action, Answer, Content, EntryId, Register, Stage, State};
use super::results::{self, News};
use super::{target, turns};
use crate::policy::replay::TriggerKey;
use crate::wire::outcome::Outcome;
use crate::wire::trigger::Trigger;

impl State {
    /// Trigger, if it waits for its turn.
    pub fn waiting(&self, which: &TriggerKey) -> Option<&Trigger> {
        let register = self.register(which)?;
        let waits = register.stage == Stage::Waits && register.is(which);
        register.trigger().filter(|_| waits)
    }

    fn register(&self, which: &TriggerKey) -> Option<&Register> {
        let place = (which.sender.clone(), which.name.clone());
        self.registers.get(&place).map(|one| &**one)
    }

    /// Whether a trigger no longer needs its slot in a rolling run: the backend has its final
    /// status, so that the next target sees it, or the trigger does not run now. If there is
    /// neither a value nor a result for it, it is over only if all values in the backend
    /// `are_seen`.
    pub fn is_over(&self, which: &TriggerKey, are_seen: bool) -> bool {
        if self
            .handed
            .as_ref()
            .is_some_and(|all| all.contains_key(which))
        {
            return false;
        }
        let entry = self.entries.get(&EntryId::Status(which.clone()));
        let told = entry.and_then(|entry| match &entry.content {
            Content::Status { told, has_turn, .. } => {
                Some((told, *has_turn, entry.left.is_empty()))
            }
            _ => None,
        });
        let has_turn = match told {
            Some((told, _, is_told)) if told.outcome.is_final() => return is_told,
            Some((told, ..)) if told.outcome != Outcome::Held => return false,
            Some((_, has_turn, _)) => has_turn,
            None => false,
        };
        match self.register(which) {
            Some(register) if register.is(which) => {
                !has_turn && !matches!(register.stage, Stage::New | Stage::Waits | Stage::Handed)
            }
            // The value is a newer trigger.
            Some(_) if !has_turn => true,
            _ => are_seen,
        }
    }
}

/// Sends a trigger whose turn has come to the executor.
pub(super) fn turn(state: &mut State, which: &TriggerKey, now: &Moment, out: &mut Vec<Action>) {
    let Some(trigger) = state.waiting(which).cloned() else {
        return;
    };
    let news = News {
        has_turn: true,
        ..held(state, &trigger, "its turn has come")
    };
    results::tell(state, which, &news, now, out);
    if let Some(entry) = state.entries.get_mut(&EntryId::Status(which.clone())) {
        entry.left.clear();
    }
    let place = (trigger.sender, trigger.name);
    if let Some(register) = state.registers.get_mut(&place) {
        register.stage = Stage::New;
    }
    turns::hand_over(state, out);
}

/// Settles a trigger that does not get its turn, or not now.
pub(super) fn no_turn(state: &mut State, answer: Answer, now: &Moment, out: &mut Vec<Action>) {
    if let Some(trigger) = state.waiting(&answer.which).cloned() {
        target::settle(state, answer, &trigger, now, out);
    }
}

/// Publishes to the sender that a trigger waits for its turn; but not at each change, and not in
/// place of a status from the executor.
pub(super) fn waits(
    state: &mut State,
    which: &TriggerKey,
    words: &str,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let Some(trigger) = state.waiting(which).cloned() else {
        return;
    };
    let entry = state.entry(&EntryId::Status(which.clone()));
    let is_told =
        |content: &Content| matches!(content, Content::Status { told, .. } if !told.waits);
    if !entry.is_some_and(is_told) {
        let why = format!("waits for its turn, {} at once: {words}", trigger.parallel);
        let news = News {
            waits: true,
            ..held(state, &trigger, &why)
        };
        results::tell(state, which, &news, now, out);
    }
}

fn held<'a>(state: &State, trigger: &'a Trigger, why: &'a str) -> News<'a> {
    let until = trigger.expires() + state.rules.skew;
    News::new(&trigger.lineage, Outcome::Held, why, until)
}
