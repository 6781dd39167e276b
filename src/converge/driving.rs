//! A driver's state, and what it publishes of it.

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

/// Why a driver ends.
#[derive(Debug)]
pub enum Ending {
    /// The policy decided so.
    Finish(Finish),
    /// By a signal.
    Signal(i32),
    /// An operator wanted no further run.
    Stopped,
    /// A run was ended at the timeout.
    TimedOut,
    /// The command could not be executed, and the exit status that says so.
    NotExecuted(String, Exit),
    /// What went wrong on our side.
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

/// A driver at work.
pub struct Driving<'a> {
    /// What was typed.
    pub args: &'a Converge,
    /// What it runs.
    pub command: Command,
    /// What every run reads.
    pub input: Option<Input>,
    /// What is known of a run.
    pub known: Known,
    /// The state directory.
    pub store: Store,
    /// Its own record and inbox.
    pub desk: Desk,
    /// What the record says.
    pub record: Driver,
    /// Its runs and pending timers.
    pub drive: Drive,
    /// How it sleeps.
    pub sleeper: Sleeper,
    /// Standard error.
    pub screen: Screen,
    /// How the process of the last run ended.
    pub last: Option<End>,
}

impl Driving<'_> {
    /// When its timeout is over.
    pub fn deadline(&self) -> Option<Boottime> {
        let began = self.record.began.uptime;
        self.args.timeout.map(|limit| began + limit)
    }

    /// Sleeps between two runs. A reason to end is the error.
    ///
    /// # Errors
    /// Why we end.
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

    /// Tells the system's log of a change, in the words of the terminal.
    pub fn log(&self, line: &str) {
        let Driver {
            target, chain, run, ..
        } = &self.record;
        change::log(target, "", chain, *run, line);
    }

    /// Notes that the driver began or ended.
    pub fn note(&self, what: What, at: Moment, reason: &str) {
        let change = Change::of_driver(&self.record, what, at).because(reason);
        self.store.note(&change.entry);
    }

    /// Notes what became of a timer.
    pub fn note_timer(&self, name: &str, timer: &Timer, what: What, reason: &str) {
        let mut change = Change::of_driver(&self.record, what, moment()).because(reason);
        name.clone_into(&mut change.entry.timer);
        change.entry.token.clone_from(&timer.token);
        change.entry.run = timer.asked_by.saturating_add(1);
        self.store.note(&change.entry);
    }

    /// Puts on record what is pending.
    ///
    /// # Errors
    /// What failed on which file.
    pub fn publish(&mut self) -> Result<()> {
        let timers = self.drive.timers().iter();
        self.record.timers = timers.map(|(name, t)| (name.clone(), t.due)).collect();
        let timers = &self.record.timers;
        let resources = &mut self.record.resources;
        resources.retain(|name, _| timers.contains_key(name));
        self.desk.publish(&self.record)
    }

    /// Records for `status` what holds the next run, and says it. The run that follows records
    /// its own state.
    pub fn note_held(&mut self, what: Option<&str>) {
        if self.record.held.as_deref() == what {
            return;
        }
        self.record.held = what.map(str::to_owned);
        if let Some(what) = what {
            // Recorded before it is said: a reader of the line may run `status`.
            if let Err(e) = self.publish() {
                tracing::debug!("{e:#}");
            }
            self.screen.say(what);
        }
    }

    /// Takes what was handed over; the names of the timers.
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
