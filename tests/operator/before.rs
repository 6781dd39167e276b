//! The state directory of version 0.1.0, as its binary wrote it (all but the boot's id,
//! which is nobody's): read, kept and continued.
//!
//! In `before/` are a target at its cap with a timer pending and another that was lost, another with a
//! timer pending for ten years, reruns that ended, one that nobody has looked at since it
//! did, requests refused by the cap, by noop and by `again disable`, a driver that was
//! killed, and every event of the history. All windows are ten years, so that the files'
//! age does not matter.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use again_rig::{SHORT, Scratch, repository, wait_for};

/// What was pending for a minute, at the cap.
const LATER: &str = "75176e9d23b33595";
/// What is pending for ten years.
const OTHER: &str = "fcaa7a151009eb77";

/// Copies a directory; orders and what is in them are for their owner alone.
fn copy(from: &Path, to: &Path, is_private: bool) {
    let mode = |mode: u32| PermissionsExt::from_mode(if is_private { mode & 0o700 } else { mode });
    std::fs::create_dir(to).expect("made");
    std::fs::set_permissions(to, mode(0o755)).expect("set");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("readable");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(
                &entry.path(),
                &to,
                is_private || entry.file_name() == "orders",
            );
        } else {
            std::fs::copy(entry.path(), &to).expect("copied");
            std::fs::set_permissions(&to, mode(0o644)).expect("set");
        }
    }
}

fn upgraded() -> Scratch {
    let scratch = Scratch::for_operator();
    let before = repository().join("tests/operator/before");
    copy(&before, &scratch.path("state"), false);
    scratch
}

fn target<'a>(report: &'a Value, id: &str) -> &'a Value {
    let mut targets = report["targets"].as_array().expect("targets").iter();
    targets.find(|target| target["id"] == id).expect("it")
}

fn history(scratch: &Scratch) -> Vec<Value> {
    let said = scratch.again(&["history", "--json"]).ok();
    let lines = said.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON")
}

#[test]
fn status_shows_it_as_it_was() {
    let scratch = upgraded();
    let report = scratch.status();
    assert_eq!(report["unreadable"], serde_json::json!([]));
    assert_eq!(report["disabled"]["reason"], "the cap is reached");
    let later = target(&report, LATER);
    assert_eq!(later["cap"]["used"], 3);
    assert_eq!(later["cap"]["max_runs"], 3);
    assert!(later["cap"]["frees_at"].is_string());
    assert_eq!(later["command"], serde_json::json!(["/bin/true", "capped"]));
    let timer = &later["timers"][0];
    assert_eq!(timer["state"], "dead");
    assert_eq!(timer["resource"], "Common::Again::Delta[later]");
    assert_eq!(timer["delta_seconds"], 60.0);
    assert!(
        timer["due_at"]
            .as_str()
            .expect("known")
            .starts_with("2026-11-22T14:40:55.")
    );
    let refused = |id: &str| target(&report, id)["refused"]["reason"].clone();
    let begins = |reason: Value, wanted: &str| {
        assert!(
            reason.as_str().expect("text").starts_with(wanted),
            "{reason}"
        );
    };
    begins(
        refused(LATER),
        "refused: the cap is reached: 3 of at most 3 reruns",
    );
    begins(
        refused("34d36454142a1e78"),
        "nothing to do: a noop run is never run again (--noop",
    );
    begins(
        refused("b4517e36fcd47684"),
        "refused: again is disabled (the cap is reached); ",
    );
    let last = &target(&report, "905503676fcd9ef6")["last"];
    assert_eq!(last["outcome"], "changed");
    begins(last["evidence"].clone(), "1 resource changed, by /srv/");
    assert_eq!(
        target(&report, "e3f73315bb772309")["missed"]["what"],
        "failed"
    );
    assert_eq!(
        target(&report, "0afd9edf018739c9")["missed"]["what"],
        "satisfied"
    );
    // Nobody had looked at it since it ended.
    let ended = target(&report, "8c0c2f760b5366c2");
    assert!(ended["running"].is_null());
    assert_eq!(ended["last"]["outcome"], "unknown");
    // Its driver was killed, which is noted when somebody looks.
    assert_eq!(report["drivers"], serde_json::json!([]));
    let events = history(&scratch);
    let mut closed = events.iter().filter(|event| event["what"] == "closed");
    let closed = closed.next_back().expect("the second");
    begins(
        closed["reason"].clone(),
        "'again converge' was killed (pid ",
    );
}

