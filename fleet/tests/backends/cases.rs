use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use again_fleet::backend::watch::{Event, Watch};
use again_fleet::backend::{Backend, Change, Error, Feed, Limit, List, NO_PLACES, Value};
use tokio::time::{Instant, sleep, timeout};

use super::pause::pause;
use super::{Stage, TIMES};

/// Time limit, much longer than any operation takes.
const LONG: Duration = Duration::from_secs(120);

fn keys(list: &List) -> Vec<&str> {
    list.values.iter().map(|value| value.key.as_str()).collect()
}

/// Returns a list when it satisfies the condition. A member of a cluster may not know yet what
/// another one has confirmed.
async fn listed<S: Stage>(
    stage: &S,
    backend: &S::Backend,
    below: &str,
    is_so: impl Fn(&List) -> bool,
) -> List {
    let since = Instant::now();
    loop {
        let list = backend.list(&stage.key(below)).await.expect("listed");
        if stage.speaks_for_all() || is_so(&list) || since.elapsed() > LONG {
            return list;
        }
        pause(50).await;
    }
}

/// Waits until a list has this number of values; returns the number.
async fn count<S: Stage>(stage: &S, backend: &S::Backend, below: &str, wanted: usize) -> usize {
    let list = listed(stage, backend, below, |list| list.values.len() == wanted).await;
    list.values.len()
}

async fn next(feed: &mut impl Feed) -> Change {
    timeout(LONG, feed.next())
        .await
        .expect("a change")
        .expect("a change")
}

pub async fn what_is_put_is_listed(stage: &impl Stage) {
    let (writer, reader) = (stage.client().await, stage.client().await);
    let list = reader.list(&stage.key("to/")).await.expect("listed");
    assert!(list.values.is_empty());
    let empty = list.revision;
    let hour = Some(Duration::from_secs(3600));
    let b = writer
        .put(&stage.key("to/b/web1=test/again"), b"two", hour)
        .await
        .expect("put");
    let a = writer
        .put(&stage.key("to/a/web1=test/x%20y"), &[0, 255, b'\n'], hour)
        .await
        .expect("put");
    assert!(empty < b && b < a, "revisions grow: {empty} {b} {a}");
    let list = listed(stage, &reader, "to/", |list| list.values.len() == 2).await;
    assert_eq!(
        keys(&list),
        [
            stage.key("to/a/web1=test/x%20y"),
            stage.key("to/b/web1=test/again")
        ]
    );
    assert_eq!((list.values[0].revision, list.values[1].revision), (a, b));
    assert_eq!(list.values[0].bytes, [0, 255, b'\n']);
    assert!(list.revision >= a);
}

pub async fn a_newer_value_takes_the_place_of_an_older(stage: &impl Stage) {
    let backend = stage.client().await;
    let key = stage.key("node/a");
    let old = backend.put(&key, b"old", None).await.expect("put");
    let new = backend.put(&key, b"", None).await.expect("put");
    assert!(old < new);
    let is_new = |list: &List| list.values.iter().any(|value| value.revision == new);
    let list = listed(stage, &backend, "node/", is_new).await;
    assert_eq!(list.values.len(), 1);
    assert_eq!(
        (list.values[0].revision, list.values[0].bytes.as_slice()),
        (new, &b""[..])
    );
}

pub async fn a_neighbours_keys_are_not_below_a_prefix(stage: &impl Stage) {
    let backend = stage.client().await;
    for below in ["to/lb1/s/n", "to/lb10/s/n", "to/lb/s/n", "result/lb1/s/n"] {
        backend
            .put(&stage.key(below), b"x", None)
            .await
            .expect("put");
    }
    let list = listed(stage, &backend, "to/lb1/", |list| !list.values.is_empty()).await;
    assert_eq!(keys(&list), [stage.key("to/lb1/s/n")]);
    let mut feed = backend
        .follow(&stage.key("to/lb1/"), list.revision)
        .await
        .expect("followed");
    backend
        .put(&stage.key("to/lb10/s/m"), b"x", None)
        .await
        .expect("put");
    backend
        .put(&stage.key("to/lb1/s/m"), b"x", None)
        .await
        .expect("put");
    assert_eq!(next(&mut feed).await.key(), stage.key("to/lb1/s/m"));
}

