use std::collections::BTreeMap;

use again_test_support::{SHORT, Scratch, stable, wait_for};

/// Puts `X` for the value behind each of these keys.
fn masked(mut value: serde_json::Value, keys: &[&str]) -> serde_json::Value {
    match &mut value {
        serde_json::Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                *value = if keys.contains(&key.as_str()) && !value.is_null() {
                    "X".into()
                } else {
                    masked(value.take(), keys)
                };
            }
        }
        serde_json::Value::Array(list) => {
            for value in list.iter_mut() {
                *value = masked(value.take(), keys);
            }
        }
        _ => {}
    }
    value
}

const VARIABLE: [&str; 18] = [
    "now",
    "version",
    "user",
    "requested_at",
    "due_at",
    "due_in_seconds",
    "started_at",
    "ended_at",
    "began_at",
    "frees_at",
    "run_pid",
    "waits_for_pid",
    "seconds",
    "since",
    "at",
    "pid",
    "processes",
    "log",
];

const STORY: &str = "case $AGAIN_RUN in 2) exit 0;; 3) touch $HERE/third; until test -e $HERE/go; do sleep 0.05; done; exit 0;; esac
$AGAIN run --name \"$(cat $HERE/name)\" --max-runs 3 --on-cap skip
$AGAIN run --name later --delta 1h --jitter 0 --resource \"Common::Again::Delta[later]\"
";

/// Holds a report against the one that is kept in a file of tests/operator.
#[track_caller]
fn assert_is_what_it_was(report: serde_json::Value, scratch: &Scratch, name: &str) {
    let report = masked(report, &VARIABLE);
    let text = serde_json::to_string_pretty(&report).expect("JSON");
    let text = stable(&text, scratch);
    let snapshot = again_test_support::repository()
        .join("tests/operator")
        .join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&snapshot, format!("{text}\n")).expect("written");
    }
    let wanted = std::fs::read_to_string(&snapshot).expect("a snapshot");
    assert_eq!(text.trim(), wanted.trim(), "see tests/operator/{name}");
}

/// What is kept: together they have everything in them that there can be.
const SNAPSHOTS: [&str; 4] = [
    "status.json",
    "status-in-a-rerun.json",
    "status-held.json",
    "status-triggered.json",
];

/// Where it hangs: a name with a character that a terminal acts on is another user's to choose.
#[test]
fn status_and_explain_show_the_process_that_a_rerun_waits_for() {
    let mut scratch = Scratch::for_operator();
    scratch.shell(
        "test -n \"$AGAIN_RUN\" || { $AGAIN run; exit; }
fifo=$(printf 'pipe\\033[2J')
mkfifo \"$fifo\"
cat \"$fifo\" x
",
    );
    let seen = wait_for("the program that waits", SHORT, || {
        let processes = scratch.status()["targets"][0]["running"]["processes"].clone();
        let command = processes["deepest"]["command"].as_str();
        (command == Some("cat pipe\u{1b}[2J x")).then_some(processes)
    });
    let run = scratch.status()["targets"][0]["running"]["pid"].clone();
    let deepest = seen["deepest"]["pid"].as_i64().expect("a pid");
    assert_ne!(run, deepest);
    assert!(seen["count"].as_u64() >= Some(2), "{seen}");
    assert!(seen["memory_bytes"].as_u64() > Some(100_000), "{seen}");
    assert!(
        seen["cpu_seconds"].is_f64() && seen["deepest"]["seconds"].is_u64(),
        "{seen}"
    );
    let text = scratch.again(&["status"]).ok();
    let line = text.lines().find(|line| line.starts_with("  processes "));
    let line = line.expect("a line about processes");
    assert!(line.contains("; in cat pipe\\u{1b}[2J x for "), "{line}");
    assert!(line.ends_with(&format!(" (pid {deepest})")), "{line}");
    let tree = scratch.again(&["explain", "--pid", &run.to_string()]).ok();
    let below = tree.split("  a rerun that is under way: ").nth(1);
    let mut below = below.expect("the rerun").lines().skip(1);
    let first = below.next().unwrap_or_default();
    assert!(first.starts_with(&format!("    {run} ")), "{tree}");
    let leaf = format!(" {deepest} cat pipe\\u{{1b}}[2J x (up ");
    assert!(
        below.any(|line| line.starts_with("     ") && line.contains(&leaf)),
        "{tree}"
    );
    let pipe = scratch.path("pipe\u{1b}[2J");
    std::fs::write(pipe, "").expect("written");
    scratch.wait_until_settled();
    assert_eq!(
        scratch.status()["targets"][0]["running"],
        serde_json::Value::Null
    );
}

