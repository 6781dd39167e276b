//! `again-fleet events`: what runs of Puppet did, on all nodes. The engine is asked by this process itself, so that nobody who looks
//! is a burden to the service.

/// How an event looks.
mod draw;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use again::layout::{Look, complain, say};
use again::sys::clock::moment;
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};

use self::draw::{Form, Told};
use super::{Exit, Problem};
use crate::access::Access;
use crate::cli;
use crate::engine::etcd::{self, Etcd};
use crate::engine::nats::Nats;
use crate::engine::watch::{Event, Watch};
use crate::engine::{Change, Engine, Error, Times, Value};
use crate::seal::Seals;
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Id, Node};

/// How often it is asked whether the engine is still there.
const BEAT: Duration = Duration::from_secs(27);
/// The longest pause before another connection.
const PAUSE: Duration = Duration::from_secs(5);
/// How many events are put in order before they are shown; of more than these the oldest are not.
const MOST: usize = 200_000;
/// How long a run is remembered, milliseconds: longer than the engine holds its events.
const REMEMBERED: u64 = 3 * 3_600_000;

/// Shows events.
///
/// # Errors
/// The engine cannot be asked, or this node has no certificate to ask with.
pub fn main(flags: &Flags, around: &Surroundings, args: &cli::Events) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let shown = Shown::new(&settings, args)?;
    runtime.block_on(shown.show(&settings, args.follow))
}

/// What was shown, and how the rest will be.
struct Shown {
    seals: Seals,
    access: Access,
    prefix: String,
    form: Form,
    /// The number of the last event of each run, and when that was.
    runs: BTreeMap<(Node, Id), (u64, u64)>,
    /// Who is not believed.
    liars: BTreeSet<String>,
    /// What waits to be put in order.
    early: Option<Vec<Told>>,
}

impl Shown {
    fn new(settings: &Settings, args: &cli::Events) -> Result<Shown, Problem> {
        let access = Access::new(settings).map_err(Problem::Failed)?;
        let prefix = match &args.node {
            Some(node) => Prefix::Events(node).encode(&access.namespace),
            None => Prefix::AllEvents.encode(&access.namespace),
        };
        Ok(Shown {
            seals: Seals::new(settings).map_err(Problem::Failed)?,
            access,
            prefix,
            form: Form::new(args, Look::of_this_process()),
            runs: BTreeMap::new(),
            liars: BTreeSet::new(),
            early: Some(Vec::new()),
        })
    }

    /// Shows all that is there, and then what comes, over as many connections as that takes.
    async fn show(mut self, settings: &Settings, follow: bool) -> Result<Exit, Problem> {
        loop {
            let Err(lost) = self.connected(follow).await? else {
                return Ok(Exit::Done);
            };
            let engine = settings.engine;
            if !follow {
                let why = format!("{engine} {lost}; 'again-fleet check' tells what to do");
                return Err(Problem::Failed(why));
            }
            complain(&format!("again-fleet: {engine} {lost}; it is tried again"));
            sleep(rand::rng().random_range(PAUSE / 10..=PAUSE)).await;
            // A certificate that was renewed meanwhile.
            self.access = Access::new(settings).map_err(Problem::Failed)?;
            self.seals.refresh().map_err(Problem::Failed)?;
        }
    }

    /// Over one connection; why it ended, if it did.
    async fn connected(&mut self, follow: bool) -> Result<Result<(), Error>, Problem> {
        let (access, times) = (self.access.clone(), Times::default());
        let (servers, tls) = (&access.servers, access.tls.as_ref());
        match access.engine {
            settings::Engine::Etcd => {
                let one = etcd::one_of(servers, times.call).await.cloned();
                match Etcd::new(one.as_slice(), tls, times).await {
                    Ok(engine) => self.look(&engine, follow).await,
                    Err(e) => Ok(Err(e)),
                }
            }
            settings::Engine::Nats => {
                let (node, namespace) = (&access.node, access.namespace.clone());
                match Nats::connect(servers, tls, node, namespace, times).await {
                    Ok(engine) => self.look(&engine, follow).await,
                    Err(e) => Ok(Err(e)),
                }
            }
        }
    }

    async fn look<E: Engine>(
        &mut self,
        engine: &E,
        follow: bool,
    ) -> Result<Result<(), Error>, Problem> {
        // By nothing else is it noticed that a connection fell silent.
        let lease = match follow {
            true => engine.grant().await.map(Some),
            false => Ok(None),
        };
        let lease = match lease {
            Ok(lease) => lease,
            Err(e) => return Ok(Err(e)),
        };
        let prefix = self.prefix.clone();
        let mut watch = Watch::new(engine, prefix, rand::rng().random());
        let mut beat = Instant::now() + BEAT;
        let lost = loop {
            tokio::select! {
                event = watch.next() => match event {
                    Event::Changed(Change::Put(value)) => self.put(&value)?,
                    Event::Changed(Change::Removed { .. }) => {}
                    Event::Complete => {
                        self.in_order()?;
                        if !follow {
                            break Ok(());
                        }
                    }
                    Event::Lost(e) => break Err(e),
                },
                () = sleep_until(beat) => {
                    beat = Instant::now() + BEAT;
                    if let Some(lease) = &lease
                        && let Err(e) = engine.renew(lease).await
                    {
                        break Err(e);
                    }
                }
            }
        };
        Ok(lost)
    }

    /// A batch is there: what of it was not shown yet is.
    fn put(&mut self, value: &Value) -> Result<(), Problem> {
        let key = Key::decode(&value.key, &self.access.namespace).map_err(|e| e.to_string());
        let batch = key.and_then(|key| self.seals.batch(&value.bytes, &key));
        let batch = match batch {
            Ok(batch) => batch,
            Err(why) => {
                if self.liars.insert(why.clone()) {
                    let (why, key) = (super::clean(&why), super::clean(&value.key));
                    complain(&format!("again-fleet: {key} is not believed: {why}"));
                }
                return Ok(());
            }
        };
        let run = (batch.node.clone(), batch.run.clone());
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
        let early = self.early.take().unwrap_or_default();
        Ok(early.iter().try_for_each(|told| say(&told.line))?)
    }
}
