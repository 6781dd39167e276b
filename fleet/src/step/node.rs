//! Inventory of this node: one entry that is replaced in place and never removed; and this node's
//! own key, where the inventory is published.

use again_base::model::{Moment, Span, Walltime};

use super::entries;
use super::model::{Action, Content, Draft, EntryId, State};
use super::own_key::OwnKey;
use crate::policy::presence;
use crate::policy::term::{self, Term};
use crate::wire::inventory::Inventory;

/// Shortest time between two restorations of the own key.
const PAUSE: Span = Span::from_secs(60);
/// Longest time that this node waits for the backend to show its own key.
const LOOK: Span = Span::from_secs(10);
/// Largest number of facts that are named when another user of this node's certificate is reported.
const MOST_NAMED: usize = 3;

/// Publishes this inventory, unless the published one says the same. Triggers wait for it only if
/// it changes how the node is selected.
pub(super) fn tell(state: &mut State, news: Inventory, now: &Moment, out: &mut Vec<Action>) {
    let older = state.entries.get(&EntryId::Node);
    let known = published(state);
    let is_kept = older.is_some_and(|older| older.not_kept.is_none());
    if is_kept && known.is_some_and(|known| known.tells_the_same(&news)) {
        return;
    }
    let version = older.map_or(0, |older| older.version) + 1;
    if known.is_none_or(|known| !known.is_selected_as(&news)) {
        state.first = version;
    }
    publish(state, news, version, now, out);
}

/// Writes a new version with the next serial, and sends it. If that replaces a newer version from
/// another user of this node's certificate, it logs that.
fn publish(state: &mut State, news: Inventory, version: u64, now: &Moment, out: &mut Vec<Action>) {
    if let Some(newest) = state.own_key.newest.take()
        && let Some(known) = published(state)
        && newest.order() > known.order()
    {
        out.push(Action::Rejected(Other::Newer(newest).sentence(known)));
        state.own_key.next = now.uptime + PAUSE;
    }
    let at = now.wall.millis();
    let serial = at.max(state.own_key.last.saturating_add(1));
    state.own_key.last = serial;
    let draft = Draft {
        entry: EntryId::Node,
        version,
        content: Content::Node(Inventory { at, serial, ..news }),
        term: Term {
            began: now.clone(),
            until: Walltime::from_millis(u64::MAX),
        },
    };
    entries::write(state, vec![draft], now, out);
}

fn published(state: &State) -> Option<&Inventory> {
    match &state.entries.get(&EntryId::Node)?.content {
        Content::Node(known) => Some(known),
        _ => None,
    }
}

impl State {
    /// Whether this node is to publish that it is connected, before a run has published its facts.
    /// If the key has an entry that this node has signed and lost since, which may be an old one,
    /// or if the backend does not show the key, only a candidate for locks publishes, since the
    /// other candidates need its tokens.
    pub fn is_unpublished(&self, is_candidate: bool) -> bool {
        let own = &self.own_key;
        let is_nothing = matches!(own.found, Some(OwnKey::Absent | OwnKey::Foreign(_)));
        let is_free = is_nothing && own.newest.is_none();
        own.is_seen && published(self).is_none() && (is_free || is_candidate)
    }
}

/// Handles that the backend is reached, perhaps another one than before.
pub(super) fn reached(state: &mut State, now: &Moment) {
    let own = &mut state.own_key;
    let seen_by = *own.seen_by.get_or_insert(now.uptime + LOOK);
    (own.found, own.revision, own.is_seen) = (None, 0, seen_by <= now.uptime);
    state.wake_at(seen_by);
}

/// Handles a value at the own key. Values that were written before it may be shown after it.
pub(super) fn found(state: &mut State, revision: u64, found: OwnKey) {
    let own = &mut state.own_key;
    if let OwnKey::Signed(other) = &found
        && own.last < other.order()
    {
        own.last = other.order();
        own.newest = Some(other.clone());
    }
    if own.revision <= revision {
        (own.revision, own.found) = (revision, Some(found));
    }
}

/// Handles the loss of the watch of the own key. When the watch is restored, revisions may be
/// lower.
pub(super) fn lost(state: &mut State) {
    state.own_key.revision = 0;
}

/// Handles that the backend has shown everything at the own key, or cannot show it: from now on
/// this node puts its inventory there.
pub(super) fn seen(state: &mut State, is_shown: bool, now: &Moment, out: &mut Vec<Action>) {
    let own = &mut state.own_key;
    own.seen_by = None;
    if is_shown && own.found.is_none() {
        own.found = Some(OwnKey::Absent);
    }
    begin(state, now, out);
}

/// Puts the inventory if it has waited until the own key was seen.
fn begin(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let has_begun = std::mem::replace(&mut state.own_key.is_seen, true);
    guard(state, now, out);
    if !has_begun {
        sign_anew(state, now, out);
        entries::send(state, &EntryId::Node, now, out);
    }
}

