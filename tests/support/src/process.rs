//! Processes as the kernel shows them, identified by pid and start time, so that a reused pid is
//! another process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{SHORT, wait_until};

/// Returns the seconds since boot, including suspend: the clock of `again` and of the records.
pub fn boottime() -> f64 {
    now() as f64 / 1e9
}

/// Returns CLOCK_BOOTTIME in nanoseconds.
pub fn now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Process, as opposed to any later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    /// Start time: field 22 of /proc/PID/stat.
    pub start: u64,
}

/// Returns the fields of a stat line from the third on (state, ppid, pgrp, session, tty …), after
/// the last parenthesis.
pub fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default()
}

/// Splits bytes that the kernel separates with NULs, keeping empty elements.
pub fn split_nul(raw: &[u8]) -> Vec<Vec<u8>> {
    match raw.strip_suffix(b"\0") {
        Some(raw) => raw.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect(),
        None if raw.is_empty() => Vec::new(),
        None => raw.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect(),
    }
}

/// Splits an environment block into names and values.
pub fn environment(raw: &[u8]) -> BTreeMap<String, String> {
    split_nul(raw)
        .iter()
        .filter_map(|entry| {
            let entry = String::from_utf8_lossy(entry).into_owned();
            entry
                .split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        })
        .collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

impl Process {
    /// Returns the process that has this pid now, unless it is a zombie.
    pub fn now(pid: i32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat_fields(&stat);
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        Some(Process {
            pid,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    /// Returns all processes except zombies.
    pub fn all() -> Vec<Process> {
        let mut all: Vec<Process> = pids().filter_map(Process::now).collect();
        all.sort();
        all
    }

    /// Returns the processes whose program is in this directory, or was when they started.
    pub fn with_program_of(dir: &Path) -> Vec<Process> {
        let mut all: Vec<Process> = pids()
            .filter(|pid| {
                fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.starts_with(dir))
            })
            .filter_map(Process::now)
            .collect();
        all.sort();
        all
    }

    /// Returns the processes below this one in all generations, except zombies.
    pub fn descendants(self) -> Vec<Process> {
        let all: Vec<(Process, i32)> = Process::all()
            .into_iter()
            .map(|p| (p, p.parent()))
            .collect();
        let mut found: Vec<Process> = Vec::new();
        let mut wanted = vec![self.pid];
        while let Some(parent) = wanted.pop() {
            for (process, _) in all.iter().filter(|(_, ppid)| *ppid == parent) {
                found.push(*process);
                wanted.push(process.pid);
            }
        }
        found
    }

    /// Whether the process still exists; a zombie does not count.
    pub fn alive(self) -> bool {
        Process::now(self.pid) == Some(self)
    }

    fn file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    fn bytes(self, name: &str) -> Vec<u8> {
        fs::read(self.file(name)).unwrap_or_default()
    }

    /// Waits until the process sleeps in poll(2): a waiter that does has set up all that it needs,
    /// and leaves its files alone until something wakes it.
    pub fn wait_until_asleep(self) {
        wait_until("the waiter to sleep", SHORT, || {
            let call = fs::read_to_string(self.file("syscall")).unwrap_or_default();
            // poll(2), ppoll(2)
            matches!(call.split(' ').next(), Some("7" | "271"))
        });
    }

    /// Returns the raw argv, including padding.
    pub fn raw_command(self) -> Vec<u8> {
        self.bytes("cmdline")
    }

    /// Returns the argv.
    pub fn command(self) -> Vec<String> {
        split_nul(&self.raw_command())
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    /// Returns the argv as one line.
    pub fn title(self) -> String {
        self.command().join(" ").trim().to_owned()
    }

    /// Describes the process for a message: its name, its state, and the kernel function in which
    /// it waits.
    pub fn describe(self) -> String {
        let file = |name: &str| {
            let text = fs::read_to_string(self.file(name)).unwrap_or_default();
            text.trim().to_owned()
        };
        let state = self.status("State").unwrap_or_default();
        format!(
            "{} {} {state} {} {}",
            self.pid,
            self.title(),
            file("wchan"),
            file("syscall")
        )
    }

    /// Returns the environment as it was at the exec.
    pub fn environment(self) -> BTreeMap<String, String> {
        environment(&self.bytes("environ"))
    }

    /// Returns the target of a link in /proc/PID, such as the working directory (`cwd`) or the
    /// program (`exe`).
    pub fn link(self, name: &str) -> Option<PathBuf> {
        fs::read_link(self.file(name)).ok()
    }

    /// Returns the open descriptors and their targets.
    pub fn descriptors(self) -> BTreeMap<i32, String> {
        fs::read_dir(self.file("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let number = entry.file_name().to_str()?.parse().ok()?;
                Some((
                    number,
                    fs::read_link(entry.path())
                        .ok()?
                        .to_string_lossy()
                        .into_owned(),
                ))
            })
            .collect()
    }

    /// Returns a field of /proc/PID/stat, numbered as in proc(5) (4 is the parent, 6 the session, 7
    /// the terminal).
    pub fn stat(self, field: usize) -> Option<i64> {
        let stat = fs::read_to_string(self.file("stat")).ok()?;
        stat_fields(&stat).get(field - 3)?.parse().ok()
    }

    /// Returns a line of /proc/PID/status.
    pub fn status(self, name: &str) -> Option<String> {
        let status = fs::read_to_string(self.file("status")).ok()?;
        status_line(&status, name)
    }

    /// Returns a sum of /proc/PID/smaps_rollup, in kB.
    pub fn memory(self, name: &str) -> Option<u64> {
        let rollup = fs::read_to_string(self.file("smaps_rollup")).ok()?;
        status_line(&rollup, name)?
            .trim_end_matches(" kB")
            .trim()
            .parse()
            .ok()
    }

    pub fn parent(self) -> i32 {
        self.stat(4).unwrap_or(0) as i32
    }

    /// Sends a signal to this process only.
    pub fn signal(self, signal: Signal) -> io::Result<()> {
        if !self.alive() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        kill(Pid::from_raw(self.pid), signal).map_err(io::Error::from)
    }

    /// Ends the process: with SIGTERM, after five seconds with SIGKILL.
    pub fn end(self) {
        let _ = self.signal(Signal::SIGTERM);
        let end = std::time::Instant::now() + Duration::from_secs(5);
        while self.alive() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.signal(Signal::SIGKILL);
    }

    pub fn wait_until_gone(self, timeout: Duration) {
        wait_until(
            &format!("the end of process {} ({})", self.pid, self.title()),
            timeout,
            || !self.alive(),
        );
    }
}

/// Whether these bytes contain a directory's path.
fn mention(bytes: &[u8], dir: &Path) -> bool {
    let root = dir.as_os_str().as_encoded_bytes();
    bytes.windows(root.len()).any(|window| window == root)
}

/// Returns the running processes that belong to a directory through their program or arguments,
/// except this one. This does not find all of them, but is fast enough for short-lived processes.
pub fn at_a_glance(dir: &Path) -> Vec<Process> {
    let within = |path: PathBuf| path.starts_with(dir);
    let me = std::process::id() as i32;
    pids()
        .filter(|pid| *pid != me)
        .filter(|pid| {
            let file = |name: &str| format!("/proc/{pid}/{name}");
            fs::read_link(file("exe")).is_ok_and(within)
                || fs::read(file("cmdline")).is_ok_and(|words| mention(&words, dir))
        })
        .filter_map(Process::now)
        .collect()
}

/// Returns the running processes that belong to a directory through their program, arguments,
/// environment or working directory, except this one.
pub fn of_directory(dir: &Path) -> Vec<Process> {
    let within = |path: Option<PathBuf>| path.is_some_and(|path| path.starts_with(dir));
    Process::all()
        .into_iter()
        .filter(|process| process.pid != std::process::id() as i32)
        .filter(|process| {
            within(process.link("exe"))
                || within(process.link("cwd"))
                || mention(&process.raw_command(), dir)
                || mention(&process.bytes("environ"), dir)
        })
        .collect()
}

/// Returns the value of `name:` in the format of /proc/PID/status.
pub fn status_line(status: &str, name: &str) -> Option<String> {
    status.lines().find_map(|line| {
        Some(
            line.strip_prefix(name)?
                .strip_prefix(':')?
                .trim()
                .to_owned(),
        )
    })
}
