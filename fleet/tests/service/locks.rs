//! Locks, with a real etcd: three candidates, each with a service, an executor, and a run that
//! writes down what its service reports about the lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use again_base::sys::clock::walltime;
use again_fleet::wire::lock::{Lock, MOST_TOKEN, Reset};
use serde_json::Value;

use crate::crash::set;
use crate::fired::sealed_as;
use crate::node::{LONG, Node, until, within};
use crate::relay::Relay;
use crate::servers::{Kind, Server};
use crate::straight::{self, Straight};
use crate::told::inventory;
use again_test_support::{Dice, stays, wait_for};

/// Lifetime of a lease after its last renewal.
const LEASE: Duration = Duration::from_secs(60);
/// Time for which the others wait for a beat of a holder.
const SILENT: Duration = Duration::from_secs(90);
/// Time after the end of a lease by which all candidates have run.
const LATER: Duration = Duration::from_secs(10);

pub const NAMES: [&str; 3] = ["n01.test", "n02.test", "n03.test"];

/// Script that records the lock as a manifest would see it.
const RUN: &str = "#!/bin/sh\nFLEET locks --own --json >>DIR/seen 2>&1\n";

fn candidate(
    name: &'static str,
    server: &Server,
    more: &str,
    endpoints: Option<&[String]>,
) -> Node {
    prepared(name, server, more, endpoints, |_| ())
}

/// Returns a candidate, after calling `prepare` and before any of its processes starts.
pub fn prepared(
    name: &'static str,
    server: &Server,
    more: &str,
    endpoints: Option<&[String]>,
    prepare: impl FnOnce(&Node),
) -> Node {
    let node = Node::off(name, server);
    prepare(&node);
    // No sender is accepted: the node learns all the same that there is another holder.
    node.set_also("accept = []");
    node.set_also("operators = ['n02.test']");
    node.program("puppet it", RUN);
    node.set_also(&format!("locks_dir = '{}'", node.at("locks.d")));
    fs::create_dir(node.path("locks.d")).expect("made");
    let lock = format!("name = 'db'\ncandidates = {NAMES:?}\n{more}");
    node.write("locks.d/db.toml", &lock);
    if let Some(endpoints) = endpoints {
        node.set_also(&format!("endpoints = {endpoints:?}"));
    }
    node.take();
    node.start();
    node
}

/// Function that makes a value, given the revision of the key's first write.
type Make = Box<dyn Fn(u64) -> Vec<u8>>;

fn three(server: &Server) -> [Node; 3] {
    NAMES.map(|name| candidate(name, server, "", None))
}

pub fn output(node: &Node, words: &[&str]) -> Output {
    node.command(words).output().expect("again-fleet")
}

pub fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(all).expect("UTF-8")
}

/// State of the lock as a service reports it.
fn own(node: &Node) -> Value {
    let shown = output(node, &["locks", "--own", "--json"]);
    let shown = serde_json::from_slice::<Value>(&shown.stdout);
    shown.map_or(Value::Null, |shown| shown["locks"]["db"].clone())
}

/// Holder and token, if the service is certain.
fn held(node: &Node) -> Option<(String, u64)> {
    let own = own(node);
    Some((own["holder"].as_str()?.to_owned(), own["token"].as_u64()?))
}

/// State of the lock as the fact reports it to a real manifest.
fn in_a_manifest(node: &Node) -> String {
    let manifest = "$lock = $facts['again_fleet']['locks']['db']\nnotice(\"holder=${lock['holder']} token=${lock['token']} mine=${lock['is_mine']}\")\n";
    node.write("site.pp", manifest);
    let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../puppet-module/lib/facter");
    let words = node.puppet();
    let mut puppet = Command::new(&words[0]);
    puppet
        .args(&words[1..])
        .env("FACTERLIB", facts)
        .env("AGAIN_FLEET_BIN", env!("CARGO_BIN_EXE_again-fleet"))
        .env("AGAIN_FLEET_CONFIG", node.path("again-fleet.toml"));
    said(&puppet.output().expect("puppet"))
}

