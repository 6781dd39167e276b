use std::fs::{self, File};

use again_test_support::{IDLE, SHORT, Scratch, wait_until};
use nix::sys::signal::Signal;

/// Number of logs of another target, more than are kept.
const OLD: usize = 300;

/// Returns the number of logs of that target.
fn old_logs(scratch: &Scratch) -> usize {
    let logs = fs::read_dir(scratch.path("logs")).expect("logs");
    let names = logs.map(|log| log.expect("readable").file_name());
    names
        .filter(|name| name.to_string_lossy().contains("-01234567.log"))
        .count()
}

/// Runs a command as a rerun, to its end.
fn rerun(scratch: &Scratch, command: &str) {
    let before = scratch.told("started").len();
    scratch.again_well(&["run", "--jitter", "0", "--", "/bin/sh", "-c", command]);
    wait_until("the rerun", SHORT, || {
        scratch.told("started").len() == before + 1
    });
    scratch.wait_until_settled();
}

#[test]
fn a_waiter_that_is_due_leaves_old_logs_to_their_upkeep() {
    let scratch = Scratch::new();
    rerun(&scratch, "true");
    let files = fs::read_dir(scratch.path("state/upkeep")).expect("there");
    let mut files = files.map(|file| file.expect("readable").path());
    let lock = files.find(|file| file.extension().is_some_and(|of| of == "lock"));
    let lock = File::open(lock.expect("a lock")).expect("opened");
    wait_until("the upkeep to be over", IDLE, || lock.try_lock().is_ok());
    // While no upkeep can begin.
    for nth in 0..OLD {
        let name = format!("20261120T140307123-{nth:08x}-2-01234567.log");
        fs::write(scratch.path("logs").join(name), "x\n").expect("written");
    }
    let seen = scratch.at("seen");
    rerun(
        &scratch,
        &format!("ls {}/*-01234567.log | wc -l > {seen}", scratch.at("logs")),
    );
    assert_eq!(scratch.text("seen").trim(), OLD.to_string());
    assert_eq!(old_logs(&scratch), OLD);
    lock.unlock().expect("unlocked");
    rerun(&scratch, "true");
    wait_until("the upkeep", IDLE, || old_logs(&scratch) == 20);
    scratch.assert_nothing_left();
}

#[test]
fn record_of_an_ended_rerun_no_longer_says_how_to_take_it_back() {
    let scratch = Scratch::new();
    rerun(&scratch, "true");
    let ended = &scratch.record()["last"]["rerun"];
    assert_eq!(ended["run"], 1, "{ended}");
    assert!(ended["before_start"].is_null(), "{ended}");
}

#[test]
fn stop_now_disable_and_enable_skip_quiet_targets() {
    let scratch = Scratch::new();
    rerun(&scratch, "true");
    let quiet = scratch.target().join("state.json");
    fs::write(&quiet, "damaged").expect("written");
    scratch.again_well(&["run", "--delta", "1h", "--name", "other", "--", "/bin/true"]);
    scratch.again_well(&["now", "other"]);
    wait_until("the rerun", SHORT, || scratch.told("started").len() == 2);
    for verb in ["stop", "disable", "enable"] {
        let said = scratch.again(&[verb]);
        assert_eq!(said.code, Some(0), "{verb}: {said:?}");
        assert_eq!(fs::read_to_string(&quiet).expect("there"), "damaged");
    }
    // A command that reads all targets reports it.
    assert_eq!(scratch.again(&["status"]).code, Some(1));
    scratch.again_well(&["reset"]);
}

#[test]
fn resume_repairs_the_index_of_what_is_pending() {
    let scratch = Scratch::new();
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true", "lost"]);
    let waiter = scratch.only_waiter();
    waiter.signal(Signal::SIGKILL).expect("killed");
    waiter.wait_until_gone(SHORT);
    let entries = || {
        let index = fs::read_dir(scratch.path("state/pending")).expect("an index");
        let names = index.map(|entry| entry.expect("readable").file_name());
        let names = names.map(|name| name.into_string().expect("a plain name"));
        names
            .filter(|name| !name.starts_with("whole"))
            .collect::<Vec<_>>()
    };
    let [entry] = &entries()[..] else {
        panic!("{:?}", entries());
    };
    fs::remove_file(scratch.path("state/pending").join(entry)).expect("removed");
    // The timer is not seen, and so gets no new waiter.
    scratch.again_well(&["stop"]);
    assert!(scratch.waiters().is_empty());
    let resumed = scratch.again_well(&["resume"]);
    assert!(
        resumed.contains("again: resumed: timer 'again'"),
        "{resumed}"
    );
    assert_eq!(entries().len(), 1);
    scratch.again_well(&["stop"]);
    assert!(entries().is_empty());
    scratch.assert_nothing_left();
}
