//! Flood by a node whose key is compromised: it sends thousands of triggers dated far ahead of
//! every clock. No other node's trigger waits for them, and neither the service nor its outbox
//! grows with their number.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use again_fleet::wire::key::Key;
use again_fleet::wire::lineage::{Cause, Origin};
use again_fleet::wire::name::{Id, Node as Name};
use again_fleet::wire::trigger::Trigger;

use crate::fired::{by, sealed, trigger};
use crate::many::most_memory;
use crate::node::{Node, until};
use crate::servers::{Kind, Server};
use crate::straight::Straight;

const FLOOD: u64 = 5000;
const TEN_YEARS: u64 = 10 * 365 * 86_400_000;
/// Number of measurements of the other node's trigger.
const TIMES: u64 = 3;

mod etcd {
    #[test]
    fn what_is_not_a_trigger_below_a_senders_name_keeps_none_from_being_read() {
        super::what_is_not_a_trigger_below_a_senders_name_keeps_none_from_being_read(
            super::Kind::Etcd,
        );
    }

    #[test]
    fn sender_that_floods_delays_no_other_and_fills_nothing() {
        super::sender_that_floods_delays_no_other_and_fills_nothing(super::Kind::Etcd);
    }
}

mod nats {
    #[test]
    fn what_is_not_a_trigger_below_a_senders_name_keeps_none_from_being_read() {
        super::what_is_not_a_trigger_below_a_senders_name_keeps_none_from_being_read(
            super::Kind::Nats,
        );
    }

    #[test]
    fn sender_that_floods_delays_no_other_and_fills_nothing() {
        super::sender_that_floods_delays_no_other_and_fills_nothing(super::Kind::Nats);
    }
}

/// Returns a trigger of web1 ten years ahead, with the longest lineage allowed.
fn large(n: u64) -> Trigger {
    let now = trigger("web1.test");
    let hop = |m: u64| -> Name {
        let name = format!("{m:02}{}.test", "x".repeat(60));
        name.parse().expect("a certname")
    };
    let mut path: Vec<Name> = (0..19).map(hop).collect();
    path.push(now.sender.clone());
    let origin = |m: u64| Origin {
        id: Id::from_bits(u128::from(1000 * n + m)),
        cause: Cause::Refresh,
        path: path.clone(),
    };
    let mut lineage = now.lineage.clone();
    lineage.0 = (0..8).map(origin).collect();
    Trigger {
        id: Id::from_bits(u128::from(n)),
        name: format!("{n:05}").parse().expect("a name"),
        number: now.number + TEN_YEARS + n,
        at: now.at + TEN_YEARS,
        lineage,
        ..now
    }
}

/// Returns the longest time until a trigger of web2 is accepted.
fn takes(lb1: &Node, straight: &Straight, round: &str) -> Duration {
    let took = (0..TIMES).map(|n| {
        let one = Trigger {
            name: format!("{round}-{n}").parse().expect("a name"),
            ..trigger("web2.test")
        };
        let (key, id) = (
            format!("to/lb1=test/web2=test/{}", one.name),
            one.id.clone(),
        );
        let value = by("web2.test", &one);
        let began = Instant::now();
        straight.put(&key, &value).expect("put");
        until("its removal", || straight.list(&key).is_empty());
        let took = began.elapsed();
        lb1.runs_once(&id);
        took
    });
    took.max().expect("some")
}

