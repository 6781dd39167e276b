//! Runs that share slots, with a real etcd: each is a process of its own that calls
//! `again-fleet slot`, as Puppet does before a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use again_base::sys::clock;
use again_fleet::wire::slot::Slot;
use again_test_support::{boottime, stays};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::crash::set;
use crate::fired::sealed_as;
use crate::node::{Node, until, within};
use crate::relay::Relay;
use crate::servers::{Kind, Server};
use crate::straight::{self, Straight};
use again_test_support::Dice;

/// Lifetime of a lease after its last renewal.
pub const LEASE: Duration = Duration::from_secs(60);
/// Time for which the others wait for a beat of a node.
const SILENT: Duration = Duration::from_secs(90);

/// Script that waits for a slot, writes into the file of all nodes, and continues while the file
/// `hold` exists.
const RUN: &str = r"#!/bin/sh
FLEET slot >>DIR/said 2>&1 || exit 1
echo begin NAME >>ALL
while [ -e DIR/hold ]; do sleep 0.05; done
sleep 0.2
echo end NAME >>ALL
";

pub struct Site {
    server: Server,
    dir: tempfile::TempDir,
}

impl Site {
    pub fn new(kind: Kind) -> Site {
        let server = Server::start(kind);
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("all"), "").expect("written");
        Site { server, dir }
    }

    /// Returns a node whose runs wait for one of `limit` slots, and continue until they are
    /// released.
    fn node(&self, name: &'static str, limit: u32) -> Node {
        self.prepared(name, limit, |_| ())
    }

    /// Returns a node as above, after calling `prepare` and before any of its processes starts.
    pub fn prepared(&self, name: &'static str, limit: u32, prepare: impl FnOnce(&Node)) -> Node {
        let node = Node::off(name, &self.server);
        prepare(&node);
        node.set_also("slots_group = 'g'");
        node.set_also(&format!("slots_limit = {limit}"));
        let all = self.dir.path().join("all");
        let run = RUN.replace("ALL", all.to_str().expect("a plain path"));
        node.program("waits", &run.replace("NAME", name));
        node.write("hold", "");
        node.start();
        node.is_linked(true);
        node
    }

    /// Lines that the runs have written, in order.
    pub fn all(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("all")).expect("a file");
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    pub fn has(&self, line: &str) {
        until(line, || self.all().contains(&line.to_owned()));
    }

    /// Queue according to `again-fleet slots --json` of this node: names, and whether each node
    /// runs.
    fn line(&self, node: &Node) -> Vec<(String, bool)> {
        let shown = output(node, &["slots", "g", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        let nodes = shown["groups"][0]["nodes"].as_array().cloned();
        let nodes = nodes.unwrap_or_default();
        let name = |one: &serde_json::Value| one["node"].as_str().expect("a name").to_owned();
        let one = |one| (name(one), one["runs"] == true);
        nodes.iter().map(one).collect()
    }

    /// Waits until this number of nodes is in the queue.
    #[track_caller]
    pub fn stand(&self, node: &Node, count: usize) -> Vec<(String, bool)> {
        until("all of them in line", || self.line(node).len() == count);
        self.line(node)
    }
}

pub fn run(node: &Node) -> Child {
    let mut command = Command::new(node.path("waits"));
    let command = command.stdin(Stdio::null()).process_group(0);
    command.spawn().expect("a run")
}

pub fn let_go(node: &Node) {
    let _ = fs::remove_file(node.path("hold"));
}

fn output(node: &Node, words: &[&str]) -> Output {
    node.command(words).output().expect("again-fleet")
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(all).expect("UTF-8")
}

#[track_caller]
pub fn ends(mut run: Child) {
    until("its end", || run.try_wait().expect("a child").is_some());
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Nodes in the order in which the backend stored their requests.
fn order(server: &Server) -> Vec<String> {
    let values = Straight::at(server, "web1.test").ever();
    let signed = values
        .iter()
        .filter(|value| value.key.starts_with("again/v1/test/slot/g/") && value.writes == 2);
    let node = |key: &str| key.rsplit('/').next().expect("a node").replace('=', ".");
    signed.map(|value| node(&value.key)).collect()
}

#[test]
fn twelve_runs_share_three_slots_in_the_order_in_which_they_came() {
    let site = Site::new(Kind::Etcd);
    let names = (1..=12).map(|n| &*format!("n{n:02}.test").leak());
    let nodes: Vec<Node> = names.map(|name| site.node(name, 3)).collect();
    nodes.iter().for_each(let_go);
    let runs: Vec<Child> = nodes.iter().map(run).collect();
    runs.into_iter().for_each(ends);
    let order = order(&site.server);
    assert_eq!(order.len(), 12, "{order:?}");
    let place: BTreeMap<&str, usize> = order
        .iter()
        .enumerate()
        .map(|(n, one)| (&**one, n))
        .collect();
    let (mut running, mut ended, mut most) = (0, vec![false; 12], 0);
    for line in site.all() {
        let (what, name) = line.split_once(' ').expect("two words");
        let place = place[name];
        if what == "begin" {
            running += 1;
            most = most.max(running);
            // Of the runs that came before, all but two have ended.
            let before = ended[..place].iter().filter(|ended| !**ended).count();
            assert!(before <= 2, "{name} began as {place} of {order:?}");
        } else {
            running -= 1;
            ended[place] = true;
        }
    }
    assert!(ended.iter().all(|ended| *ended));
    assert_eq!((running, most), (0, 3));
    until("an empty line", || site.line(&nodes[0]).is_empty());
    let waited = nodes.iter().filter(|node| {
        let said = read(&node.path("said"));
        said.contains("waits for a slot of group 'g', which has 3: ") && said.contains("has a slot")
    });
    assert!(waited.count() >= 6);
    // The service reports each change to a waiting run.
    let words = |node: &Node| read(&node.path("said")).matches("the run waits").count();
    assert!(nodes.iter().map(words).max() > Some(2));
}

#[test]
fn what_a_killed_run_had_is_free_at_once() {
    let site = Site::new(Kind::Etcd);
    let [one, two] = ["n01.test", "n02.test"].map(|name| site.node(name, 1));
    let mut first = run(&one);
    site.has("begin n01.test");
    // A second run of the same node shares the slot of the first one.
    let second = run(&one);
    until("a second run", || site.all().len() == 2);
    let other = run(&two);
    let line = [
        ("n01.test".to_owned(), true),
        ("n02.test".to_owned(), false),
    ];
    assert_eq!(site.stand(&two, 2), line);
    let since = Instant::now();
    first.kill().and_then(|()| first.wait()).expect("its end");
    let mut second = second;
    assert_eq!(site.line(&two), line, "one of its runs is left");
    second.kill().and_then(|()| second.wait()).expect("its end");
    site.has("begin n02.test");
    assert!(since.elapsed() < LEASE / 2, "{:?}", since.elapsed());
    let_go(&two);
    ends(other);
    let shown = said(&output(&two, &["slots"]));
    until("an empty line", || {
        said(&output(&two, &["slots"])).contains("nobody runs or waits")
    });
    assert!(!shown.contains("n01.test"), "{shown}");
}

/// Three nodes that share one slot, with a run of each: the first runs, the others wait.
fn three_at_one_slot() -> (Site, [Node; 3], [Child; 3]) {
    let site = Site::new(Kind::Etcd);
    let nodes = ["n01.test", "n02.test", "n03.test"].map(|name| site.node(name, 1));
    let [one, two, three] = &nodes;
    let first = run(one);
    site.has("begin n01.test");
    let runs = [first, run(two), run(three)];
    site.stand(three, 3);
    (site, nodes, runs)
}

#[test]
fn nodes_keep_their_places_when_their_services_restart() {
    let (site, [one, two, three], runs) = three_at_one_slot();
    let before = order(&site.server);
    // After a kill and a start, or a stop and a start, the queue position is the same.
    one.start_anew();
    one.is_linked(true);
    one.stop();
    one.start();
    one.is_linked(true);
    let waiting = if before[1] == "n02.test" {
        &two
    } else {
        &three
    };
    waiting.start_anew();
    waiting.is_linked(true);
    let what = "nobody goes to the end of the line";
    stays(what, LEASE + Duration::from_secs(5), || {
        order(&site.server) == before
    });
    assert_eq!(site.all(), ["begin n01.test"]);
    [one, two, three].iter().for_each(let_go);
    runs.into_iter().for_each(ends);
}

#[test]
fn slot_is_free_when_its_run_ended_or_the_lease_of_its_killed_service_ends() {
    let (site, [one, two, three], [first, second, third]) = three_at_one_slot();
    let before = order(&site.server);
    let waiting = if before[1] == "n02.test" {
        &two
    } else {
        &three
    };
    // A slot whose run has ended while the service was down is free when the service is back.
    one.kill();
    let_go(&one);
    ends(first);
    one.start();
    site.has(&format!("begin {}", before[1]));
    // If a node does not come back, its lease ends.
    waiting.kill();
    let since = Instant::now();
    site.has(&format!("begin {}", before[2]));
    assert!(since.elapsed() > LEASE / 4, "{:?}", since.elapsed());
    let_go(&two);
    let_go(&three);
    ends(second);
    ends(third);
}

/// Lease of a node's queue position, as its service has saved it.
fn lease(node: &Node) -> i64 {
    let kept = read(&node.path("state").join("serve/slots"));
    let line = kept.lines().find(|line| line.starts_with("group "));
    let lease = line.and_then(|line| line.split(' ').nth(2));
    lease.expect("a lease").parse().expect("a number")
}

/// The holder is alive, but its connection is silent.
#[test]
fn silent_holder_loses_its_slot_though_somebody_keeps_its_lease_alive() {
    let (site, [one, two, three], [first, second, third]) = three_at_one_slot();
    let straight = Straight::at(&site.server, "web1.test");
    let relay = Relay::to(site.server.port);
    one.set_also(&format!("endpoints = ['localhost:{}']", relay.port));
    one.start_anew();
    one.is_linked(true);
    let before = order(&site.server);
    // While the node beats, it keeps the slot.
    stays("one runs", SILENT + Duration::from_secs(30), || {
        site.all() == ["begin n01.test"]
    });
    let lease = lease(&one);
    relay.cut();
    let since = Instant::now();
    let begun = format!("begin {}", before[1]);
    within(4 * SILENT, "the next run", || {
        straight.renew(lease).expect("the lease lives");
        site.all().contains(&begun)
    });
    // The node was sure for a minute after its last beat.
    assert!(since.elapsed() > LEASE / 2, "{:?}", since.elapsed());
    let line = "n01.test has lost its place in group 'g'";
    assert!(two.log().contains(line) || three.log().contains(line));
    // Before another run began, the node logged that its own run continues without a slot. When it
    // reconnects, it has none.
    let ended = "the slot in group 'g' has ended, as its lease or its beats were not renewed";
    assert!(one.log().contains(ended), "{}", one.log());
    straight.renew(lease).expect("the lease lives");
    relay.mend_without_connections();
    one.is_linked(true);
    until("the end of its slot", || {
        let shown = said(&output(&one, &["slots"]));
        !shown.contains("n01.test") && !said(&output(&one, &["check"])).contains(ended)
    });
    assert!(site.all().iter().all(|line| line != "end n01.test"));
    [&one, &two, &three].iter().for_each(|node| let_go(node));
    [first, second, third].into_iter().for_each(ends);
}

/// One node holds a slot and the next one waits for it; another client keeps their leases alive,
/// and puts copies of their beats back again and again.
#[test]
fn places_of_dead_nodes_are_removed_though_their_beats_are_put_back() {
    let (site, [one, two, three], runs) = three_at_one_slot();
    let idle = site.node("n04.test", 1);
    let straight = Straight::at(&site.server, "web1.test");
    let before = order(&site.server);
    let (next, last) = match &*before[1] {
        "n02.test" => (&two, &three),
        _ => (&three, &two),
    };
    until("beats of both", || straight.list("beat/").len() == 3);
    let old = straight.list("beat/");
    let leases = [lease(&one), lease(next)];
    // The nodes continue to beat for a while.
    until("newer beats", || {
        let newer = straight.list("beat/");
        old.iter()
            .all(|old| !newer.iter().any(|one| one.bytes == old.bytes))
    });
    one.kill();
    next.kill();
    let live = last.name.replace('.', "=");
    let mut copied = Instant::now();
    within(4 * SILENT, "the last run", || {
        for lease in leases {
            straight.renew(lease).expect("the lease lives");
        }
        // Not too often: the backend must hold one beat for long enough that a queue position is
        // removed.
        if copied.elapsed() > Duration::from_secs(2) {
            copied = Instant::now();
            for beat in old.iter().filter(|beat| !beat.key.ends_with(&live)) {
                let key = beat.key.strip_prefix("again/v1/test/").expect("a key");
                straight.put(key, &beat.bytes).expect("put");
            }
        }
        site.all().contains(&format!("begin {}", last.name))
    });
    // A node without a queue position does not beat.
    let beats = straight.list("beat/");
    assert_eq!(beats.len(), 3, "{beats:?}");
    assert!(idle.log().contains("is reached"));
    [&one, &two, &three].iter().for_each(|node| let_go(node));
    runs.into_iter().for_each(ends);
}

#[test]
fn without_an_backend_a_run_goes_ahead_or_does_not_start() {
    let site = Site::new(Kind::Etcd);
    let [one, two] = ["n01.test", "n02.test"].map(|name| site.node(name, 1));
    site.server.kill();
    one.is_linked(false);
    two.is_linked(false);
    let_go(&one);
    two.set_also("slots_required = true");
    let since = Instant::now();
    let run = run(&one);
    let refused = output(&two, &["slot", "--max-wait", "3s"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = said(&refused);
    assert!(
        why.contains("error: no slot of group 'g' within 3s: the backend is not there: "),
        "{why}"
    );
    site.has("end n01.test");
    // The run waited for its full patience, and did not start as early as the others do.
    let ahead = read(&one.path("said"));
    let (_, words) = ahead.split_once("group 'g', ").expect("words");
    let (seconds, _) = words.split_once(" s from now").expect("a number");
    let pause = Duration::from_secs(10 + seconds.parse::<u64>().expect("a number"));
    assert!(
        since.elapsed() >= pause,
        "{ahead} after {:?}",
        since.elapsed()
    );
    assert!(
        ahead.contains("the run goes ahead without a slot of group 'g', "),
        "{ahead}"
    );
    assert!(ahead.contains("the backend is not there"), "{ahead}");
    ends(run);
    // The same without a service.
    two.kill();
    let refused = output(&two, &["slot", "--max-wait", "2s"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("the service of this node cannot be asked"),
        "{}",
        said(&refused)
    );
    two.set_also("slots_required = false");
    let done = output(&two, &["slot", "--max-wait", "2s"]);
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("goes ahead"), "{}", said(&done));
}

/// One node loses the backend for longer than a lease, while its run continues.
#[test]
fn one_more_runs_where_a_node_loses_the_backend_for_long_and_the_limit_holds_again() {
    let site = Site::new(Kind::Etcd);
    let [one, two, three] = ["n01.test", "n02.test", "n03.test"].map(|name| site.node(name, 1));
    let relay = Relay::to(site.server.port);
    one.set_also(&format!("endpoints = ['localhost:{}']", relay.port));
    one.start_anew();
    one.is_linked(true);
    let first = run(&one);
    site.has("begin n01.test");
    let second = run(&two);
    site.stand(&two, 2);
    relay.cut();
    let since = Instant::now();
    site.has("begin n02.test");
    assert!(since.elapsed() > LEASE / 4, "{:?}", since.elapsed());
    let ended = "the slot in group 'g' has ended, as its lease or its beats were not renewed; the run here goes on, and one more may run";
    until("a word of it", || one.log().contains(ended));
    assert_eq!(site.all(), ["begin n01.test", "begin n02.test"]);
    assert!(read(&two.path("said")).contains("has a slot of group 'g'"));
    // Information that the node has without the backend.
    let shown = said(&output(&one, &["slots"]));
    assert!(shown.contains("etcd ") && shown.contains(ended), "{shown}");
    let checked = said(&output(&one, &["check"]));
    assert!(checked.contains(ended), "{checked}");
    let status = || said(&one.again(&["status"]));
    let in_status = "again-fleet: a slot has ended";
    until("a word in the status", || status().contains(in_status));
    relay.mend_without_connections();
    one.is_linked(true);
    until("nothing of it", || {
        let checked = said(&output(&one, &["check"]));
        !checked.contains("has ended, as its lease") && !status().contains(in_status)
    });
    // The next run of the node waits as all others do.
    let_go(&one);
    ends(first);
    let (third, fourth) = (run(&one), run(&three));
    let line = site.stand(&three, 3);
    assert_eq!(line[0], ("n02.test".to_owned(), true));
    assert!(line[1..].iter().all(|(_, runs)| !runs), "{line:?}");
    [&two, &three].into_iter().for_each(let_go);
    [second, third, fourth].into_iter().for_each(ends);
    let all = site.all();
    let all: Vec<&str> = all[3..].iter().map(|line| &line[..3]).collect();
    assert_eq!(all, ["end", "beg", "end", "beg", "end"], "{:?}", site.all());
    assert_eq!(one.log().matches(ended).count(), 1);
}

/// The run may be the one that fixes the settings.
#[test]
fn where_settings_cannot_be_read_a_run_goes_ahead_unless_a_slot_is_required() {
    let site = Site::new(Kind::Etcd);
    let one = site.node("n01.test", 1);
    one.set_also("no_setting = 1");
    one.set_also("slots_required = true");
    let refused = output(&one, &["slot"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    one.set_also("slots_required = false");
    let done = output(&one, &["slot"]);
    let words = "the run goes ahead without a slot: the settings cannot be used: ";
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains(words), "{}", said(&done));
}

#[test]
fn whoever_does_not_get_a_slot_in_time_does_not_start() {
    let site = Site::new(Kind::Etcd);
    let [one, two] = ["n01.test", "n02.test"].map(|name| site.node(name, 1));
    let first = run(&one);
    site.has("begin n01.test");
    let late = output(&two, &["slot", "--max-wait", "2s"]);
    assert_eq!(late.status.code(), Some(1));
    assert!(
        said(&late).contains("no slot of group 'g' within 2s: others run"),
        "{}",
        said(&late)
    );
    // A repeated request comes from the same run, whose end is watched only once.
    for _ in 0..3 {
        let late = output(&two, &["slot", "--max-wait", "1s"]);
        assert_eq!(late.status.code(), Some(1));
    }
    let open = fs::read_dir(format!("/proc/{}/fd", two.pid())).expect("a process");
    let open = open.filter_map(|fd| fs::read_link(fd.expect("a descriptor").path()).ok());
    let watched = open.filter(|what| what.to_string_lossy().contains("pidfd"));
    assert_eq!(watched.count(), 1);
    // Another group has slots of its own, and without a group there is nothing to wait for.
    let other = output(&two, &["slot", "--group", "other"]);
    assert!(
        other.status.success() && said(&other).is_empty(),
        "{}",
        said(&other)
    );
    let_go(&one);
    ends(first);
}

#[test]
fn slots_are_refused_on_nats() {
    let site = Site::new(Kind::Nats);
    let one = site.node("n01.test", 1);
    let done = output(&one, &["slot"]);
    assert!(done.status.success());
    let sentence = "slots need etcd: on NATS a key that is renewed loses its place";
    assert!(
        said(&done).contains(&format!("the run goes ahead without a slot: {sentence}")),
        "{}",
        said(&done)
    );
    // Entries of this node in etcd remain until their leases end.
    one.kill();
    one.write("state/serve/slots", "boot\ngroup 1 7 5 6 1 1 1 g\n");
    one.start();
    one.is_linked(true);
    assert!(!one.path("state/serve/slots").exists());
    one.set_also("slots_required = true");
    one.set_also("operators = ['n01.test']");
    for words in [&["slot"][..], &["slots"], &["release", "g", "n01.test"]] {
        let refused = output(&one, words);
        assert_eq!(refused.status.code(), Some(1), "{words:?}");
        assert!(
            said(&refused).contains(sentence),
            "{words:?}: {}",
            said(&refused)
        );
    }
}

/// Four kinds of values that do not count: unsigned, signed by another node, signed for another
/// key, and signed by the node itself at another time.
#[test]
fn what_a_node_has_not_put_there_counts_for_nothing() {
    let site = Site::new(Kind::Etcd);
    let [one, two] = ["n01.test", "n02.test"].map(|name| site.node(name, 1));
    let first = run(&one);
    site.has("begin n01.test");
    let straight = Straight::at(&site.server, "web1.test");
    let own = straight.list("slot/g/").remove(0);
    let_go(&one);
    ends(first);
    until("an empty line", || straight.list("slot/g/").is_empty());
    let slot = |node: &str| Slot {
        group: "g".parse().expect("a name"),
        node: node.parse().expect("a certname"),
        first: 1,
        limit: 1,
        since: 1,
        why: "nothing".to_owned(),
        beats: false,
    };
    for (node, bytes) in [
        ("n01=test", own.bytes.clone()),
        ("n03=test", b"{}".to_vec()),
        ("n04=test", sealed_as("web1.test", &slot("n04.test"))),
        ("n05=test", sealed_as("n05.test", &slot("n06.test"))),
    ] {
        let key = format!("slot/g/{node}");
        // Two writes, as a node makes them for a queue position.
        straight.put(&key, b"").expect("put");
        straight.put(&key, &bytes).expect("put");
    }
    let run = run(&two);
    site.has("begin n02.test");
    assert_eq!(site.line(&two), [("n02.test".to_owned(), true)]);
    let log = two.log();
    for word in [
        "put there another time",
        "signed it in the name of",
        "told it elsewhere",
    ] {
        assert!(log.contains(word), "{log}");
    }
    // The value is overwritten by another node: the run continues, and the service logs it when it
    // sees it.
    let theirs = straight.list("slot/g/n02=test").remove(0);
    straight.put("slot/g/n02=test", &theirs.bytes).expect("put");
    assert!(site.line(&two).is_empty());
    two.start_anew();
    until("a word of it", || {
        two.log().contains("the slot in group 'g' is gone")
    });
    assert!(site.line(&two).is_empty());
    let_go(&two);
    ends(run);
}

#[test]
fn an_operator_takes_a_place_away() {
    let site = Site::new(Kind::Etcd);
    let [one, two] = ["n01.test", "n02.test"].map(|name| site.node(name, 1));
    let first = run(&one);
    site.has("begin n01.test");
    let second = run(&two);
    site.stand(&two, 2);
    let words = ["release", "g", "n01.test"];
    let refused = output(&two, &words);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("operators does not list it"),
        "{}",
        said(&refused)
    );
    two.set_also("operators = ['n02.test']");
    two.signal("-HUP");
    until("other settings", || two.log().contains("read anew"));
    let done = output(&two, &words);
    assert!(done.status.success(), "{}", said(&done));
    site.has("begin n02.test");
    until("a word of it", || {
        one.log().contains("the slot in group 'g' is gone")
    });
    assert_eq!(site.line(&two), [("n02.test".to_owned(), true)]);
    let nobody = output(&two, &words);
    assert!(
        said(&nobody).contains("neither runs nor waits"),
        "{}",
        said(&nobody)
    );
    [&one, &two].into_iter().for_each(let_go);
    [first, second].into_iter().for_each(ends);
}

/// Real Puppet calls the command before the run, and does not run if it fails.
#[test]
fn puppet_waits_before_its_run() {
    let site = Site::new(Kind::Etcd);
    let [one, two] = ["n01.test", "n02.test"].map(|name| site.node(name, 1));
    let first = run(&one);
    site.has("begin n01.test");
    two.write("site.pp", "file { 'DIR/made': content => 'by puppet' }");
    two.program("prerun", "#!/bin/sh\nexec FLEET slot >>DIR/said 2>&1\n");
    let puppet = |more: &[&str]| {
        let words = two.puppet();
        let mut command = Command::new(&words[0]);
        let prerun = format!("{}{}", two.at("prerun"), more.concat());
        command
            .args(&words[1..])
            .args(["--prerun_command", &prerun]);
        command
    };
    let run = puppet(&[]).stdout(Stdio::null()).spawn().expect("puppet");
    let line = site.stand(&two, 2);
    assert!(line.contains(&("n02.test".to_owned(), false)), "{line:?}");
    until("a reason", || {
        read(&two.path("said")).contains("1 before it: n01.test")
    });
    let shown = said(&output(&one, &["slots"]));
    let why = "n02.test  waits since ";
    assert!(
        shown.contains("g: 1 of 1 slots taken") && shown.contains(why),
        "{shown}"
    );
    assert!(shown.contains(&format!("process {}", run.id())), "{shown}");
    assert!(!two.path("made").exists());
    let_go(&one);
    ends(first);
    ends(run);
    assert!(two.path("made").exists());
    until("an empty line", || site.line(&one).is_empty());
    // Without a slot in time, there is no run.
    fs::remove_file(two.path("made")).expect("removed");
    one.write("hold", "");
    let first = crate::slots::run(&one);
    until("another run", || {
        site.line(&one) == [("n01.test".to_owned(), true)]
    });
    two.set_also("slots_max_wait = 2");
    let failed = puppet(&[]).output().expect("puppet");
    assert!(!failed.status.success());
    assert!(!two.path("made").exists(), "{}", said(&failed));
    assert!(read(&two.path("said")).contains("within 2s"));
    let_go(&one);
    ends(first);
}

/// Script of a run among many, which records its process and the times at which it began and ended.
const ONE_OF_MANY: &str = r#"#!/bin/sh
FLEET slot >>DIR/said 2>&1 || exit 1
read up rest </proc/uptime
echo "begin NAME $$ $up" >>ALL
sleep 0.$((($$ % 4) + 1))
read up rest </proc/uptime
echo "end NAME $$ $up" >>ALL
"#;

/// Number of kills of a service or a member of the backend, beside runs that are killed and
/// services that stop for a while; a thousand in the nightly sweep (tests/tools/sweep).
fn kills() -> u64 {
    set("AGAIN_FLEET_SLOT_FAULTS", 12)
}

/// Number of nodes; a hundred in the nightly sweep.
fn count() -> u64 {
    set("AGAIN_FLEET_SLOT_NODES", 20)
}

/// Nodes that run all the time and share five slots of a backend with three members.
struct Many {
    servers: [Server; 3],
    dir: tempfile::TempDir,
    nodes: Vec<Node>,
    /// Current run of each node.
    runs: Vec<Mutex<Option<Child>>>,
}

const SLOTS: usize = 5;

/// Guard that ends the threads of a test, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Many {
    fn new() -> Many {
        let servers = Server::cluster(Kind::Etcd);
        let dir = tempfile::tempdir().expect("a directory");
        let all = dir.path().join("all");
        fs::write(&all, "").expect("written");
        let ports = servers.iter().map(|one| format!("localhost:{}", one.port));
        let endpoints: Vec<String> = ports.collect();
        let names = (1..=count()).map(|n| &*format!("n{n:02}.test").leak());
        let node = |name: &'static str| {
            let node = Node::off(name, &servers[0]);
            node.set_also(&format!("endpoints = {endpoints:?}"));
            node.set_also("slots_group = 'g'");
            node.set_also(&format!("slots_limit = {SLOTS}"));
            // No run goes ahead without a slot.
            node.set_also("slots_required = true");
            let run = ONE_OF_MANY.replace("ALL", all.to_str().expect("a plain path"));
            node.program("waits", &run.replace("NAME", name));
            node.start();
            node
        };
        let nodes: Vec<Node> = names.map(node).collect();
        let runs = nodes.iter().map(|_| Mutex::default()).collect();
        Many {
            servers,
            dir,
            nodes,
            runs,
        }
    }

    fn write(&self, line: &str) {
        let mut options = fs::File::options();
        let file = options.append(true).open(self.dir.path().join("all"));
        writeln!(file.expect("a file"), "{line}").expect("written");
    }

    /// Starts one run of this node after the other, until `is_over` is set.
    fn keep_running(&self, n: usize, is_over: &AtomicBool) {
        let mine = || self.runs[n].lock().expect("alone");
        while !is_over.load(Ordering::Relaxed) {
            *mine() = Some(run(&self.nodes[n]));
            until("the end of a run", || {
                let mut run = mine();
                let run = run.as_mut().expect("a run");
                run.try_wait().expect("a child").is_some()
            });
            let ended = mine().take().expect("a run").wait().expect("its end");
            let was_killed = ended.code().is_none();
            assert!(was_killed || ended.success(), "{}", self.nodes[n].name);
        }
    }

    /// Kills a run together with its `again-fleet slot`, which would otherwise look for its parent,
    /// and find the process that adopted it. The line is written before the kill frees anything.
    fn kill_run(&self, n: usize) {
        if let Some(run) = self.runs[n].lock().expect("alone").as_mut()
            && run.try_wait().expect("a child").is_none()
        {
            let up = boottime();
            self.write(&format!("killed {} {} {up}", self.nodes[n].name, run.id()));
            let group = Pid::from_child(run);
            kill_process_group(group, Signal::KILL).expect("killed");
        }
    }

    /// Causes a fault; returns whether it killed a service or a member.
    fn fault(&self, dice: &mut Dice) -> bool {
        let n = usize::try_from(dice.below(count())).expect("a number");
        let node = &self.nodes[n];
        let what = dice.below(10);
        match what {
            0..5 => node.start_anew(),
            5..7 => self.kill_run(n),
            7..9 => {
                node.signal("-STOP");
                dice.pause(Duration::from_millis(300));
                node.signal("-CONT");
            }
            _ => {
                let member = &self.servers[n % 3];
                member.kill();
                dice.pause(Duration::from_secs(1));
                member.run();
            }
        }
        dice.pause(Duration::from_secs(2));
        !(5..9).contains(&what)
    }

    /// Watches the slots until `is_over` is set; returns the longest time for which one was unused
    /// while a node waited.
    fn watch_over(&self, is_over: &AtomicBool) -> Duration {
        let straight = Straight::at(&self.servers[0], "web1.test");
        let (mut idle, mut longest) = (BTreeMap::<u64, Instant>::new(), Duration::ZERO);
        while !is_over.load(Ordering::Relaxed) {
            // Time itself is tested: how long a slot is unused, checked once a second.
            thread::sleep(Duration::from_secs(1));
            let Ok(mut places) = straight.look("slot/g/") else {
                continue;
            };
            places.retain(|place| place.writes == 2);
            places.sort_by_key(|place| place.revision);
            let running = running(&read(&self.dir.path().join("all")));
            let mut first = BTreeMap::new();
            for place in places.iter().take(SLOTS) {
                if !running.contains(&process(&straight::read(&place.bytes))) {
                    let since = idle.get(&place.revision).copied();
                    first.insert(place.revision, since.unwrap_or_else(Instant::now));
                }
            }
            idle = first;
            for (revision, since) in &idle {
                longest = longest.max(since.elapsed());
                // When it elects a new leader, etcd restarts the time of all leases.
                assert!(since.elapsed() < 2 * LEASE, "{revision} is lost");
            }
        }
        longest
    }

    /// Queue positions of all runs, from the whole history of the backend.
    fn places(&self) -> Places {
        let straight = Straight::at(&self.servers[0], "web1.test");
        let began = clock::walltime().millis() as f64 / 1e3 - boottime();
        let mut places = Places::default();
        for value in straight.ever() {
            if value.key.starts_with("again/v1/test/slot/g/") && value.writes == 2 {
                let slot: Slot = straight::read(&value.bytes);
                let since = slot.since as f64 / 1e3 - began;
                places.add(process(&slot), since, value.revision);
            }
        }
        places
    }
}

/// Node and process of a run, as the runs write them.
fn process(slot: &Slot) -> String {
    let pid = slot.why.strip_prefix("process ").expect("a process");
    format!("{} {pid}", slot.node)
}

/// Runs that have begun and not ended.
fn running(all: &str) -> BTreeSet<String> {
    let mut running = BTreeSet::new();
    for line in all.lines() {
        let (what, rest) = line.split_once(' ').expect("two words");
        let (process, _) = rest.rsplit_once(' ').unwrap_or_default();
        match what {
            "begin" => running.insert(process.to_owned()),
            _ => running.remove(process),
        };
    }
    running
}

/// Last queue position of each run, by its node and process, and by the time at which it began to
/// wait: the kernel reuses process numbers.
#[derive(Default)]
struct Places(BTreeMap<String, Vec<(f64, u64)>>);

impl Places {
    fn add(&mut self, process: String, since: f64, revision: u64) {
        let runs = self.0.entry(process).or_default();
        match runs.last_mut() {
            Some((began, last)) if since - *began < 120.0 => *last = revision,
            _ => runs.push((since, revision)),
        }
    }

    /// Queue position of the run that had this process number at this time.
    fn at(&self, process: &str, up: f64) -> Option<u64> {
        let mut runs = self.0.get(process)?.iter();
        // The start of the wait is stored in milliseconds.
        let run = runs.rfind(|(since, _)| *since <= up + 0.1)?;
        Some(run.1)
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.0.values().flatten().map(|(_, place)| *place)
    }
}

/// Checks the lines of all runs: never more runs at a time than slots, and no run before those that
/// came first.
fn judge(all: &str, places: &Places) {
    let (mut running, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let (mut killed, mut ended_of) = (BTreeSet::new(), BTreeSet::new());
    let mut began = 0;
    for line in all.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, name, pid, up] = words[..] else {
            panic!("{line}");
        };
        let up: f64 = up.parse().expect("a time");
        let process = format!("{name} {pid}");
        if what != "begin" {
            running.remove(&process);
            if let Some(place) = places.at(&process, up) {
                ended.insert(place);
                ended_of.insert(name);
            }
            if what == "killed" {
                killed.insert(process);
            }
            continue;
        }
        // The run was about to write its line when it was killed.
        if killed.contains(&process) {
            continue;
        }
        began += 1;
        running.insert(process.clone());
        assert!(running.len() <= SLOTS, "{line}: {running:?}");
        if let Some(place) = places.at(&process, up) {
            let before = places
                .all()
                .filter(|one| *one < place && !ended.contains(one));
            let before: Vec<_> = before.collect();
            assert!(before.len() < SLOTS, "{line}, at {place}: after {before:?}");
        } else {
            // The run came before the service had noticed the end of the previous run, and shares
            // its queue position.
            assert!(ended_of.contains(name), "{line}: without a place");
        }
    }
    let places = places.all().count();
    println!("{began} runs, {places} places");
    assert!(began > 0);
}

#[test]
fn no_slot_is_given_twice_or_lost_whatever_is_killed() {
    let many = Many::new();
    let (is_over, mut dice) = (
        AtomicBool::new(false),
        Dice::new(set("AGAIN_FLEET_SEED", 11)),
    );
    thread::scope(|scope| {
        let over = Over(&is_over);
        for n in 0..many.nodes.len() {
            let (many, is_over) = (&many, &is_over);
            scope.spawn(move || many.keep_running(n, is_over));
        }
        let watch = scope.spawn(|| many.watch_over(&is_over));
        let mut killed = 0;
        while killed < kills() && !watch.is_finished() {
            killed += u64::from(many.fault(&mut dice));
        }
        // All nodes are connected again.
        until("five that run at once", || {
            running(&read(&many.dir.path().join("all"))).len() == SLOTS
        });
        drop(over);
        let longest = watch.join().expect("no slot was lost");
        println!("{killed} kills; a slot was unused for {longest:.1?} at most");
    });
    judge(&read(&many.dir.path().join("all")), &many.places());
    for node in &many.nodes {
        assert!(!node.log().contains("is gone"), "a place was lost");
    }
    until("an empty line", || {
        said(&output(&many.nodes[0], &["slots"])).contains("nobody runs or waits")
    });
}
