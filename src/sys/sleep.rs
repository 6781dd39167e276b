//! Sleeps until something happens: the only code in which a waiter and a converge driver wait. If
//! pidfds exist, it polls neither for an end nor for a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::memory;
use again_base::model::{Boottime, Span};
use again_base::sys::attributes::{SignalState, set_disposition};
use again_base::sys::pidfd::Handle;
use again_base::sys::process::is_alive;

/// Event that ended a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// A signal that asks to end.
    Signal {
        /// Number of the signal.
        number: i32,
        /// Whether the terminal sent it, and so to the whole foreground process group.
        by_terminal: bool,
    },
    /// [`HURRY`]: an operator has changed a wait (`again now`).
    Hurry,
    /// [`NO_MORE`]: an operator wants no further run (`again stop`).
    NoMore,
    /// A child has ended, or written output.
    Child,
    /// The process has ended.
    Ended,
    /// The time has come.
    Time,
    /// One of the watched directories has changed.
    Changed,
}

/// Signals that ask to end.
const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// Signal that asks a waiter to read its record again, and a driver not to wait any longer.
pub const HURRY: i32 = libc::SIGUSR1;
/// Signal that asks a driver to start no further run.
pub const NO_MORE: i32 = libc::SIGUSR2;

/// Interval at which a held timer checks for a change if no directory can be watched.
pub const LOOK_AGAIN: Span = Span::from_secs(15);

/// Interval for checking a process if there is no pidfd_open(2).
const LOOK_EVERY_MS: u16 = 500;

/// Code of a signal that the kernel sent, such as for a key on a terminal: sigaction(2). The libc
/// crate lacks it for musl.
const SI_KERNEL: i32 = 0x80;

/// A signalfd(2) and a timer on CLOCK_BOOTTIME.
///
/// A signalfd shows who sent a signal. The signals that it reads are blocked, and a blocked signal
/// reaches the first process of a container too, which an unblocked one without a handler does not
/// (pid_namespaces(7)). Signals that arrive late stay pending across exec(3).
#[derive(Debug)]
pub struct Sleeper {
    signals: SignalFd,
    timer: TimerFd,
    told_to_end: bool,
}

