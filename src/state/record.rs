//! The public record of a target: times, counts, outcomes; no command lines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::hurry::Pending;
use crate::policy::resume::{Boot, Wait};
use crate::state::entry::What;
use crate::state::newer::{VERSION, Versioned};
use again_base::model::{
    Base, Boottime, Bytes, Cap, Identity, Kind, Moment, Obstacle, OnCap, Outcome, Place,
    Provenance, Refusal, Span, Walltime, outcome_of,
};
use again_base::schema::origin::{Lineage, Taken, Trigger};

/// Origin of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A puppet run on this machine.
    Run,
    /// A command line outside any run.
    Command,
}

/// A pending request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// Token that distinguishes this request from an earlier or later one of the same name.
    pub token: String,
    /// Id of the chain.
    pub chain: String,
    /// Number of the rerun in the chain; the first run is 1.
    pub run: u32,
    /// Origin of the request.
    pub origin: Origin,
    /// Resource that requested the rerun, according to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Minimum wait.
    pub delta: Span,
    /// Random jitter, added to `delta`.
    pub jitter: Span,
    /// Moment from which delta and jitter count.
    pub base: Base,
    /// Time of the request.
    pub requested: Moment,
    /// Run that requested the rerun and has to end first.
    pub waits_for: Option<Identity>,
    /// Promises taken over from older requests of the same name, by other runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<Promise>,
    /// Due time, once known, on the clock of `boot`.
    pub due: Option<Boottime>,
    /// Due time on the wall clock at that moment, for people and for use after a reboot.
    pub due_wall: Option<Walltime>,
    /// Whether a person asked to skip the wait.
    pub hurry: bool,
    /// Part of the wait that the cap has added (`on_cap = wait`).
    pub put_off: Span,
    /// Reason why the rerun is held although it is due.
    pub held: Option<String>,
    /// Obstacle that the rerun waits for although it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Waiter process, under `boot`.
    pub waiter: Option<Identity>,
    /// Boot under which `waiter`, `waits_for` and `due` are valid.
    pub boot: String,
    /// Pid namespace of the waiter.
    pub place: Place,
    /// Cap on the target's reruns.
    pub cap: Cap,
    /// Maximum number of reruns of all targets together within the cap's window.
    pub max_runs_total: u32,
    /// Action when the cap is reached.
    pub on_cap: OnCap,
    /// systemd scope of the waiter, if any.
    pub scope: Option<String>,
    /// Lineage of the requesting run, if other nodes requested that run.
    #[serde(default, skip_serializing_if = "Lineage::is_empty")]
    pub lineage: Lineage,
    /// Triggers of other nodes that wait in this timer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<Taken>,
}

/// Obstacle of a waiter, if other processes cannot detect it themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Kind of the obstacle.
    pub what: Obstacle,
    /// Obstacle in words, for people.
    pub words: String,
}

/// A promise to a run whose request another run's newer request has replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Run, which has to end first too; None if its machine was rebooted since.
    pub run: Option<Identity>,
    /// Due time of the promised rerun, if known.
    pub due: Option<Boottime>,
    /// Minimum wait.
    pub delta: Span,
    /// Random jitter, added to `delta`.
    pub jitter: Span,
}

impl Promise {
    /// Limits the due time to the whole wait from now on.
    pub fn limit(&mut self, now: &Moment) {
        let latest = now.uptime + (self.delta + self.jitter);
        self.due = self.due.map(|due| due.min(latest));
    }
}

impl Timer {
    /// Provenance of the waiter, seen from here.
    pub fn provenance(&self, now: &Moment) -> Provenance {
        now.provenance(&self.boot, self.place)
    }

    /// Runs that have to end first.
    pub fn runs(&self) -> impl Iterator<Item = Identity> {
        let others = self.promises.iter().filter_map(|promise| promise.run);
        self.waits_for.into_iter().chain(others)
    }

    /// Cap over all targets together that applies to this timer.
    pub fn total(&self) -> Cap {
        Cap {
            max_runs: self.max_runs_total,
            is_total: true,
            ..self.cap
        }
    }

