//! Entries of the outbox: their ids, versions, contents, and the keys where they are put.

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

/// Id of an entry in the outbox. Results have an outbox of their own, so that triggers from other
/// nodes take no room from those that this node sends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EntryId {
    /// Inventory of this node. Sorts first, since triggers wait for it.
    Node,
    /// Targets of a rolling run, by the id of its triggers.
    Targets(Id),
    /// Newest trigger of a name for a target.
    To(Node, Name),
    /// Newest stored selection of a name, by the node on whose behalf it is sent.
    Selection(Node, Name),
    /// Status of a trigger.
    Status(TriggerKey),
}

/// Name of the entry, unique in the outbox.
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

/// Version of an entry, as it is written to the outbox and stored there. The content may be signed
/// again: the version identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// Id of the entry.
    pub entry: EntryId,
    /// Version number, which grows with each write of the entry.
    pub version: u64,
    /// Content of this version.
    pub content: Content,
    /// Time for which the entry matters: for a trigger, as long as its target may accept it; for a
    /// result, as long as the sender may ask again.
    pub term: Term,
}

/// Content of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Inventory of this node.
    Node(Inventory),
    /// The targets of a rolling run that stops after failures.
    Targets(Targets),
    /// A trigger, stored at one key.
    Trigger(Trigger),
    /// Selection that is resolved later. It stays on this node's disk.
    Selection(StoredSelection),
    /// Status of a trigger. It is put at the sender's result key, unless the trigger was made from
    /// an event, and in the story of each origin.
    Status {
        /// The status.
        told: TriggerStatus,
        /// Lineage of the trigger.
        lineage: Lineage,
        /// Whether the trigger's turn in a rolling run has come, so that it may have been accepted.
        /// This is stored on disk, and not published.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        has_turn: bool,
    },
}

impl Content {
    /// Keys in the backend where the content is put.
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
                // A cancel that came too late is in no story: the outcome of the run, which has the
                // same keys, counts there.
                let is_of_run = told.outcome != Outcome::TooLate;
                let origins = lineage.0.iter().filter(|_| is_of_run);
                let mut keys: BTreeSet<Key> = origins.map(story).collect();
                // A trigger that was made from an event has no sender to inform.
                if !told.name.is_of_a_rule() {
                    keys.insert(told.key());
                }
                keys
            }
        }
    }

    /// Story keys of a status that the other targets of a rolling run count: a run has begun, or
    /// has failed. The result key is not one of them.
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

    /// Whether the content is the status of a trigger that has this origin.
    pub(super) fn comes_from(&self, origin: &Id) -> bool {
        matches!(self, Content::Status { lineage, .. } if lineage.0.iter().any(|one| one.id == *origin))
    }
}
