//! `again now`: ends the wait of pending timers for their due time.

use anyhow::{Context, Result};

use super::resume;
use super::targets::{Account, by_whom, quoted, wake};
use crate::cli::{Global, Names};
use crate::config;
use crate::policy::cap;
use crate::policy::hurry::{Hurry, hurry};
use crate::policy::shutdown::Announced;
use crate::state::change::About;
use crate::state::driver::Driver;
use crate::state::history::What;
use crate::state::record::{Record, Timer};
use crate::state::standing::Standing;
use crate::state::store::Store;
use crate::sys::{shutdown, sleep};
use again_base::model::{Exit, Moment};
use again_base::sys::clock::moment;
use again_base::sys::pidfd;
use again_base::sys::process::is_alive;

/// Brings the named timers forward, or all.
///
/// # Errors
/// The failures; all other timers were brought forward.
pub fn main(global: &Global, args: &Names) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::existing(&settings.state_dir);
    // A dead waiter would not notice the change.
    resume::in_passing(global, &settings.state_dir);
    let mut account = Account::new(&store, &args.names);
    account.each_target(store.pending(), |account, id| {
        hurry_target(&store, id, account)
    });
    let hurry = |account: &mut Account, driver: &Driver, who: &str| {
        hurry_driver(&store, account, driver, who)
    };
    account.each_driver("brings its timers forward only together", hurry);
    account.conclude("nothing is pending")
}

fn hurry_target(store: &Store, id: &str, account: &mut Account) -> Result<()> {
    // Read without its lock first: the command may not concern this target.
    let concerns_us = store
        .read_or_mend(id)?
        .is_some_and(|record| record.timers.keys().any(|name| account.wants(name)));
    if !concerns_us {
        return Ok(());
    }
    let mut locked = store.lock_existing(id)?;
    let now = moment();
    let before = locked.record.clone();
    let (mut wakes, mut entries) = (Vec::new(), Vec::new());
    for (name, timer) in &mut locked.record.timers {
        if !account.wants(name) {
            continue;
        }
        account.found(name);
        let what = format!("timer '{name}' of {}", before.kind);
        let which = format!("run {} of chain {}", timer.run, timer.chain);
        let stands = store.waiter_stands(id, timer, &now);
        if let Standing::Foreign { whose, .. } = stands {
            account.failed(format!(
                "timer '{name}' is {}'s, and is brought forward there only ({which})",
                whose.kind()
            ));
            continue;
        }
        let is_announced = shutdown::announced() != Announced::default();
        match hurry(
            timer.pending(),
            stands == Standing::Alive,
            is_announced,
            now.uptime,
        ) {
            Hurry::Dead => {
                account.failed(format!(
                    "the waiter of timer '{name}' is dead, and the timer will not fire ({which}); 'again resume' gives it another waiter, 'again stop' clears it"
                ));
                continue;
            }
            Hurry::Already => account.note(format!(
                "again: nothing to do: {what} is not waiting for its time ({which}; {})",
                waits_for(&before, timer)
            )),
            Hurry::Changed(pending) => {
                let line = brought_forward(store, &before, timer, &now);
                let about = About::timer(id, name, timer);
                let entry = about.clone().became(What::Hurried, now.clone());
                entries.push(entry.because(by_whom()).entry);
                account.did(about, format!("again: brought forward: {what} {line}"));
                timer.set_pending(pending, &now);
            }
        }
        // Also if the timer was due: its waiter may know a later time that it could not write down.
        wakes.push((name.clone(), timer.waiter));
    }
    if locked.record != before {
        locked.commit()?;
    }
    entries.iter().for_each(|entry| store.note(entry));
    for (name, waiter) in wakes {
        if let Err(e) = wake(waiter) {
            account.failed(format!("the waiter of timer '{name}' cannot be woken: {e}"));
        }
    }
    Ok(())
}

/// Brings the timers of a converge driver forward.
fn hurry_driver(store: &Store, account: &mut Account, driver: &Driver, who: &str) -> Result<()> {
    if let Some(run) = driver.child.filter(|run| is_alive(*run)) {
        account.found("converge");
        account.note(format!(
            "again: nothing to do: {who} has a run under way (pid {})",
            run.pid
        ));
        return Ok(());
    }
    if driver.timers.is_empty() {
        return Ok(());
    }
    pidfd::open(driver.process)
        .and_then(|driver| driver.signal(sleep::HURRY))
        .context("cannot be woken")?;
    let mut about = About::from(driver);
    about.run = about.run.saturating_add(1);
    let hurried = about.clone().became(What::Hurried, moment());
    store.note(&hurried.because(by_whom()).entry);
    let timers: Vec<String> = driver.timers.keys().cloned().collect();
    let line = format!(
        "again: brought forward: timer {} of {who} is due now (run {} of chain {})",
        quoted(&timers),
        about.run,
        about.chain
    );
    account.did(about, line);
    Ok(())
}

/// Remaining obstacle of a timer that was brought forward, in words.
fn brought_forward(store: &Store, record: &Record, timer: &Timer, now: &Moment) -> String {
    let which = format!("run {} of chain {}", timer.run, timer.chain);
    if let Some(disabled) = store.disabled() {
        return format!(
            "no longer waits for its time, but is held until 'again enable' ({which}; again is disabled ({}))",
            disabled.reason
        );
    }
    let usage = cap::usage(timer.cap, record.moments(), now);
    if usage.is_reached() {
        return format!(
            "no longer waits for its time, but for the cap, which allows the next rerun in {} ({which}; {} of {} reruns within {} used; 'again reset' forgets them)",
            usage.frees_in, usage.used, timer.cap.max_runs, timer.cap.window
        );
    }
    let was = match timer.due {
        Some(due) if due <= now.uptime => "it was held".to_owned(),
        Some(due) => format!("it was due in {}", due.since(now.uptime)),
        None => format!("it would have waited {} more", timer.delta + timer.jitter),
    };
    let announced = shutdown::announced();
    let was = match announced == Announced::default() {
        true => was,
        false => format!(
            "{was}; a shutdown is announced {}, and is not waited for",
            shutdown::words(announced.at, announced.by)
        ),
    };
    match timer.waits_for.filter(|who| is_alive(*who)) {
        Some(run) => format!(
            "starts as soon as its run has ended ({which}; waits for pid {}; {was})",
            run.pid
        ),
        None => format!("is due now ({which}; {was})"),
    }
}

/// Obstacle of a timer other than its due time, in words.
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
