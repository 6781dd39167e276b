//! Events that match a rule of this node become observations for the step, like values of triggers.
//!
//! Batches that no rule is about are not verified. A rule that depends on the inventory of the
//! event's node waits until the backend was asked for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use again_base::model::{Span, Walltime};
use again_base::sys::clock;

use super::Driver;
use crate::handover::Evidence;
use crate::policy::judge::Signed;
use crate::policy::newest::Ignored;
use crate::policy::rule::COUNTS;
use crate::service::link::Listed;
use crate::service::reactions::Open;
use crate::step::model::{Answer, Found, Sight};
use crate::wire::event::Batch;
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::name::Node;
use crate::wire::rule_match::RuleMatch;
use crate::wire::trigger::Trigger;

/// Time until a batch that could not be judged is tried again.
const AGAIN: Span = Span::from_secs(60);
/// Largest number of nodes whose inventories are read together.
const MOST_NODES: usize = 64;

/// Inventory of a node, and the signed bytes of it.
type PublishedFacts = (Inventory, Arc<[u8]>);

impl Driver {
    /// Triggers that result from a batch of events in the backend.
    pub(super) fn react(&mut self, key: Key, bytes: Vec<u8>) -> Vec<Sight> {
        let rules = &self.reactions.rules;
        let is_own = key.signer() == Some(&self.me);
        if rules.is_empty() || (is_own && !rules.iter().any(|rule| rule.own)) {
            return Vec::new();
        }
        let me = &self.me;
        let is_wanted = |batch: &Batch| {
            rules.iter().any(|rule| {
                let (met, is_more) = rule.picks(me, batch, None);
                is_more || !met.is_empty()
            })
        };
        match self.seals.peek(&bytes) {
            Ok(batch) if !is_wanted(&batch) => return Vec::new(),
            Ok(_) => {}
            Err(why) => {
                let key = key.encode(&self.namespace);
                self.reject(&format!("{key} is not believed: {why}"));
                return Vec::new();
            }
        }
        let bytes = self.reactions.hold(bytes);
        bytes.map_or(Vec::new(), |bytes| self.follow(key, bytes, None))
    }

    /// Matches a batch against the rules. If a match depends on an unknown inventory, the batch is
    /// tried again later.
    fn follow(&mut self, key: Key, bytes: Arc<[u8]>, told: Option<&PublishedFacts>) -> Vec<Sight> {
        let now = clock::moment();
        let mut open = Open {
            key,
            bytes,
            until: now.wall + Span::from_nanos(COUNTS * 1_000_000),
            due: now.uptime + AGAIN,
        };
        let events = self.seals.events(&open.bytes, &open.key);
        let (extensions, batch) = match events.map_err(|found| *found) {
            Ok(events) => events,
            Err(Found::Bad(why)) => {
                let key = open.key.encode(&self.namespace);
                self.reject(&format!("{key} is not believed: {why}"));
                return Vec::new();
            }
            Err(Found::Unclear(why)) => {
                let node = open.key.signer().map_or("", Node::as_str);
                self.reactions
                    .say(format!("events of {node} cannot be judged: {why}"));
                self.reactions.open.push(open);
                return Vec::new();
            }
            Err(Found::Good(_)) => return Vec::new(),
        };
        let accepted = self
            .state
            .rules
            .accept
            .judge(&self.me, &batch.node, &extensions, None);
        if let Err(why) = accepted.or_else(|why| (batch.node == self.me).then_some(()).ok_or(why)) {
            let node = &batch.node;
            let why = format!("refused: events of {node} matched a rule: {why}");
            self.reactions.say(why);
            return Vec::new();
        }
        let mut sights = Vec::new();
        let mut is_open = false;
        for rule in self.reactions.rules.clone() {
            let inventory = told.map(|(inventory, _)| inventory);
            let (met, is_more) = rule.picks(&self.me, &batch, inventory);
            is_open |= is_more;
            for event in met {
                let met = RuleMatch {
                    rule: rule.name.clone(),
                    n: event.n,
                    batch: open.bytes.clone(),
                    inventory: told
                        .filter(|_| rule.asks_the_node())
                        .map(|(_, bytes)| bytes.clone()),
                };
                match rule.trigger(&self.namespace, &self.me, &batch, event) {
                    Ok(trigger) if self.is_news(&trigger) => {
                        let signed = Signed {
                            signer: batch.node.clone(),
                            extensions: extensions.clone(),
                            trigger,
                        };
                        sights.push(Driver::met(signed, met));
                    }
                    Ok(_) => {}
                    Err(why) => self
                        .reactions
                        .say(format!("refused: rule '{}': {why}", rule.name)),
                }
            }
        }
        let last = batch.events.iter().map(|event| event.at).max().unwrap_or(0);
        let last = Walltime::from_millis(last.saturating_add(COUNTS)) + self.state.rules.skew;
        if is_open && last > now.wall {
            open.until = open.until.min(last);
            // Whether the node has an inventory is not known before the backend was asked once.
            if told.is_none() {
                open.due = now.uptime;
            }
            self.reactions.open.push(open);
        }
        sights
    }

