//! Calls to the backend: those that wait or are under way, and what each asks of the backend.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::{FutureExt, Shared};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use crate::backend::{Backend, Error, Limit, List, NO_PLACES, Value};
use crate::service::places::{Act, Entered, Leases};
use crate::wire::envelope;
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Id, Namespace, Node};

/// Conversion of an answer to what the link passes on.
pub type Then<R, T> = Box<dyn FnOnce(Result<T, Error>) -> R>;
/// Result of a list.
pub type Listed = Result<List, Error>;

/// Largest number of calls that are under way at the same time.
const MOST_CALLS: usize = 64;
/// Limit on what is read of stories: no entry is shorter than 800 bytes.
const STORIES: Limit = Limit {
    bytes: 16_000_000,
    values: 20_000,
};
/// Smallest share of one node, in bytes: no entry is longer.
const ENTRY: usize = 8_000;
/// Number of rounds in which lists that were cut are read with a larger share.
const ROUNDS: usize = 4;
/// Number of nodes whose entries are read at the same time.
const TOGETHER: usize = 16;

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

    /// Answer to a call that was not made, since there is no connection.
    pub(super) fn unreached(self) -> R {
        self.fail(Error::Unreachable("there is no connection".to_owned()))
    }
}

/// Lists all values below these prefixes, with revision and store of the first list.
async fn list<E: Backend>(backend: &E, prefixes: &[String]) -> Result<List, Error> {
    // One type for every backend.
    type Listing<'l> = Pin<Box<dyn Future<Output = Result<List, Error>> + 'l>>;
    let list = |prefix| -> Listing<'_> { Box::pin(backend.list(prefix)) };
    let lists = prefixes.iter().map(|prefix| list(prefix.as_str()));
    let lists = futures_util::future::try_join_all(lists).await?;
    let mut lists = lists.into_iter();
    let mut all = lists.next().unwrap_or_default();
    all.values.extend(lists.flat_map(|list| list.values));
    Ok(all)
}

/// Lists the latest stories of triggers, of all origins or of this one. If they exceed the limit,
/// each node has the same share of it, and the unused part of a share is for the others: no node
/// hides the stories of the others.
async fn stories<E: Backend>(
    backend: &E,
    namespace: &Namespace,
    origin: Option<&Id>,
) -> Result<List, Error> {
    stories_within(backend, namespace, origin, STORIES).await
}

async fn stories_within<E: Backend>(
    backend: &E,
    namespace: &Namespace,
    origin: Option<&Id>,
    limit: Limit,
) -> Result<List, Error> {
    let all = Prefix::Stories(origin).encode(namespace);
    let list = backend.latest(&all, limit).await?;
    if !list.is_cut {
        return Ok(list);
    }
    let known = Prefix::Nodes.encode(namespace);
    let known = backend.latest(&known, limit).await?;
    let is_cut = known.is_cut;
    let values = known.values.into_iter().chain(list.values);
    let node = |value: Value| match Key::decode(&value.key, namespace) {
        Ok(Key::Node(node) | Key::Story { node, .. }) => Some(node),
        _ => None,
    };
    let nodes: BTreeSet<Node> = values.filter_map(node).collect();
    let prefix = |node: &Node| Prefix::StoriesOf(node, origin).encode(namespace);
    let mut shares = Shares::new(nodes.iter().map(prefix), limit);
    for _ in 0..ROUNDS {
        let next = shares.next();
        let read =
            async |(own, share): &(String, Limit)| (own.clone(), backend.latest(own, *share).await);
        let mut lists = stream::iter(next.iter().map(read)).buffer_unordered(TOGETHER);
        while let Some((own, list)) = lists.next().await {
            shares.take(own, list?);
        }
    }
    let mut shared = shares.list();
    shared.is_cut |= is_cut;
    Ok(shared)
}

/// Shares of a limit for several prefixes, which are read in rounds: a list that was cut has a
/// larger share in the next round.
struct Shares {
    /// Unused part of the limit.
    left: Limit,
    /// Lists that were read, by prefix.
    lists: BTreeMap<String, List>,
}

impl Shares {
    fn new(prefixes: impl Iterator<Item = String>, limit: Limit) -> Shares {
        let unread = || List {
            is_cut: true,
            ..List::default()
        };
        let lists = prefixes.map(|prefix| (prefix, unread())).collect();
        Shares { left: limit, lists }
    }

    /// Prefixes that are read next, each with its limit; none if everything was read or no entry
    /// fits any more.
    fn next(&self) -> Vec<(String, Limit)> {
        let left = self.left;
        let cut = self.lists.iter().filter(|(_, list)| list.is_cut);
        let count = cut.clone().count().max(1);
        if left.bytes < ENTRY || left.values == 0 {
            return Vec::new();
        }
        let share = |list: &List| Limit {
            bytes: size(list) + (left.bytes / count).max(ENTRY),
            values: list.values.len() + (left.values / count).max(1),
        };
        cut.map(|(own, list)| (own.clone(), share(list))).collect()
    }

    /// Replaces the list of a prefix, unless all lists together would exceed the limit.
    fn take(&mut self, own: String, list: List) {
        let Some(before) = self.lists.get_mut(&own) else {
            return;
        };
        let bytes = self.left.bytes + size(before);
        let values = self.left.values + before.values.len();
        if size(&list) <= bytes && list.values.len() <= values {
            self.left = Limit {
                bytes: bytes - size(&list),
                values: values - list.values.len(),
            };
            *before = list;
        }
    }

