use std::collections::BTreeSet;

use crate::rig::{SHORT, wait_for, wait_until};
use crate::stage::{Stage, start, timed};

const CROWD: usize = 100;

/// A run starts a hundred requests before it waits for the first, and goes on until `go`.
fn crowd(words: &str) -> String {
    format!(
        "begun = {CROWD}.times.map {{ |n| begin_ask('run', {words}) }} if NTH == 1\n\
         begun.each {{ |one| end_ask(one) }} if NTH == 1\nhold('go') if NTH == 1"
    )
}

fn until_all_asked(stage: &Stage) {
    let asked = stage.wait_for_answers("site", CROWD);
    for asked in &asked {
        assert_eq!(asked.code, 0, "{asked:?}");
        assert!(asked.pipe_closed, "{asked:?}");
    }
}

#[test]
fn a_hundred_requests_under_one_name_are_one_timer() {
    let stage = Stage::new();
    let (run, took) = timed(|| {
        let run = start(&mut stage.apply("site", &crowd("'--delta', '1'")));
        until_all_asked(&stage);
        run
    });
    assert_eq!(stage.timers().len(), 1, "{:#}", stage.status());
    assert_eq!(stage.timers()[0]["state"], "waiting for the run");
    wait_until("all waiters but one to be gone", SHORT, || {
        stage.waiters().len() == 1
    });
    assert_eq!(stage.waiters(), [stage.waiter("again")]);
    assert_eq!(stage.orders("state").len(), 1);
    assert_eq!(stage.history("requested").len(), CROWD);
    assert_eq!(stage.history("merged").len(), CROWD - 1);
    stage.release("go");
    run.wait();
    let runs = stage.wait_for_runs("site", 2);
    assert!(runs[1].started() >= runs[0].ended().expect("ended") + 1_000_000_000);
    stage.wait_until_settled();
    assert_eq!(stage.runs("site").len(), 2, "exactly one rerun");
    assert_eq!(stage.history("started").len(), 1);
    stage.assert_nothing_left();
    println!("{CROWD} requests at once in {took:?}");
}

#[test]
fn a_hundred_names_are_a_hundred_timers() {
    let stage = Stage::new();
    let run = start(&mut stage.apply("site", &crowd("'--name', \"n#{n}\", '--delta', '1h'")));
    until_all_asked(&stage);
    let names: BTreeSet<String> = stage
        .timers()
        .iter()
        .map(|timer| {
            assert_eq!(timer["waiter"]["alive"], true, "{timer:#}");
            timer["name"].as_str().expect("a name").to_owned()
        })
        .collect();
    assert_eq!(names, (0..CROWD).map(|n| format!("n{n}")).collect());
    assert_eq!(stage.waiters().len(), CROWD);
    let (_, took) = timed(|| stage.again_well(&["status"]));
    println!("{CROWD} timers pending; status takes {took:?}");
    stage.release("go");
    run.wait();
    wait_for("all of them to count", SHORT, || {
        stage
            .timers()
            .iter()
            .all(|timer| timer["state"] == "waiting")
            .then_some(())
    });
    let (_, took) = timed(|| stage.again_well(&["stop"]));
    println!("stopped in {took:?}");
    stage.assert_nothing_left();
    assert_eq!(stage.runs("site").len(), 1);
}

/// Timers of one run that are due at one moment, under different names: the first rerun does the job of all of them,
/// however late the others wake up.
#[test]
fn timers_that_are_due_together_are_one_rerun() {
    let stage = Stage::new();
    let run = start(&mut stage.apply("site", &crowd("'--name', \"n#{n}\"")));
    until_all_asked(&stage);
    assert_eq!(stage.timers().len(), CROWD);
    stage.release("go");
    run.wait();
    stage.wait_until_settled();
    assert_eq!(stage.runs("site").len(), 2, "the run and one rerun");
    assert_eq!(stage.history("started").len(), 1);
    assert_eq!(stage.history("satisfied").len(), CROWD - 1);
    stage.assert_nothing_left();
}

/// A hundred timers that fire at about the same time: each its own target, so that each has its rerun.
#[test]
fn a_hundred_commands_all_start_once() {
    let stage = Stage::new();
    let (helper, stamps) = (stage.at("bin/helper"), stage.at("stamps"));
    let begun: Vec<_> = (0..CROWD)
        .map(|n| {
            let mut request = stage.command(stage.path("bin/again"));
            request.args([
                "run",
                "--delta",
                "1",
                "--",
                &helper,
                "stamp",
                &stamps,
                &n.to_string(),
            ]);
            stage.with_output(&mut request);
            start(&mut request)
        })
        .collect();
    for one in begun {
        one.wait();
    }
    wait_until("all of them to start", SHORT * 2, || {
        stage.stamps().len() >= CROWD
    });
    stage.wait_until_settled();
    let mut words: Vec<_> = stage
        .stamps()
        .into_iter()
        .map(|stamp| stamp.words)
        .collect();
    words.sort();
    words.dedup();
    assert_eq!(
        (words.len(), stage.stamps().len()),
        (CROWD, CROWD),
        "each once"
    );
    stage.assert_nothing_left();
}

/// Under one cap of five: however many timers there are, and however they interleave, no sixth rerun.
#[test]
fn a_crowd_does_not_get_past_the_cap() {
    let stage = Stage::new();
    stage.settings("max_runs = 5\non_cap = \"skip\"");
    // Every rerun asks for ten more, for a second from now.
    let manifest = "10.times.map { |n| begin_ask('run', '--name', \"n#{n}\", '--delta', (n % 2).to_s) }.each { |one| end_ask(one) }";
    start(&mut stage.apply("site", manifest)).wait();
    stage.wait_until_settled();
    assert_eq!(stage.runs("site").len(), 6, "the first run and five reruns");
    assert_eq!(stage.history("started").len(), 5);
    assert_eq!(stage.status()["targets"][0]["cap"]["used"], 5);
    stage.assert_nothing_left();
}
