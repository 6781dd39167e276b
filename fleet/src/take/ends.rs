//! Processes whose ends change what became of triggers: waiters, which become runs, and runs. Read from `again status --json`, and held
//! by pidfds, which the service waits for.

use std::os::fd::OwnedFd;

use again::model::{Boottime, Span};
use again::sys::process;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;

use crate::handover::{Answer, MOST_PIDFDS};
use crate::wire::name::Id;

/// How many processes are held while it is found out which of them are followed.
const MOST_HELD: usize = 64;
/// The unit of start times in /proc: USER_HZ is 100 wherever this program is built for.
const TICK: Span = Span::from_nanos(10_000_000);

/// A process that lives according to `again status`.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    pid: i32,
    chain: String,
    triggers: Vec<Id>,
}

/// A process, and its pidfd if it could be opened.
pub type Held = (Process, Option<OwnedFd>);

#[derive(Deserialize)]
struct Status {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    timers: Vec<Timer>,
    running: Option<Running>,
}

#[derive(Deserialize)]
struct Timer {
    chain: String,
    origin: Option<Origin>,
    waiter: Option<Waiter>,
}

#[derive(Deserialize)]
struct Waiter {
    pid: i32,
    alive: bool,
}

#[derive(Deserialize)]
struct Running {
    pid: i32,
    chain: String,
    origin: Option<Origin>,
}

#[derive(Deserialize)]
struct Origin {
    triggers: Vec<Trigger>,
}

#[derive(Deserialize)]
struct Trigger {
    id: String,
}

/// The runs and living waiters in the output of `again status --json`.
///
/// # Errors
/// It is something else.
pub fn processes(status: &str) -> serde_json::Result<Vec<Process>> {
    let status: Status = again::model::json::read(status.as_bytes())?;
    let process = |pid, chain, origin: Option<Origin>| Process {
        pid,
        chain,
        triggers: origin.map_or_else(Vec::new, |origin| {
            let ids = origin.triggers.iter().map(|one| one.id.parse());
            ids.filter_map(Result::ok).collect()
        }),
    };
    let mut found = Vec::new();
    for Target { timers, running } in status.targets {
        found.extend(running.map(|run| process(run.pid, run.chain, run.origin)));
        found.extend(timers.into_iter().filter_map(|timer| {
            let waiter = timer.waiter.filter(|waiter| waiter.alive)?;
            Some(process(waiter.pid, timer.chain, timer.origin))
        }));
    }
    Ok(found)
}

/// Opens pidfds of processes from a status that was asked for at `asked`.
pub fn hold(processes: Vec<Process>, asked: Boottime) -> Vec<Held> {
    let mut left = MOST_HELD;
    let held = processes.into_iter().map(|one| {
        let is_within = left > 0;
        left = left.saturating_sub(1);
        let pidfd = is_within.then(|| pidfd(one.pid, asked)).flatten();
        (one, pidfd)
    });
    held.collect()
}

/// The pidfd of a process that lived, under this pid, at some time after `asked`. It is that process and no later one if it
/// started before: from then until the pidfd was opened nobody else can have had the pid. The start time is read after that.
fn pidfd(pid: i32, asked: Boottime) -> Option<OwnedFd> {
    let positive = Some(pid).filter(|pid| *pid > 0)?;
    let pidfd = pidfd_open(Pid::from_raw(positive)?, PidfdFlags::empty()).ok()?;
    let started = process::identify(pid).ok()?.started();
    (started + TICK <= asked).then_some(pidfd)
}

/// The pidfds of what is followed, and marks the answers that need more than these. `answers` are those for `ids`.
pub fn pidfds(held: Vec<Held>, ids: &[Id], answers: &mut [Answer]) -> Vec<OwnedFd> {
    let mut pidfds = Vec::new();
    for (process, pidfd) in held {
        let mut follows: Vec<&mut Answer> = ids
            .iter()
            .zip(&mut *answers)
            .filter(|(id, answer)| process.is_followed(id, answer))
            .map(|(_, answer)| answer)
            .collect();
        match pidfd {
            _ if follows.is_empty() => {}
            Some(pidfd) if pidfds.len() < MOST_PIDFDS => pidfds.push(pidfd),
            _ => follows
                .iter_mut()
                .for_each(|answer| answer.is_unwatched = true),
        }
    }
    pidfds
}

