//! Calls to the engine that take more than one request.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};

use crate::engine::{Engine, Error, Limit, List, Value};
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Id, Namespace, Node};

/// How much is read of what became of triggers, at most: no entry is shorter than 800 bytes.
const STORIES: Limit = Limit {
    bytes: 16_000_000,
    values: 20_000,
};
/// How many nodes' entries are read at the same time.
const TOGETHER: usize = 16;

/// What stands below all of these, and revision and store of the first.
pub(super) async fn list<E: Engine>(engine: &E, prefixes: &[String]) -> Result<List, Error> {
    // One type for every engine.
    type Listing<'l> = Pin<Box<dyn Future<Output = Result<List, Error>> + 'l>>;
    let list = |prefix| -> Listing<'_> { Box::pin(engine.list(prefix)) };
    let lists = prefixes.iter().map(|prefix| list(prefix.as_str()));
    let lists = futures_util::future::try_join_all(lists).await?;
    let mut lists = lists.into_iter();
    let mut all = lists.next().unwrap_or_default();
    all.values.extend(lists.flat_map(|list| list.values));
    Ok(all)
}

/// The newest of what became of triggers, of all origins or of this one. If that is more than is read, each node has the same share
/// of it: what one node writes hides nothing of the others.
pub(super) async fn stories<E: Engine>(
    engine: &E,
    namespace: &Namespace,
    origin: Option<&Id>,
) -> Result<List, Error> {
    let all = Prefix::Stories(origin).encode(namespace);
    let list = engine.latest(&all, STORIES).await?;
    if !list.is_cut {
        return Ok(list);
    }
    let known = engine
        .latest(&Prefix::Nodes.encode(namespace), STORIES)
        .await?;
    let mut shared = List {
        is_cut: known.is_cut,
        ..List::default()
    };
    let values = known.values.into_iter().chain(list.values);
    let node = |value: Value| match Key::decode(&value.key, namespace) {
        Ok(Key::Node(node) | Key::Story { node, .. }) => Some(node),
        _ => None,
    };
    let nodes: BTreeSet<Node> = values.filter_map(node).collect();
    let share = Limit {
        bytes: STORIES.bytes / nodes.len().max(1),
        values: (STORIES.values / nodes.len().max(1)).max(1),
    };
    let own = nodes
        .iter()
        .map(|node| Prefix::StoriesOf(node, origin).encode(namespace));
    let own: Vec<String> = own.collect();
    let mut lists =
        stream::iter(own.iter().map(|own| engine.latest(own, share))).buffer_unordered(TOGETHER);
    while let Some(list) = lists.next().await {
        let list = list?;
        shared.is_cut |= list.is_cut;
        shared.values.extend(list.values);
    }
    Ok(shared)
}

/// Removes what a node tells of itself, unless it is there; or what stands at the one key that both are. What was found.
pub(super) async fn forget<E: Engine>(
    engine: &E,
    [alive, node]: &[String; 2],
) -> Result<List, Error> {
    for key in [alive, node] {
        let mut found = engine.list(key).await?;
        found.values.retain(|value| value.key == *key);
        if let Some(value) = found.values.first() {
            if key == node {
                engine.remove(key, value.revision).await?;
            }
            return Ok(found);
        }
    }
    Ok(List::default())
}

/// Puts a value. Unless it is dear, the engine has to have room for it.
pub(super) async fn tell<E: Engine>(
    engine: &E,
    key: &str,
    bytes: &[u8],
    ttl: Duration,
    is_dear: bool,
) -> Result<List, Error> {
    if !is_dear {
        engine.has_room().await?;
    }
    engine.put(key, bytes, Some(ttl)).await?;
    Ok(List::default())
}

/// Writes an operator's reset of a lock, unless something stands at the lock's key.
pub(super) async fn reset<E: Engine>(
    engine: &E,
    [key, lock]: &[String; 2],
    bytes: &[u8],
) -> Result<List, Error> {
    let put = engine.put_unless(key, bytes, lock).await;
    put.map(|_| List::default())
}
