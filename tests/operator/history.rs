use crate::bench::{Bench, stable, wait_for};

/// Asks once more, with an eye to what becomes of it.
const TWICE: &str =
    "echo \"this is run ${AGAIN_RUN:-1}\"\ntest -n \"$AGAIN_RUN\" || $AGAIN run --delta 1\n";

/// The events, without what differs from run to run.
fn events(bench: &Bench) -> Vec<String> {
    let said = bench.again(&["history", "--json"]).ok();
    let lines = said.lines().map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        format!("{} {} {}", event["what"], event["run"], event["timer"]).replace('"', "")
    });
    lines.collect()
}

#[test]
fn a_chain_is_told_as_one_story() {
    let mut bench = Bench::new();
    assert!(
        bench
            .again(&["history"])
            .ok()
            .starts_with("no request on record")
    );
    bench.apply(TWICE);
    wait_for("the rerun", || {
        bench.status()["targets"][0]["last"].as_object().map(|_| ())
    });
    assert_eq!(
        events(&bench),
        ["requested 2 again", "started 2 again", "ended 2 again"]
    );
    let text = bench.again(&["history"]).ok();
    let words: Vec<String> = stable(&text, &bench)
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
    assert!(text.contains("started   after 1"), "{text}");
    let long: Vec<&str> = text.lines().filter(|line| line.contains("ended")).collect();
    assert!(long[0].contains("unknown (there is no summary"), "{text}");
}

#[test]
fn merged_stopped_refused_and_reset_are_told_with_their_reasons() {
    let mut bench = Bench::new();
    bench.apply("$AGAIN run --delta 1h\n$AGAIN run --delta 2h\n");
    bench.again(&["stop"]).ok();
    bench.again(&["disable", "why"]).ok();
    bench.apply("$AGAIN run\n");
    bench.again(&["enable"]).ok();
    assert_eq!(
        events(&bench),
        [
            "requested 2 again",
            "merged 2 again",
            "requested 2 again",
            "stopped 2 again",
            "refused 2 again"
        ]
    );
    let said = bench.again(&["history", "-n", "1"]).ok();
    assert!(
        said.contains("refused   timer 'again', again is disabled (why)"),
        "{said}"
    );
    assert!(!said.contains("merged"), "{said}");
    let all = bench.again(&["history"]).ok();
    assert!(all.contains("stopped by "), "{all}");
    assert!(
        all.contains("replaced by a newer request of the same name"),
        "{all}"
    );
    let chain = all.split_whitespace().nth(1).expect("a chain").to_owned();
    let one = bench.again(&["history", "--chain", &chain[..4]]).ok();
    assert!(one.contains("merged") && !one.contains("refused"), "{one}");
    let none = bench.again(&["history", "--chain", "x"]);
    assert_eq!(none.status, 1);
    assert!(none.err.contains("no chain in the history begins with 'x'"));
}

/// The line of `again history` about this event: its number, word and what follows.
#[track_caller]
fn told(bench: &Bench, word: &str) -> String {
    let text = bench.again(&["history"]).ok();
    let mut lines = text
        .lines()
        .filter(|line| line.starts_with("  20") && line.contains(&format!(" {word} ")));
    let line = lines.next().unwrap_or_else(|| panic!("no {word}: {text}"));
    assert_eq!(lines.next(), None, "{text}");
    line[23..].split_whitespace().collect::<Vec<_>>().join(" ")
}

fn kill_the_waiter(bench: &Bench) {
    let pid = bench.timer_in_state("waiting")["waiter"]["pid"].to_string();
    assert_eq!(bench.run("kill", &["-KILL", &pid]).status, 0);
    bench.timer_in_state("dead");
}

