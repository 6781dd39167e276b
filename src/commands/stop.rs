//! `again stop`: cancels timers, and with `--run` ends running reruns.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result};

use super::targets::{Account, by_whom};
use crate::cli::{Global, Stop};
use crate::config;
use crate::outcome::{self, Settled};
use crate::state::change::About;
use crate::state::driver::Driver;
use crate::state::history::What;
use crate::state::leaving;
use crate::state::record::{Leaving, Running, Timer};
use crate::state::standing::Standing;
use crate::state::store::{Locked, Store};
use crate::sys::sleep;
use again_base::model::{Exit, Identity, Span};
use again_base::sys::clock::{self, moment};
use again_base::sys::pidfd::{self, Handle};
use again_base::sys::process::is_alive;

/// Time that a rerun has to end after TERM.
const GRACE: Duration = Duration::from_secs(10);

/// Warning that a run left alone may send another request.
const MAY_ASK: &str = "it may ask again; 'again disable' prevents that";

/// Time that a waiting driver has to end.
const PROMPT: Duration = Duration::from_secs(2);
/// Maximum time that a run takes to load on a slow machine. Ruby loses a signal that arrives
/// earlier.
const LOADING: Span = Span::from_secs(5);
/// Time after which a young run gets TERM once more.
const REMINDER: Duration = Duration::from_secs(1);

/// Stops the named timers, or everything.
///
/// # Errors
/// The failures; everything else was stopped.
pub fn main(global: &Global, args: &Stop) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::existing(&settings.state_dir);
    let mut account = Account::new(&store, &args.names);
    account.each_target(store.pending(), |account, id| {
        stop_target(&store, id, args.run, account)
    });
    account.each_driver("stops only as a whole", |account, driver, who| {
        stop_driver(driver, who, args.run, account)
    });
    account.conclude("nothing is pending")
}

fn stop_target(store: &Store, id: &str, with_runs: bool, account: &mut Account) -> Result<()> {
    let Some(record) = store.read_or_mend(id)? else {
        return Ok(());
    };
    let now = moment();
    for run in record.running.iter().filter(|_| !with_runs) {
        if account.wants(&run.timer) && store.rerun_stands(id, run, &now) == Standing::Alive {
            account.note(format!(
                "again: left alone: run {} of chain {} is under way (pid {}); 'again stop --run' ends it; {MAY_ASK}",
                run.run, run.chain, run.process.pid
            ));
        }
    }
    // Locked even if nothing is on record: a request may be about to commit.
    let mut locked = store.lock_existing(id)?;
    let settled = outcome::settle(store, &mut locked.record, &now);
    let record = &locked.record;
    let concerns_us = record.timers.keys().any(|name| account.wants(name))
        || !record.leaving.is_empty()
        || (with_runs && !settled.is_empty())
        || (with_runs && !record.running.is_empty());
    if !concerns_us {
        return Ok(());
    }
    let timers = take_timers(store, id, &mut locked, settled, account)?;
    let kind = locked.record.kind;
    let mut running = locked.record.running.clone();
    running.retain(|run| with_runs && account.wants(&run.timer));
    drop(locked);
    let stayed = leaving::clean_up(store, id, &mut || false)?;
    for (name, timer) in timers {
        if stayed.contains(&timer.token) {
            account.failed(format!(
                "the waiter of timer '{name}' does not end; it will start nothing"
            ));
        }
        let when = timer.due.map_or_else(
            || format!("{} after its run", timer.delta),
            |due| format!("due in {}", due.since(clock::boottime())),
        );
        let asker = timer.waits_for.filter(|run| is_alive(*run));
        let goes_on = asker.map_or_else(String::new, |run| {
            format!(
                "; the run that asked is under way (pid {}): {MAY_ASK}",
                run.pid
            )
        });
        let about = About::timer(id, &name, &timer);
        let change = about.clone().became(What::Stopped, moment());
        store.note(&change.because(format!("stopped {}", by_whom())).entry);
        account.found(&name);
        account.did(
            about,
            format!(
                "again: stopped: timer '{name}' of {kind} (run {} of chain {}, {when}){goes_on}",
                timer.run, timer.chain
            ),
        );
    }
    account.say();
    end_runs(store, id, running, account)
}

/// Removes the requested timers from the record. From then on none of their waiters starts
/// anything.
fn take_timers(
    store: &Store,
    id: &str,
    locked: &mut Locked,
    settled: Settled,
    account: &Account,
) -> Result<Vec<(String, Timer)>> {
    let now = moment();
    let mut names: Vec<String> = locked.record.timers.keys().cloned().collect();
    names.retain(|name| account.wants(name));
    let timers: Vec<(String, Timer)> = names
        .into_iter()
        .filter_map(|name| locked.record.take_timer(&name).map(|timer| (name, timer)))
        .collect();
    if let Err(e) = locked.commit() {
        // Such as on a full disk. Without their waiters the timers start nothing either, and
        // removing their orders makes room for another try.
        let leaving: Vec<Leaving> = timers.iter().map(|(_, timer)| timer.into()).collect();
        leaving::dismiss_all(store, id, &leaving, &now, &mut || false);
        locked
            .commit()
            .map_err(|_| e.context("the waiters were ended, but their timers stay on record"))?;
    }
    settled.note(store, id);
    Ok(timers)
}

