//! State of the nodes: the facts that they publish, how they are listed and selected, and the
//! removal of a node.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use again_fleet::wire::inventory::Inventory;
use serde_json::{Value, json};

use crate::ca::Ca;
use crate::fired::sealed_as;
use crate::name;
use crate::real::{done, well};
use crate::servers::{Kind, Server};
use crate::straight::{self, Straight};
use crate::whole::{Node, until};

fn json(node: &Node, words: &[&str]) -> Value {
    serde_json::from_str(&well(node, words)).expect("JSON")
}

/// Publishes facts of the node, as a run does.
fn tells(node: &Node, said: &Value) {
    let mut child = node
        .command(&["tell"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it is there");
    let mut stdin = child.stdin.take().expect("a pipe");
    write!(stdin, "{said}").expect("told");
    drop(stdin);
    assert!(child.wait().expect("ended").success());
}

pub fn has_role(node: &Node, role: &str) {
    let facts =
        json!({"role": role, "cpus": 2, "up": true, "ignored": ["x"], "long": "y".repeat(600)});
    let said = json!({"facts": facts, "classes": ["profile::x", role], "environment": "production", "puppet": "7.23.0"});
    tells(node, &said);
}

/// Names of the nodes that are listed.
pub fn shown(node: &Node, words: &[&str]) -> Vec<String> {
    let (status, out, err) = done(node.command(&[&["nodes", "--json"], words].concat()));
    assert_eq!(status, 0, "{words:?}: {err}");
    let all: Value = serde_json::from_str(&out).expect("JSON");
    let nodes = all["nodes"].as_array().expect("nodes");
    let name = |one: &Value| one["node"].as_str().expect("a name").to_owned();
    nodes.iter().map(name).collect()
}

#[test]
fn what_nodes_tell_is_shown() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
        [&web1, &lb1].iter().for_each(|node| node.is_linked(true));
        has_role(&lb1, "lb");
        until("the other", || {
            shown(&web1, &["--where", "role=lb"]) == ["lb1.test"]
        });
        until("both", || shown(&web1, &[]).len() == 2);
        let mut all = json(&web1, &["nodes", "--json"]);
        for (n, time) in [(0, "at"), (0, "running_since"), (1, "at")] {
            let time = all["nodes"][n][time].take();
            assert!(
                time.as_str().is_some_and(|time| time.ends_with('Z')),
                "{time}"
            );
        }
        let nothing = json!({
            "node": "web1.test", "alive": true, "missing_since": null, "at": null, "facts": {}, "classes": [], "environment": null, "again_fleet": env!("CARGO_PKG_VERSION"),
            "puppet": null, "last": null, "ended": null, "running": false, "running_since": null, "pending": 0, "disabled": false, "cap": null,
        });
        let told = json!({
            "node": "lb1.test", "alive": true, "missing_since": null, "at": null,
            "facts": {"role": "lb", "cpus": "2", "up": "true", "long": "y".repeat(512)}, "classes": ["lb", "profile::x"],
            "environment": "production", "again_fleet": env!("CARGO_PKG_VERSION"), "puppet": "7.23.0", "last": null, "ended": null,
            "running": true, "running_since": null, "pending": 0, "disabled": false, "cap": null,
        });
        let expected = json!({"schema": 1, "version": env!("CARGO_PKG_VERSION"), "stored": null, "warnings": [], "ignored": [], "nodes": [told, nothing]});
        assert_eq!(all, expected);
        well(&lb1, &["tell", "--end=failed"]);
        until("the end", || {
            json(&web1, &["nodes", "--json"])["nodes"][0]["last"] == "failed"
        });
        let table = well(&web1, &["nodes"]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[0].starts_with("NODE       THERE  ENVIRONMENT  LAST RUN"),
            "{table}"
        );
        assert!(
            lines[1].starts_with("lb1.test   alive  production   failed "),
            "{table}"
        );
        assert!(
            lines[2].starts_with("web1.test  alive               told nothing"),
            "{table}"
        );
        // A node publishes again after the backend has lost its entry, and when another service
        // starts.
        lb1.kill();
        if kind == Kind::Etcd {
            // An entry is valid only at the key of the node that has signed it.
            let straight = Straight::at(&server, "web1.test");
            let told = Inventory {
                node: name("lb1.test"),
                at: 1,
                serial: 1,
                facts: [("role".to_owned(), "web".to_owned())].into(),
                classes: BTreeSet::new(),
                environment: String::new(),
                version: String::new(),
                puppet: String::new(),
                running: None,
                last: None,
                ended: None,
                pending: 0,
                disabled: false,
                cap: None,
                tokens: std::collections::BTreeMap::new(),
                resets: std::collections::BTreeMap::new(),
            };
            for bytes in [&b"x"[..], &sealed_as("web2.test", &told)] {
                straight.put("node/lb1=test", bytes).expect("put");
                assert_eq!(shown(&web1, &["--where", "role!=x"]), [""; 0]);
            }
            straight
                .put("node/web1=test", &sealed_as("lb1.test", &told))
                .expect("put");
            assert_eq!(shown(&web1, &["--where", "role=web"]), [""; 0]);
            // More entries than are verified together, none of them valid.
            for n in 0..100 {
                let put = straight.put(&format!("node/a{n}=test"), b"x");
                put.expect("put");
            }
        }
        lb1.start();
        lb1.is_linked(true);
        until("what it told", || {
            shown(
                &web1,
                &["--class", "Profile::X", "--environment=production"],
            ) == ["lb1.test"]
        });
        // A service that has not read the nodes before cannot list them while the backend is down.
        server.kill();
        until("the loss", || !lb1.how().link.is_up);
        let (status, out, err) = done(lb1.command(&["nodes"]));
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("cannot be reached"), "{err}");
        let (status, _, err) = done(lb1.command(&["trigger", "--where", "role=lb"]));
        let begin = "again-fleet: warning: no node is known: ";
        assert!(status == 0 && err.starts_with(begin), "{err}");
        // Facts that a run publishes meanwhile are kept.
        has_role(&web1, "web");
        server.run();
        web1.is_linked(true);
        until("it", || {
            shown(&web1, &["--where", "role=web"]) == ["web1.test"]
        });
        // What another one has verified counts there, until its signer is revoked.
        lb1.is_linked(true);
        for _ in 0..2 {
            assert_eq!(shown(&lb1, &["--where", "role=web"]), ["web1.test"]);
        }
        fs::write(lb1.path("new"), Ca::get().read("crl-web1.pem")).expect("written");
        fs::rename(lb1.path("new"), lb1.path("crl.pem")).expect("renamed");
        assert_eq!(shown(&lb1, &["--where", "role=web"]), [""; 0]);
    }
}

