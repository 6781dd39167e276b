//! `again disable`: refuses requests and holds timers until `again enable`.

use anyhow::Result;

use super::targets;
use crate::cli::{self, Global};
use crate::config;
use crate::state::change::About;
use crate::state::record::Record;
use crate::state::store::{Disabled, Store};
use again_base::layout::{plural, say_clean};
use again_base::model::{Exit, Walltime};
use again_base::sys::process::is_alive;
use again_base::sys::{clock, localtime};

/// Disables requests.
///
/// # Errors
/// The file that could not be written.
pub fn main(global: &Global, args: &cli::Disable) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::open(&settings.state_dir)?;
    // Reduced to one line, wherever it is shown.
    let reason = args.reason.join(" ");
    let parts: Vec<&str> = reason.split(char::is_control).map(str::trim).collect();
    let reason = parts.join(" ").trim().to_owned();
    let old = store.disabled();
    if let Some(old) = &old
        && (reason.is_empty() || reason == old.reason)
    {
        say_clean(&format!("again: nothing to do: again is {}", state(old)))?;
        return Ok(Exit::Success);
    }
    let since = old.as_ref().map(|old| old.since);
    store.disable(&Disabled {
        reason: reason.clone(),
        since: since.unwrap_or_else(|| clock::walltime().millis()),
    })?;
    let mut exit = Exit::Success;
    let line = if let Some(old) = old {
        format!(
            "again: disabled: the reason is now '{reason}' (again was {})",
            state(&old)
        )
    } else {
        let (records, read) = targets::records(&store, store.pending());
        exit = read;
        let (pending, running) = counts(&records);
        format!(
            "again: disabled: requests are refused and timers held until 'again enable' ({}; {pending} timer{} pending, {running} rerun{} under way and left alone)",
            given(&reason),
            plural(pending),
            plural(running)
        )
    };
    About::default().log(&line);
    say_clean(&line)?;
    Ok(exit)
}

fn given(reason: &str) -> &str {
    if reason.is_empty() {
        "no reason given"
    } else {
        reason
    }
}

/// Time since which `again` is disabled and the reason, in words.
pub fn state(disabled: &Disabled) -> String {
    let since = match disabled.since {
        0 => String::new(),
        millis => format!(" since {}", localtime::local(Walltime::from_millis(millis))),
    };
    format!("disabled{since} ({})", given(&disabled.reason))
}

/// Number of pending timers, and of living reruns.
fn counts(records: &[Record]) -> (usize, usize) {
    let running = records.iter().flat_map(|record| &record.running);
    let alive = running.filter(|run| is_alive(run.process));
    let pending = records.iter().map(|record| record.timers.len());
    (pending.sum(), alive.count())
}
