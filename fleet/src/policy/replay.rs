//! Replay ledger of a target, which keeps it from acting on a trigger twice: the highest number of
//! each sender, node that the sender acts for, and name.
//!
//! The ledger keeps a number for as long as a trigger with that number or a lower one could still
//! be accepted: such a trigger was sent no later than the number says, and may wait for a day at
//! most. The size of the ledger is bounded. A name that is removed leaves its number as a floor: no
//! trigger of that sender and node is accepted at or below the floor, unless it already waits here
//! for `again`, its cap or its share. A trigger that is held for another reason is not recorded,
//! and a floor can overtake it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use again_base::model::{Moment, Span, Walltime};
use serde::{Deserialize, Serialize};

use super::rule::COUNTS;
use super::term::Term;
use crate::wire::name::{Id, Name, Node};
use crate::wire::outcome::{Outcome, cut};
use crate::wire::trigger::{MOST_TTL, Trigger};

/// Key that identifies a trigger among all triggers of its target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TriggerKey {
    /// Node that sent the trigger.
    pub sender: Node,
    /// Name of the trigger.
    pub name: Name,
    /// Number of the trigger.
    pub number: u64,
    /// Id of the trigger.
    pub id: Id,
}

impl From<&Trigger> for TriggerKey {
    fn from(trigger: &Trigger) -> Self {
        TriggerKey {
            sender: trigger.sender.clone(),
            name: trigger.name.clone(),
            number: trigger.number,
            id: trigger.id.clone(),
        }
    }
}

/// Maximum number of names of one sender and one node that it acts for.
pub const MOST_NAMES: usize = 1000;
/// Maximum number of calls of programs for the events of one sender.
pub const MOST_CALLS: usize = 10_000;
/// Maximum number of names of one sender that wait here, or were accepted and have not expired.
pub const MOST_ACCEPTED: usize = 2000;
/// Total of such names of all senders from which on no further one is accepted of the sender with
/// the most. `again` remembers 4,096 numbers.
const MOST_ACCEPTED_OF_ALL: usize = 3500;
/// Maximum number of entries of all senders together: names, floors, and ids of accepted triggers
/// whose names were removed.
pub const MOST_ENTRIES: usize = 50_000;
/// Maximum length of a stored reason, in bytes.
const MOST_WHY: usize = 200;

/// Highest number of a name, and the outcome of its trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Highest number.
    pub number: u64,
    /// Id of its trigger.
    pub id: Id,
    /// Outcome of its trigger, as far as the ledger knows; [`Outcome::Held`] while it waits here.
    pub outcome: Outcome,
    /// Reason of the outcome.
    pub why: String,
    /// Id of the last accepted trigger of this name, whatever its number.
    taken: Option<Id>,
    /// Time at which the trigger has expired even for the slowest clock.
    expires: Walltime,
    /// Term for which this entry is kept.
    term: Term,
}

impl Seen {
    /// Whether this entry is for the given trigger, and the trigger waits here.
    pub fn is_waiting(&self, trigger: &Trigger) -> bool {
        self.outcome == Outcome::Held && self.is(trigger)
    }

    /// Whether this entry is for the given trigger.
    pub fn is(&self, trigger: &Trigger) -> bool {
        self.number == trigger.number && self.id == trigger.id
    }

    fn is_live(&self, now: &Moment) -> bool {
        self.term.left_until(self.expires, now) > Span::ZERO
    }

    /// Whether the entry can be removed to make room: it does not wait here, or has expired.
    fn is_finished(&self, now: &Moment) -> bool {
        self.outcome != Outcome::Held || !self.is_live(now)
    }

    /// Whether the trigger waits here, or one was accepted, and the entry has not expired.
    fn is_accepted(&self, now: &Moment) -> bool {
        (self.outcome == Outcome::Held || self.taken.is_some()) && self.is_live(now)
    }
}

/// Names, and the number at or below which no new trigger is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Group {
    floor: u64,
    names: BTreeMap<Name, Seen>,
}

impl Group {
    /// Finished name with the lowest number.
    fn lowest(&self, now: &Moment) -> Option<(&Name, &Seen)> {
        let finished = self.names.iter().filter(|(_, seen)| seen.is_finished(now));
        finished.min_by_key(|(_, seen)| seen.number)
    }

    /// Removes names whose term is over. Returns the highest number of these.
    fn forget(&mut self, now: &Moment) -> u64 {
        let mut highest = 0;
        self.names.retain(|_, seen| {
            let is_over = seen.term.is_over(now);
            if is_over {
                highest = highest.max(seen.number);
            }
            !is_over
        });
        highest
    }
}

