//! When and where something happened.

use serde::{Deserialize, Serialize};

use super::place::{FIRST, Foreign, Place, Provenance};
use super::time::{Boottime, Span, Walltime};

/// When something happened, on both clocks, and under which boot, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The boot's identifier.
    pub boot: String,
    /// Where it was noted.
    #[serde(default, skip_serializing_if = "Place::is_unknown")]
    pub place: Place,
    /// Time since that boot.
    pub uptime: Boottime,
    /// The wall clock's time.
    pub wall: Walltime,
}

impl Moment {
    /// How long ago `self` was, seen from `now`. Within one boot the wall clock does not
    /// count, and a moment of an earlier boot is at least as old as this boot.
    pub fn age(&self, now: &Moment) -> Span {
        if self.boot == now.boot {
            return now.uptime.since(self.uptime);
        }
        let since_boot = now.uptime.since(Boottime::from_nanos(0));
        now.wall.since(self.wall).max(since_boot)
    }

    /// How long before `self` something was.
    pub fn age_of(&self, earlier: &Moment) -> Span {
        if self.boot == earlier.boot {
            self.uptime.since(earlier.uptime)
        } else {
            self.wall.since(earlier.wall)
        }
    }

    /// Where a record written under this boot in this place comes from, seen from `self`.
    pub fn provenance(&self, boot: &str, place: Place) -> Provenance {
        let is_known = !place.is_unknown() && !self.place.is_unknown();
        if is_known && place.machine != self.place.machine {
            return Provenance::Foreign(Foreign::Machine);
        }
        // Numbers of an earlier boot mean nothing, but for one.
        let (then, here) = match boot == self.boot {
            true => (place.pids, self.place.pids),
            false => (
                (place.pids == FIRST).into(),
                (self.place.pids == FIRST).into(),
            ),
        };
        let is_seen = place.pids != 0 && self.place.pids != 0;
        match is_known && is_seen && then != here {
            true => Provenance::Foreign(Foreign::Namespace),
            false if boot != self.boot => Provenance::EarlierBoot,
            false => Provenance::Here,
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
            ("b", Place::default(), Provenance::Here),
            ("b", other, namespace),
            ("a", other, Provenance::EarlierBoot),
            (
                "a",
                Place {
                    pids: FIRST,
                    ..here
                },
                namespace,
            ),
            ("a", Place::default(), Provenance::EarlierBoot),
            // Containers of one kernel share its boot id.
            ("b", Place::new("two", 7), machine),
            ("a", Place::new("two", 7), machine),
        ] {
            assert_eq!(now.provenance(boot, place), provenance, "{boot} {place:?}");
        }
        assert_eq!(Foreign::Machine.kind(), "another machine");
    }
}
