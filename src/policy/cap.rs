//! The cap: the maximum number of reruns of a target in any window of time.

use again_base::model::{Cap, Foreign, Moment, Provenance, Span, Use};

/// Parses the cap's window, which must not be zero: that would let every rerun through.
///
/// # Errors
/// A sentence that says what is wrong with the text.
pub fn window(text: &str) -> Result<Span, String> {
    match text.parse::<Span>().map_err(|e| e.to_string())? {
        Span::ZERO => Err("the cap's window has to be at least 1s".to_owned()),
        window => Ok(window),
    }
}

/// Use of the cap: counts the `starts` within the window that ends at `now`.
///
/// A start exactly one window old no longer counts. With a `max_runs` of 0, no rerun may ever
/// start.
pub fn usage<'a>(cap: Cap, starts: impl IntoIterator<Item = &'a Moment>, now: &Moment) -> Use {
    let is_within = |start: &&Moment| start.age(now) < cap.window;
    let starts: Vec<&Moment> = starts.into_iter().filter(is_within).collect();
    let machine = Provenance::Foreign(Foreign::Machine);
    let is_foreign = |start: &&&Moment| now.provenance(&start.boot, start.place) == machine;
    let foreign = starts.iter().filter(is_foreign).count();
    let mut ages: Vec<Span> = starts.iter().map(|start| start.age(now)).collect();
    ages.sort_unstable();
    let used = u32::try_from(ages.len()).unwrap_or(u32::MAX);
    let frees_in = if cap.max_runs == 0 {
        cap.window.max(Span::from_nanos(1))
    } else if used < cap.max_runs {
        Span::ZERO
    } else {
        // A start becomes possible when the max_runs-th newest start leaves the window.
        ages.get(cap.max_runs as usize - 1)
            .map_or(Span::ZERO, |age| {
                Span::from_nanos(cap.window.nanos() - age.nanos())
            })
    };
    let ahead = starts.iter().filter(|start| start.is_ahead(now)).count();
    Use {
        used,
        foreign: u32::try_from(foreign).unwrap_or(u32::MAX),
        ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
        frees_in,
    }
}

/// Cap that decides: a target's own, or the one over all targets.
pub fn binding(own: (Cap, Use), total: Option<(Cap, Use)>) -> (Cap, Use) {
    let later = |total: &(Cap, Use)| total.1.frees_in > own.1.frees_in;
    total.filter(later).unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::{Boottime, Place, Walltime};
    use proptest::prelude::*;

    fn at(seconds: u64) -> Moment {
        Moment {
            boot: "b".into(),
            place: Place::default(),
            uptime: Boottime::from_nanos(seconds * 1_000_000_000),
            wall: Walltime::from_millis(1_000_000 + seconds * 1000),
        }
    }

    const CAP: Cap = Cap {
        max_runs: 3,
        window: Span::from_secs(100),
        is_total: false,
    };

    #[test]
    fn the_later_of_two_caps_binds_and_a_targets_own_if_they_are_even() {
        let of = |max_runs, frees_in| {
            let usage = Use {
                used: max_runs,
                foreign: 0,
                ahead: 0,
                frees_in: Span::from_secs(frees_in),
            };
            (Cap { max_runs, ..CAP }, usage)
        };
        let own = of(3, 20);
        assert_eq!(binding(own, None), own);
        assert_eq!(binding(own, Some(of(9, 19))), own);
        assert_eq!(binding(own, Some(of(9, 20))), own);
        assert_eq!(binding(own, Some(of(9, 21))), of(9, 21));
    }

    #[test]
    fn the_window_slides() {
        let starts = [at(10), at(20), at(30)];
        assert_eq!(
            usage(CAP, &starts, &at(40)),
            Use {
                used: 3,
                foreign: 0,
                ahead: 0,
                frees_in: Span::from_secs(70)
            }
        );
        assert_eq!(usage(CAP, &starts, &at(109)).frees_in, Span::from_secs(1));
        assert_eq!(
            usage(CAP, &starts, &at(110)),
            Use {
                used: 2,
                foreign: 0,
                ahead: 0,
                frees_in: Span::ZERO
            }
        );
    }

    /// A shared directory, or a copy of it: the cap is no wider for it, and it says so.
    #[test]
    fn what_another_machine_started_counts_and_is_told() {
        let of = |machine: &str, seconds| Moment {
            place: Place::new(machine, 1),
            ..at(seconds)
        };
        let starts = [of("one", 10), of("two", 20), of("two", 30)];
        let usage = usage(CAP, &starts, &of("one", 40));
        assert_eq!((usage.used, usage.foreign), (3, 2));
        assert!(usage.is_reached());
    }

    /// Somebody has lowered the cap.
    #[test]
    fn more_starts_than_the_cap_allows_are_waited_for_one_by_one() {
        let starts = [at(10), at(20), at(30), at(40), at(50)];
        let usage = usage(CAP, &starts, &at(60));
        assert_eq!((usage.used, usage.foreign), (5, 0));
        // Of the newest three, the oldest has to leave the window.
        assert_eq!(usage.frees_in, Span::from_secs(70));
    }

    #[test]
    fn a_window_of_no_length_is_none() {
        assert_eq!(window("2m"), Ok(Span::from_secs(120)));
        assert!(window("0").expect_err("refused").contains("at least 1s"));
        assert!(window("x").expect_err("refused").contains("'x'"));
    }

    #[test]
    fn a_cap_of_none_never_frees() {
        let none = Cap { max_runs: 0, ..CAP };
        assert!(usage(none, &[], &at(5)).is_reached());
    }

    proptest! {
        /// Whatever asks, whenever, and however the wall clock jumps: no window
        /// ever holds more starts than the cap.
        #[test]
        fn never_more_than_the_cap_in_any_window(
            steps in proptest::collection::vec((0..60u64, 0..10_000u64), 1..120),
            max_runs in 0..6u32,
        ) {
            let cap = Cap { max_runs, ..CAP };
            let mut starts = Vec::new();
            let mut clock = 0;
            for (pass, wall) in steps {
                clock += pass;
                let mut now = at(clock);
                now.wall = Walltime::from_millis(wall * 1000);
                if !usage(cap, &starts, &now).is_reached() {
                    starts.push(now);
                }
            }
            for start in &starts {
                let within = starts
                    .iter()
                    .filter(|s| s.uptime >= start.uptime && s.uptime.since(start.uptime) < cap.window)
                    .count();
                prop_assert!(within <= max_runs as usize);
            }
        }

        /// `frees_in` is exact: reached until then, free at that moment.
        #[test]
        fn frees_when_it_says(seconds in proptest::collection::vec(0..100u64, 0..12)) {
            let starts: Vec<_> = seconds.iter().map(|s| at(*s)).collect();
            let now = at(100);
            let frees_in = usage(CAP, &starts, &now).frees_in;
            if frees_in > Span::ZERO {
                let before = Moment { uptime: Boottime::from_nanos(now.uptime.nanos() + frees_in.nanos() - 1), ..now.clone() };
                prop_assert!(usage(CAP, &starts, &before).is_reached());
            }
            let then = Moment { uptime: now.uptime + frees_in, ..now };
            prop_assert!(!usage(CAP, &starts, &then).is_reached());
        }
    }
}
