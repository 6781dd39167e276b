//! `again stop`: cancels timers, and with `--run` ends reruns under way.

use std::time::Duration;

use anyhow::Result;

use super::say;
use crate::cli::{Global, Run, Stop};
use crate::config::{self, Surroundings};
use crate::model::{Exit, Span};
use crate::outcome;
use crate::state::change::{self, Change};
use crate::state::driver::{self, Driver};
use crate::state::history::What;
use crate::state::leaving;
use crate::state::record::{Leaving, Running, Timer};
use crate::state::store::Store;
use crate::sys::clock::moment;
use crate::sys::process::is_alive;
use crate::sys::{clock, pidfd, sleep, user};

/// How long a rerun may take to end after TERM.
const GRACE: Duration = Duration::from_secs(10);

/// How long a driver that waits may take to end.
const PROMPT: Duration = Duration::from_secs(2);
/// Ruby loses a signal that reaches it within its first moments; how long a run is young
/// enough for that, on a slow machine.
const LOADING: Span = Span::from_secs(5);
/// After which a young run is told once more.
const REMINDER: Duration = Duration::from_secs(1);

/// Stops what is named, or everything.
///
/// # Errors
/// What could not be stopped; the rest was.
pub fn main(global: &Global, args: &Stop) -> Result<Exit> {
    let settings = config::settings(global, &Run::default(), &Surroundings::of_this_process())?;
    let store = Store::existing(&settings.state_dir);
    let is_wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|n| n == name);
    let mut found: Vec<String> = Vec::new();
    let mut failures: Vec<String> = Vec::new();
    for id in store.targets() {
        match stop_target(&store, &id, &is_wanted, args.run) {
            Ok((timers, runs, failed)) => {
                failures.extend(failed);
                found.extend(timers);
                found.extend(runs);
            }
            Err(e) => failures.push(format!("target {id}: {e:#}")),
        }
    }
    if let Err(e) = stop_drivers(&store, args, &mut found, &mut failures) {
        failures.push(format!("{e:#}"));
    }
    super::conclude(&args.names, &found, &failures, &store)
}

/// What is said of a rerun that needed no signal.
const HAD_ENDED: &str = "it had ended";

type Stopped = (Vec<String>, Vec<String>, Vec<String>);

fn stop_target(
    store: &Store,
    id: &str,
    is_wanted: &dyn Fn(&str) -> bool,
    with_runs: bool,
) -> Result<Stopped> {
    let Some(record) = store.read(id)? else {
        return Ok((Vec::new(), Vec::new(), Vec::new()));
    };
    let here = |run: &Running| run.started.boot == clock::boot_id() && is_alive(run.process);
    for run in record.running.iter().filter(|run| here(run) && !with_runs) {
        if is_wanted(&run.timer) {
            let _ = say(&format!(
                "again: left alone: run {} of chain {} is under way (pid {}); 'again stop --run' ends it",
                run.run, run.chain, run.process.pid
            ));
        }
    }
    // Locked even if nothing is on record: a request may be about to commit.
    let mut locked = store.lock_existing(id)?;
    let record = &locked.record;
    let concerns_us = record.timers.keys().any(|name| is_wanted(name))
        || !record.leaving.is_empty()
        || (with_runs && !record.running.is_empty());
    if !concerns_us {
        return Ok((Vec::new(), Vec::new(), Vec::new()));
    }
    let now = moment();
    let settled = outcome::settle(&mut locked.record, &now);
    let names: Vec<String> = locked
        .record
        .timers
        .keys()
        .filter(|name| is_wanted(name))
        .cloned()
        .collect();
    let timers: Vec<(String, Timer)> = names
        .into_iter()
        .filter_map(|name| locked.record.take_timer(&name).map(|timer| (name, timer)))
        .collect();
    // From this commit on no waiter of these timers starts anything.
    if let Err(e) = locked.commit() {
        // On a full disk, say. Without their waiters the timers start nothing either,
        // and their orders make room for another try.
        let leaving: Vec<Leaving> = timers.iter().map(|(_, timer)| timer.into()).collect();
        leaving::dismiss_all(store, id, &leaving, &now.boot, &mut || false);
        locked
            .commit()
            .map_err(|_| e.context("the waiters were ended, but their timers stay on record"))?;
    }
    settled.note(store);
    let running = locked.record.running.clone();
    let kind = locked.record.kind;
    drop(locked);

    let mut failures = Vec::new();
    let mut stopped = Vec::new();
    let stayed = leaving::clean_up(store, id, &mut || false)?;
    for (name, timer) in timers {
        if stayed.contains(&timer.token) {
            failures.push(format!(
                "the waiter of timer '{name}' does not end; it will start nothing"
            ));
        }
        let by = format!("stopped by {}", user::name(user::effective()));
        let when = timer.due.map_or_else(
            || format!("{} after its run", timer.delta),
            |due| format!("due in {}", due.since(clock::boottime())),
        );
        let change = Change::of_timer(id, &name, &timer, What::Stopped, moment())
            .because(by)
            .saying(format!(
                "again: stopped: timer '{name}' of {kind} (run {} of chain {}, {when})",
                timer.run, timer.chain
            ));
        store.note(&change.entry);
        let _ = super::say_change(&change);
        stopped.push(name);
    }
    let mut ended = Vec::new();
    let mut by_us = Vec::new();
    for run in running
        .into_iter()
        .filter(|run| with_runs && is_wanted(&run.timer))
    {
        match end_run(&run) {
            Ok(how) => {
                let line = format!(
                    "again: stopped: run {} of chain {} (pid {}, {how})",
                    run.run, run.chain, run.process.pid
                );
                change::log(id, &run.timer, &run.chain, run.run, &line);
                let _ = say(&line);
                by_us.push((run.process, how));
                ended.push(run.timer.clone());
            }
            Err(e) => failures.push(format!(
                "run {} of chain {} (pid {}): {e}",
                run.run, run.chain, run.process.pid
            )),
        }
    }
    if !ended.is_empty() {
        let mut locked = store.lock_existing(id)?;
        for run in &mut locked.record.running {
            let how = by_us.iter().find(|(process, _)| *process == run.process);
            if let Some((_, how)) = how.filter(|(_, how)| *how != HAD_ENDED) {
                run.stopped = Some(format!("{how}, by {}", user::name(user::effective())));
            }
        }
        let settled = outcome::settle(&mut locked.record, &moment());
        locked.commit()?;
        settled.note(store);
    }
    Ok((stopped, ended, failures))
}

