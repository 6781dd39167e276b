//! Tests that take a while: an idle service, and a backend that stops answering.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::node::{Node, request, until};
use crate::servers::{Kind, Server};

/// Time within which a dead connection is detected: half a minute, and the delay of a busy machine.
const NOTICED: Duration = Duration::from_secs(30 + 60);

/// Maximum number of wakeups of an idle service per minute: five were measured with NATS, up to
/// eight with etcd. On a busy machine an answer may arrive in smaller pieces.
const MOST: u64 = 12;

/// TCP connections among the descriptors of a process.
fn connections(pid: u32) -> usize {
    let listed = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors");
    let links = listed.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let sockets: Vec<String> = links
        .filter_map(|link| {
            let link = link
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?
                .to_owned();
            Some(link)
        })
        .collect();
    let tables = ["tcp", "tcp6"]
        .map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines());
    // The tenth field is the inode; state 01 is ESTABLISHED.
    let is_ours = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&"01")
            && fields
                .get(9)
                .is_some_and(|inode| sockets.iter().any(|one| one == inode))
    };
    lines.filter(is_ours).count()
}

/// Number of voluntary context switches of a process.
fn wakeups(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a line").trim().parse().expect("a number")
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task"))
        .expect("threads")
        .count()
}

fn idle(kind: Kind) {
    let server = Server::start(kind);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    let pid = web1.pid();
    until("one thread", || threads(pid) == 1);
    // Time itself is tested: the number of wakeups once the service has settled.
    sleep(Duration::from_secs(5));
    let before = wakeups(pid);
    // Time itself is tested: as above.
    sleep(Duration::from_secs(60));
    let woken = wakeups(pid) - before;
    assert!(woken <= MOST, "{woken} wakeups in a minute");
    assert_eq!((threads(pid), connections(pid)), (1, 1));
}

#[test]
fn an_idle_service_has_one_thread_and_one_connection_and_sleeps_over_etcd() {
    idle(Kind::Etcd);
}

#[test]
fn an_idle_service_has_one_thread_and_one_connection_and_sleeps_over_nats() {
    idle(Kind::Nats);
}

fn silent(kind: Kind) {
    let server = Server::start(kind);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    web1.is_linked(true);
    lb1.is_linked(true);
    server.stop();
    let since = Instant::now();
    until("the loss", || !lb1.how().link.is_up);
    until("the loss", || !web1.how().link.is_up);
    assert!(since.elapsed() <= NOTICED, "{:?}", since.elapsed());
    let one = request("again", &["lb1.test"]);
    let (said, since) = (web1.fire(&one), Instant::now());
    assert!(
        said[0] == "kept lb1.test" && since.elapsed() < Duration::from_secs(20),
        "{said:?}"
    );
    server.go_on();
    lb1.runs_once(&one.id);
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    assert_eq!(lb1.ran(), [one.id]);
}

#[test]
fn a_backend_that_fell_silent_is_noticed_over_etcd() {
    silent(Kind::Etcd);
}

#[test]
fn a_backend_that_fell_silent_is_noticed_over_nats() {
    silent(Kind::Nats);
}