impl Sleeper {
    /// Blocks the signals of [`Wake`] from here on, except those that were inherited as ignored.
    ///
    /// # Errors
    /// Errors of sigprocmask(2), signalfd(2) and timerfd_create(2).
    pub fn new(inherited: SignalState) -> io::Result<Self> {
        // If SIGCHLD were ignored, the exit status of a child would be lost.
        set_disposition(libc::SIGCHLD, false);
        let mut set = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGUSR1, Signal::SIGUSR2] {
            set.add(signal);
        }
        // A blocked signal is delivered even if it is ignored, such as by nohup(1).
        for signal in ENDING.into_iter().filter(|s| !inherited.ignores(*s as i32)) {
            set.add(signal);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Sleeper {
            signals: SignalFd::with_flags(&set, flags)?,
            timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?,
            told_to_end: false,
        })
    }

    /// Whether a signal has asked to end so far. Reads all pending signals, so that no program that
    /// this process becomes gets them; after [`HURRY`] the caller has to check for changes.
    pub fn is_told_to_end(&mut self) -> bool {
        while let Ok(Some(_)) = self.take_signal() {}
        self.told_to_end
    }

    /// Whether a signal that was read has asked to end.
    pub fn was_told_to_end(&self) -> bool {
        self.told_to_end
    }

    fn take_signal(&mut self) -> io::Result<Option<Wake>> {
        let info = self.signals.read_signal()?;
        let wake = info.map(|info| match info.ssi_signo.cast_signed() {
            libc::SIGCHLD => Wake::Child,
            HURRY => Wake::Hurry,
            NO_MORE => Wake::NoMore,
            number => Wake::Signal {
                number,
                by_terminal: info.ssi_code == SI_KERNEL,
            },
        });
        self.told_to_end |= matches!(wake, Some(Wake::Signal { .. }));
        Ok(wake)
    }

    /// Sleeps until a signal arrives, the process has ended, the time has come or the watch reports
    /// a change: whichever is first, and in this order.
    ///
    /// # Errors
    /// Errors of read(2), timerfd_settime(2) and poll(2).
    pub fn sleep(
        &mut self,
        process: Option<&Handle>,
        until: Option<Boottime>,
        watch: Option<&Watch>,
    ) -> io::Result<Wake> {
        self.sleep_and_hear(process, until, watch, None)
    }

    /// As [`Sleeper::sleep`], but also ends when a child writes to `output`, which the caller has
    /// to read, or closes it.
    ///
    /// # Errors
    /// As for [`Sleeper::sleep`].
    pub fn sleep_and_hear(
        &mut self,
        process: Option<&Handle>,
        until: Option<Boottime>,
        watch: Option<&Watch>,
        output: Option<BorrowedFd<'_>>,
    ) -> io::Result<Wake> {
        set_timer(&self.timer, until)?;
        loop {
            if let Some(wake) = self.take_signal()? {
                return Ok(wake);
            }
            let (process, timeout) = match process {
                Some(Handle::Pidfd(fd, _)) => (Some(fd.as_fd()), PollTimeout::NONE),
                Some(Handle::Looked(who)) if !is_alive(*who) => return Ok(Wake::Ended),
                Some(Handle::Looked(_)) => (None, PollTimeout::from(LOOK_EVERY_MS)),
                None => (None, PollTimeout::NONE),
            };
            let sources = [
                (Some(self.signals.as_fd()), None),
                (process, Some(Wake::Ended)),
                (Some(self.timer.as_fd()), Some(Wake::Time)),
                (watch.map(|watch| watch.files.as_fd()), Some(Wake::Changed)),
                (
                    watch.and_then(|watch| Some(watch.clock.as_ref()?.as_fd())),
                    Some(Wake::Changed),
                ),
                (output, Some(Wake::Child)),
            ];
            let (mut polled, wakes): (Vec<_>, Vec<_>) = sources
                .into_iter()
                .filter_map(|(fd, wake)| Some((PollFd::new(fd?, PollFlags::POLLIN), wake)))
                .unzip();
            match memory::poll_without_pages(&mut polled, timeout) {
                Ok(()) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let mut ready = polled.iter().zip(wakes);
            let first = ready.find(|(fd, _)| fd.any() == Some(true));
            if let Some((_, Some(wake))) = first {
                if let (Wake::Changed, Some(watch)) = (wake, watch) {
                    // Only clears the queue; the caller finds out what changed.
                    let _ = watch.files.read_events();
                }
                return Ok(wake);
            }
        }
    }
}

/// Lets a timer expire at this time, or never.
fn set_timer(timer: &TimerFd, until: Option<Boottime>) -> io::Result<()> {
    let Some(at) = until else {
        return Ok(timer.unset()?);
    };
    // A zero time would disarm the timer.
    let at = std::time::Duration::from_nanos(at.nanos().max(1));
    timer.set(
        Expiration::OneShot(TimeSpec::from_duration(at)),
        TimerSetTimeFlags::TFD_TIMER_ABSTIME,
    )?;
    Ok(())
}

/// Watch on directories for files that are added, removed or replaced.
#[derive(Debug)]
pub struct Watch {
    files: Inotify,
    /// Timer that becomes, and stays, readable once the wall clock is set.
    clock: Option<TimerFd>,
}

/// Inotify events for a file in a directory, or the directory, that was added, removed or replaced.
const COMES_AND_GOES: AddWatchFlags = AddWatchFlags::IN_DELETE
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF);

