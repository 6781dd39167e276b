//! `story`: every run that a trigger caused, on all nodes; and the progress that a waiting command
//! reports.

use again_test_support::ask_for;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use again_fleet::ask::{Answer, Question};
use again_fleet::wire::lineage::{Cause, Lineage, Origin};
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::{Entry, Outcome, TriggerStatus};
use again_fleet::wire::trigger::Trigger;
use serde_json::{Value, json};

use crate::fired::{sealed_as, trigger};
use crate::name;
use crate::node::Node as Stage;
use crate::real::{done, well};
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use crate::whole::{Node, until};

/// Waits for a condition that takes many runs of Puppet, or is expensive to check: it is checked
/// twice a second.
#[track_caller]
fn in_time(mut is_so: impl FnMut() -> Result<(), String>) {
    let (limit, mut last) = (Duration::from_secs(300), String::new());
    let done = ask_for(limit, Duration::from_millis(500), || {
        is_so().map_err(|is| last = is).ok()
    });
    assert!(done.is_some(), "still {last}");
}

/// Waits until a story satisfies the condition.
#[track_caller]
fn until_told(node: &Node, words: &[&str], is_so: impl Fn(&str) -> bool) {
    in_time(|| match done(node.command(words)) {
        (0, story, error) if error.is_empty() && is_so(&story) => Ok(()),
        (_, story, error) => Err(story + &error),
    });
}

/// Checks the type of each field against its description in again-fleet(8).
fn check(story: &Value) {
    type Kind = fn(&Value) -> bool;
    let text: Kind = Value::is_string;
    let number: Kind = Value::is_u64;
    let truth: Kind = Value::is_boolean;
    let list: Kind = |value| {
        value
            .as_array()
            .is_some_and(|all| all.iter().all(Value::is_string))
    };
    let time: Kind = |value| {
        value
            .as_str()
            .is_some_and(|text| text.len() == 24 && text.ends_with('Z'))
    };
    let id: Kind = |value| value.as_str().is_some_and(|text| text.len() == 32);
    let outcome: Kind = |value| Outcome::ALL.iter().any(|one| *value == json!(one));
    let or_null = |value: &Value, kind: Kind| value.is_null() || kind(value);
    let fields = |value: &Value, expected: &[(&str, Kind, bool)]| {
        let value = value
            .as_object()
            .unwrap_or_else(|| panic!("no object: {value}"));
        let mut names: Vec<&str> = expected.iter().map(|(name, ..)| *name).collect();
        names.sort_unstable();
        assert!(value.keys().eq(names), "{value:?}");
        for (name, kind, may_be_null) in expected {
            let is_good = if *may_be_null {
                or_null(&value[*name], *kind)
            } else {
                kind(&value[*name])
            };
            assert!(is_good, "{name} is {}", value[*name]);
        }
    };
    let whole: &[(&str, Kind, bool)] = &[
        ("schema", |value| *value == 1, false),
        (
            "version",
            |value| *value == env!("CARGO_PKG_VERSION"),
            false,
        ),
        ("id", id, false),
        ("cause", text, false),
        ("node", text, false),
        ("fired_at", time, false),
        ("over", truth, false),
        ("complete", truth, false),
        ("entries", Value::is_array, false),
    ];
    let entry: &[(&str, Kind, bool)] = &[
        ("entry", number, false),
        ("parent", number, true),
        ("node", text, false),
        ("trigger", id, false),
        ("name", text, false),
        ("sender", text, false),
        ("path", list, false),
        ("untold", list, false),
        ("outcome", outcome, true),
        ("why", text, false),
        ("fired_at", time, false),
        ("told_at", time, true),
        ("sent_until", time, true),
        ("run", Value::is_object, true),
        ("clock_off_ms", Value::is_i64, true),
        ("over", truth, false),
    ];
    let run: &[(&str, Kind, bool)] = &[
        ("log_command", text, false),
        ("began_at", time, true),
        ("ended_at", time, true),
        ("reruns", number, false),
        ("last_rerun", outcome, true),
        ("more", truth, false),
    ];
    fields(story, whole);
    for (n, one) in (0u64..).zip(story["entries"].as_array().expect("entries")) {
        fields(one, entry);
        assert_eq!(one["entry"], n);
        assert!(
            one["parent"].as_u64().is_none_or(|parent| parent < n),
            "{one:#}"
        );
        if !one["run"].is_null() {
            fields(&one["run"], run);
        }
    }
}

