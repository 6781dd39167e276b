//! Processes whose end may change the outcome of a trigger: runs, and waiters, which become runs.
//! They are read from `again status --json`, and held with pidfds, on which the service waits.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use again_base::model::{Boottime, Span, TimerState};
use again_base::schema::origin::Origins;
use again_base::schema::status::Status;
use again_base::sys::process;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::handover::{Answer, MOST_PIDFDS};
use crate::wire::name::Id;
use crate::wire::outcome::Outcome;

/// Maximum number of processes that are held before it is known which of them are followed.
const MOST_HELD: usize = 64;
/// Unit of start times in /proc: USER_HZ is 100 on every platform that this program is built for.
const TICK: Span = Span::from_nanos(10_000_000);

/// Waiter or run in `again status`.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    /// Pid; none if the waiter is dead, on another machine or in an unknown state.
    pid: Option<i32>,
    chain: String,
    triggers: Vec<Id>,
}

/// Process, and its pidfd if it could be opened.
pub type Held = (Process, Option<OwnedFd>);

/// Runs and waiters in the output of `again status --json`.
///
/// # Errors
/// The text is not such an output.
pub fn processes(status: &str) -> serde_json::Result<Vec<Process>> {
    let status: Status = serde_json::from_str(status)?;
    let process = |pid, chain, origin: Option<Origins>| Process {
        pid,
        chain,
        triggers: origin.map_or_else(Vec::new, |origin| {
            origin.triggers.into_iter().map(|one| one.id).collect()
        }),
    };
    let mut found = Vec::new();
    for target in status.targets {
        let run = target.running;
        found.extend(run.map(|run| process(Some(run.pid), run.chain, run.origin)));
        found.extend(target.timers.into_iter().map(|timer| {
            // A pid on another machine has no meaning here, and the pid in an unknown state may be
            // such a one.
            let is_here = timer
                .state
                .is_some_and(|state| state != TimerState::Foreign);
            let pid = timer.waiter.pid.filter(|_| is_here);
            process(pid, timer.chain, timer.origin)
        }));
    }
    Ok(found)
}

/// Opens pidfds of processes from a status that was requested at `asked`.
pub fn hold(processes: Vec<Process>, asked: Boottime) -> Vec<Held> {
    let mut left = MOST_HELD;
    let held = processes.into_iter().map(|one| {
        let pid = one.pid.filter(|_| left > 0);
        left -= usize::from(pid.is_some());
        let pidfd = pid.and_then(|pid| pidfd(pid, asked));
        (one, pidfd)
    });
    held.collect()
}

/// Pidfd of the process with this pid, if the process started before `asked`. A process that lived
/// when the status was requested has kept its pid since, so no later process is mistaken for it.
/// The start time is read after the pidfd was opened.
fn pidfd(pid: i32, asked: Boottime) -> Option<OwnedFd> {
    let positive = Some(pid).filter(|pid| *pid > 0)?;
    let pidfd = pidfd_open(Pid::from_raw(positive)?, PidfdFlags::empty()).ok()?;
    let started = process::identify(pid).ok()?.started();
    (started + TICK <= asked).then_some(pidfd)
}

/// Pidfds of the followed processes. Sets `is_unwatched` in the answers that these do not cover: a
/// followed process has no pidfd, or the trigger's run is none of these processes. `answers` are in
/// the order of `ids`.
pub fn pidfds(held: Vec<Held>, ids: &[Id], answers: &mut [Answer]) -> Vec<OwnedFd> {
    for answer in &mut *answers {
        answer.is_unwatched = answer.outcome == Outcome::Started;
    }
    let (mut pidfds, mut unwatched) = (Vec::new(), BTreeSet::new());
    for (process, pidfd) in held {
        let all = ids.iter().zip(&mut *answers).enumerate();
        let follows: Vec<usize> = all
            .filter(|(_, (id, answer))| process.is_followed(id, answer))
            .map(|(at, (_, answer))| {
                answer.is_unwatched = false;
                at
            })
            .collect();
        match pidfd {
            _ if follows.is_empty() => {}
            Some(pidfd) if pidfds.len() < MOST_PIDFDS => pidfds.push(pidfd),
            _ => unwatched.extend(follows),
        }
    }
    for at in unwatched {
        answers[at].is_unwatched = true;
    }
    pidfds
}

impl Process {
    /// Whether the end of the process may change the answer on this trigger: the process works for
    /// the trigger, or in the chain of the trigger's run.
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
    use again_base::sys::clock;
    use serde_json::{Value, json};
    use std::process::{Command, Stdio};

