//! Services that hang, close the connection early, or send invalid answers. The command reports a
//! failure within its time limit.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use again_fleet::ask::{self, Answer};
use again_fleet::step::model::News;
use again_fleet::wire::outcome::Outcome;

use crate::node::{Done, Node, tell};
use crate::{delivered, name, said, told};

const FIRE: [&str; 3] = ["trigger", "--to", "lb1"];

/// Time limit of a command: the service's five seconds, and the delay of a busy machine.
const BOUND: Duration = Duration::from_secs(60);

fn failed(done: &Done, part: &str) {
    assert_eq!(done.status, 1, "{done:?}");
    assert!(done.error().contains(part), "{done:?} lacks {part:?}");
    assert!(done.took < BOUND, "{done:?}");
    assert!(!done.err.contains('\u{1b}'), "{done:?}");
}

#[test]
fn nobody_listens() {
    let node = Node::new();
    failed(&node.run(&FIRE), "there is no socket");
    drop(node.listen());
    let done = node.run(&FIRE);
    failed(&done, "nobody listens at");
    let nowhere = node.path("spool-requests");
    let todo = "start the service when it is asked; it cannot wait on disk: ";
    assert!(
        done.error()
            .contains(&format!("{todo}{}: ", nowhere.display())),
        "{done:?}"
    );
    let remedy = format!("'install -d -m 2750 -g again-fleet {}'", nowhere.display());
    assert!(done.error().ends_with(&remedy), "{done:?}");
    failed(&node.run(&["cancel", "--to", "lb1"]), "nobody listens at");
}

#[test]
fn it_takes_nobody_in() {
    let node = Node::new();
    let listener = node.listen();
    // The connection queue of the socket is full.
    rustix::net::listen(&listener, 0).expect("set");
    let path = node.path("run/trigger");
    let waiting = UnixStream::connect(&path).expect("the first one");
    let done = node.run(&FIRE);
    failed(&done, "takes nobody in");
    assert!(done.took > Duration::from_secs(4), "{done:?}");
    drop(waiting);
}

#[test]
fn it_never_answers() {
    let node = Node::new();
    let listener = node.listen();
    let done = node.run(&FIRE);
    failed(&done, "has not answered within 5 s");
    assert!(done.took > Duration::from_secs(4), "{done:?}");
    drop(listener);
}

/// A single byte now and then is not an answer.
#[test]
fn it_drips() {
    let node = Node::new();
    let service = node.serves(|stream, _| {
        for byte in ask::say(&Answer::Delivered(name("lb1"))).expect("an answer") {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            // Time itself is tested: the service answers too slowly.
            std::thread::sleep(Duration::from_millis(300));
        }
        // Time itself is tested: as above.
        std::thread::sleep(Duration::from_secs(2));
    });
    failed(&node.run(&FIRE), "has not answered within 5 s");
    service.join().expect("asked");
}

#[test]
fn it_breaks_off() {
    let whole: Vec<u8> = delivered(&["lb1"])
        .iter()
        .flat_map(|answer| ask::say(answer).expect("an answer"))
        .collect();
    // The connection is closed in the head, in the rest, or between two answers.
    let first = ask::say(&Answer::Delivered(name("lb1")))
        .expect("an answer")
        .len();
    for length in [0, 3, 12, first, whole.len() - 1] {
        let node = Node::new();
        let part = whole[..length].to_vec();
        let service = node.serves(move |stream, _| stream.write_all(&part).expect("written"));
        failed(&node.run(&FIRE), "ended before it had answered");
        service.join().expect("asked");
    }
}

#[test]
fn it_talks_nonsense() {
    let framed = |body: &[u8]| {
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [b"AGS1", &length[..], body].concat()
    };
    for (bytes, part) in [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            "speaks another language",
        ),
        (b"AGS2\0\0\0\x05\"end\"".to_vec(), "speaks another language"),
        (b"AGS1\xff\xff\xff\xff".to_vec(), "speaks another language"),
        (framed(b"nonsense"), "said what is no answer"),
        (
            framed(br#"{"failed":["lb1","\u001b[2J"]}"#),
            "said what is no answer",
        ),
        (
            framed(br#"{"delivered":"../../etc"}"#),
            "said what is no answer",
        ),
        (framed(br#""end""#), "answered something else"),
    ] {
        let node = Node::new();
        let service = node.serves(move |stream, _| stream.write_all(&bytes).expect("written"));
        failed(&node.run(&FIRE), part);
        service.join().expect("asked");
    }
}

#[test]
fn it_refuses() {
    let node = Node::new();
    let service = node.answers(vec![Answer::Refused(
        "the state directory is full".to_owned(),
    )]);
    failed(&node.run(&FIRE), "refuses: the state directory is full");
    service.join().expect("asked");
}

#[test]
fn it_says_nothing_of_a_target() {
    let node = Node::new();
    let service = node.answers(vec![said(None)]);
    failed(
        &node.run(&FIRE),
        "not fired for 1 node: lb1: the service said nothing of it",
    );
    service.join().expect("asked");
}

#[test]
fn it_ends_while_somebody_waits() {
    let node = Node::new();
    let service = node.serves(|stream, _| {
        tell(stream, &delivered(&["lb1"]));
        tell(stream, &[told("lb1", Outcome::Taken)]);
    });
    let done = node.run(&["trigger", "--to", "lb1", "--wait"]);
    failed(
        &done,
        "what it fired goes on, and nobody tells what becomes of it",
    );
    service.join().expect("asked");
}

/// Statuses of a node that is not a target, and of a target after its final status, change nothing.
#[test]
fn it_tells_too_much() {
    let node = Node::new();
    let service = node.serves(|stream, _| {
        tell(stream, &delivered(&["lb1", "lb2"]));
        let news = News::Status(Outcome::Failed, "x".to_owned());
        let other = Answer::Progress {
            id: again_fleet::wire::name::Id::from_bits(1),
            // This name cannot be part of an id.
            target: name("other9"),
            news,
        };
        let twice = [told("lb1", Outcome::Changed), told("lb1", Outcome::Failed)];
        tell(stream, &[other]);
        tell(stream, &twice);
        tell(stream, &[told("lb2", Outcome::Changed), Answer::End]);
    });
    let done = node.run(&["trigger", "--to", "lb1", "lb2", "--wait"]);
    assert_eq!(done.status, 0, "{done:?}");
    assert!(!done.out.contains("other9"), "{done:?}");
    service.join().expect("asked");
}

/// The service may close the connection before it has read everything, as one that refuses does;
/// nothing is lost by that.
#[test]
fn it_does_not_read_what_is_asked() {
    let node = Node::new();
    let listener = node.listen();
    let names: Vec<String> = (0..5000).map(|n| format!("n{n:0>200}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let done = node.run(&[&["trigger", "--to"], &names[..]].concat());
    failed(&done, "did not take the question");
    drop(listener);
}
