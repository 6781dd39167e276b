//! `again status`: what is pending, why, when; what runs; how the last rerun ended.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::{complain, moment, say};
use crate::cli::{Global, Run, Status};
use crate::config::{self, Settings, Surroundings};
use crate::exit::Exit;
use crate::observe;
use crate::policy::cap::{self, Cap, Moment};
use crate::policy::time::{Span, Walltime};
use crate::state::driver::{self, Driver};
use crate::state::order::decode;
use crate::state::record::{Kind, Record, Timer};
use crate::state::store::Store;
use crate::sys::attributes::SignalState;
use crate::sys::process::Identity;
use crate::sys::{localtime, user};
use crate::target;

/// The version of the JSON's schema.
const SCHEMA: u32 = 1;

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    version: &'static str,
    now: String,
    state_dir: String,
    disabled: Option<DisabledReport>,
    this_run: Option<ThisRun>,
    drivers: Vec<DriverReport>,
    targets: Vec<TargetReport>,
    unreadable: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DisabledReport {
    reason: String,
    since: String,
}

/// The puppet run above the caller.
#[derive(Debug, Serialize)]
struct ThisRun {
    target: String,
    chain: Option<String>,
    run: u32,
    timer: Option<String>,
}

/// A converge driver that lives.
#[derive(Debug, Serialize)]
struct DriverReport {
    pid: i32,
    user: String,
    target: String,
    chain: String,
    state: &'static str,
    run: u32,
    max_runs: u32,
    run_pid: Option<i32>,
    began_at: String,
    timers: Vec<DriverTimerReport>,
}

#[derive(Debug, Serialize)]
struct DriverTimerReport {
    name: String,
    due_at: String,
    due_in_seconds: f64,
}

#[derive(Debug, Serialize)]
struct TargetReport {
    id: String,
    kind: Kind,
    user: String,
    command: Option<Vec<String>>,
    directory: Option<String>,
    cap: CapReport,
    timers: Vec<TimerReport>,
    running: Option<RunReport>,
    last: Option<LastReport>,
    refused: Option<RefusedReport>,
}

#[derive(Debug, Serialize)]
struct CapReport {
    used: u32,
    max_runs: u32,
    window_seconds: u64,
    frees_at: Option<String>,
}

#[derive(Debug, Serialize)]
struct TimerReport {
    name: String,
    state: &'static str,
    reason: Option<String>,
    run: u32,
    chain: String,
    delta_seconds: f64,
    jitter_seconds: f64,
    requested_at: String,
    due_at: Option<String>,
    due_in_seconds: Option<f64>,
    waits_for_pid: Option<i32>,
    scope: Option<String>,
    waiter: WaiterReport,
    #[serde(skip)]
    due_wall: Option<Walltime>,
}

#[derive(Debug, Serialize)]
struct WaiterReport {
    pid: Option<i32>,
    alive: bool,
}

#[derive(Debug, Serialize)]
struct RunReport {
    pid: i32,
    run: u32,
    chain: String,
    timer: String,
    started_at: String,
    seconds: f64,
    log: String,
}

#[derive(Debug, Serialize)]
struct LastReport {
    run: u32,
    chain: String,
    timer: String,
    started_at: String,
    outcome: String,
    evidence: String,
    log: String,
    #[serde(skip)]
    started: Walltime,
}

#[derive(Debug, Serialize)]
struct RefusedReport {
    at: String,
    timer: String,
    reason: String,
    #[serde(skip)]
    wall: Walltime,
}

/// Shows the state.
///
/// # Errors
/// Those of the settings and of writing.
pub fn main(global: &Global, args: &Status) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, &Run::default(), &around)?;
    let store = Store::existing(&settings.state_dir);
    let now = moment();
    let report = gather(&store, &settings, &around, &now, args.json);
    if args.json {
        say(&serde_json::to_string(&report)?)?;
    } else {
        say(text(&report, &now).trim_end())?;
        for what in &report.unreadable {
            complain(&format!("again: warning: {what}"));
        }
    }
    let busy = report
        .targets
        .iter()
        .any(|target| !target.timers.is_empty() || target.running.is_some())
        || !report.drivers.is_empty();
    Ok(if busy {
        Exit::Success
    } else {
        Exit::NothingPending
    })
}

