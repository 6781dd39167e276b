//! Findings of `check`, with real backends and the certificates of a Puppet CA.

use std::fs;

use again_fleet::ask::{Answer, How, Link, Waiting};
use serde_json::Value;

use crate::ca::Ca;
use crate::node::{Done, Node};
use crate::servers::{Kind, Server};

/// Returns a node with certificates, and with this backend.
fn node(backend: &str, port: u16, more: &str) -> Node {
    let node = Node::new();
    let ca = Ca::get();
    let path = |name: &str| ca.path(name);
    let (cert, key) = (path("web1.test.pem"), path("web1.test.key"));
    let (roots, crl) = (path("ca.pem"), path("crl.pem"));
    node.set(&format!(
        "backend = '{backend}'\nendpoints = ['localhost:{port}']\nnamespace = 'test'\ncert = {cert:?}\nkey = {key:?}\nca = {roots:?}\ncrl = {crl:?}\n{more}"
    ));
    node
}

fn how() -> How {
    How {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: "web1.test".parse().expect("a certname"),
        namespace: "test".parse().expect("a namespace"),
        began: 1,
        link: Link {
            backend: again_fleet::settings::Backend::Etcd,
            is_up: true,
            since: 2,
            why: String::new(),
        },
        failures: Vec::new(),
        outbox: Waiting {
            triggers: 0,
            selections: 0,
            results: 0,
            oldest: None,
            not_kept: None,
        },
        executor: None,
        rejected: 0,
        slots: Vec::new(),
        tokens: Vec::new(),
        ahead: Some(3),
        set_back: None,
        selections: Vec::new(),
        names: Vec::new(),
    }
}

/// Runs `check` while the test listens on the sockets of the service and of the executor.
fn checked(node: &Node, how: How) -> (Done, Vec<Value>) {
    let _ = fs::remove_file(node.path("run/trigger"));
    let _ = fs::remove_file(node.path("run/executor"));
    let take = std::os::unix::net::UnixListener::bind(node.path("run/executor")).expect("bound");
    let service = node.answers(vec![Answer::How(Box::new(how)), Answer::End]);
    let done = node.run(&["check", "--json"]);
    service.join().expect("asked");
    drop(take);
    let checks = done.json()["checks"].as_array().expect("a list").clone();
    (done, checks)
}

/// Checks in this state, as `name: what`.
fn are(checks: &[Value], state: &str) -> Vec<String> {
    let text = |one: &Value, key: &str| one[key].as_str().expect("text").to_owned();
    let those = checks.iter().filter(|one| one["state"] == state);
    those
        .map(|one| format!("{}: {}", text(one, "name"), text(one, "what")))
        .collect()
}

fn only_error(checks: &[Value]) -> String {
    match &are(checks, "error")[..] {
        [one] => one.clone(),
        other => panic!("{other:?} of {checks:?}"),
    }
}

#[test]
fn a_good_node_has_nothing_to_do() {
    let etcd = Server::start(Kind::Etcd);
    let slots = "slots_group = 'puppetserver'\nslots_limit = 8\n";
    let node = node("etcd", etcd.port, slots);
    let (done, checks) = checked(&node, how());
    assert_eq!(
        (done.status, are(&checks, "error")),
        (0, vec![]),
        "{done:?}"
    );
    let waits = "slots: runs wait for a slot of group 'puppetserver', which has 8";
    assert!(are(&checks, "ok").contains(&waits.to_owned()), "{checks:?}");
    let names: Vec<&str> = checks
        .iter()
        .map(|one| one["name"].as_str().expect("text"))
        .collect();
    let expected = [
        "settings",
        "accept",
        "slots",
        "again",
        "trust",
        "certificate",
        "key",
        "revocation",
        "backend",
        "service",
        "link",
        "permissions",
        "outbox",
        "clock",
        "executor",
    ];
    assert_eq!(names, expected);
    let backend = are(&checks, "ok")
        .into_iter()
        .find(|one| one.starts_with("backend: "));
    let backend = backend.expect("a backend");
    assert!(
        backend.starts_with("backend: etcd 3.") && backend.ends_with("is reached at 1 server"),
        "{backend}"
    );
    // The human-readable lines report the same.
    let service = {
        fs::remove_file(node.path("run/trigger")).expect("removed");
        node.answers(vec![Answer::How(Box::new(how()))])
    };
    let done = node.run(&["check"]);
    service.join().expect("asked");
    assert_eq!(done.out.lines().count(), expected.len(), "{done:?}");
    assert!(
        done.out
            .contains("\nerror    executor     nobody listens at "),
        "{done:?}"
    );
    assert_eq!(done.status, 1);
}

