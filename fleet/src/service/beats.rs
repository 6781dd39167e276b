//! Beats that this node writes for its entries, and its checks of other nodes' beats. This module
//! decides; the driver carries out the effects.

use again_base::model::{Boottime, Walltime};

use crate::policy::beat::{Dead, Found, Silence, Watched};
use crate::wire::beat::{Beat, Covered};
use crate::wire::name::Node;

/// Read or write that the driver requests from the backend.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read the beat of an earlier service of this node.
    Find,
    /// Write this beat.
    Put(Beat),
    /// Read whether the entries that this written beat covers still exist.
    Check(Beat),
    /// Read the beats of these nodes.
    Look(Vec<Node>),
}

/// Beats of this node, its checks of other nodes' beats, and requests that are not answered yet.
#[derive(Debug)]
pub struct Beats {
    me: Node,
    /// Counter of the last beat; none until the counter of earlier services was read.
    counter: Option<u64>,
    is_finding: bool,
    /// Beat whose write is not answered or whose entries are not checked yet, and when it was sent.
    sent: Option<(Boottime, Beat)>,
    /// Entries in the check that is not answered yet, and when it was sent.
    look: Option<(Boottime, Vec<Watched>)>,
    silence: Silence,
}

impl Beats {
    /// Creates the state of a node that has sent no beat yet.
    pub fn new(me: Node) -> Beats {
        Beats {
            me,
            counter: None,
            is_finding: false,
            sent: None,
            look: None,
            silence: Silence::default(),
        }
    }

    /// Begins the next beat, which covers these entries, unless there are none or a beat is under
    /// way. The first call reads the beat of earlier services, because other nodes ignore a lower
    /// counter.
    pub fn beat(
        &mut self,
        slots: Vec<Covered>,
        locks: Vec<Covered>,
        (now, clock): (Boottime, Walltime),
    ) -> Option<Effect> {
        if slots.is_empty() && locks.is_empty() || self.sent.is_some() || self.is_finding {
            return None;
        }
        let Some(last) = self.counter else {
            self.is_finding = true;
            return Some(Effect::Find);
        };
        // Somebody may have put back a copy of an older beat before this service read the key.
        let counter = clock.millis().max(last.saturating_add(1));
        self.counter = Some(counter);
        let beat = Beat {
            node: self.me.clone(),
            counter,
            slots,
            locks,
        };
        self.sent = Some((now, beat.clone()));
        Some(Effect::Put(beat))
    }

    /// Records the counter of earlier services: 0 if they left no beat, none if the read failed.
    pub fn found(&mut self, counter: Option<u64>) {
        self.is_finding = false;
        self.counter = counter;
    }

    /// Records the answer to the write of a beat; `is_written` is false if the write is uncertain.
    /// Others may have removed an entry before the write, so the entries are checked after it: an
    /// entry that still exists then is safe for as long as others wait for the next beat.
    pub fn answered(&mut self, is_written: bool) -> Option<Effect> {
        if !is_written {
            self.sent = None;
        }
        self.sent
            .as_ref()
            .map(|(_, beat)| Effect::Check(beat.clone()))
    }

    /// Ends the check of a beat's entries. Returns the beat that counts and when it was sent, or
    /// nothing if the read failed.
    pub fn checked(&mut self, is_read: bool) -> Option<(Boottime, Beat)> {
        self.sent.take().filter(|_| is_read)
    }

    /// Begins a check of the beats for these entries, unless one is under way. The silence that was
    /// observed for other entries is forgotten.
    pub fn look(&mut self, watched: Vec<Watched>, now: Boottime) -> Option<Effect> {
        if self.look.is_some() {
            return None;
        }
        if watched.is_empty() {
            self.silence = Silence::default();
            return None;
        }
        let mut nodes: Vec<Node> = watched.iter().map(|place| place.node.clone()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        self.look = Some((now, watched));
        Some(Effect::Look(nodes))
    }

    /// Ends a check with the beats that it found, or with none if it failed. Returns the entries of
    /// dead nodes.
    pub fn looked(&mut self, found: Option<&[Found]>, now: Boottime) -> Vec<Dead> {
        match (self.look.take(), found) {
            (Some((sent, watched)), Some(found)) => self.silence.look(watched, found, [sent, now]),
            _ => Vec::new(),
        }
    }

    /// Records that the connection has ended. Silence that was observed on it does not count on the
    /// next one.
    pub fn lost(&mut self) {
        (self.sent, self.look, self.is_finding) = (None, None, false);
        self.silence = Silence::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::key::Key;

    fn at(seconds: u64) -> (Boottime, Walltime) {
        let now = Boottime::from_nanos(seconds * 1_000_000_000);
        (now, Walltime::from_millis(1_000_000 + seconds * 1000))
    }

    fn place() -> Vec<Covered> {
        let name = "g".parse().expect("a name");
        vec![Covered { name, first: 5 }]
    }

    fn counter(effect: Option<Effect>) -> u64 {
        match effect {
            Some(Effect::Put(beat)) => beat.counter,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn node_without_places_writes_and_reads_nothing() {
        let mut beats = Beats::new("n1".parse().expect("a certname"));
        assert_eq!(beats.beat(Vec::new(), Vec::new(), at(1)), None);
        assert_eq!(beats.look(Vec::new(), at(1).0), None);
    }

    #[test]
    fn silence_of_one_connection_counts_for_nothing_on_the_next() {
        let mut beats = Beats::new("n1".parse().expect("a certname"));
        let watched = Watched {
            key: Key::Lock("db".parse().expect("a name")),
            node: "n2".parse().expect("a certname"),
            first: 5,
            revision: 6,
        };
        let look = |beats: &mut Beats, seconds| {
            let now = at(seconds).0;
            assert!(beats.look(vec![watched.clone()], now).is_some());
            beats.looked(Some(&[]), now).len()
        };
        let dead = [0, 30, 60].map(|seconds| look(&mut beats, seconds));
        assert_eq!(dead, [0; 3]);
        beats.lost();
        let dead = [95, 125, 155, 185].map(|seconds| look(&mut beats, seconds));
        assert_eq!(dead, [0, 0, 0, 1]);
    }

    #[test]
    fn counter_grows_over_restarts_whatever_the_clock_says() {
        let mut beats = Beats::new("n1".parse().expect("a certname"));
        let beat = |beats: &mut Beats, seconds| beats.beat(place(), Vec::new(), at(seconds));
        assert_eq!(beat(&mut beats, 1), Some(Effect::Find));
        assert_eq!(beat(&mut beats, 2), None, "it is not known yet");
        // A read that fails is repeated.
        beats.found(None);
        assert_eq!(beat(&mut beats, 3), Some(Effect::Find));
        // The clock was ahead before.
        beats.found(Some(5_000_000));
        assert_eq!(counter(beat(&mut beats, 4)), 5_000_001);
        assert_eq!(beat(&mut beats, 5), None, "one at a time");
        assert!(matches!(beats.answered(true), Some(Effect::Check(_))));
        assert_eq!(beat(&mut beats, 5), None, "its places are not checked yet");
        let (sent, checked) = beats.checked(true).expect("a beat");
        assert_eq!((sent, checked.counter), (at(4).0, 5_000_001));
        assert_eq!(counter(beat(&mut beats, 6)), 5_000_002);
        assert_eq!(beats.answered(false), None);
        assert_eq!(beats.checked(true), None);
        // An old copy was put back while this service was away.
        beats.found(Some(3));
        assert_eq!(counter(beat(&mut beats, 7)), 1_007_000);
        beats.lost();
        assert_eq!(counter(beat(&mut beats, 7)), 1_007_001);
    }
}
