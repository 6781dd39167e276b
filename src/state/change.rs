//! A change of state: what the history keeps of it, what the system's log is told, and
//! the line that a person reads.

use super::driver::Driver;
use super::history::{Entry, What};
use super::record::Timer;
use crate::model::{Moment, Outcome, Refusal};

/// One change. Made where it happens, and passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What the history keeps.
    pub entry: Entry,
    /// What is printed and logged: `again: OUTCOME: CAUSE (EVIDENCE)`.
    pub line: String,
}

impl Change {
    /// What became of a timer, or of a request for one.
    pub fn of_timer(target: &str, name: &str, timer: &Timer, what: What, at: Moment) -> Self {
        Change::of(Entry {
            target: target.to_owned(),
            timer: name.to_owned(),
            token: timer.token.clone(),
            chain: timer.chain.clone(),
            run: timer.run,
            ..Entry::new(what, at)
        })
    }

    /// What became of a converge driver as a whole.
    pub fn of_driver(driver: &Driver, what: What, at: Moment) -> Self {
        Change::of(Entry {
            target: driver.target.clone(),
            token: driver.token.clone(),
            chain: driver.chain.clone(),
            run: driver.run,
            ..Entry::new(what, at)
        })
    }

    /// What was done to a target as a whole.
    pub fn of_target(target: &str, what: What, at: Moment) -> Self {
        Change::of(Entry {
            target: target.to_owned(),
            ..Entry::new(what, at)
        })
    }

    /// A change that the history keeps as this.
    pub fn of(entry: Entry) -> Self {
        Change {
            entry,
            line: String::new(),
        }
    }

    /// Why, as the history keeps it.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.entry.reason = reason.into();
        self
    }

    /// Not granted, and why. The line says the same.
    #[must_use]
    pub fn refused(mut self, refusal: &Refusal) -> Self {
        self.entry.kind = refusal.kind().to_owned();
        self.entry.reason = refusal.cause();
        self.line = format!("again: {refusal}");
        self
    }

    /// How a run ended, and what that is known by.
    #[must_use]
    pub fn ended(mut self, outcome: Outcome, evidence: impl Into<String>) -> Self {
        self.entry.outcome = Some(outcome);
        self.because(evidence)
    }

    /// What is printed and logged.
    #[must_use]
    pub fn saying(mut self, line: impl Into<String>) -> Self {
        self.line = line.into();
        self
    }

    /// Tells the system's log, with what it is about as fields.
    pub fn log(&self) {
        let Entry {
            target,
            timer,
            chain,
            run,
            ..
        } = &self.entry;
        log(target, timer, chain, *run, &self.line);
    }
}

/// Tells the system's log a line about a run of a target, or of all that is known of it.
pub fn log(target: &str, timer: &str, chain: &str, run: u32, line: &str) {
    let line = line.strip_prefix("again: ").unwrap_or(line);
    tracing::info!(target, timer, chain, run, "{line}");
}
