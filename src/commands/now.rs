//! `again now`: pending timers wait no longer for their time.

use anyhow::Result;

use super::{has_waiter, say};
use crate::cli::{Global, Names, Run};
use crate::config::{self, Surroundings};
use crate::model::{Exit, Identity, Moment};
use crate::policy::cap;
use crate::policy::hurry::{Hurry, hurry};
use crate::state::record::{Record, Timer};
use crate::state::store::Store;
use crate::state::{change, driver};
use crate::sys::clock::moment;
use crate::sys::process::is_alive;
use crate::sys::{pidfd, sleep};

/// Hurries what is named, or everything.
///
/// # Errors
/// What could not be hurried; the rest was.
pub fn main(global: &Global, args: &Names) -> Result<Exit> {
    let settings = config::settings(global, &Run::default(), &Surroundings::of_this_process())?;
    let store = Store::existing(&settings.state_dir);
    let is_wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|n| n == name);
    let mut found: Vec<String> = Vec::new();
    let mut failures: Vec<String> = Vec::new();
    for id in store.targets() {
        match hurry_target(&store, &id, &is_wanted, &mut found) {
            Ok(failed) => failures.extend(failed),
            Err(e) => failures.push(format!("target {id}: {e:#}")),
        }
    }
    if let Err(e) = hurry_drivers(&store, args, &mut found, &mut failures) {
        failures.push(format!("{e:#}"));
    }
    super::conclude(&args.names, &found, &failures, &store)
}

/// Brings forward what converge drivers wait for.
fn hurry_drivers(
    store: &Store,
    args: &Names,
    found: &mut Vec<String>,
    failures: &mut Vec<String>,
) -> Result<()> {
    for driver in driver::living(store)? {
        let Some(held) = super::held_by(&driver, &args.names) else {
            continue;
        };
        let run = driver.child.filter(|run| is_alive(*run));
        if driver.timers.is_empty() && run.is_none() {
            continue;
        }
        let who = super::converge_of(&driver);
        let timers: Vec<String> = held.named.iter().map(|name| format!("'{name}'")).collect();
        let timers = timers.join(", ");
        found.extend(held.named);
        if !held.other.is_empty() {
            failures.push(format!(
                "{who} also holds timer {}, and all of them can only be brought forward together: name all of them, or none",
                held.other.join(", ")
            ));
        } else if let Some(run) = run {
            found.push("converge".to_owned());
            say(&format!(
                "again: nothing to do: {who} has a run under way (pid {})",
                run.pid
            ))?;
        } else {
            match pidfd::open(driver.process).and_then(|driver| driver.signal(sleep::HURRY)) {
                Ok(()) => {
                    let run = driver.run.saturating_add(1);
                    let line = format!(
                        "again: brought forward: timer {timers} of {who} is due now (run {run} of chain {})",
                        driver.chain
                    );
                    change::log(&driver.target, "", &driver.chain, run, &line);
                    say(&line)?;
                }
                Err(e) => failures.push(format!("{who} cannot be woken: {e}")),
            }
        }
    }
    Ok(())
}