impl Watch {
    /// Watches those of the directories that exist, if any.
    ///
    /// # Errors
    /// Errors of inotify_init1(2) and inotify_add_watch(2), such as a limit that is reached.
    pub fn on<'a>(directories: impl IntoIterator<Item = &'a Path>) -> io::Result<Self> {
        let files = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let watch = Watch { files, clock: None };
        watch.add(directories, COMES_AND_GOES)?;
        Ok(watch)
    }

    /// Also watches these directories, including new directories in them, and the wall clock. Valid
    /// for one wake.
    ///
    /// # Errors
    /// Errors of [`Watch::on`], timerfd_create(2) and timerfd_settime(2).
    pub fn and_clock<'a>(
        mut self,
        directories: impl IntoIterator<Item = &'a Path>,
    ) -> io::Result<Self> {
        self.add(directories, COMES_AND_GOES | AddWatchFlags::IN_CREATE)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let clock = TimerFd::new(ClockId::CLOCK_REALTIME, flags)?;
        // Never due: it is cancelled when the clock is set.
        clock.set(
            Expiration::OneShot(TimeSpec::new(i64::from(i32::MAX) << 8, 0)),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET,
        )?;
        self.clock = Some(clock);
        Ok(self)
    }

    fn add<'a>(
        &self,
        directories: impl IntoIterator<Item = &'a Path>,
        flags: AddWatchFlags,
    ) -> io::Result<()> {
        for directory in directories {
            match self.files.add_watch(directory, flags) {
                Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    const NOW: Option<Boottime> = Some(Boottime::from_nanos(0));

    /// The next wake that is not of another test's child.
    fn next(
        sleeper: &mut Sleeper,
        process: Option<&Handle>,
        until: Option<Boottime>,
        watch: Option<&Watch>,
    ) -> Wake {
        loop {
            let wake = sleeper.sleep(process, until, watch).expect("slept");
            if wake != Wake::Child {
                return wake;
            }
        }
    }

    #[test]
    fn signals_go_first_and_the_rest_has_an_order() {
        let ignored = 1 << (Signal::SIGHUP as i32 - 1);
        let inherited = SignalState {
            ignored,
            ..SignalState::default()
        };
        let mut sleeper = Sleeper::new(inherited).expect("a sleeper");
        let blocked = SigSet::thread_get_mask().expect("a mask");
        assert!(blocked.contains(Signal::SIGTERM) && !blocked.contains(Signal::SIGHUP));
        raise(Signal::SIGUSR1).expect("raised");
        assert!(!sleeper.is_told_to_end(), "it does not ask to end");
        assert_eq!(next(&mut sleeper, None, NOW, None), Wake::Time, "taken");

        let dir = tempfile::tempdir().expect("a directory");
        let watch = Watch::on([dir.path(), Path::new("/nowhere/at/all")]).expect("a watch");
        std::fs::write(dir.path().join("file"), b"").expect("written");
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat");
        let who = again_base::sys::process::identify(child.id().cast_signed());
        let handle = again_base::sys::pidfd::open(who.expect("alive")).expect("a handle");
        drop(child.stdin.take());
        assert!(handle.wait(std::time::Duration::from_secs(60)));
        raise(Signal::SIGTERM).expect("raised");
        raise(Signal::SIGUSR2).expect("raised");
        raise(Signal::SIGUSR1).expect("raised");
        let terminated = Wake::Signal {
            number: libc::SIGTERM,
            by_terminal: false,
        };
        for wake in [Wake::Hurry, Wake::NoMore, terminated, Wake::Ended] {
            let woken = next(&mut sleeper, Some(&handle), NOW, Some(&watch));
            assert_eq!(woken, wake);
        }
        assert!(sleeper.was_told_to_end());
        child.wait().expect("reaped");
        let mut rest = |until| next(&mut sleeper, None, until, Some(&watch));
        assert_eq!(rest(NOW), Wake::Time);
        assert_eq!(rest(None), Wake::Changed);
        let soon = again_base::sys::clock::boottime() + Span::from_nanos(1_000_000);
        assert_eq!(rest(Some(soon)), Wake::Time);

        assert!(sleeper.was_told_to_end(), "which nothing takes back");
        let mut sleeper = Sleeper::new(inherited).expect("a sleeper");
        raise(Signal::SIGUSR1).expect("raised");
        raise(Signal::SIGTERM).expect("raised");
        assert!(sleeper.is_told_to_end());
        assert_eq!(next(&mut sleeper, None, NOW, None), Wake::Time);
    }
}
