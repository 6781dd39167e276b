//! Where a rerun stands in its chain.

use super::observe::Observation;
use crate::state::files::token;
use crate::state::record::{Origin, Record};
use crate::state::reruns::Rerun;
use crate::state::store::Store;
use again_base::model::{Identity, Moment, chain_id};
use again_base::sys::process;

/// Where a rerun stands in its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The chain's id.
    pub chain: String,
    /// The number of the run asked for; the first run is 1.
    pub run: u32,
    /// Where the request came from.
    pub origin: Origin,
    /// The agent daemon whose run began the chain, if one did.
    pub daemon: Option<Identity>,
    /// The rerun that asks, if it is one.
    pub rerun: Option<Rerun>,
}

/// Finds the chain by the processes above us: a record says which of them is a rerun.
pub fn find(seen: &Observation, store: &Store, record: &Record, now: &Moment) -> Place {
    let run = seen.run_identity();
    // A rerun's command may have become this very process.
    let me = process::own_identity().ok().filter(|_| run.is_none());
    let above = seen.chain.iter().skip(seen.run.unwrap_or(0));
    let rerun = me
        .into_iter()
        .chain(above.map(|seen| seen.identity))
        .find_map(|who| store.rerun_of(who, now));
    let (chain, least, daemon) = match (&rerun, run) {
        (Some(rerun), _) => {
            let next = rerun.run.saturating_add(1);
            (rerun.chain.clone(), next, rerun.daemon)
        }
        (None, Some(who)) => (chain_id(who, &now.boot), 2, None),
        // Outside any run and any rerun, each command is the first run of a chain of its own.
        (None, None) => (token().chars().take(8).collect(), 1, None),
    };
    let origin = if run.is_some() {
        Origin::Run
    } else {
        Origin::Command
    };
    Place {
        run: record.next_number(&chain, least),
        chain,
        origin,
        daemon,
        rerun,
    }
}
