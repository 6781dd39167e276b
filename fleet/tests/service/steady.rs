//! Results of runs: a busy node publishes them soon after their ends, and a restarted sender logs
//! them once.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use again_base::model::Span;
use again_fleet::policy::fire::Request;
use again_fleet::wire::name::Id;
use serde_json::Value;

use crate::node::{Node, request, until, within};
use crate::servers::{Kind, Server};

/// Time limit for a busy machine, for steps that usually take seconds.
const SOON: Duration = Duration::from_secs(90);

/// Returns a sender and its target.
fn two() -> (Server, Node, Node) {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    [&web1, &lb1].iter().for_each(|node| node.is_linked(true));
    (server, web1, lb1)
}

/// Script that notes each verb with which `again` is called, and calls it.
const NOTED: &str = "#!/bin/sh\necho \"$1\" >>\"DIR/asked\"\nexec AGAIN \"$@\"\n";

/// Whether a sender knows the final outcome of all that its trigger caused.
fn is_over(sender: &Node, id: &Id) -> bool {
    let said = sender.command(&["story", id.as_str(), "--json"]).output();
    let story = serde_json::from_slice(&said.expect("a story").stdout);
    story.is_ok_and(|story: Value| story["over"] == true)
}

#[test]
fn how_a_run_has_ended_is_told_while_more_is_taken_all_the_time() {
    let (_server, web1, lb1) = two();
    let first = request("name 0", &["lb1.test"]);
    web1.fire(&first);
    lb1.runs_once(&first.id);
    let began = Instant::now();
    let mut n = 0;
    while !is_over(&web1, &first.id) {
        n += 1;
        assert!(began.elapsed() < SOON, "it is open after {n} others");
        let one = request(&format!("name {n}"), &["lb1.test"]);
        web1.fire(&one);
        lb1.runs_once(&one.id);
        // Time itself is tested: shorter than the pause for which the service would wait.
        thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn how_a_run_has_ended_is_told_whatever_the_node_has_done_since() {
    let (_server, web1, lb1) = two();
    lb1.write("hold", "");
    let one = request("again", &["lb1.test"]);
    web1.fire(&one);
    lb1.runs_once(&one.id);
    lb1.stop();
    std::fs::remove_file(lb1.path("hold")).expect("held");
    until("its end", || !lb1.history("ended").is_empty());
    for _ in 0..60 {
        let own = ["run", "--name=own", "--delta=1h", "--", "/bin/true"];
        let asked = lb1.again(&own);
        assert!(asked.status.success(), "{asked:?}");
    }
    lb1.start();
    within(SOON, "end of the story", || is_over(&web1, &one.id));
}

#[test]
fn refusal_is_logged_once_though_the_service_begins_anew_and_the_backend_has_lost_it() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::off(name, &server));
    lb1.set_also("accept = ['other.test']");
    for node in [&web1, &lb1] {
        node.start();
        node.is_linked(true);
    }
    let is_refused = |name: &str| {
        let line = format!("'{name}' for lb1.test is refused");
        web1.log().matches(&line).count()
    };
    // All older results arrive before that of a newer trigger.
    let fire = |name: &str| {
        web1.fire(&request(name, &["lb1.test"]));
        until("a refusal", || is_refused(name) > 0);
    };
    fire("first");
    web1.stop();
    web1.start();
    web1.is_linked(true);
    fire("second");
    server.kill();
    server.wipe();
    [&web1, &lb1].iter().for_each(|node| node.is_linked(false));
    server.run();
    // A target that restarts puts all its results again.
    for node in [&lb1, &web1] {
        node.stop();
        node.start();
        node.is_linked(true);
    }
    fire("third");
    let counts = ["first", "second", "third"].map(is_refused);
    assert_eq!(counts, [1, 1, 1], "{}", web1.log());
}

/// Processes that a service holds pidfds of.
fn watched(node: &Node) -> BTreeSet<String> {
    let Ok(listed) = std::fs::read_dir(format!("/proc/{}/fdinfo", node.pid())) else {
        return BTreeSet::new();
    };
    let texts = listed.filter_map(|one| std::fs::read_to_string(one.ok()?.path()).ok());
    let pids = texts.filter_map(|text| {
        let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        Some(pid.trim().to_owned())
    });
    pids.collect()
}

/// The service was restarted meanwhile. The process is first the waiter, and then the run.
#[test]
fn service_watches_the_process_of_a_run_until_it_ends() {
    let (_server, web1, lb1) = two();
    lb1.program("noted", NOTED);
    lb1.set_also(&format!("helper = {:?}", lb1.at("noted")));
    lb1.write("hold", "");
    let one = Request {
        delta: Span::from_secs(3),
        ..request("again", &["lb1.test"])
    };
    web1.fire(&one);
    // With each answer the service closes the pidfds from the one before.
    let mut waiter = BTreeSet::new();
    until("a pidfd of the waiter", || {
        waiter = watched(&lb1);
        waiter.len() == 1
    });
    lb1.runs_once(&one.id);
    until("the same process", || watched(&lb1) == waiter);
    lb1.start_anew();
    let questions = || {
        let asked = std::fs::read_to_string(lb1.path("asked")).unwrap_or_default();
        asked.lines().filter(|verb| *verb == "history").count()
    };
    let before = questions();
    until("a pidfd of the run", || watched(&lb1) == waiter);
    // After pauses of 2, 2, 4 and 8 seconds the next question is due in 16, unless the process
    // ends.
    until("four questions", || questions() >= before + 4);
    std::fs::remove_file(lb1.path("hold")).expect("held");
    within(Duration::from_secs(15), "end of the story", || {
        is_over(&web1, &one.id)
    });
    until("no pidfd", || watched(&lb1).is_empty());
}
