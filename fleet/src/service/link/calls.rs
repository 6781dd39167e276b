//! Calls to the backend that take more than one request.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};

use crate::backend::{Backend, Error, Limit, List, Value};
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Id, Namespace, Node};

/// Conversion of an answer to what the link passes on.
pub type Then<R, T> = Box<dyn FnOnce(Result<T, Error>) -> R>;
/// Result of a list.
pub type Listed = Result<List, Error>;

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

/// Lists all values below these prefixes, with revision and store of the first list.
pub(super) async fn list<E: Backend>(backend: &E, prefixes: &[String]) -> Result<List, Error> {
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
pub(super) async fn stories<E: Backend>(
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
pub(super) async fn found<E: Backend>(backend: &E, key: &str) -> Result<Option<Value>, Error> {
    let found = backend.list(key).await?.values;
    Ok(found.into_iter().find(|value| value.key == key))
}

/// Removes the value of a key. Returns whether there was one.
pub(super) async fn release<E: Backend>(backend: &E, key: &str) -> Result<bool, Error> {
    let found = found(backend, key).await?;
    if let Some(value) = &found {
        backend.remove(key, value.revision).await?;
    }
    Ok(found.is_some())
}

/// Writes a value, and returns its revision.
pub(super) async fn put<E: Backend>(
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
pub(super) async fn reset<E: Backend>(
    backend: &E,
    [key, lock]: &[String; 2],
    bytes: &[u8],
) -> Result<(), Error> {
    backend.put_unless(key, bytes, lock).await.map(drop)
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
