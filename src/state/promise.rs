//! Promises and triggers that a timer takes over from the requests that it replaces.

use super::record::{Origin, Promise, Timer};
use again_base::model::{Identity, Moment, Provenance, Span};

/// How many promises a timer takes over.
const PROMISES_KEPT: usize = 8;

impl Timer {
    /// Takes over what an older request of its name promised to other runs: all of them have
    /// to end, and the latest due time counts. Of too many, those to runs that live and the
    /// newest stay.
    pub fn keep_promises(
        &mut self,
        old: &Timer,
        now: &Moment,
        is_alive: impl Fn(Identity) -> bool,
    ) {
        // Whether a run lives can be told only where it is, or where its boot is not known.
        let provenance = old.provenance(now);
        if !matches!(provenance, Provenance::Here | Provenance::UnknownBoot) {
            return;
        }
        let waits = |span: Span| if old.hurry { Span::ZERO } else { span };
        let mut promises = old.promises.clone();
        // A person who asks again thinks better of it.
        promises.extend((old.origin == Origin::Run).then(|| Promise {
            run: old.waits_for,
            due: old.due,
            delta: waits(old.delta),
            jitter: waits(old.jitter),
        }));
        if provenance == Provenance::UnknownBoot {
            // No due time of another boot is waited for longer than the whole wait.
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
