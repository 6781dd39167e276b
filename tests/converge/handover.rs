use std::fs::File;
use std::process::Stdio;

use again_test_support::{LONG, Scratch, text, wait_until};
use nix::sys::signal::Signal;

/// A command that asks for more in its first runs; `$n` is the number of the run.
pub fn counting(scratch: &Scratch, body: &str) -> String {
    scratch.script(
        "count.sh",
        &format!("n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n > n\n{body}"),
    )
}

#[test]
fn a_request_without_any_puppet_is_for_the_driver() {
    let scratch = Scratch::for_driver();
    let command = counting(
        &scratch,
        "echo \"$n:$AGAIN_RUN:$AGAIN_TIMER:${AGAIN_CHAIN:+chain}\" >> seen\n[ $n -ge 3 ] || sh -c \"$AGAIN run --name t$n; :\"",
    );
    let mut converge = scratch.converge(&[], &[command]);
    // Those of another rerun, which must not leak in.
    converge.env("AGAIN_RUN", "9").env("AGAIN_CHAIN", "x");
    let ended = scratch.start(converge).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert_eq!(scratch.text("seen"), "1:::\n2:2:t1:chain\n3:3:t2:chain\n");
    scratch.is_clean();
}

#[test]
fn names_stay_apart_and_the_same_name_merges() {
    let scratch = Scratch::for_driver();
    let command = counting(
        &scratch,
        "[ $n -ge 2 ] || { $AGAIN --name a --delta 90; $AGAIN --name a --delta 4; $AGAIN --name b --delta 9 --start-timer-now; $AGAIN --name c; }",
    );
    let ended = scratch.start(scratch.converge(&[], &[command])).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    let timers: Vec<_> = scratch
        .history_of("started")
        .iter()
        .map(|entry| entry["timer"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(timers, ["converge", "c", "a", "b"]);
    assert_eq!(scratch.history_of("merged").len(), 1);
    scratch.is_clean();
}

#[test]
fn a_failed_run_that_asked_for_more_goes_on() {
    let scratch = Scratch::for_driver();
    let command = counting(&scratch, "[ $n -ge 2 ] || { $AGAIN; exit 1; }");
    let ended = scratch.start(scratch.converge(&[], &[command])).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert!(ended.err.contains("run 1 failed"));
    scratch.is_clean();
}

#[test]
fn a_file_on_standard_input_is_read_by_every_run() {
    let scratch = Scratch::for_driver();
    scratch.write("input", "text\n");
    let command = counting(&scratch, "cat\n[ $n -ge 2 ] || $AGAIN > /dev/null");
    let mut converge = scratch.converge(&[], &[command]);
    converge.stdin(Stdio::from(
        File::open(scratch.path("input")).expect("there"),
    ));
    let ended = scratch.start(converge).wait();
    assert_eq!((ended.status(), ended.out.as_str()), (0, "text\ntext\n"));
    scratch.is_clean();
}

#[test]
fn the_state_directory_of_the_command_line_reaches_the_requests() {
    let scratch = Scratch::for_driver();
    let other = scratch.path("other").display().to_string();
    let command = counting(&scratch, "[ $n -ge 2 ] || $AGAIN");
    let ended = scratch
        .start(scratch.converge(&["--state-dir", &other], &[command]))
        .wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert_eq!(scratch.text("n").trim(), "2");
    assert!(!scratch.path("state").exists());
}

#[test]
fn with_another_state_directory_the_line_says_that_it_is_not_taken() {
    let scratch = Scratch::for_driver();
    let other = scratch.path("other").display().to_string();
    // A puppet by its looks, since a waiter needs a run to wait for.
    scratch.write(
        "puppet",
        "system(ENV['AGAIN'], '--state-dir', ARGV[1], '--delta', '600')",
    );
    let line = format!("ruby {}/puppet apply {other}", scratch.root());
    let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let ended = scratch.start(scratch.converge(&[], &command)).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert!(
        ended
            .out
            .contains("does not take it: it keeps its state in another directory than"),
        "{ended:?}"
    );
    assert_eq!(scratch.again(&["stop", "--state-dir", &other]).status(), 0);
    scratch.is_clean();
}

#[test]
fn refusals_still_apply() {
    let scratch = Scratch::for_driver();
    scratch.write("puppet", "exit(system(ENV['AGAIN']) ? 0 : 1)");
    let line = format!("ruby {}/puppet apply --noop x.pp", scratch.root());
    let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let ended = scratch.start(scratch.converge(&[], &command)).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert!(
        ended
            .out
            .contains("nothing to do: a noop run is never run again")
    );
    assert_eq!(scratch.history_of("refused").len(), 1);
    scratch.is_clean();
}

#[test]
fn status_and_explain_show_the_driver() {
    let scratch = Scratch::for_driver();
    let command = counting(
        &scratch,
        "[ $n -ge 2 ] && exit\n$AGAIN explain > explained\n$AGAIN --delta 600 --name later --resource 'Exec[x]' > /dev/null\ntouch up\nwhile [ ! -e go ]; do sleep 0.05; done",
    );
    let going = scratch.start(scratch.converge(&[], &[command]));
    wait_until("the run", LONG, || scratch.path("up").exists());
    let status = scratch.status();
    let driver = &status["drivers"][0];
    assert_eq!(driver["pid"], going.pid());
    assert_eq!(
        (&driver["state"], &driver["run"]),
        (&"running".into(), &1.into())
    );
    assert!(scratch.text("explained").contains("would take the request"));
    assert!(
        scratch
            .text("explained")
            .contains("verdict: would be scheduled")
    );
    scratch.write("go", "");
    wait_until("the wait", LONG, || {
        scratch.status()["drivers"][0]["state"] == "waiting"
    });
    let driver = &scratch.status()["drivers"][0];
    assert_eq!(driver["timers"][0]["name"], "later");
    assert_eq!(driver["timers"][0]["resource"], "Exec[x]");
    let asked = &scratch.history_of("requested")[0]["reason"];
    assert!(
        asked
            .as_str()
            .is_some_and(|reason| reason.ends_with("; delta 10m, by Exec[x]")),
        "{asked}"
    );
    let text = scratch.again(&["status"]);
    assert_eq!(text.status(), 0);
    assert!(
        text.out.contains("run 2 of at most 10, chain "),
        "{}",
        text.out
    );
    assert!(text.out.contains("(timer 'later')"), "{}", text.out);
    going.signal(Signal::SIGTERM);
    assert_eq!(going.wait().status(), 143);
    scratch.is_clean();
}

#[test]
fn a_disable_during_the_wait_holds_the_next_run() {
    let scratch = Scratch::for_driver();
    let body = "[ $n -ge 3 ] || { $AGAIN --delta 1; echo '{\"reason\":\"work\",\"since\":0}' > state/disabled; }";
    let command = counting(&scratch, body);
    let going = scratch.start(scratch.converge(&[], &[command]));
    let held = |times| {
        going
            .err()
            .matches("again is disabled (work); waits for")
            .count()
            == times
    };
    wait_until("the hold", LONG, || held(1));
    assert_eq!(scratch.text("n").trim(), "1");
    let what = "again is disabled (work); waits for 'again enable'";
    let text = scratch.again(&["status"]).out;
    let line = format!(" is held: {what}\n");
    assert!(
        text.contains("run 2 of at most 10, ") && text.contains(&line),
        "{text}"
    );
    let driver = &scratch.status()["drivers"][0];
    assert_eq!(
        (&driver["state"], &driver["reason"]),
        (&"held".into(), &what.into())
    );
    std::fs::remove_file(scratch.path("state/disabled")).expect("enabled");
    wait_until("another hold", LONG, || held(2));
    going.signal(Signal::SIGTERM);
    assert_eq!(going.wait().status(), 143);
    std::fs::remove_file(scratch.path("state/disabled")).expect("enabled");
    scratch.is_clean();
}

/// What held an earlier run does not hold the next one.
#[test]
fn a_driver_that_was_held_waits_again() {
    let scratch = Scratch::for_driver();
    let body = "[ $n = 1 ] || { $AGAIN --delta 600; exit; }\n\
                $AGAIN; echo '{\"reason\":\"work\",\"since\":0}' > state/disabled";
    let command = counting(&scratch, body);
    let going = scratch.start(scratch.converge(&[], &[command]));
    let driver = || scratch.status()["drivers"][0].clone();
    wait_until("the hold", LONG, || driver()["state"] == "held");
    std::fs::remove_file(scratch.path("state/disabled")).expect("enabled");
    wait_until("the second run to have ended", LONG, || {
        let driver = driver();
        driver["run"] == 2 && driver["run_pid"].is_null()
    });
    let driver = driver();
    assert_eq!(
        (&driver["state"], &driver["reason"]),
        (&"waiting".into(), &serde_json::Value::Null)
    );
    going.signal(Signal::SIGTERM);
    assert_eq!(going.wait().status(), 143);
    scratch.is_clean();
}

#[test]
fn another_run_of_the_agent_is_waited_for() {
    let scratch = Scratch::for_driver();
    let holder = scratch.start(scratch.line(&[
        "ruby",
        "-e",
        "sleep 0.05 until File.exist?('go')",
        "puppet",
    ]));
    let lock = text(scratch.write("lock", &holder.pid().to_string()));
    let puppet = scratch.script("puppet", "test -e go && echo ran");
    let command = [
        puppet,
        "agent".into(),
        "--onetime".into(),
        "--agent_catalog_run_lockfile".into(),
        lock,
    ];
    let going = scratch.start(scratch.converge(&[], &command));
    wait_until("the wait", LONG, || {
        going.err().contains("waits for the agent run with pid ")
    });
    scratch.write("go", "");
    let ended = going.wait();
    assert_eq!(
        (ended.status(), ended.out.as_str()),
        (0, "ran\n"),
        "{ended:?}"
    );
    assert_eq!(holder.wait().status(), 0);
    scratch.is_clean();
}

#[test]
fn now_and_stop_reach_a_driver() {
    let scratch = Scratch::for_driver();
    let command = counting(
        &scratch,
        "$AGAIN --delta 600 --name later\n[ $n -lt 2 ] || $AGAIN --delta 600 --name much-later\n\
         touch up-$n\nwhile [ $n = 2 ] && [ ! -e go ]; do sleep 0.05; done",
    );
    let going = scratch.start(scratch.converge(&[], &[command]));
    let waits = || scratch.status()["drivers"][0]["state"] == "waiting";
    wait_until("the wait", LONG, || {
        scratch.path("up-1").exists() && waits()
    });
    let other = scratch.again(&["now", "another"]);
    assert!(other.err.contains("no timer named 'another'"), "{other:?}");
    let brought = scratch.again(&["now", "later"]);
    assert!(
        brought.out.contains("timer 'later' of 'again converge'"),
        "{brought:?}"
    );
    assert_eq!(scratch.told("hurried").len(), 1);
    wait_until("the second run", LONG, || scratch.path("up-2").exists());

    // With a run under way it takes more than a word.
    for verb in ["now", "stop"] {
        let left = scratch.again(&[verb]);
        assert_eq!(left.status(), 0, "{left:?}");
        assert!(left.out.contains("has a run under way"), "{left:?}");
    }
    scratch.write("go", "");
    wait_until("the wait", LONG, waits);
    let part = scratch.again(&["stop", "later"]);
    assert_eq!(part.status(), 1, "{part:?}");
    assert!(
        part.err.contains("also holds timer 'much-later'"),
        "{part:?}"
    );
    assert!(waits());
    let stopped = scratch.again(&["stop"]);
    assert_eq!(stopped.status(), 0, "{stopped:?}");
    assert!(
        stopped.out.contains("stopped: 'again converge' of "),
        "{stopped:?}"
    );
    let ended = going.wait();
    assert_eq!(ended.status(), 143, "{ended:?}");
    assert!(ended.err.contains("ended by 'again stop'"), "{ended:?}");
    assert_eq!(scratch.text("n").trim(), "2");
    assert_eq!(scratch.history_of("stopped").len(), 2);
    let nothing = scratch.again(&["stop"]);
    assert!(nothing.out.contains("nothing is pending"), "{nothing:?}");
    scratch.is_clean();
}

#[test]
fn stop_run_ends_a_driver_and_its_run() {
    let scratch = Scratch::for_driver();
    let command = counting(&scratch, "touch up\nwhile :; do sleep 0.05; done");
    let going = scratch.start(scratch.converge(&[], &[command]));
    wait_until("the run", LONG, || scratch.path("up").exists());
    let stopped = scratch.again(&["stop", "--run"]);
    assert_eq!(stopped.status(), 0, "{stopped:?}");
    assert_eq!(going.wait().status(), 143);
    scratch.is_clean();
}

#[test]
fn script_with_set_e_stops_after_a_failed_converge() {
    let scratch = Scratch::for_driver();
    let command = counting(&scratch, "[ $n -ge 2 ] || $AGAIN");
    let build = scratch.script(
        "build",
        &format!("set -e\n$AGAIN converge -- {command}\necho converged\n$AGAIN converge --max-runs 1 -- $AGAIN\necho not reached"),
    );
    let ended = scratch.start(scratch.line(&[&build])).wait();
    assert_eq!(ended.status(), 75, "{ended:?}");
    assert!(ended.out.contains("converged\n"));
    assert!(!ended.out.contains("not reached"));
    scratch.is_clean();
}
