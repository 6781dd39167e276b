//! The state of everything, as `again status` and `again metrics` show it.
//!
//! The JSON is one object, `schema` 1; again-json(5) documents its fields. Fields may be added under
//! the same schema number; none is removed or changes its meaning. Times are UTC in the form of RFC
//! 3339, spans are seconds. A value is null if it is unknown or the caller may not see it.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::fs::{Access, StatVfs, access, statvfs};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::fleet;
use crate::config::Settings;
use crate::outcome::read_settled;
use crate::policy::cap;
use crate::puppet::live;
use crate::state::driver::{self, Driver};
use crate::state::order::{CommandLine, Order, decode};
use crate::state::record::{Missed, Record, Running, Timer};
use crate::state::standing::{Standing, owner};
use crate::state::store::{Disabled, Store};
use crate::sys::tree;
use again_base::model::{
    Activity, Bytes, Cap, DriverState, Identity, Kind, Moment, Obstacle, Provenance, Span,
    TimerState, Use, Walltime,
};
use again_base::schema::SCHEMA;
use again_base::schema::status::{self, Status, ThisRun};
use again_base::sys::flock::{Holder, Locks};
use again_base::sys::localtime::utc;
use again_base::sys::process::is_alive;
use again_base::sys::user;

/// All state that is shown.
pub struct Report {
    /// Time of the report.
    pub now: Moment,
    /// State directory.
    pub state_dir: String,
    /// Reason and time of `again disable`, if requests are refused.
    pub disabled: Option<Disabled>,
    /// Living converge drivers.
    pub drivers: Vec<Driver>,
    /// Targets on record.
    pub targets: Vec<Target>,
    /// Errors about unreadable records, in words.
    pub unreadable: Vec<String>,
    /// Number of runs here that continue though their slot of the fleet has ended with its lease.
    pub slots_ended: u64,
}

/// State of a target.
pub struct Target {
    /// Record of the target, without the timers.
    pub record: Record,
    /// Command line, if the caller may see it.
    pub command: Option<CommandLine>,
    /// Process that holds the lock of the record at this moment, if any.
    pub locked: Option<Holder>,
    /// Cap of a pending timer, or the one that would be applied now.
    pub cap: Cap,
    /// Use of the cap.
    pub usage: Use,
    /// Pending timers.
    pub timers: Vec<Pending>,
    /// Activity of the processes of the target's rerun, if one is running here and the caller may
    /// see it.
    pub activity: Option<Activity>,
}

/// State of a pending timer.
pub struct Pending {
    /// Name of the timer.
    pub name: String,
    /// Timer on record.
    pub timer: Timer,
    /// Kind of wait.
    pub state: TimerState,
    /// Run that has to end first, if it lives.
    pub run: Option<Identity>,
    /// Time until the timer is due, if known under this boot.
    pub due_in: Option<Span>,
    /// Due time on the wall clock, if known.
    pub due_at: Option<Walltime>,
    /// Current obstacle.
    pub blocked: Option<Blocked>,
}

/// Obstacle to the start of a timer.
pub struct Blocked {
    /// Kind of the obstacle.
    pub what: Obstacle,
    /// Process that is the obstacle, if it can be seen.
    pub holder: Option<Holder>,
    /// Description by the waiter, if nothing else is known.
    pub words: Option<String>,
}

/// State of a converge driver.
pub fn driver_state(driver: &Driver) -> DriverState {
    match (&driver.child, &driver.held) {
        (Some(_), _) => DriverState::Running,
        (None, Some(_)) => DriverState::Held,
        (None, None) => DriverState::Waiting,
    }
}

impl Report {
    /// Reads all targets, or a single one. Records the ends of reruns, and removes what killed
    /// drivers left, if that is allowed and possible without waiting.
    pub fn gather(store: &Store, settings: &Settings, now: Moment, only: Option<&str>) -> Self {
        Self::of(store, settings, now, only, true)
    }

