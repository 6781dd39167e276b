//! Values of another client that could make a list of the latest values exceed its limit.

use std::sync::Arc;
use std::time::Duration;

use again_fleet::backend::{Backend, Error, Feed, Limit, List, Times, tls};
use async_nats::HeaderMap;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::operator::Operator;
use super::servers::{Kind, Server};
use super::{OnEtcd, OnNats, OnServer, Stage, TIMES, run, shared};

const LIMIT: Limit = Limit {
    bytes: 20_000,
    values: 64,
};
/// Payload longer than the limit.
const LONG: &[u8] = &[b'x'; 30_000];

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in all {
        headers.append(*name, *value);
    }
    headers
}

/// Publishes a message with this raw block of headers, which a client library might not send.
async fn publish_raw(server: &Server, subject: &str, block: &str, payload: &[u8]) {
    let stream = TcpStream::connect(("localhost", server.port)).await;
    let mut stream = BufReader::new(stream.expect("connected"));
    stream.read_line(&mut String::new()).await.expect("a line");
    let tls = tls::configuration(&super::servers::tls("web2.test")).expect("certificates");
    let name = "localhost".try_into().expect("a name");
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream.into_inner());
    let mut stream = stream.await.expect("TLS");
    let (length, all) = (block.len(), block.len() + payload.len());
    let words = r#"CONNECT {"verbose":false,"headers":true,"no_responders":true}"#;
    let text =
        format!("{words}\r\nSUB answer 1\r\nHPUB {subject} answer {length} {all}\r\n{block}");
    let bytes = [text.as_bytes(), payload, b"\r\n"].concat();
    stream.write_all(&bytes).await.expect("sent");
    // Reads until the server confirms that the message is stored.
    let mut answer = String::new();
    while !answer.contains("\"seq\"") {
        let mut part = [0; 512];
        let count = stream.read(&mut part).await.expect("an answer");
        assert!(count > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&part[..count]));
    }
}

/// Puts five small values, and lists the latest values.
async fn listed_after_five(stage: &impl Stage) -> (List, Vec<String>) {
    let backend = stage.client().await;
    let mut keys = Vec::new();
    for n in 0..5 {
        let key = stage.key(&format!("story/a/s/{n}"));
        backend.put(&key, b"small", None).await.expect("put");
        keys.insert(0, key);
    }
    let list = backend.latest(&stage.key("story/a/"), LIMIT).await;
    (list.expect("listed"), keys)
}

#[test]
fn latest_reads_no_more_than_the_limit_whatever_headers_say() {
    let server = Server::start(Kind::Nats);
    run(async {
        let long = "x".repeat(60_000);
        let cases = [
            ("size", headers(&[("Nats-Msg-Size", "0")]), LONG, 5),
            ("removal", headers(&[("KV-Operation", "DEL")]), LONG, 5),
            ("headers", headers(&[("X", &long)]), b"", 4),
            ("more", headers(&[("Nats-Msg-Size", "99999999")]), b"y", 7),
        ];
        for (what, headers, payload, count) in cases {
            let stage = OnNats(OnServer::new(&server));
            let backend = stage.client().await;
            let room = format!("again_{}_story", stage.0.namespace);
            let operator = Operator::of(&server, &format!("KV_{room}")).await;
            let first = stage.key("story/a/s/first");
            backend.put(&first, b"first", None).await.expect("put");
            let subject = format!("$KV.{room}.a.s.{what}");
            operator.publish(subject, headers, payload).await;
            let (list, keys) = listed_after_five(&stage).await;
            let listed: Vec<&str> = list.values.iter().map(|one| one.key.as_str()).collect();
            assert_eq!(listed.len(), count, "{what}: {listed:?}");
            let newest = count.min(5);
            assert_eq!(listed[..newest], keys[..newest], "{what}");
            assert_eq!(list.is_cut, count < 7, "{what}");
        }
    });
}

#[test]
fn latest_reads_no_more_than_the_limit_where_headers_are_malformed() {
    let server = Server::start(Kind::Nats);
    run(async {
        let stage = OnNats(OnServer::new(&server));
        let backend = stage.client().await;
        let first = stage.key("story/a/s/first");
        backend.put(&first, b"first", None).await.expect("put");
        let subject = format!("$KV.again_{}_story.a.s.junk", stage.0.namespace);
        // Headers without an end: the server appends its own to the last of them.
        let block = "NATS/1.0\r\nNats-Msg-Size: 0\r\nX: xxx";
        publish_raw(&server, &subject, block, LONG).await;
        let (list, keys) = listed_after_five(&stage).await;
        let listed: Vec<&str> = list.values.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(
            (listed, list.is_cut),
            (keys[..4].iter().map(|key| &**key).collect(), true)
        );
    });
}

