use crate::handover::counting;
use crate::room::{Room, wait_until};

/// A run that says that it is there, and goes on until it gets a signal.
const LONG: &str =
    "trap 'echo told >> told; exit 1' INT TERM; touch up; while :; do sleep 0.05; done";

#[test]
fn what_cannot_be_executed() {
    let room = Room::new();
    let status = |word: &str| {
        room.start(room.converge(&[], &[word.to_owned()]))
            .wait()
            .status
    };
    assert_eq!(status(&format!("{}/none", room.root())), 127);
    assert_eq!(status("no-such-command"), 127);
    assert_eq!(status("/etc/passwd"), 126);
    assert_eq!(room.again(&["converge", "--"]).status, 2);
    assert_eq!(
        room.again(&["converge", "--max-runs", "0", "--", "true"])
            .status,
        2
    );
    room.is_clean();
}

#[test]
fn a_run_that_is_killed() {
    // The last is a realtime signal, which has no name of its own.
    for signal in [9, 40] {
        let room = Room::new();
        let command = room.script("x", &format!("kill -{signal} $$"));
        let ended = room.start(room.converge(&[], &[command])).wait();
        assert_eq!(ended.status, 128 + signal, "{ended:?}");
        let said = format!("run 1 was killed by signal {signal}");
        assert!(ended.err.contains(&said), "{ended:?}");
        room.is_clean();
    }
}

#[test]
fn a_signal_during_a_run_is_passed_on_once_and_the_run_waited_for() {
    for (name, status) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let room = Room::new();
        // A wrapper that would end before what is below it.
        let below = room.script("below", &LONG.replace("INT TERM", name));
        let command = room.script("wrapper", &format!("{below}; echo not reached"));
        let going = room.start(room.converge(&[], &[command]));
        wait_until("the run", || room.path("up").exists());
        going.signal(name);
        let ended = going.wait();
        assert_eq!(ended.status, status, "{ended:?}");
        assert_eq!(room.read("told"), "told\n");
        room.is_clean();
    }
}

#[test]
fn a_run_that_does_not_listen_is_killed() {
    let room = Room::new();
    let command = room.script(
        "x",
        "trap '' INT TERM; setsid sleep 600 & touch up; while :; do sleep 0.05; done",
    );
    let going = room.start(room.converge(&[], &[command]));
    wait_until("the run", || room.path("up").exists());
    // The third time at once, rather than after the grace.
    for word in ["waits for the run to end", "is killed in 10s"] {
        going.signal("TERM");
        wait_until(word, || going.err().contains(word));
    }
    going.signal("TERM");
    assert_eq!(going.wait().status, 143);
    room.is_clean();
}

#[test]
fn control_c_during_a_run() {
    let room = Room::new();
    let command = room.script("x", LONG);
    let mut going = room.start(room.on_terminal(&[], &command));
    wait_until("the run", || room.path("up").exists());
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status, 130, "{ended:?}");
    assert_eq!(
        room.read("told"),
        "told\n",
        "the terminal told it, and nobody else"
    );
    assert!(ended.out.contains("ended by signal 2"));
    room.is_clean();
}

#[test]
fn control_c_reaches_a_run_that_left_our_process_group() {
    let room = Room::new();
    let command = room.script("x", LONG);
    let mut going = room.start(room.on_terminal(&[], &format!("timeout 100 {command}")));
    wait_until("the run", || room.path("up").exists());
    going.types("\x03");
    assert_eq!(going.wait().status, 130);
    assert_eq!(room.read("told"), "told\n");
    room.is_clean();
}

#[test]
fn control_c_while_waiting() {
    let room = Room::new();
    let command = counting(&room, "$AGAIN --delta 600");
    let mut going = room.start(room.on_terminal(&[], &command));
    wait_until("the wait", || going.out().contains("starts in "));
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status, 130, "{ended:?}");
    assert_eq!(room.read("n").trim(), "1");
    assert_eq!(room.history_of("stopped").len(), 1);
    room.is_clean();
}

#[test]
fn control_c_while_held() {
    let room = Room::new();
    let body = "$AGAIN --delta 1; echo '{\"reason\":\"work\",\"since\":0}' > state/disabled";
    let command = counting(&room, body);
    let mut going = room.start(room.on_terminal(&[], &command));
    wait_until("the hold", || {
        going.out().contains("again is disabled (work)")
    });
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status, 130, "{ended:?}");
    assert_eq!(room.read("n").trim(), "1", "no further run");
    assert_eq!(room.history_of("stopped").len(), 1);
    std::fs::remove_file(room.path("state/disabled")).expect("enabled");
    room.is_clean();
}

#[test]
fn control_c_while_another_run_of_the_agent_is_waited_for() {
    let room = Room::new();
    let holder =
        room.start(room.command(&["ruby", "-e", "sleep 0.05 until File.exist?('go')", "puppet"]));
    let lock = room.write("lock", &holder.pid().to_string());
    let puppet = room.script("puppet", "touch ran");
    let line = format!("{puppet} agent --onetime --agent_catalog_run_lockfile {lock}");
    let mut going = room.start(room.on_terminal(&[], &line));
    wait_until("the wait", || {
        going.out().contains("waits for the agent run with pid ")
    });
    let text = room.again(&["status"]).out;
    assert!(
        text.contains(" is held: waits for the agent run with pid "),
        "{text}"
    );
    going.types("\x03");
    let ended = going.wait();
    assert_eq!(ended.status, 130, "{ended:?}");
    assert!(!room.path("ran").exists(), "no run was started");
    room.write("go", "");
    assert_eq!(holder.wait().status, 0, "the other run is left alone");
    room.is_clean();
}