/// Lines of the form `node outcome name` for each entry, after that of its parent.
fn tree(story: &Value) -> Vec<String> {
    let entries = story["entries"].as_array().expect("entries");
    let mut ways: Vec<String> = Vec::new();
    for one in entries {
        let word = |field: &str| one[field].as_str().unwrap_or("-").replace(".test", "");
        let own = format!("{} {} {}", word("node"), word("outcome"), word("name"));
        let parent = one["parent"].as_u64().and_then(|n| usize::try_from(n).ok());
        ways.push(parent.map_or(String::new(), |n| format!("{} > ", ways[n])) + &own);
    }
    ways
}

/// Returns a node with a script that does something in each of its runs, according to the run's
/// number.
fn runs(name: &'static str, server: &Server, cases: &str, ahead: i64) -> Node {
    let script = format!(
        "DIR/note\nn=$(ls DIR/runs | wc -l)\nfire() {{ FLEET trigger \"$@\"; }}\nrerun() {{ AGAIN run --delta 0; }}\nhold() {{ while [ -e DIR/hold ]; do sleep 0.05; done; }}\ncase $n in\n{cases}\nesac\n"
    );
    let node = Node::off(name, server);
    if ahead != 0 {
        node.set_ahead(ahead);
    }
    node.write("fire", &script);
    node.runs_puppet("exec { '/bin/sh DIR/fire': logoutput => true }");
    node.set(server);
    node.take();
    node.start();
    node
}

