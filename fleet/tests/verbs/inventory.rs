//! Last inventory: nodes that have published count while the backend is away, and after it has lost
//! its data.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::ca::Ca;
use crate::nodes::{has_role, shown};
use crate::real::{done, well};
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use crate::whole::{Node, until};

const WEB: [&str; 2] = ["web1.test", "web2.test"];
const IS_WEB: [&str; 2] = ["--where", "role=web"];
/// Warning that the nodes cannot be read now.
const STORED: &str = "the nodes are those of the last inventory, read ";

/// Returns two web servers, and a balancer whose service has read them.
fn read(server: &Server) -> [Node; 3] {
    let nodes = ["web1.test", "web2.test", "lb1.test"].map(|name| Node::new(name, server));
    for (node, role) in nodes.iter().zip(["web", "web", "lb"]) {
        node.is_linked(true);
        has_role(node, role);
    }
    until("both", || shown(&nodes[2], &IS_WEB) == WEB);
    nodes
}

/// Output of `nodes` for web servers, as JSON, and its standard error.
fn listed(node: &Node) -> (Value, String) {
    let (status, out, err) = done(node.command(&[&["nodes", "--json"][..], &IS_WEB].concat()));
    assert_eq!(status, 0, "{err}");
    (serde_json::from_str(&out).expect("JSON"), err)
}

fn is_missing(all: &Value, n: usize) -> bool {
    all["nodes"][n]["missing_since"].is_string()
}

/// Changes the saved inventory as if this time had passed since the loss.
fn age_loss(node: &Node, millis: u64) {
    let path = node.path("state/serve/inventory");
    let bytes = fs::read(&path).expect("the inventory");
    let end = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .expect("a head");
    let mut head: Value = serde_json::from_slice(&bytes[..end]).expect("JSON");
    for line in head["nodes"].as_array_mut().expect("nodes") {
        if let Some(since) = line["missing_since"].as_u64() {
            line["missing_since"] = (since - millis).into();
        }
    }
    let aged = [head.to_string().as_bytes(), &bytes[end..]].concat();
    fs::write(&path, aged).expect("written");
}

#[test]
fn nodes_count_while_the_backend_is_away_and_after_it_lost_its_data() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        let [web1, web2, lb1] = read(&server);
        server.kill();
        [&web1, &lb1].iter().for_each(|node| node.is_linked(false));
        // A service that starts while the backend is away reads the inventory from the disk.
        for _ in 0..2 {
            let (all, err) = listed(&lb1);
            assert_eq!(shown(&lb1, &IS_WEB), WEB);
            assert!(
                err.contains(STORED) && err.contains("cannot be reached: "),
                "{err}"
            );
            assert_eq!(all["nodes"][0]["alive"], Value::Null, "{all:#}");
            assert!(all["stored"]["at"].is_string(), "{all:#}");
            let warning = all["warnings"][0].as_str().expect("a warning");
            assert!(err.contains(warning), "{all:#}");
            lb1.stop();
            lb1.start();
        }
        let (status, out, err) = done(lb1.command(&["trigger", "--where", "role=web"]));
        assert!(status == 0 && err.contains(STORED), "{err}");
        assert!(out.contains(" to 2 nodes: web1.test, web2.test"), "{out}");
        // Without an inventory, the command fails.
        let (status, out, err) = done(web1.command(&["nodes"]));
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("cannot be reached"), "{err}");
        // The backend comes back empty, and one of the two nodes does not come back.
        web2.kill();
        server.wipe();
        server.run();
        lb1.is_linked(true);
        until("the other one", || {
            let (all, _) = listed(&lb1);
            let nodes = all["nodes"].as_array().expect("nodes").len();
            assert!(nodes == 2 && all["stored"].is_null(), "{all:#}");
            assert!(is_missing(&all, 1), "{all:#}");
            !is_missing(&all, 0)
        });
        let (_, err) = listed(&lb1);
        let counted = "still counts 1 node without new facts since the backend lost its data at ";
        assert!(err.contains(counted), "{err}");
        assert!(lb1.log().contains(" has lost its data: "), "{}", lb1.log());
        let table = done(lb1.command(&["nodes"])).1;
        assert!(table.contains("\nweb2.test  not back"), "{table}");
        // After five minutes the node is named in a warning, and an operator can remove it.
        assert!(!err.contains("web2.test"), "{err}");
        age_loss(&lb1, 300_000);
        let (all, err) = listed(&lb1);
        let named = "if it is gone for good, 'again-fleet forget web2.test'";
        assert!(err.contains(named), "{err}");
        assert_eq!(all["nodes"].as_array().expect("nodes").len(), 2);
        let (status, out, err) = done(lb1.command(&["forget", "web2.test"]));
        assert_eq!(status, 0, "{out}{err}");
        let (all, err) = listed(&lb1);
        assert_eq!(
            (all["nodes"].as_array().expect("nodes").len(), err.as_str()),
            (1, "")
        );
        let (status, _, err) = done(lb1.command(&["forget", "web2.test"]));
        assert!(
            status == 1 && err.contains("web2.test has told nothing"),
            "{err}"
        );
        // A node that comes back late is listed again.
        web2.start();
        until("its return", || shown(&lb1, &IS_WEB) == WEB);
        assert_eq!(listed(&lb1).1, "");
    }
}

