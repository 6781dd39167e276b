//! The state of everything, as `again status` and `again metrics` tell it.
//!
//! The JSON is one object, `schema` 1; again(8) says what its fields mean. Fields may be
//! added under the same schema number; none is removed or changes its meaning. Times
//! are UTC in the form of RFC 3339, spans are seconds. What is not known, and what
//! the caller may not see, is null.

use serde_json::{Value, json};

use crate::config::Settings;
use crate::model::{Bytes, Cap, DriverState, Identity, Moment, Span, TimerState, Use, Walltime};
use crate::outcome::read_settled;
use crate::policy::cap;
use crate::state::driver::{self, Driver};
use crate::state::order::{Order, decode};
use crate::state::record::{Missed, Record, Running, Timer};
use crate::state::standing::Standing;
use crate::state::store::{Disabled, Store};
use crate::sys::localtime::utc;
use crate::sys::process::is_alive;
use crate::sys::user;

/// Everything that is shown.
pub struct Report {
    /// When this was so.
    pub now: Moment,
    /// Where it is kept.
    pub state_dir: String,
    /// Whether requests are refused.
    pub disabled: Option<Disabled>,
    /// The converge drivers that live.
    pub drivers: Vec<Driver>,
    /// The targets on record.
    pub targets: Vec<Target>,
    /// What cannot be read, in words.
    pub unreadable: Vec<String>,
}

/// A target.
pub struct Target {
    /// Its record, but for the timers.
    pub record: Record,
    /// What would be run, where the caller may see that.
    pub order: Option<Order>,
    /// The cap that a pending timer is under, else the one that would be applied now.
    pub cap: Cap,
    /// How much of that is used.
    pub usage: Use,
    /// Its timers.
    pub timers: Vec<Pending>,
}

/// A pending timer, as it stands.
pub struct Pending {
    /// Its name.
    pub name: String,
    /// What is on record of it.
    pub timer: Timer,
    /// What it waits for.
    pub state: TimerState,
    /// The run that has to end first, if it lives.
    pub run: Option<Identity>,
    /// How long until it is due, if that is known under this boot.
    pub due_in: Option<Span>,
    /// When it is due on the wall clock, if that is known.
    pub due_at: Option<Walltime>,
}

/// What a converge driver does.
pub fn driver_state(driver: &Driver) -> DriverState {
    match (&driver.child, &driver.held) {
        (Some(_), _) => DriverState::Running,
        (None, Some(_)) => DriverState::Held,
        (None, None) => DriverState::Waiting,
    }
}

impl Report {
    /// Looks at everything. Reruns that have ended are noted as such, and what killed
    /// drivers left is removed, if we may.
    pub fn gather(store: &Store, settings: &Settings, now: Moment) -> Self {
        driver::sweep(store, &now);
        let mut unreadable = Vec::new();
        let mut targets = Vec::new();
        for id in store.targets() {
            match read_settled(store, &id, &now) {
                Ok(Some(record)) => targets.push(Target::new(store, record, settings, &now)),
                Ok(None) => {}
                Err(e) => unreadable.push(format!("{e:#}")),
            }
        }
        let drivers = driver::all(store).into_iter();
        Report {
            state_dir: settings.state_dir.display().to_string(),
            disabled: store.disabled(),
            drivers: drivers
                .filter_map(|(driver, is_alive)| is_alive.then_some(driver))
                .collect(),
            targets,
            unreadable,
            now,
        }
    }

    /// All of it in JSON, with the run above the caller.
    #[rustfmt::skip]
    pub fn json(&self, this_run: Option<Value>) -> Value {
        let now = &self.now;
        json!({
            "schema": 1, "version": env!("CARGO_PKG_VERSION"), "now": utc(now.wall), "state_dir": self.state_dir,
            "disabled": self.disabled.as_ref().map(|disabled| json!({
                "reason": disabled.reason, "since": utc(Walltime::from_millis(disabled.since)),
            })),
            "this_run": this_run,
            "drivers": self.drivers.iter().map(|driver| driver_json(driver, now)).collect::<Vec<_>>(),
            "targets": self.targets.iter().map(|target| target.json(now)).collect::<Vec<_>>(),
            "unreadable": self.unreadable,
        })
    }
}

impl Target {
    fn new(store: &Store, mut record: Record, settings: &Settings, now: &Moment) -> Self {
        let timers = std::mem::take(&mut record.timers);
        let is_over = |run: &Running| {
            let stands = store.rerun_stands(&record.id, run, now);
            matches!(stands, Standing::Foreign { may_live, .. } if !may_live)
        };
        let over: Vec<bool> = record.running.iter().map(is_over).collect();
        let mut over = over.into_iter();
        record.running.retain(|_| over.next() != Some(true));
        let cap = timers
            .values()
            .next()
            .map_or(settings.cap, |timer| timer.cap);
        // Only the owner and root can read an order.
        let order = timers
            .values()
            .find_map(|timer| store.read_order(&record.id, &timer.token).ok())
            .and_then(|text| decode(&text).ok())
            .map(|(_, order)| order);
        let pending = |(name, timer)| Pending::new(store, &record.id, name, timer, now);
        Target {
            order,
            cap,
            usage: cap::usage(cap, record.moments(), now),
            timers: timers.into_iter().map(pending).collect(),
            record,
        }
    }

