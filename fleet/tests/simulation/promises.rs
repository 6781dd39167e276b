//! Promises of the protocol, checked during the simulation and at its end.

use std::collections::{BTreeMap, BTreeSet};

use again_fleet::policy::lineage;
use again_fleet::policy::replay::TriggerKey;
use again_fleet::step::model::{Action, Back, Content, EntryId, News};
use again_fleet::wire::lineage::{Lineage, MOST_ORIGINS};
use again_fleet::wire::name::{Id, Name, Node};
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::{Ask, Trigger};

use crate::world::MINUTE;

/// Time that a sender may wait before it sends again a trigger that it believes delivered, and a
/// little more.
const ENOUGH: u64 = 12 * MINUTE;

/// Trigger for one target, by the request's id.
type Asked = (Node, Id);

#[derive(Debug, Clone)]
struct Firing {
    sender: Node,
    at: u64,
    ttl: u64,
    is_clock_right: bool,
    is_promised: bool,
    /// Whether a stored selection promises the trigger.
    is_selected: bool,
}

/// Record of what all nodes have published and done so far.
#[derive(Debug, Default)]
pub struct Promises {
    firings: BTreeMap<Asked, Firing>,
    /// Newer requests that each request was merged into.
    merged: BTreeMap<Asked, BTreeSet<Id>>,
    cancels: BTreeSet<Asked>,
    /// Newest selection that each node has stored under each name.
    selections: BTreeMap<(Node, Name), Id>,
    /// Number of nodes, beside those that were logged by name, to which a stored selection was not
    /// sent.
    refused: BTreeMap<Id, usize>,
    acted: BTreeMap<(Node, TriggerKey), u64>,
    acted_ids: BTreeSet<Asked>,
    /// Last trigger of each sender and name that each node acted on.
    last: BTreeMap<(Node, Node, String), TriggerKey>,
    settled: BTreeMap<(Node, TriggerKey), Outcome>,
    /// Number with which each trigger was last sent.
    numbers: BTreeMap<Asked, u64>,
    excused: BTreeSet<Asked>,
    told: BTreeMap<(Node, TriggerKey), BTreeSet<Outcome>>,
    /// Targets of rolling runs, the triggers that have waited for their turn, and the targets that
    /// had it.
    lists: BTreeMap<Id, BTreeSet<Node>>,
    waited: BTreeSet<Asked>,
    turns: BTreeMap<Id, BTreeSet<Node>>,
    halted: BTreeSet<Asked>,
    /// Triggers that are dated far ahead.
    ahead: BTreeSet<Id>,
    /// Whether nothing ever breaks.
    pub is_faultless: bool,
    /// Time from which nothing is broken, and the nodes that were decommissioned by then.
    whole: Option<(u64, BTreeSet<Node>)>,
    /// Number of events of each kind, so that a simulation in which nothing happens does not pass.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Promises {
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Records that a run, or a person, sends a trigger.
    pub fn fires(
        &mut self,
        (sender, target): (&Node, &Node),
        id: &Id,
        at: u64,
        ttl: u64,
        is_clock_right: bool,
    ) {
        let firing = Firing {
            sender: sender.clone(),
            at,
            ttl,
            is_clock_right,
            is_promised: false,
            is_selected: false,
        };
        self.firings.insert((target.clone(), id.clone()), firing);
    }

    /// Records that a request from the disk is sent with this ttl, by its sender's clock.
    pub fn ages(&mut self, of: &Id, at: u64, ttl: u64, is_clock_right: bool) {
        for (_, firing) in self.firings.iter_mut().filter(|((_, id), _)| id == of) {
            firing.is_clock_right &= is_clock_right;
            if at + ttl < firing.at + firing.ttl {
                (firing.at, firing.ttl) = (at, ttl);
            }
        }
    }

