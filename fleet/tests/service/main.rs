//! Service as a process, with real backends, certificates of a Puppet CA, the executor as another
//! process, and the real `again`. A trigger runs a script that counts its runs or, where the
//! outcome matters, a real `puppet apply`.

/// Senders that flood a node.
mod ahead;
/// Faults of the backend.
mod backend;
#[path = "../support/ca.rs"]
mod ca;
/// Nodes whose clocks are wrong.
mod clock;
/// Processes that are killed.
mod crash;
/// Events that runs leave in the spool.
mod events;
#[allow(dead_code, reason = "what is sealed together is not for this room")]
#[path = "../support/fired.rs"]
mod fired;
/// Hostile values in the backend.
mod hostile;
/// Clients of the service's socket.
mod listener;
/// Locks.
mod locks;
/// Tests that take a while.
mod long;
/// Many senders.
mod many;
#[allow(dead_code, reason = "the commands are for the room of the verbs")]
#[path = "../support/node.rs"]
mod node;
/// Metrics of the service.
mod numbers;
#[allow(dead_code, reason = "what ends a feed is for the room of the backends")]
#[path = "../support/operator.rs"]
mod operator;
#[path = "../support/relay.rs"]
mod relay;
/// Requests that wait on disk.
mod requests;
/// Runs that send triggers.
mod ring;
/// Rolling runs.
mod rolling;
/// Rules about events of other nodes.
mod rules;
// The other functions are for the backends' own tests.
#[allow(dead_code)]
#[path = "../support/servers.rs"]
mod servers;
/// Runs that share slots.
mod slots;
/// Results of a busy node.
mod steady;
#[path = "../support/straight.rs"]
mod straight;
#[allow(
    dead_code,
    reason = "what nodes tell of themselves is for the room of the executor"
)]
#[path = "../support/told.rs"]
mod told;

use again_fleet::ask::Question;
use again_fleet::policy::fire::Request;
use node::{Node, request, until};
use servers::{Kind, Server};

const ACROSS: [&str; 2] = ["delivered lb1.test", "said etcd"];
const ACROSS_NATS: [&str; 2] = ["delivered lb1.test", "said nats"];
const KEPT: [&str; 2] = ["kept lb1.test", "said etcd away"];

/// Keys in an etcd below the namespace.
fn keys(server: &Server) -> Vec<String> {
    let all = server.etcdctl(
        "web1.test",
        &["get", "--prefix", "--keys-only", "again/v1/test/"],
    );
    let keys = all
        .lines()
        .filter_map(|line| line.strip_prefix("again/v1/test/"));
    keys.map(str::to_owned).collect()
}

/// Real Puppet notes its run, changes something the first time, and nothing the second time.
const MANIFEST: &str = "
file { 'DIR/made': content => 'by puppet' }
exec { 'DIR/note': unless => 'DIR/note' }
";

/// Sends a request, and returns all that the service reports about it from the other node.
fn fired_and_followed(from: &Node, request: &Request) -> Vec<String> {
    let question = Question::Fire {
        request: request.clone(),
        wait: true,
    };
    let mut words = from.ask(&question).all();
    let told = words.split_off(2);
    assert_eq!(words[0], "delivered lb1.test");
    // The target's status may arrive before the backend has answered.
    assert!(words[1].starts_with("said "), "{words:?}");
    told
}

/// Sends a trigger from one node to the other, and its statuses back.
fn across(kind: Kind) {
    let server = Server::start(kind);
    let web1 = Node::new("web1.test", &server);
    let lb1 = Node::off("lb1.test", &server);
    lb1.runs_puppet(MANIFEST);
    lb1.set(&server);
    lb1.take();
    lb1.start();
    web1.is_linked(true);
    lb1.is_linked(true);
    let one = request("again", &["lb1.test"]);
    let told = fired_and_followed(&web1, &one);
    let (first, last) = (&told[0], &told[told.len() - 1]);
    assert!(
        first.starts_with("lb1.test Status(Taken, \"scheduled: "),
        "{told:?}"
    );
    assert!(last.starts_with("lb1.test Status(Changed, "), "{told:?}");
    assert!(lb1.path("made").exists());
    lb1.runs_once(&one.id);
    let run = &lb1.runs()[0];
    let path = ["web1.test".parse().expect("a certname")];
    assert_eq!(run.origins.0[0].path, path);
    assert!(web1.runs().is_empty());
    // The trigger has left the outbox, and does not come again.
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    if kind == Kind::Etcd {
        until("a removal", || {
            !keys(&server).iter().any(|key| key.starts_with("to/"))
        });
        let story = format!("story/lb1=test/{}/{}", one.id, one.id);
        let stand = [
            "node/lb1=test",
            "node/web1=test",
            "result/web1=test/lb1=test/again",
            &story,
        ];
        assert_eq!(keys(&server), stand);
    }
    for node in [&web1, &lb1] {
        node.stop();
    }
    lb1.start();
    web1.start();
    web1.is_linked(true);
    let two = request("again", &["lb1.test"]);
    let told = fired_and_followed(&web1, &two);
    let last = &told[told.len() - 1];
    assert!(last.starts_with("lb1.test Status(Unchanged, "), "{told:?}");
    lb1.runs_once(&two.id);
    assert_eq!(lb1.ran(), [one.id, two.id]);
    assert_eq!(lb1.runs().len(), 2);
}