/// Ends the converge drivers that hold what is named; one with a run under way only if that is wanted too.
fn stop_drivers(
    store: &Store,
    args: &Stop,
    found: &mut Vec<String>,
    failures: &mut Vec<String>,
) -> Result<()> {
    for driver in driver::living(store)? {
        let Some(held) = super::held_by(&driver, &args.names) else {
            continue;
        };
        let who = super::converge_of(&driver);
        found.extend(held.named);
        if !held.other.is_empty() {
            failures.push(format!(
                "{who} also holds timer {}, and stops only as a whole: name all of them, or none",
                held.other.join(", ")
            ));
            continue;
        }
        match end_driver(&driver, args.run) {
            Ok(true) => {
                let line = format!(
                    "again: stopped: {who} (after run {} of chain {})",
                    driver.run, driver.chain
                );
                change::log(&driver.target, "", &driver.chain, driver.run, &line);
                let _ = say(&line);
            }
            Ok(false) => {
                let _ = say(&format!(
                    "again: left alone: {who} has a run under way (run {} of chain {}); 'again stop --run' ends both",
                    driver.run, driver.chain
                ));
            }
            Err(e) => failures.push(format!("cannot end {who}: {e}")),
        }
        found.push("converge".to_owned());
    }
    Ok(())
}

/// Ends a driver. False if it has a run under way that is to go on.
///
/// The driver decides whether it has: it may start one at this moment.
fn end_driver(driver: &Driver, with_run: bool) -> std::io::Result<bool> {
    let handle = match pidfd::open(driver.process) {
        Ok(handle) => handle,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(e),
    };
    if !with_run {
        if driver.child.is_some_and(is_alive) {
            return Ok(false);
        }
        handle.signal(sleep::NO_MORE)?;
        return Ok(handle.wait(PROMPT));
    }
    // It passes each on to its run; from the second on it kills what does not end.
    for _ in 0..3 {
        handle.signal(nix::libc::SIGTERM)?;
        if handle.wait(GRACE) {
            return Ok(true);
        }
    }
    Err(std::io::Error::other("it does not end"))
}

/// TERM, and KILL if that does not help; only ever to the process on record.
fn end_run(run: &Running) -> std::io::Result<&'static str> {
    let handle = match pidfd::open(run.process) {
        Ok(handle) => handle,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(HAD_ENDED),
        Err(e) => return Err(e),
    };
    handle.signal(nix::libc::SIGTERM)?;
    let mut has_ended = false;
    if clock::boottime().since(run.started.uptime) < LOADING {
        has_ended = handle.wait(REMINDER);
        if !has_ended && handle.signal(nix::libc::SIGTERM).is_err() {
            has_ended = handle.wait(Duration::ZERO);
        }
    }
    if has_ended || handle.wait(GRACE) {
        return Ok("ended by TERM");
    }
    handle.signal(nix::libc::SIGKILL)?;
    if handle.wait(GRACE) {
        return Ok("ended by KILL");
    }
    Err(std::io::Error::other("it does not end, not even by KILL"))
}
