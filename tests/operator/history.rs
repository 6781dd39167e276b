use again_test_support::{SHORT, Scratch, pass_a_tick, stable, wait_for};

/// Asks once more, with an eye to what becomes of it.
const TWICE: &str =
    "echo \"this is run ${AGAIN_RUN:-1}\"\ntest -n \"$AGAIN_RUN\" || $AGAIN run --delta 1\n";

/// The events, without what differs from run to run.
fn events(scratch: &Scratch) -> Vec<String> {
    let said = scratch.again(&["history", "--json"]).ok();
    let lines = said.lines().map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        format!("{} {} {}", event["what"], event["run"], event["timer"]).replace('"', "")
    });
    lines.collect()
}

#[test]
fn a_chain_is_told_as_one_story() {
    let mut scratch = Scratch::for_operator();
    assert!(
        scratch
            .again(&["history"])
            .ok()
            .starts_with("no request on record")
    );
    scratch.shell(TWICE);
    wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["last"]
            .as_object()
            .map(|_| ())
    });
    assert_eq!(
        events(&scratch),
        ["requested 2 again", "started 2 again", "ended 2 again"]
    );
    let text = scratch.again(&["history"]).ok();
    let words: Vec<String> = stable(&text, &scratch)
        .lines()
        // Dates, times and spans are not the same twice.
        .map(|line| match line.strip_prefix("  20") {
            Some(_) => line[23..]
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" "),
            None => line.split(", ").next().unwrap_or_default().to_owned(),
        })
        .collect();
    assert_eq!(
        words,
        [
            "chain CHAIN of puppet apply (target ID",
            "  command  ruby HERE/bin/puppet apply site.pp (in HERE)",
            "run 1 began",
            "run 2 requested",
            "run 2 started",
            "run 2 ended"
        ],
        "{text}"
    );
    assert!(
        text.contains("timer 'again', delta 1s, jitter 0s"),
        "{text}"
    );
    assert!(text.contains("started   waited 1"), "{text}");
    let long: Vec<&str> = text.lines().filter(|line| line.contains("ended")).collect();
    assert!(long[0].contains("unknown (there is no summary"), "{text}");
    assert!(long[0].contains("ended     took "), "{text}");
}

#[test]
fn merged_stopped_refused_and_reset_are_told_with_their_reasons() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --delta 1h\n$AGAIN run --delta 2h\n");
    scratch.again(&["stop"]).ok();
    scratch.again(&["disable", "why"]).ok();
    scratch.shell("$AGAIN run\n");
    scratch.again(&["enable"]).ok();
    assert_eq!(
        events(&scratch),
        [
            "requested 2 again",
            "merged 2 again",
            "requested 2 again",
            "stopped 2 again",
            "refused 2 again"
        ]
    );
    let said = scratch.again(&["history", "-n", "1"]).ok();
    assert!(
        said.contains("refused   timer 'again', again is disabled (why)"),
        "{said}"
    );
    assert!(!said.contains("merged"), "{said}");
    let all = scratch.again(&["history"]).ok();
    assert!(all.contains("stopped by "), "{all}");
    assert!(
        all.contains("replaced by a newer request of the same name"),
        "{all}"
    );
    let chain = all.split_whitespace().nth(1).expect("a chain").to_owned();
    let one = scratch.again(&["history", "--chain", &chain[..4]]).ok();
    assert!(one.contains("merged") && !one.contains("refused"), "{one}");
    let none = scratch.again(&["history", "--chain", "x"]);
    assert_eq!(none.status(), 1);
    assert!(none.err.contains("no chain in the history begins with 'x'"));
}

#[test]
fn many_requests_in_a_row_are_one_line() {
    let mut scratch = Scratch::for_operator();
    scratch.shell(
        "for delta in 1 2 3 4 5; do $AGAIN run --delta ${delta}h; $AGAIN run --name b --delta ${delta}h; done\n",
    );
    scratch.again(&["stop"]).ok();
    let text = scratch.again(&["history", "-n", "1"]).ok();
    let mut lines = text.lines().filter(|line| line.contains("timer '"));
    for timer in ["again", "b"] {
        let line = lines.next().expect("a line");
        let what = format!("requested timer '{timer}', delta 5h");
        let has_all = line.contains(&what) && line.ends_with(", the newest of 5 requests");
        assert!(has_all, "{text}");
    }
    assert_eq!(lines.next(), None, "{text}");
    let json = scratch.again(&["history", "--json"]).ok();
    let count = |what: &str| json.matches(&format!("\"what\":\"{what}\"")).count();
    assert_eq!([count("requested"), count("merged")], [10, 8], "{json}");
}

/// The line of `again history` about this event: its number, word and what follows.
#[track_caller]
fn told(scratch: &Scratch, word: &str) -> String {
    let text = scratch.again(&["history"]).ok();
    let mut lines = text
        .lines()
        .filter(|line| line.starts_with("  20") && line.contains(&format!(" {word} ")));
    let line = lines.next().unwrap_or_else(|| panic!("no {word}: {text}"));
    assert_eq!(lines.next(), None, "{text}");
    line[23..].split_whitespace().collect::<Vec<_>>().join(" ")
}