pub async fn key_without_a_slash_at_its_end_is_listed_and_followed_alone(stage: &impl Stage) {
    let backend = stage.client().await;
    let put = async |below| {
        let put = backend.put(&stage.key(below), b"x", None).await;
        put.expect("put")
    };
    for below in ["node/web1", "node/web10", "node/web"] {
        put(below).await;
    }
    let list = listed(stage, &backend, "node/web1", |list| !list.values.is_empty()).await;
    assert_eq!(keys(&list), [stage.key("node/web1")]);
    let feed = backend.follow(&stage.key("node/web1"), list.revision).await;
    let mut feed = feed.expect("followed");
    put("node/web10").await;
    let revision = put("node/web1").await;
    let change = next(&mut feed).await;
    assert_eq!(
        (change.key(), change.revision()),
        (stage.key("node/web1").as_str(), revision)
    );
}

pub async fn only_the_revision_that_was_read_is_removed(stage: &impl Stage) {
    let backend = stage.client().await;
    let key = stage.key("to/a/s/n");
    let old = backend.put(&key, b"old", None).await.expect("put");
    let new = backend.put(&key, b"new", None).await.expect("put");
    assert_eq!(backend.remove(&key, old).await, Err(Error::Conflict));
    assert_eq!(count(stage, &backend, "to/", 1).await, 1);
    assert_eq!(backend.remove(&key, new).await, Ok(()));
    assert_eq!(count(stage, &backend, "to/", 0).await, 0);
    // Removing a missing key succeeds.
    assert_eq!(backend.remove(&key, new).await, Ok(()));
    assert_eq!(backend.remove(&stage.key("to/a/s/never"), 1).await, Ok(()));
    // A value that is written again has another revision.
    backend.put(&key, b"again", None).await.expect("put");
    assert_eq!(backend.remove(&key, new).await, Err(Error::Conflict));
}

/// A member of a cluster may show a key as removed although the leader knows that it exists again;
/// that must not be the answer. A single server cannot do this, but the test holds there too.
pub async fn key_that_is_there_again_is_not_told_as_gone(stage: &impl Stage) {
    let (backend, other) = (stage.client().await, stage.client().await);
    let key = stage.key("to/a/s/n");
    for _ in 0..100 {
        let old = backend.put(&key, b"old", None).await.expect("put");
        assert_eq!(backend.remove(&key, old).await, Ok(()));
        backend.put(&key, b"again", None).await.expect("put");
        assert_eq!(other.remove(&key, old).await, Err(Error::Conflict));
    }
}

pub async fn a_key_is_created_where_none_is<S: Stage>(stage: &S) {
    if !S::HAS_PLACES {
        return;
    }
    let backend = stage.client().await;
    let lease = backend.grant().await.expect("a lease");
    let key = stage.key("lock/a");
    let first = backend.create(&key, b"", &lease).await.expect("created");
    assert_eq!(
        backend.create(&key, b"", &lease).await,
        Err(Error::Conflict)
    );
    backend.remove(&key, first).await.expect("removed");
    let second = loop {
        match backend.create(&key, b"", &lease).await {
            // A member of a cluster may not know yet that the key is removed.
            Err(Error::Conflict) if !stage.speaks_for_all() => pause(2).await,
            answer => break answer.expect("created"),
        }
    };
    assert!(first < second);
    backend.revoke(lease).await.expect("revoked");
}

