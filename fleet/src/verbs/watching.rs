//! What stands in the backend, watched by a command over as many connections as that takes. The backend is asked by this process itself,
//! so that nobody who looks is a burden to the service.

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

/// How often it is asked whether the backend is still there.
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
    /// The backend is not reached; it is tried again.
    Lost(Error),
}

/// What is watched: a prefix, and with each how many beats all below it is listed again; 0 for never.
pub type Place = (String, u32);

/// Whoever is told.
pub type Eye<'e> = dyn FnMut(Seen) -> Result<(), Problem> + 'e;

/// What a command does until it ends.
pub type Work<'w> = Pin<Box<dyn Future<Output = Result<(), Problem>> + 'w>>;

/// Does it, on this thread.
///
/// # Errors
/// Its own, or that it cannot begin.
pub fn block_on(work: Work<'_>) -> Result<Exit, Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work).map(|()| Exit::Done)
}

/// Tells all that is there, and then what comes, unless that was all.
///
/// # Errors
/// What whoever is told says; that this node has no certificate; or, unless it goes on, that the backend cannot be asked.
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
            let backend = settings.backend;
            let why = format!("{backend} {lost}; 'again-fleet check' tells what to do");
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

/// What goes on for as long as a connection is used.
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

/// By nothing else is it noticed that a connection fell silent.
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

/// Tells what is watched, until it is lost, or unless it goes on, until all was told.
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
            // Nothing is cut off where there is no limit.
            Some((_, Event::Cut(_) | Event::Foreign(_))) | None => {}
        }
    }
}
