//! `again disable`: no request is granted and no timer fires until `again enable`.

use anyhow::Result;

use super::{plural, say};
use crate::cli::{self, Global, Run};
use crate::config::{self, Surroundings};
use crate::model::{Exit, Walltime};
use crate::state::store::{Disabled, Store};
use crate::sys::process::is_alive;
use crate::sys::{clock, localtime};

/// Disables.
///
/// # Errors
/// What could not be written.
pub fn main(global: &Global, args: &cli::Disable) -> Result<Exit> {
    let settings = config::settings(global, &Run::default(), &Surroundings::of_this_process())?;
    let store = Store::open(&settings.state_dir)?;
    // One line, wherever it is shown.
    let reason = args
        .reason
        .join(" ")
        .split(char::is_control)
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ")
        .trim()
        .to_owned();
    if let Some(old) = store.disabled() {
        // Without a new reason there is nothing new to say.
        if reason.is_empty() || reason == old.reason {
            say(&format!("again: nothing to do: again is {}", state(&old)))?;
            return Ok(Exit::Success);
        }
        store.disable(&Disabled {
            reason: reason.clone(),
            since: old.since,
        })?;
        super::say_logged(&format!(
            "again: disabled: the reason is now '{reason}' (again was {})",
            state(&old)
        ))?;
        return Ok(Exit::Success);
    }
    store.disable(&Disabled {
        reason: reason.clone(),
        since: clock::walltime().millis(),
    })?;
    let (pending, running) = counts(&store);
    let why = if reason.is_empty() {
        "no reason given".to_owned()
    } else {
        reason
    };
    super::say_logged(&format!(
        "again: disabled: requests are refused and timers held until 'again enable' ({why}; {pending} timer{} pending, {running} rerun{} under way and left alone)",
        plural(pending),
        plural(running)
    ))?;
    Ok(Exit::Success)
}

/// Since when and why, in words.
pub fn state(disabled: &Disabled) -> String {
    let since = match disabled.since {
        0 => String::new(),
        millis => format!(" since {}", localtime::local(Walltime::from_millis(millis))),
    };
    let why = match disabled.reason.as_str() {
        "" => "no reason given",
        why => why,
    };
    format!("disabled{since} ({why})")
}

/// How many timers are pending, and how many reruns run.
fn counts(store: &Store) -> (usize, usize) {
    let records = store
        .targets()
        .into_iter()
        .filter_map(|id| store.read(&id).ok().flatten());
    records.fold((0, 0), |(pending, running), record| {
        let alive = record.running.iter().filter(|run| is_alive(run.process));
        (pending + record.timers.len(), running + alive.count())
    })
}
