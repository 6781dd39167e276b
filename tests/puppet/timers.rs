use std::fs;

use nix::sys::signal::Signal;

use crate::{changes_once, hold_until, until_held};
use again_test_support::{LONG, Process, SHORT, Scratch, WAITS, assert_same_run, text, wait_until};

/// Much more than three puppet runs one after the other take, on any machine that these tests are run on.
const SOON: f64 = 60.0;

/// One run asks for `Exec['again']`, a delta of 2 as a number, one of 4 as a string, and for the 2 once more by another Exec.
#[test]
fn deltas_of_different_names_stay_apart_and_never_start_early() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let body = format!(
        "common::again::delta {{ 'two': delta => 2 }}\n\
         common::again::delta {{ 'four': delta => '4' }}\n\
         exec {{ 'two again': command => ['{root}/bin/again', 'run', '--name', 'two', '--delta', '2'], refreshonly => true }}\n\
         {}\n\
         exec {{ 'look': command => ['/bin/sh', '-c', 'test -e {root}/looked || {root}/bin/again status --json > {root}/looked'],\n  \
           provider => 'posix', require => [Exec['again'], Exec['two again'], Common::Again::Delta['two', 'four']] }}",
        crate::changes_once(
            &scratch,
            "[Exec['again'], Common::Again::Delta['two', 'four'], Exec['two again']]"
        )
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    scratch.settle(LONG);

    let looked: serde_json::Value =
        serde_json::from_slice(&fs::read(scratch.path("looked")).expect("the status"))
            .expect("JSON");
    let timers = looked["targets"][0]["timers"].as_array().expect("timers");
    let mut names: Vec<&str> = timers
        .iter()
        .filter_map(|timer| timer["name"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["again", "four", "two"],
        "one pending timer per name: {looked:#}"
    );
    assert!(
        timers
            .iter()
            .all(|timer| timer["state"] == "waiting for the run"),
        "{looked:#}"
    );
    for (name, resource) in [
        ("again", "Exec[again]"),
        ("four", "Common::Again::Delta[four]"),
    ] {
        assert!(
            timers
                .iter()
                .any(|timer| timer["name"] == name && timer["resource"] == resource),
            "which resource asked: {looked:#}"
        );
    }
    assert_eq!(scratch.history_of("merged").len(), 1);

    let starts = scratch.starts();
    let ended = starts[0].ended().expect("the end of the first run");
    for rerun in &starts[1..] {
        assert!(
            !rerun.earlier.iter().any(|(_, running)| *running),
            "reruns of a target overlap: {:?}",
            rerun.earlier
        );
    }
    for (name, delta) in [("again", 0.0), ("two", 2.0), ("four", 4.0)] {
        let own = starts[1..]
            .iter()
            .find(|rerun| rerun.environment["AGAIN_TIMER"] == name);
        // On a slow machine a rerun may last beyond the next one's due time. Then the one after it does the job of both.
        let rerun = own
            .or_else(|| starts[1..].iter().find(|rerun| rerun.at - ended >= delta))
            .unwrap_or_else(|| panic!("no run for {name}"));
        let after = rerun.at - ended;
        assert!(
            after >= delta,
            "{name} started early: {after:.3} s after the run"
        );
        assert!(
            after < delta + SOON,
            "{name} started late: {after:.3} s after the run"
        );
        let satisfied = scratch
            .history_of("satisfied")
            .iter()
            .filter(|entry| entry["timer"] == name)
            .count();
        assert_eq!(
            usize::from(own.is_some()) + satisfied,
            1,
            "one end for {name}: {:#?}",
            scratch.history()
        );
    }
    assert_eq!(starts[1].environment["AGAIN_TIMER"], "again");
    assert_eq!(scratch.catalogs().len(), starts.len());
    assert_eq!(scratch.history_of("started").len(), starts.len() - 1);
}

/// Both are due when the run ends, one moment for both, however late a waiter gets to know of it: one waiter is kept by a stop signal
/// until the other's rerun has been.
#[test]
fn a_rerun_does_the_job_of_every_timer_that_was_due_when_it_started() {
    let scratch = Scratch::with_puppet();
    let go = text(scratch.path("go"));
    let body = format!(
        "common::again::delta {{ 'nought': delta => 0 }}\n{}\n{} Exec['again'] -> Exec['again-delta-nought'] -> Exec['hold']",
        changes_once(&scratch, "[Exec['again'], Common::Again::Delta['nought']]"),
        hold_until("hold", &go)
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    let run = scratch.puppet_apply(&["site.pp"]).start();
    until_held(&scratch);
    let timers = scratch.timers();
    let nought = timers
        .iter()
        .find(|timer| timer["name"] == "nought")
        .unwrap_or_else(|| panic!("{timers:#?}"));
    let late = nought["waiter"]["pid"]
        .as_i64()
        .and_then(|pid| Process::now(pid as i32))
        .expect("its waiter");
    late.signal(Signal::SIGSTOP).expect("stopped");
    fs::write(&go, "").expect("go");
    run.wait().expect(&[0]);
    wait_until("the rerun by the other timer", LONG, || {
        scratch
            .starts()
            .get(1)
            .is_some_and(|rerun| rerun.ended().is_some())
    });
    late.signal(Signal::SIGCONT).expect("continued");
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 2);
    assert_eq!(scratch.history_of("requested").len(), 2);
    assert_eq!(
        (
            scratch.history_of("started").len(),
            scratch.history_of("satisfied").len()
        ),
        (1, 1)
    );
}

/// The first run asks for a minute, the second, under the same name, for one: there is a rerun at the later time, and only one.
#[test]
fn the_later_of_two_runs_that_ask_under_one_name_decides() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    let ask = |name: &str, delta: &str, flag: &str| {
        format!(
            "exec {{ '{name}': command => ['{root}/bin/again', 'run', '--name', 'one', '--delta', '{delta}'], \
             onlyif => '/usr/bin/test -e {root}/{flag}', logoutput => true }}\n"
        )
    };
    let body = ask("first", "60s", "first") + &ask("second", "1s", "second");
    scratch.write("work/site.pp", &scratch.bare_manifest(&body));

    fs::write(scratch.path("first"), "").expect("a file");
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    let before = scratch.only_waiter();
    let pending = scratch.timers();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0]["delta_seconds"], 60.0, "{pending:#?}");

    fs::remove_file(scratch.path("first")).expect("removed");
    fs::write(scratch.path("second"), "").expect("a file");
    let second = scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    fs::remove_file(scratch.path("second")).expect("removed");
    assert!(
        second
            .out
            .contains("it replaces the pending timer of that name"),
        "{}",
        second.out
    );
    wait_until("the replaced waiter to go", SHORT, || !before.alive());

    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!(starts.len(), 3, "two by hand and one rerun");
    assert!(starts[2].at - starts[0].ended().expect("its end") >= 60.0);
    assert_eq!(scratch.history_of("merged").len(), 1);
}

