//! Servers that freeze, die, come back, or come back without their data.

use std::time::Duration;

use again_fleet::backend::etcd::Etcd;
use again_fleet::backend::nats::Nats;
use again_fleet::backend::watch::{Event, Watch};
use again_fleet::backend::{Backend, Change, Error, Feed};
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::operator::Operator;
use super::pause::pause;
use super::relay::Relay;
use super::servers::{Kind, Server, tls};
use super::{OnEtcd, OnNats, OnServer, Stage, TIMES, run};

const LONG: Duration = Duration::from_secs(300);
/// Time without a change after which a watch lists again, as the service does with each beat.
const BEAT: Duration = Duration::from_secs(10);

/// Repeats a put until it succeeds; returns the revision.
async fn put(backend: &impl Backend, key: &str) -> u64 {
    let since = Instant::now();
    loop {
        match backend.put(key, b"x", None).await {
            Ok(revision) => return revision,
            Err(error) => assert!(since.elapsed() < LONG, "{error}"),
        }
        pause(50).await;
    }
}

async fn silent(stage: &impl Stage, server: &Server) {
    let backend = stage.client().await;
    let prefix = stage.key("to/a/");
    put(&backend, &stage.key("to/a/s/before")).await;
    server.stop();
    let since = Instant::now();
    let put_while_silent = backend.put(&stage.key("to/a/s/during"), b"x", None).await;
    assert!(
        matches!(put_while_silent, Err(Error::Unknown(_))),
        "{put_while_silent:?}"
    );
    let listed = backend.list(&prefix).await;
    assert!(matches!(listed, Err(Error::Unreachable(_))), "{listed:?}");
    assert!(since.elapsed() < LONG);
    server.go_on();
    put(&backend, &stage.key("to/a/s/after")).await;
    let list = backend.list(&prefix).await.expect("listed");
    assert!(list.values.len() >= 2, "{list:?}");
}

async fn gone(stage: &impl Stage, server: &Server) {
    let backend = stage.client().await;
    let key = stage.key("to/a/s/before");
    put(&backend, &key).await;
    let list = backend.list(&stage.key("to/a/")).await.expect("listed");
    server.kill();
    let listed = backend.list(&stage.key("to/a/")).await;
    assert!(matches!(listed, Err(Error::Unreachable(_))), "{listed:?}");
    // By now the client knows that the server is unreachable.
    let during = backend.put(&stage.key("to/a/s/during"), b"x", None).await;
    assert!(matches!(during, Err(Error::Unreachable(_))), "{during:?}");
    let removed = backend.remove(&key, list.values[0].revision).await;
    assert!(matches!(removed, Err(Error::Unreachable(_))), "{removed:?}");
    server.run();
    put(&backend, &stage.key("to/a/s/after")).await;
    let list = backend.list(&stage.key("to/a/")).await.expect("listed");
    let keys: Vec<&str> = list.values.iter().map(|value| value.key.as_str()).collect();
    assert_eq!(
        keys,
        [stage.key("to/a/s/after"), key],
        "what was said not to have happened did not happen later"
    );
}

/// Events of a watch until this key has a value and the watch is complete.
async fn until<E: Backend>(watch: &mut Watch<'_, E>, key: &str) -> Vec<Event> {
    let mut told = Vec::new();
    let is_it =
        |event: &Event| matches!(event, Event::Changed(Change::Put(value)) if value.key == key);
    let since = Instant::now();
    while !told.iter().any(is_it) {
        assert!(since.elapsed() < LONG, "nobody told of {key}: {told:?}");
        match timeout(BEAT, watch.next()).await {
            Ok(event) => told.push(event),
            Err(_) => watch.list_again(),
        }
    }
    told
}

