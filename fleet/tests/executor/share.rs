//! Share of the cap that one node may use, with the real `again` and with the script.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::Trigger;
use again_test_support::{SHORT, binary_under_test, wait_until, write_program};

use crate::fired::{by, trigger};
use crate::node::Node;
use crate::rules::{UP, signed};
use crate::told::batch;

/// A node with the real `again`, whose triggers run a program that ends immediately.
fn real() -> Node {
    let node = Node::new();
    let (config, program) = (node.path("again.toml"), binary_under_test());
    let (config, program) = (config.display(), program.display());
    write_program(
        node.path("helper"),
        &format!("#!/bin/sh\nAGAIN_CONFIG={config} exec {program} \"$@\"\n"),
    );
    let directories = ["again", "logs", "rules"].map(|name| node.path(name));
    let [state, logs, rules] = &directories;
    let text = format!(
        "state_dir = {state:?}\nlog_dir = {logs:?}\nscope = 'never'\ncontainer = 'stays'\njitter = 0\n"
    );
    fs::write(node.path("again.toml"), text).expect("written");
    fs::create_dir(rules).expect("made");
    fs::write(rules.join("up.toml"), UP).expect("written");
    node.set_well(&format!("rules_dir = {rules:?}"));
    let path = node.path("again-fleet.toml");
    let text = fs::read_to_string(&path).expect("settings");
    let run = "run_cmd = [\"/bin/puppet it\", \"--test\"]";
    assert!(text.contains(run));
    let behalf = "\n[accept_for]\n\"server.test\" = [\"web*.test\"]\n";
    node.set(&(text.replace(run, "run_cmd = [\"/bin/true\"]\ncwd = \"/\"") + behalf));
    node
}

fn again(node: &Node, words: &[&str]) -> Option<i32> {
    let mut again = Command::new(node.path("helper"));
    again.args(words).output().expect("again").status.code()
}

/// Waits until all accepted triggers have run.
fn wait_for_runs(node: &Node) {
    let is_done = || again(node, &["status"]) == Some(3);
    wait_until("the run of what was accepted", SHORT, is_done);
}

fn named(sender: &str, n: usize) -> Trigger {
    Trigger {
        name: format!("name {n}").parse().expect("a name"),
        ..trigger(sender)
    }
}

/// Returns a trigger that the server sends for another node.
fn behalf(of: &str, n: usize) -> Vec<u8> {
    let of: again_fleet::wire::name::Node = of.parse().expect("a certname");
    let mut one = named("server.test", n);
    one.on_behalf = Some(of.clone());
    one.lineage.0[0].path = vec![of];
    by("server.test", &one)
}

/// Creates a pending target whose record is unreadable; returns its directory.
fn damage_another_target(node: &Node) -> PathBuf {
    let id = "0123456789abcdef";
    let directory = node.path("again/targets").join(id);
    fs::create_dir(&directory).expect("made");
    fs::write(directory.join("state.json"), "damaged").expect("written");
    let entry = node.path("again/pending").join(format!("{id}.{id}"));
    fs::write(entry, "").expect("written");
    directory
}

/// Start of the reason for which triggers of web1.test are held.
const USED_UP: &str =
    "node web1.test has used its share of the cap (5 of 10 runs within 1h); held until ";

/// Hands over ten triggers of web1.test, each when nothing is pending.
fn use_up(node: &Node) {
    let mut outcomes = Vec::new();
    for n in 0..10 {
        let answer = node.one(&by("web1.test", &named("web1.test", n)));
        outcomes.push(answer.outcome);
        wait_for_runs(node);
    }
    let wanted = [[Outcome::Taken; 5], [Outcome::Held; 5]].concat();
    assert_eq!(outcomes, wanted);
}

#[track_caller]
fn is_held(node: &Node, value: &[u8], reason: &str) {
    let answer = node.one(value);
    assert_eq!(answer.outcome, Outcome::Held);
    assert!(answer.why.starts_with(reason), "{}", answer.why);
}

#[test]
fn ten_triggers_of_one_node_leave_room_for_others() {
    let node = real();
    use_up(&node);
    // Triggers that others send for the node, and its events, are held too.
    let event = signed("up", 2, &batch("web1.test", 1, &[1, 2]));
    for value in [behalf("web1.test", 10), event] {
        is_held(&node, &value, USED_UP);
    }
    let other = by("web2.test", &named("web2.test", 0));
    assert_eq!(node.one(&other).outcome, Outcome::Taken);
    wait_for_runs(&node);
    assert_eq!(node.one(&behalf("web3.test", 11)).outcome, Outcome::Taken);
    wait_for_runs(&node);
    // Another process reads the counts from the disk, and that an operator has reset the cap.
    node.wait_until_idle();
    let last = by("web1.test", &named("web1.test", 9));
    is_held(&node, &last, USED_UP);
    assert_eq!(again(&node, &["reset"]), Some(0));
    assert_eq!(node.one(&last).outcome, Outcome::Taken);
}

#[test]
fn lost_record_of_again_changes_no_share() {
    let node = real();
    use_up(&node);
    let next = by("web1.test", &named("web1.test", 9));
    let other = damage_another_target(&node);
    assert_eq!(again(&node, &["history", "--json"]), Some(1));
    is_held(&node, &next, USED_UP);
    fs::remove_dir_all(other).expect("removed");
    fs::remove_file(node.path("again/history.jsonl")).expect("a history");
    is_held(&node, &next, USED_UP);
    let mut targets = fs::read_dir(node.path("again/targets")).expect("targets");
    let target = targets.next().expect("one").expect("readable");
    let record = target.path().join("state.json");
    fs::write(record, "damaged").expect("written");
    is_held(
        &node,
        &next,
        "the use of the cap by node web1.test is not known: ",
    );
    // `again` makes a new record for another node, and knows no run for this one.
    let other = by("web2.test", &named("web2.test", 0));
    assert_eq!(node.one(&other).outcome, Outcome::Taken);
    wait_for_runs(&node);
    is_held(&node, &next, USED_UP);
}

#[test]
fn unknown_use_of_the_cap_holds_only_nodes_that_may_exceed_their_share() {
    let node = Node::new();
    node.helper_shows("status", "again: error: no status");
    let first = by("web1.test", &named("web1.test", 0));
    assert_eq!(node.one(&first).outcome, Outcome::Taken);
    let next = by("web1.test", &named("web1.test", 1));
    let held = node.one(&next);
    assert_eq!(held.outcome, Outcome::Held);
    let why = "the use of the cap by node web1.test is not known: ";
    assert!(held.why.starts_with(why), "{}", held.why);
    let other = by("web2.test", &named("web2.test", 0));
    // Triggers that are handed over together give the same result.
    let both = node.hand_over(&[next.clone(), other]);
    let outcomes: Vec<Outcome> = both.iter().map(|answer| answer.outcome).collect();
    assert_eq!(outcomes, [Outcome::Held, Outcome::Taken]);
    node.helper_shows("status", r#"{"schema":1,"targets":[]}"#);
    assert_eq!(node.one(&next).outcome, Outcome::Taken);
    // If the share is the whole cap, the executor does not check how much is used.
    node.set_well("cap_share = 100");
    node.helper_shows("status", "again: error: no status");
    let next = by("web1.test", &named("web1.test", 2));
    assert_eq!(node.one(&next).outcome, Outcome::Taken);
}
