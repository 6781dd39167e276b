//! `puppet agent --disable` while a timer is pending.

use std::time::Duration;

use crate::{asks_once, delta, nothing_more_happens};
use again_test_support::{Lab, stays};

fn wakeups(lab: &Lab, pid: u64) -> u64 {
    let status = lab.read(&format!("/proc/{pid}/status"));
    status
        .lines()
        .filter(|l| l.contains("ctxt_switches"))
        .map(|l| l.split_whitespace().last().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn a_disabled_agent_holds_its_timer_which_fires_once_when_it_is_enabled() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(3600)));
    let run = lab.exec(&[
        "puppet",
        "agent",
        "--onetime",
        "--no-daemonize",
        "--color=false",
    ]);
    assert!(run.code == Some(0), "{run:#?}");
    let waiter = lab.pending(15)["waiter"]["pid"].as_u64().unwrap();
    lab.exec(&["puppet", "agent", "--disable", "why: a migration of Ünder"])
        .ok();
    // Due only now: a slow machine takes long to disable the agent.
    lab.exec(&["again", "now"]).ok();

    let timer = lab.wait_until("it is held", 60, || {
        lab.timers().into_iter().find(|t| t["state"] == "held")
    });
    assert_eq!(timer["waiter"]["pid"].as_u64(), Some(waiter));
    let shown = lab.exec(&["again", "status"]);
    assert!(
        shown.out.contains("a migration of Ünder"),
        "status gives no reason: {}",
        shown.out
    );

    let before = wakeups(&lab, waiter);
    stays("a held waiter sleeps", Duration::from_secs(6), || {
        wakeups(&lab, waiter) == before
    });
    assert!(lab.reruns().is_empty(), "a disabled agent ran");

    let enabled = lab.uptime();
    lab.exec(&["puppet", "agent", "--enable"]).ok();
    let reruns = lab.wait_for_reruns(1, 30);
    assert!(reruns[0].started >= enabled);
    assert_eq!(reruns[0].pid, waiter);
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

/// Disabled and enabled again before it is due: nothing of it is seen.
#[test]
fn an_agent_that_is_enabled_again_in_time_loses_nothing() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(20)));
    lab.exec(&["puppet", "agent", "--onetime", "--no-daemonize"])
        .ok();
    let first = lab.runs().pop().unwrap();
    lab.exec(&["puppet", "agent", "--disable", "for a moment"])
        .ok();
    lab.exec(&["puppet", "agent", "--enable"]).ok();
    let reruns = lab.wait_for_reruns(1, 60);
    assert!(
        reruns[0].started >= first.ended.unwrap() + 20.0 - 0.02,
        "early"
    );
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}
