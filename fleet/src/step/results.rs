//! Statuses of triggers that this node publishes: to the sender, and in the story of each origin.

use std::ops::Bound;

use again_base::model::{Moment, Span, Walltime};

use super::entries;
use super::model::{Action, Content, Draft, EntryId, OutboxEntry, State};
use super::outbox_share::size;
use crate::policy::replay::TriggerKey;
use crate::policy::term::Term;
use crate::wire::lineage::Lineage;
use crate::wire::name::Id;
use crate::wire::outcome::{self, Outcome, Ran, Stopped, TriggerStatus};
use crate::wire::trigger::{MOST_TTL, Trigger};

/// Largest number of refusals that are published at a time, so that unknown senders cannot fill the
/// outbox.
pub(super) const MOST_REFUSALS: usize = 100;
/// Largest number of stopped origins that are remembered.
const MOST_STOPPED: usize = 1000;
/// Time since the last status of an accepted trigger after which its run counts as lost, and its
/// end is no longer waited for.
const LONGEST_RUN: Span = Span::from_secs(86_400);
/// Time between two checks for lost runs.
const LOOK_AT_RUNS: Span = Span::from_secs(3600);
/// Shortest time until another reason for the same outcome is published: a reason that names the
/// clock changes all the time.
const SAY_AGAIN: Span = Span::from_secs(600);

/// Handles origins that were stopped at the hop limit, here or at a later hop. The nodes that sent
/// them here are informed, and inform those before them: immediately if the run has ended,
/// otherwise when it ends.
pub(super) fn stopped(
    state: &mut State,
    stopped: impl IntoIterator<Item = Stopped>,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    for one in stopped {
        let came_here = state.entries.iter().filter_map(|(id, entry)| match id {
            EntryId::Status(which) if entry.content.comes_from(&one.origin) => Some(which.clone()),
            _ => None,
        });
        let came_here: Vec<TriggerKey> = came_here.collect();
        if came_here.is_empty() || state.stopped.contains_key(&one.origin) {
            continue;
        }
        if state.stopped.len() >= MOST_STOPPED {
            state.stopped.clear();
        }
        state.stopped.insert(one.origin, one.way);
        for which in came_here {
            tell_anew(state, &which, now, out);
        }
    }
}

/// Publishes the final status of a trigger once more, with the ways that were stopped since.
fn tell_anew(state: &mut State, which: &TriggerKey, now: &Moment, out: &mut Vec<Action>) {
    let id = EntryId::Status(which.clone());
    let Some(entry) = state.entries.get(&id) else {
        return;
    };
    let (version, term) = (entry.version + 1, entry.term.clone());
    let Content::Status {
        mut told,
        lineage,
        has_turn,
    } = entry.content.clone()
    else {
        return;
    };
    if !told.outcome.is_final() {
        return;
    }
    told.stopped = ways(state, &lineage);
    let outcome = told.outcome;
    let draft = Draft {
        entry: id,
        version,
        content: Content::Status {
            told,
            lineage,
            has_turn,
        },
        term,
    };
    entries::write(state, vec![draft], now, out);
    only_newest(state, which, outcome, false);
}

/// Ways that were stopped, of these origins.
fn ways(state: &State, lineage: &Lineage) -> Vec<Stopped> {
    let stopped = lineage.0.iter().filter_map(|origin| {
        let way = state.stopped.get(&origin.id)?.clone();
        let origin = origin.id.clone();
        Some(Stopped { origin, way })
    });
    stopped.collect()
}

/// Progress of an outcome: one with a lower rank is not published after one with a higher rank.
fn rank(outcome: Outcome) -> u8 {
    match outcome {
        // A lower number that comes again says nothing about the outcome of its first time.
        Outcome::Held | Outcome::Refused | Outcome::Superseded => 0,
        Outcome::Taken => 1,
        Outcome::Started => 2,
        _ => 3,
    }
}

