//! Load balancer and its web servers, as the module's example sets them up. The balancer keeps its
//! servers while the backend is down and after it came back empty, and a rolling run takes no
//! longer than the runs of its nodes.

use std::process::Stdio;
use std::time::Instant;

use again_test_support::Lab;
use again_test_support::lab::Image;
use serde_json::Value;

use crate::fleet::{Fleet, Kind, WEB2, apply, bare, certify, classes, is_linked, puppet, ran};

/// Manifest that a user of the module applies on every node.
const EXAMPLE: &str = "/etc/puppet/code/modules/common/examples/servers.pp";
const SERVERS: [&str; 2] = [
    "server web1 10.77.0.2:8080 check",
    "server web2 10.77.0.4:8080 check",
];
const IS_NODE: &str = "again-fleet nodes --where role=node --json";

/// Script that changes the inventory as if five minutes had passed since the backend lost its data.
const AGE_LOSS: &str = r#"
cat >/root/age.rb <<'RUBY'
require 'json'
path = '/var/lib/again-fleet/serve/inventory'
head, rest = File.binread(path).split("\n", 2)
all = JSON.parse(head)
all['nodes'].each { |node| node['missing_since'] -= 300_000 if node['missing_since'] }
File.binwrite(path, [JSON.generate(all), rest].join("\n"))
RUBY
ruby /root/age.rb
"#;

/// Sets up a node of this role, which publishes it.
fn has_role(lab: &Lab, role: &str) {
    lab.write("/etc/facter/facts.d/role.txt", &format!("role={role}\n"));
    let classes = classes(Kind::Etcd, "max_runs => 100,", "cap_share => 100,");
    let classes = classes.replace("'web*.test'", "'web*.test', 'lb1.test'");
    apply(lab, "/root/node.pp", &classes);
    is_linked(lab, true);
}

/// Runs Puppet on the balancer; returns the status, the output, and the servers in its
/// configuration.
fn balances(lb1: &Lab) -> (i32, String, Vec<String>) {
    let run = puppet(lb1, &[EXAMPLE]);
    let configuration = lb1.read("/var/tmp/again-example/haproxy.cfg");
    let servers = configuration.lines().map(str::trim);
    let servers = servers.filter(|line| line.starts_with("server "));
    (
        run.status(),
        run.said(),
        servers.map(str::to_owned).collect(),
    )
}

/// Runs Puppet on the balancer, which must change nothing and print this warning.
#[track_caller]
fn keeps_servers(lb1: &Lab, warning: &str) {
    let (status, said, servers) = balances(lb1);
    assert_eq!(
        (status, &*servers),
        (0, &SERVERS.map(str::to_owned)[..]),
        "{said}"
    );
    let warned = said
        .lines()
        .any(|line| line.contains("Warning: again-fleet: ") && line.contains(warning));
    assert!(warned, "no '{warning}' in {said}");
}

/// Web servers that count without new facts since the backend lost its data.
fn missing(lb1: &Lab) -> Vec<String> {
    let listed: Value = lb1.exec(&["sh", "-c", IS_NODE]).json();
    let nodes = listed["nodes"].as_array().expect("nodes");
    let missing = nodes
        .iter()
        .filter(|node| node["missing_since"].is_string());
    missing
        .filter_map(|node| Some(node["node"].as_str()?.to_owned()))
        .collect()
}

/// Boots a second web server, and gives all nodes the example's roles.
fn second_web_server(fleet: &Fleet) -> Lab {
    let web2 = bare(&fleet.net, &WEB2, Image::Node);
    certify(&web2, &WEB2);
    for (lab, role) in [
        (&fleet.web1, "node"),
        (&web2, "node"),
        (&fleet.lb1, "haproxy"),
    ] {
        has_role(lab, role);
    }
    web2
}

/// A machine that was never set up lists no servers. A node that has never read an inventory fails.
fn nobody_can_tell(fleet: &Fleet) {
    let never = puppet(&fleet.server, &["-e", "notice(servers_with_role('node'))"]);
    let said = never.said();
    assert!(never.status() == 0 && said.contains(": []"), "{said}");
    assert!(
        said.contains("Warning: ") && said.contains("and no server is found"),
        "{said}"
    );

    fleet.backend(false);
    is_linked(&fleet.lb1, false);
    let (status, said, servers) = balances(&fleet.lb1);
    let why = "the inventory of again-fleet cannot tell which servers there are: ";
    assert!(status == 1 && said.contains(why), "{status}: {said}");
    assert!(servers.is_empty(), "{servers:?}");
    fleet.backend(true);
    is_linked(&fleet.lb1, true);
}

