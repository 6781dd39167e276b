//! Decides a converge driver's next step: how a run went, which timers are pending, and whether
//! another run starts, has to wait, or is not wanted.

use std::collections::BTreeMap;

use again_base::model::{Base, Boottime, End, Outcome, Span};

/// Goal of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Until {
    /// Nothing asks for another run.
    Requests,
    /// Nothing asks for another run, and the last one changed nothing.
    Clean,
}

/// Evidence for a run's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// End of its process.
    pub end: End,
    /// Whether the exit status says if anything changed (`--detailed-exitcodes`).
    pub detailed: bool,
    /// Outcome in Puppet's summary, if this run wrote one.
    pub summary: Option<Outcome>,
    /// Whether the run is an agent's and another run holds the agent's lock.
    pub lock_is_taken: bool,
}

/// Outcome of a run. The summary decides between changed, unchanged and failed, but never turns a
/// failing exit status into a success. Exit status 2 is a success only with `detailed`, and only if
/// the summary says that something changed.
pub fn judge(seen: &Evidence) -> Outcome {
    let status = match seen.end {
        End::Signal(_) => return Outcome::Killed,
        End::Exit(status) => status,
    };
    match (status, seen.summary) {
        (_, Some(Outcome::Failed)) => Outcome::Failed,
        (0, Some(Outcome::Changed)) => Outcome::Changed,
        (0, Some(Outcome::Unchanged)) => Outcome::Unchanged,
        (0, None) if seen.detailed => Outcome::Unchanged,
        (0, None) => Outcome::Succeeded,
        (2, Some(Outcome::Changed)) if seen.detailed => Outcome::Changed,
        // A skipped or disabled agent exits with 1, as a failed one does.
        (1, None) if seen.lock_is_taken => Outcome::Skipped,
        _ => Outcome::Failed,
    }
}

/// Request that was handed to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Name of the timer.
    pub name: String,
    /// Token that distinguishes this request from others of the same name.
    pub token: String,
    /// Minimum wait.
    pub delta: Span,
    /// Random jitter, added to `delta`.
    pub jitter: Span,
    /// Moment from which delta and jitter count.
    pub base: Base,
    /// Time of the request.
    pub requested: Boottime,
}

/// Pending timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timer {
    /// Token of the request.
    pub token: String,
    /// Due time.
    pub due: Boottime,
    /// Number of the run that requested it.
    pub asked_by: u32,
}

/// State of a driver between two steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    until: Until,
    max_runs: u32,
    deadline: Option<Boottime>,
    /// Time until the next attempt after a run that applied no catalog.
    retry: Option<Span>,
    runs: u32,
    /// Number of runs that applied no catalog and do not count.
    uncounted: u32,
    last: Option<Outcome>,
    /// Time of the next attempt, after a run that applied no catalog.
    attempt: Option<Boottime>,
    timers: BTreeMap<String, Timer>,
}

/// Reason for the start of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Because {
    /// The run is the first.
    First,
    /// This timer is due.
    Due(String),
    /// The previous run changed something, and the goal is a run that does not.
    NotClean,
    /// The previous run was skipped.
    Busy,
    /// The previous run applied no catalog.
    NoCatalog,
}

/// Reason for the end of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The driver has reached its goal.
    Converged,
    /// The last run failed.
    Failed,
    /// The evidence does not show whether the last run changed anything.
    Unclear,
    /// The maximum number of runs is reached.
    Cap,
    /// The timeout is over, or would be before the next run.
    Timeout,
}

/// Next step of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Start a run.
    Start(Because),
    /// Sleep until this time, when a run is to start for this reason.
    Wait(Boottime, Because),
    /// End the driver.
    Finish(Finish),
}

impl Drive {
    /// State of a driver that has not run anything yet. At least one run is allowed.
    pub fn new(
        until: Until,
        max_runs: u32,
        deadline: Option<Boottime>,
        retry: Option<Span>,
    ) -> Self {
        Drive {
            until,
            max_runs: max_runs.max(1),
            deadline,
            retry,
            runs: 0,
            uncounted: 0,
            last: None,
            attempt: None,
            timers: BTreeMap::new(),
        }
    }

    /// Number of the current or the last run; 0 before the first.
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// Maximum number of runs, including those that do not count.
    pub fn most(&self) -> u32 {
        self.max_runs.saturating_add(self.uncounted)
    }

