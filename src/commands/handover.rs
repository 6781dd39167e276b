//! A request below a converge driver: handed to the driver, not to a waiter.

use anyhow::Result;

use crate::cli::Run;
use crate::config::Settings;
use crate::model::{Base, Exit, Identity, Kind, Moment, Refusal, Span, Use};
use crate::observe::Observation;
use crate::policy::cap;
use crate::policy::judge::{Case, Verdict, judge, under_driver};
use crate::puppet::cmdline::{self, base_name};
use crate::state::change::Change;
use crate::state::driver::{self, Driver, Handed};
use crate::state::files::token;
use crate::state::history::{Entry, What};
use crate::state::record::VERSION;
use crate::state::store::Store;
use crate::sys::clock::moment;
use crate::sys::process;
use crate::target;

/// The driver that `seen` is below, by the records, and whether it lives.
pub fn driver_above(store: &Store, seen: &Observation, now: &Moment) -> Option<(Driver, bool)> {
    let drivers = driver::all(store);
    if drivers.is_empty() {
        return None;
    }
    // The driver may run the requester itself.
    let chain: Vec<Identity> = process::own_identity()
        .into_iter()
        .chain(seen.chain.iter().map(|ancestor| ancestor.identity))
        .collect();
    driver::above(drivers, &chain, &now.boot)
}

/// Hands the request over if a driver is above. `None` if there is none: then it
/// is for a waiter.
///
/// # Errors
/// What went wrong; the driver does not have the request then.
pub fn main(
    run: &Run,
    settings: &Settings,
    seen: &Observation,
    name: &str,
    uid: u32,
) -> Result<Option<Exit>> {
    let store = Store::existing(&settings.state_dir);
    let now = moment();
    let Some((driver, alive)) = driver_above(&store, seen, &now) else {
        return Ok(None);
    };
    store.check()?;
    let token = token();
    let change = |what| {
        Change::of(Entry {
            target: driver.target.clone(),
            timer: name.to_owned(),
            token: token.clone(),
            chain: driver.chain.clone(),
            run: driver.run.saturating_add(1),
            ..Entry::new(what, now.clone())
        })
    };
    let verdict = if alive {
        judge(&case(settings, seen, &store, &now, uid)?)
    } else {
        Verdict::Refuse(Refusal::DriverGone {
            pid: driver.process.pid,
        })
    };
    let not_before = match verdict {
        Verdict::Schedule { not_before } => not_before,
        Verdict::Refuse(refusal) => {
            let change = change(What::Refused).refused(&refusal);
            store.note(&change.entry);
            change.log();
            return super::run::report(&refusal).map(Some);
        }
    };
    let invocation = cmdline::parse(&seen.original);
    let resource = super::run::resource(run);
    let delta = run.delta.unwrap_or(Span::ZERO).max(not_before);
    let base = if run.start_timer_now {
        Base::Request
    } else {
        Base::End
    };
    driver::hand_over(
        &store,
        &driver,
        &Handed {
            version: VERSION,
            token: token.clone(),
            name: name.to_owned(),
            resource: resource.clone(),
            delta,
            jitter: settings.jitter,
            base,
            requested: now.clone(),
            kind: seen.order.as_ref().map(|order| order.kind),
            detailed: invocation.is_some_and(|invocation| invocation.detailed),
            paths: seen
                .order
                .as_ref()
                .map(|order| order.paths.clone())
                .unwrap_or_default(),
        },
    )?;
    let pid = driver.process.pid;
    let by = resource.map_or_else(String::new, |resource| format!(", by {resource}"));
    let change = change(What::Requested)
        .because(format!(
            "taken by 'again converge' (pid {pid}); delta {delta}{by}"
        ))
        .saying(line(&driver, name, delta, base, settings.jitter));
    store.note(&change.entry);
    change.say()?;
    Ok(Some(Exit::Success))
}

/// What the request is judged by: as any other, but for what only a waiter needs.
fn case(
    settings: &Settings,
    seen: &Observation,
    store: &Store,
    now: &Moment,
    uid: u32,
) -> Result<Case> {
    let record = match &seen.order {
        Some(order) if order.kind != Kind::Command => store.read(&target::id(order, uid))?,
        _ => None,
    };
    Ok(Case {
        above: under_driver(seen.above.clone()),
        disabled: store.disabled().map(|disabled| disabled.reason),
        cap: settings.cap,
        usage: record.map_or(
            Use {
                used: 0,
                frees_in: Span::ZERO,
            },
            |record| cap::usage(settings.cap, record.moments(), now),
        ),
        on_cap: settings.on_cap,
    })
}

fn line(driver: &Driver, name: &str, delta: Span, base: Base, jitter: Option<Span>) -> String {
    let wait = match jitter {
        Some(range) if range > Span::ZERO => format!("{delta} to {}", delta + range),
        _ => delta.to_string(),
    };
    let from = match base {
        Base::End => "after this run has ended",
        Base::Request => "from now, and after this run has ended",
    };
    let last = if driver.run >= driver.max_runs {
        "; this was the last run it may start, so nothing will come of it"
    } else {
        ""
    };
    format!(
        "again: scheduled: taken by 'again converge' (pid {}), which runs its command again {wait} {from} (timer '{name}', run {} of chain {}, at most {} runs){last}",
        driver.process.pid,
        driver.run.saturating_add(1),
        driver.chain,
        driver.max_runs
    )
}

/// An `again converge` above us that no record here knows: it keeps its state in
/// another directory, and will not see the request.
pub fn stranger(seen: &Observation) -> Option<i32> {
    seen.chain
        .iter()
        .find(|ancestor| {
            let words = process::split_block(&ancestor.cmdline);
            words
                .first()
                .is_some_and(|word| base_name(word) == b"again")
                && words
                    .iter()
                    .take_while(|word| *word != b"--")
                    .any(|word| word == b"converge")
        })
        .map(|ancestor| ancestor.identity.pid)
}