/// Workers race for the key of a lock, each for a number of turns; the count that the lock protects
/// must be exact.
pub async fn of_many_that_create_one_wins<S: Stage>(stage: &S) {
    if !S::HAS_PLACES {
        return;
    }
    const WORKERS: usize = 4;
    const TURNS: u32 = 5;
    let count = Cell::new(0);
    let is_held = Cell::new(false);
    let worker = async || {
        let backend = stage.client().await;
        let key = stage.key("lock/a");
        for _ in 0..TURNS {
            let (lease, revision) = loop {
                // A lease may end before the worker's turn comes.
                let lease = backend.grant().await.expect("a lease");
                match backend.create(&key, b"mine", &lease).await {
                    Ok(revision) => break (lease, revision),
                    // A cluster takes a moment to elect the leader of a new stream.
                    Err(Error::Conflict | Error::Unreachable(_)) => {
                        let _ = backend.revoke(lease).await;
                        pause(2).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            assert!(
                !is_held.replace(true) || !stage.speaks_for_all(),
                "two hold it"
            );
            let before = count.get();
            tokio::task::yield_now().await;
            count.set(before + 1);
            is_held.set(false);
            match backend.remove(&key, revision).await {
                Err(Error::Conflict) if !stage.speaks_for_all() => {}
                removed => removed.expect("removed"),
            }
            backend.revoke(lease).await.expect("revoked");
        }
    };
    futures_util::future::join_all((0..WORKERS).map(|_| worker())).await;
    let done = count.get();
    assert!(done <= WORKERS as u32 * TURNS);
    assert!(
        done == WORKERS as u32 * TURNS || !stage.speaks_for_all(),
        "{done}"
    );
}

pub async fn a_feed_tells_what_came_after_a_revision(stage: &impl Stage) {
    let backend = stage.client().await;
    let prefix = stage.key("to/a/");
    backend
        .put(&stage.key("to/a/s/before"), b"x", None)
        .await
        .expect("put");
    let list = listed(stage, &backend, "to/a/", |list| !list.values.is_empty()).await;
    let gone = backend
        .put(&stage.key("to/a/s/gone"), b"x", None)
        .await
        .expect("put");
    backend
        .remove(&stage.key("to/a/s/gone"), gone)
        .await
        .expect("removed");
    backend
        .put(&stage.key("to/a/s/here"), b"1", None)
        .await
        .expect("put");
    let last = backend
        .put(&stage.key("to/a/s/here"), b"2", None)
        .await
        .expect("put");
    let mut feed = backend
        .follow(&prefix, list.revision)
        .await
        .expect("followed");
    // Of several writes to a key, older ones may be left out.
    let mut told = BTreeMap::new();
    while told.get("here") != Some(&Some(b"2".to_vec())) {
        let change = next(&mut feed).await;
        assert!(
            change.revision() > list.revision && change.revision() <= last,
            "{change:?}"
        );
        let name = change.key().rsplit('/').next().expect("a name").to_owned();
        told.insert(
            name,
            if let Change::Put(value) = change {
                Some(value.bytes)
            } else {
                None
            },
        );
    }
    assert_eq!(told.get("gone"), Some(&None));
    assert!(!told.contains_key("before"));
}

pub async fn a_feed_tells_what_comes_once_and_in_order(stage: &impl Stage) {
    let (writer, reader) = (stage.client().await, stage.client().await);
    let list = reader.list(&stage.key("to/a/")).await.expect("listed");
    let mut feed = reader
        .follow(&stage.key("to/a/"), list.revision)
        .await
        .expect("followed");
    let mut written = Vec::new();
    let mut revision = 0;
    for n in 0..50 {
        let key = stage.key(&format!("to/a/s/{n}"));
        revision = writer.put(&key, b"x", None).await.expect("put");
        written.push(revision);
    }
    let last = stage.key("to/a/s/49");
    writer.remove(&last, revision).await.expect("removed");
    written.pop();
    for revision in written {
        let change = next(&mut feed).await;
        assert!(
            matches!(&change, Change::Put(value) if value.revision == revision),
            "{change:?} is not {revision}"
        );
    }
    // Of two writes to one key, the older one may be left out.
    let mut change = next(&mut feed).await;
    if matches!(&change, Change::Put(value) if value.revision == revision) {
        change = next(&mut feed).await;
    }
    assert!(
        matches!(&change, Change::Removed { key, revision: removed } if *key == last && *removed > revision),
        "{change:?}"
    );
}

/// Dropping a wait loses no change.
pub async fn a_feed_may_be_left_and_taken_up(stage: &impl Stage) {
    let backend = stage.client().await;
    let list = backend.list(&stage.key("to/a/")).await.expect("listed");
    let mut feed = backend
        .follow(&stage.key("to/a/"), list.revision)
        .await
        .expect("followed");
    for n in 0..20 {
        let key = stage.key(&format!("to/a/s/{n}"));
        let revision = backend.put(&key, b"x", None).await.expect("put");
        let change = loop {
            if let Ok(change) = timeout(Duration::from_micros(500), feed.next()).await {
                break change.expect("a change");
            }
        };
        assert_eq!(change.revision(), revision);
    }
}

pub async fn a_lease_takes_its_keys_along<S: Stage>(stage: &S) {
    if !S::HAS_PLACES {
        return;
    }
    let backend = stage.client().await;
    let (ends, revoked) = (
        backend.grant().await.expect("a lease"),
        backend.grant().await.expect("a lease"),
    );
    let since = Instant::now();
    for (node, lease) in [("a", &ends), ("b", &ends), ("c", &revoked)] {
        backend
            .create(&stage.key(&format!("lock/{node}")), b"", lease)
            .await
            .expect("created");
    }
    backend
        .put(&stage.key("node/a"), b"stays", None)
        .await
        .expect("put");
    backend.revoke(revoked).await.expect("revoked");
    let live = async || keys(&backend.list(&stage.key("lock/")).await.expect("listed")).len();
    assert_eq!(count(stage, &backend, "lock/", 2).await, 2);
    // A member that lags may show once what existed before.
    while live().await > 0 || live().await > 0 {
        assert!(since.elapsed() < LONG, "they live on");
        // A short pause, so that one of the lists is under way when they end.
        pause(1).await;
    }
    assert!(
        since.elapsed() > TIMES.lease / 2,
        "they lived only {:?}",
        since.elapsed()
    );
    assert_eq!(count(stage, &backend, "node/", 1).await, 1);
}

pub async fn a_renewed_lease_lives<S: Stage>(stage: &S) {
    if !S::HAS_PLACES {
        return;
    }
    let backend = stage.client().await;
    let lease = backend.grant().await.expect("a lease");
    backend
        .create(&stage.key("lock/a"), b"", &lease)
        .await
        .expect("created");
    let since = Instant::now();
    while since.elapsed() < TIMES.lease * 2 {
        // Time itself is tested: a lease lives while it is renewed.
        sleep(TIMES.lease / 4).await;
        backend.renew(&lease).await.expect("renewed");
    }
    assert_eq!(count(stage, &backend, "lock/", 1).await, 1);
    backend.revoke(lease).await.expect("revoked");
}

pub async fn a_lease_that_has_ended_is_not_renewed<S: Stage>(stage: &S) {
    if !S::HAS_PLACES {
        return;
    }
    let backend = stage.client().await;
    let lease = backend.grant().await.expect("a lease");
    backend
        .create(&stage.key("lock/a"), b"", &lease)
        .await
        .expect("created");
    let since = Instant::now();
    let is_listed = async || {
        let list = backend.list(&stage.key("lock/")).await.expect("listed");
        !list.values.is_empty()
    };
    // A member of a cluster that lags may not show the key yet.
    while since.elapsed() < TIMES.lease || is_listed().await {
        pause(100).await;
    }
    assert_eq!(backend.renew(&lease).await, Err(Error::Conflict));
    assert_eq!(count(stage, &backend, "lock/", 0).await, 0, "it is back");
}

/// Basis of slots: a queue position is a revision that only its own lease moves or keeps. A backend
/// without queue positions reports so.
pub async fn a_place_is_replaced_once_and_kept_by_its_lease<S: Stage>(stage: &S) {
    let backend = stage.client().await;
    let lease = backend.grant().await.expect("a lease");
    let key = stage.key("slot/g/a");
    let created = backend.create(&key, b"", &lease).await;
    if !S::HAS_PLACES {
        assert_eq!(created, Err(Error::Denied(NO_PLACES.to_owned())));
        let refused = backend.replace(&key, b"x", 1, &lease).await;
        assert_eq!(refused, Err(Error::Denied(NO_PLACES.to_owned())));
        assert!(backend.lease(backend.number(&lease)).is_none());
        let refused = backend.put_unless(&key, b"x", &key).await;
        assert_eq!(refused, Err(Error::Denied(NO_PLACES.to_owned())));
        return;
    }
    let first = created.expect("created");
    // A write that is allowed only while a key has no position is refused now, and succeeds
    // afterwards.
    let aside = stage.key("move/g/a");
    let refused = backend.put_unless(&aside, b"x", &key).await;
    assert_eq!(refused, Err(Error::Conflict));
    let written = async || {
        let list = listed(stage, &backend, "slot/", |_| true).await;
        let value = list.values.first().expect("a value");
        (value.first, value.revision, value.writes)
    };
    assert_eq!(written().await, (first, first, 1));
    let second = backend.replace(&key, b"x", first, &lease).await;
    let second = second.expect("replaced");
    assert!(first < second);
    assert_eq!(written().await, (first, second, 2));
    for conflicting in [
        backend.replace(&key, b"y", first, &lease).await,
        backend
            .replace(&stage.key("slot/g/b"), b"y", first, &lease)
            .await,
    ] {
        assert_eq!(conflicting, Err(Error::Conflict));
    }
    // Another connection finds the lease by its number and renews it for twice its lifetime: the
    // position is the same.
    let other = stage.client().await;
    let found = other.lease(backend.number(&lease)).expect("a lease");
    drop(lease);
    let since = Instant::now();
    while since.elapsed() < TIMES.lease * 2 {
        other.renew(&found).await.expect("renewed");
        // Time itself is tested: as above.
        sleep(TIMES.lease / 4).await;
    }
    assert_eq!(written().await, (first, second, 2));
    other.revoke(found).await.expect("revoked");
    assert_eq!(count(stage, &backend, "slot/", 0).await, 0);
    for text in [b"x", b"y"] {
        let put = backend.put_unless(&aside, text, &key).await;
        put.expect("put");
    }
    // A put of the same value gives the key another position, with one write.
    let again = backend.put(&key, b"x", None).await.expect("put");
    assert_eq!(written().await, (again, again, 1));
    let over = backend.grant().await.expect("a lease");
    let number = backend.number(&over);
    backend.revoke(over).await.expect("revoked");
    let over = backend.lease(number).expect("a lease");
    assert_eq!(backend.renew(&over).await, Err(Error::Conflict));
    let late = backend.replace(&key, b"y", again, &over).await;
    assert_eq!(late, Err(Error::Conflict));
}

/// Removes the queue position of a dead node only while the position and the node's beat are
/// unchanged.
pub async fn place_is_removed_only_while_place_and_beat_are_unchanged<S: Stage>(stage: &S) {
    let backend = stage.client().await;
    let [place, beat] = ["slot/g/a", "beat/a"].map(|below| stage.key(below));
    let remove = async |revision, at| backend.remove_while(&place, revision, (&beat, at)).await;
    if !S::HAS_PLACES {
        assert_eq!(remove(1, 0).await, Err(Error::Denied(NO_PLACES.to_owned())));
        return;
    }
    let put = async |key| backend.put(key, b"x", None).await.expect("put");
    let first = put(&place).await;
    let one = put(&beat).await;
    for (revision, at) in [
        // A beat that did not exist; another position; another beat.
        (first, 0),
        (first - 1, one),
        (one, one),
        (first, one + 1),
        (0, one),
    ] {
        let refused = remove(revision, at).await;
        assert_eq!(refused, Err(Error::Conflict), "{revision} {at}");
    }
    // The node has sent another beat since.
    let two = put(&beat).await;
    assert_eq!(remove(first, one).await, Err(Error::Conflict));
    assert_eq!(count(stage, &backend, "slot/", 1).await, 1);
    // A follower is notified.
    let list = listed(stage, &backend, "slot/", |_| true).await;
    let below = stage.key("slot/g/");
    let feed = backend.follow_removals(&below, list.revision).await;
    let mut feed = feed.expect("followed");
    assert_eq!(remove(first, two).await, Ok(()));
    let change = next(&mut feed).await;
    assert!(matches!(&change, Change::Removed { key, .. } if *key == place));
    // The position is removed already.
    assert_eq!(remove(first, two).await, Err(Error::Conflict));
    // There is no beat.
    backend.remove(&beat, two).await.expect("removed");
    let again = put(&place).await;
    assert_eq!(remove(again, two).await, Err(Error::Conflict));
    assert_eq!(remove(again, 0).await, Ok(()));
    assert_eq!(count(stage, &backend, "slot/", 0).await, 0);
}

/// The list does not depend on the number of positions behind, nor on the order of keys.
pub async fn those_before_a_place_are_listed_in_their_order_and_who_goes_is_told<S: Stage>(
    stage: &S,
) {
    let backend = stage.client().await;
    let prefix = stage.key("slot/g/");
    if !S::HAS_PLACES {
        let refused = backend.oldest(&prefix, 1, 1).await;
        assert_eq!(refused, Err(Error::Denied(NO_PLACES.to_owned())));
        return;
    }
    let key = |n: u64| format!("{prefix}{:03}", 999 - n);
    let mut places = Vec::new();
    for n in 0..150 {
        places.push(backend.put(&key(n), b"x", None).await.expect("put"));
    }
    for (until, most, is) in [
        (119, 1000, 0..120),
        (119, 121, 0..120),
        (10, 20, 0..11),
        (149, 1000, 0..150),
    ] {
        let list = backend.oldest(&prefix, places[until], most).await;
        let values = list.expect("listed").values;
        let listed: Vec<u64> = values.iter().map(|value| value.revision).collect();
        assert_eq!(listed, places[is], "{until} {most}");
    }
    // At most one page more than requested, and the oldest.
    let list = backend
        .oldest(&prefix, places[149], 20)
        .await
        .expect("listed");
    let listed: Vec<u64> = list.values.iter().map(|value| value.revision).collect();
    assert!((20..=40).contains(&listed.len()), "{listed:?}");
    assert_eq!(listed, places[..listed.len()]);
    let after = list.revision;
    let mut feed = backend
        .follow_removals(&prefix, after)
        .await
        .expect("a feed");
    backend.put(&key(200), b"x", None).await.expect("put");
    backend.remove(&key(3), places[3]).await.expect("removed");
    loop {
        match feed.next().await.expect("a change") {
            Change::Removed {
                key: gone,
                revision,
            } => {
                assert!(gone == key(3) && revision > after, "{gone} {revision}");
                break;
            }
            Change::Put(value) => assert_eq!(value.key, key(200)),
        }
    }
}

pub async fn a_value_outlives_its_ttl_by_little_or_is_kept<S: Stage>(stage: &S) {
    let backend = stage.client().await;
    let (short, long) = (
        Some(Duration::from_secs(2)),
        Some(Duration::from_secs(3600)),
    );
    backend
        .put(&stage.key("to/a/s/short"), b"x", short)
        .await
        .expect("put");
    backend
        .put(&stage.key("to/a/s/long"), b"x", long)
        .await
        .expect("put");
    // Time itself is tested: neither value has expired yet.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count(stage, &backend, "to/a/", 2).await, 2);
    let since = Instant::now();
    loop {
        let left = backend
            .list(&stage.key("to/a/"))
            .await
            .expect("listed")
            .values
            .len();
        if left == 1 || (!S::ENDS_VALUES && since.elapsed() > Duration::from_secs(4)) {
            assert_eq!(left == 1, S::ENDS_VALUES);
            return;
        }
        assert!(since.elapsed() < LONG, "it lives on");
        pause(100).await;
    }
}

pub async fn what_is_too_large_is_said_and_nothing_breaks(stage: &impl Stage) {
    let backend = stage.client().await;
    let key = stage.key("node/a");
    let revision = backend.put(&key, b"small", None).await.expect("put");
    for size in [2 << 20, 8 << 20] {
        assert_eq!(
            backend.put(&key, &vec![b'x'; size], None).await,
            Err(Error::TooLarge)
        );
    }
    let list = listed(stage, &backend, "node/", |list| !list.values.is_empty()).await;
    assert_eq!(list.values[0].revision, revision);
    // The largest value that again-fleet writes fits.
    let most = vec![b'x'; again_fleet::wire::envelope::MOST];
    let revision = backend.put(&key, &most, None).await.expect("put");
    let is_newest = |list: &List| list.values.iter().any(|value| value.revision == revision);
    let list = listed(stage, &backend, "node/", is_newest).await;
    assert_eq!(list.values[0].bytes, most);
}

/// The list is longer than a gRPC client reads in one answer, as with many nodes or a hostile
/// writer.
pub async fn a_long_list_is_whole(stage: &impl Stage) {
    let backend = stage.client().await;
    let list = backend.list(&stage.key("to/a/")).await.expect("listed");
    let mut feed = backend
        .follow(&stage.key("to/a/"), list.revision)
        .await
        .expect("followed");
    let mut revisions = Vec::new();
    for n in 0..70 {
        let bytes = vec![b'x'; 140_000];
        revisions.push(
            backend
                .put(&stage.key(&format!("to/a/s/{n:03}")), &bytes, None)
                .await
                .expect("put"),
        );
    }
    backend
        .put(&stage.key("to/b/s/after"), b"x", None)
        .await
        .expect("put");
    let list = listed(stage, &backend, "to/a/", |list| list.values.len() == 70).await;
    let listed: Vec<u64> = list.values.iter().map(|value| value.revision).collect();
    assert_eq!(listed, revisions);
    assert!(list.revision >= revisions[69]);
    for revision in revisions {
        assert_eq!(next(&mut feed).await.revision(), revision);
    }
}

/// Returns the list of the latest values when it satisfies the condition.
async fn latest<S: Stage>(
    stage: &S,
    backend: &S::Backend,
    limit: Limit,
    is_so: impl Fn(&List) -> bool,
) -> List {
    let since = Instant::now();
    loop {
        let list = backend.latest(&stage.key("to/a/"), limit).await;
        let list = list.expect("listed");
        if stage.speaks_for_all() || is_so(&list) || since.elapsed() > LONG {
            return list;
        }
        pause(50).await;
    }
}

pub async fn latest_lists_the_newest_values_up_to_a_limit(stage: &impl Stage) {
    let backend = stage.client().await;
    let all = |values| Limit {
        bytes: 1 << 20,
        values,
    };
    let list = latest(stage, &backend, all(9), |_| true).await;
    assert_eq!((list.values, list.is_cut), (vec![], false));
    let gone = stage.key("to/a/s/gone");
    let revision = backend.put(&gone, b"x", None).await.expect("put");
    backend.remove(&gone, revision).await.expect("removed");
    // Neither keys nor sizes are in the order of revisions. More values are stored than are read
    // together.
    for n in 0..150 {
        let key = stage.key(&format!("to/a/s/{:03}", (n * 7) % 150));
        let bytes = vec![b'x'; (n * 13) % 50 + 1000 * (n % 60 / 59)];
        backend.put(&key, &bytes, None).await.expect("put");
    }
    let again = stage.key("to/a/s/014");
    let revision = backend.put(&again, b"newest", None).await.expect("put");
    let other = stage.key("to/b/s/x");
    backend.put(&other, b"x", None).await.expect("put");
    let is_all = |list: &List| list.values.iter().any(|value| value.revision == revision);
    let mut newest = listed(stage, &backend, "to/a/", is_all).await.values;
    newest.sort_by_key(|value| std::cmp::Reverse(value.revision));
    assert_eq!((newest.len(), newest[0].revision), (150, revision));
    let size = |values: &[Value]| {
        let sizes = values
            .iter()
            .map(|value| value.key.len() + value.bytes.len());
        sizes.sum::<usize>()
    };
    let bytes = |bytes| Limit { bytes, values: 200 };
    let (most, few) = (size(&newest[..100]), size(&newest[..3]));
    for (limit, count) in [
        (all(151), 150),
        (all(149), 149),
        (all(1), 1),
        (bytes(size(&newest)), 150),
        (bytes(size(&newest) - 1), 149),
        (bytes(most), 100),
        (bytes(most - 1), 99),
        (bytes(few), 3),
        (bytes(few - 1), 2),
        (bytes(0), 0),
    ] {
        // A backend may return fewer values than the limit allows.
        let fewest = if limit.values < 150 {
            count - count / 8
        } else {
            count
        };
        let is_newest = |list: &List| {
            let listed = list.values.len();
            (fewest..=count).contains(&listed) && list.values == newest[..listed]
        };
        let list = latest(stage, &backend, limit, is_newest).await;
        assert!(is_newest(&list), "{limit:?}: {}", list.values.len());
        assert_eq!(list.is_cut, count < 150, "{limit:?}");
    }
}

/// The prefix contains a segment of any value.
pub async fn latest_lists_one_segment_below_any_other(stage: &impl Stage) {
    let backend = stage.client().await;
    for below in ["a/s/1", "b/s/2", "b/t/3", "s/s/4", "s/a/s"] {
        let key = stage.key(&format!("story/{below}"));
        backend.put(&key, b"x", None).await.expect("put");
    }
    let limit = Limit {
        bytes: 1 << 20,
        values: 9,
    };
    let since = Instant::now();
    let listed = loop {
        let list = backend.latest(&stage.key("story/*/s/"), limit).await;
        let list = list.expect("listed");
        if list.values.len() >= 3 || stage.speaks_for_all() || since.elapsed() > LONG {
            break list;
        }
        pause(50).await;
    };
    let keys: Vec<&str> = listed.values.iter().map(|one| one.key.as_str()).collect();
    let expected = ["s/s/4", "b/s/2", "a/s/1"].map(|key| stage.key(&format!("story/{key}")));
    assert_eq!(
        (keys, listed.is_cut),
        (expected.iter().map(|key| &**key).collect(), false)
    );
}

/// `get` returns the values of those keys that exist and are not too long.
pub async fn get_leaves_out_what_is_missing_or_too_long<S: Stage>(stage: &S) {
    if !S::HAS_PLACES {
        return;
    }
    let backend = stage.client().await;
    let key = |n: usize| stage.key(&format!("to/a/s/{n:03}"));
    for n in (0..150).filter(|n| n % 3 > 0) {
        // Several of the long values do not fit into one answer.
        let length = if n % 3 == 1 { 5 } else { 200_000 };
        backend
            .put(&key(n), &vec![b'x'; length], None)
            .await
            .expect("put");
    }
    let keys: Vec<String> = (0..150).map(key).collect();
    for (longest, count) in [(4, 0), (5, 50), (199_999, 50), (200_000, 100)] {
        let values = backend.get(&keys, longest).await.expect("values");
        assert_eq!(values.len(), count, "{longest}");
        assert!(
            values
                .iter()
                .all(|one| one.bytes.len() <= longest && keys.contains(&one.key))
        );
    }
}

pub async fn a_watch_tells_everything_and_then_what_changes(stage: &impl Stage) {
    let backend = stage.client().await;
    let key = stage.key("to/a/s/one");
    let one = backend.put(&key, b"x", None).await.expect("put");
    let mut watch = Watch::new(&backend, stage.key("to/a/"), 1);
    assert!(
        matches!(watch.next().await, Event::Changed(Change::Put(value)) if value.revision == one)
    );
    assert_eq!(watch.next().await, Event::Complete);
    let two = backend
        .put(&stage.key("to/a/s/two"), b"x", None)
        .await
        .expect("put");
    assert!(
        matches!(watch.next().await, Event::Changed(Change::Put(value)) if value.revision == two)
    );
    // No change is reported twice.
    watch.list_again();
    assert_eq!(watch.next().await, Event::Complete);
    backend.remove(&key, one).await.expect("removed");
    let event = watch.next().await;
    assert!(
        matches!(&event, Event::Changed(Change::Removed { key: gone, .. }) if *gone == key),
        "{event:?}"
    );
}

/// The key is removed when its lease ends.
pub async fn a_watch_tells_removals_that_no_feed_told<S: Stage>(stage: &S) {
    if !S::HAS_PLACES {
        return;
    }
    let backend = stage.client().await;
    let lease = backend.grant().await.expect("a lease");
    let key = stage.key("lock/a");
    backend.create(&key, b"", &lease).await.expect("created");
    let mut watch = Watch::new(&backend, stage.key("lock/"), 1);
    assert!(matches!(watch.next().await, Event::Changed(Change::Put(_))));
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < LONG, "nobody told");
        match timeout(Duration::from_millis(300), watch.next()).await {
            Ok(Event::Changed(Change::Removed { key: gone, .. })) if gone == key => break,
            Ok(Event::Complete) => {}
            Ok(other) => panic!("{other:?}"),
            Err(_) => watch.list_again(),
        }
    }
}