    /// As [`Report::gather`], without the targets' command lines and locks, for numbers alone.
    pub fn numbers(store: &Store, settings: &Settings, now: Moment) -> Self {
        Self::of(store, settings, now, None, false)
    }

    fn of(
        store: &Store,
        settings: &Settings,
        now: Moment,
        only: Option<&str>,
        in_words: bool,
    ) -> Self {
        driver::sweep(store, &now);
        let mut unreadable = Vec::new();
        let mut targets = Vec::new();
        let locks = Locks::default();
        let all = || store.targets();
        for id in only.map_or_else(all, |id| vec![id.to_owned()]) {
            match read_settled(store, &id, &now) {
                Ok(Some(record)) => {
                    let locks = Some(&locks).filter(|_| in_words || !record.timers.is_empty());
                    targets.push(Target::new(store, record, settings, locks, &now));
                }
                Ok(None) => unreadable.extend(store.lost(&id)),
                Err(e) => unreadable.push(format!("{e:#}")),
            }
        }
        // For a single target the activity is not needed.
        if in_words && only.is_none() {
            add_activities(&mut targets, &now);
        }
        let drivers = driver::all(store, |what| unreadable.push(what)).into_iter();
        Report {
            state_dir: settings.state_dir.display().to_string(),
            disabled: store.disabled(),
            drivers: drivers
                .filter_map(|(driver, is_alive)| is_alive.then_some(driver))
                .collect(),
            targets,
            unreadable,
            slots_ended: fleet::slots_ended(now.wall),
            now,
        }
    }

    /// Whole report in JSON, with the run above the caller.
    #[rustfmt::skip]
    pub fn json(&self, this_run: Option<ThisRun>) -> Value {
        let now = &self.now;
        json!(Status {
            schema: SCHEMA, version: env!("CARGO_PKG_VERSION").to_owned(), now: utc(now.wall), state_dir: self.state_dir.clone(),
            disabled: self.disabled.as_ref().map(|disabled| status::Disabled {
                reason: disabled.reason.clone(), since: utc(Walltime::from_millis(disabled.since)),
            }),
            this_run,
            drivers: self.drivers.iter().map(|driver| shown_driver(driver, now)).collect(),
            targets: self.targets.iter().map(|target| target.shown(now)).collect(),
            unreadable: self.unreadable.clone(),
            slots_ended: self.slots_ended,
        })
    }
}

impl Target {
    fn new(
        store: &Store,
        mut record: Record,
        settings: &Settings,
        locks: Option<&Locks>,
        now: &Moment,
    ) -> Self {
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
        let mut tokens = timers.values().map(|timer| &timer.token);
        let text = tokens.find_map(|token| store.read_order(&record.id, token).ok());
        let of_order = || CommandLine::read(text.as_ref()?);
        let order = text.as_ref().and_then(|text| decode(text).ok());
        let locked = locks.and_then(|locks| locks.holder(&store.lock_path(&record.id)));
        let look = Look {
            store,
            record: &record,
            order: order.as_ref().map(|(_, order)| order),
            locked: locked.as_ref(),
            now,
        };
        Target {
            command: locks.and_then(|_| store.command(&record.id).or_else(of_order)),
            cap,
            usage: cap::usage(cap, record.moments(), now),
            timers: timers
                .into_iter()
                .map(|(name, timer)| look.at(name, timer))
                .collect(),
            locked,
            record,
            activity: None,
        }
    }

    /// Whether a run of the target, or one that is an obstacle to it, has exceeded its time.
    pub fn is_stuck(&self, who: Identity, now: &Moment) -> bool {
        let record = &self.record;
        let rerun = record.running.iter().find(|run| run.process == who);
        let age = match rerun {
            Some(run) => run.started.age(now),
            None => now.uptime.since(who.started()),
        };
        let is_here = rerun.is_none_or(|run| run.provenance(now) == Provenance::Here);
        let lock = record.lock.as_ref().filter(|_| is_here);
        let held = lock.map(|lock| live::held_for(&lock.path(), who, now.wall));
        let age = match held {
            Some(Ok(Some(held))) => age.min(held),
            // The run waits for a certificate, or for the lock.
            Some(Ok(None)) if record.kind.is_agent() => Span::ZERO,
            _ => age,
        };
        age > record.stuck_after
    }

