//! The state of everything, as `again status` and `again metrics` tell it.
//!
//! The JSON is one object, `schema` 1. Its fields are those of [`Report`] and what
//! that holds, under their own names; again(8) says what each means. Fields may be
//! added under the same schema number; none is removed or changes its meaning. Times
//! are UTC in the form of RFC 3339, spans are seconds. What is not known, and what
//! the caller may not see, is null.

use serde::{Serialize, Serializer};

use super::targets::has_waiter;
use crate::config::Settings;
use crate::model::{
    Boottime, Bytes, Cap, DriverState, Kind, Moment, Outcome, Span, TimerState, Walltime,
};
use crate::outcome::read_settled;
use crate::policy::cap;
use crate::state::driver::{self, Driver};
use crate::state::history::What;
use crate::state::order::decode;
use crate::state::record::{Record, Running, Timer};
use crate::state::store::{Disabled, Store};
use crate::sys::process::is_alive;
use crate::sys::{localtime, user};

/// The version of the JSON's schema.
const SCHEMA: u32 = 1;

/// A point in time, in JSON as in RFC 3339.
#[derive(Debug, Clone, Copy)]
pub struct Utc(pub Walltime);

impl Serialize for Utc {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&localtime::utc(self.0))
    }
}

/// A span, in JSON in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Seconds(pub Span);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.secs_f64())
    }
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
pub struct Report {
    pub schema: u32,
    pub version: &'static str,
    pub now: Utc,
    pub state_dir: String,
    #[serde(serialize_with = "disabled")]
    pub disabled: Option<Disabled>,
    pub this_run: Option<ThisRun>,
    pub drivers: Vec<DriverReport>,
    pub targets: Vec<TargetReport>,
    pub unreadable: Vec<String>,
}

fn disabled<S: Serializer>(disabled: &Option<Disabled>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Shown<'a> {
        reason: &'a str,
        since: Utc,
    }
    let shown = disabled.as_ref().map(|disabled| Shown {
        reason: &disabled.reason,
        since: Utc(Walltime::from_millis(disabled.since)),
    });
    shown.serialize(serializer)
}

/// The puppet run above the caller.
#[derive(Debug, Serialize)]
pub struct ThisRun {
    pub target: String,
    pub chain: Option<String>,
    pub run: u32,
    pub timer: Option<String>,
}

/// A converge driver that lives.
#[derive(Debug, Serialize)]
pub struct DriverReport {
    pub pid: i32,
    pub user: String,
    pub target: String,
    pub chain: String,
    pub state: DriverState,
    pub run: u32,
    pub max_runs: u32,
    pub run_pid: Option<i32>,
    pub began_at: Utc,
    pub reason: Option<String>,
    pub timers: Vec<DriverTimerReport>,
}

#[derive(Debug, Serialize)]
pub struct DriverTimerReport {
    pub name: String,
    pub resource: Option<String>,
    pub due_at: Utc,
    pub due_in_seconds: Seconds,
}

#[derive(Debug, Serialize)]
pub struct TargetReport {
    pub id: String,
    pub kind: Kind,
    pub user: String,
    pub command: Option<Vec<String>>,
    pub directory: Option<String>,
    pub cap: CapReport,
    pub timers: Vec<TimerReport>,
    pub running: Option<RunReport>,
    pub last: Option<LastReport>,
    pub refused: Option<RefusedReport>,
    pub missed: Option<MissedReport>,
}

#[derive(Debug, Serialize)]
pub struct CapReport {
    pub used: u32,
    pub max_runs: u32,
    pub window_seconds: u64,
    pub frees_at: Option<Utc>,
}

