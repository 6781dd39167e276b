//! PURE: use of this node's cap by the triggers of each node. A trigger counts for the node on
//! whose behalf it was sent. A run for several triggers counts for each of their nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use again_base::model::{Span, Walltime};
use serde::{Deserialize, Serialize};

use super::term;
use crate::wire::name::{Id, Node};
use crate::wire::trigger::Trigger;

/// Default share of one node, in percent.
pub const SHARE: u32 = 50;
/// Maximum number of triggers that are accepted between two observations of `again`.
const MOST_UNOBSERVED: usize = 100;
/// Time for which an observed cap counts, since an operator may have changed it.
const FRESH: Span = Span::from_secs(600);
/// Maximum number of timers that `again` has for triggers: the next one, and one that has to be
/// later.
const MOST_TIMERS: usize = 2;

/// Cap of `again` for the command that triggers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// Maximum number of reruns that may start within the window.
    pub max_runs: u32,
    /// Length of the window.
    pub window: Span,
}

impl Cap {
    /// Number of runs that one node may start within the window; at least one.
    fn share(self, percent: u32) -> usize {
        let share = u64::from(self.max_runs) * u64::from(percent) / 100;
        usize::try_from(share.max(1)).unwrap_or(usize::MAX)
    }
}

/// Trigger in the records of `again`, which do not have the node on whose behalf it was sent.
/// Senders choose the ids themselves, so two senders may use the same one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recorded {
    /// Node that signed the trigger.
    pub sender: Node,
    /// Id of the trigger.
    pub id: Id,
}

/// Event of the history that changes the use of the cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Start of a run.
    Started {
        /// Name of the log. It is unique, except that a start that was taken back may be repeated
        /// with it.
        log: String,
        /// Time of the start.
        at: Walltime,
        /// Triggers that caused the run; none if it is a later run of its chain.
        triggers: Vec<Recorded>,
    },
    /// Removal of the start of the run with this log, which does not count.
    TakenBack(String),
    /// Reset: no earlier start counts towards the cap.
    Reset,
}

/// Observation of the target that triggers run, from the status and the history of `again`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Id of the target; none if `again` has no record of triggers.
    pub target: Option<String>,
    /// Cap of the target; none if `again` has no record of the target.
    pub cap: Option<Cap>,
    /// Waiting triggers of each timer.
    pub timers: Vec<Vec<Recorded>>,
    /// Triggers that caused the current run.
    pub running: Vec<Recorded>,
    /// Events of the history, oldest first.
    pub events: Vec<Event>,
    /// Triggers that the history mentions.
    pub mentioned: BTreeSet<Recorded>,
}