    /// Fields that `again now` changes, under the boot in which they were set.
    pub fn pending(&self) -> Pending {
        Pending {
            due: self.due,
            delta: self.delta,
            put_off: self.put_off,
            hurry: self.hurry,
        }
    }

    /// Remaining wait, for a new waiter.
    pub fn wait(&self, now: &Moment) -> Wait {
        let promised = |what: fn(&Promise) -> Span| self.promises.iter().map(what);
        Wait {
            boot: match now.may_be_under(&self.boot) {
                _ if now.is_under(&self.boot) => Boot::This,
                true => Boot::Unknown,
                false => Boot::Another,
            },
            due: self.due,
            due_wall: self.due_wall.and_then(|wall| {
                // The latest of all promises.
                let mut dues = self.promises.iter().map(|promise| promise.due);
                let latest = dues.try_fold(self.due?, |due, other| Some(due.max(other?)));
                Some(wall + latest?.since(self.due?))
            }),
            delta: promised(|promise| promise.delta).fold(self.delta, Span::max),
            jitter: promised(|promise| promise.jitter).fold(self.jitter, Span::max),
            hurry: self.hurry,
        }
    }

    /// Sets the fields of [`Timer::pending`] after a change.
    pub fn set_pending(&mut self, pending: Pending, now: &Moment) {
        self.due = pending.due;
        self.due_wall = pending.due.map(|due| now.wall + due.since(now.uptime));
        self.delta = pending.delta;
        self.put_off = pending.put_off;
        self.hurry = pending.hurry;
        for promise in self.promises.iter_mut().filter(|_| pending.hurry) {
            (promise.delta, promise.jitter) = (Span::ZERO, Span::ZERO);
            promise.due = promise.due.map(|due| due.min(now.uptime));
        }
    }
}

/// A rerun that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Process of the rerun, formerly the waiter's.
    pub process: Identity,
    /// Token of the timer.
    pub token: String,
    /// The chain.
    pub chain: String,
    /// Number of the rerun in the chain.
    pub run: u32,
    /// Timer that started the rerun.
    pub timer: String,
    /// Start time.
    pub started: Moment,
    /// Log file with the output.
    pub log: String,
    /// Reason why there is no log, if the output is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_lost: Option<String>,
    /// Maximum size of the log once the rerun has ended, in bytes; 0 is no limit.
    pub log_limit: u64,
    /// Puppet's summary file, which shows the outcome.
    pub lastrunfile: Option<String>,
    /// User who ended the rerun early, and the way.
    pub stopped: Option<String>,
    /// Process that checks whether the rerun gets Puppet's lock, and settles it if it is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observer: Option<Identity>,
    /// Lineage of the rerun, if other nodes requested it.
    #[serde(default, skip_serializing_if = "Lineage::is_empty")]
    pub lineage: Lineage,
    /// State to restore if the process dies before the rerun begins. A process that records this
    /// empties its order as its last call before exec, so a whole order proves that nothing began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_start: Option<Box<BeforeStart>>,
}

/// Parts of the record that a start replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeforeStart {
    /// Timer, with the number of its rerun.
    pub timer: Timer,
    /// Newest known run before the rerun.
    pub seen_run: Option<Moment>,
}

/// A rerun that was seen to have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The rerun.
    pub rerun: Running,
    /// Outcome of the rerun.
    pub outcome: Outcome,
    /// Evidence for the outcome.
    pub evidence: String,
    /// End time, as precisely as the traces show.
    pub ended: Option<Walltime>,
    /// Time at which the end was noticed.
    pub noticed: Moment,
}

/// End of a run that requested reruns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// The run.
    pub run: Identity,
    /// Boot under which the run ran.
    pub boot: String,
    /// Time at which the first of its waiters noticed the end.
    pub at: Boottime,
}

/// Number of ends of runs that are kept.
const RUN_ENDS_KEPT: usize = 8;

/// Timer that is no longer on record, while its waiter may still live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Token of the timer.
    pub token: String,
    /// Waiter process.
    pub waiter: Option<Identity>,
    /// Boot under which `waiter` is valid.
    pub boot: String,
    /// Pid namespace of the waiter.
    pub place: Place,
}

