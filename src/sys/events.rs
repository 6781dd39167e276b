//! What a driver sleeps for: a signal, the end of a child, a time, a changed file.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

use super::attributes::SignalState;
use super::pidfd::Handle;
use super::wait::{Watch, set_timer};
use crate::model::Boottime;
use crate::sys::process::is_alive;

/// What ended a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A signal that asks to end.
    Signal {
        /// Which.
        number: i32,
        /// It came from the terminal, which sent it to the whole foreground group.
        by_terminal: bool,
    },
    /// An operator wants the wait to be over (`again now`).
    Hurry,
    /// An operator wants no further run (`again stop`).
    NoMore,
    /// A child has ended.
    Child,
    /// The process that was waited for has ended.
    Ended,
    /// The time has come.
    Time,
    /// One of the watched directories has changed.
    Changed,
}

/// The signals that ask a driver to end.
const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// Tells a driver what [`Event::Hurry`] says.
pub const HURRY: i32 = libc::SIGUSR1;
/// Tells a driver what [`Event::NoMore`] says.
pub const NO_MORE: i32 = libc::SIGUSR2;

/// How often a process is looked at where there is no pidfd_open(2).
const LOOK_EVERY_MS: u16 = 500;

/// Signals as events.
///
/// They are blocked and read from a signalfd(2): it tells who sent a signal, and a
/// blocked signal reaches the first process of a container too, which an unblocked
/// one without a handler does not (pid_namespaces(7)).
#[derive(Debug)]
pub struct Events {
    signals: SignalFd,
    timer: TimerFd,
}

impl Events {
    /// Takes over the signals that were not ignored when we were started.
    ///
    /// # Errors
    /// Those of sigprocmask(2), signalfd(2) and timerfd_create(2).
    pub fn catch(inherited: SignalState) -> io::Result<Self> {
        // Ignored, it would take the exit status of the run away.
        // SAFETY: SIG_DFL installs no function of ours.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
        let mut set = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGUSR1, Signal::SIGUSR2] {
            set.add(signal);
        }
        for signal in ENDING {
            // A blocked signal is delivered even if it is ignored, as by nohup(1).
            if inherited.ignored >> (signal as i32 - 1) & 1 == 0 {
                set.add(signal);
            }
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Events {
            signals: SignalFd::with_flags(&set, flags)?,
            timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?,
        })
    }

    /// Sleeps until something happens. Signals go first.
    ///
    /// # Errors
    /// Those of read(2), timerfd_settime(2) and poll(2).
    pub fn next(
        &mut self,
        until: Option<Boottime>,
        process: Option<&Handle>,
        watch: Option<&Watch>,
    ) -> io::Result<Event> {
        set_timer(&self.timer, until)?;
        loop {
            if let Some(info) = self.signals.read_signal()? {
                let number = i32::try_from(info.ssi_signo).unwrap_or(0);
                return Ok(match number {
                    libc::SIGCHLD => Event::Child,
                    HURRY => Event::Hurry,
                    NO_MORE => Event::NoMore,
                    number => Event::Signal {
                        number,
                        by_terminal: info.ssi_code == SI_KERNEL,
                    },
                });
            }
            let mut timeout = PollTimeout::NONE;
            let mut polled = vec![
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            ];
            let mut add = |fd| {
                polled.push(PollFd::new(fd, PollFlags::POLLIN));
                polled.len() - 1
            };
            let watch_at = watch.map(|watch| add(watch.0.as_fd()));
            let mut process_at = None;
            match process {
                Some(Handle::Pidfd(fd, _)) => process_at = Some(add(fd.as_fd())),
                Some(Handle::Looked(who)) => {
                    if !is_alive(*who) {
                        return Ok(Event::Ended);
                    }
                    timeout = PollTimeout::from(LOOK_EVERY_MS);
                }
                None => {}
            }
            match poll(&mut polled, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let ready = |at: Option<usize>| {
                at.and_then(|at| polled.get(at))
                    .and_then(PollFd::any)
                    .unwrap_or(false)
            };
            if ready(Some(0)) {
                continue;
            }
            if ready(process_at) {
                return Ok(Event::Ended);
            }
            if ready(Some(1)) {
                return Ok(Event::Time);
            }
            if ready(watch_at) {
                if let Some(watch) = watch {
                    // Taken off the queue; what changed is looked up afresh.
                    let _ = watch.0.read_events();
                }
                return Ok(Event::Changed);
            }
        }
    }
}

/// The code of a signal that the kernel sent, such as for a key on a terminal:
/// sigaction(2). The libc crate lacks it for musl.
const SI_KERNEL: i32 = 0x80;
