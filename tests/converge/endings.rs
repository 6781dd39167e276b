use crate::handover::counting;
use again_test_support::{LONG, Scratch, text, wait_until};
use nix::sys::signal::Signal;

/// A run that says that it is there, and goes on until it gets a signal.
const UNTIL_TOLD: &str =
    "trap 'echo told >> told; exit 1' INT TERM; touch up; while :; do sleep 0.05; done";

#[test]
fn what_cannot_be_executed() {
    let scratch = Scratch::for_driver();
    let status = |word: &str| {
        scratch
            .start(scratch.converge(&[], &[word.to_owned()]))
            .wait()
            .status()
    };
    assert_eq!(status(&format!("{}/none", scratch.root())), 127);
    assert_eq!(status("no-such-command"), 127);
    assert_eq!(status("/etc/passwd"), 126);
    assert_eq!(scratch.again(&["converge", "--"]).status(), 2);
    assert_eq!(
        scratch
            .again(&["converge", "--max-runs", "0", "--", "true"])
            .status(),
        2
    );
    scratch.is_clean();
}

#[test]
fn a_run_that_is_killed() {
    // The last is a realtime signal, which has no name of its own.
    for signal in [9, 40] {
        let scratch = Scratch::for_driver();
        let command = scratch.script("x", &format!("kill -{signal} $$"));
        let ended = scratch.start(scratch.converge(&[], &[command])).wait();
        assert_eq!(ended.status(), 128 + signal, "{ended:?}");
        let said = format!("run 1 was killed by signal {signal}");
        assert!(ended.err.contains(&said), "{ended:?}");
        scratch.is_clean();
    }
}

#[test]
fn a_signal_during_a_run_is_passed_on_once_and_the_run_waited_for() {
    for (signal, status) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
    ] {
        let name = &signal.as_str()["SIG".len()..];
        let scratch = Scratch::for_driver();
        // A wrapper that would end before what is below it.
        let below = scratch.script("below", &UNTIL_TOLD.replace("INT TERM", name));
        let command = scratch.script("wrapper", &format!("{below}; echo not reached"));
        let going = scratch.start(scratch.converge(&[], &[command]));
        wait_until("the run", LONG, || scratch.path("up").exists());
        going.signal(signal);
        let ended = going.wait();
        assert_eq!(ended.status(), status, "{ended:?}");
        assert_eq!(scratch.text("told"), "told\n");
        scratch.is_clean();
    }
}

#[test]
fn a_run_that_does_not_listen_is_killed() {
    let scratch = Scratch::for_driver();
    let command = scratch.script(
        "x",
        "trap '' INT TERM; setsid sleep 600 & touch up; while :; do sleep 0.05; done",
    );
    let going = scratch.start(scratch.converge(&[], &[command]));
    wait_until("the run", LONG, || scratch.path("up").exists());
    // The third time at once, rather than after the grace.
    for word in ["waits for the run to end", "is killed in 10s"] {
        going.signal(Signal::SIGTERM);
        wait_until(word, LONG, || going.err().contains(word));
    }
    going.signal(Signal::SIGTERM);
    assert_eq!(going.wait().status(), 143);
    scratch.is_clean();
}

#[test]
fn control_c_during_a_run() {
    let scratch = Scratch::for_driver();
    let command = scratch.script("x", UNTIL_TOLD);
    let mut going = scratch.start(scratch.on_terminal(&[], &command));
    wait_until("the run", LONG, || scratch.path("up").exists());
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status(), 130, "{ended:?}");
    assert_eq!(
        scratch.text("told"),
        "told\n",
        "the terminal told it, and nobody else"
    );
    assert!(ended.out.contains("ended by signal 2"));
    scratch.is_clean();
}

#[test]
fn control_c_reaches_a_run_that_left_our_process_group() {
    let scratch = Scratch::for_driver();
    let command = scratch.script("x", UNTIL_TOLD);
    let mut going = scratch.start(scratch.on_terminal(&[], &format!("timeout 100 {command}")));
    wait_until("the run", LONG, || scratch.path("up").exists());
    going.types("\x03");
    assert_eq!(going.wait().status(), 130);
    assert_eq!(scratch.text("told"), "told\n");
    scratch.is_clean();
}

