//! Requests that commands leave on disk while the service of their node does not answer.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use again_fleet::ask::{self, Question};
use again_fleet::policy::fire::Request;
use again_fleet::spool::requests::{MOST, Requests};
use again_fleet::step::model::Back;
use again_fleet::wire::name::Id;

use crate::node::{Node, request, until};
use crate::servers::{Kind, Server};
use crate::straight::Straight;

/// User and group other than root.
const OTHER: u32 = 65534;

/// Returns a node whose service is down, with a directory for requests on disk.
fn down(server: &Server) -> Node {
    let web1 = Node::off("web1.test", server);
    fs::create_dir(spool(&web1)).expect("made");
    web1
}

pub fn spool(node: &Node) -> PathBuf {
    node.path("spool-requests")
}

/// Ids of the requests on disk.
pub fn waiting(node: &Node) -> Vec<Id> {
    let requests = Requests::beside(&node.path("spool"));
    let files = requests.listing().expect("a directory").files;
    files.into_iter().map(|(_, id)| id).collect()
}

pub fn leave(node: &Node, id: &Id, request: &Request) -> PathBuf {
    let question = Question::Fire {
        request: request.clone(),
        wait: false,
    };
    let bytes = ask::ask(&question).expect("a question");
    let requests = Requests::beside(&node.path("spool"));
    requests.leave(id, &bytes).expect("left");
    spool(node).join(id.as_str())
}

/// Wakes the service of a node, as a command does after it has left a request.
fn wake(node: &Node) {
    let socket = UnixDatagram::unbound().expect("a socket");
    let sent = socket.send_to(&[0], node.path("run/events"));
    sent.expect("woken");
}

/// Runs a command of the node; returns its exit status and all of its output.
fn runs(mut command: Command) -> (i32, String) {
    let output = command.output().expect("the program");
    let text = [output.stdout, output.stderr].concat();
    let status = output.status.code().expect("no signal");
    (status, String::from_utf8(text).expect("UTF-8"))
}

fn said(node: &Node, words: &[&str]) -> (i32, String) {
    runs(node.command(words))
}

/// The service is killed after it has sent the requests, before the executor, which is down, has
/// removed them.
#[test]
fn requests_left_while_the_service_is_down_are_sent_once_with_the_way_of_their_sending() {
    let server = Server::start(Kind::Etcd);
    let web1 = down(&server);
    let lb1 = Node::new("lb1.test", &server);
    lb1.is_linked(true);
    let (status, text) = said(&web1, &["trigger", "--to=lb1.test", "--name=one"]);
    let words = "again-fleet: waiting on disk for the service of this node; sent until ";
    assert!(status == 0 && text.contains(words), "{status}: {text}");
    let why = "again-fleet: warning: the service of this node cannot be asked: there is no socket";
    assert!(text.contains(why), "{text}");
    // As a report does for a run that a trigger of another node has started.
    let id = Id::from_bits(7);
    let job = format!("--job-id=0123456789abcdef//{id}/person/db1.test");
    let kick = ["trigger", "--to=lb1.test", "--name=kick", "--for=web1.test"];
    let (status, text) = said(&web1, &[&kick[..], &[&job]].concat());
    assert!(status == 0 && text.contains(words), "{status}: {text}");
    let ids = waiting(&web1);
    assert_eq!(ids.len(), 2);
    let (_, text) = said(&web1, &["check"]);
    assert!(text.contains("2 requests wait in "), "{text}");
    let (status, text) = said(&web1, &["cancel", "--to=lb1.test"]);
    assert!(status == 1 && text.contains("cannot be asked"), "{text}");
    web1.start();
    for id in &ids {
        lb1.runs_once(id);
    }
    let ways = lb1.runs().into_iter().flat_map(|run| run.origins.0);
    let way: Vec<String> = ways
        .filter(|origin| origin.id == id)
        .flat_map(|origin| origin.path)
        .map(|node| node.to_string())
        .collect();
    assert_eq!(way, ["db1.test", "web1.test"]);
    assert_eq!(waiting(&web1), ids);
    web1.kill();
    web1.take();
    web1.start();
    until("an empty directory", || waiting(&web1).is_empty());
    until("an empty outbox", || web1.is_done());
    let last = request("last", &["lb1.test"]);
    web1.fire(&last);
    lb1.runs_once(&last.id);
    assert_eq!(lb1.ran().len(), 3, "{}", web1.log());
}

