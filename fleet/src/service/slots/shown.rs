//! Descriptions and numbers of the runs that have a slot or wait for one.

use super::{Slots, ended};

impl Slots {
    /// Descriptions of this node's slots, which need no backend; if `is_ended`, only of slots that
    /// have ended.
    pub fn own(&self, is_ended: bool) -> Vec<String> {
        let mut own = Vec::new();
        for (name, group) in &self.groups.0 {
            own.extend(match (group.runs.first(), group.had_turn) {
                _ if is_ended && !group.has_ended => None,
                (Some(_), true) if group.has_ended => Some(ended(name)),
                (Some(run), true) => Some(format!("{} has a slot in group '{name}'", run.why)),
                (Some(run), false) => Some(format!("{} waits in group '{name}'", run.why)),
                (None, _) => None,
            });
        }
        own
    }

    /// Number of runs that have a slot; number of runs that wait; beginning of the oldest wait in
    /// milliseconds after 1970, 0 for none; number of runs that continue although their slot has
    /// ended.
    pub fn counts(&self) -> [u64; 4] {
        let [mut running, mut waiting, mut since, mut ended] = [0, 0, u64::MAX, 0];
        for (_, group) in &self.groups.0 {
            let many = group.runs.len() as u64;
            ended += if group.has_ended { many } else { 0 };
            if group.had_turn && !group.is_over {
                running += many;
            } else if let Some(run) = group.runs.first() {
                waiting += many;
                since = since.min(run.since);
            }
        }
        let since = if waiting > 0 { since } else { 0 };
        [running, waiting, since, ended]
    }
}
