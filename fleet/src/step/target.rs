//! Target: passes triggers to the executor.
//!
//! The executor judges a trigger and records it if it accepts it. Then its status is published, and
//! its value is removed from the backend at the revision that was judged. A trigger that cannot be
//! accepted yet stays in the backend and is judged again.

use std::collections::BTreeMap;

use again_base::model::{Moment, Span};

use super::ahead::Early;
use super::model::{Action, Answer, Content, EntryId, Found, Place, Register, Sight, Stage, State};
use super::results::{MOST_REFUSALS, News, refusals, tell};
use super::turns::hand_over;
use super::{ahead, results};
use crate::handover::Evidence;
use crate::policy::judge::{self, Signed, Unfit};
use crate::policy::replay::TriggerKey;
use crate::wire::lineage::Lineage;
use crate::wire::outcome::{Outcome, Ran};
use crate::wire::trigger::{Ask, Trigger};

/// Time until a held trigger is judged again, if nothing changes before.
const LOOK_AGAIN: Span = Span::from_secs(60);
/// Time until the executor or the backend is asked again after a failure.
const RETRY: Span = Span::from_secs(2);

/// Handles values that were seen in the backend. Values that come together are sent to the executor
/// together. A new backend may reuse revisions, so the value is compared as well.
pub(super) fn seen(state: &mut State, sights: Vec<Sight>, now: &Moment, out: &mut Vec<Action>) {
    for sight in sights {
        let known = state.registers.get(&sight.place);
        let is_known = known.is_some_and(|known| {
            let is_same = known.revision == sight.revision && known.found == sight.found;
            is_same && !matches!(known.found, Found::Unclear(_))
        });
        if !is_known {
            let register = Register {
                revision: sight.revision,
                found: sight.found,
                evidence: sight.evidence,
                stage: Stage::New,
            };
            state
                .registers
                .insert(sight.place.clone(), Box::new(register));
            look(state, &sight.place, now, out);
        }
    }
    hand_over(state, out);
}

/// Handles that a value is gone from the backend.
pub(super) fn gone(state: &mut State, place: &Place) {
    state.registers.remove(place);
    state.early.remove(place);
}

/// Judges a value, and sorts out those that the executor need not see.
fn look(state: &mut State, place: &Place, now: &Moment, out: &mut Vec<Action>) {
    let Some(register) = state.registers.get(place) else {
        return;
    };
    let (sender, name) = place;
    let unfit = match &register.found {
        Found::Good(signed) if (&signed.trigger.sender, &signed.trigger.name) != (sender, name) => {
            Unfit::Foreign(format!("{} signed it for another place", signed.signer))
        }
        Found::Good(signed) => match judge::admit(&state.rules, signed) {
            Ok(()) => {
                if !hold_back(state, place, now, out) {
                    queue(state, place, now, out);
                }
                return;
            }
            Err(unfit) => unfit,
        },
        Found::Bad(why) => Unfit::Foreign(why.clone()),
        Found::Unclear(why) => {
            out.push(Action::Note(format!(
                "'{name}' of {sender} cannot be judged: {why}"
            )));
            hold(state, place, LOOK_AGAIN, now);
            return;
        }
    };
    match unfit {
        Unfit::Foreign(why) => {
            out.push(Action::Rejected(format!(
                "'{name}' of {sender} is not from there: {why}"
            )));
        }
        Unfit::Refused(why) => {
            out.push(Action::Rejected(format!(
                "'{name}' of {sender} is refused: {why}"
            )));
            // The sender is informed.
            if let Found::Good(Signed { trigger, .. }) = register.found.clone()
                && !name.is_of_a_rule()
                && refusals(state) < MOST_REFUSALS
            {
                let until = results::until(state, &trigger, now);
                let news = News {
                    again: true,
                    ..News::new(&trigger.lineage, Outcome::Refused, &why, until)
                };
                tell(state, &TriggerKey::from(&trigger), &news, now, out);
            }
        }
    }
    match state.registers.get_mut(place) {
        // An event that is seen again is refused only once. Its batch is no longer needed.
        Some(register) if register.revision == 0 => {
            register.stage = Stage::Leaving;
            register.evidence = Evidence::Register(Vec::new());
        }
        _ => remove(state, place, out),
    }
}