    /// Checks the actions of one step of a service.
    pub fn acts(&mut self, me: &Node, actions: &[Action], now: u64) {
        for action in actions {
            match action {
                Action::Progress { id, target, news } => self.news(id, target, news, now),
                Action::Keep(drafts) => {
                    for draft in drafts {
                        self.keeps(me, &draft.content);
                    }
                }
                Action::Forget { entry, .. } => self.lets_go(me, entry, actions),
                _ => {}
            }
        }
    }

    /// Checks that a sender removes an entry only for a status from the target, or when the ttl is
    /// over.
    fn lets_go(&self, me: &Node, entry: &EntryId, actions: &[Action]) {
        let EntryId::To(target, name) = entry else {
            return;
        };
        let is_reason = |action: &Action| match action {
            Action::Progress {
                id,
                target: node,
                news: News::Status(outcome, _),
            } => {
                let first = TriggerKey {
                    sender: me.clone(),
                    name: name.clone(),
                    number: 0,
                    id: id.clone(),
                };
                let was_told = self
                    .told
                    .range((target.clone(), first)..)
                    .take_while(|((told, which), _)| {
                        (told, &which.sender, &which.name) == (target, me, name)
                    })
                    .any(|((_, which), outcomes)| which.id == *id && outcomes.contains(outcome));
                node == target && outcome.releases() && was_told
            }
            Action::Progress {
                target: node, news, ..
            } => node == target && *news == News::NoAnswer,
            _ => false,
        };
        assert!(
            actions.iter().any(is_reason),
            "{me} let {entry} go for no reason"
        );
    }

    fn news(&mut self, id: &Id, target: &Node, news: &News, now: u64) {
        let asked = (target.clone(), id.clone());
        match news {
            News::ReplacedBy(newer) => {
                self.merged.entry(asked).or_default().insert(newer.clone());
                self.count("merged");
            }
            News::NoAnswer => {
                self.count("no answer");
                if let Some((since, gone)) = &self.whole {
                    let had_time = now > since + ENOUGH && !gone.contains(target);
                    // A trigger that waited for its turn until its ttl was over is an exception.
                    let had_time = had_time && !self.waited.contains(&asked);
                    assert!(!had_time, "{target} never told what became of {id}");
                }
                if let Some(firing) = self.firings.get(&asked) {
                    assert!(
                        now >= firing.at + firing.ttl,
                        "{id} for {target} got no answer before its time was over"
                    );
                }
            }
            News::Status(..) => {}
        }
    }

    fn keeps(&mut self, me: &Node, content: &Content) {
        match content {
            Content::Trigger(trigger) if trigger.ask == Ask::Cancel => {
                self.cancels
                    .insert((trigger.target.clone(), trigger.id.clone()));
            }
            Content::Trigger(trigger) => {
                let asked = (trigger.target.clone(), trigger.id.clone());
                if self.numbers.insert(asked, trigger.number).is_some() {
                    self.count("numbered again");
                }
            }
            Content::Selection(stored) if stored.is_over() => {}
            Content::Selection(stored) => {
                self.count("selection stored");
                let (name, id) = (stored.request.name.clone(), stored.request.id.clone());
                let older = self.selections.insert((me.clone(), name), id.clone());
                if let Some(older) = older.filter(|older| *older != id) {
                    self.selects(&older, None, false);
                }
            }
            Content::Targets(list) => {
                self.lists.insert(list.id.clone(), list.targets.clone());
            }
            Content::Node(_) => {}
            Content::Status { told, .. } => {
                let which = TriggerKey {
                    sender: told.sender.clone(),
                    name: told.name.clone(),
                    number: told.number,
                    id: told.id.clone(),
                };
                let key = (me.clone(), which);
                if told.outcome == Outcome::Taken {
                    // The trigger may have come again with another number.
                    assert!(
                        self.acted_ids.contains(&(me.clone(), told.id.clone())),
                        "{me} told that it took {key:?}, and did not"
                    );
                }
                self.told.entry(key).or_default().insert(told.outcome);
            }
        }
    }

