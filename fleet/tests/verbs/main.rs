//! Commands that people and Puppet call, run as processes. Most have real services; when a test
//! needs answers that no real service gives, or not on demand, the test listens in its place.

#[path = "../support/ca.rs"]
mod ca;
/// Findings of `check`, with real backends.
mod check;
#[allow(dead_code, reason = "what is signed by nobody is not for this room")]
#[path = "../support/fired.rs"]
mod fired;
/// Changes of the nodes' state.
mod follow;
/// Last inventory.
mod inventory;
/// Runs that reports cause.
mod kick;
mod node;
/// State of the nodes.
mod nodes;
/// A CA of `again-fleet ca`.
mod own_ca;
/// Output of a panic.
mod panic;
/// Data that every node may read.
mod public;
/// Real services.
mod real;
/// Stored selections.
mod selections;
#[allow(
    dead_code,
    reason = "what is done to servers elsewhere is not done here"
)]
#[path = "../support/servers.rs"]
mod servers;
/// Runs that a trigger caused.
mod story;
#[path = "../support/straight.rs"]
mod straight;
#[allow(dead_code, reason = "what the service's own tests ask it for")]
#[path = "../support/node.rs"]
mod whole;
/// Services that hang, close the connection early, or send invalid answers.
mod worse;

use again_fleet::ask::{Answer, Question, Summary};
use again_fleet::policy::fire::Request;
use again_fleet::step::model::{Back, News};
use again_fleet::wire::name::{Id, Node as Name};
use again_fleet::wire::outcome::Outcome;
use node::{Done, Node};

fn name(text: &str) -> Name {
    text.parse().expect("a certname")
}

fn said(away: Option<&str>) -> Answer {
    Answer::Said(Summary {
        backend: again_fleet::settings::Backend::Etcd,
        away: away.map(str::to_owned),
        until: 1_795_219_387_045,
        selection: None,
    })
}

fn delivered(names: &[&str]) -> Vec<Answer> {
    let all = names.iter().map(|one| Answer::Delivered(name(one)));
    all.chain([said(None)]).collect()
}

fn progress(target: &str, news: News) -> Answer {
    Answer::Progress {
        id: Id::from_bits(7),
        target: name(target),
        news,
    }
}

fn told(target: &str, outcome: Outcome) -> Answer {
    progress(target, News::Status(outcome, String::new()))
}