async fn watched(stage: &impl Stage, server: &Server) {
    let (backend, writer) = (stage.client().await, stage.client().await);
    let key = stage.key("to/a/s/before");
    put(&writer, &key).await;
    let mut watch = Watch::new(&backend, stage.key("to/a/"), 1);
    until(&mut watch, &key).await;
    assert_eq!(watch.next().await, Event::Complete);
    server.kill();
    let lost = timeout(LONG, watch.next()).await.expect("it is noticed");
    assert!(
        matches!(lost, Event::Lost(Error::Unreachable(_))),
        "{lost:?}"
    );
    server.run();
    // Two clients: both reconnect.
    let after = stage.key("to/a/s/after");
    let (_, told) = tokio::join!(put(&writer, &after), until(&mut watch, &after));
    assert!(told.contains(&Event::Complete) || watch.next().await == Event::Complete);
    let again = told
        .iter()
        .filter(|event| matches!(event, Event::Changed(change) if change.key() == key));
    assert_eq!(again.count(), 0, "nothing is told twice: {told:?}");
}

async fn wiped(stage: &impl Stage, server: &Server) {
    let (backend, writer) = (stage.client().await, stage.client().await);
    let old = stage.key("to/a/s/old");
    let stays = stage.key("to/a/s/stays");
    for key in [&old, &stays] {
        put(&writer, key).await;
    }
    let mut watch = Watch::new(&backend, stage.key("to/a/"), 1);
    until(&mut watch, &stays).await;
    server.kill();
    server.wipe();
    server.run();
    // The sender, which has kept the trigger, puts it again: this is another write, though its
    // revision may be lower.
    let (_, told) = tokio::join!(put(&writer, &stays), until(&mut watch, &stays));
    let since = Instant::now();
    let mut told = told;
    let is_gone =
        |event: &Event| matches!(event, Event::Changed(Change::Removed { key, .. }) if *key == old);
    while !told.iter().any(is_gone) {
        assert!(
            since.elapsed() < LONG,
            "nobody told that it is gone: {told:?}"
        );
        if let Ok(event) = timeout(Duration::from_millis(300), watch.next()).await {
            told.push(event);
        } else {
            watch.list_again();
        }
    }
}

async fn written(stage: &impl Stage, server: &Server) {
    let (backend, writer) = (stage.client().await, stage.client().await);
    let prefix = stage.key("to/a/");
    put(&writer, &stage.key("to/a/s/first")).await;
    let lease = backend.grant().await.expect("a lease");
    // The first call may only open the connection.
    for _ in 0..2 {
        backend.renew(&lease).await.expect("renewed");
    }
    let before = backend.list(&prefix).await.expect("listed").revision;
    assert_eq!(backend.newest(&prefix), Some(before));
    put(&writer, &stage.key("to/a/s/second")).await;
    backend.renew(&lease).await.expect("renewed");
    let after = backend.list(&prefix).await.expect("listed").revision;
    assert!(before < after);
    assert_eq!(backend.newest(&prefix), Some(after));
    server.stop();
    let renewed = backend.renew(&lease).await;
    assert!(renewed.is_err(), "a renewal shows that it is silent");
    assert_eq!(backend.newest(&prefix), None);
    server.go_on();
}

macro_rules! faults {
    ($($case:ident: $test:ident,)*) => {
        mod etcd {
            use super::*;
            $(#[test] fn $test() {
                let server = Server::start(Kind::Etcd);
                run(async { $case(&OnEtcd(OnServer::new(&server)), &server).await });
            })*
        }
        mod nats {
            use super::*;
            $(#[test] fn $test() {
                let server = Server::start(Kind::Nats);
                run(async { $case(&OnNats(OnServer::new(&server)), &server).await });
            })*
        }
    };
}

faults! {
    silent: a_silent_server_may_have_done_it,
    gone: a_server_that_is_gone_did_nothing_and_may_come_back,
    watched: a_watch_goes_on_where_a_server_comes_back,
    written: a_renewal_tells_whether_something_was_written,
    wiped: a_watch_tells_that_a_server_lost_its_data,
}

