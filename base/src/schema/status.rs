//! State of all targets: the output of `again status --json`. again(8) documents the fields.
//!
//! Times are UTC in the form of RFC 3339, spans are seconds. Unknown values, and values that the
//! caller may not see, are null. Fields may be added without a new schema number. A missing field
//! is read as 0, empty or null, and an unknown word as null; a reader that requires a field has to
//! check.

use serde::{Deserialize, Serialize};

use super::history::What;
use super::origin::Origins;
use super::{known, of_schema};
use crate::model::{DriverState, Kind, Obstacle, Outcome, TimerState};

/// Whole output.
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

/// Defines structs all of whose fields may be missing.
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
    /// State in which `again disable` refuses requests.
    Disabled { reason: String, since: String }
    /// Run above the caller.
    ThisRun {
        target: Option<String>, chain: Option<String>, run: u32, timer: Option<String>, noop: Option<String>, origin: Option<Origins>,
    }
    /// Converge driver.
    Driver {
        pid: i32, user: String, target: String, chain: String, #[serde(deserialize_with = "known")] state: Option<DriverState>, reason: Option<String>, run: u32,
        max_runs: u32, run_pid: Option<i32>, began_at: String, timers: Vec<DriverTimer>,
    }
    /// Timer of a converge driver.
    DriverTimer { name: String, resource: Option<String>, due_at: String, due_in_seconds: f64 }
    /// Target.
    Target {
        id: String, #[serde(deserialize_with = "known")] kind: Option<Kind>, user: String, command: Option<Vec<String>>, directory: Option<String>,
        locked_by: Option<Holder>, cap: Cap, timers: Vec<Timer>, running: Option<Running>, last: Option<Last>,
        refused: Option<Refused>, missed: Option<Missed>,
    }
    /// Cap of a target, and how much of it is used.
    Cap { used: u32, max_runs: u32, window_seconds: u64, frees_at: Option<String> }
    /// Pending timer.
    Timer {
        name: String, #[serde(deserialize_with = "known")] state: Option<TimerState>, reason: Option<String>, resource: Option<String>, run: u32, chain: String,
        scope: Option<String>, delta_seconds: f64, jitter_seconds: f64, put_off_seconds: f64, requested_at: String,
        due_at: Option<String>, due_in_seconds: Option<f64>, waits_for_pid: Option<i32>, blocked_by: Option<Blocked>,
        waiter: Waiter, origin: Option<Origins>,
    }
    /// Obstacle of a timer.
    Blocked { #[serde(deserialize_with = "known")] what: Option<Obstacle>, stuck: bool, reason: Option<String>, process: Option<Holder> }
    /// Process that holds a lock or blocks a timer.
    Holder { pid: i32, command: String, since: String, seconds: u64, stopped: bool }
    /// Waiter of a timer.
    Waiter { pid: Option<i32>, alive: bool }
    /// Running rerun.
    Running {
        pid: i32, run: u32, chain: String, timer: String, log: String, log_lost: Option<String>, started_at: String,
        seconds: f64, stuck: bool, origin: Option<Origins>, processes: Option<Processes>,
    }
    /// Processes of a rerun, in numbers.
    Processes { count: usize, cpu_seconds: f64, memory_bytes: u64, deepest: Option<Deepest> }
    /// Process of a rerun that is farthest from its first one.
    Deepest { pid: i32, command: String, seconds: u64 }
    /// Last rerun that ended.
    Last {
        run: u32, chain: String, timer: String, log: String, log_lost: Option<String>, started_at: String,
        ended_at: Option<String>, #[serde(deserialize_with = "known")] outcome: Option<Outcome>, evidence: String,
    }
    /// Last request that was refused.
    Refused { at: String, timer: String, reason: String }
    /// Newest timer that ended without a rerun.
    Missed { at: String, timer: String, #[serde(deserialize_with = "known")] what: Option<What>, reason: String }
}