    fn list(self) -> List {
        let mut all = List::default();
        for list in self.lists.into_values() {
            all.is_cut |= list.is_cut;
            all.values.extend(list.values);
        }
        all
    }
}

fn size(list: &List) -> usize {
    list.values.iter().map(Value::size).sum()
}

/// Reads the value of a key.
async fn found<E: Backend>(backend: &E, key: &str) -> Result<Option<Value>, Error> {
    let found = backend.list(key).await?.values;
    Ok(found.into_iter().find(|value| value.key == key))
}

/// Removes the value of a key. Returns whether there was one.
async fn release<E: Backend>(backend: &E, key: &str) -> Result<bool, Error> {
    let found = found(backend, key).await?;
    if let Some(value) = &found {
        backend.remove(key, value.revision).await?;
    }
    Ok(found.is_some())
}

/// Writes a value, and returns its revision.
async fn put<E: Backend>(
    backend: &E,
    key: &str,
    bytes: &[u8],
    ttl: Option<Duration>,
    needs_room: bool,
) -> Result<u64, Error> {
    if needs_room {
        backend.has_room().await?;
    }
    backend.put(key, bytes, ttl).await
}

/// Writes an operator's reset of a lock, unless the lock's key has a value.
async fn reset<E: Backend>(
    backend: &E,
    [key, lock]: &[String; 2],
    bytes: &[u8],
) -> Result<(), Error> {
    backend.put_unless(key, bytes, lock).await.map(drop)
}

/// Calls that wait or are under way.
pub(super) struct Calls<'e, E: Backend, R> {
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
    pub(super) fn new(backend: &'e E, namespace: &'e Namespace) -> Self {
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

    pub(super) fn push(&mut self, call: Call<R>) {
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

    /// Next answer, and whether it may mean that the connection is dead. None if no call is under way.
    pub(super) async fn next(&mut self) -> Option<(R, bool)> {
        let answer = self.under_way.next().await?;
        self.start();
        Some(answer)
    }

    /// Answers to all calls. Those under way may have been done.
    pub(super) async fn give_up(self) -> Vec<R> {
        drop(self.end);
        let under_way = self.under_way.map(|(reply, _)| reply);
        let mut replies: Vec<R> = under_way.collect().await;
        replies.extend(self.waiting.into_iter().map(Call::unreached));
        replies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Times;
    use crate::backend::memory::Memory;

    #[tokio::test]
    async fn nodes_with_little_leave_their_share_to_those_with_much() {
        let memory = Memory::new(Times::default());
        let namespace: Namespace = "test".parse().expect("a namespace");
        let node = |n: u128| format!("n{n:03}").parse::<Node>().expect("a certname");
        let put = async |key: Key, length: usize| {
            let (key, bytes) = (key.encode(&namespace), vec![b'x'; length]);
            memory.put(&key, &bytes, None).await.expect("put");
        };
        let story = |n: u128, entry: u128| Key::Story {
            node: node(n),
            origin: Id::from_bits(1),
            trigger: Id::from_bits(entry),
        };
        for n in 0..=200 {
            put(Key::Node(node(n)), 1).await;
        }
        for n in 0..100 {
            put(story(0, n), 2_600).await;
        }
        let list = Key::Targets {
            sender: node(0),
            id: Id::from_bits(1),
        };
        put(list, 120_000).await;
        for n in 1..200 {
            put(story(n, 0), 500).await;
        }
        // Junk, and more of it than is read.
        for n in 0..400 {
            put(story(200, n), 2_600).await;
        }
        let limit = Limit {
            bytes: 1_000_000,
            values: 20_000,
        };
        for origin in [None, Some(Id::from_bits(1))] {
            let list = stories_within(&memory, &namespace, origin.as_ref(), limit);
            let list = list.await.expect("read");
            let count = |n| {
                let own = Prefix::StoriesOf(&node(n), None).encode(&namespace);
                let own = list
                    .values
                    .iter()
                    .filter(|value| value.key.starts_with(&own));
                own.count()
            };
            assert_eq!((0..200).map(count).sum::<usize>(), 100 + 199);
            assert!((100..400).contains(&count(200)), "{}", count(200));
            assert!(list.is_cut && size(&list) <= limit.bytes);
        }
    }

    #[tokio::test]
    async fn many_nodes_are_shown_until_the_limit_is_used_up() {
        let memory = Memory::new(Times::default());
        let namespace: Namespace = "test".parse().expect("a namespace");
        for n in 0..500 {
            let key = format!(
                "again/v1/test/story/n{n:03}/{}/{}",
                Id::from_bits(1),
                Id::from_bits(2)
            );
            memory.put(&key, &[b'x'; 2_600], None).await.expect("put");
            let key = format!("again/v1/test/node/n{n:03}");
            memory.put(&key, b"x", None).await.expect("put");
        }
        let limit = Limit {
            bytes: 100_000,
            values: 20_000,
        };
        let list = stories_within(&memory, &namespace, None, limit).await;
        let list = list.expect("read");
        assert!(list.is_cut && size(&list) <= limit.bytes);
        assert!(list.values.len() > 30, "{}", list.values.len());
    }
}
