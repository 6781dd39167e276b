//! `again status`: pending timers with their obstacles and times, running reruns, and the outcome
//! of the last rerun.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::disable;
use super::report::{Blocked, Pending, Report, Target, driver_state};
use super::targets::place;
use crate::cli::{Global, Run, Status};
use crate::config::{self, Settings, Surroundings};
use crate::puppet::ancestry::{Seen, titled_words};
use crate::request::asked::Request;
use crate::request::observe::{observe, parent};
use crate::state::driver::Driver;
use crate::state::history::What;
use crate::state::order::CommandLine;
use crate::state::record::{Ended, Running};
use crate::state::store::Store;
use crate::state::triggered::Present;
use again_base::layout::frame::Frame;
use again_base::layout::{Look, Tone, complain, cut, megabytes, plural, quoted, say};
use again_base::model::{
    Activity, DriverState, Exit, Foreign, Kind, Moment, Obstacle, Provenance, Refusal, Span,
    TimerState, Walltime,
};
use again_base::puppet::cmdline::Application;
use again_base::schema::status::ThisRun;
use again_base::sys::attributes::SignalState;
use again_base::sys::clock::moment;
use again_base::sys::terminal::{self, Terminal, clean};
use again_base::sys::viewer::{News, Viewer, end_by};
use again_base::sys::{localtime, process, user};

/// Maximum number of characters of the deepest process's command line that are shown.
const COMMAND: usize = 60;

/// Interval for refreshing the state with `--watch`.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Fields that differ in every report, or only for a moment. Any other difference is a change.
const UNSTEADY: [&str; 8] = [
    "now",
    "seconds",
    "since",
    "due_at",
    "due_in_seconds",
    "frees_at",
    "locked_by",
    "processes",
];

/// Shows the state, once or until a signal ends it.
///
/// # Errors
/// Errors of the settings and of writing.
pub fn main(global: &Global, args: &Status, signals: SignalState) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, &Run::default(), &around)?;
    let view = View {
        args,
        store: Store::existing(&settings.state_dir),
        around,
        settings,
    };
    if args.watch {
        return view.watch(signals);
    }
    let (report, this_run) = view.report();
    view.print(&report, this_run)?;
    let is_busy = |target: &Target| !target.timers.is_empty() || target.running().is_some();
    if report.targets.iter().any(is_busy) || !report.drivers.is_empty() {
        Ok(Exit::Success)
    } else if !report.unreadable.is_empty() {
        Ok(Exit::Failure)
    } else {
        Ok(Exit::NothingPending)
    }
}

/// Options and sources of the report.
struct View<'a> {
    args: &'a Status,
    settings: Settings,
    around: Surroundings,
    store: Store,
}

