//! Rules: events on one node start a run on another one.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use again_fleet::wire::event::Batch;
use again_fleet::wire::lineage::{Cause, Origin};
use again_fleet::wire::name::Id;

use crate::fired::sealed_as;
use crate::many::most_memory;
use crate::node::{Node, until};
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use crate::told::{batch, inventory, leave};

const UP: &str = "name = 'up'\nresource = 'Service[httpd]'\n";

/// Returns lb1 with this rule.
fn node(server: &Server, rule: &str) -> Node {
    let node = Node::off("lb1.test", server);
    fs::create_dir(node.path("rules")).expect("made");
    fs::write(node.path("rules/one.toml"), rule).expect("written");
    node.set_also(&format!("rules_dir = {:?}", node.path("rules")));
    node.take();
    node.start();
    node.is_linked(true);
    node
}

fn tell(straight: &Straight, told: &Batch) {
    let name = told.node.as_str().replace('.', "=");
    let key = format!("event/{name}/{}/{:020}", told.run, told.first());
    let bytes = sealed_as(told.node.as_str(), told);
    straight.put(&key, &bytes).expect("put");
}

fn one_run_for_one_run(kind: Kind) {
    let server = Server::start(kind);
    let node = node(&server, UP);
    let straight = Straight::at(&server, "web1.test");
    tell(&straight, &batch("web1.test", 1, &[1, 2, 3]));
    until("its run", || node.runs().len() == 1);
    let origins = &node.runs()[0].origins.0;
    assert_eq!(origins[0].cause, Cause::Event);
    assert_eq!(origins[0].path, ["web1.test".parse().expect("a certname")]);
    // Neither an event of lb1 itself nor a restart runs it again; the next run of web1 does.
    tell(&straight, &batch("lb1.test", 2, &[1]));
    node.kill();
    node.start();
    node.is_linked(true);
    tell(&straight, &batch("web1.test", 3, &[1]));
    until("the next run", || node.runs().len() == 2);
    assert_eq!(node.ran().len(), 2, "{}", node.log());
    assert_eq!(straight.list("event/").len(), 3, "events are there for all");
    assert!(straight.list("result/").is_empty(), "nobody fired");
    until("both stories", || straight.list("story/").len() == 2);
}

#[test]
fn an_event_has_another_node_run_once_over_etcd() {
    one_run_for_one_run(Kind::Etcd);
}

#[test]
fn an_event_has_another_node_run_once_over_nats() {
    one_run_for_one_run(Kind::Nats);
}

/// The service publishes the events that a run of its own node has left, reads them from the
/// backend and hands them over. Whoever has the node's certificate can sign such events too.
#[test]
fn own_event_starts_a_run_if_a_run_has_left_it() {
    let server = Server::start(Kind::Etcd);
    let node = Node::off("lb1.test", &server);
    let [rules, spool] = ["rules", "spool"].map(|name| node.path(name));
    for path in [&rules, &spool] {
        fs::create_dir_all(path).expect("made");
    }
    fs::write(rules.join("one.toml"), format!("{UP}own = true\n")).expect("written");
    node.set_also(&format!("rules_dir = {rules:?}"));
    node.take();
    node.start();
    node.is_linked(true);
    let straight = Straight::at(&server, "web1.test");
    tell(&straight, &batch("lb1.test", 1, &[1]));
    until("a refusal", || {
        node.log().contains("no run has left event 1 of run")
    });
    leave(&spool, &batch("lb1.test", 2, &[1]));
    let wakeup = UnixDatagram::unbound().expect("a socket");
    wakeup.send_to(b"!", node.path("run/events")).expect("rung");
    until("its run", || node.runs().len() == 1);
    let origins = &node.runs()[0].origins.0;
    assert_eq!(origins[0].path, ["lb1.test".parse().expect("a certname")]);
    assert_eq!(node.ran().len(), 1, "{}", node.log());
}

#[test]
fn what_comes_while_a_run_goes_on_shares_the_next_one() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server, UP);
    let straight = Straight::at(&server, "web1.test");
    node.write("hold", "");
    tell(&straight, &batch("web1.test", 1, &[1]));
    until("its run", || node.runs().len() == 1);
    for run in 2..=5 {
        tell(&straight, &batch("web1.test", run, &[1, 2]));
    }
    until("all of them", || {
        node.log().matches("taken: 'rule/up/").count() >= 5
    });
    fs::remove_file(node.path("hold")).expect("removed");
    until("the other run", || node.ran().len() == 5);
    assert_eq!(node.runs().len(), 2);
}

/// The role that the event's node has published, under its own signature, decides.
#[test]
fn where_a_rule_says_so_the_role_of_the_node_decides() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server, &format!("{UP}where = ['role=web']\n"));
    let straight = Straight::at(&server, "web1.test");
    for (name, role) in [("web1.test", "web"), ("web2.test", "db")] {
        let key = format!("node/{}", name.replace('.', "="));
        let bytes = sealed_as(name, &inventory(name, role));
        straight.put(&key, &bytes).expect("put");
    }
    tell(&straight, &batch("web2.test", 1, &[1]));
    tell(&straight, &batch("web1.test", 2, &[1]));
    until("its run", || node.runs().len() == 1);
    // Both events are of the same moment, so a second trigger would share this run.
    let origins = &node.runs()[0].origins.0;
    let web1 = ["web1.test".parse().expect("a certname")];
    assert!(
        origins.iter().all(|origin| origin.path == web1),
        "{origins:?}"
    );
    // Another node cannot publish the role for this one.
    let key = "node/web2=test";
    let forged = sealed_as("web1.test", &inventory("web2.test", "web"));
    straight.put(key, &forged).expect("put");
    tell(&straight, &batch("web2.test", 3, &[1]));
    until("a word of it", || {
        node.log().contains("node/web2=test is ignored")
    });
    assert_eq!(node.runs().len(), 1, "{}", node.log());
}

