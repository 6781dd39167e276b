//! Sender: puts triggers until their targets answer.
//!
//! A trigger is an entry until its target has published an outcome other than held, or the trigger
//! has expired. A second trigger of the same name that is sent before that also stands for the
//! first one.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{Moment, Span, Walltime};

use super::model::{
    Action, Client, Content, Draft, EntryId, Firing, News, OutboxEntry, Said, SelectionState, State,
};
use super::{entries, results};
use crate::policy::fire::{self, Request};
use crate::policy::lineage::TooFar;
use crate::policy::replay::{MOST_ACCEPTED, MOST_NAMES};
use crate::policy::term::{self, Term};
use crate::wire::name::{Name, Node};
use crate::wire::outcome::{self, Stopped, TriggerStatus};
use crate::wire::trigger::{Ask, Trigger};

/// Longest time that a client waits for the backend before it is answered with the state so far.
const ANSWER: Span = Span::from_secs(4);
/// Largest number of logged failures that are remembered; beyond it, the one with the lowest number
/// is forgotten.
const MOST_LOGGED: usize = 2_000;

/// Additions to a request that was stored before it is sent.
pub(super) struct Later<'a> {
    /// Number of the request when it was stored. A trigger of the same name that was sent since is
    /// newer.
    pub stored: u64,
    /// Targets to which the request is not sent: they have its triggers already, or it was
    /// cancelled for them.
    pub excluded: &'a BTreeSet<Node>,
}

/// Sends a request to its targets, and adds the results to its answer. Returns the entries with
/// their versions.
pub(super) fn send(
    state: &mut State,
    request: &Request,
    number: u64,
    later: Option<&Later<'_>>,
    said: &mut Said,
    now: &Moment,
    out: &mut Vec<Action>,
) -> BTreeMap<EntryId, u64> {
    let (mut triggers, mut too_far) = (Vec::new(), Vec::new());
    let mut waits = BTreeMap::new();
    for target in &request.targets {
        if later.is_some_and(|later| later.excluded.contains(target)) {
            continue;
        }
        if later.is_none()
            && let Some((id, version)) = sent_before(state, request, target, said)
        {
            waits.insert(id, version);
            continue;
        }
        let outcome = (&mut *said, &mut too_far);
        let stored = later.map(|later| later.stored);
        match fired(state, request, target, stored, (number, now), outcome) {
            Ok(trigger) => triggers.push(trigger),
            Err(why) => said.failed.push((target.clone(), why)),
        }
    }
    let stopped = too_far.into_iter().map(|one| Stopped {
        way: outcome::words(&one.to_string()),
        origin: one.id,
    });
    results::stopped(state, stopped, now, out);
    let list = EntryId::Targets(request.id.clone());
    let own = triggers.iter().filter(|one| one.id == request.id);
    let own: Vec<Trigger> = own.cloned().collect();
    if request.stop_after > 0 && !own.is_empty() && !state.entries.contains_key(&list) {
        match listed(state, &own, number, now) {
            Ok(list) => entries::write(state, vec![list], now, out),
            Err(why) => {
                let failed = triggers.drain(..).map(|one| (one.target, why.clone()));
                said.failed.extend(failed);
            }
        }
    }
    for newer in triggers.iter().filter(|one| one.id != request.id) {
        out.push(Action::Progress {
            id: request.id.clone(),
            target: newer.target.clone(),
            news: News::ReplacedBy(newer.id.clone()),
        });
    }
    waits.extend(post(state, triggers, said, now, out));
    waits
}

/// Entry of this same request for a target, and its version: the request came from the socket and
/// from disk, or again from disk. A cancelled trigger stays cancelled. `None` if there is no such
/// entry, or its trigger is neither on disk nor in the backend yet.
fn sent_before(
    state: &State,
    request: &Request,
    target: &Node,
    said: &mut Said,
) -> Option<(EntryId, u64)> {
    let id = EntryId::To(target.clone(), request.name.clone());
    let entry = state.entries.get(&id)?;
    let trigger = entry.trigger().filter(|one| one.id == request.id)?;
    if trigger.ask == Ask::Run && entry.kept.max(entry.confirmed) < entry.version {
        return None;
    }
    said.until = said.until.max(trigger.expires());
    Some((id, entry.version))
}

