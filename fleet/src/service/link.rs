//! The link to the backend: one connection at a time, which is made again whenever it is lost. A
//! bounded number of calls is under way at the same time, in any order. The link reports the values
//! in the backend that concern this node.

mod bounds;
mod calls;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{FutureExt, Shared, join, join5};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::RngExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout};

pub use self::bounds::OF_A_SENDER;
use self::bounds::bounds;
pub use self::calls::{Listed, Then};
use self::calls::{found, list, put, release, reset, stories};
use super::places::{Act, Entered, Leases, Line, Looks, Seen};
use crate::access::Access;
use crate::backend::etcd::{self, Etcd};
use crate::backend::nats::Nats;
use crate::backend::watch::{self, Tell};
use crate::backend::{Backend, Change, Error, List, NO_PLACES, Times, Value};
use crate::settings;
use crate::wire::envelope;
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Id, Namespace};

/// Longest first pause before the next connection; the bound doubles. Pauses are random, so that
/// nodes that lost a backend together do not come back together.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before the next connection. A connection that lasted longer resets the bound.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Largest number of calls that are under way at the same time.
const MOST_CALLS: usize = 64;
/// Largest number of changes that are reported together.
const MOST_CHANGES: usize = 256;
/// Longest time for a renewal: with the time between two renewals, a silent connection is noticed
/// within half a minute.
pub const RENEWAL: Duration = Duration::from_millis(2500);

/// Request to the backend, and the conversion of its answer.
pub enum Call<R> {
    /// Write a value; the answer is its revision.
    Put {
        /// Key of the value.
        key: Key,
        /// Value to write.
        bytes: Vec<u8>,
        /// Shortest time for which the value has to stay; none for ever.
        ttl: Option<Duration>,
        /// Whether the call fails if the backend has room left for triggers only.
        needs_room: bool,
        /// Conversion of the answer.
        then: Then<R, u64>,
    },
    /// Remove the value of this revision; a conflict if the key has another value or none.
    Remove {
        /// Key of the value.
        key: Key,
        /// Revision of the value.
        revision: u64,
        /// Conversion of the answer.
        then: Then<R, ()>,
    },
    /// Read the value of a key.
    Find {
        /// Key to read.
        key: Key,
        /// Conversion of the answer.
        then: Then<R, Option<Value>>,
    },
    /// List the values below these prefixes.
    List {
        /// Prefixes of the keys.
        prefixes: Vec<String>,
        /// Conversion of the answer.
        then: Then<R, List>,
    },
    /// List the latest stories of triggers.
    Stories {
        /// Origin of the stories; none for all origins.
        origin: Option<Id>,
        /// Conversion of the answer.
        then: Then<R, List>,
    },
    /// Read the values of these keys, for a trigger of a rolling run.
    Get {
        /// Keys to read.
        keys: Vec<Key>,
        /// Conversion of the answer.
        then: Then<R, Vec<Value>>,
    },
    /// Write an operator's reset of a lock, unless the lock's own key has a value.
    Reset {
        /// Key of the reset, and key of the lock.
        keys: [Key; 2],
        /// Reset to write.
        bytes: Vec<u8>,
        /// Conversion of the answer.
        then: Then<R, ()>,
    },
    /// Make the first write of an entry, under a new lease.
    Enter {
        /// Key of the entry.
        key: Key,
        /// Whether the key is this node's own, so that an existing value is removed. Otherwise an
        /// existing value is a conflict.
        is_own: bool,
        /// Conversion of the answer.
        then: Then<R, Entered>,
    },
    /// Replace the first write of an entry by the second; the answer is its revision.
    Sign {
        /// Key of the entry.
        key: Key,
        /// First write of the entry.
        entered: Entered,
        /// Value to write.
        bytes: Vec<u8>,
        /// Conversion of the answer.
        then: Then<R, u64>,
    },
    /// Change an entry in a group's queue, or at the key of a lock.
    Place {
        /// Key of the entry.
        key: Key,
        /// Change of the entry.
        act: Act,
        /// Conversion of the answer.
        then: Then<R, ()>,
    },
    /// Remove a node's entry in a group's queue; the answer is whether there was one.
    Release {
        /// Key of the entry.
        key: Key,
        /// Conversion of the answer.
        then: Then<R, bool>,
    },
}

