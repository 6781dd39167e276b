//! A machine on which everything that can happen to a timer happens in any order: the real store on a real file
//! system, the real policy, and a clock that is a number. Requests, waiters, operators and accidents take turns; what
//! a process does between two of its looks at the machine is one turn, and it may be killed at each.
//!
//! Requests, `stop`, `now`, `reset`, `resume`, `disable`, `enable` and waiters are the program's own code, to which the
//! model's machine is the kernel (`again_base::sys::machine`). The exec of a rerun alone is the test's. The records alone show
//! what became of promises.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use again_base::model::{Cap, OnCap, Span};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use event::{Damage, Event, Wish, event};
use world::World;

/// The processes above a request.
mod above;
/// What can happen.
mod event;
/// Its clock and its processes.
mod machine;
/// What was promised, and what became of it.
mod promises;
/// Nothing goes wrong any more.
mod settled;
/// The turns of a waiter.
mod waiter;
/// The turns of all others, and what must hold.
mod world;

const TARGETS: [&str; 2] = ["00000000000000aa", "00000000000000bb"];
const NAMES: [&str; 3] = ["again", "later", "much later"];

type Checked = Result<(), String>;

fn on_cap() -> impl Strategy<Value = OnCap> {
    prop_oneof![Just(OnCap::Fail), Just(OnCap::Wait), Just(OnCap::Skip)]
}

/// Memory, where there is some to be had as a file system: nothing here is about the disk.
fn scratch() -> tempfile::TempDir {
    let shm = std::path::Path::new("/dev/shm");
    let parent = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("again-model-")
        .tempdir_in(parent)
        .expect("a directory")
}

fn live(
    max_runs: u32,
    window: u64,
    on_cap: OnCap,
    events: &[Event],
) -> Result<BTreeMap<&'static str, usize>, String> {
    let dir = scratch();
    let cap = Cap {
        max_runs,
        window: Span::from_secs(window),
        is_total: false,
    };
    let mut world = World::new(dir.path(), cap, on_cap)?;
    for event in events {
        world.happen(event)?;
    }
    world.settle_down()?;
    Ok(world.books.done)
}

fn explore(cases: u32, jumps: bool) {
    let counts = std::sync::Mutex::new(BTreeMap::<&'static str, usize>::new());
    let lived = AtomicUsize::new(0);
    let lives = (
        1..4_u32,
        20..120_u64,
        on_cap(),
        proptest::collection::vec(event(jumps), 1..160),
    );
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..Config::default()
    });
    let outcome = runner.run(&lives, |(max_runs, window, on_cap, events)| {
        let done = live(max_runs, window, on_cap, &events).map_err(TestCaseError::fail)?;
        lived.fetch_add(1, Ordering::Relaxed);
        let mut counts = counts.lock().expect("nobody panicked");
        for (what, n) in done {
            *counts.entry(what).or_default() += n;
        }
        Ok(())
    });
    println!(
        "{} lives: {:?}",
        lived.load(Ordering::Relaxed),
        counts.lock().expect("nobody panicked")
    );
    if let Err(e) = outcome {
        panic!("{e}");
    }
}

/// How many lives each of the two properties sees; the long version sets it.
fn cases() -> u32 {
    std::env::var("AGAIN_SOAK_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(120)
}

#[test]
fn no_rerun_beyond_the_cap_none_twice_and_no_promise_lost() {
    explore(cases(), false);
}

/// Somebody sets the clock, forwards too. Within a boot nothing is different; between boots the wall clock is all there
/// is, and a cap or a wait may seem to be over that is not.
#[test]
fn the_same_while_the_wall_clock_is_set() {
    explore(cases(), true);
}

/// The nth living run of the first target, or a person, asks for a rerun as soon as may be.
fn request(by: usize) -> Event {
    let wish = Wish {
        target: 0,
        by,
        name: 0,
        delta: 0,
        jitter: 0,
        from_now: true,
    };
    Event::Request { wish, death: None }
}

/// The first waiter takes a step.
fn step() -> Event {
    Event::Step {
        waiter: 0,
        death: None,
    }
}

/// The record of a rerun under way goes: the next rerun waits for it.
#[test]
fn a_record_that_goes_lets_no_two_reruns_overlap() {
    let (request, step) = (request(8), step());
    for how in [Damage::Missing, Damage::Directory, Damage::Emptied] {
        let goes = Event::Damage { target: 0, how };
        let half = [vec![request.clone()], vec![step.clone(); 7]].concat();
        let events = [half.clone(), vec![goes, Event::Pass { seconds: 1 }], half].concat();
        let done = live(3, 100, OnCap::Fail, &events).expect("one at a time");
        assert_eq!(done["reruns"], 2, "{how:?}: {done:?}");
    }
}

/// A start, and then the record goes: the next request meets the cap all the same.
#[test]
fn a_record_that_goes_does_not_open_the_cap() {
    let (request, step) = (request(0), step());
    for how in [Damage::Missing, Damage::Directory, Damage::Emptied] {
        let goes = Event::Damage { target: 0, how };
        let half = [vec![request.clone()], vec![step.clone(); 7]].concat();
        let events = [half.clone(), vec![Event::End { run: 0 }, goes], half].concat();
        let done = live(1, 100, OnCap::Fail, &events).expect("the cap holds");
        assert_eq!(
            (done["reruns"], done["requests refused"]),
            (1, 1),
            "{how:?}: {done:?}"
        );
    }
}

/// Puppet skips both reruns that the cap allows.
#[test]
fn a_skipped_rerun_is_tried_again_within_the_cap() {
    let skip = Event::Skip {
        rerun: 0,
        death: None,
    };
    let tries = [vec![step(); 7], vec![skip]].concat();
    let events = [vec![request(8)], tries.clone(), tries].concat();
    let done = live(2, 3000, OnCap::Fail, &events).expect("tried again");
    assert_eq!(
        (done["reruns"], done["skipped reruns tried again"]),
        (2, 2),
        "{done:?}"
    );
}

/// A run that starts when the timer is due and holds the agent's lock.
#[test]
fn a_run_that_does_less_is_waited_for_and_does_not_count() {
    for (does_job, what) in [(false, "reruns"), (true, "timers satisfied")] {
        let run = Event::Run {
            target: 0,
            place: 0,
            does_job,
            holds_lock: true,
        };
        let later = Event::Pass { seconds: 1 };
        let events = [vec![request(8), later, run], vec![step(); 7]].concat();
        let done = live(3, 100, OnCap::Fail, &events).expect("as promised");
        let counts = ["reruns", "timers satisfied"].map(|what| done.get(what).copied());
        let expected = ["reruns", "timers satisfied"].map(|one| (one == what).then_some(1));
        assert_eq!(counts, expected, "{done:?}");
    }
}
