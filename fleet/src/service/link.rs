//! The link to the backend: one connection at a time, which is made again whenever it is lost. A
//! bounded number of calls is under way at the same time, in any order. The link reports the values
//! in the backend that concern this node.

mod bounds;
mod calls;

use std::convert::Infallible;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{OptionFuture, join3, join5};
use rand::RngExt;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};

pub use self::bounds::OF_A_SENDER;
use self::bounds::bounds;
use self::calls::Calls;
pub use self::calls::{Call, Listed, Then};
use super::places::{Line, Looks, Seen};
use crate::access::Access;
use crate::backend::etcd::{self, Etcd};
use crate::backend::nats::Nats;
use crate::backend::watch::{self, Tell};
use crate::backend::{Backend, Change, Error, Times};
use crate::settings;
use crate::wire::key::{Key, Prefix};

/// Longest first pause before the next connection; the bound doubles. Pauses are random, so that
/// nodes that lost a backend together do not come back together.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before the next connection. A connection that lasted longer resets the bound.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Largest number of changes that are reported together.
const MOST_CHANGES: usize = 256;
/// Longest time for a renewal: with the time between two renewals, a silent connection is noticed
/// within half a minute.
pub const RENEWAL: Duration = Duration::from_millis(2500);

/// Order to the link.
pub enum Order<R> {
    /// Make this call, which is answered by [`News::Answered`].
    Call(Call<R>),
    /// Check whether the backend answers, and then list again what may have changed.
    Beat,
    /// Use this access from now on, over a new connection.
    Access(Box<Access>),
    /// Observe these queues from now on, whose keys begin with this prefix; reports about them
    /// carry this number.
    Look(u64, String, Vec<Line>),
    /// Close the connection; no more orders follow.
    End,
}

/// Report from the link.
#[derive(Debug)]
pub enum News<R> {
    /// A connection was made. All values in the backend for this node are reported after this.
    Reached,
    /// The connection was lost, for this reason. All calls have been answered.
    Lost(String),
    /// Changes below `to/` and `result/` and at this node's own key; below `event/` if there are
    /// rules; below `lock/` and `move/` if there are locks.
    Changes(Vec<Change>),
    /// Segment of the keys below `to/` of this node below which there is more than [`OF_A_SENDER`].
    Cut(String),
    /// Key below `to/` of this node whose value is not a trigger of a sender.
    Foreign(String),
    /// Observation of a queue, with the number from [`Order::Look`].
    Seen(u64, Seen),
    /// Answer to a call.
    Answered(R),
    /// State of the watch of this number: everything was reported, or the backend does not show
    /// what is below this prefix.
    Watched(usize, Option<(&'static str, Error)>),
}

/// Reason for the end of a connection.
enum End {
    Lost(String),
    Access(Box<Access>),
    Farewell,
}

type Orders<R> = UnboundedReceiver<Order<R>>;
type Teller<R> = UnboundedSender<News<R>>;

/// Keeps the link up until an order ends it.
pub async fn keep_up<R>(mut access: Box<Access>, mut orders: Orders<R>, news: Teller<R>) {
    let mut failures = 0_u32;
    loop {
        let since = Instant::now();
        let end = match connected(&access, &mut orders, &news).await {
            End::Lost(why) => {
                let _ = news.send(News::Lost(why));
                if since.elapsed() > LONGEST_PAUSE {
                    failures = 0;
                }
                let pause = pause(failures);
                failures = failures.saturating_add(1);
                aside(sleep(pause), &mut orders, &news).await.break_value()
            }
            end => Some(end),
        };
        match end {
            Some(End::Farewell) => return,
            Some(End::Access(other)) => {
                let _ = news.send(News::Lost("the access has changed".to_owned()));
                access = other;
            }
            Some(End::Lost(_)) | None => {}
        }
    }
}

fn pause(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.min(16));
    rand::rng().random_range(Duration::ZERO..=doubled.min(LONGEST_PAUSE))
}

/// Does this work while there is no connection, and answers all calls meanwhile. Breaks if an order
/// ends it early.
async fn aside<T, R>(
    work: impl Future<Output = T>,
    orders: &mut Orders<R>,
    news: &Teller<R>,
) -> ControlFlow<End, T> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return ControlFlow::Continue(done),
            order = orders.recv() => match order {
                Some(Order::Call(call)) => answered(news, call.unreached()),
                Some(Order::Beat | Order::Look(..)) => {}
                Some(Order::Access(access)) => return ControlFlow::Break(End::Access(access)),
                Some(Order::End) | None => return ControlFlow::Break(End::Farewell),
            }
        }
    }
}