/// New status of a trigger.
pub(super) struct News<'a> {
    pub lineage: &'a Lineage,
    pub outcome: Outcome,
    pub why: &'a str,
    pub ran: Option<Ran>,
    /// Number above which the trigger would have been accepted, if it is superseded.
    pub above: Option<u64>,
    /// Time until which the sender may ask again by putting the same number.
    pub until: Walltime,
    /// Whether the sender asks again, so that a status that is not new is put again.
    pub again: bool,
    /// Whether the trigger waits for its turn in a rolling run.
    pub waits: bool,
    /// Whether its turn has come.
    pub has_turn: bool,
}

impl News<'_> {
    /// Status of a trigger whose sender does not ask again.
    pub fn new<'a>(
        lineage: &'a Lineage,
        outcome: Outcome,
        why: &'a str,
        until: Walltime,
    ) -> News<'a> {
        News {
            lineage,
            outcome,
            why,
            ran: None,
            above: None,
            until,
            again: false,
            waits: false,
            has_turn: false,
        }
    }
}

/// Publishes the status of a trigger, if it is new or the sender asks again.
pub(super) fn tell(
    state: &mut State,
    which: &TriggerKey,
    news: &News,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let id = EntryId::Status(which.clone());
    let why = outcome::words(news.why);
    let (mut version, mut until, mut ran) = (1, news.until, news.ran.clone());
    if let Some(entry) = state.entries.get_mut(&id)
        && let Content::Status { told, has_turn, .. } = &entry.content
    {
        ran = ran.or_else(|| told.ran.clone());
        let is_same = (told.outcome, told.above) == (news.outcome, news.above)
            && told.ran == ran
            && *has_turn == news.has_turn
            && (told.why == why
                || !has_turn && now.wall.since(Walltime::from_millis(told.at)) < SAY_AGAIN);
        if is_same || rank(news.outcome) < rank(told.outcome) {
            if news.again {
                entry.left = entry.content.keys();
                only_newest(state, which, news.outcome, false);
                entries::send(state, &id, now, out);
            }
            return;
        }
        (version, until) = (entry.version + 1, until.max(entry.term.until));
    } else if !has_room(state, which, news.lineage, out) {
        let (outcome, name, sender) = (news.outcome, &which.name, &which.sender);
        out.push(Action::Note(format!(
            "too many results wait: '{name}' of {sender} is {outcome}, which is not told"
        )));
        return;
    }
    let told = TriggerStatus {
        id: which.id.clone(),
        number: which.number,
        sender: which.sender.clone(),
        target: state.rules.me.clone(),
        name: which.name.clone(),
        outcome: news.outcome,
        why,
        at: now.wall.millis(),
        stopped: ways(state, news.lineage),
        ran,
        above: news.above,
        waits: news.waits,
    };
    let draft = Draft {
        entry: id,
        version,
        content: Content::Status {
            told,
            lineage: news.lineage.clone(),
            has_turn: news.has_turn,
        },
        term: Term {
            began: now.clone(),
            until,
        },
    };
    entries::write(state, vec![draft], now, out);
    only_newest(state, which, news.outcome, version == 1);
}

/// Leaves the result key to one trigger of a sender and name: to the one that is in the backend,
/// otherwise to the highest number among those that were not there before it. The outcomes of the
/// others are published in their stories only. A number may be lower than an earlier one if the
/// sender's clock was set back.
fn only_newest(state: &mut State, which: &TriggerKey, outcome: Outcome, is_new: bool) {
    let id = |number, bits| {
        EntryId::Status(TriggerKey {
            number,
            id: Id::from_bits(bits),
            ..which.clone()
        })
    };
    let (first, last) = (id(0, 0), id(u64::MAX, u128::MAX));
    let this = EntryId::Status(which.clone());
    let place = (which.sender.clone(), which.name.clone());
    let stands = state.registers.get(&place);
    let stands = stands.is_some_and(|register| register.is(which));
    // A copy that somebody has put back is superseded, or has a result already. It changes nothing
    // for the trigger that it replaced, and a trigger that is put after the copy counts again.
    let stands = stands && outcome != Outcome::Superseded;
    if stands {
        if let Some(entry) = state.entries.get_mut(&this) {
            entry.is_past = false;
        }
        let above = (Bound::Excluded(this.clone()), Bound::Included(last.clone()));
        for (_, entry) in state.entries.range_mut(above).filter(|_| is_new) {
            entry.is_past = true;
            leave_result(entry);
        }
    }
    let entries = state.entries.range(first..=last).rev();
    let mut newest = entries.filter(|(_, entry)| !entry.is_past);
    // This trigger, or the one that was the newest so far. A copy with a higher number may have
    // been there in between; the sender that asks now gets an answer.
    let older = if newest.next().is_some_and(|(id, _)| *id == this) {
        newest.next().map(|(id, _)| id.clone())
    } else {
        Some(this).filter(|_| !stands)
    };
    if let Some(entry) = older.and_then(|id| state.entries.get_mut(&id)) {
        leave_result(entry);
    }
}