    /// Records that a client got the answer "delivered" or "kept".
    pub fn promise(&mut self, target: &Node, id: &Id) {
        self.count("promised");
        if let Some(firing) = self.firings.get_mut(&(target.clone(), id.clone())) {
            firing.is_promised = true;
        }
    }

    /// Records that a client was told that the selection is stored.
    pub fn stores(&mut self, id: &Id) {
        if self.selections.values().any(|newest| newest == id) {
            self.selects(id, None, true);
        }
    }

    /// Records whether a selection promises the trigger to its nodes, or to this one.
    pub fn selects(&mut self, of: &Id, node: Option<&Node>, is_selected: bool) {
        for ((target, id), firing) in &mut self.firings {
            if id == of && *target != firing.sender && node.is_none_or(|node| node == target) {
                firing.is_selected = is_selected;
            }
        }
    }

    /// Records that a node cancels triggers that it has sent.
    pub fn takes_back(&mut self, me: &Node, what: &Back) {
        match what {
            Back::Id(id) => self.selects(id, None, false),
            Back::To(node) => {
                for ((target, _), firing) in &mut self.firings {
                    firing.is_selected &= !(target == node && firing.sender == *me);
                }
            }
        }
    }

    /// Records a line of a service's log: reporting that a selection is not sent to a node, and to
    /// how many others, is as good as sending it.
    pub fn logs(&mut self, text: &str) {
        if let Some((before, after)) = text.split_once(") is not sent to ")
            && let Some((_, id)) = before.rsplit_once("(id ")
            && let Some((nodes, _)) = after.split_once(": ")
        {
            let id: Id = id.parse().expect("an id");
            let (first, more) = nodes.split_once(" and ").unwrap_or((nodes, "0 more"));
            let more: usize = more.trim_end_matches(" more").parse().expect("a number");
            self.count("selection refused");
            self.selects(&id, Some(&first.parse().expect("a certname")), false);
            *self.refused.entry(id).or_default() += more;
        }
    }

    /// Checks that a trigger that a run sent carries on every origin of the run, with one hop more,
    /// unless that origin has reached the hop limit.
    pub fn carries(&mut self, trigger: &Trigger, truth: &Lineage, limit: usize) {
        for origin in &truth.0 {
            let carried = trigger.lineage.0.iter().find(|o| o.id == origin.id);
            let may_be_left_out = origin.hops() >= limit || trigger.lineage.0.len() == MOST_ORIGINS;
            let is_carried = carried.is_some_and(|carried| carried.hops() > origin.hops());
            assert!(
                is_carried || may_be_left_out,
                "the hops of {} were lost on the way to {}",
                origin.id,
                trigger.target
            );
        }
        assert!(trigger.lineage.hops() <= limit);
        self.count("fired in a run");
    }

    /// Checks that a request was refused only for its hops.
    pub fn stopped(&mut self, target: &Node, truth: &Lineage, why: &str, limit: usize) {
        assert!(
            !truth.0.is_empty() && truth.0.iter().all(|origin| origin.hops() >= limit),
            "stopped early: {why}"
        );
        let within = lineage::within(truth, target, limit.saturating_sub(1));
        assert!(
            within.too_far.len() == truth.0.len() && why.contains(" -> "),
            "no way in '{why}'"
        );
        self.count("stopped by hops");
    }

    /// Checks a trigger that a tool recorded: it will be acted on.
    pub fn records(&mut self, me: &Node, which: &TriggerKey) {
        self.count("acted");
        assert!(
            !self.ahead.contains(&which.id),
            "{me} acted on {which:?}, which is dated ahead"
        );
        let times = self.acted.entry((me.clone(), which.clone())).or_default();
        *times += 1;
        assert!(*times == 1, "{me} acted on {which:?} twice");
        let place = (me.clone(), which.sender.clone(), which.name.to_string());
        let last = self.last.insert(place, which.clone());
        assert!(
            last.as_ref().is_none_or(|last| which.number > last.number),
            "{me} acted on {which:?} after {last:?}"
        );
        let is_first = self.acted_ids.insert((me.clone(), which.id.clone()));
        assert!(is_first, "{me} acted on the id of {which:?} twice");
        if let Some(outcome) = self.settled.get(&(me.clone(), which.clone())) {
            panic!("{me} acted on {which:?}, which was {outcome}");
        }
    }