/// Nine runs on four nodes, one of which is 30 s behind. One trigger is rejected, one has expired
/// and one has failed.
#[test]
fn a_story_is_whole_and_in_order_though_clocks_disagree() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    web1.set_also("accept = []");
    web1.signal("-HUP");
    let lb1 = runs(
        "lb1.test",
        &server,
        "1) fire --to web2.test --name balance; fire --to n01.test --name data --ttl 1s; fire --to web1.test --name back; rerun ;;
2) rerun ;;
3) hold; fire --to web2.test --name late ;;",
        -30,
    );
    let web2 = runs(
        "web2.test",
        &server,
        "1) fire --to n01.test --name first; rerun ;;
2) rerun ;;
4) fire --to n01.test --name second ;;",
        0,
    );
    let n01 = runs("n01.test", &server, "1) exit 4 ;;", 0);
    // The trigger of lb1 is half a minute old when it arrives.
    n01.set_also("skew = '10s'");
    n01.signal("-HUP");
    let all = [&web1, &lb1, &web2, &n01];
    all.iter().for_each(|node| node.is_linked(true));
    lb1.write("hold", "");
    let said = well(
        &web1,
        &["trigger", "--to", "lb1.test", "--name", "begin", "--json"],
    );
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let id = said["id"].as_str().expect("an id");
    let follow = web1
        .command(&["story", id, "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is there");
    let is_done = |node: &Node| node.again(&["status"]).status.code() == Some(3);
    let ran = |node: &Node| node.runs().len();
    let rest = |runs: [usize; 4], busy: &[&Node]| {
        in_time(|| {
            let is = all.map(ran);
            if is == runs && busy.iter().all(|node| is_done(node)) {
                Ok(())
            } else {
                Err(format!("{is:?} runs"))
            }
        });
    };
    rest([0, 3, 3, 1], &[&web2, &n01]);
    fs::remove_file(lb1.path("hold")).expect("removed");
    rest([0, 3, 4, 2], &all);
    // The final status of each run was published.
    let followed = follow.wait_with_output().expect("its end");
    let followed = (
        followed.status.code(),
        String::from_utf8_lossy(&followed.stdout).into_owned(),
    );
    assert_eq!(followed.0, Some(0), "{}", followed.1);

    let story: Value = serde_json::from_str(&well(&web1, &["story", "--json"])).expect("JSON");
    check(&story);
    let expected = [
        "lb1 changed begin",
        "lb1 changed begin > web2 changed balance",
        "lb1 changed begin > web2 changed balance > n01 failed first",
        "lb1 changed begin > n01 expired data",
        "lb1 changed begin > web1 refused back",
        "lb1 changed begin > web2 changed late",
        "lb1 changed begin > web2 changed late > n01 changed second",
    ];
    assert_eq!(tree(&story), expected, "{story:#}");
    let entries = story["entries"].as_array().expect("entries");
    let reruns: u64 = entries
        .iter()
        .filter_map(|one| Some(1 + one["run"].as_object()?["reruns"].as_u64()?))
        .sum();
    assert_eq!((reruns, &story["over"]), (9, &json!(true)), "{story:#}");
    assert_eq!(
        (&story["node"], &story["cause"]),
        (&json!("web1.test"), &json!("person"))
    );
    // lb1 accepted a trigger that was sent in the future according to its clock; the story reports
    // this.
    let off = entries[0]["clock_off_ms"].as_i64().expect("it is behind");
    assert!((-30_000..-1000).contains(&off), "{off}");
    for (n, why) in [(3, "fired at "), (4, "accept")] {
        assert!(
            entries[n]["why"]
                .as_str()
                .is_some_and(|is| is.contains(why)),
            "{:#}",
            entries[n]
        );
    }
    // The command that the story names prints the log.
    let log = entries[2]["run"]["log_command"]
        .as_str()
        .expect("a command");
    let words: Vec<&str> = log.split(' ').skip(1).collect();
    assert!(n01.again(&words).status.success(), "{log}");

    // Values expire after a day; a shared lease is used for many of them.
    let leases = server.etcdctl("web1.test", &["lease", "list"]);
    let granted = |lease: &str| server.etcdctl("web1.test", &["lease", "timetolive", lease]);
    let ids = leases.lines().filter(|line| line.len() == 16);
    let granted: Vec<String> = ids.map(granted).collect();
    let is_long = |one: &&String| one.contains("TTL(9") || one.contains("TTL(8");
    let long = granted.iter().filter(is_long).count();
    assert!((1..=4).contains(&long), "{granted:?}");

    let text = well(&lb1, &["story", id]);
    let shown: Vec<&str> = text.lines().collect();
    assert_eq!(shown.len(), 9, "{text}");
    assert!(
        shown[0].starts_with(&format!("story {id} begun by a person on web1.test, ")),
        "{text}"
    );
    for (line, begin) in shown[1..].iter().zip([
        "`- lb1.test  changed  'begin' fired ",
        "   |- web2.test  changed  'balance' fired ",
        "   |  `- n01.test  failed  'first' fired ",
        "   |- n01.test  expired  'data' fired ",
        "   |- web1.test  refused  'back' fired ",
        "   `- web2.test  changed  'late' fired ",
        "      `- n01.test  changed  'second' fired ",
        "7 triggers for 4 nodes: 4 changed, 1 expired, 1 failed, 1 refused",
    ]) {
        assert!(line.starts_with(begin), "{text}");
    }
    assert!(
        shown[1].contains("; 2 reruns there, the last changed; ")
            && shown[1].contains("clocks disagree"),
        "{text}"
    );
    // After all changes, the followed story ends with the same text as the final one.
    let last = followed
        .1
        .lines()
        .rfind(|line| line.contains("lb1.test"))
        .expect("a line");
    assert!(
        last.contains("2 reruns there, the last changed"),
        "{}",
        followed.1
    );
    // Any trigger of the story selects it, and it can be printed as a graph.
    let second = entries[6]["trigger"].as_str().expect("an id");
    let dot = well(&web2, &["story", second, "--dot"]);
    assert!(
        dot.starts_with("digraph story {") && dot.ends_with("}\n"),
        "{dot}"
    );
    assert_eq!(dot.matches(" -> ").count(), 7, "{dot}");
    let svg = well(&web2, &["story", second, "--svg"]);
    assert!(
        svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    // The picture has a row for each trigger, and a bar for each run that ended.
    let count = |part: &str| svg.matches(part).count();
    assert_eq!(
        [count("<g><title>"), count("height=\"10\"/>")],
        [7, 5],
        "{svg}"
    );
    let first = "<title>n01.test: failed: 'first' fired ";
    assert!(
        svg.contains(first) && svg.contains(">begun by a person on web1.test, "),
        "{svg}"
    );
    is_xml(&svg);
}

/// Checks that the text is XML, using the parser of Puppet's Ruby.
fn is_xml(text: &str) {
    let script = "require 'rexml/document'; REXML::Document.new($stdin.read).root";
    let mut ruby = Command::new("ruby")
        .args(["-e", script])
        .stdin(Stdio::piped())
        .spawn()
        .expect("ruby");
    let mut stdin = ruby.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("read");
    drop(stdin);
    assert!(ruby.wait().expect("ended").success(), "{text}");
}

/// An entry of a story counts only if its own node has signed it.
#[test]
fn what_another_signed_is_no_part_of_it() {
    let server = Server::start(Kind::Etcd);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    let straight = Straight::at(&server, "web2.test");
    // No node is up to publish anything: the sender itself knows what is under way.
    well(&web1, &["trigger", "--to", "n02.test"]);
    let story: Value = serde_json::from_str(&well(&web1, &["story", "--json"])).expect("JSON");
    check(&story);
    assert_eq!(tree(&story), ["n02 - again"]);
    assert_eq!(story["over"], false);
    let id = Id::from_bits(1).to_string();
    let one = entry(1, &["web1.test", "lb1.test"], Outcome::Changed);
    let at = |bits: u128| {
        format!(
            "story/lb1=test/{}/{}",
            Id::from_bits(1),
            Id::from_bits(bits)
        )
    };
    for (place, signer, is_shown) in [(1, "web2.test", 0), (2, "lb1.test", 0), (1, "lb1.test", 1)] {
        straight
            .put(&at(place), &sealed_as(signer, &one))
            .expect("put");
        let before = web1.how().rejected;
        let done = web1
            .command(&["story", &id, "--json"])
            .output()
            .expect("it is there");
        let out = String::from_utf8_lossy(&done.stdout);
        assert_eq!(
            out.matches("\"entry\":").count(),
            is_shown,
            "{signer}: {out}"
        );
        assert!(is_shown == 1 || web1.how().rejected > before);
    }
}

fn entry(bits: u128, way: &[&str], outcome: Outcome) -> Entry {
    let (target, path) = way.split_last().expect("a target");
    let path: Vec<_> = path.iter().map(|node| name(node)).collect();
    Entry {
        told: TriggerStatus {
            id: Id::from_bits(bits),
            number: 1_795_219_387_000,
            sender: path[path.len() - 1].clone(),
            target: name(target),
            name: "x\u{202e}\"y".parse().expect("a name"),
            outcome,
            why: String::new(),
            at: 1_795_219_388_000,
            stopped: vec![],
            ran: None,
            above: None,
            waits: false,
        },
        origin: Origin {
            id: Id::from_bits(1),
            cause: Cause::Kick,
            path,
        },
    }
}

/// More large values than are read are written below `story/` before the newest story is published.
fn newest_story_is_shown_above_junk(kind: Kind) {
    let server = Server::start(kind);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    let straight = Straight::at(&server, "lb1.test");
    let at = |story: u128, trigger: u128| {
        let (story, trigger) = (Id::from_bits(story), Id::from_bits(trigger));
        format!("story/lb1=test/{story}/{trigger}")
    };
    let junk = vec![b'x'; 1_000_000];
    for n in 0..17 {
        straight.put(&at(9, n), &junk).expect("put");
        // This key belongs to no node.
        straight
            .put(&format!("story/junk/{n}"), &junk)
            .expect("put");
    }
    let one = entry(1, &["web1.test", "lb1.test"], Outcome::Changed);
    let sealed = sealed_as("lb1.test", &one);
    straight.put(&at(1, 1), &sealed).expect("put");
    let id = Id::from_bits(1).to_string();
    let warning = "again-fleet: warning: a newer story may be missing: only 16 values below again/v1/test/story/ were read (15.0 MB), the newest of each node\n";
    let (status, text, error) = done(web1.command(&["story"]));
    assert_eq!((status, &*error), (0, warning), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with(&format!("story {id} ")), "{text}");
    assert!(lines[1].starts_with("`- lb1.test  changed "), "{text}");
    let story = well(&web1, &["story", &id, "--json"]);
    let story: Value = serde_json::from_str(&story).expect("JSON");
    assert_eq!(
        (&story["complete"], &story["over"]),
        (&json!(true), &json!(true))
    );
    // No node has published a story with this id.
    let (status, _, error) = done(web1.command(&["story", &Id::from_bits(2).to_string()]));
    assert_eq!(status, 1, "{error}");
    assert!(
        error.contains("in what was read, which is not everything"),
        "{error}"
    );
}

#[test]
fn newest_story_is_shown_above_junk_in_etcd() {
    newest_story_is_shown_above_junk(Kind::Etcd);
}

#[test]
fn newest_story_is_shown_above_junk_in_nats() {
    newest_story_is_shown_above_junk(Kind::Nats);
}

/// One node writes more than is read, also into the story itself, after the others have published
/// their entries. It gets only the space that they leave.
fn junk_of_one_node_hides_nothing_of_others(kind: Kind) {
    let server = Server::start(kind);
    let web1 = Node::new("web1.test", &server);
    web1.is_linked(true);
    let straight = Straight::at(&server, "lb1.test");
    let (story, trigger) = (Id::from_bits(1), Id::from_bits(1));
    let one = entry(1, &["web1.test", "lb1.test"], Outcome::Changed);
    let key = format!("story/lb1=test/{story}/{trigger}");
    straight
        .put(&key, &sealed_as("lb1.test", &one))
        .expect("put");
    straight.put("node/lb1=test", b"x").expect("put");
    let junk = vec![b'x'; 1_000_000];
    for n in 0..17 {
        let key = format!("story/web2=test/{story}/{}", Id::from_bits(n));
        straight.put(&key, &junk).expect("put");
    }
    for words in [&["story"][..], &["story", story.as_str()]] {
        let (status, text, error) = done(web1.command(words));
        assert_eq!(status, 0, "{words:?}: {error}");
        assert!(text.contains("`- lb1.test  changed "), "{text}");
        let warning = "this story may not be complete: only 16 values below ";
        assert!(error.contains(warning), "{error}");
    }
}

#[test]
fn junk_of_one_node_hides_nothing_of_others_in_etcd() {
    junk_of_one_node_hides_nothing_of_others(Kind::Etcd);
}

#[test]
fn junk_of_one_node_hides_nothing_of_others_in_nats() {
    junk_of_one_node_hides_nothing_of_others(Kind::Nats);
}

/// Answers of a service that has read only a part of the values, with this entry.
fn part(told: &Entry) -> Vec<Answer> {
    let words = "only the newest 5 values were read".to_owned();
    vec![
        Answer::Incomplete(words),
        Answer::Entry(Box::new(told.clone())),
        Answer::End,
    ]
}

/// A story that was found in an incomplete list of all stories is read again by its own id.
#[test]
fn story_that_was_not_read_in_full_is_told_as_that() {
    let told = entry(1, &["web1.test", "lb1.test"], Outcome::Changed);
    let whole = || part(&told)[1..].to_vec();
    let id = Id::from_bits(1).to_string();
    let newer = "a newer story may be missing: only the newest 5 values were read";
    let this = "this story may not be complete: only the newest 5 values were read";
    let cases = [
        (
            &["story", "--json"][..],
            vec![part(&told), whole()],
            vec![newer],
        ),
        (
            &["story", "--json"],
            vec![part(&told), part(&told)],
            vec![this, newer],
        ),
        (&["story", "--json", &id], vec![part(&told)], vec![this]),
        (&["story", "--svg"], vec![part(&told), whole()], vec![newer]),
    ];
    for (words, answers, warnings) in cases {
        let stage = Stage::new();
        let service = stage.answers_each(answers);
        let done = stage.run(words);
        let asked = service.join().expect("asked");
        assert_eq!(asked.last(), Some(&Question::Story(Some(Id::from_bits(1)))));
        let warning = format!("again-fleet: warning: {}\n", warnings.join("; "));
        assert_eq!((done.status, &done.err), (0, &warning), "{done:?}");
        if words.contains(&"--json") {
            let story = done.json();
            check(&story);
            let is_whole = json!(!warnings.contains(&this));
            assert_eq!((&story["complete"], &story["over"]), (&is_whole, &is_whole));
        }
    }
}

/// The story is printed again even if only its completeness has changed.
#[test]
fn followed_story_is_told_again_when_all_of_it_was_read() {
    let told = entry(1, &["web1.test", "lb1.test"], Outcome::Changed);
    let whole = || part(&told)[1..].to_vec();
    let stage = Stage::new();
    let answers = vec![part(&told), part(&told), whole(), whole()];
    let service = stage.answers_each(answers);
    let done = stage.run(&["story", "--follow", "--json"]);
    service.join().expect("asked");
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(done.err.lines().count(), 1, "{done:?}");
    let stories = done.out.lines().map(|line| {
        let story: Value = serde_json::from_str(line).expect("JSON");
        (story["complete"].clone(), story["over"].clone())
    });
    let stories: Vec<_> = stories.collect();
    assert_eq!(
        stories,
        [false, true].map(|is_so| (json!(is_so), json!(is_so)))
    );
}

/// Triggers that are under way from this node are shown; published statuses take precedence.
#[test]
fn what_nobody_has_told_is_shown_as_far_as_it_is_known_here() {
    let stage = Stage::new();
    let way = |target: &str, bits: u128| {
        let mut one = trigger("web1.test");
        (one.target, one.id) = (name(target), Id::from_bits(bits));
        one.lineage = Lineage(vec![Origin {
            id: Id::from_bits(1),
            cause: Cause::Kick,
            path: vec![name("web1.test")],
        }]);
        Answer::OnTheWay(Box::<Trigger>::new(one))
    };
    let held = entry(1, &["web1.test", "lb1.test"], Outcome::Held);
    let far = entry(3, &["web1.test", "n09.test", "n01.test"], Outcome::Changed);
    let answers = vec![
        way("lb1.test", 1),
        way("lb2.test", 2),
        Answer::Entry(Box::new(held)),
        Answer::Entry(Box::new(far)),
        Answer::End,
    ];
    let service = stage.answers(answers);
    let done = stage.run(&["story", "--json"]);
    assert_eq!(service.join().expect("asked"), Question::Story(None));
    assert_eq!(done.status, 0, "{done:?}");
    let story = done.json();
    check(&story);
    assert_eq!(story["over"], false);
    let mut tree = tree(&story);
    tree.sort();
    assert_eq!(
        tree,
        [
            "lb1 held x\u{202e}\"y",
            "lb2 - again",
            "n01 changed x\u{202e}\"y"
        ]
    );
    let untold: BTreeMap<&str, &Value> = story["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|one| (one["node"].as_str().expect("a node"), &one["untold"]))
        .collect();
    assert_eq!(untold["n01.test"], &json!(["n09.test"]));
}

#[test]
fn where_there_is_no_story_that_is_said() {
    for (answers, words, part) in [
        (
            vec![Answer::End],
            &["story"][..],
            "no node has told any story",
        ),
        (
            vec![Answer::NotSeen("etcd is away".to_owned()), Answer::End],
            &["story"],
            "what the nodes have told cannot be read: etcd is away",
        ),
        (
            vec![
                Answer::Incomplete("only the newest 5 values were read".to_owned()),
                Answer::End,
            ],
            &["story", "--follow"],
            "no node has told any story in what was read, which is not everything: only the newest 5 values were read",
        ),
        (vec![], &["story"], "ended before it had answered"),
        (
            vec![Answer::Refused("no".to_owned()), Answer::End],
            &["story", "--follow"],
            "refuses: no",
        ),
        (
            vec![Answer::Delivered(name("lb1")), Answer::End],
            &["story", "--dot"],
            "answered something else",
        ),
    ] {
        let stage = Stage::new();
        let service = stage.answers(answers);
        let done = stage.run(words);
        service.join().expect("asked");
        assert_eq!(done.status, 1, "{done:?}");
        assert!(done.error().contains(part), "{done:?}");
    }
    for words in [
        &["story", "x"][..],
        &["story", "--dot", "--json"],
        &["story", "--svg", "--dot"],
        &["story", "--svg", "--json"],
        &["story", "--svg", "--follow"],
    ] {
        assert_eq!(Stage::new().run(words).status, 2);
    }
}

/// Sends a trigger to lb1 and waits until its run is under way.
fn waits(web1: &Node, lb1: &Node) -> Child {
    let mut command = web1.command(&["trigger", "--to", "lb1.test", "--wait"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    until("a run", || lb1.runs().len() == 1);
    child.expect("it is there")
}

fn two(server: &Server) -> (Node, Node) {
    let web1 = Node::new("web1.test", server);
    let lb1 = runs("lb1.test", server, "*) hold ;;", 0);
    web1.is_linked(true);
    lb1.is_linked(true);
    lb1.write("hold", "");
    (web1, lb1)
}

/// The run continues if the waiting command is killed, and the story reports its outcome.
#[test]
fn who_waits_may_be_killed() {
    let server = Server::start(Kind::Nats);
    let (web1, lb1) = two(&server);
    let mut child = waits(&web1, &lb1);
    let out = child.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("again-fleet: lb1.test: taken")));
    child.kill().and_then(|()| child.wait()).expect("its end");
    // From then on the story is polled often.
    until_told(&web1, &["story", "--json"], |story| {
        story.contains("\"started\"")
    });
    fs::remove_file(lb1.path("hold")).expect("removed");
    until_told(&web1, &["story", "--json"], |story| {
        let story: Value = serde_json::from_str(story).expect("JSON");
        story["entries"][0]["outcome"] == "changed" && story["over"] == true
    });
    assert_eq!(lb1.runs().len(), 1);
    assert!(web1.how().link.is_up);
}

/// A run that takes longer than the wait continues, and the last line names the command that shows
/// it.
#[test]
fn who_waits_no_longer_is_told_where_it_goes_on() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = two(&server);
    let words = ["trigger", "--to", "lb1.test", "--wait", "--ttl=8s"];
    let done = web1.command(&words).output().expect("it is there");
    let out = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(75), "{out}");
    let last: Vec<&str> = out.lines().rev().take(2).collect();
    assert!(
        last[1].starts_with("again-fleet: 0 of 1 node done in 8"),
        "{out}"
    );
    let words = last[0].strip_prefix("again-fleet: 'again-fleet ");
    let words = words.and_then(|words| words.strip_suffix("' tells what becomes of it"));
    let words: Vec<&str> = words
        .unwrap_or_else(|| panic!("{out}"))
        .split(' ')
        .collect();
    fs::remove_file(lb1.path("hold")).expect("removed");
    until_told(&web1, &words, |story| {
        story.contains("`- lb1.test  changed  'again' fired ")
    });
}

