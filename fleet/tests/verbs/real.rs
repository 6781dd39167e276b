//! Commands with real services, a real etcd, the real `again` and real Puppet.

use std::fs;
use std::process::{Command, Output};

use again_fleet::wire::lineage::{Cause, Lineage, Origin};
use again_fleet::wire::name::Id;
use again_fleet::wire::trigger::{Ask, Trigger};
use serde_json::{Value, json};

use crate::fired::{by, trigger};
use crate::name;
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use crate::whole::{Node, until};

/// Exit status, standard output and standard error of a command.
pub fn done(mut command: Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it is there");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        status.code().expect("no signal"),
        text(stdout),
        text(stderr),
    )
}

/// Standard output of a command that must succeed.
pub fn well(node: &Node, words: &[&str]) -> String {
    let (status, out, err) = done(node.command(words));
    assert_eq!((status, err.as_str()), (0, ""), "{words:?}: {out}");
    out
}

#[test]
fn what_stands_in_the_backend_is_what_was_typed() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    let straight = Straight::at(&server, "web1.test");
    web1.is_linked(true);
    let words = [
        "trigger",
        "--to",
        "lb2.test",
        "lb1.test",
        "--to=lb2.test",
        "--name",
        "refresh load balancers",
        "--delta=2m",
        "--ttl",
        "2h",
    ];
    let out = well(&web1, &words);
    let one = straight.triggers("lb1.test").remove(0);
    let said = format!(
        "again-fleet: delivered to etcd for 2 nodes: lb1.test, lb2.test (id {})\n",
        one.id
    );
    assert_eq!(out, said);
    assert_eq!(straight.triggers("lb2.test")[0].id, one.id);
    let Trigger {
        delta, ttl, ask, ..
    } = one;
    assert_eq!((delta, ttl, ask), (120_000, 7_200_000, Ask::Run));
    assert_eq!(
        (one.name.as_str(), one.targets),
        ("refresh load balancers", 2)
    );
    let origin = Origin {
        id: one.id,
        cause: Cause::Person,
        path: vec![name("web1.test")],
    };
    assert_eq!(one.lineage.0, [origin]);
    // Options that were not given come from the settings or the defaults.
    web1.set_also("ttl = '10m'");
    well(&web1, &["trigger", "--to", "db1.test"]);
    let other = straight.triggers("db1.test").remove(0);
    assert_eq!((other.delta, other.ttl), (0, 600_000));
    assert_eq!(other.name.as_str(), "again");
}

/// A run that a trigger has started carries on the trigger's origins; the environment cannot forge
/// them. A noop run sends nothing.
#[test]
fn the_lineage_is_that_of_the_run() {
    const MANIFEST: &str = "
exec { '/bin/true': notify => Exec['fire'], noop => false }
exec { 'fire':
  command => 'FLEET trigger --to lb1.test', environment => ['AGAIN_ORIGIN={}'],
  refreshonly => true, logoutput => true, noop => false,
}
";
    let server = Server::start(Kind::Etcd);
    let web1 = Node::off("web1.test", &server);
    web1.runs_puppet(MANIFEST);
    web1.set(&server);
    web1.take();
    web1.start();
    let web2 = Node::new("web2.test", &server);
    let straight = Straight::at(&server, "web1.test");
    for node in [&web1, &web2] {
        node.is_linked(true);
    }
    well(&web2, &["trigger", "--to", "web1.test"]);
    until("its trigger", || !straight.triggers("lb1.test").is_empty());
    let one = straight.triggers("lb1.test").remove(0);
    let [origin] = &one.lineage.0[..] else {
        panic!("{one:?}")
    };
    assert_eq!(origin.cause, Cause::Person);
    assert_eq!(origin.path, [name("web2.test"), name("web1.test")]);
    assert_ne!(origin.id, one.id);
    // A run by hand that is noop except for the resources that send triggers.
    let mut puppet = Command::new("puppet");
    puppet.args(&web1.puppet()[1..]).arg("--noop");
    puppet.env("AGAIN_CONFIG", web1.path("again.toml"));
    let (status, out, err) = done(puppet);
    assert_eq!(status, 0, "{out}{err}");
    assert!(
        out.contains("not fired: a noop run changes nothing, on no node (--noop)"),
        "{out}{err}"
    );
    assert_eq!(straight.triggers("lb1.test")[0].id, one.id);
}

#[test]
fn what_is_kept_is_said_and_so_is_until_when() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    server.kill();
    until("the loss", || !web1.how().link.is_up);
    let out = well(&web1, &["trigger", "--to", "lb1.test"]);
    let begin = "again-fleet: kept: etcd cannot be reached (";
    assert!(out.starts_with(begin), "{out}");
    assert!(
        out.contains("); sent until ") && out.contains(" to 1 node: lb1.test (id "),
        "{out}"
    );
    let out = well(&web1, &["trigger", "--to", "lb1.test", "--json"]);
    let said: Value = serde_json::from_str(&out).expect("JSON");
    assert!(said["backend_away"].is_string(), "{said:#}");
    assert_eq!(said["targets"][0]["fired"], "kept");
}