    /// Checks a trigger for which the executor settled on another outcome than to accept it.
    pub fn settles(
        &mut self,
        me: &Node,
        trigger: &Trigger,
        outcome: Outcome,
        now: u64,
        is_clock_right: bool,
    ) {
        let which = TriggerKey::from(trigger);
        let asked = (me.clone(), which.id.clone());
        self.count(match outcome {
            Outcome::Expired => "expired",
            Outcome::Superseded => "superseded",
            Outcome::Cancelled => "cancelled",
            Outcome::TooLate => "too late",
            Outcome::Refused => "refused",
            _ => "repeated",
        });
        let has_acted = self.acted_ids.contains(&asked);
        match outcome {
            Outcome::Expired => {
                let firing = self.firings.get(&asked);
                let is_late = firing.is_none_or(|f| !f.is_clock_right || now >= f.at + f.ttl);
                assert!(
                    is_late || !is_clock_right,
                    "{which:?} expired at {me} before its time"
                );
                self.excused.insert(asked);
            }
            Outcome::Cancelled => {
                assert!(
                    self.cancels.contains(&asked),
                    "{which:?} was cancelled by nobody"
                );
                assert!(
                    !has_acted,
                    "{me} told that {which:?} was cancelled, but acted on it"
                );
                self.excused.insert(asked);
            }
            Outcome::TooLate => assert!(
                has_acted,
                "{which:?} was taken back too late, but not acted on"
            ),
            Outcome::Refused => {
                self.excused.insert(asked);
            }
            _ => {}
        }
        if outcome != Outcome::Taken {
            self.settled.entry((me.clone(), which)).or_insert(outcome);
        }
    }

    /// Records that a target rejected a trigger because names of its sender with higher numbers had
    /// displaced its own. Somebody else with the sender's key has sent these, so the sender does
    /// not know them.
    pub fn is_below_a_floor(&mut self, me: &Node, trigger: &Trigger) {
        self.count("below a floor");
        self.excused.insert((me.clone(), trigger.id.clone()));
    }

    /// Records that somebody with a sender's key has dated a trigger far ahead.
    pub fn is_ahead(&mut self, id: &Id) {
        self.ahead.insert(id.clone());
    }

    /// Records that a trigger waits for its turn in a rolling run.
    pub fn queues(&mut self, me: &Node, which: &TriggerKey) {
        self.count("queued");
        self.waited.insert((me.clone(), which.id.clone()));
    }

    fn has_told(&self, node: &Node, id: &Id, is_it: impl Fn(Outcome) -> bool) -> bool {
        let told = self.told.iter();
        let mut told = told.filter(|((one, which), _)| (one, &which.id) == (node, id));
        told.any(|(_, outcomes)| outcomes.iter().any(|outcome| is_it(*outcome)))
    }

    /// Checks that a target may begin in its turn, although these nodes have failed.
    pub fn begins(&mut self, me: &Node, trigger: &Trigger, mut failed: BTreeSet<Node>) {
        let (id, most) = (&trigger.id, trigger.stop_after as usize);
        self.count("began in its turn");
        if most > 0 {
            let listed = self.lists.get(id).expect("listed");
            failed.retain(|node| listed.contains(node));
            assert!(
                failed.len() < most,
                "{me} begins in run {id} although {failed:?} have failed"
            );
        }
        let begun = self.turns.entry(id.clone()).or_default().clone();
        let runs = begun
            .iter()
            .filter(|node| !self.has_told(node, id, Outcome::is_final));
        let runs = runs.count();
        assert!(
            !self.is_faultless || runs < trigger.parallel as usize,
            "{me} begins in run {id} where {runs} of {begun:?} run"
        );
        self.turns.entry(id.clone()).or_default().insert(me.clone());
    }

