//! Selections that are stored while the backend does not show all nodes, and resolved when it does.

use std::fs;

use again_fleet::wire::name::Id;
use serde_json::Value;

use crate::nodes::{has_role, shown};
use crate::real::done;
use crate::servers::{Kind, Server};
use crate::whole::{Node, until};

const IS_LB: [&str; 2] = ["--where", "role=lb"];

/// Returns a sender whose service has read the nodes, among them a balancer.
fn sender(server: &Server) -> [Node; 2] {
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, server));
    [&web1, &lb1].iter().for_each(|node| node.is_linked(true));
    has_role(&lb1, "lb");
    until("the balancer", || shown(&web1, &IS_LB) == ["lb1.test"]);
    // The first reading was long ago.
    age_loss(&web1);
    [web1, lb1]
}

/// Stops the backend; the sender detects it.
fn ends(server: &Server, web1: &Node) {
    server.kill();
    web1.is_linked(false);
}

/// Adds another balancer, which has published.
fn balancer(name: &'static str, server: &Server) -> Node {
    let node = Node::new(name, server);
    node.is_linked(true);
    has_role(&node, "lb");
    node
}

/// Output of a command that succeeds, and warns that its information is incomplete.
#[track_caller]
fn prints(node: &Node, words: &[&str]) -> String {
    let (status, out, err) = done(node.command(words));
    assert_eq!(status, 0, "{words:?}: {out}{err}");
    out
}

/// Triggers balancers, and returns the command's JSON.
fn triggers(web1: &Node, words: &[&str]) -> (Id, Value) {
    let all = prints(web1, &[&["trigger", "--json"], &IS_LB[..], words].concat());
    let all: Value = serde_json::from_str(&all).expect("JSON");
    assert_eq!(all["selection"], "stored", "{all:#}");
    let id = all["id"].as_str().expect("an id");
    (id.parse().expect("an id"), all)
}

fn is_resolved(web1: &Node) -> bool {
    web1.how().outbox.selections == 0
}

#[test]
fn selection_reaches_nodes_that_appear_when_the_backend_is_back_and_no_node_twice() {
    let server = Server::start(Kind::Nats);
    let [web1, lb1] = sender(&server);
    ends(&server, &web1);
    let words = [&["trigger", "--name=balancers"], &IS_LB[..]].concat();
    let said = prints(&web1, &words);
    assert!(
        said.contains("kept: ") && said.contains("lb1.test"),
        "{said}"
    );
    let next = "the selection is stored until ";
    assert!(said.contains(next), "{said}");
    let (id, all) = triggers(&web1, &["--name=balancers"]);
    assert_eq!(all["targets"][0]["fired"], "kept", "{all:#}");
    // The selection survives a restart of the service, and is listed.
    web1.stop();
    web1.start();
    let (_, checked, _) = done(web1.command(&["check"]));
    let waits = format!("'balancers' (id {id}) waits until ");
    assert!(
        checked.contains(&waits) && checked.contains("role=lb"),
        "{checked}"
    );
    assert_eq!(web1.how().outbox.selections, 1);
    web1.stop();
    server.run();
    lb1.is_linked(true);
    let web2 = balancer("web2.test", &server);
    web1.start();
    until("the selection", || is_resolved(&web1));
    for node in [&lb1, &web2] {
        node.runs_once(&id);
    }
    // Later lists of nodes change nothing.
    assert_eq!(shown(&web1, &IS_LB), ["lb1.test", "web2.test"]);
    until("all answers", || web1.how().outbox.triggers == 0);
    for node in [&lb1, &web2] {
        assert_eq!(node.ran().iter().filter(|one| **one == id).count(), 1);
    }
}

#[test]
fn rolling_run_is_sent_when_the_backend_is_back() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = sender(&server);
    ends(&server, &web1);
    let rolling = ["--parallel=1", "--stop-after-failures=2"];
    let words = [&["trigger"], &IS_LB[..], &rolling].concat();
    let said = prints(&web1, &words);
    let next = "again-fleet: not sent yet: the selection is stored until ";
    assert!(said.starts_with(next), "{said}");
    let (status, out, err) = done(web1.command(&[&words[..], &["--wait"]].concat()));
    assert_eq!(status, 75, "{out}{err}");
    let (id, all) = triggers(&web1, &rolling);
    assert_eq!(all["targets"].as_array().map(Vec::len), Some(0), "{all:#}");
    server.run();
    let web2 = balancer("web2.test", &server);
    for node in [&lb1, &web2] {
        node.runs_once(&id);
    }
    assert!(is_resolved(&web1));
}

#[test]
fn cancelled_or_replaced_selection_is_not_resolved() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = sender(&server);
    ends(&server, &web1);
    let (first, _) = triggers(&web1, &["--parallel=1"]);
    let (second, _) = triggers(&web1, &["--parallel=1"]);
    let (third, _) = triggers(&web1, &["--parallel=1", "--name=other"]);
    assert_eq!(web1.how().outbox.selections, 2);
    let said = prints(&web1, &["cancel", &third.to_string()]);
    assert!(said.contains("the stored selection is removed"), "{said}");
    let said = prints(&web1, &["cancel", "--to", "web2.test"]);
    assert!(
        said.contains("no stored selection is sent any more for web2.test"),
        "{said}"
    );
    server.run();
    let web2 = balancer("web2.test", &server);
    lb1.runs_once(&second);
    assert!(is_resolved(&web1));
    assert!(!lb1.ran().iter().any(|id| [&first, &third].contains(&id)));
    assert_eq!(web2.ran(), []);
}

/// Changes the saved inventory as if five minutes had passed since the loss.
pub fn age_loss(node: &Node) {
    let path = node.path("state/serve/inventory");
    let bytes = fs::read(&path).expect("the inventory");
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (head, rest) = bytes.split_at(end.expect("a head"));
    let mut head: Value = serde_json::from_slice(head).expect("JSON");
    assert!(head["lost"].is_object(), "no loss: {head}");
    head["lost"] = Value::Null;
    fs::write(&path, [head.to_string().as_bytes(), rest].concat()).expect("written");
}

#[test]
fn selection_waits_for_five_minutes_after_the_backend_lost_its_data() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = sender(&server);
    ends(&server, &web1);
    let (id, _) = triggers(&web1, &[]);
    server.wipe();
    server.run();
    until("the loss", || web1.log().contains(" has lost its data: "));
    let web2 = balancer("web2.test", &server);
    lb1.runs_once(&id);
    until("both", || shown(&web1, &IS_LB) == ["lb1.test", "web2.test"]);
    assert!(!is_resolved(&web1) && web2.ran().is_empty());
    age_loss(&web1);
    until("the selection", || {
        shown(&web1, &IS_LB);
        is_resolved(&web1)
    });
    web2.runs_once(&id);
    lb1.runs_once(&id);
}