impl From<&Timer> for Leaving {
    fn from(timer: &Timer) -> Self {
        Leaving {
            token: timer.token.clone(),
            waiter: timer.waiter,
            boot: timer.boot.clone(),
            place: timer.place,
        }
    }
}

impl Running {
    /// Provenance of the rerun, seen from here.
    pub fn provenance(&self, now: &Moment) -> Provenance {
        now.provenance(&self.started.boot, self.started.place)
    }
}

impl Ended {
    /// End time if known, otherwise the time at which the end was noticed.
    pub fn moment(&self) -> Moment {
        let noticed = &self.noticed;
        let ago = self
            .ended
            .map_or(Span::ZERO, |ended| noticed.wall.since(ended));
        // Only within this boot can the time be counted back.
        let since_start = noticed.uptime.since(self.rerun.started.uptime);
        let is_within = self.rerun.started.boot == noticed.boot && ago <= since_start;
        let back = if is_within { ago } else { Span::ZERO };
        Moment {
            uptime: Boottime::from_nanos(noticed.uptime.nanos() - back.nanos()),
            wall: noticed.wall - ago,
            ..noticed.clone()
        }
    }
}

/// Start of a rerun, counted by the cap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Time of the start.
    pub at: Moment,
    /// Chain of the rerun.
    pub chain: String,
    /// Number of the rerun in the chain.
    pub run: u32,
    /// Whether `again reset` excluded the start from the count. Its number in the chain stays used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgotten: bool,
}

/// Last request that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Time of the refusal.
    pub at: Moment,
    /// The timer's name.
    pub timer: String,
    /// Kind of the refusal: [`Refusal::kind`].
    pub kind: String,
    /// Cause, for people.
    pub reason: String,
}

impl Refused {
    /// Message that was printed or logged, without the program name.
    pub fn line(&self) -> String {
        format!("{}: {}", outcome_of(&self.kind), self.reason)
    }
}

/// Last timer that ended without a rerun of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Time of that end.
    pub at: Moment,
    /// The timer's name.
    pub timer: String,
    /// Kind of the end: satisfied, stopped with its service, failed, lost.
    pub what: What,
    /// Reason in words.
    pub reason: String,
}

/// Public record of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The record's version.
    pub version: u32,
    /// The target's id.
    pub id: String,
    /// Kind of run.
    pub kind: Kind,
    /// User id of the owner.
    pub uid: u32,
    /// Time after which a run of this target is stuck: Puppet's `runtimeout`, or two hours.
    pub stuck_after: Span,
    /// Agent's lock file: `runtimeout` counts from the moment a run acquired it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Bytes>,
    /// Starts of reruns, oldest first, which the cap counts.
    pub starts: Vec<Start>,
    /// Pending timers by name.
    pub timers: BTreeMap<String, Timer>,
    /// Timers that were replaced or stopped, until their waiters have ended. If a process dies
    /// after it removed a timer from `timers` and before it ended the waiter, the timer stays here.
    pub leaving: Vec<Leaving>,
    /// Times at which requesting runs were seen to have ended, newest last: one moment for all
    /// timers of a run.
    pub run_ends: Vec<RunEnd>,
    /// Reruns that were started and not yet seen to have ended, newest last.
    pub running: Vec<Running>,
    /// Newest rerun that was seen to have ended.
    pub last: Option<Ended>,
    /// Newest refusal.
    pub refused: Option<Refused>,
    /// Newest timer that ended without a rerun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<Missed>,
    /// Newest known start of a run of this target, whether a rerun or not.
    pub seen_run: Option<Moment>,
    /// Accepted triggers, the newest of each sender and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<Trigger>,
    /// Newest runs of others that did the job of triggers, by the start of their processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub served: Vec<Taken>,
    /// Boot under which `served` is valid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub served_boot: String,
}

impl Versioned for Record {
    fn version(&self) -> u32 {
        self.version
    }
}

/// Time after which a run counts as stuck if its target has no `runtimeout`.
fn stuck_after() -> Span {
    Span::from_secs(2 * 3600)
}

/// Minimum number of starts that are kept, whatever the cap, because it may be raised. All of them
/// are read and written with every request.
const STARTS_KEPT: usize = 20;

