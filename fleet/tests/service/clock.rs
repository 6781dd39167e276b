//! Nodes whose clocks are wrong by an hour, with a real etcd. The feature `shift-clock` of the test
//! programs changes the wall clock of each node, a time namespace its CLOCK_BOOTTIME. Triggers are
//! judged by the wall clock, so a wrong one is reported; slots and locks rely on leases, which need
//! no wall clock.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use again_base::model::Span;
use again_fleet::ask::Question;
use again_fleet::policy::fire::Request;
use again_fleet::wire::inventory::Inventory;
use again_test_support::{Permission, permits, repository, stays};
use serde_json::Value;

use crate::locks::{self, NAMES, agree};
use crate::node::{Answers, LONG, Node, request, until};
use crate::servers::{Kind, Server};
use crate::slots::{self, LEASE, Site};
use crate::straight::{self, Straight};

const HOUR: i64 = 3600;

/// Sets a clock of a node wrong.
type Prepare = fn(&Node);

const RIGHT: Prepare = |_| ();
const AHEAD: Prepare = |node| node.set_ahead(HOUR);
const BEHIND: Prepare = |node| node.set_ahead(-HOUR);

/// Seconds since 1970 of a time in UTC that a text contains.
fn seconds(text: &str) -> i64 {
    let done = Command::new("date")
        .args(["-u", "-d", text, "+%s"])
        .output();
    let said = String::from_utf8(done.expect("date").stdout).expect("digits");
    said.trim().parse().unwrap_or_else(|_| panic!("{text}"))
}

/// Checks that the text contains two times, the first ahead of the second by this number of
/// seconds.
#[track_caller]
fn names_both_times(text: &str, ahead: i64) {
    const TIME: usize = "2026-11-22 17:31:32".len();
    let ends = text.match_indices(" UTC").map(|(end, _)| end);
    let times: Vec<i64> = ends.map(|end| seconds(&text[end - TIME..end])).collect();
    let [first, second] = times[..] else {
        panic!("{text}");
    };
    let error = first - second - ahead;
    // Tolerance for a delay on a busy machine.
    assert!((-600..600).contains(&error), "{text}");
}

/// Connected nodes web1.test and lb1.test.
fn pair(server: &Server, web1: Prepare, lb1: Prepare) -> [Node; 2] {
    let nodes = [("web1.test", web1), ("lb1.test", lb1)].map(|(name, prepare)| {
        let node = Node::off(name, server);
        prepare(&node);
        node.take();
        node.start();
        node
    });
    for node in &nodes {
        node.is_linked(true);
    }
    nodes
}

/// Sends a trigger to lb1.test; returns the answers that follow.
fn fired(from: &Node, ttl: u64) -> (Request, Answers) {
    let request = Request {
        ttl: Span::from_secs(ttl),
        ..request("again", &["lb1.test"])
    };
    let mut waits = from.ask(&Question::Fire {
        request: request.clone(),
        wait: true,
    });
    assert_eq!([waits.word(), waits.word()], crate::ACROSS);
    (request, waits)
}

/// Checks that lb1.test reports a trigger of web1.test as held.
#[track_caller]
fn is_held(waits: &mut Answers) {
    let held = waits.word();
    assert!(
        held.starts_with("lb1.test Status(Held, \"fired at ")
            && held.contains(" by the clock of web1.test, here it is "),
        "{held}"
    );
    names_both_times(&held, HOUR);
}

#[test]
fn target_holds_what_a_sender_an_hour_ahead_has_sent_and_takes_what_others_send() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = pair(&server, AHEAD, RIGHT);
    let web2 = Node::new("web2.test", &server);
    web2.is_linked(true);
    is_held(&mut fired(&web1, 7200).1);
    assert_eq!(web1.how().outbox.triggers, 1);
    let ahead = web1.how().ahead.expect("a comparison of the clocks") / 1000;
    assert!((HOUR - 600..HOUR + 600).contains(&ahead), "{ahead}");
    let (other, _) = fired(&web2, 7200);
    lb1.runs_once(&other.id);
    assert_eq!(lb1.ran(), [other.id]);
}

#[test]
fn target_an_hour_behind_takes_what_it_holds_when_its_clock_is_right() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = pair(&server, RIGHT, BEHIND);
    let (one, mut waits) = fired(&web1, 7200);
    is_held(&mut waits);
    assert!(lb1.runs().is_empty());
    assert_eq!(web1.how().outbox.triggers, 1);
    lb1.set_ahead(0);
    // The trigger is judged again once a minute.
    let longer = waits.0.set_read_timeout(Some(LONG * 3));
    longer.expect("a timeout");
    let taken = waits.word();
    assert!(taken.starts_with("lb1.test Status(Taken, "), "{taken}");
    lb1.runs_once(&one.id);
}

