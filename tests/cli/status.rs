use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use again_test_support::{SHORT, Scratch, answer, now, open_to_all, start, wait_until};

fn keys(value: &Value) -> BTreeSet<&str> {
    value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

#[track_caller]
fn assert_keys(value: &Value, expected: &[&str]) {
    for key in expected {
        assert!(
            keys(value).contains(key),
            "{key} is not among {:?}",
            keys(value)
        );
    }
}

/// `2026-11-21T01:02:03Z`, with or without a fraction.
#[track_caller]
fn assert_utc(value: &Value) {
    let text = value.as_str().unwrap_or_else(|| panic!("no time: {value}"));
    let digits = text.replace(|c: char| c.is_ascii_digit(), "9");
    assert!(
        digits == "9999-99-99T99:99:99Z" || digits == "9999-99-99T99:99:99.999Z",
        "{text}"
    );
}

const TARGET: [&str; 10] = [
    "id",
    "kind",
    "user",
    "command",
    "directory",
    "cap",
    "timers",
    "running",
    "last",
    "refused",
];
const TIMER: [&str; 10] = [
    "name",
    "state",
    "run",
    "chain",
    "delta_seconds",
    "jitter_seconds",
    "requested_at",
    "due_at",
    "due_in_seconds",
    "waiter",
];

#[test]
fn nothing_at_all() {
    let scratch = Scratch::new();
    let done = scratch.again(&["status"]);
    assert_eq!((done.code, done.err.as_str()), (Some(3), ""));
    assert!(
        done.out.contains("nothing pending") && done.out.contains(&scratch.at("state")),
        "{done:?}"
    );
    let status = scratch.status();
    assert_keys(
        &status,
        &[
            "schema",
            "version",
            "now",
            "state_dir",
            "disabled",
            "this_run",
            "targets",
        ],
    );
    assert_eq!(
        (&status["schema"], &status["version"]),
        (&json!(1), &json!(env!("CARGO_PKG_VERSION")))
    );
    assert_eq!(
        (&status["disabled"], &status["this_run"], &status["targets"]),
        (&json!(null), &json!(null), &json!([]))
    );
    assert_eq!(status["state_dir"], scratch.at("state"));
    assert_utc(&status["now"]);
    assert!(!scratch.path("state").exists(), "looking makes nothing");
}

#[test]
fn the_keys_of_the_contract_in_every_phase() {
    let scratch = Scratch::new();
    let manifest = "ask('run', '--delta', '90', '--name', 'slow') if NTH == 1\n\
        ask('status', '--json')\nask('run') if NTH == 1\nhold('go') if NTH == 1\nhold('went') if NTH == 2";
    let run = start(&mut scratch.apply("site", manifest));
    wait_until("both timers", SHORT, || scratch.timers().len() == 2);
    let status = scratch.status();
    let target = &status["targets"][0];
    assert_keys(target, &TARGET);
    assert_eq!(
        (&target["kind"], &target["user"]),
        (&json!("apply"), &json!("root"))
    );
    assert_eq!(
        target["command"],
        json!([
            "ruby",
            "--disable-gems",
            scratch.at("bin/puppet"),
            "apply",
            "site.pp"
        ])
    );
    assert_eq!(target["directory"], scratch.at("work"));
    assert_eq!(
        (&target["running"], &target["last"], &target["refused"]),
        (&json!(null), &json!(null), &json!(null))
    );
    assert_keys(
        &target["cap"],
        &["used", "max_runs", "window_seconds", "frees_at"],
    );
    assert_eq!(
        target["cap"],
        json!({"used": 0, "max_runs": 100_000, "window_seconds": 3600, "frees_at": null})
    );
    for timer in target["timers"].as_array().expect("timers") {
        assert_keys(timer, &TIMER);
        assert_eq!(timer["state"], "waiting for the run");
        assert_eq!(
            (&timer["due_at"], &timer["due_in_seconds"]),
            (&json!(null), &json!(null))
        );
        assert_eq!(
            (&timer["run"], &timer["jitter_seconds"]),
            (&json!(2), &json!(0.0))
        );
        assert_utc(&timer["requested_at"]);
        assert_eq!(timer["waiter"]["alive"], true);
        assert!(timer["waiter"]["pid"].is_i64());
        assert_eq!(timer["chain"].as_str().map(str::len), Some(8));
    }
    let chain = target["timers"][0]["chain"].clone();
    // The first run itself, asking from inside.
    let inside: Value =
        serde_json::from_str(&scratch.runs("site")[0].asked()[1].output).expect("JSON");
    assert_eq!(
        inside["this_run"],
        json!({"target": target["id"], "chain": null, "run": 1, "timer": null, "noop": null, "origin": null})
    );

    scratch.release("go");
    run.finish();
    wait_until("the rerun", SHORT, || {
        scratch
            .runs("site")
            .get(1)
            .is_some_and(|run| !run.asked().is_empty())
    });
    wait_until("the other to know its time", SHORT, || {
        scratch
            .timer("slow")
            .is_some_and(|slow| slow["due_at"] != json!(null))
    });
    let status = scratch.status();
    let target = &status["targets"][0];
    let running = &target["running"];
    assert_keys(
        running,
        &["pid", "run", "chain", "timer", "started_at", "log"],
    );
    assert_eq!(running["pid"], scratch.runs("site")[1].pid());
    assert_eq!(
        (&running["run"], &running["chain"], &running["timer"]),
        (&json!(2), &chain, &json!("again"))
    );
    assert_utc(&running["started_at"]);
    assert!(
        fs::metadata(running["log"].as_str().expect("a path"))
            .expect("a log")
            .is_file()
    );
    assert_eq!(target["cap"]["used"], 1);
    let slow = scratch.timer("slow").expect("still pending");
    assert_eq!(slow["state"], "waiting");
    assert_utc(&slow["due_at"]);
    let due_in = slow["due_in_seconds"].as_f64().expect("a number");
    assert!((30.0..=90.0).contains(&due_in), "{due_in}");
    let inside: Value =
        serde_json::from_str(&scratch.runs("site")[1].asked()[0].output).expect("JSON");
    assert_eq!(
        inside["this_run"],
        json!({"target": target["id"], "chain": chain, "run": 2, "timer": "again", "noop": null, "origin": null})
    );
    assert_eq!(scratch.again(&["status"]).code, Some(0));

    scratch.again_well(&["stop", "slow"]);
    assert_eq!(
        scratch.again(&["status"]).code,
        Some(0),
        "a rerun is under way"
    );
    scratch.release("went");
    wait_until("the end of it", SHORT, || {
        scratch.again(&["status"]).code == Some(3)
    });
    let status = scratch.status();
    let last = &status["targets"][0]["last"];
    assert_keys(
        last,
        &[
            "run",
            "chain",
            "timer",
            "started_at",
            "outcome",
            "evidence",
            "log",
        ],
    );
    assert!(
        keys(last).contains("ended_at"),
        "the contract's: {:?}",
        keys(last)
    );
    assert_eq!(
        (&last["run"], &last["chain"], &last["outcome"]),
        (&json!(2), &chain, &json!("unknown"))
    );
    assert!(
        last["evidence"]
            .as_str()
            .is_some_and(|evidence| !evidence.is_empty())
    );
    scratch.assert_nothing_left();
}

/// How a rerun ended is told by Puppet's own summary.
#[test]
fn the_outcome_of_the_last_rerun() {
    let summary = |config: &str, changed: u32, failed: u32| {
        format!(
            "---\\nversion:\\n  config: {config}\\n  puppet: 7.23.0\\nresources:\\n  changed: {changed}\\n  failed: {failed}\\n  failed_to_restart: 0\\ntime:\\n  config_retrieval: 0.1\\n  catalog_application: 0.1\\n  last_run: #{{Time.now.to_i}}\\nevents:\\n  failure: 0\\n"
        )
    };
    // Which run writes it: an older one says nothing about the rerun.
    for (text, writer, outcome) in [
        (summary("1700000000", 2, 0), 2, "changed"),
        (summary("1700000000", 0, 0), 2, "unchanged"),
        (summary("1700000000", 3, 1), 2, "failed"),
        (summary("1700000000", 2, 0), 1, "unknown"),
        ("no summary".to_owned(), 2, "unknown"),
    ] {
        let scratch = Scratch::new();
        let file = scratch.at("summary.yaml");
        let manifest = format!(
            "ask('run', '--lastrunfile', '{file}') if NTH == 1\nFile.write('{file}', \"{text}\") if NTH == {writer}"
        );
        start(&mut scratch.apply("site", &manifest)).finish();
        scratch.wait_for_runs("site", 2);
        scratch.wait_until_settled();
        let last = scratch.status()["targets"][0]["last"].clone();
        assert_eq!(last["outcome"], outcome, "{last:#}");
        println!("{outcome}: {}", last["evidence"]);
        let ended = scratch.told("ended");
        assert!(
            ended.len() == 1 && last["evidence"] == ended[0].1.as_str(),
            "{ended:?}"
        );
        scratch.assert_nothing_left();
    }
}

#[test]
fn the_text_says_what_why_and_when() {
    let scratch = Scratch::new();
    scratch.again_well(&[
        "run",
        "--delta",
        "2h",
        "--name",
        "peers joined",
        "--",
        "/bin/sh",
        "-c",
        "echo two words",
    ]);
    let done = scratch.again(&["status"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    for word in [
        "command of root",
        "/bin/sh -c 'echo two words'",
        "timer 'peers joined'",
        "in 1h59m",
        "run 1 of chain",
        "cap",
        "0 of 100000 reruns within 1h",
        "waiter pid",
    ] {
        assert!(done.out.contains(word), "{word:?} is not in {}", done.out);
    }
    assert!(
        done.out
            .lines()
            .all(|line| line.len() < 300 && !line.ends_with(' ')),
        "{}",
        done.out
    );
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// What a command line may hold is for its owner and root; what is pending, and when, is for all.
#[test]
fn another_user_sees_no_command_line() {
    let scratch = Scratch::new();
    let mut command = scratch.apply("site", "ask('run', '--delta', '1h') if NTH == 1");
    command.env("SECRET", "xyzzy-1");
    start(&mut command).finish();
    scratch.again_well(&[
        "run",
        "--delta",
        "1h",
        "--name",
        "open",
        "--",
        "/bin/true",
        "xyzzy-2",
    ]);
    let as_nobody =
        |words: &[&str]| answer(scratch.as_nobody(scratch.path("bin/again")).args(words));
    // Root's own view, to know that there is something to hide.
    assert!(scratch.again_well(&["status"]).contains("xyzzy-2"));
    let text = as_nobody(&["status"]);
    assert_eq!((text.code, text.err.as_str()), (Some(0), ""), "{text:?}");
    assert!(
        text.out.contains("timer 'again'") && text.out.contains("timer 'open'"),
        "{text:?}"
    );
    assert!(text.out.contains("of root"), "{text:?}");
    let json = as_nobody(&["status", "--json"]);
    assert_eq!(json.code, Some(0), "{json:?}");
    for said in [&text.out, &json.out] {
        assert!(
            !said.contains("xyzzy") && !said.contains("/bin/true") && !said.contains("site.pp"),
            "{said}"
        );
    }
    let json: Value = serde_json::from_str(&json.out).expect("JSON");
    let targets = json["targets"].as_array().expect("targets");
    assert_eq!(targets.len(), 2);
    for target in targets {
        assert_eq!(
            (&target["command"], &target["directory"]),
            (&json!(null), &json!(null))
        );
        // It may not see the process, but it is told that the waiter lives.
        assert_eq!(target["timers"][0]["waiter"]["alive"], true, "{target:#}");
        assert_eq!(target["timers"][0]["state"], "waiting");
    }
    // It can stop nothing, and is told so.
    let done = as_nobody(&["stop"]);
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{done:?}");
    assert!(
        done.err.starts_with("again: error: ") && done.err.lines().count() == 1,
        "{done:?}"
    );
    println!("{}", done.err.trim());
    assert_eq!((scratch.timers().len(), scratch.waiters().len()), (2, 2));
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// A record that cannot be read is reported, and hides none of the others.
#[test]
fn a_record_that_cannot_be_read() {
    let scratch = Scratch::new();
    scratch.again_well(&["run", "--delta", "1h", "--name", "good", "--", "/bin/true"]);
    scratch.again_well(&["run", "--delta", "1h", "--name", "bad", "--", "/bin/false"]);
    let status = scratch.status();
    let bad = status["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .find(|target| target["timers"][0]["name"] == "bad");
    let id = bad.expect("a target")["id"].as_str().expect("an id");
    let record = scratch.record_of(id);
    scratch.waiter("bad").wait_until_asleep();
    let text = fs::read(&record).expect("a record");
    fs::write(&record, "{").expect("damaged");
    let done = scratch.again(&["status"]);
    assert_eq!(done.code, Some(0));
    assert!(
        done.out.contains("timer 'good'") && !done.out.contains("timer 'bad'"),
        "{done:?}"
    );
    assert!(
        done.err.starts_with("again: warning: ")
            && done.err.contains(record.to_str().expect("a path")),
        "{done:?}"
    );
    let done = scratch.again(&["status", "--json"]);
    let status: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(
        status["unreadable"].as_array().map(Vec::len),
        Some(1),
        "{status:#}"
    );
    // Nothing in the directory that is not ours is taken for a target.
    fs::write(&record, text).expect("mended");
    for name in ["README", "0123", "..x", "0123456789abcdeg"] {
        fs::create_dir(scratch.path("state/targets").join(name)).expect("created");
    }
    assert_eq!(
        scratch.status()["targets"].as_array().map(Vec::len),
        Some(2)
    );
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// A directory of somebody else's is only looked at.
#[test]
fn looking_changes_nothing() {
    let scratch = Scratch::new();
    scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
    let listing = || {
        let done = std::process::Command::new("find")
            .args([&scratch.at("state"), "-printf", "%p %s %T@ %m %i\n"])
            .output()
            .expect("find");
        let mut lines: Vec<String> = String::from_utf8(done.stdout)
            .expect("paths")
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    // Whatever the waiter writes as it begins is written by now.
    let waiter = scratch.waiter("again");
    wait_until("the waiter to wait", SHORT, || {
        waiter.title().contains("waits until")
    });
    let before = listing();
    for words in [
        &["status"][..],
        &["status", "--json"],
        &["explain", "--", "/bin/true"],
        &["stop", "other"],
    ] {
        // There is no timer of that name.
        let code = i32::from(words[0] == "stop");
        assert_eq!(scratch.again(words).code, Some(code), "{words:?}");
        assert_eq!(listing(), before, "{words:?}");
    }
    open_to_all(&scratch.path("state"), 0o755);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
    assert!(now() > 0);
}

/// Whoever fires at other machines from inside a run asks this: a noop run changes nothing anywhere.
#[test]
fn a_run_says_what_makes_it_noop() {
    let scratch = Scratch::new();
    scratch.write("work/site.pp", "ask('status', '--this-run', '--json')");
    let words = ["apply", "--noop", "site.pp"].map(Into::into);
    start(&mut scratch.puppet_command(&words)).finish();
    let inside: Value =
        serde_json::from_str(&scratch.runs("site")[0].asked()[0].output).expect("JSON");
    assert_eq!(inside["this_run"]["noop"], "--noop", "{inside}");
    scratch.assert_nothing_left();
}
