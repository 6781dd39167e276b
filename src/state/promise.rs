//! Promises and triggers that a timer takes over from the requests that it replaces.

use super::record::{Origin, Promise, Timer};
use again_base::model::{Identity, Moment, Provenance, Span};

/// Maximum number of promises that a timer takes over.
const PROMISES_KEPT: usize = 8;

impl Timer {
    /// Takes over what an older request of the same name promised to other runs: all of those runs
    /// have to end, and the latest due time counts. If there are too many, the newest promises and
    /// those to living runs are kept.
    pub fn keep_promises(
        &mut self,
        old: &Timer,
        now: &Moment,
        is_alive: impl Fn(Identity) -> bool,
    ) {
        // Only in the same pid namespace, or if the boot is unknown, can a run be seen to live.
        let provenance = old.provenance(now);
        if !matches!(provenance, Provenance::Here | Provenance::UnknownBoot) {
            return;
        }
        let waits = |span: Span| if old.hurry { Span::ZERO } else { span };
        let mut promises = old.promises.clone();
        // A request from a command line leaves no promise when a newer one replaces it.
        promises.extend((old.origin == Origin::Run).then(|| Promise {
            run: old.waits_for,
            due: old.due,
            delta: waits(old.delta),
            jitter: waits(old.jitter),
        }));
        if provenance == Provenance::UnknownBoot {
            // No due time of another boot delays a rerun by more than its whole wait.
            promises.iter_mut().for_each(|one| one.limit(now));
        }
        let lives = |one: &Promise| one.run.is_some_and(&is_alive);
        promises.retain(|one| {
            let is_open = lives(one) || one.due.is_none_or(|due| due > now.uptime);
            is_open && (one.run.is_none() || one.run != self.waits_for)
        });
        while promises.len() > PROMISES_KEPT {
            let least = promises.iter().position(|one| !lives(one)).unwrap_or(0);
            promises.remove(least);
        }
        self.promises = promises;
    }
}