/// A trigger that has reached the hop limit is run, but the triggers of its run are refused.
#[test]
fn what_has_come_too_far_is_not_fired_and_the_circle_is_named() {
    const FIRE: &str = "#!/bin/sh
FLEET trigger --to lb1.test web2.test >'DIR/said.new' 2>&1
echo \"ends with $?\" >>'DIR/said.new'
mv 'DIR/said.new' 'DIR/said'
";
    let server = Server::start(Kind::Etcd);
    let web1 = Node::off("web1.test", &server);
    web1.program("fire", FIRE);
    web1.runs_this(&[&web1.at("fire")]);
    web1.set(&server);
    // With each hop the target waits longer.
    web1.set_also("hop_limit = 2");
    web1.take();
    web1.start();
    web1.is_linked(true);
    let straight = Straight::at(&server, "web2.test");
    // The path alternates between these two nodes.
    let origin = |bits: u128, hops: usize| Origin {
        id: Id::from_bits(bits),
        cause: Cause::Refresh,
        path: (0..hops)
            .map(|n| name(["web2.test", "web1.test"][(hops - 1 - n) % 2]))
            .collect(),
    };
    let told = |number: u64, origins: Vec<Origin>| {
        let mut one = Trigger {
            target: name("web1.test"),
            lineage: Lineage(origins),
            ..trigger("web2.test")
        };
        one.number += number;
        let bytes = by("web2.test", &one);
        straight
            .put("to/web1=test/web2=test/again", &bytes)
            .expect("put");
        let path = web1.path("said");
        until("its words", || path.exists());
        let said = fs::read_to_string(&path).expect("its words");
        fs::remove_file(path).expect("removed");
        said
    };
    let circle = "over 2 hops: web2.test -> web1.test -> web2.test ...";
    let said = told(0, vec![origin(1, 2)]);
    assert!(
        said.starts_with("again-fleet: error: not fired for 1 node: lb1.test: ")
            && said.contains(circle)
            && said.ends_with("\nends with 1\n"),
        "{said}"
    );
    assert!(straight.triggers("lb1.test").is_empty());
    // One origin that has reached the limit does not stop another.
    let said = told(1, vec![origin(1, 2), origin(2, 1)]);
    assert!(
        said.contains("again-fleet: warning: not passed on: over 2 hops: ")
            && said.contains("again-fleet: delivered to etcd for 2 nodes: ")
            && said.ends_with("\nends with 0\n"),
        "{said}"
    );
    let passed = straight.triggers("lb1.test").remove(0).lineage.0;
    assert_eq!((passed.len(), passed[0].hops()), (1, 2));
    assert_eq!(passed[0].id, Id::from_bits(2));
}

#[test]
fn who_waits_sees_how_each_run_ends_and_a_table() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    let runs = |name, manifest| {
        let node = Node::off(name, &server);
        node.runs_puppet(manifest);
        node.set(&server);
        node.take();
        node.start();
        node
    };
    let lb1 = runs("lb1.test", "exec { 'DIR/note': }");
    let web2 = runs(
        "web2.test",
        "exec { 'DIR/note': } -> exec { '/bin/false': }",
    );
    for node in [&web1, &web2, &lb1] {
        node.is_linked(true);
    }
    let words = ["trigger", "--wait", "--to", "lb1.test", "web2.test"];
    let (status, out, err) = done(web1.command(&words));
    assert_eq!((status, err.as_str()), (1, ""), "{out}");
    for line in [
        "again-fleet: lb1.test: changed",
        "again-fleet: web2.test: failed",
        "  lb1.test   changed",
        "  web2.test  failed",
    ] {
        assert!(
            out.lines().any(|one| one.starts_with(line)),
            "no {line}: {out}"
        );
    }
    let last = out.lines().last().expect("a line");
    assert!(
        last.starts_with("again-fleet: 1 of 2 nodes done in ")
            && last.ends_with(": 1 changed, 1 failed"),
        "{last}"
    );
    let (status, out, err) = done(web1.command(&[&words[..], &["--json"]].concat()));
    assert_eq!((status, err.as_str()), (1, ""), "{out}");
    let mut all: Value = serde_json::from_str(&out).expect("JSON");
    for target in all["targets"].as_array_mut().expect("targets") {
        assert!(target["why"].take().is_string(), "{target}");
    }
    assert_eq!(all["id"].take().as_str().map(str::len), Some(32));
    assert!(all["until"].take().is_string());
    assert_eq!(
        all,
        json!({
            "schema": 1, "version": env!("CARGO_PKG_VERSION"), "id": null, "name": "again", "backend": "etcd",
            "backend_away": null, "until": null, "not_passed_on": [], "away": [], "selection": null,
            "targets": [
                {"node": "lb1.test", "fired": "delivered", "outcome": "changed", "why": null},
                {"node": "web2.test", "fired": "delivered", "outcome": "failed", "why": null},
            ],
        })
    );
    assert_eq!((lb1.runs().len(), web2.runs().len()), (2, 2));
}

/// A command waits no longer than the ttl, and a disconnected node does not delay a cancellation.
#[test]
fn a_node_that_is_away_holds_nobody_up() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = [
        Node::new("web1.test", &server),
        Node::off("lb1.test", &server),
    ];
    web1.is_linked(true);
    let words = ["trigger", "--to", "lb1.test", "--wait", "--ttl=2s"];
    let (status, out, err) = done(web1.command(&words));
    assert_eq!((status, err.as_str()), (75, ""), "{out}");
    assert!(out.contains("again-fleet: 0 of 1 node done in "), "{out}");
    let out = well(&web1, &["trigger", "--to", "lb1.test", "--json"]);
    let said: Value = serde_json::from_str(&out).expect("JSON");
    let id = said["id"].as_str().expect("an id");
    let (status, out, _) = done(web1.command(&["cancel", id, "--json"]));
    let said: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (status, &said["open"]),
        (75, &json!(["lb1.test"])),
        "{said:#}"
    );
    lb1.take();
    lb1.start();
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    let (status, out, err) = done(web1.command(&["cancel", "--to", "lb1.test"]));
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(
        err.contains("no trigger for lb1.test is on its way"),
        "{err}"
    );
    assert!(lb1.runs().is_empty());
}
