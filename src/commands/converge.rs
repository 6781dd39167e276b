//! `again converge`: the foreground driver.
//!
//! The run stays in our process group, so that the terminal is its own and ^C
//! reaches all of us at once; we note the signal and wait for the run. A signal
//! that somebody sent to us alone is passed on to what ^C would reach.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::run::quoted;
use super::wait::LOOK_AGAIN;
use super::{complain, plural};
use crate::cli::{Converge, Global, Run};
use crate::config::{self, Settings, Surroundings};
use crate::layout::{Look, Tone};
use crate::model::{
    BY_SIGNAL, Boottime, Bytes, End, Exit, Identity, Kind, Moment, Outcome, Span, Usage, Walltime,
};
use crate::observe::{self, CommandLine};
use crate::outcome;
use crate::policy::converge::{Ask, Because, Drive, Evidence, Finish, Next, Timer, Until, judge};
use crate::policy::delay;
use crate::puppet::cmdline::Application;
use crate::puppet::environment;
use crate::puppet::live;
use crate::puppet::paths::Paths;
use crate::puppet::summary::Summary;
use crate::state::change::{self, Change};
use crate::state::driver::{self, Desk, Driver, Handed};
use crate::state::history::{Entry, FIRST, What};
use crate::state::record::VERSION;
use crate::state::store::{Rerun, Store};
use crate::sys::attributes::SignalState;
use crate::sys::clock::moment;
use crate::sys::foreground::{self, Plan};
use crate::sys::pidfd;
use crate::sys::process::{self, os};
use crate::sys::sleep::{Sleeper, Wake, Watch};
use crate::sys::{clock, localtime, terminal};
use crate::target;

/// How long a run may take to end after it was told to a second time, or by the timeout.
const GRACE: Span = Span::from_secs(10);

/// The timer of a run that no timer asked for.
const NO_TIMER: &str = "converge";

/// Drives the command to the end. The exit status of this process.
///
/// # Errors
/// What went wrong on our side.
pub fn main(global: &Global, args: &Converge, signals: SignalState) -> Result<i32> {
    let around = Surroundings::of_this_process();
    let run = Run {
        max_runs: args.max_runs,
        ..Run::default()
    };
    let settings = config::settings(global, &run, &around)?;
    if args.max_runs == Some(0) {
        return Err(
            Usage("the settings cannot be used: --max-runs must be at least 1".into()).into(),
        );
    }
    let line = observe::command_line(&args.command, &settings, &around, signals)?;
    let store = Store::open(&settings.state_dir)?;
    let now = moment();
    driver::sweep(&store, &now);
    let me = process::own_identity().context("cannot read /proc, which has to be mounted")?;
    let desk = Desk::open(&store)?;
    let deadline = args.timeout.map(|limit| now.uptime + limit);
    let drive = Drive::new(args.until, settings.cap.max_runs, deadline);
    let mut driving = Driving {
        record: Driver {
            version: VERSION,
            token: desk.token().to_owned(),
            process: me,
            boot: now.boot.clone(),
            uid: around.uid,
            target: line.target.clone(),
            chain: target::chain_id(me, &now.boot),
            began: now.clone(),
            max_runs: settings.cap.max_runs.max(1),
            run: 0,
            child: None,
            timers: BTreeMap::new(),
            resources: BTreeMap::new(),
            held: None,
        },
        is_agent: line
            .invocation
            .as_ref()
            .is_some_and(|i| i.application == Application::Agent),
        detailed: line.invocation.as_ref().is_some_and(|i| i.detailed),
        paths: line.paths.clone(),
        environment: environment_of_runs(&around, global, &settings),
        input: Input::now(),
        screen: Screen::new(&around),
        sleeper: Sleeper::new(signals).context("cannot take over the signals")?,
        until: args.until,
        timeout: args.timeout,
        rows: Vec::new(),
        line,
        args,
        signals,
        store,
        desk,
        deadline,
        drive,
    };
    let opened = format!("pid {}, at most {} runs", me.pid, driving.record.max_runs);
    driving.store.note(
        &Change::of_driver(&driving.record, What::Opened, now)
            .because(opened.clone())
            .entry,
    );
    driving.log(
        0,
        &format!(
            "'again converge' begins: {}, {opened}",
            shown(&args.command)
        ),
    );
    let ending = driving.live();
    driving.conclude(ending)
}

