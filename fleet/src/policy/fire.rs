//! Triggers of a request: one key for each target and name, with a number so that the newer one
//! wins.

use std::fmt;

use again_base::model::{Span, Walltime};
use serde::{Deserialize, Serialize};

use super::lineage::{self, TooFar};
use super::select::Criteria;
use crate::wire::Malformed;
use crate::wire::body;
use crate::wire::lineage::{Cause, Lineage, Origin};
use crate::wire::name::{Id, Name, Node};
use crate::wire::targets::Targets;
use crate::wire::trigger::{self, Ask, MOST_TTL, Trigger};

/// Request on this node: from a run, a report or a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Id of the triggers, and of the origin if the request begins one.
    pub id: Id,
    /// Nodes that are to run Puppet, without duplicates.
    pub targets: Vec<Node>,
    /// Name of the triggers. A newer request of the same name replaces this one.
    pub name: Name,
    /// Cause of the request.
    pub cause: Cause,
    /// Node on whose behalf the request is made, if that is another one.
    pub on_behalf: Option<Node>,
    /// Lineage of the run that makes the request; empty if no trigger caused the run.
    pub run: Lineage,
    /// Minimum time that the targets wait.
    pub delta: Span,
    /// Time within which a target may accept the trigger.
    pub ttl: Span,
    /// Number of targets that may run at the same time; 0 for all.
    #[serde(default, skip_serializing_if = "trigger::is_none")]
    pub parallel: u32,
    /// Number of failures after which no further target begins; 0 for no limit.
    #[serde(default, skip_serializing_if = "trigger::is_none")]
    pub stop_after: u32,
    /// Criteria that selected targets in addition to the named ones; none without a selection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Criteria>,
    /// Whether the selection is stored because the backend did not show all nodes, and is resolved
    /// when it does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_open: bool,
}

impl Request {
    /// Whether nothing is sent until the selection is resolved: each target of a rolling run needs
    /// to know the number of targets.
    pub fn is_deferred(&self) -> bool {
        self.is_open && self.parallel > 0
    }
}

/// Error: all origins of a request have exceeded the limit on hops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopLimit(pub Vec<TooFar>);

impl fmt::Display for HopLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways: Vec<String> = self.0.iter().map(TooFar::to_string).collect();
        f.write_str(&ways.join("; "))
    }
}

/// Error: a trigger of this name is still pending for another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherNode(Name, Node);

impl fmt::Display for OtherNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OtherNode(name, node) = self;
        write!(
            f,
            "'{name}' for {node} is still on its way; use a name for each node"
        )
    }
}

/// Numbers that a sender has given to its triggers: its wall clock in milliseconds, but always
/// higher than the last number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Numbers {
    /// Last number.
    pub last: u64,
    /// Highest number that was given before the clock was set back behind it; 0 if that never
    /// happened.
    pub before: u64,
}

impl Numbers {
    /// Records a number that was given at any time. Numbers above `limit` are from before the clock
    /// was set back.
    pub fn note(&mut self, number: u64, limit: Walltime) {
        let highest = if number > limit.millis() {
            &mut self.before
        } else {
            &mut self.last
        };
        *highest = number.max(*highest);
    }

    /// Next number; and the last one, if the clock was set back behind it by more than the skew.
    /// Targets hold triggers whose numbers are ahead of their clocks, so numbers follow the clock
    /// again.
    pub fn next(&mut self, now: Walltime, skew: Span) -> (u64, Option<u64>) {
        let last = std::mem::take(&mut self.last);
        self.note(last, now + skew);
        self.last = now.millis().max(self.last.saturating_add(1));
        (self.last, (self.last <= last).then_some(last))
    }

    /// Next number above one that a target has recorded: from the clock, or one more if the
    /// recorded number was given before the clock was set back; none if it was never given.
    pub fn above(&mut self, number: u64, now: Walltime, skew: Span) -> Option<u64> {
        if number > self.last.max(self.before) {
            return None;
        }
        let (next, _) = self.next(now, skew);
        if next > number {
            return Some(next);
        }
        let above = number.saturating_add(1);
        self.before = self.before.max(above);
        Some(above)
    }
}

