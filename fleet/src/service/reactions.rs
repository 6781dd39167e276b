//! To what this node still has to react, in bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use tracing::warn;

use again_base::model::{Boottime, Walltime};

use crate::policy::replay::TriggerKey;
use crate::policy::rule::Rule;
use crate::step::model::Place;
use crate::wire::key::Key;

/// How many bytes of batches wait here together.
const MOST_BYTES: usize = 16 << 20;
/// How many places are known to be settled. Of more, the executor knows it.
const MOST_SETTLED: usize = 20_000;
/// How much is said once and remembered.
const MOST_SAID: usize = 1000;

/// By what this node reacts, and to what it still has to.
#[derive(Default)]
pub struct Reactions {
    /// The rules.
    pub rules: Vec<Rule>,
    /// The highest number of each place that needs no more handing over, and how long it could.
    pub settled: BTreeMap<Place, (u64, Walltime)>,
    /// Batches that are to be looked at again.
    pub open: Vec<Open>,
    /// All batches of which something waits.
    held: Vec<Weak<[u8]>>,
    /// What was said already.
    said: BTreeSet<String>,
}

/// A batch of which more may match a rule.
pub struct Open {
    /// Where it stands.
    pub key: Key,
    /// Batch of events as its node signed it.
    pub bytes: Arc<[u8]>,
    /// When nothing of it counts any more.
    pub until: Walltime,
    /// When it is looked at again.
    pub due: Boottime,
}

impl Reactions {
    /// When it is worth to look again.
    pub fn due(&self) -> Option<Boottime> {
        self.open.iter().map(|one| one.due).min()
    }

    /// Another connection begins: all events are seen again.
    pub fn begin_anew(&mut self) {
        self.open.clear();
        self.said.clear();
    }

    /// Says something once.
    pub fn say(&mut self, why: String) {
        if self.said.len() >= MOST_SAID {
            self.said.clear();
        }
        if !self.said.contains(&why) {
            warn!("{why}");
            self.said.insert(why);
        }
    }

    /// Keeps a batch, if there is room.
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

    /// A trigger needs no more handing over until then.
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
