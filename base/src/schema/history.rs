//! Events of requests and reruns: the lines of `again history --json`.

use serde::{Deserialize, Serialize};

use super::origin::Origins;
use super::{known, of_schema};
use crate::model::{Kind, Outcome};

crate::model::words! {
    /// Kind of an event.
    pub enum What {
        /// A timer was set.
        Requested = "requested",
        /// A request was refused.
        Refused = "refused",
        /// A newer request of the same name replaced the timer.
        Merged = "merged",
        /// The rerun was started.
        Started = "started",
        /// The rerun ended.
        Ended = "ended",
        /// Another run did the timer's job.
        Satisfied = "satisfied",
        /// An operator stopped the timer or its rerun, or the service that it belongs to was
        /// stopped.
        Stopped = "stopped",
        /// The timer was due, and its rerun could not start.
        Failed = "failed",
        /// The timer was due, and no slot of the fleet was free; it is still waiting.
        Delayed = "delayed",
        /// A converge driver began.
        Opened = "opened",
        /// A converge driver ended; the reason says how.
        Closed = "closed",
        /// A person made the timer due before its time.
        Hurried = "hurried",
        /// The timer lost its waiter, and got another.
        Resumed = "resumed",
        /// The waiter died before the rerun began; the start does not count, and the timer is
        /// pending again.
        TakenBack = "taken-back",
        /// The timer lost its waiter, and its command is lost too.
        Lost = "lost",
        /// The reruns that counted towards the target's cap were reset.
        Reset = "reset",
    }
}

/// One event. again(8) documents the fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Version of the schema.
    #[serde(deserialize_with = "of_schema")]
    pub schema: u32,
    /// Time of the event: UTC, RFC 3339.
    pub at: String,
    /// Kind of the event.
    pub what: What,
    /// Id of the target; empty if the event concerns no target.
    #[serde(default)]
    pub target: String,
    /// Kind of run that the target is, if it is on record.
    #[serde(default, deserialize_with = "known")]
    pub kind: Option<Kind>,
    /// Name of the timer.
    #[serde(default)]
    pub timer: String,
    /// Token of the request.
    pub request: String,
    /// Id of the chain.
    pub chain: String,
    /// Number of the rerun in its chain.
    pub run: u32,
    /// Outcome of a run that has ended.
    #[serde(default, deserialize_with = "known")]
    pub outcome: Option<Outcome>,
    /// Reason, in words.
    pub reason: String,
    /// Whether the end of the run was only noticed at `at`: its exact time is not known.
    #[serde(default)]
    pub noticed: bool,
    /// Start time of the run that requested it, if that run began the chain.
    pub chain_began_at: Option<String>,
    /// Origins and triggers, if other nodes requested the run.
    pub origin: Option<Origins>,
}

impl Event {
    /// Name of the log of the event's run.
    pub fn log(&self) -> String {
        log(&self.chain, self.run)
    }
}

/// Name of the log of a run.
pub fn log(chain: &str, run: u32) -> String {
    format!("{chain}-{run}")
}

/// Events of this schema in an output. Lines with an unknown kind of event, and other lines, are
/// skipped.
pub fn events(output: &str) -> Vec<Event> {
    let lines = output.lines();
    let events = lines.filter_map(|line| serde_json::from_str(line).ok());
    events.collect()
}
