//! Rolling runs with a real etcd: the number of targets that run at a time is the trigger's,
//! whichever process is killed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use again_fleet::policy::fire::Request;
use again_fleet::wire::lineage::{Cause, Origin};
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::{Entry, Outcome, TriggerStatus};
use again_fleet::wire::targets::Targets;
use again_fleet::wire::trigger::Trigger;

use crate::fired::{by, sealed_as, trigger};
use crate::node::{Node, request, until};
use crate::servers::{Kind, Server};
use crate::straight::{self, Straight};
use again_test_support::Dice;

/// Script that writes into the file of all nodes, and takes a while.
const RUN: &str = r"#!/bin/sh
DIR/note
echo begin NAME >>ALL
sleep 0.5
echo end NAME >>ALL
[ ! -e DIR/fails ]
";

/// Manifest that runs the same script, so that Puppet reports how it ended.
const MANIFEST: &str = "exec { '/bin/sh \"DIR/puppet it\"': }";

struct Site {
    server: Server,
    dir: tempfile::TempDir,
    nodes: Vec<Node>,
}

impl Site {
    /// Returns a site with this number of nodes, whose processes run.
    fn new(count: usize, is_puppet: bool) -> Site {
        let server = Server::start(Kind::Etcd);
        let dir = tempfile::tempdir().expect("a directory");
        let all = dir.path().join("all");
        fs::write(&all, "").expect("written");
        let names = (1..=count).map(|n| &*format!("n{n:02}.test").leak());
        let node = |name: &'static str| {
            let node = Node::off(name, &server);
            let run = RUN.replace("ALL", all.to_str().expect("a plain path"));
            node.program("puppet it", &run.replace("NAME", name));
            if is_puppet {
                node.runs_puppet(MANIFEST);
                node.set(&server);
            }
            node.take();
            node.start();
            node
        };
        let nodes: Vec<Node> = names.map(node).collect();
        nodes.iter().for_each(|node| node.is_linked(true));
        Site { server, dir, nodes }
    }

    fn names(&self) -> Vec<&'static str> {
        self.nodes.iter().map(|node| node.name).collect()
    }

    /// Maximum number of runs at a time, according to the lines that they wrote.
    fn most(&self) -> usize {
        most(&self.dir.path().join("all"))
    }
}

fn most(all: &Path) -> usize {
    let text = fs::read_to_string(all).expect("a file");
    let mut running = BTreeSet::new();
    let counts = text.lines().map(|line| {
        let (what, name) = line.split_once(' ').expect("two words");
        let is_news = match what {
            "begin" => running.insert(name),
            _ => running.remove(name),
        };
        assert!(is_news, "{name} ran twice: {text}");
        running.len()
    });
    counts.max().unwrap_or(0)
}

/// Statuses that each target has published of a trigger, in the order of the backend.
fn told(server: &Server, id: &Id) -> Vec<(String, Outcome)> {
    let values = Straight::at(server, "web1.test").ever();
    let stories = values.iter().filter(|value| {
        let is_story = value.key.starts_with("again/v1/test/story/");
        is_story && value.key.ends_with(id.as_str())
    });
    let told = stories.map(|value| straight::read::<Entry>(&value.bytes).told);
    told.map(|told| (told.target.to_string(), told.outcome))
        .collect()
}

/// Maximum number of targets between their turn and their end at a time, according to the backend's
/// history, and the final outcome of each.
fn by_history(server: &Server, id: &Id) -> (usize, BTreeMap<String, Outcome>) {
    let (mut turns, mut ends, mut most) = (BTreeSet::new(), BTreeMap::new(), 0);
    for (node, outcome) in told(server, id) {
        if outcome.is_final() {
            turns.remove(&node);
            ends.entry(node).or_insert(outcome);
        } else if outcome != Outcome::Held && !ends.contains_key(&node) {
            turns.insert(node);
            most = most.max(turns.len());
        }
    }
    (most, ends)
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(all).expect("UTF-8")
}

