//! `puppet apply` as pid 1 of a container: nothing outlives it.

use crate::{asks_once, nothing_more_happens};
use again_test_support::Lab;

#[test]
fn a_run_that_is_pid_1_is_told_to_use_converge() {
    let lab = Lab::boot();
    lab.manifest(&asks_once("Exec['again']"));
    let run = lab.exec(&[
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "puppet",
        "apply",
        "--color=false",
        "--detailed-exitcodes",
        "/root/site.pp",
    ]);
    let line = run
        .out
        .lines()
        .find(|line| line.contains("again: "))
        .unwrap_or_else(|| panic!("the Exec says nothing: {run:#?}"));
    assert!(line.contains("again: refused:"), "{line}");
    assert!(line.contains("again converge"), "no advice: {line}");
    assert_eq!(
        run.status(),
        6,
        "changes, and the failure of what cannot be done: {run:#?}"
    );
    assert_eq!(lab.timers().len(), 0);
    assert_eq!(lab.runs()[0].pid, 1);
    nothing_more_happens(&lab);
    assert_eq!(lab.runs().len(), 1);
}