/// Holds a trigger that came too early, and removes it after a day. Returns whether the trigger
/// came too early.
fn hold_back(state: &mut State, place: &Place, now: &Moment, out: &mut Vec<Action>) -> bool {
    let Some(early) = ahead::early(state, place, now) else {
        return false;
    };
    let register = state.registers.get(place);
    let Some(Found::Good(Signed { trigger, .. })) = register.map(|one| &one.found) else {
        return false;
    };
    let (trigger, until) = (trigger.clone(), results::until(state, trigger, now));
    let (outcome, why, is_news) = match &early {
        Early::Held(_, why, is_news) => (Outcome::Held, why, *is_news),
        Early::Over(why) => (Outcome::Expired, why, true),
    };
    if is_news {
        let news = News {
            again: true,
            ..News::new(&trigger.lineage, outcome, why, until)
        };
        tell(state, &TriggerKey::from(&trigger), &news, now, out);
    }
    match early {
        Early::Held(pause, ..) => hold(state, place, pause, now),
        Early::Over(_) => remove(state, place, out),
    }
    true
}

/// Queues a trigger of a rolling run for its turn, unless its turn has come before or it has
/// expired: the executor answers for those.
fn queue(state: &mut State, place: &Place, now: &Moment, out: &mut Vec<Action>) {
    let skew = state.rules.skew;
    let Some(register) = state.registers.get_mut(place) else {
        return;
    };
    let (Some(left), Found::Good(signed)) = (register.left(skew, now), &register.found) else {
        return;
    };
    let trigger = &signed.trigger;
    if trigger.parallel == 0 || trigger.ask != Ask::Run {
        return;
    }
    let which = TriggerKey::from(trigger);
    let entry = state.entries.get(&EntryId::Status(which.clone()));
    match entry.map(|entry| &entry.content) {
        Some(Content::Status { told, .. }) if told.outcome == Outcome::Halted => {
            let (outcome, why, trigger) = (told.outcome, told.why.clone(), trigger.clone());
            let answer = Answer {
                which,
                outcome,
                why,
                above: None,
            };
            return settle(state, answer, &trigger, now, out);
        }
        Some(Content::Status { told, has_turn, .. })
            if *has_turn || told.outcome != Outcome::Held =>
        {
            return;
        }
        _ => {}
    }
    register.stage = Stage::Waits;
    out.push(Action::Queue(which, trigger.parallel));
    state.wake_at(now.uptime + left);
}

fn hold(state: &mut State, place: &Place, pause: Span, now: &Moment) {
    let until = now.uptime + pause;
    if let Some(register) = state.registers.get_mut(place) {
        register.stage = Stage::Held(until);
        state.wake_at(until);
    }
}

/// Removes a value from the backend. While the backend is lost, nothing is removed: the next one
/// may have another value at this revision, and its values are judged anew.
fn remove(state: &mut State, place: &Place, out: &mut Vec<Action>) {
    // An event is in the backend for all nodes, and stays there.
    let known = state.registers.get(place);
    if known.is_some_and(|register| register.revision == 0) {
        state.registers.remove(place);
        return;
    }
    if let Some(register) = state.registers.get_mut(place) {
        register.stage = Stage::Leaving;
        if state.is_linked {
            out.push(Action::Remove {
                place: place.clone(),
                revision: register.revision,
            });
        }
    }
}

/// Handles answers of the executor. Triggers that it did not answer are sent again.
pub(super) fn answered(
    state: &mut State,
    answers: Vec<Answer>,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let mut handed = state.handed.take().unwrap_or_default();
    for answer in answers {
        if let Some(trigger) = handed.remove(&answer.which) {
            settle(state, answer, &trigger, now, out);
        }
    }
    retry(state, handed, now);
    hand_over(state, out);
}

