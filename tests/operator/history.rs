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
            .starts_with("no request was ever made")
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
