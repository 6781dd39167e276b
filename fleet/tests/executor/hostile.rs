//! Compromised service: it may send anything, and cannot make this node run a trigger that no
//! accepted node has signed.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use again_base::model::Span;
use again_base::sys::pidfd::is_readable_by;
use again_base::sys::{clock, process};
use again_fleet::handover::{MOST_TOGETHER, ask};
use again_fleet::wire::envelope;
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::Trigger;
use again_test_support::{SHORT, wait_for};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::ca::Ca;
use crate::fired::{by, sealed, trigger, unsigned};
use crate::node::Node;

/// Outcome of one value, and the reason.
fn one(node: &Node, value: Vec<u8>) -> (Outcome, String) {
    let answer = node.one(&value);
    (answer.outcome, answer.why)
}

#[test]
fn what_no_accepted_node_has_signed_is_refused_with_the_evidence() {
    let node = Node::new();
    let good = trigger("web1.test");
    let other_target = Trigger {
        target: "db1.test".parse().expect("a certname"),
        ..good.clone()
    };
    let behalf = {
        let mut one = Trigger {
            on_behalf: Some("web2.test".parse().expect("a certname")),
            ..good.clone()
        };
        one.lineage.0[0].path = vec!["web2.test".parse().expect("a certname")];
        one
    };
    let mut changed = by("web1.test", &good);
    let at = changed.len() - 20;
    changed[at] ^= 1;
    for (value, words) in [
        (unsigned(&good), "nobody signed it"),
        (changed, "web1.test did not sign this"),
        (
            by("foreign", &good),
            "the certificate of web1.test is not signed by our CA",
        ),
        (
            by("server.test", &good),
            "server.test signed it in the name of web1.test",
        ),
        (
            by("server.test", &trigger("server.test")),
            "accept does not list server.test",
        ),
        (
            by("web1.test", &other_target),
            "web1.test signed it for db1.test",
        ),
        (
            by("web1.test", &behalf),
            "accept_for does not let web1.test speak for web2.test",
        ),
        (
            sealed("web1.test", "production", std::slice::from_ref(&good)).remove(0),
            "namespace 'production', not for 'test'",
        ),
        (
            b"run rm -rf /".to_vec(),
            "no envelope of again-fleet's version 1",
        ),
        (Vec::new(), "no envelope of again-fleet's version 1"),
        (
            b"AGF2 and what that version has".to_vec(),
            "an envelope of again-fleet's version 2, and this program knows version 1",
        ),
        (
            vec![0; envelope::MOST],
            "no envelope of again-fleet's version 1",
        ),
    ] {
        let (outcome, why) = one(&node, value);
        assert_eq!(outcome, Outcome::Refused, "{words}: {why}");
        assert!(why.contains(words), "{why}");
        assert!(
            node.errors()
                .contains(&format!("again-fleet: refused: {why}")),
            "{}",
            node.errors()
        );
    }
    assert_eq!(node.calls().len(), 0);
    assert_eq!(
        one(&node, by("web1.test", &good)).0,
        Outcome::Taken,
        "and the next one is taken"
    );
}

#[test]
fn a_revocation_counts_for_the_very_next_value() {
    let node = Node::new();
    let crl = node.path("crl");
    let revoke = |from: &str| std::fs::copy(Ca::get().path(from), &crl).expect("copied");
    revoke("crl.pem");
    node.set_well(&format!("crl = {crl:?}"));
    let first = trigger("web1.test");
    assert_eq!(one(&node, by("web1.test", &first)).0, Outcome::Taken);
    revoke("crl-web1.pem");
    let (outcome, why) = one(&node, by("web1.test", &trigger("web1.test")));
    assert_eq!(
        (outcome, why.as_str()),
        (Outcome::Refused, "the certificate of web1.test was revoked")
    );
    // An error that only this node's operator can fix discards nothing.
    revoke("crl-old.pem");
    let (outcome, why) = one(&node, by("web1.test", &trigger("web1.test")));
    assert_eq!(outcome, Outcome::Held, "{why}");
    assert_eq!(node.calls().len(), 1);
}

#[test]
fn what_is_too_old_or_from_the_future_is_not_run() {
    let node = Node::new();
    let now = trigger("web1.test");
    let old = Trigger {
        at: now.at - 7_200_000,
        number: now.at - 7_200_000,
        ..now.clone()
    };
    let (outcome, why) = one(&node, by("web1.test", &old));
    assert_eq!(outcome, Outcome::Expired);
    assert!(why.contains("for 1h, here it is"), "{why}");
    let future = Trigger {
        at: now.at + 3_600_000,
        number: now.at + 3_600_000,
        ..trigger("web1.test")
    };
    let (outcome, why) = one(&node, by("web1.test", &future));
    assert_eq!(outcome, Outcome::Held);
    assert!(why.contains("by the clock of web1.test"), "{why}");
    assert_eq!(node.calls().len(), 0);
}

