//! Selections that are stored until the backend shows all nodes.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{Boottime, Moment, Span};

use super::model::{
    Action, Back, Content, Draft, EntryId, OutboxEntry, Said, SelectionState, State, StoredShown,
};
use super::sender::Later;
use super::{entries, sender};
use crate::policy::fire::Request;
use crate::policy::stored_selection::{self, MOST, MOST_BYTES, StoredSelection};
use crate::policy::term::{self, Term};
use crate::wire::inventory::Inventory;
use crate::wire::name::{Id, Node};
use crate::wire::outcome;

/// Time until the nodes are read again, if the backend has not shown them or triggers could not be
/// sent.
const AGAIN: Span = Span::from_secs(60);
/// Largest number of selections that are resolved in one step, since everything else waits
/// meanwhile.
const TOGETHER: usize = 20;
/// Number of targets after which a step resolves no more selections; a single selection may have
/// more.
const TARGETS: usize = 1_000;
/// Largest number of stored selections that are shown in the state of the service.
const MOST_SHOWN: usize = 5;

impl OutboxEntry {
    fn selection(&self) -> Option<&StoredSelection> {
        match &self.content {
            Content::Selection(stored) => Some(stored),
            _ => None,
        }
    }

    /// Newer version of a selection.
    fn newer_version(&self, id: &EntryId, stored: StoredSelection) -> Draft {
        Draft {
            entry: id.clone(),
            version: self.version + 1,
            content: Content::Selection(stored),
            term: self.term.clone(),
        }
    }
}

impl State {
    /// Stored selections that are not over.
    fn selections(&self) -> impl Iterator<Item = (&EntryId, &OutboxEntry, &StoredSelection)> {
        let entries = self.entries.iter();
        let all = entries.filter_map(|(id, entry)| Some((id, entry, entry.selection()?)));
        all.filter(|(_, _, stored)| !stored.is_over())
    }

    /// Number of stored selections.
    pub fn stored_selections(&self) -> u64 {
        self.selections().count() as u64
    }

    /// Oldest stored selections, for the state of the service.
    pub fn shown_selections(&self) -> Vec<StoredShown> {
        let mut all: Vec<_> = self.selections().collect();
        all.sort_by_key(|(_, entry, _)| entry.version);
        let shown = |(_, entry, stored): &(_, &OutboxEntry, &StoredSelection)| StoredShown {
            id: stored.request.id.clone(),
            name: stored.request.name.clone(),
            selects: conditions(stored),
            until: entry.term.until.millis(),
        };
        all.iter().take(MOST_SHOWN).map(shown).collect()
    }

    /// Whether a stored selection can be resolved as soon as the nodes are known.
    pub fn needs_nodes(&self, now: &Moment) -> bool {
        self.next_due().is_some_and(|due| due <= now.uptime)
    }

    fn next_due(&self) -> Option<Boottime> {
        let reached = self.resolving.reached?;
        let open = self.unsent().next();
        open.map(|_| stored_selection::due(reached))
    }

    /// Stored selections whose triggers are not being written.
    fn unsent(&self) -> impl Iterator<Item = (&EntryId, &OutboxEntry, &StoredSelection)> {
        let all = self.selections();
        all.filter(|(id, ..)| !self.resolving.unkept.contains_key(*id))
    }

    /// Excludes the nodes that have triggers of a selection from it: an earlier service died while
    /// it sent them.
    pub(super) fn recover_selections(&mut self) {
        let mut sent = BTreeMap::<Id, BTreeSet<Node>>::new();
        for trigger in self.entries.values().filter_map(OutboxEntry::trigger) {
            let nodes = sent.entry(trigger.id.clone()).or_default();
            nodes.insert(trigger.target.clone());
        }
        for (id, entry) in &mut self.entries {
            if let Content::Selection(stored) = &mut entry.content
                && let Some(nodes) = sent.remove(&stored.request.id)
                && !stored.is_over()
            {
                stored.recover(nodes);
                self.resolving.recovered.insert(id.clone());
            }
        }
    }
}

