//! Runs that send triggers to other nodes: in a circle, which the hop limit ends, and in a chain,
//! which reaches its end.

use std::fs;
use std::process::Command;

use again_fleet::wire::lineage::Origin;
use again_fleet::wire::name::Node as Name;

use crate::node::{Node, request, until};
use crate::servers::{Kind, Server};

/// Hop limit. With each hop a target waits longer, up to two seconds for three hops.
const HOPS: &str = "hop_limit = 3";

/// Script of a run: it notes the run, and sends a trigger to the next node. It fails if that fails.
const FIRE: &str = "#!/bin/sh
DIR/note
FLEET trigger --to NEXT >>'DIR/fired' 2>&1
";

/// Manifest with the same effect, in which something changes in every run.
const MANIFEST: &str = "
exec { 'DIR/note': notify => Exec['fire'] }
exec { 'fire': command => 'FLEET trigger --to NEXT', refreshonly => true, logoutput => true }
";

/// Manifest whose first run holds up every rerun of the node. Each later run requests one of its
/// own, by which `again` knows that it took place, and sends a trigger.
const BUSY: &str = "
exec { 'DIR/note': notify => Exec['DIR/job'] }
exec { 'DIR/job': refreshonly => true, logoutput => true, timeout => 0 }
";
const JOB: &str = "#!/bin/sh
if mkdir DIR/busy 2>/dev/null; then
  while [ -e DIR/hold ]; do sleep 0.05; done
else
  AGAIN run --name own --delta 1h && FLEET trigger --to NEXT
fi
";

/// Returns a node whose runs send a trigger to the next one.
fn link(name: &'static str, next: &str, server: &Server, by_puppet: bool, more: &[&str]) -> Node {
    let node = Node::off(name, server);
    if by_puppet {
        node.runs_puppet(&MANIFEST.replace("NEXT", next));
    } else {
        node.program("fire", &FIRE.replace("NEXT", next));
        node.runs_this(&[&node.at("fire")]);
    }
    node.set(server);
    more.iter().for_each(|line| node.set_also(line));
    node.take();
    node.start();
    node.is_linked(true);
    node
}

/// Paths of the origins of a node's runs, in order.
fn ways(node: &Node) -> Vec<String> {
    let way = |origin: &Origin| {
        let names = origin.path.iter().map(Name::as_str);
        names.collect::<Vec<_>>().join(" ").replace(".test", "")
    };
    let of = |run: crate::node::Run| run.origins.0.iter().map(way).collect::<Vec<_>>().join(", ");
    node.runs().into_iter().map(of).collect()
}

/// Output of the node's runs, as `again` keeps it, and of the commands that sent triggers.
fn said(node: &Node) -> String {
    let log = node.again(&["log"]).stdout;
    let fired = fs::read_to_string(node.path("fired")).unwrap_or_default();
    String::from_utf8_lossy(&log).into_owned() + &fired
}

/// Waits until no trigger is under way or pending at any of these nodes.
fn rest(nodes: &[&Node]) {
    until("rest", || {
        nodes.iter().all(|node| {
            let how = node.how();
            how.outbox.triggers == 0 && node.again(&["status"]).status.code() == Some(3)
        })
    });
}

/// Waits until each of these nodes has logged the circle, as the node reports to which it sent a
/// trigger.
fn all_are_told(nodes: &[&Node], circle: &str) {
    for node in nodes {
        until("the circle in its log", || node.log().contains(circle));
    }
}

/// The nodes earlier in the circle log it, too.
#[test]
fn a_ring_of_two_ends_and_is_named() {
    let server = Server::start(Kind::Etcd);
    let web1 = link("web1.test", "web2.test", &server, true, &[HOPS]);
    let web2 = link("web2.test", "web1.test", &server, true, &[HOPS]);
    let circle = "over 3 hops: web1.test -> web2.test -> web1.test ...";
    web1.fire(&request("again", &["web2.test"]));
    until("its last run", || web2.runs().len() == 2);
    rest(&[&web1, &web2]);
    assert!(said(&web2).contains(circle), "{}", said(&web2));
    assert_eq!(ways(&web2), ["web1", "web1 web2 web1"]);
    assert_eq!(ways(&web1), ["web1 web2"]);
    // The resource has failed, and so has the run. The executor may be the one that records it.
    until("both ends", || web2.history("ended").len() == 2);
    let last = web2.history("ended").pop().expect("an end");
    assert_eq!(last["outcome"], "failed", "{last:#}");
    assert!(!said(&web1).contains("over 3 hops"), "{}", said(&web1));
    all_are_told(&[&web1, &web2], circle);
    // Another circle takes its own path, to the same end.
    web2.fire(&request("again", &["web1.test"]));
    let circle = "over 3 hops: web2.test -> web1.test -> web2.test ...";
    until("its last run", || web1.runs().len() == 3);
    rest(&[&web1, &web2]);
    assert!(said(&web1).contains(circle), "{}", said(&web1));
    assert_eq!((web1.runs().len(), web2.runs().len()), (3, 3));
}

#[test]
fn a_ring_of_three_ends_and_is_named() {
    let server = Server::start(Kind::Etcd);
    let names = ["n01.test", "n02.test", "n03.test"];
    let nodes = [0, 1, 2].map(|n| link(names[n], names[(n + 1) % 3], &server, false, &[HOPS]));
    nodes[0].fire(&request("again", &["n02.test"]));
    let circle = "over 3 hops: n02.test -> n03.test -> n01.test -> n02.test ...";
    let [n01, n02, n03] = &nodes;
    until("the circle", || said(n01).contains("over 3 hops"));
    rest(&[n01, n02, n03]);
    // The path began at the first node, which comes last.
    assert_eq!(ways(n02), ["n01"]);
    assert_eq!(ways(n03), ["n01 n02"]);
    assert_eq!(ways(n01), ["n01 n02 n03"]);
    assert!(said(n01).contains(circle), "{}", said(n01));
    all_are_told(&[n03, n02, n01], circle);
}