/// A full etcd refuses writes until an operator disarms the alarm.
#[test]
fn an_alarm_of_etcds_is_told() {
    let etcd = Server::start(Kind::Etcd);
    etcd.raise_no_space();
    let node = node("etcd", etcd.port, "");
    let (done, checks) = checked(&node, how());
    assert_eq!(done.status, 1);
    let error = only_error(&checks);
    assert!(
        error.starts_with("backend: etcd complains: ") && error.contains("NOSPACE"),
        "{error}"
    );
    assert!(done.out.contains("etcdctl alarm disarm"), "{done:?}");
}

#[test]
fn a_backend_that_is_away_is_named() {
    let etcd = Server::start(Kind::Etcd);
    let port = etcd.port;
    drop(etcd);
    let node = node("etcd", port, "");
    let (_, checks) = checked(&node, how());
    let error = only_error(&checks);
    let begin = format!("backend: etcd: https://localhost:{port} cannot be reached: ");
    assert!(error.starts_with(&begin), "{error}");
}

#[test]
fn nats_is_checked_and_has_to_have_jetstream() {
    let nats = Server::start(Kind::Nats);
    let (_, checks) = checked(&node("nats", nats.port, ""), how());
    assert_eq!(are(&checks, "error"), [""; 0]);
    let backend = are(&checks, "ok")
        .into_iter()
        .find(|one| one.starts_with("backend: "));
    assert!(
        backend.is_some_and(|backend| backend.starts_with("backend: nats 2.")),
        "{checks:?}"
    );
    let (_, checks) = checked(&node("nats", nats.port, "slots_group = 'g'\n"), how());
    let no_places = "slots: slots need etcd: on NATS a key that is renewed loses its place";
    assert_eq!(only_error(&checks), no_places);

    let user = r#"authorization { users = [ { user: "web1.test" } ] }"#;
    // If a setting occurs twice, the last one applies.
    let without = Server::configured(Kind::Nats, &format!("jetstream: false\n{user}"));
    let (done, checks) = checked(&node("nats", without.port, ""), how());
    let error = only_error(&checks);
    assert!(
        error.starts_with("backend: nats: tls://localhost:"),
        "{error}"
    );
    assert!(
        done.out.contains("start nats-server with JetStream"),
        "{done:?}"
    );
}

#[test]
fn what_an_backend_denies_is_told() {
    let nobody = r#"authorization { users = [ { user: "other.test" } ] }"#;
    let nats = Server::configured(Kind::Nats, nobody);
    let (done, checks) = checked(&node("nats", nats.port, ""), how());
    let error = only_error(&checks);
    assert!(error.contains("does not allow it"), "{error}");
    assert!(
        done.out.contains("enrol this node's certificate"),
        "{done:?}"
    );

    let etcd = Server::start(Kind::Etcd);
    for words in [
        "user add root --no-password",
        "user add admin.test --no-password",
        "user grant-role admin.test root",
        "user grant-role root root",
        "user add web1.test --no-password",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        etcd.etcdctl("web1.test", &words);
    }
    etcd.etcdctl("web1.test", &["auth", "enable"]);
    let (_, checks) = checked(&node("etcd", etcd.port, ""), how());
    let error = only_error(&checks);
    assert!(
        error.starts_with("permissions: etcd does not allow it: "),
        "{error}"
    );
}

/// Whether the backend accepts the certificates too is another question.
#[test]
fn certificates_that_others_would_not_believe_are_found() {
    let ca = Ca::get();
    // Certificate, key, CA and revocation lists; the check, and a part of its message.
    for (files, about, part) in [
        (
            ["web1.test.pem", "web1.test.key", "ca.pem", "crl-web1.pem"],
            "key",
            "was revoked",
        ),
        (
            ["web1.test.pem", "web1.test.key", "ca.pem", "crl-old.pem"],
            "revocation",
            "no longer valid",
        ),
        (
            ["web1.test.pem", "web1.test.key", "ca.pem", "none.pem"],
            "revocation",
            "cannot be read",
        ),
        (
            [
                "web1.test.pem",
                "web1.test.key",
                "foreign-ca.pem",
                "foreign-crl.pem",
            ],
            "key",
            "is not signed by our CA",
        ),
        (
            ["web1.test.pem", "web2.test.key", "ca.pem", "crl.pem"],
            "key",
            "is not that of its certificate",
        ),
        (
            ["web2.test.pem", "web2.test.key", "ca.pem", "crl.pem"],
            "certificate",
            "is of web2.test, and this node is web1.test",
        ),
        (
            ["expired.pem", "expired.key", "ca.pem", "crl.pem"],
            "certificate",
            "is no longer valid, since",
        ),
        (
            ["ca.pem", "web1.test.key", "ca.pem", "crl.pem"],
            "certificate",
            "is no certname",
        ),
    ] {
        let node = Node::new();
        let keys = ["cert", "key", "ca", "crl"].iter().zip(files);
        let set: String = keys
            .map(|(key, file)| format!("{key} = {:?}\n", ca.path(file)))
            .collect();
        node.set(&format!("{set}endpoints = ['localhost:1']"));
        if about == "certificate" && part.contains("since") {
            let path = node.path("again-fleet.toml");
            let text = fs::read_to_string(&path).expect("settings");
            fs::write(path, text.replace("'web1.test'", "'bent.test'")).expect("written");
        }
        let done = node.run(&["check", "--json"]);
        assert_eq!(done.status, 1);
        let checks = done.json()["checks"].as_array().expect("a list").clone();
        let found = are(&checks, "error");
        let is = |one: &&String| one.starts_with(&format!("{about}: ")) && one.contains(part);
        assert!(
            found.iter().any(|one| is(&one)),
            "{files:?}: no {part:?} in {found:?}"
        );
    }
}

