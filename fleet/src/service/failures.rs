//! PURE: failures of the service's work, until the same work succeeds.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{Boottime, Span};

use crate::ask::{Failure, Reason};
use crate::backend::Error;
use crate::step::model::EntryId;
use crate::wire::key::Key;
use crate::wire::name::Name;

/// Time after the last attempt for which a failure of retried work is shown: the work may no longer
/// be wanted.
const SHOWN: Span = Span::from_secs(120);

/// Work that can fail while the backend is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Sending this outbox entry.
    OutboxEntry(EntryId),
    /// Sending events.
    Events,
    /// Taking a slot in this group.
    Slot(Name),
    /// Reading the queues for slots.
    Queues,
    /// Taking this lock.
    Lock(Name),
    /// Writing beats of this node.
    Beat,
    /// Reading beats of this node and of others.
    Beats,
    /// Removing this entry of a dead node.
    Eviction(Key),
    /// Watching what others write, by the number of the watch.
    Watch(usize),
    /// Writing the numbers for `again metrics`.
    Metrics,
}

impl Work {
    /// Whether the work is retried while it fails and is still wanted.
    fn is_retried(&self) -> bool {
        !matches!(self, Work::OutboxEntry(EntryId::Node) | Work::Watch(_))
    }

    fn reason(&self, error: &Error) -> Option<Reason> {
        match error {
            Error::Denied(_) => Some(Reason::Rights),
            Error::Full(_) if *self == Work::Events => Some(Reason::Events),
            Error::Full(_) => Some(Reason::Room),
            Error::TooLarge => Some(Reason::Size),
            Error::Conflict | Error::Unreachable(_) | Error::Unknown(_) => None,
        }
    }
}

/// Latest failure of each kind of work that has not succeeded since.
#[derive(Debug, Default)]
pub struct Failures(BTreeMap<Work, (Failure, Boottime)>);

impl Failures {
    /// Records a failure, described in a sentence. Returns whether no recorded failure is the same.
    pub fn failed(&mut self, work: Work, reason: Reason, what: &str, now: Boottime) -> bool {
        let what = what.to_owned();
        let failure = Failure { reason, what };
        self.0
            .retain(|work, (_, at)| !work.is_retried() || now.since(*at) < SHOWN);
        let is_news = self.0.values().all(|(other, _)| *other != failure);
        self.0.insert(work, (failure, now));
        is_news
    }

    /// Records what the backend refuses, as [`Failures::failed`] does. A conflict or a failed
    /// connection is not recorded.
    pub fn refused(&mut self, work: Work, error: &Error, what: &str, now: Boottime) -> bool {
        work.reason(error)
            .is_some_and(|reason| self.failed(work, reason, what, now))
    }

    /// Records that work has succeeded.
    pub fn succeeded(&mut self, work: &Work) {
        self.0.remove(work);
    }

    /// Forgets what the backend has refused: all such work is tried again over a new connection.
    pub fn forget_refusals(&mut self) {
        self.0.retain(|work, _| *work == Work::Metrics);
    }

    /// Failures at this time, without duplicates.
    pub fn all(&self, now: Boottime) -> BTreeSet<&Failure> {
        let lasts = |(work, (_, at)): &(&Work, &(Failure, Boottime))| {
            !work.is_retried() || now.since(*at) < SHOWN
        };
        let all = self.0.iter().filter(lasts);
        all.map(|(_, (failure, _))| failure).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Boottime {
        Boottime::from_nanos(seconds * 1_000_000_000)
    }

    fn reasons(failures: &Failures, seconds: u64) -> Vec<Reason> {
        let all = failures.all(at(seconds)).into_iter();
        all.map(|failure| failure.reason).collect()
    }

    fn to(target: &str) -> Work {
        let (target, name) = (target.parse(), "again".parse());
        let (target, name) = (target.expect("a certname"), name.expect("a name"));
        Work::OutboxEntry(EntryId::To(target, name))
    }

    fn denied() -> Error {
        Error::Denied("no".to_owned())
    }

    #[test]
    fn work_fails_and_succeeds_by_itself() {
        let (mut failures, full) = (Failures::default(), Error::Full("no".to_owned()));
        let node = Work::OutboxEntry(EntryId::Node);
        assert!(failures.refused(node.clone(), &Error::TooLarge, "too large", at(0)));
        assert!(failures.refused(to("web1"), &denied(), "not allowed", at(0)));
        assert!(!failures.refused(to("web2"), &denied(), "not allowed", at(0)));
        assert!(failures.failed(Work::Metrics, Reason::Metrics, "no space", at(0)));
        let three = [Reason::Rights, Reason::Size, Reason::Metrics];
        assert_eq!(reasons(&failures, 0), three);
        failures.succeeded(&node);
        failures.succeeded(&to("web1"));
        assert_eq!(reasons(&failures, 0), [Reason::Rights, Reason::Metrics]);
        assert!(failures.refused(to("web2"), &full, "no room", at(0)));
        assert!(failures.refused(Work::Events, &full, "events wait", at(0)));
        let three = [Reason::Room, Reason::Events, Reason::Metrics];
        assert_eq!(reasons(&failures, 0), three);
        failures.succeeded(&Work::Events);
        failures.succeeded(&Work::Metrics);
        failures.succeeded(&to("web2"));
        assert_eq!(reasons(&failures, 0), []);
        assert!(failures.refused(to("web2"), &denied(), "not allowed", at(0)));
    }

    #[test]
    fn failure_of_work_that_nobody_wants_any_more_ends() {
        let mut failures = Failures::default();
        failures.refused(to("web1"), &denied(), "not allowed", at(0));
        failures.refused(Work::Watch(1), &denied(), "not seen", at(0));
        assert_eq!(reasons(&failures, 119).len(), 2);
        assert_eq!(reasons(&failures, 120).len(), 1);
        assert!(failures.refused(to("web1"), &denied(), "not allowed", at(120)));
        assert_eq!(reasons(&failures, 130).len(), 2);
        failures.succeeded(&Work::Watch(0));
        failures.succeeded(&Work::Watch(1));
        assert_eq!(reasons(&failures, 130).len(), 1);
    }

    #[test]
    fn new_connection_forgets_what_the_backend_refused() {
        let mut failures = Failures::default();
        let away = Error::Unreachable("it is away".to_owned());
        assert!(!failures.refused(Work::Queues, &away, "away", at(0)));
        assert!(failures.refused(Work::Watch(1), &denied(), "not seen", at(0)));
        assert!(failures.failed(Work::Metrics, Reason::Metrics, "no space", at(0)));
        failures.forget_refusals();
        assert_eq!(reasons(&failures, 0), [Reason::Metrics]);
    }
}