    /// Pids of stuck runs of the target, and of stuck runs that are obstacles to its timers.
    pub fn stuck(&self, now: &Moment) -> BTreeSet<i32> {
        let running = self.running().filter(|run| self.is_stuck(run.process, now));
        let in_the_way = self.timers.iter().filter_map(|timer| {
            let blocked = timer.blocked.as_ref().filter(|by| by.is_stuck(self, now))?;
            Some(blocked.holder.as_ref()?.process.pid)
        });
        running
            .map(|run| run.process.pid)
            .into_iter()
            .chain(in_the_way)
            .collect()
    }

    /// Newest rerun on record that is running.
    pub fn running(&self) -> Option<&Running> {
        self.record.running.last()
    }

    /// Newest timer that ended without a rerun, if no rerun has been started since.
    pub fn missed(&self) -> Option<&Missed> {
        let newest = self.record.starts.last().map(|start| start.at.wall);
        let missed = self.record.missed.as_ref();
        missed.filter(|missed| newest.is_none_or(|start| start <= missed.at.wall))
    }

    /// Words of the command, if the caller may see them.
    pub fn command(&self) -> Option<Vec<String>> {
        let line = self.command.as_ref()?;
        Some(line.arguments.iter().map(Bytes::lossy).collect())
    }

    #[rustfmt::skip]
    fn shown(&self, now: &Moment) -> status::Target {
        let record = &self.record;
        status::Target {
            id: record.id.clone(), kind: Some(record.kind), user: user::name(record.uid), command: self.command(),
            directory: self.command.as_ref().map(|line| line.directory.lossy()),
            locked_by: self.locked.as_ref().map(|holder| shown_holder(holder, now)),
            cap: status::Cap {
                used: self.usage.used, max_runs: self.cap.max_runs, window_seconds: self.cap.window.secs(),
                frees_at: self.usage.is_reached().then(|| utc(now.wall + self.usage.frees_in)),
            },
            timers: self.timers.iter().map(|timer| timer.shown(self, now)).collect(),
            running: self.running().map(|run| status::Running {
                pid: run.process.pid, run: run.run, chain: run.chain.clone(), timer: run.timer.clone(), log: run.log.clone(),
                log_lost: run.log_lost.clone(), started_at: utc(run.started.wall), seconds: run.started.age(now).secs_f64(),
                stuck: self.is_stuck(run.process, now), origin: run.lineage.shown(),
                processes: self.activity.as_ref().map(shown_activity),
            }),
            last: record.last.as_ref().map(|last| status::Last {
                run: last.rerun.run, chain: last.rerun.chain.clone(), timer: last.rerun.timer.clone(), log: last.rerun.log.clone(),
                log_lost: last.rerun.log_lost.clone(), started_at: utc(last.rerun.started.wall), ended_at: last.ended.map(utc),
                outcome: Some(last.outcome), evidence: last.evidence.clone(),
            }),
            refused: record.refused.as_ref().map(|refused| status::Refused {
                at: utc(refused.at.wall), timer: refused.timer.clone(), reason: refused.line(),
            }),
            missed: self.missed().map(|missed| status::Missed {
                at: utc(missed.at.wall), timer: missed.timer.clone(), what: Some(missed.what), reason: missed.reason.clone(),
            }),
        }
    }
}

impl Blocked {
    /// Whether the obstacle is a stuck run.
    pub fn is_stuck(&self, target: &Target, now: &Moment) -> bool {
        let is_run = matches!(
            self.what,
            Obstacle::Run | Obstacle::Rerun | Obstacle::AgentLock
        );
        let holder = self.holder.as_ref();
        is_run && holder.is_some_and(|holder| target.is_stuck(holder.process, now))
    }