#[test]
fn control_c_during_a_real_run() {
    let room = Room::new();
    let hold = "while [ ! -e go ]; do touch up; sleep 0.05; done";
    let manifest = format!(
        "exec {{ 'hold': command => ['/bin/sh', '-c', '{hold}'], cwd => '{}' }}",
        room.root()
    );
    let line = room.apply(&manifest).join(" ");
    let mut going = room.start(room.on_terminal(&[], &line));
    wait_until("the run", || room.path("up").exists());
    going.types("\x03");
    let ended = going.wait();
    // What Puppet's Execs start it leaves to themselves.
    room.write("go", "");
    assert_eq!(ended.status, 130, "{ended:?}");
    room.is_clean();
}

#[test]
fn the_timeout_ends_a_run_and_a_wait() {
    let room = Room::new();
    let command = room.script("x", LONG);
    let ended = room
        .start(room.converge(&["--timeout", "4"], &[command]))
        .wait();
    assert_eq!(ended.status, 75, "{ended:?}");
    assert_eq!(room.read("told"), "told\n");
    assert!(ended.err.contains("run 1 was ended at the timeout of 4s"));
    let command = counting(&room, "$AGAIN --delta 600");
    let ended = room
        .start(room.converge(&["--timeout", "60"], &[command]))
        .wait();
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(
        ended
            .err
            .contains("no further run can start within the timeout of 1m")
    );
    room.is_clean();
}

#[test]
fn a_driver_that_is_killed_leaves_nothing_for_long() {
    let room = Room::new();
    let command = room.script(
        "x",
        "touch up; while [ ! -e go ]; do sleep 0.05; done; $AGAIN explain > explained; $AGAIN > said 2>&1; touch down",
    );
    let going = room.start(room.converge(&[], &[command]));
    wait_until("the run", || room.path("up").exists());
    going.signal("KILL");
    assert_eq!(going.wait().status, 137);
    // Its run goes on; nothing would take its request, and no waiter is to run it again.
    assert!(
        room.status()["drivers"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
    room.write("go", "");
    wait_until("the run's end", || room.path("down").exists());
    let said = room.read("said");
    assert!(
        said.contains("refused: the 'again converge' that started this run was killed"),
        "{said}"
    );
    let verdict = format!("verdict: {}", said.trim().trim_start_matches("again: "));
    assert!(
        room.read("explained").contains(&verdict),
        "{verdict}: {}",
        room.read("explained")
    );
    wait_until("everything to end", || room.processes().is_empty());
    room.again(&["status"]);
    let closed = room.history_of("closed");
    assert_eq!(closed.len(), 1);
    assert!(
        closed[0]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("was killed"))
    );
    room.is_clean();
}

/// The run is told that somebody wants it to end, and takes no notice: the time that it was given holds all the same.
#[test]
fn the_time_is_over_after_a_signal() {
    let room = Room::new();
    let command = room.script(
        "x",
        "n=0; trap 'n=$((n + 1)); [ $n -lt 2 ] || exit 1' TERM; touch up; while :; do sleep 0.05; done",
    );
    let going = room.start(room.converge(&["--timeout", "3"], &[command]));
    wait_until("the run", || room.path("up").exists());
    going.signal("TERM");
    let ended = going.wait();
    assert_eq!(ended.status, 143, "{ended:?}");
    assert!(
        ended.err.contains("the time is over: the run is ended"),
        "{ended:?}"
    );
    room.is_clean();
}

/// Where Puppet's summary should be lies something that can be read for ever, or never.
#[test]
fn a_summary_that_is_no_file() {
    let room = Room::new();
    let command = room.script("x", "exit 0");
    for kind in ["fifo", "device"] {
        let summary = room.path(kind);
        match kind {
            "fifo" => nix::unistd::mkfifo(&summary, nix::sys::stat::Mode::S_IRWXU).expect("made"),
            _ => std::os::unix::fs::symlink("/dev/zero", &summary).expect("linked"),
        }
        let settings = format!("lastrunfile = \"{}\"\n", summary.display());
        let settings = room.write("again.toml", &settings);
        let mut converge = room.converge(&["--timeout", "20"], std::slice::from_ref(&command));
        converge.env("AGAIN_CONFIG", &settings);
        let ended = room.start(converge).wait();
        assert_eq!(ended.status, 0, "{kind}: {ended:?}");
    }
    room.is_clean();
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let room = Room::new();
    let command = room.script("x", "touch up; while [ ! -e go ]; do sleep 0.05; done");
    let again = format!("{}/again", room.root());
    let going = room.start(room.command(&["nohup", &again, "converge", "--", &command]));
    wait_until("the run", || room.path("up").exists());
    going.signal("HUP");
    room.write("go", "");
    assert_eq!(going.wait().status, 0);
    room.is_clean();
}
