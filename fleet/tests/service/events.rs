//! What runs leave in the spool is in the engine at once, and all of it, whatever is killed meanwhile.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use again_fleet::wire::body::Content;
use again_fleet::wire::envelope::Envelope;
use again_fleet::wire::event::{Batch, Begun, Change, Ended, Event, Line, Status};
use again_fleet::wire::lineage::Lineage;
use again_fleet::wire::name::Id;

use crate::dice::Dice;
use crate::node::{Node, until};
use crate::servers::{Kind, Server};
use crate::straight::Straight;

/// A run's file, as the hook makes it: locked under another name, so that nobody takes it for one that is over.
struct Left {
    file: File,
    bell: UnixDatagram,
    socket: PathBuf,
    n: u64,
}

impl Left {
    fn new(node: &Node, id: u128) -> Left {
        let spool = node.path("spool");
        let begun = Begun {
            at: 1,
            environment: "production".to_owned(),
            puppet: "7.23.0".to_owned(),
            origins: Lineage::default(),
            lost: 0,
        };
        let name = format!("{}-{}", 1_700_000_000_000 + id, Id::from_bits(id));
        let new = spool.join(format!("new-{name}"));
        let file = File::create_new(&new).expect("made");
        file.try_lock().expect("locked");
        fs::rename(new, spool.join(name)).expect("named");
        let mut left = Left {
            file,
            bell: UnixDatagram::unbound().expect("a socket"),
            socket: node.path("run/events"),
            n: 0,
        };
        left.write(&Line::Begun(begun));
        left
    }

    fn write(&mut self, line: &Line) {
        let mut text = serde_json::to_vec(line).expect("JSON");
        text.push(b'\n');
        self.file.write_all(&text).expect("written");
        // Where nobody hears it, it is heard with the next beat.
        self.bell.set_nonblocking(true).expect("set");
        let _ = self.bell.send_to(b"!", &self.socket);
    }

    fn event(&mut self) {
        self.n += 1;
        let event = Event {
            n: self.n,
            at: self.n,
            resource: format!("File[/srv/{}]", self.n),
            change: Change::Changed,
            property: Some("content".to_owned()),
            corrective: false,
            tags: vec!["file".to_owned(), "class".to_owned()],
            within: vec!["Stage[main]".to_owned(), "Main".to_owned()],
            file: None,
            line: None,
            old: None,
            new: None,
            message: None,
        };
        self.write(&Line::Event(event));
    }

    fn end(mut self) {
        let n = self.n + 1;
        self.write(&Line::Ended(Ended {
            n,
            at: n,
            status: Status::Changed,
            transaction: "x".to_owned(),
            classes: vec![],
            metrics: BTreeMap::new(),
            dropped: 0,
        }));
    }
}

fn node(server: &Server) -> Node {
    let node = Node::off("web1.test", server);
    fs::create_dir(node.path("spool")).expect("made");
    node.set_also(&format!("spool_dir = {:?}", node.path("spool")));
    node.take();
    node.start();
    node.is_linked(true);
    node
}

fn batch(bytes: &[u8]) -> Batch {
    let namespace = "test".parse().expect("a namespace");
    let opened = Envelope::parse(bytes).expect("an envelope");
    let opened = opened.open(&namespace, |_| Ok::<_, again_fleet::wire::Malformed>(()));
    let (_, batch) = opened.expect("a batch");
    let batch: Batch = batch;
    batch.check().expect("a good one");
    batch
}

/// The numbers that the engine has of each run, in order; each once, however often it was told.
fn told(straight: &Straight) -> BTreeMap<Id, Vec<u64>> {
    let mut told: BTreeMap<Id, Vec<u64>> = BTreeMap::new();
    for value in straight.list("event/web1=test/") {
        let batch = batch(&value.bytes);
        let numbers = told.entry(batch.run).or_default();
        numbers.extend(batch.events.iter().map(|event| event.n));
        numbers.extend(batch.ended.map(|ended| ended.n));
    }
    for numbers in told.values_mut() {
        numbers.sort_unstable();
        numbers.dedup();
    }
    told
}

