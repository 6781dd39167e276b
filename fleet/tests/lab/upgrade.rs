use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use again_test_support::lab::Image;
use again_test_support::net::{Host, Net};
use again_test_support::{Lab, ask_for};
use serde_json::Value;

use crate::fleet::{Kind, LB1, RUN, WEB1, WEB2, backend, certify, check, empty, is_linked};

const PAGE: &str = include_str!("../../../doc/install.md");

/// Manifest that sets up a node with packaged programs using the classes, in two runs.
const CLASSES: &str = "
file { '/root/first': content => 'made in the first run', notify => Exec['again'] }
if find_file('/root/first') { file { '/root/second': content => 'made in the second run' } }
class { 'common::again': manage_binary => 'none', binary => '/usr/bin/again', max_runs => 1000, jitter => 0 }
class { 'common::again::fleet':
  manage_binary => 'none',
  binary        => '/usr/bin/again-fleet',
  endpoints     => ['server.test'],
  accept        => ['*.test'],
  namespace     => 'test',
  run_cmd       => 'puppet apply /root/run.pp',
}
common::again::lock { 'db-master': candidates => ['web1.test', 'web2.test', 'lb1.test'] }
";

/// Script that sets up a node by hand, as doc/install.md describes, with the units of the package.
const BY_HAND: &str = r#"
cat >/etc/again.toml <<'TOML'
max_runs = 1000
jitter = 0
TOML
cat >/etc/again-fleet.toml <<'TOML'
endpoints = ["server.test"]
accept = ["*.test"]
namespace = "test"
run_cmd = ["puppet", "apply", "/root/run.pp"]
TOML
mkdir -p /etc/again-fleet-locks.d /etc/systemd/system/again-fleet.service.d
cat >/etc/again-fleet-locks.d/db-master.toml <<'TOML'
name = "db-master"
candidates = ["web1.test", "web2.test", "lb1.test"]
TOML
ssl=/var/lib/puppet/ssl name=$(hostname)
{ echo '[Service]'
  for pair in "cert $ssl/certs/$name.pem" "key $ssl/private_keys/$name.pem" "ca $ssl/certs/ca.pem" "crl $ssl/crl.pem"; do
    set -- $pair
    echo "LoadCredential=$1:$2"
    echo "Environment=AGAIN_FLEET_$(echo "$1" | tr a-z A-Z)=%d/$1"
  done
} >/etc/systemd/system/again-fleet.service.d/certificates.conf
systemctl daemon-reload
systemctl enable --now again-fleet.socket again-fleet-executor.socket again-fleet-calls.path again-fleet.service
"#;

/// Script that sends triggers to the nodes in its arguments every second, each with another name,
/// and writes down the answers.
const FIRE: &str = r#"
n=0
until [ -e /root/enough ]; do
  n=$((n + 1)) status=0
  said=$(again-fleet trigger --to "$@" --name "load-$n" --delta 5s --json 2>>/root/fire.errors) || status=$?
  printf '%s\t%s\n' "$status" "$said" >>/root/fired
  sleep 1
done
"#;

/// Command that shows the properties of the units that do not vary with their work.
const STANDING: &str = "
systemctl show --property=Id,ActiveState,UnitFileState,FragmentPath again-fleet.service again-fleet.socket again-fleet-executor.socket \
  again-fleet-calls.path again-pending.path again-resume.service
systemctl show --property=Id,ActiveEnterTimestampMonotonic again-fleet.socket again-fleet-executor.socket again-fleet-calls.path
";

/// Block of commands with this index, from 0, below this heading of the page.
fn commands(heading: &str, number: usize) -> &'static str {
    let (_, section) = PAGE
        .split_once(&format!("\n## {heading}\n"))
        .expect("the heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let block = section.split("\n```sh\n").nth(number + 1);
    let block = block.and_then(|text| text.split("\n```").next());
    block.unwrap_or_else(|| panic!("{heading} has no block {number}"))
}

const DEBIAN: &str = "Debian and Ubuntu";

/// Release of one version.
struct Packages {
    /// Directory of the packages on a machine.
    place: &'static str,
    version: String,
}