/// Names, calls and floors of one sender.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Sender {
    /// Floor for all nodes.
    floor: u64,
    /// Highest number that was removed because of its age.
    forgotten: u64,
    nodes: BTreeMap<Node, Group>,
    /// Calls of programs for events of this node.
    calls: Group,
    /// Accepted triggers whose names were removed, until they have expired.
    accepted: BTreeMap<Id, Term>,
}

impl Sender {
    fn size(&self) -> usize {
        let names: usize = self.nodes.values().map(|group| 1 + group.names.len()).sum();
        1 + names + self.calls.names.len() + self.accepted.len()
    }

    fn group(&self, name: &Name, node: &Node) -> Option<&Group> {
        if name.is_of_a_call() {
            return Some(&self.calls);
        }
        self.nodes.get(node)
    }

    /// Groups that may have this name.
    fn groups(&self, name: &Name) -> impl Iterator<Item = &Group> {
        let is_call = name.is_of_a_call();
        let nodes = self.nodes.values().filter(move |_| !is_call);
        nodes.chain(is_call.then_some(&self.calls))
    }

    /// Removes a name, whose number becomes the floor. Keeps the id of an accepted trigger until it
    /// expires.
    fn remove(&mut self, node: &Node, name: &Name, now: &Moment) {
        let Some(group) = self.nodes.get_mut(node) else {
            return;
        };
        let Some(seen) = group.names.remove(name) else {
            return;
        };
        group.floor = group.floor.max(seen.number);
        if seen.is_live(now)
            && let Some(id) = seen.taken
        {
            let until = seen.expires;
            self.accepted.insert(id, Term { until, ..seen.term });
        }
    }

    /// Makes room in a full group: removes its finished name with the lowest number.
    fn make_room(&mut self, node: &Node, now: &Moment) {
        let group = self.nodes.get(node);
        let full = group.filter(|group| group.names.len() >= MOST_NAMES);
        if let Some((name, _)) = full.and_then(|group| group.lowest(now)) {
            let name = name.clone();
            self.remove(node, &name, now);
        }
    }

    /// Removes older triggers of a name that were sent on behalf of other nodes than this one.
    fn replace(&mut self, node: &Node, name: &Name, number: u64, now: &Moment) {
        let is_older = |seen: &Seen| seen.number < number;
        let others = self
            .nodes
            .iter()
            .filter(|(other, group)| *other != node && group.names.get(name).is_some_and(is_older));
        let others: Vec<Node> = others.map(|(other, _)| other.clone()).collect();
        for other in others {
            self.remove(&other, name, now);
        }
    }

    /// Candidate for removal to make room for other senders: the lowest finished number of all
    /// nodes, with its name, or without one if it is a floor.
    fn lowest(&self, now: &Moment) -> Option<(u64, &Node, Option<&Name>)> {
        let all = self.nodes.iter().filter_map(|(node, group)| {
            if group.names.is_empty() {
                return Some((group.floor, node, None));
            }
            let (name, seen) = group.lowest(now)?;
            Some((seen.number, node, Some(name)))
        });
        all.min_by_key(|(number, ..)| *number)
    }

    /// Whether an entry can be removed to make room for other senders.
    fn gives_way(&self, now: &Moment) -> bool {
        self.lowest(now).is_some() || self.calls.lowest(now).is_some() || !self.accepted.is_empty()
    }

    /// Makes room for other senders: removes at least one entry, if [`Sender::gives_way`]. Ids of
    /// removed names are not kept: the floor stops each copy.
    fn give_way(&mut self, now: &Moment) {
        if let Some((number, node, name)) = self.lowest(now) {
            let (node, name) = (node.clone(), name.cloned());
            self.floor = self.floor.max(number);
            let group = self.nodes.get_mut(&node);
            if let (Some(name), Some(group)) = (name, group) {
                group.names.remove(&name);
            }
        } else if let Some((name, seen)) = self.calls.lowest(now) {
            let (name, number) = (name.clone(), seen.number);
            self.calls.floor = self.calls.floor.max(number);
            self.calls.names.remove(&name);
        } else if let Some((id, _)) = self.accepted.iter().min_by_key(|(_, term)| term.until) {
            let id = id.clone();
            self.accepted.remove(&id);
        }
        self.drop_floors();
    }

    /// Drops groups that have no names and whose floor is not above the floor for all nodes.
    fn drop_floors(&mut self) {
        let floor = self.floor;
        self.nodes
            .retain(|_, group| !group.names.is_empty() || group.floor > floor);
    }

