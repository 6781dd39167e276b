//! Operations that a server denies to a node.
//!
//! The rights are those that the class common::again::backend sets: each node reads and removes
//! below its own `to/`, and sends triggers to all nodes. NATS can also ensure that a node writes
//! only as itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use again_fleet::backend::etcd::Etcd;
use again_fleet::backend::nats::Nats;
use again_fleet::backend::{Backend, Error, Feed, Limit, Tls};
use async_nats::HeaderMap;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::timeout;

use super::ca::Ca;
use super::operator::Operator;
use super::servers::{Kind, Server, tls};
use super::{OnServer, TIMES, run};

fn denied<T: std::fmt::Debug>(what: &str, answer: Result<T, Error>) {
    assert!(
        matches!(answer, Err(Error::Denied(_))),
        "{what}: {answer:?}"
    );
}

fn key(below: &str) -> String {
    format!("again/v1/test/{below}")
}

/// Returns a file of the class common::again::backend, as Puppet writes it.
fn written(template: &str, values: &str) -> String {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../puppet-module");
    let scratch = tempfile::tempdir().expect("a directory");
    let output = Command::new("puppet")
        .args(["epp", "render", "--values", values])
        .args(
            ["--confdir", "--vardir"]
                .map(|option| format!("{option}={}", scratch.path().display())),
        )
        .arg(module.join("templates").join(template))
        .output()
        .expect("puppet");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        output.status.success() && !text.is_empty(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Files that the class creates on a node with an etcd: the script, and its input.
struct Enrolment {
    dir: TempDir,
}

impl Enrolment {
    fn new(server: &Server) -> Enrolment {
        let dir = tempfile::tempdir().expect("a directory");
        let ca = Ca::get();
        for (name, file) in [
            ("ca.pem", "ca.pem"),
            ("cert.pem", "server.test.pem"),
            ("key.pem", "server.test.key"),
        ] {
            fs::copy(ca.path(file), dir.path().join(name)).expect("copied");
        }
        let values = format!(
            "{{ directory => '{}', endpoint => '{}', members => ['server.test'], namespaces => ['test'] }}",
            dir.path().display(),
            server.address()
        );
        let script = written("again-backend-etcd-enrol.epp", &values);
        fs::write(dir.path().join("enrol"), script).expect("written");
        Enrolment { dir }
    }

    /// Whether the nodes in the file have their rights.
    fn is_done(&self) -> bool {
        self.script(&["--check"]).status.success()
    }

    /// Gives these nodes their rights, as Puppet's Exec does.
    fn enrol(&self, nodes: &[&str]) {
        let lines: String = nodes.iter().map(|node| format!("{node}\n")).collect();
        fs::write(self.dir.path().join("nodes"), lines).expect("written");
        assert!(!self.is_done(), "nothing to do for {nodes:?}");
        let output = self.script(&[]);
        assert!(output.status.success(), "{output:?}");
        assert!(self.is_done(), "not done for {nodes:?}");
    }

    fn script(&self, words: &[&str]) -> Output {
        let script = self.dir.path().join("enrol");
        let output = Command::new("sh").arg(script).args(words).output();
        output.expect("sh")
    }
}

/// Statuses of triggers, and the targets of a rolling run: a node writes below its own name, and
/// reads all.
async fn stories_are_written_by_their_node_and_read_by_all(
    web1: &impl Backend,
    web2: &impl Backend,
) {
    let own = key("story/web1=test/x/y");
    web1.put(&own, b"x", None).await.expect("its own story");
    let another = key("story/web2=test/x/y");
    denied("another's story", web1.put(&another, b"x", None).await);
    // The key has the node's own name where another's is expected.
    let inside = key("story/x/web1=test/y");
    denied("a story elsewhere", web1.put(&inside, b"x", None).await);
    let there = web2.put(&another, b"x", None).await.expect("its own story");
    denied("a removal", web1.remove(&another, there).await);
    let limit = Limit {
        bytes: 1000,
        values: 9,
    };
    for below in ["story/", "story/*/x/", "story/web2=test/x/"] {
        let listed = web1.latest(&key(below), limit).await.expect("listed");
        let count = if below.contains("web2") { 1 } else { 2 };
        assert_eq!(
            (listed.values.len(), listed.is_cut),
            (count, false),
            "{below}"
        );
    }
}

async fn events_are_told_by_their_node_and_read_by_all(web1: &impl Backend, web2: &impl Backend) {
    web1.put(&key("event/web1=test/x/1"), b"x", None)
        .await
        .expect("its own events");
    denied(
        "another's events",
        web1.put(&key("event/web2=test/x/1"), b"x", None).await,
    );
    let events = web2.list(&key("event/")).await.expect("all events");
    assert_eq!(events.values.len(), 1);
    let (bytes, values) = (1000, 9);
    let latest = web2.latest(&key("event/"), Limit { bytes, values }).await;
    let latest = latest.expect("the latest events");
    assert_eq!((latest.values, latest.is_cut), (events.values, false));
}

#[test]
fn etcd_keeps_nodes_out_of_each_others_registers() {
    let server = Server::start(Kind::Etcd);
    let enrolment = Enrolment::new(&server);
    enrolment.enrol(&["web1.test", "web2.test", "gone.test"]);
    run(async {
        let stage = OnServer {
            server: &server,
            namespace: "test".to_owned(),
            is_member: false,
        };
        let (web1, web2) = (stage.etcd("web1.test").await, stage.etcd("web2.test").await);
        let register = key("to/web2=test/web1=test/again");
        let revision = web1
            .put(&register, b"x", Some(Duration::from_secs(3600)))
            .await
            .expect("put");
        denied("a list", web1.list(&key("to/web2=test/")).await);
        denied("a removal", web1.remove(&register, revision).await);
        denied(
            "another's facts",
            web1.put(&key("node/web2=test"), b"x", None).await,
        );
        web1.put(&key("node/web1=test"), b"x", None)
            .await
            .expect("its own");
        assert_eq!(
            web2.list(&key("node/")).await.expect("facts").values.len(),
            1
        );
        web1.put(&key("result/web2=test/web1=test/again"), b"x", None)
            .await
            .expect("a result");
        denied(
            "another's results",
            web1.list(&key("result/web2=test/")).await,
        );
        events_are_told_by_their_node_and_read_by_all(&web1, &web2).await;
        stories_are_written_by_their_node_and_read_by_all(&web1, &web2).await;
        let lease = web1.grant().await.expect("a lease");
        // All nodes can read which nodes wait for a slot. Rights are for ranges of keys, and a
        // node's own keys are in as many as there are groups.
        let place = key("slot/any group/web1=test");
        let first = web1.create(&place, b"", &lease).await.expect("a place");
        let second = web1.replace(&place, b"x", first, &lease).await;
        let second = second.expect("a place");
        assert_eq!(
            web2.list(&key("slot/")).await.expect("places").values.len(),
            1
        );
        web2.remove(&place, second).await.expect("released");
        // Each node writes its own beat; any node that detects its death removes its queue position
        // while the beat is unchanged.
        let beat = key("beat/web1=test");
        let at = web1.put(&beat, b"x", None).await.expect("a beat");
        let read = web2.list(&beat).await.expect("another's beat").values;
        assert_eq!(read.len(), 1);
        denied("another's beat", web2.put(&beat, b"x", None).await);
        denied("another's beat", web2.remove(&beat, at).await);
        let place = key("slot/any group/web1=test");
        let there = web1.put(&place, b"x", None).await.expect("a place");
        let early = web2.remove_while(&place, there, (&beat, 0)).await;
        assert_eq!(early, Err(Error::Conflict));
        let evicted = web2.remove_while(&place, there, (&beat, at)).await;
        assert_eq!(evicted, Ok(()));
        // Any node may be a candidate, or an operator's.
        for below in ["lock/db", "move/db/web1=test"] {
            let there = web1.put(&key(below), b"x", None).await.expect(below);
            assert_eq!(web2.list(&key(below)).await.expect(below).values.len(), 1);
            web2.remove(&key(below), there).await.expect(below);
        }
        web1.renew(&lease).await.expect("renewed");
        let mut feed = web1
            .follow(&key("to/web2=test/"), 0)
            .await
            .expect("a stream");
        denied(
            "a watch",
            timeout(TIMES.call, feed.next()).await.expect("an answer"),
        );
        assert_eq!(
            web2.list(&key("to/web2=test/"))
                .await
                .expect("listed")
                .values
                .len(),
            1
        );
        web2.remove(&register, revision).await.expect("removed");
        // A certificate of the CA whose name is not a user's.
        let stranger = stage.etcd("lb1.test").await;
        denied(
            "a stranger's list",
            stranger.list(&key("to/lb1=test/")).await,
        );
        // A new node, and two that are decommissioned, while rights are requested.
        enrolment.enrol(&["web2.test", "lb1.test"]);
        stranger
            .list(&key("to/lb1=test/"))
            .await
            .expect("no stranger any more");
        web2.list(&key("to/web2=test/")).await.expect("as before");
        denied("who is gone", web1.put(&register, b"x", None).await);
    });
    // A loss of the data includes the rights.
    server.kill();
    server.wipe();
    server.run();
    assert!(!enrolment.is_done());
    enrolment.enrol(&["web1.test"]);
}

#[test]
fn nats_keeps_nodes_to_themselves() {
    let values = "{ nodes => ['web1.test', 'web2.test', 'n01.test'], namespaces => ['test'] }";
    let configuration = written("again-backend-nats-rights.epp", values);
    // This node may receive answers, but no messages.
    let configuration = configuration.replace("_INBOX_n01=test.>", "_INBOX_n01=test.*.*");
    let server = Server::configured(Kind::Nats, &configuration);
    run(async {
        let stage = OnServer {
            server: &server,
            namespace: "test".to_owned(),
            is_member: false,
        };
        let (web1, web2) = (stage.nats("web1.test").await, stage.nats("web2.test").await);
        let register = key("to/web2=test/web1=test/again");
        let mut feed = web2
            .follow(&key("to/web2=test/"), 0)
            .await
            .expect("followed");
        let revision = web1.put(&register, b"x", None).await.expect("put");
        assert_eq!(feed.next().await.expect("a change").revision(), revision);
        denied(
            "another's name",
            web1.put(&key("to/web2=test/lb1=test/again"), b"x", None)
                .await,
        );
        denied(
            "another's facts",
            web1.put(&key("node/web2=test"), b"x", None).await,
        );
        web1.put(&key("node/web1=test"), b"x", None)
            .await
            .expect("its own");
        assert_eq!(
            web2.list(&key("node/")).await.expect("facts").values.len(),
            1
        );
        web1.put(&key("result/web2=test/web1=test/again"), b"x", None)
            .await
            .expect("a result");
        denied(
            "another's results",
            web1.list(&key("result/web2=test/")).await,
        );
        denied(
            "a result in another's name",
            web1.put(&key("result/web2=test/lb1=test/again"), b"x", None)
                .await,
        );
        events_are_told_by_their_node_and_read_by_all(&web1, &web2).await;
        stories_are_written_by_their_node_and_read_by_all(&web1, &web2).await;
        // A message that replaces all others of the stream.
        replace_all(&server, "story", "web2=test.x.y").await;
        replace_all(&server, "to", "lb1=test.web2=test.again").await;
        let kept = [
            web1.list(&key("story/")).await,
            web2.list(&key("to/web2=test/")).await,
        ];
        assert_eq!(kept.map(|list| list.expect("listed").values.len()), [2, 1]);
        // Each call gets its own reason.
        let [to, results] = ["to", "result"].map(|room| key(&format!("{room}/web2=test/")));
        let (facts, all) = (key("node/web2=test"), key("node/"));
        let (put, listed, followed, granted) = tokio::join!(
            web1.put(&facts, b"x", None),
            web1.list(&to),
            web1.follow(&results, 0),
            web1.list(&all),
        );
        assert_eq!(granted.expect("facts").values.len(), 1);
        for (error, subject) in [
            (put.err(), "\"$KV.again_test_node.web2=test\""),
            (listed.err(), ".$KV.again_test_to.web2=test.>\""),
            (
                followed.map(drop).err(),
                ".$KV.again_test_result.web2=test.>\"",
            ),
        ] {
            assert!(
                matches!(&error, Some(Error::Denied(why)) if why.ends_with(subject)),
                "{subject}: {error:?}"
            );
        }
        let deaf = stage.nats("n01.test").await;
        let unheard = "Subscription to \"_INBOX_n01=test.*\"";
        web1.put(&key("to/n01=test/web1=test/again"), b"x", None)
            .await
            .expect("put");
        let listed = deaf.list(&key("to/n01=test/")).await;
        assert!(
            matches!(&listed, Err(Error::Denied(why)) if why.ends_with(unheard)),
            "{listed:?}"
        );
        let mut feed = deaf
            .follow(&key("to/n01=test/"), 0)
            .await
            .expect("followed");
        let told = timeout(TIMES.call, feed.next()).await.expect("an answer");
        assert!(
            matches!(&told, Err(Error::Denied(why)) if why.ends_with(unheard)),
            "{told:?}"
        );
        assert_eq!(
            web2.list(&key("to/web2=test/"))
                .await
                .expect("listed")
                .values
                .len(),
            1
        );
        web2.remove(&register, revision).await.expect("removed");
        assert_eq!(
            web2.list(&key("to/web2=test/"))
                .await
                .expect("listed")
                .values
                .len(),
            0
        );
        // A certificate of the CA whose name is not a user's.
        let (node, namespace) = (
            "lb1.test".parse().expect("a certname"),
            "test".parse().expect("a namespace"),
        );
        let stranger = Nats::connect(
            &[server.address()],
            Some(&tls("lb1.test")),
            &node,
            namespace,
            TIMES,
        )
        .await;
        denied("a stranger", stranger.map(drop));
    });
}

/// Publishes a message of web2.test's that makes a server replace all messages of the stream, if
/// that is allowed.
async fn replace_all(server: &Server, room: &str, below: &str) {
    let bucket = format!("again_test_{room}");
    let operator = Operator::of(server, &format!("KV_{bucket}")).await;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Rollup", "all");
    let subject = format!("$KV.{bucket}.{below}");
    operator.publish(subject, headers, b"x").await;
}

#[test]
fn streams_that_let_one_message_replace_all_are_changed() {
    let server = Server::start(Kind::Nats);
    run(async {
        let mut all = Vec::new();
        for room in ["story", "event"] {
            let bucket = format!("again_test_{room}");
            let operator = Operator::of(&server, &format!("KV_{bucket}")).await;
            let made = json!({
                "name": format!("KV_{bucket}"), "subjects": [format!("$KV.{bucket}.>")], "storage": "file", "discard": "new",
                "max_msgs_per_subject": 1, "allow_direct": true, "deny_delete": true, "allow_rollup_hdrs": true,
                "max_bytes": 12_345_678, "description": "x", "compression": "s2", "metadata": { "owner": "x" },
            });
            let mut made = operator.ask("STREAM.CREATE", "", made).await;
            assert_eq!(made["config"]["allow_rollup_hdrs"], true, "{made:#}");
            made["config"]["allow_rollup_hdrs"] = false.into();
            all.push((room, made));
        }
        let stage = OnServer {
            server: &server,
            namespace: "test".to_owned(),
            is_member: false,
        };
        let web1 = stage.nats("web1.test").await;
        for (room, made) in all {
            web1.put(&key(&format!("{room}/web1=test/x/y")), b"x", None)
                .await
                .expect("put");
            replace_all(&server, room, "web2=test.x.y").await;
            let there = web1.list(&key(&format!("{room}/web1=test/"))).await;
            assert_eq!(there.expect("listed").values.len(), 1, "{room}");
            let operator = Operator::of(&server, &format!("KV_again_test_{room}")).await;
            let found = operator.ask("STREAM.INFO", "", json!({})).await;
            // All other settings that this server knows are unchanged.
            assert_eq!(found["config"], made["config"]);
        }
    });
}

/// Connects to a server with these certificates, and lists.
pub async fn connect_and_list(kind: Kind, address: String, with: &Tls) -> Result<(), Error> {
    match kind {
        Kind::Etcd => {
            let client = Etcd::new(&[address], Some(with), TIMES).await?;
            client.list(&key("to/")).await.map(drop)
        }
        Kind::Nats => {
            let node = "web1.test".parse().expect("a certname");
            let namespace = "test".parse().expect("a namespace");
            let servers = [address];
            let client = Nats::connect(&servers, Some(with), &node, namespace, TIMES);
            client.await.map(drop)
        }
    }
}

/// Another CA of the same name: neither side trusts the other. A server at an address that is not
/// in its certificate is not trusted either.
#[test]
fn a_foreign_certificate_does_not_get_in() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        let ours = tls("web1.test");
        let mut stranger = tls("foreign");
        stranger.ca.clone_from(&ours.ca);
        let mut deceived = tls("web1.test");
        deceived.ca = Ca::get().read("foreign-ca.pem");
        let address = server.address();
        let elsewhere = address.replace("localhost", "127.0.0.1");
        run(async {
            assert_eq!(connect_and_list(kind, address.clone(), &ours).await, Ok(()));
            for (who, address, with) in [
                ("a stranger", &address, &stranger),
                ("a stranger's server", &address, &deceived),
                ("a server elsewhere", &elsewhere, &ours),
            ] {
                let answer = connect_and_list(kind, address.clone(), with).await;
                let is_refused = matches!(answer, Err(Error::Unreachable(_)));
                assert!(is_refused, "{kind:?}, {who}: {answer:?}");
            }
        });
    }
}
