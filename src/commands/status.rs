//! `again status`: what is pending, why, when; what runs; how the last rerun ended.

use anyhow::Result;

use super::disable;
use super::report::{
    CapReport, DriverReport, LastReport, Report, RunReport, TargetReport, ThisRun, TimerReport,
};
use crate::cli::{Global, Run, Status};
use crate::config::{self, Settings, Surroundings};
use crate::layout::{Look, Tone, complain, say};
use crate::model::{DriverState, Exit, Kind, Moment, Outcome, Span, TimerState, Walltime};
use crate::puppet::paths::Paths;
use crate::request::observe::{Asked, observe, parent};
use crate::state::history::What;
use crate::state::store::Store;
use crate::sys::attributes::SignalState;
use crate::sys::clock::moment;
use crate::sys::localtime;

/// Shows the state.
///
/// # Errors
/// Those of the settings and of writing.
pub fn main(global: &Global, args: &Status) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, &Run::default(), &around)?;
    let store = Store::existing(&settings.state_dir);
    let now = moment();
    let mut report = Report::gather(&store, &settings, &now);
    if args.json {
        report.this_run = this_run(&store, &settings, &around, &now);
        say(&serde_json::to_string(&report)?)?;
    } else {
        say(&text(&report, &now, &Look::of_this_process()))?;
        for what in &report.unreadable {
            complain(&format!("again: warning: {what}"));
        }
    }
    let is_busy = |target: &TargetReport| !target.timers.is_empty() || target.running.is_some();
    if report.targets.iter().any(is_busy) || !report.drivers.is_empty() {
        Ok(Exit::Success)
    } else {
        Ok(Exit::NothingPending)
    }
}

/// Which target and chain the puppet run above us belongs to.
fn this_run(
    store: &Store,
    settings: &Settings,
    around: &Surroundings,
    now: &Moment,
) -> Option<ThisRun> {
    let asked = Asked {
        command: &[],
        given: Paths::default(),
        settings,
        around,
        signals: SignalState::default(),
    };
    let seen = observe(parent(), &asked).ok()?;
    let plan = seen.plan.as_ref().ok()?;
    let mut above = seen.chain.iter().skip(seen.run?);
    let rerun = above.find_map(|ancestor| store.rerun_of(ancestor.identity, &now.boot));
    Some(ThisRun {
        target: plan.target.clone(),
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
            disable::state(disabled)
        );
        out.push(look.entry("again is ", Tone::Attention, &text));
    }
    for driver in &report.drivers {
        let who = format!("'again converge' of {} (pid {}): ", driver.user, driver.pid);
        out.push(look.entry(&who, Tone::Heading, &driver_text(driver)));
    }
    for target in &report.targets {
        let is_empty = target.timers.is_empty()
            && target.running.is_none()
            && target.last.is_none()
            && target.refused.is_none()
            && target.missed.is_none()
            && target.cap.used == 0;
        if !is_empty {
            let heading = format!("{} of {} ", target.kind, target.user);
            let id = format!("(target {})", target.id);
            out.push(look.entry(&heading, Tone::Heading, &id));
            for (label, tone, text) in target_lines(target, now) {
                out.push(look.entry(&format!("  {label:<9} "), tone, &text));
            }
        }
    }
    if out.is_empty() {
        out.push(format!(
            "nothing pending, no rerun on record; see 'again history' (state in {})",
            report.state_dir
        ));
    }
    out.join("\n")
}

fn driver_text(driver: &DriverReport) -> String {
    let of = format!("of at most {}, chain {}", driver.max_runs, driver.chain);
    let next = driver.run.saturating_add(1);
    match (driver.state, driver.run_pid, &driver.reason) {
        (DriverState::Running, Some(pid), _) => {
            return format!("run {} {of} is under way (pid {pid})", driver.run);
        }
        (DriverState::Held, _, Some(what)) => return format!("run {next} {of} is held: {what}"),
        _ => {}
    }
    let timers = driver.timers.iter();
    match timers.min_by_key(|timer| timer.due_in_seconds.0) {
        Some(timer) => format!(
            "run {next} {of} is due in {} (timer '{}')",
            timer.due_in_seconds.0, timer.name
        ),
        None => format!("between runs; {} {of} so far", driver.run),
    }
}

