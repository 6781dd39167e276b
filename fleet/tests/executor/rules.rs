//! Events that matched a rule, as the service hands them over: each is run or called once, and only
//! if an accepted node has signed it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use again_base::schema::origin::Word;
use again_fleet::executor::calls;
use again_fleet::handover::MOST_TOGETHER;
use again_fleet::wire::Malformed;
use again_fleet::wire::body::Content;
use again_fleet::wire::event::{Batch, Event};
use again_fleet::wire::lineage::Cause;
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::rule_match::RuleMatch;
use again_fleet::wire::trigger::Trigger;
use serde::{Deserialize, Serialize};

use crate::fired::{by, sealed_as, trigger};
use crate::node::Node;
use crate::told::{batch, inventory, leave, now, started};

pub const UP: &str = "name = 'up'\nresource = 'Service[httpd]'\ndelta = '5s'\n";

fn node(rules: &[&str]) -> Node {
    let node = Node::new();
    fs::create_dir(node.path("rules")).expect("made");
    for (n, rule) in rules.iter().enumerate() {
        fs::write(node.path(&format!("rules/{n}.toml")), rule).expect("written");
    }
    let [rules, spool] = ["rules", "spool"].map(|name| node.path(name));
    node.set_well(&format!("rules_dir = {rules:?}\nspool_dir = {spool:?}"));
    node
}

fn met(rule: &str, n: u64, batch: Vec<u8>) -> RuleMatch {
    RuleMatch {
        rule: rule.to_owned(),
        n,
        batch: batch.into(),
        inventory: None,
    }
}

pub fn signed(rule: &str, n: u64, batch: &Batch) -> Vec<u8> {
    met(rule, n, sealed_as(batch.node.as_str(), batch)).write()
}

#[test]
fn an_event_that_meets_a_rule_has_puppet_run_once() {
    let node = node(&[UP]);
    let told = batch("web1.test", 1, &[1, 2]);
    let value = signed("up", 2, &told);
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
    // Earlier events of the same run are superseded, for another process too.
    assert_eq!(
        node.one(&signed("up", 1, &told)).outcome,
        Outcome::Superseded
    );
    node.wait_until_idle();
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
    let [call] = &node.calls()[..] else {
        panic!("{:?}", node.calls())
    };
    assert_eq!(call[4], "--delta=5");
    let word: Word = serde_json::from_str(&call[2]).expect("a word");
    let [origin] = &word.origins[..] else {
        panic!("{word:?}")
    };
    assert_eq!(origin.cause, Cause::Event);
    assert_eq!(origin.path, ["web1.test".parse().expect("a certname")]);
    assert!(word.triggers[0].name.as_str().starts_with("rule/up/"));
    // An event of another run of that node is separate.
    let other = batch("web1.test", 2, &[1]);
    assert_eq!(node.one(&signed("up", 1, &other)).outcome, Outcome::Taken);
    assert_eq!(node.calls().len(), 2);
}

/// Trigger with the name of a rule, which again-fleet never writes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Bent(Trigger);

impl Content for Bent {
    const KIND: &'static str = Trigger::KIND;

    fn check(&self) -> Result<(), Malformed> {
        Ok(())
    }
}

