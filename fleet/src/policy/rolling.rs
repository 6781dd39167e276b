//! Decision whether a target of a rolling run may begin when its turn comes. It depends only on
//! values that the sender and the listed targets have signed.
//!
//! A target reads the list that the sender has signed, then one key for each listed target, and
//! then the slots of the targets that began and have published no end. It never lists a prefix, so
//! values at other keys can neither hide a failure nor delay the decision.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{Boottime, Span};

use crate::wire::key::Key;
use crate::wire::name::{Id, Name, Node};
use crate::wire::outcome::{Outcome, TriggerStatus};
use crate::wire::targets::Targets;
use crate::wire::trigger::Trigger;

/// Time after which a target that began and has neither a slot nor an end counts as failed. The
/// target also waits this long for a missing list of targets.
const PATIENCE: Span = Span::from_secs(60);
/// Pause before missing values are read again.
const PAUSE: Span = Span::from_secs(5);
/// Maximum number of keys that are read together.
const TOGETHER: usize = 64;

/// Next step of a target.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read these keys, pass the values to [`Count::record`], and call [`Count::next`] again.
    Read(Vec<Key>),
    /// Begin: too few targets have failed, whatever the outcome of the missing ones.
    Begin,
    /// Do not begin.
    Halt {
        /// Targets that count as failed.
        failed: BTreeSet<Node>,
        /// Failed targets that were missing for [`PATIENCE`].
        missing: BTreeSet<Node>,
    },
    /// Begin a new check at this time. The set has the missing targets; it is empty if the list of
    /// targets is missing.
    Wait(Boottime, BTreeSet<Node>),
    /// Give up for now: the list of targets was missing for [`PATIENCE`].
    Unlisted,
}

/// Value that was read, and was signed by the node that its key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// List of targets from the sender.
    Targets(Targets),
    /// Published status of a target's trigger.
    Status(TriggerStatus),
    /// Node that has a slot, or waits for one.
    Slot(Node),
}

/// Kind of values that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    List,
    Stories,
    Slots,
}

/// Count of the other targets that have failed.
#[derive(Debug)]
pub struct Count {
    sender: Node,
    id: Id,
    group: Name,
    stop_after: usize,
    stage: Stage,
    /// Origin in the keys at which targets publish; none until the list is read.
    origin: Option<Id>,
    /// Listed targets that have not published an end.
    open: BTreeSet<Node>,
    /// Targets whose keys of this stage are not read yet.
    rest: Vec<Node>,
    failed: BTreeSet<Node>,
    /// Targets that began and have not published an end.
    begun: BTreeSet<Node>,
    /// Targets that have a slot, or wait for one.
    queued: BTreeSet<Node>,
    /// Targets that began but have no slot, and the time of the check that first found that.
    missing: BTreeMap<Node, Boottime>,
    /// Time until which the target waits for a missing list.
    unlisted_until: Option<Boottime>,
}

impl Count {
    /// Count for a trigger whose turn has come. `group` is the group of its slots.
    pub fn new(trigger: &Trigger, group: Name) -> Count {
        Count {
            sender: trigger.sender.clone(),
            id: trigger.id.clone(),
            group,
            stop_after: trigger.stop_after as usize,
            stage: Stage::Start,
            origin: None,
            open: BTreeSet::new(),
            rest: Vec::new(),
            failed: BTreeSet::new(),
            begun: BTreeSet::new(),
            queued: BTreeSet::new(),
            missing: BTreeMap::new(),
            unlisted_until: None,
        }
    }

    /// Begins a new check. Targets that have failed are not read again.
    pub fn look(&mut self) {
        self.stage = Stage::Start;
        self.rest.clear();
        self.begun.clear();
        self.queued.clear();
    }

    /// Records a value. A value of another run changes nothing.
    pub fn record(&mut self, fact: Fact) {
        match fact {
            Fact::Targets(list) => {
                if (&list.sender, &list.id) == (&self.sender, &self.id) && self.origin.is_none() {
                    (self.origin, self.open) = (Some(list.origin), list.targets);
                }
            }
            Fact::Status(told) => {
                let is_of_run = (&told.sender, &told.id) == (&self.sender, &self.id);
                if is_of_run && self.open.contains(&told.target) {
                    self.ended_or_began(told);
                }
            }
            Fact::Slot(node) => drop(self.queued.insert(node)),
        }
    }

    fn ended_or_began(&mut self, told: TriggerStatus) {
        if told.outcome.is_final() {
            self.open.remove(&told.target);
            if told.outcome.counts_as_failed() {
                self.failed.insert(told.target);
            }
        } else if told.outcome != Outcome::Held {
            self.begun.insert(told.target);
        }
    }