fn gather(
    store: &Store,
    settings: &Settings,
    around: &Surroundings,
    now: &Moment,
    with_this_run: bool,
) -> Report {
    // What killed drivers left is removed here, if we may.
    driver::sweep(store, now);
    let mut unreadable = Vec::new();
    let mut targets = Vec::new();
    for id in store.targets() {
        match super::read_settled(store, &id, now) {
            Ok(Some(record)) => targets.push(target_report(store, &record, settings, now)),
            Ok(None) => {}
            Err(e) => unreadable.push(format!("{e:#}")),
        }
    }
    Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        now: localtime::utc(now.wall),
        state_dir: settings.state_dir.display().to_string(),
        disabled: store.disabled().map(|disabled| DisabledReport {
            reason: disabled.reason,
            since: localtime::utc(Walltime::from_millis(disabled.since)),
        }),
        this_run: with_this_run
            .then(|| this_run(store, settings, around, now))
            .flatten(),
        drivers: driver::all(store)
            .into_iter()
            .filter(|(_, alive)| *alive)
            .map(|(driver, _)| driver_report(driver, now))
            .collect(),
        targets,
        unreadable,
    }
}

fn driver_report(driver: Driver, now: &Moment) -> DriverReport {
    DriverReport {
        pid: driver.process.pid,
        user: user::name(driver.uid),
        target: driver.target,
        chain: driver.chain,
        state: if driver.child.is_some() {
            "running"
        } else {
            "waiting"
        },
        run: driver.run,
        max_runs: driver.max_runs,
        run_pid: driver.child.map(|child| child.pid),
        began_at: localtime::utc(driver.began.wall),
        timers: driver
            .timers
            .into_iter()
            .map(|(name, due)| DriverTimerReport {
                name,
                due_at: localtime::utc(now.wall + due.since(now.uptime)),
                due_in_seconds: due.since(now.uptime).secs_f64(),
            })
            .collect(),
    }
}

fn target_report(
    store: &Store,
    record: &Record,
    settings: &Settings,
    now: &Moment,
) -> TargetReport {
    // The cap that a pending timer is under, else the one that would be applied now.
    let cap = record
        .timers
        .values()
        .next()
        .map_or(settings.cap, |timer| timer.cap);
    let usage = cap::usage(cap, record.moments(), now);
    // Only the owner and root can read an order.
    let order = record
        .timers
        .values()
        .find_map(|timer| store.read_order(&record.id, &timer.token).ok())
        .and_then(|text| decode(&text).ok())
        .map(|(_, order)| order);
    TargetReport {
        id: record.id.clone(),
        kind: record.kind,
        user: user::name(record.uid),
        command: order.as_ref().map(|order| {
            order
                .arguments
                .iter()
                .map(crate::state::bytes::Bytes::lossy)
                .collect()
        }),
        directory: order.as_ref().map(|order| order.directory.lossy()),
        cap: cap_report(cap, usage, now),
        timers: record
            .timers
            .iter()
            .map(|(name, timer)| timer_report(store, &record.id, name, timer, now))
            .collect(),
        running: record.running.last().map(|run| RunReport {
            pid: run.process.pid,
            run: run.run,
            chain: run.chain.clone(),
            timer: run.timer.clone(),
            started_at: localtime::utc(run.started.wall),
            seconds: run.started.age(now).secs_f64(),
            log: run.log.clone(),
        }),
        last: record.last.as_ref().map(|last| LastReport {
            run: last.rerun.run,
            chain: last.rerun.chain.clone(),
            timer: last.rerun.timer.clone(),
            started_at: localtime::utc(last.rerun.started.wall),
            outcome: last.outcome.clone(),
            evidence: last.evidence.clone(),
            log: last.rerun.log.clone(),
            started: last.rerun.started.wall,
        }),
        refused: record.refused.as_ref().map(|refused| RefusedReport {
            at: localtime::utc(refused.at.wall),
            timer: refused.timer.clone(),
            reason: refused.reason.clone(),
            wall: refused.at.wall,
        }),
    }
}

