//! `again-fleet events`: the events of Puppet runs on all nodes.

/// Formats of an event.
mod draw;

use std::collections::{BTreeMap, BTreeSet};

use again_base::layout::{Look, complain, say};
use again_base::sys::clock::moment;
use again_base::sys::terminal::clean;

use self::draw::{EventLine, Form};
use super::watching::{self, Seen};
use super::{Exit, Problem};
use crate::backend::{Change, Value};
use crate::cli;
use crate::seal::Seals;
use crate::settings::{self, Backend, Flags, Settings, Surroundings};
use crate::wire::event::Batch;
use crate::wire::key::{Key, Prefix};
use crate::wire::name::Namespace;

/// Never: a missing event does no harm, and there are many events.
const LISTED_AGAIN: u32 = 0;
/// Largest number of events that are sorted before they are shown; if there are more, the oldest
/// are left out.
const MOST: usize = 200_000;
/// Time for which a run is remembered, in milliseconds: longer than the backend keeps its events.
const REMEMBERED: u64 = 3 * 3_600_000;

/// Shows events.
///
/// # Errors
/// The backend cannot be reached, or this node has no certificate.
pub fn main(flags: &Flags, around: &Surroundings, args: &cli::Events) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let mut shown = Shown::new(&settings, args)?;
    let places = [(shown.prefix.clone(), LISTED_AGAIN)];
    let mut see = |seen| shown.see(seen);
    watching::block_on(Box::pin(watching::all(
        &settings,
        &places,
        args.follow,
        &mut see,
    )))
}

/// State of the output.
struct Shown {
    seals: Seals,
    backend: Backend,
    namespace: Namespace,
    prefix: String,
    form: Form,
    /// Number of the last event of each run and the time when it was read, by node and run id.
    runs: BTreeMap<String, (u64, u64)>,
    /// Reasons for rejected batches that were already printed.
    liars: BTreeSet<String>,
    /// Lines that wait to be sorted; `None` once the first list is complete.
    early: Option<Vec<EventLine>>,
}

impl Shown {
    fn new(settings: &Settings, args: &cli::Events) -> Result<Shown, Problem> {
        let namespace = settings.namespace.clone();
        let prefix = match &args.node {
            Some(node) => Prefix::Events(node).encode(&namespace),
            None => Prefix::AllEvents.encode(&namespace),
        };
        Ok(Shown {
            seals: Seals::new(settings).map_err(Problem::Failed)?,
            backend: settings.backend,
            namespace,
            prefix,
            form: Form::new(args, Look::of_this_process()),
            runs: BTreeMap::new(),
            liars: BTreeSet::new(),
            early: Some(Vec::new()),
        })
    }

    fn see(&mut self, seen: Seen) -> Result<(), Problem> {
        match seen {
            Seen::Begins => self.seals.refresh().map(drop).map_err(Problem::Failed),
            Seen::Changed(Change::Put(value)) => self.put(&value),
            Seen::Changed(Change::Removed { .. }) => Ok(()),
            Seen::All => self.in_order(),
            Seen::Lost(lost) => {
                let backend = self.backend;
                complain(&format!("again-fleet: {backend} {lost}; it is tried again"));
                Ok(())
            }
        }
    }

    /// Shows the events of a batch that were not shown yet.
    fn put(&mut self, value: &Value) -> Result<(), Problem> {
        let key = Key::decode(&value.key, &self.namespace).map_err(|e| e.to_string());
        let batch = key.and_then(|key| self.seals.read::<Batch>(&value.bytes, &key));
        let batch = match batch {
            Ok(batch) => batch,
            Err(why) => {
                if self.liars.insert(why.clone()) {
                    let (why, key) = (clean(&why), clean(&value.key));
                    complain(&format!("again-fleet: {key} is not believed: {why}"));
                }
                return Ok(());
            }
        };
        let run = format!("{} {}", batch.node, batch.run);
        let known = self.runs.get(&run).map(|(last, _)| *last);
        let told = self.form.told(&batch, known);
        let now = moment().wall.millis();
        if known.is_none() {
            self.runs
                .retain(|_, (_, at)| now.saturating_sub(*at) < REMEMBERED);
        }
        let last = batch.last().max(known.unwrap_or(0));
        self.runs.insert(run, (last, now));
        match &mut self.early {
            Some(early) => early.extend(told),
            None => told.iter().try_for_each(|told| say(&told.line))?,
        }
        if self
            .early
            .as_ref()
            .is_some_and(|early| early.len() > 2 * MOST)
        {
            self.forget_the_oldest();
        }
        Ok(())
    }

    fn forget_the_oldest(&mut self) {
        let Some(early) = &mut self.early else { return };
        early.sort_by_key(|told| told.at);
        if early.len() > MOST {
            let left_out = early.len() - MOST;
            early.drain(..left_out);
            complain(&format!(
                "again-fleet: the {left_out} oldest events are not shown"
            ));
        }
    }

    /// Shows the events of the first list, oldest first.
    fn in_order(&mut self) -> Result<(), Problem> {
        self.forget_the_oldest();
        let Some(early) = self.early.take() else {
            return Ok(());
        };
        if early.is_empty() && !self.form.is_for_graphite() {
            complain("again-fleet: no events to show");
        }
        Ok(early.iter().try_for_each(|told| say(&told.line))?)
    }
}