/// Publishes the same inventory with a new signature, if that is due: other nodes see from it that
/// this node is connected.
pub(super) fn sign_anew(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let entry = state.entries.get(&EntryId::Node);
    let (Some(entry), Some(known)) = (entry, published(state)) else {
        return;
    };
    let is_due = presence::is_due(Walltime::from_millis(known.at), now.wall);
    if state.is_linked && state.own_key.is_seen && is_due {
        let (known, version) = (known.clone(), entry.version + 1);
        publish(state, known, version, now, out);
    }
}

/// Does what is due at the own key. If the key is never shown, neither facts nor triggers wait for
/// it longer than `LOOK`.
pub(super) fn tick(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let seen_by = state.own_key.seen_by.filter(|_| state.is_linked);
    match seen_by {
        Some(at) if at <= now.uptime => return begin(state, now, out),
        Some(at) => state.wake_at(at),
        None => {}
    }
    guard(state, now, out);
}

/// Restores this node's inventory at its own key if another value is there: at most once a minute.
pub(super) fn guard(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let (own, entry) = (&state.own_key, state.entries.get(&EntryId::Node));
    let (Some(entry), Some(known)) = (entry, published(state)) else {
        return;
    };
    if !state.is_linked || !own.is_seen {
        return;
    }
    let newest = own
        .newest
        .clone()
        .filter(|newest| newest.order() > known.order());
    let found = own.found.as_ref();
    let other = newest
        .map(Other::Newer)
        .or_else(|| Other::than(known, found?));
    let Some(other) = other else {
        return;
    };
    let (known, version, is_put) = (known.clone(), entry.version, entry.left.is_empty());
    let is_newer = matches!(other, Other::Newer(_));
    if !is_put && !is_newer {
        // The value is about to be replaced.
        return;
    }
    if now.uptime < own.next {
        return state.wake_at(own.next);
    }
    let own = &mut state.own_key;
    (own.next, own.newest) = (now.uptime + PAUSE, None);
    let why = other.sentence(&known);
    out.push(match other {
        Other::Missing => Action::Note(why),
        _ => Action::Rejected(why),
    });
    if is_newer {
        return publish(state, known, version + 1, now, out);
    }
    if let Some(entry) = state.entries.get_mut(&EntryId::Node) {
        entry.left = entry.content.keys();
    }
    entries::send(state, &EntryId::Node, now, out);
}

/// Value at the own key that differs from what this node published.
enum Other {
    /// No value.
    Missing,
    /// A value that this node has not signed; why it does not count.
    Foreign(String),
    /// A version that this node published before.
    Older(Box<Inventory>),
    /// A version that another user of this node's certificate published.
    Newer(Box<Inventory>),
}

impl Other {
    fn than(known: &Inventory, found: &OwnKey) -> Option<Other> {
        match found {
            OwnKey::Unchanged => None,
            OwnKey::Absent => Some(Other::Missing),
            OwnKey::Foreign(why) => Some(Other::Foreign(why.clone())),
            OwnKey::Signed(other) if **other == *known => None,
            OwnKey::Signed(other) if other.order() < known.order() => {
                Some(Other::Older(other.clone()))
            }
            OwnKey::Signed(other) => Some(Other::Newer(other.clone())),
        }
    }

    /// Sentence for the log.
    fn sentence(&self, known: &Inventory) -> String {
        let at = |other: &Inventory| term::shown(Walltime::from_millis(other.at));
        let what = match self {
            Other::Missing => "they were removed".to_owned(),
            Other::Foreign(why) => {
                format!("in their place stood a value that does not count: {why}")
            }
            Other::Older(other) => {
                let (order, mine) = (other.order(), known.order());
                let at = at(other);
                format!("in place of version {mine} stood version {order} of {at}")
            }
            Other::Newer(other) => {
                let (order, at, facts) = (other.order(), at(other), differences(known, other));
                format!(
                    "another user of its certificate published version {order} at {at}{facts}; unless this machine has lost its last state, as by a restored backup or a full disk, revoke that certificate"
                )
            }
        };
        let node = &known.node;
        format!("the facts of this node, {node}, are published again: {what}")
    }
}

/// Facts that another user of the certificate publishes with other values than this node, for the
/// log.
fn differences(known: &Inventory, other: &Inventory) -> String {
    let is_new = |(name, value): &(&String, &String)| known.facts.get(*name) != Some(*value);
    let facts = other.facts.iter().filter(is_new).take(MOST_NAMED);
    let shown = crate::wire::shown;
    let facts = facts.map(|(name, value)| format!(", {}={}", shown(name), shown(value)));
    facts.collect()
}