/// No client sends this node a request, and Puppet does not run there.
#[test]
fn idle_node_signs_its_entry_anew_once_that_is_ten_minutes_old() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        let lb1 = Node::off("lb1.test", &server);
        lb1.set_ahead(0);
        // A beat every two seconds.
        lb1.start_in(&["WATCHDOG_USEC=4000000"]);
        lb1.is_linked(true);
        let straight = Straight::at(&server, "web1.test");
        let published = || {
            let values = straight.list("node/lb1=test");
            values
                .first()
                .map(|value| straight::read::<Inventory>(&value.bytes))
        };
        until("its entry", || published().is_some());
        let first = published().expect("an entry");
        lb1.set_ahead(660);
        until("its next signature", || {
            published().is_some_and(|told| told.at >= first.at + 600_000)
        });
        let second = published().expect("an entry");
        assert!(second.serial > first.serial && second.tells_the_same(&first));
    }
}

/// The target's clock is an hour ahead of the sender's: an hour of the ttl is over when the trigger
/// is sent.
fn taken_within_its_ttl(web1: Prepare, lb1: Prepare) {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = pair(&server, web1, lb1);
    let told = fired(&web1, 1800).1.all();
    let last = told.last().expect("an end");
    assert!(
        last.starts_with("lb1.test Status(Expired, \"fired at ")
            && last.contains(" for 30m, here it is "),
        "{told:?}"
    );
    names_both_times(last, -HOUR);
    assert!(lb1.runs().is_empty());
    let (two, waits) = fired(&web1, 7200);
    lb1.runs_once(&two.id);
    let told = waits.all();
    assert!(told[0].starts_with("lb1.test Status(Taken, "), "{told:?}");
    assert_eq!(lb1.ran(), [two.id]);
    let ahead = web1.how().ahead.expect("a comparison of the clocks") / 1000;
    assert!((-HOUR - 600..600 - HOUR).contains(&ahead), "{ahead}");
}

#[test]
fn target_takes_what_a_sender_an_hour_behind_sends_until_its_ttl_is_over() {
    taken_within_its_ttl(BEHIND, RIGHT);
}

#[test]
fn target_an_hour_ahead_takes_what_is_sent_until_its_ttl_is_over() {
    taken_within_its_ttl(RIGHT, AHEAD);
}

/// Runs of three nodes share a slot in the order of their requests. The first keeps it for longer
/// than a lease.
fn share_a_slot(prepared: [Prepare; 3]) {
    let site = Site::new(Kind::Etcd);
    let mut named = NAMES.into_iter().zip(prepared);
    let nodes = [(); 3].map(|()| named.next()).map(|node| {
        let (name, prepare) = node.expect("three");
        site.prepared(name, 1, prepare)
    });
    let mut runs = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        runs.push(slots::run(node));
        let line = site.stand(&nodes[2], n + 1);
        let expected = NAMES
            .iter()
            .enumerate()
            .map(|(n, name)| ((*name).to_owned(), n == 0));
        assert_eq!(line, expected.take(n + 1).collect::<Vec<_>>());
    }
    let begun = format!("begin {}", NAMES[0]);
    site.has(&begun);
    let what = "the first keeps the slot";
    stays(what, LEASE + Duration::from_secs(5), || {
        site.all() == [&*begun]
    });
    for (run, node) in runs.into_iter().zip(&nodes) {
        site.has(&format!("begin {}", node.name));
        slots::let_go(node);
        slots::ends(run);
    }
    let order = NAMES.map(|name| [format!("begin {name}"), format!("end {name}")]);
    assert_eq!(site.all(), order.concat());
}

#[test]
fn node_an_hour_ahead_keeps_its_slot_and_those_that_wait_get_it_next() {
    share_a_slot([AHEAD, BEHIND, RIGHT]);
}

#[test]
fn node_an_hour_behind_keeps_its_slot_and_those_that_wait_get_it_next() {
    share_a_slot([BEHIND, RIGHT, AHEAD]);
}

/// Lock test with three candidates: the second, which is the operator, holds the lock for longer
/// than a lease. Then the lock moves to the third, and on to the first.
fn hold_a_lock(prepared: [Prepare; 3]) {
    let server = Server::start(Kind::Etcd);
    let mut named = NAMES.into_iter().zip(prepared);
    let prefer = format!("prefer = ['{}']\n", NAMES[1]);
    let nodes = [(); 3].map(|()| named.next()).map(|node| {
        let (name, prepare) = node.expect("three");
        locks::prepared(name, &server, &prefer, None, prepare)
    });
    let all: Vec<&Node> = nodes.iter().collect();
    let mut held = agree(&all, 0);
    assert_eq!(held.0, NAMES[1]);
    let what = "the first holder keeps it";
    stays(what, LEASE + Duration::from_secs(5), || {
        agree(&all, 0) == held
    });
    for to in [NAMES[2], NAMES[0]] {
        let passed = locks::output(all[1], &["move", "db", to]);
        assert!(passed.status.success(), "{}", locks::said(&passed));
        let now = agree(&all, held.1);
        assert_eq!(now, (to.to_owned(), held.1 + 1));
        held = now;
    }
}

#[test]
fn candidate_an_hour_ahead_keeps_its_lock_until_it_is_moved() {
    hold_a_lock([RIGHT, AHEAD, BEHIND]);
}