    /// Whether the last run applied no catalog and another attempt is wanted.
    pub fn is_without_catalog(&self) -> bool {
        self.attempt.is_some()
    }

    /// Pending timers by name.
    pub fn timers(&self) -> &BTreeMap<String, Timer> {
        &self.timers
    }

    /// Next step, while no run is in progress.
    pub fn next(&self, now: Boottime) -> Next {
        let another = self.another();
        let (because, due) = match another {
            Err(finish) => return Next::Finish(finish),
            Ok(wanted) => wanted,
        };
        if self.runs >= self.most() {
            let failed = self.last.is_some_and(Outcome::is_failure);
            return Next::Finish(if failed { Finish::Failed } else { Finish::Cap });
        }
        // The driver does not wait for a run that cannot start in time.
        if self.deadline.is_some_and(|at| due.max(now) >= at) {
            return Next::Finish(Finish::Timeout);
        }
        match because {
            because if due > now => Next::Wait(due, because),
            because => Next::Start(because),
        }
    }

    /// Reason for another run, and its earliest start; or the reason why none is wanted.
    fn another(&self) -> Result<(Because, Boottime), Finish> {
        let at_once = Boottime::default();
        let Some(last) = self.last else {
            return Ok((Because::First, at_once));
        };
        if last == Outcome::Skipped {
            return Ok((Because::Busy, at_once));
        }
        // After a failed run with pending timers the driver continues.
        let timers = self.timers.iter();
        let timers = timers.map(|(name, timer)| (Because::Due(name.clone()), timer.due));
        let attempt = self.attempt.map(|at| (Because::NoCatalog, at));
        if let Some(first) = timers.chain(attempt).min_by_key(|(_, due)| *due) {
            return Ok(first);
        }
        match (self.until, last) {
            (_, Outcome::Failed | Outcome::Killed) => Err(Finish::Failed),
            (Until::Requests, _) | (Until::Clean, Outcome::Unchanged) => Err(Finish::Converged),
            (Until::Clean, Outcome::Changed | Outcome::Skipped) => Ok((Because::NotClean, at_once)),
            (Until::Clean, Outcome::Succeeded | Outcome::Unknown) => Err(Finish::Unclear),
        }
    }

    /// Moves the due time of every pending timer and of the next attempt to `now` at the latest.
    pub fn hurry(&mut self, now: Boottime) {
        for timer in self.timers.values_mut() {
            timer.due = timer.due.min(now);
        }
        self.attempt = self.attempt.map(|at| at.min(now));
    }

    /// Records the start of a run. Returns the timers whose job it does: all that are due by now.
    pub fn begin(&mut self, now: Boottime) -> Vec<(String, Timer)> {
        self.runs = self.runs.saturating_add(1);
        let (due, later) = std::mem::take(&mut self.timers)
            .into_iter()
            .partition(|(_, timer)| timer.due <= now);
        self.timers = later;
        let due: BTreeMap<String, Timer> = due;
        due.into_iter().collect()
    }

    /// Records the end of a run. `no_catalog` is the end time of a run of Puppet that applied no
    /// catalog.
    pub fn end(&mut self, outcome: Outcome, no_catalog: Option<Boottime>) {
        self.last = Some(outcome);
        self.attempt = match (no_catalog, self.retry) {
            (Some(ended), Some(retry)) => Some(ended + retry),
            _ => None,
        };
        self.uncounted += u32::from(self.attempt.is_some());
    }

