//! What a driver knows of its run, and how it judges the run by that.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::model::{Bytes, End, Identity, Moment, Outcome};
use crate::outcome;
use crate::policy::converge::{Evidence, judge};
use crate::puppet::cmdline::{Application, Invocation};
use crate::puppet::live;
use crate::puppet::paths::Paths;
use crate::puppet::summary::Summary;
use crate::state::driver::Handed;

/// What the command line, and then each request, tells of the run.
#[derive(Debug)]
pub struct Known {
    is_agent: bool,
    detailed: bool,
    paths: Paths,
}

/// Where a summary is, and which version of it.
pub type Before = Option<(PathBuf, Option<Stamp>)>;

impl Known {
    /// What the command line tells, if it is Puppet's.
    pub fn of(invocation: Option<&Invocation>, paths: Paths) -> Self {
        Known {
            is_agent: invocation.is_some_and(|i| i.application == Application::Agent),
            detailed: invocation.is_some_and(|i| i.detailed),
            paths,
        }
    }

    /// What a request tells of the run that asked.
    pub fn learn(&mut self, handed: &Handed) {
        if let Some(kind) = handed.kind {
            self.is_agent |= kind.is_agent();
            self.detailed |= handed.detailed;
            self.paths.clone_from(&handed.paths);
        }
    }

    /// Another run of the agent that is under way.
    pub fn lock_holder(&self) -> Option<Identity> {
        self.is_agent
            .then(|| live::lock_holder(&self.paths))
            .flatten()
    }

    /// What is to be compared after the run.
    pub fn before(&self) -> Before {
        let path = self.paths.lastrunfile.as_ref()?.path();
        let version = stamp(&path);
        Some((path, version))
    }

    /// How a run went, and by which evidence.
    pub fn judge(&self, end: End, before: &Before, started: &Moment) -> (Outcome, String) {
        let summary = self.summary(before, started);
        let outcome = judge(&Evidence {
            end,
            detailed: self.detailed,
            summary: summary.as_ref().map(|(outcome, _)| *outcome),
            lock_is_taken: self.lock_holder().is_some(),
        });
        let status = match end {
            End::Exit(status) => format!("exit status {status}"),
            End::Signal(signal) => format!("signal {signal}"),
        };
        let disabled = || live::agent_disabled(&self.paths).filter(|_| self.is_agent);
        let evidence = match (summary, outcome) {
            (Some((what, numbers)), _) => match (end, what) {
                (End::Exit(0), _) | (End::Exit(2), Outcome::Changed) => numbers,
                _ => format!("{status}, {numbers}"),
            },
            (None, Outcome::Skipped) => format!("{status}, another run of the agent was under way"),
            (None, Outcome::Failed) => match disabled() {
                Some(reason) => format!("{status}, the agent is disabled: {reason}"),
                None => status,
            },
            (None, _) => status,
        };
        (outcome, evidence)
    }

    /// What the summary says, if it is of a run that started then.
    fn summary(&self, before: &Before, started: &Moment) -> Option<(Outcome, String)> {
        let path = self.paths.lastrunfile.as_ref().map(Bytes::path)?;
        let summary = Summary::parse(&outcome::read_summary(&path).ok()?);
        let is_fresh = match before.as_ref().filter(|(known, _)| *known == path) {
            Some((_, version)) => *version != stamp(&path),
            // Only now is it known where it is; Puppet gives whole seconds.
            None => summary.last_run()? >= started.wall.millis() / 1000,
        };
        summary.outcome().filter(|_| is_fresh)
    }
}

/// What tells one version of a file from the next. Puppet replaces its summary.
fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

type Stamp = (u64, i64, i64);