#[test]
fn only_requests_of_root_and_of_the_group_that_may_send_are_read() {
    let server = Server::start(Kind::Etcd);
    let web1 = down(&server);
    let lb1 = Node::new("lb1.test", &server);
    web1.take();
    // As the module's class makes it with firing_group.
    chown(spool(&web1), None, Some(OTHER)).expect("its group");
    let mode = |path: PathBuf, mode| {
        let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        set.expect("its mode");
    };
    mode(spool(&web1), 0o3775);
    mode(web1.path(""), 0o711);
    let other = OTHER.to_string();
    let fire = web1.command(&["trigger", "--to=lb1.test", "--for=web1.test", "--job-id="]);
    // Other users may not have access to the directory in which the program was built.
    fs::copy(fire.get_program(), web1.path("program")).expect("copied");
    let fires = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &other, "--regid", &other, "--clear-groups", "--"]);
        command.arg(web1.path("program")).args(fire.get_args());
        runs(command)
    };
    let junk = |n: usize| spool(&web1).join(format!("junk {n}"));
    (0..MOST / 2).for_each(|n| fs::write(junk(n), "").expect("written"));
    let (status, text) = fires();
    let words = "it is full: 250 requests may wait there";
    assert!(status == 1 && text.contains(words), "{text}");
    (0..MOST / 2).for_each(|n| fs::remove_file(junk(n)).expect("removed"));
    let (status, text) = fires();
    assert!(status == 0 && text.contains("waiting on disk"), "{text}");
    let ids = waiting(&web1);
    let foreign = request("foreign", &["lb1.test"]);
    let file = leave(&web1, &foreign.id, &foreign);
    chown(&file, Some(OTHER - 1), Some(OTHER - 1)).expect("another owner");
    let linked = request("linked", &["lb1.test"]);
    fs::rename(leave(&web1, &linked.id, &linked), web1.path("elsewhere")).expect("moved");
    let link = spool(&web1).join(linked.id.as_str());
    symlink(web1.path("elsewhere"), link).expect("linked");
    fs::create_dir(spool(&web1).join(Id::from_bits(3).as_str())).expect("made");
    web1.start();
    lb1.runs_once(&ids[0]);
    until("an empty directory", || waiting(&web1).is_empty());
    let log = web1.log();
    for words in [
        "1 of the requests that waited on disk are dropped: ",
        " that are not requests are ignored (2); remove them",
    ] {
        assert_eq!(log.matches(words).count(), 1, "{log}");
    }
    assert!(web1.path("elsewhere").exists());
    assert_eq!(lb1.ran(), ids);
}

#[test]
fn full_directory_of_requests_is_an_error_that_says_so() {
    let server = Server::start(Kind::Etcd);
    let web1 = down(&server);
    for n in 0..MOST {
        fs::write(spool(&web1).join(format!("{n}")), "").expect("written");
    }
    let (status, text) = said(&web1, &["trigger", "--to=lb1.test"]);
    let words = "it is full: 500 requests may wait there";
    assert!(status == 1 && text.contains(words), "{text}");
    assert!(text.contains("there is no socket"), "{text}");
}

/// The service gets the first request twice: from its socket, and from the disk.
#[test]
fn requests_left_for_a_service_that_hangs_are_sent_once_and_the_commands_wait_once() {
    let server = Server::start(Kind::Etcd);
    let web1 = down(&server);
    let lb1 = Node::new("lb1.test", &server);
    web1.take();
    web1.start();
    web1.is_linked(true);
    lb1.is_linked(true);
    web1.signal("-STOP");
    let began = Instant::now();
    let kick = |name: &str| {
        said(
            &web1,
            &["trigger", "--to=lb1.test", &format!("--name={name}")],
        )
    };
    let (status, text) = kick("0");
    let words = "has not answered within 5 s";
    assert!(status == 0 && text.contains(words), "{text}");
    for n in 1..6 {
        let (status, text) = kick(&n.to_string());
        let words = "warning: the service did not answer a command less than a minute ago";
        assert!(status == 0 && text.contains(words), "{text}");
    }
    // Less time than two commands would take that wait for the service.
    assert!(began.elapsed() < Duration::from_secs(10));
    let ids = waiting(&web1);
    assert_eq!(ids.len(), 6);
    web1.signal("-CONT");
    for id in &ids {
        lb1.runs_once(id);
    }
    until("an empty directory", || waiting(&web1).is_empty());
    until("an empty outbox", || web1.is_done());
    assert_eq!(lb1.ran().len(), 6);
}