/// Finds all files of this name below a directory.
fn found(directory: &Path, name: &str, found_so_far: &mut Vec<std::path::PathBuf>) {
    for one in fs::read_dir(directory).expect("a directory").flatten() {
        if one.file_type().is_ok_and(|kind| kind.is_dir()) {
            found(&one.path(), name, found_so_far);
        } else if one.file_name() == name {
            found_so_far.push(one.path());
        }
    }
}

/// The target loses power during the run, and comes back: the outcome of the run is unknown, which
/// is a failure for the waiting command.
#[test]
fn who_waits_for_a_target_that_is_booted_anew_is_told() {
    let server = Server::start(Kind::Etcd);
    let (web1, lb1) = two(&server);
    let child = waits(&web1, &lb1);
    until_told(&web1, &["story", "--json"], |story| {
        story.contains("\"outcome\":\"started\"")
    });
    lb1.kill();
    lb1.kill_take();
    let status = lb1.again(&["status", "--json"]).stdout;
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    let pid = status["targets"][0]["running"]["pid"].to_string();
    let killed = Command::new("kill").args(["-9", &pid]).status();
    assert!(killed.expect("kill").success(), "{status:#}");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    let mut records = Vec::new();
    found(&lb1.path("again"), "state.json", &mut records);
    for record in records {
        let text = fs::read_to_string(&record).expect("a record");
        assert!(text.contains(boot.trim()), "{text}");
        fs::write(record, text.replace(boot.trim(), "another-boot")).expect("written");
    }
    lb1.take();
    lb1.start();
    let done = child.wait_with_output().expect("its end");
    let out = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{out}");
    let last = out.lines().last().expect("a line");
    assert!(last.ends_with(": 1 unknown"), "{out}");
    assert!(out.contains("  lb1.test  unknown      unknown ("), "{out}");
    until("a line in the log of whoever fired it", || {
        web1.log().contains("for lb1.test is unknown: ")
    });
}
