//! A request that a converge driver accepts.

use anyhow::Result;

use super::asked::{Answer, Request};
use super::case::case;
use super::line;
use super::observe::Observation;
use crate::policy::judge::{Verdict, judge};
use crate::state::change::About;
use crate::state::driver::{self, Driver, Handed};
use crate::state::files::token;
use crate::state::history::What;
use crate::state::newer::VERSION;
use crate::state::store::Store;
use again_base::model::{Exit, Identity};
use again_base::sys::clock::moment;
use again_base::sys::process;

/// Driver that would accept the request, according to the records, and whether it lives. A request
/// with a command of its own goes to a waiter.
pub fn above(request: &Request<'_>, seen: &Observation) -> Option<(Driver, bool)> {
    let drivers = driver::all(&Store::existing(&request.settings.state_dir), driver::warn);
    if drivers.is_empty() || !request.run.command.is_empty() {
        return None;
    }
    // The driver may run the requester itself.
    let own = process::own_identity().into_iter();
    let above = seen.chain.iter().map(|ancestor| ancestor.identity);
    let chain: Vec<Identity> = own.chain(above).collect();
    driver::above(drivers, &chain, &moment().boot)
}

/// Hands the request to the driver.
///
/// # Errors
/// The failure; the driver does not have the request then.
pub fn take(request: &Request<'_>, seen: &Observation, above: &(Driver, bool)) -> Result<Answer> {
    let driver = &above.0;
    let store = Store::existing(&request.settings.state_dir);
    store.check()?;
    let now = moment();
    let plan = seen.plan.as_ref().ok();
    let record = plan.and_then(|plan| store.read(&plan.target).ok().flatten());
    let token = token();
    let about = About {
        target: driver.target.clone(),
        timer: request.name.clone(),
        token: token.clone(),
        chain: driver.chain.clone(),
        run: driver.run.saturating_add(1),
        ..About::default()
    };
    let case = case(request, seen, Some(above), &store, record.as_ref(), &now);
    let not_before = match judge(&case) {
        Verdict::Schedule { not_before } => not_before,
        Verdict::Refuse(refusal) => {
            let change = about.became(What::Refused, now).refused(&refusal);
            return Ok(Answer::of(&store, change, refusal.exit()));
        }
    };
    let handed = Handed {
        version: VERSION,
        token: token.clone(),
        name: request.name.clone(),
        resource: request.resource(),
        delta: request.delta().max(not_before),
        jitter: request.settings.jitter,
        base: request.base(),
        requested: now.clone(),
        kind: plan.map(|plan| plan.order.kind),
        detailed: plan.is_some_and(|plan| plan.detailed),
        paths: plan
            .map(|plan| plan.order.paths.clone())
            .unwrap_or_default(),
    };
    driver::hand_over(&store, driver, &handed)?;
    let pid = driver.process.pid;
    let mut how = format!(
        "taken by 'again converge' (pid {pid}); delta {}",
        handed.delta
    );
    if let Some(resource) = &handed.resource {
        how.push_str(&format!(", by {resource}"));
    }
    let change = about
        .became(What::Requested, now)
        .because(how)
        .saying(line::taken_by_driver(driver, &handed));
    Ok(Answer::of(&store, change, Exit::Success))
}
