//! A change of state: the history's entry, the fields of the system's log, and the line that a
//! person reads.

use std::io;

use super::history::{Entry, What};
use super::record::{Running, Timer};
use again_base::layout;
use again_base::model::{Moment, Outcome, Refusal};
use again_base::schema::origin::Lineage;

/// What a change is about, as the history and the system's log name it.
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
    /// Where that comes from, if other nodes asked for it.
    pub lineage: Lineage,
}

impl About {
    /// A target as a whole.
    pub fn target(id: &str) -> Self {
        About {
            target: id.to_owned(),
            ..About::default()
        }
    }

    /// A timer, or a request for one.
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

    /// A rerun.
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

    /// A change of it that the history keeps.
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

    /// Tells the system's log of a change that the history does not keep.
    pub fn log(&self, line: &str) {
        log(&self.target, &self.timer, &self.chain, self.run, line);
    }
}

/// One change that the history keeps. Made where it happens, and passed on.
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
        About::timer(target, name, timer).became(what, at)
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

    /// How a run ended, and by which evidence.
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

    /// Tells the system's log and the caller.
    ///
    /// # Errors
    /// Those of [`layout::say_clean`].
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
