//! Answers to clients.

use again_base::model::Walltime;
use serde::{Deserialize, Serialize};

use crate::policy::lineage::TooFar;
use crate::wire::name::{Id, Name, Node};

/// What a client is told of its request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// The backend has it for these nodes.
    pub delivered: Vec<Node>,
    /// It is on this machine's disk for these, and sent until that time.
    pub kept: Vec<Node>,
    /// When a target that heard nothing may not take it any more.
    pub until: Walltime,
    /// It could neither be sent nor kept for these, or may not be fired.
    pub failed: Vec<(Node, String)>,
    /// Origins that went too far, and were left out.
    pub left_out: Vec<TooFar>,
    /// What became of the selection; nothing if there is none that is stored.
    pub selection: Option<SelectionState>,
}

/// What became of the selection of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelectionState {
    /// It is on this machine's disk, and resolved when the backend shows all nodes.
    Stored,
    /// It is not; why.
    NotStored(String),
    /// It was removed, or will not be resolved for a node.
    Cancelled,
}

/// Stored selection, for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredShown {
    /// The id of its triggers.
    pub id: Id,
    /// Their name.
    pub name: Name,
    /// Its conditions, in words.
    pub selects: String,
    /// When it ends, milliseconds of the wall clock after 1970.
    pub until: u64,
}
