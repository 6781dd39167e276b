//! Pidfds: a handle on one process that no later process can inherit.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::process;
use crate::model::Identity;
use crate::sys::process::is_alive;

/// A process to wait for or to signal, verified when it was taken hold of.
#[derive(Debug)]
pub enum Handle {
    /// The usual case: pidfd_open(2).
    Pidfd(OwnedFd, Identity),
    /// The kernel or a seccomp filter has no pidfd_open(2); the process is looked at in /proc.
    Looked(Identity),
}

/// Takes hold of exactly the process `who`.
///
/// # Errors
/// `NotFound` if it has ended, whatever runs under its pid now; `PermissionDenied` for
/// one that /proc does not show us.
pub fn open(who: Identity) -> io::Result<Handle> {
    // SAFETY: pidfd_open takes two integers and returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, who.pid, 0) };
    let handle = if fd >= 0 {
        let fd = i32::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        // SAFETY: the kernel has just given us this descriptor, close-on-exec.
        Handle::Pidfd(unsafe { OwnedFd::from_raw_fd(fd) }, who)
    } else {
        match io::Error::last_os_error().raw_os_error() {
            // A kernel before 5.3, or a filter in front of it.
            Some(libc::ENOSYS | libc::EPERM) => Handle::Looked(who),
            Some(libc::ESRCH) => return Err(io::Error::from(io::ErrorKind::NotFound)),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    // Looked at after the pidfd was opened: whoever it is, it is the one the pidfd holds.
    match process::identify(who.pid) {
        Ok(now) if now == who => Ok(handle),
        Ok(_) => Err(io::Error::from(io::ErrorKind::NotFound)),
        // Hidden from us (proc(5), hidepid), and so nobody that can be told from another.
        Err(e) if e.kind() == io::ErrorKind::NotFound && !handle.wait(Duration::ZERO) => {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }
        Err(e) => Err(e),
    }
}

/// [`open`] for a process whose end is all that matters: none if it has ended. Where
/// it cannot be taken hold of, for want of descriptors, it is looked at.
pub fn hold(who: Identity) -> Option<Handle> {
    match open(who) {
        Ok(handle) => Some(handle),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(Handle::Looked(who)),
    }
}

impl Handle {
    /// The process it was opened for.
    pub fn identity(&self) -> Identity {
        match self {
            Handle::Pidfd(_, who) | Handle::Looked(who) => *who,
        }
    }

    /// The pidfd, if there is one.
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
        let done = match self {
            // SAFETY: a descriptor we own, a signal number, and no siginfo.
            Handle::Pidfd(fd, _) => unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    fd.as_raw_fd(),
                    signal,
                    std::ptr::null::<libc::siginfo_t>(),
                    0,
                )
            },
            Handle::Looked(who) => {
                if !is_alive(*who) {
                    return Err(io::Error::from(io::ErrorKind::NotFound));
                }
                // SAFETY: two integers. The start time was compared just before.
                i64::from(unsafe { libc::kill(who.pid, signal) })
            }
        };
        if done == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ESRCH) => {
                Err(io::Error::from(io::ErrorKind::NotFound))
            }
            e => Err(e),
        }
    }

    /// Waits until the process has ended, at most `limit`. True if it has.
    pub fn wait(&self, limit: std::time::Duration) -> bool {
        let deadline = std::time::Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self {
                Handle::Pidfd(fd, _) => {
                    let mut poll = libc::pollfd {
                        fd: fd.as_raw_fd(),
                        events: libc::POLLIN,
                        revents: 0,
                    };
                    let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
                    // SAFETY: one valid pollfd, which outlives the call.
                    match unsafe { libc::poll(&raw mut poll, 1, ms) } {
                        n if n > 0 => return true,
                        0 => return false,
                        _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                        _ => return !is_alive(self.identity()),
                    }
                }
                Handle::Looked(who) => {
                    if !is_alive(*who) {
                        return true;
                    }
                    if left.is_zero() {
                        return false;
                    }
                    std::thread::sleep(left.min(std::time::Duration::from_millis(20)));
                }
            }
        }
    }
}

/// Lets a descriptor survive the next exec(2), and gives its number.
///
/// # Errors
/// Those of fcntl(2).
pub fn keep_across_exec(fd: &OwnedFd) -> io::Result<i32> {
    // SAFETY: F_SETFD on a descriptor we own.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) } {
        0 => Ok(fd.as_raw_fd()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a descriptor that was left open for us across exec(2), and makes it
/// close at the next one.
///
/// # Errors
/// `InvalidInput` for a number below 3; those of fcntl(2) if it is not open.
pub fn inherit(number: i32) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: F_SETFD on a number touches no memory, and fails if it is not open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
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
