//! A driver's state, and the part of it that the driver publishes.

use anyhow::Result;

use super::command::{Command, Input};
use super::known::Known;
use super::screen::Screen;
use crate::cli::Converge;
use crate::policy::converge::{Ask, Drive, Finish, Timer};
use crate::state::change::{self, Change};
use crate::state::driver::{Desk, Driver};
use crate::state::history::What;
use crate::state::store::Store;
use crate::sys::foreground;
use crate::sys::sleep::{Sleeper, Wake, Watch};
use again_base::delay;
use again_base::model::{Boottime, End, Exit, Moment, Span};
use again_base::sys::clock::moment;
use again_base::sys::pidfd::Handle;

/// Reason for the end of a driver.
#[derive(Debug)]
pub enum Ending {
    /// The policy decided to end.
    Finish(Finish),
    /// The driver received this signal.
    Signal(i32),
    /// An operator asked for no further run.
    Stopped,
    /// A run was ended at the timeout.
    TimedOut,
    /// The command could not be executed: reason and exit status.
    NotExecuted(String, Exit),
    /// The driver itself failed.
    Error(anyhow::Error),
}

impl From<anyhow::Error> for Ending {
    fn from(error: anyhow::Error) -> Self {
        Ending::Error(error)
    }
}

impl From<std::io::Error> for Ending {
    fn from(error: std::io::Error) -> Self {
        Ending::Error(error.into())
    }
}

/// Running driver.
pub struct Driving<'a> {
    /// Command line of the driver.
    pub args: &'a Converge,
    /// Command that the driver runs.
    pub command: Command,
    /// Standard input of every run.
    pub input: Option<Input>,
    /// Knowledge of the run.
    pub known: Known,
    /// State directory.
    pub store: Store,
    /// Handle on the driver's record and inbox.
    pub desk: Desk,
    /// Public record of the driver.
    pub record: Driver,
    /// Runs and pending timers.
    pub drive: Drive,
    /// Sleeper of the driver.
    pub sleeper: Sleeper,
    /// Standard error.
    pub screen: Screen,
    /// End of the last run's process.
    pub last: Option<End>,
}

impl Driving<'_> {
    /// End of the driver's timeout, if one is set.
    pub fn deadline(&self) -> Option<Boottime> {
        let began = self.record.began.uptime;
        self.args.timeout.map(|limit| began + limit)
    }

    /// Sleeps between two runs.
    ///
    /// # Errors
    /// The reason to end the driver.
    pub fn sleep(
        &mut self,
        process: Option<&Handle>,
        until: Option<Boottime>,
        watch: Option<&Watch>,
    ) -> Result<Wake, Ending> {
        let wake = self.sleeper.sleep(process, until, watch)?;
        match wake {
            Wake::Signal { number, .. } => return Err(Ending::Signal(number)),
            Wake::NoMore => return Err(Ending::Stopped),
            Wake::Child => {
                foreground::reap(0);
            }
            Wake::Hurry | Wake::Ended | Wake::Time | Wake::Changed => {}
        }
        Ok(wake)
    }

    /// Writes a line of the terminal to the system log.
    pub fn log(&self, line: &str) {
        let Driver {
            target, chain, run, ..
        } = &self.record;
        change::log(target, "", chain, *run, line);
    }

    /// Records in the history that the driver began or ended.
    pub fn note(&self, what: What, at: Moment, reason: &str) {
        let change = Change::of_driver(&self.record, what, at).because(reason);
        self.store.note(&change.entry);
    }

    /// Records an event of a timer in the history.
    pub fn note_timer(&self, name: &str, timer: &Timer, what: What, reason: &str) {
        let mut change = Change::of_driver(&self.record, what, moment()).because(reason);
        name.clone_into(&mut change.entry.timer);
        change.entry.token.clone_from(&timer.token);
        change.entry.run = timer.asked_by.saturating_add(1);
        self.store.note(&change.entry);
    }

    /// Publishes the pending timers in the record.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn publish(&mut self) -> Result<()> {
        let timers = self.drive.timers().iter();
        self.record.timers = timers.map(|(name, t)| (name.clone(), t.due)).collect();
        let timers = &self.record.timers;
        let resources = &mut self.record.resources;
        resources.retain(|name, _| timers.contains_key(name));
        self.desk.publish(&self.record)
    }

    /// Records for `status` the reason that holds the next run, and prints it. The run that follows
    /// records its own state.
    pub fn note_held(&mut self, what: Option<&str>) {
        if self.record.held.as_deref() == what {
            return;
        }
        self.record.held = what.map(str::to_owned);
        if let Some(what) = what {
            // Recorded before it is printed: the reader of the line may run `status`.
            if let Err(e) = self.publish() {
                tracing::debug!("{e:#}");
            }
            self.screen.say(what);
        }
    }

    /// Takes the requests out of the inbox. Returns the quoted names of their timers.
    pub fn take_requests(&mut self, run_ended: Boottime) -> Vec<String> {
        let mut names = Vec::new();
        for handed in self.desk.take() {
            self.known.learn(&handed);
            let name = handed.name;
            let range = handed.jitter.unwrap_or(Span::ZERO);
            let ask = Ask {
                name: name.clone(),
                token: handed.token,
                delta: handed.delta,
                jitter: delay::draw(range, &mut rand::rng()),
                base: handed.base,
                requested: handed.requested.uptime,
            };
            let resources = &mut self.record.resources;
            match handed.resource {
                Some(resource) => resources.insert(name.clone(), resource),
                None => resources.remove(&name),
            };
            if let Some(old) = self.drive.ask(ask, run_ended) {
                let reason = "replaced by a newer request of the same name";
                self.note_timer(&name, &old, What::Merged, reason);
            }
            let shown = format!("'{name}'");
            if !names.contains(&shown) {
                names.push(shown);
            }
        }
        names
    }
}
