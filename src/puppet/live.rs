//! The running Puppet on this machine: its processes, and the files that it keeps while it runs.
//! Any of them may be forged by another user, or removed a moment later.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::ancestry::{Found, Line, Seen, find_run, read};
use super::job::Job;
use super::locks;
use super::paths::{self, Paths, Setup};
use super::rerun::is_daemon;
use again_base::model::{Identity, Span, Walltime};
use again_base::puppet::cmdline::{Application, Invocation};
use again_base::puppet::conf::Conf;
use again_base::sys::clock;
use again_base::sys::file::{LARGEST_SETTINGS, read_named, read_regular};
use again_base::sys::process::{self, is_alive};
use again_base::sys::user;

/// Processes from `pid` up to the first, as far as they can be seen.
pub fn chain_from(pid: i32) -> Vec<Seen> {
    let mut chain: Vec<Seen> = Vec::new();
    let mut next = pid;
    // A loop is impossible in a living tree, but a reused pid could look like one.
    while next > 0 && chain.len() < 256 {
        let Some((seen, parent)) = see_with_parent(next) else {
            break;
        };
        chain.push(seen);
        next = parent;
    }
    chain
}

/// Process at this moment.
pub fn see(pid: i32) -> Option<Seen> {
    see_with_parent(pid).map(|(seen, _)| seen)
}

fn see_with_parent(pid: i32) -> Option<(Seen, i32)> {
    let stat = process::stat(pid).ok()?;
    let seen = Seen {
        identity: Identity {
            pid,
            start: stat.start,
        },
        comm: stat.comm,
        cmdline: process::cmdline(pid).unwrap_or_default(),
        exe: process::exe(pid).ok(),
    };
    Some((seen, stat.ppid))
}

/// Setup for a command line of Puppet, or Puppet's defaults if the command line is unknown. `exe`
/// is its interpreter, if known; `home` is set for everyone but root.
pub fn setup(invocation: Option<Invocation>, exe: &Path, home: Option<&Path>) -> Setup {
    let layout = paths::layout(exe, home, |path| path.exists());
    let file = paths::conf_file(invocation.as_ref(), &layout);
    let conf = match read_named(&file, LARGEST_SETTINGS) {
        Ok(text) => Conf::parse(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Conf::default(),
        Err(e) => {
            if e.kind() != io::ErrorKind::PermissionDenied {
                tracing::warn!("Puppet's configuration {} is not read: {e}", file.display());
            }
            Conf::unreadable()
        }
    };
    Setup {
        invocation,
        conf,
        layout,
    }
}

/// Whether a process is an agent daemon, which runs its catalogs in child processes.
pub fn is_agent_daemon(seen: &Seen, invocation: &Invocation, home: Option<&Path>) -> bool {
    // The file is read for an agent only: an apply never is a daemon.
    invocation.application == Application::Agent && {
        let exe = seen.exe.as_deref().unwrap_or(Path::new(""));
        is_daemon(invocation, &setup(Some(invocation.clone()), exe, home).conf)
    }
}

/// Job of this process of our own user. A daemon's run has its daemon's command line. `None` if the
/// command line or the directory cannot be seen, or by now belongs to another process.
pub fn job_of(who: Identity) -> Option<Job> {
    let uid = user::effective();
    let home = if uid == 0 { None } else { user::home(uid) };
    let home = home.as_deref();
    let mut chain = chain_from(who.pid);
    // Only the run and its daemon matter, not the processes above them.
    chain.truncate(2);
    let found = find_run(&chain, |seen, line| is_agent_daemon(seen, line, home));
    let Found::Run {
        at: 0,
        line,
        daemon,
    } = found
    else {
        return None;
    };
    let started = chain.get(daemon.unwrap_or(0))?;
    let is_ours = process::status(started.identity.pid).ok()?.euid == uid;
    let directory = process::cwd(who.pid).ok()?;
    let exe = started.exe.clone().unwrap_or_default();
    let setup = setup(Some(line.invocation).filter(|_| is_ours), &exe, home);
    let job = Job::of(&setup, &directory);
    job.filter(|_| chain.first().is_some_and(|seen| seen.identity == who) && is_alive(who))
}

/// Catalog runs among a process and those below it, with their files. A daemon is not a run, nor is
/// the child that it forks for one.
pub fn runs_below(pid: i32, set: &Paths) -> Vec<(Invocation, Paths)> {
    let below = process::descendants(pid)
        .into_iter()
        .map(|(who, _)| who.pid);
    let look = |pid: i32| {
        let seen = see(pid)?;
        let line = read(&seen).filter(|line| !line.invocation.is_no_run)?;
        let uid = process::status(pid).ok()?.euid;
        let home = if uid == 0 { None } else { user::home(uid) };
        if is_agent_daemon(&seen, &line.invocation, home.as_deref()) {
            return None;
        }
        let exe = seen.exe.clone().unwrap_or_default();
        let setup = setup(Some(line.invocation.clone()), &exe, home.as_deref());
        let paths = setup.paths(&Paths::default(), set);
        let directory = process::cwd(pid).ok()?;
        Some((line.invocation, paths.from_directory(&directory)))
    };
    std::iter::once(pid).chain(below).filter_map(look).collect()
}

/// Whether the kernel marks the target of a link in /proc as deleted.
pub fn is_deleted(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b" (deleted)")
}