impl Record {
    /// Record of a target about which nothing is known yet.
    pub fn new(id: &str, kind: Kind, uid: u32) -> Self {
        Record {
            version: VERSION,
            id: id.to_owned(),
            kind,
            uid,
            stuck_after: stuck_after(),
            lock: None,
            starts: Vec::new(),
            timers: BTreeMap::new(),
            leaving: Vec::new(),
            run_ends: Vec::new(),
            running: Vec::new(),
            last: None,
            refused: None,
            missed: None,
            seen_run: None,
            numbers: Vec::new(),
            served: Vec::new(),
            served_boot: String::new(),
        }
    }

    /// Sets `stuck_after` from Puppet's own limit of a run's time, if there is one.
    pub fn set_run_timeout(&mut self, limit: Option<Span>) {
        self.stuck_after = limit.unwrap_or_else(stuck_after);
    }

    /// Records that a request, or a timer that was due, was refused.
    pub fn note_refused(&mut self, timer: &str, refusal: &Refusal, at: Moment) {
        self.refused = Some(Refused {
            at,
            timer: timer.to_owned(),
            kind: refusal.kind().to_owned(),
            reason: refusal.cause(),
        });
    }

    /// Records that a timer ended without a rerun.
    pub fn note_missed(&mut self, timer: &str, what: What, reason: &str, at: Moment) {
        self.missed = Some(Missed {
            at,
            timer: timer.to_owned(),
            what,
            reason: reason.to_owned(),
        });
    }

    /// Records the start of a rerun. Keeps at least as many starts as the cap counts.
    pub fn note_start(&mut self, running: Running, cap: Cap) {
        self.starts.push(Start {
            at: running.started.clone(),
            chain: running.chain.clone(),
            run: running.run,
            forgotten: false,
        });
        let keep = STARTS_KEPT.max(cap.max_runs as usize);
        let surplus = self.starts.len().saturating_sub(keep);
        self.starts.drain(..surplus);
        self.note_run(&running.started);
        self.running.push(running);
    }

    /// Adds a running rerun that the record has lost.
    pub fn note_running(&mut self, run: Running) {
        let start = Start {
            at: run.started.clone(),
            chain: run.chain.clone(),
            run: run.run,
            forgotten: false,
        };
        let is_it = |known: &Start| (&known.chain, known.run) == (&start.chain, start.run);
        if !self.starts.iter().any(is_it) {
            self.starts.push(start);
        }
        self.note_run(&run.started);
        if !self.running.iter().any(|known| known.token == run.token) {
            self.running.push(run);
        }
    }

    /// End time of a run: the one recorded by the first waiter that noticed it, or else `now`,
    /// which is then recorded.
    pub fn run_end(&mut self, run: Identity, boot: &str, now: Boottime) -> Boottime {
        let known = self
            .run_ends
            .iter()
            .find(|end| end.run == run && end.boot == boot);
        if let Some(end) = known {
            return end.at;
        }
        self.run_ends.push(RunEnd {
            run,
            boot: boot.to_owned(),
            at: now,
        });
        let surplus = self.run_ends.len().saturating_sub(RUN_ENDS_KEPT);
        self.run_ends.drain(..surplus);
        now
    }

    /// Removes a timer from the record; its waiter has yet to be ended.
    pub fn take_timer(&mut self, name: &str) -> Option<Timer> {
        let timer = self.timers.remove(name)?;
        self.leaving.push(Leaving::from(&timer));
        Some(timer)
    }

