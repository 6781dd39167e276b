//! Answers to clients.

use again_base::model::Walltime;
use serde::{Deserialize, Serialize};

use crate::policy::lineage::TooFar;
use crate::wire::name::{Id, Name, Node};

/// Answer to a client's request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// Targets whose triggers the backend has.
    pub delivered: Vec<Node>,
    /// Targets whose triggers are on this machine's disk, and are sent until `until`.
    pub kept: Vec<Node>,
    /// Time after which a target that has not heard of a trigger may no longer accept it.
    pub until: Walltime,
    /// Targets whose triggers could be neither sent nor stored, or may not be sent; and why.
    pub failed: Vec<(Node, String)>,
    /// Origins that were left out because they went too far.
    pub left_out: Vec<TooFar>,
    /// State of the request's stored selection, if it has one.
    pub selection: Option<SelectionState>,
}

/// State of the selection of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelectionState {
    /// On this machine's disk, to be resolved when the backend shows all nodes.
    Stored,
    /// Not on disk; why.
    NotStored(String),
    /// Removed, or not to be resolved for a node.
    Cancelled,
}

/// Stored selection, as it is shown in the state of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredShown {
    /// Id of its triggers.
    pub id: Id,
    /// Name of its triggers.
    pub name: Name,
    /// Conditions of the selection, in words.
    pub selects: String,
    /// Time when the selection expires, in milliseconds after 1970.
    pub until: u64,
}
