//! Faults of the backend: each trigger that was sent is accepted once when the fault is over.

use std::os::unix::fs::MetadataExt;

use again_fleet::ask::Reason;

use serde_json::json;
use tokio::runtime::Builder;

use crate::node::{Node, request, until};
use crate::operator::Operator;
use crate::servers::{Kind, Server};
use crate::straight::Straight;

/// The old backend has seen many revisions, for both kinds of backend; those of the new one begin
/// at one.
#[test]
fn a_backend_whose_revisions_begin_anew_is_watched_from_its_beginning() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    for node in [&web1, &lb1] {
        node.is_linked(true);
    }
    let mut fired = Vec::new();
    for round in 0..4 {
        let one = request("again", &["lb1.test"]);
        fired.push(one.id.clone());
        if round == 2 {
            server.kill();
            server.wipe();
            for node in [&web1, &lb1] {
                node.is_linked(false);
            }
            assert_eq!(web1.fire(&one), crate::KEPT);
            server.run();
        } else {
            web1.fire(&one);
        }
        lb1.runs_once(&one.id);
        until("an empty outbox", || web1.how().outbox.triggers == 0);
    }
    assert_eq!(lb1.ran(), fired);
}

/// Changes that the watches have not seen yet are compacted away, and so are those that they have
/// seen. In the end so much is written that etcd has to resume a watch at a compacted revision.
#[test]
fn a_compaction_hides_nothing() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    let straight = Straight::at(&server, "web2.test");
    for node in [&web1, &lb1] {
        node.is_linked(true);
    }
    let compact = || {
        let revision = straight
            .put("to/db1=test/web2=test/again", b"x")
            .expect("put");
        server.etcdctl(
            "web2.test",
            &["compact", "--physical", &revision.to_string()],
        );
    };
    // The connection holds two megabytes for a client that does not read, and the server another
    // 128 changes for each watch.
    let behind = || {
        for (count, length) in [(4, 1_000_000), (200, 1)] {
            straight.put_together("to/lb1=test/web2=test/again", &vec![vec![0; length]; count]);
        }
    };
    let met = || {
        let lost = "etcd is not reached: the changes were compacted away";
        lb1.log().contains(lost)
    };
    let mut fired = Vec::new();
    // A list that is due at that moment finds it all before the watch does.
    while fired.len() < 2 || !met() {
        assert!(fired.len() < 10, "the watch never met it");
        compact();
        lb1.signal("-STOP");
        if fired.len() >= 2 {
            behind();
        }
        let one = request("again", &["lb1.test"]);
        web1.fire(&one);
        let stands = || straight.list("to/lb1=test/web1=test/");
        until("its register", || !stands().is_empty());
        compact();
        lb1.signal("-CONT");
        lb1.runs_once(&one.id);
        until("an empty outbox", || web1.how().outbox.triggers == 0);
        fired.push(one.id);
    }
    assert_eq!(lb1.ran(), fired);
}

/// The operator purges the changes up to the trigger that a stopped node was not sent yet.
#[test]
fn a_purge_hides_nothing() {
    let server = Server::start(Kind::Nats);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    let straight = Straight::at(&server, "web2.test");
    for node in [&web1, &lb1] {
        node.is_linked(true);
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let operator = runtime.block_on(Operator::of(&server, "KV_again_test_to"));
    lb1.signal("-STOP");
    // The server sends two megabytes until it is answered, and twice as much after an answer that
    // came just before.
    for _ in 0..12 {
        let put = straight.put("to/lb1=test/web2=test/again", &[0; 900_000]);
        put.expect("put");
    }
    let one = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&one), crate::ACROSS_NATS);
    let stands = straight.list("to/lb1=test/web1=test/").remove(0).revision;
    let (sent, next) = runtime.block_on(async {
        let feed = operator.feed("$KV.again_test_to.lb1=test.>").await;
        operator
            .ask("STREAM.PURGE", "", json!({ "seq": stands }))
            .await;
        let info = operator.ask("STREAM.INFO", "", json!({})).await;
        (
            feed["delivered"]["stream_seq"].as_u64(),
            info["state"]["first_seq"].as_u64(),
        )
    });
    assert!(
        sent.is_some_and(|sent| sent + 1 < stands),
        "{sent:?} was sent before {stands}"
    );
    assert_eq!(next, Some(stands));
    lb1.signal("-CONT");
    lb1.runs_once(&one.id);
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    let two = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&two), crate::ACROSS_NATS);
    lb1.runs_once(&two.id);
    assert_eq!(lb1.ran(), [one.id, two.id]);
}