    fn forget(&mut self, now: &Moment) {
        for group in self.nodes.values_mut() {
            self.forgotten = self.forgotten.max(group.forget(now));
        }
        // Every earlier number of this sender is older than a day as well.
        self.floor = self.floor.max(self.forgotten);
        self.calls.floor = self.calls.floor.max(self.calls.forget(now));
        self.accepted.retain(|_, term| !term.is_over(now));
        self.drop_floors();
    }

    /// Whether the sender has only floors, and these are more than a day old.
    fn is_over(&self, now: &Moment) -> bool {
        let is_empty =
            self.nodes.is_empty() && self.calls.names.is_empty() && self.accepted.is_empty();
        let floor = self.floor.max(self.calls.floor);
        is_empty && floor <= self.forgotten && floor.saturating_add(MOST_TTL) < now.wall.millis()
    }

    /// Number of names that wait here, or were accepted and have not expired.
    fn count_accepted(&self, now: &Moment) -> usize {
        let names = self.nodes.values().flat_map(|group| group.names.values());
        names.filter(|seen| seen.is_accepted(now)).count() + self.accepted.len()
    }
}

/// Record of the outcome of a trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    which: TriggerKey,
    /// Node on whose behalf the trigger was sent.
    node: Node,
    outcome: Outcome,
    why: String,
    expires: Walltime,
    skew: Span,
    now: Moment,
}

impl Record {
    /// Record of an outcome of a trigger. The clocks may differ by `skew`.
    pub fn new(trigger: &Trigger, outcome: Outcome, why: &str, skew: Span, now: &Moment) -> Record {
        Record {
            which: trigger.into(),
            node: trigger.firing().clone(),
            outcome,
            why: cut(why, MOST_WHY),
            expires: trigger.expires() + skew,
            skew,
            now: now.clone(),
        }
    }

    /// Term for which the record has to be kept. It is long enough even if the clock was ahead when
    /// it began.
    fn term(&self) -> Term {
        let number = Walltime::from_millis(self.which.number);
        // The name of a call belongs to one event, and the number is the time of the event.
        let longest = match self.which.name.is_of_a_call() {
            true => COUNTS,
            false => MOST_TTL,
        };
        let until = Walltime::from_millis(self.which.number.saturating_add(longest)) + self.skew;
        let wall = self.now.wall.min(number);
        let began = Moment {
            wall,
            ..self.now.clone()
        };
        Term { began, until }
    }
}

/// Replay ledger of one target.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReplayLedger {
    senders: BTreeMap<Node, Sender>,
    /// Floor for all senders: the highest floor of the senders that were removed because they had
    /// nothing else.
    forgotten: u64,
    /// Number of entries.
    size: usize,
}

impl ReplayLedger {
    /// Entry of this sender and name with the highest number, for any node that the sender acts
    /// for.
    pub fn seen(&self, sender: &Node, name: &Name) -> Option<&Seen> {
        let groups = self.senders.get(sender)?.groups(name);
        let seen = groups.filter_map(|group| group.names.get(name));
        seen.max_by_key(|seen| seen.number)
    }

    /// Number at or below which no trigger of this trigger's sender and node is accepted.
    pub fn floor(&self, trigger: &Trigger) -> u64 {
        let Some(sender) = self.senders.get(&trigger.sender) else {
            return self.forgotten;
        };
        let group = sender.group(&trigger.name, trigger.firing());
        let floor = group.map_or(0, |group| group.floor).max(self.forgotten);
        match trigger.name.is_of_a_call() {
            true => floor,
            false => floor.max(sender.floor),
        }
    }

    /// Outcome of the trigger with this trigger's id, whatever its number and name.
    pub fn outcome(&self, trigger: &Trigger) -> Option<(Outcome, &str)> {
        let sender = self.senders.get(&trigger.sender)?;
        let groups = sender.groups(&trigger.name);
        let mut seen = groups.flat_map(|group| group.names.values());
        let was_taken = |seen: &&Seen| seen.taken.as_ref() == Some(&trigger.id);
        let is_it = |seen: &&Seen| seen.id == trigger.id && seen.outcome != Outcome::Held;
        match seen.find(|seen| was_taken(seen) || is_it(seen)) {
            Some(seen) if is_it(&seen) && seen.outcome != Outcome::TooLate => {
                Some((seen.outcome, &seen.why))
            }
            Some(_) => Some((Outcome::Taken, "")),
            None => sender
                .accepted
                .get(&trigger.id)
                .map(|_| (Outcome::Taken, "")),
        }
    }