#[test]
fn value_is_removed_whatever_number_and_status_another_removal_claims() {
    let server = shared(Kind::Nats);
    run(async {
        let stage = OnNats(OnServer::new(server));
        let backend = stage.client().await;
        let room = format!("again_{}_to", stage.0.namespace);
        let lines = ["Nats-Sequence: 999\r\n", ""];
        for status in ["", " 100", " 404 x", " 408 x", " 409 x", " 503"] {
            for line in lines {
                let what = format!("{status:?}, {line:?}");
                let key = stage.key("to/a/b/c");
                let revision = backend.put(&key, b"x", None).await.expect("put");
                let block = format!("NATS/1.0{status}\r\nKV-Operation: DEL\r\n{line}\r\n");
                publish_raw(server, &format!("$KV.{room}.a.b.c"), &block, b"").await;
                let removed = backend.remove(&key, revision).await;
                assert_eq!(removed, Ok(()), "{what}");
            }
        }
    });
}

#[test]
fn list_and_watch_go_on_past_a_message_with_a_status_of_its_writer() {
    let server = shared(Kind::Nats);
    run(async {
        for status in [" 100", " 100 x", " 404 x", " 409 x", " 503"] {
            let stage = OnNats(OnServer::new(server));
            let backend = stage.client().await;
            let mut feed = backend.follow(&stage.key("to/a/"), 0).await.expect(status);
            let subject = format!("$KV.again_{}_to.a.b.junk", stage.0.namespace);
            publish_raw(server, &subject, &format!("NATS/1.0{status}\r\n\r\n"), b"x").await;
            let key = stage.key("to/a/b/c");
            backend.put(&key, b"x", None).await.expect("put");
            let listed = backend.list(&stage.key("to/a/")).await.expect(status);
            assert_eq!(listed.values.len(), 2, "{status}");
            for revision in [1, 2] {
                let change = feed.next().await.expect(status);
                assert_eq!(change.revision(), revision, "{status}");
            }
        }
    });
}

/// The client library closes the connection when it cannot parse headers: no node can read past
/// them.
#[test]
fn malformed_headers_end_a_list_until_an_operator_purges_them() {
    let server = shared(Kind::Nats);
    run(async {
        let stage = OnNats(OnServer::new(server));
        let backend = stage.client().await;
        for below in ["to/a/b/c", "to/other/b/c"] {
            backend
                .put(&stage.key(below), b"x", None)
                .await
                .expect(below);
        }
        let stream = format!("again_{}_to", stage.0.namespace);
        let operator = Operator::of(server, &format!("KV_{stream}")).await;
        let subject = format!("$KV.{stream}.a.b.junk");
        let impatient = Times {
            call: Duration::from_secs(1),
            ..TIMES
        };
        for block in ["NATS/1.0 zzz\r\n\r\n", "NATS/1.0\r\nno colon\r\n\r\n"] {
            publish_raw(server, &subject, block, b"x").await;
            let reader = stage.0.nats_with("web1.test", impatient.clone()).await;
            let listed = reader.list(&stage.key("to/a/")).await;
            assert!(matches!(listed, Err(Error::Unreachable(_))), "{listed:?}");
            let other = stage.client().await.list(&stage.key("to/other/")).await;
            assert_eq!(other.expect("listed").values.len(), 1);
            let purge = json!({ "filter": subject });
            operator.ask("STREAM.PURGE", "", purge).await;
            let listed = stage.client().await.list(&stage.key("to/a/")).await;
            assert_eq!(listed.expect("listed").values.len(), 1);
        }
    });
}

/// Long keys of which the newest fill more than one answer, and long values of which several do.
#[test]
fn latest_reads_past_long_keys_and_values_up_to_the_limit() {
    let server = Server::start(Kind::Etcd);
    run(async {
        let stage = OnEtcd(OnServer::new(&server));
        let backend = stage.client().await;
        let limit = Limit {
            bytes: 3_500_000,
            values: 20_000,
        };
        for n in 0..24 {
            let key = format!("{}{n}{}", stage.key("story/a/s/"), "x".repeat(1_400_000));
            backend.put(&key, b"x", None).await.expect("put");
        }
        for n in 0..5 {
            let key = stage.key(&format!("story/b/s/{n}"));
            backend
                .put(&key, &vec![b'x'; 1_000_000], None)
                .await
                .expect("put");
        }
        let (list, keys) = listed_after_five(&stage).await;
        let listed: Vec<&str> = list.values.iter().map(|one| one.key.as_str()).collect();
        // Only the values that fit into the smaller limit for small ones.
        assert_eq!(
            (listed, list.is_cut),
            (keys.iter().map(|key| &**key).collect(), true)
        );
        let list = backend
            .latest(&stage.key("story/"), limit)
            .await
            .expect("listed");
        assert_eq!((list.values.len(), list.is_cut), (8, true));
    });
}