/// Waits until the balancer lists this number of web servers without a warning.
#[track_caller]
fn lists(lb1: &Lab, count: usize) {
    lb1.wait_until("web servers", 60, || {
        let listed = lb1.exec(&["sh", "-c", IS_NODE]).json();
        let nodes = listed["nodes"].as_array().expect("nodes").len();
        let is_certain = listed["warnings"].as_array().is_some_and(Vec::is_empty);
        (nodes == count && is_certain).then_some(())
    });
    let (status, said, servers) = balances(lb1);
    assert_eq!((status, servers.len()), (2, count), "{said}");
    assert!(!said.contains("Warning: again-fleet"), "{said}");
}

fn balancer_keeps_its_servers(fleet: &Fleet, web2: &Lab) {
    let lb1 = &fleet.lb1;
    lists(lb1, 2);
    fleet.backend(false);
    is_linked(lb1, false);
    let stored = "the nodes are those of the last inventory, read ";
    keeps_servers(lb1, stored);
    lb1.sh("systemctl restart again-fleet.service");
    keeps_servers(lb1, stored);

    // The backend comes back empty. One of the two servers is up and publishes again; runs continue
    // meanwhile.
    web2.shutdown();
    fleet.server.sh("rm -r /var/lib/etcd/default");
    fleet.backend(true);
    lb1.wait_until("the facts of web1", 60, || {
        let (status, said, servers) = balances(lb1);
        assert_eq!(
            (status, &*servers),
            (0, &SERVERS.map(str::to_owned)[..]),
            "{said}"
        );
        (missing(lb1) == ["web2.test"]).then_some(())
    });
    keeps_servers(
        lb1,
        "the last inventory still counts 1 node without new facts since ",
    );
    lb1.sh(AGE_LOSS);
    keeps_servers(
        lb1,
        "if it is gone for good, 'again-fleet forget web2.test'",
    );
    lb1.sh("again-fleet forget web2.test");
    lists(lb1, 1);
    web2.boot_again();
    lists(lb1, 2);
}

/// A run of web1 requests one of the balancer while etcd and its own service are down. It follows
/// when both are back.
fn kick_is_sent_once_both_are_back(fleet: &Fleet) {
    let (web1, lb1) = (&fleet.web1, &fleet.lb1);
    assert!(ran(lb1).is_empty());
    let manifest = "exec { '/bin/true': }\nnotify { 'kick -> haproxy': }\n";
    web1.write("/root/kick.pp", manifest);
    fleet.backend(false);
    web1.sh("systemctl stop again-fleet.socket again-fleet.service");
    let run = puppet(web1, &["--reports=kick", "/root/kick.pp"]);
    let said = run.said();
    assert!(
        run.status() == 2 && said.contains("waiting on disk"),
        "{said}"
    );
    web1.sh("systemctl start again-fleet.socket again-fleet.service");
    fleet.backend(true);
    // The selection is resolved a minute after the service has connected to etcd.
    lb1.wait_until("a run of lb1", 180, || (ran(lb1).len() == 1).then_some(()));
}

/// The end of each run is published within seconds, so that the next one starts.
fn rolling_run_takes_as_long_as_its_runs(fleet: &Fleet, web2: &Lab) {
    let nodes = [&fleet.web1, web2, &fleet.lb1];
    for node in nodes {
        node.write("/root/run.pp", "exec { '/bin/sleep 15': }\n");
        is_linked(node, true);
    }
    let words = "exec again-fleet trigger --to web1.test web2.test lb1.test --parallel 1 --wait >/root/rolled 2>&1";
    let began = Instant::now();
    let mut rolls = fleet.lb1.spawn(&["sh", "-c", words], Stdio::null());
    rolls.wait().expect("its end");
    let took = began.elapsed().as_secs_f64();
    let said = fleet.lb1.read("/root/rolled");
    assert!(said.contains("3 of 3 nodes done in"), "{said}");
    let lasted = |node: &Lab| {
        let run = ran(node).pop().expect("a run");
        run.ended.expect("its end") - run.started
    };
    let lasted: f64 = nodes.into_iter().map(lasted).sum();
    println!("three runs, one at a time: {took:.1} s for {lasted:.1} s of runs");
    // With longer and longer pauses between the polls, the end of such a run would be published 10
    // s late.
    assert!(
        took < 1.5 * lasted,
        "{took} s for {lasted} s of runs: {said}"
    );
}

#[test]
fn balancer_keeps_its_servers_whatever_the_backend_has_lost() {
    let fleet = Fleet::new(Kind::Etcd);
    let web2 = second_web_server(&fleet);
    nobody_can_tell(&fleet);
    balancer_keeps_its_servers(&fleet, &web2);
    kick_is_sent_once_both_are_back(&fleet);
    rolling_run_takes_as_long_as_its_runs(&fleet, &web2);
    // The selection was resolved once more meanwhile, and lb1 ran for it once.
    assert_eq!(ran(&fleet.lb1).len(), 2);
}