/// The schema. A change here is a change for whoever reads it: fields may be added,
/// with the manual page.
#[test]
fn the_json_is_what_it_was() {
    let mut scratch = Scratch::for_operator();
    scratch.write("name", "a");
    scratch.shell(STORY);
    wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["last"]
            .as_object()
            .map(|_| ())
    });
    scratch.again(&["disable", "why"]).ok();
    scratch.shell(STORY);
    scratch.again(&["enable"]).ok();
    scratch.write("name", "b c");
    // A chain of its own, whose first rerun is held by a file.
    scratch.write_shell("site.pp", "");
    scratch.shell(&STORY.replace("in 2) exit 0;; 3)", "in 2)"));
    wait_for("the next rerun", SHORT, || {
        scratch.path("third").exists().then_some(())
    });
    scratch.again(&["disable", "why"]).ok();
    // A driver, whose run has asked.
    scratch.again(&["enable"]).ok();
    let driver = scratch.again_command(&[
        "converge",
        "--max-runs",
        "4",
        "--",
        "sh",
        "-c",
        "$AGAIN run --delta 1h --resource 'Exec[again]'",
    ]);
    scratch.spawn(driver);
    wait_for("its timer", SHORT, || {
        scratch.status()["drivers"][0]["timers"][0]
            .as_object()
            .map(|_| ())
    });
    scratch.again(&["disable", "why"]).ok();
    let report = scratch.status();
    scratch.write("go", "");
    assert_is_what_it_was(report, &scratch, SNAPSHOTS[0]);
}

/// As a rerun sees it that is the third run of its chain: after one that wrote to its
/// log, with the cap reached, a timer that was lost, and a driver whose run is under
/// way. And when it has ended, with a timer and a driver that are held.
#[test]
fn the_json_in_a_rerun_is_what_it_was() {
    let mut scratch = Scratch::for_operator();
    let run = "$AGAIN run; until test -e $HERE/went; do sleep 0.05; done";
    let driver = scratch.again_command(&["converge", "--", "sh", "-c", run]);
    scratch.spawn(driver);
    wait_for("its run", SHORT, || {
        scratch.status()["drivers"][0]["run_pid"].as_i64()
    });
    scratch.begin_shell(
        "case $AGAIN_RUN in
2) $AGAIN run --name second; echo said; exit 0;;
3) until test -e $HERE/go; do sleep 0.05; done; $AGAIN run --name next --delta 4h; $AGAIN status --json > $HERE/seen; exit 0;;
esac
$AGAIN run --name first
$AGAIN run --name capped --delta 1h --max-runs 2
$AGAIN run --name held --delta 2h
$AGAIN run --name lost --delta 3h
",
    );
    wait_for("the third run", SHORT, || {
        let running = &scratch.status()["targets"][0]["running"];
        (running["run"] == 3).then_some(())
    });
    // Nobody can know any more what this one was to run.
    let order = scratch.record()["timers"]["lost"]["token"].clone();
    let order = scratch
        .target()
        .join("orders")
        .join(order.as_str().expect("a token"));
    std::fs::remove_file(order).expect("removed");
    let timers = scratch.status()["targets"][0]["timers"].clone();
    let mut timers = timers.as_array().expect("timers").iter();
    let lost = timers.find(|timer| timer["name"] == "lost").expect("it");
    scratch
        .run("kill", &["-9", &lost["waiter"]["pid"].to_string()])
        .ok();
    wait_for("its loss", SHORT, || {
        scratch
            .again(&["resume"])
            .err
            .contains("'lost': it is lost")
            .then_some(())
    });
    scratch.write("go", "");
    let report = wait_for("its look", SHORT, || {
        serde_json::from_str(&scratch.text("seen")).ok()
    });
    assert_is_what_it_was(report, &scratch, SNAPSHOTS[1]);
    scratch.again(&["stop", "next"]).ok();
    scratch.again(&["disable", "why"]).ok();
    scratch.again(&["now", "held"]).ok();
    scratch.timer_in_state("held");
    scratch.write("went", "");
    wait_for("the driver to be held", SHORT, || {
        (scratch.status()["drivers"][0]["state"] == "held").then_some(())
    });
    assert_is_what_it_was(scratch.status(), &scratch, SNAPSHOTS[2]);
}