    /// Adds a request of the last run, which ended at `run_ended`. Returns the timer that it
    /// replaces.
    pub fn ask(&mut self, ask: Ask, run_ended: Boottime) -> Option<Timer> {
        let base = match ask.base {
            Base::End => run_ended,
            Base::Request => ask.requested,
        };
        let timer = Timer {
            token: ask.token,
            due: base + (ask.delta + ask.jitter),
            asked_by: self.runs,
        };
        self.timers.insert(ask.name, timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn s(seconds: u64) -> Boottime {
        Boottime::from_nanos(seconds * 1_000_000_000)
    }

    fn ask(name: &str, delta: u64, base: Base, requested: u64) -> Ask {
        Ask {
            name: name.into(),
            token: String::new(),
            delta: Span::from_secs(delta),
            jitter: Span::ZERO,
            base,
            requested: s(requested),
        }
    }

    const PLAIN: Evidence = Evidence {
        end: End::Exit(0),
        detailed: false,
        summary: None,
        lock_is_taken: false,
    };

    #[test]
    fn the_summary_decides_and_never_hides_a_failure() {
        use Outcome::{Changed, Failed, Unchanged};
        let of = |status, detailed, summary| {
            judge(&Evidence {
                end: End::Exit(status),
                detailed,
                summary,
                ..PLAIN
            })
        };
        // Without --detailed-exitcodes a run with failed resources exits with 0.
        assert_eq!(of(0, false, Some(Failed)), Outcome::Failed);
        assert_eq!(of(0, false, Some(Changed)), Outcome::Changed);
        assert_eq!(of(0, false, Some(Unchanged)), Outcome::Unchanged);
        assert_eq!(of(0, false, None), Outcome::Succeeded);
        assert_eq!(of(0, true, None), Outcome::Unchanged);
        assert_eq!(of(2, true, Some(Changed)), Outcome::Changed);
        // Any other program, or another run's summary.
        for (detailed, summary) in [(false, Some(Changed)), (false, None), (true, None)] {
            assert_eq!(of(2, detailed, summary), Outcome::Failed);
        }
        assert_eq!(of(2, true, Some(Unchanged)), Outcome::Failed);
        // A service that failed to restart is no failed resource to the exit status.
        assert_eq!(of(2, true, Some(Failed)), Outcome::Failed);
        for status in [1, 4, 6, 77] {
            for summary in [None, Some(Changed), Some(Unchanged), Some(Failed)] {
                assert_eq!(of(status, true, summary), Outcome::Failed);
            }
        }
    }

    #[test]
    fn a_skipped_agent_is_told_by_its_lock() {
        let skipped = Evidence {
            end: End::Exit(1),
            lock_is_taken: true,
            ..PLAIN
        };
        assert_eq!(judge(&skipped), Outcome::Skipped);
        let free = Evidence {
            lock_is_taken: false,
            ..skipped
        };
        assert_eq!(judge(&free), Outcome::Failed);
        let killed = Evidence {
            end: End::Signal(9),
            ..skipped
        };
        assert_eq!(judge(&killed), Outcome::Killed);
    }

    fn ended(until: Until, outcome: Outcome, asks: &[Ask]) -> Drive {
        let mut drive = Drive::new(until, 3, None, None);
        drive.begin(s(0));
        drive.end(outcome, None);
        for ask in asks {
            drive.ask(ask.clone(), s(10));
        }
        drive
    }

    #[test]
    fn waits_for_the_earliest_and_keeps_names_apart() {
        let asks = [
            ask("far", 60, Base::End, 1),
            ask("near", 5, Base::End, 1),
            ask("now", 7, Base::Request, 4),
        ];
        let mut drive = ended(Until::Requests, Outcome::Changed, &asks);
        assert_eq!(
            drive.next(s(10)),
            Next::Wait(s(11), Because::Due("now".into()))
        );
        assert_eq!(drive.next(s(11)), Next::Start(Because::Due("now".into())));
        let done: Vec<String> = drive
            .begin(s(12))
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(done, ["now"]);
        drive.end(Outcome::Unchanged, None);
        assert_eq!(
            drive.next(s(13)),
            Next::Wait(s(15), Because::Due("near".into()))
        );
        // Late, and so for both.
        assert_eq!(drive.begin(s(70)).len(), 2);
    }

    #[test]
    fn in_a_hurry_what_is_due_later_is_due_now() {
        let asks = [ask("soon", 1, Base::End, 0), ask("late", 60, Base::End, 0)];
        let mut drive = ended(Until::Requests, Outcome::Changed, &asks);
        let due = |drive: &Drive| -> Vec<_> {
            let timers = drive.timers().iter();
            timers
                .map(|(name, timer)| (name.clone(), timer.due))
                .collect()
        };
        let both = |late, soon| vec![("late".to_owned(), s(late)), ("soon".to_owned(), s(soon))];
        assert_eq!(due(&drive), both(70, 11));
        drive.hurry(s(20));
        assert_eq!(due(&drive), both(20, 11));
    }

    #[test]
    fn content_is_a_matter_of_until() {
        let end = |until, outcome| ended(until, outcome, &[]).next(s(10));
        let finish = Next::Finish;
        for outcome in [Outcome::Changed, Outcome::Unchanged, Outcome::Succeeded] {
            assert_eq!(end(Until::Requests, outcome), finish(Finish::Converged));
        }
        assert_eq!(
            end(Until::Clean, Outcome::Unchanged),
            finish(Finish::Converged)
        );
        assert_eq!(
            end(Until::Clean, Outcome::Succeeded),
            finish(Finish::Unclear)
        );
        assert_eq!(
            end(Until::Clean, Outcome::Changed),
            Next::Start(Because::NotClean)
        );
        for until in [Until::Requests, Until::Clean] {
            assert_eq!(end(until, Outcome::Failed), finish(Finish::Failed));
            assert_eq!(end(until, Outcome::Killed), finish(Finish::Failed));
            assert_eq!(end(until, Outcome::Skipped), Next::Start(Because::Busy));
        }
    }

    #[test]
    fn a_failed_run_that_asked_for_more_goes_on() {
        let more = [ask("again", 5, Base::End, 1)];
        let mut drive = ended(Until::Requests, Outcome::Failed, &more);
        assert_eq!(
            drive.next(s(10)),
            Next::Wait(s(15), Because::Due("again".into()))
        );
        drive.begin(s(15));
        drive.end(Outcome::Unchanged, None);
        assert_eq!(drive.next(s(16)), Next::Finish(Finish::Converged));
    }

    #[test]
    fn a_run_without_a_catalog_is_tried_again_and_does_not_count() {
        let retry = Some(Span::from_secs(5));
        let mut drive = Drive::new(Until::Requests, 1, Some(s(40)), retry);
        for at in [0, 10, 20] {
            drive.begin(s(at));
            drive.end(Outcome::Failed, Some(s(at + 1)));
            let next = Next::Wait(s(at + 6), Because::NoCatalog);
            assert_eq!(drive.next(s(at + 1)), next);
            assert_eq!(drive.next(s(at + 6)), Next::Start(Because::NoCatalog));
        }
        drive.begin(s(30));
        let mut late = drive.clone();
        drive.end(Outcome::Changed, None);
        assert_eq!(drive.next(s(31)), Next::Finish(Finish::Converged));
        late.end(Outcome::Failed, Some(s(35)));
        assert!(late.is_without_catalog());
        assert_eq!(late.next(s(35)), Next::Finish(Finish::Timeout));
        // Without --retry it is a failed run as any other.
        let mut drive = Drive::new(Until::Requests, 3, None, None);
        drive.begin(s(0));
        drive.end(Outcome::Failed, Some(s(1)));
        assert_eq!(drive.next(s(1)), Next::Finish(Finish::Failed));
    }

    #[test]
    fn what_is_due_before_the_next_attempt_goes_first() {
        let mut drive = Drive::new(Until::Requests, 3, None, Some(Span::from_secs(5)));
        drive.begin(s(0));
        drive.end(Outcome::Changed, None);
        for (name, delta) in [("near", 3), ("far", 60)] {
            drive.ask(ask(name, delta, Base::End, 0), s(1));
        }
        drive.begin(s(4));
        drive.end(Outcome::Failed, Some(s(5)));
        assert_eq!(drive.next(s(5)), Next::Wait(s(10), Because::NoCatalog));
        drive.begin(s(10));
        drive.end(Outcome::Unchanged, None);
        assert_eq!(
            drive.next(s(11)),
            Next::Wait(s(61), Because::Due("far".into()))
        );
    }

    #[test]
    fn the_cap_and_the_deadline_end_it() {
        let more = [ask("again", 5, Base::End, 1)];
        for (outcome, finish) in [
            (Outcome::Changed, Finish::Cap),
            (Outcome::Failed, Finish::Failed),
        ] {
            let mut drive = ended(Until::Requests, outcome, &more);
            drive.max_runs = 1;
            assert_eq!(drive.next(s(10)), Next::Finish(finish));
        }
        let mut drive = ended(Until::Requests, Outcome::Changed, &more);
        drive.deadline = Some(s(15));
        assert_eq!(drive.next(s(10)), Next::Finish(Finish::Timeout));
        drive.deadline = Some(s(16));
        assert_eq!(
            drive.next(s(10)),
            Next::Wait(s(15), Because::Due("again".into()))
        );
        // Being content is not spoilt by the time.
        let mut drive = ended(Until::Requests, Outcome::Changed, &[]);
        drive.deadline = Some(s(1));
        assert_eq!(drive.next(s(10)), Next::Finish(Finish::Converged));
    }

    #[derive(Debug, Clone)]
    struct Plan {
        takes: u64,
        outcome: Outcome,
        asks: Vec<(u8, u64, bool)>,
    }

    fn plans() -> impl Strategy<Value = Vec<Plan>> {
        let outcome = prop_oneof![
            Just(Outcome::Changed),
            Just(Outcome::Unchanged),
            Just(Outcome::Succeeded),
            Just(Outcome::Failed),
            Just(Outcome::Skipped),
            Just(Outcome::Killed),
        ];
        let asks = proptest::collection::vec((0..3u8, 0..40u64, any::<bool>()), 0..4);
        let plan = (0..20u64, outcome, asks).prop_map(|(takes, outcome, asks)| Plan {
            takes,
            outcome,
            asks,
        });
        proptest::collection::vec(plan, 1..12)
    }

    proptest! {
        /// Whatever the runs ask for and however they end: no run starts before a
        /// timer that it is for is due, none beyond the cap or the deadline, and
        /// every timer's job is done or the driver says why not.
        #[test]
        fn drives_to_an_end(
            plans in plans(),
            max_runs in 1..8u32,
            deadline in proptest::option::of(0..120u64),
            clean in any::<bool>(),
        ) {
            let until = if clean { Until::Clean } else { Until::Requests };
            let mut drive = Drive::new(until, max_runs, deadline.map(s), None);
            let mut clock = 7;
            let mut pending: BTreeMap<String, u64> = BTreeMap::new();
            let mut starts: Vec<u64> = Vec::new();
            let mut last = None;
            let finish = loop {
                match drive.next(s(clock)) {
                    Next::Wait(due, because) => {
                        let Because::Due(name) = because else { panic!("{because:?}") };
                        prop_assert!(due > s(clock));
                        prop_assert_eq!(pending.get(&name).map(|at| s(*at)), Some(due));
                        prop_assert!(pending.values().all(|at| s(*at) >= due));
                        clock = due.nanos() / 1_000_000_000;
                    }
                    Next::Start(because) => {
                        prop_assert!(deadline.is_none_or(|at| clock < at));
                        if let Because::Due(name) = &because {
                            prop_assert!(pending[name] <= clock);
                        }
                        let done = drive.begin(s(clock));
                        let before = pending.len();
                        pending.retain(|_, at| *at > clock);
                        prop_assert_eq!(done.len(), before - pending.len());
                        starts.push(clock);
                        let plan = &plans[(starts.len() - 1) % plans.len()];
                        let (from, to) = (clock, clock + plan.takes);
                        clock = to;
                        drive.end(plan.outcome, None);
                        last = Some(plan.outcome);
                        for (name, delta, at_request) in &plan.asks {
                            let name = name.to_string();
                            let base = if *at_request { Base::Request } else { Base::End };
                            let start = if *at_request { from } else { to };
                            let replaced = drive.ask(ask(&name, *delta, base, from), s(to));
                            prop_assert_eq!(replaced.is_some(), pending.insert(name, start + delta).is_some());
                        }
                    }
                    Next::Finish(finish) => break finish,
                }
            };
            prop_assert!(starts.len() <= max_runs as usize);
            prop_assert!(starts.len() == drive.runs() as usize);
            match finish {
                Finish::Converged => {
                    prop_assert!(pending.is_empty());
                    prop_assert!(last.is_some_and(|last| !last.is_failure()));
                    prop_assert!(!clean || last == Some(Outcome::Unchanged));
                }
                Finish::Failed => prop_assert!(last.is_some_and(Outcome::is_failure)),
                Finish::Unclear => prop_assert!(clean && last == Some(Outcome::Succeeded)),
                Finish::Cap => prop_assert_eq!(starts.len(), max_runs as usize),
                Finish::Timeout => prop_assert!(deadline.is_some()),
            }
        }

        #[test]
        fn a_failing_status_is_never_a_success(
            status in 1..256i32,
            detailed in any::<bool>(),
            lock_is_taken in any::<bool>(),
            changed in any::<bool>(),
        ) {
            let summary = if changed { Outcome::Changed } else { Outcome::Unchanged };
            let seen = Evidence { end: End::Exit(status), detailed, summary: Some(summary), lock_is_taken };
            let is_success = status == 2 && detailed && changed;
            prop_assert_eq!(judge(&seen) == Outcome::Failed, !is_success);
        }
    }
}
