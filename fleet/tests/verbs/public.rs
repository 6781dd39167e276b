//! Public data: the backend contains the fields that SECURITY.md lists, for every node to read, and
//! no secret of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use again_fleet::wire::beat::{Beat, Covered};
use again_fleet::wire::event::{Batch, Begun, Change, Ended, Event, Status};
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::lineage::{Lineage, Origin};
use again_fleet::wire::lock::{Lock, Published, Reset};
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::{Entry, Outcome, Ran, Stopped, TriggerStatus};
use again_fleet::wire::slot::Slot;
use again_fleet::wire::targets::Targets;
use again_fleet::wire::trigger::Trigger;
use serde_json::{Value, json};

use crate::fired::{sealed_as, trigger};
use crate::name;
use crate::real::well;
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use crate::whole::{Node, until};

/// Fields of each kind of value, as SECURITY.md lists them.
fn listed() -> BTreeMap<&'static str, BTreeSet<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../SECURITY.md");
    let text = fs::read_to_string(path).expect("SECURITY.md");
    let of = |key: &str| {
        let begin = format!("| `{key}` |");
        let row = text.lines().find(|line| line.starts_with(&begin));
        let fields = row.expect("a row").rsplit('|').nth(1).expect("fields");
        let fields = fields.split('`').skip(1).step_by(2);
        fields.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let result = of("result/SENDER/TARGET/NAME");
    let mut story = of("story/NODE/ORIGIN/TRIGGER");
    assert!(story.remove("told"), "a story has a result");
    story.extend(result.iter().map(|field| format!("told.{field}")));
    BTreeMap::from([
        ("node.1", of("node/NODE")),
        ("trigger.1", of("to/TARGET/SENDER/NAME")),
        ("result.1", result),
        ("story.1", story),
        ("targets.1", of("story/SENDER/ID/targets")),
        ("event.1", of("event/NODE/RUN/FIRST")),
        ("beat.1", of("beat/NODE")),
        ("slot.1", of("slot/GROUP/NODE")),
        ("lock.1", of("lock/NAME")),
        ("reset.1", of("move/NAME/NODE/reset")),
    ])
}

/// Returns the kind of an envelope and its body, without checking the signature.
fn opened(bytes: &[u8]) -> (String, Value) {
    let mut rest = bytes.strip_prefix(b"AGF1").expect("an envelope");
    let mut parts = Vec::new();
    // Five parts: kind, namespace, certificate, signature and body.
    for _ in 0..5 {
        let (length, more) = rest.split_first_chunk::<4>().expect("a length");
        let length = u32::from_be_bytes(*length) as usize;
        parts.push(&more[..length]);
        rest = &more[length..];
    }
    let kind = String::from_utf8(parts[0].to_vec()).expect("a kind");
    (kind, serde_json::from_slice(parts[4]).expect("JSON"))
}

/// Returns all field names in a value; fields in a list are below the name of the list. Facts and
/// metrics have names of their own.
fn fields(value: &Value, above: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(all) if !["facts", "tokens", "resets", "ended.metrics"].contains(&above) => {
            for (name, value) in all {
                let dot = if above.is_empty() { "" } else { "." };
                fields(value, &format!("{above}{dot}{name}"), found);
            }
        }
        Value::Array(all) if all.iter().any(Value::is_object) => {
            all.iter().for_each(|one| fields(one, above, found));
        }
        _ => drop(found.insert(above.to_owned())),
    }
}

fn fields_of(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    fields(value, "", &mut found);
    found
}