fn fired(question: Question) -> (Request, bool) {
    match question {
        Question::Fire { request, wait } => (request, wait),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_known_of_the_run_is_not_guessed() {
    for script in [
        "exit 1",
        "echo nonsense",
        "echo '{\"this_run\":{\"origin\":{\"origins\":7}}}'",
    ] {
        let node = Node::new();
        std::fs::write(node.path("again"), format!("#!/bin/sh\n{script}\n")).expect("written");
        let listener = node.listen();
        let done = node.run(&["trigger", "--to", "lb1"]);
        assert_eq!(done.status, 1, "{done:?}");
        assert!(
            done.error()
                .starts_with("it cannot be told where this run comes from"),
            "{done:?}"
        );
        listener.set_nonblocking(true).expect("set");
        assert!(listener.accept().is_err(), "it asked");
    }
}

#[test]
fn what_is_kept_is_said_with_the_reason_and_the_time() {
    let node = Node::new();
    let answers = vec![
        Answer::Delivered(name("lb1")),
        Answer::Kept(name("lb2")),
        said(Some("connection refused")),
    ];
    let service = node.answers(answers);
    let done = node.run(&["trigger", "--to", "lb1", "lb2"]);
    service.join().expect("asked");
    assert_eq!(done.status, 0, "{done:?}");
    let kept = done.out.lines().nth(1).expect("two lines");
    let begin = "again-fleet: kept: etcd cannot be reached (connection refused); sent until ";
    assert!(
        kept.starts_with(begin) && kept.contains(" to 1 node: lb2 (id "),
        "{kept}"
    );
}

#[test]
fn what_could_not_be_fired_fails_and_names_the_circle() {
    let node = Node::new();
    let circle = "over 10 hops: lb1 -> web1.test -> lb1 ...";
    let answers = vec![
        Answer::Delivered(name("db1")),
        Answer::Failed(name("lb1"), circle.to_owned()),
        Answer::LeftOut("over 10 hops: x -> ...".to_owned()),
        said(None),
    ];
    let service = node.answers(answers);
    let done = node.run(&["trigger", "--to", "lb1", "db1"]);
    service.join().expect("asked");
    assert_eq!(done.status, 1, "{done:?}");
    assert!(
        done.out
            .starts_with("again-fleet: delivered to etcd for 1 node: db1 "),
        "{done:?}"
    );
    let lines: Vec<&str> = done.err.lines().collect();
    assert_eq!(
        lines,
        [
            "again-fleet: warning: not passed on: over 10 hops: x -> ...",
            "again-fleet: error: not fired for 1 node: lb1: over 10 hops: lb1 -> web1.test -> lb1 ...",
        ]
    );
}

#[test]
fn wrong_words_and_settings_end_with_2() {
    let node = Node::new();
    let long = ["trigger", "--to", "lb1", "--ttl", "25h"];
    for (words, part) in [
        (&["trigger"][..], "--to"),
        (&["trigger", "--to", "a/b"], "is no certname"),
        (
            &["trigger", "--to", "lb1", "--delta", "2d"],
            "a delta of 2d is too long",
        ),
        (
            &["trigger", "--to", "lb1", "--parallel", "0"],
            "'0' is not a number of nodes",
        ),
        (
            &["trigger", "--to", "lb1", "--parallel", "100001"],
            "100000 are allowed",
        ),
        (
            &["trigger", "--to", "lb1", "--stop-after-failures", "1"],
            "--parallel",
        ),
        (&long, "a ttl of 1d1h is not from 1s to 1d"),
        (
            &["trigger", "--to", "lb1", "--backend", "nats"],
            "backend is etcd, not nats",
        ),
        (&["cancel"], "ID"),
        (&["cancel", "12"], "is no id"),
    ] {
        let done = node.run(words);
        assert_eq!(done.status, 2, "{done:?}");
        assert!(done.error().contains(part), "{done:?}");
    }
    node.set("ttl = 'soon'");
    let done = node.run(&["trigger", "--to", "lb1"]);
    assert_eq!(done.status, 2, "{done:?}");
    assert!(
        done.error()
            .contains("again-fleet.toml: line 6: key 'ttl': 'soon' is not a duration"),
        "{done:?}"
    );
}

/// Question with the maximum number of targets.
#[test]
fn a_thousand_targets_are_asked_for_and_counted() {
    let node = Node::new();
    let names: Vec<String> = (0..1000).map(|n| format!("n{n:04}.example.com")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let service = node.answers(delivered(&names));
    let done = node.run(&[&["trigger", "--to"], &names[..]].concat());
    let (request, _) = fired(service.join().expect("asked"));
    assert_eq!(request.targets.len(), 1000);
    assert!(
        done.out.contains("for 1000 nodes: n0000.example.com, "),
        "{done:?}"
    );
    assert!(done.out.contains(" and 980 more (id "), "{done:?}");
}

/// Waits for this news after both nodes have the trigger.
fn waited(news: Vec<Answer>, more: &[&str]) -> Done {
    let node = Node::new();
    let answers = [delivered(&["lb1", "lb2"]), news].concat();
    let service = node.answers(answers);
    let done = node.run(&[&["trigger", "--to", "lb1", "lb2", "--wait"], more].concat());
    let (_, wait) = fired(service.join().expect("asked"));
    assert!(wait);
    done
}

#[test]
fn the_end_of_waiting_is_the_worst_that_was_told() {
    for (outcome, status) in [
        (Outcome::Unchanged, 0),
        (Outcome::Failed, 1),
        (Outcome::Unknown, 1),
        (Outcome::Refused, 1),
        (Outcome::Expired, 75),
    ] {
        let news = vec![told("lb1", Outcome::Changed), told("lb2", outcome)];
        let done = waited(news, &[]);
        assert_eq!(done.status, status, "{outcome}: {done:?}");
    }
    let news = vec![
        told("lb1", Outcome::Changed),
        progress("lb2", News::NoAnswer),
    ];
    let done = waited(news, &[]);
    assert_eq!(done.status, 75, "{done:?}");
    assert!(
        done.out
            .contains("  lb2  no answer    it told nothing in time\n"),
        "{done:?}"
    );
}

/// Cancels the triggers for lb1; expects these answers.
fn taken_back(answers: Vec<Answer>) -> Done {
    let node = Node::new();
    let service = node.answers(answers);
    let done = node.run(&["cancel", "--to", "lb1"]);
    let what = Back::To(name("lb1"));
    let asked = Question::TakeBack { what, wait: true };
    assert_eq!(service.join().expect("asked"), asked);
    done
}

#[test]
fn what_is_taken_back_in_time_or_too_late_is_told() {
    let with = |news| [delivered(&["lb1"]), vec![news, Answer::End]].concat();
    let done = taken_back(with(told("lb1", Outcome::Cancelled)));
    assert_eq!(
        (done.status, done.out.as_str()),
        (
            0,
            "again-fleet: the cancellation is delivered to etcd for 1 node: lb1\n  lb1  cancelled\n"
        )
    );
    let done = taken_back(with(told("lb1", Outcome::TooLate)));
    assert_eq!(done.status, 1, "{done:?}");
    assert!(done.out.ends_with("  lb1  too late\n"), "{done:?}");
    let done = taken_back(vec![said(None), Answer::End]);
    assert_eq!((done.status, done.out.as_str()), (1, ""), "{done:?}");
    assert!(
        done.err.contains("no trigger for lb1 is on its way"),
        "{done:?}"
    );
}