#[test]
fn resumed_and_lost_are_told() {
    let mut bench = Bench::new();
    bench.apply("$AGAIN run --delta 1h\n");
    kill_the_waiter(&bench);
    let said = bench.again(&["resume"]).ok();
    assert!(said.starts_with("again: resumed: timer 'again'"), "{said}");
    assert_eq!(told(&bench, "resumed"), "run 2 resumed its waiter had died");

    // Nobody can know any more what it was to run.
    kill_the_waiter(&bench);
    let orders = bench.target().join("orders");
    for order in std::fs::read_dir(&orders).expect("orders").flatten() {
        std::fs::remove_file(order.path()).expect("removed");
    }
    let said = bench.again(&["resume"]);
    assert_eq!(said.status, 1, "{said:?}");
    assert!(
        said.err
            .contains("timer 'again': it is lost: what it was to run cannot be read"),
        "{said:?}"
    );
    let line = told(&bench, "lost");
    assert!(
        line.starts_with("run 2 lost what it was to run cannot be read: "),
        "{line}"
    );
    bench.settled();
    assert_eq!(
        events(&bench),
        ["requested 2 again", "resumed 2 again", "lost 2 again"]
    );
    // It is over: a second time there is nothing to be said.
    assert_eq!(bench.again(&["resume"]).status, 0);
}

#[test]
fn failed_is_told_with_what_was_missing() {
    let mut bench = Bench::new();
    bench.apply("$AGAIN run --delta 1\n");
    std::fs::remove_file(bench.path("site.pp")).expect("removed");
    wait_for("its end", || {
        (events(&bench) == ["requested 2 again", "failed 2 again"]).then_some(())
    });
    bench.settled();
    let line = told(&bench, "failed");
    assert!(line.starts_with("run 2 failed after 1"), "{line}");
    assert!(
        line.contains("the manifest ") && line.contains("site.pp"),
        "{line}"
    );
}

/// A run of the agent by hand, after the timer was due, which asks for something itself and so is on record.
#[test]
fn satisfied_is_told_with_the_run_that_did_it() {
    let bench = Bench::new();
    let words = "--agent-disabled-lockfile $HERE/off --agent-catalog-run-lockfile $HERE/lock";
    bench.write("off", "{\"disabled_message\":\"for now\"}");
    bench.write(
        "site.pp",
        &format!("if test -e asked; then $AGAIN run --name later --delta 1h; else touch asked; $AGAIN run {words}; fi\n"),
    );
    let agent = || bench.run("ruby", &["bin/puppet", "agent", "--onetime", "site.pp"]);
    assert_eq!(agent().status, 0);
    bench.timer_in_state("held");
    // The kernel tells when a process started to the hundredth of a second, rounded down.
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(agent().status, 0);
    std::fs::remove_file(bench.path("off")).expect("enabled");
    wait_for("the timer to be satisfied", || {
        events(&bench)
            .contains(&"satisfied 2 again".to_owned())
            .then_some(())
    });
    let line = told(&bench, "satisfied");
    assert!(line.starts_with("run 2 satisfied after "), "{line}");
    assert!(
        line.ends_with("a run of this target started after it was due"),
        "{line}"
    );
    assert!(
        !events(&bench)
            .iter()
            .any(|event| event.starts_with("started"))
    );
}

/// The schema that again(8) documents.
#[test]
fn json_lines_are_stable() {
    let mut bench = Bench::new();
    bench.apply("$AGAIN run --delta 1h --name 'a \"name\"'\n");
    let history = bench.path("state/history.jsonl");
    let mut text = std::fs::read_to_string(&history).expect("a history");
    text.push_str("{\"version\":1\nnot json\n");
    std::fs::write(&history, text).expect("written");
    let said = bench.again(&["history", "--json"]).ok();
    let said = stable(&said, &bench);
    let lines: Vec<&str> = said.lines().collect();
    let (head, tail) = lines[0].split_once("\"at\":\"").expect("a time");
    let tail = tail.split_once('Z').expect("a time").1;
    assert_eq!(
        format!("{head}\"at\":\"{tail}"),
        r#"{"schema":1,"at":"","what":"requested","target":"ID","kind":"apply","timer":"a \"name\"","request":"ID","chain":"CHAIN","run":2,"outcome":null,"reason":"delta 1h, jitter 0s"}"#
    );
    assert_eq!(lines[1], r#"{"schema":1,"unreadable":2}"#);
    let text = bench.again(&["history"]);
    assert!(
        text.err
            .contains("2 lines of the history cannot be read and were left out"),
        "{text:?}"
    );
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut bench = Bench::new();
    bench.apply("for n in 1 2 3 4 5; do $AGAIN run --delta 1h; done\n");
    let said = bench.run(
        "bash",
        &["-c", "set -o pipefail; $AGAIN history --json | head -n 1"],
    );
    assert_eq!((said.status, said.out.lines().count()), (0, 1), "{said:?}");
}
