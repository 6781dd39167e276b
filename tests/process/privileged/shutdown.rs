//! Scheduled shutdowns, in a /run of the test's own.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use again_test_support::{SHORT, Scratch, in_namespaces, start, stays, wait_until};

const DIRECTORY: &str = "/run/systemd/shutdown";
const SCHEDULED: &str = "/run/systemd/shutdown/scheduled";

/// Runs the test in a mount namespace whose /run is empty.
fn with_own_run(test: &str, body: impl FnOnce()) {
    let name = format!("privileged::shutdown::{test}");
    in_namespaces(&["--mount"], &name, || {
        let mount = ["-t", "tmpfs", "-o", "mode=755", "again-test", "/run"];
        let done = Command::new("mount").args(mount).status().expect("mount");
        assert!(done.success());
        body();
    });
}

/// Schedules a shutdown in this number of seconds, as systemd-logind does.
fn schedule(seconds: i64) {
    fs::create_dir_all(DIRECTORY).expect("made");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let at = now.checked_add_signed(seconds).expect("a time");
    let draft = format!("{DIRECTORY}/.#draft");
    fs::write(
        &draft,
        format!("USEC={at}000000\nWARN_WALL=1\nMODE=reboot\n"),
    )
    .expect("written");
    fs::rename(draft, SCHEDULED).expect("renamed");
}

/// Creates a directory with one run that has requested another and has ended.
fn asked(more: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.settings(more);
    start(&mut scratch.apply("site", "ask('run') if NTH == 1")).finish();
    scratch
}

#[track_caller]
fn assert_starts(scratch: &Scratch) {
    scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

#[track_caller]
fn assert_held(scratch: &Scratch) {
    scratch.wait_for_state("again", "held");
    stays("one run", Duration::from_millis(300), || {
        scratch.runs("site").len() == 1
    });
}

#[test]
fn timer_is_held_while_a_shutdown_is_near_and_starts_once_it_is_cancelled() {
    with_own_run(
        "timer_is_held_while_a_shutdown_is_near_and_starts_once_it_is_cancelled",
        || {
            schedule(60);
            let scratch = asked("");
            let said = &scratch.runs("site")[0].asked()[0].output;
            assert!(
                said.contains("; held as long as a shutdown is announced for "),
                "{said}"
            );
            assert_held(&scratch);
            let timer = scratch.timer("again").expect("a timer");
            let reason = timer["reason"].as_str().expect("a reason");
            assert!(
                reason.starts_with("a shutdown is announced for "),
                "{timer:#}"
            );
            let text = scratch.again_well(&["status"]);
            assert!(
                text.contains("due, held: a shutdown is announced for "),
                "{text}"
            );
            fs::remove_file(SCHEDULED).expect("removed");
            assert_starts(&scratch);
        },
    );
}

#[test]
fn timer_starts_once_the_shutdown_is_put_off_or_its_directory_is_gone() {
    with_own_run(
        "timer_starts_once_the_shutdown_is_put_off_or_its_directory_is_gone",
        || {
            for change in [
                || schedule(3600),
                || fs::remove_dir_all(DIRECTORY).expect("removed"),
                || fs::rename("/run/systemd", "/run/other").expect("renamed"),
            ] {
                schedule(600);
                let scratch = asked("");
                assert_held(&scratch);
                change();
                assert_starts(&scratch);
            }
        },
    );
}

#[test]
fn shutdown_that_is_far_or_long_past_or_does_not_matter_holds_nothing() {
    with_own_run(
        "shutdown_that_is_far_or_long_past_or_does_not_matter_holds_nothing",
        || {
            for (seconds, settings) in [
                (1200, ""),
                (-301, ""),
                (60, "hold_before_shutdown = 0"),
                (300, "hold_before_shutdown = \"2m\""),
            ] {
                schedule(seconds);
                assert_starts(&asked(settings));
            }
            schedule(1200);
            let scratch = asked("hold_before_shutdown = \"1h\"");
            assert_held(&scratch);
            fs::remove_file(SCHEDULED).expect("removed");
            assert_starts(&scratch);
        },
    );
}

#[test]
fn shutdown_that_did_not_happen_holds_for_five_minutes() {
    with_own_run(
        "shutdown_that_did_not_happen_holds_for_five_minutes",
        || {
            schedule(-296);
            let scratch = asked("");
            assert_held(&scratch);
            assert_starts(&scratch);
        },
    );
}

#[test]
fn file_that_names_no_time_holds_nothing() {
    with_own_run("file_that_names_no_time_holds_nothing", || {
        fs::create_dir_all(DIRECTORY).expect("made");
        for make in [
            "mkfifo F",
            "mkdir F",
            "echo USEC=soon > F",
            "echo > F",
            "truncate -s 1T F",
            "head -c 5000 /dev/urandom > F",
            "ln -s /dev/zero F",
            "ln -s F F",
            "echo USEC=18446744073709551615 > F",
        ] {
            let script = format!("rm -rf F; {make}").replace('F', SCHEDULED);
            let done = Command::new("sh")
                .args(["-c", &script])
                .status()
                .expect("sh");
            assert!(done.success(), "{make}");
            assert_starts(&asked(""));
        }
    });
}

#[test]
fn again_now_does_not_wait_for_a_shutdown() {
    with_own_run("again_now_does_not_wait_for_a_shutdown", || {
        schedule(60);
        let scratch = asked("");
        assert_held(&scratch);
        let said = scratch.again_well(&["now"]);
        assert!(
            said.contains("a shutdown is announced for ") && said.contains("it was held"),
            "{said}"
        );
        assert_starts(&scratch);
        assert_eq!(scratch.told("hurried").len(), 1);
    });
}

/// Scheduled as sysvinit's shutdown(8) does.
#[test]
fn timer_is_held_while_the_process_of_shutdown_pid_lives() {
    with_own_run(
        "timer_is_held_while_the_process_of_shutdown_pid_lives",
        || {
            let sleep = || Command::new("sleep").arg("1000").spawn().expect("sleep");
            let mut counting = sleep();
            fs::write("/run/shutdown.pid", format!("{}\n", counting.id())).expect("written");
            let scratch = asked("");
            assert_held(&scratch);
            // A held waiter notices a shutdown that is scheduled then, even in a new directory.
            schedule(60);
            counting
                .kill()
                .and_then(|()| counting.wait())
                .expect("ended");
            wait_until("the other announcement", SHORT, || {
                scratch.timer("again").is_some_and(|timer| {
                    timer["reason"]
                        .as_str()
                        .is_some_and(|reason| reason.contains("announced for "))
                })
            });
            fs::remove_dir_all("/run/systemd").expect("removed");
            assert_starts(&scratch);
            // Neither the pid of a process that has ended nor an invalid pid holds a timer.
            for text in [
                counting.id().to_string(),
                "0".into(),
                "-1".into(),
                "soon".into(),
                String::new(),
            ] {
                fs::write("/run/shutdown.pid", text).expect("written");
                assert_starts(&asked(""));
            }
        },
    );
}