/// Trigger for one target, and the origins that it leaves out because they exceed the limit on
/// hops.
///
/// # Errors
/// All origins exceed the limit.
pub fn trigger(
    request: &Request,
    me: &Node,
    target: &Node,
    (number, now): (u64, Walltime),
    limit: usize,
) -> Result<(Trigger, Vec<TooFar>), HopLimit> {
    let firing = request.on_behalf.as_ref().unwrap_or(me);
    let new = (&request.id, request.cause);
    let within = lineage::next_hop(&request.run, new, firing, target, limit);
    if within.lineage.0.is_empty() {
        return Err(HopLimit(within.too_far));
    }
    let trigger = Trigger {
        ask: Ask::Run,
        id: request.id.clone(),
        target: target.clone(),
        sender: me.clone(),
        on_behalf: request.on_behalf.clone(),
        name: request.name.clone(),
        number,
        at: now.millis(),
        ttl: request.ttl.millis(),
        delta: request.delta.millis(),
        targets: u32::try_from(request.targets.len()).unwrap_or(u32::MAX),
        parallel: request.parallel,
        stop_after: request.stop_after,
        lineage: within.lineage,
    };
    Ok((trigger, within.too_far))
}

/// Newer trigger that also replaces an older one, which its target may not have accepted: it has
/// all origins of both, the longer delta and the longer lifetime.
///
/// An older trigger that was cancelled stays cancelled. `still` is the remaining lifetime of the
/// older one, independent of the clock.
///
/// # Errors
/// The older trigger was sent for another node. A lineage cannot end with two nodes, and no hop may
/// be lost.
pub fn merged(older: &Trigger, still: Span, mut newer: Trigger) -> Result<Trigger, OtherNode> {
    if older.firing() != newer.firing() {
        return Err(OtherNode(newer.name, older.firing().clone()));
    }
    if older.ask == Ask::Run {
        let first = first_origin(&newer.id, newer.lineage.0.iter());
        let first = first.map(|origin| origin.id.clone());
        newer.lineage = lineage::merged_with(first.as_ref(), [&older.lineage, &newer.lineage]);
        newer.delta = newer.delta.max(older.delta);
        newer.ttl = newer.ttl.max(still.millis()).min(MOST_TTL);
    }
    Ok(newer)
}

/// List of the targets of these triggers, which all belong to one request. Its origin is one that
/// they all have: the one with their own id, or else the one with the fewest hops.
///
/// # Errors
/// There are no triggers, the list is too long, or the triggers share no origin.
pub fn targets(triggers: &[Trigger]) -> Result<Targets, Malformed> {
    let first = triggers.first();
    let first = first.ok_or_else(|| Malformed::new("a rolling run has at least one target"))?;
    let is_shared = |origin: &&Origin| {
        let has = |one: &Trigger| one.lineage.0.iter().any(|other| other.id == origin.id);
        triggers.iter().all(has)
    };
    let shared = first.lineage.0.iter().filter(is_shared);
    let origin = first_origin(&first.id, shared)
        .ok_or_else(|| Malformed::new("no origin is shared by all triggers"))?;
    let list = Targets {
        id: first.id.clone(),
        sender: first.sender.clone(),
        origin: origin.id.clone(),
        targets: triggers.iter().map(|one| one.target.clone()).collect(),
    };
    body::encode(&list).map_err(|e| {
        let count = list.targets.len();
        Malformed::new(format!(
            "too many targets for --stop-after-failures: the list of {count} nodes is too long ({e}); send to fewer nodes"
        ))
    })?;
    Ok(list)
}

/// Origin that a list of targets names: the one with the id of the triggers, or else the one with
/// the fewest hops. It stays when triggers are merged, so that all triggers of a request have it.
fn first_origin<'o>(id: &Id, origins: impl Iterator<Item = &'o Origin>) -> Option<&'o Origin> {
    origins.min_by_key(|origin| (origin.id != *id, origin.hops()))
}