/// Waits until all of these nodes report the same holder, with a token above this one.
#[track_caller]
pub fn agree(nodes: &[&Node], above: u64) -> (String, u64) {
    let mut agreed = None;
    until("a holder whom all know", || {
        let all: Vec<_> = nodes.iter().map(|node| held(node)).collect();
        agreed = all[0].clone().filter(|(_, token)| *token > above);
        agreed.is_some() && all.iter().all(|one| *one == agreed)
    });
    agreed.expect("a holder")
}

/// Whether a run of this node has seen that holder.
fn has_run(node: &Node, (holder, token): &(String, u64)) -> bool {
    let seen = fs::read_to_string(node.path("seen")).unwrap_or_default();
    seen.lines().any(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        line["locks"]["db"]["holder"] == **holder && line["locks"]["db"]["token"] == *token
    })
}

#[track_caller]
fn all_run(nodes: &[&Node], holder: &(String, u64)) {
    for node in nodes {
        until("a run with the new holder", || has_run(node, holder));
    }
}

fn of<'n>(nodes: &'n [Node; 3], name: &str) -> &'n Node {
    nodes
        .iter()
        .find(|node| node.name == name)
        .expect("a candidate")
}

/// All values that the lock ever had, in the order of the backend.
fn words(server: &Server) -> Vec<Lock> {
    let all = Straight::at(server, "web1.test").ever();
    let mut words: Vec<Lock> = Vec::new();
    for value in all
        .iter()
        .filter(|value| value.key == "again/v1/test/lock/db" && !value.bytes.is_empty())
    {
        let word: Lock = straight::read(&value.bytes);
        assert_eq!((word.first, value.writes), (value.first, 2), "{word:?}");
        words.push(word);
    }
    words
}

#[test]
fn candidate_keeps_its_lock_when_its_service_restarts() {
    let server = Server::start(Kind::Etcd);
    let nodes = three(&server);
    let all: Vec<&Node> = nodes.iter().collect();
    let first = agree(&all, 0);
    all_run(&all, &first);
    let holder = of(&nodes, &first.0);
    assert_eq!(own(holder)["is_mine"], true);
    let shown = said(&output(all[0], &["locks"]));
    let line = format!("db: {} holds it since ", first.0);
    assert!(
        shown.contains(&line) && shown.contains(&format!("with token {}", first.1)),
        "{shown}"
    );
    let facts = in_a_manifest(holder);
    let expected = format!("holder={} token={} mine=true", first.0, first.1);
    assert!(facts.contains(&expected), "{facts}");
    // Killing and starting the holder, or stopping and starting it, leaves the lock with it.
    holder.start_anew();
    assert_eq!(agree(&all, 0), first);
    holder.stop();
    holder.start();
    assert_eq!(agree(&all, 0), first);
    // Longer than a lease.
    stays("it is kept", LEASE + Duration::from_secs(2), || {
        agree(&all, 0) == first
    });
    assert_eq!(words(&server).len(), 1);
}

#[test]
fn another_candidate_takes_the_lock_when_its_holder_is_killed_and_all_run() {
    let server = Server::start(Kind::Etcd);
    let nodes = three(&server);
    let all: Vec<&Node> = nodes.iter().collect();
    let first = agree(&all, 0);
    all_run(&all, &first);
    let holder = of(&nodes, &first.0);
    holder.kill();
    let since = Instant::now();
    let others: Vec<&Node> = all
        .iter()
        .copied()
        .filter(|node| node.name != first.0)
        .collect();
    let second = agree(&others, first.1);
    all_run(&others, &second);
    let took = since.elapsed();
    assert!(took < LEASE + LATER, "{took:?}");
    assert!(took > LEASE / 4, "{took:?}");
    assert_ne!(second.0, first.0);
    // The former holder learns of the change, and runs as well; it does not get the lock back.
    holder.start();
    assert_eq!(agree(&all, first.1), second);
    all_run(&all, &second);
    let words = words(&server);
    let tokens: Vec<u64> = words.iter().map(|word| word.token).collect();
    assert_eq!(tokens, [first.1, second.1]);
    for node in all {
        let log = node.log();
        assert!(!log.contains("accept does not list"), "{log}");
    }
}

