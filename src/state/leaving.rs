//! Timers that are no longer on record, and what remains of them: waiters to end, files to remove.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::record::{Leaving, Record};
use super::reruns::{is_unfinished_by_the_dead, read_rerun};
use super::standing::Standing;
use super::store::{Store, is_id, is_older_than_a_minute, is_temporary, names};
use again_base::model::{Moment, Provenance};
use again_base::sys::clock::moment;
use again_base::sys::pidfd::{self, Handle};
use again_base::sys::process::{is_alive, own_identity};

/// Time that a replaced waiter has to end before it is killed.
const REPLACED_LIMIT: Duration = Duration::from_secs(1);

/// Finishes what a replacement, a stop or a killed process has left of a target: ends the waiters
/// of timers that are no longer on record, and removes files that nothing refers to. Call without
/// the target's lock, because a waiter may be waiting for it.
///
/// Returns the tokens of waiters that do not end. They start nothing, and stay on the list.
/// `is_interrupted` stops the wait for them.
///
/// # Errors
/// The failed operation and its file.
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
        // If this process itself was replaced meanwhile, its successor finishes this.
        .filter(|leaving| me.is_none() || leaving.waiter != me)
        .cloned()
        .collect();
    if leaving.is_empty() {
        store.remove_strays(&found.record, &now);
        return Ok(Vec::new());
    }
    drop(found);
    let stayed = dismiss_all(store, id, &leaving, &now, is_interrupted);
    let mut locked = store.lock_existing(id)?;
    let before = locked.record.leaving.len();
    locked.record.leaving.retain(|one| {
        // A foreign waiter is left to the next command in the waiter's own pid namespace.
        let stands = store.stands(id, &one.token, now.provenance(&one.boot, one.place), || {
            false
        });
        let may_live = matches!(stands, Standing::Foreign { may_live: true, .. });
        let is_done = leaving.iter().any(|done| done.token == one.token);
        may_live || !is_done || stayed.contains(&one.token)
    });
    if locked.record.leaving.len() != before {
        locked.commit()?;
    }
    store.remove_strays(&locked.record, &now);
    Ok(stayed)
}

/// Ends waiters, all at the same time, and removes the orders of those that have ended. Returns the
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
    // A foreign waiter detects by itself that it is no longer on record.
    let has_gone = |one: &&Leaving| {
        let stands = store.stands(id, &one.token, provenance(one), || false);
        !stayed.contains(&one.token) && stands == Standing::Ended
    };
    for one in leaving.iter().filter(has_gone) {
        store.remove_order_file(id, &one.token);
        // The waiter may have died just before it recorded a start.
        store.discount_lost(now, &one.token);
        if let Some(waiter) = one.waiter {
            store.forget_rerun(waiter, one.place);
        }
    }
    stayed
}

impl Store {
    /// Removes what a process leaves if it is killed at the wrong moment: orders that no timer
    /// refers to and no process holds, temporary files, and notes of reruns that have ended. Call
    /// with the target's lock held, so that no other process writes to its directory.
    pub fn remove_strays(&self, record: &Record, now: &Moment) {
        let target = self.target_dir(&record.id);
        let is_known = |token: &str| record.tokens().any(|known| known == token);
        for token in names(&target.join("orders")).filter(|name| is_id(name)) {
            if !is_known(&token) && self.order_is_held(&record.id, &token) == Some(false) {
                self.remove_order(&record.id, &token);
            }
        }
        self.remove_stray_entries(&record.id, is_known);
        let is_stray =
            |name: &String| name.starts_with(".state.json.") || name.starts_with(".command.");
        for name in names(&target).filter(is_stray) {
            let _ = std::fs::remove_file(target.join(name));
        }
        for name in names(&self.path()).filter(|name| is_temporary(name)) {
            let path = self.path().join(name);
            if is_older_than_a_minute(&path) {
                let _ = std::fs::remove_file(path);
            }
        }
        let reruns = self.path().join("reruns");
        for name in names(&reruns) {
            let path = reruns.join(&name);
            let is_stray = match read_rerun(&path) {
                Some(rerun) => match now.provenance(&rerun.boot, rerun.place) {
                    Provenance::Here => !is_alive(rerun.process),
                    provenance @ (Provenance::OtherBoot | Provenance::UnknownBoot) => {
                        !self.may_live(&rerun, provenance)
                    }
                    Provenance::Foreign(_) => false,
                },
                None => is_unfinished_by_the_dead(&name, now) || is_older_than_a_minute(&path),
            };
            if is_stray {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}