/// Cancellation of a trigger. It has the same id, and the remaining lifetime of the trigger.
#[must_use]
pub fn cancel(of: &Trigger, still: Span, (number, now): (u64, Walltime)) -> Trigger {
    Trigger {
        ask: Ask::Cancel,
        number,
        at: now.millis(),
        ttl: still.millis().min(MOST_TTL),
        ..of.clone()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::lineage::tests::{lineage, node};
    use super::*;
    use crate::wire::body::encode;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A request of node web1 for lb1, in a run with this lineage.
    pub fn request(run: &[&str]) -> Request {
        Request {
            id: Id::from_bits(99),
            targets: vec![node("lb1")],
            name: "again".parse().expect("a name"),
            cause: Cause::Refresh,
            on_behalf: None,
            run: lineage(run),
            delta: Span::ZERO,
            ttl: Span::from_secs(3600),
            parallel: 0,
            stop_after: 0,
            selection: None,
            is_open: false,
        }
    }

    fn fired(request: &Request, number: u64) -> Trigger {
        let at = Walltime::from_millis(number);
        trigger(request, &node("web1"), &node("lb1"), (number, at), 10)
            .expect("within the limit")
            .0
    }

    #[test]
    fn numbers_grow_whatever_the_clock_does() {
        let mut numbers = Numbers::default();
        for (clock, number) in [(1000, 1000), (1000, 1001), (900, 1002), (2000, 2000)] {
            let next = numbers.next(Walltime::from_millis(clock), Span::from_secs(1));
            assert_eq!(next, (number, None));
        }
    }

    #[test]
    fn clock_that_was_set_back_counts_again() {
        let (at, skew) = (Walltime::from_millis, Span::from_secs(1));
        let mut numbers = Numbers::default();
        numbers.next(at(9000), skew);
        assert_eq!(numbers.next(at(8100), skew), (9001, None));
        assert_eq!(numbers.next(at(8100), skew), (9002, None));
        assert_eq!(numbers.next(at(3000), skew), (3000, Some(9002)));
        assert_eq!(numbers.next(at(3000), skew), (3001, None));
        // Only directly above what was given before.
        let mut above = |number| numbers.above(number, at(3000), skew);
        assert_eq!(above(9003), None);
        assert_eq!(above(8000), Some(8001));
        assert_eq!(above(9002), Some(9003));
        assert_eq!(above(9003), Some(9004));
        // By the clock where that is enough.
        assert_eq!(above(2999), Some(3005));
        // A service that begins knows as much from what it kept.
        let mut again = Numbers::default();
        for number in [9004, 3000, 9000, 3005] {
            again.note(number, at(4000));
        }
        assert_eq!(again, numbers);
        assert_eq!(again.next(at(10_000), skew), (10_000, None));
    }

    #[test]
    fn what_went_too_far_is_left_out_and_said() {
        let (me, lb1, now) = (node("web1"), node("lb1"), (5, Walltime::from_millis(5)));
        let both = request(&["1: lb1 web1 lb1", "2: db1"]);
        let (fired, too_far) = trigger(&both, &me, &lb1, now, 3).expect("one may");
        assert_eq!(fired.lineage, lineage(&["2: db1 web1"]));
        assert_eq!(too_far.len(), 1);
        let error = trigger(&request(&["1: lb1 web1 lb1"]), &me, &lb1, now, 3);
        assert_eq!(
            error.expect_err("refused").to_string(),
            "over 3 hops: lb1 -> web1 -> lb1 ..."
        );
    }

    #[test]
    fn list_of_targets_names_an_origin_that_all_triggers_have() {
        let of = |ways: &[&[&str]]| {
            let triggers = ways.iter().enumerate().map(|(n, ways)| Trigger {
                id: Id::from_bits(3),
                target: node(&format!("n{n}")),
                lineage: lineage(ways),
                ..fired(&request(&["1: a"]), 5)
            });
            targets(&triggers.collect::<Vec<_>>())
        };
        let origin = |ways: &[&[&str]]| of(ways).expect("shared").origin;
        // One target still had the trigger of an older run.
        assert_eq!(origin(&[&["1: a", "3: a"], &["3: a"]]), Id::from_bits(3));
        // A triggered run has sent it, with several origins.
        let several: &[&str] = &["1: a b a", "2: b a"];
        assert_eq!(origin(&[several, several]), Id::from_bits(2));
        assert_eq!(origin(&[several, &["1: a b a", "4: a"]]), Id::from_bits(1));
        let list = of(&[several, several]).expect("a list");
        assert_eq!(list.targets, BTreeSet::from([node("n0"), node("n1")]));
        assert!(of(&[&["1: a"], &["2: a"]]).is_err() && of(&[]).is_err());
    }

    #[test]
    fn list_of_targets_finds_its_origin_however_many_older_ones_a_trigger_stands_for() {
        let older: Vec<String> = (0..8).map(|id| format!("{id}: a")).collect();
        let older: Vec<&str> = older.iter().map(String::as_str).collect();
        let older = Trigger {
            lineage: lineage(&older),
            ..fired(&request(&[]), 5)
        };
        // Its own origin, and one that a triggered run has passed on.
        for (run, origin) in [
            (lineage(&[]), u128::MAX),
            (lineage(&["9: b c", "10: b c d"]), 9),
        ] {
            let asked = Request {
                id: Id::from_bits(u128::MAX),
                run,
                ..request(&[])
            };
            let newer = fired(&asked, 6);
            let both = merged(&older, Span::ZERO, newer.clone()).expect("of one node");
            assert_eq!(both.lineage.0.len(), 8);
            let other = Trigger {
                target: node("lb2"),
                ..newer
            };
            let list = targets(&[both, other]).expect("a shared origin");
            assert_eq!(list.origin, Id::from_bits(origin));
        }
    }

    #[test]
    fn a_newer_one_stands_for_the_older_as_well() {
        let older = Trigger {
            delta: 60_000,
            ttl: 7_200_000,
            ..fired(&request(&["1: a", "2: b c"]), 1_000_000)
        };
        let newer = fired(&request(&["1: x y"]), 1_600_000);
        let both = merged(&older, Span::from_secs(6600), newer.clone()).expect("of one node");
        assert_eq!(both.lineage, lineage(&["1: x y web1", "2: b c web1"]));
        assert_eq!((both.number, both.delta), (1_600_000, 60_000));
        assert_eq!(both.expires(), older.expires());
        assert_eq!(both.id, newer.id);
    }

    #[test]
    fn what_was_taken_back_is_not_asked_for_again() {
        let first = fired(&request(&["1: a"]), 1_000_000);
        let back = cancel(
            &first,
            Span::from_secs(3000),
            (1_600_000, Walltime::from_millis(1_600_000)),
        );
        assert_eq!((back.ask, &back.id), (Ask::Cancel, &first.id));
        assert_eq!(back.expires(), first.expires());
        let newer = fired(&request(&["2: b"]), 1_700_000);
        assert_eq!(
            merged(&back, Span::from_secs(3000), newer.clone()),
            Ok(newer)
        );
    }

    #[test]
    fn no_hop_is_lost_between_two_nodes_that_one_speaks_for() {
        let speaks_for = |name| Request {
            on_behalf: Some(node(name)),
            ..request(&[])
        };
        let (one, other) = (fired(&speaks_for("a"), 5), fired(&speaks_for("b"), 6));
        let error = merged(&one, Span::ZERO, other)
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("'again' for a is still on its way"),
            "{error}"
        );
    }

    proptest! {
        /// However often it is merged, it can be written, and lives as long as the longest may.
        #[test]
        fn merging_keeps_every_promise(firings in prop::collection::vec((0..100_000_000_u64, 0..=MOST_TTL, 0..1000_u64, 0..30_u128), 1..20)) {
            let mut last: Option<Trigger> = None;
            for (at, ttl, delta, origin) in firings {
                let text = format!("{origin}: a");
                let asked = Request { ttl: Span::from_nanos(ttl * 1_000_000), delta: Span::from_nanos(delta * 1_000_000), ..request(&[&text]) };
                let number = at.max(last.as_ref().map_or(0, |t| t.number + 1));
                let (new, _) = trigger(&asked, &node("web1"), &node("lb1"), (number, Walltime::from_millis(at)), 10).expect("short");
                let both = match &last {
                    Some(older) => merged(older, older.expires().since(Walltime::from_millis(at)), new.clone()).expect("of one node"),
                    None => new.clone(),
                };
                prop_assert!(encode(&both).is_ok());
                prop_assert!(both.expires() >= new.expires() && both.delta >= new.delta);
                if let Some(older) = last {
                    prop_assert!(both.number > older.number && both.delta >= older.delta);
                    let bound = Walltime::from_millis(both.at + MOST_TTL);
                    prop_assert!(both.expires() >= older.expires().min(bound));
                }
                last = Some(both);
            }
        }
    }
}