/// Removes the result key from the keys where a status is to be put, so that it goes to the stories
/// only, unless the status has a number that the sender needs because its clock may have been set
/// back.
fn leave_result(entry: &mut OutboxEntry) {
    if let Content::Status { told, .. } = &entry.content
        && told.above.is_none()
    {
        entry.left.remove(&told.key());
    }
}

/// Removes results that the backend has and that nobody can ask for again. The result of a running
/// run stays until the run has ended.
pub(super) fn end(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let goes_on = |entry: &OutboxEntry| {
        matches!(&entry.content, Content::Status { told, .. }
            if told.goes_on() && now.wall.since(Walltime::from_millis(told.at)) < LONGEST_RUN)
    };
    drop_told(state, out, |entry| {
        entry.term.is_over(now) && !goes_on(entry)
    });
    let mut entries = state.entries.values();
    if entries.any(|entry| entry.term.is_over(now) && goes_on(entry)) {
        state.wake_at(now.uptime + LOOK_AT_RUNS);
    }
}

/// Whether there is room for another result, among all and among those of its sender. If not,
/// results that the backend has are removed early: the executor answers when their senders ask
/// again.
fn has_room(
    state: &mut State,
    which: &TriggerKey,
    lineage: &Lineage,
    out: &mut Vec<Action>,
) -> bool {
    let bytes = size(lineage);
    if state.told.values() >= entries::MOST {
        drop_told(state, out, |_| true);
    }
    let has_room = |state: &State| state.told.has_room(&which.sender, bytes);
    if !has_room(state) {
        drop_told(state, out, |entry| {
            let told = entry.told().map(|(told, _)| told);
            told.is_some_and(|told| told.sender == which.sender && !told.goes_on())
        });
    }
    state.told.values() < entries::MOST && has_room(state)
}

/// Time until which the sender of a trigger may ask again for its status, limited by the longest
/// time that a trigger may last.
pub(super) fn until(state: &State, trigger: &Trigger, now: &Moment) -> Walltime {
    let skew = state.rules.skew;
    let longest = now.wall + skew + skew + Span::from_nanos(MOST_TTL * 1_000_000);
    (trigger.expires() + skew).min(longest)
}

/// Number of refusals among the results in the outbox, up to [`MOST_REFUSALS`].
pub(super) fn refusals(state: &State) -> usize {
    let is_refusal = |entry: &&OutboxEntry| matches!(&entry.content, Content::Status { told, .. } if told.outcome == Outcome::Refused);
    state
        .entries
        .values()
        .filter(is_refusal)
        .take(MOST_REFUSALS)
        .count()
}

fn drop_told(state: &mut State, out: &mut Vec<Action>, is_meant: impl Fn(&OutboxEntry) -> bool) {
    state.entries.retain(|id, entry| {
        let told = entry.told();
        let told = told.filter(|_| entry.left.is_empty() && is_meant(entry));
        if let Some((told, lineage)) = told {
            state.told.remove(&told.sender, size(lineage));
            out.push(Action::Forget {
                entry: id.clone(),
                number: None,
            });
        }
        told.is_none()
    });
}