/// Why we end, if it is not for the driver's own reasons.
#[derive(Debug)]
enum Ending {
    /// As the policy decided.
    Finish(Finish),
    /// By a signal.
    Signal(i32),
    /// An operator wanted no further run.
    Stopped,
    /// A run was ended because the time was over.
    TimedOut,
    /// The command could not be executed.
    NotExecuted(String, Exit),
}

/// A run in the summary at the end.
struct Row {
    run: u32,
    started: Walltime,
    took: Span,
    outcome: Outcome,
    end: End,
    asked_by: String,
}

struct Driving<'a> {
    args: &'a Converge,
    signals: SignalState,
    store: Store,
    desk: Desk,
    record: Driver,
    line: CommandLine,
    environment: Vec<OsString>,
    input: Option<Input>,
    drive: Drive,
    deadline: Option<Boottime>,
    timeout: Option<Span>,
    until: Until,
    /// What is known of the run, from the command line and from requests.
    is_agent: bool,
    detailed: bool,
    paths: Paths,
    sleeper: Sleeper,
    screen: Screen,
    rows: Vec<Row>,
}

/// How a run ended, and whether it was made to.
struct Ran {
    end: End,
    ending: Option<Ending>,
}

impl Driving<'_> {
    fn live(&mut self) -> Result<Ending> {
        loop {
            let now = clock::boottime();
            match self.drive.next(now) {
                Next::Wait(due, name) => {
                    if let Some(ending) = self.wait(due, &name)? {
                        return Ok(ending);
                    }
                }
                Next::Start(because) => {
                    if let Some(ending) = self.await_room(&because)? {
                        return Ok(ending);
                    }
                    // Judged again after that wait.
                    if self.drive.next(clock::boottime()) == Next::Start(because.clone())
                        && let Some(ending) = self.run(&because)?
                    {
                        return Ok(ending);
                    }
                }
                Next::Finish(finish) => {
                    if self.desk.close() {
                        return Ok(Ending::Finish(finish));
                    }
                    // One came in at the last moment.
                    self.take_requests(now);
                }
            }
        }
    }

    /// Sleeps until a timer is due. The ending, if a signal arrives.
    fn wait(&mut self, due: Boottime, name: &str) -> Result<Option<Ending>> {
        let next = self.drive.runs() + 1;
        let what = format!(
            "run {next} of at most {} (timer '{name}')",
            self.record.max_runs
        );
        if !self.screen.shows_progress() {
            let left = due.since(clock::boottime());
            self.screen.say(&format!("{what} starts in {left}"));
        }
        loop {
            let now = clock::boottime();
            if now >= due {
                return Ok(None);
            }
            let mut until = due;
            if self.screen.shows_progress() {
                let left = due.since(now);
                // Rounded up, so that it counts down to 1.
                let seconds = left.nanos().div_ceil(1_000_000_000);
                self.screen
                    .progress(&format!("{what} starts in {}", Span::from_secs(seconds)));
                until = now + Span::from_nanos(left.nanos() - (seconds - 1) * 1_000_000_000);
            }
            match self.sleeper.sleep(None, Some(until), None)? {
                Wake::Signal { number, .. } => return Ok(Some(Ending::Signal(number))),
                Wake::NoMore => return Ok(Some(Ending::Stopped)),
                Wake::Hurry => {
                    self.drive.hurry(clock::boottime());
                    self.screen.say("brought forward by 'again now'");
                    return Ok(None);
                }
                Wake::Child => {
                    foreground::reap(0);
                }
                Wake::Ended | Wake::Time | Wake::Changed => {}
            }
        }
    }

    /// Waits for another run of the agent to end, and while `again` is disabled.
    fn await_room(&mut self, because: &Because) -> Result<Option<Ending>> {
        // None: not set yet. Some(None): it cannot be had.
        let mut watch: Option<Option<Watch>> = None;
        loop {
            let holder = self
                .is_agent
                .then(|| live::lock_holder(&self.paths))
                .flatten();
            let disabled = self
                .store
                .disabled()
                .filter(|_| *because != Because::First)
                .map(|disabled| disabled.reason);
            let what = match (&holder, &disabled) {
                (Some(who), _) => format!("waits for the agent run with pid {} to end", who.pid),
                (None, Some(reason)) if reason.is_empty() => {
                    "again is disabled; waits for 'again enable'".to_owned()
                }
                (None, Some(reason)) => {
                    format!("again is disabled ({reason}); waits for 'again enable'")
                }
                (None, None) => {
                    self.note_held(None);
                    return Ok(None);
                }
            };
            self.note_held(Some(&what));
            let handle = holder.and_then(pidfd::hold);
            if holder.is_some() && handle.is_none() {
                continue;
            }
            if holder.is_none() && watch.is_none() {
                // Look once more after the watch is set, lest a change falls between.
                watch = Some(Watch::on([self.store.root()]).ok());
                self.screen.say(&what);
                continue;
            }
            if holder.is_some() {
                self.screen.say(&what);
            }
            let watched = watch.as_ref().and_then(Option::as_ref);
            let is_blind = holder.is_none() && watched.is_none();
            let look = is_blind.then(|| clock::boottime() + LOOK_AGAIN);
            let until = [self.deadline, look].into_iter().flatten().min();
            let woken = self.sleeper.sleep(handle.as_ref(), until, watched)?;
            match woken {
                Wake::Signal { number, .. } => return Ok(Some(Ending::Signal(number))),
                Wake::Child => {
                    foreground::reap(0);
                }
                Wake::NoMore => return Ok(Some(Ending::Stopped)),
                Wake::Time if self.deadline.is_some_and(|at| at <= clock::boottime()) => {
                    return Ok(Some(Ending::Finish(Finish::Timeout)));
                }
                Wake::Time => {}
                Wake::Ended | Wake::Changed | Wake::Hurry => {}
            }
        }
    }

    /// One run, from its start to the judgement of it.
    fn run(&mut self, because: &Because) -> Result<Option<Ending>> {
        let started = moment();
        let done = self.drive.begin(started.uptime);
        let number = self.drive.runs();
        let (timer, token) = match because {
            Because::Due(name) => done
                .iter()
                .find(|(n, _)| n == name)
                .map(|(n, timer)| (n.clone(), timer.token.clone())),
            _ => None,
        }
        .unwrap_or_else(|| (NO_TIMER.to_owned(), self.record.token.clone()));
        let asked_by = asked_by(because, &done);
        let line = format!(
            "run {number} of at most {}: {}",
            self.record.max_runs,
            shown(&self.args.command)
        );
        self.screen.say(&line);
        self.log(number, &line);
        let before = self.summary_stamp();
        if let Some(input) = &mut self.input {
            input.rewind();
        }
        let mut environment = self.environment.clone();
        if number > 1 {
            for (name, value) in [
                ("AGAIN_CHAIN", &self.record.chain),
                ("AGAIN_RUN", &number.to_string()),
                ("AGAIN_TIMER", &timer),
            ] {
                environment.push(format!("{name}={value}").into());
            }
        }
        let held = foreground::fork(&Plan {
            programs: &self.line.programs,
            arguments: &self.args.command,
            environment: &environment,
            signals: self.signals,
        })
        .context("cannot start a process")?;
        let child = held.process;
        // On record before it can ask for anything.
        self.record.run = number;
        self.record.child = Some(child);
        let on_record = self.publish().and_then(|()| {
            self.store.note_rerun(&Rerun {
                process: child,
                boot: self.record.boot.clone(),
                target: self.record.target.clone(),
                chain: self.record.chain.clone(),
                run: number,
                timer: timer.clone(),
                daemon: None,
            })
        });
        if let Err(e) = on_record {
            // It waits for us, and ends when it is not released.
            drop(held);
            self.store.forget_rerun(child);
            return Err(e);
        }
        let entry = |what, at: &Moment, reason: String| Entry {
            target: self.record.target.clone(),
            timer: timer.clone(),
            token: token.clone(),
            chain: self.record.chain.clone(),
            run: number,
            kind: if number == 1 {
                FIRST.to_owned()
            } else {
                String::new()
            },
            reason,
            ..Entry::new(what, at.clone())
        };
        let note = |what, at: &Moment, reason: String| self.store.note(&entry(what, at, reason));
        note(What::Started, &started, asked_by.clone());
        for (name, other) in done.iter().filter(|(name, _)| *name != timer) {
            let reason = format!("run {number} started after it was due");
            self.store
                .note(&self.timer_entry(name, other, What::Satisfied, &reason));
        }
        if let Err(e) = held.release() {
            self.store.forget_rerun(child);
            let reason = format!("cannot execute {}: {e}", shown(&self.args.command[..1]));
            note(What::Failed, &moment(), reason.clone());
            let exit = if e.kind() == std::io::ErrorKind::NotFound {
                Exit::NotFound
            } else {
                Exit::CannotExecute
            };
            return Ok(Some(Ending::NotExecuted(reason, exit)));
        }
        let ran = self.attend(child)?;
        let ended = moment();
        self.store.forget_rerun(child);
        self.record.child = None;
        let asked = self.take_requests(ended.uptime);
        let (outcome, evidence) = self.judge(&ran, before.as_ref(), &started);
        self.drive.end(outcome);
        self.store.note(&Entry {
            target: self.record.target.clone(),
            timer,
            token,
            chain: self.record.chain.clone(),
            run: number,
            kind: if number == 1 {
                FIRST.to_owned()
            } else {
                String::new()
            },
            outcome: Some(outcome),
            reason: evidence.clone(),
            ..Entry::new(What::Ended, ended.clone())
        });
        let took = ended.uptime.since(started.uptime);
        let asks = match asked.as_slice() {
            [] => "nothing new asked for".to_owned(),
            names => format!("asked for again by {}", names.join(", ")),
        };
        let line = |outcome: &dyn std::fmt::Display| {
            format!("run {number} {outcome} after {took} ({evidence}); {asks}")
        };
        self.screen.say(&line(&self.screen.painted(outcome)));
        self.log(number, &line(&outcome));
        self.rows.push(Row {
            run: number,
            started: started.wall,
            took,
            outcome,
            end: ran.end,
            asked_by,
        });
        // Readers of the record see what is pending; it serves nothing else.
        if let Err(e) = self.publish() {
            tracing::warn!("{e:#}");
        }
        Ok(ran.ending)
    }

    /// Tells the system's log of a change, in the words of the terminal.
    fn log(&self, run: u32, line: &str) {
        change::log(&self.record.target, "", &self.record.chain, run, line);
    }

    /// For `status`; the run that follows puts its own state on record.
    fn note_held(&mut self, what: Option<&str>) {
        if self.record.held.as_deref() == what {
            return;
        }
        self.record.held = what.map(str::to_owned);
        if what.is_some()
            && let Err(e) = self.publish()
        {
            tracing::debug!("{e:#}");
        }
    }

    fn publish(&mut self) -> Result<()> {
        self.record.timers = self
            .drive
            .timers()
            .iter()
            .map(|(name, timer)| (name.clone(), timer.due))
            .collect();
        let timers = &self.record.timers;
        self.record
            .resources
            .retain(|name, _| timers.contains_key(name));
        self.desk.publish(&self.record)
    }

    /// Waits for the run to end, and passes on what we are told.
    fn attend(&mut self, child: Identity) -> Result<Ran> {
        let mut ending: Option<Ending> = None;
        let mut told: Vec<Identity> = Vec::new();
        let mut times = 0;
        let mut kill_at: Option<Boottime> = None;
        let end = loop {
            // Until something ends the run for certain.
            let limit = self.deadline.filter(|_| kill_at.is_none());
            let until = [limit, kill_at].into_iter().flatten().min();
            match self.sleeper.sleep(None, until, None)? {
                Wake::Child => {
                    if let Some(end) = foreground::reap(child.pid) {
                        break end;
                    }
                }
                Wake::Signal {
                    number,
                    by_terminal,
                } => {
                    times += 1;
                    let now = clock::boottime();
                    told.extend(pass_on(child, number, by_terminal));
                    ending.get_or_insert(Ending::Signal(number));
                    kill_at = match times {
                        1 => kill_at,
                        2 => Some(kill_at.unwrap_or(now + GRACE)),
                        _ => Some(now),
                    };
                    match times {
                        1 => self.screen.say(&format!(
                            "signal {number}: waits for the run to end (pid {})",
                            child.pid
                        )),
                        2 => self.screen.say(&format!(
                            "signal {number} again: the run is killed in {GRACE} if it does not end"
                        )),
                        _ => {}
                    }
                }
                Wake::Time => {
                    let now = clock::boottime();
                    if kill_at.is_some_and(|at| at <= now) {
                        kill_all(child);
                        // Once more, for what was forked meanwhile.
                        kill_at = Some(now + Span::from_secs(1));
                    } else if limit.is_some_and(|at| at <= now) {
                        self.screen.say(&format!(
                            "the time is over: the run is ended (pid {}), and killed in {GRACE} if it does not end",
                            child.pid
                        ));
                        told.extend(pass_on(child, nix::libc::SIGTERM, false));
                        ending.get_or_insert(Ending::TimedOut);
                        kill_at = Some(now + GRACE);
                    }
                }
                // What is pending is known only when the run has ended.
                Wake::Ended | Wake::Changed | Wake::Hurry | Wake::NoMore => {}
            }
        };
        self.see_off(&told, kill_at)?;
        Ok(Ran { end, ending })
    }

    /// Waits for what was told to end and outlives the run itself: a wrapper may have
    /// ended before the puppet below it. For a while only, since a daemon that was
    /// started here may ignore what it was told; it is killed if the run would be.
    fn see_off(&mut self, told: &[Identity], kill_at: Option<Boottime>) -> Result<()> {
        let patience = kill_at.unwrap_or(clock::boottime() + GRACE);
        let mut kill = kill_at.is_some();
        while let Some(handle) = told.iter().find_map(|who| pidfd::open(*who).ok()) {
            match self.sleeper.sleep(Some(&handle), Some(patience), None)? {
                Wake::Child => {
                    foreground::reap(0);
                }
                Wake::Signal { .. } => {
                    kill = true;
                    break;
                }
                Wake::Time => break,
                Wake::Ended | Wake::Changed | Wake::Hurry | Wake::NoMore => {}
            }
        }
        for handle in told.iter().filter_map(|who| pidfd::open(*who).ok()) {
            if kill && handle.signal(nix::libc::SIGKILL).is_ok() {
                handle.wait(Duration::from_nanos(GRACE.nanos()));
            }
        }
        Ok(())
    }

    /// Takes what was handed over; the names of the timers.
    fn take_requests(&mut self, run_ended: Boottime) -> Vec<String> {
        let mut names = Vec::new();
        for handed in self.desk.take() {
            let Handed {
                token,
                name,
                resource,
                delta,
                jitter,
                base,
                requested,
                kind,
                detailed,
                paths,
                ..
            } = handed;
            if let Some(kind) = kind {
                self.is_agent |= matches!(kind, Kind::Agent | Kind::Daemon);
                self.detailed |= detailed;
                self.paths = paths;
            }
            let range = jitter.unwrap_or(Span::ZERO);
            let ask = Ask {
                name: name.clone(),
                token,
                delta,
                jitter: delay::draw(range, &mut rand::rng()),
                base,
                requested: requested.uptime,
            };
            match resource {
                Some(resource) => self.record.resources.insert(name.clone(), resource),
                None => self.record.resources.remove(&name),
            };
            if let Some(old) = self.drive.ask(ask, run_ended) {
                let reason = "replaced by a newer request of the same name";
                self.store
                    .note(&self.timer_entry(&name, &old, What::Merged, reason));
            }
            let shown = format!("'{name}'");
            if !names.contains(&shown) {
                names.push(shown);
            }
        }
        names
    }

    fn timer_entry(&self, name: &str, timer: &Timer, what: What, reason: &str) -> Entry {
        Entry {
            target: self.record.target.clone(),
            timer: name.to_owned(),
            token: timer.token.clone(),
            chain: self.record.chain.clone(),
            run: timer.asked_by.saturating_add(1),
            reason: reason.to_owned(),
            ..Entry::new(what, moment())
        }
    }

    /// Which file the summary is at this moment.
    fn summary_stamp(&self) -> Option<(PathBuf, Option<Stamp>)> {
        let path = self.paths.lastrunfile.as_ref()?.path();
        let stamp = Stamp::of(&path);
        Some((path, stamp))
    }

    /// How a run went, and what that is known by.
    fn judge(
        &self,
        ran: &Ran,
        before: Option<&(PathBuf, Option<Stamp>)>,
        started: &Moment,
    ) -> (Outcome, String) {
        let path = self.paths.lastrunfile.as_ref().map(Bytes::path);
        let summary = path.and_then(|path| {
            let summary = Summary::parse(&outcome::read_summary(&path).ok()?);
            let fresh = match before.filter(|(known, _)| *known == path) {
                Some((_, stamp)) => *stamp != Stamp::of(&path),
                // Only now is it known where it is; Puppet gives whole seconds.
                None => summary.last_run()? >= started.wall.millis() / 1000,
            };
            summary.outcome().filter(|_| fresh)
        });
        let lock_is_taken = self.is_agent && live::lock_holder(&self.paths).is_some();
        let outcome = judge(&Evidence {
            end: ran.end,
            detailed: self.detailed,
            summary: summary.as_ref().map(|(outcome, _)| *outcome),
            lock_is_taken,
        });
        let mut evidence = match ran.end {
            End::Exit(status) => format!("exit status {status}"),
            End::Signal(signal) => format!("signal {signal}"),
        };
        if let Some((what, numbers)) = &summary {
            evidence = match (ran.end, what) {
                (End::Exit(0), _) | (End::Exit(2), Outcome::Changed) => numbers.clone(),
                _ => format!("{evidence}, {numbers}"),
            };
        } else if outcome == Outcome::Skipped {
            evidence.push_str(", another run of the agent was under way");
        } else if outcome == Outcome::Failed
            && self.is_agent
            && let Some(reason) = live::agent_disabled(&self.paths)
        {
            evidence = format!("{evidence}, the agent is disabled: {reason}");
        }
        (outcome, evidence)
    }

    /// Says how it all ended, and gives the exit status.
    fn conclude(mut self, ending: Result<Ending>) -> Result<i32> {
        let now = moment();
        let runs = self.drive.runs();
        let took = now.uptime.since(self.record.began.uptime);
        let so_far = format!("{runs} run{} in {took}", plural(runs as usize));
        let (status, text) = match &ending {
            Ok(ending) => self.verdict(ending, &so_far),
            Err(e) => (Exit::Failure as i32, format!("error: {e:#}")),
        };
        for (name, timer) in self.drive.timers() {
            self.store
                .note(&self.timer_entry(name, timer, What::Stopped, &text));
        }
        self.store.note(
            &Change::of_driver(&self.record, What::Closed, now)
                .because(text.clone())
                .entry,
        );
        self.log(runs, &format!("'again converge' ends: {text}"));
        self.screen.table(&self.rows);
        self.screen.clear();
        let Driving { screen, desk, .. } = self;
        // The record goes before the last word: who reads it finds us gone.
        drop(desk);
        let ending = ending?;
        let good = matches!(ending, Ending::Finish(Finish::Converged));
        complain(&format!("again: {}", screen.paint(&text, good)));
        if let Ending::Signal(signal) = ending
            && signal == nix::libc::SIGINT
        {
            // A shell ends its script too if we die of it (bash(1), SIGNALS).
            foreground::die_by(signal);
        }
        Ok(status)
    }

    fn verdict(&self, ending: &Ending, so_far: &str) -> (i32, String) {
        let pending = || -> String {
            let names: Vec<String> = self
                .drive
                .timers()
                .keys()
                .map(|name| format!("'{name}'"))
                .collect();
            if self.drive.runs() == 0 {
                "not even a first one".to_owned()
            } else if names.is_empty() {
                "the last run changed something".to_owned()
            } else {
                format!("still asked for by {}", names.join(", "))
            }
        };
        match ending {
            Ending::Finish(Finish::Converged) => {
                let why = match self.until {
                    Until::Requests => "nothing asks for more",
                    Until::Clean => "the last run changed nothing, and nothing asks for more",
                };
                (0, format!("converged: {why} ({so_far})"))
            }
            Ending::Finish(Finish::Failed) => {
                let last = self.rows.last();
                let (status, what) = match last.map(|row| row.end) {
                    Some(End::Signal(n)) => (BY_SIGNAL + n, format!("was killed by signal {n}")),
                    _ => (Exit::Failure as i32, "failed".to_owned()),
                };
                let run = self.drive.runs();
                (status, format!("failed: run {run} {what} ({so_far})"))
            }
            Ending::Finish(Finish::Unclear) => (
                Exit::Failure as i32,
                format!(
                    "failed: whether the last run changed anything cannot be known: it wrote no summary that was found, and has no --detailed-exitcodes; use --until requests ({so_far})"
                ),
            ),
            Ending::Finish(Finish::Cap) => (
                Exit::NotConverged as i32,
                format!(
                    "not converged: the cap of {} runs is reached, {} ({so_far}); it does not settle, or needs a higher --max-runs",
                    self.record.max_runs,
                    pending()
                ),
            ),
            Ending::Finish(Finish::Timeout) => (
                Exit::NotConverged as i32,
                format!(
                    "not converged: no further run can start within the timeout of {}, {} ({so_far})",
                    self.timeout.unwrap_or(Span::ZERO),
                    pending()
                ),
            ),
            Ending::TimedOut => (
                Exit::NotConverged as i32,
                format!(
                    "not converged: run {} was ended at the timeout of {} ({so_far})",
                    self.drive.runs(),
                    self.timeout.unwrap_or(Span::ZERO)
                ),
            ),
            Ending::Signal(signal) => (
                BY_SIGNAL + signal,
                format!("ended by signal {signal} ({so_far})"),
            ),
            Ending::Stopped => (
                BY_SIGNAL + nix::libc::SIGTERM,
                format!("ended by 'again stop' ({so_far})"),
            ),
            Ending::NotExecuted(reason, exit) => (*exit as i32, format!("error: {reason}")),
        }
    }
}

