//! Collects the facts that decide a request.

use super::asked::Request;
use super::line::as_argument;
use super::observe::Observation;
use crate::policy::cap;
use crate::policy::judge::{Case, stops_driver};
use crate::state::driver::Driver;
use crate::state::record::Record;
use crate::state::standing::Standing;
use crate::state::store::Store;
use again_base::model::{Moment, Provenance, Refusal, Use};

/// Facts that decide a request. `driver` is the driver that would accept it, and whether it lives.
pub fn case(
    request: &Request<'_>,
    seen: &Observation,
    driver: Option<&(Driver, bool)>,
    store: &Store,
    record: Option<&Record>,
    now: &Moment,
) -> Case {
    let found = match &seen.plan {
        Ok(plan) => plan.obstacle.clone(),
        Err(refusal) => Some(refusal.clone()),
    };
    let disabled = store.disabled().map(|disabled| disabled.reason);
    let obstacle = match driver {
        // A refusal that a person demanded is not a failure, whatever else applies.
        None if disabled.is_some() => found,
        None => found.or_else(|| {
            let names = request.names().into_iter();
            names
                .map(|name| elsewhere(&name, store, record?, now))
                .find_map(|found| found)
        }),
        Some((_, true)) => found.filter(stops_driver),
        Some((driver, false)) => Some(Refusal::DriverGone {
            pid: driver.process.pid,
        }),
    };
    let cap = request.settings.cap;
    let starts = || record.into_iter().flat_map(Record::moments);
    let (cap, usage) = match seen.plan {
        Ok(_) => {
            let total = request.settings.total();
            // A driver counts its own runs.
            let together = driver
                .is_none()
                .then(|| store.together(total, now))
                .flatten();
            let own = (cap, cap::usage(cap, starts(), now));
            cap::binding(own, together.map(|usage| (total, usage)))
        }
        // Without a target there is nothing to count.
        Err(_) => (cap, Use::default()),
    };
    Case {
        obstacle,
        disabled,
        cap,
        usage,
        on_cap: request.settings.on_cap,
    }
}

/// Refusal if the timer that the request would replace waits for a run that cannot be seen from
/// here.
fn elsewhere(name: &str, store: &Store, record: &Record, now: &Moment) -> Option<Refusal> {
    let timer = record.timers.get(name)?;
    // If only the boot is unknown, its run can be seen by pid and start time.
    if timer.provenance(now) == Provenance::UnknownBoot {
        return None;
    }
    match store.waiter_stands(&record.id, timer, now) {
        Standing::Foreign {
            whose,
            may_live: true,
        } => Some(Refusal::Elsewhere {
            name: name.to_owned(),
            argument: as_argument(name),
            whose,
            chain: timer.chain.clone(),
        }),
        _ => None,
    }
}