/// Whether this number of triggers can wait in addition. A request with more triggers than can ever
/// wait is not held up.
pub(super) fn has_room(state: &State, count: usize) -> bool {
    let waiting = state.entries.len() - state.told.values();
    waiting + count <= entries::MOST || count > entries::MOST
}

/// Entry with the targets of a rolling run. It matters as long as one of them may begin.
fn listed(state: &State, triggers: &[Trigger], number: u64, now: &Moment) -> Result<Draft, String> {
    let list = fire::targets(triggers).map_err(|e| e.to_string())?;
    let until = triggers.iter().map(Trigger::expires).max();
    Ok(Draft {
        entry: EntryId::Targets(list.id.clone()),
        version: number,
        content: Content::Targets(list),
        term: Term {
            began: now.clone(),
            until: until.unwrap_or(now.wall) + state.rules.skew,
        },
    })
}

pub(super) fn next_number(state: &mut State, now: &Moment, out: &mut Vec<Action>) -> u64 {
    let (number, last) = state.numbers.next(now.wall, state.rules.skew);
    // The entry that has the highest number may be replaced.
    if state.kept_before != state.numbers.before {
        state.kept_before = state.numbers.before;
        out.push(Action::KeepNumbers(state.numbers));
    }
    if let Some(last) = last {
        let last = term::shown(Walltime::from_millis(last));
        let here = term::shown(now.wall);
        out.push(Action::Note(format!(
            "the clock was set back: the last trigger was sent at {last}, it is now {here}; triggers are numbered by the clock again"
        )));
    }
    number
}

fn entry_id(trigger: &Trigger) -> EntryId {
    EntryId::To(trigger.target.clone(), trigger.name.clone())
}

/// Trigger for one target, merged with the trigger of the same name that waits for it. If that one
/// is newer than the stored request, it also stands for the request.
fn fired(
    state: &State,
    request: &Request,
    target: &Node,
    stored: Option<u64>,
    (number, now): (u64, &Moment),
    (said, stopped): (&mut Said, &mut Vec<TooFar>),
) -> Result<Trigger, String> {
    if state.entries.len() - state.told.values() >= entries::MOST {
        return Err(format!("{} triggers wait already", entries::MOST));
    }
    let rules = &state.rules;
    let time = (number, now.wall);
    let fired = fire::trigger(request, &rules.me, target, time, rules.hop_limit);
    let (trigger, too_far) = fired.map_err(|limit| {
        let why = limit.to_string();
        stopped.extend(limit.0);
        why
    })?;
    stopped.extend(too_far.clone());
    said.left_out.extend(too_far);
    let entry = state.entries.get(&entry_id(&trigger));
    match entry.and_then(|entry| Some((entry.trigger()?, still(state, entry, now)))) {
        Some((newer, still))
            if newer.ask == Ask::Run
                && newer.id != trigger.id
                && stored.is_some_and(|stored| newer.number > stored) =>
        {
            let newer = Trigger {
                number,
                at: trigger.at,
                ttl: still.millis(),
                ..newer.clone()
            };
            fire::merged(&trigger, request.ttl, newer).map_err(|other| other.to_string())
        }
        Some((older, still)) => {
            fire::merged(older, still, trigger).map_err(|other| other.to_string())
        }
        None => Ok(trigger),
    }
}

/// Time for which a target may still accept a trigger, if its clock is right.
pub(super) fn still(state: &State, entry: &OutboxEntry, now: &Moment) -> Span {
    let left = entry.term.left(now).nanos();
    Span::from_nanos(left.saturating_sub(state.rules.skew.nanos()))
}

