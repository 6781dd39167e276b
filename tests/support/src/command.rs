use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::LONG;
use super::process::{Process, boottime};

/// Command that has ended, with its output and exit status.
#[derive(Debug)]
pub struct Ended {
    pub process: Process,
    /// Exit status; none after a signal.
    pub code: Option<i32>,
    signal: Option<i32>,
    /// Standard output, including standard error if both went to one file.
    pub out: String,
    pub err: String,
    /// Time at which the end was noticed, in seconds since boot.
    pub ended_at: f64,
}

impl Ended {
    pub(crate) fn new(process: Process, output: Output) -> Ended {
        Ended {
            process,
            code: output.status.code(),
            signal: output.status.signal(),
            out: lossy(&output.stdout),
            err: lossy(&output.stderr),
            ended_at: boottime(),
        }
    }

    /// Status as a shell counts it: after a signal, 128 more than its number.
    pub fn status(&self) -> i32 {
        self.code
            .unwrap_or_else(|| 128 + self.signal.unwrap_or_default())
    }

    /// Returns the standard output; fails unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        self.expect(&[0]).out
    }

    /// Returns the standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns standard output and standard error, one after the other.
    pub fn said(&self) -> String {
        format!("{}{}", self.out, self.err)
    }

    /// Fails with the output unless the exit status is one of these.
    #[track_caller]
    pub fn expect(self, codes: &[i32]) -> Ended {
        assert!(
            self.code.is_some_and(|code| codes.contains(&code)),
            "exit status {:?} (signal {:?}), not {codes:?}:\n{}{}",
            self.code,
            self.signal,
            self.out,
            self.err
        );
        self
    }

    /// Returns the lines that `again` printed and an Exec logged.
    pub fn lines_of_again(&self) -> Vec<String> {
        self.out
            .lines()
            .filter_map(|line| {
                Some(
                    line[line.find("again: ")?..]
                        .trim_end_matches("\u{1b}[0m")
                        .to_owned(),
                )
            })
            .collect()
    }
}

/// Repeats an attempt that fails because a program that was just written is busy: a child that
/// another thread forked at that moment has not yet closed its copy of the descriptor.
fn unless_busy<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> T {
    loop {
        match attempt() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::yield_now();
            }
            done => return done.expect("started"),
        }
    }
}

/// Runs a command to its end, with its outputs in separate strings.
pub fn answer(command: &mut Command) -> Ended {
    let nobody = Process { pid: 0, start: 0 };
    Ended::new(nobody, unless_busy(|| command.output()))
}

/// Running command, which is ended if it is dropped.
pub struct Started {
    child: Child,
    pub process: Process,
    /// Pipe to the command's standard input, if it has one.
    pub stdin: Option<ChildStdin>,
    out: Option<PathBuf>,
    err: Option<PathBuf>,
    waited: bool,
}

/// Starts a command without redirecting its outputs.
pub fn start(command: &mut Command) -> Started {
    Started::new(command, None, None)
}

impl Started {
    /// Starts a command whose outputs go to these files.
    pub(crate) fn new(
        command: &mut Command,
        out: Option<PathBuf>,
        err: Option<PathBuf>,
    ) -> Started {
        let mut child = unless_busy(|| command.spawn());
        let pid = child.id() as i32;
        Started {
            stdin: child.stdin.take(),
            child,
            // If the command has ended already, its start time is unknown.
            process: Process::now(pid).unwrap_or(Process { pid, start: 0 }),
            out,
            err,
            waited: false,
        }
    }

    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Returns the standard output so far.
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// Returns the standard error so far, if it is in a file of its own.
    pub fn err(&self) -> String {
        read(&self.err)
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal).expect("it runs");
    }

    /// Types on the command's terminal.
    pub fn types(&mut self, keys: &str) {
        let stdin = self.stdin.as_mut().expect("a terminal");
        stdin.write_all(keys.as_bytes()).expect("typed");
        stdin.flush().expect("typed");
    }

    /// Waits for the command's end, with its standard input left open.
    #[track_caller]
    #[must_use]
    pub fn wait(mut self) -> Ended {
        let ended = super::ask_for(LONG, Duration::from_millis(2), || {
            self.child.try_wait().expect("its end")
        });
        let status = ended.unwrap_or_else(|| {
            panic!(
                "waited {LONG:?} in vain for the end of {}:\n{}{}",
                self.process.title(),
                self.out(),
                self.err()
            )
        });
        self.waited = true;
        let output = Output {
            status,
            stdout: self.out().into_bytes(),
            stderr: self.err().into_bytes(),
        };
        Ended::new(self.process, output)
    }

    /// Waits for the command's end; fails unless it succeeded.
    #[track_caller]
    pub fn finish(self) {
        self.wait().ok();
    }

    /// Kills the command with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.reap();
    }

    /// Waits until the command has ended for any reason.
    pub fn reap(&mut self) {
        self.child.wait().expect("waited for");
        self.waited = true;
    }

    /// Ends the command if it is still running: with SIGTERM, then with SIGKILL.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if !self.waited {
            if self.child.try_wait().ok().flatten().is_none() {
                self.process.end();
            }
            let _ = self.child.wait();
            self.waited = true;
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.end();
    }
}

fn read(file: &Option<PathBuf>) -> String {
    let Some(file) = file else {
        return String::new();
    };
    lossy(&fs::read(file).unwrap_or_default())
}

/// Converts bytes to text, for messages.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