    /// Reason why there is no room for another name, or for another accepted trigger; none if there
    /// is room.
    pub fn lacks_room(&self, trigger: &Trigger, is_taken: bool, now: &Moment) -> Option<String> {
        let Trigger { sender, name, .. } = trigger;
        let known = self.senders.get(sender);
        let group = known.and_then(|known| known.group(name, trigger.firing()));
        let seen = group.and_then(|group| group.names.get(name));
        let is_call = name.is_of_a_call();
        let counts = is_taken && !is_call && !seen.is_some_and(|seen| seen.is_accepted(now));
        if counts
            && let Some(known) = known
            && let Some(why) = self.accepts_no_more(sender, known, now)
        {
            return Some(why);
        }
        if seen.is_some() {
            return None;
        }
        let is_full = group.is_some_and(|group| match is_call {
            true => group.names.len() >= MOST_CALLS,
            false => group.names.len() >= MOST_NAMES && group.lowest(now).is_none(),
        });
        if is_full && is_call {
            return Some(format!("{MOST_CALLS} events of {sender} within an hour"));
        }
        if is_full {
            let node = trigger.firing();
            return Some(format!(
                "{MOST_NAMES} triggers of {sender} for {node} wait here; run 'again enable' or wait until some expire"
            ));
        }
        if self.size >= MOST_ENTRIES && self.largest(now).is_none() {
            return Some(format!(
                "the ledger has {MOST_ENTRIES} entries; wait until some have expired"
            ));
        }
        None
    }

    /// Reason why no further trigger of a sender is accepted until some have expired; none if it
    /// is.
    fn accepts_no_more(&self, node: &Node, sender: &Sender, now: &Moment) -> Option<String> {
        let count = sender.count_accepted(now);
        if count >= MOST_ACCEPTED {
            return Some(format!(
                "{MOST_ACCEPTED} names of {node} were accepted or wait, and have not expired"
            ));
        }
        let counts = self.senders.values().map(|one| one.count_accepted(now));
        let (most, all) = counts.fold((0, 0), |(most, all), one| (one.max(most), all + one));
        (all >= MOST_ACCEPTED_OF_ALL && count >= most).then(|| {
            format!(
                "{all} names were accepted or wait, and have not expired, most of them, {count}, of {node}"
            )
        })
    }

    /// Records the outcome of a trigger. A number that is not the highest changes nothing. Returns
    /// whether anything has changed.
    pub fn record(&mut self, record: &Record) -> bool {
        let Record {
            which, node, now, ..
        } = record;
        let is_call = which.name.is_of_a_call();
        let known = self.senders.get(&which.sender);
        let known = known.and_then(|known| known.group(&which.name, node)?.names.get(&which.name));
        let is_older = |known: &Seen| {
            known.number > which.number
                || known.number == which.number
                    && (known.id != which.id || known.outcome == record.outcome)
        };
        if known.is_some_and(is_older) {
            return false;
        }
        let taken = match record.outcome {
            Outcome::Taken => Some(which.id.clone()),
            _ => known.and_then(|known| known.taken.clone()),
        };
        if known.is_none() {
            self.give_way(now);
        }
        let sender = self.senders.entry(which.sender.clone()).or_default();
        let before = if *sender == Sender::default() {
            0
        } else {
            sender.size()
        };
        let group = if is_call {
            &mut sender.calls
        } else {
            sender.replace(node, &which.name, which.number, now);
            sender.make_room(node, now);
            sender.nodes.entry(node.clone()).or_default()
        };
        let seen = Seen {
            number: which.number,
            id: which.id.clone(),
            outcome: record.outcome,
            why: record.why.clone(),
            taken,
            expires: record.expires,
            term: record.term(),
        };
        group.names.insert(which.name.clone(), seen);
        self.size = self.size - before + sender.size();
        true
    }

    /// Sender with the most entries among those that can make room.
    fn largest(&self, now: &Moment) -> Option<&Node> {
        let mut all: Vec<_> = self.senders.iter().collect();
        all.sort_by_cached_key(|(_, one)| Reverse(one.size()));
        let mut give_way = all.into_iter().filter(|(_, one)| one.gives_way(now));
        give_way.next().map(|(node, _)| node)
    }

    /// Makes room in the sender with the most entries, if there are too many entries in total.
    fn give_way(&mut self, now: &Moment) {
        while self.size >= MOST_ENTRIES {
            let largest = self.largest(now).cloned();
            let Some(sender) = largest.and_then(|node| self.senders.get_mut(&node)) else {
                return;
            };
            let before = sender.size();
            sender.give_way(now);
            self.size = self.size - before + sender.size();
        }
    }

    /// Removes entries whose term is over. Returns whether anything was removed.
    pub fn forget(&mut self, now: &Moment) -> bool {
        let before = self.size;
        for sender in self.senders.values_mut() {
            sender.forget(now);
            if sender.is_over(now) {
                self.forgotten = self.forgotten.max(sender.floor);
            }
        }
        self.senders.retain(|_, sender| !sender.is_over(now));
        self.size = self.senders.values().map(Sender::size).sum();
        self.size != before
    }

