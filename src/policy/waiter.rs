//! Decides a waiter's next step.
//!
//! The waiter observes the world, takes one step, and observes again after every wait: it relies on
//! nothing that it saw before the wait.

use super::shutdown::Shutdown;
use again_base::model::{
    Boottime, Cap, Foreign, Hold, Identity, OnCap, Refusal, Satisfied, Span, Use,
};

/// Process that has to end first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocker {
    /// Process of the other run.
    pub process: Identity,
    /// Start time of that run.
    pub started: Boottime,
}

/// Agent daemon whose run requested the rerun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The request did not come from a daemon.
    None,
    /// The daemon lives, or another one has replaced it.
    Alive,
    /// No agent daemon has been seen since then.
    Away(Boottime),
}

/// Slot of the fleet: the right to run now, if a run needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// A slot is not needed, or has been granted.
    Free,
    /// A slot has to be requested.
    Wanted,
    /// There was no slot; the next request is at this time.
    Denied(Boottime),
}

/// Time until the next request for a slot.
pub const ASK_AGAIN: Span = Span::from_secs(60);

/// Maximum absence of a service before it counts as stopped: systemd, or the person who restarts
/// it, needs a moment between the old daemon's end and the new one's start.
pub const RESTART: Span = Span::from_secs(5);

/// Interval for checking whether an absent service is back.
const LOOK_FOR_SERVICE: Span = Span::from_nanos(500_000_000);

/// State of the world that a waiter sees at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Current time.
    pub now: Boottime,
    /// Whether a signal asked this process to end.
    pub told_to_end: bool,
    /// Whether the record still names this waiter for its timer.
    pub in_charge: bool,
    /// Whether a requesting run is alive.
    pub run_alive: bool,
    /// Due time of the timer, known once the runs have ended.
    pub due: Option<Due>,
    /// Facts that matter only once the timer is due; `None` until then.
    pub at_due: Option<AtDue>,
}

/// Due time of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    /// Earliest start of a run that does the timer's job: jitter and the delay by the cap only
    /// spread reruns.
    pub least: Boottime,
    /// Start time of the timer's own rerun.
    pub at: Boottime,
}

/// Facts that matter once a timer is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtDue {
    /// Run that holds the agent's lock.
    pub holder: Option<Blocker>,
    /// Begin of that run's time and its limit, if the run is to be ended.
    pub ends_after: Option<(Boottime, Span)>,
    /// Living rerun of the same target.
    pub rerun: Option<Blocker>,
    /// Origin of a rerun of the same target that may be running but cannot be seen from here.
    pub elsewhere: Option<Foreign>,
    /// Start of the newest known run of this target.
    pub newest_run: Option<Boottime>,
    /// Shutdown that holds the timer.
    pub shutdown: Option<Shutdown>,
    /// Reason of `again disable`.
    pub disabled: Option<String>,
    /// Reason of `puppet agent --disable`.
    pub agent_disabled: Option<String>,
    /// State of the agent daemon.
    pub service: Service,
    /// Manifest or directory that is missing, if any.
    pub missing: Option<String>,
    /// Cap that applies.
    pub cap: Cap,
    /// Use of the cap.
    pub usage: Use,
    /// Action when the cap is reached.
    pub on_cap: OnCap,
    /// State of the slot of the fleet.
    pub slot: Slot,
}

/// Next step of a waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Sleep until the requesting runs have ended.
    AwaitRuns,
    /// Delay the timer until then, because of the cap.
    PutOff(Boottime),
    /// Sleep until then.
    AwaitDue(Boottime),
    /// Observe what matters once the timer is due.
    LookAround,
    /// Sleep until that process has ended.
    AwaitProcess(Identity),
    /// Sleep until the process has ended, or until this time, when it has exceeded its limit.
    AwaitHolder(Identity, Boottime),
    /// End that process, which has exceeded its time and is this old, and sleep until it has ended.
    EndHolder(Identity, Span),
    /// Sleep for a while, then check whether the foreign rerun has ended.
    AwaitForeign(Foreign),
    /// Sleep until then, and check whether the service is back.
    AwaitService(Boottime),
    /// Sleep until a file changes.
    Hold(Hold),
    /// Sleep until the announcement of a shutdown changes, or is too old.
    AwaitShutdown(Shutdown),
    /// Request a slot and sleep until it is granted; or sleep until this time, when it is requested
    /// again.
    AwaitSlot(Option<Boottime>),
    /// End, for this reason.
    Finish(Finish),
    /// Record the start, and become the rerun.
    Launch,
}