/// The target is down, and the executor, which is down, has not removed the request when the
/// service is killed.
#[test]
fn request_that_was_cancelled_is_not_sent_again_after_a_crash() {
    let server = Server::start(Kind::Etcd);
    let web1 = down(&server);
    let one = request("one", &["lb1.test"]);
    leave(&web1, &one.id, &one);
    web1.start();
    web1.is_linked(true);
    until("its trigger", || web1.how().outbox.triggers == 1);
    let question = Question::TakeBack {
        what: Back::Id(one.id.clone()),
        wait: false,
    };
    let said = web1.ask(&question).all();
    assert!(said[0].ends_with(" lb1.test"), "{said:?}");
    web1.kill();
    assert_eq!(waiting(&web1), std::slice::from_ref(&one.id));
    web1.start();
    web1.is_linked(true);
    let lb1 = Node::new("lb1.test", &server);
    until("an empty outbox", || web1.is_done());
    assert_eq!(lb1.ran(), []);
}

#[test]
fn request_that_waits_on_disk_expires_with_its_ttl() {
    let server = Server::start(Kind::Etcd);
    let web1 = down(&server);
    web1.take();
    for (name, seconds) in [("late", 3500), ("over", 3700)] {
        let one = request(name, &["lb1.test"]);
        let file = leave(&web1, &one.id, &one);
        let file = fs::File::options().write(true).open(file);
        let sent = SystemTime::now() - Duration::from_secs(seconds);
        file.expect("opened").set_modified(sent).expect("set");
    }
    web1.start();
    web1.is_linked(true);
    until("an empty directory", || waiting(&web1).is_empty());
    let straight = Straight::at(&server, "web1.test");
    until("a trigger", || !straight.triggers("lb1.test").is_empty());
    let [late] = &straight.triggers("lb1.test")[..] else {
        panic!("one trigger");
    };
    assert!(
        late.name.as_str() == "late" && late.ttl <= 100_000,
        "{late:?}"
    );
    assert!(web1.log().contains("'over' has expired"), "{}", web1.log());
}

/// No file can be written, as on a full disk.
#[test]
fn request_that_the_disk_cannot_keep_waits_on() {
    let server = Server::start(Kind::Etcd);
    let web1 = down(&server);
    web1.take();
    web1.start();
    web1.is_linked(true);
    server.kill();
    web1.is_linked(false);
    let tmp = web1.path("state/serve/fired/tmp");
    fs::rename(&tmp, web1.path("moved")).expect("moved");
    fs::write(&tmp, "").expect("written");
    let one = request("one", &["lb1.test"]);
    leave(&web1, &one.id, &one);
    let words = format!("request {}, which waited on disk, is not sent", one.id);
    wake(&web1);
    until("an error", || web1.log().contains(&words));
    wake(&web1);
    // The request is read before the service answers any command.
    let other = request("other", &["lb1.test"]);
    assert!(web1.try_to_fire(&other)[0].starts_with("failed "));
    assert_eq!(web1.log().matches(&words).count(), 1, "{}", web1.log());
    assert_eq!(waiting(&web1), std::slice::from_ref(&one.id));
    fs::remove_file(&tmp).expect("removed");
    fs::rename(web1.path("moved"), &tmp).expect("moved");
    wake(&web1);
    until("an empty directory", || waiting(&web1).is_empty());
    web1.kill();
    web1.start();
    assert_eq!(web1.how().outbox.triggers, 1);
}
