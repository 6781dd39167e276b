//! What doc/monitoring holds for Prometheus and Grafana, with the real promtool and a real Prometheus over real metrics.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use again_test_support::{SHORT, Scratch, start, wait_for};
use serde_json::Value;

const FILES: [&str; 3] = ["again.rules.yml", "again.rules.test.yml", "dashboard.json"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("doc/monitoring")
        .join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).expect("a file of doc/monitoring")
}

/// What the service of `again-fleet` writes numbers of, by its own list.
fn keys() -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fleet/src/service/tally.rs");
    let source = fs::read_to_string(source).expect("the source");
    let list = source.split_once("const KEYS").expect("a list").1;
    let list = list.split_once("];").expect("its end").0;
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// A machine on which everything has happened, and a service of a fleet that has written something of everything.
fn machine() -> Scratch {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --max-runs 1 --on-cap skip\n");
    wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["last"]
            .as_object()
            .map(|_| ())
    });
    scratch.wait_until_settled();
    scratch.shell("$AGAIN run --delta 1h --name later\n");
    let numbers = keys().into_iter().map(|key| format!(",\"{key}\":1"));
    let numbers: String = numbers.collect();
    scratch.write("fleet/serve/counts.json", &format!("{{\"at\":1{numbers}}}"));
    let directory = scratch.path("fleet");
    scratch.set(
        "AGAIN_FLEET_STATE_DIR",
        directory.to_str().expect("a plain path"),
    );
    scratch
}

#[track_caller]
fn promtool(words: &[&str]) {
    let mut command = Command::new("promtool");
    let output = command.args(words).current_dir(path("")).output();
    let output = output.expect("promtool, of the Debian package prometheus");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{words:?}: {said}");
}

#[test]
fn the_rules_are_good_and_each_alert_fires_when_it_should() {
    promtool(&["check", "rules", FILES[0]]);
    promtool(&["test", "rules", FILES[1]]);
    let tests = text(FILES[1]);
    let rules = text(FILES[0]);
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let untried: Vec<&str> = alerts
        .filter(|alert| {
            let is = |word: &str| tests.contains(&format!("name: {alert} {word}\n"));
            !is("fires") || !is("does not fire")
        })
        .collect();
    assert!(untried.is_empty(), "never tried: {untried:?}");
}

#[test]
fn every_name_is_one_of_a_metric_that_is_written() {
    let scratch = machine();
    let shown = scratch.again(&["metrics"]).ok();
    let written: BTreeSet<&str> = shown
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let of_the_fleet = written
        .iter()
        .filter(|name| name.starts_with("again_fleet_"));
    assert_eq!(of_the_fleet.count(), keys().len() + 1, "{shown}");
    for file in FILES {
        let text = text(file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: BTreeSet<&str> = words.filter(|word| word.starts_with("again_")).collect();
        assert!(named.len() > 10, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&written).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
}

/// The directory is that of a service that is not root, and may have been taken over; `again metrics` is.
#[test]
fn what_is_no_plain_file_of_numbers_is_left_alone() {
    let scratch = machine();
    let path = scratch.path("fleet/serve/counts.json");
    let kept = scratch.path("kept");
    fs::rename(&path, &kept).expect("renamed");
    let tells = || scratch.again(&["metrics"]).ok().contains("again_fleet_");
    symlink(&kept, &path).expect("a link");
    assert!(!tells(), "a link is followed");
    fs::remove_file(&path).expect("removed");
    assert!(
        Command::new("mkfifo")
            .arg(&path)
            .status()
            .expect("mkfifo")
            .success()
    );
    assert!(!tells());
    fs::remove_file(&path).expect("removed");
    fs::write(&path, [b' '; 5000]).expect("written");
    assert!(!tells());
    fs::rename(&kept, &path).expect("renamed");
    assert!(tells());
}

/// Every query of the dashboard, as Grafana asks it with all machines chosen.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text(FILES[2])).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().expect("a query");
        query
            .replace("$instance", ".*")
            .replace("$__rate_interval", "1m")
    });
    queries.collect()
}

