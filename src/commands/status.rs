//! `again status`: what is pending, why, when; what runs; how the last rerun ended.
//!
//! The JSON is one object, `schema` 1. Its fields are those of [`Report`] and what
//! that holds, under their own names; again(8) says what each means. Fields may be
//! added under the same schema number; none is removed or changes its meaning. Times
//! are UTC in the form of RFC 3339, spans are seconds. What is not known, and what
//! the caller may not see, is null.

use anyhow::Result;
use serde::Serialize;

use super::{complain, say};
use crate::cli::{Global, Run, Status};
use crate::config::{self, Settings, Surroundings};
use crate::layout::{Look, Tone};
use crate::model::{Cap, Exit, Kind, Moment, Outcome, Span, TimerState, Use, Walltime};
use crate::observe;
use crate::policy::cap;
use crate::state::driver::{self, Driver};
use crate::state::history::What;
use crate::state::order::decode;
use crate::state::record::{Record, Timer};
use crate::state::store::Store;
use crate::sys::attributes::SignalState;
use crate::sys::clock::moment;
use crate::sys::process::is_alive;
use crate::sys::{localtime, user};
use crate::target;

/// The version of the JSON's schema.
const SCHEMA: u32 = 1;

/// Everything that is shown.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: u32,
    pub(super) version: &'static str,
    pub(super) now: String,
    pub(super) state_dir: String,
    pub(super) disabled: Option<DisabledReport>,
    pub(super) this_run: Option<ThisRun>,
    pub(super) drivers: Vec<DriverReport>,
    pub(super) targets: Vec<TargetReport>,
    pub(super) unreadable: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct DisabledReport {
    pub(super) reason: String,
    pub(super) since: String,
    #[serde(skip)]
    pub(super) in_words: String,
}

/// The puppet run above the caller.
#[derive(Debug, Serialize)]
pub(super) struct ThisRun {
    pub(super) target: String,
    pub(super) chain: Option<String>,
    pub(super) run: u32,
    pub(super) timer: Option<String>,
}

