//! Missing system calls: a kernel before 5.3 has no pidfd_open(2), and filters of container
//! runtimes refuse it (and newer calls) with EPERM. A filter of the test does the same for the run
//! and everything below it.

use std::process::Command;

use again_test_support::{Ended, SHORT, Scratch, answer, start, wait_until};

const PIDFD_OPEN: &str = "434";
const MEMFD_CREATE: &str = if cfg!(target_arch = "x86_64") {
    "319"
} else {
    "279"
};
const CLOSE_RANGE: &str = "436";
const EPERM: &str = "1";
const ENOSYS: &str = "38";

const CASES: [&[(&str, &str)]; 4] = [
    &[(PIDFD_OPEN, ENOSYS)],
    &[(PIDFD_OPEN, EPERM)],
    &[(PIDFD_OPEN, ENOSYS), (CLOSE_RANGE, ENOSYS)],
    &[(PIDFD_OPEN, EPERM), (CLOSE_RANGE, EPERM)],
];

fn again(scratch: &Scratch, calls: &[(&str, &str)], words: &[&str]) -> Ended {
    let mut command = scratch.command(scratch.path("bin/again"));
    command.args(words);
    answer(&mut scratch.without(calls, &command))
}

#[test]
fn a_rerun_without_pidfds() {
    for calls in CASES {
        let scratch = Scratch::new();
        // The caller leaves more descriptors open than it should.
        let careless = "['/bin/sh', '-c', 'exec 7</etc/passwd 8<>/dev/zero; exec \"$@\"', 'sh']";
        let manifest = format!(
            "ask('run', '--delta', '1', bare: true, through: {careless}) if NTH == 1\nhold('go') if NTH == 1"
        );
        let mut command = scratch.without(calls, &scratch.apply("site", &manifest));
        scratch.with_output(&mut command);
        let run = start(&mut command);
        scratch.wait_for_state("again", "waiting for the run");
        let waiter = scratch.waiter("again");
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
            scratch.wait_for_answers("site", 1)[0].pipe_closed,
            "{calls:?}: its pipe outlives the requester"
        );
        scratch.release("go");
        run.finish();
        let runs = scratch.wait_for_runs("site", 2);
        let ended = runs[0].ended().expect("ended");
        assert!(
            runs[1].started() >= ended + 1_000_000_000,
            "{calls:?}: early"
        );
        println!(
            "{calls:?}: {} ms after the end of the run and a delta of 1 s",
            (runs[1].started() - ended) / 1_000_000 - 1000
        );
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

#[test]
fn stop_without_pidfds() {
    for calls in CASES {
        let scratch = Scratch::new();
        scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
        let waiter = scratch.waiter("again");
        let done = again(&scratch, calls, &["stop"]);
        assert_eq!(done.code, Some(0), "{calls:?}: {done:?}");
        assert!(!waiter.alive(), "{calls:?}");
        scratch.assert_nothing_left();

        // A rerun is running.
        start(&mut scratch.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 2"))
            .finish();
        wait_until("the rerun", SHORT, || scratch.runs("site").len() == 2);
        let done = again(&scratch, calls, &["stop", "--run"]);
        assert_eq!(done.code, Some(0), "{calls:?}: {done:?}");
        assert!(done.out.contains("ended by TERM"), "{calls:?}: {done:?}");
        scratch.assert_nothing_left();
    }
}

#[test]
fn a_lock_is_waited_for_without_pidfds() {
    let scratch = Scratch::new();
    let calls = CASES[0];
    let holder = start(&mut scratch.apply("holder", "hold('go')"));
    scratch.write("lock", &holder.process.pid.to_string());
    let lock = scratch.at("lock");
    let ask = format!("ask('run', '--agent-catalog-run-lockfile', '{lock}') if NTH == 1");
    let mut command = scratch.without(calls, &scratch.apply("site", &ask));
    scratch.with_output(&mut command);
    start(&mut command).finish();
    scratch.wait_for_state("again", "due");
    assert_eq!(scratch.runs("site").len(), 1);
    scratch.release("go");
    holder.finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert!(runs[1].started() >= scratch.runs("holder")[0].ended().expect("ended"));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The newer request replaces the older one, whose waiter is ended with a signal after a check of
/// its identity.
#[test]
fn a_timer_is_replaced_without_pidfds() {
    let scratch = Scratch::new();
    let request = ["run", "--delta", "1h", "--", "/bin/true"];
    let done = again(&scratch, CASES[1], &request);
    assert_eq!(done.code, Some(0), "{done:?}");
    let first = scratch.waiter("again");
    let done = again(&scratch, CASES[1], &request);
    assert_eq!(done.code, Some(0), "{done:?}");
    first.wait_until_gone(SHORT);
    assert_eq!((scratch.timers().len(), scratch.waiters().len()), (1, 1));
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Filters refuse memfd_create(2) too: the order reaches the waiter in an unlinked file.
#[test]
fn a_request_without_memory_to_pass_on() {
    for error in [EPERM, ENOSYS] {
        let scratch = Scratch::new();
        scratch.settings("save_environment = false");
        let calls = &[(MEMFD_CREATE, error)];
        let manifest = "ask('run', '--delta', '1') if NTH == 1";
        let mut command = scratch.without(calls, &scratch.apply("site", manifest));
        scratch.with_output(&mut command);
        start(&mut command).finish();
        assert_eq!(scratch.orders("state").len(), 1, "no other file is left");
        scratch.wait_for_runs("site", 2);
        let runs = scratch.runs("site");
        assert_eq!(runs[0].asked()[0].code, 0, "{:?}", runs[0].asked());
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

/// A user who is not in the user database, without HOME in the environment, as in containers.
#[test]
fn a_user_without_a_name_or_a_home() {
    const STRANGER: u32 = 424_242;
    let state = std::path::PathBuf::from(format!("/var/tmp/again-{STRANGER}"));
    let _ = std::fs::remove_dir_all(&state);
    let scratch = Scratch::new();
    let again = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        let user = format!("--reuid={STRANGER}");
        let group = format!("--regid={STRANGER}");
        command
            .env_clear()
            .env("AGAIN_CONTAINER", "stays")
            .current_dir("/")
            .args([&user, &group, "--clear-groups"]);
        answer(command.arg(scratch.path("bin/again")).args(words))
    };
    let done = again(&["run", "--jitter", "0", "--", "/usr/bin/id", "-u"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    wait_until("the rerun", SHORT, || {
        again(&["log"]).out == format!("{STRANGER}\n")
    });
    let status = again(&["status"]);
    assert!(status.out.contains(&STRANGER.to_string()), "{status:?}");
    std::fs::remove_dir_all(&state).expect("it is there");
    scratch.assert_nothing_left();
}
