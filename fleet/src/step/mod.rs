//! PURE: the service of a node, one step at a time: what happened goes in, what is to be done comes out.
//!
//! No clock, network or disk is in here. The edge carries the actions out in their order and tells what came of each; it may
//! die between any two of them and begin again with what its outbox holds. What it loses by that, the other side's outbox
//! still has:
//!
//! - The **sender** keeps a trigger until its target told something of it, or its time is over, and puts it again whenever
//!   the backend comes back. Numbers make that harmless.
//! - What a **node** tells of itself is an entry too, and the backend has it before the triggers that are fired after it.
//! - The **target** removes a register only when those who take have recorded it, and only the revision that was judged. It
//!   keeps what it told, and tells it again when the same number comes again.

/// Triggers that came too early.
mod ahead;
/// Contents of entries, and the keys they are written to.
mod content;
/// Entries to the backend: on disk first, then put until the backend has them.
mod entries;
/// What goes in, what comes out, and what is remembered.
pub mod model;
/// What this node tells of itself.
mod node;
/// How much is told of one sender's triggers.
mod outbox_share;
/// What stands at this node's own key.
pub mod own_key;
/// A trigger's register in the backend.
mod register;
/// Requests of clients.
mod requests;
/// What became of triggers, as this node tells it.
mod results;
/// Triggers that are part of a rolling run.
mod rolling;
/// What clients are told.
mod said;
/// Selections that are resolved later.
mod selections;
/// The half that fires.
mod sender;
/// The half that runs.
mod target;
/// Who is served next.
mod turns;

use again_base::model::{Boottime, Moment};

use self::model::{Action, EntryId, Event, State};
use crate::wire::outcome::TriggerStatus;

/// Takes one step.
#[must_use]
pub fn step(state: &mut State, event: Event, now: &Moment) -> Vec<Action> {
    let mut actions = Vec::new();
    let out = &mut actions;
    selections::write_recovered(state, now, out);
    match event {
        Event::Reached => {
            state.is_linked = true;
            node::reached(state, now);
            target::reached(state, now);
            selections::reached(state, now, out);
            entries::reached(state, now, out);
        }
        Event::Lost => {
            state.is_linked = false;
            selections::lost(state);
            sender::review(state, None, now, out);
        }
        Event::Seen(sights) => target::seen(state, sights, now, out),
        Event::Gone(place) => target::gone(state, &place),
        Event::Heard(told) => heard(state, told, now, out),
        Event::Kept {
            entry,
            version,
            kept,
        } => {
            let is_kept = kept.is_ok();
            entries::kept(state, &entry, version, kept, now, out);
            selections::kept(state, &entry, version, is_kept, now, out);
            sender::review(state, Some(&entry), now, out);
        }
        Event::Put {
            entry,
            version,
            key,
            answer,
        } => {
            entries::answered(state, &entry, version, &key, &answer, now);
            if entry == EntryId::Node {
                entries::release(state, now, out);
                node::guard(state, now, out);
            }
            selections::settle(state, &entry, now, out);
            sender::review(state, Some(&entry), now, out);
        }
        Event::Inventory(inventory) => node::tell(state, inventory, now, out),
        Event::OwnKey { revision, found } => {
            node::found(state, revision, found);
            node::guard(state, now, out);
        }
        Event::OwnKeyLost => node::lost(state),
        Event::OwnKeySeen { is_shown } => node::seen(state, is_shown, now, out),
        Event::Beat => node::sign_anew(state, now, out),
        Event::Nodes(nodes) => selections::resolve(state, nodes, now, out),
        Event::NodesIncomplete(wait) => selections::incomplete(state, wait, now),
        Event::NotTaken(version) => state.not_taken = version,
        Event::Removed {
            place,
            revision,
            answer,
        } => target::removed(state, &place, revision, &answer, now),
        Event::Fire { client, request } => requests::fire(state, client, request, now, out),
        Event::TakeBack { client, what } => requests::take_back(state, client, &what, now, out),
        Event::Answers(answers) => target::answered(state, answers, now, out),
        Event::NotHanded(why) => target::not_handed(state, &why, now, out),
        Event::Ran {
            which,
            lineage,
            outcome,
            why,
            ran,
        } => target::ran(state, &which, &lineage, (outcome, why, ran), now, out),
        Event::Turn(which) => rolling::turn(state, &which, now, out),
        Event::NoTurn(answer) => rolling::no_turn(state, answer, now, out),
        Event::Waits(which, words) => rolling::waits(state, &which, &words, now, out),
        Event::Changed => target::look_again(state, now, out),
        Event::Tick => tick(state, now, out),
    }
    actions
}

/// When [`Event::Tick`] is wanted, if nothing happens before.
pub fn wakes(state: &State) -> Option<Boottime> {
    state.wakes
}

/// Does what is due, and finds out when something is due next.
fn tick(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    if state.wakes.is_none_or(|at| now.uptime < at) {
        return;
    }
    state.wakes = None;
    sender::end(state, now, out);
    selections::end(state, now, out);
    results::end(state, now, out);
    entries::send_due(state, now, out);
    node::tick(state, now, out);
    target::tick(state, now, out);
    selections::look(state, now, out);
    sender::review(state, None, now, out);
}

/// Hears what became of a trigger. A stored selection may wait for that.
fn heard(state: &mut State, told: TriggerStatus, now: &Moment, out: &mut Vec<Action>) {
    let entry = EntryId::To(told.target.clone(), told.name.clone());
    sender::heard(state, told, now, out);
    selections::settle(state, &entry, now, out);
}

#[cfg(test)]
mod tests;