/// A node that is down has an older value in the backup than this one has read.
#[test]
fn node_counts_after_the_backend_was_restored_from_a_backup() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        let [web1, web2, lb1] = read(&server);
        server.kill();
        server.back_up();
        server.run();
        [&web1, &web2, &lb1]
            .iter()
            .for_each(|node| node.is_linked(true));
        for n in 0..10 {
            let role = format!("web{n}");
            has_role(&web2, &role);
            let is_role = ["--where", &format!("role={role}")];
            until("the new role", || shown(&lb1, &is_role) == ["web2.test"]);
        }
        web2.kill();
        server.kill();
        lb1.is_linked(false);
        server.restore();
        server.run();
        lb1.is_linked(true);
        until("the loss", || lb1.log().contains(" has lost its data: "));
        let role = ["--where", "role=web9"];
        assert_eq!(shown(&lb1, &role), ["web2.test"], "{}", lb1.log());
        web1.is_linked(true);
        until("the other one", || shown(&lb1, &IS_WEB) == ["web1.test"]);
        assert_eq!(shown(&lb1, &role), ["web2.test"], "{}", lb1.log());
    }
}

/// An etcd that is set up again in the same way has the same name.
#[test]
fn loss_is_noticed_when_revisions_have_grown_again() {
    let server = Server::start(Kind::Etcd);
    let [web1, web2, lb1] = read(&server);
    let straight = Straight::at(&server, "lb1.test");
    let mut before = 0;
    while before < 100 {
        before = straight.put("end", b"").expect("put");
    }
    assert_eq!(shown(&lb1, &IS_WEB), WEB);
    let before = straight.put("end", b"").expect("put");
    server.kill();
    web1.is_linked(false);
    [&web2, &lb1].iter().for_each(|node| node.kill());
    server.wipe();
    server.run();
    let straight = Straight::at(&server, "lb1.test");
    until("the first one", || {
        !straight.list("node/web1=test").is_empty()
    });
    while straight.put("end", b"").expect("put") <= before {}
    lb1.start();
    lb1.is_linked(true);
    let (all, err) = listed(&lb1);
    assert!(is_missing(&all, 1) && !is_missing(&all, 0), "{all:#}{err}");
    let log = lb1.log();
    assert!(log.contains(".test's value of revision "), "{log}");
    // A node that is removed from intact data disappears, even if the service of another node
    // removes it.
    web1.stop();
    straight.ages("web1.test");
    lb1.stop();
    lb1.start();
    lb1.is_linked(true);
    well(&new_node(&server), &["forget", "web1.test"]);
    assert_eq!(shown(&lb1, &IS_WEB), ["web2.test"]);
}

/// Returns a new node, to which no client has sent a request.
fn new_node(server: &Server) -> Node {
    let node = Node::new("n01.test", server);
    node.is_linked(true);
    node
}

#[test]
fn last_inventory_is_shown_while_the_backend_hangs() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let server = Server::start(kind);
        let [_, _, lb1] = read(&server);
        // If a beat detects the silence first, the backend counts as away.
        until("an answer in place of the backend's", || {
            until("the backend", || listed(&lb1).0["stored"].is_null());
            server.stop();
            let (all, err) = listed(&lb1);
            let nodes = all["nodes"].as_array().expect("nodes").len();
            assert!(nodes == 2 && err.contains(STORED), "{all:#}{err}");
            let table = done(lb1.command(&["nodes"])).1;
            assert!(table.contains("\nweb1.test  not known, told "), "{table}");
            server.go_on();
            let why = all["stored"]["why"].as_str().expect("a reason");
            why.ends_with(" has not answered within 3 s")
        });
        until("the backend", || listed(&lb1).0["stored"].is_null());
        assert_eq!(listed(&lb1).1, "");
    }
}

