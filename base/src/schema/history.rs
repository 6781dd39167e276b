//! What became of requests: the lines of `again history --json`.

use serde::{Deserialize, Serialize};

use super::origin::Origins;
use super::{known, of_schema};
use crate::model::{Kind, Outcome};

crate::model::words! {
    /// What happened.
    pub enum What {
        /// A timer was set.
        Requested = "requested",
        /// A request was not granted.
        Refused = "refused",
        /// A newer request of the same name took its place.
        Merged = "merged",
        /// The rerun was started.
        Started = "started",
        /// The rerun ended.
        Ended = "ended",
        /// Another run had done its job.
        Satisfied = "satisfied",
        /// An operator stopped it, or the service it belongs to.
        Stopped = "stopped",
        /// It was due, and its rerun could not start.
        Failed = "failed",
        /// It was due, and there was no slot of the fleet; it goes on waiting.
        Delayed = "delayed",
        /// A converge driver began.
        Opened = "opened",
        /// A converge driver ended, and how.
        Closed = "closed",
        /// A person had it wait for its time no longer.
        Hurried = "hurried",
        /// It lost its waiter, and got another.
        Resumed = "resumed",
        /// Its waiter died before the rerun began; the start does not count, and the timer is pending again.
        TakenBack = "taken-back",
        /// It lost its waiter, and its command is lost too.
        Lost = "lost",
        /// The reruns that counted towards the target's cap were forgotten.
        Reset = "reset",
    }
}

/// One event. again(8) says what the fields mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The version of the schema.
    #[serde(deserialize_with = "of_schema")]
    pub schema: u32,
    /// UTC, in the form of RFC 3339.
    pub at: String,
    /// What happened.
    pub what: What,
    /// The target's id; empty where it is no target's.
    #[serde(default)]
    pub target: String,
    /// What kind of run the target is, if it is on record.
    #[serde(default, deserialize_with = "known")]
    pub kind: Option<Kind>,
    /// The timer's name.
    #[serde(default)]
    pub timer: String,
    /// The request's token.
    pub request: String,
    /// The chain.
    pub chain: String,
    /// The number of the rerun in its chain.
    pub run: u32,
    /// How an ended run ended.
    #[serde(default, deserialize_with = "known")]
    pub outcome: Option<Outcome>,
    /// Why, in words.
    pub reason: String,
    /// When it ended is not known, only that it had by then.
    #[serde(default)]
    pub noticed: bool,
    /// When the run that asked first had started.
    pub chain_began_at: Option<String>,
    /// Where it comes from, if other nodes asked for it.
    pub origin: Option<Origins>,
}

impl Event {
    /// The name of the log of its run.
    pub fn log(&self) -> String {
        log(&self.chain, self.run)
    }
}

/// The name of the log of a run.
pub fn log(chain: &str, run: u32) -> String {
    format!("{chain}-{run}")
}

/// The lines of an output that are events of this schema; those with another word for what happened are left out.
pub fn events(output: &str) -> Vec<Event> {
    let lines = output.lines();
    let events = lines.filter_map(|line| serde_json::from_str(line).ok());
    events.collect()
}
