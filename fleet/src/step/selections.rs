//! Selections that are stored until the backend shows all nodes.

use std::collections::{BTreeMap, BTreeSet};

use again::model::{Boottime, Moment, Span, Walltime};

use super::model::{
    Action, Back, Content, Draft, Letter, LetterId, Resolving, Said, SelectionState, State,
    StoredShown,
};
use super::{letters, sender};
use crate::policy::fire::Request;
use crate::policy::stored_selection::{self, MOST, MOST_BYTES, StoredSelection};
use crate::policy::term::{self, Term};
use crate::wire::inventory::Inventory;
use crate::wire::name::Node;
use crate::wire::outcome;

/// How long after the nodes were asked for in vain they are asked for again.
const AGAIN: Span = Span::from_secs(60);
/// How many of them are shown to whoever asks how the service is.
const MOST_SHOWN: usize = 5;

impl Letter {
    fn selection(&self) -> Option<&StoredSelection> {
        match &self.content {
            Content::Selection(stored) => Some(stored),
            _ => None,
        }
    }
}

impl State {
    fn selections(&self) -> impl Iterator<Item = (&LetterId, &Letter, &StoredSelection)> {
        let letters = self.letters.iter();
        letters.filter_map(|(id, letter)| Some((id, letter, letter.selection()?)))
    }

    /// How many selections are stored.
    pub fn stored_selections(&self) -> u64 {
        self.selections().count() as u64
    }

    /// The oldest stored selections, for whoever asks how the service is.
    pub fn shown_selections(&self) -> Vec<StoredShown> {
        let mut all: Vec<_> = self.selections().collect();
        all.sort_by_key(|(_, letter, _)| letter.version);
        let shown = |(_, letter, stored): &(_, &Letter, &StoredSelection)| StoredShown {
            id: stored.request.id.clone(),
            name: stored.request.name.clone(),
            selects: conditions(stored),
            until: letter.term.until.millis(),
        };
        all.iter().take(MOST_SHOWN).map(shown).collect()
    }

    /// Whether the outbox has room for all that a request sends and stores.
    pub fn has_room_for(&self, request: &Request) -> bool {
        let letters = self.letters.len() - self.told.values();
        let id = LetterId::Selection(self.rules.me.clone(), request.name.clone());
        let stored = StoredSelection::new(request.clone());
        letters + request.targets.len() <= letters::MOST
            && stored.is_none_or(|stored| has_room(self, &id, &stored).is_ok())
    }

    /// Whether a stored selection is to be resolved as soon as the nodes are known.
    pub fn needs_nodes(&self, now: &Moment) -> bool {
        self.next_due().is_some_and(|due| due <= now.uptime)
    }

    fn next_due(&self) -> Option<Boottime> {
        let reached = self.resolving.reached.as_ref()?;
        let stored = self.selections();
        let due = stored.map(|(_, letter, _)| stored_selection::due(&letter.term.began, reached));
        due.min()
    }
}

fn conditions(stored: &StoredSelection) -> String {
    let criteria = stored.request.selection.as_ref();
    criteria.map_or_else(String::new, |one| outcome::words(&one.to_string()))
}

/// Stores the selection of an open request, in place of an older one of the same name. Any newer selection of the name ends the older one.
/// The letter and its version; nothing if the request is not open.
///
/// # Errors
/// Why there is no room for it.
pub(super) fn store(
    state: &mut State,
    request: Request,
    number: u64,
    now: &Moment,
    out: &mut Vec<Action>,
) -> Result<Option<(LetterId, u64)>, String> {
    if request.selection.is_none() {
        return Ok(None);
    }
    let firing = request.on_behalf.as_ref().unwrap_or(&state.rules.me);
    let id = LetterId::Selection(firing.clone(), request.name.clone());
    let older = state.letters.get(&id).map(|letter| letter.version);
    let until = now.wall + request.ttl;
    let stored = match StoredSelection::new(request) {
        Some(stored) => has_room(state, &id, &stored).map(|()| stored).map(Some),
        None => Ok(None),
    };
    let Ok(Some(stored)) = stored else {
        remove(state, &id, now, out);
        return stored.map(|_| None);
    };
    let draft = Draft {
        letter: id.clone(),
        version: older.map_or(number, |older| number.max(older + 1)),
        content: Content::Selection(stored),
        term: Term {
            began: now.clone(),
            until,
        },
    };
    let version = draft.version;
    letters::write(state, vec![draft], now, out);
    Ok(Some((id, version)))
}