fn cap_report(cap: Cap, usage: cap::Use, now: &Moment) -> CapReport {
    CapReport {
        used: usage.used,
        max_runs: cap.max_runs,
        window_seconds: cap.window.secs(),
        frees_at: usage
            .is_reached()
            .then(|| localtime::utc(now.wall + usage.frees_in)),
    }
}

fn timer_report(store: &Store, id: &str, name: &str, timer: &Timer, now: &Moment) -> TimerReport {
    let this_boot = timer.boot == now.boot;
    let alive = super::has_waiter(store, id, timer, &now.boot);
    let due = timer.due.filter(|_| this_boot);
    let run_alive = this_boot && timer.waits_for.is_some_and(Identity::is_alive);
    let state = if !alive {
        "dead"
    } else if run_alive {
        "waiting for the run"
    } else if timer.held.is_some() {
        "held"
    } else if due.is_none_or(|due| due > now.uptime) {
        "waiting"
    } else {
        "due"
    };
    let due_wall = due.map_or(timer.due_wall, |due| Some(now.wall + due.since(now.uptime)));
    TimerReport {
        name: name.to_owned(),
        state,
        reason: timer.held.clone(),
        run: timer.run,
        chain: timer.chain.clone(),
        delta_seconds: timer.delta.secs_f64(),
        jitter_seconds: timer.jitter.secs_f64(),
        requested_at: localtime::utc(timer.requested.wall),
        due_at: due_wall.map(localtime::utc),
        due_in_seconds: due.map(|due| due.since(now.uptime).secs_f64()),
        waits_for_pid: timer.waits_for.filter(|_| run_alive).map(|who| who.pid),
        scope: timer.scope.clone(),
        waiter: WaiterReport {
            pid: timer.waiter.filter(|_| alive).map(|who| who.pid),
            alive,
        },
        due_wall,
    }
}

/// Which target and chain the puppet run above us belongs to.
fn this_run(
    store: &Store,
    settings: &Settings,
    around: &Surroundings,
    now: &Moment,
) -> Option<ThisRun> {
    let seen = observe::observe(
        observe::parent(),
        &[],
        &crate::puppet::paths::Paths::default(),
        settings,
        around,
        SignalState::default(),
    )
    .ok()?;
    let order = seen.order.as_ref()?;
    let from = seen.run?;
    let rerun = seen
        .chain
        .iter()
        .skip(from)
        .find_map(|ancestor| store.rerun_of(ancestor.identity, &now.boot));
    Some(ThisRun {
        target: target::id(order, around.uid),
        run: rerun.as_ref().map_or(1, |rerun| rerun.run),
        timer: rerun.as_ref().map(|rerun| rerun.timer.clone()),
        chain: rerun.map(|rerun| rerun.chain),
    })
}