/// As a run sees it that another node has asked for, while more triggers wait.
#[test]
fn the_json_in_a_triggered_run_is_what_it_was() {
    let scratch = Scratch::for_operator();
    scratch.write_shell(
        "site.pp",
        "$AGAIN status --json > $HERE/draft || true; mv $HERE/draft $HERE/seen; until test -e $HERE/go; do sleep 0.05; done",
    );
    let script = scratch.at("bin/puppet");
    for (number, delta) in [(1, "--delta=3600"), (2, "--delta=0")] {
        let word = serde_json::json!({
            "version": 1, "jitter": 0,
            "origins": [{"id": format!("{number:032x}"), "cause": "refresh", "path": ["web1", "lb1"]}],
            "triggers": [{"id": format!("{number:032x}"), "sender": "lb1", "name": "again", "number": number, "until": 4_000_000_000_000_u64}],
        });
        let (word, name) = (word.to_string(), "--name=again-fleet");
        let words = ["run", "--origin", &word, name, delta, "--"];
        let puppet = ["ruby", script.as_str(), "apply", "site.pp"];
        scratch.again(&[&words[..], &puppet].concat()).ok();
    }
    let report = wait_for("its look", SHORT, || {
        serde_json::from_str(&scratch.text("seen")).ok()
    });
    scratch.write("go", "");
    assert_is_what_it_was(report, &scratch, SNAPSHOTS[3]);
}

#[test]
fn every_field_of_the_json_is_in_the_manual() {
    let manual = std::fs::read_to_string(again_test_support::repository().join("man/again-json.5"))
        .expect("a page");
    let formats = manual
        .split(".Sh FORMATS")
        .nth(1)
        .expect("formats")
        .split(".Sh")
        .next()
        .expect("them");
    let words: Vec<&str> = formats
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .collect();
    /// Each field by its path, and whether it has ever a value.
    fn fields(value: &serde_json::Value, at: &str, found: &mut BTreeMap<String, bool>) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map {
                    let path = format!("{at}.{key}");
                    *found.entry(path.clone()).or_default() |= !value.is_null();
                    fields(value, &path, found);
                }
            }
            serde_json::Value::Array(list) => {
                list.iter().for_each(|value| fields(value, at, found))
            }
            _ => {}
        }
    }
    let mut found = BTreeMap::new();
    for name in SNAPSHOTS {
        let path = again_test_support::repository()
            .join("tests/operator")
            .join(name);
        let snapshot = std::fs::read_to_string(path).expect("a snapshot");
        fields(
            &serde_json::from_str(&snapshot).expect("JSON"),
            "",
            &mut found,
        );
    }
    assert!(found.len() > 70, "{found:#?}");
    for path in found.keys() {
        let key = path.rsplit('.').next().expect("a key");
        assert!(
            words.contains(&key),
            "{path} is not in FORMATS of again-json(5)"
        );
    }
    // What has no value has no fields of its own to be seen. A scope takes systemd.
    let never: Vec<&str> = found
        .iter()
        .filter(|(_, seen)| !**seen)
        .map(|(path, _)| path.as_str())
        .collect();
    assert_eq!(
        never,
        [
            ".targets.last.log_lost",
            ".targets.locked_by",
            ".targets.running.log_lost",
            ".targets.timers.blocked_by.reason",
            ".targets.timers.scope",
            ".this_run.noop"
        ]
    );
}

#[test]
fn says_in_how_long_and_why_not() {
    let mut scratch = Scratch::for_operator();
    let said = scratch.again(&["status"]);
    assert_eq!(said.status(), 3);
    assert!(
        said.out
            .starts_with("nothing pending, no rerun on record; see 'again history'"),
        "{said:?}"
    );
    scratch.shell("$AGAIN run --delta 118s --max-runs 1\n");
    scratch.timer_in_state("waiting");
    let said = scratch.again(&["status"]);
    assert_eq!(said.status(), 0);
    assert!(
        said.out.contains("  pending   timer 'again': in 1m5"),
        "{said:?}"
    );
    assert!(
        said.out
            .contains("  cap       0 of 1 reruns within 1h used\n"),
        "{said:?}"
    );
    assert!(!said.out.contains('\u{1b}'));
    scratch.again(&["disable", "new switches"]).ok();
    scratch.again(&["now"]).ok();
    scratch.timer_in_state("held");
    let said = scratch.again(&["status"]).ok();
    assert!(said.starts_with("again is disabled since 20"), "{said}");
    assert!(
        said.contains("(new switches); requests are refused"),
        "{said}"
    );
    assert!(
        said.contains(
            "  held      timer 'again': due, held: again is disabled: new switches (run 2"
        ),
        "{said}"
    );
    scratch.again(&["enable"]).ok();
    scratch.wait_until_settled();
    // The rerun asked again, and met the cap.
    let said = scratch.again(&["status"]);
    assert!(said.out.contains("  refused   20"), "{said:?}");
    assert!(
        said.out
            .contains("timer 'again': the cap is reached: 1 of at most 1 reruns"),
        "{said:?}"
    );
    assert!(
        said.out
            .contains("  cap       1 of 10 reruns within 1h used\n"),
        "{said:?}"
    );
}

