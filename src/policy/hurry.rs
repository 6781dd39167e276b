//! Effect of `again now` and `again reset` on a pending timer.

use again_base::model::{Boottime, Span};

/// Fields of a pending timer that `again now` and `again reset` change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Due time, once known.
    pub due: Option<Boottime>,
    /// Minimum wait after the base.
    pub delta: Span,
    /// Part of the wait that the cap has added.
    pub put_off: Span,
    /// Whether a person asked to skip the wait.
    pub hurry: bool,
}

/// Change to a timer, or the reason why none is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Hurry {
    /// The waiter is dead, so no process would act on a change.
    Dead,
    /// The timer no longer waits for its due time.
    Already,
    /// New values of the timer.
    Changed(Pending),
}

/// Ends a timer's wait for its due time, and for an announced shutdown. The timer still waits for
/// its run, another run, the cap or an operator.
pub fn hurry(
    pending: Pending,
    waiter_alive: bool,
    is_shutdown_announced: bool,
    now: Boottime,
) -> Hurry {
    if !waiter_alive {
        return Hurry::Dead;
    }
    let waits = match pending.due {
        Some(due) if due > now => true,
        Some(_) => is_shutdown_announced && !pending.hurry,
        None => !pending.hurry,
    };
    if !waits {
        return Hurry::Already;
    }
    Hurry::Changed(Pending {
        due: pending.due.map(|due| due.min(now)),
        put_off: Span::ZERO,
        hurry: true,
        ..pending
    })
}

/// Removes the time that the cap added to a timer's wait, once its count is forgotten.
pub fn release(pending: Pending, now: Boottime) -> Pending {
    let less = |span: Span| Span::from_nanos(span.nanos().saturating_sub(pending.put_off.nanos()));
    Pending {
        due: pending.due.map(|due| {
            let asked = Boottime::from_nanos(due.nanos().saturating_sub(pending.put_off.nanos()));
            // Not into the past: a run since then did not do a job that is due only now.
            if pending.put_off > Span::ZERO {
                asked.max(now).min(due.max(now))
            } else {
                due
            }
        }),
        delta: if pending.due.is_none() {
            less(pending.delta)
        } else {
            pending.delta
        },
        put_off: Span::ZERO,
        ..pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn s(seconds: u64) -> Span {
        Span::from_secs(seconds)
    }

    fn at(seconds: u64) -> Boottime {
        Boottime::from_nanos(0) + s(seconds)
    }

    const WAITING: Pending = Pending {
        due: None,
        delta: s(120),
        put_off: s(0),
        hurry: false,
    };

    #[test]
    fn a_dead_waiter_hears_nothing() {
        assert_eq!(hurry(WAITING, false, false, at(1)), Hurry::Dead);
    }

    #[test]
    fn what_is_due_later_is_due_now_and_owes_the_cap_nothing() {
        let put_off = Pending {
            due: Some(at(130)),
            put_off: s(100),
            ..WAITING
        };
        let hurried = Pending {
            due: Some(at(10)),
            put_off: s(0),
            hurry: true,
            ..put_off
        };
        assert_eq!(hurry(put_off, true, false, at(10)), Hurry::Changed(hurried));
        assert_eq!(hurry(put_off, true, false, at(130)), Hurry::Already);
        assert_eq!(hurry(put_off, true, false, at(131)), Hurry::Already);
    }

    /// A shutdown may hold a timer that is due.
    #[test]
    fn timer_that_is_due_is_hurried_while_a_shutdown_is_announced() {
        let due = Pending {
            due: Some(at(130)),
            ..WAITING
        };
        let hurried = Pending { hurry: true, ..due };
        assert_eq!(hurry(due, true, true, at(200)), Hurry::Changed(hurried));
        assert_eq!(hurry(hurried, true, true, at(201)), Hurry::Already);
    }

    #[test]
    fn the_caps_share_is_given_back_and_no_more() {
        let put_off = Pending {
            put_off: s(100),
            ..WAITING
        };
        assert_eq!(release(put_off, at(0)).delta, s(20));
        let due = Pending {
            due: Some(at(130)),
            ..put_off
        };
        assert_eq!(release(due, at(10)).due, Some(at(30)));
        assert_eq!(release(due, at(50)).due, Some(at(50)));
    }

    fn pending() -> impl Strategy<Value = Pending> {
        (
            proptest::option::of(0..1000u64),
            0..1000u64,
            0..1000u64,
            any::<bool>(),
        )
            .prop_map(|(due, delta, put_off, hurry)| Pending {
                due: due.map(at),
                delta: s(delta),
                put_off: s(put_off),
                hurry,
            })
    }

    proptest! {
        #[test]
        fn asking_twice_is_asking_once(pending in pending(), now in 0..1000u64, later in 0..10u64) {
            if let Hurry::Changed(hurried) = hurry(pending, true, false, at(now)) {
                prop_assert_eq!(hurry(hurried, true, false, at(now + later)), Hurry::Already);
            }
            let once = release(pending, at(now));
            prop_assert_eq!(release(once, at(now)), once);
        }

        #[test]
        fn never_later_than_it_was(pending in pending(), now in 0..1000u64) {
            let now = at(now);
            if let Hurry::Changed(hurried) = hurry(pending, true, false, now) {
                prop_assert!(hurried.due <= pending.due);
                prop_assert_eq!(hurried.due.is_some(), pending.due.is_some());
            }
            let released = release(pending, now);
            prop_assert!(released.delta <= pending.delta);
            // What was due already is due now at the latest.
            prop_assert!(released.due <= pending.due.map(|due| due.max(now)));
        }

        #[test]
        fn without_a_cap_in_the_way_nothing_is_released(pending in pending(), now in 0..1000u64) {
            let free = Pending { put_off: s(0), ..pending };
            prop_assert_eq!(release(free, at(now)), free);
        }
    }
}
