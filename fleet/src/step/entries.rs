//! Entries for the backend: first on disk, then put until the backend has them. This module does
//! not interpret their contents.

use again_base::model::{Moment, Span};

use super::model::{Action, Draft, EntryId, OutboxEntry, State};
use super::outbox_share::size;
use crate::wire::key::Key;

/// First pause after a failed put; it doubles each time.
const RETRY: Span = Span::from_secs(1);
/// Longest pause after a failed put.
const LONGEST_RETRY: Span = Span::from_secs(60);
/// First pause before a trigger or a list of targets that the backend has confirmed is put again,
/// in case the backend has lost it; it doubles each time.
const AGAIN: Span = Span::from_secs(60);
/// Longest pause before a confirmed entry is put again.
const LONGEST_AGAIN: Span = Span::from_secs(600);
/// Number of failed puts of this node's inventory after which triggers stop waiting for it.
const MOST_TRIES: u32 = 4;
/// Largest number of triggers in the outbox, and also of results.
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

/// Handles the result of writing a version to disk. An entry that could not be stored is sent all
/// the same.
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

/// Puts an entry at the keys where it is still missing. A key with a put under way is left until
/// that put is answered.
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

/// Whether triggers wait: whoever hears of this node through them should find its inventory. An
/// inventory that the backend rejects holds up nothing, nor does one whose every put loses the
/// connection: the tries are counted over all connections.
fn waits(state: &State) -> bool {
    let node = state.entries.get(&EntryId::Node);
    node.is_some_and(|node| {
        node.confirmed < state.first && state.not_taken < state.first && node.tries < MOST_TRIES
    })
}

/// Puts the triggers that were waiting, if they no longer need to wait.
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

/// Handles the backend's answer to a put.
pub(super) fn answered(
    state: &mut State,
    id: &EntryId,
    version: u64,
    key: &Key,
    answer: &Result<(), String>,
    now: &Moment,
) {
    if state.flying.remove(key) == Some(true) {
        // Another entry, or a newer version, is waiting to be put at this key.
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
                // The entry may have expired before.
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

/// Sends all entries again: the backend may have lost what it had.
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

/// Sends an entry again: a result only where it is still missing, other entries to all their keys.
fn again(state: &mut State, id: &EntryId, now: &Moment, out: &mut Vec<Action>) {
    if let Some(entry) = state.entries.get_mut(id) {
        entry.due = None;
        if !entry.is_told() {
            entry.left = entry.content.keys();
        }
    }
    send(state, id, now, out);
}

/// Sends the entries that are due, and schedules the next tick for the others.
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
            // A result may stay after its term is over, until the backend has it.
            if next > now.uptime {
                state.wake_at(next);
            }
        }
    }
}