#[test]
fn history_and_metrics_tell_the_kinds_apart() {
    let scratch = upgraded();
    let mut count = BTreeMap::new();
    let events = history(&scratch);
    for event in &events {
        let text = |key: &str| event[key].as_str().map(str::to_owned);
        let what = text("what").expect("a word");
        let reason = text("reason").expect("text");
        if let Some(outcome) = text("outcome") {
            assert!(reason.starts_with(&format!("{outcome} (")), "{event}");
        } else {
            assert_ne!(what, "ended", "{event}");
        }
        if what == "refused" {
            assert!(reason.contains(": "), "{event}");
        }
        *count.entry(what).or_insert(0) += 1;
    }
    let count: Vec<(&str, i32)> = count.iter().map(|(what, n)| (what.as_str(), *n)).collect();
    let wanted = [
        ("closed", 1),
        // The last of them since somebody looked.
        ("ended", 11),
        ("failed", 1),
        ("lost", 1),
        ("merged", 1),
        ("opened", 2),
        ("refused", 4),
        ("requested", 18),
        ("reset", 2),
        ("resumed", 1),
        ("satisfied", 1),
        ("started", 12),
        ("stopped", 2),
    ];
    assert_eq!(count, wanted);
    let metrics = scratch.again(&["metrics"]).ok();
    for line in [
        "again_requests_total 18",
        // All but the first run of each driver.
        "again_reruns_total 10",
        "again_refusals_total{reason=\"cap\"} 1",
        "again_refusals_total{reason=\"disabled\"} 2",
        "again_refusals_total{reason=\"noop\"} 1",
        "again_refusals_total{reason=\"other\"} 0",
        "again_reruns_ended_total{outcome=\"changed\"} 2",
        "again_reruns_ended_total{outcome=\"succeeded\"} 1",
        "again_timers_dropped_total{reason=\"satisfied\"} 1",
        "again_timers_dropped_total{reason=\"lost\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }
}

#[test]
fn what_was_pending_goes_on_and_the_cap_holds() {
    let scratch = upgraded();
    let said = scratch.again(&["resume"]).ok();
    for name in ["later", "other"] {
        let wanted = format!("again: resumed: timer '{name}' of command is due at 20");
        assert!(said.contains(&wanted), "{said}");
    }
    assert_eq!(
        said.matches("(the machine was rebooted; ").count(),
        2,
        "{said}"
    );
    wait_for("the one that is due to be held", SHORT, || {
        let report = scratch.status();
        let held = &target(&report, LATER)["timers"][0];
        (held["reason"] == "again is disabled: the cap is reached").then_some(())
    });
    assert_eq!(
        target(&scratch.status(), OTHER)["timers"][0]["state"],
        "waiting"
    );
    assert_eq!(
        history(&scratch)
            .iter()
            .filter(|e| e["what"] == "resumed")
            .count(),
        3
    );
    let said = scratch.again(&["enable"]).ok();
    assert!(
        said.contains("(the cap is reached); 1 held timer let go)"),
        "{said}"
    );
    let refusal = wait_for("it to be refused", SHORT, || {
        let is_it = |event: &Value| event["what"] == "refused" && event["timer"] == "later";
        history(&scratch).into_iter().find(is_it)
    });
    let reason = refusal["reason"].as_str().expect("text");
    assert!(
        reason.starts_with("refused: the cap is reached: 3 of at most 3"),
        "{reason}"
    );
    assert_is_readable_by_0_1_0(&scratch, OTHER);
    let said = scratch.again(&["stop"]).ok();
    let wanted = "again: stopped: timer 'other' of command (run 2 of chain 89a756ff, due in ";
    assert!(said.starts_with(wanted), "{said}");
    assert_eq!(scratch.again(&["status"]).code, Some(3));
}

/// A waiter of 0.1.0 that is still waiting reads what we write: an upgrade stops nothing.
/// These are the fields that it does not do without.
#[track_caller]
fn assert_is_readable_by_0_1_0(scratch: &Scratch, id: &str) {
    let path = scratch.path("state/targets").join(id).join("state.json");
    let record: Value = serde_json::from_slice(&std::fs::read(path).expect("it")).expect("JSON");
    let has = |value: &Value, fields: &[&str]| {
        let missing: Vec<_> = fields.iter().filter(|f| value.get(f).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?} in {value}");
    };
    has(&record, &["id", "kind", "uid"]);
    assert_eq!(record["version"], 1);
    let timer = record["timers"]
        .as_object()
        .expect("timers")
        .values()
        .next();
    let timer = timer.expect("a timer");
    has(timer, &["token", "chain", "run", "delta", "jitter", "boot"]);
    assert!(["run", "command"].contains(&timer["origin"].as_str().expect("a word")));
    assert!(["end", "request"].contains(&timer["base"].as_str().expect("a word")));
    assert!(["fail", "wait", "skip"].contains(&timer["on_cap"].as_str().expect("a word")));
    has(&timer["cap"], &["max_runs", "window"]);
    has(&timer["requested"], &["boot", "uptime", "wall"]);
    has(&timer["waiter"], &["pid", "start"]);
}
