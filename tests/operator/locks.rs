//! A process that holds a target's lock, and was stopped: nobody waits for it for ever.

use std::time::{Duration, Instant};

use again_rig::{Process, SHORT, Scratch, wait_for};
use nix::sys::signal::Signal;

/// A process that holds the lock of the only target there is, and sleeps.
fn holder(scratch: &mut Scratch) -> Process {
    let lock = scratch.target().join("lock").display().to_string();
    let command = scratch.line(&[
        "flock",
        "-o",
        &lock,
        "sh",
        "-c",
        "touch $HERE/held; exec sleep 600",
    ]);
    scratch.spawn(command);
    wait_for("the lock", SHORT, || {
        scratch.path("held").exists().then_some(())
    });
    let all = Process::with_program_of(std::path::Path::new("/usr/bin"));
    let ours = |process: &Process| {
        process
            .command()
            .first()
            .is_some_and(|word| word == "flock")
            && process.command().contains(&lock)
    };
    let holder = all.into_iter().find(ours).expect("flock");
    holder.signal(Signal::SIGSTOP).expect("stopped");
    holder
}

#[test]
fn nobody_waits_for_ever_for_a_stopped_process() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --delta 1h --name a\n");
    let holder = holder(&mut scratch);
    let pid = format!("pid {}", holder.pid);
    // Another target, of which nobody holds anything.
    scratch
        .again(&["run", "--delta", "1h", "--name", "b", "--", "/bin/true"])
        .ok();
    for words in [
        &["status"][..],
        &["status", "--json"],
        &["history"],
        &["metrics"],
    ] {
        let began = Instant::now();
        scratch.again(words).ok();
        assert!(began.elapsed() < Duration::from_secs(3), "{words:?}");
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
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(said.status(), 1);
    assert!(said.out.contains("again: stopped: timer 'b'"), "{said:?}");
    assert!(
        said.err.contains(&pid) && said.err.contains("'flock "),
        "{said:?}"
    );
    for words in [&["now", "a"][..], &["reset"], &["resume"]] {
        let said = scratch.again(words);
        assert!(
            words == ["reset"] || said.err.contains(&pid),
            "{words:?}: {said:?}"
        );
    }
    holder.signal(Signal::SIGCONT).expect("going on");
    holder.end();
    assert!(scratch.again(&["stop"]).ok().contains("stopped: timer 'a'"));
    scratch.wait_until_settled();
}
