//! Starting a run in the foreground, and reaping it.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::attributes::{SignalState, set_signals};
use super::process;
use super::spawn::{self, pointers};
use crate::model::{End, Identity};

/// What to start.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Candidates for the program's path, tried in turn.
    pub programs: &'a [PathBuf],
    /// The command line, the first element included.
    pub arguments: &'a [OsString],
    /// The whole environment, one `NAME=VALUE` each.
    pub environment: &'a [OsString],
    /// The signal state it is to start with.
    pub signals: SignalState,
}

/// A process that has not become the run yet.
#[derive(Debug)]
pub struct Held {
    /// Who it is, which no exec(3) changes.
    pub process: Identity,
    go: File,
    failed: File,
}

/// Starts `plan` by fork(2), in our own process group, with our standard
/// descriptors. The child waits before its exec(3) until it is released, so that
/// it can be put on record first. Call while single-threaded.
///
/// # Errors
/// Those of fork(2) and of building the arguments.
pub fn fork(plan: &Plan<'_>) -> io::Result<Held> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
    let all = |words: &[OsString]| -> io::Result<Vec<CString>> {
        words.iter().map(|word| text(word.as_bytes())).collect()
    };
    let programs: Vec<CString> = plan
        .programs
        .iter()
        .map(|program| text(program.as_os_str().as_bytes()))
        .collect::<Result<_, _>>()?;
    let arguments = all(plan.arguments)?;
    let environment = all(plan.environment)?;
    let argv = pointers(&arguments);
    let envp = pointers(&environment);
    let (go_reader, go_writer) = spawn::pipe()?;
    let (failed_reader, failed_writer) = spawn::pipe()?;

    // SAFETY: this process has one thread, so the child may use anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // Else it would wait for ever if the parent were killed now.
            drop(go_writer);
            let mut go = File::from(go_reader);
            let mut worst = libc::ENOENT;
            if go.read_exact(&mut [0]).is_ok() {
                set_signals(plan.signals);
                for program in &programs {
                    // SAFETY: NUL-terminated strings and null-terminated arrays that live on.
                    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
                    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                    if worst == libc::ENOENT {
                        worst = errno;
                    }
                }
            }
            let message = worst.to_ne_bytes();
            // SAFETY: a valid buffer; _exit runs none of the parent's handlers.
            unsafe {
                libc::write(
                    failed_writer.as_raw_fd(),
                    message.as_ptr().cast(),
                    message.len(),
                );
                libc::_exit(127)
            }
        }
        pid => Ok(Held {
            // Not yet reaped, so it is there even if it has ended already.
            process: process::stat(pid).map(|stat| Identity {
                pid,
                start: stat.start,
            })?,
            go: File::from(go_writer),
            failed: File::from(failed_reader),
        }),
    }
}

impl Held {
    /// Lets it become the run.
    ///
    /// # Errors
    /// That of exec(3), of the candidate that got furthest.
    pub fn release(mut self) -> io::Result<()> {
        // It may have been killed already; that shows when it is reaped.
        let _ = self.go.write_all(&[0]);
        drop(self.go);
        let mut errno = [0; 4];
        match self.failed.read_exact(&mut errno) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            Err(_) => Ok(()),
        }
    }
}

/// Reaps every child that has ended: as the first process of a container we have
/// children that we did not start. How `run` ended, if it was among them.
pub fn reap(run: i32) -> Option<End> {
    let mut end = None;
    loop {
        let mut status = 0;
        // SAFETY: a valid pointer to an integer.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if pid <= 0 {
            return end;
        }
        if pid == run {
            end = Some(if libc::WIFSIGNALED(status) {
                End::Signal(libc::WTERMSIG(status))
            } else {
                End::Exit(libc::WEXITSTATUS(status))
            });
        }
    }
}

/// Ends this process by a signal, as if it had never been caught. Returns where
/// that is not possible, as for the first process of a container.
pub fn die_by(signal: i32) {
    set_signals(SignalState::default());
    // SAFETY: an integer; the signal has its default disposition and is not blocked.
    unsafe { libc::raise(signal) };
}

/// Our process group.
pub fn own_group() -> i32 {
    nix::unistd::getpgrp().as_raw()
}

/// Whether we are in the foreground of the terminal on standard error.
pub fn is_in_foreground() -> bool {
    // SAFETY: an integer; it fails where that is no terminal of ours.
    unsafe { libc::tcgetpgrp(2) == libc::getpgrp() }
}

/// A copy of our standard input.
///
/// # Errors
/// Those of dup(2).
pub fn standard_input() -> io::Result<OwnedFd> {
    use std::os::fd::AsFd;
    io::stdin().as_fd().try_clone_to_owned()
}