impl View<'_> {
    /// Current state, and the run above this process.
    fn report(&self) -> (Report, Option<ThisRun>) {
        let (args, store, settings) = (self.args, &self.store, &self.settings);
        let now = moment();
        let is_wanted = args.json || args.this_run;
        let this_run = is_wanted.then(|| this_run(store, settings, &self.around, &now));
        let this_run = this_run.flatten();
        // Outside any run there is no such target.
        let target = || this_run.as_ref()?.target.as_deref();
        let only = args.this_run.then(|| target().unwrap_or_default());
        let report = Report::gather(store, settings, now, only);
        (report, this_run)
    }

    /// Report for people.
    fn text(&self, report: &Report) -> Result<String> {
        let place = place(&self.settings.state_dir)?;
        Ok(text(report, &place, &Look::of_this_process()))
    }

    fn print(&self, report: &Report, this_run: Option<ThisRun>) -> Result<()> {
        if self.args.json {
            return Ok(say(&report.json(this_run).to_string())?);
        }
        say(&self.text(report)?)?;
        for what in &report.unreadable {
            complain(&format!("again: warning: {what}"));
        }
        Ok(())
    }

    /// Draws the report on a terminal; elsewhere prints it whenever it has changed.
    fn watch(&self, signals: SignalState) -> Result<Exit> {
        let mut viewer = Viewer::new(signals)?;
        let mut drawn = Terminal::new().filter(|_| !self.args.json);
        let (mut frame, mut before) = (Frame::default(), Value::Null);
        if drawn.is_some() {
            terminal::write(frame.clear())?;
        }
        loop {
            let (report, this_run) = self.report();
            match &drawn {
                // Nothing is drawn in the background; SIGCONT announces the foreground.
                Some(_) if terminal::is_anothers() => {}
                Some(terminal) => self.draw(terminal, &mut frame, &report)?,
                None => {
                    let state = steady(report.json(None));
                    if state != before {
                        self.print_change(&report, this_run, before.is_null())?;
                        before = state;
                    } else if !terminal::is_read() {
                        return Ok(Exit::Success);
                    }
                }
            }
            match viewer.wait(None, None, Some(LOOK_EVERY))? {
                News::Signal(signal) => {
                    drop(drawn.take());
                    end_by(signal);
                }
                News::Redraw if drawn.is_some() && !terminal::is_anothers() => {
                    terminal::write(frame.clear())?;
                }
                _ => {}
            }
        }
    }

    fn draw(&self, terminal: &Terminal, frame: &mut Frame, report: &Report) -> Result<()> {
        terminal.is_quiet();
        let [rows, width] = terminal.size();
        let text = self.text(report)?;
        let warnings = report.unreadable.iter();
        let warnings = warnings.map(|what| clean(&format!("again: warning: {what}")));
        let lines = warnings.chain(text.lines().map(str::to_owned)).collect();
        // The last line is for the cursor.
        let lines = fitted(lines, rows.saturating_sub(1));
        Ok(terminal::write(&frame.show(lines, width))?)
    }

    /// Prints the time and then the state, after an empty line unless it is the first.
    fn print_change(
        &self,
        report: &Report,
        this_run: Option<ThisRun>,
        is_first: bool,
    ) -> Result<()> {
        if !self.args.json {
            let gap = if is_first { "" } else { "\n" };
            say(&format!("{gap}{}", localtime::local(report.now.wall)))?;
        }
        self.print(report, this_run)
    }
}

/// Limits the lines to `most`; the last of them then counts the lines that are not shown.
fn fitted(mut lines: Vec<String>, most: usize) -> Vec<String> {
    if lines.len() > most {
        let more = lines.split_off(most.saturating_sub(1)).len();
        lines.push(format!("and {more} more lines: 'again status' shows all"));
    }
    lines
}

/// Report without the fields in [`UNSTEADY`].
fn steady(mut report: Value) -> Value {
    match &mut report {
        Value::Object(fields) => {
            fields.retain(|name, _| !UNSTEADY.contains(&name.as_str()));
            let values = fields.iter_mut().map(|(_, value)| value);
            values.for_each(|value| *value = steady(value.take()));
        }
        Value::Array(values) => values
            .iter_mut()
            .for_each(|value| *value = steady(value.take())),
        _ => {}
    }
    report
}

/// Target and chain of the puppet run above us. A rerun is recognized by its process, whatever its
/// command line.
fn this_run(
    store: &Store,
    settings: &Settings,
    around: &Surroundings,
    now: &Moment,
) -> Option<ThisRun> {
    let run = Run::default();
    let (settings, around) = (settings.clone(), around.clone());
    let request = Request::of(&run, settings, around, SignalState::default());
    let seen = observe(parent(), &request).ok()?;
    let mut above = seen.chain.iter().skip(seen.found.unwrap_or(0));
    let rerun = above.find_map(|ancestor| store.rerun_of(ancestor.identity, now));
    let rerun = rerun.as_ref();
    let process = seen.found.map(|at| &seen.chain[at]);
    let who = process.map_or_else(|| Some(rerun?.process), |run| Some(run.identity))?;
    let (kind, noop) = match &seen.plan {
        Ok(plan) => {
            let noop = match &plan.obstacle {
                Some(Refusal::Noop { said, .. }) => Some(*said),
                _ => None,
            };
            (plan.order.kind, noop)
        }
        Err(_) => process.map_or((Kind::Command, None), by_title),
    };
    let planned = seen.plan.as_ref().ok().map(|plan| plan.target.as_str());
    // The record of a rerun is reliable; an orphan with a title may look like a run of another
    // daemon.
    let own = rerun.filter(|rerun| rerun.process == who || planned.is_none());
    let target = own.map(|rerun| rerun.target.as_str()).or(planned);
    let present = Present {
        who,
        rerun,
        target: target.unwrap_or_default(),
        kind,
        uid: process::status(who.pid).map_or(request.around.uid, |status| status.euid),
    };
    Some(ThisRun {
        target: target.map(str::to_owned),
        chain: rerun.map(|rerun| rerun.chain.clone()),
        run: rerun.map_or(1, |rerun| rerun.run),
        timer: rerun.map(|rerun| rerun.timer.clone()),
        noop: noop.map(str::to_owned),
        origin: store.lineage_of(&present, now).shown(),
    })
}