#[test]
fn what_meets_no_rule_or_is_not_from_an_accepted_node_is_refused_with_the_evidence() {
    let when = "name = 'when'\nchange = ['started']\nwhere = ['role=web']\n";
    let node = node(&[UP, when]);
    let good = batch("web1.test", 1, &[1, 2]);
    let sealed = |signer: &str| sealed_as(signer, &good);
    let other = Batch {
        events: vec![Event {
            resource: "Service[other]".to_owned(),
            ..started(1, now())
        }],
        ..good.clone()
    };
    let mut unknown = good.clone();
    unknown.begun.unknown = true;
    let mut changed = signed("up", 1, &good);
    let at = changed.len() - 30;
    changed[at] ^= 1;
    let told = |signer: &str, of: &str| RuleMatch {
        inventory: Some(sealed_as(signer, &inventory(of, "web")).into()),
        ..met("when", 1, sealed("web1.test"))
    };
    let db = RuleMatch {
        inventory: Some(sealed_as("web1.test", &inventory("web1.test", "db")).into()),
        ..met("when", 1, sealed("web1.test"))
    };
    let bent = Bent(Trigger {
        name: "rule/up/0".parse().expect("a name"),
        ..trigger("web1.test")
    });
    for (value, words) in [
        (changed, "web1.test did not sign this"),
        (
            met("up", 1, sealed("foreign")).write(),
            "the certificate of web1.test is not signed by our CA",
        ),
        (
            met("up", 1, sealed("server.test")).write(),
            "server.test signed it in the name of web1.test",
        ),
        (
            signed("up", 1, &batch("server.test", 1, &[1])),
            "accept does not list server.test",
        ),
        (
            signed("up", 1, &unknown),
            "what asked for that run of web1.test is not known there",
        ),
        (signed("down", 1, &good), "this node has no rule 'down'"),
        (signed("up", 3, &good), "has no event 3"),
        (
            signed("up", 1, &other),
            "Service[other] started on web1.test does not meet rule 'up'",
        ),
        (
            signed("up", 1, &batch("lb1.test", 1, &[1])),
            "on lb1.test does not meet rule 'up'",
        ),
        (
            signed("when", 1, &good),
            "does not meet rule 'when', as far as its node tells of itself",
        ),
        (db.write(), "does not meet rule 'when'"),
        (
            told("web2.test", "web1.test").write(),
            "web2.test signed it in the name of web1.test",
        ),
        (
            told("web2.test", "web2.test").write(),
            "web2.test told of itself, and not web1.test",
        ),
        (
            met("up", 1, by("web1.test", &trigger("web1.test"))).write(),
            "the value is a 'trigger.1', not a 'event.1'",
        ),
        (
            sealed("web1.test"),
            "the value is a 'event.1', not a 'trigger.1'",
        ),
        (
            sealed_as("web1.test", &bent),
            "the name begins with 'rule/' or 'call/'",
        ),
        (
            b"AGE1garbage".to_vec(),
            "that is no event that matched a rule",
        ),
        (
            met("up", 1, b"garbage".to_vec()).write(),
            "no envelope of again-fleet's version 1",
        ),
    ] {
        let answer = node.one(&value);
        assert_eq!(answer.outcome, Outcome::Refused, "{words}: {}", answer.why);
        assert!(answer.why.contains(words), "{words}: {}", answer.why);
        assert!(node.errors().contains(&answer.why), "{}", node.errors());
    }
    assert!(node.calls().is_empty());
    let answers = node.hand_over(&[
        signed("up", 2, &good),
        told("web1.test", "web1.test").write(),
    ]);
    assert!(
        answers.iter().all(|one| one.outcome == Outcome::Taken),
        "{answers:?}"
    );
    assert_eq!(node.calls().len(), 2, "each with its delta");
}

#[test]
fn an_event_counts_for_an_hour_and_not_before_its_time() {
    let node = node(&[UP]);
    let at = |run, ahead: i64| {
        let mut told = batch("web1.test", run, &[1]);
        told.begun.at = now().checked_add_signed(ahead).expect("a time");
        told.events[0].at = told.begun.at;
        node.one(&signed("up", 1, &told))
    };
    let hour = 3_600_000;
    let old = at(1, -hour - 301_000);
    assert_eq!(old.outcome, Outcome::Expired, "{}", old.why);
    let future = at(2, hour);
    assert_eq!(future.outcome, Outcome::Held, "{}", future.why);
    assert!(
        future.why.contains("by the clock of web1.test"),
        "{}",
        future.why
    );
    assert!(node.calls().is_empty());
}

