//! Many senders, and one node that is busy.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use again_fleet::wire::name::Id;

use crate::node::{Node, request, until};
use crate::servers::{Kind, Server};
use crate::straight::Straight;

const SENDERS: usize = 20;
const EACH: usize = 50;
/// Number of names of a sender.
const NAMES: usize = 5;

/// Peak memory of a process so far, in MiB.
pub fn most_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.expect("a line").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") / 1024
}

/// Sends this number of triggers to lb1, under each name in turn; returns the last of each name.
fn fires(sender: &Node) -> Vec<Id> {
    let fire = |n: usize| {
        let one = request(&format!("name {}", n % NAMES), &["lb1.test"]);
        let said = sender.fire(&one);
        // A busy machine may not have connected to the backend in time.
        let is_true = ["delivered lb1.test", "kept lb1.test"].contains(&said[0].as_str());
        assert!(is_true, "{said:?}");
        one.id
    };
    let all: Vec<Id> = (0..EACH).map(fire).collect();
    all[EACH - NAMES..].to_vec()
}

/// Guard that ends the watch when it is dropped, on failure too: otherwise the test would wait for
/// the watch forever.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_thousand_triggers_during_a_run_have_one_run_after_it() {
    let server = Server::start(Kind::Etcd);
    let lb1 = Node::new("lb1.test", &server);
    let names = (1..=SENDERS).map(|n| &*format!("n{n:02}.test").leak());
    let senders: Vec<Node> = names.map(|name| Node::off(name, &server)).collect();
    senders.iter().for_each(Node::start);
    senders
        .iter()
        .chain([&lb1])
        .for_each(|node| node.is_linked(true));
    // A run is under way, and lasts while they send.
    lb1.write("hold", "");
    senders[0].fire(&request("first", &["lb1.test"]));
    until("the first run", || lb1.runs().len() == 1);
    let (began, memory) = (Instant::now(), most_memory(lb1.pid()));
    let is_over = AtomicBool::new(false);
    let (last, most): (Vec<Id>, usize) = thread::scope(|scope| {
        let over = Over(&is_over);
        let firing: Vec<_> = senders
            .iter()
            .map(|one| scope.spawn(|| fires(one)))
            .collect();
        let watching = scope.spawn(|| {
            let (straight, mut most) = (Straight::at(&server, "web1.test"), 0);
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(straight.list("to/").len());
                most = most.max(straight.list("result/").len());
                // Time itself is tested: the peak value, sampled repeatedly.
                thread::sleep(Duration::from_millis(50));
            }
            most
        });
        let last = firing
            .into_iter()
            .flat_map(|one| one.join().expect("fired"));
        let last = last.collect();
        until("what is on its way to be taken", || {
            senders.iter().all(|one| one.how().outbox.triggers == 0)
        });
        drop(over);
        (last, watching.join().expect("watched"))
    });
    let took = began.elapsed();
    // The backend holds one trigger for each sender and name, however often it was sent, and the
    // same number of statuses.
    assert!(
        (1..=SENDERS * NAMES + 1).contains(&most),
        "{most} registers"
    );
    let grown = most_memory(lb1.pid()) - memory;
    assert!(grown <= 32, "{grown} MiB more");
    assert!(took < Duration::from_secs(300), "{took:?}");
    assert_eq!(lb1.runs().len(), 1);
    fs::remove_file(lb1.path("hold")).expect("removed");
    until("its end", || {
        lb1.again(&["status"]).status.code() == Some(3)
    });
    let runs = lb1.runs();
    assert_eq!(runs.len(), 2, "{runs:#?}");
    let did: BTreeSet<&Id> = runs[1].triggers.iter().collect();
    assert_eq!(did.len(), runs[1].triggers.len(), "one came twice");
    assert!(last.iter().all(|id| did.contains(id)));
    println!(
        "{} triggers of {SENDERS} senders, {} of them taken in {took:.1?}: one run, {most} registers at most, {grown} MiB more",
        SENDERS * EACH,
        did.len()
    );

    come_back_spread(&server, &senders);
}

/// Nodes that lose the backend at the same time reconnect at different times.
fn come_back_spread(server: &Server, nodes: &[Node]) {
    server.kill();
    nodes.iter().for_each(|node| node.is_linked(false));
    // Time itself is tested: each has tried several times by then, with growing pauses.
    thread::sleep(Duration::from_secs(4));
    server.run();
    nodes.iter().for_each(|node| node.is_linked(true));
    let mut since: Vec<u64> = nodes.iter().map(|node| node.how().link.since).collect();
    since.sort_unstable();
    let (first, last) = (since[0], since[SENDERS - 1]);
    println!("{SENDERS} services are back within {} ms", last - first);
    assert!(last - first > 500, "{since:?}");
}