#[test]
fn a_watch_outlives_a_compaction() {
    let server = Server::start(Kind::Etcd);
    run(async {
        let stage = OnEtcd(OnServer::new(&server));
        let backend = stage.client().await;
        let key = stage.key("to/a/s/n");
        let first = put(&backend, &key).await;
        put(&backend, &key).await;
        let last = put(&backend, &key).await;
        server.etcdctl("web1.test", &["compaction", &last.to_string()]);
        let mut feed = backend
            .follow(&stage.key("to/a/"), first)
            .await
            .expect("followed");
        let told = timeout(LONG, feed.next()).await.expect("an answer");
        assert!(
            matches!(&told, Err(Error::Unreachable(why)) if why.contains("compacted")),
            "{told:?}"
        );
        let mut watch = Watch::new(&backend, stage.key("to/a/"), 1);
        until(&mut watch, &key).await;
        assert_eq!(watch.next().await, Event::Complete);
        let newer = put(&backend, &key).await;
        let told = until(&mut watch, &key).await;
        assert!(
            matches!(&told[..], [Event::Changed(Change::Put(value))] if value.revision == newer),
            "{told:?}"
        );
    });
}

/// Whether the server reports the deletion of a consumer or not, the next list finds what the feed
/// did not report.
#[test]
fn a_watch_outlives_its_consumer() {
    let server = Server::start(Kind::Nats);
    run(async {
        let stage = OnNats(OnServer::new(&server));
        let backend = stage.client().await;
        let room = format!("again_{}_to", stage.0.namespace);
        let operator = Operator::of(&server, &format!("KV_{room}")).await;
        let filter = format!("$KV.{room}.a.>");
        let keys = ["0", "1", "2", "3"].map(|n| stage.key(&format!("to/a/s/{n}")));
        put(&backend, &keys[0]).await;
        let mut watch = Watch::new(&backend, stage.key("to/a/"), 1);
        until(&mut watch, &keys[0]).await;
        assert_eq!(watch.next().await, Event::Complete);
        operator.tell_of_an_end(&operator.feed(&filter).await).await;
        let lost = timeout(LONG, watch.next()).await.expect("it is told");
        let ended = "the server has ended what it was asked for";
        assert_eq!(lost, Event::Lost(Error::Unreachable(ended.to_owned())));
        put(&backend, &keys[1]).await;
        let told = until(&mut watch, &keys[1]).await;
        let changes = told
            .iter()
            .filter(|event| matches!(event, Event::Changed(_)));
        assert_eq!(changes.count(), 1, "{told:?}");
        while timeout(BEAT / 10, watch.next()).await.is_ok() {}
        let feed = operator.feed(&filter).await;
        let name = feed["name"].as_str().expect("a name");
        operator.ask("CONSUMER.DELETE", name, json!({})).await;
        put(&backend, &keys[2]).await;
        watch.list_again();
        until(&mut watch, &keys[2]).await;
        // Another feed has replaced it.
        while timeout(BEAT / 10, watch.next()).await.is_ok() {}
        put(&backend, &keys[3]).await;
        let told = timeout(LONG, watch.next()).await.expect("it is told");
        assert!(
            matches!(&told, Event::Changed(Change::Put(value)) if value.key == keys[3]),
            "{told:?}"
        );
    });
}

/// Nodes that connect to a server that lost a stream create it again, at the same time.
#[test]
fn a_stream_may_be_made_by_many_at_once() {
    let server = Server::start(Kind::Nats);
    run(async {
        let stage = OnNats(OnServer::new(&server));
        let clients = join_all((0..16).map(|_| stage.client())).await;
        let stream = format!("KV_again_{}_to", stage.0.namespace);
        let operator = Operator::of(&server, &stream).await;
        for _ in 0..300 {
            operator.ask("STREAM.DELETE", "", json!({})).await;
            let key = stage.key("to/a/");
            let lists = join_all(clients.iter().map(|client| client.list(&key))).await;
            let failures: Vec<String> = lists
                .iter()
                .filter_map(|one| Some(one.as_ref().err()?.to_string()))
                .collect();
            assert_eq!(failures, [""; 0]);
        }
    });
}

/// The values exceed an answer's maximum size, after a page that held little.
#[test]
fn a_list_of_the_largest_values_is_whole() {
    let server = Server::start(Kind::Etcd);
    run(async {
        let stage = OnEtcd(OnServer::new(&server));
        let backend = stage.client().await;
        let large = vec![b'x'; 1 << 20];
        for n in 0..56 {
            let (key, bytes) = (
                stage.key(&format!("to/a/s/{n:02}")),
                if n < 16 { &large[..1] } else { &large },
            );
            backend.put(&key, bytes, None).await.expect("put");
        }
        let list = backend.list(&stage.key("to/a/")).await.expect("listed");
        let sizes = list.values.iter().map(|value| value.bytes.len());
        assert_eq!(sizes.sum::<usize>(), 16 + 40 * large.len());
    });
}