#[derive(Debug, Serialize)]
pub struct TimerReport {
    pub name: String,
    pub state: TimerState,
    pub reason: Option<String>,
    pub resource: Option<String>,
    pub run: u32,
    pub chain: String,
    pub delta_seconds: Seconds,
    pub jitter_seconds: Seconds,
    pub requested_at: Utc,
    pub due_at: Option<Utc>,
    pub due_in_seconds: Option<Seconds>,
    pub put_off_seconds: Seconds,
    pub waits_for_pid: Option<i32>,
    pub scope: Option<String>,
    pub waiter: WaiterReport,
    #[serde(skip)]
    pub age: Span,
}

#[derive(Debug, Serialize)]
pub struct WaiterReport {
    pub pid: Option<i32>,
    pub alive: bool,
}

/// A rerun that was started.
#[derive(Debug, Serialize)]
pub struct RerunReport {
    pub run: u32,
    pub chain: String,
    pub timer: String,
    pub started_at: Utc,
    pub log: String,
}

#[derive(Debug, Serialize)]
pub struct RunReport {
    pub pid: i32,
    pub seconds: Seconds,
    #[serde(flatten)]
    pub rerun: RerunReport,
}

#[derive(Debug, Serialize)]
pub struct LastReport {
    pub ended_at: Option<Utc>,
    pub outcome: Outcome,
    pub evidence: String,
    #[serde(flatten)]
    pub rerun: RerunReport,
}

#[derive(Debug, Serialize)]
pub struct RefusedReport {
    pub at: Utc,
    pub timer: String,
    pub reason: String,
    #[serde(skip)]
    pub cause: String,
}

/// The newest timer that ended without a rerun, if no rerun has been started since.
#[derive(Debug, Serialize)]
pub struct MissedReport {
    pub at: Utc,
    pub timer: String,
    pub what: What,
    pub reason: String,
}

impl Report {
    /// Looks at everything. Reruns that have ended are noted as such, and what killed
    /// drivers left is removed, if we may.
    pub fn gather(store: &Store, settings: &Settings, now: &Moment) -> Self {
        driver::sweep(store, now);
        let mut unreadable = Vec::new();
        let mut targets = Vec::new();
        for id in store.targets() {
            match read_settled(store, &id, now) {
                Ok(Some(record)) => targets.push(TargetReport::new(store, record, settings, now)),
                Ok(None) => {}
                Err(e) => unreadable.push(format!("{e:#}")),
            }
        }
        let drivers = driver::all(store).into_iter();
        Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            now: Utc(now.wall),
            state_dir: settings.state_dir.display().to_string(),
            disabled: store.disabled(),
            this_run: None,
            drivers: drivers
                .filter(|(_, is_alive)| *is_alive)
                .map(|(driver, _)| DriverReport::new(driver, now))
                .collect(),
            targets,
            unreadable,
        }
    }
}

impl DriverReport {
    fn new(mut driver: Driver, now: &Moment) -> Self {
        let state = match (&driver.child, &driver.held) {
            (Some(_), _) => DriverState::Running,
            (None, Some(_)) => DriverState::Held,
            (None, None) => DriverState::Waiting,
        };
        let timer = |(name, due): (String, Boottime)| DriverTimerReport {
            resource: driver.resources.remove(&name),
            name,
            due_at: Utc(now.wall + due.since(now.uptime)),
            due_in_seconds: Seconds(due.since(now.uptime)),
        };
        DriverReport {
            pid: driver.process.pid,
            user: user::name(driver.uid),
            target: driver.target,
            chain: driver.chain,
            state,
            run: driver.run,
            max_runs: driver.max_runs,
            run_pid: driver.child.map(|child| child.pid),
            began_at: Utc(driver.began.wall),
            reason: driver.held.filter(|_| state == DriverState::Held),
            timers: driver.timers.into_iter().map(timer).collect(),
        }
    }
}

