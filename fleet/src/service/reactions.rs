//! Events to which this node may still react, in bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use tracing::warn;

use again_base::model::{Boottime, Walltime};

use crate::policy::replay::TriggerKey;
use crate::policy::rule::Rule;
use crate::step::model::Place;
use crate::wire::key::Key;

/// Largest number of bytes of all batches that wait.
const MOST_BYTES: usize = 16 << 20;
/// Largest number of senders' trigger names that are known to be settled. The executor recognizes
/// the others.
const MOST_SETTLED: usize = 20_000;
/// Largest number of messages that are remembered as logged.
const MOST_SAID: usize = 1000;

/// Rules of this node, and events that may still match them.
#[derive(Default)]
pub struct Reactions {
    /// Rules of this node.
    pub rules: Vec<Rule>,
    /// Highest trigger number, by sender and name, that need not be handed over any more, and until
    /// when it could be.
    pub settled: BTreeMap<Place, (u64, Walltime)>,
    /// Batches that are checked again.
    pub open: Vec<Open>,
    /// All batches of which something still waits.
    held: Vec<Weak<[u8]>>,
    /// Messages that were logged.
    said: BTreeSet<String>,
}

/// Batch of which more events may match a rule.
pub struct Open {
    /// Key of the batch.
    pub key: Key,
    /// Batch of events as its node signed it.
    pub bytes: Arc<[u8]>,
    /// Time from which on none of the events count.
    pub until: Walltime,
    /// Time of the next check.
    pub due: Boottime,
}

impl Reactions {
    /// Time of the next check; none if no batch waits.
    pub fn due(&self) -> Option<Boottime> {
        self.open.iter().map(|one| one.due).min()
    }

    /// Forgets batches and logged messages for a new connection, on which all events are seen
    /// again.
    pub fn begin_anew(&mut self) {
        self.open.clear();
        self.said.clear();
    }

    /// Logs a warning once.
    pub fn say(&mut self, why: String) {
        if self.said.len() >= MOST_SAID {
            self.said.clear();
        }
        if !self.said.contains(&why) {
            warn!("{why}");
            self.said.insert(why);
        }
    }

    /// Stores a batch, if there is room.
    pub fn hold(&mut self, bytes: Vec<u8>) -> Option<Arc<[u8]>> {
        self.held.retain(|one| one.strong_count() > 0);
        let held = self.held.iter().filter_map(Weak::upgrade);
        let held: usize = held.map(|one| one.len()).sum();
        if held + bytes.len() > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            self.say(format!(
                "more than {most} MiB of events wait for the executor, or for what their nodes tell of themselves; others pass until the backend is reached anew"
            ));
            return None;
        }
        let bytes: Arc<[u8]> = bytes.into();
        self.held.push(Arc::downgrade(&bytes));
        Some(bytes)
    }

    /// Records that a trigger need not be handed over any more. The record is not needed after
    /// `until`.
    pub fn settle(&mut self, which: &TriggerKey, until: Walltime, now: Walltime) {
        if self.settled.len() >= MOST_SETTLED {
            self.settled.retain(|_, (_, until)| *until > now);
        }
        if self.settled.len() >= MOST_SETTLED {
            self.settled.clear();
        }
        let place = (which.sender.clone(), which.name.clone());
        self.settled.insert(place, (which.number, until));
    }
}