/// The report for people.
fn text(report: &Report, now: &Moment) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    if let Some(disabled) = &report.disabled {
        line(format!(
            "disabled since {}: {}",
            disabled.since, disabled.reason
        ));
    }
    for driver in &report.drivers {
        line(format!(
            "'again converge' of {} (pid {}): {}",
            driver.user,
            driver.pid,
            driver_line(driver)
        ));
    }
    let mut shown = report.drivers.len();
    for target in &report.targets {
        if target.timers.is_empty()
            && target.running.is_none()
            && target.last.is_none()
            && target.refused.is_none()
        {
            continue;
        }
        shown += 1;
        line(heading(target));
        for timer in &target.timers {
            line(format!("  pending   {}", timer_line(timer, now)));
        }
        if let Some(run) = &target.running {
            line(format!(
                "  running   run {} of chain {} for {} (pid {}, timer '{}', log {})",
                run.run,
                run.chain,
                Span::from_nanos((run.seconds.max(0.0) * 1e9) as u64),
                run.pid,
                run.timer,
                run.log
            ));
        }
        if let Some(last) = &target.last {
            line(format!(
                "  last      run {} of chain {}, started {}: {} ({}; log {})",
                last.run,
                last.chain,
                localtime::local(last.started),
                last.outcome,
                last.evidence,
                last.log
            ));
        }
        if let Some(refused) = &target.refused {
            line(format!(
                "  refused   {}, timer '{}': {}",
                localtime::local(refused.wall),
                refused.timer,
                refused.reason
            ));
        }
        let frees = target.cap.frees_at.as_ref().map_or_else(String::new, |at| {
            format!("; reached, the next is possible at {at}")
        });
        line(format!(
            "  cap       {} of {} reruns within {} used{frees}",
            target.cap.used,
            target.cap.max_runs,
            Span::from_secs(target.cap.window_seconds)
        ));
    }
    if shown == 0 {
        line(format!(
            "nothing is pending, and nothing is known of earlier reruns (state in {})",
            report.state_dir
        ));
    }
    out
}

fn driver_line(driver: &DriverReport) -> String {
    let of = format!("of at most {}, chain {}", driver.max_runs, driver.chain);
    if let Some(pid) = driver.run_pid {
        return format!("run {} {of} is under way (pid {pid})", driver.run);
    }
    match driver
        .timers
        .iter()
        .min_by(|a, b| a.due_in_seconds.total_cmp(&b.due_in_seconds))
    {
        Some(timer) => format!(
            "run {} {of} is due in {} (timer '{}')",
            driver.run.saturating_add(1),
            Span::from_nanos((timer.due_in_seconds.max(0.0) * 1e9) as u64),
            timer.name
        ),
        None => format!("between runs; {} {of} so far", driver.run),
    }
}

fn heading(target: &TargetReport) -> String {
    let what = match target.kind {
        Kind::Apply | Kind::Agent | Kind::Daemon => target.kind.to_string(),
        Kind::Command => "command".to_owned(),
    };
    let mut heading = format!("{what} of {} (target {})", target.user, target.id);
    if let Some(command) = &target.command {
        let words: Vec<String> = command
            .iter()
            .map(|word| super::run::quoted(word))
            .collect();
        let _ = write!(heading, "\n  command   {}", words.join(" "));
        if let (Kind::Apply, Some(directory)) = (target.kind, &target.directory) {
            let _ = write!(heading, "  (in {directory})");
        }
    }
    heading
}

fn timer_line(timer: &TimerReport, now: &Moment) -> String {
    let when = match (timer.state, timer.due_wall) {
        ("dead", _) => {
            "its waiter is dead: 'again resume' gives it another, 'again stop' clears it".to_owned()
        }
        ("waiting for the run", _) => format!(
            "waits for the run to end (pid {}), then {} and up to {} more",
            timer.waits_for_pid.unwrap_or(0),
            Span::from_nanos((timer.delta_seconds * 1e9) as u64),
            Span::from_nanos((timer.jitter_seconds * 1e9) as u64),
        ),
        ("held", _) => format!("held ({})", timer.reason.as_deref().unwrap_or("")),
        ("due", _) => "due, waits for another run to end".to_owned(),
        (_, Some(due)) => format!("at {}, in {}", localtime::local(due), due.since(now.wall)),
        _ => timer.state.to_owned(),
    };
    let waiter = timer
        .waiter
        .pid
        .map_or_else(String::new, |pid| format!(", waiter pid {pid}"));
    format!(
        "timer '{}': {when} (run {} of chain {}{waiter})",
        timer.name, timer.run, timer.chain
    )
}
