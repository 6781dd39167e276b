//! Position of a rerun in its chain.

use super::observe::Observation;
use crate::state::files::token;
use crate::state::record::{Origin, Record};
use crate::state::reruns::Rerun;
use crate::state::store::Store;
use again_base::model::{Identity, Moment, chain_id};
use again_base::sys::process;

/// Position of a rerun in its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Id of the chain.
    pub chain: String,
    /// Number of the requested run; the first run is 1.
    pub run: u32,
    /// Origin of the request.
    pub origin: Origin,
    /// Agent daemon whose run began the chain, if any.
    pub daemon: Option<Identity>,
    /// Rerun that sends the request, if any.
    pub rerun: Option<Rerun>,
}

/// Finds the chain from the processes above us: a note says which of them is a rerun.
pub fn find(seen: &Observation, store: &Store, record: &Record, now: &Moment) -> Place {
    let run = seen.run_identity();
    // The command of a rerun may have become this process.
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
        // Outside any run and any rerun, each command is the first run of a new chain.
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