/// Publishes the outcome of a trigger, and removes or holds the trigger.
pub(super) fn settle(
    state: &mut State,
    answer: Answer,
    trigger: &Trigger,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let place = (trigger.sender.clone(), trigger.name.clone());
    let releases = answer.outcome.releases();
    // The value may be a newer trigger by now.
    let stands = state
        .registers
        .get(&place)
        .is_some_and(|register| register.is(&answer.which));
    let until = results::until(state, trigger, now);
    let news = News {
        above: answer.above,
        again: releases,
        ..News::new(&trigger.lineage, answer.outcome, &answer.why, until)
    };
    tell(state, &answer.which, &news, now, out);
    if stands && releases {
        remove(state, &place, out);
    } else if stands {
        hold(state, &place, LOOK_AGAIN, now);
    }
}

/// Handles that the executor did not answer. It knows the triggers that it recorded by their
/// numbers.
pub(super) fn not_handed(state: &mut State, why: &str, now: &Moment, out: &mut Vec<Action>) {
    let handed = state.handed.take().unwrap_or_default();
    out.push(Action::Note(format!(
        "{} triggers cannot be taken: {why}",
        handed.len()
    )));
    retry(state, handed, now);
}

fn retry(state: &mut State, handed: BTreeMap<TriggerKey, Box<Trigger>>, now: &Moment) {
    for which in handed.into_keys() {
        let place = (which.sender.clone(), which.name.clone());
        if state
            .registers
            .get(&place)
            .is_some_and(|register| register.is(&which))
        {
            hold(state, &place, RETRY, now);
        }
    }
}

/// Handles that the backend is reached. It may be another one, whose revisions mean something else.
pub(super) fn reached(state: &mut State, now: &Moment) {
    state.registers.clear();
    ahead::forget(state, now);
}

/// Handles the backend's answer to a removal.
pub(super) fn removed(
    state: &mut State,
    place: &Place,
    revision: u64,
    answer: &Result<(), String>,
    now: &Moment,
) {
    let Some(register) = state.registers.get_mut(place) else {
        return;
    };
    // This answer is about an earlier value at the same key.
    if register.revision != revision || register.stage != Stage::Leaving {
        return;
    }
    if answer.is_ok() {
        state.registers.remove(place);
    } else {
        let again = now.uptime + RETRY;
        register.stage = Stage::Settled(again);
        state.wake_at(again);
    }
}

/// Publishes a new outcome of a trigger that was accepted.
pub(super) fn ran(
    state: &mut State,
    which: &TriggerKey,
    lineage: &Lineage,
    (outcome, why, ran): (Outcome, String, Option<Ran>),
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let news = News {
        ran,
        ..News::new(lineage, outcome, &why, now.wall)
    };
    tell(state, which, &news, now, out);
}

/// Judges all held triggers again.
pub(super) fn look_again(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    wake_held(state, true, now, out);
}

/// Judges held triggers again that are due.
pub(super) fn tick(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    wake_held(state, false, now, out);
}

fn wake_held(state: &mut State, all: bool, now: &Moment, out: &mut Vec<Action>) {
    let places: Vec<Place> = state.registers.keys().cloned().collect();
    for place in places {
        let Some(register) = state.registers.get_mut(&place) else {
            continue;
        };
        match register.stage {
            Stage::Held(until) if all || until <= now.uptime => {
                register.stage = Stage::New;
                look(state, &place, now, out);
            }
            Stage::Settled(until) if until <= now.uptime => remove(state, &place, out),
            Stage::Held(until) | Stage::Settled(until) => state.wake_at(until),
            Stage::Waits if all => {
                register.stage = Stage::New;
                look(state, &place, now, out);
            }
            Stage::Waits => match register.left(state.rules.skew, now) {
                Some(left) => state.wake_at(now.uptime + left),
                None => register.stage = Stage::New,
            },
            Stage::New | Stage::Handed | Stage::Leaving => {}
        }
    }
    hand_over(state, out);
}