/// Writes entries with these triggers. Returns them with their versions.
pub(super) fn post(
    state: &mut State,
    triggers: Vec<Trigger>,
    said: &mut Said,
    now: &Moment,
    out: &mut Vec<Action>,
) -> BTreeMap<EntryId, u64> {
    let mut waits = BTreeMap::new();
    let mut drafts = Vec::with_capacity(triggers.len());
    let limit = now.wall + state.rules.skew;
    for mut trigger in triggers {
        let id = entry_id(&trigger);
        let mut version = trigger.number;
        let entry = state.entries.get(&id);
        if let Some((entry, older)) = entry.and_then(|entry| Some((entry, entry.trigger()?))) {
            if older.id != trigger.id {
                out.push(progress(older, News::ReplacedBy(trigger.id.clone())));
            }
            // Versions grow even if numbers do not. The target has not recorded a number that is
            // ahead of the clock; otherwise it publishes that.
            version = version.max(entry.version + 1);
            if older.number <= limit.millis() {
                trigger.number = trigger.number.max(older.number + 1);
                state.numbers.note(trigger.number, limit);
            }
        }
        said.until = said.until.max(trigger.expires());
        waits.insert(id.clone(), version);
        drafts.push(Draft {
            entry: id,
            version,
            term: Term {
                began: now.clone(),
                until: trigger.expires() + state.rules.skew,
            },
            content: Content::Trigger(trigger),
        });
    }
    entries::write(state, drafts, now, out);
    waits
}

/// Remembers the client that waits for the results of these entries.
pub(super) fn answer(
    state: &mut State,
    client: Client,
    waits: BTreeMap<EntryId, u64>,
    said: Said,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let deadline = now.uptime + ANSWER;
    state.wake_at(deadline);
    state.firings.push(Firing {
        client,
        waits,
        deadline,
        said,
    });
    // A client that waits for nothing is answered immediately.
    review(state, None, now, out);
}

fn progress(trigger: &Trigger, news: News) -> Action {
    Action::Progress {
        id: trigger.id.clone(),
        target: trigger.target.clone(),
        news,
    }
}

/// Handles a status that a target published. A status for a number lower than the entry's is
/// reported as progress, but does not end the entry.
pub(super) fn heard(state: &mut State, told: TriggerStatus, now: &Moment, out: &mut Vec<Action>) {
    if told.sender != state.rules.me {
        return;
    }
    let id = EntryId::To(told.target.clone(), told.name.clone());
    if let Some(trigger) = state.entries.get(&id).and_then(|entry| entry.trigger()) {
        // A target may hold a trigger because the clocks differ.
        if told.id == trigger.id {
            state.ahead = Some(ahead(trigger.at, told.at, now.wall.millis()));
        }
        if told.id == trigger.id && told.outcome.is_of_a_run() {
            let expires = trigger.expires() + state.rules.skew;
            accepted(&mut state.accepted, &told, expires, now);
        }
        let is_it = told.number == trigger.number
            || told.number > trigger.number && trigger.ask == Ask::Run;
        // A number from before the clock was set back says nothing about the triggers after it.
        let newest = trigger.number.max(state.numbers.before);
        if !told.outcome.releases() {
            // The target judges the trigger again.
        } else if is_it && told.id == trigger.id {
            if number_again(state, &id, told.above, now, out) {
                // The target has not published the outcome of the new number yet.
                results::stopped(state, told.stopped, now, out);
                review(state, Some(&id), now, out);
                return;
            }
            forget(state, &id, out);
        } else if told.number > newest {
            // Status of a newer trigger, which also stood for this one, and was lost here after it
            // was sent.
            out.push(progress(trigger, News::ReplacedBy(told.id.clone())));
            forget(state, &id, out);
        }
    }
    log(state, &id, &told, out);
    let why = outcome::words(&told.sentence());
    out.push(Action::Progress {
        id: told.id,
        target: told.target,
        news: News::Status(told.outcome, why),
    });
    results::stopped(state, told.stopped, now, out);
    review(state, Some(&id), now, out);
}

