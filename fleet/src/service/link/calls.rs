//! Calls to the engine that take more than one request.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::engine::{Engine, Error, Limit, List, Value};

/// What stands below all of these; with a limit the newest of it, one prefix after the other.
pub(super) async fn list<E: Engine>(
    engine: &E,
    prefixes: &[String],
    limit: Option<Limit>,
) -> Result<List, Error> {
    if let Some(limit) = limit {
        return latest(engine, prefixes, limit).await;
    }
    // One type for every engine.
    type Listing<'l> = Pin<Box<dyn Future<Output = Result<List, Error>> + 'l>>;
    let list = |prefix| -> Listing<'_> { Box::pin(engine.list(prefix)) };
    let lists = prefixes.iter().map(|prefix| list(prefix.as_str()));
    let lists = futures_util::future::try_join_all(lists).await?;
    let values: Vec<_> = lists.into_iter().flat_map(|list| list.values).collect();
    Ok(List::from(values))
}

async fn latest<E: Engine>(
    engine: &E,
    prefixes: &[String],
    mut limit: Limit,
) -> Result<List, Error> {
    let mut all = List::default();
    for prefix in prefixes {
        let list = engine.latest(prefix, limit).await?;
        limit.values -= limit.values.min(list.values.len());
        limit.bytes -= limit.bytes.min(list.values.iter().map(Value::size).sum());
        all.is_cut |= list.is_cut;
        all.values.extend(list.values);
    }
    Ok(all)
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