    /// Next step at this time.
    pub fn next(&mut self, now: Boottime) -> Effect {
        loop {
            if !self.rest.is_empty() {
                let later = self.rest.split_off(TOGETHER.min(self.rest.len()));
                let read = std::mem::replace(&mut self.rest, later);
                return Effect::Read(read.into_iter().filter_map(|node| self.key(node)).collect());
            }
            match self.stage {
                Stage::Start if self.origin.is_none() => {
                    self.stage = Stage::List;
                    return Effect::Read(vec![Key::Targets {
                        sender: self.sender.clone(),
                        id: self.id.clone(),
                    }]);
                }
                Stage::List if self.origin.is_none() => return self.wait_for_list(now),
                Stage::Start | Stage::List => {
                    self.stage = Stage::Stories;
                    self.rest = self.open.iter().cloned().collect();
                }
                Stage::Stories => {
                    if self.failed.len() >= self.stop_after {
                        return Effect::Halt {
                            failed: self.failed.clone(),
                            missing: BTreeSet::new(),
                        };
                    }
                    if self.failed.len() + self.begun.len() < self.stop_after {
                        return Effect::Begin;
                    }
                    self.stage = Stage::Slots;
                    self.rest = self.begun.iter().cloned().collect();
                }
                Stage::Slots => return self.verdict(now),
            }
        }
    }

    fn key(&self, node: Node) -> Option<Key> {
        Some(match self.stage {
            Stage::Slots => Key::Slot {
                group: self.group.clone(),
                node,
            },
            _ => Key::Story {
                node,
                origin: self.origin.clone()?,
                trigger: self.id.clone(),
            },
        })
    }

    /// Decision after all values were read. A slot is released only after the end of its run was
    /// published, so a target with neither is missing, unless its run ended between two reads of
    /// this check.
    fn verdict(&mut self, now: Boottime) -> Effect {
        let missing = self.begun.difference(&self.queued).cloned();
        let since = |node: Node| {
            let since = self.missing.get(&node).copied().unwrap_or(now);
            (node, since)
        };
        self.missing = missing.map(since).collect();
        let (lost, rest): (Vec<_>, Vec<_>) = self
            .missing
            .iter()
            .partition(|(_, since)| **since + PATIENCE <= now);
        let missing: BTreeSet<Node> = lost.into_iter().map(|(node, _)| node.clone()).collect();
        if self.failed.len() + missing.len() >= self.stop_after {
            let failed = self.failed.union(&missing).cloned().collect();
            return Effect::Halt { failed, missing };
        }
        let earliest = rest.into_iter().map(|(_, since)| *since).min();
        match earliest.filter(|_| self.failed.len() + self.missing.len() >= self.stop_after) {
            Some(since) => Effect::Wait(
                (since + PATIENCE).min(now + PAUSE),
                self.missing.keys().cloned().collect(),
            ),
            None => Effect::Begin,
        }
    }