/// Remembers that a target has accepted a name, until its trigger has expired.
fn accepted(
    all: &mut BTreeMap<(Node, Name), Walltime>,
    told: &TriggerStatus,
    expires: Walltime,
    now: &Moment,
) {
    if all.len() >= entries::MOST {
        all.retain(|_, expires| *expires > now.wall);
    }
    if all.len() < entries::MOST {
        all.insert((told.target.clone(), told.name.clone()), expires);
    }
}

impl State {
    /// Warnings about targets that will soon hold triggers of this node, because many wait for an
    /// answer, or were accepted and have not expired. Only triggers that were accepted since this
    /// service started count: the targets know of the others.
    pub fn crowded(&self, now: Walltime) -> Vec<String> {
        let mut names: BTreeMap<&Node, BTreeSet<&Name>> = BTreeMap::new();
        let mut waiting: BTreeMap<(&Node, &Node), usize> = BTreeMap::new();
        let entries = self.entries.values().filter_map(OutboxEntry::trigger);
        for trigger in entries.filter(|trigger| trigger.ask == Ask::Run) {
            let target = &trigger.target;
            names.entry(target).or_default().insert(&trigger.name);
            *waiting.entry((target, trigger.firing())).or_default() += 1;
        }
        for ((target, name), _) in self.accepted.iter().filter(|(_, expires)| **expires > now) {
            names.entry(target).or_default().insert(name);
        }
        let is_near = |count: usize, most: usize| count >= most / 5 * 4;
        let names = names
            .into_iter()
            .map(|(target, names)| (target, names.len()));
        let near = names.filter(|(_, count)| is_near(*count, MOST_ACCEPTED));
        let names = near.map(|(target, count)| {
            format!("{count} names of this node wait for {target}, or were accepted there and have not expired; from {MOST_ACCEPTED} on it holds others")
        });
        let near = waiting
            .into_iter()
            .filter(|(_, count)| is_near(*count, MOST_NAMES));
        let waiting = near.map(|((target, node), count)| {
            format!("{count} triggers for {node} wait for {target}; from {MOST_NAMES} on it holds others")
        });
        names.chain(waiting).take(5).collect()
    }
}

/// Sends a superseded trigger once more, with a number above the one that its target has recorded,
/// if this node gave that number: the clock was set back, or the target had to make room for names.
/// The target acts only once on the trigger's id. Returns whether the trigger is sent.
fn number_again(
    state: &mut State,
    id: &EntryId,
    above: Option<u64>,
    now: &Moment,
    out: &mut Vec<Action>,
) -> bool {
    let entry = state.entries.get(id).filter(|one| !one.is_renumbered);
    let Some((entry, trigger)) = entry.and_then(|one| Some((one, one.trigger()?))) else {
        return false;
    };
    let above = above.and_then(|above| {
        let skew = state.rules.skew;
        state.numbers.above(above, now.wall, skew)
    });
    let Some(number) = above else {
        return false;
    };
    let draft = Draft {
        entry: id.clone(),
        version: entry.version + 1,
        content: Content::Trigger(Trigger {
            number,
            ..trigger.clone()
        }),
        term: entry.term.clone(),
    };
    entries::write(state, vec![draft], now, out);
    if let Some(entry) = state.entries.get_mut(id) {
        entry.is_renumbered = true;
    }
    true
}

/// Milliseconds by which this clock is at least ahead of a target's: the target published between
/// the sending of the trigger and now.
fn ahead(fired: u64, told: u64, now: u64) -> i64 {
    told.clamp(fired.min(now), now)
        .wrapping_sub(told)
        .cast_signed()
}

