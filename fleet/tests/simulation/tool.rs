//! Simulated `again` of a node: it records triggers, runs Puppet for them, and knows the origins of
//! a run. All of its state is written to disk with one rename, and survives every fault.

use std::collections::BTreeMap;

use again_fleet::policy::lineage;
use again_fleet::policy::replay::TriggerKey;
use again_fleet::wire::lineage::Lineage;
use again_fleet::wire::name::{Id, Name, Node};
use again_fleet::wire::outcome::Outcome;

/// Recorded trigger.
#[derive(Debug, Clone)]
pub struct Order {
    pub which: TriggerKey,
    pub lineage: Lineage,
    /// Time after base and delta: a run that starts from then on satisfies the trigger.
    pub ready: u64,
    /// Time at which a run is started for the trigger, if none has satisfied it.
    pub due: u64,
}

/// A run of Puppet.
#[derive(Debug, Clone)]
pub struct Run {
    pub number: u64,
    /// Origins that `again status` reports for the run.
    pub lineage: Lineage,
    /// True origins of the run.
    pub truth: Lineage,
    pub orders: Vec<Order>,
}

#[derive(Debug, Default)]
pub struct Tool {
    pub is_disabled: bool,
    /// Highest number that was recorded of each sender and name.
    pub recorded: BTreeMap<(Node, Name), TriggerKey>,
    pub pending: Vec<Order>,
    pub running: Option<Run>,
    pub history: Vec<(TriggerKey, Lineage, Outcome)>,
    runs: u64,
}

impl Tool {
    /// Records triggers that were handed over together; returns those that are new.
    pub fn record(&mut self, orders: Vec<Order>, knows_numbers: bool) -> Vec<TriggerKey> {
        let mut new = Vec::new();
        for order in orders {
            let place = (order.which.sender.clone(), order.which.name.clone());
            let known = self.recorded.get(&place);
            if knows_numbers && known.is_some_and(|known| known.number >= order.which.number) {
                continue;
            }
            self.recorded.insert(place, order.which.clone());
            new.push(order.which.clone());
            self.pending.push(order);
        }
        new
    }

    /// Whether the history or the records show a trigger of this id.
    pub fn has(&self, id: &Id) -> bool {
        let history = self.history.iter().map(|(which, ..)| which);
        let mut shown = history.chain(self.recorded.values());
        shown.any(|which| which.id == *id)
    }

    /// Time at which the tool starts a run for a trigger.
    pub fn due(&self) -> Option<u64> {
        self.pending
            .iter()
            .map(|order| order.due)
            .min()
            .filter(|_| self.running.is_none())
    }

    /// Starts a run, for a trigger or not. It satisfies all triggers that are ready.
    pub fn start(&mut self, now: u64, by_itself: bool, keeps_satisfied: bool) {
        if self.running.is_some() {
            return;
        }
        let (orders, pending) = self
            .pending
            .drain(..)
            .partition::<Vec<_>, _>(|order| order.ready <= now);
        self.pending = pending;
        let truth = lineage::merged(orders.iter().map(|order| &order.lineage));
        let lineage = if by_itself || keeps_satisfied {
            truth.clone()
        } else {
            Lineage::default()
        };
        let outcome = if by_itself {
            Outcome::Started
        } else {
            Outcome::Satisfied
        };
        for order in &orders {
            self.tell(order, outcome);
        }
        self.runs += 1;
        self.running = Some(Run {
            number: self.runs,
            lineage,
            truth,
            orders: if by_itself { orders } else { Vec::new() },
        });
    }

    /// Ends the run, with this outcome.
    pub fn end(&mut self, outcome: Outcome) {
        for order in self
            .running
            .take()
            .map(|run| run.orders)
            .unwrap_or_default()
        {
            self.tell(&order, outcome);
        }
    }

    fn tell(&mut self, order: &Order, outcome: Outcome) {
        self.history
            .push((order.which.clone(), order.lineage.clone(), outcome));
    }
}