/// Writes to which nodes an earlier service has sent selections, before their triggers leave the
/// outbox: the next service would not know.
pub(super) fn write_recovered(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let recovered = std::mem::take(&mut state.resolving.recovered);
    let draft = |id: &EntryId| {
        let entry = state.entries.get(id)?;
        Some(entry.newer_version(id, entry.selection()?.clone()))
    };
    let drafts: Vec<Draft> = recovered.iter().filter_map(draft).collect();
    entries::write(state, drafts, now, out);
}

fn conditions(stored: &StoredSelection) -> String {
    let criteria = stored.request.selection.as_ref();
    criteria.map_or_else(String::new, |one| outcome::words(&one.to_string()))
}

/// Stores the selection of an open request in place of an older one of the same name; any newer
/// request of that name ends the older selection. Returns the entry and its version, or `None` if
/// the request is not open.
///
/// # Errors
/// There is no room for the selection; why.
pub(super) fn store(
    state: &mut State,
    request: Request,
    number: u64,
    now: &Moment,
    out: &mut Vec<Action>,
) -> Result<Option<(EntryId, u64)>, String> {
    if request.selection.is_none() {
        return Ok(None);
    }
    let firing = request.on_behalf.as_ref().unwrap_or(&state.rules.me);
    let id = EntryId::Selection(firing.clone(), request.name.clone());
    let older = state.entries.get(&id);
    let replaced = older.filter(|entry| !entry.term.is_over(now));
    let replaced = replaced.and_then(OutboxEntry::selection);
    if let Some(stored) = replaced.filter(|stored| !stored.is_over()) {
        let (what, new) = (words(stored), &request.id);
        out.push(Action::Info(format!("{what} is replaced by id {new}")));
    }
    let older = older.map(|entry| entry.version);
    let until = now.wall + request.ttl;
    let stored = match StoredSelection::new(request) {
        Some(stored) => has_room(state, &id, &stored).map(|()| stored).map(Some),
        None => Ok(None),
    };
    let Ok(Some(stored)) = stored else {
        remove(state, &id, now, out);
        return stored.map(|_| None);
    };
    state.resolving.unkept.remove(&id);
    state.resolving.waits.remove(&id);
    let draft = Draft {
        entry: id.clone(),
        version: older.map_or(number, |older| number.max(older + 1)),
        content: Content::Selection(stored),
        term: Term {
            began: now.clone(),
            until,
        },
    };
    let version = draft.version;
    entries::write(state, vec![draft], now, out);
    Ok(Some((id, version)))
}

fn has_room(state: &State, id: &EntryId, new: &StoredSelection) -> Result<(), String> {
    let others = state.selections().filter(|(other, ..)| *other != id);
    let (count, bytes) = others.fold((0, new.size()), |(count, bytes), (_, _, one)| {
        (count + 1, bytes + one.size())
    });
    if count >= MOST || bytes > MOST_BYTES {
        let most = MOST_BYTES >> 20;
        return Err(format!(
            "no room: {count} selections are stored (at most {MOST}, or {most} MB)"
        ));
    }
    Ok(())
}

/// Removes a selection. It is first written to disk that the selection is over, since a crash may
/// restore a removed entry.
fn remove(state: &mut State, id: &EntryId, now: &Moment, out: &mut Vec<Action>) {
    let over = state.entries.get(id).and_then(|entry| {
        let mut stored = entry.selection()?.clone();
        stored.request.is_open = false;
        stored.excluded.clear();
        Some(entry.newer_version(id, stored))
    });
    entries::write(state, over.into_iter().collect(), now, out);
    forget(state, id, out);
}

/// Removes the entry of a selection. No numbers are written with it, since its version is not the
/// number of a trigger, and a full disk would refuse the write and keep the entry.
fn forget(state: &mut State, id: &EntryId, out: &mut Vec<Action>) {
    state.resolving.unkept.remove(id);
    state.resolving.waits.remove(id);
    if state.entries.remove(id).is_some() {
        out.push(Action::Forget {
            entry: id.clone(),
            number: None,
        });
    }
}

/// Handles that the backend is reached: stored selections are resolved when other nodes have had
/// time to connect too.
pub(super) fn reached(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    lost(state);
    state.resolving.reached = Some(now.uptime);
    look(state, now, out);
}

/// Handles that the backend is no longer reached.
pub(super) fn lost(state: &mut State) {
    state.resolving.reached = None;
    state.resolving.hold = Boottime::default();
    state.resolving.nodes.clear();
}