fn kill_the_waiter(scratch: &Scratch) {
    let pid = scratch.timer_in_state("waiting")["waiter"]["pid"].to_string();
    assert_eq!(scratch.run("kill", &["-KILL", &pid]).status(), 0);
    scratch.timer_in_state("dead");
}

#[test]
fn resumed_and_lost_are_told() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --delta 1h\n");
    kill_the_waiter(&scratch);
    let said = scratch.again(&["resume"]).ok();
    assert!(said.starts_with("again: resumed: timer 'again'"), "{said}");
    assert_eq!(
        told(&scratch, "resumed"),
        "run 2 resumed its waiter had died"
    );

    // Nobody can know any more what it was to run.
    kill_the_waiter(&scratch);
    let orders = scratch.target().join("orders");
    for order in std::fs::read_dir(&orders).expect("orders").flatten() {
        std::fs::remove_file(order.path()).expect("removed");
    }
    let said = scratch.again(&["resume"]);
    assert_eq!(said.status(), 1, "{said:?}");
    assert!(
        said.err
            .contains("timer 'again': it is lost: the command of its rerun cannot be read"),
        "{said:?}"
    );
    let line = told(&scratch, "lost");
    assert!(
        line.starts_with("run 2 lost the command of its rerun cannot be read: "),
        "{line}"
    );
    scratch.wait_until_settled();
    assert_eq!(
        events(&scratch),
        ["requested 2 again", "resumed 2 again", "lost 2 again"]
    );
    // It is over: a second time there is nothing to be said.
    assert_eq!(scratch.again(&["resume"]).status(), 0);
}

#[test]
fn failed_is_told_with_what_was_missing() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --delta 1\n");
    std::fs::remove_file(scratch.path("site.pp")).expect("removed");
    wait_for("its end", SHORT, || {
        (events(&scratch) == ["requested 2 again", "failed 2 again"]).then_some(())
    });
    scratch.wait_until_settled();
    let line = told(&scratch, "failed");
    assert!(line.starts_with("run 2 failed waited 1"), "{line}");
    assert!(
        line.contains("the manifest ") && line.contains("site.pp"),
        "{line}"
    );
}

/// A run of the agent by hand, after the timer was due, which asks for something itself and so is on record.
#[test]
fn satisfied_is_told_with_the_run_that_did_it() {
    let scratch = Scratch::for_operator();
    let words = "--agent-disabled-lockfile $HERE/off --agent-catalog-run-lockfile $HERE/lock";
    scratch.write("off", "{\"disabled_message\":\"for now\"}");
    scratch.write_shell(
        "site.pp",
        &format!("if test -e asked; then $AGAIN run --name later --delta 1h; else touch asked; $AGAIN run {words}; fi\n"),
    );
    let agent = || scratch.run("ruby", &["bin/puppet", "agent", "--onetime", "site.pp"]);
    assert_eq!(agent().status(), 0);
    scratch.timer_in_state("held");
    pass_a_tick();
    assert_eq!(agent().status(), 0);
    std::fs::remove_file(scratch.path("off")).expect("enabled");
    wait_for("the timer to be satisfied", SHORT, || {
        events(&scratch)
            .contains(&"satisfied 2 again".to_owned())
            .then_some(())
    });
    let line = told(&scratch, "satisfied");
    assert!(line.starts_with("run 2 satisfied waited "), "{line}");
    assert!(
        line.ends_with("timer 'again', a run of this target started after the timer's delta"),
        "{line}"
    );
    assert!(
        !events(&scratch)
            .iter()
            .any(|event| event.starts_with("started"))
    );
}

/// The schema that again-json(5) documents.
#[test]
fn json_lines_are_stable() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --delta 1h --name 'a \"name\"'\n");
    let history = scratch.path("state/history.jsonl");
    let mut text = std::fs::read_to_string(&history).expect("a history");
    text.push_str("{\"version\":1\nnot json\n");
    std::fs::write(&history, text).expect("written");
    let said = scratch.again(&["history", "--json"]).ok();
    let said = stable(&said, &scratch);
    let lines: Vec<&str> = said.lines().collect();
    let mut event: serde_json::Value = serde_json::from_str(lines[0]).expect("JSON");
    for time in ["at", "chain_began_at"] {
        assert!(event[time].as_str().expect("a time").ends_with('Z'));
        event[time] = "X".into();
    }
    assert_eq!(
        event,
        serde_json::json!({
            "schema": 1, "at": "X", "what": "requested", "target": "ID", "kind": "apply", "timer": "a \"name\"",
            "request": "ID", "chain": "CHAIN", "run": 2, "outcome": null, "reason": "delta 1h, jitter 0s",
            "noticed": false, "chain_began_at": "X", "origin": null,
        })
    );
    assert_eq!(lines[1], r#"{"schema":1,"unreadable":2}"#);
    let text = scratch.again(&["history"]);
    assert!(
        text.err
            .contains("2 lines of the history cannot be read and were left out"),
        "{text:?}"
    );
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("for n in 1 2 3 4 5; do $AGAIN run --delta 1h; done\n");
    let said = scratch.run(
        "bash",
        &["-c", "set -o pipefail; $AGAIN history --json | head -n 1"],
    );
    assert_eq!(
        (said.status(), said.out.lines().count()),
        (0, 1),
        "{said:?}"
    );
}