#[test]
fn candidate_an_hour_behind_keeps_its_lock_until_it_is_moved() {
    hold_a_lock([AHEAD, BEHIND, RIGHT]);
}

/// Returns by how many seconds the clock of `again` is ahead when the variable sets it ahead by
/// `said` seconds.
fn ahead_of_again(program: &Path, said: i64) -> i64 {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("clock"), said.to_string()).expect("written");
    let done = Command::new(program)
        .args(["status", "--json", "--state-dir"])
        .arg(dir.path().join("state"))
        .env("SHIFT_CLOCK", dir.path().join("clock"))
        .output()
        .expect("again");
    let shown: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    seconds(shown["now"].as_str().expect("a time")) - seconds("now")
}

/// Returns the same for `again-fleet`, read from the certificate that it makes for a CA.
fn ahead_of_fleet(program: &Path, said: i64) -> i64 {
    const DAY: i64 = 86_400;
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("clock"), said.to_string()).expect("written");
    let done = Command::new(program)
        .args(["ca", "--dir"])
        .arg(dir.path().join("ca"))
        .arg("create")
        .env("SHIFT_CLOCK", dir.path().join("clock"))
        .output()
        .expect("again-fleet");
    assert!(done.status.success(), "{done:?}");
    let begins = "puts OpenSSL::X509::Certificate.new(File.read(ARGV[0])).not_before.utc";
    let done = Command::new("ruby")
        .args(["-ropenssl", "-e", begins])
        .arg(dir.path().join("ca/ca.pem"))
        .output()
        .expect("ruby");
    // Certificates begin a day before they are made.
    seconds(&String::from_utf8_lossy(&done.stdout)) + DAY - seconds("now")
}

/// CLOCK_BOOTTIME of a node is an hour ahead of the others' in a time namespace; the others are
/// then behind it.
mod privileged {
    use super::*;

    const LATER: Prepare = |node| node.set_later(3600);

    #[test]
    fn triggers_pass_between_nodes_whose_boot_clocks_differ() {
        if !permits(Permission::TimeNamespace) {
            return;
        }
        let server = Server::start(Kind::Etcd);
        let [web1, lb1] = pair(&server, LATER, RIGHT);
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/time"));
        let its = namespace(web1.pid()).expect("a namespace");
        assert_ne!(its, namespace(lb1.pid()).expect("a namespace"));
        let (one, waits) = fired(&web1, 7200);
        lb1.runs_once(&one.id);
        let told = waits.all();
        assert!(told[0].starts_with("lb1.test Status(Taken, "), "{told:?}");
        let two = request("again", &["web1.test"]);
        let waits = lb1.ask(&Question::Fire {
            request: two.clone(),
            wait: true,
        });
        web1.runs_once(&two.id);
        let told = waits.all();
        assert!(told[2].starts_with("web1.test Status(Taken, "), "{told:?}");
    }

    #[test]
    fn node_whose_boot_clock_is_ahead_keeps_its_slot() {
        if !permits(Permission::TimeNamespace) {
            return;
        }
        share_a_slot([LATER, RIGHT, LATER]);
    }

    #[test]
    fn node_whose_boot_clock_is_behind_keeps_its_slot() {
        if !permits(Permission::TimeNamespace) {
            return;
        }
        share_a_slot([RIGHT, LATER, RIGHT]);
    }

    #[test]
    fn candidate_whose_boot_clock_is_ahead_keeps_its_lock() {
        if !permits(Permission::TimeNamespace) {
            return;
        }
        hold_a_lock([RIGHT, LATER, RIGHT]);
    }

    #[test]
    fn candidate_whose_boot_clock_is_behind_keeps_its_lock() {
        if !permits(Permission::TimeNamespace) {
            return;
        }
        hold_a_lock([LATER, RIGHT, LATER]);
    }

    /// This test needs no privileges, but `make test` does not build the released `again-fleet`.
    #[test]
    fn released_programs_ignore_the_variable_that_shifts_the_clock() {
        let [again, fleet] = ["dist/again", "dist/again-fleet"].map(|name| {
            let program = repository().join(name);
            assert!(program.is_file(), "no {name}: run `make build`");
            program
        });
        for (program, released, of_tests) in [
            (
                ahead_of_again as fn(&Path, i64) -> i64,
                &again,
                env!("CARGO_BIN_EXE_again-shifted"),
            ),
            (ahead_of_fleet, &fleet, env!("CARGO_BIN_EXE_again-fleet")),
        ] {
            for said in [100 * HOUR, -100 * HOUR] {
                let ahead = program(Path::new(of_tests), said);
                assert!((ahead - said).abs() < HOUR, "{of_tests}: {ahead}");
                let ahead = program(released, said);
                assert!(ahead.abs() < HOUR, "{}: {ahead}", released.display());
            }
            let bytes = fs::read(released).expect("a program");
            let name = b"SHIFT_CLOCK";
            assert!(!bytes.windows(name.len()).any(|part| part == name));
        }
    }
}