    /// Checks that a target may not begin, because these nodes have failed, or have begun and are
    /// missing.
    pub fn halts(
        &mut self,
        me: &Node,
        id: &Id,
        most: usize,
        (failed, missing): (&BTreeSet<Node>, &BTreeSet<Node>),
    ) {
        self.count("halted");
        if !missing.is_empty() {
            self.count("counted as failed without an end");
        }
        assert!(
            failed.len() >= most,
            "{me} does not begin in run {id} although only {failed:?} have failed"
        );
        for node in failed {
            let is_missing = missing.contains(node);
            let is_it = |outcome: Outcome| match is_missing {
                true => !outcome.is_final() && outcome != Outcome::Held,
                false => outcome.counts_as_failed(),
            };
            assert!(
                self.has_told(node, id, is_it),
                "{node} did not fail in run {id}"
            );
        }
        self.excused.insert((me.clone(), id.clone()));
        self.halted.insert((me.clone(), id.clone()));
    }

    /// Checks that a target has not observed the others for too long: each of them may be missing
    /// for a minute.
    pub fn looks(&self, me: &Node, id: &Id, since: u64, now: u64) {
        if let Some((whole, _)) = &self.whole {
            let targets = self.lists.get(id).map_or(0, BTreeSet::len) as u64;
            let waited = now.saturating_sub(since.max(*whole));
            assert!(
                waited < (targets + 2) * MINUTE,
                "{me} waits for ever in run {id}"
            );
        }
    }

    /// Checks that the target may remove a trigger from the backend.
    pub fn removes(&mut self, me: &Node, trigger: &Trigger) {
        self.count("removed");
        let key = (me.clone(), TriggerKey::from(trigger));
        let asked = (me.clone(), trigger.id.clone());
        let has_acted = self.acted_ids.contains(&asked) || self.halted.contains(&asked);
        let is_known = has_acted || self.settled.contains_key(&key);
        assert!(is_known, "{me} removed {:?} before it was recorded", key.1);
    }

    /// Records that from this time on, nothing breaks.
    pub fn is_whole(&mut self, since: u64, gone: BTreeSet<Node>) {
        self.whole = Some((since, gone));
    }

    /// Checks, after a long time without faults, that each trigger that was promised before and
    /// could still be accepted was acted on.
    pub fn at_rest(&self) {
        let (since, gone) = self.whole.as_ref().expect("whole");
        let enough = since + ENOUGH;
        let mut refused = self.refused.clone();
        for (asked, firing) in &self.firings {
            let (target, id) = asked;
            let could = (firing.is_promised || firing.is_selected)
                && firing.at + firing.ttl > enough
                && !gone.contains(target)
                && !gone.contains(&firing.sender);
            if could && !self.is_done(target, id) {
                let left = refused.entry(id.clone()).or_default();
                let why = format!("{id} for {target}, fired at {}, is lost", firing.at);
                *left = left.checked_sub(1).expect(&why);
            }
        }
        for ((node, which), outcomes) in &self.told {
            let has_acted = self.acted.contains_key(&(node.clone(), which.clone()));
            for outcome in outcomes {
                let says_no = matches!(
                    outcome,
                    Outcome::Refused | Outcome::Expired | Outcome::Cancelled
                );
                assert!(
                    !(has_acted && says_no),
                    "{node} acted on {which:?} and told that it was {outcome}"
                );
            }
        }
    }

    /// Whether a node acted on the trigger, or on one that it was merged into, or its target had a
    /// reason not to.
    fn is_done(&self, target: &Node, id: &Id) -> bool {
        let mut open = vec![id.clone()];
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            let asked = (target.clone(), id.clone());
            let is_taken_back = self.cancels.contains(&asked);
            if is_taken_back || self.acted_ids.contains(&asked) || self.excused.contains(&asked) {
                return true;
            }
            if seen.insert(id) {
                open.extend(self.merged.get(&asked).into_iter().flatten().cloned());
            }
        }
        false
    }
}