    fn origin(ids: &[u128]) -> Value {
        let triggers = ids
            .iter()
            .map(|id| json!({ "id": Id::from_bits(*id), "sender": "web1", "name": "again", "number": 1 }));
        json!({ "origins": [], "triggers": triggers.collect::<Vec<_>>() })
    }

    fn process(pid: Option<i32>, chain: &str, ids: &[u128]) -> Process {
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
            above: None,
        }
    }

    #[test]
    fn runs_and_waiters_are_found_in_a_status() {
        let timer = |pid: Option<i32>, state: &str, ids: &[u128]| {
            let waiter = json!({ "pid": pid, "alive": state != "dead" });
            json!({ "chain": "c", "state": state, "origin": origin(ids), "waiter": waiter, "run": 2 })
        };
        let running = json!({ "pid": 7, "chain": "r", "origin": origin(&[1, 2]), "seconds": 3 });
        let own =
            json!({ "chain": "o", "state": "waiting", "origin": null, "waiter": { "pid": 8 } });
        let status = json!({ "schema": 1, "targets": [
            { "timers": [timer(Some(9), "waiting", &[3]), timer(None, "dead", &[4])], "running": running },
            { "timers": [own, timer(Some(10), "foreign", &[5])], "running": null },
        ] });
        let expected = [
            process(Some(7), "r", &[1, 2]),
            process(Some(9), "c", &[3]),
            process(None, "c", &[4]),
            process(Some(8), "o", &[]),
            process(None, "c", &[5]),
        ];
        assert_eq!(processes(&status.to_string()).expect("read"), expected);
        let newer = status.to_string().replace("waiting", "a new word");
        let pids: Vec<Option<i32>> = processes(&newer)
            .expect("read")
            .iter()
            .map(|one| one.pid)
            .collect();
        assert_eq!(pids, [Some(7), None, None, None, None]);
        assert!(processes("nothing").is_err() && processes("{}").is_err());
        let error = processes(r#"{"schema":2,"targets":[]}"#).expect_err("another schema");
        assert!(
            error
                .to_string()
                .contains("its schema is 2, and this program reads 1"),
            "{error}"
        );
    }

    /// Triggers: one accepted, one running, one with reruns to come, and two that are over.
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
        // A run that has begun is unwatched also where no process is its.
        assert_eq!(unwatched(process(None, "x", &[1, 2])), [1, 1, 0, 0, 0]);
        assert_eq!(unwatched(process(Some(7), "a", &[])), [0, 1, 0, 0, 0]);
        assert_eq!(unwatched(process(Some(7), "b", &[3])), [0, 1, 1, 0, 0]);
        assert_eq!(unwatched(process(Some(7), "c", &[4, 5])), [0, 1, 0, 0, 0]);
        assert_eq!(unwatched(process(Some(7), "", &[])), [0, 1, 0, 0, 0]);
    }

    #[test]
    fn pidfds_passed_are_bounded() {
        let me = i32::try_from(std::process::id()).expect("a pid");
        let all = (0..2 * MOST_HELD).map(|_| process(Some(me), "x", &[1]));
        let asked = process::identify(me).expect("alive").started() + TICK;
        let held = hold(all.collect(), asked);
        let opened = held.iter().filter(|(_, pidfd)| pidfd.is_some()).count();
        assert_eq!(opened, MOST_HELD);
        let mut answers = [answer(Outcome::Taken, "", false)];
        let passed = pidfds(held, &[Id::from_bits(1)], &mut answers);
        assert_eq!(passed.len(), MOST_PIDFDS);
        assert!(answers[0].is_unwatched);
        // One that has begun, and whose only process is held.
        let held = hold(vec![process(Some(me), "x", &[1])], asked);
        let mut answers = [answer(Outcome::Started, "x-1", false)];
        assert_eq!(pidfds(held, &[Id::from_bits(1)], &mut answers).len(), 1);
        assert!(!answers[0].is_unwatched);
    }

    #[test]
    fn later_process_of_the_same_pid_is_not_held() {
        let before = clock::boottime();
        let mut child = Command::new("sleep");
        // One that outlives a failed test holds no pipe of the runner.
        let child = child.arg("600").stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(pidfd(pid, before).is_none());
        let who = process::identify(pid).expect("alive");
        assert!(pidfd(pid, who.started() + TICK).is_some());
        child.kill().and_then(|()| child.wait()).expect("its end");
        assert!(pidfd(pid, who.started() + TICK).is_none());
        assert!(pidfd(0, before).is_none() && pidfd(-1, before).is_none());
    }
}
