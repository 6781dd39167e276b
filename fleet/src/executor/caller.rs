//! `again-fleet call`: makes the waiting calls, oldest first: one at a time for each rule, and
//! several rules in parallel.
//!
//! The file of a call is removed after the call was made. If this program is killed in between, it
//! makes the call again, with the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};
use tracing::{info, warn};

use again_base::directory::shown;
use again_base::sys::file::sync;
use again_base::sys::spawn::{close_all_on_exec, memory_file};
use again_base::sys::user;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

use super::calls::{self, Call, Calls};
use super::ledger::locked;
use crate::wire::outcome::cut;

/// Search path of the programs.
const PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin";
/// Maximum number of programs that run at the same time.
const MOST_AT_ONCE: usize = 64;
/// Interval at which the directory, and programs without a pidfd, are checked.
const PAUSE: Duration = Duration::from_millis(200);
/// Time that a program has to end after a signal.
const GRACE: Duration = Duration::from_secs(5);
/// Limits on the logged output of a program: lines, and bytes of each line.
const MOST_LINES: usize = 1000;
const LONGEST_LINE: usize = 1000;

/// Remaining action on the file of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Left {
    /// Remove the file: the call was made.
    Made,
    /// Set the file aside, for this reason.
    Unreadable(String),
}

/// Makes all calls, and later ones until there was none for the time `idle`.
///
/// # Errors
/// The directory cannot be used, or another process makes the calls.
pub fn work(state_dir: &Path, idle: Duration) -> Result<(), String> {
    close_all_on_exec();
    let calls = Calls::open(state_dir)?;
    let lock = calls.beside("calls.lock");
    let _lock = locked(&lock, "call")
        .map_err(|e| format!("{} cannot be locked: {e}", shown(&lock).display()))?;
    let (ended, ends) = channel();
    let mut desk = Desk {
        path: calls.path(),
        unreadable: calls.unreadable(),
        busy: BTreeSet::new(),
        left: BTreeMap::new(),
        ended,
    };
    thread::scope(|scope| {
        let mut last = Instant::now();
        loop {
            desk.put_away();
            let names = calls.waiting();
            let names = names
                .map_err(|e| format!("{} cannot be read: {e}", shown(&calls.path()).display()))?;
            desk.begin(scope, &names);
            if !desk.busy.is_empty() || !desk.left.is_empty() {
                last = Instant::now();
            } else if last.elapsed() >= idle {
                return Ok(());
            }
            if let Ok((name, left)) = ends.recv_timeout(PAUSE) {
                desk.busy.remove(rule(&name));
                desk.end(name, left);
            }
        }
    })
}

/// Hash of the rule in the name of a call's file. A file with another name counts as a rule of its
/// own, and is set aside.
fn rule(name: &str) -> &str {
    calls::of(name).unwrap_or(name)
}

/// State of the calls.
struct Desk {
    path: PathBuf,
    unreadable: PathBuf,
    /// Rules whose programs run, as hashes.
    busy: BTreeSet<String>,
    /// Finished calls whose files are still in the directory. They are not made again.
    left: BTreeMap<String, Left>,
    ended: Sender<(String, Left)>,
}

impl Desk {
    /// Begins the oldest call of each rule that has no running call.
    fn begin<'s>(&mut self, scope: &'s Scope<'s, '_>, names: &[String]) {
        for name in names {
            let is_full = self.busy.len() >= MOST_AT_ONCE;
            if is_full || self.busy.contains(rule(name)) || self.left.contains_key(name) {
                continue;
            }
            self.busy.insert(rule(name).to_owned());
            let (name, path, ended) = (name.clone(), self.path.join(name), self.ended.clone());
            scope.spawn(move || {
                let left = match calls::read(&path) {
                    Ok(call) => {
                        make(&call);
                        Left::Made
                    }
                    Err(why) => Left::Unreadable(why),
                };
                // The receiver lives longer than this thread.
                let _ = ended.send((name, left));
            });
        }
    }

    fn end(&mut self, name: String, left: Left) {
        if let Err(e) = self.try_to_put_away(&name, &left) {
            let path = shown(&self.path.join(&name));
            warn!(
                "{} has been dealt with and cannot be taken away: {e}; it is tried until it works",
                path.display()
            );
            self.left.insert(name, left);
        }
    }

    /// Tries again to remove or set aside the remaining files.
    fn put_away(&mut self) {
        let left = std::mem::take(&mut self.left).into_iter();
        self.left = left
            .filter(|(name, left)| self.try_to_put_away(name, left).is_err())
            .collect();
    }

    fn try_to_put_away(&self, name: &str, left: &Left) -> io::Result<()> {
        let path = self.path.join(name);
        let done = match left {
            Left::Made => fs::remove_file(&path),
            Left::Unreadable(_) => fs::rename(&path, &self.unreadable),
        };
        match done {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        if let Left::Unreadable(why) = left {
            let (path, aside) = (shown(&path), shown(&self.unreadable));
            warn!(
                "not called: {} cannot be read ({why}), and is now {}",
                path.display(),
                aside.display()
            );
        }
        // Without the sync, the call could be made again after a power failure.
        File::open(&self.path).and_then(|directory| sync(&directory))
    }
}