#[test]
fn never_more_than_three_of_twelve_run_whoever_is_killed_meanwhile() {
    let site = Site::new(12, false);
    // One of the targets is down, and delays no other.
    let (off, on) = site.nodes.split_last().expect("nodes");
    off.kill();
    let request = Request {
        parallel: 3,
        ..request("again", &site.names())
    };
    let id = &request.id;
    on[0].fire(&request);
    until("the first of them", || site.most() > 0);
    let group = format!("at once {id}");
    let shown = || said(&on[0].command(&["slots", &group]).output().expect("shown"));
    until("three places", || {
        let shown = shown();
        shown.contains("3 of 3 slots taken") && shown.contains("trigger 'again' of n01.test")
    });
    let mut dice = Dice::new(17);
    let is_done = || on.iter().all(|node| node.ran().contains(id));
    let mut kills = 0;
    while !is_done() || kills < 6 {
        on[dice.below(on.len() as u64) as usize].start_anew();
        kills += 1;
        dice.pause(Duration::from_millis(1500));
    }
    let straight = Straight::at(&site.server, "web1.test");
    let ended = || {
        let all = straight.list("story/");
        let told = all
            .iter()
            .map(|one| straight::read::<Entry>(&one.bytes).told);
        told.filter(|told| told.outcome.ends_a_run()).count()
    };
    until("how each has ended", || ended() == 11);
    off.start();
    until("the last", || ended() == 12);
    let (most, ends) = by_history(&site.server, id);
    assert!(most == 3 && site.most() <= 3, "{most}, {}", site.most());
    assert_eq!(ends.len(), 12, "{ends:?}");
    for node in &site.nodes {
        assert_eq!(
            &node.ran()[..],
            std::slice::from_ref(id),
            "{}: {}",
            node.name,
            node.log()
        );
    }
    until("free places", || straight.list("slot/").is_empty());
    println!("{kills} services were killed; at most {most} at a time");
}

#[test]
fn two_that_fail_stop_the_rest() {
    let site = Site::new(8, true);
    for node in &site.nodes[..3] {
        node.write("fails", "");
    }
    let more = ["--parallel", "1", "--stop-after-failures", "2", "--wait"];
    let words = [&["trigger", "--to"], &site.names()[..], &more].concat();
    let done = site.nodes[7].command(&words).output().expect("waited for");
    let text = said(&done);
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(
        text.contains("held: waits for its turn, 1 at once: "),
        "{text}"
    );
    let table = |word: &str| -> BTreeSet<&str> {
        let rows = text.lines().filter(|line| line.starts_with("  n"));
        let mut rows: Vec<Vec<&str>> = rows.map(|row| row.split_whitespace().collect()).collect();
        rows.retain(|row| row[1] == word);
        rows.into_iter().map(|row| row[0]).collect()
    };
    let (failed, halted) = (table("failed"), table("halted"));
    let failing = BTreeSet::from(["n01.test", "n02.test", "n03.test"]);
    assert_eq!(failed.len(), 2, "{text}");
    assert!(failed.is_subset(&failing) && !halted.is_empty(), "{text}");
    assert_eq!(table("changed").len() + halted.len(), 6, "{text}");
    let named: Vec<&str> = failed.iter().copied().collect();
    let why = format!("2 of its targets have failed: {}", named.join(", "));
    let rows = text
        .lines()
        .filter(|line| line.starts_with("  n") && line.contains(&why));
    assert_eq!(rows.count(), halted.len(), "{text}");
    for node in &site.nodes {
        let runs = usize::from(!halted.contains(node.name));
        assert_eq!(node.runs().len(), runs, "{}", node.name);
    }
    assert_eq!(site.most(), 1);
    // The halted run leaves no queue positions.
    let straight = Straight::at(&site.server, "web1.test");
    until("free places", || straight.list("slot/").is_empty());
    assert!(straight.list("to/").is_empty());
}

