//! Undoes recorded starts that never began, and finds the newest known run of this boot.

use super::record::{Record, Running};
use again_base::model::{Boottime, Moment, Span};

/// Maximum drift between the two clocks within one boot.
const CLOCKS_APART: Span = Span::from_secs(1);

impl Record {
    /// Takes back the starts of reruns that never began, so that they do not count. Each timer is
    /// pending again, unless a newer timer of the same name is; that one then takes over its
    /// triggers.
    pub fn take_back(&mut self, never_began: &[Running]) {
        for run in never_began {
            let Some(before) = &run.before_start else {
                continue;
            };
            self.starts
                .retain(|start| start.at != run.started || start.run != run.run);
            if self.seen_run.as_ref() == Some(&run.started) {
                self.seen_run.clone_from(&before.seen_run);
            }
            match self.timers.get_mut(&run.timer) {
                Some(newer) => newer.take_over(&before.timer),
                None => {
                    self.timers.insert(run.timer.clone(), before.timer.clone());
                }
            }
        }
    }

    /// Start of the newest known run under this boot. If the boot is unknown, the run counts only
    /// if both clocks agree on its time, so that a run of an earlier boot does not count as one of
    /// this boot.
    pub fn newest_run(&self, now: &Moment) -> Option<Boottime> {
        let seen = self.seen_run.as_ref()?;
        if now.is_under(&seen.boot) {
            return Some(seen.uptime);
        }
        if !now.may_be_under(&seen.boot) || seen.uptime > now.uptime || seen.wall > now.wall {
            return None;
        }
        let by_wall = now.uptime - now.wall.since(seen.wall);
        let apart = by_wall.since(seen.uptime) + seen.uptime.since(by_wall);
        (apart < CLOCKS_APART).then(|| seen.uptime.min(by_wall))
    }
}