/// Use of the cap by each node. The executor stores it because `again` does not know on whose
/// behalf a trigger was sent, and its history is bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// Accepted triggers whose run no observation has shown yet, by sender.
    accepted: BTreeMap<Node, BTreeMap<Id, Accepted>>,
    /// Runs within the window, by the names of their logs.
    runs: BTreeMap<String, Run>,
    /// Last observation of the target.
    target: Option<Target>,
    /// Number of triggers that were accepted since then.
    unobserved: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Accepted {
    node: Node,
    /// End of the delta.
    ready: Walltime,
    /// Whether the delta is zero.
    is_immediate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    at: Walltime,
    nodes: BTreeSet<Node>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Target {
    id: String,
    cap: Cap,
    observed: Walltime,
}

impl Shares {
    /// Id of the target that triggers run, if it is known.
    pub fn target(&self) -> Option<&str> {
        Some(&self.target.as_ref()?.id)
    }

    /// Removes a trigger that `again` has refused.
    pub fn remove(&mut self, trigger: &Trigger) {
        if let Some(triggers) = self.accepted.get_mut(&trigger.sender) {
            triggers.remove(&trigger.id);
        }
        self.accepted.retain(|_, triggers| !triggers.is_empty());
    }

    /// Whether `again` has to be asked, since these triggers would exceed a share if each accepted
    /// trigger started a run of its own. The first trigger of a node never exceeds it.
    pub fn needs_observation<'a>(
        &self,
        triggers: impl Iterator<Item = &'a Trigger>,
        percent: u32,
        now: Walltime,
    ) -> bool {
        let fresh = |target: &&Target| is_within(target.observed, now, FRESH);
        let target = self.target.as_ref().filter(fresh);
        let share = target.map_or(1, |target| target.cap.share(percent));
        let (mut new, mut is_known) = (BTreeMap::<&Node, usize>::new(), false);
        for trigger in triggers {
            *new.entry(trigger.firing()).or_default() += 1;
            is_known |= self.accepted(&trigger.sender, &trigger.id).is_some();
        }
        let many = self.unobserved + new.values().sum::<usize>();
        let exceeds = |(node, new): (&&Node, &usize)| self.most_runs(node, now) + new > share;
        is_known || many > MOST_UNOBSERVED || new.iter().any(exceeds)
    }

    /// Maximum number of runs of a node within the window, including those that its accepted
    /// triggers may start.
    fn most_runs(&self, node: &Node, now: Walltime) -> usize {
        let accepted = self.accepted.values().flat_map(BTreeMap::values);
        self.starts(node, now).count() + accepted.filter(|one| one.node == *node).count()
    }

    /// Start times of the runs of a node within the window.
    fn starts(&self, node: &Node, now: Walltime) -> impl Iterator<Item = Walltime> {
        let window = self.target.as_ref().map(|target| target.cap.window);
        let runs = self.runs.values().filter(move |run| {
            run.nodes.contains(node) && window.is_none_or(|window| is_within(run.at, now, window))
        });
        runs.map(|run| run.at)
    }

    fn accepted(&self, sender: &Node, id: &Id) -> Option<&Accepted> {
        self.accepted.get(sender)?.get(id)
    }

    /// Applies an observation. Data that is missing from the records of `again`, which may be
    /// damaged or incomplete, still counts.
    fn observe(&mut self, seen: &Observation, now: Walltime) {
        self.unobserved = 0;
        let Some(id) = &seen.target else {
            // `again` has no record of triggers.
            self.accepted.clear();
            return;
        };
        let known = self.target.take().filter(|target| target.id == *id);
        if known.is_none() {
            // The cap of another command has its own count.
            self.runs.clear();
        }
        let Some(cap) = seen.cap.or(known.map(|target| target.cap)) else {
            self.accepted.clear();
            return;
        };
        self.target = Some(Target {
            id: id.clone(),
            cap,
            observed: now,
        });
        self.runs = self.runs(&seen.events, cap.window, now);
        for one in seen.timers.iter().flatten() {
            // The trigger may be older than the counting of nodes or than the ledger, or its start
            // was taken back.
            let triggers = self.accepted.entry(one.sender.clone()).or_default();
            let unknown = || Accepted {
                node: one.sender.clone(),
                ready: now,
                is_immediate: false,
            };
            triggers.entry(one.id.clone()).or_insert_with(unknown);
        }
        self.settle(seen, cap.window, now);
    }

    /// Runs that count according to the history, and those that it has forgotten.
    fn runs(&self, events: &[Event], window: Span, now: Walltime) -> BTreeMap<String, Run> {
        let mut runs = self.runs.clone();
        for event in events {
            match event {
                Event::Started { log, at, triggers } if !triggers.is_empty() => {
                    // If a start that was taken back is repeated, its log is the same.
                    let known = self.runs.get(log).filter(|run| run.at == *at);
                    let run = known.cloned().unwrap_or_else(|| Run {
                        at: *at,
                        nodes: self.nodes(triggers),
                    });
                    runs.insert(log.clone(), run);
                }
                Event::Started { .. } => {}
                Event::TakenBack(log) => {
                    runs.remove(log);
                }
                Event::Reset => runs.clear(),
            }
        }
        runs.retain(|_, run| is_within(run.at, now, window));
        runs
    }

    /// Removes accepted triggers that neither wait nor run. If the history no longer mentions a
    /// trigger, the trigger counts as a run that starts now, the latest possible time, unless its
    /// delta ended two windows ago or earlier.
    fn settle(&mut self, seen: &Observation, window: Span, now: Walltime) {
        let pending = seen.timers.iter().flatten().chain(&seen.running);
        let pending: BTreeSet<&Recorded> = pending.collect();
        let runs = &mut self.runs;
        for (sender, triggers) in &mut self.accepted {
            triggers.retain(|id, accepted| {
                let one = Recorded {
                    sender: sender.clone(),
                    id: id.clone(),
                };
                let is_pending = pending.contains(&one);
                let is_forgotten = !is_pending && !seen.mentioned.contains(&one);
                if is_forgotten && is_within(accepted.ready, now, window + window) {
                    let nodes = BTreeSet::from([accepted.node.clone()]);
                    runs.insert(format!("{sender} {id}"), Run { at: now, nodes });
                }
                is_pending
            });
        }
        self.accepted.retain(|_, triggers| !triggers.is_empty());
    }

    /// Nodes on whose behalf these triggers were sent; the sender if that is unknown.
    fn nodes(&self, triggers: &[Recorded]) -> BTreeSet<Node> {
        let node = |one: &Recorded| match self.accepted(&one.sender, &one.id) {
            Some(accepted) => accepted.node.clone(),
            None => one.sender.clone(),
        };
        triggers.iter().map(node).collect()
    }
}