impl Step {
    /// Whether the step may last for hours, so that other runs should not wait for this one.
    pub fn is_long(&self) -> bool {
        matches!(
            self,
            Step::AwaitDue(_) | Step::AwaitForeign(_) | Step::Hold(_) | Step::AwaitShutdown(_)
        )
    }
}

/// Reason why a waiter ends without a rerun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// A signal asked the waiter to end; the timer stays on record.
    Interrupted,
    /// The record names another waiter, or none.
    Superseded,
    /// Another run did the job; it started at this time.
    Satisfied(Satisfied, Boottime),
    /// The service was stopped.
    ServiceStopped,
    /// The cap was reached.
    Capped(Refusal),
    /// A file or directory that the rerun needs is missing.
    Gone(String),
}

/// Decides the next step.
pub fn step(view: &View) -> Step {
    if !view.in_charge {
        return Step::Finish(Finish::Superseded);
    }
    if view.told_to_end {
        return Step::Finish(Finish::Interrupted);
    }
    let Some(due) = view.due.filter(|_| !view.run_alive) else {
        return Step::AwaitRuns;
    };
    if view.now < due.at {
        return Step::AwaitDue(due.at);
    }
    let Some(at_due) = &view.at_due else {
        return Step::LookAround;
    };
    step_at_due(due, view.now, at_due)
}

