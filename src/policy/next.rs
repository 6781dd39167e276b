//! Chooses the timer in which triggers of other nodes wait for their run: a pending due time never
//! moves, and triggers that need a later one share a single next timer.

use again_base::model::Boottime;

/// Pending timer for triggers of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Due time, if known.
    pub due: Option<Boottime>,
    /// Earliest start of a run that does the job of all triggers waiting in the timer; None if none
    /// wait.
    pub ready: Option<Boottime>,
}

/// Timer for new triggers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Place {
    /// The timer in this slot, which does not change.
    With(usize),
    /// A new timer in this slot, which is free.
    Free(usize),
    /// A later timer in this slot, which replaces the one there; the triggers of both wait in it.
    Instead(usize),
}

/// Chooses the timer for triggers for which a run may start at `ready` and is wanted at `due`.
pub fn place(slots: [Option<Slot>; 2], ready: Boottime, due: Boottime, now: Boottime) -> Place {
    let free = slots.iter().position(Option::is_none);
    // An overdue timer starts at some time after now.
    let serves = |slot: &Slot| slot.due.is_some_and(|due| due.max(now) >= ready);
    let pending = || (0..2).filter_map(|at| Some((at, slots[at]?)));
    let first = pending()
        .filter(|(_, slot)| serves(slot))
        .min_by_key(|(_, slot)| slot.due);
    match (first, free) {
        // The first timer has to wait for other triggers, and the new ones need not.
        (Some((_, slot)), Some(free)) if slot.ready.is_some_and(|ready| ready > due) => {
            Place::Free(free)
        }
        (Some((at, _)), _) => Place::With(at),
        (None, Some(free)) => Place::Free(free),
        (None, None) => {
            let last = pending().max_by_key(|(_, slot)| (slot.due.is_none(), slot.due));
            Place::Instead(last.map_or(1, |(at, _)| at))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Boottime {
        Boottime::from_nanos(seconds)
    }

    fn slot(ready: u64, due: u64) -> Option<Slot> {
        Some(Slot {
            due: Some(at(due)),
            ready: Some(at(ready)),
        })
    }

    #[test]
    fn what_may_run_together_waits_together() {
        let find = |slots, ready, due| place(slots, at(ready), at(due), at(10));
        assert_eq!(find([None, None], 10, 12), Place::Free(0));
        // In time for them; it is due already, and only waits for another run to end.
        assert_eq!(find([slot(10, 12), None], 11, 13), Place::With(0));
        assert_eq!(find([slot(5, 7), None], 10, 12), Place::With(0));
        // Too early for them; too late.
        assert_eq!(find([slot(10, 12), None], 70, 72), Place::Free(1));
        assert_eq!(find([slot(5, 7), None], 11, 12), Place::Free(1));
        assert_eq!(find([None, slot(70, 72)], 10, 12), Place::Free(0));
        // Two are enough, and the next is the later one.
        assert_eq!(find([slot(70, 72), slot(40, 42)], 10, 12), Place::With(1));
        assert_eq!(find([slot(20, 22), slot(70, 72)], 60, 62), Place::With(1));
        assert_eq!(
            find([slot(70, 72), slot(20, 22)], 99, 100),
            Place::Instead(0)
        );
        let unknown = Some(Slot {
            due: None,
            ready: None,
        });
        assert_eq!(find([unknown, None], 10, 12), Place::Free(1));
        assert_eq!(find([unknown, slot(10, 12)], 99, 100), Place::Instead(0));
    }

    proptest! {
        /// A node that gets triggers, and is busy at times. Every trigger gets a run that is not too early for it; the due
        /// time never moves, nor the next one once it is the only one; and it all ends.
        #[test]
        fn nothing_early_nothing_lost_nothing_moved(
            words in prop::collection::vec((0..30_u64, 0..40_u64, 0..10_u64), 1..40),
            busy in prop::collection::vec((0..600_u64, 1..50_u64), 0..4),
        ) {
            let mut slots: [Option<Slot>; 2] = [None, None];
            let mut waiting: [Vec<u64>; 2] = Default::default();
            let mut arrivals = words.iter().scan(0, |clock, (pause, delta, jitter)| { *clock += pause; Some((*clock, *delta, *jitter)) }).peekable();
            let (mut served, mut runs) = (0, 0);
            for clock in 0..3000 {
                while let Some((_, delta, jitter)) = arrivals.next_if(|(when, ..)| *when == clock) {
                    let (ready, due) = (at(clock + delta), at(clock + delta + jitter));
                    let before = slots;
                    let earliest = |slots: [Option<Slot>; 2]| slots.iter().flatten().filter_map(|slot| slot.due).min();
                    let chosen = match place(slots, ready, due, at(clock)) {
                        Place::With(n) => {
                            let slot = slots[n].as_mut().expect("pending");
                            slot.ready = slot.ready.max(Some(ready));
                            n
                        }
                        Place::Free(n) => {
                            prop_assert_eq!(slots[n], None);
                            slots[n] = Some(Slot { due: Some(due), ready: Some(ready) });
                            n
                        }
                        Place::Instead(n) => {
                            let old = slots[n].replace(Slot { due: Some(due), ready: Some(ready) }).expect("pending");
                            prop_assert!(old.due < Some(due), "only ever later");
                            prop_assert_eq!(earliest(slots), earliest(before), "the due one stays");
                            n
                        }
                    };
                    waiting[chosen].push(clock + delta);
                }
                let is_busy = busy.iter().any(|(from, length)| (*from..from + length).contains(&clock));
                for n in 0..2 {
                    if !is_busy && slots[n].is_some_and(|slot| slot.due <= Some(at(clock)) && slot.ready <= Some(at(clock))) {
                        slots[n] = None;
                        runs += 1;
                        for ready in waiting[n].drain(..) {
                            prop_assert!(ready <= clock, "early");
                            served += 1;
                        }
                    }
                }
            }
            prop_assert_eq!(served, words.len());
            prop_assert!(runs <= words.len());
        }

        /// One run after the present one, however many came meanwhile.
        #[test]
        fn triggers_without_delta_share_one_timer(arrivals in prop::collection::vec((0..5_u64, 0..20_u64), 1..100)) {
            let mut slots: [Option<Slot>; 2] = [None, None];
            let mut clock = 0;
            for (pause, jitter) in arrivals {
                clock += pause;
                match place(slots, at(clock), at(clock + jitter), at(clock)) {
                    Place::With(n) => slots[n].as_mut().expect("pending").ready = Some(at(clock)),
                    Place::Free(0) => slots[0] = slot(clock, clock + jitter),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert_eq!(slots[1], None);
        }
    }
}