#[test]
fn a_batch_counts_under_its_own_key_only() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server, UP);
    let straight = Straight::at(&server, "web1.test");
    let told = batch("web1.test", 1, &[1]);
    let bytes = sealed_as("web1.test", &told);
    let (run, first) = (&told.run, told.first());
    let other = Id::from_bits(2);
    for key in [
        format!("event/web2=test/{run}/{first:020}"),
        format!("event/web1=test/{other}/{first:020}"),
        format!("event/web1=test/{run}/{:020}", first + 1),
    ] {
        straight.put(&key, &bytes).expect("put");
        let rejected = format!("{key} is not believed");
        until("a word of it", || node.log().contains(&rejected));
    }
    assert!(node.runs().is_empty());
    tell(&straight, &told);
    until("its run", || node.runs().len() == 1);
}

/// A run with the maximum number of nodes in its path is the last.
#[test]
fn a_circle_ends_at_the_hop_limit_and_is_named() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server, UP);
    node.set_also("hop_limit = 3");
    let straight = Straight::at(&server, "web1.test");
    let mut told = batch("web1.test", 1, &[1]);
    let names = ["web1.test", "lb1.test", "web1.test"];
    told.begun.origins.0.push(Origin {
        id: Id::from_bits(7),
        cause: Cause::Event,
        path: names[1..]
            .iter()
            .chain([&names[1]])
            .map(|name| name.parse().expect("a certname"))
            .collect(),
    });
    tell(&straight, &told);
    let circle = "over 3 hops: lb1.test -> web1.test -> lb1.test ...";
    until("the circle", || node.log().contains(circle));
    assert!(node.runs().is_empty());
}

#[test]
fn a_rule_with_a_program_leaves_its_call_and_a_new_rule_counts_after_a_reload() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server, "name = 'tell'\nchange = ['stopped']\n");
    let straight = Straight::at(&server, "web1.test");
    tell(&straight, &batch("web1.test", 1, &[1, 2]));
    let rule = "name = 'tell'\nchange = ['started']\ncommand = ['/bin/true']\n";
    fs::write(node.path("rules/one.toml"), rule).expect("written");
    let sent = Command::new("kill")
        .args(["-HUP", &node.pid().to_string()])
        .status();
    assert!(sent.expect("kill").success());
    let calls = || fs::read_dir(node.path("state/calls")).map_or(0, Iterator::count);
    until("both calls", || calls() == 2);
    assert!(node.runs().is_empty());
}

/// A backend may hold much larger values than again-fleet writes, if another client with write
/// access puts them there.
fn events_of_many_megabytes(kind: Kind) {
    let server = match kind {
        Kind::Etcd => Server::configured(kind, "--max-request-bytes 67108864"),
        Kind::Nats => Server::configured(kind, "max_payload: 67108864"),
    };
    let node = node(&server, UP);
    let straight = Straight::at(&server, "web1.test");
    let key = |run| format!("event/web1=test/{}/{:020}", Id::from_bits(run), 1);
    let said = |run| {
        let rejected = format!("{} is not believed", key(run));
        node.log().matches(&rejected).count()
    };
    let long = vec![b'x'; 10 << 20];
    let put = |run, bytes: &[u8]| straight.put(&key(run), bytes).expect("put");
    // Together, these exceed the maximum size of an answer.
    for run in 11..=14 {
        put(run, &long);
    }
    until("a word of each", || (11..=14).all(|run| said(run) == 1));
    tell(&straight, &batch("web1.test", 1, &[1]));
    until("its run", || node.runs().len() == 1);
    // On a busy machine, the first connection may take longer than one attempt.
    let lost = || node.log().matches("is not reached").count();
    let lost_before = lost();
    let most = most_memory(node.pid());
    for count in 2..=11 {
        put(11, &long);
        // NATS keeps only the last of the values that are not delivered yet.
        until("a word of it", || said(11) == count);
    }
    let later = most_memory(node.pid());
    println!("{kind:?}: {most} MiB, and {later} after ten more");
    assert!(later < most + 48, "{most} MiB, then {later}");
    assert_eq!(lost(), lost_before, "{}", node.log());
    if kind == Kind::Etcd {
        // This value alone exceeds the maximum size of an answer.
        put(15, &vec![b'x'; 40 << 20]);
        until("a word of it", || said(15) == 1);
        node.is_linked(true);
    }
    // A service that starts finds all of the values there.
    node.kill();
    node.start();
    node.is_linked(true);
    tell(&straight, &batch("web1.test", 2, &[1]));
    until("the other run", || node.runs().len() == 2);
    let most = most_memory(node.pid());
    println!("{kind:?}: {most} MiB where they are listed");
    assert!(most < 192, "{most} MiB");
}

#[test]
fn events_of_many_megabytes_are_rejected_in_bounded_memory_over_etcd() {
    events_of_many_megabytes(Kind::Etcd);
}

#[test]
fn events_of_many_megabytes_are_rejected_in_bounded_memory_over_nats() {
    events_of_many_megabytes(Kind::Nats);
}
