//! One file per verb.
#![forbid(unsafe_code)]

pub mod converge;
pub mod disable;
pub mod enable;
pub mod explain;
pub mod handover;
pub mod history;
pub mod log;
pub mod metrics;
pub mod now;
pub mod reset;
pub mod resume;
pub mod run;
pub mod status;
pub mod stop;

use std::io::{self, Write};

use anyhow::{Result, bail};

pub use crate::layout::{complain, plural};
use crate::model::{Exit, Moment};
use crate::outcome;
use crate::state::change::Change;
use crate::state::driver::Driver;
use crate::state::record::{Record, Timer};
use crate::state::store::Store;
use crate::sys::process::is_alive;
use crate::sys::user;

/// Writes a line to standard output.
///
/// # Errors
/// Those of write(2); a reader that has gone is not an error worth a message.
pub fn say(line: &str) -> io::Result<()> {
    let write = || {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    };
    write().map_err(|e| {
        io::Error::new(
            e.kind(),
            format!("cannot write to standard output ({})", e.kind()),
        )
    })
}

/// Says what a command has changed, to its caller and to the system's log.
///
/// # Errors
/// Those of [`say`].
pub fn say_change(change: &Change) -> io::Result<()> {
    change.log();
    say(&change.line)
}

/// [`say_change`] for what is about no target.
///
/// # Errors
/// Those of [`say`].
pub fn say_logged(line: &str) -> io::Result<()> {
    tracing::info!("{}", line.strip_prefix("again: ").unwrap_or(line));
    say(line)
}

/// Whether a timer has a waiter that lives: seen by its pid or, from another pid
/// namespace, by the lock that it holds.
pub fn has_waiter(store: &Store, id: &str, timer: &Timer, boot: &str) -> bool {
    timer.boot == boot
        && (timer.waiter.is_some_and(is_alive)
            || store.order_is_held(id, &timer.token) == Some(true))
}

/// Ends a command over several timers: says which of the names asked for are not
/// pending, or that nothing is.
///
/// # Errors
/// What it could not do; those of [`say`].
pub fn conclude(
    names: &[String],
    found: &[String],
    failures: &[String],
    store: &Store,
) -> Result<Exit> {
    let place = store.root().display();
    for name in names.iter().filter(|name| !found.contains(name)) {
        say(&format!(
            "again: nothing to do: no timer named '{name}' is pending (state in {place})"
        ))?;
    }
    if names.is_empty() && found.is_empty() && failures.is_empty() {
        say(&format!(
            "again: nothing to do: nothing is pending (state in {place})"
        ))?;
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(Exit::Success)
}

/// How a converge driver is named to an operator.
pub fn converge_of(driver: &Driver) -> String {
    format!(
        "'again converge' of {} (pid {})",
        user::name(driver.uid),
        driver.process.pid
    )
}

/// What a driver holds, as seen by an operator who names timers, or none.
pub struct Held {
    /// Its timers that were named.
    pub named: Vec<String>,
    /// Its timers that were not, although others were; quoted.
    pub other: Vec<String>,
}

/// Whether a command with these names concerns a driver, and how.
pub fn held_by(driver: &Driver, names: &[String]) -> Option<Held> {
    let (named, other): (Vec<String>, Vec<String>) = driver
        .timers
        .keys()
        .cloned()
        .partition(|name| names.is_empty() || names.contains(name));
    (names.is_empty() || !named.is_empty()).then(|| Held {
        named,
        other: other.iter().map(|name| format!("'{name}'")).collect(),
    })
}

/// A record in which reruns that have ended are taken as such; written back if
/// we may write.
///
/// # Errors
/// Why it cannot be read.
pub fn read_settled(store: &Store, id: &str, now: &Moment) -> Result<Option<Record>> {
    let Some(mut record) = store.read(id)? else {
        return Ok(None);
    };
    let has_ended = |record: &Record| {
        record
            .running
            .iter()
            .any(|run| run.started.boot != now.boot || !is_alive(run.process))
    };
    if has_ended(&record) {
        if let Ok(mut locked) = store.lock_existing(id) {
            let settled = outcome::settle(&mut locked.record, now);
            if locked.commit().is_ok() {
                settled.note(store);
                store.remove_strays(&locked.record, &now.boot);
            }
            return Ok(Some(locked.record.clone()));
        }
        // Another user's: seen the same way, and left as it is.
        record.last = outcome::ended(&mut record, now).pop().or(record.last);
    }
    Ok(Some(record))
}