impl Process {
    /// Whether more becomes of this trigger when the process ends: it works for the trigger, or in the chain of the trigger's run.
    fn is_followed(&self, id: &Id, answer: &Answer) -> bool {
        let is_of_chain = answer.ran.as_ref().is_some_and(|ran| {
            let goes_on = ran.more || !answer.outcome.is_final();
            let chain = ran.log.rsplit_once('-').map(|(chain, _)| chain);
            goes_on && chain == Some(&self.chain)
        });
        is_of_chain || (!answer.outcome.is_final() && self.triggers.contains(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::outcome::{Outcome, Ran};
    use again::sys::clock;
    use serde_json::{Value, json};
    use std::process::Command;

    fn origin(ids: &[u128]) -> Value {
        let triggers = ids
            .iter()
            .map(|id| json!({ "id": Id::from_bits(*id), "sender": "web1" }));
        json!({ "origins": [], "triggers": triggers.collect::<Vec<_>>() })
    }

    fn process(pid: i32, chain: &str, ids: &[u128]) -> Process {
        Process {
            pid,
            chain: chain.to_owned(),
            triggers: ids.iter().map(|id| Id::from_bits(*id)).collect(),
        }
    }

    fn answer(outcome: Outcome, log: &str, more: bool) -> Answer {
        let ran = (!log.is_empty()).then(|| Ran {
            log: log.to_owned(),
            began: None,
            ended: None,
            reruns: 0,
            last: None,
            more,
        });
        Answer {
            outcome,
            why: String::new(),
            ran,
            is_unwatched: false,
        }
    }

    #[test]
    fn runs_and_living_waiters_are_found_in_a_status() {
        let timer = |pid: i32, alive: bool, origin: Value| json!({ "chain": "c", "origin": origin, "waiter": { "pid": pid, "alive": alive }, "run": 2 });
        let running = json!({ "pid": 7, "chain": "r", "origin": origin(&[1, 2]), "seconds": 3 });
        let status = json!({ "schema": 1, "targets": [
            { "running": running, "timers": [timer(8, true, Value::Null), timer(9, false, Value::Null)] },
            { "running": null, "timers": [timer(10, true, origin(&[3])), { "chain": "c", "origin": null, "waiter": null }] },
        ] });
        let expected = [
            process(7, "r", &[1, 2]),
            process(8, "c", &[]),
            process(10, "c", &[3]),
        ];
        assert_eq!(processes(&status.to_string()).expect("read"), expected);
        assert!(processes("nothing").is_err() && processes("{}").is_err());
    }

    /// One accepted, one running, one with reruns to come, and those of which nothing more comes.
    #[test]
    fn processes_are_followed_whose_triggers_go_on() {
        let ids: Vec<Id> = (1..=5).map(Id::from_bits).collect();
        let answers = [
            answer(Outcome::Taken, "", false),
            answer(Outcome::Started, "a-1", false),
            answer(Outcome::Changed, "b-1", true),
            answer(Outcome::Changed, "c-1", false),
            answer(Outcome::Satisfied, "", false),
        ];
        let unwatched = |process: Process| {
            let mut answers = answers.clone();
            assert!(pidfds(vec![(process, None)], &ids, &mut answers).is_empty());
            let marked = answers.iter().map(|answer| u8::from(answer.is_unwatched));
            marked.collect::<Vec<_>>()
        };
        assert_eq!(unwatched(process(7, "x", &[1, 2])), [1, 1, 0, 0, 0]);
        assert_eq!(unwatched(process(7, "a", &[])), [0, 1, 0, 0, 0]);
        assert_eq!(unwatched(process(7, "b", &[3])), [0, 0, 1, 0, 0]);
        assert_eq!(unwatched(process(7, "c", &[4, 5])), [0; 5]);
        assert_eq!(unwatched(process(7, "", &[])), [0; 5]);
    }

    #[test]
    fn pidfds_passed_are_bounded() {
        let me = i32::try_from(std::process::id()).expect("a pid");
        let all = (0..2 * MOST_HELD).map(|_| process(me, "x", &[1]));
        let held = hold(all.collect(), clock::boottime());
        let opened = held.iter().filter(|(_, pidfd)| pidfd.is_some()).count();
        assert_eq!(opened, MOST_HELD);
        let mut answers = [answer(Outcome::Taken, "", false)];
        let passed = pidfds(held, &[Id::from_bits(1)], &mut answers);
        assert_eq!(passed.len(), MOST_PIDFDS);
        assert!(answers[0].is_unwatched);
    }

    #[test]
    fn later_process_of_the_same_pid_is_not_held() {
        let before = clock::boottime();
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(pidfd(pid, before).is_none());
        let who = process::identify(pid).expect("alive");
        assert!(pidfd(pid, who.started() + TICK).is_some());
        child.kill().and_then(|()| child.wait()).expect("its end");
        assert!(pidfd(pid, who.started() + TICK).is_none());
        assert!(pidfd(0, before).is_none() && pidfd(-1, before).is_none());
    }
}
