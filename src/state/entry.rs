//! One event of a request, stored as a line of the history.

use serde::{Deserialize, Serialize};

use super::newer::{VERSION, Versioned};
use again_base::model::{Moment, Outcome, Walltime, outcome_of};
pub use again_base::schema::history::What;
use again_base::schema::origin::Lineage;

/// One line of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The record's version.
    pub version: u32,
    /// Time of the entry.
    pub at: Moment,
    /// Kind of the entry.
    pub what: What,
    /// The target's id.
    pub target: String,
    /// The timer's name.
    pub timer: String,
    /// The request's token.
    pub token: String,
    /// The chain.
    pub chain: String,
    /// The number of the rerun in its chain.
    pub run: u32,
    /// For a refusal [`again_base::model::Refusal::kind`]; [`FIRST`] for a driver's first run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Outcome of an ended run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Whether the time of the end is unknown: it lies before `at`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noticed: bool,
    /// Start time of the run that requested the rerun, if that run began the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Walltime>,
    /// Reason or evidence in words.
    pub reason: String,
    /// Lineage of the run, if other nodes requested it, with the triggers that the entry concerns.
    #[serde(default, skip_serializing_if = "Lineage::is_empty")]
    pub lineage: Lineage,
}

impl Versioned for Entry {
    fn version(&self) -> u32 {
        self.version
    }
}

/// Kind of the first run of a converge driver, which is not a rerun.
pub const FIRST: &str = "first";

impl Entry {
    /// Entry with empty ids, reason and lineage.
    pub fn new(what: What, at: Moment) -> Self {
        Entry {
            version: VERSION,
            at,
            what,
            target: String::new(),
            timer: String::new(),
            token: String::new(),
            chain: String::new(),
            run: 0,
            kind: String::new(),
            outcome: None,
            noticed: false,
            began: None,
            reason: String::new(),
            lineage: Lineage::default(),
        }
    }

    /// Reason in a message for people: how a run ended, or the name of the refusal and its cause.
    pub fn text(&self) -> String {
        match (self.what, self.outcome) {
            (_, Some(outcome)) => format!("{outcome} ({})", self.reason),
            (What::Refused, _) => format!("{}: {}", outcome_of(&self.kind), self.reason),
            _ => self.reason.clone(),
        }
    }
}