/// The connection breaks in the middle of a call and of a watch.
#[test]
fn connection_that_ends_is_told_in_plain_words() {
    let server = Server::start(Kind::Etcd);
    let relay = Relay::to(server.port);
    run(async {
        let (key, tls) = ("again/v1/test/to/a/s/n", tls("web1.test"));
        let address = [format!("https://localhost:{}", relay.port)];
        let backend = Etcd::new(&address, Some(&tls), TIMES).await;
        let backend = backend.expect("a client");
        let revision = put(&backend, key).await;
        let feed = backend.follow("again/v1/test/to/a/", revision).await;
        let mut feed = feed.expect("followed");
        relay.cut();
        let breaks = async {
            pause(300).await;
            relay.mend_without_connections();
        };
        let put = backend.put(key, b"y", None);
        let (put, next, ()) = tokio::join!(put, timeout(LONG, feed.next()), breaks);
        let why = || "the connection was closed".to_owned();
        assert_eq!(put, Err(Error::Unknown(why())));
        assert_eq!(next.expect("told"), Err(Error::Unreachable(why())));
    });
}

/// The stored values can still be read, and the client need not reconnect.
async fn full(stage: &impl Stage) {
    let backend = stage.client().await;
    let large = vec![b'x'; 1 << 20];
    let mut stored = 0;
    let refused = loop {
        let key = stage.key(&format!("to/a/s/{stored:02}"));
        match backend.put(&key, &large, None).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 64, "it takes all that it is given");
    };
    assert!(matches!(refused, Error::Full(_)), "{refused:?}");
    let list = backend.list(&stage.key("to/a/")).await.expect("listed");
    // etcd still accepts the value that exceeds its quota, and only then reports that it is full.
    let found = list.values.len();
    assert!(
        found == stored || found == stored + 1,
        "{found} of {stored}"
    );
}

#[test]
fn full_backend_is_an_error_of_its_own() {
    let etcd = Server::with_room(Kind::Etcd, 16 << 20);
    run(full(&OnEtcd(OnServer::new(&etcd))));
    let nats = Server::with_room(Kind::Nats, 16 << 20);
    run(full(&OnNats(OnServer::new(&nats))));
}

#[test]
fn values_that_end_share_leases_which_may_be_lost() {
    let server = Server::start(Kind::Etcd);
    run(async {
        let stage = OnEtcd(OnServer::new(&server));
        let backend = stage.client().await;
        let leases = || -> Vec<String> {
            let list = server.etcdctl("web1.test", &["lease", "list"]);
            list.lines().skip(1).map(str::to_owned).collect()
        };
        let hour = Some(Duration::from_secs(3600));
        for n in 0..20 {
            backend
                .put(&stage.key(&format!("to/a/s/{n}")), b"x", hour)
                .await
                .expect("put");
        }
        let one = leases();
        assert_eq!(one.len(), 1, "{one:?}");
        // An administrator revokes the lease.
        server.etcdctl("web1.test", &["lease", "revoke", &one[0]]);
        assert!(leases().is_empty());
        backend
            .put(&stage.key("to/a/s/after"), b"x", hour)
            .await
            .expect("put");
        assert_eq!(
            backend
                .list(&stage.key("to/a/"))
                .await
                .expect("listed")
                .values
                .len(),
            1
        );
    });
}

