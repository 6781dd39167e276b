use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use again_test_support::{Process, SHORT, Scratch, answer, copy_program, start, stays, wait_until};

/// Requests a command that notes that it ran, and is due after this delta. Returns its waiter,
/// which `hold` has kept from running it.
pub fn stamp(scratch: &Scratch, delta: &str) -> Process {
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    scratch.again_well(&[
        "run", "--delta", delta, "--", &helper, "stamp", &stamps, "ran",
    ]);
    scratch.waiter("again")
}

pub fn ran(scratch: &Scratch) -> usize {
    scratch.stamps().len()
}

/// Checks that the command ran once, and that nothing is left.
pub fn assert_ran_once(scratch: &Scratch) {
    wait_until("the rerun", SHORT, || ran(scratch) == 1);
    scratch.wait_until_settled();
    let moment = Duration::from_millis(200);
    stays("one rerun", moment, || ran(scratch) == 1);
    scratch.assert_nothing_left();
}

pub fn record(scratch: &Scratch) -> std::path::PathBuf {
    let targets = fs::read_dir(scratch.path("state/targets")).expect("targets");
    targets
        .flatten()
        .next()
        .expect("a target")
        .path()
        .join("state.json")
}

/// The waiter has no descriptor to spare when it is due: what it cannot see does not count as
/// missing.
#[test]
fn its_descriptors_are_exhausted() {
    let scratch = Scratch::new();
    let waiter = stamp(&scratch, "3");
    let limit = |soft: &str| {
        let done = Command::new("prlimit")
            .args([
                "--pid",
                &waiter.pid.to_string(),
                &format!("--nofile={soft}:"),
            ])
            .status();
        assert!(done.expect("prlimit").success());
    };
    limit("3");
    // The waiter is due, tries, and cannot even log it.
    stays("it waits", Duration::from_secs(5), || {
        waiter.alive() && ran(&scratch) == 0
    });
    // A command that cannot read the machine's id does not take it for another machine.
    let mut status = scratch.line(&["prlimit", "--nofile=3:", &scratch.at("bin/again"), "status"]);
    let said = status.output().expect("prlimit");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("cannot tell which machine this is: /proc/sys/kernel/random/boot_id: "),
        "{said}"
    );
    limit("256");
    waiter.signal(Signal::SIGUSR1).expect("signalled");
    assert_ran_once(&scratch);
}

/// More timers are held than the user may have inotify instances, of which the kernel allows 128;
/// or another program has used all watches. Then the waiter polls, and so does a converge driver.
#[test]
fn waiter_and_driver_poll_where_nothing_can_be_watched() {
    let calls = if cfg!(target_arch = "x86_64") {
        // Numbers of inotify_init1 with EMFILE, and of inotify_add_watch with ENOSPC.
        [("294", "24"), ("254", "28")]
    } else {
        [("26", "24"), ("27", "28")]
    };
    for call in calls {
        let scratch = Scratch::new();
        let (stamps, helper) = (scratch.at("stamps"), scratch.at("bin/helper"));
        let command = format!(
            "{helper} stamp {stamps} ran; test -n \"$AGAIN_RUN\" && exit\n\
             $AGAIN run && : > asked; while test ! -e go; do sleep 0.02; done"
        );
        let driver = scratch.again_command(&["converge", "--", "sh", "-c", &command]);
        let mut driver = scratch
            .without(&[call], &driver)
            .env("AGAIN", scratch.at("bin/again"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        wait_until("the driver's run to have asked", SHORT, || {
            scratch.path("work/asked").exists()
        });
        let words = [
            "run", "--delta", "3", "--", &helper, "stamp", &stamps, "ran",
        ];
        let request = scratch.again_command(&words);
        let granted = answer(&mut scratch.without(&[call], &request));
        assert_eq!(granted.code, Some(0), "{granted:?}");
        scratch.again_well(&["disable", "no", "watch"]);
        fs::write(scratch.path("work/go"), "").expect("written");
        scratch.wait_for_state("again", "held");
        wait_until("the driver to be held", SHORT, || {
            scratch.status()["drivers"][0]["state"] == "held"
        });
        assert_eq!(ran(&scratch), 1, "{call:?}");
        scratch.again_well(&["enable"]);
        assert!(driver.wait().expect("waited").success());
        wait_until("both reruns", SHORT, || ran(&scratch) == 3);
        scratch.wait_until_settled();
        assert_eq!(ran(&scratch), 3, "{call:?}");
        scratch.assert_nothing_left();
    }
}

/// An upgrade replaces the files of the program and of puppet, while waiters wait and a run is
/// under way.
#[test]
fn the_programs_are_replaced() {
    let scratch = Scratch::new();
    let run = start(&mut scratch.apply(
        "site",
        "ask('run', '--delta', '1') if NTH == 1\nhold('go') if NTH == 1",
    ));
    scratch.wait_for_state("again", "waiting for the run");
    for program in ["bin/again", "bin/puppet"] {
        let new = scratch.path("new");
        copy_program(scratch.path(program), &new);
        fs::rename(new, scratch.path(program)).expect("replaced");
    }
    assert_eq!(
        scratch.timers().len(),
        1,
        "the new program sees what the old one set"
    );
    scratch.release("go");
    run.finish();
    scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 2);
    scratch.assert_nothing_left();
}

/// Every wall-clock time on record is wrong by a day, either way: within a boot only the other
/// clock counts.
#[test]
fn the_wall_clock_is_a_day_off() {
    for day in [-86_400_000_i64, 86_400_000] {
        let scratch = Scratch::new();
        let before = again_test_support::now();
        stamp(&scratch, "8");
        let path = record(&scratch);
        let mut record: Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        shift(&mut record, day);
        let new = scratch.path("shifted");
        fs::write(&new, record.to_string()).expect("written");
        fs::rename(new, path).expect("replaced");
        scratch.status();
        assert_ran_once(&scratch);
        let took = scratch.stamps()[0].at - before;
        assert!((8_000_000_000..40_000_000_000).contains(&took), "{took}");
    }
}

fn shift(value: &mut Value, by: i64) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_i64() {
                    Some(at) if name == "wall" || name == "due_wall" => *value = (at + by).into(),
                    _ => shift(value, by),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| shift(value, by)),
        _ => {}
    }
}

/// A waiter is killed while the run that made the request lives: the one that `again resume` starts
/// waits for the run as well.
#[test]
fn resumed_before_the_run_has_ended() {
    let scratch = Scratch::new();
    let run = start(&mut scratch.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 1"));
    scratch.wait_for_state("again", "waiting for the run");
    let waiter = scratch.waiter("again");
    waiter.signal(Signal::SIGKILL).expect("killed");
    waiter.wait_until_gone(SHORT);
    let said = scratch.again_well(&["resume"]);
    assert!(said.contains("after the end of its run"), "{said}");
    let moment = Duration::from_millis(700);
    stays("no rerun beside its run", moment, || {
        scratch.runs("site").len() == 1
    });
    assert_eq!(
        scratch.timer("again").expect("pending")["state"],
        "waiting for the run"
    );
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert!(runs[1].started() >= runs[0].ended().expect("ended"));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}
