//! `again reset`: the reruns that count towards the cap are forgotten.

use anyhow::{Result, bail};

use super::{plural, say};
use crate::cli::{self, Global, Run};
use crate::config::{self, Surroundings};
use crate::model::{Exit, Span};
use crate::policy::hurry::release;
use crate::state::change::{self, Change};
use crate::state::history::What;
use crate::state::record::Timer;
use crate::state::store::Store;
use crate::sys::clock::moment;
use crate::sys::user;

/// Resets one target, or all.
///
/// # Errors
/// What could not be reset; the rest was.
pub fn main(global: &Global, args: &cli::Reset) -> Result<Exit> {
    let settings = config::settings(global, &Run::default(), &Surroundings::of_this_process())?;
    let store = Store::existing(&settings.state_dir);
    let mut ids = store.targets();
    let mut known = format!("state in {}", settings.state_dir.display());
    if let Some(prefix) = &args.target {
        ids.retain(|id| id.starts_with(prefix.as_str()));
        if ids.len() > 1 {
            bail!(
                "'{prefix}' may mean any of {} targets; write more of the id",
                ids.len()
            );
        }
        if ids.is_empty() {
            known = format!("no target's id begins with '{prefix}'; {known}");
        }
    }
    let mut done = false;
    let mut failures = Vec::new();
    for id in ids {
        match reset_target(&store, &id) {
            Ok(Some(line)) => {
                change::log(&id, "", "", 0, &line);
                say(&line)?;
                done = true;
            }
            Ok(None) => {}
            Err(e) => failures.push(format!("target {id}: {e:#}")),
        }
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    if !done {
        say(&format!(
            "again: nothing to do: no rerun is counted ({known})"
        ))?;
    }
    Ok(Exit::Success)
}

/// The line that says what was done, if anything was.
fn reset_target(store: &Store, id: &str) -> Result<Option<String>> {
    let concerns_us = store.read(id)?.is_some_and(|record| {
        let put_off = |timer: &Timer| timer.put_off > Span::ZERO;
        record.moments().next().is_some() || record.timers.values().any(put_off)
    });
    if !concerns_us {
        return Ok(None);
    }
    let mut locked = store.lock_existing(id)?;
    let now = moment();
    let counted = locked.record.moments().count();
    for start in &mut locked.record.starts {
        start.forgotten = true;
    }
    let mut released = Vec::new();
    for (name, timer) in &mut locked.record.timers {
        if timer.put_off > Span::ZERO && timer.boot == now.boot {
            timer.set_pending(release(timer.pending(), now.uptime), &now);
            released.push((name.clone(), timer.clone()));
        }
    }
    // And those that the cap may have put off without their being able to write it down.
    let is_due =
        |timer: &Timer| timer.boot == now.boot && timer.due.is_some_and(|due| due <= now.uptime);
    let mut wake: Vec<(String, Timer)> = released.clone();
    for (name, timer) in &locked.record.timers {
        if is_due(timer) && !released.iter().any(|(other, _)| other == name) {
            wake.push((name.clone(), timer.clone()));
        }
    }
    locked.commit()?;
    let by = format!("by {}", user::name(user::effective()));
    // Before anyone starts a rerun: damage to the record must not bring them back.
    let reason = format!("{counted} counted reruns forgotten {by}");
    store.note(
        &Change::of_target(id, What::Reset, now)
            .because(reason)
            .entry,
    );
    // Under the lock, lest the signal reach a rerun.
    for (name, timer) in &wake {
        if let Err(e) = super::now::wake_waiter(timer.waiter) {
            tracing::warn!("the waiter of timer '{name}' cannot be woken: {e}");
        }
    }
    let mut line = format!(
        "again: reset: {} of {}: {counted} rerun{} no longer counted (target {id}",
        locked.record.kind,
        user::name(locked.record.uid),
        plural(counted),
    );
    for (name, _) in &released {
        line.push_str(&format!("; timer '{name}' is no longer put off by the cap"));
    }
    line.push(')');
    Ok(Some(line))
}
