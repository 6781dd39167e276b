//! The link to the engine: one connection at a time, made again whenever it is lost. It carries orders out in any order, a
//! bounded number together, and tells what stands in the engine for this node.

/// How much is read of what others write.
mod bounds;
/// Calls that take more than one request.
mod calls;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{FutureExt, join, join5};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::RngExt;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};

pub use self::bounds::OF_A_SENDER;
use self::bounds::bounds;
use self::calls::{forget, list, release, reset, stories, tell};
use super::few::Few;
use super::places::{Act, Leases, Line, Looks, Seen};
use crate::access::Access;
use crate::engine::etcd::{self, Etcd};
use crate::engine::nats::Nats;
use crate::engine::watch::{self, Tell};
use crate::engine::{Change, Engine, Error, List, NO_PLACES, Times, Value};
use crate::settings;
use crate::step::model::{Client, LetterId, Place};
use crate::wire::envelope;
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Id, Namespace, Node};

/// The first pause before the next connection, at most; it doubles. Nodes that lost an engine together come back spread.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause. A connection that lasted longer was a good one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How many calls are under way together.
const MOST_CALLS: usize = 64;
/// How many changes are told together.
const MOST_CHANGES: usize = 256;
/// How long a renewal may take: with the time between two of them, a silent connection is noticed within half a minute.
pub const RENEWAL: Duration = Duration::from_millis(2500);

/// The service, where it asks for itself.
pub const OURSELVES: Client = 0;
/// The same, about locks.
pub const LOCKS: Client = Client::MAX;
/// The same, about beats.
pub const BEATS: Client = Client::MAX - 1;

/// What the engine is asked for.
#[derive(Debug)]
pub enum Call {
    /// To write a value that has no more use after that time.
    Put {
        /// Whose.
        letter: LetterId,
        /// Which version of it.
        version: u64,
        /// Where to.
        key: Key,
        /// The value.
        bytes: Vec<u8>,
        /// How long it has to stay; for ever without.
        ttl: Option<Duration>,
    },
    /// To remove a register, if it is of this revision.
    Remove {
        /// The register.
        place: Place,
        /// Its revision.
        revision: u64,
    },
    /// To show what a node publishes, for somebody on this machine who wants to remove it; and then to remove it.
    Forget {
        /// For whom.
        client: Client,
        /// Which.
        node: Node,
        /// The revision that is removed; nothing is removed without one.
        revision: Option<u64>,
    },
    /// To list what stands below these, for somebody on this machine.
    List {
        /// For whom; [`OURSELVES`], [`LOCKS`] and [`BEATS`] are the service.
        client: Client,
        /// As keys begin.
        prefixes: Vec<String>,
    },
    /// To list the newest of what became of triggers, for somebody on this machine.
    Stories {
        /// For whom.
        client: Client,
        /// Of this origin only.
        origin: Option<Id>,
    },
    /// To read the values at these keys, for a trigger of a rolling run.
    Get {
        /// Under which the trigger waits for its slot.
        client: Client,
        /// The keys.
        keys: Vec<Key>,
    },
    /// To hold something for this long: an operator's word or a beat; or events, if it has room for such.
    Tell {
        /// For whom; events are for [`OURSELVES`], a beat for [`BEATS`].
        client: Client,
        /// Where.
        key: Key,
        /// It.
        bytes: Vec<u8>,
        /// How long.
        ttl: Duration,
    },
    /// To write an operator's reset of a lock, for somebody on this machine, unless something stands at the lock's own key.
    Reset {
        /// For whom.
        client: Client,
        /// Of the reset, and of the lock.
        keys: [Key; 2],
        /// The reset.
        bytes: Vec<u8>,
    },
    /// To do something with a place in a group, or with a lock.
    Place {
        /// Which.
        key: Key,
        /// What.
        act: Act,
    },
    /// To remove what stands at a node's place in a group, for somebody on this machine. The answer is what is removed, or nothing.
    Release {
        /// For whom.
        client: Client,
        /// The place.
        key: Key,
    },
}

/// What came of a call: values of a list, or the key and revision of a put.
pub type Answer = Result<List, Error>;