fn an_event_is_told_before_the_run_goes_on(kind: Kind) {
    let server = Server::start(kind);
    let node = node(&server);
    let straight = Straight::at(&server, "lb1.test");
    let mut run = Left::new(&node, 1);
    for n in 1..=3 {
        run.event();
        until("the event", || {
            told(&straight).get(&Id::from_bits(1)) == Some(&(1..=n).collect())
        });
    }
    // Nobody is there for a while.
    node.kill();
    run.event();
    node.start();
    run.event();
    run.end();
    until("the end", || {
        told(&straight).get(&Id::from_bits(1)) == Some(&(1..=6).collect())
    });
    let left = || fs::read_dir(node.path("spool")).expect("a spool");
    until("an empty spool", || {
        let mut names = left().map(|entry| entry.expect("an entry").file_name());
        names.all(|name| name == "counts.json")
    });
}

#[test]
fn an_event_is_told_before_the_run_goes_on_over_etcd() {
    an_event_is_told_before_the_run_goes_on(Kind::Etcd);
}

#[test]
fn an_event_is_told_before_the_run_goes_on_over_nats() {
    an_event_is_told_before_the_run_goes_on(Kind::Nats);
}

/// How many times something is killed, and how many events there are for each; at night, a thousand times (tests/tools/sweep).
fn faults() -> u64 {
    let text = std::env::var("AGAIN_FLEET_EVENT_FAULTS");
    text.map_or(30, |text| text.parse().expect("a number"))
}

const EVENTS_FOR_A_FAULT: u64 = 100;
/// How many events a run has.
const EVENTS_OF_A_RUN: u64 = 500;

fn nothing_is_lost(kind: Kind) {
    let server = Server::start(kind);
    let node = node(&server);
    let faults = faults();
    let mut dice = Dice::new(7);
    let count = faults * EVENTS_FOR_A_FAULT;
    let runs = count.div_ceil(EVENTS_OF_A_RUN);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for id in 1..=runs {
                let mut run = Left::new(&node, id.into());
                for _ in 0..EVENTS_OF_A_RUN {
                    run.event();
                    thread::sleep(Duration::from_micros(200));
                }
                run.end();
            }
        });
        for _ in 0..faults {
            thread::sleep(Duration::from_millis(dice.below(100)));
            match dice.below(3) {
                0 => {
                    node.kill();
                    node.start();
                }
                1 => {
                    server.kill();
                    server.run();
                }
                // Nothing comes through for a while, as over a network that was cut.
                _ => {
                    node.signal("-STOP");
                    thread::sleep(Duration::from_millis(dice.below(100)));
                    node.signal("-CONT");
                }
            }
        }
        writer.join().expect("written");
    });
    let straight = Straight::at(&server, "lb1.test");
    let whole: Vec<u64> = (1..=EVENTS_OF_A_RUN + 1).collect();
    let is_whole = || {
        let told = told(&straight);
        told.len() as u64 == runs && told.values().all(|numbers| *numbers == whole)
    };
    until("all of it", is_whole);
}

#[test]
fn nothing_is_lost_whatever_is_killed_over_etcd() {
    nothing_is_lost(Kind::Etcd);
}

#[test]
fn nothing_is_lost_whatever_is_killed_over_nats() {
    nothing_is_lost(Kind::Nats);
}

#[test]
fn a_big_first_run_takes_bounded_memory_and_is_told_whole() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server);
    let straight = Straight::at(&server, "lb1.test");
    let mut run = Left::new(&node, 1);
    (0..10_000).for_each(|_| run.event());
    run.end();
    let whole: Vec<u64> = (1..=10_001).collect();
    until("all of it", || {
        told(&straight).get(&Id::from_bits(1)) == Some(&whole)
    });
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("a process");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = peak
        .and_then(|peak| peak.trim().trim_end_matches(" kB").parse().ok())
        .expect("a number");
    assert!(peak < 64 << 10, "{peak} kB");
}
