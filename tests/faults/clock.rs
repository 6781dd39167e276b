use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use again_test_support::{Ended, IDLE, LONG, SHORT, Scratch, answer, now, stays, wait_until};

const DAY: i64 = 86_400;
const SECOND: u64 = 1_000_000_000;

/// Clocks that `again`, its waiters and their reruns see: `helper clock` answers instead of the
/// kernel, so that a test can set them while the processes run. This machine's clocks are not
/// changed.
struct Clock<'a> {
    scratch: &'a Scratch,
    file: PathBuf,
    shims: Vec<Child>,
}

impl<'a> Clock<'a> {
    fn new(scratch: &'a Scratch) -> Clock<'a> {
        let file = scratch.write("clock", "0 0");
        Clock {
            scratch,
            file,
            shims: Vec::new(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.scratch.command(self.scratch.path("bin/helper"));
        command.arg("clock").arg(&self.file).arg("--");
        command.arg(self.scratch.path("bin/again")).args(words);
        command
    }

    /// Runs a command that leaves no process behind.
    fn again(&self, words: &[&str]) -> Ended {
        answer(&mut self.command(words))
    }

    /// Runs a command that leaves a waiter; returns its line as soon as it is complete.
    fn ask(&mut self, words: &[&str]) -> String {
        let out = self.scratch.path(&format!("outputs/{}", now()));
        let file = File::create(&out).expect("created");
        let mut command = self.command(words);
        command.stdout(file.try_clone().expect("duplicated"));
        self.shims
            .push(command.stderr(file).spawn().expect("started"));
        let said = || fs::read_to_string(&out).unwrap_or_default();
        wait_until("an answer", SHORT, || said().ends_with('\n'));
        said()
    }

    /// Requests a rerun that notes the time as it sees it.
    fn request(&mut self, options: &[&str]) -> String {
        let (helper, stamps) = (self.scratch.at("bin/helper"), self.scratch.at("stamps"));
        let command = ["--", &helper, "stamp", &stamps, "ran"];
        self.ask(&[&["run"], options, &command].concat())
    }

    /// Sets the clocks ahead by these numbers of seconds for all running processes, and returns
    /// when they see it.
    fn set(&self, wall: i64, boot: i64) {
        let ahead = format!("{wall} {boot}");
        fs::write(&self.file, &ahead).expect("written");
        for shim in &self.shims {
            let pid = shim.id();
            // The process may have ended, and be a zombie then.
            kill(Pid::from_raw(pid as i32), Signal::SIGUSR1).expect("sent");
            let seen = format!("{}.{pid}", self.file.display());
            wait_until("the clocks to be set", SHORT, || {
                fs::read_to_string(&seen).is_ok_and(|seen| seen == ahead)
                    || again_test_support::Process::now(pid as i32).is_none()
            });
        }
    }

    /// Returns the wall-clock time as the processes see it.
    fn wall(&self) -> i64 {
        let text = fs::read_to_string(&self.file).expect("there");
        let ahead: i64 = text
            .split(' ')
            .next()
            .expect("a number")
            .parse()
            .expect("one");
        real_wall() + ahead
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.again(&["status", "--json"]).out).expect("JSON")
    }

    fn ran(&self) -> usize {
        self.scratch.stamps().len()
    }

    /// Checks that everything has ended, and that the rerun ran once.
    fn assert_ran_once(mut self) {
        wait_until("the rerun", SHORT, || self.ran() == 1);
        for mut shim in self.shims.drain(..) {
            shim.wait().expect("waited for");
        }
        assert_eq!(self.ran(), 1);
        self.scratch.assert_nothing_left();
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        for shim in &mut self.shims {
            let _ = shim.kill();
            let _ = shim.wait();
        }
    }
}

fn real_wall() -> i64 {
    let wall = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).expect("a clock");
    wall.tv_sec()
}

/// Converts a time of the JSON to seconds.
fn seconds(at: &Value) -> i64 {
    let at = at.as_str().expect("a time");
    let done = Command::new("date").args(["-u", "-d", at, "+%s"]).output();
    let text = String::from_utf8(done.expect("date").stdout).expect("digits");
    text.trim().parse().unwrap_or_else(|_| panic!("{at}"))
}

fn due(scratch: &Scratch) -> u64 {
    scratch.records("state")[0]["timers"]["again"]["due"]
        .as_u64()
        .expect("a due time")
}

/// The clock is set a day ahead or back while a waiter sleeps: the rerun starts at the promised
/// moment, `status` shows that moment by the clock as it is now, and the record has that clock's
/// time.
#[test]
fn the_wall_clock_is_set_under_a_waiter() {
    for day in [-DAY, DAY] {
        let scratch = Scratch::new();
        let mut clock = Clock::new(&scratch);
        clock.request(&["--delta", "20"]);
        scratch.waiter("again").wait_until_asleep();
        let due = due(&scratch);
        clock.set(day, 0);
        let status = clock.status();
        let text = clock.again(&["status"]).out;
        let wall = clock.wall();
        let left = (due.saturating_sub(now()) / SECOND) as i64;
        if let Some(timer) = again_test_support::timers(&status).first() {
            let said = timer["due_in_seconds"].as_f64().expect("a number");
            assert!((0.0..=20.0).contains(&said), "{status:#}");
            assert!((seconds(&status["now"]) - wall).abs() < 30, "{status:#}");
            let at = seconds(&timer["due_at"]);
            assert!((at - wall - left).abs() < 30, "{day}: {status:#}");
        } else {
            panic!("this machine took 20 s for nothing: {status:#}");
        }
        assert!(!text.contains("dead"), "{text}");
        assert_eq!(clock.ran(), 0);
        wait_until("the rerun", SHORT, || clock.ran() == 1);
        let took = scratch.stamps()[0].at.checked_sub(due).expect("not early");
        assert!(took < 60 * SECOND, "{took} ns late");
        let record = &scratch.records("state")[0];
        let started = record["starts"][0]["at"]["wall"]
            .as_i64()
            .expect("the waiter's own wall clock");
        let off = started / 1000 - real_wall() - day;
        assert!(off.abs() < 60, "the waiter saw another clock: {off}");
        clock.assert_ran_once();
        println!("{day:+} s on the wall: late by {} ms", took / 1_000_000);
    }
}

/// The waiter is dead, the clock is set, and `again resume` replaces the waiter: the rerun starts
/// at the promised moment, once.
#[test]
fn the_wall_clock_is_set_before_it_is_resumed() {
    for day in [-DAY, DAY] {
        let scratch = Scratch::new();
        let mut clock = Clock::new(&scratch);
        clock.request(&["--delta", "8"]);
        scratch.waiter("again").wait_until_asleep();
        let due = due(&scratch);
        let waiter = scratch.waiter("again");
        waiter.signal(Signal::SIGKILL).expect("killed");
        waiter.wait_until_gone(SHORT);
        clock.set(day, 0);
        let said = clock.ask(&["resume"]);
        assert!(said.starts_with("again: resumed: "), "{said}");
        wait_until("the rerun", SHORT, || clock.ran() == 1);
        let took = scratch.stamps()[0].at.checked_sub(due).expect("not early");
        assert!(took < 60 * SECOND, "{took} ns late");
        clock.assert_ran_once();
    }
}

/// Setting the clock neither ends nor extends the window of the cap; but time in suspend counts.
#[test]
fn the_wall_clock_is_set_within_the_window_of_the_cap() {
    let scratch = Scratch::new();
    scratch.settings("max_runs = 1\nwindow = \"1h\"");
    let mut clock = Clock::new(&scratch);
    clock.request(&[]);
    wait_until("the rerun", SHORT, || clock.ran() == 1);
    scratch.wait_until_settled();
    for day in [-DAY, DAY] {
        clock.set(day, 0);
        let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
        let command = ["--", &helper, "stamp", &stamps, "ran"];
        let done = clock.again(&[&["run"][..], &command].concat());
        assert_eq!(done.code, Some(1), "{day}: {done:?}");
        assert!(done.err.contains("1 of at most 1"), "{day}: {done:?}");
        let target = &clock.status()["targets"][0];
        assert_eq!(target["cap"]["used"], 1, "{day}");
        let frees = seconds(&target["cap"]["frees_at"]) - clock.wall();
        assert!((3000..=3600).contains(&frees), "{day}: {frees}");
    }
    clock.set(3700, 3700);
    let said = clock.request(&[]);
    assert!(said.starts_with("again: scheduled: "), "{said}");
    wait_until("the rerun", SHORT, || clock.ran() == 2);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The machine is suspended while a waiter waits, for half of the wait, then past its end. The
/// timer is due as the machine wakes, and its rerun runs once.
#[test]
fn suspended_while_a_waiter_waits() {
    let scratch = Scratch::new();
    let mut clock = Clock::new(&scratch);
    clock.request(&["--delta", "1h"]);
    scratch.waiter("again").wait_until_asleep();
    let due = due(&scratch);
    clock.set(1800, 1800);
    let status = clock.status();
    let timer = &again_test_support::timers(&status)[0];
    let left = timer["due_in_seconds"].as_f64().expect("a number");
    assert!((1600.0..=1800.0).contains(&left), "{status:#}");
    assert_eq!(timer["waiter"]["alive"], true);
    let moment = std::time::Duration::from_millis(500);
    stays("half an hour is left", moment, || clock.ran() == 0);
    clock.set(3601, 3601);
    wait_until("the rerun", SHORT, || clock.ran() == 1);
    let late = scratch.stamps()[0].at.checked_sub(due).expect("not early");
    assert!(late < 60 * SECOND, "{late} ns late");
    clock.assert_ran_once();
}

/// The waiter's timerfd uses the clock that counts suspend and cannot be set (7 is CLOCK_BOOTTIME),
/// with the due time itself.
#[test]
fn what_a_waiter_sleeps_on() {
    let scratch = Scratch::new();
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
    scratch.waiter("again").wait_until_asleep();
    let waiter = scratch.waiter("again");
    let timers: Vec<String> = waiter
        .descriptors()
        .into_iter()
        .filter(|(_, to)| to == "anon_inode:[timerfd]")
        .map(|(fd, _)| format!("/proc/{}/fdinfo/{fd}", waiter.pid))
        .map(|path| fs::read_to_string(path).expect("readable"))
        .collect();
    assert_eq!(timers.len(), 1, "{timers:?}");
    let line = |name: &str| {
        let mut lines = timers[0].lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found
            .unwrap_or_else(|| panic!("{timers:?}"))
            .trim()
            .to_owned()
    };
    assert_eq!(line("clockid"), "7", "{timers:?}");
    // 01 is TFD_TIMER_ABSTIME.
    assert_eq!(line("settime flags"), "01", "{timers:?}");
    let left = line("it_value");
    let left: u64 = left[1..left.find(',').expect("two")]
        .parse()
        .expect("seconds");
    let expected = (due(&scratch) - now()) / SECOND;
    assert!(left.abs_diff(expected) < 10, "{left} s left of {expected}");
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// A driver in the foreground uses the same clock: setting the other one does not exceed its
/// timeout.
#[test]
fn a_converge_driver_whose_clocks_are_set() {
    let scratch = Scratch::new();
    let mut clock = Clock::new(&scratch);
    let script =
        "n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n > n; [ $n -ge 2 ] || \"$0\" --delta 1h";
    let again = scratch.at("bin/again");
    let words = [
        "converge",
        "--timeout",
        "3h",
        "--",
        "sh",
        "-c",
        script,
        &again,
    ];
    clock.ask(&words);
    let runs = || fs::read_to_string(scratch.path("work/n")).unwrap_or_default();
    let waits = || clock.status()["drivers"][0]["state"] == "waiting";
    wait_until("the first run", LONG, || runs() == "1\n" && waits());
    for day in [-DAY, DAY] {
        clock.set(day, 0);
        let moment = std::time::Duration::from_millis(300);
        stays(&format!("it waits ({day})"), moment, || {
            waits() && runs() == "1\n"
        });
    }
    clock.set(3601, 3601);
    wait_until("the second run", SHORT, || runs() == "2\n");
    let mut shim = clock.shims.pop().expect("the driver's");
    assert_eq!(shim.wait().expect("waited for").code(), Some(0));
    scratch.assert_nothing_left();
}

/// Logs are named after the wall-clock time. When the clock is set back, the newest log looks like
/// the oldest, but is not the one to be removed.
#[test]
fn the_wall_clock_is_set_back_between_two_logs() {
    let scratch = Scratch::new();
    scratch.settings("keep_logs = 1");
    let mut clock = Clock::new(&scratch);
    for (day, word) in [(0, "before"), (-DAY, "after")] {
        clock.set(day, 0);
        // One target, which keeps one log.
        scratch.write("word", word);
        clock.ask(&["run", "--", "/bin/cat", &scratch.at("word")]);
        scratch.wait_until_settled();
    }
    let logs = || -> Vec<String> {
        let logs = fs::read_dir(scratch.path("logs")).expect("there").flatten();
        logs.filter_map(|entry| fs::read_to_string(entry.path()).ok())
            .collect()
    };
    wait_until("the upkeep", IDLE, || logs() == ["after"]);
    scratch.assert_nothing_left();
}