impl Packages {
    /// Returns the packages in the directory that this variable names.
    fn named_by(variable: &str, place: &'static str) -> (PathBuf, Packages) {
        let from = std::env::var_os(variable);
        let from = from.unwrap_or_else(|| panic!("{variable} is not set: tests/upgrade/run does"));
        let from = PathBuf::from(from);
        let entries = std::fs::read_dir(&from).expect("a directory with packages");
        let mut names = entries.map(|entry| entry.expect("an entry").file_name());
        let version = names.find_map(|name| {
            let name = name.to_str()?.strip_prefix("again_")?;
            Some(name.strip_suffix("-1_amd64.deb")?.to_owned())
        });
        let version = version.expect("a package");
        (from, Packages { place, version })
    }

    /// Runs commands of the page in the directory of this release.
    #[track_caller]
    fn run(&self, lab: &Lab, commands: &str) -> String {
        let (place, version) = (self.place, &self.version);
        lab.sh(&format!(
            "cd {place}; export DEBIAN_FRONTEND=noninteractive
            signers=/srv/from/allowed_signers version={version} releases=file:/srv/releases
            {{ {commands}\n}} 2>&1 </dev/null"
        ))
    }

    /// Publishes this release as the current one, and installs both packages from it over any other
    /// version.
    #[track_caller]
    fn install(&self, lab: &Lab) {
        let (place, version) = (self.place, &self.version);
        let newer = lab.sh(&format!(
            ": >/etc/apt/sources.list # there is no network to Debian's packages
            mkdir -p /srv/releases
            ln -sfn {place} /srv/releases/current
            ln -sfn {place} /srv/releases/{version}
            installed=$(dpkg-query --show --showformat='${{Version}}' again 2>/dev/null || true)
            dpkg --compare-versions \"$installed\" gt {version}-1 && echo newer || true"
        ));
        self.run(lab, commands(DEBIAN, usize::from(!newer.is_empty())));
        let versions = lab.sh("again --version; again-fleet --version");
        assert_eq!(
            versions,
            format!("again {version}\nagain-fleet {version}\n")
        );
    }

    /// Verifies the release, installs it, and compares the SBOM with the program.
    #[track_caller]
    fn verify_and_install(&self, lab: &Lab) {
        let said = self.run(lab, commands("Verify", 0));
        assert!(said.contains("Good \"file\" signature for again"), "{said}");
        self.install(lab);
        let said = self.run(lab, commands("Verify", 2));
        assert!(said.contains("\"content\""), "{said}");
    }
}

/// Node, and the process that sends triggers on it.
struct Node {
    host: Host<'static>,
    lab: Lab,
    fires: Option<Child>,
}

/// Backend, and three nodes on which the lower version is installed.
struct Fleet {
    server: Lab,
    nodes: [Node; 3],
    _net: Net,
}

const HOSTS: [Host<'static>; 3] = [WEB1, WEB2, LB1];

impl Fleet {
    fn new(from: &Packages, binds: &[(&Path, &str)]) -> Fleet {
        let net = Net::new();
        // The CA is made once here, not by several threads.
        crate::ca::Ca::get();
        let bridge = &net;
        let (server, labs) = std::thread::scope(|scope| {
            let server = scope.spawn(|| backend(bridge, Kind::Etcd, binds));
            let nodes = HOSTS.map(|host| {
                scope.spawn(move || {
                    let lab = empty(bridge, &host, Image::Node, binds);
                    certify(&lab, &host);
                    lab.write("/root/run.pp", RUN);
                    let own = files(&lab);
                    from.verify_and_install(&lab);
                    if host.name == WEB2.name {
                        lab.write("/root/before", &own);
                        lab.sh(BY_HAND);
                    } else {
                        lab.write("/root/node.pp", CLASSES);
                        lab.sh("again converge -- puppet apply --color=false /root/node.pp");
                        assert!(lab.read("/root/second").contains("second run"));
                    }
                    lab
                })
            });
            let joined = |lab: std::thread::ScopedJoinHandle<'_, Lab>| {
                lab.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
            };
            (joined(server), nodes.map(joined))
        });
        let mut hosts = HOSTS.into_iter();
        let nodes = labs.map(|lab| Node {
            host: hosts.next().expect("as many"),
            lab,
            fires: None,
        });
        let fleet = Fleet {
            server,
            nodes,
            _net: net,
        };
        for node in &fleet.nodes {
            is_linked(&node.lab, true);
        }
        fleet
    }

    /// Starts sending triggers from every node to all others.
    fn fires(&mut self) {
        for node in &mut self.nodes {
            let others = HOSTS.iter().filter(|host| host.name != node.host.name);
            let others: Vec<&str> = others.map(|host| host.name).collect();
            node.lab.write("/root/fire", FIRE);
            let words = [&["sh", "/root/fire"], &*others].concat();
            node.fires = Some(node.lab.spawn(&words, Stdio::null()));
        }
    }

    /// Number of triggers that were answered.
    fn count(&self) -> usize {
        let answered = |node: &Node| node.lab.read("/root/fired").lines().count();
        self.nodes.iter().map(answered).sum()
    }

    /// Stops the senders, and returns the ids of each node's triggers. A command that failed counts
    /// as a lost trigger, and fails the test.
    fn is_enough(&mut self) -> Vec<Vec<String>> {
        for node in &self.nodes {
            node.lab.sh("touch /root/enough");
        }
        let ids = |node: &mut Node| {
            let mut fires = node.fires.take().expect("it fires");
            fires.wait().expect("its end");
            let lab = &node.lab;
            let errors = lab.read("/root/fire.errors");
            let id = |line: &str| {
                let (status, said) = line.split_once('\t').expect("two columns");
                assert_eq!(status, "0", "{}: {said} {errors}", node.host.name);
                let said: Value = serde_json::from_str(said).expect("JSON");
                said["id"].as_str().expect("an id").to_owned()
            };
            lab.read("/root/fired").lines().map(id).collect()
        };
        self.nodes.iter_mut().map(ids).collect()
    }

    /// Returns the holder of the lock and its token, when a node is sure of them.
    #[track_caller]
    fn holder(&self) -> (String, u64) {
        let seen = |node: &Node| {
            node.lab.wait_until("a holder", 30, || {
                let said = node.lab.exec(&["again-fleet", "locks", "--json"]);
                let said: Value = serde_json::from_str(&said.out).ok()?;
                let lock = &said["locks"]["db-master"];
                Some((lock["holder"].as_str()?.to_owned(), lock["token"].as_u64()?))
            })
        };
        let all: Vec<_> = self.nodes.iter().map(seen).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        all[0].clone()
    }
}