/// Triggers wait while the backend is full, and the connection stays.
#[test]
fn full_backend_is_named_until_it_has_room() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    for node in [&web1, &lb1] {
        node.is_linked(true);
    }
    server.raise_no_space();
    let one = request("again", &["lb1.test"]);
    web1.fire(&one);
    let mut seen = None;
    until("what is wrong", || {
        let how = web1.how();
        assert!(how.failures.is_empty() || how.link.is_up, "{how:?}");
        let mut failures = how.failures.into_iter();
        seen = failures.find(|one| one.reason == Reason::Room);
        seen.is_some()
    });
    let what = seen.map(|one| one.what).unwrap_or_default();
    assert!(what.contains("database space exceeded"), "{what}");
    server.etcdctl("web1.test", &["alarm", "disarm"]);
    lb1.runs_once(&one.id);
    until("an end of it", || web1.how().failures.is_empty());
}

/// Kills one of three members, and then the others, including the leader.
fn one_of_three(kind: Kind) {
    let servers = Server::cluster(kind);
    let ports = servers.iter().map(|one| format!("localhost:{}", one.port));
    let endpoints = format!("endpoints = {:?}", ports.collect::<Vec<_>>());
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| {
        let node = Node::off(name, &servers[0]);
        node.set_also(&endpoints);
        node.take();
        node.start();
        node
    });
    for node in [&web1, &lb1] {
        node.is_linked(true);
    }
    let mut fired = Vec::new();
    // A NATS member takes a long time until it can replace another one.
    let dying = if kind == Kind::Etcd { 3 } else { 1 };
    for server in &servers[..dying] {
        server.kill();
        let one = request("again", &["lb1.test"]);
        fired.push(one.id.clone());
        let said = web1.fire(&one);
        assert!(
            ["delivered lb1.test", "kept lb1.test"].contains(&&*said[0]),
            "{said:?}"
        );
        lb1.runs_once(&one.id);
        server.run();
        until("an empty outbox", || web1.how().outbox.triggers == 0);
    }
    assert_eq!(lb1.ran(), fired);
}

#[test]
fn any_of_three_may_die_with_etcd() {
    one_of_three(Kind::Etcd);
}

#[test]
fn any_of_three_may_die_with_nats() {
    one_of_three(Kind::Nats);
}

/// `journalctl -p warning` shows the warnings and errors. On a pipe and in a file a line has no
/// level.
#[test]
fn service_gives_lines_a_level_where_systemd_passes_them_to_the_journal() {
    let server = Server::start(Kind::Etcd);
    let [journal, file] = ["web1.test", "web2.test"].map(|name| Node::off(name, &server));
    journal.write("errors", "");
    let errors = std::fs::metadata(journal.path("errors")).expect("it is there");
    let stream = |inode| format!("JOURNAL_STREAM={}:{inode}", errors.dev());
    journal.start_in(&[&stream(errors.ino())]);
    file.start_in(&[&stream(errors.ino() + 1)]);
    for (node, [good, bad]) in [(&journal, ["<6>", "<4>"]), (&file, ["", ""])] {
        let says = |what: &str| {
            until(&format!("{what:?} in {}", node.log()), || {
                node.log().lines().any(|line| line.starts_with(what))
            });
        };
        node.is_linked(true);
        says(&format!("{good}again-fleet: etcd is reached"));
        server.kill();
        says(&format!("{bad}again-fleet: etcd is not reached: "));
        server.run();
    }
}
