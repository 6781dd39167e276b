//! Process above each suite, which ends everything that the suite started.
//!
//! Tests start daemons that leave their process group and their session. As a subreaper (prctl(2))
//! the guard becomes their parent when theirs has ended, so that everything is a descendant of the
//! guard for as long as it lives. The guard signals only its own children, whose pids stay theirs
//! until it has reaped them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGTERM};
use signal_hook::iterator::Signals;

/// Number of seconds in which the remaining processes of a suite may end, before and after SIGTERM.
const GRACE: u32 = 3;

/// Exit status of a suite that exceeded its time limit, as in timeout(1).
const LATE: u8 = 124;

/// Runs a command with a time limit in seconds, and ends everything that it started: when the
/// command has ended, at the limit, at SIGTERM, and when the caller has died. Returns the command's
/// exit status; that of a signal is 128 and its number.
pub fn run(limit: u32, words: &[String]) -> Result<u8> {
    set_child_subreaper(true)?;
    set_pdeathsig(Signal::SIGTERM)?;
    let mut signals = Signals::new([SIGCHLD, SIGALRM, SIGTERM])?;
    // A shell's background job ignores some signals, and its children would inherit that.
    let mut command = Command::new("env");
    command.arg("--default-signal").args(words).process_group(0);
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {words:?}"))?;
    let child = Pid::from_raw(child.id().cast_signed());
    alarm::set(limit);
    let (mut status, mut is_ending) = (None, false);
    for signal in signals.forever() {
        match signal {
            SIGCHLD => {
                while let Some((pid, ended)) = reap()? {
                    if pid == child {
                        status = status.or(Some(ended));
                        is_ending = true;
                        alarm::set(GRACE);
                    }
                }
            }
            _ if is_ending => kill_children()?,
            signal => {
                if signal == SIGALRM {
                    eprintln!("ended after {limit} s");
                    status = Some(LATE);
                }
                is_ending = true;
                // Scripts clean up on SIGTERM.
                let _ = killpg(child, Signal::SIGTERM);
                alarm::set(GRACE);
            }
        }
        if children()?.is_empty() {
            break;
        }
    }
    Ok(status.unwrap_or(LATE))
}

/// Returns a child that has ended, and its exit status.
fn reap() -> Result<Option<(Pid, u8)>> {
    match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(pid, code)) => Ok(Some((pid, code as u8))),
        Ok(WaitStatus::Signaled(pid, signal, _)) => Ok(Some((pid, 128 + signal as u8))),
        Ok(_) | Err(nix::Error::ECHILD) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Kills all children repeatedly: the children of each become children of the guard.
fn kill_children() -> Result<()> {
    loop {
        let left = children()?;
        for (pid, name) in &left {
            eprintln!("killed what the suite left: {name}");
            kill(*pid, Signal::SIGKILL).with_context(|| format!("cannot kill {name}"))?;
        }
        if left.is_empty() {
            return Ok(());
        }
        for (pid, _) in left {
            waitpid(pid, None)?;
        }
    }
}

/// Returns the children of this process, with their command lines.
fn children() -> Result<Vec<(Pid, String)>> {
    let this = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        // Another process may have ended by now.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        if fields.split_whitespace().nth(1) == Some(&this) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push((Pid::from_raw(pid), line.trim().to_owned()));
        }
    }
    Ok(found)
}