/// Starts a command with a waiter on a node, under this name; returns the pid of the waiter.
fn waits(lab: &Lab, name: &str) -> u64 {
    let script =
        format!("again run --name {name} --delta 1h -- /bin/sh -c 'echo {name} >>/root/waited'");
    lab.sh(&script);
    waiter(lab, name).expect("it waits")
}

fn waiter(lab: &Lab, name: &str) -> Option<u64> {
    let timers = lab.timers();
    let timer = timers.iter().find(|timer| timer["name"] == name)?;
    assert_eq!(timer["waiter"]["alive"], true, "{timer}");
    timer["waiter"]["pid"].as_u64()
}

/// Upgrades a node, or downgrades it. Everything that was pending or running stays so.
#[track_caller]
fn changes(fleet: &Fleet, node: &Node, to: &Packages, name: &str) {
    let lab = &node.lab;
    let pid = || lab.sh("systemctl show --property=MainPID --value again-fleet.service");
    let (held, stands, served) = (fleet.holder(), lab.sh(STANDING), pid());
    let waits = waits(lab, name);
    let (began, before) = (lab.uptime(), fleet.count());
    to.install(lab);
    let took = lab.uptime() - began;
    is_linked(lab, true);
    let during = fleet.count() - before;
    assert!(during > 0, "{name}: nobody has fired meanwhile");
    println!(
        "{name}: apt-get took {took:.1} s, linked {:.1} s after it began, {during} firings meanwhile",
        lab.uptime() - began
    );
    assert_eq!(lab.sh(STANDING), stands, "{name}");
    assert_ne!(pid(), served, "{name}: the service is the one of before");
    let service = check(lab, "service").1;
    let version = format!("version {} ", to.version);
    assert!(service.starts_with(&version), "{name}: {service}");
    assert_eq!(waiter(lab, name), Some(waits), "{name}: another waiter");
    lab.sh(&format!("again now {name}"));
    assert_eq!(fleet.holder(), held, "{name}: the lock has changed hands");
    // Time itself is tested: nodes of both versions run for a while.
    std::thread::sleep(Duration::from_secs(8));
}

