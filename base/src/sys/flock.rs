//! Locks of whole files, flock(2), with a time limit; and the process that holds one.

use std::cell::OnceCell;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process::{self, split_block};
use super::{clock, process::lossy};
use crate::model::{Boottime, Identity, Span};

/// Process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process that holds the lock.
    pub process: Identity,
    /// Command line of the process, at most 160 characters.
    pub command: String,
    /// Whether a signal has stopped it (SIGSTOP, ^Z).
    pub is_stopped: bool,
}

impl Holder {
    /// Process with this pid, if it is alive.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = process::stat(pid).ok()?;
        let start = stat.start;
        let mut words = split_block(&process::cmdline(pid).unwrap_or_default());
        words.retain(|word| !word.is_empty());
        if words.is_empty() {
            words.push(stat.comm);
        }
        let command = lossy(words.join(&b' ')).replace(char::is_control, " ");
        Some(Holder {
            process: Identity { pid, start },
            command: command.trim().chars().take(160).collect(),
            is_stopped: matches!(stat.state, b'T' | b't'),
        })
    }

    /// Time since the start of the process, in whole seconds.
    pub fn age(&self, now: Boottime) -> Span {
        Span::from_secs(now.since(self.process.started()).secs())
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, age) = (self.process.pid, self.age(clock::boottime()));
        write!(f, "pid {pid}, '{}', up {age}", self.command)?;
        if self.is_stopped {
            write!(f, ", stopped by a signal: 'kill -CONT {pid}' lets it go on")?;
        }
        Ok(())
    }
}

/// Error: another process holds a lock.
#[derive(Debug)]
pub struct Busy {
    path: PathBuf,
    limit: Duration,
    holder: Option<Holder>,
}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, limit) = (self.path.display(), self.limit.as_secs());
        write!(f, "{path} has been locked for {limit}s by ")?;
        match &self.holder {
            Some(holder) => write!(f, "another ({holder})"),
            None => f.write_str("a process that cannot be seen from here"),
        }
    }
}

impl std::error::Error for Busy {}

impl From<Busy> for io::Error {
    fn from(busy: Busy) -> Self {
        io::Error::new(io::ErrorKind::TimedOut, busy)
    }
}

/// Whether the error is a [`Busy`].
pub fn is_busy(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.and_then(io::Error::get_ref)
        .is_some_and(|inner| inner.is::<Busy>())
}

/// Locks a file; waits at most `limit`.
///
/// # Errors
/// The errors of flock(2); [`Busy`] after `limit`.
pub fn lock(file: &File, path: impl FnOnce() -> PathBuf, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    // Polls, because flock(2) has no time limit.
    let mut pause = Duration::from_micros(500);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(e),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let path = path();
                let holder = Locks::default().holder(&path);
                return Err(io::Error::from(Busy {
                    path,
                    limit,
                    holder,
                }));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Locks of whole files that the kernel shows: /proc/locks (proc_locks(5)), read at the first use.
/// Reading takes the kernel milliseconds.
#[derive(Debug, Default)]
pub struct Locks(OnceCell<Vec<(u64, i32)>>);

impl Locks {
    /// Living process that holds the lock of this file, if there is one.
    pub fn holder(&self, path: &Path) -> Option<Holder> {
        // Compares no device number, because a layered file system shows another one.
        let inode = std::fs::symlink_metadata(path).ok()?.ino();
        let holders = self.0.get_or_init(held_now).iter().rev();
        let mut holders = holders.filter(|(at, _)| *at == inode).peekable();
        // The table may be out of date.
        if holders.peek().is_none() || is_free(path) {
            return None;
        }
        holders.find_map(|(_, pid)| Holder::of(*pid))
    }
}

/// Whether a file can be opened by us and is not locked. Releases the lock that it takes for this
/// check immediately.
fn is_free(path: &Path) -> bool {
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path);
    file.is_ok_and(|file| file.try_lock_shared().is_ok())
}

fn held_now() -> Vec<(u64, i32)> {
    let read = || process::read_whole("/proc/locks").unwrap_or_default();
    let mut text = read();
    // The kernel returns a page at a time, and skips a lock if others before it are released
    // between two pages.
    if text.len() > 4000 {
        text.extend((0..7).flat_map(|_| read()));
    }
    lossy(text).lines().filter_map(held).collect()
}

/// Inode and pid from a line such as `1: FLOCK  ADVISORY  WRITE 123 08:01:4711 0 EOF`.
fn held(line: &str) -> Option<(u64, i32)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    // A request that waits for the lock has an arrow here.
    words.next().filter(|kind| *kind == "FLOCK")?;
    let pid = words.nth(2)?.parse().ok()?;
    let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
    Some((inode, pid))
}

#[cfg(test)]
mod tests {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn reads_the_kernels_table() {
        let line = "1: FLOCK  ADVISORY  WRITE 123 08:01:4711 0 EOF";
        assert_eq!(held(line), Some((4711, 123)));
        for line in [
            "1: -> FLOCK  ADVISORY  WRITE 123 08:01:4711 0 EOF",
            "2: POSIX  ADVISORY  READ 7 08:01:4711 0 EOF",
            "3: FLOCK",
            "",
        ] {
            assert_eq!(held(line), None, "{line}");
        }
    }

    #[test]
    fn holders_are_found_while_others_lock_and_unlock() {
        let dir = tempfile::tempdir().expect("a directory");
        let create = |name: String| {
            let path = dir.path().join(name);
            (File::create(&path).expect("created"), path)
        };
        // The kernel lists the locks of one processor after those of another, the newest first.
        let here = Pid::from_raw(0);
        let all = sched_getaffinity(here).expect("processors");
        let mut all = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu) == Ok(true));
        let first = all.next().expect("a processor");
        let last = all.next_back().unwrap_or(first);
        let stay_on = |cpu| {
            let mut set = CpuSet::new();
            set.set(cpu).expect("a processor");
            sched_setaffinity(here, &set).expect("allowed");
        };
        stay_on(last);
        let held: Vec<_> = (0..150).map(|n| create(format!("held-{n}"))).collect();
        for (file, _) in &held {
            file.lock().expect("locked");
        }
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let busy: Vec<_> = (0..40).map(|n| create(format!("busy-{n}")).0).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stay_on(first);
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    busy.iter().for_each(|file| file.lock().expect("locked"));
                    busy.iter()
                        .for_each(|file| file.unlock().expect("unlocked"));
                }
            });
            let missed = |_: &i32| {
                let locks = Locks::default();
                held.iter().any(|(_, path)| locks.holder(path).is_none())
            };
            let missed = (0..20).filter(missed).count();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(missed <= 2, "{missed} of 20 times");
        });
    }

    #[test]
    fn gives_up_in_time_and_names_the_holder() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path();
        let open = || File::open(path).expect("opened");
        let (first, second) = (open(), open());
        lock(&first, || path.into(), Duration::ZERO).expect("free");
        let error = lock(&second, || path.into(), Duration::from_millis(30)).expect_err("held");
        let pid = std::process::id();
        assert!(
            error.to_string().contains(&format!("(pid {pid}, '")),
            "{error}"
        );
        drop(first);
        lock(&second, || path.into(), Duration::ZERO).expect("free again");
    }
}
