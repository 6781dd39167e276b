//! `again reset`: forgets the reruns that count towards the cap.

use anyhow::{Result, bail};

use super::targets::{Account, by_whom, place, wake};
use crate::cli::{self, Global};
use crate::config;
use crate::policy::hurry::release;
use crate::state::change::About;
use crate::state::history::What;
use crate::state::record::{Refused, Timer};
use crate::state::store::Store;
use again_base::layout::plural;
use again_base::model::{Exit, Provenance, Span};
use again_base::sys::clock::moment;
use again_base::sys::user;

/// Resets one target, or all.
///
/// # Errors
/// The failures; all other targets were reset.
pub fn main(global: &Global, args: &cli::Reset) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::existing(&settings.state_dir);
    let mut ids = store.targets();
    if let Some(prefix) = &args.target {
        ids.retain(|id| id.starts_with(prefix.as_str()));
        match ids.len() {
            0 => {
                let known = match store.targets().as_slice() {
                    [] => "there is no target".to_owned(),
                    ids => format!("there is {}", ids.join(", ")),
                };
                let place = place(store.root())?;
                bail!("no target's id begins with '{prefix}'; {known} ({place})");
            }
            1 => {}
            many => bail!("'{prefix}' may mean any of {many} targets; write more of the id"),
        }
    }
    let mut account = Account::new(&store, &[]);
    account.each_target(ids, |account, id| reset_target(&store, id, account));
    account.conclude("no rerun is counted")
}

fn reset_target(store: &Store, id: &str, account: &mut Account) -> Result<()> {
    let is_put_off = |timer: &Timer| timer.put_off > Span::ZERO;
    let is_of_cap = |refused: &Refused| matches!(refused.kind.as_str(), "cap" | "cap-total");
    let concerns_us = store.read_or_mend(id)?.is_some_and(|record| {
        record.moments().next().is_some()
            || record.timers.values().any(is_put_off)
            || record.refused.as_ref().is_some_and(is_of_cap)
    });
    if !concerns_us {
        return Ok(());
    }
    let mut locked = store.lock_existing(id)?;
    let record = &mut locked.record;
    let now = moment();
    let counted = record.moments().count();
    // A refusal because of the forgotten count no longer applies.
    let refused = record.refused.take_if(|refused| is_of_cap(refused));
    for start in &mut record.starts {
        start.forgotten = true;
    }
    let what = match refused {
        Some(_) if counted == 0 => "its refusal by the cap is forgotten".to_owned(),
        _ => format!("{counted} rerun{} no longer counted", plural(counted)),
    };
    let whose = user::name(record.uid);
    let mut line = format!(
        "again: reset: {} of {whose}: {what} (target {id}",
        record.kind
    );
    let mut wakes = Vec::new();
    for (name, timer) in &mut record.timers {
        if timer.provenance(&now) != Provenance::Here {
            continue;
        }
        let is_due = timer.due.is_some_and(|due| due <= now.uptime);
        if is_put_off(timer) {
            timer.set_pending(release(timer.pending(), now.uptime), &now);
            line.push_str(&format!("; timer '{name}' is no longer put off by the cap"));
        } else if !is_due {
            continue;
        }
        // Also a timer that is due: the cap may have delayed it without its waiter being able to
        // write that down.
        wakes.push((name.clone(), timer.waiter));
    }
    locked.commit()?;
    store.discount_starts(&now, id)?;
    // Before anyone starts a rerun: damage to the record must not restore the counted starts.
    let reason = format!("{counted} counted reruns forgotten {}", by_whom());
    let change = About::target(id).became(What::Reset, now);
    store.note(&change.because(reason).entry);
    for (name, waiter) in wakes {
        if let Err(e) = wake(waiter) {
            tracing::warn!("the waiter of timer '{name}' cannot be woken: {e}");
        }
    }
    account.found(id);
    account.did(About::target(id), format!("{line})"));
    Ok(())
}