/// Kind of a run and the cause of its noop, according to its title. The title of a daemon's run is
/// not a command line.
fn by_title(run: &Seen) -> (Kind, Option<&'static str>) {
    let line = titled_words(&run.cmdline).map(|line| line.invocation);
    let is_apply = matches!(&line, Some(line) if line.application == Application::Apply);
    let is_noop = line.is_some_and(|line| line.flag("noop") == Some(true));
    let kind = if is_apply { Kind::Apply } else { Kind::Agent };
    (kind, is_noop.then_some("--noop"))
}

/// Report for people.
fn text(report: &Report, place: &str, look: &Look) -> String {
    let now = &report.now;
    let mut out = Vec::new();
    if let Some(disabled) = &report.disabled {
        let text = format!(
            "{}; requests are refused and due timers held until 'again enable'",
            disable::state(disabled)
        );
        out.push(look.entry("again is ", Tone::Attention, &text));
    }
    if report.slots_ended > 0 {
        let text = "a slot has ended, as its lease or beats were not renewed; the run here goes on, and one more may run: see 'again-fleet check'";
        out.push(look.entry("again-fleet: ", Tone::Attention, text));
    }
    for driver in &report.drivers {
        let (user, pid) = (user::name(driver.uid), driver.process.pid);
        let who = format!("'again converge' of {user} (pid {pid}): ");
        out.push(look.entry(&who, Tone::Heading, &driver_text(driver, now)));
    }
    for target in &report.targets {
        let lines = target_lines(target, now);
        // Idle: only the command and an unused cap.
        let is_idle = |(label, ..): &(&str, _, _)| ["command", "cap"].contains(label);
        if lines.iter().all(is_idle) && target.usage.used == 0 {
            continue;
        }
        let record = &target.record;
        let heading = format!("{} of {} ", record.kind, user::name(record.uid));
        let id = format!("(target {})", record.id);
        out.push(look.entry(&heading, Tone::Heading, &id));
        for (label, tone, text) in lines {
            out.push(look.entry(&format!("  {label:<9} "), tone, &text));
        }
    }
    match report.unreadable.len() {
        0 if out.is_empty() => out.push(format!(
            "nothing pending, no rerun on record; see 'again history' ({place})"
        )),
        0 => {}
        many => out.push(format!(
            "something may be pending: {many} record{} cannot be read ({place})",
            plural(many)
        )),
    }
    out.join("\n")
}

fn driver_text(driver: &Driver, now: &Moment) -> String {
    let of = format!("of at most {}, chain {}", driver.max_runs, driver.chain);
    let next = driver.run.saturating_add(1);
    match (driver_state(driver), driver.child, &driver.held) {
        (DriverState::Running, Some(child), _) => {
            return format!("run {} {of} is under way (pid {})", driver.run, child.pid);
        }
        (DriverState::Held, _, Some(what)) => return format!("run {next} {of} is held: {what}"),
        _ => {}
    }
    match driver.timers.iter().min_by_key(|(_, due)| **due) {
        Some((name, due)) => format!(
            "run {next} {of} is due in {} (timer '{name}')",
            due.since(now.uptime)
        ),
        None => format!("between runs; {} {of} so far", driver.run),
    }
}

