//! The state of everything: the output of `again status --json`. again(8) says what the fields mean.
//!
//! Times are UTC in the form of RFC 3339, spans are seconds. What is not known, and what the caller may not see, is null. Fields may be
//! added under the same number of the schema. One that is missing is read as 0, as empty or as null, and an unknown word as null; who
//! cannot do without a field has to look.

use serde::{Deserialize, Serialize};

use super::history::What;
use super::origin::Origins;
use super::{known, of_schema};
use crate::model::{DriverState, Kind, Obstacle, Outcome, TimerState};

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Status {
    #[serde(deserialize_with = "of_schema")]
    pub schema: u32,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub now: String,
    #[serde(default)]
    pub state_dir: String,
    pub disabled: Option<Disabled>,
    pub this_run: Option<ThisRun>,
    #[serde(default)]
    pub drivers: Vec<Driver>,
    pub targets: Vec<Target>,
    #[serde(default)]
    pub unreadable: Vec<String>,
    #[serde(default)]
    pub slots_ended: u64,
}

/// Makes structs whose fields may all be missing.
macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        #[allow(missing_docs)]
        pub struct $name {
            $($(#[$attribute])* pub $field: $type,)*
        }
    )*};
}

parts! {
    /// Requests are refused.
    Disabled { reason: String, since: String }
    /// The run above the caller.
    ThisRun {
        target: Option<String>, chain: Option<String>, run: u32, timer: Option<String>, noop: Option<String>, origin: Option<Origins>,
    }
    /// A converge driver.
    Driver {
        pid: i32, user: String, target: String, chain: String, #[serde(deserialize_with = "known")] state: Option<DriverState>, reason: Option<String>, run: u32,
        max_runs: u32, run_pid: Option<i32>, began_at: String, timers: Vec<DriverTimer>,
    }
    /// A timer of a converge driver.
    DriverTimer { name: String, resource: Option<String>, due_at: String, due_in_seconds: f64 }
    /// A target.
    Target {
        id: String, #[serde(deserialize_with = "known")] kind: Option<Kind>, user: String, command: Option<Vec<String>>, directory: Option<String>,
        locked_by: Option<Holder>, cap: Cap, timers: Vec<Timer>, running: Option<Running>, last: Option<Last>,
        refused: Option<Refused>, missed: Option<Missed>,
    }
    /// The cap of a target, and how much of it is used.
    Cap { used: u32, max_runs: u32, window_seconds: u64, frees_at: Option<String> }
    /// A pending timer.
    Timer {
        name: String, #[serde(deserialize_with = "known")] state: Option<TimerState>, reason: Option<String>, resource: Option<String>, run: u32, chain: String,
        scope: Option<String>, delta_seconds: f64, jitter_seconds: f64, put_off_seconds: f64, requested_at: String,
        due_at: Option<String>, due_in_seconds: Option<f64>, waits_for_pid: Option<i32>, blocked_by: Option<Blocked>,
        waiter: Waiter, origin: Option<Origins>,
    }
    /// What is in the way of a timer.
    Blocked { #[serde(deserialize_with = "known")] what: Option<Obstacle>, stuck: bool, reason: Option<String>, process: Option<Holder> }
    /// A process that holds a lock or is in the way.
    Holder { pid: i32, command: String, since: String, seconds: u64, stopped: bool }
    /// The waiter of a timer.
    Waiter { pid: Option<i32>, alive: bool }
    /// The rerun that is running.
    Running {
        pid: i32, run: u32, chain: String, timer: String, log: String, log_lost: Option<String>, started_at: String,
        seconds: f64, stuck: bool, origin: Option<Origins>, processes: Option<Processes>,
    }
    /// What the processes of a rerun do.
    Processes { count: usize, cpu_seconds: f64, memory_bytes: u64, deepest: Option<Deepest> }
    /// The process of a rerun that is farthest from its first one.
    Deepest { pid: i32, command: String, seconds: u64 }
    /// The last rerun that ended.
    Last {
        run: u32, chain: String, timer: String, log: String, log_lost: Option<String>, started_at: String,
        ended_at: Option<String>, #[serde(deserialize_with = "known")] outcome: Option<Outcome>, evidence: String,
    }
    /// The last request that was refused.
    Refused { at: String, timer: String, reason: String }
    /// The newest timer that ended without a rerun.
    Missed { at: String, timer: String, #[serde(deserialize_with = "known")] what: Option<What>, reason: String }
}