/// The lines about a target, each with its label.
fn target_lines(target: &TargetReport, now: &Moment) -> Vec<(&'static str, Tone, String)> {
    let mut lines = Vec::new();
    if let Some(command) = &target.command {
        let words: Vec<String> = command
            .iter()
            .map(|word| super::run::quoted(word))
            .collect();
        let place = match (target.kind, &target.directory) {
            (Kind::Apply, Some(directory)) => format!(" (in {directory})"),
            _ => String::new(),
        };
        let text = format!("{}{place}", words.join(" "));
        lines.push(("command", Tone::Plain, text));
    }
    for timer in &target.timers {
        let (label, tone) = match timer.state {
            TimerState::Dead => ("dead", Tone::Bad),
            TimerState::Held => ("held", Tone::Attention),
            _ => ("pending", Tone::Plain),
        };
        lines.push((label, tone, timer_text(timer, now)));
    }
    if let Some(run) = &target.running {
        lines.push(("running", Tone::Plain, run_text(run)));
    }
    if let Some(last) = &target.last {
        let tone = match last.outcome {
            Outcome::Failed => Tone::Bad,
            Outcome::Unknown => Tone::Attention,
            _ => Tone::Good,
        };
        lines.push(("last", tone, last_text(last, now)));
    }
    if let Some(refused) = &target.refused {
        let ago = ago(refused.at.0, now);
        let text = format!("{ago}, timer '{}': {}", refused.timer, refused.cause);
        lines.push(("refused", Tone::Attention, text));
    }
    if let Some(missed) = &target.missed {
        let tone = match missed.what {
            What::Satisfied => Tone::Good,
            What::Stopped => Tone::Attention,
            _ => Tone::Bad,
        };
        let ago = ago(missed.at.0, now);
        let text = format!(
            "{ago}, timer '{}', no rerun: {}",
            missed.timer, missed.reason
        );
        lines.push((missed.what.kind(), tone, text));
    }
    let tone = match target.cap.frees_at {
        Some(_) => Tone::Attention,
        None => Tone::Plain,
    };
    lines.push(("cap", tone, cap_text(&target.cap, now)));
    lines
}

/// `2026-11-21 14:03:07, 1m58s ago`.
fn ago(at: Walltime, now: &Moment) -> String {
    format!("{}, {} ago", localtime::local(at), now.wall.since(at))
}

fn run_text(run: &RunReport) -> String {
    format!(
        "run {} of chain {} for {} (pid {}, timer '{}'; see 'again log -f')",
        run.rerun.run, run.rerun.chain, run.seconds.0, run.pid, run.rerun.timer,
    )
}

fn last_text(last: &LastReport, now: &Moment) -> String {
    let (run, chain) = (last.rerun.run, &last.rerun.chain);
    let started = last.rerun.started_at.0;
    let ended = last.ended_at.map_or_else(String::new, |ended| {
        format!(", after {}", ended.0.since(started))
    });
    format!(
        "run {run} of chain {chain}: {}, {}; started {}{ended} (see 'again log {chain}-{run}')",
        last.outcome,
        last.evidence,
        ago(started, now),
    )
}

fn cap_text(cap: &CapReport, now: &Moment) -> String {
    let frees = cap.frees_at.map_or_else(String::new, |at| {
        let left = at.0.since(now.wall);
        format!("; reached, the next is possible in {left}")
    });
    let window = Span::from_secs(cap.window_seconds);
    format!(
        "{} of {} reruns within {window} used{frees}",
        cap.used, cap.max_runs
    )
}

fn timer_text(timer: &TimerReport, now: &Moment) -> String {
    let by_cap = match timer.put_off_seconds.0 {
        Span::ZERO => String::new(),
        put_off => format!(", put off {put_off} by the cap"),
    };
    let wait = timer.delta_seconds.0 + timer.jitter_seconds.0;
    let reason = timer.reason.as_deref();
    let when = match (timer.state, timer.due_at) {
        (TimerState::Dead, _) => {
            "its waiter is dead: 'again resume' gives it another, 'again stop' clears it".to_owned()
        }
        (TimerState::ForRun, _) => format!(
            "{wait} after the run has ended (pid {}){by_cap}",
            timer.waits_for_pid.unwrap_or(0),
        ),
        (TimerState::Held, _) => {
            format!("due, held: {}", reason.unwrap_or("no reason on record"))
        }
        (TimerState::Due, _) => "due, and starts once no other run is in its way".to_owned(),
        (TimerState::Waiting, Some(due)) => {
            let (left, at) = (due.0.since(now.wall), localtime::local(due.0));
            format!("in {left}{by_cap}, at {at}")
        }
        // Its run has ended this very moment.
        (TimerState::Waiting, None) => format!("in {wait}"),
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
