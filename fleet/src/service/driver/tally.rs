//! Numbers of the service, and what it stores at each beat.

use again_base::sys::clock;
use tracing::warn;

use super::Driver;
use crate::ask::Reason;
use crate::service::failures::Work;

impl Driver {
    /// Writes the numbers for `again metrics`, and stores the logged failures for the next service:
    /// at each beat, and soon after a change.
    pub fn count(&mut self, is_beat: bool) {
        if !self.tally.is_due(is_beat, clock::boottime()) {
            return;
        }
        let kept = self.keep.put_logged(&self.state.logged);
        if let Err(e) = kept
            && is_beat
        {
            warn!("logged failures cannot be kept: {e}; a restart may log them again");
        }
        if is_beat && let Err(e) = self.newest_file.write(&mut self.seals.newest) {
            warn!("the newest versions of other nodes' facts are not kept: {e}");
        }
        let told = self.publisher.counts();
        let waiting = self.waiting();
        let [running, waits, since, ended] = self.slots.counts();
        let health = &self.health;
        let down = if health.is_up {
            0
        } else {
            health.since.millis()
        };
        // A failure to write the numbers is not counted: whoever reads them sees that they could be
        // written.
        let failures = health.failures.all(clock::boottime()).into_iter();
        let failures = failures.filter(|one| one.reason != Reason::Metrics).count();
        let others = [health.executor.is_some(), health.not_kept.is_some()];
        let troubles = failures + others.iter().filter(|is| **is).count();
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
            health.rejected,
            troubles as u64,
            ended,
        ];
        match self.tally.write(numbers, is_beat, clock::walltime()) {
            Ok(false) => {}
            Ok(true) => self.health.failures.succeeded(&Work::Metrics),
            Err(e) => {
                let what = format!("cannot write the numbers for 'again metrics': {e}");
                self.note_failure(Work::Metrics, Reason::Metrics, &what);
            }
        }
    }
}
