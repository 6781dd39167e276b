//! Shared code of `stop`, `now`, `reset` and `resume`: a walk over targets and drivers, and an
//! account of it.

use std::io;
use std::path::Path;

use anyhow::{Result, bail};

use crate::state::change::About;
use crate::state::driver::{self, Driver};
use crate::state::record::Record;
use crate::state::store::Store;
use again_base::layout::{complain, say_clean};
use again_base::model::{Exit, Identity, Provenance};
use again_base::sys::clock::moment;
use again_base::sys::{pidfd, user};

/// Results and failures of a verb on targets and drivers.
#[derive(Debug)]
pub struct Account<'a> {
    store: &'a Store,
    /// Names of the requested timers; empty for all.
    names: &'a [String],
    found: Vec<String>,
    /// Names of the timers that were pending.
    known: Vec<String>,
    failures: Vec<String>,
    lines: Vec<(Option<About>, String)>,
    said: io::Result<()>,
}

impl<'a> Account<'a> {
    /// Account of a verb with these timers' names; without names it applies to all timers.
    pub fn new(store: &'a Store, names: &'a [String]) -> Self {
        Account {
            store,
            names,
            // Before anything is removed.
            known: match names {
                [] => Vec::new(),
                _ => known(store),
            },
            found: Vec::new(),
            failures: Vec::new(),
            lines: Vec::new(),
            said: Ok(()),
        }
    }

    /// Whether the verb applies to a timer of this name.
    pub fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }

    /// Records that a timer of this name was found.
    pub fn found(&mut self, name: &str) {
        self.found.push(name.to_owned());
    }

    /// Records a failure.
    pub fn failed(&mut self, why: String) {
        self.failures.push(why);
    }

    /// Adds a line for the caller.
    pub fn note(&mut self, line: String) {
        self.lines.push((None, line));
    }

    /// Adds a line about a change, for the system log too.
    pub fn did(&mut self, about: About, line: String) {
        self.lines.push((Some(about), line));
    }

    /// Prints and logs the lines. Call with no record locked: a slow reader must not delay a run.
    pub fn say(&mut self) {
        for (about, line) in std::mem::take(&mut self.lines) {
            if let Some(about) = about {
                about.log(&line);
            }
            if let Err(e) = say_clean(&line) {
                self.said = Err(e);
            }
        }
    }

    /// Acts on each target. The target's lock is free again when `act` returns; if `act` fails, the
    /// lines that it has not printed yet are dropped, since nothing was done.
    pub fn each_target(
        &mut self,
        ids: Vec<String>,
        mut act: impl FnMut(&mut Self, &str) -> Result<()>,
    ) {
        for id in ids {
            if let Err(e) = act(self, &id) {
                self.lines.clear();
                self.failures.push(format!("target {id}: {e:#}"));
            }
            self.say();
        }
    }

    /// Acts on each living converge driver that has one of the wanted timers. A driver is one
    /// process and acts on all its timers or none; `only` says so in words.
    pub fn each_driver(
        &mut self,
        only: &str,
        mut act: impl FnMut(&mut Self, &Driver, &str) -> Result<()>,
    ) {
        let drivers = driver::living(self.store).unwrap_or_else(|e| {
            self.failures.push(format!("{e:#}"));
            Vec::new()
        });
        let now = moment();
        for driver in drivers {
            let timers = driver.timers.keys().cloned();
            let (named, other): (Vec<String>, Vec<String>) =
                timers.partition(|name| self.wants(name));
            if named.is_empty() && !self.names.is_empty() {
                continue;
            }
            let who = format!(
                "'again converge' of {} (pid {})",
                user::name(driver.uid),
                driver.process.pid
            );
            self.found.extend(named);
            let place = now.provenance(&driver.boot, driver.began.place);
            if place != Provenance::Here {
                // The pid belongs to no process here, or to another one.
                let whose = match place {
                    Provenance::Foreign(whose) => whose.kind(),
                    _ => "another boot",
                };
                self.failures
                    .push(format!("{who} is {whose}'s, and can be reached only there"));
            } else if !other.is_empty() {
                self.failures.push(format!(
                    "{who} also holds timer {}, and {only}: name all of its timers, or none",
                    quoted(&other)
                ));
            } else if let Err(e) = act(self, &driver, &who) {
                self.failures.push(format!("{who}: {e:#}"));
            }
            self.say();
        }
    }

    /// Ends the verb. Prints `nothing` if there was nothing to act on.
    ///
    /// # Errors
    /// The failures; names without a timer; errors of [`say`].
    pub fn conclude(mut self, nothing: &str) -> Result<Exit> {
        let place = place(self.store.root())?;
        let is_there = |name: &String| self.found.contains(name) || self.known.contains(name);
        let unknown = self.names.iter().filter(|name| !is_there(name));
        let unknown: Vec<String> = unknown.cloned().collect();
        if !unknown.is_empty() {
            let known = match self.known.as_slice() {
                [] => "none is".to_owned(),
                known => format!("there is {}", quoted(known)),
            };
            self.failures.push(format!(
                "no timer named {} is pending; {known} ({place})",
                quoted(&unknown)
            ));
        } else if self.found.is_empty() && self.failures.is_empty() {
            self.note(format!("again: nothing to do: {nothing} ({place})"));
        }
        self.end()?;
        Ok(Exit::Success)
    }

    /// Ends the verb, and prints the remaining lines.
    ///
    /// # Errors
    /// As for [`Account::conclude`].
    pub fn end(mut self) -> Result<()> {
        self.say();
        if !self.failures.is_empty() {
            bail!("{}", self.failures.join("; "));
        }
        Ok(self.said?)
    }
}