#[test]
fn a_dead_waiter_is_shown_as_such() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --delta 1h\n");
    let waiter = scratch.timer_in_state("waiting")["waiter"]["pid"].to_string();
    scratch.run("kill", &["-9", &waiter]).ok();
    scratch.timer_in_state("dead");
    let said = scratch.again(&["status"]).ok();
    assert!(
        said.contains("  dead      timer 'again': its waiter is dead: 'again resume'"),
        "{said}"
    );
}

#[test]
fn a_rerun_that_was_stopped_says_by_whom() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -n \"$AGAIN_RUN\" && exec sleep 600\n$AGAIN run\n");
    wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["running"]["pid"].as_i64()
    });
    scratch.again(&["stop", "--run"]).ok();
    let last = scratch.status()["targets"][0]["last"].clone();
    assert_eq!(last["outcome"], "unknown");
    let evidence = last["evidence"].as_str().expect("text");
    assert!(evidence.starts_with("ended by TERM, by "), "{evidence}");
}

/// On a terminal: no line wider than it, colours unless NO_COLOR says otherwise.
#[test]
fn fits_a_terminal_of_eighty_columns() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --max-runs 1 --on-cap skip\n");
    scratch.wait_until_settled();
    wait_for("the refusal", SHORT, || {
        scratch.status()["targets"][0]["refused"]
            .as_object()
            .map(|_| ())
    });
    let shown = |before: &str| {
        let words = format!("stty cols 80; {before} $AGAIN status; true");
        scratch.run("script", &["-qec", &words, "/dev/null"]).out
    };
    let coloured = shown("TERM=xterm");
    assert!(coloured.contains("\u{1b}[33m  refused"), "{coloured:?}");
    let plain = shown("NO_COLOR=1 TERM=xterm");
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    assert!(plain.lines().count() > 6, "{plain}");
    for line in plain.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line}");
    }
}

/// Real Puppet, whose summary is the point.
mod puppet {
    use super::*;

    /// A run of this manifest, and of its rerun; the rerun's directories are the test's own.
    fn apply(scratch: &Scratch, manifest: &str) -> String {
        scratch.write_shell("site.pp", manifest);
        let said = scratch.run(
            "puppet",
            &[
                "apply",
                "--confdir",
                "conf",
                "--vardir",
                "var",
                "--publicdir",
                "public",
                "site.pp",
            ],
        );
        format!("{}{}", said.out, said.err)
    }

    /// Without the settings of the scratch, so that Puppet's own paths are found.
    fn scratch() -> Scratch {
        let scratch = Scratch::for_operator();
        scratch.write("again.toml", "");
        scratch
    }

    const ASK: &str = "exec { 'ask': command => '$AGAIN run', unless => 'test -n \"$AGAIN_RUN\"', provider => shell }\n";

    fn last(scratch: &Scratch) -> serde_json::Value {
        scratch.wait_until_settled();
        scratch.status()["targets"][0]["last"].clone()
    }

    #[test]
    fn unchanged_changed_and_failed_by_its_own_summary() {
        for (more, outcome, evidence) in [
            ("", "unchanged", "no resource changed, by "),
            (
                "exec { 'x': command => 'true', provider => shell }",
                "changed",
                "1 resource changed, by ",
            ),
            (
                "exec { 'x': command => 'test -z \"$AGAIN_RUN\"', provider => shell }",
                "failed",
                "1 resource failed, ",
            ),
            (
                "exec { 'y': command => 'echo \"fail(1)\" >$HERE/site.pp', unless => 'test -n \"$AGAIN_RUN\"', provider => shell }",
                // puppet apply leaves nothing behind when its manifest does not compile.
                "unknown",
                "it wrote no summary, ",
            ),
        ] {
            let scratch = scratch();
            apply(&scratch, &format!("{ASK}{more}"));
            let last = last(&scratch);
            assert_eq!(last["outcome"], outcome, "{last}");
            let said = last["evidence"].as_str().expect("text");
            assert!(said.starts_with(evidence), "{said}");
            assert!(said.contains("/public/last_run_summary.yaml"), "{said}");
            assert!(last["ended_at"].is_string());
        }
    }

    #[test]
    fn a_summary_that_a_later_run_has_overwritten_is_not_taken_for_its_own() {
        let scratch = scratch();
        apply(&scratch, ASK);
        // Nobody looks until the rerun has ended and another run has written a summary.
        wait_for("the rerun to end", SHORT, || {
            let record = scratch.record();
            let pid = record["running"][0]["process"]["pid"].as_i64()?;
            let is_there = std::path::Path::new(&format!("/proc/{pid}")).exists();
            (!is_there).then_some(())
        });
        apply(&scratch, "notify { 'another run': }");
        let last = last(&scratch);
        assert_eq!(last["outcome"], "unknown", "{last}");
        assert!(
            last["evidence"]
                .as_str()
                .expect("text")
                .contains("overwritten by a later run"),
            "{last}"
        );
    }
}
