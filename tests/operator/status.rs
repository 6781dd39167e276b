use std::collections::BTreeMap;

use crate::bench::{Bench, stable, wait_for};

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

const VARIABLE: [&str; 17] = [
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
    "log",
];

const STORY: &str = "case $AGAIN_RUN in 2) exit 0;; 3) touch $HERE/third; until test -e $HERE/go; do sleep 0.05; done; exit 0;; esac
$AGAIN run --name \"$(cat $HERE/name)\" --max-runs 3 --on-cap skip
$AGAIN run --name later --delta 1h --jitter 0 --resource \"Common::Again::Delta[later]\"
";

/// Holds a report against the one that is kept in a file of tests/operator.
#[track_caller]
fn assert_is_what_it_was(report: serde_json::Value, bench: &Bench, name: &str) {
    let report = masked(report, &VARIABLE);
    let text = serde_json::to_string_pretty(&report).expect("JSON");
    let text = stable(&text, bench);
    let snapshot = crate::bench::repository().join("tests/operator").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&snapshot, format!("{text}\n")).expect("written");
    }
    let wanted = std::fs::read_to_string(&snapshot).expect("a snapshot");
    assert_eq!(text.trim(), wanted.trim(), "see tests/operator/{name}");
}

/// What is kept: together they have everything in them that there can be.
const SNAPSHOTS: [&str; 3] = ["status.json", "status-in-a-rerun.json", "status-held.json"];

/// The schema. A change here is a change for whoever reads it: fields may be added,
/// with the manual page.
#[test]
fn the_json_is_what_it_was() {
    let mut bench = Bench::new();
    bench.write("name", "a");
    bench.apply(STORY);
    wait_for("the rerun", || {
        bench.status()["targets"][0]["last"].as_object().map(|_| ())
    });
    bench.again(&["disable", "why"]).ok();
    bench.apply(STORY);
    bench.again(&["enable"]).ok();
    bench.write("name", "b c");
    // A chain of its own, whose first rerun is held by a file.
    bench.write("site.pp", "");
    bench.apply(&STORY.replace("in 2) exit 0;; 3)", "in 2)"));
    wait_for("the next rerun", || {
        bench.path("third").exists().then_some(())
    });
    bench.again(&["disable", "why"]).ok();
    // A driver, whose run has asked.
    bench.again(&["enable"]).ok();
    let driver = bench.command(&[
        "converge",
        "--max-runs",
        "4",
        "--",
        "sh",
        "-c",
        "$AGAIN run --delta 1h --resource 'Exec[again]'",
    ]);
    bench.spawn(driver);
    wait_for("its timer", || {
        bench.status()["drivers"][0]["timers"][0]
            .as_object()
            .map(|_| ())
    });
    bench.again(&["disable", "why"]).ok();
    let report = bench.status();
    bench.write("go", "");
    assert_is_what_it_was(report, &bench, SNAPSHOTS[0]);
}

/// As a rerun sees it that is the third run of its chain: after one that wrote to its
/// log, with the cap reached, a timer that was lost, and a driver whose run is under
/// way. And when it has ended, with a timer and a driver that are held.
#[test]
fn the_json_in_a_rerun_is_what_it_was() {
    let mut bench = Bench::new();
    let run = "$AGAIN run; until test -e $HERE/went; do sleep 0.05; done";
    let driver = bench.command(&["converge", "--", "sh", "-c", run]);
    bench.spawn(driver);
    wait_for("its run", || {
        bench.status()["drivers"][0]["run_pid"].as_i64()
    });
    bench.start(
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
    wait_for("the third run", || {
        let running = &bench.status()["targets"][0]["running"];
        (running["run"] == 3).then_some(())
    });
    // Nobody can know any more what this one was to run.
    let order = bench.record()["timers"]["lost"]["token"].clone();
    let order = bench
        .target()
        .join("orders")
        .join(order.as_str().expect("a token"));
    std::fs::remove_file(order).expect("removed");
    let timers = bench.status()["targets"][0]["timers"].clone();
    let mut timers = timers.as_array().expect("timers").iter();
    let lost = timers.find(|timer| timer["name"] == "lost").expect("it");
    bench
        .run("kill", &["-9", &lost["waiter"]["pid"].to_string()])
        .ok();
    wait_for("its loss", || {
        bench
            .again(&["resume"])
            .err
            .contains("'lost': it is lost")
            .then_some(())
    });
    bench.write("go", "");
    let report = wait_for("its look", || {
        serde_json::from_str(&bench.text("seen")).ok()
    });
    assert_is_what_it_was(report, &bench, SNAPSHOTS[1]);
    bench.again(&["stop", "next"]).ok();
    bench.again(&["disable", "why"]).ok();
    bench.again(&["now", "held"]).ok();
    bench.timer_in_state("held");
    bench.write("went", "");
    wait_for("the driver to be held", || {
        (bench.status()["drivers"][0]["state"] == "held").then_some(())
    });
    assert_is_what_it_was(bench.status(), &bench, SNAPSHOTS[2]);
}

#[test]
fn every_field_of_the_json_is_in_the_manual() {
    let manual =
        std::fs::read_to_string(crate::bench::repository().join("man/again.8")).expect("a page");
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
        let path = crate::bench::repository().join("tests/operator").join(name);
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
        assert!(words.contains(&key), "{path} is not in FORMATS of again(8)");
    }
    // What has no value has no fields of its own to be seen. A scope takes systemd.
    let never: Vec<&str> = found
        .iter()
        .filter(|(_, seen)| !**seen)
        .map(|(path, _)| path.as_str())
        .collect();
    assert_eq!(never, [".targets.timers.scope"]);
}

