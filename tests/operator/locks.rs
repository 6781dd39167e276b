//! A process that holds a target's lock, and was stopped: nobody waits for it for ever.

use std::time::{Duration, Instant};

use again_test_support::{SHORT, Scratch, Started, wait_for};
use nix::sys::signal::Signal;

/// A process that holds the lock of the only target there is, and was stopped.
fn holder(scratch: &Scratch) -> Started {
    let lock = scratch.target().join("lock").display().to_string();
    let script = "file = File.open(ARGV[0], 'r+'); file.flock(File::LOCK_EX); File.write(ARGV[1], ''); sleep 600";
    let held = scratch.at("held");
    let holder = scratch.start(scratch.line(&["ruby", "-e", script, &lock, &held]));
    wait_for("the lock", SHORT, || {
        scratch.path("held").exists().then_some(())
    });
    holder.signal(Signal::SIGSTOP);
    holder
}

#[test]
fn nobody_waits_for_ever_for_a_stopped_process() {
    let scratch = Scratch::for_operator();
    // A rerun that counts, so that a reset has something to do.
    scratch.again(&["run", "--", "/bin/true"]).ok();
    scratch.wait_until_settled();
    scratch
        .again(&["run", "--delta", "1h", "--name", "a", "--", "/bin/true"])
        .ok();
    let holder = holder(&scratch);
    let pid = format!("pid {}", holder.pid());
    // Another target, of which nobody holds anything.
    scratch
        .again(&["run", "--delta", "1h", "--name", "b", "--", "/bin/echo"])
        .ok();
    for words in [
        &["status"][..],
        &["status", "--json"],
        &["history"],
        &["metrics"],
    ] {
        let began = Instant::now();
        scratch.again(words).ok();
        assert!(began.elapsed() < Duration::from_secs(25), "{words:?}");
    }
    let status = scratch.again(&["status"]).ok();
    assert!(status.contains("locked"), "{status}");
    assert!(
        status.contains(&pid) && status.contains("kill -CONT"),
        "{status}"
    );
    let began = Instant::now();
    let said = scratch.again(&["stop"]);
    assert!(
        began.elapsed() < Duration::from_secs(100),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(said.status(), 1);
    assert!(said.out.contains("again: stopped: timer 'b'"), "{said:?}");
    assert!(
        said.err.contains(&pid) && said.err.contains("'ruby -e"),
        "{said:?}"
    );
    // A request fails inside its Exec's time, which is 300 s unless somebody sets it.
    let began = Instant::now();
    let asked = scratch.again(&["run", "--name", "a", "--", "/bin/true"]);
    assert_eq!(asked.status(), 1, "{asked:?}");
    assert!(asked.err.contains(&pid), "{asked:?}");
    assert!(
        began.elapsed() < Duration::from_secs(200),
        "{:?}",
        began.elapsed()
    );
    for words in [&["now", "a"][..], &["reset"], &["resume"]] {
        let said = scratch.again(words);
        assert!(said.err.contains(&pid), "{words:?}: {said:?}");
    }
    holder.kill();
    assert!(scratch.again(&["stop"]).ok().contains("stopped: timer 'a'"));
    scratch.wait_until_settled();
}
