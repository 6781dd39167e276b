//! What became of triggers that were accepted: the executor is asked, also when one of their processes ends.

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
    /// Asks what became of what was taken, if it is time.
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
        // Of those that the helper has forgotten nothing comes any more.
        taken.sort_by_key(|which| Reverse(which.number));
        taken.truncate(runs::MOST);
        let (socket, notes) = (self.ways.take.clone(), self.ways.notes.clone());
        tokio::spawn(async move {
            let _ = notes.send(Note::Became(executor::became(&socket, taken).await));
        });
    }

    /// The triggers that were taken, as far as they were told, and whose run has not ended, or has more to come.
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

    /// The executor has said what became of triggers, or nothing.
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

    /// Waits for the ends of these processes, and no longer for those of before. Whether that can be done for all of them.
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

    /// A waiter or run of something accepted has ended.
    pub fn process_ended(&mut self) {
        self.runs.ended(clock::boottime());
    }
}
