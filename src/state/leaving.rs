//! Timers that are no longer on record, and what they leave: waiters to end, files to
//! remove.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::record::Leaving;
use super::store::Store;
use crate::model::{Moment, Provenance};
use crate::sys::clock::moment;
use crate::sys::pidfd::{self, Handle};
use crate::sys::process::own_identity;

/// How long a replaced waiter may take to end before it is killed.
const REPLACED_LIMIT: Duration = Duration::from_secs(1);

/// Finishes what a replacement, a stop or a killed process has left of a target:
/// ends the waiters of timers that are no longer on record, and removes files that
/// nothing refers to. Call without the target's lock: a waiter may be waiting for it.
///
/// Returns the tokens of waiters that do not end. They start nothing all the same,
/// and stay on the list. `is_interrupted` ends the waiting for them.
///
/// # Errors
/// What failed on which file.
pub fn clean_up(
    store: &Store,
    id: &str,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Result<Vec<String>> {
    let now = moment();
    let me = own_identity().ok();
    let found = store.lock_existing(id)?;
    if let Some(what) = &found.set_aside {
        tracing::error!("what was pending on target {id} is lost: {what}");
    }
    let leaving: Vec<Leaving> = found
        .record
        .leaving
        .iter()
        // Replaced ourselves meanwhile: that is for our successor to finish.
        .filter(|leaving| me.is_none() || leaving.waiter != me)
        .cloned()
        .collect();
    drop(found);
    let stayed = dismiss_all(store, id, &leaving, &now, is_interrupted);
    let mut locked = store.lock_existing(id)?;
    let before = locked.record.leaving.len();
    locked.record.leaving.retain(|one| {
        stayed.contains(&one.token) || !leaving.iter().any(|done| done.token == one.token)
    });
    if locked.record.leaving.len() != before {
        locked.commit()?;
    }
    store.remove_strays(&locked.record, &now);
    Ok(stayed)
}

/// Ends waiters, all at once, and removes the orders of those that have ended. The
/// tokens of those that have not.
pub fn dismiss_all(
    store: &Store,
    id: &str,
    leaving: &[Leaving],
    now: &Moment,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Vec<String> {
    let provenance = |one: &Leaving| now.provenance(&one.boot, one.place);
    let mut alive: Vec<(&Leaving, Handle)> = leaving
        .iter()
        .filter(|one| provenance(one) == Provenance::Here)
        .filter_map(|one| Some((one, pidfd::open(one.waiter?).ok()?)))
        .collect();
    for signal in [nix::libc::SIGTERM, nix::libc::SIGKILL] {
        for (_, handle) in &alive {
            let _ = handle.signal(signal);
        }
        let deadline = Instant::now() + REPLACED_LIMIT;
        while !alive.is_empty() && Instant::now() < deadline && !is_interrupted() {
            let (_, first) = &alive[0];
            first.wait(Duration::from_millis(20));
            alive.retain(|(_, handle)| !handle.wait(Duration::ZERO));
        }
        if is_interrupted() {
            break;
        }
    }
    let stayed: Vec<String> = alive.iter().map(|(one, _)| one.token.clone()).collect();
    // A foreign waiter finds for itself that it is no longer on record.
    let has_gone = |one: &&Leaving| {
        !stayed.contains(&one.token) && !matches!(provenance(one), Provenance::Foreign(_))
    };
    for one in leaving.iter().filter(has_gone) {
        store.remove_order(id, &one.token);
        if let Some(waiter) = one.waiter {
            store.forget_rerun(waiter, one.place);
        }
    }
    stayed
}
