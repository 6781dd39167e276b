//! Slots and locks of dead nodes whose leases somebody still keeps alive: the counters of their
//! beats have not grown for a while.

use again_base::model::{Boottime, Span};

use crate::wire::beat::Beat;
use crate::wire::key::Key;
use crate::wire::name::Node;

/// Time after sending its last answered beat for which a holder can rely on its slot or lock.
pub const SURE: Span = Span::from_secs(60);
/// Time for which others wait for a higher counter. The difference to [`SURE`] allows for clocks
/// that run at different speeds.
pub const SILENT: Span = Span::from_secs(90);
/// Maximum time between two checks that counts; it is longer than the usual interval. After a
/// longer pause, the backend or this node was away.
const MOST_BETWEEN: Span = Span::from_secs(35);

/// Slot or lock of another node whose signed value says that the node sends beats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Key of the slot or lock.
    pub key: Key,
    /// Node that has the slot or lock.
    pub node: Node,
    /// Revision of the first write at the key.
    pub first: u64,
    /// Revision of the last write at the key.
    pub revision: u64,
}

/// Content of a node's key for beats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Node of the key.
    pub node: Node,
    /// Revision of the value.
    pub revision: u64,
    /// Beat; none if there is no beat that the node has signed.
    pub beat: Option<Beat>,
    /// Whether the beat cannot be verified now, since the node's certificate is not valid by this
    /// node's clock and revocation lists. Earlier values of the node may still be trusted.
    pub is_unclear: bool,
}

/// Slot or lock that is to be removed, if its key and the node's key for beats still have these
/// revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    /// Slot or lock.
    pub place: Watched,
    /// Revision at the node's key for beats; 0 if the key has no value.
    pub beat: u64,
}

/// Time for which the beats of watched slots and locks have not grown, on one connection.
#[derive(Debug, Default)]
pub struct Silence {
    /// Sum of the times that count.
    passed: Span,
    /// Time at which the last answered check was sent.
    last: Option<Boottime>,
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    key: Key,
    first: u64,
    /// Highest counter of a beat that covers the slot or lock; none without such a beat.
    counter: Option<u64>,
    /// Time at which that counter was first seen, on the scale of `passed`.
    since: Span,
}