    /// The rerun that is under way.
    pub fn running(&self) -> Option<&Running> {
        self.record.running.last()
    }

    /// The newest timer that ended without a rerun, if no rerun has been started since.
    pub fn missed(&self) -> Option<&Missed> {
        let newest = self.record.starts.last().map(|start| start.at.wall);
        let missed = self.record.missed.as_ref();
        missed.filter(|missed| newest.is_none_or(|start| start <= missed.at.wall))
    }

    /// The words of the command, where the caller may see them.
    pub fn command(&self) -> Option<Vec<String>> {
        let order = self.order.as_ref()?;
        Some(order.arguments.iter().map(Bytes::lossy).collect())
    }

    #[rustfmt::skip]
    fn json(&self, now: &Moment) -> Value {
        let record = &self.record;
        json!({
            "id": record.id, "kind": record.kind, "user": user::name(record.uid), "command": self.command(),
            "directory": self.order.as_ref().map(|order| order.directory.lossy()),
            "cap": {
                "used": self.usage.used, "max_runs": self.cap.max_runs, "window_seconds": self.cap.window.secs(),
                "frees_at": self.usage.is_reached().then(|| utc(now.wall + self.usage.frees_in)),
            },
            "timers": self.timers.iter().map(|timer| timer.json()).collect::<Vec<_>>(),
            "running": self.running().map(|run| json!({
                "pid": run.process.pid, "run": run.run, "chain": run.chain, "timer": run.timer, "log": run.log, "log_lost": run.log_lost,
                "started_at": utc(run.started.wall), "seconds": run.started.age(now).secs_f64(),
            })),
            "last": record.last.as_ref().map(|last| json!({
                "run": last.rerun.run, "chain": last.rerun.chain, "timer": last.rerun.timer, "log": last.rerun.log, "log_lost": last.rerun.log_lost,
                "started_at": utc(last.rerun.started.wall), "ended_at": last.ended.map(utc),
                "outcome": last.outcome, "evidence": last.evidence,
            })),
            "refused": record.refused.as_ref().map(|refused| json!({
                "at": utc(refused.at.wall), "timer": refused.timer, "reason": refused.line(),
            })),
            "missed": self.missed().map(|missed| json!({
                "at": utc(missed.at.wall), "timer": missed.timer, "what": missed.what, "reason": missed.reason,
            })),
        })
    }
}

impl Pending {
    fn new(store: &Store, id: &str, name: String, mut timer: Timer, now: &Moment) -> Self {
        let is_of_this_boot = timer.boot == now.boot;
        let stands = store.waiter_stands(id, &timer, now);
        let mut runs = timer.runs().filter(|_| is_of_this_boot);
        let run = runs.find(|run| is_alive(*run));
        drop(runs);
        let due = timer.due.filter(|_| is_of_this_boot);
        let state = if let Standing::Foreign { whose, .. } = stands {
            timer.held = Some(format!("it is {}'s", whose.kind()));
            TimerState::Foreign
        } else if stands == Standing::Ended {
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
        Pending {
            name,
            state,
            run,
            due_in,
            due_at: due_in.map(|left| now.wall + left).or(timer.due_wall),
            timer,
        }
    }

    /// Its waiter's pid, if the waiter lives.
    pub fn waiter(&self) -> Option<i32> {
        let waiter = self.timer.waiter.filter(|_| self.state != TimerState::Dead);
        waiter.map(|waiter| waiter.pid)
    }

    #[rustfmt::skip]
    fn json(&self) -> Value {
        let timer = &self.timer;
        json!({
            "name": self.name, "state": self.state, "reason": timer.held, "resource": timer.resource,
            "run": timer.run, "chain": timer.chain, "scope": timer.scope,
            "delta_seconds": timer.delta.secs_f64(), "jitter_seconds": timer.jitter.secs_f64(),
            "put_off_seconds": timer.put_off.secs_f64(), "requested_at": utc(timer.requested.wall),
            "due_at": self.due_at.map(utc), "due_in_seconds": self.due_in.map(Span::secs_f64),
            "waits_for_pid": self.run.map(|run| run.pid),
            "waiter": { "pid": self.waiter(), "alive": self.state != TimerState::Dead },
        })
    }
}

#[rustfmt::skip]
fn driver_json(driver: &Driver, now: &Moment) -> Value {
    let state = driver_state(driver);
    let timers = driver.timers.iter().map(|(name, due)| {
        let left = due.since(now.uptime);
        json!({
            "name": name, "resource": driver.resources.get(name),
            "due_at": utc(now.wall + left), "due_in_seconds": left.secs_f64(),
        })
    });
    json!({
        "pid": driver.process.pid, "user": user::name(driver.uid), "target": driver.target, "chain": driver.chain,
        "state": state, "reason": driver.held.as_ref().filter(|_| state == DriverState::Held),
        "run": driver.run, "max_runs": driver.max_runs, "run_pid": driver.child.map(|child| child.pid),
        "began_at": utc(driver.began.wall), "timers": timers.collect::<Vec<_>>(),
    })
}