#[test]
fn the_dashboard_has_its_rows_and_asks_the_source_that_is_chosen() {
    let dashboard: Value = serde_json::from_str(&text(FILES[2])).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let rows = panels.iter().filter(|panel| panel["type"] == "row");
    let rows: Vec<&str> = rows.filter_map(|row| row["title"].as_str()).collect();
    assert_eq!(rows, ["Reruns", "Cap", "Stuck", "Fleet", "Slots"]);
    let ids: BTreeSet<u64> = panels
        .iter()
        .filter_map(|panel| panel["id"].as_u64())
        .collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    let chosen = dashboard["templating"]["list"]
        .as_array()
        .expect("variables");
    assert!(
        chosen
            .iter()
            .any(|one| one["name"] == "datasource" && one["type"] == "datasource")
    );
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().expect("targets").iter();
        for asks in targets.chain([panel]) {
            assert_eq!(asks["datasource"]["uid"], "${datasource}", "{panel}");
        }
    }
}

/// A Prometheus that asks one machine for its metrics each second.
struct Prometheus {
    port: u16,
    _server: again_test_support::Started,
}

impl Prometheus {
    fn new(scratch: &Scratch, metrics: String) -> Prometheus {
        let machine = TcpListener::bind("127.0.0.1:0").expect("a port");
        let of_machine = machine.local_addr().expect("an address").port();
        thread::spawn(move || {
            for stream in machine.incoming() {
                let mut stream = stream.expect("a question");
                let _ = stream.read(&mut [0; 4096]);
                let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
                let _ = stream.write_all([head, &metrics].concat().as_bytes());
            }
        });
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        scratch.write(
            "prometheus.yml",
            &format!(
                "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{:?}]\nscrape_configs: [{{ job_name: again, static_configs: [{{ targets: ['127.0.0.1:{of_machine}'] }}] }}]\n",
                path(FILES[0])
            ),
        );
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}/prometheus.yml", scratch.root()));
        command.arg(format!("--storage.tsdb.path={}/tsdb", scratch.root()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let server = start(&mut command);
        Prometheus {
            port,
            _server: server,
        }
    }

    /// What it answers; nothing as long as it does not.
    fn ask(&self, what: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let question = format!("GET /api/v1/{what} HTTP/1.0\r\n\r\n");
        stream.write_all(question.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// The result of a query; the whole answer if it is none.
    fn query(&self, query: &str) -> Option<Result<usize, Value>> {
        let hex = query.bytes().map(|byte| format!("%{byte:02x}"));
        let answer = self.ask(&format!("query?query={}", hex.collect::<String>()))?;
        let found = answer["data"]["result"].as_array().map(Vec::len);
        Some(found.ok_or(answer))
    }
}

#[test]
fn every_panel_of_the_dashboard_has_something_to_show_in_a_real_prometheus() {
    let scratch = machine();
    let metrics = scratch.again(&["metrics"]).ok();
    let prometheus = Prometheus::new(&scratch, metrics);
    wait_for("two samples", SHORT, || {
        let found = prometheus.query("count_over_time(again_build_info[1m]) > 1")?;
        (found == Ok(1)).then_some(())
    });
    let queries = queries();
    assert!(queries.len() > 20, "{queries:?}");
    for query in queries {
        let found = prometheus.query(&query).expect("an answer");
        let found = found.unwrap_or_else(|answer| panic!("{query}: {answer}"));
        // What shows only what is wrong shows nothing here.
        let is_choosy =
            query.contains("} > 0") || query.contains("} == 1") || query.contains(") > 0");
        assert!(found > 0 || is_choosy, "nothing is shown by {query}");
    }
    let rules = prometheus.ask("rules").expect("an answer");
    let groups = rules["data"]["groups"].as_array().expect("groups").iter();
    let rules: Vec<Value> = groups
        .flat_map(|group| group["rules"].as_array().cloned().expect("rules"))
        .collect();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        assert_ne!(rule["health"], "err", "{rule}");
    }
}
