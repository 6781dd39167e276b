//! How the service does, in numbers.

use again::layout::complain;
use again::sys::clock;

use super::Driver;
use crate::ask::Reason;
use crate::service::troubles::Work;

impl Driver {
    /// Writes them down for `again metrics`, at each beat, and soon after something has changed.
    pub fn count(&mut self, is_beat: bool) {
        if !self.tally.is_due(is_beat, clock::boottime()) {
            return;
        }
        let told = self.telling.counts();
        let waiting = self.waiting();
        let [running, waits, since, ended] = self.slots.counts();
        let health = &self.health;
        let down = if health.is_up {
            0
        } else {
            health.since.millis()
        };
        let troubles = [health.take.is_some(), health.not_kept.is_some()];
        let troubles = troubles.iter().filter(|is| **is).count() + health.troubles.all().len();
        let numbers = [
            told.sent,
            told.spooled,
            told.dropped,
            down,
            waiting.triggers,
            waiting.results,
            waiting.oldest.unwrap_or(0),
            running,
            waits,
            since,
            health.turned_away,
            troubles as u64,
            ended,
        ];
        let written = self.tally.write(numbers, is_beat, clock::walltime());
        let troubles = &mut self.health.troubles;
        let Err(e) = written else {
            return troubles.passed(Work::Metrics);
        };
        let what = format!("'again metrics' is told nothing: {e}");
        if troubles.failed(Work::Metrics, Reason::Metrics, &what) {
            complain(&format!("again-fleet: {what}"));
        }
    }
}
