//! Entries of the outbox: their names, versions, contents, and the keys they are written to.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::replay::TriggerKey;
use crate::policy::stored_selection::StoredSelection;
use crate::policy::term::Term;
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::lineage::Lineage;
use crate::wire::name::{Id, Name, Node};
use crate::wire::outcome::{Outcome, TriggerStatus};
use crate::wire::targets::Targets;
use crate::wire::trigger::Trigger;

/// An entry in the outbox. Results have an outbox of their own, so that what others cause takes no room from what this node
/// fires.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EntryId {
    /// What this node tells of itself. It comes first, for triggers wait for it.
    Node,
    /// The targets of a rolling run, by the id of its triggers.
    Targets(Id),
    /// The newest trigger of a name for a target.
    To(Node, Name),
    /// The newest selection of a name, of the node whose change it is.
    Selection(Node, Name),
    /// What is told of a trigger.
    Status(TriggerKey),
}

/// For the outbox: no two entries have the same.
impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryId::Node => f.write_str("node"),
            EntryId::Targets(id) => write!(f, "targets/{id}"),
            EntryId::To(target, name) => write!(f, "to/{target}/{name}"),
            EntryId::Selection(node, name) => write!(f, "selection/{node}/{name}"),
            EntryId::Status(which) => {
                let TriggerKey {
                    sender,
                    name,
                    number,
                    id,
                } = which;
                write!(f, "told/{sender}/{number}/{id}/{name}")
            }
        }
    }
}

/// An entry on its way to the outbox, and as it stands there. It can be signed anew: what counts is its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// The entry.
    pub entry: EntryId,
    /// Which version of it.
    pub version: u64,
    /// What it says.
    pub content: Content,
    /// How long it matters: a trigger as long as its target may take it, a result as long as the sender may ask again.
    pub term: Term,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// What this node tells of itself.
    Node(Inventory),
    /// The targets of a rolling run that stops after failures.
    Targets(Targets),
    /// A trigger, in one register.
    Trigger(Trigger),
    /// Selection that is resolved later. It stays on this node's disk.
    Selection(StoredSelection),
    /// What became of a trigger: in the sender's result register, if it fired, and in the story of each origin.
    Status {
        /// The result.
        told: TriggerStatus,
        /// The trigger's.
        lineage: Lineage,
        /// Whether its turn in a rolling run has come, so that it may be taken. Nobody else is told that.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        has_turn: bool,
    },
}

impl Content {
    /// Where it goes.
    pub fn keys(&self) -> BTreeSet<Key> {
        match self {
            Content::Node(inventory) => BTreeSet::from([Key::Node(inventory.node.clone())]),
            Content::Targets(list) => BTreeSet::from([list.key()]),
            Content::Trigger(trigger) => BTreeSet::from([trigger.key()]),
            Content::Selection(_) => BTreeSet::new(),
            Content::Status { told, lineage, .. } => {
                let story = |origin: &crate::wire::lineage::Origin| Key::Story {
                    node: told.target.clone(),
                    origin: origin.id.clone(),
                    trigger: told.id.clone(),
                };
                // That a cancel came too late is in no story: the outcome of the run, which has the same keys, counts there.
                let is_of_run = told.outcome != Outcome::TooLate;
                let origins = lineage.0.iter().filter(|_| is_of_run);
                let mut keys: BTreeSet<Key> = origins.map(story).collect();
                // Nobody fired what is made of an event.
                if !told.name.is_of_a_rule() {
                    keys.insert(told.key());
                }
                keys
            }
        }
    }

    /// Where it goes if other targets of a rolling run count it: that a run began, or failed. Results decide nothing.
    pub(super) fn counted_keys(&self) -> BTreeSet<Key> {
        match self {
            Content::Status { told, .. } if told.outcome.is_counted() => {
                let mut keys = self.keys();
                keys.remove(&told.key());
                keys
            }
            _ => BTreeSet::new(),
        }
    }

    /// Whether it tells of a trigger that came from this origin.
    pub(super) fn comes_from(&self, origin: &Id) -> bool {
        matches!(self, Content::Status { lineage, .. } if lineage.0.iter().any(|one| one.id == *origin))
    }
}