/// Lines about a target, each with its label.
fn target_lines(target: &Target, now: &Moment) -> Vec<(&'static str, Tone, String)> {
    let record = &target.record;
    let mut lines = Vec::new();
    if let Some(line) = &target.command {
        lines.push(("command", Tone::Plain, command_text(line, record.kind)));
    }
    if let Some(holder) = &target.locked {
        let text = format!("{holder}; commands that change this target wait for that process");
        lines.push(("locked by", Tone::Attention, text));
    }
    for timer in &target.timers {
        let (label, tone) = match timer.state {
            TimerState::Dead => ("dead", Tone::Bad),
            TimerState::Held => ("held", Tone::Attention),
            TimerState::Foreign => ("foreign", Tone::Attention),
            _ => ("pending", Tone::Plain),
        };
        lines.push((label, tone, timer_text(timer, target, now)));
    }
    if let Some(run) = target.running() {
        lines.push(("running", Tone::Plain, running_text(run, target, now)));
    }
    if let Some(activity) = &target.activity {
        lines.push(("processes", Tone::Plain, activity_text(activity)));
    }
    if let Some(last) = &record.last {
        lines.push(("last", last.outcome.into(), last_text(last, now)));
    }
    if let Some(refused) = &record.refused {
        let text = happened(&refused.at, &refused.timer, now);
        lines.push((
            "refused",
            Tone::Attention,
            format!("{text}: {}", refused.reason),
        ));
    }
    if let Some(missed) = target.missed() {
        let tone = match missed.what {
            What::Satisfied => Tone::Good,
            What::Stopped => Tone::Attention,
            _ => Tone::Bad,
        };
        let text = happened(&missed.at, &missed.timer, now);
        let text = format!("{text}, no rerun: {}", missed.reason);
        lines.push((missed.what.kind(), tone, text));
    }
    let (tone, frees) = match target.usage.frees_in {
        Span::ZERO => (Tone::Plain, String::new()),
        left => (
            Tone::Attention,
            format!("; reached, the next is possible in {left}"),
        ),
    };
    let (used, cap) = (target.usage.counted(), target.cap);
    let text = format!(
        "{used} of {} reruns within {} used{frees}",
        cap.max_runs, cap.window
    );
    lines.push(("cap", tone, text));
    lines
}

/// Time with its age: `2026-11-21 14:03:07, 1m58s ago`.
fn ago(at: Walltime, now: &Moment) -> String {
    format!("{}, {} ago", localtime::local(at), now.wall.since(at))
}

fn happened(at: &Moment, timer: &str, now: &Moment) -> String {
    format!("{}, timer '{timer}'", ago(at.wall, now))
}

fn running_text(run: &Running, target: &Target, now: &Moment) -> String {
    let whose = match run.provenance(now) {
        Provenance::Foreign(whose) => format!(" of {}", whose.kind()),
        Provenance::OtherBoot | Provenance::UnknownBoot => format!(" of {}", Foreign::Boot.kind()),
        Provenance::Here => String::new(),
    };
    let age = run.started.age(now);
    format!(
        "run {} of chain {} for {age} (pid {}{whose}, timer '{}'; {}){}",
        run.run,
        run.chain,
        run.process.pid,
        run.timer,
        output(run, "-f"),
        stuck(
            target.is_stuck(run.process, now),
            target,
            "again stop --run"
        ),
    )
}

/// Activity of the processes of a rerun, in words.
fn activity_text(activity: &Activity) -> String {
    let Activity { processes, cpu, .. } = activity;
    let memory = megabytes(activity.memory);
    let in_which = activity.deepest.as_ref().map_or_else(String::new, |one| {
        let command: String = one.command.chars().take(COMMAND).collect();
        format!("; in {command} for {} (pid {})", one.age, one.pid)
    });
    format!("{processes}, with {cpu} of CPU time and {memory} of memory{in_which}")
}

/// Location of a rerun's output, in words.
fn output(rerun: &Running, which: &str) -> String {
    match &rerun.log_lost {
        Some(why) => format!("its output is lost: {why}"),
        None => format!("see 'again log {which}'"),
    }
}

fn last_text(last: &Ended, now: &Moment) -> String {
    let (run, chain) = (last.rerun.run, &last.rerun.chain);
    let started = last.rerun.started.wall;
    let ended = last.ended.map_or_else(String::new, |ended| {
        format!(", took {}", ended.since(started))
    });
    format!(
        "run {run} of chain {chain}: {}, {}; started {}{ended} ({})",
        last.outcome,
        last.evidence,
        ago(started, now),
        output(&last.rerun, &format!("{chain}-{run}")),
    )
}

/// Command line of a target, in words.
pub fn command_text(line: &CommandLine, kind: Kind) -> String {
    let words = line.arguments.iter().map(|word| quoted(&word.lossy()));
    let words = cut(words.collect::<Vec<_>>().join(" "));
    match kind {
        Kind::Apply => format!("{words} (in {})", line.directory.lossy()),
        _ => words,
    }
}

