//! Value of a trigger in the backend, and its progress on this node.

use again_base::model::{Boottime, Moment, Span};

use crate::handover::Evidence;
use crate::policy::judge::Signed;
use crate::policy::replay::TriggerKey;
use crate::wire::name::{Name, Node};
use crate::wire::trigger::Trigger;

/// Place of a value for this node, below the target's name in the backend: sender and name of the
/// trigger.
pub type Place = (Node, Name);

/// Trigger that is sent to the executor, and its evidence.
pub type Handed = (TriggerKey, Evidence);

/// Observation of a value in the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// Sender and name of the trigger.
    pub place: Place,
    /// Revision of the value; 0 if it is made from an event that matched a rule. Nothing is removed
    /// from the backend for such a value.
    pub revision: u64,
    /// Verified value.
    pub found: Found,
    /// Evidence that the executor verifies, if the value is a trigger.
    pub evidence: Evidence,
}

/// Verified value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A trigger with a valid signature.
    Good(Signed),
    /// A value that nobody may have put there; why.
    Bad(String),
    /// A value that cannot be judged now, since this node lacks what it needs; why.
    Unclear(String),
}

/// Value for this node, and its progress.
#[derive(Debug, Clone)]
pub(super) struct Register {
    pub revision: u64,
    pub found: Found,
    pub evidence: Evidence,
    pub stage: Stage,
}

/// Progress of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// To be sent to the executor.
    New,
    /// Waiting for its turn in a rolling run.
    Waits,
    /// Sent to the executor, which has not answered.
    Handed,
    /// Held, and to be judged again at this uptime.
    Held(Boottime),
    /// Being removed from the backend.
    Leaving,
    /// To be removed from the backend at this uptime.
    Settled(Boottime),
}

impl Register {
    /// Trigger, if the value is one.
    pub fn trigger(&self) -> Option<&Trigger> {
        match &self.found {
            Found::Good(signed) => Some(&signed.trigger),
            Found::Bad(_) | Found::Unclear(_) => None,
        }
    }

    /// Whether the value is this trigger.
    pub fn is(&self, which: &TriggerKey) -> bool {
        let trigger = self.trigger();
        trigger.is_some_and(|trigger| TriggerKey::from(trigger) == *which)
    }

    /// Time for which this node may still accept the trigger, according to its clock; `None` if the
    /// trigger has expired, or the value is not a trigger.
    pub fn left(&self, skew: Span, now: &Moment) -> Option<Span> {
        let until = self.trigger()?.expires() + skew;
        Some(until.since(now.wall)).filter(|_| now.wall < until)
    }
}
