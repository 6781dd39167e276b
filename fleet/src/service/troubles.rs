//! PURE: what fails in the service's work, until the same work succeeds.

use std::collections::BTreeMap;

use crate::ask::{Reason, Trouble};
use crate::engine::Error;
use crate::step::model::LetterId;

/// The kinds of work that can fail while the engine is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// To send what this node tells of itself.
    Node,
    /// To send triggers.
    Triggers,
    /// To send results.
    Results,
    /// To send events.
    Events,
    /// To take places for slots.
    Slots,
    /// To see who waits for slots.
    Lines,
    /// To take locks.
    Locks,
    /// To look at what others write, by the number of the watch.
    Watch(usize),
    /// To write the numbers for `again metrics`.
    Metrics,
}

impl Work {
    /// The work that sends this.
    pub fn of(letter: &LetterId) -> Work {
        match letter {
            LetterId::Node => Work::Node,
            LetterId::To(..) => Work::Triggers,
            LetterId::Told(_) => Work::Results,
        }
    }
}

/// The newest failure of each kind of work that has not succeeded since.
#[derive(Debug, Default)]
pub struct Troubles(BTreeMap<Work, Trouble>);

impl Troubles {
    /// Notes a failure, told in a sentence. Whether that is news.
    pub fn failed(&mut self, work: Work, reason: Reason, what: &str) -> bool {
        let trouble = Trouble {
            reason,
            what: what.to_owned(),
        };
        self.0.insert(work, trouble.clone()) != Some(trouble)
    }

    /// The same of what the engine has refused. What is wrong with the connection is none of these.
    pub fn refused(&mut self, work: Work, error: &Error, what: &str) -> bool {
        let reason = match error {
            Error::Denied(_) => Reason::Rights,
            Error::Full(_) => Reason::Room,
            Error::TooLarge => Reason::Size,
            Error::Conflict | Error::Unreachable(_) | Error::Unknown(_) => return false,
        };
        self.failed(work, reason, what)
    }

    /// Notes that work has succeeded.
    pub fn passed(&mut self, work: Work) {
        self.0.remove(&work);
    }

    /// Forgets what the engine has refused: all of it is tried anew over a new connection.
    pub fn reached(&mut self) {
        self.0.retain(|work, _| *work == Work::Metrics);
    }

    /// What fails at present.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &Trouble> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(troubles: &Troubles) -> Vec<Reason> {
        troubles.all().map(|trouble| trouble.reason).collect()
    }

    #[test]
    fn each_kind_of_work_fails_and_succeeds_by_itself() {
        let mut troubles = Troubles::default();
        let (denied, full) = (Error::Denied("no".to_owned()), Error::Full("no".to_owned()));
        assert!(troubles.refused(Work::Node, &Error::TooLarge, "too large"));
        assert!(troubles.refused(Work::Triggers, &denied, "not allowed"));
        assert!(!troubles.refused(Work::Triggers, &denied, "not allowed"));
        assert!(troubles.failed(Work::Metrics, Reason::Metrics, "no space"));
        assert_eq!(
            reasons(&troubles),
            [Reason::Size, Reason::Rights, Reason::Metrics]
        );
        troubles.passed(Work::Node);
        assert!(troubles.refused(Work::Triggers, &full, "no room"));
        assert_eq!(reasons(&troubles), [Reason::Room, Reason::Metrics]);
        troubles.passed(Work::Metrics);
        troubles.passed(Work::Triggers);
        assert_eq!(reasons(&troubles), []);
        assert!(troubles.refused(Work::Triggers, &denied, "not allowed"));
    }

    #[test]
    fn new_connection_forgets_what_the_engine_refused() {
        let mut troubles = Troubles::default();
        let away = Error::Unreachable("it is away".to_owned());
        assert!(!troubles.refused(Work::Locks, &away, "away"));
        assert!(troubles.refused(Work::Watch(1), &Error::TooLarge, "too large"));
        assert!(troubles.failed(Work::Metrics, Reason::Metrics, "no space"));
        troubles.reached();
        assert_eq!(reasons(&troubles), [Reason::Metrics]);
    }
}