impl Silence {
    /// Records a check of these slots and locks, which was sent and answered at these times.
    /// Returns the dead ones.
    pub fn look(
        &mut self,
        places: Vec<Watched>,
        found: &[Found],
        [sent, answered]: [Boottime; 2],
    ) -> Vec<Dead> {
        let since_last = self.last.map_or(Span::ZERO, |last| sent.since(last));
        self.passed = self.passed + since_last.min(MOST_BETWEEN);
        self.last = Some(sent);
        // The answer may have beats that were written after the check was sent.
        let (now, later) = (self.passed, self.passed + answered.since(sent));
        let before = std::mem::take(&mut self.seen);
        let mut dead = Vec::new();
        for place in places {
            let there = found.iter().find(|one| one.node == place.node);
            if there.is_some_and(|one| one.is_unclear) {
                continue;
            }
            let counter = there
                .and_then(|one| one.beat.as_ref())
                .filter(|beat| beat.covers(&place.key, place.first))
                .map(|beat| beat.counter);
            let mut before = before.iter();
            let known = before.find(|one| one.key == place.key && one.first == place.first);
            let (counter, since) = match known {
                Some(known) if counter <= known.counter => (known.counter, known.since),
                _ => (counter, later),
            };
            self.seen.push(Seen {
                key: place.key.clone(),
                first: place.first,
                counter,
                since,
            });
            if since + SILENT <= now {
                let beat = there.map_or(0, |one| one.revision);
                dead.push(Dead { place, beat });
            }
        }
        dead
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::beat::Covered;

    fn at(millis: u64) -> Boottime {
        Boottime::from_nanos(millis * 1_000_000)
    }

    fn place(first: u64) -> Watched {
        Watched {
            key: Key::Lock("db".parse().expect("a name")),
            node: "n1".parse().expect("a certname"),
            first,
            revision: first + 1,
        }
    }

    fn found(counter: u64, first: u64) -> Found {
        let name = "db".parse().expect("a name");
        let node: Node = "n1".parse().expect("a certname");
        Found {
            revision: 100 + counter,
            beat: Some(Beat {
                node: node.clone(),
                counter,
                slots: Vec::new(),
                locks: vec![Covered { name, first }],
            }),
            node,
            is_unclear: false,
        }
    }

    /// Whether the place is dead by looks each half minute that see these.
    fn looks(silence: &mut Silence, from: u64, all: &[Option<Found>]) -> Vec<bool> {
        let mut dead = Vec::new();
        for (n, found) in all.iter().enumerate() {
            let now = at(from + 30_000 * n as u64);
            let found: Vec<Found> = found.iter().cloned().collect();
            let answer = silence.look(vec![place(5)], &found, [now, now]);
            let expected = Dead {
                place: place(5),
                beat: found.first().map_or(0, |one| one.revision),
            };
            assert!(answer.is_empty() || answer == [expected], "{answer:?}");
            dead.push(!answer.is_empty());
        }
        dead
    }

    #[test]
    fn place_is_dead_once_its_counter_has_not_grown_for_90_seconds() {
        let growing: Vec<_> = (1..9).map(|n| Some(found(n, 5))).collect();
        let mut silence = Silence::default();
        assert!(!looks(&mut silence, 0, &growing).contains(&true));
        // It stops; nothing is there; copies of earlier beats; beats for an earlier place at the key.
        for silent in [
            vec![Some(found(8, 5)); 5],
            vec![None; 5],
            vec![
                Some(found(3, 5)),
                Some(found(7, 5)),
                Some(found(1, 5)),
                Some(found(8, 5)),
                Some(found(2, 5)),
            ],
            (9..14).map(|n| Some(found(n, 4))).collect(),
        ] {
            let mut silence = Silence::default();
            looks(&mut silence, 0, &growing);
            let dead = looks(&mut silence, 240_000, &silent);
            assert_eq!(dead, [false, false, true, true, true], "{silent:?}");
        }
        // What overwrites a beat for a while does no harm.
        let mut silence = Silence::default();
        let overwritten = [
            found(1, 5),
            found(0, 5),
            found(0, 5),
            found(2, 5),
            found(1, 5),
            found(1, 5),
            found(3, 5),
        ];
        let dead = looks(&mut silence, 0, &overwritten.map(Some));
        assert!(!dead.contains(&true), "{dead:?}");
    }

    #[test]
    fn beats_that_cannot_be_verified_now_are_no_silence_and_garbage_is() {
        let unsigned = |is_unclear| Found {
            beat: None,
            is_unclear,
            ..found(7, 5)
        };
        let mut silence = Silence::default();
        let all = vec![Some(unsigned(true)); 9];
        assert!(!looks(&mut silence, 0, &all).contains(&true));
        // It begins anew once it can be told.
        let all = vec![Some(unsigned(false)); 5];
        let dead = looks(&mut silence, 270_000, &all);
        assert_eq!(dead, [false, false, false, true, true]);
    }

    #[test]
    fn time_without_the_backend_does_not_count() {
        let mut silence = Silence::default();
        let mut is_dead = |seconds: u64| {
            let times = [at(seconds * 1000); 2];
            let dead = silence.look(vec![place(5)], &[found(1, 5)], times);
            !dead.is_empty()
        };
        // An hour away counts as 35 seconds.
        assert_eq!(
            [0, 27, 3_600, 3_627, 3_654].map(&mut is_dead),
            [false, false, false, false, true]
        );
        // Who was not watched meanwhile begins anew.
        silence.look(Vec::new(), &[], [at(3_660_000); 2]);
        let times = [at(3_680_000); 2];
        assert_eq!(silence.look(vec![place(5)], &[], times), []);
    }

    #[test]
    fn another_place_at_the_same_key_begins_anew() {
        let mut silence = Silence::default();
        for n in 0..4 {
            let times = [at(n * 27_000); 2];
            assert_eq!(silence.look(vec![place(5)], &[], times), []);
        }
        let times = [at(120_000); 2];
        assert_eq!(silence.look(vec![place(6)], &[], times), []);
    }

    proptest! {
        /// Beats are sent, reach the backend and are answered, each later or not at all, and looks take their time. Whoever is found
        /// dead is not sure of the place any more.
        #[test]
        fn nobody_who_is_sure_is_found_dead(
            beats in prop::collection::vec((20..200_u64, 0..5000_u64, 0..5000_u64, prop::bool::weighted(0.8)), 1..20),
            looks in prop::collection::vec((1..35_u64, 0..5000_u64, 0..5000_u64), 1..100),
        ) {
            let (mut sent, mut writes, mut answers) = (0, Vec::new(), Vec::new());
            for (n, (after, way, back, is_answered)) in beats.iter().enumerate() {
                sent += after * 1000;
                writes.push((sent + way, n as u64));
                if *is_answered {
                    answers.push((sent + way + back, sent));
                }
            }
            let (mut silence, mut time) = (Silence::default(), 0);
            for (after, way, back) in looks {
                time += after * 1000;
                let (seen, answered) = (time + way, time + way + back);
                let last = writes.iter().rfind(|(when, _)| *when <= seen);
                let there: Vec<Found> = last.map(|(_, n)| found(*n, 5)).into_iter().collect();
                let dead = silence.look(vec![place(5)], &there, [at(time), at(answered)]);
                let known = answers.iter().filter(|(when, _)| *when <= seen);
                let sure = known.map(|(_, sent)| at(*sent) + SURE).max();
                prop_assert!(dead.is_empty() || sure < Some(at(seen)), "sure until {sure:?}, dead at {seen}");
                time = answered;
            }
        }

        /// However late the last beat was seen: looks that are answered find a dead node within 90 seconds and one look.
        #[test]
        fn dead_node_is_found_in_time(lasts in 0..20_u64, between in 5..31_u64) {
            let (mut silence, mut died) = (Silence::default(), None);
            for n in 0..200 {
                let now = n * between;
                let counter = n.min(lasts);
                let dead = silence.look(vec![place(5)], &[found(counter, 5)], [at(now * 1000); 2]);
                if !dead.is_empty() {
                    died = Some(now);
                    break;
                }
            }
            let died = died.expect("found") - lasts * between;
            prop_assert!((90..=90 + between).contains(&died), "{died} s");
        }
    }
}
