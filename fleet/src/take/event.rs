//! An event that met a rule, verified and looked at again: the trigger that it is, on nobody's word but its node's signature's and this
//! node's own rules.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::calls::{Call, Told};
use crate::identity::authority::Authority;
use crate::identity::{Signer, Untrusted};
use crate::policy::judge::Signed;
use crate::policy::rule::{Fit, Rule};
use crate::wire::Malformed;
use crate::wire::body::Content;
use crate::wire::envelope::Envelope;
use crate::wire::event::Batch;
use crate::wire::inventory::Inventory;
use crate::wire::met::Met;
use crate::wire::name::{Namespace, Node};

/// Verifies what nodes have signed for this fleet; or believes all of it, where the engine is trusted.
pub struct Verifier {
    /// The fleet.
    pub namespace: Namespace,
    /// The CA.
    pub authority: Option<Authority>,
}

impl Verifier {
    /// Who signed a value, if that matters, and what it says.
    pub fn open<T: Content>(&self, value: &[u8]) -> Result<(Option<Signer>, T), Untrusted> {
        Envelope::parse(value)?.open(&self.namespace, |seal| {
            let verify = |authority: &Authority| authority.verify(seal, SystemTime::now());
            self.authority.as_ref().map(verify).transpose()
        })
    }

    /// The same of what a node says of itself.
    fn of<T: Content>(
        &self,
        value: &[u8],
        node: impl Fn(&T) -> &Node,
    ) -> Result<(Option<Signer>, T), Untrusted> {
        let (signer, content) = self.open(value)?;
        let teller = node(&content);
        match signer.as_ref().filter(|signer| signer.node != *teller) {
            None => Ok((signer, content)),
            Some(Signer { node, .. }) => {
                Err(wrong(format!("{node} signed it in the name of {teller}")))
            }
        }
    }
}

fn wrong(why: String) -> Untrusted {
    Malformed::new(why).into()
}

/// The trigger that a value is which met a rule, and the call that it makes, if it makes one.
///
/// # Errors
/// Its node did not sign it, there is no such rule, or it does not meet the rule.
pub fn trigger(
    verifier: &Verifier,
    me: &Node,
    rules: &[Rule],
    value: &[u8],
) -> Result<(Signed, Option<Call>), Untrusted> {
    let met = Met::read(value)?;
    let (signer, batch) = verifier.of(&met.batch, |batch: &Batch| &batch.node)?;
    let Batch { node, run, .. } = &batch;
    let told = met.inventory.as_deref();
    let told = told.map(|told| verifier.of(told, |told: &Inventory| &told.node));
    let told = told.transpose()?.map(|(_, told)| told);
    if let Some(Inventory { node: other, .. }) = told.as_ref().filter(|told| told.node != *node) {
        return Err(wrong(format!(
            "{other} told of itself, and not {node}, where it happened"
        )));
    }
    let shown = crate::wire::shown(&met.rule);
    let rule = rules.iter().find(|rule| rule.name == met.rule);
    let rule = rule.ok_or_else(|| wrong(format!("this node has no rule '{shown}'")))?;
    let event = batch.events.iter().find(|event| event.n == met.n);
    let event = event.ok_or_else(|| {
        let n = met.n;
        wrong(format!("the batch of run {run} of {node} has no event {n}"))
    })?;
    match rule.fit(me, &batch, event, told.as_ref()) {
        Fit::Yes => {}
        fit => {
            let (what, change) = (crate::wire::shown(&event.resource), event.change);
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
        .trigger(&verifier.namespace, me, &batch, event)
        .map_err(wrong)?;
    let call = (!rule.command.is_empty()).then(|| Call {
        rule: rule.name.clone(),
        command: rule.command.clone(),
        timeout: rule.timeout,
        id: trigger.id.clone(),
        event: Told {
            node: node.clone(),
            run: run.clone(),
            environment: batch.begun.environment.clone(),
            event: event.clone(),
            origins: trigger.lineage.clone(),
        },
    });
    let signed = Signed {
        signer: node.clone(),
        extensions: signer.map_or_else(BTreeMap::new, |signer| signer.extensions),
        trigger,
    };
    Ok((signed, call))
}
