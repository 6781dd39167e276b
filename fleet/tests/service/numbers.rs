//! Metrics of the service, as `again metrics` shows them to a monitoring system.

use again_fleet::ask::Reason;
use again_test_support::ask_for;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::node::{Node, request, until};
use crate::servers::{Kind, Server};

/// Script that waits for a slot, and holds it until its input ends.
const RUN: &str = "#!/bin/sh\nFLEET slot >>DIR/said 2>&1\ncat\n";

/// Time that any step may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// Interval of two seconds between beats, as for a systemd watchdog with a short timeout.
const OFTEN: [&str; 1] = ["WATCHDOG_USEC=4000000"];

/// Metrics of a node's service, by their names without the prefix `again_fleet_`.
fn numbers(node: &Node) -> BTreeMap<String, f64> {
    let shown = node.again(&["metrics"]);
    let shown = String::from_utf8(shown.stdout).expect("UTF-8");
    let own = shown
        .lines()
        .filter_map(|line| line.strip_prefix("again_fleet_"));
    let own = own.filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().expect("a number")))
    });
    own.collect()
}

/// Waits until these metrics have these values.
#[track_caller]
fn are(node: &Node, wanted: &[(&str, f64)]) {
    let mut found = numbers(node);
    let are_so = ask_for(PATIENCE, Duration::from_millis(100), || {
        found = numbers(node);
        let is = |(name, value): &(&str, f64)| found.get(*name) == Some(value);
        wanted.iter().all(is).then_some(())
    });
    assert!(are_so.is_some(), "{found:?}, not {wanted:?}");
}

fn run(node: &Node) -> Child {
    let mut command = Command::new(node.path("run it"));
    command.stdin(Stdio::piped()).spawn().expect("a run")
}

#[test]
fn what_waits_and_what_is_away_is_told_in_numbers() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::off(name, &server));
    web1.start_in(&OFTEN);
    web1.is_linked(true);
    let quiet = [
        ("backend_down_seconds", 0.0),
        ("outbox_triggers", 0.0),
        ("outbox_oldest_age_seconds", 0.0),
        ("slots_oldest_wait_seconds", 0.0),
        ("troubles", 0.0),
    ];
    are(&web1, &quiet);
    assert_eq!(numbers(&web1).len(), 14);

    // The target is down.
    let one = request("again", &["lb1.test"]);
    web1.fire(&one);
    are(&web1, &[("outbox_triggers", 1.0)]);
    until("its age", || {
        numbers(&web1)["outbox_oldest_age_seconds"] > 1.0
    });
    server.stop();
    until("a backend that is away", || {
        numbers(&web1)["backend_down_seconds"] > 0.5
    });
    server.go_on();
    lb1.start_in(&OFTEN);
    lb1.runs_once(&one.id);
    are(&web1, &quiet);

    // The metrics cannot be written for a while.
    let file = web1.path("state/serve/counts.json");
    until("a directory in their place", || {
        let _ = fs::remove_file(&file);
        fs::create_dir_all(file.join("full")).is_ok()
    });
    let reasons = || -> Vec<Reason> {
        let failures = web1.how().failures.into_iter();
        failures.map(|one| one.reason).collect()
    };
    until("what is wrong", || reasons() == [Reason::Metrics]);
    fs::remove_dir_all(&file).expect("removed");
    until("an end of it", || reasons().is_empty());
    are(&web1, &quiet);

    // The service updates its timestamp, though nothing else changes.
    let before = numbers(&web1)["written_timestamp_seconds"];
    until("a beat", || {
        numbers(&web1)["written_timestamp_seconds"] > before
    });
}

#[test]
fn runs_that_wait_for_a_slot_are_told_in_numbers() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| {
        let node = Node::off(name, &server);
        node.set_also("slots_group = 'g'");
        node.set_also("slots_limit = 1");
        node.program("run it", RUN);
        node.start_in(&OFTEN);
        node.is_linked(true);
        node
    });
    let mut first = run(&web1);
    are(&web1, &[("slots_running", 1.0), ("slots_waiting", 0.0)]);
    let mut second = run(&lb1);
    are(&lb1, &[("slots_running", 0.0), ("slots_waiting", 1.0)]);
    until("its wait", || {
        numbers(&lb1)["slots_oldest_wait_seconds"] > 1.0
    });
    drop(first.stdin.take());
    are(
        &lb1,
        &[("slots_running", 1.0), ("slots_oldest_wait_seconds", 0.0)],
    );
    drop(second.stdin.take());
    for (node, run) in [(&web1, &mut first), (&lb1, &mut second)] {
        assert!(run.wait().expect("its end").success());
        are(node, &[("slots_running", 0.0), ("slots_waiting", 0.0)]);
    }
}
