//! Clients of the service's socket, and signals that stop it or reload its settings.

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use again_fleet::ask::{Answer, Question, length_of_answer};
use again_fleet::step::model::Back;

use crate::node::{Answers, Node, request, until};
use crate::servers::{Kind, Server};
use crate::{ACROSS, KEPT};

#[test]
fn a_question_that_breaks_a_rule_is_refused_and_the_service_goes_on() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    let refused = |bytes: &[u8]| {
        let mut stream = web1.connect();
        stream.write_all(bytes).expect("written");
        Answers(stream).all()
    };
    let [one] = &refused(b"GET / HTTP/1.1\r\n\r\n")[..] else {
        panic!("one answer")
    };
    assert!(
        one.starts_with("refused: that is not the language of"),
        "{one}"
    );
    let [one] = &refused(b"AGQ1\xff\xff\xff\xff")[..] else {
        panic!("one answer")
    };
    assert!(one.contains("bytes are too many"), "{one}");
    let [one] = &refused(b"AGQ1\0\0\0\x02{}")[..] else {
        panic!("one answer")
    };
    assert!(one.contains("is no question"), "{one}");
    // A silent client blocks no other, and gets an error in the end.
    let silent = web1.connect();
    let mut half = web1.connect();
    half.write_all(b"AGQ1\0\0\0\x02{").expect("written");
    assert_eq!(web1.how().node.as_str(), "web1.test");
    for stream in [silent, half] {
        let [one] = &Answers(stream).all()[..] else {
            panic!("one answer")
        };
        assert!(one.contains("did not arrive in time"), "{one}");
    }
}

#[test]
fn nobody_but_root_may_ask() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    let socket = web1.path("run/trigger");
    let script = r#"
require 'socket'
UNIXSocket.open(ARGV[0]) { |s| s.write("AGQ1\0\0\0\x0c\"HowAreYou\" "); print s.read }
"#;
    let nobody = || {
        let ruby = ["--reuid=65534", "--clear-groups", "ruby", "-e", script];
        let done = Command::new("setpriv")
            .args(ruby)
            .arg(&socket)
            .output()
            .expect("setpriv");
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    };
    Command::new("chmod")
        .arg("711")
        .arg(web1.path(""))
        .status()
        .expect("chmod");
    assert!(nobody().contains("Permission denied"), "{}", nobody());
    // A client that connects in spite of the mode is identified.
    Command::new("chmod")
        .arg("666")
        .arg(&socket)
        .status()
        .expect("chmod");
    assert!(
        nobody().contains("user 65534 may not ask this service"),
        "{}",
        nobody()
    );
}

/// Members of the socket's group may send triggers and read; publishing facts and removing nodes is
/// reserved to root.
#[test]
fn a_group_may_not_do_what_is_roots() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    let socket = web1.path("run/trigger");
    let open = format!(
        "chmod 711 {0}; chgrp 65534 {1}; chmod 660 {1}",
        web1.at(""),
        web1.at("run/trigger")
    );
    let opened = Command::new("sh").args(["-c", &open]).status();
    assert!(opened.expect("sh").success());
    let script = r#"
require 'socket'
UNIXSocket.open(ARGV[0]) { |s| s.write(['AGQ1', ARGV[1].bytesize].pack('a4N'), ARGV[1]); print s.read }
"#;
    let asks = |question: &str| {
        let words = [
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "ruby",
            "-e",
            script,
        ];
        let mut command = Command::new("setpriv");
        let done = command.args(words).arg(&socket).arg(question).output();
        let done = done.expect("setpriv");
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    };
    until("what it publishes", || {
        asks(r#""nodes""#).contains(r#"{"node":{"node":"web1.test""#)
    });
    for question in [r#"{"forget":"lb1.test"}"#, r#"{"ended":"changed"}"#] {
        let said = asks(question);
        assert!(
            said.contains("user 65534 may fire and look; root may do this"),
            "{said}"
        );
    }
}

