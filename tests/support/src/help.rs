//! Helper functions of several test suites.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::process::{Process, now};
use super::scratch::Scratch;

/// Checks that a line has the form `again: OUTCOME: CAUSE (EVIDENCE)…`, and returns the outcome.
#[track_caller]
pub fn assert_line(said: &str) -> String {
    let line = said
        .strip_suffix('\n')
        .unwrap_or_else(|| panic!("no line end: {said:?}"));
    assert!(!line.contains('\n'), "more than one line: {said:?}");
    let rest = line
        .strip_prefix("again: ")
        .unwrap_or_else(|| panic!("not ours: {line}"));
    let (outcome, cause) = rest
        .split_once(": ")
        .unwrap_or_else(|| panic!("no outcome: {line}"));
    let outcomes = [
        "scheduled",
        "refused",
        "nothing to do",
        "error",
        "stopped",
        "resumed",
    ];
    assert!(outcomes.contains(&outcome), "what outcome is that: {line}");
    let open = cause
        .find(" (")
        .unwrap_or_else(|| panic!("no evidence in brackets: {line}"));
    assert!(
        cause[open..].contains(')'),
        "no evidence in brackets: {line}"
    );
    assert!(
        !cause.starts_with(char::is_uppercase) && !line.ends_with('.'),
        "not lower case, or with a full stop: {line}"
    );
    outcome.to_owned()
}

/// Sets the mode of a path, for use by all users.
pub fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
}

/// Replaces everything that differs from run to run, so that the rest can be compared.
pub fn stable(text: &str, scratch: &Scratch) -> String {
    let text = text.replace(&scratch.root(), "HERE");
    let mut out = String::new();
    let mut word = String::new();
    // Hexadecimal words with the length of an id, and numbers that are times.
    let flush = |word: &mut String, out: &mut String| {
        let hex = word.bytes().all(|b| b.is_ascii_hexdigit());
        match word.len() {
            16 if hex => out.push_str("ID"),
            8 if hex => out.push_str("CHAIN"),
            _ => out.push_str(word),
        }
        word.clear();
    };
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            word.push(c);
        } else {
            flush(&mut word, &mut out);
            out.push(c);
        }
    }
    flush(&mut word, &mut out);
    out
}

/// Runs `body` in new namespaces from unshare(1) with these options, by running this same test in a
/// child process. `test` is the test's full name.
pub fn in_namespaces(options: &[&str], test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "AGAIN_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == test) {
        return body();
    }
    let me = std::env::current_exe().expect("our own path");
    let done = Command::new("unshare")
        .args(options)
        .arg("--")
        .arg(me)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .stdin(Stdio::null())
        .output()
        .expect("unshare, of util-linux");
    let said = [&done.stdout[..], &done.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{test} inside its namespaces: {}\n{said}",
        done.status
    );
    // Prints the output of the child without the lines of its test runner, so that one test is not
    // counted twice.
    let begun = format!("test {test} ... ");
    said.lines()
        .map(|line| line.strip_prefix(&begun).unwrap_or(line))
        .filter(|line| !["", "ok", "running 1 test"].contains(line))
        .filter(|line| !line.starts_with("test result: "))
        .for_each(|line| println!("{line}"));
}

/// Unrelated process, which ends with its owner.
pub struct Bystander(Child);

impl Bystander {
    pub fn new() -> Bystander {
        let mut sleep = Command::new("/bin/sleep");
        sleep.arg("1000").stdin(Stdio::null());
        let child = sleep.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Bystander(child.expect("sleep"))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Whether the process still runs, undisturbed.
    pub fn is_unharmed(&mut self) -> bool {
        // A signal that was sent has been delivered by now, or is pending.
        let pending = ["ShdPnd", "SigPnd"]
            .map(|line| Process::now(self.pid()).and_then(|process| process.status(line)));
        let none = Some("0000000000000000".to_owned());
        pending == [none.clone(), none] && matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sleeps until a point on CLOCK_BOOTTIME.
pub fn sleep_until(at: u64) {
    let left = at.saturating_sub(now());
    std::thread::sleep(Duration::from_nanos(left));
}

/// Waits until a later start time differs for the kernel, which rounds start times down to a
/// hundredth of a second.
pub fn pass_a_tick() {
    sleep_until(now() + 20_000_000);
}

/// Median, 99th percentile and maximum of a sample, which is sorted.
pub fn spread(sample: &mut [u64]) -> (u64, u64, u64) {
    sample.sort_unstable();
    let at = |part: usize| sample[(sample.len() - 1) * part / 100];
    (at(50), at(99), at(100))
}

/// Runs a function; returns its result and its duration.
pub fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = what();
    (done, begun.elapsed())
}
