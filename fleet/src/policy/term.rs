//! Terms, which a wrong clock does not shorten.

use again_base::model::{Boottime, Moment, Span, Walltime};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Term that ends at a time of the wall clock. It is over when the wall clock has reached that time
/// and the expected duration has really passed, so that a clock that jumps ahead does not end it
/// early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// Moment at which the term began.
    pub began: Moment,
    /// End of the term, by the wall clock.
    pub until: Walltime,
}

impl Term {
    /// Remaining time; zero once the term is over.
    pub fn left(&self, now: &Moment) -> Span {
        self.left_until(self.until, now)
    }

    /// Remaining time of a term with the same beginning and another end.
    pub fn left_until(&self, until: Walltime, now: &Moment) -> Span {
        let takes = until.since(self.began.wall);
        let passed = surely_passed(&self.began, now);
        let missing = Span::from_nanos(takes.nanos().saturating_sub(passed.nanos()));
        until.since(now.wall).max(missing)
    }

    /// Whether the term is over.
    pub fn is_over(&self, now: &Moment) -> bool {
        self.left(now) == Span::ZERO
    }
}

/// Minimum time that has passed since a moment. If the moment is from an earlier boot, only the
/// time since this boot counts.
fn surely_passed(since: &Moment, now: &Moment) -> Span {
    if since.boot == now.boot {
        now.uptime.since(since.uptime)
    } else {
        now.uptime.since(Boottime::from_nanos(0))
    }
}

/// Time of a clock, for a message about clocks: `2026-11-22 17:31:32 UTC`.
pub fn shown(time: Walltime) -> String {
    let seconds = i64::try_from(time.millis() / 1000).unwrap_or(i64::MAX);
    match OffsetDateTime::from_unix_timestamp(seconds) {
        Ok(at) => format!(
            "{} {:02}:{:02}:{:02} UTC",
            at.date(),
            at.hour(),
            at.minute(),
            at.second()
        ),
        Err(_) => format!("{seconds} s after 1970"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A moment of a boot, in milliseconds of both clocks.
    pub fn moment(boot: &str, uptime: u64, wall: u64) -> Moment {
        Moment {
            boot: boot.to_owned(),
            uptime: Boottime::from_nanos(uptime * 1_000_000),
            wall: Walltime::from_millis(wall),
            ..Moment::default()
        }
    }

    fn hour() -> Term {
        Term {
            began: moment("a", 1000, 5_000_000),
            until: Walltime::from_millis(8_600_000),
        }
    }

    #[test]
    fn both_clocks_have_to_agree() {
        let is_over = |boot, uptime, wall| hour().is_over(&moment(boot, uptime, wall));
        assert!(is_over("a", 3_601_000, 8_600_000));
        // The wall clock was set ahead, or back.
        assert!(!is_over("a", 2_000, 9_000_000));
        assert!(!is_over("a", 9_000_000, 8_599_999));
        // After a reboot only this boot's time counts.
        assert!(!is_over("b", 3_599_999, 90_000_000));
        assert!(is_over("b", 3_600_000, 90_000_000));
    }

    #[test]
    fn what_is_missing_is_said_by_the_slower_clock() {
        let left = |uptime, wall| hour().left(&moment("a", uptime, wall)).secs();
        assert_eq!(left(1000, 5_000_000), 3600);
        assert_eq!(left(601_000, 8_500_000), 3000);
        assert_eq!(left(3_600_000, 5_600_000), 3000);
    }

    #[test]
    fn a_clock_can_be_read() {
        let shown = |millis| shown(Walltime::from_millis(millis));
        assert_eq!(shown(1_795_368_692_999), "2026-11-22 17:31:32 UTC");
        assert_eq!(shown(u64::MAX), "18446744073709551 s after 1970");
    }

    proptest! {
        /// Never before as much time has passed as it was to last, whatever the clock says.
        #[test]
        fn never_early(lasts in 0..10_000_u64, passed in 0..20_000_u64, wall in 0..100_000_u64) {
            let term = Term { began: moment("a", 77, 50_000), until: Walltime::from_millis(50_000 + lasts) };
            let now = moment("a", 77 + passed, wall);
            prop_assert_eq!(term.is_over(&now), passed >= lasts && wall >= 50_000 + lasts);
        }
    }
}