    #[rustfmt::skip]
    fn shown(&self, target: &Target, now: &Moment) -> status::Blocked {
        status::Blocked {
            what: Some(self.what), stuck: self.is_stuck(target, now), reason: self.words.clone(),
            process: self.holder.as_ref().map(|holder| shown_holder(holder, now)),
        }
    }
}

/// Adds the activity of the processes of reruns, with a single scan of the machine, if a rerun is
/// running on it.
fn add_activities(targets: &mut [Target], now: &Moment) {
    let here = |target: &Target| {
        let run = target.running()?;
        (run.provenance(now) == Provenance::Here).then_some(run.process)
    };
    let runs: Vec<Identity> = targets.iter().filter_map(here).collect();
    let tree = tree::scan(&runs);
    for target in targets {
        target.activity = here(target).and_then(|run| tree.activity(run.pid));
    }
}

#[rustfmt::skip]
fn shown_activity(activity: &Activity) -> status::Processes {
    status::Processes {
        count: activity.processes, cpu_seconds: activity.cpu.secs_f64(), memory_bytes: activity.memory,
        deepest: activity.deepest.as_ref().map(|process| status::Deepest {
            pid: process.pid, command: process.command.clone(), seconds: process.age.secs(),
        }),
    }
}

#[rustfmt::skip]
fn shown_holder(holder: &Holder, now: &Moment) -> status::Holder {
    let age = holder.age(now.uptime);
    status::Holder {
        pid: holder.process.pid, command: holder.command.clone(), since: utc(now.wall - age), seconds: age.secs(),
        stopped: holder.is_stopped,
    }
}

/// Time after which a timer that is due and has no reason on record is late.
const LATE: Span = Span::from_secs(60);

/// Reason why nothing can be recorded in the state directory now, so that no rerun starts: its disk
/// is read-only or full.
fn unwritable(root: &Path, is_roots: bool) -> Option<String> {
    let is_full = |disk: StatVfs| {
        let free = if is_roots {
            disk.f_bfree
        } else {
            disk.f_bavail
        };
        free == 0 || disk.f_files > 0 && disk.f_ffree == 0
    };
    let why = match access(root, Access::WRITE_OK) {
        Err(Errno::ROFS) => Errno::ROFS,
        _ if statvfs(root).is_ok_and(is_full) => Errno::NOSPC,
        _ => return None,
    };
    Some(format!(
        "no rerun starts while {} cannot be written: {why}",
        root.display()
    ))
}

/// Inputs for the state of one target's timers.
struct Look<'a> {
    store: &'a Store,
    record: &'a Record,
    order: Option<&'a Order>,
    locked: Option<&'a Holder>,
    now: &'a Moment,
}

