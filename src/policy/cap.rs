//! The cap: at most so many reruns of a target in any window of time.

use serde::{Deserialize, Serialize};

use super::time::{Boottime, Span, Walltime};

/// How many reruns, in how long a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// The most reruns that may start within any window.
    pub max_runs: u32,
    /// The length of the window.
    pub window: Span,
}

/// When something happened, on both clocks, and under which boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The boot's identifier.
    pub boot: String,
    /// Time since that boot.
    pub uptime: Boottime,
    /// The wall clock's time.
    pub wall: Walltime,
}

impl Moment {
    /// How long ago `self` was, seen from `now`. Never more than can be known:
    /// within one boot the wall clock is not asked, and something from an earlier
    /// boot is at least as old as this boot.
    pub fn age(&self, now: &Moment) -> Span {
        if self.boot == now.boot {
            return now.uptime.since(self.uptime);
        }
        let since_boot = now.uptime.since(Boottime::from_nanos(0));
        now.wall.since(self.wall).max(since_boot)
    }
}

impl Moment {
    /// How long before `self` something was.
    pub fn age_of(&self, earlier: &Moment) -> Span {
        if self.boot == earlier.boot {
            self.uptime.since(earlier.uptime)
        } else {
            self.wall.since(earlier.wall)
        }
    }
}

/// How much of a cap is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Reruns that started within the window.
    pub used: u32,
    /// How long until another may start; zero if one may start now.
    pub frees_in: Span,
}

impl Use {
    /// Whether no further rerun may start now.
    pub fn is_reached(&self) -> bool {
        self.frees_in > Span::ZERO
    }
}

/// Counts the `starts` that lie within the window that ends `now`.
///
/// A start exactly one window old no longer counts. With `max_runs` of 0 nothing
/// ever may start.
pub fn usage<'a>(cap: Cap, starts: impl IntoIterator<Item = &'a Moment>, now: &Moment) -> Use {
    let mut ages: Vec<Span> = starts
        .into_iter()
        .map(|start| start.age(now))
        .filter(|age| *age < cap.window)
        .collect();
    ages.sort_unstable();
    let used = u32::try_from(ages.len()).unwrap_or(u32::MAX);
    let frees_in = if cap.max_runs == 0 {
        cap.window.max(Span::from_nanos(1))
    } else if used < cap.max_runs {
        Span::ZERO
    } else {
        // Room is made when the max_runs-th newest start leaves the window.
        ages.get(cap.max_runs as usize - 1)
            .map_or(Span::ZERO, |age| {
                Span::from_nanos(cap.window.nanos() - age.nanos())
            })
    };
    Use { used, frees_in }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Moment {
        Moment {
            boot: "b".into(),
            uptime: Boottime::from_nanos(seconds * 1_000_000_000),
            wall: Walltime::from_millis(1_000_000 + seconds * 1000),
        }
    }

    const CAP: Cap = Cap {
        max_runs: 3,
        window: Span::from_secs(100),
    };

    #[test]
    fn the_window_slides() {
        let starts = [at(10), at(20), at(30)];
        assert_eq!(
            usage(CAP, &starts, &at(40)),
            Use {
                used: 3,
                frees_in: Span::from_secs(70)
            }
        );
        assert_eq!(usage(CAP, &starts, &at(109)).frees_in, Span::from_secs(1));
        assert_eq!(
            usage(CAP, &starts, &at(110)),
            Use {
                used: 2,
                frees_in: Span::ZERO
            }
        );
    }

    #[test]
    fn a_cap_of_none_never_frees() {
        let none = Cap { max_runs: 0, ..CAP };
        assert!(usage(none, &[], &at(5)).is_reached());
    }

    #[test]
    fn an_earlier_boot_counts_as_old_as_this_one_at_least() {
        let old = Moment {
            boot: "a".into(),
            ..at(500)
        };
        // The wall clock says it is in the future; 40 s have passed since the boot.
        let mut now = at(40);
        now.wall = Walltime::from_millis(0);
        assert_eq!(old.age(&now), Span::from_secs(40));
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
