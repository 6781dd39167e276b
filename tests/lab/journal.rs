//! What waiters say, as somebody finds it who asks the journal.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{asks_once, delta};
use again_test_support::Lab;

/// By the timer's name alone: every change of state of it, with target, chain and run, and nothing of another timer.
#[test]
fn a_timer_is_found_in_the_journal_by_its_fields() {
    let lab = Lab::boot();
    lab.manifest(&asks_once(&delta(3)));
    lab.sh("puppet apply --color=false /root/site.pp");
    lab.wait_for_reruns(1, 40);
    lab.wait_until("the rerun has ended", 40, || {
        lab.timers().is_empty().then_some(())
    });
    let entries = |field: &str| -> Vec<Value> {
        let text = lab
            .exec(&["journalctl", "--no-pager", "-o", "json", field])
            .out;
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    };
    let found = lab.wait_until("the journal has it", 20, || {
        let found = entries("AGAIN_TIMER=later");
        found
            .iter()
            .any(|entry| entry["MESSAGE"] == "starts the rerun")
            .then_some(found)
    });
    let status: Value =
        serde_json::from_str(&lab.sh("again status --json || test $? = 3")).unwrap();
    let target = &status["targets"][0];
    let said: Vec<&str> = found
        .iter()
        .map(|entry| entry["MESSAGE"].as_str().unwrap())
        .collect();
    assert!(
        said.iter().any(|line| line.starts_with("waits until 20")),
        "{said:#?}"
    );
    // The waiter's first line may come before the request's own.
    assert!(
        said.iter()
            .any(|line| line.starts_with("scheduled: puppet apply runs again")),
        "{said:#?}"
    );
    assert!((3..=4).contains(&said.len()), "{said:#?}");
    for entry in &found {
        assert_eq!(entry["AGAIN_TARGET"], target["id"], "{entry:#}");
        assert_eq!(entry["AGAIN_CHAIN"], target["last"]["chain"], "{entry:#}");
        assert_eq!(entry["AGAIN_RUN"], "2", "{entry:#}");
        assert_eq!(entry["SYSLOG_IDENTIFIER"], "again", "{entry:#}");
        assert_eq!(entry["PRIORITY"], "6", "{entry:#}");
    }
    let chain = target["last"]["chain"].as_str().unwrap();
    assert_eq!(entries(&format!("AGAIN_CHAIN={chain}")).len(), found.len());
    assert!(entries("AGAIN_TIMER=another").is_empty());
}

/// Without root there is no lab, and it says so rather than pass.
#[test]
fn without_root_it_cannot_be_set_up_and_says_so() {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/setup");
    let done = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["--", "sh", "-s"])
        .stdin(File::open(setup).unwrap())
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        said.starts_with("lab: cannot be set up: ")
            && said.contains("it needs root (this is uid 65534)"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
