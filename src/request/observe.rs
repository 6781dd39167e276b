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

/// The processes above a request, and what follows from them.
#[derive(Debug)]
pub struct Observation {
    /// The ancestors, the nearest first.
    pub chain: Vec<Seen>,
    /// Index of the run in `chain`.
    pub run: Option<usize>,
    /// The same, also where nothing tells its command line.
    pub found: Option<usize>,
    /// Why that is the run, in a line for people.
    pub why: Option<String>,
    /// The order of the rerun, or why there can be none.
    pub plan: Result<Plan, Refusal>,
}

impl Observation {
    /// The run's process.
    pub fn run_identity(&self) -> Option<Identity> {
        Some(self.chain.get(self.run?)?.identity)
    }
}

/// Our parent's pid.
pub fn parent() -> i32 {
    nix::unistd::getppid().as_raw()
}

/// Looks at the processes from `from` upwards.
///
/// # Errors
/// What could not be read of the run, and why.
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
        // Its words serve to tell what kind of run it is; what is run is the command that was set.
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
        // Not of any run, so it waits for none; the daemon above goes on.
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

/// Why there can be no rerun.
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

/// The agent daemon that lives now, when the one that started a run was restarted
/// meanwhile, perhaps by that very run: the one that the pid file names, or, since
/// a new daemon writes that only seconds after its start, the only one there is.
fn living_daemon(request: &Request<'_>, run: &Seen) -> Option<(Seen, Line)> {
    let euid = process::status(run.identity.pid).ok()?.euid;
    let look = |pid: i32| {
        // Asked first: what another user's command line names is not even opened.
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
        // Of two that differ, which one it would be is a guess.
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