#[test]
fn many_ask_at_a_time() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    let asked: Vec<Answers> = (0..300)
        .map(|n| {
            let request = request(&format!("name {n}"), &["lb1.test"]);
            web1.ask(&Question::Fire {
                request,
                wait: false,
            })
        })
        .collect();
    for answers in asked {
        let said = answers.all();
        // A busy backend may take longer than the answer.
        let is_late = said == ["kept lb1.test", "said etcd"];
        assert!(said == ACROSS || said == KEPT || is_late, "{said:?}");
    }
    assert_eq!(web1.how().outbox.triggers, 300);
}

#[test]
fn what_is_taken_back_in_time_is_not_run() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    web1.is_linked(true);
    lb1.stop();
    let one = request("again", &["lb1.test"]);
    let fired = Question::Fire {
        request: one.clone(),
        wait: true,
    };
    let mut fired = web1.ask(&fired);
    assert_eq!([fired.word(), fired.word()], ACROSS);
    let back = Question::TakeBack {
        what: Back::Id(one.id.clone()),
        wait: true,
    };
    let mut back = web1.ask(&back);
    assert_eq!([back.word(), back.word()], ACROSS);
    lb1.start();
    for answers in [fired, back] {
        assert_eq!(answers.all(), ["lb1.test Status(Cancelled, \"\")"]);
    }
    assert!(lb1.runs().is_empty());
    // There is nothing left to cancel.
    let back = Question::TakeBack {
        what: Back::Id(one.id),
        wait: true,
    };
    assert_eq!(web1.ask(&back).all(), ["said etcd"]);
}

/// The trigger was accepted before this node knew.
#[test]
fn what_is_taken_back_too_late_was_run() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    web1.is_linked(true);
    // No service receives results here; and its run takes a long time.
    lb1.kill();
    lb1.write("hold", "");
    let one = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&one), ACROSS);
    web1.kill();
    lb1.start();
    lb1.runs_once(&one.id);
    server.kill();
    web1.start();
    let mut back = web1.ask(&Question::TakeBack {
        what: Back::Id(one.id.clone()),
        wait: true,
    });
    assert_eq!([back.word(), back.word()], KEPT);
    server.run();
    // Earlier answers come first.
    let too_late = "lb1.test Status(TooLate, \"it had been taken\")";
    let mut words = back.map(crate::node::word);
    assert!(words.any(|word| word == too_late));
    assert_eq!(lb1.ran(), [one.id]);
}

#[test]
fn a_newer_trigger_stands_for_an_older_one() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::off("lb1.test", &server),
    );
    web1.is_linked(true);
    let one = request("again", &["lb1.test"]);
    let mut first = web1.ask(&Question::Fire {
        request: one,
        wait: true,
    });
    assert_eq!([first.word(), first.word()], ACROSS);
    let two = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&two), ACROSS);
    assert_eq!(
        first.word(),
        format!("lb1.test ReplacedBy(Id(\"{}\"))", two.id)
    );
    lb1.take();
    lb1.start();
    assert!(first.word().starts_with("lb1.test Status(Taken"));
}

#[test]
fn who_has_asked_is_answered_before_the_end() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    server.stop();
    let one = request("again", &["lb1.test"]);
    let asked = web1.ask(&Question::Fire {
        request: one,
        wait: true,
    });
    // Time itself is tested: the service is asked to end while a client waits.
    std::thread::sleep(Duration::from_millis(300));
    web1.signal("-TERM");
    // The backend does not confirm the trigger; the disk does.
    let said: Vec<Answer> = asked.collect();
    assert!(
        matches!(&said[..], [Answer::Kept(_), Answer::Said(_)]),
        "{said:?}"
    );
    let status = web1.ended();
    assert!(status.success(), "{status}");
    let told = [web1.tells(), web1.tells()];
    assert!(
        told[0].contains("WATCHDOG=1") && told[0].contains("triggers and 0 results wait"),
        "{told:?}"
    );
    assert!(
        told.iter().any(|one| one.contains("STOPPING=1")),
        "{told:?}"
    );
    server.go_on();
}