#[test]
fn a_trigger_has_the_other_node_run_what_is_set_there_over_etcd() {
    across(Kind::Etcd);
}

#[test]
fn a_trigger_has_the_other_node_run_what_is_set_there_over_nats() {
    across(Kind::Nats);
}

fn backend_away(kind: Kind) {
    let server = Server::start(kind);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    lb1.is_linked(true);
    web1.is_linked(true);
    server.kill();
    let one = request("again", &["lb1.test"]);
    let said = web1.fire(&one);
    assert_eq!(said[0], "kept lb1.test", "{said:?}");
    server.run();
    lb1.runs_once(&one.id);
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    assert_eq!(lb1.ran(), [one.id]);
}

#[test]
fn what_is_fired_while_the_backend_is_away_is_delivered_once_over_etcd() {
    backend_away(Kind::Etcd);
}

#[test]
fn what_is_fired_while_the_backend_is_away_is_delivered_once_over_nats() {
    backend_away(Kind::Nats);
}

#[test]
fn what_was_said_to_be_kept_outlives_the_service() {
    let server = Server::start(Kind::Etcd);
    let lb1 = Node::new("lb1.test", &server);
    lb1.is_linked(true);
    server.kill();
    let web1 = Node::new("web1.test", &server);
    let one = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&one), KEPT);
    web1.kill();
    web1.start();
    assert_eq!(web1.how().outbox.triggers, 1);
    server.run();
    lb1.runs_once(&one.id);
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    web1.kill();
    // The numbers continue after the last one.
    web1.start();
    web1.is_linked(true);
    let two = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&two), ACROSS);
    lb1.runs_once(&two.id);
    assert_eq!(lb1.ran(), [one.id, two.id]);
}

#[test]
fn a_target_that_was_off_runs_once_when_it_is_back() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    web1.is_linked(true);
    lb1.kill();
    let [one, two] = [1, 2].map(|_| {
        let one = request("again", &["lb1.test"]);
        assert_eq!(web1.fire(&one), ACROSS);
        one
    });
    lb1.start();
    lb1.runs_once(&two.id);
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    assert_eq!(lb1.ran(), [two.id], "the newer one stands for {}", one.id);
}

#[test]
fn a_backend_that_forgot_everything_gets_it_again() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    web1.is_linked(true);
    lb1.stop();
    let one = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&one), ACROSS);
    server.kill();
    server.wipe();
    server.run();
    until("the register", || {
        keys(&server).contains(&"to/lb1=test/web1=test/again".to_owned())
    });
    lb1.start();
    lb1.runs_once(&one.id);
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    assert_eq!(lb1.ran(), [one.id]);
}

/// The executor may have accepted the trigger all the same; it knows the numbers.
#[test]
fn what_root_s_side_did_not_answer_is_handed_over_again() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::off("lb1.test", &server),
    );
    lb1.start();
    lb1.is_linked(true);
    web1.is_linked(true);
    let one = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&one), ACROSS);
    until("a reason", || lb1.how().executor.is_some());
    assert!(
        lb1.log().contains("1 triggers cannot be taken"),
        "{}",
        lb1.log()
    );
    lb1.take();
    lb1.runs_once(&one.id);
    until("another answer", || lb1.how().executor.is_none());
    // The service dies before it has removed the trigger; the next one hands it over again.
    lb1.kill();
    let two = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&two), ACROSS);
    lb1.start();
    lb1.runs_once(&two.id);
    assert_eq!(lb1.ran(), [one.id, two.id]);
    // Nothing from a trigger gets into the command.
    assert!(lb1.runs().iter().all(|run| run.arguments == ["--test"]));
}

#[test]
fn what_comes_together_is_taken_together_and_everything_once() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    web1.is_linked(true);
    lb1.stop();
    let mut fired = Vec::new();
    for n in 0..100 {
        let one = request(&format!("name {n}"), &["lb1.test"]);
        assert_eq!(web1.fire(&one), ACROSS);
        fired.push(one.id);
    }
    lb1.start();
    until("the last", || lb1.ran().len() >= fired.len());
    until("an empty outbox", || web1.how().outbox.triggers == 0);
    let mut ran = lb1.ran();
    ran.sort();
    fired.sort();
    assert_eq!(ran, fired);
    // Maximum number of triggers that can be handed over together.
    let asked = lb1.history("requested").len();
    assert!(asked <= 8 && lb1.runs().len() <= asked, "{asked} requests");
}

#[test]
fn what_nobody_may_send_here_is_refused_and_removed() {
    let server = Server::start(Kind::Etcd);
    let lb1 = Node::new("lb1.test", &server);
    lb1.is_linked(true);
    for key in [
        "to/lb1=test/web1=test/again",
        "to/lb1=test/nobody",
        "result/lb1=test/web1=test/again",
    ] {
        server.etcdctl(
            "web1.test",
            &["put", &format!("again/v1/test/{key}"), "/bin/sh -c id"],
        );
    }
    until("a refusal", || lb1.log().contains("is not from there"));
    until("a removal", || {
        !keys(&server).contains(&"to/lb1=test/web1=test/again".to_owned())
    });
    until("the rest", || {
        lb1.log().contains("not ours") && lb1.log().contains("is not believed")
    });
    assert!(lb1.runs().is_empty());
    assert!(lb1.how().link.is_up);
}