fn has_room(state: &State, id: &LetterId, new: &StoredSelection) -> Result<(), String> {
    let others = state.selections().filter(|(other, ..)| *other != id);
    let (count, bytes) = others.fold((0, new.size()), |(count, bytes), (_, _, one)| {
        (count + 1, bytes + one.size())
    });
    if count >= MOST || bytes > MOST_BYTES {
        let most = MOST_BYTES >> 20;
        return Err(format!(
            "{count} selections are stored already: {MOST} of {most} MB together are allowed"
        ));
    }
    Ok(())
}

/// Removes one. That it is over is on disk before: a crash may bring back what was removed.
fn remove(state: &mut State, id: &LetterId, now: &Moment, out: &mut Vec<Action>) {
    let over = state.letters.get(id).and_then(|letter| {
        let mut stored = letter.selection()?.clone();
        stored.request.is_open = false;
        stored.excluded.clear();
        Some(Draft {
            letter: id.clone(),
            version: letter.version + 1,
            content: Content::Selection(stored),
            term: letter.term.clone(),
        })
    });
    letters::write(state, over.into_iter().collect(), now, out);
    forget(state, id, out);
}

/// Removes the letter of a selection. No number is written with it, as its version is none of a trigger: a full disk would refuse that, and
/// keep the letter.
fn forget(state: &mut State, id: &LetterId, out: &mut Vec<Action>) {
    if state.letters.remove(id).is_some() {
        out.push(Action::Forget {
            letter: id.clone(),
            number: None,
        });
    }
}

/// Excludes nodes that have triggers of a selection: the service before this one died while it resolved it. It is called before
/// any trigger is put, so that none of them has been answered. Selections that are over are removed.
fn recover(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let is_over =
        |(id, _, stored): (&LetterId, _, &StoredSelection)| stored.is_over().then(|| id.clone());
    let over: Vec<LetterId> = state.selections().filter_map(is_over).collect();
    for id in over {
        forget(state, &id, out);
    }
    let mut drafts = Vec::new();
    for (id, letter, stored) in state.selections() {
        let triggers = state.letters.values().filter_map(Letter::trigger);
        let sent = triggers.filter(|one| one.id == stored.request.id);
        let sent: BTreeSet<Node> = sent.map(|one| one.target.clone()).collect();
        if sent.is_subset(&stored.excluded) {
            continue;
        }
        let mut less = stored.clone();
        less.request.targets.retain(|node| !sent.contains(node));
        less.excluded.extend(sent);
        drafts.push(Draft {
            letter: id.clone(),
            version: letter.version + 1,
            content: Content::Selection(less),
            term: letter.term.clone(),
        });
    }
    letters::write(state, drafts, now, out);
}

/// The engine is reached: stored selections are resolved when other nodes had time to connect too.
pub(super) fn reached(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    recover(state, now, out);
    state.resolving = Resolving {
        reached: Some(now.clone()),
        hold: Boottime::default(),
    };
    look(state, now, out);
}

/// The engine is not reached any more.
pub(super) fn lost(state: &mut State) {
    state.resolving.reached = None;
}

/// Asks for the nodes if a selection is due, and finds out when the next one is.
pub(super) fn look(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let Some(due) = state.next_due() else {
        return;
    };
    if due.max(state.resolving.hold) <= now.uptime {
        state.resolving.hold = now.uptime + AGAIN;
        out.push(Action::ReadNodes);
    }
    state.wake_at(due.max(state.resolving.hold));
}