#[test]
fn says_in_how_long_and_why_not() {
    let mut bench = Bench::new();
    let said = bench.again(&["status"]);
    assert_eq!(said.status, 3);
    assert!(
        said.out
            .starts_with("nothing pending, no rerun on record; see 'again history'"),
        "{said:?}"
    );
    bench.apply("$AGAIN run --delta 118s --max-runs 1\n");
    bench.timer_in_state("waiting");
    let said = bench.again(&["status"]);
    assert_eq!(said.status, 0);
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
    bench.again(&["disable", "new switches"]).ok();
    bench.again(&["now"]).ok();
    bench.timer_in_state("held");
    let said = bench.again(&["status"]).ok();
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
    bench.again(&["enable"]).ok();
    bench.settled();
    // The rerun asked again, and met the cap.
    let said = bench.again(&["status"]);
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
    let mut bench = Bench::new();
    bench.apply("$AGAIN run --delta 1h\n");
    let waiter = bench.timer_in_state("waiting")["waiter"]["pid"].to_string();
    bench.run("kill", &["-9", &waiter]).ok();
    bench.timer_in_state("dead");
    let said = bench.again(&["status"]).ok();
    assert!(
        said.contains("  dead      timer 'again': its waiter is dead: 'again resume'"),
        "{said}"
    );
}

#[test]
fn a_rerun_that_was_stopped_says_by_whom() {
    let mut bench = Bench::new();
    bench.apply("test -n \"$AGAIN_RUN\" && exec sleep 600\n$AGAIN run\n");
    wait_for("the rerun", || {
        bench.status()["targets"][0]["running"]["pid"].as_i64()
    });
    bench.again(&["stop", "--run"]).ok();
    let last = bench.status()["targets"][0]["last"].clone();
    assert_eq!(last["outcome"], "unknown");
    let evidence = last["evidence"].as_str().expect("text");
    assert!(evidence.starts_with("ended by TERM, by "), "{evidence}");
}

/// On a terminal: no line wider than it, colours unless NO_COLOR says otherwise.
#[test]
fn fits_a_terminal_of_eighty_columns() {
    let mut bench = Bench::new();
    bench.apply("$AGAIN run --max-runs 1 --on-cap skip\n");
    bench.settled();
    wait_for("the refusal", || {
        bench.status()["targets"][0]["refused"]
            .as_object()
            .map(|_| ())
    });
    let shown = |before: &str| {
        let words = format!("stty cols 80; {before} $AGAIN status; true");
        bench.run("script", &["-qec", &words, "/dev/null"]).out
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
    fn apply(bench: &Bench, manifest: &str) -> String {
        bench.write("site.pp", manifest);
        let said = bench.run(
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

    /// Without the settings of the bench, so that Puppet's own paths are found.
    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("again.toml", "");
        bench
    }

    const ASK: &str = "exec { 'ask': command => '$AGAIN run', unless => 'test -n \"$AGAIN_RUN\"', provider => shell }\n";

    fn last(bench: &Bench) -> serde_json::Value {
        bench.settled();
        bench.status()["targets"][0]["last"].clone()
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
            let bench = bench();
            apply(&bench, &format!("{ASK}{more}"));
            let last = last(&bench);
            assert_eq!(last["outcome"], outcome, "{last}");
            let said = last["evidence"].as_str().expect("text");
            assert!(said.starts_with(evidence), "{said}");
            assert!(said.contains("/public/last_run_summary.yaml"), "{said}");
            assert!(last["ended_at"].is_string());
        }
    }

    #[test]
    fn a_summary_that_a_later_run_has_overwritten_is_not_taken_for_its_own() {
        let bench = bench();
        apply(&bench, ASK);
        // Nobody looks until the rerun has ended and another run has written a summary.
        wait_for("the rerun to end", || {
            let record = bench.record();
            let pid = record["running"][0]["process"]["pid"].as_i64()?;
            let is_there = std::path::Path::new(&format!("/proc/{pid}")).exists();
            (!is_there).then_some(())
        });
        apply(&bench, "notify { 'another run': }");
        let last = last(&bench);
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