#[test]
fn a_socket_that_systemd_passes_is_used() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::off("web1.test", &server);
    web1.start_by_socket();
    // The first client starts the service.
    let one = request("again", &["lb1.test"]);
    let said = web1.fire(&one);
    assert!(said == ACROSS || said == KEPT, "{said:?}");
    until("its own", || web1.how().link.is_up);
    // Connections wait while the service is down.
    web1.signal("-STOP");
    let mut waits = web1.ask(&Question::HowAreYou);
    web1.signal("-CONT");
    assert!(matches!(waits.next(), Some(Answer::How(_))));
}

#[test]
fn settings_and_certificates_are_taken_up() {
    let [first, second] = [Kind::Etcd, Kind::Etcd].map(Server::start);
    let web1 = Node::new("web1.test", &first);
    let lb1 = Node::new("lb1.test", &second);
    web1.is_linked(true);
    lb1.is_linked(true);
    // Invalid settings change nothing.
    let path = web1.path("again-fleet.toml");
    let good = std::fs::read_to_string(&path).expect("settings");
    std::fs::write(&path, "acept = []").expect("written");
    web1.signal("-HUP");
    until("a complaint", || web1.log().contains("unknown key 'acept'"));
    std::fs::write(
        &path,
        good.replace("namespace = 'test'", "namespace = 'other'"),
    )
    .expect("written");
    web1.signal("-HUP");
    until("a complaint", || {
        web1.log().contains("from the next start on")
    });
    assert!(web1.how().link.is_up);
    // The other backend.
    web1.set(&second);
    web1.signal("-HUP");
    until("the other backend", || {
        web1.log().matches("etcd is reached").count() == 2
    });
    let one = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&one), ACROSS);
    lb1.runs_once(&one.id);
    web1.certify("web1.test");
    let two = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&two), ACROSS);
    lb1.runs_once(&two.id);
    until("the files", || {
        web1.log().contains("the certificates were read anew")
    });
}

#[test]
fn what_cannot_be_used_is_said_at_the_start() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::off("web1.test", &server);
    let path = web1.path("again-fleet.toml");
    let good = std::fs::read_to_string(&path).expect("settings");
    for (was, is, words) in [
        ("endpoints = ", "#", "set endpoints"),
        ("accept = ", "#", "set accept"),
        (
            "certname = 'web1.test'",
            "certname = 'web2.test'",
            "the certificate is that of web1.test, and this node is web2.test",
        ),
        ("/key.pem", "/nothing.pem", "nothing.pem cannot be read"),
    ] {
        std::fs::write(&path, good.replace(was, is)).expect("written");
        let done = Command::new(env!("CARGO_BIN_EXE_again-fleet"))
            .args(["serve", "--config"])
            .arg(&path)
            .output()
            .expect("the service");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            done.status.code() == Some(1) && said.contains(words),
            "{said}"
        );
    }
    // Two services do not share an outbox.
    std::fs::write(&path, good).expect("written");
    web1.start();
    let second = Command::new(env!("CARGO_BIN_EXE_again-fleet"))
        .args(["serve", "--config"])
        .arg(&path)
        .output()
        .expect("the service");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains("another 'again-fleet serve' is at work"),
        "{said}"
    );
    assert!(web1.how().began > 0);
}

/// The service closes the connection of a waiting client that has disconnected.
#[test]
fn whoever_goes_makes_room() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    let one = request("again", &["lb1.test"]);
    let mut waits = web1.ask(&Question::Fire {
        request: one,
        wait: true,
    });
    assert_eq!([waits.word(), waits.word()], ACROSS);
    let count = || {
        let listed = std::fs::read_dir(format!("/proc/{}/fd", web1.pid())).expect("descriptors");
        listed.count()
    };
    let before = count();
    drop(waits);
    let since = Instant::now();
    until("its end", || count() < before);
    assert!(since.elapsed() < Duration::from_secs(30));
    // Half a question, then a disconnect.
    let mut half = web1.connect();
    half.write_all(b"AGQ1").expect("written");
    half.shutdown(std::net::Shutdown::Write).expect("shut");
    let mut head = [0; 8];
    half.read_exact(&mut head).expect("an answer");
    assert!(length_of_answer(&head).is_ok());
}