/// Lease under which a node holds the lock, as its service has saved it.
fn lease(node: &Node) -> i64 {
    let kept = fs::read_to_string(node.path("state").join("serve/locks")).expect("a file");
    let line = kept.lines().find(|line| line.ends_with(" db"));
    let lease = line.and_then(|line| line.split(' ').nth(2));
    lease.expect("a lease").parse().expect("a number")
}

/// The holder's service is stopped, as on a paused machine, and continued later with the same
/// connection.
#[test]
fn silent_holder_loses_its_lock_though_somebody_keeps_its_lease_alive() {
    let server = Server::start(Kind::Etcd);
    let nodes = three(&server);
    let all: Vec<&Node> = nodes.iter().collect();
    let first = agree(&all, 0);
    let holder = of(&nodes, &first.0);
    let (straight, lease) = (Straight::at(&server, "web1.test"), lease(holder));
    // A writer begins to acquire another lock, and never signs.
    straight.put("lock/other", b"").expect("put");
    for node in &all {
        let other = format!("name = 'other'\ncandidates = {NAMES:?}\n");
        node.write("locks.d/other.toml", &other);
        node.signal("-HUP");
    }
    // While the holder beats, it keeps the lock.
    stays("it is kept", SILENT + Duration::from_secs(30), || {
        agree(&all, 0) == first
    });
    let line = "a write at the lock 'other' that nobody signed for 90 s is removed";
    let logs = all.iter().filter(|node| node.log().contains(line));
    assert!(logs.count() > 0, "{}", holder.log());
    let signed = || {
        straight
            .list("lock/other")
            .into_iter()
            .any(|one| !one.bytes.is_empty())
    };
    until("its holder", signed);
    holder.signal("-STOP");
    let since = Instant::now();
    let others: Vec<&Node> = all
        .iter()
        .copied()
        .filter(|node| node.name != first.0)
        .collect();
    within(4 * SILENT, "another holder", || {
        straight.renew(lease).expect("the lease lives");
        held(others[0]).is_some_and(|(_, token)| token > first.1)
    });
    let took = since.elapsed();
    // The holder was sure for a minute after its last beat.
    assert!(took > LEASE / 2, "{took:?}");
    let second = agree(&others, first.1);
    let line = format!("{} has lost its lock 'db'", first.0);
    let logs = others.iter().filter(|node| node.log().contains(&line));
    assert_eq!(logs.count(), 1, "who has removed it says so");
    // After it is continued, its very first answer says that it is not sure, though its lease is
    // alive.
    straight.renew(lease).expect("the lease lives");
    let doubt = "whether this node still holds the lock 'db' is not known";
    let loss = "this node does not hold the lock 'db' any more";
    let before = holder.log();
    assert!(
        !before.contains(doubt) && !before.contains(loss),
        "{before}"
    );
    holder.signal("-CONT");
    assert_ne!(own(holder)["is_mine"], true);
    until("its word", || {
        let log = holder.log();
        log.contains(doubt) || log.contains(loss)
    });
    assert_eq!(agree(&all, first.1), second);
    assert_eq!(own(holder)["is_mine"], false);
}