/// Kills each of three members in turn, so the leader is one of them; then two at the same time.
async fn one_of_three_dies(
    backend: &impl Backend,
    key: impl Fn(&str) -> String,
    servers: &[Server; 3],
) {
    let mut watch = Watch::new(backend, key("to/a/"), 1);
    let mut written = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        server.kill();
        let one = key(&format!("to/a/s/{n}"));
        tokio::join!(put(backend, &one), until(&mut watch, &one));
        written.push(one);
        server.run();
        let back = key(&format!("to/a/s/{n}-back"));
        tokio::join!(put(backend, &back), until(&mut watch, &back));
        written.push(back);
    }
    // A member that was killed may list before it has caught up.
    let since = Instant::now();
    loop {
        let list = backend.list(&key("to/a/")).await;
        let values = list.as_ref().map(|list| list.values.iter());
        if values.is_ok_and(|values| values.map(|value| &value.key).eq(&written)) {
            break;
        }
        assert!(
            since.elapsed() < LONG,
            "something that was confirmed is gone: {list:?}"
        );
        pause(100).await;
    }
    servers[..2].iter().for_each(Server::kill);
    let answer = backend.put(&key("to/a/s/alone"), b"x", None).await;
    assert!(
        matches!(answer, Err(Error::Unknown(_) | Error::Unreachable(_))),
        "one of three decides nothing: {answer:?}"
    );
    servers[..2].iter().for_each(Server::run);
    put(backend, &key("to/a/s/together")).await;
}

#[test]
fn a_cluster_of_etcd_goes_on_without_one() {
    let servers = Server::cluster(Kind::Etcd);
    let addresses: Vec<String> = servers.iter().map(Server::address).collect();
    run(async {
        let backend = Etcd::new(&addresses, Some(&tls("web1.test")), TIMES)
            .await
            .expect("a client");
        one_of_three_dies(&backend, |below| format!("again/v1/test/{below}"), &servers).await;
    });
}

#[test]
fn a_cluster_of_nats_goes_on_without_one() {
    let servers = Server::cluster(Kind::Nats);
    let addresses: Vec<String> = servers.iter().map(Server::address).collect();
    run(async {
        let since = Instant::now();
        let backend = loop {
            // The members may be electing a leader.
            let (node, namespace) = (
                "web1.test".parse().expect("a certname"),
                "test".parse().expect("a namespace"),
            );
            match Nats::connect(&addresses, Some(&tls("web1.test")), &node, namespace, TIMES).await
            {
                Ok(backend) => break backend,
                Err(error) => assert!(since.elapsed() < LONG, "{error}"),
            }
        };
        one_of_three_dies(&backend, |below| format!("again/v1/test/{below}"), &servers).await;
    });
}

/// Writes a number of values of one megabyte, as large as one batch of events.
async fn fill(backend: &impl Backend, stage: &impl Stage, count: u32) {
    for n in 0..count {
        let key = stage.key(&format!("event/a/x/{n:05}"));
        let put = backend.put(&key, &vec![b'x'; 1_000_000], Some(LONG)).await;
        put.expect("put");
    }
}

#[test]
fn an_etcd_keeps_room_for_what_is_worth_more_than_events() {
    let server = Server::start(Kind::Etcd);
    run(async {
        let stage = OnEtcd(OnServer::new(&server));
        let backend = stage.client().await;
        backend.has_room().await.expect("an empty one has room");
        fill(&backend, &stage, 140).await;
        // A new client, because the first one has cached the answer.
        let full = stage.client().await.has_room().await;
        assert!(
            matches!(&full, Err(Error::Full(why)) if why.contains("128 MiB")),
            "{full:?}"
        );
        put(&backend, &stage.key("to/a/s/again")).await;
    });
}

#[test]
fn a_nats_server_lets_the_oldest_events_go() {
    let server = Server::start(Kind::Nats);
    run(async {
        let stage = OnNats(OnServer::new(&server));
        let backend = stage.client().await;
        backend.has_room().await.expect("it makes room");
        fill(&backend, &stage, 80).await;
        let list = backend.list(&stage.key("event/")).await.expect("listed");
        let bytes: usize = list.values.iter().map(|value| value.bytes.len()).sum();
        assert!(((60 << 20)..=(64 << 20)).contains(&bytes), "{bytes} bytes");
        let ends = |value: &again_fleet::backend::Value| value.key.ends_with("/00079");
        assert!(list.values.iter().any(ends));
        put(&backend, &stage.key("to/a/s/again")).await;
    });
}