/// Makes a call, and logs its result.
fn make(call: &Call) {
    let event = &call.event;
    let about = format!(
        "'{}', {}, {} {}",
        call.rule, event.node, event.event.resource, event.event.change
    );
    let program = &call.command[0];
    let begun = Instant::now();
    let timeout = Duration::from_nanos(call.timeout.nanos());
    let became = run(call, &about, timeout);
    let (outcome, became) = match became {
        Err(e) => (
            "failed",
            format!(
                "{program} cannot be started: {e}; install it or change the rule: it is not called again for this event"
            ),
        ),
        Ok((_, true)) => (
            "failed",
            format!(
                "{program} had not ended within {} and was killed",
                call.timeout
            ),
        ),
        Ok((status, false)) => {
            let seconds = begun.elapsed().as_secs_f64();
            let outcome = if status.success() { "called" } else { "failed" };
            (
                outcome,
                format!("{program} ended with {status} after {seconds:.1}s"),
            )
        }
    };
    let line = cut(
        &format!("{about}: {became} (id {})", call.id),
        4 * LONGEST_LINE,
    );
    match outcome {
        "called" => info!("{outcome}: {line}"),
        _ => warn!("{outcome}: {line}"),
    }
}

/// Runs the program. Returns its status, and whether it exceeded the timeout.
fn run(call: &Call, about: &str, timeout: Duration) -> io::Result<(ExitStatus, bool)> {
    // A memory file and not a pipe, so that a program that does not read its input blocks nothing.
    let mut input = File::from(memory_file(c"event", &call.input())?);
    input.rewind()?;
    let (output, writer) = io::pipe()?;
    let home = user::home(user::effective()).unwrap_or_else(|| "/".into());
    let mut command = Command::new(&call.command[0]);
    command.args(&call.command[1..]).env_clear();
    command
        .env("PATH", PATH)
        .env("LANG", "C.UTF-8")
        .env("HOME", home);
    command.current_dir("/").process_group(0);
    command
        .stdin(input)
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let child = command.spawn()?;
    // The command holds write ends of the pipe, so the pipe would never reach its end.
    drop(command);
    let mut lines = Lines {
        about,
        line: Vec::new(),
        count: 0,
    };
    let ended = attend(child, output, &mut lines, timeout);
    lines.end();
    ended
}

/// Logs the output of a program until it ends, and stops the program after the timeout. Processes
/// that it leaves in its process group are killed.
fn attend(
    mut child: Child,
    output: PipeReader,
    lines: &mut Lines<'_>,
    timeout: Duration,
) -> io::Result<(ExitStatus, bool)> {
    let pid = Pid::from_child(&child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok();
    rustix::io::ioctl_fionbio(&output, true)?;
    let mut output = Some(output);
    let mut deadline = Instant::now() + timeout;
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    let mut is_late = false;
    loop {
        let has_ended = waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
        )?
        .is_some();
        if output.as_mut().is_some_and(|output| !lines.read(output)) {
            output = None;
        }
        if has_ended {
            // The pid cannot be reused until the child is reaped.
            let _ = kill_process_group(pid, Signal::KILL);
            return Ok((child.wait()?, is_late));
        }
        let mut left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            is_late = true;
            if let Some(signal) = signals.next() {
                let _ = kill_process_group(pid, signal);
            }
            left = GRACE;
            deadline = Instant::now() + left;
        }
        if handle.is_none() {
            left = left.min(PAUSE);
        }
        let mut waited = Vec::with_capacity(2);
        waited.extend(handle.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        waited.extend(output.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut waited, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Output of a program, split into lines.
struct Lines<'a> {
    about: &'a str,
    /// Beginning of a line that is not complete yet.
    line: Vec<u8>,
    count: usize,
}

impl Lines<'_> {
    /// Reads the available output, up to a limit. Returns whether more may come.
    fn read(&mut self, output: &mut PipeReader) -> bool {
        let mut bytes = [0; 8 << 10];
        for _ in 0..16 {
            match output.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.take(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LONGEST_LINE - self.line.len().min(LONGEST_LINE);
            let (text, is_whole) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            self.line.extend(&text[..text.len().min(room)]);
            if is_whole {
                self.say();
            }
        }
    }

    fn say(&mut self) {
        let line = std::mem::take(&mut self.line);
        self.count += 1;
        let text = match self.count {
            ..=MOST_LINES => String::from_utf8_lossy(&line),
            n if n == MOST_LINES + 1 => "more than 1000 lines are not logged".into(),
            _ => return,
        };
        let text = cut(&format!("{}: {text}", self.about), 4 * LONGEST_LINE);
        info!("{text}");
    }

    fn end(&mut self) {
        if !self.line.is_empty() {
            self.say();
        }
    }
}
