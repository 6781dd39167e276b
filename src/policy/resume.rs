//! The due time of a timer that outlived its waiter.

use again_base::model::{Boottime, Moment, Span, Walltime};

/// Boot under which something was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// The current boot.
    This,
    /// Another boot.
    Another,
    /// An unknown boot, or a known one while the current boot is unknown.
    Unknown,
}

/// Remaining wait of a timer, according to its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Boot of the record.
    pub boot: Boot,
    /// Due time, if known.
    pub due: Option<Boottime>,
    /// Due time on the wall clock at the time of the record.
    pub due_wall: Option<Walltime>,
    /// Minimum wait.
    pub delta: Span,
    /// Random jitter, added to `delta`.
    pub jitter: Span,
    /// Whether a person asked to skip the wait.
    pub hurry: bool,
}

/// New due time, on the clock of `now`'s boot.
///
/// Under the same boot a known due time does not change. After a reboot the wall clock shows the
/// remaining wait, but never more than the whole wait, since that clock may have been set; `fresh`
/// is a new random jitter, because machines that lost power together boot together. If the due time
/// was not yet known, the run that was waited for has ended by now, and the whole wait begins here,
/// unless somebody has brought it forward. Under an unknown boot, the later of both clocks' times
/// counts.
pub fn due(timer: &Wait, now: &Moment, fresh: Span) -> Boottime {
    let whole = if timer.hurry {
        Span::ZERO
    } else {
        timer.delta + timer.jitter
    };
    if timer.boot == Boot::This {
        return timer.due.unwrap_or(now.uptime + whole);
    }
    let left = match timer.due_wall {
        Some(due) => due.since(now.wall).min(whole),
        None if timer.hurry => Span::ZERO,
        None => timer.delta,
    };
    if timer.boot == Boot::Unknown {
        let by_uptime = timer
            .due
            .map_or(whole, |due| due.since(now.uptime).min(whole));
        return now.uptime + left.max(by_uptime);
    }
    now.uptime + (left + fresh)
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::Place;
    use proptest::prelude::*;

    fn s(seconds: u64) -> Span {
        Span::from_secs(seconds)
    }

    fn at(boot: &str, uptime: u64, wall: u64) -> Moment {
        Moment {
            boot: boot.into(),
            place: Place::default(),
            uptime: Boottime::from_nanos(s(uptime).nanos()),
            wall: Walltime::from_millis(wall * 1000),
        }
    }

    fn timer(due_wall: Option<u64>) -> Wait {
        Wait {
            boot: Boot::Another,
            due: due_wall.map(|_| Boottime::from_nanos(s(1035).nanos())),
            due_wall: due_wall.map(|at| Walltime::from_millis(at * 1000)),
            delta: s(30),
            jitter: s(5),
            hurry: false,
        }
    }

    #[test]
    fn after_a_reboot_the_rest_is_waited_for() {
        let after = |timer: &Wait, uptime, wall| {
            (due(timer, &at("new", uptime, wall), s(2)).nanos() - s(uptime).nanos()) / 1_000_000_000
        };
        // 25 s are left, and the fresh jitter.
        assert_eq!(after(&timer(Some(1035)), 7, 1010), 27);
        // It is overdue: the fresh jitter only.
        assert_eq!(after(&timer(Some(1035)), 7, 5000), 2);
        // The clock was set back a day: no more than the whole wait.
        assert_eq!(after(&timer(Some(90_000)), 7, 3600), 37);
        assert_eq!(after(&timer(None), 7, 1010), 32);
    }

    #[test]
    fn under_the_same_boot_nothing_changes() {
        let known = Wait {
            boot: Boot::This,
            ..timer(Some(1035))
        };
        assert_eq!(
            due(&known, &at("old", 1100, 9999), s(2)),
            Boottime::from_nanos(s(1035).nanos())
        );
        // Its run ended unseen: the whole wait begins here.
        let unknown = Wait {
            boot: Boot::This,
            ..timer(None)
        };
        assert_eq!(
            due(&unknown, &at("old", 1100, 9999), s(2)),
            Boottime::from_nanos(s(1135).nanos())
        );
    }

    /// Brought forward before its run had ended, and its waiter died after that.
    #[test]
    fn what_was_brought_forward_stays_so() {
        for boot in ["old", "new"] {
            let hurried = Wait {
                boot: if boot == "old" {
                    Boot::This
                } else {
                    Boot::Another
                },
                hurry: true,
                ..timer(None)
            };
            let now = at(boot, 2000, 2000);
            assert_eq!(due(&hurried, &now, Span::ZERO), now.uptime, "{boot}");
        }
    }

    proptest! {
        #[test]
        fn never_before_it_was_due(due_wall in 0..5000u64, wall in 900..5000u64, uptime in 0..100u64, fresh in 0..9u64) {
            let timer = timer(Some(due_wall));
            let new = due(&timer, &at("new", uptime, wall), s(fresh));
            let waits = new.since(Boottime::from_nanos(s(uptime).nanos()));
            prop_assert!(waits >= s(due_wall.saturating_sub(wall).min(35)));
            prop_assert!(waits <= s(35 + fresh));
        }
    }
}