impl<R> Call<R> {
    /// Answers the call with this error.
    fn fail(self, error: Error) -> R {
        match self {
            Call::Put { then, .. } | Call::Sign { then, .. } => then(Err(error)),
            Call::Remove { then, .. } | Call::Reset { then, .. } | Call::Place { then, .. } => {
                then(Err(error))
            }
            Call::Find { then, .. } => then(Err(error)),
            Call::List { then, .. } | Call::Stories { then, .. } => then(Err(error)),
            Call::Get { then, .. } => then(Err(error)),
            Call::Enter { then, .. } => then(Err(error)),
            Call::Release { then, .. } => then(Err(error)),
        }
    }
}

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
                Some(Order::Call(call)) => unreached(news, call),
                Some(Order::Beat | Order::Look(..)) => {}
                Some(Order::Access(access)) => return ControlFlow::Break(End::Access(access)),
                Some(Order::End) | None => return ControlFlow::Break(End::Farewell),
            }
        }
    }
}

fn unreached<R>(news: &Teller<R>, call: Call<R>) {
    let why = Error::Unreachable("there is no connection".to_owned());
    let _ = news.send(News::Answered(call.fail(why)));
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
    let (node, namespace) = (&access.node, &access.namespace);
    let (tell, mut told) = unbounded_channel();
    let (again, never) = ([(); 5].map(|()| Notify::new()), Notify::new());
    let look = |number, prefix: Prefix<'_>, again| {
        let (prefix, bounds) = (prefix.encode(namespace), bounds(&prefix, namespace));
        watch::watch(backend, prefix, bounds, again, Tell(number, tell.clone()))
    };
    let registers = look(0, Prefix::To(node), &again[0]);
    let results = look(1, Prefix::Results(node), &again[1]);
    let events = async {
        if !access.rules.is_empty() {
            look(2, Prefix::AllEvents, &never).await;
        }
    };
    let locks = async {
        let (held, passed) = (Prefix::Locks, Prefix::Moves);
        let (held, passed) = (look(3, held, &again[2]), look(4, passed, &again[3]));
        if E::HAS_PLACES && access.has_locks {
            join(held, passed).await;
        }
    };
    let lines = &Looks::default();
    let others = async {
        if E::HAS_PLACES {
            let tell = |number, seen| drop(news.send(News::Seen(number, seen)));
            lines.look(backend, tell).await;
        }
    };
    let own_key = watch_own_key(backend, access, [&again[4], &never], &tell);
    let watched = join5(registers, results, events, others, locks);
    let mut watching = pin!(join(watched, own_key));
    let mut calls = Calls::new(backend, namespace);
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
            Some(is_silent) = calls.next(news) => is_due = is_silent,
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
    calls.give_up(news).await;
    end
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

/// Calls that wait or are under way.
struct Calls<'e, E: Backend, R> {
    backend: &'e E,
    namespace: &'e Namespace,
    leases: Leases<E::Lease>,
    waiting: VecDeque<Call<R>>,
    under_way: FuturesUnordered<Answering<'e, R>>,
    /// Ends the calls that are under way when it is dropped.
    end: oneshot::Sender<()>,
    ended: Shared<oneshot::Receiver<()>>,
}

/// Answer to come, and whether it may mean that the connection is dead.
type Answering<'e, R> = Pin<Box<dyn Future<Output = (R, bool)> + 'e>>;