fn answered<R>(news: &Teller<R>, reply: R) {
    let _ = news.send(News::Answered(reply));
}

/// Runs one connection from its beginning to its end.
async fn connected<R>(access: &Access, orders: &mut Orders<R>, news: &Teller<R>) -> End {
    let (servers, tls) = (&access.servers, access.tls.as_ref());
    let times = Times::default();
    match access.backend {
        settings::Backend::Etcd => {
            let one = async {
                let one = etcd::one_of(servers, times.call).await.cloned();
                Etcd::new(one.as_slice(), tls, times.clone()).await
            };
            match aside(one, orders, news).await {
                ControlFlow::Continue(Ok(backend)) => live(&backend, access, orders, news).await,
                ControlFlow::Continue(Err(e)) => End::Lost(e.to_string()),
                ControlFlow::Break(end) => end,
            }
        }
        settings::Backend::Nats => {
            let (node, namespace) = (&access.node, access.namespace.clone());
            let backend = Nats::connect(servers, tls, node, namespace, times);
            match aside(backend, orders, news).await {
                ControlFlow::Continue(Ok(backend)) => live(&backend, access, orders, news).await,
                ControlFlow::Continue(Err(e)) => End::Lost(e.to_string()),
                ControlFlow::Break(end) => end,
            }
        }
    }
}

/// Prefixes that are watched below the fleet's prefix, by the number of the watch.
const WATCHED: [&str; 6] = ["to/", "result/", "event/", "lock/", "move/", "node/"];
/// Number of the watch of this node's own key.
pub const OWN_KEY: usize = 5;

/// Uses a connection until it ends. Events are not listed with each beat: there are many, and a
/// delay does no harm.
async fn live<E: Backend, R>(
    backend: &E,
    access: &Access,
    orders: &mut Orders<R>,
    news: &Teller<R>,
) -> End {
    let lease = match aside(backend.grant(), orders, news).await {
        ControlFlow::Continue(Ok(lease)) => lease,
        ControlFlow::Continue(Err(e)) => return End::Lost(e.to_string()),
        ControlFlow::Break(end) => return end,
    };
    let _ = news.send(News::Reached);
    let (tell, mut told) = unbounded_channel();
    let (again, never) = ([(); 5].map(|()| Notify::new()), Notify::new());
    let lines = &Looks::default();
    let others = async {
        if E::HAS_PLACES {
            let tell = |number, seen| drop(news.send(News::Seen(number, seen)));
            lines.look(backend, tell).await;
        }
    };
    let values = watch_values(backend, access, &again, &never, &tell);
    let own_key = watch_own_key(backend, access, [&again[4], &never], &tell);
    let mut watching = pin!(join3(values, others, own_key));
    let mut calls = Calls::new(backend, &access.namespace);
    let mut beating: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(std::future::pending());
    let (mut lease, mut events, mut is_due) = (Some(lease), Vec::new(), false);
    let end = loop {
        if std::mem::take(&mut is_due)
            && let Some(lease) = lease.take()
        {
            beating = Box::pin(beat(backend, lease));
        }
        tokio::select! {
            _ = &mut watching => {}
            _ = told.recv_many(&mut events, MOST_CHANGES) => {
                if let Some(why) = pass_on(&mut events, news) {
                    break End::Lost(why);
                }
            }
            Some((reply, is_silent)) = calls.next() => {
                answered(news, reply);
                is_due = is_silent;
            }
            beaten = &mut beating => {
                beating = Box::pin(std::future::pending());
                match beaten {
                    Ok(renewed) => lease = Some(renewed),
                    Err(e) => break End::Lost(e.to_string()),
                }
                again.iter().for_each(Notify::notify_one);
            }
            order = orders.recv() => match order {
                Some(Order::Call(call)) => calls.push(call),
                Some(Order::Beat) => is_due = true,
                Some(Order::Look(number, prefix, all)) => lines.want(number, prefix, all),
                Some(Order::Access(access)) => break End::Access(access),
                Some(Order::End) | None => break End::Farewell,
            }
        }
    };
    calls
        .give_up()
        .await
        .into_iter()
        .for_each(|reply| answered(news, reply));
    end
}

