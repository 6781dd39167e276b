//! Requests of clients: to send triggers, to store selections, and to cancel both.

use std::collections::BTreeMap;

use again_base::model::Moment;

use super::model::{Action, Back, Client, OutboxEntry, Said, SelectionState, State};
use super::{selections, sender};
use crate::policy::fire::{self, Request};
use crate::wire::trigger::{Ask, Trigger};

/// Sends the triggers of a request, and stores its selection.
pub(super) fn fire(
    state: &mut State,
    client: Client,
    request: Request,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let mut said = Said::default();
    let number = sender::next_number(state, now, out);
    let mut waits = BTreeMap::new();
    if !request.is_deferred() {
        waits = sender::send(state, &request, number, None, &mut said, now, out);
    }
    // After the triggers: the selection excludes their targets.
    let until = now.wall + request.ttl;
    match selections::store(state, request, number, now, out) {
        Ok(stored) => {
            if stored.is_some() {
                said.until = said.until.max(until);
            }
            waits.extend(stored);
        }
        Err(why) => said.selection = Some(SelectionState::NotStored(why)),
    }
    sender::answer(state, client, waits, said, now, out);
    selections::look(state, now, out);
}

/// Cancels triggers whose targets have published nothing but that they hold them, and stored
/// selections.
pub(super) fn take_back(
    state: &mut State,
    client: Client,
    what: &Back,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let number = sender::next_number(state, now, out);
    let is_meant = |trigger: &&Trigger| {
        trigger.ask == Ask::Run
            && match what {
                Back::Id(id) => trigger.id == *id,
                Back::To(node) => trigger.target == *node,
            }
    };
    let cancel = |entry: &OutboxEntry| {
        let trigger = entry.trigger().filter(is_meant)?;
        Some(fire::cancel(
            trigger,
            sender::still(state, entry, now),
            (number, now.wall),
        ))
    };
    let cancels = state.entries.values().filter_map(cancel).collect();
    let mut said = Said {
        selection: selections::take_back(state, what, now, out),
        ..Said::default()
    };
    let waits = sender::post(state, cancels, &mut said, now, out);
    sender::answer(state, client, waits, said, now, out);
}