#[test]
fn trust_in_the_backend_is_said_in_plain_words() {
    let node = Node::new();
    node.set("trust = 'backend'\ntls = false\nendpoints = ['localhost:1']\nrun_cmd = ['puppet', 'apply', '/site.pp']");
    let done = node.run(&["check"]);
    let line = done.out.lines().find(|line| line.contains(" trust "));
    let line = line.unwrap_or_else(|| panic!("{done:?}"));
    assert!(line.starts_with("warning  trust        trust = \"backend\": nothing is signed; whoever can write to the backend can have this node run 'puppet apply /site.pp', in anybody's name; "), "{line}");
}

#[test]
fn manifest_of_run_cmd_is_looked_for_where_it_starts() {
    let node = Node::new();
    let cwd = node.path("site");
    let set = format!("endpoints = ['localhost:1']\ncwd = {cwd:?}\n");
    let checks = |run_cmd: &str| {
        node.set(&format!("{set}run_cmd = {run_cmd}"));
        let done = node.run(&["check", "--json"]);
        let checks = done.json()["checks"].as_array().expect("a list").clone();
        let found = are(&checks, "error").into_iter();
        found
            .filter(|one| one.starts_with("run_cmd: "))
            .collect::<Vec<_>>()
    };
    let relative = "['nice', '-n', '5', 'puppet', 'apply', 'site.pp']";
    let cwd = cwd.display();
    assert_eq!(
        checks(relative),
        [format!(
            "run_cmd: {cwd}, the directory of run_cmd, is not there"
        )]
    );
    fs::write(node.path("site"), "").expect("written");
    assert_eq!(
        checks(relative),
        [format!(
            "run_cmd: {cwd}, the directory of run_cmd, cannot be used: not a directory"
        )]
    );
    fs::remove_file(node.path("site")).expect("removed");
    fs::create_dir(node.path("site")).expect("made");
    assert_eq!(
        checks(relative),
        [format!(
            "run_cmd: {cwd}/site.pp, the manifest of run_cmd, is not there"
        )]
    );
    assert_eq!(checks("['puppet', 'agent', '--onetime']"), [""; 0]);
    fs::write(node.path("site/site.pp"), "").expect("written");
    assert_eq!(checks(relative), [""; 0]);
}

#[test]
fn settings_that_cannot_be_used_end_it() {
    let node = Node::new();
    node.set("nonsense = 1");
    let done = node.run(&["check"]);
    assert_eq!(done.status, 1);
    assert_eq!(done.out.lines().count(), 1, "{done:?}");
    assert!(
        done.out
            .starts_with("error    settings     the settings cannot be used: "),
        "{done:?}"
    );
}

#[test]
fn a_rule_that_cannot_be_read_is_named() {
    let node = Node::new();
    let rules = node.path("rules");
    fs::create_dir(&rules).expect("made");
    fs::write(rules.join("a.toml"), "name = 'a'\nnonsense = 1\n").expect("written");
    node.set(&format!(
        "endpoints = ['localhost:1']\nrules_dir = {rules:?}"
    ));
    let done = node.run(&["check"]);
    assert_eq!(done.status, 1);
    let line = done.out.lines().find(|line| line.contains(" rules "));
    let line = line.unwrap_or_else(|| panic!("{done:?}"));
    assert!(
        line.contains("a.toml: line 2: unknown key 'nonsense'"),
        "{line}"
    );
}
