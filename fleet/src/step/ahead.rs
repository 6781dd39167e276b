//! Triggers of senders whose clock is ahead of this node's by more than the skew, or that came
//! before this node's clock was set. They are not sent to the executor. They stay in the backend
//! for up to a day, in which either clock may be corrected.

use again_base::model::{Moment, Span};

use super::model::{Content, EntryId, Found, OutboxEntry, Place, State};
use crate::policy::judge;
use crate::policy::replay::TriggerKey;
use crate::wire::outcome::Outcome;

/// Longest time that a trigger is held, measured by uptime, which nobody sets.
const LONGEST: Span = Span::from_secs(86_400);
/// Longest time until a held trigger is judged again.
const LOOK_AGAIN: Span = Span::from_secs(600);

/// Judgement of a trigger that came too early.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// The trigger is held: time until it is judged again, reason, and whether to publish that to
    /// its sender.
    Held(Span, String, bool),
    /// The trigger was held for a day; reason.
    Over(String),
}

/// Judgement of the trigger at a place, if it came too early. The time when it was first seen is
/// remembered as long as it is too early.
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

/// Whether an entry already publishes that its trigger is held, and this node has neither rebooted
/// nor set its clock by more than the skew since then.
fn is_told(entry: &OutboxEntry, skew: Span, now: &Moment) -> bool {
    let Content::Status { told, .. } = &entry.content else {
        return false;
    };
    let began = &entry.term.began;
    let (lasted, by_the_clock) = (now.uptime.since(began.uptime), now.wall.since(began.wall));
    let is_set = lasted > by_the_clock + skew || by_the_clock > lasted + skew;
    told.outcome == Outcome::Held && began.boot == now.boot && !is_set
}

/// Forgets triggers that were first seen more than a day ago: they may have been removed while the
/// backend was away.
pub(super) fn forget(state: &mut State, now: &Moment) {
    state
        .early
        .retain(|_, (_, since)| now.uptime < *since + LONGEST);
}