/// Process that holds the agent's lock, if it is a living puppet.
pub fn lock_holder(paths: &Paths) -> Option<Identity> {
    let path = paths.agent_catalog_run_lockfile.as_ref()?.path();
    our_puppet(read_pid(&path)?)
}

/// Time for which a process has held the agent's lock, if it holds it: `runtimeout` counts it
/// (agent.rb). A lock file with a time in the future counts as just created.
///
/// # Errors
/// Errors of reading the lock file.
pub fn held_for(lock: &Path, who: Identity, now: Walltime) -> io::Result<Option<Span>> {
    let text = match read_small(lock) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let made = clock::wall_of(lock.metadata()?.modified()?);
    Ok((locks::parse_pid(&text) == Some(who.pid)).then(|| now.since(made)))
}

/// Process with this pid, if it is a puppet of our own user. Another user may have written the pid
/// file, or named a process puppet.
fn our_puppet(pid: i32) -> Option<Identity> {
    let who = process::identify(pid).ok()?;
    let stat = process::stat(pid).ok()?;
    let cmdline = process::cmdline(pid).ok()?;
    let is_ours = process::status(pid).ok()?.euid == user::effective();
    (stat.start == who.start && is_ours && locks::may_hold(&stat.comm, &cmdline)).then_some(who)
}

/// Reason why the agent is disabled, if it is; empty if none was given.
pub fn agent_disabled(paths: &Paths) -> Option<String> {
    let path = paths.agent_disabled_lockfile.as_ref()?.path();
    match read_small(&path) {
        Ok(text) => Some(locks::disabled_message(&text).unwrap_or_default()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        // The presence of the file alone disables.
        Err(_) => path.symlink_metadata().is_ok().then(String::new),
    }
}

/// Whether an agent daemon lives: the one that requested the rerun, the one in the pid file, or a
/// new one that has yet to write the file, which takes it some seconds.
pub fn daemon_lives(daemon: Identity, paths: &Paths) -> bool {
    let named = || our_puppet(read_pid(&paths.pidfile.as_ref()?.path())?);
    let is_one = |pid: &i32| is_daemon_of(*pid, paths);
    is_alive(daemon) || named().is_some() || process::all_pids().iter().any(is_one)
}

/// Whether this process is an agent daemon of our own user with that pid file.
fn is_daemon_of(pid: i32, paths: &Paths) -> bool {
    let uid = user::effective();
    let is_ours = |_: &Line| process::status(pid).is_ok_and(|status| status.euid == uid);
    let found = see(pid).and_then(|seen| Some((read(&seen).filter(is_ours)?, seen)));
    let Some((line, seen)) = found else {
        return false;
    };
    let home = if uid == 0 { None } else { user::home(uid) };
    let exe = seen.exe.unwrap_or_default();
    let daemon = setup(Some(line.invocation.clone()), &exe, home.as_deref());
    let none = Paths::default();
    let own = || daemon.paths(&none, &none).pidfile;
    is_daemon(&line.invocation, &daemon.conf) && (paths.pidfile.is_none() || own() == paths.pidfile)
}

/// Pid in a lock or pid file of Puppet.
pub fn read_pid(path: &Path) -> Option<i32> {
    locks::parse_pid(&read_small(path).ok()?)
}

/// Reads a regular file of up to 64 KiB.
fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    read_regular(path, 64 * 1024, 0)
}