#[test]
fn control_c_while_waiting() {
    let scratch = Scratch::for_driver();
    let command = counting(&scratch, "$AGAIN --delta 600");
    let mut going = scratch.start(scratch.on_terminal(&[], &command));
    wait_until("the wait", LONG, || going.out().contains("starts in "));
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status(), 130, "{ended:?}");
    assert_eq!(scratch.text("n").trim(), "1");
    assert_eq!(scratch.history_of("stopped").len(), 1);
    scratch.is_clean();
}

#[test]
fn control_c_while_held() {
    let scratch = Scratch::for_driver();
    let body = "$AGAIN --delta 1; echo '{\"reason\":\"work\",\"since\":0}' > state/disabled";
    let command = counting(&scratch, body);
    let mut going = scratch.start(scratch.on_terminal(&[], &command));
    wait_until("the hold", LONG, || {
        going.out().contains("again is disabled (work)")
    });
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status(), 130, "{ended:?}");
    assert_eq!(scratch.text("n").trim(), "1", "no further run");
    assert_eq!(scratch.history_of("stopped").len(), 1);
    std::fs::remove_file(scratch.path("state/disabled")).expect("enabled");
    scratch.is_clean();
}

#[test]
fn control_c_while_another_run_of_the_agent_is_waited_for() {
    let scratch = Scratch::for_driver();
    let holder = scratch.start(scratch.line(&[
        "ruby",
        "-e",
        "sleep 0.05 until File.exist?('go')",
        "puppet",
    ]));
    let lock = text(scratch.write("lock", &holder.pid().to_string()));
    let puppet = scratch.script("puppet", "touch ran");
    let line = format!("{puppet} agent --onetime --agent_catalog_run_lockfile {lock}");
    let mut going = scratch.start(scratch.on_terminal(&[], &line));
    wait_until("the wait", LONG, || {
        going.out().contains("waits for the agent run with pid ")
    });
    let text = scratch.again(&["status"]).out;
    assert!(
        text.contains(" is held: waits for the agent run with pid "),
        "{text}"
    );
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status(), 130, "{ended:?}");
    assert!(!scratch.path("ran").exists(), "no run was started");
    scratch.write("go", "");
    assert_eq!(holder.wait().status(), 0, "the other run is left alone");
    scratch.is_clean();
}

#[test]
fn control_c_during_a_real_run() {
    let scratch = Scratch::for_driver();
    let hold = "while [ ! -e go ]; do touch up; sleep 0.05; done";
    let manifest = format!(
        "exec {{ 'hold': command => ['/bin/sh', '-c', '{hold}'], cwd => '{}' }}",
        scratch.root()
    );
    let line = scratch.driven_apply(&manifest).join(" ");
    let mut going = scratch.start(scratch.on_terminal(&[], &line));
    wait_until("the run", LONG, || scratch.path("up").exists());
    going.types("\x03");
    let ended = going.wait();
    // What Puppet's Execs start it leaves to themselves.
    scratch.write("go", "");
    assert_eq!(ended.status(), 130, "{ended:?}");
    scratch.is_clean();
}

#[test]
fn the_timeout_ends_a_run_and_a_wait() {
    let scratch = Scratch::for_driver();
    let command = scratch.script("x", UNTIL_TOLD);
    let ended = scratch
        .start(scratch.converge(&["--timeout", "4"], &[command]))
        .wait();
    assert_eq!(ended.status(), 75, "{ended:?}");
    assert_eq!(scratch.text("told"), "told\n");
    assert!(ended.err.contains("run 1 was ended at the timeout of 4s"));
    let command = counting(&scratch, "$AGAIN --delta 600");
    let ended = scratch
        .start(scratch.converge(&["--timeout", "60"], &[command]))
        .wait();
    assert_eq!(ended.status(), 75, "{ended:?}");
    assert!(
        ended
            .err
            .contains("no further run can start within the timeout of 1m")
    );
    scratch.is_clean();
}