/// Reads the nodes if a selection is due, and schedules a tick for the next one.
pub(super) fn look(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let Some(due) = state.next_due() else {
        return;
    };
    if due.max(state.resolving.hold) <= now.uptime {
        if !state.resolving.nodes.is_empty() {
            return resolve_some(state, now, out);
        }
        state.resolving.hold = now.uptime + AGAIN;
        out.push(Action::ReadNodes);
    }
    state.wake_at(due.max(state.resolving.hold));
}

/// Handles that the backend has shown its nodes, but others may still return during this time.
pub(super) fn incomplete(state: &mut State, wait: Span, now: &Moment) {
    state.resolving.nodes.clear();
    state.resolving.hold = now.uptime + wait;
    state.wake_at(state.resolving.hold);
}

/// Resolves the selections that are due, with all nodes from the backend.
pub(super) fn resolve(
    state: &mut State,
    nodes: Vec<Inventory>,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    if state.needs_nodes(now) {
        state.resolving.nodes = nodes;
        resolve_some(state, now, out);
    }
}

/// Resolves the selections that are due: those not resolved before come first, the oldest first of
/// each kind. Their targets are written before any trigger: see [`kept`].
fn resolve_some(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let is_open = |entry: &OutboxEntry| !entry.term.is_over(now);
    let open = state.unsent().filter(|(_, entry, _)| is_open(entry));
    let mut open: Vec<(bool, u64, EntryId)> = open
        .map(|(id, entry, stored)| (stored.is_resolved, entry.version, id.clone()))
        .collect();
    open.sort();
    let mut open = open.into_iter().map(|(.., id)| id);
    let nodes = std::mem::take(&mut state.resolving.nodes);
    state.resolving.hold = Boottime::default();
    let (mut drafts, mut nobody, mut targets) = (Vec::new(), Vec::new(), 0);
    for id in open.by_ref().take(TOGETHER) {
        let Some((entry, stored)) = state
            .entries
            .get(&id)
            .and_then(|entry| Some((entry, entry.selection()?)))
        else {
            continue;
        };
        let what = words(stored);
        match stored.resolve(&state.rules.me, &nodes) {
            Ok(resolved) if !resolved.request.targets.is_empty() => {
                targets += resolved.request.targets.len();
                drafts.push(entry.newer_version(&id, resolved));
                state.resolving.unkept.insert(id, BTreeMap::new());
                if targets >= TARGETS {
                    break;
                }
            }
            Ok(_) => {
                let is_first = stored.excluded.is_empty();
                let more = if is_first { "nobody" } else { "nobody else" };
                out.push(Action::Info(format!("{what} selects {more}")));
                nobody.push(id);
            }
            Err(why) => {
                out.push(Action::Note(format!("{what} selects nobody: {why}")));
                nobody.push(id);
            }
        }
    }
    let is_more = open.len() > 0;
    entries::write(state, drafts, now, out);
    for id in nobody {
        remove(state, &id, now, out);
    }
    if is_more {
        state.resolving.nodes = nodes;
        state.wake_at(now.uptime);
    }
}

/// Handles the result of writing a version of an entry to disk. Triggers of a selection are sent
/// when its targets are on disk. If the disk refuses, they are sent all the same, but not those of
/// a rolling run, whose targets must all count the same others.
pub(super) fn kept(
    state: &mut State,
    id: &EntryId,
    version: u64,
    is_kept: bool,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let is_unsent = state
        .resolving
        .unkept
        .get(id)
        .is_some_and(BTreeMap::is_empty);
    let entry = state.entries.get(id).filter(|one| one.version == version);
    if let Some((entry, stored)) = entry.and_then(|one| Some((one, one.selection()?)))
        && is_unsent
        && stored.is_resolved
    {
        let request = stored.request_now(entry.term.left(now));
        let has_room = sender::has_room(state, request.targets.len());
        if has_room && (is_kept || request.parallel == 0) {
            let (stored, version) = (stored.clone(), entry.version);
            send(state, id, &stored, &request, version, now, out);
        } else {
            let (what, most) = (words(stored), entries::MOST);
            if !has_room && state.resolving.waits.insert(id.clone()) {
                let why = format!("{what} is not sent yet: {most} triggers wait already");
                out.push(Action::Note(why));
            }
            again(state, id, now);
        }
    }
    settle(state, id, now, out);
}

