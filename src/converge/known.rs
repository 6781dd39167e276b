//! A driver's knowledge of its run, and the verdict on the run.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::outcome;
use crate::policy::converge::{Evidence, judge};
use crate::puppet::live;
use crate::puppet::paths::Paths;
use crate::puppet::summary::Summary;
use crate::state::driver::Handed;
use again_base::model::{Bytes, End, Identity, Moment, Outcome};
use again_base::puppet::cmdline::{Application, Invocation};

/// Driver's knowledge of the Puppet that its command runs.
#[derive(Debug)]
pub struct Known {
    /// Whether the command line itself is Puppet's.
    is_own: bool,
    /// Paths of Puppet's files that the settings name.
    set: Paths,
    /// Puppet of the command line, or else the newest one seen below the driver.
    puppet: Option<Puppet>,
    /// Whether a Puppet was seen below the driver in this run.
    was_seen: bool,
    /// Each summary as it was before this run could write it.
    before: Vec<(PathBuf, Option<Stamp>)>,
}

#[derive(Debug, Clone)]
struct Puppet {
    is_agent: bool,
    detailed: bool,
    paths: Paths,
}

/// Verdict on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Outcome of the run.
    pub outcome: Outcome,
    /// Evidence for the outcome, for people.
    pub evidence: String,
    /// Whether this run of Puppet failed before it had a catalog to apply.
    pub no_catalog: bool,
}

impl Known {
    /// Knowledge from the command line alone. `paths` are the files of its Puppet, and `set` those
    /// that the settings name.
    pub fn of(invocation: Option<&Invocation>, paths: Paths, set: Paths) -> Self {
        Known {
            is_own: invocation.is_some(),
            puppet: invocation.map(|line| Puppet {
                is_agent: line.application == Application::Agent,
                detailed: line.detailed,
                paths,
            }),
            set,
            was_seen: false,
            before: Vec::new(),
        }
    }

    /// Whether the processes of a run have to be searched for Puppet.
    pub fn looks(&self) -> bool {
        !self.is_own
    }

    /// Resets the knowledge at the beginning of a run.
    pub fn begin(&mut self) {
        self.was_seen = false;
        self.before.clear();
        if let Some(path) = self.summary_path() {
            self.note_before(path);
        }
    }

    /// Searches the run's process and those below it for Puppet.
    pub fn look_below(&mut self, run: Identity) {
        for (invocation, paths) in live::runs_below(run.pid, &self.set) {
            if let Some(path) = paths.lastrunfile.as_ref().map(Bytes::path) {
                self.note_before(path);
            }
            self.see(Puppet {
                is_agent: invocation.application == Application::Agent,
                detailed: invocation.detailed,
                paths,
            });
        }
    }

    /// Records the Puppet whose run sent the request. If the command line itself is Puppet's, that
    /// Puppet is known already, and the request may come from another one that its catalog runs.
    pub fn learn(&mut self, handed: &Handed) {
        let kind = handed.kind.filter(|kind| kind.is_puppet() && !self.is_own);
        if let Some(kind) = kind {
            self.see(Puppet {
                is_agent: kind.is_agent(),
                detailed: handed.detailed,
                paths: handed.paths.clone(),
            });
        }
    }

    fn see(&mut self, puppet: Puppet) {
        self.was_seen = true;
        self.puppet = Some(puppet);
    }

    fn note_before(&mut self, path: PathBuf) {
        if !self.before.iter().any(|(known, _)| *known == path) {
            let version = stamp(&path);
            self.before.push((path, version));
        }
    }

    /// Path of a run's summary: according to its Puppet, or else the settings.
    fn summary_path(&self) -> Option<PathBuf> {
        let own = self.puppet.as_ref();
        let own = own.and_then(|puppet| puppet.paths.lastrunfile.as_ref());
        own.or(self.set.lastrunfile.as_ref()).map(Bytes::path)
    }

    /// Other run of the agent that holds the lock.
    pub fn lock_holder(&self) -> Option<Identity> {
        self.agent()
            .and_then(|agent| live::lock_holder(&agent.paths))
    }

    fn agent(&self) -> Option<&Puppet> {
        self.puppet.as_ref().filter(|puppet| puppet.is_agent)
    }

    /// Verdict on a run that has ended.
    pub fn judge(&self, end: End, started: &Moment) -> Verdict {
        let is_puppets = self.is_own || self.was_seen;
        // A wrapper may end with 0 whatever the exit status of its Puppet.
        let is_puppets_status = self.is_own || self.was_seen && end == End::Exit(2);
        let detailed = self.puppet.as_ref().is_some_and(|puppet| puppet.detailed);
        let summary = self.summary(started);
        let told = summary.as_ref().and_then(Summary::outcome);
        let outcome = judge(&Evidence {
            end,
            detailed: detailed && is_puppets_status,
            summary: told.as_ref().map(|(outcome, _)| *outcome),
            lock_is_taken: self.lock_holder().is_some(),
        });
        let is_without = || summary.as_ref().is_none_or(Summary::is_without_catalog);
        Verdict {
            outcome,
            no_catalog: is_puppets
                && outcome == Outcome::Failed
                && end == End::Exit(1)
                && is_without(),
            evidence: self.evidence(end, told, outcome),
        }
    }

    fn evidence(&self, end: End, told: Option<(Outcome, String)>, outcome: Outcome) -> String {
        let status = match end {
            End::Exit(status) => format!("exit status {status}"),
            End::Signal(signal) => format!("signal {signal}"),
        };
        let disabled = || {
            self.agent()
                .and_then(|agent| live::agent_disabled(&agent.paths))
        };
        match (told, outcome) {
            (Some((what, numbers)), _) => match (end, what) {
                (End::Exit(0), _) => numbers,
                (End::Exit(2), Outcome::Changed) if outcome == Outcome::Changed => numbers,
                _ => format!("{status}, {numbers}"),
            },
            (None, Outcome::Skipped) => format!("{status}, another run of the agent was under way"),
            (None, Outcome::Failed) => match disabled() {
                Some(reason) => format!("{status}, the agent is disabled: {reason}"),
                None => status,
            },
            (None, _) => status,
        }
    }

    /// Summary, if it is certain to be this run's: a Puppet was seen in the run, or the settings
    /// name the file, and the file is new.
    fn summary(&self, started: &Moment) -> Option<Summary> {
        if !self.is_own && !self.was_seen && self.set.lastrunfile.is_none() {
            return None;
        }
        let path = self.summary_path()?;
        let summary = Summary::parse(&outcome::read_summary(&path).ok()?);
        let is_fresh = match self.before.iter().find(|(known, _)| *known == path) {
            Some((_, version)) => *version != stamp(&path),
            // The path was not known before the run ended; Puppet writes whole seconds.
            None => summary.last_run()? >= started.wall.millis() / 1000,
        };
        Some(summary).filter(|_| is_fresh)
    }
}

/// Identity of a version of a file. Puppet replaces its summary.
fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

type Stamp = (u64, i64, i64);
