//! What people read when something is in the way, lost, or not there.

use std::time::{Duration, Instant};

use again_test_support::{SHORT, Scratch, sleep_until, start, wait_for, wait_until};

fn blocked(scratch: &Scratch) -> serde_json::Value {
    scratch.status()["targets"][0]["timers"][0]["blocked_by"].clone()
}

#[test]
fn a_stopped_waiter_is_said_with_what_lets_it_go_on() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -n \"$AGAIN_RUN\" || $AGAIN run --delta 1\n");
    let pid = scratch.waiter("again").pid;
    scratch.run("kill", &["-STOP", &pid.to_string()]).ok();
    // A signal is delivered when the kernel gets to it.
    let by = wait_for("the waiter to be stopped", SHORT, || {
        Some(blocked(&scratch)).filter(|by| by["what"] == "waiter")
    });
    assert_eq!(by["process"]["pid"], pid);
    let said = scratch.again(&["status"]).ok();
    assert!(
        said.contains(&format!("until 'kill -CONT {pid}'")),
        "{said}"
    );
    scratch.run("kill", &["-CONT", &pid.to_string()]).ok();
    scratch.wait_until_settled();
}

/// The run that holds Puppet's lock, and since when; once it has held it for longer than its `runtimeout`, that it is stuck.
/// What it did before, such as to splay, does not count.
#[test]
fn the_holder_of_puppets_lock_is_named_and_may_be_stuck() {
    let scratch = Scratch::for_operator();
    let lock = scratch.at("lock");
    let other = start(&mut scratch.agent("other", "hold('go')"));
    wait_until("the other run", SHORT, || scratch.runs("other").len() == 1);
    let pid = scratch.runs("other")[0].pid();
    // Older than its limit, which counts from when it took the lock.
    sleep_until(scratch.runs("other")[0].started() + 3_000_000_000);
    let locked = Instant::now();
    scratch.write("lock", &pid.to_string());
    let asks = format!("ask('run', '--agent-catalog-run-lockfile', '{lock}') if NTH == 1");
    let mut command = scratch.agent("site", &asks);
    start(command.arg("--runtimeout=2")).finish();
    let by = wait_for("the lock to be in the way", SHORT, || {
        Some(blocked(&scratch)).filter(|by| by["what"] == "agent lock")
    });
    assert_eq!(by["process"]["pid"], pid);
    wait_until("its being stuck", SHORT, || {
        blocked(&scratch)["stuck"] == true
    });
    let held = locked.elapsed();
    // A file's time is that of the kernel's last tick.
    assert!(held >= Duration::from_millis(1900), "stuck after {held:?}");
    let said = scratch.again(&["status"]).ok();
    for words in [
        "the run that holds Puppet's lock (pid ",
        ", up ",
        "stuck: it has taken longer than 2s",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let metrics = scratch.again(&["metrics"]).ok();
    let stuck = metrics
        .lines()
        .find(|line| line.starts_with("again_runs_stuck{"));
    assert!(stuck.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    scratch.release("go");
    other.finish();
    scratch.wait_until_settled();
}

#[test]
fn a_command_is_shown_also_when_nothing_is_pending_and_not_at_any_length() {
    let scratch = Scratch::for_operator();
    let long = "x".repeat(100_000);
    scratch.again(&["run", "--", "/bin/true", &long]).ok();
    scratch.wait_until_settled();
    let said = scratch.again(&["status"]).out;
    let line = said
        .lines()
        .find(|line| line.starts_with("  command   /bin/true xxx"));
    let line = line.unwrap_or_else(|| panic!("{said:.3000}"));
    assert!(line.len() < 1000 && line.contains("100010 bytes"), "{line}");
    assert_eq!(scratch.status()["targets"][0]["command"][1], long);
    let history = scratch.again(&["history"]).ok();
    assert!(history.contains("\n  command  /bin/true xxx"), "{history}");
    assert!(history.len() < 2000);
    // For its owner, and root.
    let kept = scratch.target().join("command");
    let mode = std::os::unix::fs::MetadataExt::mode(&kept.metadata().expect("there"));
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_cannot_be_read_is_no_quiet() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --delta 1h\n");
    // It has nothing left to look at.
    scratch.waiter("again").wait_until_asleep();
    let record = scratch.target().join("state.json");
    let whole = std::fs::read(&record).expect("read");
    std::fs::write(&record, "{").expect("damaged");
    let said = scratch.again(&["status"]);
    assert_eq!(said.status(), 1, "{said:?}");
    assert!(
        said.out
            .contains("something may be pending: 1 record cannot be read"),
        "{said:?}"
    );
    std::fs::remove_file(&record).expect("removed");
    let said = scratch.again(&["status"]);
    assert_eq!(said.status(), 1, "{said:?}");
    let missing = format!("the record {} is missing", record.display());
    assert!(
        said.err.contains(&missing) || said.out.contains(&missing),
        "{said:?}"
    );
    let metrics = scratch.again(&["metrics"]).out;
    assert!(
        metrics.contains("\nagain_records_unreadable 1\n"),
        "{metrics}"
    );
    std::fs::write(&record, whole).expect("mended");
    scratch.again(&["stop"]).ok();
}

#[test]
fn a_state_directory_that_is_not_there_or_is_a_file_is_said() {
    let scratch = Scratch::for_operator();
    scratch.write("file", "");
    let (none, file) = (scratch.at("none"), scratch.at("file"));
    for verb in ["status", "stop", "now", "reset", "history", "resume"] {
        let said = scratch.again(&["--state-dir", &none, verb]);
        let wanted = format!("the state directory {none} does not exist");
        assert!(said.out.contains(&wanted), "{verb}: {said:?}");
        let said = scratch.again(&["--state-dir", &file, verb]);
        assert_eq!(said.status(), 1, "{verb}");
        let wanted = format!("the state directory {file} cannot be read: Not a directory");
        assert!(said.err.contains(&wanted), "{verb}: {said:?}");
    }
}

#[test]
fn a_run_that_goes_on_may_ask_again() {
    let mut scratch = Scratch::for_operator();
    scratch.begin_shell("$AGAIN run --delta 1h\nuntil test -e $HERE/go; do sleep 0.05; done\n");
    scratch.timer_in_state("waiting for the run");
    let said = scratch.again(&["stop"]).ok();
    assert!(
        said.contains("it may ask again; 'again disable' prevents that"),
        "{said}"
    );
    scratch.write("go", "");
    scratch.end_shell();
    scratch.wait_until_settled();
}

#[test]
fn a_cap_that_is_reset_leaves_no_refusal_and_one_of_nothing_says_what_it_means() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --max-runs 1\n");
    wait_for("the refusal", SHORT, || {
        scratch.status()["targets"][0]["refused"]
            .as_object()
            .map(|_| ())
    });
    scratch.wait_until_settled();
    scratch.again(&["reset"]).ok();
    assert!(scratch.status()["targets"][0]["refused"].is_null());
    let said = scratch.shell("$AGAIN run --max-runs 0\n");
    assert!(
        said.contains("max_runs is 0, which allows no rerun"),
        "{said}"
    );
}

/// An agent without --test logs to syslog.
#[test]
fn an_empty_log_says_where_to_look() {
    let scratch = Scratch::for_operator();
    start(&mut scratch.agent("site", "ask('run') if NTH == 1")).finish();
    scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    let said = scratch.again(&["log"]);
    assert_eq!((said.status(), said.out.as_str()), (0, ""));
    assert!(
        said.err.contains("without --test the agent logs to syslog"),
        "{said:?}"
    );
}