/// Names of all pending timers, sorted.
fn known(store: &Store) -> Vec<String> {
    let drivers = driver::living(store).unwrap_or_default().into_iter();
    let records = store.pending().into_iter();
    let mut known: Vec<String> = records
        .filter_map(|id| store.read(&id).ok().flatten())
        .flat_map(|record| record.timers.into_keys())
        .chain(drivers.flat_map(|driver| driver.timers.into_keys()))
        .collect();
    known.sort_unstable();
    known.dedup();
    known
}

/// Records of these targets, and the verb's exit status. A record that cannot be read, such as one
/// of a newer version, is reported and makes the status 1.
pub fn records(store: &Store, ids: Vec<String>) -> (Vec<Record>, Exit) {
    let (mut records, mut exit) = (Vec::new(), Exit::Success);
    for id in ids {
        match store.read(&id) {
            Ok(record) => records.extend(record),
            Err(e) => {
                complain(&format!("again: error: target {id}: {e:#}"));
                exit = Exit::Failure;
            }
        }
    }
    (records, exit)
}

/// Location of the state, in words for a message. A missing directory is not an error.
///
/// # Errors
/// The directory that is something else or cannot be read.
pub fn place(root: &Path) -> Result<String> {
    let place = root.display();
    match std::fs::read_dir(root) {
        Ok(_) => Ok(format!("state in {place}")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Ok(format!("the state directory {place} does not exist"))
        }
        Err(e) => bail!("the state directory {place} cannot be read: {e}"),
    }
}

/// Names in quotes, with commas between them.
pub fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}

/// User who runs this command: `by root`.
pub fn by_whom() -> String {
    format!("by {}", user::name(user::effective()))
}

/// Sends a waiter a signal to read its record. Call with the target's lock held: a waiter removes
/// its timer from the record under that lock before it becomes the rerun, so no rerun gets the
/// signal.
///
/// # Errors
/// Errors of pidfd_open(2) and pidfd_send_signal(2).
pub fn wake(waiter: Option<Identity>) -> io::Result<()> {
    let nobody = || io::Error::from(io::ErrorKind::NotFound);
    pidfd::open(waiter.ok_or_else(nobody)?)?.signal(nix::libc::SIGUSR1)
}