/// Why a run starts, in the words of the table.
fn asked_by(because: &Because, done: &[(String, Timer)]) -> String {
    match because {
        Because::First => "-".to_owned(),
        Because::NotClean => "--until clean".to_owned(),
        Because::Busy => "the run before was skipped".to_owned(),
        Because::Due(_) => done
            .iter()
            .map(|(name, timer)| format!("'{name}' in run {}", timer.asked_by))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// A command line for people, cut short.
fn shown(command: &[OsString]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| quoted(&word.to_string_lossy()))
        .collect();
    let line = words.join(" ");
    if line.chars().count() > 100 {
        line.chars().take(99).chain(['…']).collect()
    } else {
        line
    }
}

/// The environment of every run: ours, without what marks a rerun, and with the
/// state directory if it was named on the command line, so that requests find us.
fn environment_of_runs(
    around: &Surroundings,
    global: &Global,
    settings: &Settings,
) -> Vec<OsString> {
    use std::os::unix::ffi::OsStrExt;
    let named = global.state_dir.is_some() || global.config.is_some();
    let entries = around
        .environment
        .iter()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .filter(|entry| !named || environment::name(entry) != b"AGAIN_STATE_DIR")
        .collect();
    let mut entries = environment::without_ours(entries);
    if named {
        let directory = settings.state_dir.as_os_str().as_bytes();
        entries.push([b"AGAIN_STATE_DIR=", directory].concat());
    }
    entries.iter().map(|entry| os(entry)).collect()
}

/// Tells the run to end: what ^C on our terminal would reach, that is the run
/// itself and what is below it in our process group. From the terminal they have
/// it already. Returns who knows now.
fn pass_on(run: Identity, signal: i32, by_terminal: bool) -> Vec<Identity> {
    let group = terminal::own_group();
    let own = process::stat(run.pid).map_or(0, |stat| stat.pgrp);
    std::iter::once((run, own))
        .chain(process::descendants(run.pid))
        .filter(|(who, its)| *who == run || *its == group)
        .map(|(who, its)| {
            if !(by_terminal && its == group)
                && let Ok(handle) = pidfd::open(who)
            {
                let _ = handle.signal(signal);
            }
            who
        })
        .collect()
}

/// Kills the run and everything below it.
fn kill_all(run: Identity) {
    let below = process::descendants(run.pid);
    for who in std::iter::once(run).chain(below.into_iter().map(|(who, _)| who)) {
        if let Ok(handle) = pidfd::open(who) {
            let _ = handle.signal(nix::libc::SIGKILL);
        }
    }
}

/// What tells one version of a file from the next: Puppet replaces its summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Stamp {
            inode: meta.ino(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// A regular file on standard input, which every run reads from the same place.
struct Input {
    file: File,
    from: u64,
}

impl Input {
    fn now() -> Option<Self> {
        let mut file = File::from(foreground::standard_input().ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let from = file.stream_position().ok()?;
        Some(Input { file, from })
    }

    fn rewind(&mut self) {
        let _ = self.file.seek(SeekFrom::Start(self.from));
    }
}

/// Standard error, and what may be done on it.
struct Screen {
    terminal: bool,
    look: Look,
    /// A progress line stands there without a line feed.
    progress: bool,
}

/// The widest progress line: one that fits a terminal of the usual size.
const WIDEST: usize = 79;

impl Screen {
    fn new(around: &Surroundings) -> Self {
        let variable = |name: &str| {
            around
                .environment
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, value)| value.as_os_str())
                .filter(|value| !value.is_empty())
        };
        let terminal =
            std::io::stderr().is_terminal() && variable("TERM").is_some_and(|term| term != "dumb");
        Screen {
            terminal,
            look: Look::new(
                terminal.then_some(WIDEST),
                variable("NO_COLOR"),
                variable("TERM"),
            ),
            progress: false,
        }
    }

    /// Never from the background, where it would write over somebody's prompt.
    fn shows_progress(&self) -> bool {
        self.terminal && terminal::is_in_foreground()
    }

    fn say(&mut self, what: &str) {
        self.clear();
        complain(&format!("again: converge: {what}"));
    }

    fn progress(&mut self, what: &str) {
        use std::io::Write;
        let line: String = format!("again: converge: {what}")
            .chars()
            .take(WIDEST)
            .collect();
        let _ = write!(std::io::stderr(), "\r\x1b[2K{line}");
        self.progress = true;
    }

    fn clear(&mut self) {
        use std::io::Write;
        if std::mem::take(&mut self.progress) {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }

    fn paint(&self, text: &str, good: bool) -> String {
        let tone = if good { Tone::Good } else { Tone::Bad };
        self.look.paint(tone, text)
    }

    fn painted(&self, outcome: Outcome) -> String {
        self.paint(&outcome.to_string(), !outcome.is_failure())
    }

    /// The runs, one line each.
    fn table(&mut self, rows: &[Row]) {
        if rows.is_empty() {
            return;
        }
        self.clear();
        complain("  run  started    took    outcome    asked by");
        for row in rows {
            let at = localtime::local(row.started);
            let time = at.split(' ').nth(1).unwrap_or(&at);
            let outcome = format!("{:<9}", row.outcome.to_string());
            complain(&format!(
                "{:>5}  {time:<9}  {:<6}  {}  {}",
                row.run,
                row.took.to_string(),
                self.paint(&outcome, !row.outcome.is_failure()),
                row.asked_by
            ));
        }
    }
}
