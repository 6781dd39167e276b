use again_test_support::{SHORT, Scratch, wait_for};

const ASK: &str = "echo run >>$HERE/runs\n$AGAIN run --max-runs 1 --on-cap skip\n";

fn runs(scratch: &Scratch) -> usize {
    scratch.text("runs").lines().count()
}

#[test]
fn disabled_refuses_with_the_reason_until_enabled() {
    let mut scratch = Scratch::for_operator();
    let said = scratch.again(&["disable", "new", "switches"]).ok();
    assert_eq!(
        said,
        "again: disabled: requests are refused and timers held until 'again enable' (new switches; 0 timers pending, 0 reruns under way and left alone)\n"
    );
    let said = scratch.shell(ASK);
    assert!(
        said.starts_with("again: refused: again is disabled (new switches);"),
        "{said}"
    );
    let said = scratch.again(&["disable"]).ok();
    assert!(
        said.starts_with("again: nothing to do: again is disabled since 20"),
        "{said}"
    );
    let said = scratch.again(&["disable", "others"]).ok();
    assert!(
        said.starts_with("again: disabled: the reason is now 'others' (again was disabled since "),
        "{said}"
    );
    let said = scratch.again(&["enable"]).ok();
    assert!(said.contains("(others); 0 held timers let go)"), "{said}");
    let said = scratch.again(&["enable"]).ok();
    assert!(
        said.starts_with("again: nothing to do: again is not disabled"),
        "{said}"
    );
    scratch.shell(ASK);
    wait_for("the rerun", SHORT, || (runs(&scratch) == 3).then_some(()));
}

#[test]
fn a_due_timer_is_held_and_fires_once() {
    let mut scratch = Scratch::for_operator();
    scratch.begin_shell(&format!("{ASK}until test -e $HERE/go; do sleep 0.02; done"));
    scratch.timer_in_state("waiting for the run");
    let said = scratch.again(&["disable", "two\nlines"]).ok();
    assert!(
        said.contains("(two lines; 1 timer pending, 0 reruns"),
        "{said}"
    );
    scratch.write("go", "");
    scratch.end_shell();
    let held = scratch.timer_in_state("held");
    assert_eq!(held["reason"], "again is disabled: two lines");
    assert_eq!(runs(&scratch), 1);
    let said = scratch.again(&["enable"]).ok();
    assert!(said.contains("1 held timer let go)"), "{said}");
    wait_for("the rerun", SHORT, || (runs(&scratch) == 2).then_some(()));
    scratch.wait_until_settled();
    assert_eq!(runs(&scratch), 2);
}

#[test]
fn an_unreadable_file_disables_and_can_be_enabled() {
    let scratch = Scratch::for_operator();
    scratch.again(&["disable"]).ok();
    scratch.write("state/disabled", "{");
    let said = scratch.again(&["disable"]).ok();
    assert!(said.contains("cannot be read"), "{said}");
    scratch.again(&["enable"]).ok();
    assert!(!scratch.path("state/disabled").exists());
}

#[test]
fn reset_forgets_the_count_even_if_the_record_is_damaged() {
    let mut scratch = Scratch::for_operator();
    assert!(
        scratch
            .again(&["reset"])
            .ok()
            .starts_with("again: nothing to do: no rerun is counted (the state directory ")
    );
    scratch.shell(ASK);
    wait_for("the rerun", SHORT, || (runs(&scratch) == 2).then_some(()));
    scratch.wait_until_settled();
    assert!(scratch.shell(ASK).contains("the cap is reached"));
    let said = scratch.again(&["reset", "--target", "none"]);
    assert_eq!(said.status(), 1);
    assert!(
        said.err
            .contains("no target's id begins with 'none'; there is "),
        "{said:?}"
    );
    let id = scratch
        .target()
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let said = scratch.again(&["reset", "--target", &id[..5]]).ok();
    assert!(said.starts_with("again: reset: puppet apply of "), "{said}");
    assert!(
        said.contains(": 1 rerun no longer counted (target "),
        "{said}"
    );
    assert!(
        scratch
            .again(&["reset"])
            .ok()
            .starts_with("again: nothing to do")
    );
    std::fs::write(scratch.target().join("state.json"), "{").expect("damaged");
    let said = scratch.shell(ASK);
    assert!(said.contains("0 of at most 1 reruns"), "{said}");
}

#[test]
fn a_timer_that_waits_for_the_cap_goes_on() {
    let mut scratch = Scratch::for_operator();
    let ask = ASK.replace("skip", "wait");
    scratch.shell(&ask);
    // The rerun asks again, and is put off for an hour.
    wait_for("the rerun", SHORT, || (runs(&scratch) == 2).then_some(()));
    let timer = scratch.timer_in_state("waiting");
    assert!(timer["due_in_seconds"].as_f64().expect("a number") > 3000.0);
    let said = scratch.again(&["reset"]).ok();
    assert!(
        said.contains("timer 'again' is no longer put off by the cap"),
        "{said}"
    );
    wait_for("one more", SHORT, || (runs(&scratch) == 3).then_some(()));
}

#[test]
fn a_timer_that_meets_the_cap_when_due_goes_on_too() {
    let mut scratch = Scratch::for_operator();
    // Granted while the cap was free; used up by the other one by the time both are due.
    scratch.begin_shell(
        "echo run >>$HERE/runs\ntest -z \"$AGAIN_RUN\" || exit 0\n$AGAIN run --max-runs 1 --on-cap wait --name a\n$AGAIN run --max-runs 1 --on-cap wait --delta 1 --name b\n"
    );
    scratch.end_shell();
    wait_for("the first rerun", SHORT, || {
        (runs(&scratch) == 2).then_some(())
    });
    let put_off = wait_for("the second timer to be put off", SHORT, || {
        let report = scratch.status();
        let timer = report["targets"][0]["timers"][0].clone();
        (timer["due_in_seconds"].as_f64()? > 3000.0).then_some(timer)
    });
    assert_eq!(put_off["name"], "b");
    scratch.again(&["reset"]).ok();
    wait_for("one more", SHORT, || (runs(&scratch) == 3).then_some(()));
}