/// From the moment of the request, yet not while the run is going on.
#[test]
fn start_timer_now_counts_from_the_request() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    // The run ends well after its request was due.
    let body = format!(
        "common::again::delta {{ 'now': delta => 5, start_timer_now => true }}\n{}\n\
         exec {{ 'long': command => '/bin/sleep 6', unless => '/usr/bin/test -e {root}/slept', require => Common::Again::Delta['now'] }}\n\
         -> file {{ '{root}/slept': content => '' }}",
        crate::changes_once(&scratch, "Common::Again::Delta['now']")
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    let run = scratch
        .puppet_apply(&["site.pp"])
        .env("RIG_LINGER", "0.4")
        .run()
        .expect(&[0]);
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!(starts.len(), 2);
    crate::assert_same_run(&starts[0], &starts[1]);
    let after = starts[1].at - starts[0].ended().expect("the end of the first run");
    assert!(
        after < 5.0,
        "{after:.3} s after the run: counted from its end"
    );
    let [line] = &run.lines_of_again()[..] else {
        panic!("{}", run.out)
    };
    assert!(line.contains("from now"), "{line}");
}

/// A rerun of the real Puppet starts with its slot and not before, and is the first run's equal.
#[test]
fn a_rerun_waits_for_its_slot() {
    let scratch = Scratch::with_puppet();
    scratch.settings("slots = true");
    scratch.install_slots();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    scratch.write("work/site.pp", &manifest);
    let run = scratch.puppet_apply(&["site.pp"]).env("RIG_LINGER", "0.4");
    run.run().expect(&[0]);
    scratch.blocked_by_slot(WAITS);
    let (waiter, child) = (scratch.only_waiter(), scratch.question(1));
    assert_eq!(child.parent(), waiter.pid);
    assert_eq!(scratch.starts().len(), 1, "it waits");
    scratch.answer_slot("0");
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!((starts.len(), scratch.catalogs().len()), (2, 2));
    assert_same_run(&starts[0], &starts[1]);
    assert_eq!(starts[1].process, waiter, "the run that asked");
    assert_eq!(scratch.asked_for_slots().len(), 1);
}