/// The engine has shown the nodes, but they still return after a loss, for that long.
pub(super) fn incomplete(state: &mut State, wait: Span, now: &Moment) {
    state.resolving.hold = now.uptime + wait;
    state.wake_at(state.resolving.hold);
}

/// The engine has shown all nodes: the selections that are due are resolved, the oldest first.
pub(super) fn resolve(state: &mut State, nodes: &[Inventory], now: &Moment, out: &mut Vec<Action>) {
    let Some(reached) = state.resolving.reached.clone() else {
        return;
    };
    let is_due = |letter: &Letter| {
        stored_selection::due(&letter.term.began, &reached) <= now.uptime
            && !letter.term.is_over(now)
    };
    let due = state.selections().filter(|(_, letter, _)| is_due(letter));
    let mut due: Vec<(u64, LetterId)> = due
        .map(|(id, letter, _)| (letter.version, id.clone()))
        .collect();
    due.sort();
    for (_, id) in due {
        resolve_one(state, &id, nodes, now, out);
        // Its triggers are on disk by now.
        remove(state, &id, now, out);
    }
    state.resolving.hold = Boottime::default();
    look(state, now, out);
}

fn resolve_one(
    state: &mut State,
    id: &LetterId,
    nodes: &[Inventory],
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let Some((letter, stored)) = state
        .letters
        .get(id)
        .and_then(|letter| Some((letter, letter.selection()?)))
    else {
        return;
    };
    let what = words(stored);
    let resolved = stored.resolve(&state.rules.me, nodes, letter.term.left(now));
    let request = match resolved {
        Ok(request) => request,
        Err(why) => return out.push(Action::Note(format!("{what} selects nobody: {why}"))),
    };
    if request.targets.is_empty() {
        let more = if stored.excluded.is_empty() {
            "nobody"
        } else {
            "nobody else"
        };
        return out.push(Action::Info(format!("{what} selects {more}")));
    }
    let number = sender::next_number(state, now, out);
    let mut said = Said::default();
    sender::send(state, &request, number, &mut said, now, out);
    let count = request.targets.len() - said.failed.len();
    if count > 0 {
        let s = again::layout::plural(count);
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
}

fn words(stored: &StoredSelection) -> String {
    let Request { name, id, .. } = &stored.request;
    format!("the stored selection '{name}' (id {id})")
}

/// Ends those whose time is over.
pub(super) fn end(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let over = state.selections();
    let over = over.filter(|(_, letter, _)| letter.term.is_over(now));
    let over: Vec<(LetterId, String, Walltime)> = over
        .map(|(id, letter, stored)| (id.clone(), words(stored), letter.term.until))
        .collect();
    for (id, what, until) in over {
        let until = term::shown(until);
        out.push(Action::Note(format!(
            "{what} expired at {until}, before the backend had shown all nodes"
        )));
        remove(state, &id, now, out);
    }
}

/// Somebody takes back what they fired: its selection is removed, or not resolved for a node.
pub(super) fn take_back(
    state: &mut State,
    what: &Back,
    now: &Moment,
    out: &mut Vec<Action>,
) -> Option<SelectionState> {
    let mut removed = Vec::new();
    let mut drafts = Vec::new();
    for (id, letter, stored) in state.selections() {
        match what {
            Back::Id(of) if stored.request.id == *of => removed.push(id.clone()),
            Back::Id(_) => {}
            Back::To(node) => drafts.extend(stored.without(node).map(|less| Draft {
                letter: id.clone(),
                version: letter.version + 1,
                content: Content::Selection(less),
                term: letter.term.clone(),
            })),
        }
    }
    let is_changed = !removed.is_empty() || !drafts.is_empty();
    for id in removed {
        remove(state, &id, now, out);
    }
    letters::write(state, drafts, now, out);
    is_changed.then_some(SelectionState::Cancelled)
}