/// A writer to the backend, or an owner of a copy of the node's key, puts older facts of the node
/// back.
#[test]
fn older_facts_that_are_put_back_count_for_nothing_and_are_replaced() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
        [&web1, &lb1].iter().for_each(|node| node.is_linked(true));
        let straight = Straight::at(&server, "web2.test");
        let key = "node/lb1=test";
        let is = |role: &str| shown(&web1, &["--where", &format!("role={role}")]);
        has_role(&lb1, "web");
        until("the first facts", || is("web") == ["lb1.test"]);
        let old = straight.list(key).remove(0).bytes;
        has_role(&lb1, "lb");
        until("the newer ones", || is("lb") == ["lb1.test"]);
        let since = straight.put(key, &old).expect("put");
        let is_replaced = |since| straight.list(key)[0].revision > since;
        until("the restoration", || is_replaced(since));
        assert_eq!(
            (is("lb"), is("web").len()),
            (vec!["lb1.test".to_owned()], 0)
        );
        let what = "the facts of this node, lb1.test, are published again: in place of version";
        assert!(lb1.log().contains(what), "{}", lb1.log());
        // While the node cannot restore its facts, another node remembers that they are old, also
        // after a restart.
        lb1.kill();
        straight.put(key, &old).expect("put");
        let before = web1.log();
        for _ in 0..2 {
            assert_eq!((is("web").len(), is("lb").len()), (0, 0));
        }
        let log = web1.log().split_off(before.len());
        assert_eq!(log.matches("is older than").count(), 1, "{log}");
        let (_, _, err) = done(web1.command(&["nodes"]));
        assert!(
            err.contains("ignored the facts of") && err.contains("1 node: lb1.test"),
            "{err}"
        );
        web1.stop();
        web1.start();
        web1.is_linked(true);
        let words = ["trigger", "--where", "role=web"];
        let (status, out, err) = done(web1.command(&words));
        assert!(
            status == 0 && out.contains("the selection is stored until "),
            "{out}{err}"
        );
        assert!(
            err.contains("ignored the facts of 1 node: lb1.test"),
            "{err}"
        );
        lb1.start();
        until("its return", || is("lb") == ["lb1.test"]);
        // Another user of the node's certificate, whose clock is an hour ahead.
        let mut theirs = straight::read::<Inventory>(&straight.list(key)[0].bytes);
        theirs.serial += 3_600_000;
        theirs.facts.insert("role".to_owned(), "web".to_owned());
        let since = straight
            .put(key, &sealed_as("lb1.test", &theirs))
            .expect("put");
        until("its own", || is_replaced(since));
        assert_eq!(
            (is("lb"), is("web").len()),
            (vec!["lb1.test".to_owned()], 0)
        );
        let log = lb1.log();
        assert!(
            log.contains("another user of its certificate published version"),
            "{log}"
        );
        assert!(log.contains(", role=web; "), "{log}");
    }
}

