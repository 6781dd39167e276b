//! Observes the processes above a request: the puppet run, and the order of its rerun or the
//! refusal. Reads /proc and Puppet's files.

use std::path::Path;

use anyhow::Result;

use super::asked::Request;
use super::order::{self, Plan};
use crate::puppet::ancestry::{Found, Line, Seen, find_run, read, titled_words};
use crate::puppet::live::{chain_from, is_agent_daemon, read_pid, see, setup};
use again_base::model::{Identity, Refusal};
use again_base::sys::process;

/// Processes above a request, and the conclusions from them.
#[derive(Debug)]
pub struct Observation {
    /// Ancestors, the nearest first.
    pub chain: Vec<Seen>,
    /// Index of the run in `chain`.
    pub run: Option<usize>,
    /// Index of the run in `chain`, even if its command line is unknown.
    pub found: Option<usize>,
    /// Reason why that process is the run, in a line for people.
    pub why: Option<String>,
    /// Plan of the rerun, or the reason why there can be none.
    pub plan: Result<Plan, Refusal>,
}

impl Observation {
    /// Process of the run.
    pub fn run_identity(&self) -> Option<Identity> {
        Some(self.chain.get(self.run?)?.identity)
    }
}

/// Pid of the parent process.
pub fn parent() -> i32 {
    nix::unistd::getppid().as_raw()
}

/// Observes the processes from `from` upwards.
///
/// # Errors
/// The data of the run that could not be read, and the cause.
pub fn observe(from: i32, request: &Request<'_>) -> Result<Observation> {
    let chain = chain_from(from);
    let found = find_run(&chain, |seen, invocation| {
        is_agent_daemon(seen, invocation, request.home())
    });
    let run = match &found {
        Found::Run { at, line, daemon } => {
            let daemon = daemon.and_then(|at| chain.get(at)).cloned();
            Some((*at, Line::clone(line), daemon))
        }
        Found::Orphan { at } => {
            living_daemon(request, &chain[*at]).map(|(daemon, line)| (*at, line, Some(daemon)))
        }
        // The title's words show only the kind of the run; the rerun executes the command that was
        // set.
        Found::Retitled { at } if request.replacement().is_some() => {
            titled_words(&chain[*at].cmdline).map(|line| (*at, line, None))
        }
        _ => None,
    };
    let daemon = run
        .as_ref()
        .and_then(|(_, _, daemon)| Some(daemon.as_ref()?.identity.pid));
    let why = run.as_ref().and_then(|_| found.why(daemon));
    let (run, plan) = match run {
        Some((at, line, daemon)) => {
            let plan = order::of_run(request, &chain, &chain[at], line, daemon.as_ref())?;
            (Some(at), plan)
        }
        // Outside any run, so it does not wait for one; the daemon above continues.
        None if matches!(found, Found::Nothing | Found::DaemonItself { .. })
            && !request.run.command.is_empty() =>
        {
            (None, Ok(order::of_command(request, &chain)?))
        }
        None => (None, Err(refusal(&found, &chain))),
    };
    let found = match found {
        Found::Run { at, .. } | Found::Orphan { at } | Found::Retitled { at } => Some(at),
        Found::DaemonItself { .. } | Found::Nothing => None,
    };
    Ok(Observation {
        chain,
        run,
        found,
        why,
        plan,
    })
}

/// Reason why there can be no rerun.
fn refusal(found: &Found, chain: &[Seen]) -> Refusal {
    let pid_at = |at: usize| chain.get(at).map_or(0, |seen| seen.identity.pid);
    let name = |seen: &Seen| String::from_utf8_lossy(&seen.comm).into_owned();
    match *found {
        Found::Orphan { at } => Refusal::Orphan { pid: pid_at(at) },
        Found::Retitled { at } => Refusal::Retitled { pid: pid_at(at) },
        Found::DaemonItself { at } => Refusal::DaemonItself { pid: pid_at(at) },
        Found::Nothing | Found::Run { .. } => Refusal::NoRun {
            parents: chain.iter().map(name).collect(),
        },
    }
}

/// Living agent daemon, if the one that started a run was restarted meanwhile, perhaps by that very
/// run: the one in the pid file or, since a new daemon writes that file only seconds after its
/// start, the only living one.
fn living_daemon(request: &Request<'_>, run: &Seen) -> Option<(Seen, Line)> {
    let euid = process::status(run.identity.pid).ok()?.euid;
    let look = |pid: i32| {
        // Checked first: a file that another user's command line names is not even opened.
        let is_alike = |seen: &Seen| {
            seen.exe == run.exe && process::status(pid).is_ok_and(|status| status.euid == euid)
        };
        let daemon = see(pid).filter(is_alike)?;
        let line = read(&daemon)?;
        is_agent_daemon(&daemon, &line.invocation, request.home()).then_some((daemon, line))
    };
    let exe = run.exe.as_deref().unwrap_or(Path::new(""));
    let paths = setup(None, exe, request.home()).paths(&request.given, &request.settings.paths);
    let named = paths.pidfile.and_then(|path| read_pid(&path.path()));
    named.and_then(look).or_else(|| {
        let mut daemons = process::all_pids().into_iter().filter_map(look);
        let first = daemons.next()?;
        // If two daemons differ, choosing one would be a guess.
        daemons.all(|other| other.1 == first.1).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_ends_at_the_first_process() {
        let chain = chain_from(i32::try_from(std::process::id()).expect("pid"));
        assert_eq!(chain[1].identity.pid, parent());
        assert!(
            chain
                .last()
                .is_some_and(|seen| process::stat(seen.identity.pid).is_ok_and(|s| s.ppid == 0))
        );
    }
}