/// A converge driver that lives.
#[derive(Debug, Serialize)]
pub(super) struct DriverReport {
    pid: i32,
    user: String,
    target: String,
    chain: String,
    state: &'static str,
    run: u32,
    max_runs: u32,
    run_pid: Option<i32>,
    began_at: String,
    reason: Option<String>,
    timers: Vec<DriverTimerReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct DriverTimerReport {
    name: String,
    resource: Option<String>,
    due_at: String,
    due_in_seconds: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct TargetReport {
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) user: String,
    pub(super) command: Option<Vec<String>>,
    pub(super) directory: Option<String>,
    pub(super) cap: CapReport,
    pub(super) timers: Vec<TimerReport>,
    pub(super) running: Option<RunReport>,
    pub(super) last: Option<LastReport>,
    pub(super) refused: Option<RefusedReport>,
    pub(super) missed: Option<MissedReport>,
}

/// The newest timer that ended without a rerun, if no rerun has been started since.
#[derive(Debug, Serialize)]
pub(super) struct MissedReport {
    pub(super) at: String,
    pub(super) timer: String,
    pub(super) what: What,
    pub(super) reason: String,
    #[serde(skip)]
    pub(super) wall: Walltime,
}

#[derive(Debug, Serialize)]
pub(super) struct CapReport {
    pub(super) used: u32,
    pub(super) max_runs: u32,
    pub(super) window_seconds: u64,
    pub(super) frees_at: Option<String>,
    #[serde(skip)]
    pub(super) frees_in: Span,
}

#[derive(Debug, Serialize)]
pub(super) struct TimerReport {
    pub(super) name: String,
    pub(super) state: TimerState,
    pub(super) reason: Option<String>,
    pub(super) resource: Option<String>,
    pub(super) run: u32,
    pub(super) chain: String,
    pub(super) delta_seconds: f64,
    pub(super) jitter_seconds: f64,
    pub(super) requested_at: String,
    pub(super) due_at: Option<String>,
    pub(super) due_in_seconds: Option<f64>,
    pub(super) put_off_seconds: f64,
    pub(super) waits_for_pid: Option<i32>,
    pub(super) scope: Option<String>,
    pub(super) waiter: WaiterReport,
    #[serde(skip)]
    pub(super) due_wall: Option<Walltime>,
    #[serde(skip)]
    pub(super) age: Span,
}

#[derive(Debug, Serialize)]
pub(super) struct WaiterReport {
    pub(super) pid: Option<i32>,
    pub(super) alive: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct RunReport {
    pub(super) pid: i32,
    pub(super) run: u32,
    pub(super) chain: String,
    pub(super) timer: String,
    pub(super) started_at: String,
    pub(super) seconds: f64,
    pub(super) log: String,
}

#[derive(Debug, Serialize)]
pub(super) struct LastReport {
    pub(super) run: u32,
    pub(super) chain: String,
    pub(super) timer: String,
    pub(super) started_at: String,
    pub(super) ended_at: Option<String>,
    pub(super) outcome: Outcome,
    pub(super) evidence: String,
    pub(super) log: String,
    #[serde(skip)]
    pub(super) started: Walltime,
    #[serde(skip)]
    pub(super) ended: Option<Walltime>,
}

#[derive(Debug, Serialize)]
pub(super) struct RefusedReport {
    pub(super) at: String,
    pub(super) timer: String,
    pub(super) reason: String,
    #[serde(skip)]
    pub(super) cause: String,
    #[serde(skip)]
    pub(super) wall: Walltime,
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
        say(&text(&report, &now, &Look::of_this_process()))?;
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

pub(super) fn gather(
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
            in_words: super::disable::state(&disabled),
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
        } else if driver.held.is_some() {
            "held"
        } else {
            "waiting"
        },
        run: driver.run,
        max_runs: driver.max_runs,
        run_pid: driver.child.map(|child| child.pid),
        began_at: localtime::utc(driver.began.wall),
        reason: driver.held.filter(|_| driver.child.is_none()),
        timers: driver
            .timers
            .into_iter()
            .map(|(name, due)| DriverTimerReport {
                resource: driver.resources.get(&name).cloned(),
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
                .map(crate::model::Bytes::lossy)
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
            ended_at: last.ended.map(localtime::utc),
            outcome: last.outcome,
            evidence: last.evidence.clone(),
            log: last.rerun.log.clone(),
            started: last.rerun.started.wall,
            ended: last.ended,
        }),
        refused: record.refused.as_ref().map(|refused| RefusedReport {
            at: localtime::utc(refused.at.wall),
            timer: refused.timer.clone(),
            reason: refused.line(),
            cause: refused.reason.clone(),
            wall: refused.at.wall,
        }),
        missed: record
            .missed
            .as_ref()
            .filter(|missed| {
                let newest = record.starts.last();
                newest.is_none_or(|start| start.at.wall <= missed.at.wall)
            })
            .map(|missed| MissedReport {
                at: localtime::utc(missed.at.wall),
                timer: missed.timer.clone(),
                what: missed.what,
                reason: missed.reason.clone(),
                wall: missed.at.wall,
            }),
    }
}

fn cap_report(cap: Cap, usage: Use, now: &Moment) -> CapReport {
    CapReport {
        used: usage.used,
        max_runs: cap.max_runs,
        window_seconds: cap.window.secs(),
        frees_at: usage
            .is_reached()
            .then(|| localtime::utc(now.wall + usage.frees_in)),
        frees_in: usage.frees_in,
    }
}

fn timer_report(store: &Store, id: &str, name: &str, timer: &Timer, now: &Moment) -> TimerReport {
    let this_boot = timer.boot == now.boot;
    let alive = super::has_waiter(store, id, timer, &now.boot);
    let due = timer.due.filter(|_| this_boot);
    let run_alive = this_boot && timer.waits_for.is_some_and(is_alive);
    let state = if !alive {
        TimerState::Dead
    } else if run_alive {
        TimerState::ForRun
    } else if timer.held.is_some() {
        TimerState::Held
    } else if due.is_none_or(|due| due > now.uptime) {
        TimerState::Waiting
    } else {
        TimerState::Due
    };
    let due_wall = due.map_or(timer.due_wall, |due| Some(now.wall + due.since(now.uptime)));
    TimerReport {
        name: name.to_owned(),
        state,
        reason: timer.held.clone(),
        resource: timer.resource.clone(),
        run: timer.run,
        chain: timer.chain.clone(),
        delta_seconds: timer.delta.secs_f64(),
        jitter_seconds: timer.jitter.secs_f64(),
        requested_at: localtime::utc(timer.requested.wall),
        due_at: due_wall.map(localtime::utc),
        due_in_seconds: due.map(|due| due.since(now.uptime).secs_f64()),
        put_off_seconds: timer.put_off.secs_f64(),
        waits_for_pid: timer.waits_for.filter(|_| run_alive).map(|who| who.pid),
        scope: timer.scope.clone(),
        waiter: WaiterReport {
            pid: timer.waiter.filter(|_| alive).map(|who| who.pid),
            alive,
        },
        due_wall,
        age: timer.requested.age(now),
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
fn text(report: &Report, now: &Moment, look: &Look) -> String {
    let mut out = Vec::new();
    if let Some(disabled) = &report.disabled {
        let text = format!(
            "{}; requests are refused and due timers held until 'again enable'",
            disabled.in_words
        );
        out.push(look.entry("again is ", Tone::Attention, &text));
    }
    for driver in &report.drivers {
        let who = format!("'again converge' of {} (pid {}): ", driver.user, driver.pid);
        out.push(look.entry(&who, Tone::Heading, &driver_line(driver)));
    }
    for target in &report.targets {
        let is_empty = target.timers.is_empty()
            && target.running.is_none()
            && target.last.is_none()
            && target.refused.is_none()
            && target.missed.is_none()
            && target.cap.used == 0;
        if !is_empty {
            out.extend(target_text(target, now, look));
        }
    }
    if out.is_empty() {
        out.push(format!(
            "nothing is pending, and no rerun is known of; what there was before is told by 'again history' (state in {})",
            report.state_dir
        ));
    }
    out.join("\n")
}

fn driver_line(driver: &DriverReport) -> String {
    let of = format!("of at most {}, chain {}", driver.max_runs, driver.chain);
    if let Some(pid) = driver.run_pid {
        return format!("run {} {of} is under way (pid {pid})", driver.run);
    }
    if let Some(what) = &driver.reason {
        let next = driver.run.saturating_add(1);
        return format!("run {next} {of} is held: {what}");
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

fn target_text(target: &TargetReport, now: &Moment, look: &Look) -> Vec<String> {
    let heading = format!("{} of {} ", target.kind, target.user);
    let mut out = vec![look.entry(&heading, Tone::Heading, &format!("(target {})", target.id))];
    let mut line = |label: &str, tone: Tone, text: &str| {
        out.push(look.entry(&format!("  {label:<9} "), tone, text));
    };
    if let Some(command) = &target.command {
        let words: Vec<String> = command
            .iter()
            .map(|word| crate::layout::quoted(word))
            .collect();
        let place = match (target.kind, &target.directory) {
            (Kind::Apply, Some(directory)) => format!(" (in {directory})"),
            _ => String::new(),
        };
        line(
            "command",
            Tone::Plain,
            &format!("{}{place}", words.join(" ")),
        );
    }
    for timer in &target.timers {
        let (label, tone) = match timer.state {
            TimerState::Dead => ("dead", Tone::Bad),
            TimerState::Held => ("held", Tone::Attention),
            _ => ("pending", Tone::Plain),
        };
        line(label, tone, &timer_line(timer, now));
    }
    if let Some(run) = &target.running {
        let text = format!(
            "run {} of chain {} for {} (pid {}, timer '{}'; see 'again log -f')",
            run.run,
            run.chain,
            Span::from_nanos((run.seconds.max(0.0) * 1e9) as u64),
            run.pid,
            run.timer,
        );
        line("running", Tone::Plain, &text);
    }
    if let Some(last) = &target.last {
        let tone = match last.outcome {
            Outcome::Failed => Tone::Bad,
            Outcome::Unknown => Tone::Attention,
            _ => Tone::Good,
        };
        let ended = last.ended.map_or_else(String::new, |ended| {
            format!(", after {}", ended.since(last.started))
        });
        let text = format!(
            "run {} of chain {}: {}, {}; started {}{ended} (see 'again log {}-{}')",
            last.run,
            last.chain,
            last.outcome,
            last.evidence,
            ago(last.started, now),
            last.chain,
            last.run
        );
        line("last", tone, &text);
    }
    if let Some(refused) = &target.refused {
        let text = format!(
            "{}, timer '{}': {}",
            ago(refused.wall, now),
            refused.timer,
            refused.cause
        );
        line("refused", Tone::Attention, &text);
    }
    if let Some(missed) = &target.missed {
        let (label, tone) = match missed.what {
            What::Satisfied => ("satisfied", Tone::Good),
            What::Stopped => ("stopped", Tone::Attention),
            What::Lost => ("lost", Tone::Bad),
            _ => ("failed", Tone::Bad),
        };
        let text = format!(
            "{}, timer '{}', no rerun: {}",
            ago(missed.wall, now),
            missed.timer,
            missed.reason
        );
        line(label, tone, &text);
    }
    let cap = &target.cap;
    let frees = if cap.frees_at.is_some() {
        format!("; reached, the next is possible in {}", cap.frees_in)
    } else {
        String::new()
    };
    let text = format!(
        "{} of {} reruns within {} used{frees}",
        cap.used,
        cap.max_runs,
        Span::from_secs(cap.window_seconds)
    );
    let tone = if frees.is_empty() {
        Tone::Plain
    } else {
        Tone::Attention
    };
    line("cap", tone, &text);
    out
}

/// `2026-11-21 14:03:07, 1m58s ago`.
fn ago(at: Walltime, now: &Moment) -> String {
    format!("{}, {} ago", localtime::local(at), now.wall.since(at))
}

fn timer_line(timer: &TimerReport, now: &Moment) -> String {
    let span = |seconds: f64| Span::from_nanos((seconds * 1e9) as u64);
    let by_cap = if timer.put_off_seconds > 0.0 {
        format!(", put off {} by the cap", span(timer.put_off_seconds))
    } else {
        String::new()
    };
    let when = match (timer.state, timer.due_wall) {
        (TimerState::Dead, _) => {
            "its waiter is dead: 'again resume' gives it another, 'again stop' clears it".to_owned()
        }
        (TimerState::ForRun, _) => format!(
            "{} after the run has ended (pid {}){by_cap}",
            span(timer.delta_seconds + timer.jitter_seconds),
            timer.waits_for_pid.unwrap_or(0),
        ),
        (TimerState::Held, _) => format!(
            "due, held: {}",
            timer
                .reason
                .as_deref()
                .unwrap_or("for a reason that is not known")
        ),
        (TimerState::Due, _) => "due, and starts once no other run is in its way".to_owned(),
        (_, Some(due)) => format!(
            "in {}{by_cap}, at {}",
            due.since(now.wall),
            localtime::local(due)
        ),
        // Its run has ended this very moment.
        (_, None) => format!("in {}", span(timer.delta_seconds + timer.jitter_seconds)),
    };
    let waiter = timer
        .waiter
        .pid
        .map_or_else(String::new, |pid| format!(", waiter pid {pid}"));
    let by = timer
        .resource
        .as_ref()
        .map_or_else(String::new, |resource| format!(" by {resource}"));
    format!(
        "timer '{}': {when} (run {} of chain {}, asked for{by} {} ago{waiter})",
        timer.name, timer.run, timer.chain, timer.age
    )
}
