//! A kernel before 5.3 has no pidfd_open(2), and container runtimes have filters that refuse it (and newer calls) with
//! EPERM. A filter of our own makes it so for the run and everything below it.

use std::ffi::OsString;
use std::process::Command;

use crate::rig::{SHORT, wait_until};
use crate::stage::{Answer, Stage, answer, start};

const PIDFD_OPEN: &str = "434";
const CLOSE_RANGE: &str = "436";
const EPERM: &str = "1";
const ENOSYS: &str = "38";

/// The command with these system calls failing.
fn without(stage: &Stage, calls: &[(&str, &str)], command: &Command) -> Command {
    let mut words: Vec<OsString> = Vec::new();
    for (call, error) in calls {
        words.extend([
            stage.path("bin/helper").into(),
            "without".into(),
            call.into(),
            error.into(),
            "--".into(),
        ]);
    }
    words.push(command.get_program().to_owned());
    words.extend(command.get_args().map(ToOwned::to_owned));
    let mut filtered = stage.command(&words[0]);
    filtered.args(&words[1..]);
    filtered
}

const CASES: [&[(&str, &str)]; 4] = [
    &[(PIDFD_OPEN, ENOSYS)],
    &[(PIDFD_OPEN, EPERM)],
    &[(PIDFD_OPEN, ENOSYS), (CLOSE_RANGE, ENOSYS)],
    &[(PIDFD_OPEN, EPERM), (CLOSE_RANGE, EPERM)],
];

fn again(stage: &Stage, calls: &[(&str, &str)], words: &[&str]) -> Answer {
    let mut command = stage.command(stage.path("bin/again"));
    command.args(words);
    answer(&mut without(stage, calls, &command))
}

#[test]
fn a_rerun_without_pidfds() {
    for calls in CASES {
        let stage = Stage::new();
        // Through a caller that leaves more open than it should.
        let careless = "['/bin/sh', '-c', 'exec 7</etc/passwd 8<>/dev/zero; exec \"$@\"', 'sh']";
        let manifest = format!(
            "ask('run', '--delta', '1', bare: true, through: {careless}) if NTH == 1\nhold('go') if NTH == 1"
        );
        let mut command = without(&stage, calls, &stage.apply("site", &manifest));
        stage.with_output(&mut command);
        let run = start(&mut command);
        stage.wait_for_state("again", "waiting for the run");
        let waiter = stage.waiter("again");
        wait_until("the waiter to wait", SHORT, || {
            waiter.title().contains("waits for the run")
        });
        assert_eq!(
            waiter.status("Seccomp").as_deref(),
            Some("2"),
            "under the filter"
        );
        let descriptors = waiter.descriptors();
        assert!(
            !descriptors.values().any(|to| to == "anon_inode:[pidfd]"),
            "{descriptors:?}"
        );
        assert!(
            !descriptors
                .values()
                .any(|to| to == "/etc/passwd" || to == "/dev/zero"),
            "{descriptors:?}"
        );
        assert!(
            stage.wait_for_answers("site", 1)[0].pipe_closed,
            "{calls:?}: its pipe outlives the requester"
        );
        stage.release("go");
        run.wait();
        let runs = stage.wait_for_runs("site", 2);
        let ended = runs[0].ended().expect("ended");
        assert!(
            runs[1].started() >= ended + 1_000_000_000,
            "{calls:?}: early"
        );
        println!(
            "{calls:?}: {} ms after the end of the run and a delta of 1 s",
            (runs[1].started() - ended) / 1_000_000 - 1000
        );
        stage.wait_until_settled();
        stage.assert_nothing_left();
    }
}

#[test]
fn stop_without_pidfds() {
    for calls in CASES {
        let stage = Stage::new();
        stage.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
        let waiter = stage.waiter("again");
        let done = again(&stage, calls, &["stop"]);
        assert_eq!(done.code, Some(0), "{calls:?}: {done:?}");
        assert!(!waiter.alive(), "{calls:?}");
        stage.assert_nothing_left();

        // A rerun under way.
        start(&mut stage.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 2")).wait();
        wait_until("the rerun", SHORT, || stage.runs("site").len() == 2);
        let done = again(&stage, calls, &["stop", "--run"]);
        assert_eq!(done.code, Some(0), "{calls:?}: {done:?}");
        assert!(done.out.contains("ended by TERM"), "{calls:?}: {done:?}");
        stage.assert_nothing_left();
    }
}

#[test]
fn a_lock_is_waited_for_without_pidfds() {
    let stage = Stage::new();
    let calls = CASES[0];
    let holder = start(&mut stage.apply("holder", "hold('go')"));
    stage.write("lock", &holder.process.pid.to_string());
    let lock = stage.at("lock");
    let ask = format!("ask('run', '--agent-catalog-run-lockfile', '{lock}') if NTH == 1");
    let mut command = without(&stage, calls, &stage.apply("site", &ask));
    stage.with_output(&mut command);
    start(&mut command).wait();
    stage.wait_for_state("again", "due");
    assert_eq!(stage.runs("site").len(), 1);
    stage.release("go");
    holder.wait();
    let runs = stage.wait_for_runs("site", 2);
    assert!(runs[1].started() >= stage.runs("holder")[0].ended().expect("ended"));
    stage.wait_until_settled();
    stage.assert_nothing_left();
}

/// The newer request replaces the older one, whose waiter is ended by a signal that was checked first.
#[test]
fn a_timer_is_replaced_without_pidfds() {
    let stage = Stage::new();
    let request = ["run", "--delta", "1h", "--", "/bin/true"];
    let done = again(&stage, CASES[1], &request);
    assert_eq!(done.code, Some(0), "{done:?}");
    let first = stage.waiter("again");
    let done = again(&stage, CASES[1], &request);
    assert_eq!(done.code, Some(0), "{done:?}");
    first.wait_until_gone(SHORT);
    assert_eq!((stage.timers().len(), stage.waiters().len()), (1, 1));
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}