/// Puts the outcome of a trigger that n01 sent below the story of a run, signed by the first of
/// these nodes in the second's name.
fn put_outcome(
    straight: &Straight,
    story: &Id,
    trigger: &Id,
    [signer, target]: [&str; 2],
    outcome: Outcome,
) {
    let entry = Entry {
        told: TriggerStatus {
            id: trigger.clone(),
            number: 1,
            sender: "n01.test".parse().expect("a certname"),
            target: target.parse().expect("a certname"),
            name: "again".parse().expect("a name"),
            outcome,
            why: String::new(),
            at: 1,
            stopped: Vec::new(),
            ran: None,
            above: None,
            waits: false,
        },
        origin: Origin {
            id: story.clone(),
            cause: Cause::Person,
            path: vec!["n01.test".parse().expect("a certname")],
        },
    };
    let target = target.replace('.', "=");
    let key = format!("story/{target}/{story}/{trigger}");
    straight.put(&key, &sealed_as(signer, &entry)).expect("put");
}

/// Returns a trigger for all nodes and for these others, whose services are down: one at a time,
/// with a stop after this number of failures.
fn strict(site: &Site, others: &[&str], stop_after: u32) -> Request {
    let targets = [&site.names()[..], others].concat();
    Request {
        parallel: 1,
        stop_after,
        ..request("again", &targets)
    }
}

/// Reasons of the targets that a run has halted.
fn halted(straight: &Straight, id: &Id) -> Vec<String> {
    let values = straight.list("story/").into_iter();
    let values = values.filter(|value| value.key.ends_with(id.as_str()));
    let told = values.map(|value| straight::read::<Entry>(&value.bytes).told);
    told.filter(|told| told.outcome == Outcome::Halted)
        .map(|told| told.why)
        .collect()
}

/// Failures that do not count: one signed by another node in a target's name, one that a target
/// signed for another trigger, and one of a node that is not a target.
#[test]
fn a_failure_counts_that_a_target_itself_has_signed_of_that_trigger() {
    let site = Site::new(2, true);
    let request = strict(&site, &["n03.test", "n04.test"], 1);
    let id = &request.id;
    let straight = Straight::at(&site.server, "web1.test");
    let of = |names, trigger: &Id| put_outcome(&straight, id, trigger, names, Outcome::Failed);
    of(["web1.test", "n03.test"], id);
    of(["n05.test", "n05.test"], id);
    of(["n04.test", "n04.test"], &Id::from_bits(1));
    let elsewhere = straight.list(&format!("story/n04=test/{id}/"));
    let key = format!("story/n04=test/{id}/{id}");
    straight.put(&key, &elsewhere[0].bytes).expect("put");
    site.nodes[0].fire(&request);
    for node in &site.nodes {
        node.runs_once(id);
    }
    let log = || site.nodes.iter().map(Node::log).collect::<String>();
    for what in ["n03=test", "n04=test"] {
        let is_named = |line: &str| line.contains(what) && line.contains("is not believed");
        assert!(log().lines().any(is_named), "{what}: {}", log());
    }
}

#[test]
fn run_whose_end_is_unknown_counts_as_failed() {
    let site = Site::new(2, true);
    let request = strict(&site, &["n04.test"], 1);
    let id = &request.id;
    let straight = Straight::at(&site.server, "web1.test");
    put_outcome(&straight, id, id, ["n04.test"; 2], Outcome::Unknown);
    site.nodes[0].fire(&request);
    until("the end of both", || halted(&straight, id).len() == 2);
    let why = "1 of its targets have failed: n04.test";
    assert!(halted(&straight, id).iter().all(|one| one == why));
    assert!(site.nodes.iter().all(|node| node.runs().is_empty()));
}

