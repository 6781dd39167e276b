//! A trigger's register in the backend, and how far this node has come with it.

use again_base::model::{Boottime, Moment, Span};

use crate::handover::Evidence;
use crate::policy::judge::Signed;
use crate::policy::replay::TriggerKey;
use crate::wire::name::{Name, Node};
use crate::wire::trigger::Trigger;

/// Where a register for this node stands: below its own name in the backend, whose and which.
pub type Place = (Node, Name);

/// What is handed over: a trigger, and its evidence.
pub type Handed = (TriggerKey, Evidence);

/// A register as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// Sender and name of the trigger.
    pub place: Place,
    /// Its revision; 0 where it is made of an event that matched a rule. Nothing of such a one is removed.
    pub revision: u64,
    /// Value, verified.
    pub found: Found,
    /// What the executor verifies, if it is a trigger.
    pub evidence: Evidence,
}

/// What a register turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A trigger whose signature holds.
    Good(Signed),
    /// Something that nobody may have put there.
    Bad(String),
    /// It cannot be told now: this node lacks what it needs.
    Unclear(String),
}

/// A register for this node.
#[derive(Debug, Clone)]
pub(super) struct Register {
    pub revision: u64,
    pub found: Found,
    pub evidence: Evidence,
    pub stage: Stage,
}

/// How far a register has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// To be handed over.
    New,
    /// Its turn in a rolling run has not come.
    Waits,
    /// Those who take have it.
    Handed,
    /// To be looked at again then.
    Held(Boottime),
    /// Its removal is under way.
    Leaving,
    /// To be removed then.
    Settled(Boottime),
}

impl Register {
    /// The trigger that it is.
    pub fn trigger(&self) -> Option<&Trigger> {
        match &self.found {
            Found::Good(signed) => Some(&signed.trigger),
            Found::Bad(_) | Found::Unclear(_) => None,
        }
    }

    /// Whether it is this trigger.
    pub fn is(&self, which: &TriggerKey) -> bool {
        let trigger = self.trigger();
        trigger.is_some_and(|trigger| TriggerKey::from(trigger) == *which)
    }

    /// How long it may still be taken by this node's clock; nothing where its time is over, or it is no trigger.
    pub fn left(&self, skew: Span, now: &Moment) -> Option<Span> {
        let until = self.trigger()?.expires() + skew;
        Some(until.since(now.wall)).filter(|_| now.wall < until)
    }
}