/// Number of steps between two cases, up to the last steps, which save the nodes that were read.
const STRIDE: u64 = 9;

/// Kills the service at its nth system call that others could notice, while it starts, reads the
/// nodes and saves them; returns whether it was killed.
fn is_killed_at(lb1: &Node, n: u64) -> bool {
    lb1.kill();
    lb1.start_killed_at(n);
    let nodes = [&["nodes", "--json"][..], &IS_WEB].concat();
    until("its death, or the nodes", || {
        let (status, out, _) = done(lb1.command(&nodes));
        lb1.was_killed() || (status == 0 && out.contains(r#""stored":null"#))
    });
    let was_killed = lb1.was_killed();
    lb1.start_anew();
    assert_eq!(shown(lb1, &IS_WEB), WEB, "{n}");
    was_killed
}

#[test]
fn inventory_is_whole_after_the_service_was_killed_at_any_step() {
    let server = Server::start(Kind::Etcd);
    let [_, _, lb1] = read(&server);
    let mut n = 1;
    while is_killed_at(&lb1, n) {
        n += STRIDE;
    }
    for n in n.saturating_sub(3 * STRIDE)..n {
        is_killed_at(&lb1, n);
    }
    let log = lb1.log();
    assert!(!log.contains("the last inventory "), "{log}");
}

/// A real manifest of a balancer, applied by hand.
#[test]
fn balancer_keeps_its_servers_while_the_backend_is_away() {
    const MANIFEST: &str = r#"
$lines = servers_with_role('web').map |$server| { "server ${server['certname']}\n" }
file { 'DIR/haproxy.cfg': content => join($lines) }
"#;
    let server = Server::start(Kind::Etcd);
    let [web1, web2, lb1] = read(&server);
    lb1.write("site.pp", MANIFEST);
    fs::create_dir(lb1.path("modules")).expect("made");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../puppet-module");
    let module = module.canonicalize().expect("the module");
    symlink(module, lb1.path("modules/common")).expect("linked");
    let program = Path::new(env!("CARGO_BIN_EXE_again-fleet"));
    let directory = program.parent().expect("a directory").display();
    let path = format!("{directory}:{}", std::env::var("PATH").expect("a path"));
    let apply = || {
        let mut puppet = Command::new("puppet");
        puppet.args(&lb1.puppet()[1..]);
        puppet.arg("--modulepath").arg(lb1.path("modules"));
        puppet.env("AGAIN_FLEET_CONFIG", lb1.path("again-fleet.toml"));
        puppet.env("PATH", &path);
        let (status, out, err) = done(puppet);
        (status, out + &err)
    };
    let both = || fs::read_to_string(lb1.path("haproxy.cfg")).expect("a file");
    let servers = "server web1.test\nserver web2.test\n";
    let (status, said) = apply();
    assert!(
        status == 0 && !said.contains("Warning: again-fleet"),
        "{said}"
    );
    assert_eq!(both(), servers);
    // The compilation fails while no node can be verified, because the revocation list here has
    // expired.
    let revocations = |file: &str| {
        fs::write(lb1.path("new"), Ca::get().read(file)).expect("written");
        fs::rename(lb1.path("new"), lb1.path("crl.pem")).expect("renamed");
    };
    revocations("crl-old.pem");
    let (status, said) = apply();
    let why = "cannot tell which servers there are: the facts of all nodes are ignored: lb1.test";
    assert!(status != 0 && said.contains(why), "{said}");
    assert_eq!(both(), servers);
    revocations("crl.pem");
    lb1.is_linked(true);
    server.kill();
    lb1.is_linked(false);
    let keeps = |warning: &str| {
        let (status, said) = apply();
        assert_eq!((status, both().as_str()), (0, servers), "{said}");
        assert!(
            said.contains(&format!("Warning: again-fleet: {warning}")),
            "{said}"
        );
        assert!(!said.contains("haproxy.cfg"), "{said}");
    };
    keeps(STORED);
    lb1.stop();
    lb1.start();
    keeps(STORED);
    // The backend comes back empty, without any of the web servers.
    [&web1, &web2].iter().for_each(|node| node.kill());
    server.wipe();
    server.run();
    lb1.is_linked(true);
    keeps("the last inventory still counts 2 nodes without new facts since the backend lost ");
    // The compilation fails while no inventory is available.
    lb1.kill();
    let (status, said) = apply();
    let why = "the inventory of again-fleet cannot tell which servers there are: 'again-fleet nodes' ended with 1: ";
    assert!(status != 0 && said.contains(why), "{said}");
    assert_eq!(both(), servers);
}
