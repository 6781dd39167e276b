//! Examples of puppet-kicker's users and of Trigger's: a load balancer whose file names all web
//! servers, and two roles that kick each other endlessly. Both run with agents of a real
//! puppetserver with a real PuppetDB, and with `puppet apply` and only a backend.

#[path = "../support/ca.rs"]
mod ca;
/// Puppet server, and its database.
mod master;
#[allow(dead_code, reason = "what the service's own tests ask it for")]
#[path = "../support/node.rs"]
mod node;
#[allow(
    dead_code,
    reason = "what is done to servers elsewhere is not done here"
)]
#[path = "../support/servers.rs"]
mod servers;
/// Nodes, and how their Puppet runs.
mod site;

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use node::Node;
use site::Site;

/// A new web server is in the balancer's file after one run of the balancer, by whichever method
/// that was requested; a run without changes requests none.
fn a_new_node_is_in_the_balancers_file(site: &Site) {
    let Site {
        web1, web2, lb1, ..
    } = site;
    site.runs(lb1, "kick");
    assert_eq!(site.balancer(), "listen web\n");
    let said = site.runs(web1, "kick");
    let told = "kick -> haproxy: again-fleet: delivered to etcd for 1 node: lb1.test (id ";
    assert!(said.contains(told), "{said}");
    let story = site.settles(lb1, 2);
    let listed = "listen web\nserver web1 10.0.0.1:8080 check\n";
    assert_eq!(site.balancer(), listed);
    assert_eq!(
        (&story["cause"], &story["node"]),
        (&json!("kick"), &json!("web1.test"))
    );
    // Puppet counts its notify as a change, and nothing else has changed.
    let said = site.runs(web1, "kick");
    assert!(!said.contains("delivered"), "{said}");
    assert_eq!(site.settles(lb1, 2)["id"], story["id"]);

    site.runs(lb1, "trigger");
    let said = site.runs(web2, "trigger");
    let told =
        "Trigger[refresh load balancers]: again-fleet: delivered to etcd for 1 node: lb1.test (id ";
    assert!(said.contains(told), "{said}");
    let story = site.settles(lb1, 4);
    let listed = "listen web
  bind *:80
  balance roundrobin
  server web1 10.0.0.1:8080 check
  server web2 10.0.0.2:8080 check
";
    assert_eq!(site.balancer(), listed);
    assert_eq!(
        (&story["cause"], &story["node"]),
        (&json!("refresh"), &json!("web2.test"))
    );
    let said = site.runs(web2, "trigger");
    assert!(!said.contains("delivered"), "{said}");
    assert_eq!(site.settles(lb1, 4)["id"], story["id"]);
}

/// The start of a service runs the nodes of a class.
fn a_class_runs_when_a_service_starts(site: &Site) {
    let Site { web1, lb1, .. } = site;
    let before = site.ran(lb1);
    site.runs(lb1, "class");
    let told = "Trigger[a web server came up]: again-fleet: delivered to etcd for 1 node: lb1.test";
    let said = site.runs(web1, "class");
    assert!(said.contains(told), "{said}");
    site.settles(lb1, before + 2);
    let said = site.runs(web1, "class");
    assert!(!said.contains("delivered"), "{said}");
}

/// Two nodes change in every run and kick each other until the hop limit, whose message names them.
/// Only nodes of the same environment are kicked.
fn a_circle_ends_and_is_named(site: &Site) {
    let Site {
        web1, web2, lb1, ..
    } = site;
    let before = [web1, web2, lb1].map(|node| site.ran(node));
    let said = site.runs(web1, "circle");
    assert!(
        said.contains("kick -> haproxy: again-fleet: nobody is selected"),
        "{said}"
    );
    site.runs(lb1, "circle");
    site.settles(web1, before[0] + 3);
    site.settles(lb1, before[2] + 2);
    assert_eq!(site.ran(web2), before[1]);
    let circle = "kick: 'kick -> haproxy' of web1.test is not passed on: again-fleet: error: not fired for 1 node: lb1.test: over 3 hops: \
                  lb1.test -> web1.test -> lb1.test ...";
    let said = site.said_last(web1);
    assert!(said.contains(circle), "{said}");
}

/// Report of a node's newest run, as stored on the node.
fn last(node: &Node) -> String {
    fs::read_to_string(node.path("puppet/state/last_run_report.yaml")).expect("a report")
}

/// UUID of a report.
fn uuid(report: &str) -> &str {
    let line = report
        .lines()
        .find(|line| line.starts_with("transaction_uuid: "));
    line.expect("a report")
}

/// With a service that is silent, and with one that is down, the agent's run ends, its report is
/// stored, and the server's log has the reason.
fn a_report_is_not_held_up(site: &Site) {
    let Site { web1, lb1, .. } = site;
    let master = site.master.as_ref().expect("a server");
    let kicked = site.ran(lb1);
    let complaint = "kick: 'kick -> haproxy' of web1.test is not passed on: again-fleet: error: ";
    for (n, part) in [(1, "has not answered within"), (2, "nobody listens")] {
        match n {
            1 => master.node.signal("-STOP"),
            _ => master.node.kill(),
        }
        fs::remove_file(web1.path("example/shop.conf")).expect("removed");
        let since = Instant::now();
        let said = site.runs(web1, "kick");
        assert!(since.elapsed() < Duration::from_secs(120), "{said}");
        assert!(said.contains(complaint) && said.contains(part), "{said}");
        assert_eq!(uuid(&master.stored(web1.name)), uuid(&last(web1)));
    }
    assert_eq!(site.ran(lb1), kicked);
}

/// A branch's change of the module stays in its environment, although one server compiles for all
/// of them.
fn a_branch_changes_no_other_environment(site: &Site) {
    for _ in 0..3 {
        let found = |scene| site.runs(&site.web1, scene);
        let (main, branch) = (found("main"), found("branch"));
        assert!(main.contains("found web1.test,web2.test"), "{main}");
        assert!(branch.contains("found branch,branch"), "{branch}");
    }
}

#[test]
fn agents_of_a_puppet_server_with_a_database() {
    let site = Site::with_a_server();
    a_new_node_is_in_the_balancers_file(&site);
    a_class_runs_when_a_service_starts(&site);
    a_circle_ends_and_is_named(&site);
    a_report_is_not_held_up(&site);
    a_branch_changes_no_other_environment(&site);
}

#[test]
fn without_a_server_and_without_a_database() {
    let site = Site::without_a_server();
    a_new_node_is_in_the_balancers_file(&site);
    a_class_runs_when_a_service_starts(&site);
    a_circle_ends_and_is_named(&site);
}