fn hurry_target(
    store: &Store,
    id: &str,
    is_wanted: &dyn Fn(&str) -> bool,
    found: &mut Vec<String>,
) -> Result<Vec<String>> {
    // Looked at without its lock first: nothing of it may concern us.
    let concerns_us = store
        .read(id)?
        .is_some_and(|record| record.timers.keys().any(|name| is_wanted(name)));
    if !concerns_us {
        return Ok(Vec::new());
    }
    let mut locked = store.lock_existing(id)?;
    let now = moment();
    let disabled = store.disabled();
    let mut idle = Vec::new();
    let mut lines = Vec::new();
    let mut failures = Vec::new();
    let mut wake = Vec::new();
    let before = locked.record.clone();
    for (name, timer) in locked
        .record
        .timers
        .iter_mut()
        .filter(|(name, _)| is_wanted(name))
    {
        found.push(name.clone());
        let what = format!("timer '{name}' of {}", before.kind);
        let which = format!("run {} of chain {}", timer.run, timer.chain);
        match hurry(
            timer.pending(),
            has_waiter(store, id, timer, &now.boot),
            now.uptime,
        ) {
            Hurry::Dead => failures.push(format!(
                "the waiter of timer '{name}' is dead, and nothing will start it ({which}); 'again resume' gives it another, 'again stop' clears it"
            )),
            Hurry::Already => {
                idle.push(format!(
                    "again: nothing to do: {what} does not wait for its time any longer ({which}; {})",
                    waits_for(&before, timer)
                ));
                // It may know of a later time that it could not write down.
                wake.push((name.clone(), timer.waiter));
            }
            Hurry::Changed(pending) => {
                let usage = cap::usage(timer.cap, before.moments(), &now);
                let line = match (&disabled, usage.is_reached()) {
                    (Some(disabled), _) => format!(
                        "again: brought forward: {what} no longer waits for its time, but is held until 'again enable' ({which}; again is disabled ({}))",
                        disabled.reason
                    ),
                    (None, true) => format!(
                        "again: brought forward: {what} no longer waits for its time, but for the cap, which allows the next rerun in {} ({which}; {} of {} reruns within {} used; 'again reset' forgets them)",
                        usage.frees_in, usage.used, timer.cap.max_runs, timer.cap.window
                    ),
                    (None, false) => brought_forward(&what, &which, timer, &now),
                };
                lines.push((name.clone(), timer.chain.clone(), timer.run, line));
                timer.set_pending(pending, &now);
                wake.push((name.clone(), timer.waiter));
            }
        }
    }
    if locked.record != before {
        locked.commit()?;
    }
    // Still under the lock: a waiter leaves the record under it before it becomes
    // the rerun, so none of these has, and no rerun gets the signal.
    for (name, waiter) in wake {
        if let Err(e) = wake_waiter(waiter) {
            failures.push(format!("the waiter of timer '{name}' cannot be woken: {e}"));
        }
    }
    drop(locked);
    for line in idle {
        say(&line)?;
    }
    for (timer, chain, run, line) in lines {
        change::log(id, &timer, &chain, run, &line);
        say(&line)?;
    }
    Ok(failures)
}

/// Makes a waiter look at its record. Call with the target's lock held.
///
/// # Errors
/// Those of pidfd_open(2) and pidfd_send_signal(2).
pub fn wake_waiter(waiter: Option<Identity>) -> std::io::Result<()> {
    let nobody = || std::io::Error::from(std::io::ErrorKind::NotFound);
    pidfd::open(waiter.ok_or_else(nobody)?)?.signal(sleep::HURRY)
}

fn brought_forward(what: &str, which: &str, timer: &Timer, now: &Moment) -> String {
    let was = match timer.due {
        Some(due) => format!("it was due in {}", due.since(now.uptime)),
        None => format!("it would have waited {} more", timer.delta + timer.jitter),
    };
    match timer.waits_for.filter(|who| is_alive(*who)) {
        Some(run) => format!(
            "again: brought forward: {what} starts as soon as its run has ended ({which}; waits for pid {}; {was})",
            run.pid
        ),
        None => format!("again: brought forward: {what} is due now ({which}; {was})"),
    }
}

/// What a timer waits for when it is not its time.
fn waits_for(record: &Record, timer: &Timer) -> String {
    if let Some(run) = timer.waits_for.filter(|who| is_alive(*who)) {
        return format!("it waits for its run to end, pid {}", run.pid);
    }
    if let Some(rerun) = record.running.iter().find(|run| is_alive(run.process)) {
        return format!("it waits for a rerun to end, pid {}", rerun.process.pid);
    }
    match &timer.held {
        Some(reason) => format!("it is held: {reason}"),
        None => "it is due".to_owned(),
    }
}
