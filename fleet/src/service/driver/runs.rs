//! Outcomes of accepted triggers: the executor is asked at intervals, and when a process of such a
//! trigger ends.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use again_base::sys::clock;
use tokio::task::JoinSet;
use tracing::warn;

use super::{Driver, Note};
use crate::handover;
use crate::policy::replay::TriggerKey;
use crate::service::alarm::waited_for;
use crate::service::{executor, runs};
use crate::step::model::{Content, EntryId, Event};
use crate::wire::lineage::Lineage;
use crate::wire::outcome::{Outcome, TriggerStatus};

impl Driver {
    /// Asks the executor for the outcomes of accepted triggers, if that is due.
    pub fn look_at_runs(&mut self) {
        if !self.runs.is_due(clock::boottime()) {
            return;
        }
        let mut taken: Vec<TriggerKey> = self.taken().into_keys().collect();
        self.runs.ask(!taken.is_empty());
        if taken.is_empty() {
            self.watch(Vec::new());
            return self.retell(&[]);
        }
        // The newest first: the executor has nothing more to report about triggers that it has
        // forgotten.
        taken.sort_by_key(|which| Reverse(which.number));
        taken.truncate(runs::MOST);
        let (socket, notes) = (self.ways.executor.clone(), self.ways.notes.clone());
        tokio::spawn(async move {
            let _ = notes.send(Note::Became(executor::became(&socket, taken).await));
        });
    }

    /// Accepted triggers with a published status, whose runs have not ended, or have more to
    /// report.
    pub(super) fn taken(&self) -> BTreeMap<TriggerKey, Box<(TriggerStatus, Lineage)>> {
        let taken = self
            .state
            .entries()
            .filter_map(|(entry, content)| match (entry, content) {
                (EntryId::Status(which), Content::Status { told, lineage, .. })
                    if told.goes_on() =>
                {
                    Some((which.clone(), Box::new((told.clone(), lineage.clone()))))
                }
                _ => None,
            });
        taken.collect()
    }

    /// Handles the executor's answer about the outcomes of triggers.
    pub fn became(&mut self, became: io::Result<executor::Became>) {
        let (mut is_news, mut ends) = (false, Vec::new());
        let answers = match became {
            Ok(became) => {
                let is_unwatched = became.answers.iter().any(|(_, one)| one.is_unwatched);
                self.runs.is_unwatched = !self.watch(became.pidfds) || is_unwatched;
                became.answers
            }
            Err(e) => {
                warn!("what became of triggers is not known: {e}");
                Vec::new()
            }
        };
        let mut taken = self.taken();
        for (which, answer) in answers {
            let handover::Answer {
                outcome, why, ran, ..
            } = answer;
            if let Some((known, lineage)) = taken.remove(&which).map(|one| *one)
                && (known.outcome, &known.ran) != (outcome, &ran)
                && outcome != Outcome::Taken
            {
                is_news = true;
                ends.extend(ran.clone().map(|ran| (ran, outcome)));
                self.feed(Event::Ran {
                    which,
                    lineage,
                    outcome,
                    why,
                    ran,
                });
            }
        }
        self.runs.answered(is_news, clock::boottime());
        self.retell(&ends);
    }

    /// Waits for the ends of these processes, and no longer for those of earlier ones. Returns
    /// whether that works for all of them.
    fn watch(&mut self, pidfds: Vec<OwnedFd>) -> bool {
        self.processes = JoinSet::new();
        let count = pidfds.len();
        for pidfd in pidfds.into_iter().filter_map(|fd| waited_for(fd).ok()) {
            let notes = self.ways.notes.clone();
            self.processes.spawn(async move {
                let _ = pidfd.readable().await;
                let _ = notes.send(Note::ProcessEnded);
            });
        }
        self.processes.len() == count
    }

    /// Handles the end of a waiter or run of an accepted trigger.
    pub fn process_ended(&mut self) {
        self.runs.ended(clock::boottime());
    }
}
