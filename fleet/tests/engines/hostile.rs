//! What another client writes so that a list of the latest values reads more than it may.

use std::sync::Arc;

use again_fleet::engine::{Engine, Limit, List, tls};
use async_nats::HeaderMap;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::operator::Operator;
use super::servers::{Kind, Server};
use super::{OnEtcd, OnNats, OnServer, Stage, run, shared};

const LIMIT: Limit = Limit {
    bytes: 20_000,
    values: 64,
};
/// A payload that is longer than the limit.
const LONG: &[u8] = &[b'x'; 30_000];

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in all {
        headers.append(*name, *value);
    }
    headers
}

/// Publishes a message whose headers have no end: the server appends its own to the last of them.
async fn publish_malformed(server: &Server, subject: &str) {
    let stream = TcpStream::connect(("localhost", server.port)).await;
    let mut stream = BufReader::new(stream.expect("connected"));
    stream.read_line(&mut String::new()).await.expect("a line");
    let tls = tls::configuration(&super::servers::tls("web2.test")).expect("certificates");
    let name = "localhost".try_into().expect("a name");
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream.into_inner());
    let mut stream = stream.await.expect("TLS");
    let block = "NATS/1.0\r\nNats-Msg-Size: 0\r\nX: xxx";
    let (length, all) = (block.len(), block.len() + LONG.len());
    let words = r#"CONNECT {"verbose":false,"headers":true,"no_responders":true}"#;
    let text =
        format!("{words}\r\nSUB answer 1\r\nHPUB {subject} answer {length} {all}\r\n{block}");
    let bytes = [text.as_bytes(), LONG, b"\r\n"].concat();
    stream.write_all(&bytes).await.expect("sent");
    // Until the server says that it is stored.
    let mut answer = String::new();
    while !answer.contains("\"seq\"") {
        let mut part = [0; 512];
        let count = stream.read(&mut part).await.expect("an answer");
        assert!(count > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&part[..count]));
    }
}

/// Lists the latest values after five small ones were put.
async fn listed_after_five(stage: &impl Stage) -> (List, Vec<String>) {
    let engine = stage.client().await;
    let mut keys = Vec::new();
    for n in 0..5 {
        let key = stage.key(&format!("story/a/s/{n}"));
        engine.put(&key, b"small", None).await.expect("put");
        keys.insert(0, key);
    }
    let list = engine.latest(&stage.key("story/a/"), LIMIT).await;
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
            let engine = stage.client().await;
            let room = format!("again_{}_story", stage.0.namespace);
            let operator = Operator::of(&server, &format!("KV_{room}")).await;
            let first = stage.key("story/a/s/first");
            engine.put(&first, b"first", None).await.expect("put");
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
        let engine = stage.client().await;
        let first = stage.key("story/a/s/first");
        engine.put(&first, b"first", None).await.expect("put");
        let subject = format!("$KV.again_{}_story.a.s.junk", stage.0.namespace);
        publish_malformed(&server, &subject).await;
        let (list, keys) = listed_after_five(&stage).await;
        let listed: Vec<&str> = list.values.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(
            (listed, list.is_cut),
            (keys[..4].iter().map(|key| &**key).collect(), true)
        );
    });
}

#[test]
fn key_is_created_whatever_number_its_removal_claims() {
    run(async {
        let stage = OnNats(OnServer::new(shared(Kind::Nats)));
        let engine = stage.client().await;
        let room = format!("again_{}_alive", stage.0.namespace);
        let operator = Operator::of(stage.0.server, &format!("KV_{room}")).await;
        let claim = headers(&[("KV-Operation", "DEL"), ("Nats-Sequence", "999")]);
        operator.publish(format!("$KV.{room}.a"), claim, b"").await;
        let lease = engine.grant().await.expect("granted");
        let created = engine.create(&stage.key("alive/a"), b"x", &lease).await;
        assert_eq!(created, Ok(2));
    });
}

/// Keys of which the newest fill more than one answer, and values of which several do.
#[test]
fn latest_reads_past_long_keys_and_values_up_to_the_limit() {
    let server = Server::start(Kind::Etcd);
    run(async {
        let stage = OnEtcd(OnServer::new(&server));
        let engine = stage.client().await;
        let limit = Limit {
            bytes: 3_500_000,
            values: 20_000,
        };
        for n in 0..24 {
            let key = format!("{}{n}{}", stage.key("story/a/s/"), "x".repeat(1_400_000));
            engine.put(&key, b"x", None).await.expect("put");
        }
        for n in 0..5 {
            let key = stage.key(&format!("story/b/s/{n}"));
            engine
                .put(&key, &vec![b'x'; 1_000_000], None)
                .await
                .expect("put");
        }
        let (list, keys) = listed_after_five(&stage).await;
        let listed: Vec<&str> = list.values.iter().map(|one| one.key.as_str()).collect();
        // Only those that fit into the smaller limit of the small ones.
        assert_eq!(
            (listed, list.is_cut),
            (keys.iter().map(|key| &**key).collect(), true)
        );
        let list = engine
            .latest(&stage.key("story/"), limit)
            .await
            .expect("listed");
        assert_eq!((list.values.len(), list.is_cut), (8, true));
    });
}
