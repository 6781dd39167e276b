//! A command's watch of keys in the backend, which reconnects when a connection is lost. The
//! command connects to the backend itself, so that it is no load for the service.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use super::{Exit, Problem};
use crate::access::Access;
use crate::backend::etcd::{self, Etcd};
use crate::backend::nats::Nats;
use crate::backend::watch::{Event, Tell, watch};
use crate::backend::{Backend, Change, Error, Times};
use crate::settings::{self, Settings};

/// Interval between two heartbeats, which check the connection.
const BEAT: Duration = Duration::from_secs(27);
/// Longest pause before a reconnection.
const PAUSE: Duration = Duration::from_secs(5);

/// An event of the watch.
#[derive(Debug)]
pub enum Seen {
    /// A connection is made; all values follow.
    Begins,
    /// A change.
    Changed(Change),
    /// All values of the first list have been reported.
    All,
    /// The connection is lost; the watch reconnects.
    Lost(Error),
}

/// A prefix to watch, and the number of heartbeats between two lists of it; 0 for never.
pub type Place = (String, u32);

/// Receiver of the events.
pub type Eye<'e> = dyn FnMut(Seen) -> Result<(), Problem> + 'e;

/// Work of a command until it ends.
pub type Work<'w> = Pin<Box<dyn Future<Output = Result<(), Problem>> + 'w>>;

/// Runs a future on this thread.
///
/// # Errors
/// The future's error, or that of creating the runtime.
pub fn block_on(work: Work<'_>) -> Result<Exit, Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work).map(|()| Exit::Done)
}

/// Passes all values below the prefixes to `tell` and, if `goes_on`, all later changes.
///
/// # Errors
/// An error of `tell`; this node has no certificate; or, unless `goes_on`, the backend cannot be
/// reached.
pub async fn all(
    settings: &Settings,
    places: &[Place],
    goes_on: bool,
    tell: &mut Eye<'_>,
) -> Result<(), Problem> {
    loop {
        // The certificate may have been renewed in the meantime.
        let access = Access::new(settings).map_err(Problem::Failed)?;
        tell(Seen::Begins)?;
        let Err(lost) = connected(&access, places, goes_on, tell).await? else {
            return Ok(());
        };
        if !goes_on {
            let backend = settings.backend;
            let why = format!("{backend} {lost}; 'again-fleet check' tells what to do");
            return Err(Problem::Failed(why));
        }
        tell(Seen::Lost(lost))?;
        sleep(rand::rng().random_range(PAUSE / 10..=PAUSE)).await;
    }
}

/// Watches over one connection. Returns the error that ended it, if any.
async fn connected(
    access: &Access,
    places: &[Place],
    goes_on: bool,
    tell: &mut Eye<'_>,
) -> Result<Result<(), Error>, Problem> {
    let times = Times::default();
    let (servers, tls) = (&access.servers, access.tls.as_ref());
    match access.backend {
        settings::Backend::Etcd => {
            let one = etcd::one_of(servers, times.call).await.cloned();
            match Etcd::new(one.as_slice(), tls, times).await {
                Ok(backend) => look(&backend, places, goes_on, tell).await,
                Err(e) => Ok(Err(e)),
            }
        }
        settings::Backend::Nats => {
            let (node, namespace) = (&access.node, access.namespace.clone());
            match Nats::connect(servers, tls, node, namespace, times).await {
                Ok(backend) => look(&backend, places, goes_on, tell).await,
                Err(e) => Ok(Err(e)),
            }
        }
    }
}

/// A task that runs as long as a connection is used.
type Watching<'w> = Pin<Box<dyn Future<Output = Infallible> + 'w>>;

async fn look<E: Backend>(
    backend: &E,
    places: &[Place],
    goes_on: bool,
    tell: &mut Eye<'_>,
) -> Result<Result<(), Error>, Problem> {
    let (told, events) = unbounded_channel();
    let again: Vec<Notify> = places.iter().map(|_| Notify::new()).collect();
    let mut watching: Vec<Watching<'_>> = Vec::new();
    for (n, ((prefix, _), again)) in places.iter().zip(&again).enumerate() {
        let tell = Tell(n, told.clone());
        watching.push(Box::pin(watch(backend, prefix.clone(), None, again, tell)));
    }
    if goes_on {
        watching.push(Box::pin(beat(backend, places, &again, Tell(0, told))));
    }
    let listed = vec![false; places.len()];
    hear(watching, events, listed, goes_on, tell).await
}

/// Sends heartbeats until one fails. Nothing else detects a silent connection.
async fn beat<E: Backend>(
    backend: &E,
    places: &[Place],
    again: &[Notify],
    tell: Tell,
) -> Infallible {
    let Err(lost) = beats(backend, places, again).await;
    tell.tell(Event::Lost(lost));
    pending().await
}

async fn beats<E: Backend>(
    backend: &E,
    places: &[Place],
    again: &[Notify],
) -> Result<Infallible, Error> {
    let (lease, mut beats) = (backend.grant().await?, 0);
    loop {
        sleep(BEAT).await;
        backend.renew(&lease).await?;
        beats += 1;
        for ((_, every), again) in places.iter().zip(again) {
            if *every > 0 && beats % every == 0 {
                again.notify_one();
            }
        }
    }
}

/// Passes the events to `tell` until the connection is lost or, unless `goes_on`, until all values
/// have been reported.
async fn hear(
    mut watching: Vec<Watching<'_>>,
    mut events: UnboundedReceiver<(usize, Event)>,
    mut listed: Vec<bool>,
    goes_on: bool,
    tell: &mut Eye<'_>,
) -> Result<Result<(), Error>, Problem> {
    let mut watching = poll_fn(|context| {
        for one in &mut watching {
            let _ = one.as_mut().poll(context);
        }
        Poll::<Infallible>::Pending
    });
    loop {
        let event = tokio::select! {
            never = &mut watching => match never {},
            event = events.recv() => event,
        };
        match event {
            Some((_, Event::Changed(change))) => tell(Seen::Changed(change))?,
            Some((n, Event::Complete)) => {
                listed[n] = true;
                if listed.iter().all(|is| *is) {
                    tell(Seen::All)?;
                    if !goes_on {
                        return Ok(Ok(()));
                    }
                }
            }
            Some((_, Event::Lost(e))) => return Ok(Err(e)),
            // Without limits, nothing is cut off.
            Some((_, Event::Cut(_) | Event::Foreign(_))) | None => {}
        }
    }
}
