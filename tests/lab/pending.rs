//! What looks after pending timers on a machine with systemd.

use crate::{asks_once, delta};
use again_test_support::Lab;

/// The kernel, out of memory, or a person: the waiter is gone, and nobody says anything for a while.
#[test]
fn a_killed_waiter_has_a_successor_within_a_minute_and_nothing_runs_while_nothing_is_pending() {
    let lab = Lab::boot();
    lab.manifest(&asks_once(&delta(600)));
    let run = lab.exec(&["puppet", "apply", "--color=false", "/root/site.pp"]);
    assert!(run.out.contains("again: scheduled:"), "{run:#?}");
    let before = lab.pending(5);
    let waiter = before["waiter"]["pid"].as_u64().expect("a pid");
    let due = || lab.sh("grep -o '\"due\":[0-9]*' /var/lib/again/targets/*/state.json");
    let promised = due();
    lab.sh(&format!("kill -9 {waiter}"));

    let after = lab.wait_until("another waiter", 90, || {
        let timer = lab.timers().pop().expect("it is pending");
        (timer["state"] == "waiting").then_some(timer)
    });
    assert_ne!(after["waiter"]["pid"].as_u64(), Some(waiter));
    assert_eq!(due(), promised);
    let pid = after["waiter"]["pid"].as_u64().expect("a pid");
    let group = lab.group_of(pid).expect("it lives");
    assert!(group.ends_with(".scope"), "the waiter is in {group}");
    let log = lab.sh("journalctl --quiet --no-pager --output cat --unit again-pending.service");
    assert!(
        log.contains("the waiter of timer 'later' had died"),
        "{log}"
    );
    assert!(!log.contains("Finished"), "a line in each minute: {log}");

    let active = |unit: &str| lab.sh(&format!("systemctl is-active {unit} || true"));
    assert_eq!(active("again-pending.service"), "active\n");
    lab.sh("again stop");
    lab.wait_until("the service to end", 90, || {
        (active("again-pending.service") == "inactive\n").then_some(())
    });
    // systemd.path(5): "waiting" where the path does not start the service, "running" where it does.
    lab.wait_until("the path unit to wait", 10, || {
        let state = lab.sh("systemctl show -P SubState again-pending.path");
        (state == "waiting\n").then_some(())
    });
    assert_eq!(active("again-pending.service"), "inactive\n");
    assert_eq!(active("again-pending.path"), "active\n");
}