/// Logs once that a trigger started no run, or that its run was not successful, or that an origin
/// went too far: no client may be waiting for that.
fn log(state: &mut State, id: &EntryId, told: &TriggerStatus, out: &mut Vec<Action>) {
    let is_stopped = !told.stopped.is_empty();
    let is_bad = is_stopped || told.outcome.is_bad();
    let news = (told.number, told.id.clone(), told.outcome, is_stopped);
    let known = state.logged.get(id);
    // A backend restored from a backup shows results that newer ones have replaced.
    if known.is_some_and(|known| *known == news || known.0 > told.number) {
        return;
    }
    state.logged.remove(id);
    if !is_bad || told.waits {
        return;
    }
    if state.logged.len() >= MOST_LOGGED {
        let oldest = state.logged.iter().min_by_key(|(_, news)| news.0);
        let oldest = oldest.map(|(id, _)| id.clone());
        oldest.and_then(|id| state.logged.remove(&id));
    }
    state.logged.insert(id.clone(), news);
    out.push(Action::Note(format!(
        "'{}' for {} is {}: {}",
        told.name,
        told.target,
        told.outcome,
        told.sentence()
    )));
}

pub(super) fn forget(state: &mut State, id: &EntryId, out: &mut Vec<Action>) {
    if state.entries.remove(id).is_some() {
        out.push(Action::Forget {
            entry: id.clone(),
            number: Some(state.numbers),
        });
    }
}

/// Removes triggers and lists of targets that have expired. Only the target could say whether a
/// trigger expired without a run.
pub(super) fn end(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let is_over = |id: &EntryId| {
        matches!(id, EntryId::To(..) | EntryId::Targets(_)) && state.entries[id].term.is_over(now)
    };
    let over: Vec<EntryId> = state
        .entries
        .keys()
        .filter(|id| is_over(id))
        .cloned()
        .collect();
    for id in over {
        if let Some(trigger) = state.entries[&id].trigger() {
            out.push(Action::Note(format!(
                "'{}' for {} had no answer in its time",
                trigger.name, trigger.target
            )));
            out.push(progress(trigger, News::NoAnswer));
        }
        forget(state, &id, out);
    }
}

/// State of a request for one of its targets.
enum Stands {
    Open,
    Delivered,
    Kept,
    Failed(String),
}

fn stands(state: &State, id: &EntryId, firing: &Firing, now: &Moment) -> Stands {
    let version = firing.waits.get(id).copied().unwrap_or_default();
    let Some(entry) = state.entries.get(id) else {
        return Stands::Delivered;
    };
    // A selection is not sent to the backend.
    let is_sent = matches!(id, EntryId::To(..));
    let has_time = is_sent && state.is_linked && now.uptime < firing.deadline;
    if entry.confirmed >= version {
        Stands::Delivered
    } else if entry.kept >= version {
        if has_time { Stands::Open } else { Stands::Kept }
    } else if now.uptime < firing.deadline && (has_time || entry.not_kept.is_none()) {
        Stands::Open
    } else {
        let why = entry.not_kept.clone();
        Stands::Failed(why.unwrap_or_else(|| "the disk takes too long".to_owned()))
    }
}

/// Answers clients whose requests are settled for all targets, or for which the backend does not
/// answer in time. With an entry given, only the clients that wait for it are checked.
pub(super) fn review(
    state: &mut State,
    only: Option<&EntryId>,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let mut firings = std::mem::take(&mut state.firings);
    for firing in &mut firings {
        let waits: Vec<EntryId> = match only {
            Some(id) if firing.waits.contains_key(id) => vec![id.clone()],
            Some(_) => continue,
            None => firing.waits.keys().cloned().collect(),
        };
        for id in waits {
            review_one(state, firing, &id, now, out);
        }
        if firing.waits.is_empty() {
            out.push(Action::Say(firing.client, std::mem::take(&mut firing.said)));
        } else if firing.deadline > now.uptime {
            state.wake_at(firing.deadline);
        }
    }
    firings.retain(|firing| !firing.waits.is_empty());
    state.firings = firings;
}