    fn wait_for_list(&mut self, now: Boottime) -> Effect {
        let until = *self.unlisted_until.get_or_insert(now + PATIENCE);
        if until <= now {
            return Effect::Unlisted;
        }
        Effect::Wait(until.min(now + PAUSE), BTreeSet::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::lineage::tests::node;
    use crate::wire::trigger::tests::trigger;
    use proptest::prelude::*;

    const RUN: u128 = 7;

    fn at(seconds: u64) -> Boottime {
        Boottime::from_nanos(seconds * 1_000_000_000)
    }

    fn group() -> Name {
        "at once 7".parse().expect("a name")
    }

    /// What is stored in the backend, as far as it is signed.
    #[derive(Debug, Clone, Default)]
    struct Stored {
        is_listed: bool,
        targets: BTreeSet<Node>,
        told: BTreeMap<Node, Outcome>,
        slots: BTreeSet<Node>,
    }

    impl Stored {
        fn new(count: usize) -> Stored {
            Stored {
                is_listed: true,
                targets: (0..count).map(|n| node(&format!("n{n}"))).collect(),
                ..Stored::default()
            }
        }

        fn tells(&mut self, n: usize, outcome: Outcome, has_slot: bool) {
            let node = node(&format!("n{n}"));
            self.slots.remove(&node);
            if has_slot {
                self.slots.insert(node.clone());
            }
            self.told.insert(node, outcome);
        }

        fn at(&self, key: &Key) -> Option<Fact> {
            match key {
                Key::Targets { .. } if !self.is_listed => None,
                Key::Targets { sender, id } => Some(Fact::Targets(Targets {
                    id: id.clone(),
                    sender: sender.clone(),
                    origin: Id::from_bits(1),
                    targets: self.targets.clone(),
                })),
                Key::Story {
                    node,
                    origin,
                    trigger,
                } => {
                    assert_eq!(*origin, Id::from_bits(1));
                    let outcome = *self.told.get(node)?;
                    Some(Fact::Status(told(node, trigger, outcome)))
                }
                Key::Slot { group: of, node } => {
                    assert_eq!(*of, group());
                    let slot = self.slots.get(node)?;
                    Some(Fact::Slot(slot.clone()))
                }
                other => panic!("{other:?} is read"),
            }
        }

        /// What comes of a look at this time, and the number of keys that it reads.
        fn look(&self, count: &mut Count, now: Boottime) -> (Effect, usize) {
            let mut read = 0;
            count.look();
            loop {
                match count.next(now) {
                    Effect::Read(keys) => {
                        assert!((1..=TOGETHER).contains(&keys.len()));
                        read += keys.len();
                        let facts = keys.iter().filter_map(|key| self.at(key));
                        facts.for_each(|fact| count.record(fact));
                    }
                    effect => return (effect, read),
                }
            }
        }
    }

    fn told(target: &Node, id: &Id, outcome: Outcome) -> TriggerStatus {
        let trigger = trigger();
        TriggerStatus {
            id: id.clone(),
            number: 1,
            sender: trigger.sender,
            target: target.clone(),
            name: trigger.name,
            outcome,
            why: String::new(),
            above: None,
            at: 1,
            stopped: vec![],
            ran: None,
            waits: false,
        }
    }

    fn count(stop_after: u32) -> Count {
        let trigger = Trigger {
            id: Id::from_bits(RUN),
            parallel: 1,
            stop_after,
            ..trigger()
        };
        Count::new(&trigger, group())
    }

    fn nodes(all: &[usize]) -> BTreeSet<Node> {
        all.iter().map(|n| node(&format!("n{n}"))).collect()
    }

    fn halt(failed: &[usize], missing: &[usize]) -> Effect {
        Effect::Halt {
            failed: nodes(failed),
            missing: nodes(missing),
        }
    }

    #[test]
    fn target_begins_until_enough_of_the_listed_ones_have_failed() {
        let mut stored = Stored::new(200);
        assert_eq!(
            stored.look(&mut count(2), at(1)),
            (Effect::Begin, 201),
            "the list, and one key for each target"
        );
        stored.tells(3, Outcome::Failed, false);
        stored.tells(5, Outcome::Held, false);
        assert_eq!(stored.look(&mut count(2), at(1)).0, Effect::Begin);
        stored.tells(150, Outcome::Unknown, false);
        let halt = halt(&[3, 150], &[]);
        assert_eq!(stored.look(&mut count(2), at(1)).0, halt);
    }

    #[test]
    fn outcome_of_another_run_or_target_changes_nothing() {
        let mut count = count(1);
        let stored = Stored::new(1);
        assert_eq!(stored.look(&mut count, at(1)).0, Effect::Begin);
        count.record(Fact::Status(told(
            &node("n0"),
            &Id::from_bits(8),
            Outcome::Failed,
        )));
        count.record(Fact::Status(told(
            &node("other"),
            &Id::from_bits(RUN),
            Outcome::Failed,
        )));
        assert_eq!(stored.look(&mut count, at(1)).0, Effect::Begin);
    }

    #[test]
    fn missing_target_counts_as_failed_after_a_minute() {
        let mut stored = Stored::new(3);
        for outcome in [Outcome::Taken, Outcome::Started, Outcome::TooLate] {
            stored.tells(0, outcome, false);
            let mut one = count(1);
            for now in (100..160).step_by(5) {
                let wait = Effect::Wait(at(now + 5), nodes(&[0]));
                assert_eq!(stored.look(&mut one, at(now)).0, wait);
            }
            assert_eq!(stored.look(&mut one, at(160)).0, halt(&[0], &[0]));
            // One that runs, in its slot, is not missing; and nobody waits where one more changes nothing.
            assert_eq!(stored.look(&mut count(2), at(100)).0, Effect::Begin);
            stored.tells(0, outcome, true);
            assert_eq!(stored.look(&mut count(1), at(100)).0, Effect::Begin);
        }
    }

    #[test]
    fn missing_target_that_publishes_its_end_decides_by_it() {
        for (outcome, effect) in [
            (Outcome::Changed, Effect::Begin),
            (Outcome::Failed, halt(&[0], &[])),
        ] {
            let (mut stored, mut one) = (Stored::new(3), count(1));
            stored.tells(0, Outcome::Started, false);
            assert!(matches!(stored.look(&mut one, at(1)).0, Effect::Wait(_, _)));
            stored.tells(0, outcome, false);
            assert_eq!(stored.look(&mut one, at(6)).0, effect);
        }
    }

    #[test]
    fn each_missing_target_counts_as_failed_after_a_minute_of_its_own() {
        let (mut stored, mut one) = (Stored::new(3), count(1));
        stored.tells(0, Outcome::Started, false);
        assert!(matches!(stored.look(&mut one, at(1)).0, Effect::Wait(_, _)));
        stored.tells(0, Outcome::Changed, false);
        stored.tells(1, Outcome::Started, false);
        for now in [55, 61, 110] {
            let wait = Effect::Wait(at((now + 5).min(115)), nodes(&[1]));
            assert_eq!(stored.look(&mut one, at(now)).0, wait);
        }
        assert_eq!(stored.look(&mut one, at(115)).0, halt(&[1], &[1]));
    }

    #[test]
    fn target_that_has_a_slot_again_is_missing_no_longer() {
        let (mut stored, mut one) = (Stored::new(3), count(1));
        stored.tells(0, Outcome::Started, false);
        assert!(matches!(stored.look(&mut one, at(1)).0, Effect::Wait(_, _)));
        stored.tells(0, Outcome::Started, true);
        assert_eq!(stored.look(&mut one, at(61)).0, Effect::Begin);
    }

    #[test]
    fn missing_list_is_waited_for_a_minute() {
        let (mut stored, mut one) = (Stored::new(1), count(1));
        stored.is_listed = false;
        assert_eq!(
            stored.look(&mut one, at(1)).0,
            Effect::Wait(at(6), BTreeSet::new())
        );
        assert_eq!(stored.look(&mut one, at(61)).0, Effect::Unlisted);
        stored.is_listed = true;
        assert_eq!(stored.look(&mut one, at(61)).0, Effect::Begin);
    }

    proptest! {
        /// Whatever targets publish and slots they hold from look to look: nobody waits longer than a minute for any of them, waits only while
        /// the missing ones can decide, begins only if fewer than allowed have failed, and counts nobody as failed that was missing for less.
        #[test]
        fn nobody_waits_longer_than_a_minute(
            stop_after in 1..4_u32,
            changes in prop::collection::vec((0..5_usize, prop::sample::select(Outcome::ALL), any::<bool>(), any::<bool>()), 0..40),
        ) {
            let (mut stored, mut one, mut now) = (Stored::new(5), count(stop_after), at(10));
            let (mut changes, mut since) = (changes.into_iter(), BTreeMap::<Node, Boottime>::new());
            let most = stop_after as usize;
            loop {
                for (n, outcome, has_slot, is_listed) in changes.by_ref().take(2) {
                    let is_over = stored.told.get(&node(&format!("n{n}"))).is_some_and(|one| one.is_final());
                    if !is_over {
                        stored.tells(n, outcome, has_slot);
                    }
                    stored.is_listed = is_listed;
                }
                let failed = stored.told.values().filter(|one| one.counts_as_failed()).count();
                let is_missing = |node: &Node| stored.told.get(node).is_some_and(|one| !one.is_final() && *one != Outcome::Held)
                    && !stored.slots.contains(node);
                since.retain(|node, _| is_missing(node));
                for node in stored.targets.iter().filter(|node| is_missing(node)) {
                    since.entry(node.clone()).or_insert(now);
                }
                match stored.look(&mut one, now).0 {
                    Effect::Wait(until, missing) => {
                        prop_assert!(until > now);
                        if missing.is_empty() {
                            prop_assert!(until <= at(70));
                        } else {
                            prop_assert!(failed < most && failed + missing.len() >= most);
                            prop_assert!(missing.iter().all(|node| until <= now + PAUSE && since.contains_key(node)));
                        }
                        now = until;
                    }
                    Effect::Begin => { prop_assert!(failed < most); break; }
                    Effect::Halt { failed: all, missing } => {
                        prop_assert!(all.len() >= most && all.len() == failed + missing.len());
                        prop_assert!(missing.iter().all(|node| since[node] + PATIENCE <= now));
                        break;
                    }
                    Effect::Unlisted => { prop_assert!(now >= at(70)); break; }
                    Effect::Read(_) => unreachable!("a look reads all"),
                }
                // Each of five targets goes missing at most as often as something changes.
                prop_assert!(now <= at(10 + 60 * 21));
            }
        }
    }
}
