//! Moment: time and place of an event.

use serde::{Deserialize, Serialize};

use super::place::{FIRST, Foreign, Place, Provenance};
use super::time::{Boottime, Span, Walltime};

/// Time of an event on both clocks, with the boot and the place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Identifier of the boot.
    pub boot: String,
    /// Machine and pid namespace in which it was recorded.
    pub place: Place,
    /// Time since that boot.
    pub uptime: Boottime,
    /// Time of the wall clock.
    pub wall: Walltime,
}

impl Moment {
    /// Age of `self` at `now`: on the boot clock if both are of one boot of one machine, otherwise
    /// on the wall clock. If `self` is later than `now` on the wall clock, the age is zero for
    /// another machine's moment, and the uptime of this boot at most for this machine's.
    pub fn age(&self, now: &Moment) -> Span {
        if !self.is_elsewhere(now) && now.is_under(&self.boot) {
            return now.uptime.since(self.uptime);
        }
        if self.wall <= now.wall {
            return now.wall.since(self.wall);
        }
        if self.is_elsewhere(now) {
            return Span::ZERO;
        }
        // If the boot is not known, the wall clock may have been set back since.
        let is_later = self.uptime > now.uptime || !now.may_be_under(&self.boot);
        let began = if is_later {
            Boottime::default()
        } else {
            self.uptime
        };
        now.uptime.since(began)
    }

    /// Whether another machine recorded `self` with a time later than this machine's wall clock.
    pub fn is_ahead(&self, now: &Moment) -> bool {
        self.is_elsewhere(now) && self.wall > now.wall
    }

    fn is_elsewhere(&self, now: &Moment) -> bool {
        self.place.machine != now.place.machine
    }

    /// Whether `boot` is known and is that of `self`.
    pub fn is_under(&self, boot: &str) -> bool {
        !boot.is_empty() && boot == self.boot
    }

    /// Whether `boot` may be that of `self`: both are equal, or either is not known, as in a unit
    /// with `ProcSubset=pid`.
    pub fn may_be_under(&self, boot: &str) -> bool {
        boot.is_empty() || self.boot.is_empty() || boot == self.boot
    }

    /// Time between `earlier` and `self`: on the boot clock if both are of one boot of one machine,
    /// otherwise on the wall clock.
    pub fn age_of(&self, earlier: &Moment) -> Span {
        if self.is_under(&earlier.boot) && !earlier.is_elsewhere(self) {
            self.uptime.since(earlier.uptime)
        } else {
            self.wall.since(earlier.wall)
        }
    }

    /// Provenance of a record that was written under this boot in this place, seen from `self`.
    pub fn provenance(&self, boot: &str, place: Place) -> Provenance {
        if place.machine != self.place.machine {
            return Provenance::Foreign(Foreign::Machine);
        }
        // Of another boot's namespace numbers, only that of the machine's own namespace is
        // meaningful.
        let (then, here) = match self.is_under(boot) {
            true => (place.pids, self.place.pids),
            false => (
                (place.pids == FIRST).into(),
                (self.place.pids == FIRST).into(),
            ),
        };
        let is_seen = place.pids != 0 && self.place.pids != 0;
        match is_seen && then != here {
            true => Provenance::Foreign(Foreign::Namespace),
            false if self.is_under(boot) => Provenance::Here,
            false if self.may_be_under(boot) => Provenance::UnknownBoot,
            false => Provenance::OtherBoot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot: &str, seconds: u64, wall: u64) -> Moment {
        Moment {
            boot: boot.into(),
            place: Place::default(),
            uptime: Boottime::from_nanos(seconds * 1_000_000_000),
            wall: Walltime::from_millis(wall * 1000),
        }
    }

    #[test]
    fn an_earlier_boot_counts_as_old_as_this_one_at_least() {
        // The wall clock says it is in the future; 40 s have passed since the boot.
        let now = at("b", 40, 0);
        assert_eq!(at("a", 500, 1000).age(&now), Span::from_secs(40));
        // By the wall clock it is older than that.
        let now = at("b", 40, 1100);
        assert_eq!(at("a", 500, 1000).age(&now), Span::from_secs(100));
        // Within one boot the wall clock is not asked.
        assert_eq!(at("b", 10, 5000).age(&now), Span::from_secs(30));
    }

    #[test]
    fn what_came_before_is_told_by_the_clock_they_share() {
        let later = at("b", 50, 2000);
        assert_eq!(later.age_of(&at("b", 20, 0)), Span::from_secs(30));
        assert_eq!(later.age_of(&at("a", 20, 1990)), Span::from_secs(10));
    }

    #[test]
    fn only_what_is_of_this_boot_and_namespace_is_of_here() {
        let here = Place::new("one", 7);
        let now = Moment {
            boot: "b".into(),
            place: here,
            ..Moment::default()
        };
        let (unseen, other) = (Place { pids: 0, ..here }, Place { pids: 8, ..here });
        let (machine, namespace) = (
            Provenance::Foreign(Foreign::Machine),
            Provenance::Foreign(Foreign::Namespace),
        );
        for (boot, place, provenance) in [
            ("b", here, Provenance::Here),
            ("b", unseen, Provenance::Here),
            ("b", other, namespace),
            ("a", other, Provenance::OtherBoot),
            (
                "a",
                Place {
                    pids: FIRST,
                    ..here
                },
                namespace,
            ),
            // Containers of one kernel share its boot id.
            ("b", Place::new("two", 7), machine),
            ("a", Place::new("two", 7), machine),
        ] {
            assert_eq!(now.provenance(boot, place), provenance, "{boot} {place:?}");
        }
        assert_eq!(Foreign::Machine.kind(), "another machine");
    }
}
