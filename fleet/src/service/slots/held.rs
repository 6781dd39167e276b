//! Holders of slots: runs, and triggers that are part of a rolling run.

use again_base::model::Identity;

use crate::policy::replay::TriggerKey;
use crate::policy::slots::Standing;
use crate::step::model::Client;
use crate::wire::name::{Name, Node};
use crate::wire::outcome::cut;
use crate::wire::slot::MOST_WHY;

/// Largest number of nodes that a waiter is shown by name.
const MOST_NAMED: usize = 5;

/// Names of the first nodes; `count` is the number of all nodes.
pub fn named(nodes: &mut dyn Iterator<Item = &Node>, count: usize) -> String {
    let mut names: Vec<&str> = nodes.take(MOST_NAMED).map(Node::as_str).collect();
    if names.len() < count {
        names.push("...");
    }
    names.join(", ")
}

/// Client or trigger that waits for a slot, and is told when the turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiter {
    /// Client on this machine that asks for a run.
    Client(Client),
    /// Trigger that is part of a rolling run.
    Trigger(TriggerKey),
}

/// Holder of a slot, or of an entry in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Process of a run.
    Process(Identity),
    /// Trigger that is part of a rolling run.
    Trigger(TriggerKey),
}

impl Holder {
    /// Trigger, if the holder is one.
    pub fn trigger(&self) -> Option<&TriggerKey> {
        match self {
            Holder::Trigger(which) => Some(which),
            Holder::Process(_) => None,
        }
    }
}

/// Run or trigger that has a slot or waits for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Process or trigger.
    pub who: Holder,
    /// Inode number of the process's pidfd, which identifies a process on newer kernels; 0 for a
    /// trigger.
    pub file: u64,
    /// Beginning of the wait, in milliseconds of the wall clock after 1970.
    pub since: u64,
    /// Description of the run.
    pub why: String,
}

impl Run {
    /// Creates the run of a trigger that waits since then, in milliseconds of the wall clock after
    /// 1970.
    pub fn of(which: TriggerKey, since: u64) -> Run {
        let why = format!("trigger '{}' of {}", which.name, which.sender);
        Run {
            why: cut(&why, MOST_WHY),
            who: Holder::Trigger(which),
            file: 0,
            since,
        }
    }
}

/// Message that a run continues without its slot.
pub(super) fn ended(name: &Name) -> String {
    format!(
        "the slot in group '{name}' has ended, as its lease or its beats were not renewed; the run here goes on, and one more may run"
    )
}

/// Description of the nodes before this one.
pub(super) fn before(line: &[Standing], is_all: bool) -> String {
    let count = line.len();
    let nodes = named(&mut line.iter().map(|one| &one.slot.node), count);
    let more = if is_all { "" } else { " or more" };
    format!("{count}{more} before it: {nodes}")
}
