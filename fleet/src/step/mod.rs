//! PURE: the service of a node, one step at a time: an event goes in, the actions to perform come
//! out.
//!
//! The steps use no clock, network or disk. The driver performs the actions in their order and
//! feeds their results back; it may die between any two of them and restart from its outbox.
//! Whatever it loses by that is still in the outbox of the other side:
//!
//! - The **sender** keeps a trigger until its target has published an outcome other than held, or
//!   the trigger has expired, and puts it again whenever the backend reconnects. The trigger's
//!   number makes repeated puts harmless.
//! - The inventory of a **node** is an entry too, and the backend has it before the triggers that
//!   are sent after it.
//! - The **target** removes an accepted trigger from the backend only after the executor has
//!   recorded it, and only at the revision that was judged. It keeps the status that it published,
//!   and publishes it again if the same number comes again.

/// Triggers that came too early.
mod ahead;
/// Contents of entries, and the keys they are written to.
mod content;
/// Entries for the backend: first on disk, then put until the backend has them.
mod entries;
/// Events, actions and state of the steps.
pub mod model;
/// This node's inventory entry.
mod node;
/// Limit of the results that are stored for one sender.
mod outbox_share;
/// Value at this node's own key.
pub mod own_key;
/// Values of triggers in the backend.
mod register;
/// Requests of clients.
mod requests;
/// Statuses of triggers that this node publishes.
mod results;
/// Triggers that are part of a rolling run.
mod rolling;
/// Answers to clients.
mod said;
/// Stored selections.
mod selections;
/// Sender: puts triggers until their targets answer.
mod sender;
/// Target: passes triggers to the executor.
mod target;
/// Order in which senders are served.
mod turns;

use again_base::model::{Boottime, Moment};

use self::model::{Action, EntryId, Event, State};
use crate::wire::outcome::TriggerStatus;

/// Performs one step: updates the state, and returns the actions that the driver is to perform.
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

/// Time of the next [`Event::Tick`], if no other event comes before.
pub fn wakes(state: &State) -> Option<Boottime> {
    state.wakes
}

/// Does what is due, and schedules the next tick.
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

/// Handles a status that a target published. A stored selection may wait for it.
fn heard(state: &mut State, told: TriggerStatus, now: &Moment, out: &mut Vec<Action>) {
    let entry = EntryId::To(told.target.clone(), told.name.clone());
    sender::heard(state, told, now, out);
    selections::settle(state, &entry, now, out);
}

#[cfg(test)]
mod tests;