/// Whether a time differs from now by less than a span. It may be in the future after the clock was
/// set back.
fn is_within(at: Walltime, now: Walltime, span: Span) -> bool {
    now.since(at).max(at.since(now)) < span
}

/// Timers in which triggers of one node wait. Each becomes at most one run that counts for this
/// node alone. Runs that other nodes start may serve some of these triggers earlier, and count for
/// this node too.
#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    timers: usize,
    /// Whether one of the triggers has no delta.
    is_immediate: bool,
}

/// Limiter that holds triggers of one batch beyond the shares of their nodes.
#[derive(Debug)]
pub struct Limiter<'a> {
    shares: &'a mut Shares,
    /// Error if the use of the cap is not known.
    observed: Result<(), String>,
    waiting: BTreeMap<Node, Waiting>,
    /// Share of one node, in percent.
    percent: u32,
    now: Walltime,
}

impl Limiter<'_> {
    /// Applies an observation, or stores the error, if an observation was needed.
    pub fn new(
        shares: &mut Shares,
        observation: Option<Result<Observation, String>>,
        percent: u32,
        now: Walltime,
    ) -> Limiter<'_> {
        let mut waiting = BTreeMap::<Node, Waiting>::new();
        let (seen, observed) = match observation {
            Some(Ok(seen)) => {
                shares.observe(&seen, now);
                (seen, Ok(()))
            }
            Some(Err(why)) => (Observation::default(), Err(why)),
            None => (Observation::default(), Ok(())),
        };
        for timer in &seen.timers {
            for node in shares.nodes(timer) {
                waiting.entry(node).or_default().timers += 1;
            }
            let accepted = |one: &Recorded| shares.accepted(&one.sender, &one.id);
            for one in timer.iter().filter_map(accepted) {
                waiting.entry(one.node.clone()).or_default().is_immediate |= one.is_immediate;
            }
        }
        Limiter {
            shares,
            observed,
            waiting,
            percent,
            now,
        }
    }

    /// Accepts a trigger, if the share of its node allows one more run.
    ///
    /// # Errors
    /// The share of the node is used up, the use of the cap is unknown, or the id is already
    /// pending; the message is the reason why the trigger is held.
    pub fn accept(&mut self, trigger: &Trigger) -> Result<(), String> {
        let node = trigger.firing();
        let is_immediate = trigger.delta == 0;
        let mut waiting = self.waiting.get(node).copied().unwrap_or_default();
        // The next run serves all triggers without a delta. Any other trigger may need another run.
        if !(is_immediate && waiting.is_immediate) {
            waiting.timers = (waiting.timers + 1).min(MOST_TIMERS);
        }
        waiting.is_immediate |= is_immediate;
        let mut one = iter::once(trigger);
        if self
            .shares
            .needs_observation(&mut one, self.percent, self.now)
        {
            let unknown = |why| format!("the use of the cap by node {node} is not known: {why}");
            self.observed.clone().map_err(unknown)?;
            self.check(node, waiting.timers)?;
        }
        if self.shares.accepted(&trigger.sender, &trigger.id).is_some() {
            return Err("its sender has another pending trigger with the same id".to_owned());
        }
        self.waiting.insert(node.clone(), waiting);
        self.shares.unobserved += 1;
        let accepted = Accepted {
            node: node.clone(),
            ready: Walltime::from_millis(self.now.millis().saturating_add(trigger.delta)),
            is_immediate,
        };
        let triggers = self.shares.accepted.entry(trigger.sender.clone());
        triggers.or_default().insert(trigger.id.clone(), accepted);
        Ok(())
    }

    /// Checks whether a node may have this number of waiting runs in addition to those that have
    /// started.
    fn check(&self, node: &Node, waiting: usize) -> Result<(), String> {
        // If `again` has no record, the cap is unused.
        let Some(Target { cap, .. }) = &self.shares.target else {
            return Ok(());
        };
        let share = cap.share(self.percent);
        let mut starts: Vec<Walltime> = self.shares.starts(node, self.now).collect();
        let over = (starts.len() + waiting).saturating_sub(share);
        // With a cap of 0, `again` itself refuses every run and reports it.
        if over == 0 || cap.max_runs == 0 {
            return Ok(());
        }
        starts.sort_unstable();
        let until = starts.get(over - 1).map_or_else(String::new, |start| {
            format!(" until {}", term::shown(*start + cap.window))
        });
        let (most, window) = (cap.max_runs, cap.window);
        Err(format!(
            "node {node} has used its share of the cap ({share} of {most} runs within {window}); held{until}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::lineage::tests::node;
    use super::*;
    use crate::wire::trigger::tests::trigger;
    use again::policy::next::{self, Place, Slot};
    use again_base::model::Boottime;
    use proptest::prelude::*;

    const CAP: Cap = Cap {
        max_runs: 10,
        window: Span::from_secs(3600),
    };

    fn at(seconds: u64) -> Walltime {
        Walltime::from_millis(seconds * 1000)
    }

    fn fired(n: u128, sender: &str, delta: u64) -> Trigger {
        Trigger {
            id: Id::from_bits(n),
            sender: node(sender),
            delta: delta * 1000,
            ..trigger()
        }
    }

    fn recorded(trigger: &Trigger) -> Recorded {
        Recorded {
            id: trigger.id.clone(),
            sender: trigger.sender.clone(),
        }
    }

    fn started(log: &str, seconds: u64, triggers: &[&Trigger]) -> Event {
        Event::Started {
            log: log.to_owned(),
            at: at(seconds),
            triggers: triggers.iter().map(|one| recorded(one)).collect(),
        }
    }

    fn seen(timers: &[&[&Trigger]], events: &[Event]) -> Observation {
        let timer = |triggers: &&[&Trigger]| triggers.iter().map(|one| recorded(one)).collect();
        let timers: Vec<Vec<Recorded>> = timers.iter().map(timer).collect();
        let started = events.iter().flat_map(|event| match event {
            Event::Started { triggers, .. } => &triggers[..],
            _ => &[],
        });
        Observation {
            target: Some("t".to_owned()),
            cap: Some(CAP),
            mentioned: timers.iter().flatten().chain(started).cloned().collect(),
            timers,
            running: Vec::new(),
            events: events.to_vec(),
        }
    }

    /// Tries to accept a trigger at this time within half of the cap, with an observation.
    fn accept(
        shares: &mut Shares,
        seen: &Observation,
        one: &Trigger,
        seconds: u64,
    ) -> Result<(), String> {
        Limiter::new(shares, Some(Ok(seen.clone())), 50, at(seconds)).accept(one)
    }

    /// The same, without an observation.
    fn accept_unseen(shares: &mut Shares, one: &Trigger, seconds: u64) -> Result<(), String> {
        Limiter::new(shares, None, 50, at(seconds)).accept(one)
    }

    fn needs_observation(shares: &Shares, triggers: &[&Trigger], seconds: u64) -> bool {
        shares.needs_observation(triggers.iter().copied(), 50, at(seconds))
    }

    #[test]
    fn node_has_half_of_the_cap_and_others_have_the_rest() {
        let mut shares = Shares::default();
        let mut events = Vec::new();
        for n in 0..5 {
            let one = fired(n, "web1", 0);
            let known = seen(&[], &events);
            assert_eq!(accept(&mut shares, &known, &one, 100), Ok(()), "{n}");
            events.push(started(&format!("c{n}-1"), 100 + n as u64, &[&one]));
        }
        let known = seen(&[], &events);
        let next = fired(9, "web1", 0);
        let why = "node web1 has used its share of the cap (5 of 10 runs within 1h); held until 1970-01-01 01:01:40 UTC";
        let held = accept(&mut shares, &known, &next, 200);
        assert_eq!(held, Err(why.to_owned()));
        let other = fired(8, "db1", 0);
        assert_eq!(accept(&mut shares, &known, &other, 200), Ok(()));
        assert!(accept(&mut shares, &known, &next, 3699).is_err());
        assert_eq!(accept(&mut shares, &known, &next, 3700), Ok(()));
    }

    #[test]
    fn run_counts_for_each_node_that_its_triggers_were_sent_for() {
        let behalf = |n: u128, whom: &str| Trigger {
            on_behalf: Some(node(whom)),
            ..fired(n, "puppet", 0)
        };
        let mut shares = Shares::default();
        let mut events = Vec::new();
        for n in 0..5 {
            let both = [behalf(2 * n, "web1"), behalf(2 * n + 1, "web2")];
            let mut timer = Vec::new();
            for one in &both {
                let known = seen(&[&timer], &events);
                assert_eq!(accept(&mut shares, &known, one, 100), Ok(()), "{n}");
                timer.push(one);
            }
            events.push(started(&format!("c{n}-1"), 100, &[&both[0], &both[1]]));
        }
        let known = seen(&[], &events);
        for whom in ["web1", "web2"] {
            let why = accept(&mut shares, &known, &behalf(90, whom), 100).expect_err("held");
            assert!(
                why.starts_with(&format!("node {whom} has used its share")),
                "{why}"
            );
        }
        assert_eq!(
            accept(&mut shares, &known, &behalf(91, "web3"), 100),
            Ok(())
        );
        // Nor has the server used any itself.
        let own = fired(92, "puppet", 0);
        assert_eq!(accept(&mut shares, &known, &own, 100), Ok(()));
    }

    /// Ids are chosen by their senders.
    #[test]
    fn same_id_of_another_sender_changes_nothing() {
        let (one, other) = (fired(1, "web1", 0), fired(1, "web2", 0));
        let mut shares = Shares::default();
        for one in [&one, &other] {
            assert_eq!(accept_unseen(&mut shares, one, 100), Ok(()));
        }
        // Nor does a sender hide one trigger behind another that is pending.
        assert!(needs_observation(&shares, &[&one], 100));
        let hidden = accept(&mut shares.clone(), &seen(&[&[&one]], &[]), &one, 100);
        let why = "its sender has another pending trigger with the same id";
        assert_eq!(hidden, Err(why.to_owned()));
        let known = seen(&[], &[started("c1-1", 100, &[&one])]);
        assert_eq!(
            accept(&mut shares, &known, &fired(2, "web3", 0), 100),
            Ok(())
        );
        assert_eq!(shares.most_runs(&node("web1"), at(100)), 1);
    }

    /// Five runs of web1, all that its share allows, and how the history shows them.
    fn used_up() -> (Shares, Vec<Event>) {
        let first: Vec<Trigger> = (0..5).map(|n| fired(n, "web1", 0)).collect();
        let events = (0..5).map(|n| started(&format!("c{n}-1"), 100, &[&first[n]]));
        let events: Vec<Event> = events.collect();
        let mut shares = Shares::default();
        shares.observe(&seen(&[], &events), at(200));
        (shares, events)
    }

    #[test]
    fn only_what_again_counts_is_counted() {
        let (shares, mut events) = used_up();
        let next = fired(9, "web1", 0);
        let held = accept(&mut shares.clone(), &seen(&[], &events), &next, 200);
        assert!(held.is_err());
        // Reruns that follow in a chain are not for the node.
        events.extend((0..5).map(|n| started(&format!("c{n}-2"), 150, &[])));
        for (end, runs) in [(Event::TakenBack("c3-1".to_owned()), 8), (Event::Reset, 4)] {
            let mut shares = shares.clone();
            let mut events = [&events[..], &[end]].concat();
            let known = seen(&[], &events);
            assert_eq!(accept(&mut shares, &known, &next, 200), Ok(()));
            // Runs after that count.
            events.extend((5..9).map(|n| started(&format!("c{n}-1"), 100, &[&next])));
            for _ in 0..2 {
                let known = seen(&[], &events);
                shares.observe(&known, at(200));
                assert_eq!(shares.most_runs(&node("web1"), at(200)), runs);
            }
        }
        // A start that lies ahead, since the clock was ahead, does not count without end.
        let ahead = started("c9-1", 90_000, &[&fired(0, "web1", 0)]);
        let mut shares = Shares::default();
        shares.observe(&seen(&[], &[ahead]), at(200));
        assert_eq!(shares.runs.len(), 0);
    }

    #[test]
    fn start_that_is_repeated_counts_from_its_own_time_for_the_same_node() {
        let one = Trigger {
            on_behalf: Some(node("web1")),
            ..fired(1, "puppet", 0)
        };
        let mut shares = Shares::default();
        assert_eq!(accept_unseen(&mut shares, &one, 100), Ok(()));
        let first = started("c1-1", 100, &[&one]);
        let mut known = seen(&[], std::slice::from_ref(&first));
        known.running = vec![recorded(&one)];
        shares.observe(&known, at(110));
        let starts = |shares: &Shares, whom: &str| -> Vec<Walltime> {
            shares.starts(&node(whom), at(3500)).collect()
        };
        assert_eq!(starts(&shares, "web1"), [at(100)]);
        let back = Event::TakenBack("c1-1".to_owned());
        let events = [first, back, started("c1-1", 3000, &[&one])];
        for _ in 0..2 {
            shares.observe(&seen(&[], &events), at(3500));
            assert_eq!(starts(&shares, "web1"), [at(3000)]);
            assert_eq!(starts(&shares, "puppet"), []);
        }
    }

    #[test]
    fn share_outlives_the_record_and_the_history_of_again() {
        let (mut shares, events) = used_up();
        let next = fired(9, "web1", 0);
        // The oldest events are dropped first.
        let rotated = seen(&[], &events[4..]);
        let empty = Observation {
            target: Some("t".to_owned()),
            ..Observation::default()
        };
        for known in [&rotated, &empty] {
            assert!(accept(&mut shares, known, &next, 300).is_err());
            let other = fired(10, "web2", 0);
            assert_eq!(accept(&mut shares.clone(), known, &other, 300), Ok(()));
        }
        assert_eq!(shares.target(), Some("t"));
        assert_eq!(accept(&mut shares, &empty, &next, 3700), Ok(()));
    }

    #[test]
    fn accepted_trigger_that_the_history_has_forgotten_counts_as_a_run() {
        let mut shares = Shares::default();
        shares.observe(&seen(&[], &[]), at(100));
        let first: Vec<Trigger> = (0..5).map(|n| fired(n, "web1", 0)).collect();
        for one in &first {
            assert_eq!(accept_unseen(&mut shares, one, 100), Ok(()));
        }
        let next = fired(9, "web1", 0);
        let forgotten = seen(&[], &[started("c9-1", 150, &[&fired(8, "db1", 0)])]);
        assert!(accept(&mut shares.clone(), &forgotten, &next, 200).is_err());
        // In the history nothing became of three of them.
        let mut known = seen(&[], &[started("c0-1", 100, &[&first[0], &first[1]])]);
        known.mentioned.extend(first.iter().map(recorded));
        assert_eq!(accept(&mut shares, &known, &next, 200), Ok(()));
        assert_eq!(shares.most_runs(&node("web1"), at(200)), 2);
        // Nor does it count if `again` has refused it.
        shares.remove(&next);
        assert_eq!(shares.most_runs(&node("web1"), at(200)), 1);
    }

    #[test]
    fn change_of_the_command_begins_a_new_count() {
        let (mut shares, _) = used_up();
        let next = fired(9, "web1", 0);
        let other = Observation {
            target: Some("u".to_owned()),
            ..seen(&[], &[])
        };
        assert_eq!(accept(&mut shares, &other, &next, 200), Ok(()));
        assert_eq!(shares.target(), Some("u"));
    }

    #[test]
    fn pending_triggers_count_once_for_each_timer() {
        let once = Cap { max_runs: 2, ..CAP };
        let try_with = |timers: &[&[&Trigger]], one: &Trigger| {
            let mut shares = Shares::default();
            for waits in timers.iter().copied().flatten() {
                assert_eq!(accept_unseen(&mut shares, waits, 100), Ok(()));
            }
            let mut known = seen(timers, &[]);
            known.cap = Some(once);
            accept(&mut shares, &known, one, 100)
        };
        let (now, later) = (fired(1, "web1", 0), fired(2, "web1", 60));
        assert_eq!(try_with(&[], &now), Ok(()));
        assert_eq!(try_with(&[&[&now]], &fired(3, "web1", 0)), Ok(()));
        let why = "node web1 has used its share of the cap (1 of 2 runs within 1h); held";
        assert_eq!(try_with(&[&[&now]], &later), Err(why.to_owned()));
        assert!(try_with(&[&[&later]], &now).is_err());
        let (of_db1, of_web2) = (fired(4, "db1", 0), fired(5, "web2", 0));
        assert_eq!(try_with(&[&[&of_db1]], &of_web2), Ok(()));
    }

    #[test]
    fn again_is_asked_only_if_a_share_may_be_exceeded() {
        let mut shares = Shares::default();
        let fires = |n| fired(n, "web1", 0);
        // Without a cap a share is one run.
        assert!(!needs_observation(
            &shares,
            &[&fires(1), &fired(2, "web2", 0)],
            100
        ));
        assert!(needs_observation(&shares, &[&fires(1), &fires(2)], 100));
        shares.observe(&seen(&[], &[started("c1-1", 100, &[&fires(1)])]), at(100));
        for n in 2..6 {
            assert!(!needs_observation(&shares, &[&fires(n)], 100), "{n}");
            assert_eq!(accept_unseen(&mut shares, &fires(n), 100), Ok(()));
        }
        assert!(needs_observation(&shares, &[&fires(6)], 100));
        assert!(!needs_observation(&shares, &[&fired(6, "web2", 0)], 100));
        // The cap may be another one by now.
        let many: Vec<Trigger> = (0..2).map(|n| fired(n, "web3", 0)).collect();
        let many: Vec<&Trigger> = many.iter().collect();
        assert!(!needs_observation(&shares, &many, 699));
        assert!(needs_observation(&shares, &many, 700));
    }

    #[test]
    fn unobserved_triggers_are_bounded() {
        let mut shares = Shares::default();
        for n in 0..MOST_UNOBSERVED as u128 {
            let one = fired(n, &format!("n{n}"), 0);
            assert!(!needs_observation(&shares, &[&one], 100));
            assert_eq!(accept_unseen(&mut shares, &one, 100), Ok(()));
        }
        let other = fired(1000, "web1", 0);
        assert!(needs_observation(&shares, &[&other], 100));
        // Nothing of triggers is on record.
        let none = Observation::default();
        assert_eq!(accept(&mut shares, &none, &other, 100), Ok(()));
        assert_eq!((shares.accepted.len(), shares.unobserved), (1, 1));
    }

    #[test]
    fn unknown_use_of_the_cap_holds_only_nodes_that_may_exceed_their_share() {
        let mut shares = Shares::default();
        let unknown = Some(Err("no answer".to_owned()));
        let mut limiter = Limiter::new(&mut shares, unknown, 50, at(100));
        let (one, other) = (fired(1, "web1", 0), fired(2, "web2", 0));
        assert_eq!(limiter.accept(&one), Ok(()));
        let why = "the use of the cap by node web1 is not known: no answer";
        assert_eq!(limiter.accept(&fired(3, "web1", 0)), Err(why.to_owned()));
        assert_eq!(limiter.accept(&other), Ok(()));
    }

    #[test]
    fn share_is_a_run_at_least() {
        for (max_runs, percent, fits) in [(1, 1, 1), (10, 1, 1), (10, 39, 3), (10, 100, 10)] {
            let one = fired(1, "web1", 0);
            for many in [fits - 1, fits] {
                let events = (0..many).map(|n| started(&format!("c{n}-1"), 100, &[&one]));
                let mut known = seen(&[], &events.collect::<Vec<_>>());
                known.cap = Some(Cap { max_runs, ..CAP });
                let mut shares = Shares::default();
                let done =
                    Limiter::new(&mut shares, Some(Ok(known)), percent, at(100)).accept(&one);
                assert_eq!(done.is_ok(), many < fits, "{percent} % of {max_runs}");
            }
        }
        // With 0 `again` refuses by itself.
        let (mut shares, events) = used_up();
        let mut known = seen(&[], &events);
        known.cap = Some(Cap { max_runs: 0, ..CAP });
        assert_eq!(
            accept(&mut shares, &known, &fired(9, "web1", 0), 200),
            Ok(())
        );
    }

    /// The timers of `again` and the runs that they become, with its own decision about where triggers wait.
    #[derive(Default)]
    struct Again {
        slots: [Option<Slot>; 2],
        waiting: [Vec<(Trigger, u64)>; 2],
        events: Vec<Event>,
        mentioned: BTreeSet<Recorded>,
        starts: Vec<(u64, BTreeSet<Node>)>,
    }

    impl Again {
        fn observation(&self, cap: Cap) -> Observation {
            let waiting = self.waiting.iter().filter(|waiting| !waiting.is_empty());
            let timers =
                waiting.map(|waiting| waiting.iter().map(|(one, _)| recorded(one)).collect());
            Observation {
                target: Some("t".to_owned()),
                cap: Some(cap),
                timers: timers.collect(),
                running: Vec::new(),
                events: self.events.clone(),
                mentioned: self.mentioned.clone(),
            }
        }

        /// Keeps this many of its events.
        fn forget(&mut self, kept: usize) {
            let many = self.events.len();
            for event in self.events.drain(..many.saturating_sub(kept)) {
                if let Event::Started { triggers, .. } = event {
                    self.mentioned.retain(|one| !triggers.contains(one));
                }
            }
        }

        fn request(&mut self, one: Trigger, now: u64, jitter: u64) {
            let (delta, boot) = (one.delta / 1000, Boottime::from_nanos);
            let (ready, due) = (now + delta, now + delta + jitter);
            let slot = match next::place(self.slots, boot(ready), boot(due), boot(now)) {
                Place::With(slot) => slot,
                Place::Free(slot) | Place::Instead(slot) => {
                    let (due, ready) = (Some(boot(due)), None);
                    self.slots[slot] = Some(Slot { due, ready });
                    slot
                }
            };
            self.waiting[slot].push((one, ready));
            let last = self.waiting[slot].iter().map(|(_, ready)| *ready).max();
            let pending = self.slots[slot].as_mut().expect("placed");
            pending.ready = last.map(boot);
        }

        /// Starts the run that is due. It does the job of all that is ready in either timer.
        fn start(&mut self, now: u64) {
            let due = self.slots.iter().flatten().filter_map(|slot| slot.due);
            if due.min().is_none_or(|due| due.nanos() > now) {
                return;
            }
            let mut served = Vec::new();
            for (slot, waiting) in self.slots.iter_mut().zip(&mut self.waiting) {
                served.extend(waiting.extract_if(.., |(_, ready)| *ready <= now));
                if waiting.is_empty() {
                    *slot = None;
                }
            }
            let triggers: Vec<&Trigger> = served.iter().map(|(one, _)| one).collect();
            let log = format!("c{}-1", self.starts.len());
            self.events.push(started(&log, now, &triggers));
            let nodes = triggers.iter().map(|one| one.firing().clone());
            self.starts.push((now, nodes.collect()));
        }
    }

    proptest! {
        /// Whatever nodes send, with whatever delta, while runs take their time and the history forgets: within any window
        /// no node has more runs for itself alone than its share, and one that has had none for three windows is not held.
        #[test]
        fn no_node_has_more_than_its_share_for_itself_alone(
            sent in prop::collection::vec((0..9_u64, 0..3_usize, prop::bool::ANY, 0..30_u64, 0..8_u64), 1..120),
            max_runs in 2..8_u32, percent in 1..=100_u32, busy in 1..20_u64, kept in 0..4_usize,
        ) {
            let cap = Cap { max_runs, window: Span::from_secs(100) };
            let share = cap.share(percent);
            let (mut again, mut shares) = (Again::default(), Shares::default());
            let mut arrivals = sent.iter().enumerate().scan(0, |clock, (n, (pause, who, is_now, delta, jitter))| {
                *clock += pause;
                Some((*clock, fired(n as u128, ["web1", "web2", "web3"][*who], if *is_now { 0 } else { *delta }), *jitter))
            }).peekable();
            let (mut free_from, mut clock) = (0, 0);
            while arrivals.peek().is_some() || again.slots.iter().any(Option::is_some) {
                while let Some((_, one, jitter)) = arrivals.next_if(|(when, ..)| *when == clock) {
                    let needs = shares.needs_observation(iter::once(&one), percent, at(clock));
                    let seen = needs.then(|| Ok(again.observation(cap)));
                    let had = again.starts.iter().filter(|(start, nodes)| start + 300 > clock && nodes.contains(&one.sender)).count();
                    let waits = again.waiting.iter().flatten().any(|(other, _)| other.sender == one.sender);
                    let done = Limiter::new(&mut shares, seen, percent, at(clock)).accept(&one);
                    prop_assert!(done.is_ok() || had > 0 || waits, "{done:?}");
                    if done.is_ok() {
                        again.mentioned.insert(recorded(&one));
                        again.request(one, clock, jitter);
                    }
                    again.forget(kept);
                }
                if clock >= free_from {
                    let before = again.starts.len();
                    again.start(clock);
                    if again.starts.len() > before {
                        free_from = clock + busy;
                    }
                }
                clock += 1;
            }
            for (end, nodes) in &again.starts {
                for node in nodes {
                    let alone = BTreeSet::from([node.clone()]);
                    let within = again.starts.iter().filter(|(start, nodes)| start <= end && start + 100 > *end && *nodes == alone);
                    prop_assert!(within.count() <= share);
                }
            }
        }
    }
}
