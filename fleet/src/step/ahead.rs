//! Triggers of senders whose clock is ahead of this node's by more than the skew, or that came before this node's clock was set. They
//! are not handed over. They stay in the backend for a day, in which either clock may be set right.

use again_base::model::{Moment, Span};

use super::model::{Content, EntryId, Found, OutboxEntry, Place, State};
use crate::policy::judge;
use crate::policy::replay::TriggerKey;
use crate::wire::outcome::Outcome;

/// How long a trigger is held at most, by the clock that nobody sets.
const LONGEST: Span = Span::from_secs(86_400);
/// How long it waits to be looked at again, if no clock is set before.
const LOOK_AGAIN: Span = Span::from_secs(600);

/// A trigger that came too early.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// It is held for this time, for this reason. Whether its sender is to be told.
    Held(Span, String, bool),
    /// A day has passed.
    Over(String),
}

/// Whether the trigger at a place came too early. Since when it is there is remembered as long as it is.
pub(super) fn early(state: &mut State, place: &Place, now: &Moment) -> Option<Early> {
    let Found::Good(signed) = &state.registers.get(place)?.found else {
        return None;
    };
    let (trigger, which) = (&signed.trigger, TriggerKey::from(&signed.trigger));
    let Some(why) = judge::fired_ahead(&state.rules, trigger, now) else {
        state.early.remove(place);
        return None;
    };
    let in_time = trigger.fired().since(now.wall + state.rules.skew);
    let known = state.early.get(place).filter(|(known, _)| *known == which);
    let since = known.map_or(now.uptime, |(_, since)| *since);
    let left = (since + LONGEST).since(now.uptime);
    if left == Span::ZERO {
        state.early.remove(place);
        return Some(Early::Over(why));
    }
    let entry = state.entries.get(&EntryId::Status(which.clone()));
    let is_told = entry.is_some_and(|entry| is_told(entry, state.rules.skew, now));
    state.early.insert(place.clone(), (which, since));
    Some(Early::Held(
        LOOK_AGAIN.min(left).min(in_time),
        why,
        !is_told,
    ))
}

/// Whether an entry tells that its trigger is held, and no clock was set here since.
fn is_told(entry: &OutboxEntry, skew: Span, now: &Moment) -> bool {
    let Content::Status { told, .. } = &entry.content else {
        return false;
    };
    let began = &entry.term.began;
    let (lasted, by_the_clock) = (now.uptime.since(began.uptime), now.wall.since(began.wall));
    let is_set = lasted > by_the_clock + skew || by_the_clock > lasted + skew;
    told.outcome == Outcome::Held && began.boot == now.boot && !is_set
}

/// Forgets what may have gone while the backend was away and has not come back within a day.
pub(super) fn forget(state: &mut State, now: &Moment) {
    state
        .early
        .retain(|_, (_, since)| now.uptime < *since + LONGEST);
}
