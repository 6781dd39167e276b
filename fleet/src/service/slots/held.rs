//! What places are held for: runs, and triggers that are part of a rolling run.

use again_base::model::Identity;

use crate::policy::replay::TriggerKey;
use crate::policy::slots::Standing;
use crate::step::model::Client;
use crate::wire::name::{Name, Node};
use crate::wire::outcome::cut;
use crate::wire::slot::MOST_WHY;

/// How many nodes are named to whoever waits.
const MOST_NAMED: usize = 5;

/// The first of so many nodes, in words.
pub fn named(nodes: &mut dyn Iterator<Item = &Node>, count: usize) -> String {
    let mut names: Vec<&str> = nodes.take(MOST_NAMED).map(Node::as_str).collect();
    if names.len() < count {
        names.push("...");
    }
    names.join(", ")
}

/// Who waits for a slot, and is told when the turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiter {
    /// Somebody on this machine who asks for a run.
    Client(Client),
    /// A trigger that is part of a rolling run.
    Trigger(TriggerKey),
}

/// What a place is held for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A run: its process.
    Process(Identity),
    /// A trigger that is part of a rolling run.
    Trigger(TriggerKey),
}

impl Holder {
    /// The trigger, if it is one.
    pub fn trigger(&self) -> Option<&TriggerKey> {
        match self {
            Holder::Trigger(which) => Some(which),
            Holder::Process(_) => None,
        }
    }
}

/// A run, or a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Process that has the slot.
    pub who: Holder,
    /// The number of its process's pidfd's file, by which newer kernels know a process.
    pub file: u64,
    /// Since when it waits, milliseconds of the wall clock after 1970.
    pub since: u64,
    /// What it is, in words.
    pub why: String,
}

impl Run {
    /// A trigger that waits since then, in milliseconds of the wall clock after 1970.
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

/// That a run goes on without its slot.
pub(super) fn ended(name: &Name) -> String {
    format!(
        "the slot in group '{name}' has ended, as its lease or its beats were not renewed; the run here goes on, and one more may run"
    )
}

/// Who is before it, in words.
pub(super) fn before(line: &[Standing], is_all: bool) -> String {
    let count = line.len();
    let nodes = named(&mut line.iter().map(|one| &one.slot.node), count);
    let more = if is_all { "" } else { " or more" };
    format!("{count}{more} before it: {nodes}")
}