#[test]
fn the_one_that_is_preferred_holds_it_until_an_operator_passes_it_on() {
    let server = Server::start(Kind::Etcd);
    let prefer = "prefer = ['n03.test']\n";
    let nodes = NAMES.map(|name| candidate(name, &server, prefer, None));
    let all: Vec<&Node> = nodes.iter().collect();
    let first = agree(&all, 0);
    assert_eq!(first.0, "n03.test");
    let pass = |node: &Node, to: &str| output(node, &["move", "db", to]);
    let refused = pass(&nodes[0], "n01.test");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("operators does not list it"),
        "{}",
        said(&refused)
    );
    for (to, why) in [
        ("web1.test", "web1.test is no candidate"),
        ("n03.test", "holds the lock 'db' already"),
    ] {
        let refused = pass(&nodes[1], to);
        assert!(said(&refused).contains(why), "{}", said(&refused));
    }
    assert!(
        said(&output(&nodes[1], &["move", "x", "n01.test"])).contains("nobody holds such a lock")
    );
    let passed = pass(&nodes[1], "n01.test");
    assert!(passed.status.success(), "{}", said(&passed));
    let second = agree(&all, first.1);
    assert_eq!(second, ("n01.test".to_owned(), first.1 + 1));
    all_run(&all, &second);
    // A disconnected node does not get the lock: another one does.
    nodes[2].stop();
    Straight::at(&server, "web1.test").ages("n03.test");
    let away = pass(&nodes[1], "n03.test");
    for part in [
        "warning: n03.test does not count as connected",
        "holds it now",
    ] {
        assert!(said(&away).contains(part), "{}", said(&away));
    }
    let mut second = agree(&all[..2], second.1);
    if second.0 != "n01.test" {
        assert!(pass(&nodes[1], "n01.test").status.success());
        second = agree(&all[..2], second.1);
    }
    // A node that is removed from the candidates releases the lock immediately.
    fs::remove_file(nodes[0].path("locks.d/db.toml")).expect("removed");
    nodes[0].signal("-HUP");
    let since = Instant::now();
    let third = agree(&all[1..2], second.1);
    assert_eq!(third.0, "n02.test");
    assert!(since.elapsed() < LEASE / 2, "{:?}", since.elapsed());
}

#[test]
fn what_no_candidate_has_signed_there_is_nothing() {
    let server = Server::start(Kind::Etcd);
    let straight = Straight::at(&server, "web1.test");
    let word = |node: &str, first| Lock {
        lock: "db".parse().expect("a name"),
        node: node.parse().expect("a certname"),
        first,
        token: 1000,
        since: 1,
        candidates: NAMES.map(|name| name.parse().expect("a certname")).to_vec(),
        to: None,
        beats: false,
    };
    let nodes = three(&server);
    let all: Vec<&Node> = nodes.iter().collect();
    let mut first = agree(&all, 0);
    let theirs = straight.list("lock/db").remove(0).bytes;
    let forge = |make: &dyn Fn(u64) -> Vec<u8>| {
        server.etcdctl("web1.test", &["del", "again/v1/test/lock/db"]);
        let first = straight.put("lock/db", b"").expect("put");
        straight.put("lock/db", &make(first)).expect("put");
        // A candidate may have been faster: then its value is overwritten, which is not valid
        // either.
        until("no holder", || all.iter().all(|node| held(node).is_none()));
        stays("no holder", Duration::from_secs(3), || {
            all.iter().all(|node| held(node).is_none())
        });
        let shown = said(&output(all[0], &["locks"]));
        assert!(shown.contains("is not believed"), "{shown}");
        server.etcdctl("web1.test", &["del", "again/v1/test/lock/db"]);
    };
    let makes: [(&str, Make); 4] = [
        ("no", Box::new(|_| b"{}".to_vec())),
        (
            "is no candidate",
            Box::new(move |first| sealed_as("web1.test", &word("web1.test", first))),
        ),
        (
            "signed it in the name of",
            Box::new(move |first| sealed_as("web1.test", &word("n01.test", first))),
        ),
        ("put there another time", Box::new(move |_| theirs.clone())),
    ];
    for (why, make) in makes {
        forge(&*make);
        let next = agree(&all, first.1);
        assert!(next.1 < 1000, "the token of a forged word is none");
        assert!(nodes[0].log().contains(why), "{why}: {}", nodes[0].log());
        first = next;
    }
    // A node that is not an operator cannot move the lock either.
    let other = NAMES.iter().find(|name| **name != first.0);
    let pass = |node: &str| Lock {
        token: first.1,
        to: Some(other.expect("another").parse().expect("a certname")),
        ..word(node, 0)
    };
    straight
        .put(
            "move/db/web1=test",
            &sealed_as("web1.test", &pass("web1.test")),
        )
        .expect("put");
    straight
        .put(
            "move/db/n02=test",
            &sealed_as("web1.test", &pass("n02.test")),
        )
        .expect("put");
    let holder = of(&nodes, &first.0);
    until("words of both", || {
        let log = holder.log();
        log.contains("operators does not list web1.test")
            && log.contains("signed it in the name of n02.test")
    });
    assert_eq!(agree(&all, 0), first);
    // An operator's command applies to the token that it names.
    let late = Lock {
        token: first.1 - 1,
        ..pass("n02.test")
    };
    straight
        .put("move/db/n02=test", &sealed_as("n02.test", &late))
        .expect("put");
    stays("the same holder", Duration::from_secs(2), || {
        agree(&all, 0) == first
    });
    straight
        .put(
            "move/db/n02=test",
            &sealed_as("n02.test", &pass("n02.test")),
        )
        .expect("put");
    agree(&all, first.1);
}

