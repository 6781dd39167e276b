//! Many names of one sender: the executor's ledger is bounded, and a trigger that was displaced
//! from it is never accepted again.

use std::fs;
use std::time::{Duration, Instant};

use again_fleet::policy::replay::{MOST_ACCEPTED, MOST_NAMES};
use again_fleet::wire::name::{Id, Node as Certname};
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::Trigger;

use crate::fired::{trigger, unsigned};
use crate::node::{Node, cancel};

/// Number of triggers that are handed over together.
const BATCH: usize = 32;

/// Returns a node that accepts unsigned triggers: these tests do not depend on signatures, which
/// would take most of the time.
fn believing() -> Node {
    let node = Node::new();
    node.set_well("trust = \"backend\"\nca = \"/nonexistent\"");
    node
}

fn named(sender: &str, n: usize) -> Trigger {
    Trigger {
        name: format!("name {n}").parse().expect("a name"),
        ..trigger(sender)
    }
}

/// Returns a trigger that is cancelled, expired, or over the hop limit, with its outcome.
fn idle(n: usize) -> (Trigger, Outcome) {
    let one = named("web1.test", n);
    match n % 3 {
        0 => (cancel(&one), Outcome::Cancelled),
        1 => (
            Trigger {
                at: one.at - 80_000_000,
                ..one
            },
            Outcome::Expired,
        ),
        _ => {
            let mut one = one;
            let far: Certname = "far.test".parse().expect("a certname");
            let end = one.lineage.0[0].path.clone();
            one.lineage.0[0].path = [vec![far; 12], end].concat();
            (one, Outcome::Refused)
        }
    }
}

#[test]
fn names_of_every_outcome_are_bounded_and_hand_overs_stay_fast() {
    let node = believing();
    let ledger = node.path("state/executor/ledger");
    let first = named("web1.test", 0);
    assert_eq!(node.one(&unsigned(&first)).outcome, Outcome::Taken);
    let (mut times, mut largest) = (Vec::new(), 0);
    for batch in 0..660 {
        let sent: Vec<_> = (batch * BATCH..(batch + 1) * BATCH)
            .map(|n| idle(n + 1))
            .collect();
        let values: Vec<_> = sent.iter().map(|(one, _)| unsigned(one)).collect();
        let begun = Instant::now();
        let answers = node.hand_over(&values);
        times.push(begun.elapsed());
        for (answer, (_, outcome)) in answers.iter().zip(&sent) {
            assert_eq!(answer.outcome, *outcome, "{}", answer.why);
        }
        largest = largest.max(fs::metadata(&ledger).expect("a ledger").len());
    }
    assert!(largest < 3 << 20, "{largest} bytes");
    // The first batches that displaced names, and the last ones.
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times[times.len() / 2]
    };
    let (early, late) = (median(&times[32..96]), median(&times[596..]));
    assert!(
        late < early * 3 + Duration::from_millis(20),
        "{early:?}, then {late:?}"
    );
    // Another process knows as much: the trigger that was accepted first was displaced.
    node.wait_until_idle();
    let copy = node.one(&unsigned(&first));
    assert_eq!(
        copy.outcome,
        Outcome::Taken,
        "its id is known until it has expired"
    );
    let older = Trigger {
        id: Id::from_bits(5),
        ..first.clone()
    };
    let below = node.one(&unsigned(&older));
    assert_eq!(below.outcome, Outcome::Superseded);
    assert!(below.why.contains("is not above"), "{}", below.why);
    assert_eq!(node.calls().len(), 1);
    // Newer triggers are accepted, and so are those of other senders.
    for one in [named("web1.test", 0), named("web2.test", 1)] {
        assert_eq!(node.one(&unsigned(&one)).outcome, Outcome::Taken);
    }
}

/// The sender is a puppetserver whose report processor sends a trigger for each node.
#[test]
fn sender_that_speaks_for_many_nodes_has_names_for_each() {
    let node = believing();
    let text = fs::read_to_string(node.path("again-fleet.toml")).expect("settings");
    node.set(&(text + "[accept_for]\n\"server.test\" = [\"web*.test\"]\n"));
    let hand_over = |range: std::ops::Range<usize>| {
        let values: Vec<_> = range
            .map(|n| {
                let of: Certname = format!("web{n}.test").parse().expect("a certname");
                let mut one = named("server.test", n);
                one.lineage.0[0].path = vec![of.clone()];
                one.on_behalf = Some(of);
                unsigned(&one)
            })
            .collect();
        let answers = values.chunks(BATCH).flat_map(|part| node.hand_over(part));
        answers.collect::<Vec<_>>()
    };
    let accepted = hand_over(0..MOST_NAMES + BATCH);
    assert!(accepted.iter().all(|one| one.outcome == Outcome::Taken));
    // Up to the maximum of numbers that `again` remembers.
    hand_over(MOST_NAMES + BATCH..MOST_ACCEPTED);
    let held = hand_over(MOST_ACCEPTED..MOST_ACCEPTED + 1).remove(0);
    assert_eq!(held.outcome, Outcome::Held);
    let words = "2000 names of server.test were accepted or wait";
    assert!(held.why.starts_with(words), "{}", held.why);
    let other = unsigned(&named("web1.test", 1));
    assert_eq!(node.one(&other).outcome, Outcome::Taken);
}

/// The sender may send the trigger again when there is space.
#[test]
fn nothing_is_taken_that_the_disk_does_not_take() {
    let node = believing();
    let one = unsigned(&named("web1.test", 1));
    fs::create_dir_all(node.path("state/executor/ledger.new")).expect("in the way");
    let held = node.one(&one);
    assert_eq!(held.outcome, Outcome::Held);
    assert!(
        held.why.contains("executor/ledger cannot be written"),
        "{}",
        held.why
    );
    assert_eq!(node.calls().len(), 0);
    fs::remove_dir(node.path("state/executor/ledger.new")).expect("out of the way");
    assert_eq!(node.one(&one).outcome, Outcome::Taken);
}