/// Nothing that is sent is run, and the executor answers the next question.
#[test]
fn any_bytes_on_the_socket_end_with_the_connection() {
    let node = Node::new();
    let good = by("web1.test", &trigger("web1.test"));
    let question = ask(std::slice::from_ref(&good)).expect("a question");
    let bytes = proptest::collection::vec(any::<u8>(), 0..64);
    let spoilt = (0..question.len(), any::<u8>()).prop_map({
        let question = question.clone();
        // A byte in the lengths is changed, or one in the signed part.
        move |(at, byte)| {
            let mut spoilt = question.clone();
            spoilt[at] ^= byte | 1;
            spoilt
        }
    });
    let cut = (0..question.len()).prop_map(move |at| question[..at].to_vec());
    let strategy = prop_oneof![bytes, spoilt, cut];
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let sent = runner.run(&strategy, |bytes| {
        let mut stream = node.connect();
        // The executor may close the connection before the end.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        prop_assert_eq!(node.calls().len(), 0, "it ran something for {:?}", bytes);
        Ok(())
    });
    sent.unwrap_or_else(|e| panic!("{e}: {}", node.errors()));
    assert_eq!(one(&node, good).0, Outcome::Taken);
}

#[test]
fn lengths_that_are_too_large_are_refused_unread() {
    let node = Node::new();
    let head = |count: u32| [b"AGT1".as_slice(), &count.to_be_bytes()].concat();
    let many = head(MOST_TOGETHER as u32 + 1);
    let long = [head(1), u32::MAX.to_be_bytes().to_vec()].concat();
    let ten = [
        head(1),
        (10_u32 << 20).to_be_bytes().to_vec(),
        b"AGE1".to_vec(),
    ]
    .concat();
    for bytes in [many, long, ten, b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
        let mut stream = node.connect();
        stream.write_all(&bytes).expect("written");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("set");
        // The executor closes the connection although more data could come: with an end, or with a
        // reset if it left some unread.
        let hung_up = match stream.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(hung_up, "{bytes:?}");
    }
    // Connections are served one after the other.
    let taken = one(&node, by("web1.test", &trigger("web1.test"))).0;
    assert_eq!(taken, Outcome::Taken);
    let errors = node.errors();
    for words in [
        "33 values were handed over together",
        "a value of 4294967295 bytes is too long",
        "a value of 10485760 bytes is too long",
        "not the language of 'again-fleet executor'",
    ] {
        assert!(errors.contains(words), "{errors}");
    }
}

/// A client that sends nothing delays others for a while, but not forever.
#[test]
fn who_hangs_is_hung_up_on() {
    let node = Node::new();
    let silent = node.connect();
    let begun = Instant::now();
    assert_eq!(
        one(&node, by("web1.test", &trigger("web1.test"))).0,
        Outcome::Taken
    );
    assert!(
        begun.elapsed() > Duration::from_secs(3),
        "it was not asked one by one: {:?}",
        begun.elapsed()
    );
    drop(silent);
}

/// Perl code that sends SIGKILL to the process of the pidfd on its standard input.
const KILL: &str = "syscall(424, 0, 9, 0, 0)";
/// User without privileges, like the service's.
const NOBODY: u32 = 65534;

#[test]
fn pidfd_of_a_run_is_passed_and_gives_no_right_to_signal_it() {
    let node = Node::new();
    let mut run = Command::new("sleep");
    // A process that outlives a failed test must not hold a pipe of the test runner.
    let run = run.arg("600").stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = run.spawn().expect("sleep");
    let id = Id::from_bits(1);
    let trigger = json!({ "id": id, "sender": "web1", "name": "x", "number": 1 });
    let origin = json!({ "origins": [], "triggers": [trigger] });
    let running = json!({ "pid": run.id(), "chain": "c", "origin": origin });
    let status = json!({ "schema": 1, "targets": [{ "timers": [], "running": running }] });
    node.helper_shows("status", &status.to_string());
    // A process counts if it started a clock tick before the question, or earlier.
    let pid = i32::try_from(run.id()).expect("a pid");
    let started = process::identify(pid).expect("alive").started();
    let later = started + Span::from_nanos(20_000_000);
    wait_for("a tick", SHORT, || {
        (clock::boottime() > later).then_some(())
    });
    let (answer, pidfds) = node.became(&id);
    assert_eq!(
        (answer.outcome, answer.is_unwatched),
        (Outcome::Taken, false)
    );
    let [pidfd] = &pidfds[..] else {
        panic!("{pidfds:?}: {}", node.errors())
    };
    // No descriptors are passed for other triggers than those in the question.
    assert!(node.became(&Id::from_bits(2)).1.is_empty());
    if rustix::process::geteuid().is_root() {
        let copy = pidfd.try_clone().expect("a copy");
        let mut ruby = Command::new("ruby");
        ruby.args(["-e", KILL]).stdin(Stdio::from(copy)).uid(NOBODY);
        let said = ruby.current_dir("/").output().expect("ruby").stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("Operation not permitted"), "{said}");
    }
    assert!(!is_readable_by(pidfd.as_fd(), Instant::now()).expect("polled"));
    run.kill().and_then(|()| run.wait()).expect("its end");
    assert!(is_readable_by(pidfd.as_fd(), Instant::now()).expect("polled"));
    // The status still names the process, but there is no descriptor to wait for.
    let (answer, pidfds) = node.became(&id);
    assert!(answer.is_unwatched && pidfds.is_empty());
}

#[test]
fn executor_says_that_nothing_is_watched_if_the_status_cannot_be_read() {
    let node = Node::new();
    let id = Id::from_bits(1);
    assert!(!node.became(&id).0.is_unwatched);
    node.helper_shows("status", "nothing");
    assert!(node.became(&id).0.is_unwatched);
    assert!(node.errors().contains("cannot read 'again status --json'"));
}
