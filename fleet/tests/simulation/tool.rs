//! What stands for `again` on a node: it records triggers, runs Puppet for them, and knows where a run came from. All of it is
//! on disk with one rename, and survives everything.

use std::collections::BTreeMap;

use again_fleet::policy::lineage;
use again_fleet::policy::replay::TriggerKey;
use again_fleet::wire::lineage::Lineage;
use again_fleet::wire::name::{Id, Name, Node};
use again_fleet::wire::outcome::Outcome;

/// A trigger that was recorded.
#[derive(Debug, Clone)]
pub struct Order {
    pub which: TriggerKey,
    pub lineage: Lineage,
    /// Base and delta: a run that starts from here on does its job.
    pub ready: u64,
    /// When a run is started for it, if none did its job.
    pub due: u64,
}

/// A run of Puppet.
#[derive(Debug, Clone)]
pub struct Run {
    pub number: u64,
    /// What `again status` says of where it comes from.
    pub lineage: Lineage,
    /// Where it truly comes from.
    pub truth: Lineage,
    pub orders: Vec<Order>,
}

#[derive(Debug, Default)]
pub struct Tool {
    pub is_disabled: bool,
    /// The highest number of each sender and name that was recorded.
    pub recorded: BTreeMap<(Node, Name), TriggerKey>,
    pub pending: Vec<Order>,
    pub running: Option<Run>,
    pub history: Vec<(TriggerKey, Lineage, Outcome)>,
    runs: u64,
}

impl Tool {
    /// Records triggers that were handed over together.
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

    /// Whether it shows a trigger of this id.
    pub fn has(&self, id: &Id) -> bool {
        let history = self.history.iter().map(|(which, ..)| which);
        let mut shown = history.chain(self.recorded.values());
        shown.any(|which| which.id == *id)
    }

    /// When it starts a run by itself.
    pub fn due(&self) -> Option<u64> {
        self.pending
            .iter()
            .map(|order| order.due)
            .min()
            .filter(|_| self.running.is_none())
    }

    /// A run starts: by itself, or because somebody else started it. It does the job of all that is ready.
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

    /// The run ends, or the machine did.
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