fn review_one(
    state: &mut State,
    firing: &mut Firing,
    id: &EntryId,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let stands = stands(state, id, firing, now);
    let said = &mut firing.said;
    match (stands, id) {
        (Stands::Open, _) => return,
        (Stands::Delivered, EntryId::To(target, _)) => said.delivered.push(target.clone()),
        (Stands::Kept, EntryId::To(target, _)) => said.kept.push(target.clone()),
        (Stands::Failed(why), EntryId::To(target, _)) => {
            said.failed.push((target.clone(), why));
            // The entry may still stand for an older trigger, whose client was answered that it is
            // stored or sent.
            if state
                .entries
                .get(id)
                .is_some_and(|entry| entry.kept + entry.confirmed == 0)
            {
                forget(state, id, out);
            }
        }
        (Stands::Failed(why), _) => {
            said.selection = Some(SelectionState::NotStored(why));
            forget(state, id, out);
        }
        // The selection may have been resolved meanwhile.
        (Stands::Delivered | Stands::Kept, _) => said.selection = Some(SelectionState::Stored),
    }
    firing.waits.remove(id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fire::Numbers;
    use crate::policy::judge::Rules;
    use crate::policy::lineage::tests::node;
    use crate::policy::term::tests::moment;
    use crate::wire::trigger::tests::trigger;
    use proptest::prelude::*;

    /// A target that is off or disabled has not told that it accepts them.
    #[test]
    fn target_that_does_not_answer_is_named_before_it_holds_names() {
        let rules = Rules {
            me: node("web1"),
            accept: Default::default(),
            skew: Span::from_secs(300),
            hop_limit: 3,
            locks: vec![],
        };
        let now = moment("a", 1_000_000, 2_000_000_000);
        let mut state = State::new(rules, Numbers::default(), [], &now);
        for n in 0..MOST_ACCEPTED / 5 * 4 {
            let one = Trigger {
                name: n.to_string().parse().expect("a name"),
                on_behalf: Some(node(&format!("n{}", n / 790))),
                ..trigger()
            };
            assert!(state.crowded(now.wall).is_empty(), "{n}");
            let term = Term {
                began: now.clone(),
                until: now.wall,
            };
            let entry = OutboxEntry::new(Content::Trigger(one.clone()), 1, term);
            state.entries.insert(entry_id(&one), entry);
        }
        let said = state.crowded(now.wall);
        assert!(said[0].starts_with("1600 names of this node wait for lb1"));
        // One of them was accepted, and is sent once more.
        let one = state.entries.values().find_map(OutboxEntry::trigger);
        let one = one.expect("sent").clone();
        let key = (one.target.clone(), one.name.clone());
        state.accepted.insert(key, now.wall + Span::from_secs(60));
        assert_eq!(state.crowded(now.wall), said);
        for n in 0..10 {
            let one = Trigger {
                name: format!("x{n}").parse().expect("a name"),
                on_behalf: Some(node("n0")),
                ..trigger()
            };
            let term = Term {
                began: now.clone(),
                until: now.wall,
            };
            let entry = OutboxEntry::new(Content::Trigger(one.clone()), 1, term);
            state.entries.insert(entry_id(&one), entry);
        }
        let said = state.crowded(now.wall);
        assert!(said[1].starts_with("800 triggers for n0 wait for lb1"));
    }

    proptest! {
        #[test]
        fn a_clock_is_not_said_to_be_further_off_than_it_is(
            fired in 1u64 << 40..1 << 41,
            until_told in 0u64..10_000,
            since in 0u64..10_000,
            off in -1_000_000i64..1_000_000,
        ) {
            let at = fired + until_told;
            let told = at.checked_add_signed(-off).expect("a time");
            let said = ahead(fired, told, at + since);
            prop_assert!(said.abs() <= off.abs() && said * off >= 0, "{said} of {off}");
            let slow = i64::try_from(until_told + since).expect("small");
            prop_assert!((off - said).abs() <= slow);
        }
    }
}
