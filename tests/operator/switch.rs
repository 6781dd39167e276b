use crate::bench::{Bench, wait_for};

const ASK: &str = "echo run >>$HERE/runs\n$AGAIN run --max-runs 1 --on-cap skip\n";

fn runs(bench: &Bench) -> usize {
    bench.text("runs").lines().count()
}

#[test]
fn disabled_refuses_with_the_reason_until_enabled() {
    let mut bench = Bench::new();
    let said = bench.again(&["disable", "new", "switches"]).ok();
    assert_eq!(
        said,
        "again: disabled: requests are refused and timers held until 'again enable' (new switches; 0 timers pending, 0 reruns under way and left alone)\n"
    );
    let said = bench.apply(ASK);
    assert!(
        said.starts_with("again: refused: again is disabled (new switches);"),
        "{said}"
    );
    let said = bench.again(&["disable"]).ok();
    assert!(
        said.starts_with("again: nothing to do: again is disabled since 20"),
        "{said}"
    );
    let said = bench.again(&["disable", "others"]).ok();
    assert!(
        said.starts_with("again: disabled: the reason is now 'others' (again was disabled since "),
        "{said}"
    );
    let said = bench.again(&["enable"]).ok();
    assert!(said.contains("(others); 0 held timers let go)"), "{said}");
    let said = bench.again(&["enable"]).ok();
    assert!(
        said.starts_with("again: nothing to do: again is not disabled"),
        "{said}"
    );
    bench.apply(ASK);
    wait_for("the rerun", || (runs(&bench) == 3).then_some(()));
}

#[test]
fn a_due_timer_is_held_and_fires_once() {
    let mut bench = Bench::new();
    bench.start(&format!("{ASK}until test -e $HERE/go; do sleep 0.02; done"));
    bench.timer_in_state("waiting for the run");
    let said = bench.again(&["disable", "two\nlines"]).ok();
    assert!(
        said.contains("(two lines; 1 timer pending, 0 reruns"),
        "{said}"
    );
    bench.write("go", "");
    bench.end();
    let held = bench.timer_in_state("held");
    assert_eq!(held["reason"], "again is disabled: two lines");
    assert_eq!(runs(&bench), 1);
    let said = bench.again(&["enable"]).ok();
    assert!(said.contains("1 held timer let go)"), "{said}");
    wait_for("the rerun", || (runs(&bench) == 2).then_some(()));
    bench.settled();
    assert_eq!(runs(&bench), 2);
}

#[test]
fn an_unreadable_file_disables_and_can_be_enabled() {
    let bench = Bench::new();
    bench.again(&["disable"]).ok();
    bench.write("state/disabled", "{");
    let said = bench.again(&["disable"]).ok();
    assert!(said.contains("cannot be read"), "{said}");
    bench.again(&["enable"]).ok();
    assert!(!bench.path("state/disabled").exists());
}

#[test]
fn reset_forgets_the_count_even_if_the_record_is_damaged() {
    let mut bench = Bench::new();
    assert!(
        bench
            .again(&["reset"])
            .ok()
            .starts_with("again: nothing to do: no rerun is counted (state in ")
    );
    bench.apply(ASK);
    wait_for("the rerun", || (runs(&bench) == 2).then_some(()));
    bench.settled();
    assert!(bench.apply(ASK).contains("the cap is reached"));
    let said = bench.again(&["reset", "--target", "none"]).ok();
    assert!(said.contains("no target's id begins with 'none'"), "{said}");
    let id = bench
        .target()
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let said = bench.again(&["reset", "--target", &id[..5]]).ok();
    assert!(said.starts_with("again: reset: puppet apply of "), "{said}");
    assert!(
        said.contains(": 1 rerun no longer counted (target "),
        "{said}"
    );
    assert!(
        bench
            .again(&["reset"])
            .ok()
            .starts_with("again: nothing to do")
    );
    std::fs::write(bench.target().join("state.json"), "{").expect("damaged");
    let said = bench.apply(ASK);
    assert!(said.contains("0 of at most 1 reruns"), "{said}");
}

#[test]
fn a_timer_that_waits_for_the_cap_goes_on() {
    let mut bench = Bench::new();
    let ask = ASK.replace("skip", "wait");
    bench.apply(&ask);
    // The rerun asks again, and is put off for an hour.
    wait_for("the rerun", || (runs(&bench) == 2).then_some(()));
    let timer = bench.timer_in_state("waiting");
    assert!(timer["due_in_seconds"].as_f64().expect("a number") > 3000.0);
    let said = bench.again(&["reset"]).ok();
    assert!(
        said.contains("timer 'again' is no longer put off by the cap"),
        "{said}"
    );
    wait_for("one more", || (runs(&bench) == 3).then_some(()));
}

#[test]
fn a_timer_that_meets_the_cap_when_due_goes_on_too() {
    let mut bench = Bench::new();
    // Granted while the cap was free; used up by the other one by the time both are due.
    bench.start(
        "echo run >>$HERE/runs\ntest -z \"$AGAIN_RUN\" || exit 0\n$AGAIN run --max-runs 1 --on-cap wait --name a\n$AGAIN run --max-runs 1 --on-cap wait --delta 1 --name b\n"
    );
    bench.end();
    wait_for("the first rerun", || (runs(&bench) == 2).then_some(()));
    let put_off = wait_for("the second timer to be put off", || {
        let report = bench.status();
        let timer = report["targets"][0]["timers"][0].clone();
        (timer["due_in_seconds"].as_f64()? > 3000.0).then_some(timer)
    });
    assert_eq!(put_off["name"], "b");
    bench.again(&["reset"]).ok();
    wait_for("one more", || (runs(&bench) == 3).then_some(()));
}
