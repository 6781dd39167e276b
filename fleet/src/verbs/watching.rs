//! What stands in the engine, watched by a command over as many connections as that takes. The engine is asked by this process itself,
//! so that nobody who looks is a burden to the service.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use rand::RngExt;
use tokio::sync::Notify;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep, sleep_until};

use super::Problem;
use crate::access::Access;
use crate::engine::etcd::{self, Etcd};
use crate::engine::nats::Nats;
use crate::engine::watch::{Event, watch};
use crate::engine::{Change, Engine, Error, Times};
use crate::settings::{self, Settings};

/// How often it is asked whether the engine is still there.
const BEAT: Duration = Duration::from_secs(27);
/// The longest pause before another connection.
const PAUSE: Duration = Duration::from_secs(5);

/// What a command is told.
#[derive(Debug)]
pub enum Seen {
    /// A connection is made; everything that there is will be told.
    Begins,
    /// A change.
    Changed(Change),
    /// Everything that there is was told.
    All,
    /// The engine is not reached; it is tried again.
    Lost(Error),
}

/// What is watched: a prefix, and with each how many beats all below it is listed again; 0 for never.
pub type Place = (String, u32);

/// Whoever is told.
pub type Eye<'e> = dyn FnMut(Seen) -> Result<(), Problem> + 'e;

/// Tells all that is there, and then what comes, unless that was all.
///
/// # Errors
/// What whoever is told says; that this node has no certificate; or, unless it goes on, that the engine cannot be asked.
pub async fn all(
    settings: &Settings,
    places: &[Place],
    goes_on: bool,
    tell: &mut Eye<'_>,
) -> Result<(), Problem> {
    loop {
        // The certificate may have been renewed meanwhile.
        let access = Access::new(settings).map_err(Problem::Failed)?;
        tell(Seen::Begins)?;
        let Err(lost) = connected(&access, places, goes_on, tell).await? else {
            return Ok(());
        };
        if !goes_on {
            let engine = settings.engine;
            let why = format!("{engine} {lost}; 'again-fleet check' tells what to do");
            return Err(Problem::Failed(why));
        }
        tell(Seen::Lost(lost))?;
        sleep(rand::rng().random_range(PAUSE / 10..=PAUSE)).await;
    }
}

/// Over one connection; why it ended, if it did.
async fn connected(
    access: &Access,
    places: &[Place],
    goes_on: bool,
    tell: &mut Eye<'_>,
) -> Result<Result<(), Error>, Problem> {
    let times = Times::default();
    let (servers, tls) = (&access.servers, access.tls.as_ref());
    match access.engine {
        settings::Engine::Etcd => {
            let one = etcd::one_of(servers, times.call).await.cloned();
            match Etcd::new(one.as_slice(), tls, times).await {
                Ok(engine) => look(&engine, places, goes_on, tell).await,
                Err(e) => Ok(Err(e)),
            }
        }
        settings::Engine::Nats => {
            let (node, namespace) = (&access.node, access.namespace.clone());
            match Nats::connect(servers, tls, node, namespace, times).await {
                Ok(engine) => look(&engine, places, goes_on, tell).await,
                Err(e) => Ok(Err(e)),
            }
        }
    }
}

async fn look<E: Engine>(
    engine: &E,
    places: &[Place],
    goes_on: bool,
    tell: &mut Eye<'_>,
) -> Result<Result<(), Error>, Problem> {
    // By nothing else is it noticed that a connection fell silent.
    let lease = match goes_on {
        true => engine.grant().await.map(Some),
        false => Ok(None),
    };
    let lease = match lease {
        Ok(lease) => lease,
        Err(e) => return Ok(Err(e)),
    };
    let (told, mut events) = unbounded_channel();
    let again: Vec<Notify> = places.iter().map(|_| Notify::new()).collect();
    let each = places.iter().zip(&again).enumerate();
    let mut watching = pin!(join_all(each.map(|(n, ((prefix, _), again))| {
        let told = told.clone();
        let tell = move |event| drop(told.send((n, event)));
        watch(engine, prefix.clone(), again, tell)
    })));
    let (mut beat, mut beats, mut listed) = (Instant::now() + BEAT, 0, BTreeSet::new());
    loop {
        tokio::select! {
            _ = &mut watching => {}
            Some((n, event)) = events.recv() => match event {
                Event::Changed(change) => tell(Seen::Changed(change))?,
                Event::Complete => {
                    listed.insert(n);
                    if listed.len() == places.len() {
                        tell(Seen::All)?;
                        if !goes_on {
                            return Ok(Ok(()));
                        }
                    }
                }
                Event::Lost(e) => return Ok(Err(e)),
            },
            () = sleep_until(beat) => {
                (beat, beats) = (Instant::now() + BEAT, beats + 1);
                if let Some(lease) = &lease
                    && let Err(e) = engine.renew(lease).await
                {
                    return Ok(Err(e));
                }
                let all = places.iter().zip(&again);
                let due = all.filter(|((_, every), _)| *every > 0 && beats % every == 0);
                due.for_each(|(_, again)| again.notify_one());
            }
        }
    }
}