impl TargetReport {
    fn new(store: &Store, record: Record, settings: &Settings, now: &Moment) -> Self {
        // The cap that a pending timer is under, else the one that would be applied now.
        let cap = record.timers.values().next();
        let cap = cap.map_or(settings.cap, |timer| timer.cap);
        let cap = CapReport::new(cap, &record, now);
        // Only the owner and root can read an order.
        let order = record
            .timers
            .values()
            .find_map(|timer| store.read_order(&record.id, &timer.token).ok())
            .and_then(|text| decode(&text).ok())
            .map(|(_, order)| order);
        let newest = record.starts.last().map(|start| start.at.wall);
        let timers = record.timers.into_iter();
        TargetReport {
            timers: timers
                .map(|(name, timer)| TimerReport::new(store, &record.id, name, timer, now))
                .collect(),
            id: record.id,
            kind: record.kind,
            user: user::name(record.uid),
            directory: order.as_ref().map(|order| order.directory.lossy()),
            command: order.map(|order| order.arguments.iter().map(Bytes::lossy).collect()),
            cap,
            running: record.running.into_iter().next_back().map(|run| RunReport {
                pid: run.process.pid,
                seconds: Seconds(run.started.age(now)),
                rerun: run.into(),
            }),
            last: record.last.map(|last| LastReport {
                ended_at: last.ended.map(Utc),
                outcome: last.outcome,
                evidence: last.evidence,
                rerun: last.rerun.into(),
            }),
            refused: record.refused.map(|refused| RefusedReport {
                at: Utc(refused.at.wall),
                reason: refused.line(),
                timer: refused.timer,
                cause: refused.reason,
            }),
            missed: record
                .missed
                .filter(|missed| newest.is_none_or(|start| start <= missed.at.wall))
                .map(|missed| MissedReport {
                    at: Utc(missed.at.wall),
                    timer: missed.timer,
                    what: missed.what,
                    reason: missed.reason,
                }),
        }
    }
}

impl CapReport {
    fn new(cap: Cap, record: &Record, now: &Moment) -> Self {
        let usage = cap::usage(cap, record.moments(), now);
        CapReport {
            used: usage.used,
            max_runs: cap.max_runs,
            window_seconds: cap.window.secs(),
            frees_at: usage.is_reached().then(|| Utc(now.wall + usage.frees_in)),
        }
    }
}

impl From<Running> for RerunReport {
    fn from(run: Running) -> Self {
        RerunReport {
            run: run.run,
            chain: run.chain,
            timer: run.timer,
            started_at: Utc(run.started.wall),
            log: run.log,
        }
    }
}

impl TimerReport {
    fn new(store: &Store, id: &str, name: String, timer: Timer, now: &Moment) -> Self {
        let is_of_this_boot = timer.boot == now.boot;
        let alive = has_waiter(store, id, &timer, &now.boot);
        let due = timer.due.filter(|_| is_of_this_boot);
        let run = timer.waits_for.filter(|_| is_of_this_boot);
        let run = run.filter(|run| is_alive(*run));
        let state = if !alive {
            TimerState::Dead
        } else if run.is_some() {
            TimerState::ForRun
        } else if timer.held.is_some() {
            TimerState::Held
        } else if due.is_none_or(|due| due > now.uptime) {
            TimerState::Waiting
        } else {
            TimerState::Due
        };
        let due_in = due.map(|due| due.since(now.uptime));
        TimerReport {
            name,
            state,
            reason: timer.held,
            resource: timer.resource,
            run: timer.run,
            chain: timer.chain,
            delta_seconds: Seconds(timer.delta),
            jitter_seconds: Seconds(timer.jitter),
            requested_at: Utc(timer.requested.wall),
            due_at: due_in
                .map(|left| now.wall + left)
                .or(timer.due_wall)
                .map(Utc),
            due_in_seconds: due_in.map(Seconds),
            put_off_seconds: Seconds(timer.put_off),
            waits_for_pid: run.map(|run| run.pid),
            scope: timer.scope,
            waiter: WaiterReport {
                pid: timer.waiter.filter(|_| alive).map(|who| who.pid),
                alive,
            },
            age: timer.requested.age(now),
        }
    }
}