/// More junk than a service reads is written below `story/`, also with the id of the run, and over
/// all results of it.
#[test]
fn junk_hides_no_failure_and_holds_nobody_up() {
    let site = Site::new(1, false);
    let straight = Straight::at(&site.server, "web1.test");
    let junk = vec![b'x'; 1_000_000];
    let runs = [(1, "n04.test"), (2, "n03.test")];
    for (stop_after, target) in runs {
        let request = Request {
            name: target.parse().expect("a name"),
            ..strict(&site, &["n04.test", "n03.test"], stop_after)
        };
        let id = &request.id;
        put_outcome(&straight, id, id, ["n04.test"; 2], Outcome::Failed);
        for n in 0..33 {
            let below = if n % 2 == 0 { "web1=test" } else { "n04=test" };
            let key = format!("story/{below}/{id}/{n}");
            straight.put(&key, &junk).expect("put");
            let result = format!("result/n01=test/n04=test/{target}");
            straight.put(&result, b"x").expect("put");
        }
        site.nodes[0].fire(&request);
        if stop_after == 1 {
            until("a halt", || halted(&straight, id).len() == 1);
            assert!(site.nodes[0].ran().is_empty());
        } else {
            site.nodes[0].runs_once(id);
        }
    }
}

#[test]
fn target_that_began_and_published_no_end_stops_the_rest_after_a_minute() {
    let site = Site::new(1, true);
    let straight = Straight::at(&site.server, "web1.test");
    let fire = |stop_after| {
        let request = strict(&site, &["n04.test"], stop_after);
        let id = request.id.clone();
        put_outcome(&straight, &id, &id, ["n04.test"; 2], Outcome::Started);
        site.nodes[0].fire(&request);
        id
    };
    // One more failure changes nothing here.
    let allowed = fire(2);
    site.nodes[0].runs_once(&allowed);
    let since = Instant::now();
    let id = fire(1);
    until("a halt", || halted(&straight, &id).len() == 1);
    let elapsed = since.elapsed();
    assert!(elapsed >= Duration::from_secs(60), "{elapsed:?}");
    let why = "1 of its targets have failed: n04.test; no end is known of n04.test";
    assert_eq!(halted(&straight, &id), [why]);
    assert_eq!(site.nodes[0].runs().len(), 1);
}

/// The sender's list of targets is replaced with one that another node has signed, which leaves out
/// the failed targets.
#[test]
fn list_of_targets_counts_that_the_sender_has_signed() {
    let site = Site::new(1, true);
    let one = &site.nodes[0];
    let straight = Straight::at(&site.server, "web1.test");
    let fired = Trigger {
        target: "n01.test".parse().expect("a certname"),
        parallel: 1,
        stop_after: 1,
        ..trigger("web1.test")
    };
    let list = |targets: &[&str]| Targets {
        id: fired.id.clone(),
        sender: fired.sender.clone(),
        origin: fired.lineage.0[0].id.clone(),
        targets: targets
            .iter()
            .map(|one| one.parse().expect("a certname"))
            .collect(),
    };
    let id = &fired.id;
    let key = format!("story/web1=test/{id}/targets");
    let put = |signer, targets: &[&str]| {
        let list = sealed_as(signer, &list(targets));
        straight.put(&key, &list).expect("put");
    };
    put("n05.test", &["n01.test"]);
    let register = by("web1.test", &fired);
    straight
        .put("to/n01=test/web1=test/again", &register)
        .expect("put");
    let is_named = |line: &str| line.contains(&key) && line.contains("is not believed");
    until("the reason", || one.log().lines().any(is_named));
    assert!(one.ran().is_empty());
    put("web1.test", &["n01.test", "n02.test"]);
    one.runs_once(id);
}

#[test]
fn on_nats_it_is_refused_with_the_reason() {
    let server = Server::start(Kind::Nats);
    let one = Node::off("n01.test", &server);
    one.start();
    one.is_linked(true);
    let words = ["trigger", "--to", "n02.test", "--parallel", "2"];
    let done = one.command(&words).output().expect("refused");
    assert_eq!(done.status.code(), Some(1));
    let sentence = "on NATS a key that is renewed loses its place";
    assert!(said(&done).contains(sentence), "{}", said(&done));
    assert!(Straight::at(&server, "web1.test").list("to/").is_empty());
    let words = ["trigger", "--to", "n02.test", "--stop-after-failures", "2"];
    let done = one.command(&words).output().expect("refused");
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
}