/// Returns a value of each kind with all its fields: a new field does not compile until it is added
/// here.
fn whole() -> Vec<Vec<u8>> {
    let node = Inventory {
        node: name("lb1.test"),
        at: 1,
        serial: 1,
        facts: BTreeMap::from([("role".to_owned(), "lb".to_owned())]),
        classes: BTreeSet::from(["profile::lb".to_owned()]),
        environment: "production".to_owned(),
        version: "0.1.0".to_owned(),
        puppet: "7.23.0".to_owned(),
        running: Some(1),
        last: Some(Outcome::Changed),
        ended: Some(1),
        pending: 1,
        disabled: false,
        cap: Some((5, 2)),
        tokens: BTreeMap::from([("db".to_owned(), "7".to_owned())]),
        resets: BTreeMap::from([("db".to_owned(), 5)]),
    };
    let fired = Trigger {
        on_behalf: Some(name("web2.test")),
        parallel: 5,
        stop_after: 2,
        ..trigger("web1.test")
    };
    let Trigger {
        ask: _,
        id,
        target,
        sender,
        on_behalf,
        name,
        number,
        at,
        ttl: _,
        delta: _,
        targets: _,
        parallel: _,
        stop_after: _,
        lineage,
    } = fired.clone();
    let origin = Origin {
        path: on_behalf.into_iter().collect(),
        ..lineage.0[0].clone()
    };
    let mut fired = fired;
    fired.lineage.0 = vec![origin.clone()];
    let told = TriggerStatus {
        id,
        number,
        sender,
        target,
        name,
        outcome: Outcome::Held,
        why: "its run has begun".to_owned(),
        at,
        stopped: vec![Stopped {
            origin: Id::from_bits(1),
            way: "lb1.test -> web1.test".to_owned(),
        }],
        ran: Some(Ran {
            log: "0f2c-1".to_owned(),
            began: Some(at),
            ended: Some(at),
            reruns: 1,
            last: Some(Outcome::Unchanged),
            more: false,
        }),
        above: Some(number),
        waits: true,
    };
    let events = events(origin.clone());
    let entry = Entry {
        told: told.clone(),
        origin,
    };
    let targets = Targets {
        id: Id::from_bits(1),
        sender: self::name("web1.test"),
        origin: Id::from_bits(1),
        targets: BTreeSet::from([self::name("lb1.test")]),
    };
    let slot = Slot {
        group: "puppetserver".parse().expect("a name"),
        node: self::name("web1.test"),
        first: 1,
        limit: 8,
        since: 1,
        why: "process 7".to_owned(),
        beats: true,
    };
    let covered = |name: &str| Covered {
        name: name.parse().expect("a name"),
        first: 1,
    };
    let beat = Beat {
        node: self::name("web1.test"),
        counter: 1,
        slots: vec![covered("puppetserver")],
        locks: vec![covered("db")],
    };
    let lock = Lock {
        lock: "db".parse().expect("a name"),
        node: self::name("web1.test"),
        first: 1,
        token: 7,
        since: 1,
        candidates: vec![self::name("web1.test")],
        to: Some(self::name("web2.test")),
        beats: true,
    };
    let reset = Reset {
        lock: "db".parse().expect("a name"),
        node: self::name("web1.test"),
        token: 7,
        number: 5,
        before: vec![Published {
            node: self::name("web1.test"),
            token: 6,
            reset: 3,
            serial: 1,
        }],
    };
    let by = "web1.test";
    vec![
        sealed_as(by, &events),
        sealed_as(by, &node),
        sealed_as(by, &fired),
        sealed_as(by, &told),
        sealed_as(by, &entry),
        sealed_as(by, &targets),
        sealed_as(by, &slot),
        sealed_as(by, &beat),
        sealed_as(by, &lock),
        sealed_as(by, &reset),
    ]
}

/// Returns the events of a run with this origin.
fn events(origin: Origin) -> Batch {
    let text = || Some("x".to_owned());
    Batch {
        node: name("web1.test"),
        run: Id::from_bits(1),
        begun: Begun {
            at: 1,
            environment: "production".to_owned(),
            puppet: "7.23.0".to_owned(),
            origins: Lineage(vec![origin]),
            unknown: false,
            lost: 1,
        },
        events: vec![Event {
            n: 1,
            at: 1,
            resource: "Service[httpd]".to_owned(),
            change: Change::Started,
            property: text(),
            corrective: true,
            tags: vec!["service".to_owned()],
            within: vec!["Stage[main]".to_owned()],
            file: text(),
            line: Some(1),
            old: text(),
            new: text(),
            message: text(),
        }],
        ended: Some(Ended {
            n: 2,
            at: 2,
            status: Status::Changed,
            transaction: "x".to_owned(),
            classes: vec!["roles::web".to_owned()],
            more_classes: 0,
            metrics: BTreeMap::from([("time.total".to_owned(), 1.into())]),
            dropped: 1,
        }),
    }
}