#[test]
fn a_driver_that_is_killed_leaves_nothing_for_long() {
    let scratch = Scratch::for_driver();
    let command = scratch.script(
        "x",
        "touch up; while [ ! -e go ]; do sleep 0.05; done; $AGAIN explain > explained; $AGAIN > said 2>&1; touch down",
    );
    let going = scratch.start(scratch.converge(&[], &[command]));
    wait_until("the run", LONG, || scratch.path("up").exists());
    going.signal(Signal::SIGKILL);
    assert_eq!(going.wait().status(), 137);
    // Its run goes on; nothing would take its request, and no waiter is to run it again.
    assert!(
        scratch.status()["drivers"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
    scratch.write("go", "");
    wait_until("the run's end", LONG, || scratch.path("down").exists());
    let said = scratch.text("said");
    assert!(
        said.contains("refused: the 'again converge' that started this run was killed"),
        "{said}"
    );
    let verdict = format!("verdict: {}", said.trim().trim_start_matches("again: "));
    assert!(
        scratch.text("explained").contains(&verdict),
        "{verdict}: {}",
        scratch.text("explained")
    );
    wait_until("everything to end", LONG, || scratch.processes().is_empty());
    scratch.again(&["status"]);
    let closed = scratch.history_of("closed");
    assert_eq!(closed.len(), 1);
    assert!(
        closed[0]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("was killed"))
    );
    scratch.is_clean();
}

/// The run is told that somebody wants it to end, and takes no notice: the time that it was given holds all the same.
#[test]
fn the_time_is_over_after_a_signal() {
    let scratch = Scratch::for_driver();
    let command = scratch.script(
        "x",
        "n=0; trap 'n=$((n + 1)); [ $n -lt 2 ] || exit 1' TERM; touch up; while :; do sleep 0.05; done",
    );
    let going = scratch.start(scratch.converge(&["--timeout", "3"], &[command]));
    wait_until("the run", LONG, || scratch.path("up").exists());
    going.signal(Signal::SIGTERM);
    let ended = going.wait();
    assert_eq!(ended.status(), 143, "{ended:?}");
    assert!(
        ended
            .err
            .contains("the timeout has passed: the run is ended"),
        "{ended:?}"
    );
    scratch.is_clean();
}

/// Where Puppet's summary should be lies something that can be read for ever, or never.
#[test]
fn a_summary_that_is_no_file() {
    let scratch = Scratch::for_driver();
    let command = scratch.script("x", "exit 0");
    for kind in ["fifo", "device"] {
        let summary = scratch.path(kind);
        match kind {
            "fifo" => nix::unistd::mkfifo(&summary, nix::sys::stat::Mode::S_IRWXU).expect("made"),
            _ => std::os::unix::fs::symlink("/dev/zero", &summary).expect("linked"),
        }
        let settings = format!("lastrunfile = \"{}\"\n", summary.display());
        let settings = scratch.write("again.toml", &settings);
        let mut converge = scratch.converge(&["--timeout", "20"], std::slice::from_ref(&command));
        converge.env("AGAIN_CONFIG", &settings);
        let ended = scratch.start(converge).wait();
        assert_eq!(ended.status(), 0, "{kind}: {ended:?}");
    }
    scratch.is_clean();
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let scratch = Scratch::for_driver();
    let command = scratch.script("x", "touch up; while [ ! -e go ]; do sleep 0.05; done");
    let again = format!("{}/bin/again", scratch.root());
    let going = scratch.start(scratch.line(&["nohup", &again, "converge", "--", &command]));
    wait_until("the run", LONG, || scratch.path("up").exists());
    going.signal(Signal::SIGHUP);
    scratch.write("go", "");
    assert_eq!(going.wait().status(), 0);
    scratch.is_clean();
}