/// The third candidate is compromised, and has published a huge token.
#[test]
fn one_candidate_with_a_huge_token_keeps_nobody_from_the_lock() {
    let server = Server::start(Kind::Etcd);
    let straight = Straight::at(&server, "web1.test");
    let mut told = inventory("n03.test", "db");
    told.tokens = BTreeMap::from([("db".to_owned(), MOST_TOKEN.to_string())]);
    let huge = sealed_as("n03.test", &told);
    straight.put("node/n03=test", &huge).expect("put");
    let [one, two] = ["n01.test", "n02.test"].map(|name| candidate(name, &server, "", None));
    let first = agree(&[&one, &two], 0);
    assert_eq!(first.1, 1);
    let holder = if first.0 == one.name { &one } else { &two };
    let named = format!("n03.test publishes token {MOST_TOKEN} of the lock 'db', more than");
    assert_eq!(holder.log().matches(&named).count(), 1);
    let shown = said(&output(holder, &["locks"]));
    let line = format!("n03.test  its token {MOST_TOKEN} is ignored");
    assert!(shown.contains(&line), "{shown}");
    assert_eq!(own(holder)["ignored"][0]["token"], MOST_TOKEN);

    // An operator resets the token when no candidate holds the lock.
    let reset = |words: &[&str]| output(&two, &[&["locks", "reset"], words].concat());
    let refused = reset(&["db", "40"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = format!("{} holds it", first.0);
    assert!(said(&refused).contains(&why), "{}", said(&refused));
    let unknown = said(&reset(&["other", "40"]));
    assert!(unknown.contains("no node is a candidate"), "{unknown}");
    let denied = said(&output(&one, &["locks", "reset", "other", "40"]));
    assert!(denied.contains("no node is a candidate"), "{denied}");
    fs::remove_file(two.path("locks.d/db.toml")).expect("removed");
    two.signal("-HUP");
    agree(&[&one], 0);
    one.stop();
    let free = || server.etcdctl("web1.test", &["del", "again/v1/test/lock/db"]);
    free();
    // A reset by an operator whose clock is a little ahead has a higher number than this node's
    // clock.
    let ahead = Reset {
        lock: "db".parse().expect("a name"),
        node: "n02.test".parse().expect("a certname"),
        token: 5,
        number: walltime().millis() + 60_000,
        before: Vec::new(),
    };
    let place = "move/db/n02=test/reset";
    straight
        .put(place, &sealed_as("n02.test", &ahead))
        .expect("put");
    // A reset that no operator has written does not count.
    let mut later = ahead.clone();
    later.node = "web1.test".parse().expect("a certname");
    later.number += 150_000;
    let other = "move/db/web1=test/reset";
    straight
        .put(other, &sealed_as("web1.test", &later))
        .expect("put");
    let done = reset(&["db", "40"]);
    let words = said(&done);
    assert!(done.status.success(), "{words}");
    for part in [
        "the reset of the lock 'db' is stored; the next token is 41 once its candidates have taken it",
        "not reset yet: n01.test, n03.test; run 'again-fleet check' there",
        "also reset the last token stored by whatever compares tokens",
    ] {
        assert!(words.contains(part), "{words}");
    }
    one.start();
    assert_eq!(agree(&[&one], 40).1, 41);

    // A reset counts once, and one without an operator's signature does not count.
    let copy = straight.list(place).remove(0).bytes;
    assert!(straight::read::<Reset>(&copy).number > ahead.number);
    let forged = |node: &str| {
        let mut reset: Reset = straight::read(&copy);
        (reset.node, reset.token) = (node.parse().expect("a certname"), 5);
        reset.number += 1;
        sealed_as("web1.test", &reset)
    };
    for (key, bytes) in [
        (place, forged("n02.test")),
        ("move/db/web1=test/reset", forged("web1.test")),
    ] {
        straight.put(key, &bytes).expect("put");
    }
    until("words of both", || {
        let log = one.log();
        log.contains("operators does not list web1.test")
            && log.contains("signed it in the name of n02.test")
    });
    straight.put(place, &copy).expect("put");
    free();
    assert_eq!(agree(&[&one], 41).1, 42);
    let log = one.log();
    assert_eq!(log.matches("has reset the lock 'db'").count(), 1, "{log}");
}

#[test]
fn one_that_has_lost_the_backend_says_so_and_takes_nothing_back() {
    let server = Server::start(Kind::Etcd);
    let nodes = three(&server);
    let all: Vec<&Node> = nodes.iter().collect();
    agree(&all, 0);
    let relay = Relay::to(server.port);
    let one = &nodes[0];
    one.set_also(&format!("endpoints = ['localhost:{}']", relay.port));
    one.start_anew();
    one.is_linked(true);
    let passed = output(&nodes[1], &["move", "db", one.name]);
    assert!(passed.status.success(), "{}", said(&passed));
    let first = agree(&all, 0);
    assert_eq!(first.0, one.name);
    relay.cut();
    let since = Instant::now();
    let second = agree(&all[1..], first.1);
    all_run(&all[1..], &second);
    assert!(since.elapsed() > LEASE / 4, "{:?}", since.elapsed());
    until("a word of it", || {
        one.log()
            .contains("whether this node still holds the lock 'db' is not known")
    });
    let own = own(one);
    assert_eq!(
        (&own["holder"], &own["is_mine"]),
        (&Value::Null, &Value::Bool(false))
    );
    let why = own["why"].as_str().expect("a reason");
    assert!(
        why.contains("the backend is not there") || why.contains("lease"),
        "{why}"
    );
    relay.mend_without_connections();
    assert_eq!(agree(&all, first.1), second);
    all_run(&all, &second);
    assert_eq!(
        one.log().matches("whether this node still holds").count(),
        1
    );
}

#[test]
fn on_nats_there_are_none_and_settings_that_cannot_be_are_said() {
    let server = Server::start(Kind::Nats);
    let node = candidate("n01.test", &server, "", None);
    until("a word of it", || node.log().contains("locks need etcd"));
    for words in [
        &["locks"][..],
        &["locks", "--own"],
        &["move", "db", "n02.test"],
        &["locks", "reset", "db", "7"],
    ] {
        let refused = output(&node, words);
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            said(&refused).contains("locks need etcd"),
            "{}",
            said(&refused)
        );
    }
    node.write(
        "locks.d/db.toml",
        "name = 'db'\ncandidates = ['n02.test']\n",
    );
    node.signal("-HUP");
    until("the error", || {
        node.log().contains("they do not name this node, n01.test")
    });
}

/// Number of kinds of faults: seven after which the holder keeps the lock or it moves immediately,
/// the loss of all data, and a holder that is away for longer than its lease.
const KINDS: u64 = 9;

/// Number of faults; five hundred in the nightly sweep (tests/tools/sweep). By default, each kind
/// once.
fn faults() -> u64 {
    set("AGAIN_FLEET_LOCK_FAULTS", KINDS - 1)
}

/// Three candidates of a backend with three members.
struct Many {
    servers: [Server; 3],
    nodes: [Node; 3],
    /// Relays from each candidate to each member.
    relays: [[Relay; 3]; 3],
    /// Holders of each token, as reported by any candidate.
    holders: BTreeMap<u64, BTreeSet<String>>,
    /// Values of locks in backends that were emptied.
    words: Vec<Lock>,
}

impl Many {
    fn new() -> Many {
        let servers = Server::cluster(Kind::Etcd);
        let relays = NAMES.map(|_| [0, 1, 2].map(|n: usize| Relay::to(servers[n].port)));
        let nodes = [0, 1, 2].map(|n: usize| {
            let ports = relays[n]
                .iter()
                .map(|one| format!("localhost:{}", one.port));
            candidate(NAMES[n], &servers[0], "", Some(&ports.collect::<Vec<_>>()))
        });
        Many {
            servers,
            nodes,
            relays,
            holders: BTreeMap::new(),
            words: Vec::new(),
        }
    }

    /// Records what all candidates report; returns the holder on which they agree.
    fn look(&mut self) -> Option<(String, u64)> {
        let all: Vec<_> = self.nodes.iter().map(held).collect();
        for (holder, token) in all.iter().flatten() {
            self.holders
                .entry(*token)
                .or_default()
                .insert(holder.clone());
        }
        let first = all[0].clone()?;
        all.iter()
            .all(|one| one.as_ref() == Some(&first))
            .then_some(first)
    }

    #[track_caller]
    fn agree(&mut self) -> (String, u64) {
        wait_for("a holder whom all know", LONG, || self.look())
    }

    fn node(&self, name: &str) -> &Node {
        of(&self.nodes, name)
    }

    fn relays(&self, name: &str) -> &[Relay; 3] {
        let n = NAMES.iter().position(|one| *one == name);
        &self.relays[n.expect("a candidate")]
    }

    fn fault(&mut self, dice: &mut Dice, kind: u64) {
        let before = self.agree();
        let n = usize::try_from(dice.below(3)).expect("a number");
        let mut is_same = true;
        match kind {
            // The holder is killed, or stopped, and starts again, as for an upgrade.
            0 => self.node(&before.0).start_anew(),
            1 => {
                self.node(&before.0).stop();
                self.node(&before.0).start();
            }
            // The holder is frozen for a while.
            2 => {
                let holder = self.node(&before.0);
                holder.signal("-STOP");
                dice.pause(Duration::from_secs(3));
                holder.signal("-CONT");
            }
            // An operator moves the lock.
            3 | 4 => {
                let to = NAMES[n];
                // The backend may be electing a leader at that moment, and report an error; the
                // operator tries again.
                until("it to be passed on", || {
                    output(&self.nodes[1], &["move", "db", to]).status.success()
                });
                is_same = to == before.0;
            }
            // A member is lost for a while.
            5 => {
                self.servers[n].kill();
                dice.pause(Duration::from_secs(2));
                self.servers[n].run();
            }
            // The network of one candidate breaks for a while.
            6 => {
                self.relays[n].iter().for_each(Relay::cut);
                dice.pause(Duration::from_secs(2));
                let relays = self.relays[n].iter();
                relays.for_each(Relay::mend_without_connections);
            }
            // All data of the backend is lost.
            7 => {
                self.words.extend(words(&self.servers[0]));
                self.servers.iter().for_each(Server::kill);
                self.servers.iter().for_each(Server::wipe);
                // A member is not ready without another one.
                thread::scope(|scope| {
                    for server in &self.servers {
                        scope.spawn(|| server.run());
                    }
                });
                is_same = false;
            }
            // The holder is away for longer than its lease.
            _ => {
                self.lose_the_holder(dice.below(3), &before);
                is_same = false;
            }
        }
        let (since, mut after) = (Instant::now(), self.agree());
        // It may take a while until one candidate learns of another.
        while !is_same && after.1 <= before.1 {
            assert!(
                since.elapsed() < LONG,
                "no other holder after {before:?}, by {kind}"
            );
            after = self.agree();
        }
        println!("fault {kind}: {before:?}, {after:?}");
        if is_same {
            assert_eq!(after, before, "no failover, by {kind}");
        } else {
            assert!(after.1 > before.1, "{before:?} {after:?}, by {kind}");
        }
        for node in &self.nodes {
            until("a run with the holder", || has_run(node, &after));
        }
    }

    /// Kills the holder, stops it or cuts its network until another candidate holds the lock.
    fn lose_the_holder(&self, how: u64, before: &(String, u64)) {
        let holder = self.node(&before.0);
        match how {
            0 => holder.kill(),
            1 => holder.signal("-STOP"),
            _ => self.relays(&before.0).iter().for_each(Relay::cut),
        }
        let since = Instant::now();
        let others = self.nodes.iter().filter(|node| node.name != before.0);
        let others: Vec<&Node> = others.collect();
        let after = agree(&others, before.1);
        let mine = || own(holder)["is_mine"] == true;
        // The holder has computed the end of its lease itself.
        assert!(how < 2 || !mine(), "held twice: {before:?}, {after:?}");
        for node in &others {
            within(LONG, "a run", || has_run(node, &after));
        }
        let took = since.elapsed();
        println!("another holder, known to all that have run, after {took:?}");
        assert!(took < LEASE + LATER, "{took:?}");
        match how {
            0 => holder.start(),
            1 => {
                holder.signal("-CONT");
                assert!(!mine(), "held twice: {before:?}, {after:?}");
            }
            _ => {
                let relays = self.relays(&before.0).iter();
                relays.for_each(Relay::mend_without_connections);
            }
        }
    }
}

#[test]
fn no_lock_is_held_twice_whatever_is_killed() {
    survive(
        |n, dice| if n < KINDS { n } else { dice.below(KINDS) },
        faults(),
    );
}

#[test]
fn no_lock_is_held_twice_when_its_holder_is_away_for_longer_than_its_lease() {
    survive(|_, _| KINDS - 1, 1);
}

/// Causes faults of the kinds that `choose` returns. Each token has one holder, and is higher than
/// those before it.
fn survive(choose: impl Fn(u64, &mut Dice) -> u64, count: u64) {
    let mut many = Many::new();
    let mut dice = Dice::new(set("AGAIN_FLEET_SEED", 17));
    let first = many.agree();
    all_run(&many.nodes.iter().collect::<Vec<_>>(), &first);
    for n in 0..count {
        let kind = choose(n, &mut dice);
        many.fault(&mut dice, kind);
    }
    many.agree();
    for (token, holders) in &many.holders {
        assert_eq!(holders.len(), 1, "token {token}: {holders:?}");
    }
    let mut all = std::mem::take(&mut many.words);
    all.extend(words(&many.servers[0]));
    let tokens: Vec<u64> = all.iter().map(|word| word.token).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    for word in &all {
        let said = many.holders.get(&word.token);
        assert!(
            said.is_none_or(|said| said.contains(word.node.as_str())),
            "{word:?}: {said:?}"
        );
    }
    println!("{} holders, tokens up to {:?}", all.len(), tokens.last());
}