/// Waits for the final status of everything that a node's triggers caused; returns the number of
/// each outcome.
#[track_caller]
fn is_told(node: &Node, ids: &[String]) -> BTreeMap<String, usize> {
    node.lab.write("/root/ids", &(ids.join("\n") + "\n"));
    // The exit status also shows whether the story is over.
    let script = "while read -r id; do again-fleet story \"$id\" --json || true; done </root/ids";
    let stories = || -> Vec<Value> {
        let said = node.lab.sh(script);
        let story = |line: &str| serde_json::from_str(line).expect("a story");
        said.lines().map(story).collect()
    };
    let (limit, mut last) = (Duration::from_secs(300), String::new());
    let over = ask_for(limit, Duration::from_secs(2), || {
        let all = stories();
        let open: Vec<_> = all.iter().filter(|story| story["over"] != true).collect();
        last = format!(
            "{} of {} stories are open: {open:#?}",
            open.len(),
            all.len()
        );
        (open.is_empty() && all.len() == ids.len()).then_some(all)
    });
    let stories = over.unwrap_or_else(|| panic!("{}: {last}", node.host.name));
    let mut outcomes = BTreeMap::new();
    for story in &stories {
        let entries = story["entries"].as_array().expect("entries");
        assert_eq!(entries.len(), 2, "{story:#}");
        for entry in entries {
            let outcome = entry["outcome"].as_str().unwrap_or_default().to_owned();
            assert!(
                ["changed", "unchanged", "satisfied"].contains(&&*outcome),
                "{}: {story:#}",
                node.host.name
            );
            // The run that satisfied the trigger has begun after the trigger was sent. Both times
            // have the same format.
            let began = entry["run"]["began_at"].as_str();
            let fired = entry["fired_at"].as_str().expect("a time");
            assert!(began.is_none_or(|began| began > fired), "{story:#}");
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    outcomes
}

/// Checks that each trigger that a node accepted was acted on in one run, not in two.
#[track_caller]
fn is_done_once(node: &Node, expected: usize) {
    let mut started: BTreeMap<String, usize> = BTreeMap::new();
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    let history = node.lab.sh("again history --json -n 100000");
    for line in history.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert!(line.get("unreadable").is_none(), "{line}");
        let triggers = line["origin"]["triggers"].as_array();
        let ids = triggers.into_iter().flatten();
        let names = ids.filter(|one| {
            one["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("load-"))
        });
        for one in names {
            let id = format!("{} {}", one["sender"], one["id"]);
            match line["what"].as_str() {
                Some("started") => *started.entry(id.clone()).or_default() += 1,
                Some("satisfied") => (),
                _ => continue,
            }
            *done.entry(id).or_default() += 1;
        }
    }
    let twice: Vec<_> = started.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{}: {twice:?}", node.host.name);
    assert_eq!(done.len(), expected, "{}", node.host.name);
}

/// Checks that no service of again-fleet has failed or was restarted after an unexpected end.
#[track_caller]
fn has_not_failed(lab: &Lab) {
    let failed = lab.sh("systemctl list-units --failed --plain --no-legend --no-pager 'again*'");
    assert_eq!(failed, "");
    let log = lab.sh("journalctl --no-pager -o cat -u 'again*'");
    let bad = [
        "Failed with result",
        "Scheduled restart job",
        "Main process exited",
    ];
    let bad: Vec<&str> = log
        .lines()
        .filter(|line| bad.iter().any(|words| line.contains(words)))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}\n{log}");
}

/// Checks that units that were not set up are neither started nor enabled by an installation or
/// upgrade.
fn starts_nothing(lab: &Lab, all: &[&Packages]) {
    for packages in all {
        packages.install(lab);
        let units = "again-fleet.service again-fleet.socket again-fleet-executor.socket again-fleet-calls.path";
        let states = lab.exec(&[
            "sh",
            "-c",
            &format!("systemctl is-active {units}; systemctl is-enabled {units}"),
        ]);
        let expected = format!("{}{}", "inactive\n".repeat(4), "disabled\n".repeat(4));
        assert_eq!(states.out, expected);
    }
}

/// A waiter without a scope of its own is in the control group of the executor, and would end with
/// it.
fn a_waiter_stays(node: &Node, from: &Node, to: &Packages) {
    let lab = &node.lab;
    lab.sh("echo 'scope = \"never\"' >>/etc/again.toml");
    let before = lab.runs().len();
    let words = [
        "again-fleet",
        "trigger",
        "--to",
        node.host.name,
        "--delta",
        "40s",
    ];
    from.lab.exec(&words).ok();
    let waiter = || {
        lab.timers()
            .first()
            .and_then(|timer| timer["waiter"]["pid"].as_u64())
    };
    let pid = lab.wait_until("a waiter", 20, waiter);
    let group = lab.group_of(pid).unwrap_or_default();
    assert!(group.ends_with("/again-fleet-executor.service"), "{group}");
    to.install(lab);
    assert_eq!(waiter(), Some(pid));
    let runs = lab.wait_until("the run", 60, || {
        Some(lab.runs()).filter(|runs| runs.len() > before)
    });
    assert_eq!((runs.len(), runs[before].pid), (before + 1, pid));
    // The executor becomes the new program when the waiter has ended.
    let old = || {
        lab.sh("readlink /proc/$(systemctl show --property=MainPID --value again-fleet-executor.service)/exe || true")
    };
    lab.wait_until("the end of the old program", 60, || {
        (!old().contains("deleted")).then_some(())
    });
}

/// Stopped units stay stopped.
fn stays_stopped(lab: &Lab, to: &Packages) {
    lab.sh("systemctl stop again-fleet.service again-fleet.socket again-fleet-executor.socket again-fleet-executor.service");
    let stands = lab.sh(STANDING);
    to.install(lab);
    assert_eq!(lab.sh(STANDING), stands);
}

/// Names of files that belong to the packages.
fn files(lab: &Lab) -> String {
    lab.sh("find / -xdev -name '*again*' -not -path '/root/*' -not -path '/srv/*' | sort")
}

/// A removal ends what is pending and keeps the state; a purge leaves only what existed before the
/// installation, and the operator's settings.
fn is_removed_and_purged(lab: &Lab, packages: &Packages) {
    lab.sh("again run --name last --delta 1h -- /bin/true");
    let said = packages.run(lab, "apt-get remove -y again again-fleet");
    assert!(said.contains("again: stopped: timer 'last'"), "{said}");
    assert!(lab.read("/var/lib/again/history.jsonl").contains("last"));
    packages.run(lab, commands(DEBIAN, 2));
    lab.sh("rm -r /etc/again.toml /etc/again-fleet.toml /etc/again-fleet-locks.d /etc/systemd/system/again-fleet.service.d");
    assert_eq!(files(lab), lab.read("/root/before"));
    let left = lab.sh("pgrep -a again || true
        systemctl daemon-reload
        systemctl list-unit-files --plain --no-legend --no-pager 'again*'
        dpkg-query --list 'again*' 2>/dev/null | grep '^[a-z][a-z] ' || true");
    assert_eq!(left, "");
}

#[test]
#[ignore = "takes releases of two versions: tests/upgrade/run"]
fn a_fleet_at_work_is_upgraded_node_by_node_and_back_and_loses_nothing() {
    let (old, from) = Packages::named_by("AGAIN_FLEET_UPGRADE_FROM", "/srv/from");
    let (new, to) = Packages::named_by("AGAIN_FLEET_UPGRADE_TO", "/srv/to");
    assert_ne!(from.version, to.version);
    let binds = [(&*old, from.place), (&*new, to.place)];
    let mut fleet = Fleet::new(&from, &binds);
    starts_nothing(&fleet.server, &[&from, &to, &from]);
    fleet.holder();

    fleet.fires();
    for (direction, packages) in [("up", &to), ("down", &from)] {
        for node in &fleet.nodes {
            let name = format!("{direction}-{}", node.host.port());
            changes(&fleet, node, packages, &name);
        }
    }
    let fired = fleet.is_enough();
    let all: usize = fired.iter().map(Vec::len).sum();
    assert!(all > 60, "{all} firings");
    for (node, ids) in fleet.nodes.iter().zip(&fired) {
        let outcomes = is_told(node, ids);
        println!("{}: {} firings: {outcomes:?}", node.host.name, ids.len());
    }
    for (node, own) in fleet.nodes.iter().zip(&fired) {
        let lab = &node.lab;
        is_done_once(node, all - own.len());
        let waited = || lab.read("/root/waited");
        lab.wait_until("what waited has run", 60, || {
            (waited().lines().count() >= 2).then_some(())
        });
        let port = node.host.port();
        assert_eq!(waited(), format!("up-{port}\ndown-{port}\n"));
        lab.wait_until("an empty outbox", 60, || {
            check(lab, "outbox")
                .1
                .starts_with("0 triggers")
                .then_some(())
        });
        has_not_failed(lab);
    }

    let [web1, web2, lb1] = &fleet.nodes;
    a_waiter_stays(web2, web1, &to);
    stays_stopped(&lb1.lab, &to);
    for node in [web2, web1] {
        has_not_failed(&node.lab);
    }
    is_removed_and_purged(&web2.lab, &to);
}
