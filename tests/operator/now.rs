use again_test_support::{SHORT, Scratch, stays, wait_for};

/// A request with a delta that no test waits for; every run leaves a line.
const HOUR: &str =
    "echo run >>$HERE/runs\n$AGAIN run --delta 1h --name slow --max-runs 1 --on-cap skip\n";

fn runs(scratch: &Scratch) -> usize {
    scratch.text("runs").lines().count()
}

#[test]
fn a_timer_fires_at_once_and_says_when_it_was_due() {
    let mut scratch = Scratch::for_operator();
    scratch.shell(HOUR);
    scratch.timer_in_state("waiting");
    let said = scratch.again(&["now", "slow"]).ok();
    assert!(
        said.starts_with(
            "again: brought forward: timer 'slow' of puppet apply is due now (run 2 of chain "
        ),
        "{said}"
    );
    assert!(
        said.contains("it was due in 59m") || said.contains("it was due in 1h"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1);
    wait_for("the rerun", SHORT, || (runs(&scratch) == 2).then_some(()));
    scratch.wait_until_settled();
    assert_eq!(runs(&scratch), 2);
    assert!(
        scratch
            .again(&["now"])
            .ok()
            .starts_with("again: nothing to do: nothing is pending")
    );
}

#[test]
fn the_requesting_run_is_waited_for_all_the_same() {
    let mut scratch = Scratch::for_operator();
    scratch.begin_shell(&format!(
        "{HOUR}until test -e $HERE/go; do sleep 0.02; done\necho end >>$HERE/runs"
    ));
    scratch.timer_in_state("waiting for the run");
    let said = scratch.again(&["now"]).ok();
    assert!(
        said.contains("starts as soon as its run has ended"),
        "{said}"
    );
    assert!(said.contains("it would have waited 1h more"), "{said}");
    let twice = scratch.again(&["now"]).ok();
    assert!(
        twice.starts_with("again: nothing to do: timer 'slow'"),
        "{twice}"
    );
    assert!(
        twice.contains("it waits for its run to end, pid "),
        "{twice}"
    );
    let moment = std::time::Duration::from_millis(300);
    stays("one run", moment, || scratch.text("runs") == "run\n");
    scratch.write("go", "");
    scratch.end_shell();
    scratch.wait_until_settled();
    assert_eq!(scratch.text("runs"), "run\nend\nrun\nend\n");
}

#[test]
fn only_the_timers_named() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -z \"$AGAIN_RUN\" || { echo $AGAIN_TIMER >>$HERE/runs; exit 0; }\n$AGAIN run --delta 1h --name a\n$AGAIN run --delta 1h --name b\n");
    scratch.timer_in_state("waiting");
    let said = scratch.again(&["now", "b", "c"]);
    assert_eq!(said.status(), 1);
    assert!(
        said.out.contains("timer 'b'") && !said.out.contains("timer 'a'"),
        "{said:?}"
    );
    assert!(
        said.err
            .contains("no timer named 'c' is pending; there is 'a', 'b' (state in "),
        "{said:?}"
    );
    wait_for("the rerun", SHORT, || {
        (scratch.text("runs") == "b\n").then_some(())
    });
    assert_eq!(scratch.timer_in_state("waiting")["name"], "a");
}

#[test]
fn a_dead_waiter_gets_a_successor_that_is_brought_forward() {
    let mut scratch = Scratch::for_operator();
    scratch.shell(HOUR);
    let waiter = scratch.timer_in_state("waiting")["waiter"]["pid"].to_string();
    scratch.run("kill", &["-9", &waiter]).ok();
    scratch.timer_in_state("dead");
    let said = scratch.again(&["now"]).ok();
    assert!(said.contains("brought forward: timer 'slow'"), "{said}");
    wait_for("the rerun", SHORT, || (runs(&scratch) == 2).then_some(()));
}

/// A rerun has its waiter's pid: a signal that came too late would end it.
#[test]
fn however_often_it_is_asked_no_rerun_is_hit() {
    let mut scratch = Scratch::for_operator();
    scratch.shell(&HOUR.replace("--max-runs 1", "--max-runs 1000"));
    wait_for("a few reruns", SHORT, || {
        assert_eq!(scratch.again(&["now"]).status(), 0);
        (runs(&scratch) >= 8).then_some(())
    });
    // A rerun under way may ask once more, but in vain.
    scratch.again(&["disable"]).ok();
    scratch.again(&["stop"]).ok();
    scratch.wait_until_settled();
    // Each that was started got as far as its first line.
    let started = scratch
        .text("state/history.jsonl")
        .matches("\"started\"")
        .count();
    assert_eq!(runs(&scratch), started + 1);
}

#[test]
fn what_it_still_waits_for_is_said() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -n \"$AGAIN_RUN\" || $AGAIN run --jitter 0\n");
    scratch.wait_until_settled();
    // The cap is reached: it is put off.
    scratch.shell("$AGAIN run --name slow --delta 5 --jitter 0 --max-runs 1 --on-cap wait\n");
    scratch.timer_in_state("waiting");
    let history = scratch.again(&["history"]).ok();
    assert!(
        history.contains("timer 'slow', delta 5s, jitter 0s, put off 59m"),
        "{history}"
    );
    let said = scratch.again(&["now", "slow"]).ok();
    assert!(
        said.contains("but for the cap, which allows the next rerun in 59m"),
        "{said}"
    );
    scratch.again(&["disable", "why"]).ok();
    scratch.shell("true");
    let said = scratch.again(&["now", "slow"]).ok();
    assert!(said.contains("held"), "{said}");
    scratch.again(&["stop"]).ok();
}
