//! `again stop`: cancels timers, and with `--run` ends reruns under way.

use std::time::Duration;

use anyhow::{Result, bail};

use super::say;
use crate::arm::{self, entry};
use crate::cli::{Global, Run, Stop};
use crate::config::{self, Surroundings};
use crate::exit::Exit;
use crate::outcome;
use crate::state::history::What;
use crate::state::record::{Leaving, Running, Timer};
use crate::state::store::Store;
use crate::sys::{clock, pidfd, user};

/// How long a rerun may take to end after TERM.
const GRACE: Duration = Duration::from_secs(10);

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
    super::say_what_is_not_pending(&args.names, &found, &failures, &store)?;
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(Exit::Success)
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
    if store.read(id)?.is_none() {
        return Ok((Vec::new(), Vec::new(), Vec::new()));
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
    let now = super::moment();
    outcome::settle(store, &mut locked.record, &now);
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
        arm::dismiss_all(store, id, &leaving, &now.boot, &mut || false);
        locked
            .commit()
            .map_err(|_| e.context("the waiters were ended, but their timers stay on record"))?;
    }
    let running = locked.record.running.clone();
    let kind = locked.record.kind;
    drop(locked);

    let mut failures = Vec::new();
    let mut stopped = Vec::new();
    let stayed = arm::clean_up(store, id, &mut || false)?;
    for (name, timer) in timers {
        if stayed.contains(&timer.token) {
            failures.push(format!(
                "the waiter of timer '{name}' does not end; it will start nothing"
            ));
        }
        let by = format!("stopped by {}", user::name(user::effective()));
        store.note(&entry(id, &name, &timer, What::Stopped, &by));
        let when = timer.due.map_or_else(
            || format!("{} after its run", timer.delta),
            |due| format!("due in {}", due.since(clock::boottime())),
        );
        tell(&format!(
            "again: stopped: timer '{name}' of {kind} (run {} of chain {}, {when})",
            timer.run, timer.chain
        ));
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
                tell(&format!(
                    "again: stopped: run {} of chain {} (pid {}, {how})",
                    run.run, run.chain, run.process.pid
                ));
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
        outcome::settle(store, &mut locked.record, &super::moment());
        locked.commit()?;
    }
    Ok((stopped, ended, failures))
}

/// Says what was done; a reader that has gone is no reason to stop stopping.
fn tell(line: &str) {
    let _ = say(line);
}

/// TERM, and KILL if that does not help; only ever to the process on record.
fn end_run(run: &Running) -> std::io::Result<&'static str> {
    let handle = match pidfd::open(run.process) {
        Ok(handle) => handle,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(HAD_ENDED),
        Err(e) => return Err(e),
    };
    handle.signal(nix::libc::SIGTERM)?;
    if handle.wait(GRACE) {
        return Ok("ended by TERM");
    }
    handle.signal(nix::libc::SIGKILL)?;
    if handle.wait(GRACE) {
        return Ok("ended by KILL");
    }
    Err(std::io::Error::other("it does not end, not even by KILL"))
}
