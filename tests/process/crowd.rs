use std::collections::BTreeSet;

use again_test_support::{SHORT, Scratch, start, timed, wait_for, wait_until};

const CROWD: usize = 100;

/// Manifest of a run that starts a hundred requests before it waits for the first, and continues
/// until `go`.
fn crowd(words: &str) -> String {
    format!(
        "begun = {CROWD}.times.map {{ |n| begin_ask('run', {words}) }} if NTH == 1\n\
         begun.each {{ |one| end_ask(one) }} if NTH == 1\nhold('go') if NTH == 1"
    )
}

fn until_all_asked(scratch: &Scratch) {
    let asked = scratch.wait_for_answers("site", CROWD);
    for asked in &asked {
        assert_eq!(asked.code, 0, "{asked:?}");
        assert!(asked.pipe_closed, "{asked:?}");
    }
}

#[test]
fn a_hundred_requests_under_one_name_are_one_timer() {
    let scratch = Scratch::new();
    let (run, took) = timed(|| {
        let run = start(&mut scratch.apply("site", &crowd("'--delta', '1'")));
        until_all_asked(&scratch);
        run
    });
    assert_eq!(scratch.timers().len(), 1, "{:#}", scratch.status());
    assert_eq!(scratch.timers()[0]["state"], "waiting for the run");
    wait_until("all waiters but one to be gone", SHORT, || {
        scratch.waiters().len() == 1
    });
    assert_eq!(scratch.waiters(), [scratch.waiter("again")]);
    assert_eq!(scratch.orders("state").len(), 1);
    assert_eq!(scratch.told("requested").len(), CROWD);
    assert_eq!(scratch.told("merged").len(), CROWD - 1);
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert!(runs[1].started() >= runs[0].ended().expect("ended") + 1_000_000_000);
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 2, "exactly one rerun");
    assert_eq!(scratch.told("started").len(), 1);
    scratch.assert_nothing_left();
    println!("{CROWD} requests at once in {took:?}");
}

#[test]
fn a_hundred_names_are_a_hundred_timers() {
    let scratch = Scratch::new();
    let run = start(&mut scratch.apply("site", &crowd("'--name', \"n#{n}\", '--delta', '1h'")));
    until_all_asked(&scratch);
    let names: BTreeSet<String> = scratch
        .timers()
        .iter()
        .map(|timer| {
            assert_eq!(timer["waiter"]["alive"], true, "{timer:#}");
            timer["name"].as_str().expect("a name").to_owned()
        })
        .collect();
    assert_eq!(names, (0..CROWD).map(|n| format!("n{n}")).collect());
    assert_eq!(scratch.waiters().len(), CROWD);
    let (_, took) = timed(|| scratch.again_well(&["status"]));
    println!("{CROWD} timers pending; status takes {took:?}");
    scratch.release("go");
    run.finish();
    wait_for("all of them to count", SHORT, || {
        scratch
            .timers()
            .iter()
            .all(|timer| timer["state"] == "waiting")
            .then_some(())
    });
    let (_, took) = timed(|| scratch.again_well(&["stop"]));
    println!("stopped in {took:?}");
    scratch.assert_nothing_left();
    assert_eq!(scratch.runs("site").len(), 1);
}

/// Timers of one run with different names are due at the same moment: the first rerun satisfies all
/// of them, however late the other waiters wake up.
#[test]
fn timers_that_are_due_together_are_one_rerun() {
    let scratch = Scratch::new();
    let run = start(&mut scratch.apply("site", &crowd("'--name', \"n#{n}\"")));
    until_all_asked(&scratch);
    assert_eq!(scratch.timers().len(), CROWD);
    scratch.release("go");
    run.finish();
    scratch.wait_until_settled();
    assert_eq!(scratch.runs("site").len(), 2, "the run and one rerun");
    assert_eq!(scratch.told("started").len(), 1);
    assert_eq!(scratch.told("satisfied").len(), CROWD - 1);
    scratch.assert_nothing_left();
}

/// A hundred timers become due at about the same time, each of its own target, so each has its
/// rerun.
#[test]
fn a_hundred_commands_all_start_once() {
    let scratch = Scratch::new();
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    let begun: Vec<_> = (0..CROWD)
        .map(|n| {
            let mut request = scratch.command(scratch.path("bin/again"));
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
            scratch.with_output(&mut request);
            start(&mut request)
        })
        .collect();
    for one in begun {
        one.finish();
    }
    wait_until("all of them to start", SHORT * 2, || {
        scratch.stamps().len() >= CROWD
    });
    scratch.wait_until_settled();
    let mut words: Vec<_> = scratch
        .stamps()
        .into_iter()
        .map(|stamp| stamp.words)
        .collect();
    words.sort();
    words.dedup();
    assert_eq!(
        (words.len(), scratch.stamps().len()),
        (CROWD, CROWD),
        "each once"
    );
    scratch.assert_nothing_left();
}

/// Under one cap of five, no sixth rerun starts, however many timers there are and however they
/// interleave.
#[test]
fn a_crowd_does_not_get_past_the_cap() {
    let scratch = Scratch::new();
    scratch.settings("max_runs = 5\non_cap = \"skip\"");
    // Every rerun makes ten more requests, for immediately or a second from now.
    let manifest = "10.times.map { |n| begin_ask('run', '--name', \"n#{n}\", '--delta', (n % 2).to_s) }.each { |one| end_ask(one) }";
    start(&mut scratch.apply("site", manifest)).finish();
    scratch.wait_until_settled();
    assert_eq!(
        scratch.runs("site").len(),
        6,
        "the first run and five reruns"
    );
    assert_eq!(scratch.told("started").len(), 5);
    assert_eq!(scratch.status()["targets"][0]["cap"]["used"], 5);
    scratch.assert_nothing_left();
}