    /// Number of entries.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Warnings about limits that are nearly reached.
    pub fn warnings(&self, now: &Moment) -> Vec<String> {
        let is_near = |count: usize, most: usize| count >= most / 5 * 4;
        let mut warnings = Vec::new();
        let mut all = 0;
        for (name, sender) in &self.senders {
            let count = sender.count_accepted(now);
            all += count;
            if is_near(count, MOST_ACCEPTED) {
                warnings.push(format!(
                    "{count} names of {name} were accepted or wait and have not expired; from {MOST_ACCEPTED} on they are held"
                ));
            }
            for (node, group) in &sender.nodes {
                let waiting = group.names.values().filter(|seen| !seen.is_finished(now));
                let count = waiting.count();
                if is_near(count, MOST_NAMES) {
                    warnings.push(format!(
                        "{count} triggers of {name} for {node} wait here; from {MOST_NAMES} on others are held"
                    ));
                }
            }
            let count = sender.calls.names.len();
            if is_near(count, MOST_CALLS) {
                warnings.push(format!(
                    "{count} events of {name} have called programs within an hour; from {MOST_CALLS} on they are held"
                ));
            }
        }
        if is_near(all, MOST_ACCEPTED_OF_ALL) {
            warnings.push(format!(
                "{all} names of all senders were accepted or wait and have not expired; from {MOST_ACCEPTED_OF_ALL} on those of the sender with the most are held"
            ));
        }
        if is_near(self.size, MOST_ENTRIES) {
            let size = self.size;
            warnings.push(format!(
                "the ledger has {size} entries; from {MOST_ENTRIES} on the sender with the most names makes room"
            ));
        }
        warnings
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::term::tests::moment;
    use super::*;
    use crate::wire::trigger::tests::trigger;
    use proptest::prelude::*;

    const SKEW: Span = Span::from_secs(300);
    const DAY: u64 = MOST_TTL;

    fn numbered(number: u64) -> Trigger {
        Trigger {
            number,
            at: number,
            id: Id::from_bits(number.into()),
            ..trigger()
        }
    }

    fn named(n: usize) -> Trigger {
        Trigger {
            name: n.to_string().parse().expect("a name"),
            ..numbered(1_000_000 + n as u64)
        }
    }

    fn call(n: usize) -> Trigger {
        Trigger {
            name: format!("call/x/{n}").parse().expect("a name"),
            ..numbered(1_000_000 + n as u64)
        }
    }

    fn spoken_for(trigger: Trigger, node: &str) -> Trigger {
        Trigger {
            on_behalf: Some(node.parse().expect("a certname")),
            ..trigger
        }
    }

    impl ReplayLedger {
        pub(crate) fn enter(&mut self, trigger: &Trigger, outcome: Outcome, now: &Moment) -> bool {
            self.record(&Record::new(trigger, outcome, "", SKEW, now))
        }
    }

    fn seen<'a>(replays: &'a ReplayLedger, trigger: &Trigger) -> Option<&'a Seen> {
        replays.seen(&trigger.sender, &trigger.name)
    }

    fn has_room(replays: &ReplayLedger, trigger: &Trigger, is_taken: bool, now: &Moment) -> bool {
        replays.lacks_room(trigger, is_taken, now).is_none()
    }

    #[test]
    fn only_the_highest_number_is_kept() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        let (first, second) = (numbered(1_000_001), numbered(1_000_002));
        assert!(replays.enter(&second, Outcome::Taken, &now));
        assert!(!replays.enter(&first, Outcome::Expired, &now));
        let known = seen(&replays, &first).expect("known");
        assert_eq!((known.number, known.outcome), (1_000_002, Outcome::Taken));
        // What was taken stays known under a newer number.
        replays.enter(&numbered(1_000_003), Outcome::TooLate, &now);
        assert_eq!(seen(&replays, &first).expect("known").number, 1_000_003);
        assert_eq!(replays.outcome(&second), Some((Outcome::Taken, "")));
        assert_eq!(replays.outcome(&first), None);
    }

    #[test]
    fn forgotten_number_is_a_floor_when_the_clock_is_set_back() {
        let mut replays = ReplayLedger::default();
        let one = numbered(1_000_000);
        replays.enter(&one, Outcome::Taken, &moment("a", 0, 1_000_000));
        let end = 1_000_000 + DAY + 300_000;
        for early in [
            moment("a", DAY, end - 1),
            moment("a", DAY + 299_999, end),
            moment("b", 1000, end),
        ] {
            assert!(!replays.forget(&early), "{early:?}");
        }
        assert_eq!(replays.floor(&one), 0);
        assert!(replays.forget(&moment("a", DAY + 300_000, end)));
        assert_eq!(seen(&replays, &one), None);
        assert_eq!(replays.floor(&spoken_for(one, "db1")), 1_000_000);
    }

    /// A trigger that is recorded while the clock is a month ahead is forgotten a day later, and not earlier.
    #[test]
    fn clock_that_is_ahead_for_a_moment_makes_nothing_expire_afterwards() {
        let mut replays = ReplayLedger::default();
        let (number, month) = (100 * DAY, 30 * DAY);
        let one = numbered(number);
        replays.enter(&one, Outcome::Expired, &moment("a", 0, number + month));
        assert!(!replays.forget(&moment("a", 1000, number + month + 1000)));
        assert!(!replays.forget(&moment("a", 2000, number + 2000)));
        // What the same sender fired earlier can still be taken.
        assert_eq!(replays.floor(&named(1)), 0);
        let end = DAY + 300_000;
        assert!(!replays.forget(&moment("a", end - 1, number + month)));
        assert!(replays.forget(&moment("a", end, number + end)));
    }

    /// An older trigger may have had the longer ttl.
    #[test]
    fn a_number_is_remembered_longer_than_any_older_trigger_lives() {
        let mut replays = ReplayLedger::default();
        let newer = numbered(1_000_001);
        replays.enter(&newer, Outcome::Taken, &moment("a", 0, 1_000_001));
        let older = Trigger {
            ttl: DAY,
            ..trigger()
        };
        let last = older.expires().millis() + 299_999;
        replays.forget(&moment("a", last, last));
        assert!(seen(&replays, &newer).is_some());
    }

    #[test]
    fn finished_name_with_the_lowest_number_makes_room_and_becomes_the_floor() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        // The lowest two wait here.
        for n in 0..MOST_NAMES {
            assert!(has_room(&replays, &named(n), true, &now));
            let outcome = if n < 2 { Outcome::Held } else { Outcome::Taken };
            replays.enter(&named(n), outcome, &now);
        }
        let size = replays.size();
        let next = named(MOST_NAMES);
        assert!(has_room(&replays, &next, true, &now));
        replays.enter(&next, Outcome::Cancelled, &now);
        assert_eq!(seen(&replays, &named(2)), None);
        assert!(seen(&replays, &named(0)).is_some_and(|seen| seen.is_waiting(&named(0))));
        assert_eq!(replays.floor(&named(7)), named(2).number);
        // Its id is known until it has expired.
        assert_eq!(replays.outcome(&named(2)), Some((Outcome::Taken, "")));
        assert_eq!(replays.size(), size + 1);
        let later = moment("a", 4_000_000, 5_000_000);
        assert!(replays.forget(&later));
        assert_eq!((replays.outcome(&named(2)), replays.size()), (None, size));
        // What the sender sends for another node has a floor of its own, and other senders have theirs.
        assert_eq!(replays.floor(&spoken_for(named(7), "db1")), 0);
        let other = Trigger {
            sender: "web2".parse().expect("a certname"),
            ..named(7)
        };
        assert_eq!(replays.floor(&other), 0);
    }

    /// Whatever became of a name, it counts.
    #[test]
    fn finished_name_needs_room_and_both_kinds_count() {
        for outcome in [
            Outcome::Taken,
            Outcome::Cancelled,
            Outcome::Expired,
            Outcome::Refused,
        ] {
            let mut replays = ReplayLedger::default();
            let now = moment("a", 0, 1_000_000);
            for n in 0..MOST_NAMES + 500 {
                replays.enter(&named(n), outcome, &now);
            }
            let accepted = if outcome == Outcome::Taken { 500 } else { 0 };
            assert_eq!(replays.size(), 2 + MOST_NAMES + accepted, "{outcome}");
            assert_eq!(replays.floor(&named(0)), named(499).number);
        }
        // Names that wait leave no room.
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        for n in 0..MOST_NAMES {
            replays.enter(&named(n), Outcome::Held, &now);
        }
        for is_taken in [false, true] {
            assert!(!has_room(&replays, &named(MOST_NAMES), is_taken, &now));
            assert!(has_room(&replays, &named(7), is_taken, &now));
        }
        assert!(has_room(
            &replays,
            &spoken_for(named(MOST_NAMES), "db1"),
            true,
            &now
        ));
        // Nor do they once their triggers have expired.
        let later = moment("a", 4_000_000, 6_000_000);
        assert!(has_room(&replays, &named(MOST_NAMES), true, &later));
    }

    /// `again` remembers the number of each until it has expired.
    #[test]
    fn accepted_names_of_a_sender_are_bounded_whomever_it_speaks_for() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        for n in 0..MOST_ACCEPTED {
            let one = spoken_for(named(n), &format!("n{}", n / 900));
            assert!(has_room(&replays, &one, true, &now));
            replays.enter(&one, Outcome::Taken, &now);
        }
        let next = spoken_for(named(MOST_ACCEPTED), "n9");
        assert!(!has_room(&replays, &next, true, &now));
        assert!(has_room(&replays, &next, false, &now), "a cancel");
        assert!(has_room(&replays, &spoken_for(named(7), "n0"), true, &now));
        let warnings = replays.warnings(&now);
        assert!(
            warnings[0].starts_with("2000 names of web1 were accepted"),
            "{warnings:?}"
        );
        let later = moment("a", 4_000_000, 6_000_000);
        assert!(has_room(&replays, &next, true, &later));
        assert!(replays.warnings(&later).is_empty());
    }

    /// The sender with the most entries makes room, and no other.
    #[test]
    fn all_senders_together_are_bounded() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        let small = Trigger {
            sender: "web2".parse().expect("a certname"),
            ..numbered(5)
        };
        replays.enter(&small, Outcome::Cancelled, &now);
        for n in 0..MOST_ENTRIES + 200 {
            let one = spoken_for(named(n), &format!("n{}", n / 900));
            replays.enter(&one, Outcome::Cancelled, &now);
        }
        let size = replays.size();
        assert!((MOST_ENTRIES..MOST_ENTRIES + 3).contains(&size), "{size}");
        assert!(seen(&replays, &small).is_some());
        assert_eq!(replays.floor(&small), 0);
        // All nodes that it speaks for have that floor.
        let floor = replays.floor(&spoken_for(named(0), "db9"));
        assert!(floor > named(200).number, "{floor}");
        assert!(replays.warnings(&now)[0].starts_with("the ledger has 5000"));
        let mut counted = replays.clone();
        counted.forget(&now);
        assert_eq!(counted, replays, "counted anew");
    }

    fn of(sender: &str, trigger: Trigger) -> Trigger {
        Trigger {
            sender: sender.parse().expect("a certname"),
            ..trigger
        }
    }

    /// A ledger that is full: this sender has the most names, all accepted or all waiting, and 5,000 others have cancelled some.
    fn full(outcome: Outcome, now: &Moment) -> ReplayLedger {
        let mut replays = ReplayLedger::default();
        for n in 0..MOST_ACCEPTED {
            let node = format!("n{}", n / 900);
            replays.enter(&spoken_for(named(n), &node), outcome, now);
        }
        for n in 0.. {
            if replays.size() >= MOST_ENTRIES {
                break;
            }
            let sender = format!("s{}", n % 5000);
            replays.enter(&of(&sender, named(n)), Outcome::Cancelled, now);
        }
        replays
    }

    /// One that has nothing but triggers that wait does not keep others from making room.
    #[test]
    fn new_name_in_a_full_ledger_costs_one_or_two_others() {
        let now = moment("a", 0, 1_000_000);
        for outcome in [Outcome::Taken, Outcome::Held] {
            let mut replays = full(outcome, &now);
            let accepted =
                |replays: &ReplayLedger| replays.senders[&numbered(1).sender].count_accepted(&now);
            assert_eq!(accepted(&replays), MOST_ACCEPTED);
            for n in 1..20 {
                let before = accepted(&replays);
                let next = of("new", named(2_000_000 + n));
                assert!(has_room(&replays, &next, true, &now), "{outcome} {n}");
                replays.enter(&next, Outcome::Taken, &now);
                assert!(seen(&replays, &next).is_some());
                let size = replays.size();
                assert!(
                    (MOST_ENTRIES..MOST_ENTRIES + 3).contains(&size),
                    "{outcome} {size}"
                );
                assert!(before - accepted(&replays) <= 3, "{outcome}");
            }
            let waiting = if outcome == Outcome::Held { 2000 } else { 1940 };
            assert!(accepted(&replays) >= waiting, "{outcome}");
        }
    }

    #[test]
    fn names_of_all_senders_that_were_accepted_are_bounded_for_the_one_with_the_most() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        for n in 0..MOST_ACCEPTED_OF_ALL {
            let one = spoken_for(named(n), &format!("n{}", n / 900));
            let sender = if n < 1900 { "web1" } else { "web2" };
            assert!(has_room(&replays, &of(sender, one.clone()), true, &now));
            replays.enter(&of(sender, one), Outcome::Taken, &now);
        }
        let next = spoken_for(named(9000), "n9");
        let why = replays.lacks_room(&of("web1", next.clone()), true, &now);
        assert!(why.expect("held").ends_with("most of them, 1900, of web1"));
        assert!(has_room(&replays, &of("web1", next.clone()), false, &now));
        assert!(has_room(&replays, &of("web2", next.clone()), true, &now));
        assert!(has_room(&replays, &of("web3", next), true, &now));
        let warnings = replays.warnings(&now);
        let is_said = |text: &String| text.starts_with("3500 names of all senders");
        assert!(warnings.iter().any(is_said), "{warnings:?}");
    }

    #[test]
    fn triggers_that_wait_are_warned_of_before_others_are_held() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        for n in 0..MOST_NAMES / 5 * 4 {
            assert!(replays.warnings(&now).is_empty());
            replays.enter(&spoken_for(named(n), "db1"), Outcome::Held, &now);
        }
        let warnings = replays.warnings(&now);
        assert!(
            warnings[0].starts_with("800 triggers of web1 for db1 wait here"),
            "{warnings:?}"
        );
    }

    /// A sender that sends the same name for another node replaces what waits of it.
    #[test]
    fn name_of_two_nodes_is_known_once() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        let first = spoken_for(numbered(1_000_001), "web1");
        let second = spoken_for(numbered(1_000_002), "web2");
        replays.enter(&first, Outcome::Held, &now);
        replays.enter(&second, Outcome::Taken, &now);
        for n in 0..MOST_NAMES {
            replays.enter(&spoken_for(named(10 + n), "web2"), Outcome::Taken, &now);
        }
        assert_eq!(seen(&replays, &second), None, "it made room");
        assert_eq!(replays.floor(&first), first.number);
    }

    /// Senders that never come again leave one floor for all.
    #[test]
    fn sender_of_which_nothing_is_left_is_forgotten() {
        let mut replays = ReplayLedger::default();
        for n in 0..50 {
            let one = of(&format!("web{n}"), numbered(1_000_000 + n));
            replays.enter(&one, Outcome::Taken, &moment("a", n, 1_000_000 + n));
        }
        let end = DAY + 400_000;
        replays.forget(&moment("a", end, 1_000_000 + end));
        assert_eq!(replays.size(), 0);
        for n in [0, 49, 99] {
            let one = of(&format!("web{n}"), numbered(1));
            assert_eq!(replays.floor(&one), 1_000_049);
        }
    }

    #[test]
    fn what_called_a_program_has_room_of_its_own_and_is_remembered_for_its_hour() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        for n in 0..MOST_CALLS {
            replays.enter(&call(n), Outcome::Called, &now);
        }
        assert!(!has_room(&replays, &call(MOST_CALLS), true, &now));
        assert!(!has_room(&replays, &call(MOST_CALLS), false, &now));
        assert!(has_room(&replays, &call(7), true, &now));
        assert!(has_room(&replays, &numbered(1_000_000), true, &now));
        assert!(replays.warnings(&now)[0].starts_with("10000 events of web1 have called"));
        let end = COUNTS + 300_000;
        replays.forget(&moment("a", end, 1_000_000 + end));
        assert!(seen(&replays, &call(0)).is_none() && seen(&replays, &call(1)).is_some());
        // Triggers that run Puppet live longer.
        assert_eq!(replays.floor(&call(0)), 1_000_000);
        assert_eq!(replays.floor(&numbered(1_000_000)), 0);
    }

    #[test]
    fn replays_come_back_from_json() {
        let mut replays = ReplayLedger::default();
        let now = moment("a", 0, 1_000_000);
        replays.enter(&numbered(1_000_001), Outcome::Taken, &now);
        let text = serde_json::to_string(&replays).expect("JSON");
        assert_eq!(
            serde_json::from_str::<ReplayLedger>(&text).expect("replays"),
            replays
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// A name that is gone has left a floor, whatever was recorded in whatever order.
        #[test]
        fn no_number_is_lost_without_a_floor(numbers in prop::collection::vec(1..5000_u64, 1000..1400)) {
            let mut replays = ReplayLedger::default();
            let now = moment("a", 0, 1_000_000);
            for number in &numbers {
                let one = Trigger { name: number.to_string().parse().expect("a name"), ..numbered(*number) };
                if *number > replays.floor(&one) {
                    replays.enter(&one, Outcome::Refused, &now);
                }
                prop_assert!(replays.size() <= MOST_NAMES + 2);
            }
            for number in numbers {
                let one = Trigger { name: number.to_string().parse().expect("a name"), ..numbered(number) };
                prop_assert!(seen(&replays, &one).is_some() || number <= replays.floor(&one));
            }
        }
    }
}