/// Watches the values for this node: triggers, results, and the events and locks if it has rules or
/// locks. What is notified of `again` makes a watch list its values once more.
async fn watch_values<E: Backend>(
    backend: &E,
    access: &Access,
    again: &[Notify; 5],
    never: &Notify,
    tell: &UnboundedSender<(usize, watch::Event)>,
) {
    let (node, namespace) = (&access.node, &access.namespace);
    let look = |number, prefix: Prefix<'_>, again| {
        let (prefix, bounds) = (prefix.encode(namespace), bounds(&prefix, namespace));
        watch::watch(backend, prefix, bounds, again, Tell(number, tell.clone()))
    };
    let events = (!access.rules.is_empty()).then(|| look(2, Prefix::AllEvents, never));
    let has_locks = E::HAS_PLACES && access.has_locks;
    let locks = has_locks.then(|| look(3, Prefix::Locks, &again[2]));
    let moves = has_locks.then(|| look(4, Prefix::Moves, &again[3]));
    join5(
        look(0, Prefix::To(node), &again[0]),
        look(1, Prefix::Results(node), &again[1]),
        OptionFuture::from(events),
        OptionFuture::from(locks),
        OptionFuture::from(moves),
    )
    .await;
}

/// Watches this node's own key. On etcd the key is listed with each beat; on NATS a list is
/// expensive, and nothing ever notifies `never`.
async fn watch_own_key<E: Backend>(
    backend: &E,
    access: &Access,
    [again, never]: [&Notify; 2],
    tell: &UnboundedSender<(usize, watch::Event)>,
) -> Infallible {
    let again = if E::HAS_PLACES { again } else { never };
    let key = Key::Node(access.node.clone()).encode(&access.namespace);
    let tell = Tell(OWN_KEY, tell.clone());
    watch::watch(backend, key, None, again, tell).await
}

/// Reports the events of watches. Returns the reason if the connection is to be given up.
fn pass_on<R>(events: &mut Vec<(usize, watch::Event)>, news: &Teller<R>) -> Option<String> {
    let (mut changes, mut lost) = (Vec::new(), None);
    for (number, event) in events.drain(..) {
        match event {
            watch::Event::Changed(change) => changes.push(change),
            watch::Event::Complete => {
                // The changes are reported before the watch counts as complete.
                if !changes.is_empty() {
                    let _ = news.send(News::Changes(std::mem::take(&mut changes)));
                }
                let _ = news.send(News::Watched(number, None));
            }
            watch::Event::Cut(sender) => drop(news.send(News::Cut(sender))),
            watch::Event::Foreign(key) => drop(news.send(News::Foreign(key))),
            // The watch keeps trying; everything else works all the same.
            watch::Event::Lost(error)
                if number == OWN_KEY || matches!(error, Error::Denied(_) | Error::Full(_)) =>
            {
                let failed = WATCHED.get(number).map(|prefix| (*prefix, error));
                drop(news.send(News::Watched(number, failed)));
            }
            watch::Event::Lost(error) => lost = Some(error.to_string()),
        }
    }
    if !changes.is_empty() {
        let _ = news.send(News::Changes(changes));
    }
    lost
}

/// Renews a lease that has no keys, or takes a new one if it has ended. No request costs the
/// backend less than a renewal, which writes nothing.
async fn beat<E: Backend>(backend: &E, lease: E::Lease) -> Result<E::Lease, Error> {
    let silent = |_| Err(Error::Unreachable(format!("no answer within {RENEWAL:?}")));
    let renewed = timeout(RENEWAL, backend.renew(&lease)).await;
    match renewed.unwrap_or_else(silent) {
        Ok(()) | Err(Error::Denied(_) | Error::Full(_)) => Ok(lease),
        Err(Error::Conflict) => backend.grant().await,
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_outlives_a_failed_watch_of_the_own_key() {
        let (tell, mut told) = unbounded_channel::<News<()>>();
        let lost = || watch::Event::Lost(Error::Unreachable("no consumer".to_owned()));
        assert_eq!(pass_on(&mut vec![(OWN_KEY, lost())], &tell), None);
        let failed = told.try_recv().expect("told");
        assert!(
            matches!(failed, News::Watched(OWN_KEY, Some(("node/", _)))),
            "{failed:?}"
        );
        assert!(pass_on(&mut vec![(0, lost())], &tell).is_some());
    }
}