/// A run that cron starts carries on the origins of the triggers that it satisfies. That it has
/// satisfied them is published when nothing holds up the node's own reruns any more, and the circle
/// with them.
#[test]
fn a_ring_ends_also_where_cron_is_always_faster() {
    let server = Server::start(Kind::Etcd);
    let [web1, web2] =
        [("web1.test", "web2.test"), ("web2.test", "web1.test")].map(|(name, next)| {
            let node = Node::off(name, &server);
            node.program("job", &JOB.replace("NEXT", next));
            node.runs_puppet(BUSY);
            node.set(&server);
            node.set_also(HOPS);
            node.take();
            node.start();
            node.is_linked(true);
            node.write("hold", "");
            let words = node.puppet();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let asked = node.again(&[&["run", "--name", "busy", "--"], &words[..]].concat());
            assert!(asked.status.success(), "{asked:?}");
            until("its first run", || node.path("busy").exists());
            node
        });
    web1.fire(&request("again", &["web2.test"]));
    let cron = |node: &Node, triggers: usize| {
        until("its trigger", || {
            node.log().matches("taken: 'again' of ").count() == triggers
        });
        let words = node.puppet();
        let mut command = Command::new(&words[0]);
        let command = command.args(&words[1..]);
        let done = command
            .env("AGAIN_CONFIG", node.path("again.toml"))
            .output();
        let done = done.expect("puppet");
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    };
    let words = [cron(&web2, 1), cron(&web1, 1), cron(&web2, 2)].concat();
    let circle = "over 3 hops: web1.test -> web2.test -> web1.test ...";
    assert!(words.contains(circle), "{words}");
    assert_eq!(ways(&web2), ["", "web1", "web1 web2 web1"]);
    assert_eq!(ways(&web1), ["", "web1 web2"]);
    for node in [&web1, &web2] {
        assert!(!node.log().contains(circle), "{}", node.log());
        fs::remove_file(node.path("hold")).expect("removed");
    }
    for node in [&web1, &web2] {
        until("the circle in its log", || node.log().contains(circle));
        until("its timer's end", || !node.history("satisfied").is_empty());
    }
    assert_eq!((web1.runs().len(), web2.runs().len()), (2, 3));
}

#[test]
fn a_way_of_four_hops_is_gone_to_its_end() {
    let server = Server::start(Kind::Etcd);
    let names = ["n01.test", "n02.test", "n03.test", "n04.test", "n05.test"];
    let between = [1, 2, 3].map(|n| link(names[n], names[n + 1], &server, false, &[]));
    let (first, last) = (Node::new(names[0], &server), Node::new(names[4], &server));
    first.is_linked(true);
    last.is_linked(true);
    first.fire(&request("again", &["n02.test"]));
    until("the last run", || last.runs().len() == 1);
    assert_eq!(ways(&last), ["n01 n02 n03 n04"]);
    let [n02, n03, n04] = &between;
    rest(&[&first, n02, n03, n04, &last]);
    assert!(first.runs().is_empty());
    for (node, way) in [
        (n02, "n01"),
        (n03, "n01 n02"),
        (n04, "n01 n02 n03"),
        (&last, "n01 n02 n03 n04"),
    ] {
        assert_eq!(ways(node), [way]);
    }
}

/// Each origin keeps its own path, and all of them are carried on in one trigger.
#[test]
fn several_origins_have_one_run_and_go_on_together() {
    let server = Server::start(Kind::Etcd);
    let lb1 = link("lb1.test", "n02.test", &server, false, &[]);
    let [web1, web2, n02] =
        ["web1.test", "web2.test", "n02.test"].map(|name| Node::new(name, &server));
    for node in [&web1, &web2, &n02] {
        node.is_linked(true);
    }
    let n01 = link("n01.test", "lb1.test", &server, false, &[]);
    // All of the triggers come while lb1 is busy.
    lb1.program(
        "fire",
        &format!(
            "{}while [ -e DIR/hold ]; do sleep 0.05; done\n",
            FIRE.replace("NEXT", "n02.test")
        ),
    );
    lb1.write("hold", "");
    web1.fire(&request("first", &["lb1.test"]));
    until("its run", || lb1.runs().len() == 1);
    web1.fire(&request("again", &["n01.test"]));
    web2.fire(&request("again", &["lb1.test"]));
    web1.fire(&request("again", &["lb1.test"]));
    until("all three", || {
        lb1.log().matches("taken: 'again' of ").count() == 3
    });
    fs::remove_file(lb1.path("hold")).expect("removed");
    rest(&[&web1, &web2, &n01, &lb1, &n02]);
    let sorted = |ways: &str| {
        let mut ways: Vec<String> = ways.split(", ").map(str::to_owned).collect();
        ways.sort();
        ways
    };
    let [_, all] = &ways(&lb1)[..] else {
        panic!("{:?}", ways(&lb1))
    };
    assert_eq!(sorted(all), ["web1", "web1 n01", "web2"]);
    let last = ways(&n02).pop().expect("a run");
    // The origins of the first run may be carried on with them.
    for way in ["web1 lb1", "web1 n01 lb1", "web2 lb1"] {
        assert!(sorted(&last).iter().any(|one| one == way), "{last}");
    }
}
