//! Entries to the backend: on disk first, then put until the backend has them. What an entry says is not looked at here.

use again_base::model::{Moment, Span};

use super::model::{Action, Draft, EntryId, OutboxEntry, State};
use super::outbox_share::size;
use crate::wire::key::Key;

/// The first pause after a put that failed; it doubles.
const RETRY: Span = Span::from_secs(1);
/// The longest.
const LONGEST_RETRY: Span = Span::from_secs(60);
/// The first pause before a trigger or a list of targets that the backend confirmed is put again, in case it forgot; it doubles.
const AGAIN: Span = Span::from_secs(60);
/// The longest.
const LONGEST_AGAIN: Span = Span::from_secs(600);
/// How often what this node tells of itself is put in vain before triggers wait for it no longer.
const MOST_TRIES: u32 = 4;
/// How many triggers there may be, and how many results.
pub(super) const MOST: usize = 20_000;

/// Writes entries, each in place of its older version.
pub(super) fn write(state: &mut State, drafts: Vec<Draft>, now: &Moment, out: &mut Vec<Action>) {
    for draft in &drafts {
        let (content, term) = (draft.content.clone(), draft.term.clone());
        let mut entry = OutboxEntry::new(content, draft.version, term);
        if let Some(older) = state.entries.get(&draft.entry) {
            entry.kept = older.kept;
            entry.confirmed = older.confirmed;
            entry.is_past = older.is_past;
            if let Some((told, lineage)) = older.told() {
                state.told.remove(&told.sender, size(lineage));
            }
        }
        if let Some((told, lineage)) = entry.told() {
            state.told.add(&told.sender, size(lineage));
        }
        state.wake_at(now.uptime + entry.term.left(now));
        state.entries.insert(draft.entry.clone(), entry);
    }
    if !drafts.is_empty() {
        out.push(Action::Keep(drafts));
    }
}

/// A version of an entry is on disk, or cannot be. What cannot be kept is sent all the same.
pub(super) fn kept(
    state: &mut State,
    id: &EntryId,
    version: u64,
    kept: Result<(), String>,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let Some(entry) = state.entries.get_mut(id) else {
        return;
    };
    match kept {
        Ok(()) => entry.kept = entry.kept.max(version),
        Err(why) if entry.version == version => {
            out.push(Action::Note(format!("{id} cannot be kept: {why}")));
            entry.not_kept = Some(why);
        }
        Err(_) => {}
    }
    send(state, id, now, out);
}

/// Puts what an entry still has to be put, as far as nothing is under way there.
pub(super) fn send(state: &mut State, id: &EntryId, now: &Moment, out: &mut Vec<Action>) {
    let Some(entry) = state.entries.get(id).filter(|_| state.is_linked) else {
        return;
    };
    let is_unkept = entry.kept < entry.version && entry.not_kept.is_none();
    let is_early = match id {
        EntryId::Node => !state.own_key.is_seen,
        EntryId::To(..) => waits(state),
        EntryId::Targets(_) | EntryId::Selection(..) | EntryId::Status(_) => false,
    };
    if is_unkept || is_early {
        return;
    }
    for key in &entry.left {
        if let Some(another_waits) = state.flying.get_mut(key) {
            *another_waits = true;
            continue;
        }
        state.flying.insert(key.clone(), false);
        out.push(Action::Put {
            entry: id.clone(),
            version: entry.version,
            key: key.clone(),
            until: now.wall + entry.term.left(now),
        });
    }
}

/// Whether triggers wait: whoever is told of this node is to find what it tells of itself. What cannot be put holds nothing up,
/// nor does a put that each time takes the connection along: the tries count over all connections.
fn waits(state: &State) -> bool {
    let node = state.entries.get(&EntryId::Node);
    node.is_some_and(|node| {
        node.confirmed < state.first && state.not_taken < state.first && node.tries < MOST_TRIES
    })
}

/// Puts the triggers that have waited, if they wait no longer.
pub(super) fn release(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    if waits(state) {
        return;
    }
    let triggers = state
        .entries
        .iter()
        .filter(|(_, entry)| entry.trigger().is_some());
    let ids: Vec<EntryId> = triggers.map(|(id, _)| id.clone()).collect();
    for id in ids {
        send(state, &id, now, out);
    }
}

/// The backend answered a put.
pub(super) fn answered(
    state: &mut State,
    id: &EntryId,
    version: u64,
    key: &Key,
    answer: &Result<(), String>,
    now: &Moment,
) {
    if state.flying.remove(key) == Some(true) {
        // Another entry, or a newer version, has waited for its turn here.
        state.wake_at(now.uptime);
    }
    let Some(entry) = state
        .entries
        .get_mut(id)
        .filter(|entry| entry.version == version)
    else {
        return;
    };
    let pause = match answer {
        Ok(()) => {
            entry.left.remove(key);
            if !entry.left.is_empty() {
                return;
            }
            if entry.confirmed < version {
                entry.tries = 0;
            }
            entry.confirmed = version;
            let is_repeated = entry.trigger().is_some() || matches!(id, EntryId::Targets(_));
            if !is_repeated {
                // Its time may have been over before.
                let end = now.uptime + entry.term.left(now);
                state.wake_at(end);
                return;
            }
            doubled(AGAIN, entry.tries, LONGEST_AGAIN)
        }
        Err(_) => doubled(RETRY, entry.tries, LONGEST_RETRY),
    };
    entry.tries = entry.tries.saturating_add(1);
    let due = now.uptime + pause;
    entry.due = Some(due);
    state.wake_at(due);
}

fn doubled(first: Span, times: u32, most: Span) -> Span {
    first
        .times(1_u64.checked_shl(times).unwrap_or(u64::MAX))
        .min(most)
}

/// Sends everything anew: the backend may have lost what it had.
pub(super) fn reached(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    if let Some(node) = state.entries.get_mut(&EntryId::Node) {
        node.confirmed = 0;
    }
    let ids: Vec<EntryId> = state.entries.keys().cloned().collect();
    for id in ids {
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.left.extend(entry.content.counted_keys());
        }
        again(state, &id, now, out);
    }
}

/// Sends an entry again: a result where it is still missing, others wholly.
fn again(state: &mut State, id: &EntryId, now: &Moment, out: &mut Vec<Action>) {
    if let Some(entry) = state.entries.get_mut(id) {
        entry.due = None;
        if !entry.is_told() {
            entry.left = entry.content.keys();
        }
    }
    send(state, id, now, out);
}

/// Sends what is due, and finds out what will be.
pub(super) fn send_due(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let ids: Vec<EntryId> = state.entries.keys().cloned().collect();
    for id in ids {
        match state.entries.get(&id).and_then(|entry| entry.due) {
            Some(due) if due > now.uptime => {}
            Some(_) => again(state, &id, now, out),
            None => send(state, &id, now, out),
        }
        if let Some(entry) = state.entries.get(&id) {
            let end = now.uptime + entry.term.left(now);
            let next = entry.due.map_or(end, |due| due.min(end));
            // A result may outlive its time, until the backend has it.
            if next > now.uptime {
                state.wake_at(next);
            }
        }
    }
}