#[test]
fn program_without_a_command_prints_its_help() {
    let (status, out, err) = done(Command::new(env!("CARGO_BIN_EXE_again-fleet")));
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.starts_with("Run Puppet on other nodes"), "{err}");
    assert!(err.contains("\nCommands:\n"), "{err}");
}

#[test]
fn what_is_selected_is_fired_at_and_a_node_that_is_gone_can_be_forgotten() {
    let server = Server::start(Kind::Etcd);
    let nodes = ["web1.test", "web2.test", "lb1.test"].map(|name| Node::new(name, &server));
    let [web1, web2, lb1] = &nodes;
    for (node, role) in [(web1, "web"), (web2, "web"), (lb1, "lb")] {
        node.is_linked(true);
        has_role(node, role);
    }
    until("all of them", || {
        shown(web1, &["--where", "cpus>1"]).len() == 3
    });
    // A node does not select itself unless it is named.
    let out = well(web1, &["trigger", "--where", "role=web"]);
    assert!(
        out.starts_with("again-fleet: delivered to etcd for 1 node: web2.test (id "),
        "{out}"
    );
    until("a run", || web2.runs().len() == 1);
    let words = [
        "trigger",
        "--class",
        "lb",
        "--to",
        "web1.test",
        "--json",
        "--delta=1h",
    ];
    let fired = json(web1, &words);
    let targets = fired["targets"].as_array().expect("targets");
    let of: Vec<&Value> = targets.iter().map(|one| &one["node"]).collect();
    assert_eq!(of, ["lb1.test", "web1.test"]);
    assert_eq!(fired["away"], json!([]));
    until("what waits", || {
        json(web1, &["nodes", "--json"])["nodes"][0]["pending"] == 1
    });
    // An empty selection is reported, and is not an error.
    let out = well(web1, &["trigger", "--where", "role=db", "--wait"]);
    assert!(out.starts_with("again-fleet: nobody is selected"), "{out}");
    for verb in ["trigger", "nodes"] {
        let words = [verb, "--where", "role=web", "rack=a"];
        let (_, _, err) = done(web1.command(&words));
        let warning = "again-fleet: warning: no node publishes the fact 'rack'; ";
        assert!(err.contains(warning), "{err}");
        assert!(!err.contains("'role'"), "{err}");
    }
    let fired = json(
        web1,
        &["trigger", "--where", "role=web", "cpus>2", "--json"],
    );
    assert_eq!(
        (&fired["targets"], &fired["schema"]),
        (&json!([]), &json!(1))
    );
    // A disconnected node is selected too.
    lb1.stop();
    let straight = Straight::at(&server, "web1.test");
    straight.ages("lb1.test");
    until("its going", || {
        json(web1, &["nodes", "--json"])["nodes"][0]["alive"] == false
    });
    let out = well(web1, &["trigger", "--where", "role=lb", "--name=x"]);
    let last = out.lines().last().expect("a line");
    assert!(
        last.starts_with("again-fleet: not there now, ") && last.ends_with("1 node: lb1.test"),
        "{out}"
    );
    let (status, _, err) = done(web1.command(&["forget", "web2.test"]));
    assert_eq!(status, 1);
    assert!(
        err.contains(
            "web2.test signed its entry within the last 15 minutes and counts as connected"
        ),
        "{err}"
    );
    let out = well(web1, &["forget", "lb1.test"]);
    assert!(out.contains("lb1.test is forgotten"), "{out}");
    assert_eq!(shown(web1, &[]), ["web1.test", "web2.test"]);
    let (status, _, err) = done(web1.command(&["forget", "lb1.test"]));
    assert!(
        status == 1 && err.contains("lb1.test has told nothing"),
        "{err}"
    );
    lb1.start();
    until("its return", || {
        shown(web1, &["--where", "role=lb"]) == ["lb1.test"]
    });
}