/// What the link is to do.
pub enum Order {
    /// This; answered by [`News::Answered`].
    Call(Call),
    /// Find out whether the engine answers, and then list again what may have changed.
    Beat,
    /// Connect in another way from now on.
    Access(Box<Access>),
    /// Look at these lines from now on, whose keys begin with this prefix; what is told of it bears this number.
    Look(u64, String, Vec<Line>),
    /// Say farewell; no more orders follow.
    End,
}

/// What the link has to tell.
#[derive(Debug)]
pub enum News {
    /// There is a connection; everything that stands in the engine for this node comes after this.
    Reached,
    /// There is none any more. All calls have been answered.
    Lost(String),
    /// Changes below `to/` and `result/` and at this node's own key, below `event/` where there are rules, and below `lock/` and
    /// `pass/` where there are locks.
    Changes(Vec<Change>),
    /// Below this segment of the keys below `to/` of this node there is more than [`OF_A_SENDER`].
    Cut(String),
    /// At this key below `to/` of this node stands what is no trigger of a sender.
    Foreign(String),
    /// What is seen of the lines, by the number of the look.
    Seen(u64, Seen),
    /// The answer to a call. It is none if another revision stood where one was to be removed.
    Answered(Call, Answer),
    /// The watch of that number sees what is there, or it is not shown what is below its prefix.
    Watched(usize, Option<(&'static str, Error)>),
}

/// Why a connection has ended.
enum End {
    Lost(String),
    Access(Box<Access>),
    Farewell,
}

type Orders = UnboundedReceiver<Order>;
type Teller = UnboundedSender<News>;

/// Keeps the link up until it is told to end.
pub async fn keep_up(mut access: Box<Access>, mut orders: Orders, news: Teller) {
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

/// Does something while there is no connection; meanwhile all calls are answered. What ends it early.
async fn aside<T>(
    work: impl Future<Output = T>,
    orders: &mut Orders,
    news: &Teller,
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

fn unreached(news: &Teller, call: Call) {
    let why = Error::Unreachable("there is no connection".to_owned());
    let _ = news.send(News::Answered(call, Err(why)));
}

/// One connection, from its beginning to its end.
async fn connected(access: &Access, orders: &mut Orders, news: &Teller) -> End {
    let (servers, tls) = (&access.servers, access.tls.as_ref());
    let times = Times::default();
    match access.engine {
        settings::Engine::Etcd => {
            let one = async {
                let one = etcd::one_of(servers, times.call).await.cloned();
                Etcd::new(one.as_slice(), tls, times.clone()).await
            };
            match aside(one, orders, news).await {
                ControlFlow::Continue(Ok(engine)) => live(&engine, access, orders, news).await,
                ControlFlow::Continue(Err(e)) => End::Lost(e.to_string()),
                ControlFlow::Break(end) => end,
            }
        }
        settings::Engine::Nats => {
            let (node, namespace) = (&access.node, access.namespace.clone());
            let engine = Nats::connect(servers, tls, node, namespace, times);
            match aside(engine, orders, news).await {
                ControlFlow::Continue(Ok(engine)) => live(&engine, access, orders, news).await,
                ControlFlow::Continue(Err(e)) => End::Lost(e.to_string()),
                ControlFlow::Break(end) => end,
            }
        }
    }
}

/// What is watched below the fleet's prefix, by the number of the watch.
const WATCHED: [&str; 6] = ["to/", "result/", "event/", "lock/", "pass/", "node/"];
/// The watch of this node's own key.
pub const OWN_KEY: usize = 5;

/// Uses a connection until its end.
async fn live<E: Engine>(engine: &E, access: &Access, orders: &mut Orders, news: &Teller) -> End {
    let lease = match aside(engine.grant(), orders, news).await {
        ControlFlow::Continue(Ok(lease)) => lease,
        ControlFlow::Continue(Err(e)) => return End::Lost(e.to_string()),
        ControlFlow::Break(end) => return end,
    };
    let _ = news.send(News::Reached);
    let (node, namespace) = (&access.node, &access.namespace);
    let (tell, mut told) = unbounded_channel();
    // What is missing of events for a while does no harm, and they are many: they are not listed with each beat.
    let (again, never) = ([(); 5].map(|()| Notify::new()), Notify::new());
    let look = |number, prefix: Prefix<'_>, again| {
        let (prefix, bounds) = (prefix.encode(namespace), bounds(&prefix, namespace));
        watch::watch(engine, prefix, bounds, again, Tell(number, tell.clone()))
    };
    let registers = look(0, Prefix::To(node), &again[0]);
    let results = look(1, Prefix::Results(node), &again[1]);
    let events = async {
        if !access.rules.is_empty() {
            look(2, Prefix::AllEvents, &never).await;
        }
    };
    let locks = async {
        let (held, passed) = (Prefix::Locks, Prefix::Passes);
        let (held, passed) = (look(3, held, &again[2]), look(4, passed, &again[3]));
        if E::HAS_PLACES && access.has_locks {
            join(held, passed).await;
        }
    };
    let lines = &Looks::default();
    let others = async {
        if E::HAS_PLACES {
            let tell = |number, seen| drop(news.send(News::Seen(number, seen)));
            lines.look(engine, tell).await;
        }
    };
    let own_key = watch_own_key(engine, access, [&again[4], &never], &tell);
    let watched = join5(registers, results, events, others, locks);
    let mut watching = pin!(join(watched, own_key));
    let mut calls = Calls::new(engine, node, namespace);
    let mut beating: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(std::future::pending());
    let (mut lease, mut events, mut is_due) = (Some(lease), Vec::new(), false);
    let end = loop {
        if std::mem::take(&mut is_due)
            && let Some(lease) = lease.take()
        {
            beating = Box::pin(beat(engine, lease));
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
    calls.give_up(news);
    end
}

/// Watches this node's own key. With each beat it is listed on etcd; on NATS a list is much, and nothing ever notifies `never`.
async fn watch_own_key<E: Engine>(
    engine: &E,
    access: &Access,
    [again, never]: [&Notify; 2],
    tell: &UnboundedSender<(usize, watch::Event)>,
) -> Infallible {
    let again = if E::HAS_PLACES { again } else { never };
    let key = Key::Node(access.node.clone()).encode(&access.namespace);
    let tell = Tell(OWN_KEY, tell.clone());
    watch::watch(engine, key, None, again, tell).await
}

/// Tells what a watch tells; why the connection is to be given up, if it is.
fn pass_on(events: &mut Vec<(usize, watch::Event)>, news: &Teller) -> Option<String> {
    let (mut changes, mut lost) = (Vec::new(), None);
    for (number, event) in events.drain(..) {
        match event {
            watch::Event::Changed(change) => changes.push(change),
            watch::Event::Complete => {
                // What it completes is told before it.
                if !changes.is_empty() {
                    let _ = news.send(News::Changes(std::mem::take(&mut changes)));
                }
                let _ = news.send(News::Watched(number, None));
            }
            watch::Event::Cut(sender) => drop(news.send(News::Cut(sender))),
            watch::Event::Foreign(key) => drop(news.send(News::Foreign(key))),
            // A watch goes on trying; the rest works all the same.
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

/// Renews a lease under which nothing stands, or begins another one: no question costs the engine less, and it writes nothing.
async fn beat<E: Engine>(engine: &E, lease: E::Lease) -> Result<E::Lease, Error> {
    let silent = |_| Err(Error::Unreachable(format!("no answer within {RENEWAL:?}")));
    let renewed = timeout(RENEWAL, engine.renew(&lease)).await;
    match renewed.unwrap_or_else(silent) {
        Ok(()) | Err(Error::Denied(_) | Error::Full(_)) => Ok(lease),
        Err(Error::Conflict) => engine.grant().await,
        Err(error) => Err(error),
    }
}

/// Calls that wait or are under way.
struct Calls<'e, E: Engine> {
    engine: &'e E,
    node: &'e Node,
    namespace: &'e Namespace,
    leases: Leases<E::Lease>,
    waiting: VecDeque<Call>,
    under_way: Few<u64, Call>,
    answers: FuturesUnordered<Answering<'e>>,
    count: u64,
}

type Answering<'e> = Pin<Box<dyn Future<Output = (u64, Answer)> + 'e>>;

impl<'e, E: Engine> Calls<'e, E> {
    fn new(engine: &'e E, node: &'e Node, namespace: &'e Namespace) -> Self {
        Calls {
            engine,
            node,
            namespace,
            leases: Leases::default(),
            waiting: VecDeque::new(),
            under_way: Few::default(),
            answers: FuturesUnordered::new(),
            count: 0,
        }
    }

    fn push(&mut self, call: Call) {
        self.waiting.push_back(call);
        self.start();
    }

    fn start(&mut self) {
        while self.under_way.0.len() < MOST_CALLS
            && let Some(mut call) = self.waiting.pop_front()
        {
            self.count += 1;
            self.answers.push(self.make(self.count, &mut call));
            self.under_way.insert(self.count, call);
        }
    }

    fn make(&self, number: u64, call: &mut Call) -> Answering<'e> {
        let engine = self.engine;
        match call {
            Call::Put {
                key, bytes, ttl, ..
            } => {
                let (key, bytes, ttl) = (key.encode(self.namespace), std::mem::take(bytes), *ttl);
                Box::pin(async move {
                    let put = engine.put(&key, &bytes, ttl).await;
                    let list = |revision| vec![Value::new(key, Vec::new(), revision)].into();
                    (number, put.map(list))
                })
            }
            Call::Remove {
                place: (sender, name),
                revision,
            } => {
                let key = Key::To {
                    target: self.node.clone(),
                    sender: sender.clone(),
                    name: name.clone(),
                };
                let (key, revision) = (key.encode(self.namespace), *revision);
                Box::pin(async move {
                    let removed = engine.remove(&key, revision).await;
                    let is_other = removed == Err(Error::Conflict);
                    let removed = if is_other { Ok(()) } else { removed };
                    (number, removed.map(|()| List::default()))
                })
            }
            Call::Tell {
                client,
                key,
                bytes,
                ttl,
            } => {
                let is_dear = *client != OURSELVES;
                let (key, bytes, ttl) = (key.encode(self.namespace), std::mem::take(bytes), *ttl);
                Box::pin(async move { (number, tell(engine, &key, &bytes, ttl, is_dear).await) })
            }
            Call::Reset { keys, bytes, .. } => {
                let keys = keys.each_ref().map(|key| key.encode(self.namespace));
                let bytes = std::mem::take(bytes);
                Box::pin(async move { (number, reset(engine, &keys, &bytes).await) })
            }
            Call::Forget { node, revision, .. } => {
                let (key, revision) = (Key::Node(node.clone()).encode(self.namespace), *revision);
                Box::pin(async move { (number, forget(engine, &key, revision).await) })
            }
            Call::Place { .. } | Call::Release { .. } if !E::HAS_PLACES => {
                let why = Error::Denied(NO_PLACES.to_owned());
                Box::pin(async move { (number, Err(why)) })
            }
            Call::Place { key, act } => {
                let key = key.encode(self.namespace);
                let done = self.leases.clone().act(engine, key, act.clone());
                Box::pin(async move { (number, done.await.map(List::from)) })
            }
            Call::Release { key, .. } => {
                let key = key.encode(self.namespace);
                Box::pin(async move { (number, release(engine, &key).await) })
            }
            Call::List { prefixes, .. } => {
                let prefixes = prefixes.clone();
                Box::pin(async move { (number, list(engine, &prefixes).await) })
            }
            Call::Stories { origin, .. } => {
                let (namespace, origin) = (self.namespace, origin.clone());
                Box::pin(async move { (number, stories(engine, namespace, origin.as_ref()).await) })
            }
            Call::Get { keys, .. } => {
                let keys = keys.iter().map(|key| key.encode(self.namespace));
                let keys: Vec<String> = keys.collect();
                let get = async move { engine.get(&keys, envelope::MOST).await };
                Box::pin(get.map(move |values| (number, values.map(List::from))))
            }
        }
    }

    /// The next answer is told; whether it may mean that the connection is dead. Nothing while no call is under way.
    async fn next(&mut self, news: &Teller) -> Option<bool> {
        let (number, answer) = self.answers.next().await?;
        let is_silent = matches!(answer, Err(Error::Unreachable(_) | Error::Unknown(_)));
        if let Some(call) = self.under_way.remove(&number) {
            let _ = news.send(News::Answered(call, answer));
        }
        self.start();
        Some(is_silent)
    }

    /// Answers all that is under way: it may have happened.
    fn give_up(self, news: &Teller) {
        for (_, call) in self.under_way.0 {
            let why = Error::Unknown("the connection ended".to_owned());
            let _ = news.send(News::Answered(call, Err(why)));
        }
        for call in self.waiting {
            unreached(news, call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_outlives_a_failed_watch_of_the_own_key() {
        let (tell, mut told) = unbounded_channel();
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