    /// Whether a trigger is to be sent to the executor: it has not expired, is at most an hour
    /// ahead of the clock, and was not sent before.
    fn is_news(&mut self, trigger: &Trigger) -> bool {
        let (now, skew) = (clock::walltime(), self.state.rules.skew);
        let place = (trigger.sender.clone(), trigger.name.clone());
        let settled = self
            .reactions
            .settled
            .get(&place)
            .map(|(number, _)| *number);
        if settled.max(self.state.number(&place)) >= Some(trigger.number)
            || trigger.expires() + skew <= now
        {
            return false;
        }
        let is_near = trigger.fired() <= now + skew + Span::from_nanos(COUNTS * 1_000_000);
        if !is_near {
            let sender = &trigger.sender;
            let why = format!("events of {sender} are more than an hour ahead of this clock");
            self.reactions.say(why);
        }
        is_near
    }

    fn met(signed: Signed, met: RuleMatch) -> Sight {
        let trigger = &signed.trigger;
        Sight {
            place: (trigger.sender.clone(), trigger.name.clone()),
            revision: 0,
            found: Found::Good(signed),
            evidence: Evidence::RuleMatch(met),
        }
    }

    /// Records the executor's answers: a trigger that it has accepted or rejected is not sent
    /// again.
    pub(super) fn reacted(&mut self, answers: &[Answer]) {
        let now = clock::walltime();
        let hour = Span::from_nanos(COUNTS * 1_000_000);
        let until = now + hour + self.state.rules.skew.times(2);
        let settled = answers
            .iter()
            .filter(|one| one.which.name.is_of_a_rule() && one.outcome.releases());
        for answer in settled {
            self.reactions.settle(&answer.which, until, now);
        }
    }

    /// Reads the inventories of nodes on which it depends whether their events match a rule.
    pub fn ask_for_nodes(&mut self) {
        let now = clock::moment();
        let open = &mut self.reactions.open;
        open.retain(|one| one.until > now.wall);
        let mut nodes = BTreeSet::new();
        for one in open.iter_mut().filter(|one| one.due <= now.uptime) {
            if let Some(node) = one.key.signer()
                && (nodes.len() < MOST_NODES || nodes.contains(node))
            {
                nodes.insert(node.clone());
                one.due = now.uptime + AGAIN;
            }
        }
        if nodes.is_empty() {
            return;
        }
        let prefixes = nodes.into_iter().map(Key::Node);
        let prefixes = prefixes.map(|key| key.encode(&self.namespace)).collect();
        self.list(prefixes, Driver::nodes_told);
    }

    /// Handles the inventories of nodes, and tries their batches again.
    fn nodes_told(&mut self, asked: &[String], answer: Listed) {
        let Ok(list) = answer else { return };
        let mut told = BTreeMap::new();
        let mut values = list.values;
        values.retain(|value| asked.contains(&value.key));
        for value in values {
            let key = Key::decode(&value.key, &self.namespace);
            let key = key.map_err(|e| Ignored::from(e.to_string()));
            let read = key.and_then(|key| {
                let inventory = self.seals.inventory(&value.bytes, &key)?;
                Ok((inventory.node.clone(), inventory))
            });
            match read {
                Ok((_, one)) if !one.is_of_a_run() => {}
                Ok((node, one)) => drop(told.insert(node, (one, Arc::from(value.bytes)))),
                Err(ignored) => self.ignore(&value.key, &ignored),
            }
        }
        let (again, rest): (Vec<Open>, Vec<Open>) = std::mem::take(&mut self.reactions.open)
            .into_iter()
            .partition(|one| one.key.signer().is_some_and(|node| told.contains_key(node)));
        self.reactions.open = rest;
        let mut sights = Vec::new();
        for one in again {
            let told = one.key.signer().and_then(|node| told.get(node));
            sights.extend(self.follow(one.key, one.bytes, told));
        }
        self.seen(&mut sights);
    }
}
