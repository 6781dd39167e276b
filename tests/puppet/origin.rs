use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::changes_once;
use again_test_support::{CachedAgent, LONG, Scratch, text, wait_until};

/// What again-fleet asks for, of one trigger.
fn word(number: u64) -> String {
    json!({
        "version": 1, "jitter": 0,
        "origins": [{"id": format!("{:032x}", 1), "cause": "refresh", "path": ["web1", "lb1"]}],
        "triggers": [{"id": format!("{number:032x}"), "sender": "lb1", "name": "again", "number": number, "until": 4_000_000_000_000_u64}],
    })
    .to_string()
}

/// A resource that looks at where its run comes from, into a file for each run.
fn looks(scratch: &Scratch) -> String {
    let (again, seen) = (scratch.at("bin/again"), scratch.at("seen"));
    fs::create_dir(&seen).expect("a directory");
    format!(
        "exec {{ 'look': command => ['/bin/sh', '-c', '{again} status --json > {seen}/$(/bin/date +%s%N)'], returns => [0, 3] }}\n"
    )
}

/// What it saw, in order.
fn seen(scratch: &Scratch) -> Vec<Value> {
    let entries = fs::read_dir(scratch.path("seen")).expect("the directory");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let report = |path: &PathBuf| -> Value {
        serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON")
    };
    paths
        .iter()
        .map(|path| report(path)["this_run"].clone())
        .collect()
}

fn files(below: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => files(&path, name, found),
            path if path.ends_with(name) => found.push(path),
            _ => {}
        }
    }
}

/// The run of an apply knows where it comes from, and so does the one that follows it.
#[test]
fn an_apply_and_its_rerun_know_where_they_come_from() {
    let scratch = Scratch::with_puppet();
    let body = looks(&scratch) + &changes_once(&scratch, "Exec['again']");
    let manifest = text(scratch.write("elsewhere/site.pp", &scratch.manifest(&body)));
    let conf = scratch.at("puppet/conf");
    let (word, puppet) = (word(7), ["puppet", "apply", "--confdir", &conf, &manifest]);
    let ask = [
        "run",
        "--origin",
        &word,
        "--name=again-fleet",
        "--delta=0",
        "--",
    ];
    scratch.again(&[&ask[..], &puppet].concat()).ok();
    wait_until("both runs", LONG, || scratch.catalogs().len() == 2);
    scratch.settle(LONG);
    let seen = seen(&scratch);
    assert_eq!(seen.len(), 2);
    for (run, triggers) in seen.iter().zip([1, 0]) {
        let origin = &run["origin"];
        assert_eq!(
            origin["origins"][0]["path"],
            json!(["web1", "lb1"]),
            "{run:#}"
        );
        assert_eq!(
            origin["triggers"].as_array().map(Vec::len),
            Some(triggers),
            "{run:#}"
        );
    }
    let ended = scratch.history_of("ended");
    assert_eq!(ended[0]["outcome"], "changed", "{ended:?}");
    assert_eq!(ended[0]["lineage"]["triggers"][0]["number"], 7, "{ended:?}");
}

/// An agent's report bears the id of the request, by which the history tells where the run comes from. A run that somebody starts
/// by hand, with another command line, does the job of a trigger that is ready, and carries it on.
#[test]
fn an_agent_has_a_job_and_any_run_of_it_carries_what_is_ready() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.bare_manifest(&looks(&scratch));
    let agent = CachedAgent::new(&scratch, &manifest, "");
    let conf = scratch.at("puppet/conf");
    let ask = |number, delta: &str| {
        let puppet = [
            "puppet",
            "agent",
            "--confdir",
            &conf,
            "--onetime",
            "--report",
        ];
        let (word, delta) = (word(number), format!("--delta={delta}"));
        let ask = ["run", "--origin", &word, "--name=again-fleet", &delta, "--"];
        scratch.again(&[&ask[..], &puppet].concat()).ok();
    };
    ask(7, "0");
    wait_until("its run", LONG, || scratch.catalogs().len() == 1);
    scratch.settle(LONG);
    let request = scratch.history_of("requested")[0]["token"].clone();
    let request = request.as_str().expect("a request");
    let mut reports = Vec::new();
    files(
        &scratch.path("puppet"),
        "last_run_report.yaml",
        &mut reports,
    );
    let report = fs::read_to_string(reports.first().expect("a report")).expect("readable");
    let job = report
        .lines()
        .find(|line| line.trim_start().starts_with("job_id:"));
    assert!(
        job.is_some_and(|job| job.contains(&format!("{request}//"))),
        "{job:?}, not {request}"
    );
    // At the cap it waits; a person does not.
    scratch.settings("max_runs = 1");
    ask(8, "0");
    // When a process has started is known in hundredths of a second, rounded down, as /proc/uptime is.
    let uptime = || fs::read_to_string("/proc/uptime").expect("readable");
    let hundredth = || uptime().split(' ').next().map(str::to_owned);
    let asked = hundredth();
    wait_until("another hundredth", LONG, || hundredth() != asked);
    agent.command(&["--test"]).run().expect(&[2]);
    scratch.again(&["stop"]).ok();
    let seen = seen(&scratch);
    let numbers: Vec<&Value> = seen
        .iter()
        .map(|run| &run["origin"]["triggers"][0]["number"])
        .collect();
    assert_eq!(numbers, [&json!(7), &json!(8)], "{seen:#?}");
}
