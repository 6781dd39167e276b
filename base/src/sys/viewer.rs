//! What a command waits for that a person looks at, until a signal ends it. Its handlers are signal-hook's: a viewer becomes no
//! other program, and who sent a signal does not matter.
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

/// The signals that ask to end.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// How often a process is looked at where there is no pidfd_open(2).
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why a viewer no longer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// This signal asks to end.
    Signal(i32),
    /// The terminal has another size, or was another job's meanwhile.
    Redraw,
    /// The process has ended.
    Ended,
    /// The file has grown.
    Grown,
    /// The time is over.
    Time,
}

/// The signals of a viewer.
#[derive(Debug)]
pub struct Viewer(SignalDelivery<UnixStream, SignalOnly>);

impl Viewer {
    /// Catches the signals of [`News`] from here on, but not what we were told to ignore, as by nohup(1).
    ///
    /// # Errors
    /// Those of socketpair(2) and sigaction(2).
    pub fn new(inherited: SignalState) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let all = ENDING.into_iter().chain([SIGWINCH, SIGCONT]);
        let caught = all.filter(|signal| !inherited.ignores(*signal));
        let signals = SignalDelivery::with_pipe(read, write, SignalOnly, caught)?;
        Ok(Viewer(signals))
    }

    /// Waits for a signal, the end of the process, what is added to the file, or the end of the time: whichever is first, and in this
    /// order.
    ///
    /// # Errors
    /// Those of poll(2).
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
                    // Taken off the queue; what was added is read by the caller.
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

/// Ends this process by a signal, as if it had never been caught: a shell sees 128 and its number. By such an exit status where we are
/// process 1 of a container, whom the kernel lets live.
pub fn end_by(signal: i32) -> ! {
    if std::process::id() != 1 {
        let _ = emulate_default_handler(signal);
    }
    std::process::exit(128 + signal)
}

/// A file that is watched for what is added to it.
#[derive(Debug)]
pub struct Growth(Inotify);

impl Growth {
    /// Watches it.
    ///
    /// # Errors
    /// Those of inotify_init1(2) and inotify_add_watch(2).
    pub fn of(file: &Path) -> io::Result<Self> {
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        watch.add_watch(file, AddWatchFlags::IN_MODIFY)?;
        Ok(Growth(watch))
    }
}
