//! Questions for nodes, and lists that are shown to those who asked.

use std::vec::IntoIter;

use super::few::Few;
use super::last_inventory::File;
use crate::engine::Value;
use crate::policy::last_inventory::Reading;
use crate::step::model::Client;

/// Questions for nodes, and the file with the last inventory.
pub struct Nodes {
    /// The file.
    pub file: File,
    /// Those that the backend has not answered.
    pub asked: Few<Client, Asked>,
    /// How many readings were kept.
    pub kept: u64,
    /// Why the last inventory could not be written, as it was logged last.
    pub why: String,
}

/// A question for nodes.
pub struct Asked {
    /// How many readings had been kept by then. If another one was kept since, the answer may be older.
    pub kept: u64,
    /// Whether the last inventory was shown.
    pub is_late: bool,
}

/// A list that is shown in portions.
pub struct Shown {
    /// To whom.
    pub client: Client,
    /// What has yet to be shown.
    pub values: IntoIter<Value>,
    /// Where it comes from.
    pub source: Source,
}

/// Where a list comes from.
pub enum Source {
    /// The backend.
    Backend,
    /// The backend, and it has all nodes: what holds of it is kept, if as many readings were kept by then.
    Nodes(Reading, u64),
    /// The last inventory.
    Stored,
}

impl Nodes {
    /// Without questions.
    pub fn new(file: File) -> Nodes {
        Nodes {
            file,
            asked: Few::default(),
            kept: 0,
            why: String::new(),
        }
    }
}