/// Ends reruns, and records who did.
fn end_runs(store: &Store, id: &str, running: Vec<Running>, account: &mut Account) -> Result<()> {
    let mut ended = Vec::new();
    let (now, mut cleared) = (moment(), Vec::new());
    for run in running {
        let which = format!(
            "run {} of chain {} (pid {}",
            run.run, run.chain, run.process.pid
        );
        if let Standing::Foreign { whose, may_live } = store.rerun_stands(id, &run, &now) {
            let whose = whose.kind();
            if may_live {
                account.failed(format!("{which}) may be under way, and is {whose}'s"));
            } else {
                account.found(&run.timer);
                let line = format!("again: cleared: {which}, which was {whose}'s, and is over)");
                account.did(About::rerun(id, &run), line);
                store.forget_rerun(run.process, run.started.place);
                cleared.push(run.token);
            }
            continue;
        }
        // A process that finds the rerun ended must not conclude that it never began.
        store.empty_order(id, &run.token);
        match end_run(&run) {
            Ok(how) => {
                account.found(&run.timer);
                account.did(
                    About::rerun(id, &run),
                    format!(
                        "again: stopped: {which}, {})",
                        how.unwrap_or("it had ended")
                    ),
                );
                ended.push((run.process, how));
            }
            Err(e) => account.failed(format!("{which}): {e}")),
        }
    }
    account.say();
    if ended.is_empty() && cleared.is_empty() {
        return Ok(());
    }
    let mut locked = store.lock_existing(id)?;
    let running = &mut locked.record.running;
    running.retain(|run| !cleared.contains(&run.token));
    for (process, how) in ended {
        let mut running = locked.record.running.iter_mut();
        if let (Some(run), Some(how)) = (running.find(|run| run.process == process), how) {
            run.stopped = Some(format!("{how}, {}", by_whom()));
        }
    }
    outcome::settle_locked(store, &mut locked, &moment())?;
    for token in cleared {
        store.remove_order(id, &token);
    }
    Ok(())
}

/// Ends a converge driver; if it has a current run, only if that is wanted too.
fn stop_driver(driver: &Driver, who: &str, with_run: bool, account: &mut Account) -> Result<()> {
    account.found("converge");
    let which = format!("run {} of chain {}", driver.run, driver.chain);
    if end_driver(driver, with_run).context("cannot be ended")? {
        let line = format!("again: stopped: {who} (after {which})");
        account.did(driver.into(), line);
    } else {
        account.note(format!(
            "again: left alone: {who} has a run under way ({which}); 'again stop --run' ends both; {MAY_ASK}"
        ));
    }
    Ok(())
}

/// Opens a handle on a process, if it has not ended.
fn hold(who: Identity) -> io::Result<Option<Handle>> {
    match pidfd::open(who) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        held => held.map(Some),
    }
}

/// Ends a driver. False if its current run is to continue.
///
/// The driver decides whether it has one: it may start one at this moment.
fn end_driver(driver: &Driver, with_run: bool) -> io::Result<bool> {
    let Some(handle) = hold(driver.process)? else {
        return Ok(true);
    };
    if !with_run {
        if driver.child.is_some_and(is_alive) {
            return Ok(false);
        }
        handle.signal(sleep::NO_MORE)?;
        return Ok(handle.wait(PROMPT));
    }
    // The driver passes each signal on to its run; from the second on it kills processes that do
    // not end.
    for _ in 0..3 {
        handle.signal(nix::libc::SIGTERM)?;
        if handle.wait(GRACE) {
            return Ok(true);
        }
    }
    Err(io::Error::other("it does not end"))
}

/// Sends TERM, and KILL if that does not help, only ever to the process on record. Returns how the
/// run was ended; `None` if it had ended before.
fn end_run(run: &Running) -> io::Result<Option<&'static str>> {
    // Also after the run has ended: the observer may be about to set a timer, if it considers the
    // run skipped.
    if let Some(observer) = run.observer.map(hold).transpose()?.flatten() {
        observer.signal(nix::libc::SIGTERM)?;
        observer.wait(GRACE);
    }
    let Some(handle) = hold(run.process)? else {
        return Ok(None);
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
        return Ok(Some("ended by TERM"));
    }
    handle.signal(nix::libc::SIGKILL)?;
    if handle.wait(GRACE) {
        return Ok(Some("ended by KILL"));
    }
    Err(io::Error::other("it does not end, not even by KILL"))
}
