//! Reports that cause runs: the module's report processor in a real `puppet apply`, and triggers
//! that a server sends for an agent's report.

use std::fs;
use std::path::Path;
use std::process::Command;

use again_fleet::wire::lineage::{Cause, Lineage, Origin};
use again_fleet::wire::name::Id;

use crate::name;
use crate::nodes::has_role;
use crate::real::{done, well};
use crate::selections::age_loss;
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use crate::whole::{Node, until};

/// Manifest with a change, unless the file `quiet` exists.
const MANIFEST: &str = "
exec { '/bin/true': unless => '/usr/bin/test -e DIR/quiet' }
notify { 'kick -> host:lb1.test': }
";

/// Manifest in which the type sends a trigger.
const REFRESH: &str = "
exec { '/bin/true': notify => Trigger['refresh'] }
trigger { 'refresh': hosts => ['lb1.test'] }
";

/// Runs `puppet apply` on a node with the module and its report processor.
fn reports(node: &Node) -> Vec<String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../puppet-module");
    fs::create_dir(node.path("modules")).expect("made");
    std::os::unix::fs::symlink(module, node.path("modules/common")).expect("a link");
    fs::create_dir(node.path("bin")).expect("made");
    node.program("bin/again-fleet", "#!/bin/sh\nexec FLEET \"$@\"\n");
    node.write("site.pp", MANIFEST);
    let path = std::env::var("PATH").expect("a path");
    let path = format!("PATH={}:{path}", node.at("bin"));
    let more = ["--reports=kick", "--basemodulepath", &node.at("modules")];
    let name = ["--certname", node.name];
    let words = [&["/usr/bin/env", &path][..], &[]].concat();
    let words = words.into_iter().map(str::to_owned);
    let more = more.iter().chain(&name).map(|word| (*word).to_owned());
    words.chain(node.puppet()).chain(more).collect()
}

#[test]
fn a_report_kicks_if_its_run_has_changed_something_and_goes_on_with_its_way() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::off("web1.test", &server);
    let words = reports(&web1);
    web1.runs_this(&words.iter().map(String::as_str).collect::<Vec<_>>());
    web1.set(&server);
    web1.take();
    web1.start();
    let web2 = Node::new("web2.test", &server);
    let straight = Straight::at(&server, "web1.test");
    for node in [&web1, &web2] {
        node.is_linked(true);
    }
    let apply = || {
        let mut puppet = Command::new(&words[0]);
        puppet.args(&words[1..]);
        puppet.env("AGAIN_CONFIG", web1.path("again.toml"));
        let (status, out, err) = done(puppet);
        assert_eq!(status, 0, "{out}{err}");
        out + &err
    };
    let said = apply();
    assert!(
        said.contains("kick -> host:lb1.test: again-fleet: delivered to etcd for 1 node: lb1.test"),
        "{said}"
    );
    let one = straight.triggers("lb1.test").remove(0);
    let origin = Origin {
        id: one.id.clone(),
        cause: Cause::Kick,
        path: vec![name("web1.test")],
    };
    assert_eq!((&one.lineage.0[..], &one.on_behalf), (&[origin][..], &None));
    assert_eq!(one.name.as_str(), "kick -> host:lb1.test (web1.test)");
    // Three runs: unchanged, although Puppet counts its notify as a change; noop; and without the
    // service.
    fs::write(web1.path("quiet"), "").expect("written");
    apply();
    assert_eq!(straight.triggers("lb1.test")[0].id, one.id);
    fs::remove_file(web1.path("quiet")).expect("removed");
    well(&web2, &["trigger", "--to", "web1.test"]);
    let passed = || straight.triggers("lb1.test").remove(0).lineage.0;
    until("its kick", || passed().len() == 2);
    let way = vec![name("web2.test"), name("web1.test")];
    let all = passed();
    let passed = all.iter().find(|one| one.path == way);
    assert_eq!(passed.map(|one| one.cause), Some(Cause::Person), "{all:?}");
    web1.stop();
    let said = apply();
    assert!(
        said.contains(
            "kick: 'kick -> host:lb1.test' of web1.test is not passed on: again-fleet: error: "
        ),
        "{said}"
    );
    // With a spool on disk, the trigger is sent when the service is back.
    fs::create_dir(web1.path("spool-requests")).expect("made");
    let said = apply();
    let words = "kick -> host:lb1.test: again-fleet: waiting on disk for the service of this node";
    assert!(said.contains(words), "{said}");
    // The trigger of the type is sent then too, and its resource does not fail.
    web1.write("site.pp", REFRESH);
    let said = apply();
    let words = "Trigger[refresh]: again-fleet: waiting on disk for the service of this node";
    let is_refreshed = said.contains("Trigger[refresh]: Triggered 'refresh' from 1 event");
    assert!(said.contains(words) && is_refreshed, "{said}");
    let before = straight.triggers("lb1.test").remove(0).id;
    web1.start();
    until("both", || {
        let all = straight.triggers("lb1.test");
        let has = |name: &str| all.iter().any(|one| one.name.as_str() == name);
        all.iter().all(|one| one.id != before) && has("refresh") && all.len() == 2
    });
}

