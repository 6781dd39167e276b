//! Signals that a waiter or `again log -f` acts on, as readable descriptors.
#![allow(unsafe_code)]

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// Makes a write to a pipe without a reader, or beyond the limit of a file's size,
/// fail rather than kill us.
pub fn let_writes_fail() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    for number in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        // SAFETY: SIG_IGN installs no function of ours.
        let _ = unsafe { signal(number, SigHandler::SigIgn) };
    }
}

/// Keeps back the signals that say to end, for as long as it lives.
///
/// One that arrives when a waiter is about to become the rerun is then the rerun's, as
/// the record says already; caught, it would be lost with us.
#[derive(Debug)]
pub struct Held(nix::sys::signal::SigSet);

impl Held {
    /// From now on.
    ///
    /// # Errors
    /// Those of sigprocmask(2).
    pub fn back() -> io::Result<Self> {
        use nix::sys::signal::{SigSet, Signal};
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Held(set))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.thread_unblock();
    }
}

/// Two pipes: one readable after a signal that says end, one after one that says now.
#[derive(Debug)]
pub struct Signals {
    end: UnixStream,
    now: UnixStream,
}

impl Signals {
    /// Catches SIGTERM, SIGINT, SIGHUP (end) and SIGUSR1 (now).
    ///
    /// # Errors
    /// Those of socketpair(2) and sigaction(2).
    pub fn catch() -> io::Result<Self> {
        let (end, end_writer) = UnixStream::pair()?;
        let (now, now_writer) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, end_writer.try_clone()?)?;
        }
        signal_hook::low_level::pipe::register(SIGUSR1, now_writer)?;
        end.set_nonblocking(true)?;
        now.set_nonblocking(true)?;
        Ok(Signals { end, now })
    }

    /// Readable once a signal said to end.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Readable once a signal said not to wait any longer.
    pub fn now(&self) -> BorrowedFd<'_> {
        self.now.as_fd()
    }

    /// Takes back what arrived: (end, now).
    pub fn take(&mut self) -> (bool, bool) {
        let end = self.take_end();
        (end, self.now.read(&mut [0; 64]).is_ok_and(|n| n > 0))
    }

    /// Takes back signals that say to end.
    pub fn take_end(&mut self) -> bool {
        self.end.read(&mut [0; 64]).is_ok_and(|n| n > 0)
    }
}