/// Message that a run is stuck, with the command that ends it.
fn stuck(is_stuck: bool, target: &Target, how: &str) -> String {
    match is_stuck {
        true => format!(
            "; stuck: it has taken longer than {}: '{how}' ends it",
            target.record.stuck_after
        ),
        false => String::new(),
    }
}

/// Reason why a timer that is due, or whose run has not ended, does not start.
fn obstacle_text(blocked: &Blocked, target: &Target, now: &Moment) -> String {
    let Some(holder) = &blocked.holder else {
        let words = blocked.words.as_deref();
        if let (Obstacle::Slot, Some(words)) = (blocked.what, words) {
            return format!("due, {words}");
        }
        return words.unwrap_or("due, and starts now").to_owned();
    };
    let pid = holder.process.pid;
    let how = match blocked.what {
        Obstacle::Rerun => "again stop --run".to_owned(),
        _ => format!("kill {pid}"),
    };
    let stuck = stuck(blocked.is_stuck(target, now), target, &how);
    match blocked.what {
        Obstacle::Waiter => format!(
            "its waiter was stopped by a signal, and starts nothing until 'kill -CONT {pid}'"
        ),
        Obstacle::RecordLock => format!("due, waits for the lock of its record ({holder})"),
        Obstacle::AgentLock => {
            format!("due, waits for the run that holds Puppet's lock ({holder}){stuck}")
        }
        Obstacle::Rerun => format!("due, waits for a rerun to end ({holder}){stuck}"),
        Obstacle::Run | Obstacle::Slot | Obstacle::Other => format!(" ({holder}){stuck}"),
    }
}

fn timer_text(pending: &Pending, target: &Target, now: &Moment) -> String {
    let Pending { name, timer, .. } = pending;
    let by_cap = match timer.put_off {
        Span::ZERO => String::new(),
        put_off => format!(", put off {put_off} by the cap"),
    };
    let wait = timer.delta + timer.jitter;
    let obstacle = |blocked: &Blocked| obstacle_text(blocked, target, now);
    let blocked = pending.blocked.as_ref();
    let when = match (pending.state, pending.run, pending.due_at) {
        (TimerState::Dead, ..) => {
            "its waiter is dead: 'again resume' gives it another, 'again stop' clears it".to_owned()
        }
        _ if blocked.is_some_and(|by| by.what == Obstacle::Waiter) => {
            blocked.map_or_else(String::new, obstacle)
        }
        (TimerState::Foreign, ..) => format!(
            "{}, and nothing here resumes it; 'again stop' clears it",
            timer.held.as_deref().unwrap_or_default()
        ),
        (TimerState::ForRun, Some(run), _) => {
            let who = blocked.filter(|by| by.holder.is_some());
            let who = who.map_or_else(|| format!(" (pid {})", run.pid), obstacle);
            format!("{wait} after the run has ended{who}{by_cap}")
        }
        (TimerState::Held, ..) => {
            let reason = timer.held.as_deref();
            format!("due, held: {}", reason.unwrap_or("no reason on record"))
        }
        (TimerState::Due, ..) => {
            let soon = || "due, and starts once no other run is in its way".to_owned();
            blocked.map_or_else(soon, obstacle)
        }
        (_, _, Some(due)) => {
            let (left, at) = (due.since(now.wall), localtime::local(due));
            format!("in {left}{by_cap}, at {at}")
        }
        // The run has ended at this moment.
        (_, _, None) => format!("in {wait}"),
    };
    let waiter = pending
        .waiter()
        .map_or_else(String::new, |pid| format!(", waiter pid {pid}"));
    let resource = timer.resource.as_ref();
    let mut by = resource.map_or_else(String::new, |resource| format!(" by {resource}"));
    if let Some(told) = timer.whole().told() {
        let and = if by.is_empty() { " by" } else { " and" };
        by.push_str(&format!("{and} {told}"));
    }
    format!(
        "timer '{name}': {when} (run {} of chain {}, asked for{by} {} ago{waiter})",
        timer.run,
        timer.chain,
        timer.requested.age(now)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_do_not_fit_are_counted_in_the_last_one() {
        let lines = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(fitted(lines(3), 3), lines(3));
        let last = "and 2 more lines: 'again status' shows all";
        assert_eq!(fitted(lines(4), 3), ["0", "1", last]);
        assert_eq!(fitted(lines(2), 0), [last]);
    }
}