/// The first run of a new node sends triggers to others by their facts, and the runs of those find
/// the new node while that run continues.
#[test]
fn whoever_is_told_of_a_new_node_finds_it() {
    const LOOK: &str = "#!/bin/sh
FLEET nodes --json --where role=web >'DIR/seen.new' && mv 'DIR/seen.new' 'DIR/seen'
";
    const MANIFEST: &str = r#"
class profile::web {
  exec { '/bin/true': notify => Trigger['refresh'] }
  trigger { 'refresh': where => { 'role' => 'lb' }, class => 'lb', environment => 'production' }
}
include profile::web
exec { 'seen': command => '/bin/sh -c "until [ -e SEEN ]; do sleep 0.1; done"', timeout => 60, require => Class['profile::web'] }
again_inventory { 'this node': require => Exec['seen'], facts => { 'role' => 'web' }, program => 'PROGRAM', config => 'DIR/again-fleet.toml' }
"#;
    let server = Server::start(Kind::Etcd);
    let lb1 = Node::off("lb1.test", &server);
    lb1.program("look", LOOK);
    lb1.runs_this(&[&lb1.at("look")]);
    lb1.set(&server);
    lb1.take();
    lb1.start();
    let web1 = Node::new("web1.test", &server);
    [&lb1, &web1].iter().for_each(|node| node.is_linked(true));
    has_role(&lb1, "lb");
    until("the other", || {
        shown(&web1, &["--where", "role=lb"]) == ["lb1.test"]
    });
    let program = env!("CARGO_BIN_EXE_again-fleet");
    web1.write(
        "site.pp",
        &MANIFEST
            .replace("PROGRAM", program)
            .replace("SEEN", &lb1.at("seen")),
    );
    let modules = web1.path("modules");
    fs::create_dir(&modules).expect("made");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../puppet-module");
    symlink(
        module.canonicalize().expect("the module"),
        modules.join("common"),
    )
    .expect("linked");
    let path = std::env::var("PATH").expect("a path");
    let directory = Path::new(program).parent().expect("a directory").display();
    let apply = |more: &[&str]| {
        let mut puppet = Command::new("puppet");
        puppet
            .args(&web1.puppet()[1..])
            .args(more)
            .arg("--modulepath")
            .arg(&modules);
        puppet.env("AGAIN_CONFIG", web1.path("again.toml"));
        puppet.env("AGAIN_FLEET_CONFIG", web1.path("again-fleet.toml"));
        puppet.env("PATH", format!("{directory}:{path}"));
        let (status, out, err) = done(puppet);
        assert_eq!(status, 0, "{out}{err}");
        out
    };
    let out = apply(&["--noop"]);
    assert!(!out.contains("delivered"), "{out}");
    assert_eq!(shown(&lb1, &["--where", "role=web"]), [""; 0]);
    let out = apply(&[]);
    assert!(
        out.contains("delivered to etcd for 1 node: lb1.test"),
        "{out}"
    );
    let seen = lb1.path("seen");
    until("its run", || seen.exists());
    let seen = fs::read(seen).expect("what it saw");
    let seen: Value = serde_json::from_slice(&seen).expect("JSON");
    let node = &seen["nodes"][0];
    assert_eq!(node["node"], json!(name("web1.test")), "{seen:#}");
    assert_eq!(node["facts"], json!({"role": "web"}));
    let classes = node["classes"].as_array().expect("classes");
    assert!(classes.contains(&json!("profile::web")), "{seen:#}");
    until("its end", || {
        let now = json(&lb1, &["nodes", "--json", "--where", "role=web"]);
        let node = &now["nodes"][0];
        node["last"] == "changed" && node["running"] == false && node["environment"] == "production"
    });
}