impl<'e, E: Backend, R: 'e> Calls<'e, E, R> {
    fn new(backend: &'e E, namespace: &'e Namespace) -> Self {
        let (end, ended) = oneshot::channel();
        Calls {
            backend,
            namespace,
            leases: Leases::default(),
            waiting: VecDeque::new(),
            under_way: FuturesUnordered::new(),
            end,
            ended: ended.shared(),
        }
    }

    fn push(&mut self, call: Call<R>) {
        self.waiting.push_back(call);
        self.start();
    }

    fn start(&mut self) {
        while self.under_way.len() < MOST_CALLS
            && let Some(call) = self.waiting.pop_front()
        {
            self.under_way.push(self.make(call));
        }
    }

    fn make(&self, call: Call<R>) -> Answering<'e, R> {
        let (backend, namespace) = (self.backend, self.namespace);
        let leases = self.leases.clone();
        match call {
            Call::Put {
                key,
                bytes,
                ttl,
                needs_room,
                then,
            } => {
                let key = key.encode(namespace);
                self.answer(then, async move {
                    put(backend, &key, &bytes, ttl, needs_room).await
                })
            }
            Call::Remove {
                key,
                revision,
                then,
            } => {
                let key = key.encode(namespace);
                self.answer(then, async move { backend.remove(&key, revision).await })
            }
            Call::Find { key, then } => {
                let key = key.encode(namespace);
                self.answer(then, async move { found(backend, &key).await })
            }
            Call::List { prefixes, then } => {
                self.answer(then, async move { list(backend, &prefixes).await })
            }
            Call::Stories { origin, then } => self.answer(then, async move {
                stories(backend, namespace, origin.as_ref()).await
            }),
            Call::Get { keys, then } => {
                let keys: Vec<String> = keys.iter().map(|key| key.encode(namespace)).collect();
                self.answer(
                    then,
                    async move { backend.get(&keys, envelope::MOST).await },
                )
            }
            Call::Reset { keys, bytes, then } => {
                let keys = keys.map(|key| key.encode(namespace));
                self.answer(then, async move { reset(backend, &keys, &bytes).await })
            }
            call @ (Call::Enter { .. }
            | Call::Sign { .. }
            | Call::Place { .. }
            | Call::Release { .. })
                if !E::HAS_PLACES =>
            {
                let reply = call.fail(Error::Denied(NO_PLACES.to_owned()));
                Box::pin(std::future::ready((reply, false)))
            }
            Call::Enter { key, is_own, then } => {
                let key = key.encode(namespace);
                self.answer(then, leases.enter(backend, key, is_own))
            }
            Call::Sign {
                key,
                entered,
                bytes,
                then,
            } => {
                let key = key.encode(namespace);
                self.answer(then, leases.sign(backend, key, entered, bytes))
            }
            Call::Place { key, act, then } => {
                let key = key.encode(namespace);
                self.answer(then, leases.act(backend, key, act))
            }
            Call::Release { key, then } => {
                let key = key.encode(namespace);
                self.answer(then, async move { release(backend, &key).await })
            }
        }
    }

    /// Waits for the answer of the backend, or for the end of the connection: then the work may
    /// have been done.
    fn answer<T: 'e>(
        &self,
        then: Then<R, T>,
        work: impl Future<Output = Result<T, Error>> + 'e,
    ) -> Answering<'e, R> {
        let ended = self.ended.clone();
        Box::pin(async move {
            let answer = tokio::select! {
                answer = work => answer,
                _ = ended => Err(Error::Unknown("the connection ended".to_owned())),
            };
            let is_silent = matches!(answer, Err(Error::Unreachable(_) | Error::Unknown(_)));
            (then(answer), is_silent)
        })
    }

    /// Reports the next answer. Returns whether it may mean that the connection is dead; nothing if
    /// no call is under way.
    async fn next(&mut self, news: &Teller<R>) -> Option<bool> {
        let (reply, is_silent) = self.under_way.next().await?;
        let _ = news.send(News::Answered(reply));
        self.start();
        Some(is_silent)
    }

    /// Answers all calls. Those under way may have been done.
    async fn give_up(self, news: &Teller<R>) {
        let Calls {
            mut under_way,
            waiting,
            end,
            ..
        } = self;
        drop(end);
        while let Some((reply, _)) = under_way.next().await {
            let _ = news.send(News::Answered(reply));
        }
        for call in waiting {
            unreached(news, call);
        }
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
