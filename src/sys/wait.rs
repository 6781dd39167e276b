//! Sleeping until something happens. Nothing is woken up for to look, where the kernel
//! has pidfds and gives us an inotify watch.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::memory;
use super::pidfd::Handle;
use super::signals::Signals;
use crate::model::Boottime;
use crate::sys::process::is_alive;

/// What ended a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// A signal that says to end.
    End,
    /// A signal that says not to wait any longer.
    Now,
    /// The process has ended.
    Ended,
    /// The time has come.
    Time,
    /// One of the watched directories has changed.
    Changed,
}

/// How often a process is looked at where there is no pidfd_open(2).
const LOOK_EVERY_MS: u16 = 500;

/// A timer on CLOCK_BOOTTIME and the files that may be watched.
#[derive(Debug)]
pub struct Sleeper {
    signals: Signals,
    timer: TimerFd,
}

impl Sleeper {
    /// Makes the descriptors.
    ///
    /// # Errors
    /// Those of timerfd_create(2), where the kernel has no CLOCK_BOOTTIME timers.
    pub fn new(signals: Signals) -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
        Ok(Sleeper { signals, timer })
    }

    /// Whether a signal to end has arrived. It is taken off the queue.
    pub fn is_told_to_end(&mut self) -> bool {
        self.signals.take_end()
    }

    /// Sleeps until the process has ended, the time has come, a directory of
    /// `watch` has changed, or a signal arrived: whichever is first.
    ///
    /// # Errors
    /// Those of timerfd_settime(2), inotify(7) and poll(2).
    pub fn sleep(
        &mut self,
        process: Option<&Handle>,
        until: Option<Boottime>,
        watch: Option<&Watch>,
    ) -> io::Result<Woken> {
        set_timer(&self.timer, until)?;
        loop {
            let (end, now) = self.signals.take();
            if end {
                return Ok(Woken::End);
            }
            if now {
                return Ok(Woken::Now);
            }
            let mut timeout = PollTimeout::NONE;
            let mut polled = vec![
                PollFd::new(self.signals.end(), PollFlags::POLLIN),
                PollFd::new(self.signals.now(), PollFlags::POLLIN),
                PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
            ];
            let mut process_at = None;
            match process {
                Some(Handle::Pidfd(fd, _)) => {
                    process_at = Some(polled.len());
                    polled.push(PollFd::new(fd.as_fd(), PollFlags::POLLIN));
                }
                Some(Handle::Looked(who)) => {
                    if !is_alive(*who) {
                        return Ok(Woken::Ended);
                    }
                    timeout = PollTimeout::from(LOOK_EVERY_MS);
                }
                None => {}
            }
            let watch_at = watch.map(|watch| {
                polled.push(PollFd::new(watch.0.as_fd(), PollFlags::POLLIN));
                polled.len() - 1
            });
            match memory::poll_without_pages(&mut polled, timeout) {
                Ok(()) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let ready = |at: Option<usize>| {
                at.and_then(|at| polled.get(at))
                    .and_then(PollFd::any)
                    .unwrap_or(false)
            };
            if ready(process_at) {
                return Ok(Woken::Ended);
            }
            if ready(Some(2)) {
                return Ok(Woken::Time);
            }
            if ready(watch_at) {
                if let Some(watch) = watch {
                    // Taken off the queue; what changed is looked up afresh.
                    let _ = watch.0.read_events();
                }
                return Ok(Woken::Changed);
            }
        }
    }
}

/// Lets a timer expire then, or never.
pub(super) fn set_timer(timer: &TimerFd, until: Option<Boottime>) -> io::Result<()> {
    match until {
        // A zero time would disarm the timer.
        Some(at) => {
            let nanos = at.nanos().max(1);
            let spec = TimeSpec::new(
                i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
                i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
            );
            timer.set(
                Expiration::OneShot(spec),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?;
        }
        None => timer.unset()?,
    }
    Ok(())
}

/// Directories watched for files that come, go or are replaced.
#[derive(Debug)]
pub struct Watch(pub(super) Inotify);

impl Watch {
    /// Watches the directories that exist; none is fine.
    ///
    /// # Errors
    /// Those of inotify_init1(2) and inotify_add_watch(2), such as a limit that is reached.
    pub fn on<'a>(directories: impl IntoIterator<Item = &'a Path>) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        for directory in directories {
            let watched = inotify.add_watch(
                directory,
                AddWatchFlags::IN_DELETE
                    | AddWatchFlags::IN_MOVED_FROM
                    | AddWatchFlags::IN_MOVED_TO
                    | AddWatchFlags::IN_CLOSE_WRITE
                    | AddWatchFlags::IN_DELETE_SELF
                    | AddWatchFlags::IN_MOVE_SELF,
            );
            match watched {
                Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Watch(inotify))
    }

    /// Watches one file for what is written to it.
    ///
    /// # Errors
    /// Those of inotify_init1(2) and inotify_add_watch(2).
    pub fn on_growth(file: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(file, AddWatchFlags::IN_MODIFY)?;
        Ok(Watch(inotify))
    }
}