/// The service has the certificate of its node, so a signature proves nothing about the node's own
/// runs.
#[test]
fn own_event_counts_without_accept_if_a_run_has_left_it_in_the_spool() {
    let node = node(&["name = 'up'\nresource = 'Service[httpd]'\nown = true\n"]);
    fs::create_dir(node.path("spool")).expect("made");
    let [one, other] = [1, 2].map(|run| batch("lb1.test", run, &[1, 2]));
    leave(&node.path("spool"), &one);
    let own = node.one(&signed("up", 1, &one));
    assert_eq!(own.outcome, Outcome::Taken, "{}", own.why);
    // No other node can sign the event.
    let forged = met("up", 2, sealed_as("web1.test", &one));
    assert_eq!(node.one(&forged.write()).outcome, Outcome::Refused);
    let made_up = |change: fn(&mut Batch)| {
        let mut batch = one.clone();
        change(&mut batch);
        let n = batch.events[1].n;
        signed("up", n, &batch)
    };
    for value in [
        signed("up", 1, &other),
        made_up(|batch| batch.events[1].n = 3),
        made_up(|batch| batch.events[1].message = Some("; rm -rf /".to_owned())),
        made_up(|batch| batch.begun.environment = "test".to_owned()),
        made_up(|batch| batch.begun.at += 1),
    ] {
        let answer = node.one(&value);
        assert_eq!(answer.outcome, Outcome::Refused);
        assert!(
            answer.why.contains("no run has left event"),
            "{}",
            answer.why
        );
    }
    assert_eq!(node.calls().len(), 1);
    // If others may write to the spool, its events are not trusted; the operator can fix that.
    fs::set_permissions(node.path("spool"), Permissions::from_mode(0o770)).expect("its mode");
    let held = node.one(&signed("up", 2, &one));
    assert_eq!(held.outcome, Outcome::Held);
    assert!(held.why.contains("chmod"), "{}", held.why);
    fs::set_permissions(node.path("spool"), Permissions::from_mode(0o750)).expect("its mode");
    assert_eq!(node.one(&signed("up", 2, &one)).outcome, Outcome::Taken);
}

#[test]
fn a_rule_with_a_program_leaves_a_call_for_each_event_and_one_only() {
    let node =
        node(&["name = 'tell'\nchange = ['started']\ncommand = ['/bin/tell', 'x']\ntimeout = 7\n"]);
    let told = batch("web1.test", 1, &[1, 2]);
    let values = [signed("tell", 1, &told), signed("tell", 2, &told)];
    let called = |values: &[Vec<u8>]| {
        let answers = node.hand_over(values);
        assert!(
            answers.iter().all(|one| one.outcome == Outcome::Called),
            "{answers:?}"
        );
    };
    called(&values);
    called(&values);
    let waiting = || {
        let calls = calls::Calls::open(&node.path("state")).expect("calls");
        let names = calls.waiting().expect("a directory");
        names
            .iter()
            .map(|name| calls::read(&calls.path().join(name)).expect("a call"))
            .collect::<Vec<_>>()
    };
    let calls = waiting();
    assert_eq!(calls.len(), 2);
    let one = &calls[0];
    assert_eq!((one.rule.as_str(), one.timeout.secs()), ("tell", 7));
    assert_eq!(one.command, ["/bin/tell", "x"]);
    assert_eq!(
        (&one.event.node, &one.event.event),
        (&told.node, &told.events[0])
    );
    assert_ne!(one.id, calls[1].id);
    // Another process does not write the calls again after they are removed.
    node.wait_until_idle();
    fs::remove_dir_all(node.path("state/calls")).expect("removed");
    called(&values);
    assert!(waiting().is_empty());
    assert!(node.calls().is_empty(), "the helper is asked for nothing");
}

#[test]
fn a_rule_that_cannot_be_read_takes_nothing_and_loses_nothing() {
    let node = node(&["name = 'up'\nresource = 'httpd'\n"]);
    let value = signed("up", 1, &batch("web1.test", 1, &[1]));
    for value in [value.clone(), by("web1.test", &trigger("web1.test"))] {
        let answer = node.one(&value);
        assert_eq!(answer.outcome, Outcome::Held);
        let words = "rules/0.toml: line 2: key 'resource': 'httpd' is no resource";
        assert!(answer.why.contains(words), "{}", answer.why);
    }
    fs::write(node.path("rules/0.toml"), UP).expect("written");
    assert_eq!(node.one(&value).outcome, Outcome::Taken);
}

#[test]
fn many_large_batches_are_handed_over_in_bounds() {
    let node = node(&[UP]);
    let long = Event {
        tags: (0..60).map(|n| format!("{n:0500}")).collect(),
        ..started(1, now())
    };
    let value = |run: usize| {
        let told = Batch {
            events: vec![long.clone()],
            ..batch("web1.test", run as u128, &[1])
        };
        signed("up", 1, &told)
    };
    let values: Vec<Vec<u8>> = (1..=MOST_TOGETHER).map(value).collect();
    let answers = node.hand_over(&values);
    assert!(
        answers.iter().all(|one| one.outcome == Outcome::Taken),
        "{answers:?}"
    );
    assert_eq!(node.calls().len(), 1);
}
