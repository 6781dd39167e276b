use std::fs::File;
use std::process::Stdio;

use crate::room::{Room, wait_until};

/// A command that asks for more in its first runs; `$n` is the number of the run.
pub fn counting(room: &Room, body: &str) -> String {
    room.script(
        "count.sh",
        &format!("n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n > n\n{body}"),
    )
}

#[test]
fn a_request_without_any_puppet_is_for_the_driver() {
    let room = Room::new();
    let command = counting(
        &room,
        "echo \"$n:$AGAIN_RUN:$AGAIN_TIMER:${AGAIN_CHAIN:+chain}\" >> seen\n[ $n -ge 3 ] || sh -c \"$AGAIN run --name t$n; :\"",
    );
    let mut converge = room.converge(&[], &[command]);
    // Those of another rerun, which must not leak in.
    converge.env("AGAIN_RUN", "9").env("AGAIN_CHAIN", "x");
    let ended = room.start(converge).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(room.read("seen"), "1:::\n2:2:t1:chain\n3:3:t2:chain\n");
    room.is_clean();
}

#[test]
fn names_stay_apart_and_the_same_name_merges() {
    let room = Room::new();
    let command = counting(
        &room,
        "[ $n -ge 2 ] || { $AGAIN --name a --delta 90; $AGAIN --name a --delta 4; $AGAIN --name b --delta 9 --start-timer-now; $AGAIN --name c; }",
    );
    let ended = room.start(room.converge(&[], &[command])).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    let timers: Vec<_> = room
        .history_of("started")
        .iter()
        .map(|entry| entry["timer"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(timers, ["converge", "c", "a", "b"]);
    assert_eq!(room.history_of("merged").len(), 1);
    room.is_clean();
}

#[test]
fn a_failed_run_that_asked_for_more_goes_on() {
    let room = Room::new();
    let command = counting(&room, "[ $n -ge 2 ] || { $AGAIN; exit 1; }");
    let ended = room.start(room.converge(&[], &[command])).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(ended.err.contains("run 1 failed"));
    room.is_clean();
}

#[test]
fn a_file_on_standard_input_is_read_by_every_run() {
    let room = Room::new();
    room.write("input", "text\n");
    let command = counting(&room, "cat\n[ $n -ge 2 ] || $AGAIN > /dev/null");
    let mut converge = room.converge(&[], &[command]);
    converge.stdin(Stdio::from(File::open(room.path("input")).expect("there")));
    let ended = room.start(converge).wait();
    assert_eq!((ended.status, ended.out.as_str()), (0, "text\ntext\n"));
    room.is_clean();
}

#[test]
fn the_state_directory_of_the_command_line_reaches_the_requests() {
    let room = Room::new();
    let other = room.path("other").display().to_string();
    let command = counting(&room, "[ $n -ge 2 ] || $AGAIN");
    let ended = room
        .start(room.converge(&["--state-dir", &other], &[command]))
        .wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(room.read("n").trim(), "2");
    assert!(!room.path("state").exists());
}

#[test]
fn with_another_state_directory_the_line_says_that_it_is_not_taken() {
    let room = Room::new();
    let other = room.path("other").display().to_string();
    // A puppet by its looks, since a waiter needs a run to wait for.
    room.write(
        "puppet",
        "system(ENV['AGAIN'], '--state-dir', ARGV[1], '--delta', '600')",
    );
    let line = format!("ruby {}/puppet apply {other}", room.root());
    let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let ended = room.start(room.converge(&[], &command)).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(
        ended
            .out
            .contains("does not take it: it keeps its state in another directory than"),
        "{ended:?}"
    );
    assert_eq!(room.again(&["stop", "--state-dir", &other]).status, 0);
    room.is_clean();
}

#[test]
fn refusals_still_apply() {
    let room = Room::new();
    room.write("puppet", "exit(system(ENV['AGAIN']) ? 0 : 1)");
    let line = format!("ruby {}/puppet apply --noop x.pp", room.root());
    let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let ended = room.start(room.converge(&[], &command)).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(
        ended
            .out
            .contains("nothing to do: a noop run is never run again")
    );
    assert_eq!(room.history_of("refused").len(), 1);
    room.is_clean();
}

#[test]
fn status_and_explain_show_the_driver() {
    let room = Room::new();
    let command = counting(
        &room,
        "[ $n -ge 2 ] && exit\n$AGAIN explain > explained\n$AGAIN --delta 600 --name later --resource 'Exec[x]' > /dev/null\ntouch up\nwhile [ ! -e go ]; do sleep 0.05; done",
    );
    let going = room.start(room.converge(&[], &[command]));
    wait_until("the run", || room.path("up").exists());
    let status = room.status();
    let driver = &status["drivers"][0];
    assert_eq!(driver["pid"], going.pid());
    assert_eq!(
        (&driver["state"], &driver["run"]),
        (&"running".into(), &1.into())
    );
    assert!(room.read("explained").contains("would take the request"));
    assert!(
        room.read("explained")
            .contains("verdict: would be scheduled")
    );
    room.write("go", "");
    wait_until("the wait", || {
        room.status()["drivers"][0]["state"] == "waiting"
    });
    let driver = &room.status()["drivers"][0];
    assert_eq!(driver["timers"][0]["name"], "later");
    assert_eq!(driver["timers"][0]["resource"], "Exec[x]");
    let asked = &room.history_of("requested")[0]["reason"];
    assert!(
        asked
            .as_str()
            .is_some_and(|reason| reason.ends_with("; delta 10m, by Exec[x]")),
        "{asked}"
    );
    let text = room.again(&["status"]);
    assert_eq!(text.status, 0);
    assert!(
        text.out.contains("run 2 of at most 10, chain "),
        "{}",
        text.out
    );
    assert!(text.out.contains("(timer 'later')"), "{}", text.out);
    going.signal("TERM");
    assert_eq!(going.wait().status, 143);
    room.is_clean();
}

#[test]
fn a_disable_during_the_wait_holds_the_next_run() {
    let room = Room::new();
    let body = "[ $n -ge 3 ] || { $AGAIN --delta 1; echo '{\"reason\":\"work\",\"since\":0}' > state/disabled; }";
    let command = counting(&room, body);
    let going = room.start(room.converge(&[], &[command]));
    let held = |times| {
        going
            .err()
            .matches("again is disabled (work); waits for")
            .count()
            == times
    };
    wait_until("the hold", || held(1));
    assert_eq!(room.read("n").trim(), "1");
    let what = "again is disabled (work); waits for 'again enable'";
    let text = room.again(&["status"]).out;
    let line = format!(" is held: {what}\n");
    assert!(
        text.contains("run 2 of at most 10, ") && text.contains(&line),
        "{text}"
    );
    let driver = &room.status()["drivers"][0];
    assert_eq!(
        (&driver["state"], &driver["reason"]),
        (&"held".into(), &what.into())
    );
    std::fs::remove_file(room.path("state/disabled")).expect("enabled");
    wait_until("another hold", || held(2));
    going.signal("TERM");
    assert_eq!(going.wait().status, 143);
    std::fs::remove_file(room.path("state/disabled")).expect("enabled");
    room.is_clean();
}

/// What held an earlier run does not hold the next one.
#[test]
fn a_driver_that_was_held_waits_again() {
    let room = Room::new();
    let body = "[ $n = 1 ] || { $AGAIN --delta 600; exit; }\n\
                $AGAIN; echo '{\"reason\":\"work\",\"since\":0}' > state/disabled";
    let command = counting(&room, body);
    let going = room.start(room.converge(&[], &[command]));
    let driver = || room.status()["drivers"][0].clone();
    wait_until("the hold", || driver()["state"] == "held");
    std::fs::remove_file(room.path("state/disabled")).expect("enabled");
    wait_until("the second run to have ended", || {
        let driver = driver();
        driver["run"] == 2 && driver["run_pid"].is_null()
    });
    let driver = driver();
    assert_eq!(
        (&driver["state"], &driver["reason"]),
        (&"waiting".into(), &serde_json::Value::Null)
    );
    going.signal("TERM");
    assert_eq!(going.wait().status, 143);
    room.is_clean();
}

#[test]
fn another_run_of_the_agent_is_waited_for() {
    let room = Room::new();
    let holder =
        room.start(room.command(&["ruby", "-e", "sleep 0.05 until File.exist?('go')", "puppet"]));
    let lock = room.write("lock", &holder.pid().to_string());
    let puppet = room.script("puppet", "test -e go && echo ran");
    let command = [
        puppet,
        "agent".into(),
        "--onetime".into(),
        "--agent_catalog_run_lockfile".into(),
        lock,
    ];
    let going = room.start(room.converge(&[], &command));
    wait_until("the wait", || {
        going.err().contains("waits for the agent run with pid ")
    });
    room.write("go", "");
    let ended = going.wait();
    assert_eq!(
        (ended.status, ended.out.as_str()),
        (0, "ran\n"),
        "{ended:?}"
    );
    assert_eq!(holder.wait().status, 0);
    room.is_clean();
}

#[test]
fn now_and_stop_reach_a_driver() {
    let room = Room::new();
    let command = counting(
        &room,
        "$AGAIN --delta 600 --name later\n[ $n -lt 2 ] || $AGAIN --delta 600 --name much-later\n\
         touch up-$n\nwhile [ $n = 2 ] && [ ! -e go ]; do sleep 0.05; done",
    );
    let going = room.start(room.converge(&[], &[command]));
    let waits = || room.status()["drivers"][0]["state"] == "waiting";
    wait_until("the wait", || room.path("up-1").exists() && waits());
    let other = room.again(&["now", "another"]);
    assert!(other.out.contains("no timer named 'another'"), "{other:?}");
    let brought = room.again(&["now", "later"]);
    assert!(
        brought.out.contains("timer 'later' of 'again converge'"),
        "{brought:?}"
    );
    wait_until("the second run", || room.path("up-2").exists());

    // With a run under way it takes more than a word.
    for verb in ["now", "stop"] {
        let left = room.again(&[verb]);
        assert_eq!(left.status, 0, "{left:?}");
        assert!(left.out.contains("has a run under way"), "{left:?}");
    }
    room.write("go", "");
    wait_until("the wait", waits);
    let part = room.again(&["stop", "later"]);
    assert_eq!(part.status, 1, "{part:?}");
    assert!(
        part.err.contains("also holds timer 'much-later'"),
        "{part:?}"
    );
    assert!(waits());
    let stopped = room.again(&["stop"]);
    assert_eq!(stopped.status, 0, "{stopped:?}");
    assert!(
        stopped.out.contains("stopped: 'again converge' of "),
        "{stopped:?}"
    );
    let ended = going.wait();
    assert_eq!(ended.status, 143, "{ended:?}");
    assert!(ended.err.contains("ended by 'again stop'"), "{ended:?}");
    assert_eq!(room.read("n").trim(), "2");
    assert_eq!(room.history_of("stopped").len(), 2);
    let nothing = room.again(&["stop"]);
    assert!(nothing.out.contains("nothing is pending"), "{nothing:?}");
    room.is_clean();
}

#[test]
fn stop_run_ends_a_driver_and_its_run() {
    let room = Room::new();
    let command = counting(&room, "touch up\nwhile :; do sleep 0.05; done");
    let going = room.start(room.converge(&[], &[command]));
    wait_until("the run", || room.path("up").exists());
    let stopped = room.again(&["stop", "--run"]);
    assert_eq!(stopped.status, 0, "{stopped:?}");
    assert_eq!(going.wait().status, 143);
    room.is_clean();
}
