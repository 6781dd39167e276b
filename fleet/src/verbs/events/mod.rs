//! `again-fleet events`: what runs of Puppet did, on all nodes.

/// How an event looks.
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

/// What is missing for a while does no harm, and there are many.
const LISTED_AGAIN: u32 = 0;
/// How many events are put in order before they are shown; of more than these the oldest are not.
const MOST: usize = 200_000;
/// How long a run is remembered, milliseconds: longer than the backend holds its events.
const REMEMBERED: u64 = 3 * 3_600_000;

/// Shows events.
///
/// # Errors
/// The backend cannot be asked, or this node has no certificate to ask with.
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

/// What was shown, and how the rest will be.
struct Shown {
    seals: Seals,
    backend: Backend,
    namespace: Namespace,
    prefix: String,
    form: Form,
    /// The number of the last event of each run, by its node and name, and when that was.
    runs: BTreeMap<String, (u64, u64)>,
    /// Who is not believed.
    liars: BTreeSet<String>,
    /// What waits to be put in order.
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

    /// A batch is there: what of it was not shown yet is.
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

    /// What was there from the beginning is shown, oldest first.
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