/// The sender has never read the nodes.
#[test]
fn kick_by_role_is_stored_while_the_backend_is_away() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    lb1.is_linked(true);
    has_role(&lb1, "lb");
    let words = reports(&web1);
    web1.write(
        "site.pp",
        "exec { '/bin/true': }\nnotify { 'kick -> lb': }\n",
    );
    server.kill();
    web1.is_linked(false);
    let mut puppet = Command::new(&words[0]);
    puppet.args(&words[1..]);
    puppet.env("AGAIN_CONFIG", web1.path("again.toml"));
    let (status, out, err) = done(puppet);
    let said = out + &err;
    let line = "kick -> lb: again-fleet: the selection is stored until ";
    assert!(status == 0 && said.contains(line), "{said}");
    server.run();
    // The service reads the nodes for the first time, so it cannot know whether any are lost.
    until("the nodes", || web1.path("state/serve/inventory").exists());
    age_loss(&web1);
    until("its run", || {
        done(web1.command(&["nodes"]));
        !lb1.runs().is_empty()
    });
    assert_eq!(web1.how().outbox.selections, 0);
    let origin = lb1.runs().remove(0).origins.0.remove(0);
    assert_eq!(
        (origin.cause, origin.path),
        (Cause::Kick, vec![name("web1.test")])
    );
}

/// The service stores its selection when it starts.
#[test]
fn kick_by_role_waits_on_disk_while_the_service_is_down() {
    let server = Server::start(Kind::Etcd);
    let [web1, lb1] = ["web1.test", "lb1.test"].map(|name| Node::new(name, &server));
    lb1.is_linked(true);
    has_role(&lb1, "lb");
    let words = reports(&web1);
    web1.write(
        "site.pp",
        "exec { '/bin/true': }\nnotify { 'kick -> lb': }\n",
    );
    fs::create_dir(web1.path("spool-requests")).expect("made");
    web1.stop();
    let mut puppet = Command::new(&words[0]);
    puppet.args(&words[1..]);
    puppet.env("AGAIN_CONFIG", web1.path("again.toml"));
    let (status, out, err) = done(puppet);
    let said = out + &err;
    let line = "kick -> lb: again-fleet: waiting on disk for the service of this node";
    assert!(status == 0 && said.contains(line), "{said}");
    web1.start();
    until("the selection", || web1.how().outbox.selections == 1);
}

/// The server sends on behalf of nodes, with the path from the job id, and only for nodes for which
/// the target accepts it.
#[test]
fn a_server_fires_for_others_and_their_ways_go_on() {
    let server = Server::start(Kind::Etcd);
    let puppet = Node::new("web2.test", &server);
    let lb1 = Node::off("lb1.test", &server);
    lb1.set_also("accept = ['web2.test']");
    lb1.set_also("accept_for = { 'web2.test' = ['web*.test'] }");
    lb1.take();
    lb1.start();
    for node in [&puppet, &lb1] {
        node.is_linked(true);
    }
    let fire = |on_behalf: &str, job: &str| {
        let name = format!("--name=kick ({on_behalf})");
        let (on_behalf, job) = (format!("--for={on_behalf}"), format!("--job-id={job}"));
        let words = [
            "trigger",
            "--to=lb1.test",
            "--wait",
            &name,
            &on_behalf,
            &job,
        ];
        done(puppet.command(&words))
    };
    let id = Id::from_bits(7);
    let job = |hops: usize| {
        let way = ["/lb1.test", "/web1.test"].repeat(hops);
        format!("0123456789abcdef//{id}/person{}", way[..hops].concat())
    };
    let origin = |id: &Id, cause, way: &[&str]| {
        let path = way.iter().map(|one| name(one)).collect();
        let id = id.clone();
        Lineage(vec![Origin { id, cause, path }])
    };
    // The command is not Puppet, so the outcome of its run is unknown.
    let (_, out, err) = fire("web1.test", &job(1));
    assert_eq!(err, "", "{out}");
    let way = ["lb1.test", "web1.test"];
    assert_eq!(lb1.runs()[0].origins, origin(&id, Cause::Person, &way));
    // Reports of a run without a trigger, of a job with a foreign id, and of the node itself.
    for (node, job) in [("web1.test", ""), ("web1.test", "17"), ("web2.test", "")] {
        let (_, out, err) = fire(node, job);
        assert_eq!(err, "", "{out}");
        let run = lb1.runs().pop().expect("a run");
        let (id, expected) = (&run.triggers[0], &[node][..]);
        assert_eq!(run.origins, origin(id, Cause::Kick, expected));
    }
    let ran = lb1.runs().len();
    let (status, out, err) = fire("db1.test", "");
    assert_eq!(status, 1, "{out}");
    let why = "accept_for does not let web2.test speak for db1.test";
    assert!(out.contains(why), "{out}{err}");
    let (status, _, err) = fire("web1.test", &job(11));
    let circle = "over 10 hops: lb1.test -> web1.test -> lb1.test ...";
    assert!(status == 1 && err.contains(circle), "{err}");
    let (status, _, err) = fire("web1.test", &format!("0123456789abcdef//{id}/whim/a"));
    assert!(status == 2 && err.contains("'whim' is no cause"), "{err}");
    assert_eq!(lb1.runs().len(), ran);
}