fn step_at_due(due: Due, now: Boottime, at_due: &AtDue) -> Step {
    let did_it = |started: Boottime| started >= due.least;
    if let Some(started) = at_due.newest_run.filter(|started| did_it(*started)) {
        return Step::Finish(Finish::Satisfied(Satisfied::OnRecord, started));
    }
    if let Some(holder) = at_due.holder {
        if did_it(holder.started) {
            let pid = holder.process.pid;
            let by = Satisfied::ByAgent { pid };
            return Step::Finish(Finish::Satisfied(by, holder.started));
        }
        let who = holder.process;
        let Some((began, limit)) = at_due.ends_after else {
            return Step::AwaitProcess(who);
        };
        return match began + limit {
            end if now >= end => Step::EndHolder(who, now.since(began)),
            end => Step::AwaitHolder(who, end),
        };
    }
    if let Some(rerun) = at_due.rerun {
        return Step::AwaitProcess(rerun.process);
    }
    if let Some(whose) = at_due.elsewhere {
        return Step::AwaitForeign(whose);
    }
    // Before the service, which a shutdown stops too.
    if let Some(shutdown) = at_due.shutdown {
        return Step::AwaitShutdown(shutdown);
    }
    if let Service::Away(since) = at_due.service {
        let end = since + RESTART;
        if now >= end {
            return Step::Finish(Finish::ServiceStopped);
        }
        return Step::AwaitService(end.min(now + LOOK_FOR_SERVICE));
    }
    if let Some(reason) = &at_due.disabled {
        return Step::Hold(Hold::Again(reason.clone()));
    }
    if let Some(reason) = &at_due.agent_disabled {
        return Step::Hold(Hold::Agent(reason.clone()));
    }
    if let Some(missing) = &at_due.missing {
        return Step::Finish(Finish::Gone(missing.clone()));
    }
    if at_due.usage.is_reached() {
        return match at_due.on_cap {
            OnCap::Wait if at_due.cap.max_runs > 0 => Step::PutOff(now + at_due.usage.frees_in),
            on_cap => Step::Finish(Finish::Capped(Refusal::Cap {
                cap: at_due.cap,
                usage: at_due.usage,
                fails: on_cap != OnCap::Skip,
            })),
        };
    }
    // Last of all, so that a waiter with a slot does not wait for anything else.
    match at_due.slot {
        Slot::Free => Step::Launch,
        Slot::Wanted => Step::AwaitSlot(None),
        Slot::Denied(until) => Step::AwaitSlot(Some(until).filter(|until| now < *until)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::cap::usage;
    use again_base::model::{Moment, Place, Walltime};
    use proptest::prelude::*;

    const OTHER: Identity = Identity { pid: 11, start: 2 };
    const CAP: Cap = Cap {
        max_runs: 2,
        window: Span::from_secs(100),
        is_total: false,
    };

    fn s(seconds: u64) -> Boottime {
        Boottime::from_nanos(seconds * 1_000_000_000)
    }

    fn due(least: u64, at: u64) -> Due {
        Due {
            least: s(least),
            at: s(at),
        }
    }

    fn at_due() -> AtDue {
        AtDue {
            holder: None,
            ends_after: None,
            rerun: None,
            elsewhere: None,
            newest_run: None,
            shutdown: None,
            disabled: None,
            agent_disabled: None,
            service: Service::None,
            missing: None,
            cap: CAP,
            usage: Use {
                foreign: 0,
                ahead: 0,
                used: 0,
                frees_in: Span::ZERO,
            },
            on_cap: OnCap::Fail,
            slot: Slot::Free,
        }
    }

    fn view() -> View {
        View {
            now: s(100),
            told_to_end: false,
            in_charge: true,
            run_alive: false,
            due: Some(due(85, 90)),
            at_due: Some(at_due()),
        }
    }

    fn when_due(change: impl Fn(&mut AtDue)) -> Step {
        let mut view = view();
        change(view.at_due.as_mut().expect("there"));
        step(&view)
    }

    /// A shutdown stops the service before the machine, and the timer must outlast both.
    #[test]
    fn shutdown_holds_a_timer_whose_service_it_has_stopped() {
        let shutdown = Shutdown {
            at: None,
            left: None,
            by: Some(OTHER),
        };
        let held = when_due(|at_due| {
            at_due.shutdown = Some(shutdown);
            at_due.service = Service::Away(s(1));
            at_due.missing = Some("the manifest".into());
        });
        assert_eq!(held, Step::AwaitShutdown(shutdown));
        let satisfied = when_due(|at_due| {
            at_due.shutdown = Some(shutdown);
            at_due.newest_run = Some(s(86));
        });
        assert!(matches!(satisfied, Step::Finish(Finish::Satisfied(..))));
    }

    #[test]
    fn waits_for_the_run_then_for_the_time_then_looks_around() {
        let alive = View {
            run_alive: true,
            due: None,
            at_due: None,
            ..view()
        };
        assert_eq!(step(&alive), Step::AwaitRuns);
        let known = View {
            due: Some(due(105, 106)),
            ..alive
        };
        assert_eq!(step(&known), Step::AwaitRuns);
        let known = View {
            run_alive: false,
            ..known
        };
        assert_eq!(step(&known), Step::AwaitDue(s(106)));
        assert_eq!(
            step(&View {
                now: s(106),
                ..known
            }),
            Step::LookAround
        );
        assert_eq!(step(&view()), Step::Launch);
    }

    #[test]
    fn a_run_that_started_after_the_delta_does_the_job() {
        let blocker = |at| {
            Some(Blocker {
                process: OTHER,
                started: s(at),
            })
        };
        assert_eq!(
            when_due(|a| a.holder = blocker(84)),
            Step::AwaitProcess(OTHER)
        );
        assert!(matches!(
            when_due(|a| a.holder = blocker(85)),
            Step::Finish(Finish::Satisfied(..))
        ));
        assert!(matches!(
            when_due(|a| a.newest_run = Some(s(85))),
            Step::Finish(Finish::Satisfied(..))
        ));
        assert_eq!(when_due(|a| a.newest_run = Some(s(84))), Step::Launch);
        assert_eq!(
            when_due(|a| a.rerun = blocker(80)),
            Step::AwaitProcess(OTHER)
        );
        assert_eq!(
            when_due(|a| a.elsewhere = Some(Foreign::Namespace)),
            Step::AwaitForeign(Foreign::Namespace)
        );
    }

    #[test]
    fn a_holder_is_ended_when_it_has_outlived_its_time_and_not_before() {
        let held = |ends_after: Option<Span>| {
            when_due(|a| {
                let (process, started) = (OTHER, Boottime::default());
                a.holder = Some(Blocker { process, started });
                a.ends_after = ends_after.map(|limit| (s(1), limit));
            })
        };
        let (short, long) = (Span::from_secs(99), Span::from_secs(100));
        assert_eq!(held(None), Step::AwaitProcess(OTHER));
        assert_eq!(held(Some(short)), Step::EndHolder(OTHER, short));
        assert_eq!(held(Some(long)), Step::AwaitHolder(OTHER, s(101)));
    }

    #[test]
    fn holds_stops_and_refuses_with_the_reason() {
        assert_eq!(
            when_due(|a| a.agent_disabled = Some("why".into())),
            Step::Hold(Hold::Agent("why".into()))
        );
        assert_eq!(
            when_due(|a| a.disabled = Some(String::new())),
            Step::Hold(Hold::Again(String::new()))
        );
        // At 100 s: away for long, for a moment, and since just now.
        for (since, expected) in [
            (95, Step::Finish(Finish::ServiceStopped)),
            (96, Step::AwaitService(s(100) + LOOK_FOR_SERVICE)),
            (100, Step::AwaitService(s(100) + LOOK_FOR_SERVICE)),
        ] {
            assert_eq!(when_due(|a| a.service = Service::Away(s(since))), expected);
        }
        let nearly = s(95) + Span::from_nanos(100_000_000);
        assert_eq!(
            when_due(|a| a.service = Service::Away(nearly)),
            Step::AwaitService(nearly + RESTART)
        );
        assert_eq!(
            when_due(|a| a.missing = Some("/x.pp".into())),
            Step::Finish(Finish::Gone("/x.pp".into()))
        );
    }

    #[test]
    fn a_slot_is_asked_for_once_nothing_else_is_in_the_way_and_again_after_a_while() {
        let slot = |slot| when_due(|a| a.slot = slot);
        assert_eq!(slot(Slot::Free), Step::Launch);
        assert_eq!(slot(Slot::Wanted), Step::AwaitSlot(None));
        // At 100 s.
        assert_eq!(slot(Slot::Denied(s(101))), Step::AwaitSlot(Some(s(101))));
        assert_eq!(slot(Slot::Denied(s(100))), Step::AwaitSlot(None));
        for slot in [Slot::Free, Slot::Wanted, Slot::Denied(s(101))] {
            let held = when_due(|a| (a.slot, a.disabled) = (slot, Some(String::new())));
            assert_eq!(held, Step::Hold(Hold::Again(String::new())));
        }
    }

    #[test]
    fn the_cap_ends_it_or_puts_it_off() {
        let reached = Use {
            foreign: 0,
            ahead: 0,
            used: 2,
            frees_in: Span::from_secs(7),
        };
        let capped = |on_cap, max_runs| {
            when_due(|a| {
                a.usage = reached;
                a.on_cap = on_cap;
                a.cap.max_runs = max_runs;
            })
        };
        let ends = |max_runs, fails| {
            let cap = Cap { max_runs, ..CAP };
            let usage = reached;
            Step::Finish(Finish::Capped(Refusal::Cap { cap, usage, fails }))
        };
        assert_eq!(capped(OnCap::Fail, 2), ends(2, true));
        assert_eq!(capped(OnCap::Skip, 2), ends(2, false));
        assert_eq!(capped(OnCap::Wait, 2), Step::PutOff(s(107)));
        // No moment ever comes at which a cap of nothing allows a run.
        assert_eq!(capped(OnCap::Wait, 0), ends(0, true));
    }

    /// A machine with one requesting run, one other run, an operator and a clock.
    #[derive(Debug, Clone)]
    struct World {
        clock: u64,
        run_ends: u64,
        other: Option<(u64, u64)>,
        stopped_at: Option<u64>,
        disabled: (u64, u64),
        starts: Vec<Moment>,
        put_off: Option<u64>,
        /// How long slots are waited for, each after the other: an odd one is not had.
        slots: Vec<u64>,
        needs_slot: bool,
        slot: Slot,
    }

    impl World {
        fn now(&self) -> Moment {
            Moment {
                boot: "b".into(),
                place: Place::default(),
                uptime: Boottime::from_nanos(self.clock),
                wall: Walltime::from_millis(0),
            }
        }

        fn look(&self, delta: u64, jitter: u64, on_cap: OnCap, looked: bool) -> View {
            let now = self.now();
            View {
                now: now.uptime,
                told_to_end: false,
                in_charge: self.stopped_at.is_none_or(|at| self.clock < at),
                run_alive: self.clock < self.run_ends,
                due: (self.clock >= self.run_ends).then(|| {
                    let least = self.run_ends + delta;
                    let at = self.put_off.unwrap_or(least + jitter);
                    Due {
                        least: Boottime::from_nanos(least),
                        at: Boottime::from_nanos(at),
                    }
                }),
                at_due: looked.then(|| AtDue {
                    holder: self
                        .other
                        .filter(|(from, to)| (*from..*to).contains(&self.clock))
                        .map(|(from, _)| Blocker {
                            process: OTHER,
                            started: Boottime::from_nanos(from),
                        }),
                    newest_run: self
                        .other
                        .filter(|(from, _)| *from <= self.clock)
                        .map(|(from, _)| Boottime::from_nanos(from)),
                    disabled: (self.disabled.0..self.disabled.1)
                        .contains(&self.clock)
                        .then(String::new),
                    usage: usage(CAP, &self.starts, &now),
                    on_cap,
                    slot: self.slot,
                    ..at_due()
                }),
            }
        }

        /// What came of asking for a slot, unless something else happens before: the next look begins anew then.
        fn ask(&mut self) -> u64 {
            let wait = self.slots.pop().unwrap_or(0);
            let answered = self.clock + wait * 1_000_000_000;
            let held = self.disabled.0;
            if (self.clock..answered).contains(&held) {
                return held;
            }
            self.slot = match wait % 2 {
                0 => Slot::Free,
                _ => Slot::Denied(Boottime::from_nanos(answered) + ASK_AGAIN),
            };
            answered
        }

        /// Runs one waiter to its end; the time of its launch, if it comes to one.
        fn live(&mut self, delta: u64, jitter: u64, on_cap: OnCap) -> Result<Option<u64>, String> {
            let mut looked = false;
            for _ in 0..200 {
                let took = step(&self.look(delta, jitter, on_cap, looked));
                if looked && !matches!(took, Step::Launch | Step::AwaitSlot(_)) {
                    self.slot = if self.needs_slot {
                        Slot::Wanted
                    } else {
                        Slot::Free
                    };
                }
                looked = false;
                let next = match took {
                    Step::AwaitRuns => self.run_ends,
                    Step::PutOff(due) => {
                        self.put_off = Some(due.nanos());
                        self.clock
                    }
                    Step::AwaitDue(due) | Step::AwaitService(due) => due.nanos(),
                    Step::LookAround => {
                        looked = true;
                        self.clock
                    }
                    Step::AwaitProcess(who) => {
                        if who != OTHER {
                            return Err("waits for a stranger".into());
                        }
                        self.other.map_or(self.clock, |(_, to)| to)
                    }
                    Step::AwaitForeign(_)
                    | Step::AwaitHolder(..)
                    | Step::EndHolder(..)
                    | Step::AwaitShutdown(_) => {
                        return Err("waits for a stranger".into());
                    }
                    Step::Hold(_) => self.disabled.1,
                    Step::AwaitSlot(None) => self.ask(),
                    Step::AwaitSlot(Some(until)) => until.nanos(),
                    Step::Finish(_) => return Ok(None),
                    Step::Launch => {
                        self.starts.push(self.now());
                        return Ok(Some(self.clock));
                    }
                };
                // A stop wakes it wherever it is.
                self.clock = match self.stopped_at {
                    Some(at) if at > self.clock => next.min(at),
                    _ => next,
                };
            }
            Err("never ends".into())
        }
    }

    proptest! {
        #[test]
        fn never_early_never_after_a_stop_and_never_beyond_the_cap(
            run_ends in 0..50u64,
            delta in 0..50u64,
            jitter in 0..20u64,
            other in proptest::option::of((0..120u64, 1..60u64)),
            stopped_at in proptest::option::of(0..200u64),
            disabled in (0..150u64, 0..80u64),
            earlier in proptest::collection::vec(0..1u64, 0..4),
            waits in any::<bool>(),
            slots in proptest::collection::vec(0..60u64, 0..4),
        ) {
            // One unit is a second, so that the cap's window matters.
            let unit = 1_000_000_000;
            let mut world = World {
                clock: 0,
                run_ends: run_ends * unit,
                other: other.map(|(from, length)| (from * unit, (from + length) * unit)),
                stopped_at: stopped_at.map(|at| at * unit),
                disabled: (disabled.0 * unit, (disabled.0 + disabled.1) * unit),
                starts: Vec::new(),
                put_off: None,
                needs_slot: !slots.is_empty(),
                slot: if slots.is_empty() { Slot::Free } else { Slot::Wanted },
                slots,
            };
            for at in earlier {
                let start = Moment { uptime: Boottime::from_nanos(at * unit), ..world.now() };
                if !usage(CAP, &world.starts, &start).is_reached() {
                    world.starts.push(start);
                }
            }
            let on_cap = if waits { OnCap::Wait } else { OnCap::Fail };
            let before = world.clone();
            let launched = world.live(delta * unit, jitter * unit, on_cap).map_err(TestCaseError::fail)?;
            if let Some(at) = launched {
                prop_assert_eq!(world.slot, Slot::Free);
                prop_assert!(at >= (run_ends + delta) * unit);
                prop_assert!(stopped_at.is_none_or(|stop| at < stop * unit));
                if let Some((from, to)) = before.other {
                    prop_assert!(!(from..to).contains(&at));
                    // However much the jitter has grown.
                    prop_assert!(!((run_ends + delta) * unit..=at).contains(&from), "redundant");
                }
                prop_assert!(!(before.disabled.0..before.disabled.1).contains(&at));
                for start in &world.starts {
                    let within = world.starts.iter().filter(|o| {
                        o.uptime >= start.uptime && o.uptime.since(start.uptime) < CAP.window
                    });
                    prop_assert!(within.count() <= CAP.max_runs as usize);
                }
            } else if stopped_at.is_none() && before.starts.len() < CAP.max_runs as usize {
                // It is only ever dropped because a run did its job.
                let did_it = before.other.is_some_and(|(from, _)| from >= (run_ends + delta) * unit);
                prop_assert!(did_it, "dropped: {:?}", world);
            }
        }

        #[test]
        fn a_waiter_not_in_charge_does_nothing(alive in any::<bool>(), told in any::<bool>(), now in any::<u64>()) {
            let view = View { in_charge: false, run_alive: alive, told_to_end: told, now: Boottime::from_nanos(now), ..view() };
            prop_assert_eq!(step(&view), Step::Finish(Finish::Superseded));
        }

        #[test]
        fn a_living_run_is_always_waited_for(now in any::<u64>(), due in proptest::option::of(any::<u64>())) {
            let view = View { run_alive: true, now: Boottime::from_nanos(now), due: due.map(|at| Due { least: Boottime::default(), at: Boottime::from_nanos(at) }), ..view() };
            prop_assert_eq!(step(&view), Step::AwaitRuns);
        }

        #[test]
        fn never_launches_before_it_is_due(now in 0..1000u64, due in 0..1000u64) {
            let view = View { now: s(now), due: Some(super::tests::due(0, due)), ..view() };
            prop_assert_eq!(step(&view) == Step::Launch, now >= due);
        }

        #[test]
        fn told_to_end_never_launches(alive in any::<bool>(), due in proptest::option::of(0..200u64)) {
            let view = View { told_to_end: true, run_alive: alive, due: due.map(|at| super::tests::due(0, at)), ..view() };
            prop_assert_eq!(step(&view), Step::Finish(Finish::Interrupted));
        }
    }
}