/// Tries a selection again later, and reads the nodes again for all selections that are due then.
fn again(state: &mut State, id: &EntryId, now: &Moment) {
    state.resolving.unkept.remove(id);
    state.resolving.nodes.clear();
    state.resolving.hold = now.uptime + AGAIN;
    state.wake_at(state.resolving.hold);
}

/// Removes selections whose triggers are all on disk or in the backend, after this entry has
/// changed.
pub(super) fn settle(state: &mut State, changed: &EntryId, now: &Moment, out: &mut Vec<Action>) {
    let entry = state.entries.get(changed);
    let reached = entry.map_or(u64::MAX, |entry| entry.kept.max(entry.confirmed));
    let mut over = Vec::new();
    for (id, triggers) in &mut state.resolving.unkept {
        let is_settled = |version: &mut u64| *version <= reached;
        if triggers.get_mut(changed).is_some_and(is_settled) {
            triggers.remove(changed);
            if triggers.is_empty() {
                over.push(id.clone());
            }
        }
    }
    for id in over {
        remove(state, &id, now, out);
    }
}

/// Sends the triggers of a selection to the targets that have none.
fn send(
    state: &mut State,
    id: &EntryId,
    stored: &StoredSelection,
    request: &Request,
    version: u64,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let what = words(stored);
    let number = sender::next_number(state, now, out);
    let mut said = Said::default();
    let later = Later {
        stored: version,
        excluded: &stored.excluded,
    };
    let sent = sender::send(state, request, number, Some(&later), &mut said, now, out);
    let count = sent.len();
    if count > 0 {
        let s = again_base::layout::plural(count);
        out.push(Action::Info(format!("{what} is sent to {count} node{s}")));
    }
    let mut reasons = BTreeMap::<&str, Vec<&Node>>::new();
    for (node, why) in &said.failed {
        reasons.entry(why).or_default().push(node);
    }
    for (why, nodes) in reasons {
        let others = match nodes.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let first = nodes[0];
        out.push(Action::Note(format!(
            "{what} is not sent to {first}{others}: {why}"
        )));
    }
    let ways: BTreeSet<String> = said.left_out.iter().map(ToString::to_string).collect();
    for way in ways {
        out.push(Action::Note(format!("{what}: not passed on: {way}")));
    }
    if sent.is_empty() {
        return remove(state, id, now, out);
    }
    state.resolving.unkept.insert(id.clone(), sent);
}

fn words(stored: &StoredSelection) -> String {
    let Request { name, id, .. } = &stored.request;
    format!("the stored selection '{name}' (id {id})")
}

/// Removes selections that have expired, and those that were over before this service started.
pub(super) fn end(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let mut over = Vec::new();
    for (id, entry) in &state.entries {
        let Some(stored) = entry.selection() else {
            continue;
        };
        if !stored.is_over() && entry.term.is_over(now) {
            let (what, until) = (words(stored), term::shown(entry.term.until));
            out.push(Action::Note(format!(
                "{what} expired at {until}, before it was sent to all nodes that it selects"
            )));
        }
        if stored.is_over() || entry.term.is_over(now) {
            over.push(id.clone());
        }
    }
    for id in over {
        remove(state, &id, now, out);
    }
}

/// Removes the selections that are cancelled, or excludes a node from them.
pub(super) fn take_back(
    state: &mut State,
    what: &Back,
    now: &Moment,
    out: &mut Vec<Action>,
) -> Option<SelectionState> {
    let mut removed = Vec::new();
    let mut drafts = Vec::new();
    for (id, entry, stored) in state.selections() {
        match what {
            Back::Id(of) if stored.request.id == *of => removed.push(id.clone()),
            Back::Id(_) => {}
            Back::To(node) => {
                let less = stored.without(node);
                drafts.extend(less.map(|less| entry.newer_version(id, less)));
            }
        }
    }
    let is_changed = !removed.is_empty() || !drafts.is_empty();
    for id in removed {
        remove(state, &id, now, out);
    }
    entries::write(state, drafts, now, out);
    is_changed.then_some(SelectionState::Cancelled)
}
