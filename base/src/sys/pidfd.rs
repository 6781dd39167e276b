//! Pidfds: handles on one process, which never refer to a later one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::machine::replacement;
use super::process::{self, is_alive};
use crate::model::Identity;

/// Handle on a process to wait for or to signal, verified when it was opened.
#[derive(Debug)]
pub enum Handle {
    /// A pidfd, the usual case: pidfd_open(2).
    Pidfd(OwnedFd, Identity),
    /// No pidfd, because the kernel or a seccomp filter does not allow pidfd_open(2); the process
    /// is checked in /proc.
    Looked(Identity),
}

/// Opens a handle on exactly the process `who`.
///
/// # Errors
/// `NotFound` if it has ended, even if its pid is in use again; `PermissionDenied` if /proc does
/// not show it to us.
pub fn open(who: Identity) -> io::Result<Handle> {
    if let Some(machine) = replacement() {
        let found = machine.identify(who.pid)?;
        let is_it = (found == who).then_some(Handle::Looked(who));
        return is_it.ok_or_else(|| io::ErrorKind::NotFound.into());
    }
    let pid = rustix::process::Pid::from_raw(who.pid).ok_or(io::ErrorKind::NotFound)?;
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Handle::Pidfd(fd, who),
        // A kernel before 5.3, or a seccomp filter.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => Handle::Looked(who),
        Err(e) => return Err(not_found(e.into())),
    };
    // /proc is read after the pidfd was opened, so that both refer to the same process.
    match process::identify(who.pid) {
        Ok(now) if now == who => Ok(handle),
        Ok(_) => Err(io::ErrorKind::NotFound.into()),
        // Hidden from us (proc(5), hidepid), so that its identity cannot be verified.
        Err(e) if e.kind() == io::ErrorKind::NotFound && !handle.wait(Duration::ZERO) => {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }
        Err(e) => Err(e),
    }
}

/// Handle on a process whose end is awaited; `None` if it has ended. If [`open`] fails otherwise,
/// for want of descriptors for example, the process is checked in /proc.
pub fn hold(who: Identity) -> Option<Handle> {
    match open(who) {
        Ok(handle) => Some(handle),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(Handle::Looked(who)),
    }
}

impl Handle {
    /// Process for which the handle was opened.
    pub fn identity(&self) -> Identity {
        match self {
            Handle::Pidfd(_, who) | Handle::Looked(who) => *who,
        }
    }

    /// Pidfd of the handle, if it has one.
    pub fn pidfd(&self) -> Option<&OwnedFd> {
        match self {
            Handle::Pidfd(fd, _) => Some(fd),
            Handle::Looked(_) => None,
        }
    }

    /// Sends a signal to this process and no other.
    ///
    /// # Errors
    /// `NotFound` if it has ended; `PermissionDenied` for another user's process.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        if let Some(machine) = replacement() {
            return machine.signal(self.identity(), signal);
        }
        let sent = match self {
            Handle::Pidfd(fd, _) => {
                let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
                pidfd_send_signal(fd, signal).map_err(io::Error::from)
            }
            Handle::Looked(who) if !is_alive(*who) => Err(io::ErrorKind::NotFound.into()),
            // The start time was compared just before.
            Handle::Looked(who) => nix::sys::signal::Signal::try_from(signal)
                .and_then(|signal| {
                    nix::sys::signal::kill(nix::unistd::Pid::from_raw(who.pid), signal)
                })
                .map_err(io::Error::from),
        };
        sent.map_err(not_found)
    }

    /// Waits until the process has ended, at most `limit`. True if it has.
    pub fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let who = match self {
            Handle::Pidfd(fd, who) => match is_readable_by(fd.as_fd(), deadline) {
                Ok(has_ended) => return has_ended,
                Err(_) => return !is_alive(*who),
            },
            Handle::Looked(who) => *who,
        };
        while is_alive(who) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
        true
    }
}

/// Error for a process that does not exist, with the same kind as for a missing file.
fn not_found(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
        _ => error,
    }
}

/// Waits until a descriptor has data or is at its end: poll(2). False if the deadline passes first.
///
/// # Errors
/// The errors of poll(2).
pub fn is_readable_by(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Adopts a descriptor that was left open for us across exec(2), and marks it to be closed at the
/// next one.
///
/// # Errors
/// `InvalidInput` for a number below 3; the errors of fcntl(2) if it is not open.
pub fn inherit(number: i32) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only borrowed for fcntl(2), which fails if it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open, was passed to this process for this purpose, and is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn waits_for_a_child_and_signals_only_the_one_it_was_opened_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("sleep");
        let who = process::identify(i32::try_from(child.id()).expect("pid")).expect("alive");
        assert!(
            open(Identity {
                start: who.start + 1,
                ..who
            })
            .is_err()
        );
        let handle = open(who).expect("a handle");
        assert!(!handle.wait(Duration::ZERO));
        handle.signal(libc::SIGTERM).expect("a signal");
        assert!(handle.wait(Duration::from_secs(60)));
        child.wait().expect("reaped");
        assert!(handle.signal(libc::SIGTERM).is_err());
        assert!(open(who).is_err());
    }
}
