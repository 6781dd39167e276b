//! Event that matched a rule, verified and matched again. Its trigger depends only on values that
//! the event's node has signed, and on this node's own rules.

use super::calls::{Call, EventInput};
use crate::identity::verifier::Verifier;
use crate::identity::{Signer, Untrusted};
use crate::policy::judge::Signed;
use crate::policy::rule::{Fit, Rule};
use crate::spool::RunEvents;
use crate::wire::Malformed;
use crate::wire::event::{Batch, Event};
use crate::wire::inventory::Inventory;
use crate::wire::name::{Namespace, Node};
use crate::wire::rule_match::RuleMatch;

fn wrong(why: String) -> Untrusted {
    Malformed::new(why).into()
}

/// Event that matched a rule, signed by its node.
pub struct Happened {
    /// Batch of the event.
    pub batch: Batch,
    /// Event.
    pub event: Event,
    signer: Option<Signer>,
    /// Published facts of the event's node.
    told: Option<Inventory>,
    /// Name of the rule.
    rule: String,
}

impl Happened {
    /// Verifies a value.
    ///
    /// # Errors
    /// The value is malformed, a part of it was not signed by the event's node, or the batch has no
    /// such event.
    pub fn open(verifier: &Verifier<'_>, value: &[u8]) -> Result<Happened, Untrusted> {
        let met = RuleMatch::read(value)?;
        let (signer, batch) = verifier.own::<Batch>(&met.batch)?;
        let Batch { node, run, .. } = &batch;
        let told = met.inventory.as_deref();
        let told = told.map(|told| verifier.own::<Inventory>(told));
        let told = told.transpose()?.map(|(_, told)| told);
        if let Some(Inventory { node: other, .. }) = told.as_ref().filter(|told| told.node != *node)
        {
            return Err(wrong(format!(
                "{other} told of itself, and not {node}, where it happened"
            )));
        }
        let event = batch.events.iter().find(|event| event.n == met.n).cloned();
        let event = event.ok_or_else(|| {
            let n = met.n;
            wrong(format!("the batch of run {run} of {node} has no event {n}"))
        })?;
        Ok(Happened {
            event,
            signer,
            told,
            rule: met.rule,
            batch,
        })
    }

    /// Whether the event is one of those that a run left, and the run began as the batch says.
    pub fn is_of(&self, run: &RunEvents) -> bool {
        run.begun == self.batch.begun && run.events.contains(&self.event)
    }

    /// Trigger that the event becomes under its rule, and the call, if the rule names a program.
    ///
    /// # Errors
    /// This node has no such rule, the event does not match it, or no trigger can be made of it.
    pub fn trigger(
        &self,
        namespace: &Namespace,
        me: &Node,
        rules: &[Rule],
    ) -> Result<(Signed, Option<Call>), Untrusted> {
        let Batch { node, run, .. } = &self.batch;
        let shown = crate::wire::shown(&self.rule);
        let rule = rules.iter().find(|rule| rule.name == self.rule);
        let rule = rule.ok_or_else(|| wrong(format!("this node has no rule '{shown}'")))?;
        match rule.fit(me, &self.batch, &self.event, self.told.as_ref()) {
            Fit::Yes => {}
            fit => {
                let (what, change) = (crate::wire::shown(&self.event.resource), self.event.change);
                let of = match fit {
                    Fit::Untold => ", as far as its node tells of itself",
                    _ => "",
                };
                return Err(wrong(format!(
                    "{what} {change} on {node} does not meet rule '{shown}'{of}"
                )));
            }
        }
        let trigger = rule
            .trigger(namespace, me, &self.batch, &self.event)
            .map_err(wrong)?;
        let call = (!rule.command.is_empty()).then(|| Call {
            rule: rule.name.clone(),
            command: rule.command.clone(),
            timeout: rule.timeout,
            id: trigger.id.clone(),
            event: EventInput {
                node: node.clone(),
                run: run.clone(),
                environment: self.batch.begun.environment.clone(),
                event: self.event.clone(),
                origins: trigger.lineage.clone(),
            },
        });
        let extensions = self.signer.as_ref().map(|signer| signer.extensions.clone());
        let signed = Signed {
            signer: node.clone(),
            extensions: extensions.unwrap_or_default(),
            trigger,
        };
        Ok((signed, call))
    }
}
