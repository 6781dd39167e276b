//! A change of state: the history's entry, the fields of the system's log, and the line that a
//! person reads.

use std::io;

use super::history::{Entry, What};
use super::record::{Running, Timer};
use again_base::layout;
use again_base::model::{Moment, Outcome, Refusal};
use again_base::schema::origin::Lineage;

/// Ids of the target, timer, request and run that a change concerns, for the history and the system
/// log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// The target's id.
    pub target: String,
    /// The timer's name; empty for a change that concerns no timer.
    pub timer: String,
    /// The request's token; empty for a change that concerns no request.
    pub token: String,
    /// The chain; empty for a change that concerns no chain.
    pub chain: String,
    /// The number of the run in its chain; 0 for a change that concerns no run.
    pub run: u32,
    /// Lineage of the run, if other nodes requested it.
    pub lineage: Lineage,
}

impl About {
    /// Subject of a change to a target as a whole.
    pub fn target(id: &str) -> Self {
        About {
            target: id.to_owned(),
            ..About::default()
        }
    }

    /// Subject of a change to a timer, or to a request for one.
    pub fn timer(target: &str, name: &str, timer: &Timer) -> Self {
        About {
            timer: name.to_owned(),
            token: timer.token.clone(),
            chain: timer.chain.clone(),
            run: timer.run,
            lineage: timer.whole(),
            ..About::target(target)
        }
    }

    /// Subject of a change to a rerun.
    pub fn rerun(target: &str, rerun: &Running) -> Self {
        About {
            timer: rerun.timer.clone(),
            token: rerun.token.clone(),
            chain: rerun.chain.clone(),
            run: rerun.run,
            lineage: rerun.lineage.clone(),
            ..About::target(target)
        }
    }

    /// Change to record in the history, with an empty reason and message.
    pub fn became(self, what: What, at: Moment) -> Change {
        Change::of(Entry {
            target: self.target,
            timer: self.timer,
            token: self.token,
            chain: self.chain,
            run: self.run,
            lineage: self.lineage,
            ..Entry::new(what, at)
        })
    }

    /// Writes to the system log a change that the history does not record.
    pub fn log(&self, line: &str) {
        log(&self.target, &self.timer, &self.chain, self.run, line);
    }
}

/// One change recorded in the history. Created where the change happens, then passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Entry for the history.
    pub entry: Entry,
    /// Message that is printed and logged: `again: OUTCOME: CAUSE (EVIDENCE)`.
    pub line: String,
}

impl Change {
    /// Change of a timer, or of a request for one.
    pub fn of_timer(target: &str, name: &str, timer: &Timer, what: What, at: Moment) -> Self {
        About::timer(target, name, timer).became(what, at)
    }

    /// Change with this history entry and an empty message.
    pub fn of(entry: Entry) -> Self {
        Change {
            entry,
            line: String::new(),
        }
    }

    /// Sets the reason in the history entry.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.entry.reason = reason.into();
        self
    }

    /// Sets kind, reason and message from a refusal.
    #[must_use]
    pub fn refused(mut self, refusal: &Refusal) -> Self {
        self.entry.kind = refusal.kind().to_owned();
        self.entry.reason = refusal.cause();
        self.line = format!("again: {refusal}");
        self
    }

    /// Sets the outcome of a run, and the evidence for it as the reason.
    #[must_use]
    pub fn ended(mut self, outcome: Outcome, evidence: impl Into<String>) -> Self {
        self.entry.outcome = Some(outcome);
        self.because(evidence)
    }

    /// Sets the message that is printed and logged.
    #[must_use]
    pub fn saying(mut self, line: impl Into<String>) -> Self {
        self.line = line.into();
        self
    }

    /// Writes the message to the system log, with the ids as fields.
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

    /// Writes the message to the system log and prints it to the caller.
    ///
    /// # Errors
    /// Errors of [`layout::say_clean`].
    pub fn say(&self) -> io::Result<()> {
        self.log();
        layout::say_clean(&self.line)
    }
}

/// Writes a line about a run of a target to the system's log.
pub fn log(target: &str, timer: &str, chain: &str, run: u32, line: &str) {
    let line = line.strip_prefix("again: ").unwrap_or(line);
    fn known(text: &str) -> Option<&str> {
        (!text.is_empty()).then_some(text)
    }
    tracing::info!(
        target = known(target),
        timer = known(timer),
        chain = known(chain),
        run = known(chain).map(|_| run),
        "{line}"
    );
}