    /// Tokens of all timers, waiters to end and reruns on record.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        let timers = self.timers.values().map(|timer| &timer.token);
        let leaving = self.leaving.iter().map(|leaving| &leaving.token);
        let running = self.running.iter().map(|rerun| &rerun.token);
        timers.chain(leaving).chain(running).map(String::as_str)
    }

    /// Start times of the reruns that the cap counts.
    pub fn moments(&self) -> impl Iterator<Item = &Moment> {
        let counted = self.starts.iter().filter(|start| !start.forgotten);
        counted.map(|start| &start.at)
    }

    /// Number of the next rerun of a chain, at least `least`.
    ///
    /// Two requests of one run lead to two reruns with different numbers.
    pub fn next_number(&self, chain: &str, least: u32) -> u32 {
        self.starts
            .iter()
            .filter(|start| start.chain == chain)
            .map(|start| start.run.saturating_add(1))
            .max()
            .unwrap_or(0)
            .max(least)
    }

    /// Records the start of a run of this target.
    pub fn note_run(&mut self, started: &Moment) {
        let newer = self
            .seen_run
            .as_ref()
            .is_none_or(|seen| seen.boot != started.boot || seen.uptime < started.uptime);
        if newer {
            self.seen_run = Some(started.clone());
        }
    }

    /// Removes and returns the running reruns for which `of` is true, oldest first.
    pub fn take_runs(&mut self, of: impl Fn(&Running) -> bool) -> Vec<Running> {
        let (taken, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(of);
        self.running = still;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More runs than can be waited for: those that live and the newest stay.
    #[test]
    fn a_timer_takes_over_so_many_promises_and_no_more() {
        let timer = |pid: i32| -> Timer {
            let run = Identity { pid, start: 1 };
            let timer = serde_json::json!({
                "token": "t", "chain": "c", "run": 2, "origin": "run", "delta": pid, "jitter": 0,
                "base": "end", "requested": Moment::default(), "waits_for": run, "due": null,
                "due_wall": null, "waiter": null, "boot": "b",
                "cap": {"max_runs": 10, "window": 3600}, "on_cap": "wait",
                "max_runs_total": 30, "hurry": false, "put_off": 0, "place": Moment::default().place,
            });
            serde_json::from_value(timer).expect("a timer")
        };
        let mut now = Moment {
            boot: "b".into(),
            ..Moment::default()
        };
        let mut newest = timer(1);
        for pid in (2..=20).chain([20]) {
            let old = std::mem::replace(&mut newest, timer(pid));
            newest.keep_promises(&old, &now, |who| who.pid == 3);
        }
        let pids: Vec<i32> = newest.runs().map(|who| who.pid).collect();
        assert_eq!(pids, [20, 3, 13, 14, 15, 16, 17, 18, 19]);
        let deltas = newest.promises.iter().map(|one| one.delta.nanos());
        assert!(deltas.eq([3, 13, 14, 15, 16, 17, 18, 19]));
        // A run that asks again under the same name changes the promise to it.
        assert!(
            !newest
                .promises
                .iter()
                .any(|one| one.run == newest.waits_for)
        );
        // What has passed need not be kept.
        let mut next = timer(30);
        for promise in &mut newest.promises {
            promise.due = Some(Boottime::from_nanos(5));
        }
        now.uptime = Boottime::from_nanos(5);
        next.keep_promises(&newest, &now, |_| false);
        assert!(next.runs().map(|who| who.pid).eq([30, 20]));
    }

    #[test]
    fn the_newest_starts_are_kept_as_many_as_the_cap_needs() {
        let kept = |max_runs| {
            let mut record = Record::new("0123456789abcdef", Kind::Apply, 0);
            for run in 1..=60 {
                let running = serde_json::json!({
                    "process": Identity { pid: 9, start: 1 }, "token": "t", "chain": "c", "run": run,
                    "timer": "x", "started": Moment::default(), "log": "", "log_limit": 0,
                });
                let running = serde_json::from_value(running).expect("a rerun");
                let window = Span::from_secs(3600);
                record.note_start(
                    running,
                    Cap {
                        max_runs,
                        window,
                        is_total: false,
                    },
                );
            }
            assert_eq!(record.next_number("c", 1), 61);
            record.starts.len()
        };
        assert_eq!([kept(0), kept(20), kept(21), kept(1000)], [20, 20, 21, 60]);
    }

    #[test]
    fn every_rerun_of_a_chain_gets_a_number_of_its_own() {
        let mut record = Record::new("0123456789abcdef", Kind::Apply, 0);
        let start = |chain: &str, run| Start {
            at: Moment::default(),
            chain: chain.into(),
            run,
            forgotten: false,
        };
        assert_eq!(record.next_number("a", 2), 2);
        record.starts = vec![start("a", 2), start("b", 7)];
        assert_eq!(record.next_number("a", 2), 3);
        assert_eq!(record.next_number("a", 5), 5);
        assert_eq!(record.next_number("c", 2), 2);
    }
}
