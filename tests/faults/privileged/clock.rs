//! Time namespaces with another CLOCK_BOOTTIME and the same boot id.

use std::process::Command;

use again_test_support::{SHORT, Scratch, answer, timers, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

const HOUR: u32 = 3600;

/// Prepares `again` in a time namespace whose CLOCK_BOOTTIME is ahead by this number of seconds;
/// with 0, in the machine's.
fn again(scratch: &Scratch, ahead: u32, words: &[&str]) -> Command {
    let (offset, again) = (format!("--boottime={ahead}"), scratch.at("bin/again"));
    let unshare = ["unshare", "--time", "--fork", &offset, "--", &again];
    let before = if ahead == 0 { &unshare[5..] } else { &unshare };
    scratch.line(&[before, words].concat())
}

/// The due time on record applies under its own offset only: compared with the clock of the other
/// namespace, a timer would start two hours too early, or two hours too late.
#[test]
fn resume_in_another_time_namespace_keeps_when_a_timer_is_due() {
    for (first, second) in [(0, 2 * HOUR), (2 * HOUR, 0)] {
        let scratch = Scratch::new();
        let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
        let request = ["run", "--delta", "1h", "--jitter", "0", "--", &helper];
        let words = [&request[..], &["stamp", &stamps, "ran"]].concat();
        let asked = answer(&mut again(&scratch, first, &words));
        assert_eq!(asked.code, Some(0), "{asked:?}");
        let waiter = scratch.only_waiter();
        waiter.signal(Signal::SIGKILL).expect("killed");
        waiter.wait_until_gone(SHORT);
        let resumed = answer(&mut again(&scratch, second, &["resume"]));
        assert!(resumed.out.contains("resumed: "), "{resumed:?}");
        let status = answer(&mut again(&scratch, second, &["status", "--json"])).out;
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let due = timers(&status)[0]["due_in_seconds"].as_f64();
        let due = due.unwrap_or_else(|| panic!("{status:#}"));
        assert!((3000.0..=3600.0).contains(&due), "{first}: {due} s");
        assert!(scratch.stamps().is_empty(), "{first}: it has run");
        let stopped = answer(&mut again(&scratch, second, &["stop"]));
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
        scratch.assert_nothing_left();
    }
}

/// A waiter in another time namespace is not considered dead: its lock is held.
#[test]
fn resume_in_another_time_namespace_leaves_a_living_waiter_alone() {
    let scratch = Scratch::new();
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    let request = ["run", "--delta", "5", "--jitter", "0", "--", &helper];
    let words = [&request[..], &["stamp", &stamps, "ran"]].concat();
    let asked = answer(&mut again(&scratch, 2 * HOUR, &words));
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let waiter = scratch.only_waiter();
    for verb in ["resume", "status", "metrics"] {
        let _ = scratch.again(&[verb]);
        let stays = scratch.only_waiter() == waiter || !scratch.stamps().is_empty();
        assert!(stays, "{verb}");
    }
    wait_until("the rerun", SHORT, || scratch.stamps().len() == 1);
    scratch.wait_until_settled();
    assert_eq!(scratch.stamps().len(), 1, "once");
    scratch.assert_nothing_left();
}
