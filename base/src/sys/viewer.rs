//! Events that a viewer, a command with live output, waits for until a signal ends it. The handlers
//! are those of signal-hook: a viewer does not execute another program, and does not need the
//! sender of a signal.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::emulate_default_handler;

use super::attributes::SignalState;
use super::pidfd::Handle;
use super::process::is_alive;

/// Signals that end a viewer.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Interval at which a process is checked if there is no pidfd_open(2).
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Event that ends the wait of a viewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// A signal that ends the viewer.
    Signal(i32),
    /// The terminal has another size, or the viewer continues after it was stopped.
    Redraw,
    /// The process has ended.
    Ended,
    /// The file has grown.
    Grown,
    /// The time limit has passed.
    Time,
}

/// Signals that a viewer catches.
#[derive(Debug)]
pub struct Viewer(SignalDelivery<UnixStream, SignalOnly>);

impl Viewer {
    /// Catches the signals of [`News`] from here on, except those that are inherited as ignored, as
    /// from nohup(1).
    ///
    /// # Errors
    /// The errors of socketpair(2) and sigaction(2).
    pub fn new(inherited: SignalState) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let all = ENDING.into_iter().chain([SIGWINCH, SIGCONT]);
        let caught = all.filter(|signal| !inherited.ignores(*signal));
        let signals = SignalDelivery::with_pipe(read, write, SignalOnly, caught)?;
        Ok(Viewer(signals))
    }

    /// Waits for a signal, the end of the process, growth of the file, or the time limit: for the
    /// first of them, checked in this order.
    ///
    /// # Errors
    /// The errors of poll(2).
    pub fn wait(
        &mut self,
        process: Option<&Handle>,
        file: Option<&Growth>,
        limit: Option<Duration>,
    ) -> io::Result<News> {
        loop {
            let signals: Vec<i32> = self.0.pending().collect();
            if let Some(signal) = signals.iter().find(|signal| ENDING.contains(signal)) {
                return Ok(News::Signal(*signal));
            } else if !signals.is_empty() {
                return Ok(News::Redraw);
            }
            let looked = match process {
                Some(Handle::Looked(who)) if !is_alive(*who) => return Ok(News::Ended),
                Some(Handle::Looked(_)) => Some(LOOK_EVERY),
                _ => None,
            };
            let sources = [
                (Some(self.0.get_read().as_fd()), None),
                (
                    process.and_then(Handle::pidfd).map(AsFd::as_fd),
                    Some(News::Ended),
                ),
                (file.map(|file| file.0.as_fd()), Some(News::Grown)),
            ];
            let (mut polled, news): (Vec<_>, Vec<_>) = sources
                .into_iter()
                .filter_map(|(fd, news)| Some((PollFd::new(fd?, PollFlags::POLLIN), news)))
                .unzip();
            let timeout = limit.into_iter().chain(looked).min();
            let timeout =
                timeout.map(|limit| PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
            let ready = match poll(&mut polled, timeout.unwrap_or(PollTimeout::NONE)) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(e.into()),
            };
            let mut found = polled.iter().zip(news);
            let found = found.find(|(fd, _)| fd.any() == Some(true));
            match found {
                Some((_, Some(News::Grown))) => {
                    // Empties inotify's queue; the caller reads the new content.
                    file.map(|file| file.0.read_events());
                    return Ok(News::Grown);
                }
                Some((_, Some(news))) => return Ok(news),
                _ if ready == 0 && looked.is_none() => return Ok(News::Time),
                _ => {}
            }
        }
    }
}

/// Ends this process with a signal, as if it had not been caught: a shell sees 128 plus its number.
/// Process 1 of a container, which the kernel does not let a signal end, exits with that status.
pub fn end_by(signal: i32) -> ! {
    if std::process::id() != 1 {
        let _ = emulate_default_handler(signal);
    }
    std::process::exit(128 + signal)
}

/// Watch on a file for data that is added to it.
#[derive(Debug)]
pub struct Growth(Inotify);

impl Growth {
    /// Watches a file.
    ///
    /// # Errors
    /// The errors of inotify_init1(2) and inotify_add_watch(2).
    pub fn of(file: &Path) -> io::Result<Self> {
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        watch.add_watch(file, AddWatchFlags::IN_MODIFY)?;
        Ok(Growth(watch))
    }
}