#[test]
fn every_field_of_what_everybody_may_read_is_listed() {
    let are = whole().into_iter().map(|bytes| {
        let (kind, body) = opened(&bytes);
        (kind, fields_of(&body))
    });
    let are: BTreeMap<String, BTreeSet<String>> = are.collect();
    let listed = listed().into_iter();
    let listed: BTreeMap<_, _> = listed.map(|(kind, all)| (kind.to_owned(), all)).collect();
    assert_eq!(are, listed);
}

/// Encodes bytes in base64, without padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |n: usize| usize::from(bytes[n / 8] >> (7 - n % 8) & 1);
    let letter = |n: usize| (n..n + 6).fold(0, |number, n| number * 2 + bit(n));
    let whole = (0..bytes.len() * 8 / 6).map(|n| char::from(LETTERS[letter(n * 6)]));
    whole.collect()
}

/// Returns the forms in which a text may contain a word: plain, in hexadecimal, and in base64 at
/// each of the three offsets.
fn guises(word: &str) -> Vec<Vec<u8>> {
    let hex: String = word.bytes().map(|b| format!("{b:02x}")).collect();
    let at = |offset: usize| {
        let text = base64(&[&vec![0; offset], word.as_bytes()].concat());
        // The first characters encode preceding bytes as well.
        text[(offset * 8).div_ceil(6)..].to_owned()
    };
    let all = [word.to_owned(), hex, at(0), at(1), at(2)];
    all.into_iter().map(String::into_bytes).collect()
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Secrets that the run of lb1 knows, and that must not leave the node.
const SECRETS: [&str; 8] = [
    "word0of0a0sensitive0parameter",
    "word1of1a1fact",
    "word2of2the2environment",
    "word3of3run3cmd",
    "word4of4a4message",
    "word5of5a5command",
    "word6of6its6output",
    "word7of7a7title",
];

/// Manifest that changes something, fails, and sends a trigger to a node that does not accept it.
/// Secret values are left in files.
const MANIFEST: &str = "
class profile::lb(Sensitive[String] $password) {
  file { 'DIR/password': content => $password }
  file { 'DIR/fact': content => $facts['hidden'] }
  exec { '/usr/bin/env >DIR/env': provider => shell }
  exec { 'FLEET trigger --to web2.test --name another': logoutput => true }
  -> exec { 'WORD7':
    command   => '/bin/sh -c \"echo WORD6; exit 3 # WORD5\"',
    logoutput => true,
  }
  file { 'DIR/none/WORD4': content => 'x' }
  again_inventory { 'this node': facts => { 'role' => 'lb' }, program => 'PROGRAM', config => 'DIR/again-fleet.toml' }
}
class { 'profile::lb': password => Sensitive('WORD0') }
";

/// Sends a trigger from web1, and waits until its story has this outcome and nothing more is under
/// way.
fn fires(web1: &Node, name: &str, outcome: &str) -> String {
    let mut why = String::new();
    well(web1, &["trigger", "--to", "lb1.test", "--name", name]);
    until("its end", || {
        let story: Value = serde_json::from_str(&well(web1, &["story", "--json"])).expect("JSON");
        let one = &story["entries"][0];
        why = one["why"].as_str().unwrap_or_default().to_owned();
        one["name"] == name && one["outcome"] == outcome
    });
    why
}

#[test]
fn no_secret_of_a_run_is_in_the_backend() {
    let server = Server::start(Kind::Etcd);
    let [web1, web2] = ["web1.test", "web2.test"].map(|name| Node::new(name, &server));
    web2.set_also("accept = []");
    web2.signal("-HUP");
    let lb1 = Node::off("lb1.test", &server);
    let mut manifest = MANIFEST.replace("PROGRAM", env!("CARGO_BIN_EXE_again-fleet"));
    for (n, word) in SECRETS.iter().enumerate() {
        manifest = manifest.replace(&format!("WORD{n}"), word);
    }
    lb1.write("site.pp", &manifest);
    fs::create_dir(lb1.path("modules")).expect("made");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../puppet-module");
    let module = module.canonicalize().expect("the module");
    symlink(module, lb1.path("modules/common")).expect("linked");
    let log = lb1.at(SECRETS[3]);
    let more = ["--modulepath", &lb1.at("modules"), "--logdest", &log];
    let mut words = lb1.puppet();
    words.extend(more.map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    lb1.runs_this(&words);
    lb1.set(&server);
    lb1.start_in(&[
        &format!("FACTER_hidden={}", SECRETS[1]),
        &format!("NOBODYS_BUSINESS={}", SECRETS[2]),
    ]);
    [&web1, &web2, &lb1]
        .iter()
        .for_each(|node| node.is_linked(true));
    fires(&web1, "begin", "failed");
    let told = |node: &str, field: &str| {
        let all: Value = serde_json::from_str(&well(&web1, &["nodes", "--json"])).expect("JSON");
        let nodes = all["nodes"].as_array().expect("nodes");
        let one = nodes.iter().find(|one| one["node"] == node);
        one.expect("the node")[field].clone()
    };
    until("its word", || told("lb1.test", "last") == "failed");
    until("the other's", || {
        let story = well(&web1, &["story", "--json"]);
        story.contains("\"name\":\"another\"") && story.contains("\"outcome\":\"refused\"")
    });
    assert_eq!(told("lb1.test", "facts"), json!({"role": "lb"}));
    // All of the secrets were available to the run.
    let read = |name: &str| fs::read_to_string(lb1.path(name)).expect("what the run has left");
    let was: Vec<String> = ["password", "fact", "env", SECRETS[3]].map(read).into();
    let was = was.join("\n");
    for word in SECRETS.iter().filter(|word| **word != SECRETS[3]) {
        assert!(was.contains(word), "{word} was not there: {was}");
    }
    // A program, and a manifest, that do not exist are named in the reason; their arguments are
    // not.
    fs::rename(lb1.path("site.pp"), lb1.path("gone.pp")).expect("renamed");
    let why = fires(&web1, "no manifest", "failed");
    assert!(!why.is_empty());
    lb1.runs_this(&["/nonexistent/program", SECRETS[3]]);
    lb1.set(&server);
    let why = fires(&web1, "no program", "failed");
    assert!(why.contains("/nonexistent/program"), "{why}");

    let all = Straight::at(&server, "web1.test").ever();
    let keys = server.etcdctl("web1.test", &["get", "", "--prefix", "--keys-only"]);
    let is_ours = |key: &str| key.is_empty() || key.starts_with("again/v1/test/");
    assert_eq!(keys.lines().find(|key| !is_ours(key)), None);
    let (listed, mut kinds) = (listed(), BTreeMap::new());
    for value in all {
        for (n, guise) in SECRETS.iter().flat_map(|word| guises(word)).enumerate() {
            let is_there = holds(&value.bytes, &guise) || holds(value.key.as_bytes(), &guise);
            assert!(!is_there, "{} has {}", value.key, SECRETS[n / 5]);
        }
        let (kind, body) = opened(&value.bytes);
        let unlisted: Vec<String> = fields_of(&body)
            .difference(&listed[&*kind])
            .cloned()
            .collect();
        assert!(unlisted.is_empty(), "{}: {unlisted:?}", value.key);
        *kinds.entry(kind).or_insert(0) += 1;
    }
    let kinds: Vec<&String> = kinds.keys().collect();
    assert_eq!(kinds, ["node.1", "result.1", "story.1", "trigger.1"]);
}