/// Total size in bytes of the files below a directory.
fn bytes(directory: &Path) -> u64 {
    let listed = fs::read_dir(directory).expect("a directory");
    let length = |one: fs::DirEntry| match one.metadata() {
        Ok(found) if found.is_dir() => bytes(&one.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    listed.filter_map(Result::ok).map(length).sum()
}

/// Duration without the flood, which bounds the duration with it.
fn is_bounded(quiet: Duration, took: Duration) {
    // The first trigger comes right after the flood, which a server may still have to send.
    let most = 20 * quiet + Duration::from_secs(10);
    assert!(took < most, "{took:?}, and {quiet:?} before");
}

fn sender_that_floods_delays_no_other_and_fills_nothing(kind: Kind) {
    let server = Server::start(kind);
    let lb1 = Node::new("lb1.test", &server);
    let straight = Straight::at(&server, "web1.test");
    lb1.is_linked(true);
    let quiet = takes(&lb1, &straight, "quiet");
    let before = most_memory(lb1.pid());
    let triggers: Vec<Trigger> = (0..FLOOD).map(large).collect();
    let key = |one: &Trigger| format!("to/lb1=test/web1=test/{}", one.name);
    let keys = triggers.iter().map(key);
    let values = sealed("web1.test", "test", &triggers);
    let size: usize = values.iter().map(Vec::len).sum();
    straight.put_all(&keys.zip(values).collect::<Vec<_>>());
    let flooded = takes(&lb1, &straight, "flooded");
    is_bounded(quiet, flooded);
    let named = "web1.test has sent more than 256 triggers or 2 MB that wait here";
    until(named, || lb1.log().contains(named));
    // A service that starts with the whole flood stored reads no more.
    let first = most_memory(lb1.pid());
    lb1.start_anew();
    lb1.is_linked(true);
    let again = takes(&lb1, &straight, "again");
    is_bounded(quiet, again);
    let grown = first.max(most_memory(lb1.pid())).saturating_sub(before);
    let outbox = bytes(&lb1.path("state/serve/told"));
    println!(
        "{FLOOD} triggers of {} MB: {quiet:.1?} before, {flooded:.1?} and {again:.1?} with them, {grown} MiB more, outbox of {outbox} bytes",
        size >> 20
    );
    assert!(grown <= 96, "{grown} MiB more");
    assert!(outbox < 12 << 20, "{outbox} bytes");
    // The triggers stay there, and the statuses of those that were read contain both times. The
    // bound removes no key.
    assert_eq!(straight.list("to/lb1=test/web1=test/").len() as u64, FLOOD);
    let told = straight.told("web1.test");
    assert!((1..=256).contains(&told.len()), "{} results", told.len());
    let is_held = |why: &str| {
        why.starts_with("fired at ") && why.contains(" by the clock of web1.test, here it is ")
    };
    assert!(told.iter().all(|one| is_held(&one.why)), "{told:?}");
    assert_eq!(lb1.runs().len() as u64, 3 * TIMES);
}

/// Invalid values below a sender's keys, which a writer without any node's key puts there, and
/// which no service removes.
fn what_is_not_a_trigger_below_a_senders_name_keeps_none_from_being_read(kind: Kind) {
    let server = Server::start(kind);
    let lb1 = Node::new("lb1.test", &server);
    let straight = Straight::at(&server, "web2.test");
    lb1.is_linked(true);
    let namespace = "test".parse().expect("a namespace");
    let of_a_rule = |n: usize| {
        let key = Key::To {
            target: "lb1.test".parse().expect("a certname"),
            sender: "web1.test".parse().expect("a certname"),
            name: format!("rule/{n}").parse().expect("a name"),
        };
        let key = key.encode(&namespace);
        let below = key.strip_prefix("again/v1/test/");
        below.expect("a key of this fleet").to_owned()
    };
    let keys = (0..256).flat_map(|n| [format!("to/lb1=test/web1=test/0/{n}"), of_a_rule(n)]);
    let junk: Vec<(String, Vec<u8>)> = keys.map(|key| (key, vec![b'x'; 100])).collect();
    straight.put_all(&junk);
    for is_anew in [false, true] {
        if is_anew {
            lb1.start_anew();
            lb1.is_linked(true);
        }
        let named = "holds something that is not ours";
        until("its name", || lb1.log().contains(named));
        let one = Trigger {
            name: format!("again-{is_anew}").parse().expect("a name"),
            ..trigger("web1.test")
        };
        let key = format!("to/lb1=test/web1=test/{}", one.name);
        straight.put(&key, &by("web1.test", &one)).expect("put");
        until("its removal", || straight.list(&key).is_empty());
        lb1.runs_once(&one.id);
    }
    assert!(!lb1.log().contains("has sent more than"), "{}", lb1.log());
}