impl Look<'_> {
    fn at(&self, name: String, mut timer: Timer) -> Pending {
        let now = self.now;
        let is_of_this_boot = timer.boot == now.boot;
        let stands = self.store.waiter_stands(&self.record.id, &timer, now);
        let mut runs = timer.runs().filter(|_| is_of_this_boot);
        let run = runs.find(|run| is_alive(*run));
        drop(runs);
        let due = timer.due.filter(|_| is_of_this_boot);
        let state = if let Standing::Foreign { whose, .. } = stands {
            timer.held = Some(format!("it is {}", owner(whose, &timer.boot, now)));
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
            blocked: self.blocked(&timer, state, run),
            name,
            state,
            run,
            due_in,
            due_at: due_in.map(|left| now.wall + left).or(timer.due_wall),
            timer,
        }
    }

    /// Obstacle to a timer, as far as it can be seen on the machine.
    fn blocked(&self, timer: &Timer, state: TimerState, run: Option<Identity>) -> Option<Blocked> {
        let seen = |who: Identity| Holder::of(who.pid).filter(|holder| holder.process == who);
        let by = |what, holder| Blocked {
            what,
            holder,
            words: None,
        };
        let waiter = timer.waiter.and_then(seen);
        if matches!(state, TimerState::Dead | TimerState::Foreign) {
            return None;
        }
        if let Some(stopped) = waiter.as_ref().filter(|waiter| waiter.is_stopped) {
            return Some(by(Obstacle::Waiter, Some(stopped.clone())));
        }
        if let Some(run) = run {
            return Some(by(Obstacle::Run, seen(run)));
        }
        if state != TimerState::Due {
            return None;
        }
        // The waiter itself locks the record for a moment.
        let others = |holder: &&Holder| Some(holder.process) != timer.waiter;
        if let Some(holder) = self.locked.filter(others) {
            return Some(by(Obstacle::RecordLock, Some(holder.clone())));
        }
        let order = self.order.filter(|order| order.kind != Kind::Command);
        if let Some(holder) = order.and_then(|order| live::lock_holder(&order.paths)) {
            return Some(by(Obstacle::AgentLock, seen(holder)));
        }
        let rerun = self.record.running.iter().find_map(|run| seen(run.process));
        if rerun.is_some() {
            return Some(by(Obstacle::Rerun, rerun));
        }
        waiter?;
        let is_roots = self.record.uid == 0;
        let unwritable = unwritable(self.store.root(), is_roots);
        // Only the waiter detects a disk that fails for another reason, and cannot record that.
        let is_late = timer.due.is_some_and(|due| due + LATE < self.now.uptime);
        let (what, words) = match (unwritable, timer.waits.clone()) {
            (Some(disk), waits) => (waits.map_or(Obstacle::Other, |waits| waits.what), disk),
            (None, Some(waits)) => (waits.what, waits.words),
            (None, None) if is_late => (
                Obstacle::Other,
                "its waiter has not recorded why it does not start: see its log".to_owned(),
            ),
            (None, None) => return None,
        };
        Some(Blocked {
            what,
            holder: None,
            words: Some(words),
        })
    }
}

impl Pending {
    /// Pid of the waiter, if it lives.
    pub fn waiter(&self) -> Option<i32> {
        let waiter = self.timer.waiter.filter(|_| self.state != TimerState::Dead);
        waiter.map(|waiter| waiter.pid)
    }

    #[rustfmt::skip]
    fn shown(&self, target: &Target, now: &Moment) -> status::Timer {
        let timer = &self.timer;
        status::Timer {
            name: self.name.clone(), state: Some(self.state), reason: timer.held.clone(), resource: timer.resource.clone(),
            run: timer.run, chain: timer.chain.clone(), scope: timer.scope.clone(),
            delta_seconds: timer.delta.secs_f64(), jitter_seconds: timer.jitter.secs_f64(),
            put_off_seconds: timer.put_off.secs_f64(), requested_at: utc(timer.requested.wall),
            due_at: self.due_at.map(utc), due_in_seconds: self.due_in.map(Span::secs_f64),
            waits_for_pid: self.run.map(|run| run.pid),
            blocked_by: self.blocked.as_ref().map(|by| by.shown(target, now)),
            waiter: status::Waiter { pid: self.waiter(), alive: self.state != TimerState::Dead },
            origin: timer.whole().shown(),
        }
    }
}

#[rustfmt::skip]
fn shown_driver(driver: &Driver, now: &Moment) -> status::Driver {
    let state = driver_state(driver);
    let timers = driver.timers.iter().map(|(name, due)| {
        let left = due.since(now.uptime);
        status::DriverTimer {
            name: name.clone(), resource: driver.resources.get(name).cloned(),
            due_at: utc(now.wall + left), due_in_seconds: left.secs_f64(),
        }
    });
    status::Driver {
        pid: driver.process.pid, user: user::name(driver.uid), target: driver.target.clone(), chain: driver.chain.clone(),
        state: Some(state), reason: driver.held.clone().filter(|_| state == DriverState::Held),
        run: driver.run, max_runs: driver.max_runs, run_pid: driver.child.map(|child| child.pid),
        began_at: utc(driver.began.wall), timers: timers.collect(),
    }
}
