//! Model of a machine on which every event in a timer's life happens in any order: the real store
//! on a real file system, the real policy, and a clock that is a number. Requests, waiters,
//! operators and accidents take turns; the work of a process between two of its accesses to the
//! machine is one turn, and it may be killed at each.
//!
//! Requests, `stop`, `now`, `reset`, `resume`, `disable`, `enable` and waiters are the program's
//! own code, with the model's machine as the kernel (`again_base::sys::machine`). Only the exec of
//! a rerun is the test's. The records alone show which promises were kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use again_base::model::{Cap, OnCap, Span};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use event::{Damage, Event, Wish, event};
use world::World;

/// Processes above a request.
mod above;
/// Events of the model.
mod event;
/// Clock and processes of the machine.
mod machine;
/// Promises, and how each was kept.
mod promises;
/// End of a world without further faults.
mod settled;
/// Turns of a waiter.
mod waiter;
/// Turns of all others, and the invariants.
mod world;

const TARGETS: [&str; 2] = ["00000000000000aa", "00000000000000bb"];
const NAMES: [&str; 3] = ["again", "later", "much later"];

type Checked = Result<(), String>;

fn on_cap() -> impl Strategy<Value = OnCap> {
    prop_oneof![Just(OnCap::Fail), Just(OnCap::Wait), Just(OnCap::Skip)]
}

/// Creates a directory in memory if there is a file system for it: no test here is about the disk.
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

/// Number of worlds for each of the two properties; the long version sets it.
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

/// The wall clock is set too, forwards as well. Within a boot nothing changes; between boots there
/// is only the wall clock, so a cap or a wait may seem to be over that is not.
#[test]
fn the_same_while_the_wall_clock_is_set() {
    explore(cases(), true);
}

/// Returns a request by the nth living run of the first target, or by a person, for a rerun as soon
/// as possible.
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

/// Returns a step of the first waiter.
fn step() -> Event {
    Event::Step {
        waiter: 0,
        death: None,
    }
}

/// The record of a running rerun is removed: the next rerun waits for it.
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

/// The record is removed after a start: the cap applies to the next request all the same.
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

/// A run starts when the timer is due, and holds the agent's lock.
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
