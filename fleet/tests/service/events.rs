//! Events that runs leave in the spool: all of them reach the backend immediately, whichever
//! process is killed meanwhile.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::thread;
use std::time::Duration;

use again_fleet::wire::body::Content;
use again_fleet::wire::envelope::Envelope;
use again_fleet::wire::event::{Batch, Begun, Change, Ended, Event, Line, Status};
use again_fleet::wire::lineage::Lineage;
use again_fleet::wire::name::Id;

use crate::crash::set;
use crate::fired::sealed_as;
use crate::many::most_memory;
use crate::node::{Node, until};
use crate::relay::Relay;
use crate::servers::{Kind, Server};
use crate::straight::Straight;
use again_test_support::Dice;

/// File of a run, as the hook makes it: locked under another name first, so that the service does
/// not mistake it for one of a finished run.
struct Left {
    file: File,
    wakeup: UnixDatagram,
    socket: PathBuf,
    n: u64,
}

impl Left {
    fn new(node: &Node, id: u128) -> Left {
        let spool = node.path("spool");
        let begun = Begun {
            at: 1,
            environment: "production".to_owned(),
            puppet: "7.23.0".to_owned(),
            origins: Lineage::default(),
            unknown: false,
            lost: 0,
        };
        let name = format!("{}-{}", 1_700_000_000_000 + id, Id::from_bits(id));
        let new = spool.join(format!("new-{name}"));
        let file = File::create_new(&new).expect("made");
        file.try_lock().expect("locked");
        fs::rename(new, spool.join(name)).expect("named");
        let mut left = Left {
            file,
            wakeup: UnixDatagram::unbound().expect("a socket"),
            socket: node.path("run/events"),
            n: 0,
        };
        left.write(&Line::Begun(begun));
        left
    }

    fn write(&mut self, line: &Line) {
        let mut text = serde_json::to_vec(line).expect("JSON");
        text.push(b'\n');
        self.file.write_all(&text).expect("written");
        // If no service receives it, the next beat finds the event.
        self.wakeup.set_nonblocking(true).expect("set");
        let _ = self.wakeup.send_to(b"!", &self.socket);
    }

    fn event(&mut self) {
        self.n += 1;
        let event = Event {
            n: self.n,
            at: self.n,
            resource: format!("File[/srv/{}]", self.n),
            change: Change::Changed,
            property: Some("content".to_owned()),
            corrective: false,
            tags: vec!["file".to_owned(), "class".to_owned()],
            within: vec!["Stage[main]".to_owned(), "Main".to_owned()],
            file: None,
            line: None,
            old: None,
            new: None,
            message: None,
        };
        self.write(&Line::Event(event));
    }

    fn end(mut self) {
        let n = self.n + 1;
        self.write(&Line::Ended(Ended {
            n,
            at: n,
            status: Status::Changed,
            transaction: "x".to_owned(),
            classes: vec![],
            more_classes: 0,
            metrics: BTreeMap::new(),
            dropped: 0,
        }));
    }
}

fn node(server: &Server) -> Node {
    node_at(server, server.port)
}

/// Creates a node that reaches its backend at this port.
fn node_at(server: &Server, port: u16) -> Node {
    let node = Node::off("web1.test", server);
    fs::create_dir(node.path("spool")).expect("made");
    node.set_also(&format!("spool_dir = {:?}", node.path("spool")));
    node.set_also(&format!("endpoints = ['localhost:{port}']"));
    node.take();
    node.start();
    node.is_linked(true);
    node
}

fn batch(bytes: &[u8]) -> Batch {
    let namespace = "test".parse().expect("a namespace");
    let opened = Envelope::parse(bytes).expect("an envelope");
    let opened = opened.open(&namespace, |_| Ok::<_, again_fleet::wire::Malformed>(()));
    let (_, batch) = opened.expect("a batch");
    let batch: Batch = batch;
    batch.check().expect("a good one");
    batch
}

/// Names of the files in the spool.
fn files(node: &Node) -> Vec<String> {
    let entries = fs::read_dir(node.path("spool")).expect("a spool");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.into_string().expect("text"))
        .collect()
}

/// Names of the files whose events are not published, as far as the executor knows.
fn untold(node: &Node) -> Vec<String> {
    let mut files = files(node);
    files.retain(|name| !name.ends_with("@told"));
    files
}

/// Numbers of each run's events in the backend, in order; each once, however often it was
/// published.
fn told(straight: &Straight) -> BTreeMap<Id, Vec<u64>> {
    let mut told: BTreeMap<Id, Vec<u64>> = BTreeMap::new();
    for value in straight.list("event/web1=test/") {
        let batch = batch(&value.bytes);
        let numbers = told.entry(batch.run).or_default();
        numbers.extend(batch.events.iter().map(|event| event.n));
        numbers.extend(batch.ended.map(|ended| ended.n));
    }
    for numbers in told.values_mut() {
        numbers.sort_unstable();
        numbers.dedup();
    }
    told
}

/// Numbers of a run's events in the backend.
fn told_of(straight: &Straight, run: u128) -> Vec<u64> {
    let values = straight.list(&format!("event/web1=test/{}/", Id::from_bits(run)));
    let batches = values.iter().map(|value| batch(&value.bytes));
    batches
        .flat_map(|batch| batch.events)
        .map(|event| event.n)
        .collect()
}

fn an_event_is_told_before_the_run_goes_on(kind: Kind) {
    let server = Server::start(kind);
    let node = node(&server);
    let straight = Straight::at(&server, "lb1.test");
    let mut run = Left::new(&node, 1);
    for n in 1..=3 {
        run.event();
        until("the event", || {
            told(&straight).get(&Id::from_bits(1)) == Some(&(1..=n).collect())
        });
    }
    // The service is down for a while.
    node.kill();
    run.event();
    node.start();
    run.event();
    run.end();
    until("the end", || {
        told(&straight).get(&Id::from_bits(1)) == Some(&(1..=6).collect())
    });
    until("a marked file", || untold(&node).is_empty());
    assert_eq!(files(&node).len(), 1);
}

#[test]
fn an_event_is_told_before_the_run_goes_on_over_etcd() {
    an_event_is_told_before_the_run_goes_on(Kind::Etcd);
}

#[test]
fn an_event_is_told_before_the_run_goes_on_over_nats() {
    an_event_is_told_before_the_run_goes_on(Kind::Nats);
}

/// Number of kills, stops and network cuts; a thousand in the nightly sweep (tests/tools/sweep).
fn faults() -> u64 {
    set("AGAIN_FLEET_EVENT_FAULTS", 40)
}

/// Library directory of the hook.
const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../puppet-module/lib");
const EVENTS_FOR_A_FAULT: u64 = 100;
/// Number of events of a run.
const EVENTS_OF_A_RUN: u64 = 500;

fn pause(dice: &mut Dice) {
    dice.pause(Duration::from_millis(100));
}

/// Script of several runs, one after the other, whose lines the hook's own spool writes. It waits
/// while many files are unpublished, so that the spool discards none.
const RUNS: &str = r##"
require 'puppet_x/again/events/spool'
spool, wakeup, runs, events = ARGV
runs.to_i.times do
  sleep(0.01) until Dir.children(spool).count { |name| !name.end_with?('@told') } < 80
  run = PuppetX::Again::Events::Spool.new(spool, wakeup) do |lost|
    raise 'some had to go' if lost > 0
    JSON.generate(begun: { at: 1, origins: [], environment: 'production', puppet: Puppet.version, lost: lost })
  end
  (1..events.to_i).each do |n|
    line = JSON.generate(event: { n: n, at: n, resource: "File[/srv/#{n}]", change: 'changed', tags: %w[file class], within: ['Main'] })
    run.add(line) or raise 'not written'
    sleep(0.0002)
  end
  n = events.to_i + 1
  run.add(JSON.generate(ended: { n: n, at: n, status: 'changed', transaction: 'x', dropped: 0 }), last: true) or raise 'not written'
  run.close
end
"##;

fn write_runs(node: &Node, runs: u64) -> Output {
    let mut ruby = Command::new("ruby");
    ruby.args(["-W0", "-rjson", "-rpuppet", "-I", LIBRARY, "-e", RUNS])
        .arg(node.path("spool"))
        .arg(node.path("run/events"))
        .args([runs, EVENTS_OF_A_RUN].map(|number| number.to_string()));
    ruby.output().expect("ruby")
}

fn nothing_is_lost(kind: Kind) {
    let server = Server::start(kind);
    let relay = Relay::to(server.port);
    let node = node_at(&server, relay.port);
    let faults = faults();
    let mut dice = Dice::new(7);
    let count = faults * EVENTS_FOR_A_FAULT;
    let runs = count.div_ceil(EVENTS_OF_A_RUN);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_runs(&node, runs));
        for _ in 0..faults {
            pause(&mut dice);
            match dice.below(4) {
                0 => {
                    node.kill();
                    node.start();
                }
                1 => {
                    server.kill();
                    server.run();
                }
                2 => {
                    node.signal("-STOP");
                    pause(&mut dice);
                    node.signal("-CONT");
                }
                // The network is cut for a while; sometimes that breaks the connections.
                _ => {
                    relay.cut();
                    pause(&mut dice);
                    if dice.below(2) == 0 {
                        relay.mend();
                    } else {
                        relay.mend_without_connections();
                    }
                }
            }
        }
        let written = writer.join().expect("an end");
        assert!(written.status.success(), "{written:?}");
    });
    let straight = Straight::at(&server, "lb1.test");
    let whole: Vec<u64> = (1..=EVENTS_OF_A_RUN + 1).collect();
    let is_whole = || {
        let told = told(&straight);
        told.len() as u64 == runs && told.values().all(|numbers| *numbers == whole)
    };
    until("all of it", is_whole);
}

#[test]
fn nothing_is_lost_whatever_is_killed_over_etcd() {
    nothing_is_lost(Kind::Etcd);
}

#[test]
fn nothing_is_lost_whatever_is_killed_over_nats() {
    nothing_is_lost(Kind::Nats);
}

/// Standard output and standard error of a command.
fn printed(node: &Node, words: &[&str]) -> (String, String) {
    let done = node.command(words).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (out, err) = (text(done.stdout), text(done.stderr));
    assert!(done.status.success(), "{words:?}: {err}");
    (out, err)
}

/// Events that are unsigned, signed by another node, or stored at another key are not shown; the
/// others are.
fn only_what_a_node_signed_is_shown(kind: Kind) {
    let server = Server::start(kind);
    let node = node(&server);
    let straight = Straight::at(&server, "lb1.test");
    let mut run = Left::new(&node, 1);
    run.event();
    run.end();
    until("both", || {
        told(&straight).get(&Id::from_bits(1)) == Some(&vec![1, 2])
    });
    let good = batch(&straight.list("event/web1=test/")[0].bytes);
    let key = |run: u128, first: u64| format!("event/web1=test/{}/{first:020}", Id::from_bits(run));
    let of = |run: u128| Batch {
        run: Id::from_bits(run),
        ..good.clone()
    };
    let others = [
        (key(2, 1), sealed_as("lb1.test", &of(2))),
        (key(3, 1), sealed_as("web1.test", &of(4))),
        (key(5, 9), sealed_as("web1.test", &of(5))),
        (key(6, 1), b"garbage".to_vec()),
        (key(7, 1), vec![b'x'; 900_000]),
        (
            "event/web1=test/x".to_owned(),
            sealed_as("web1.test", &of(8)),
        ),
    ];
    for (key, bytes) in others {
        straight.put(&key, &bytes).expect("put");
    }
    let (out, err) = printed(&node, &["events"]);
    assert_eq!(out.lines().count(), 2, "{out}");
    assert!(
        out.contains("web1.test  File[/srv/1] changed (content)"),
        "{out}"
    );
    assert!(out.contains("the run has ended: changed"), "{out}");
    // Each reason is printed once.
    assert_eq!(err.matches("is not believed").count(), 5, "{err}");
    let (out, _) = printed(&node, &["events", "--json", "--type", "file"]);
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (&lines[0]["n"], &lines[1]["what"]),
        (&1.into(), &"end".into())
    );
    let (out, err) = printed(&node, &["events", "--node", "lb1.test"]);
    assert_eq!(out, "");
    assert_eq!(err, "again-fleet: no events to show\n");
    let (out, _) = printed(&node, &["events", "--graphite"]);
    assert_eq!(out, "puppet.web1_test.again.dropped 0 0\n");
    // The service still works.
    let mut run = Left::new(&node, 9);
    run.event();
    until("it", || told_of(&straight, 9) == [1]);
}

#[test]
fn only_what_a_node_signed_is_shown_over_etcd() {
    only_what_a_node_signed_is_shown(Kind::Etcd);
}

#[test]
fn only_what_a_node_signed_is_shown_over_nats() {
    only_what_a_node_signed_is_shown(Kind::Nats);
}

#[test]
fn who_follows_is_told_each_event_once_over_lost_connections() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server);
    let shown = node.path("shown");
    let output = File::create(&shown).expect("a file");
    let mut follow = node
        .command(&["events", "--follow", "--json"])
        .stdout(output)
        .spawn()
        .expect("it starts");
    let numbers = || {
        let text = fs::read_to_string(&shown).expect("a file");
        let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
        let lines = lines.map_while(Result::ok);
        lines
            .filter_map(|line| line["n"].as_u64())
            .collect::<Vec<_>>()
    };
    let mut run = Left::new(&node, 1);
    for n in 1..=3 {
        run.event();
        until("the event", || numbers() == (1..=n).collect::<Vec<_>>());
        server.kill();
        server.run();
    }
    run.end();
    until("the end", || numbers().last() == Some(&4));
    assert_eq!(numbers(), [1, 2, 3, 4]);
    follow.kill().expect("killed");
    follow.wait().expect("ended");
}

#[test]
fn a_big_first_run_takes_bounded_memory_and_is_told_whole() {
    let server = Server::start(Kind::Etcd);
    let node = node(&server);
    let straight = Straight::at(&server, "lb1.test");
    let mut run = Left::new(&node, 1);
    (0..10_000).for_each(|_| run.event());
    run.end();
    let whole: Vec<u64> = (1..=10_001).collect();
    until("all of it", || {
        told(&straight).get(&Id::from_bits(1)) == Some(&whole)
    });
    let peak = most_memory(node.pid());
    assert!(peak < 64, "{peak} MiB");
}

/// Number of resources that a real run changes; ten times as many in the nightly sweep
/// (tests/tools/sweep).
fn many() -> u64 {
    let text = std::env::var("AGAIN_FLEET_MANY_EVENTS");
    text.map_or(1000, |text| text.parse().expect("a number"))
}

/// Maximum number of bytes that a run may leave.
const MOST_LEFT: u64 = 16 << 20;

/// Code that makes a run of Puppet print its peak memory in kB and its processor time in ms at its
/// end.
const MEASURE: &str = r##"
at_exit do
  busy = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :millisecond)
  File.write(ENV.fetch('MEASURED'), "#{File.read('/proc/self/status')[/^VmHWM:\s+(\d+)/, 1]} #{busy}")
end
"##;

/// Resource type that changes in each run but does nothing, so it costs less than any other that
/// changes each time.
const CHANGING: &str = r"
Puppet::Type.newtype(:changing) do
  newparam(:name, namevar: true)
  newproperty(:state) do
    def retrieve
      :absent
    end

    def insync?(_is)
      false
    end

    def set(_value); end
  end
end
";

/// Runs a real `puppet apply` of a manifest that changes many resources, and contains more.
fn big_run(node: &Node, name: &str, more: &str) -> Child {
    let changes = "changing { \"change $n\": state => 'there' }";
    let manifest = format!("{more}\nInteger[1, {}].each |$n| {{ {changes} }}\n", many());
    let confdir = node.path(name);
    fs::create_dir(&confdir).expect("made");
    node.write(&format!("{name}/site.pp"), &manifest);
    fs::create_dir_all(node.path(&format!("{name}/lib/puppet/type"))).expect("made");
    node.write(&format!("{name}/lib/puppet/type/changing.rb"), CHANGING);
    node.write("measure.rb", MEASURE);
    let mut ruby = Command::new("ruby");
    ruby.env(
        "RUBYLIB",
        format!("{}:{LIBRARY}", node.at(&format!("{name}/lib"))),
    )
    .env("MEASURED", confdir.join("measured"))
    .args([
        "-W0",
        "-r",
        &node.at("measure.rb"),
        "-S",
        "puppet",
        "apply",
        "--no-report",
    ])
    .args(["--logdest", &node.at(&format!("{name}/log"))]);
    for directory in ["confdir", "vardir", "publicdir", "rundir", "logdir"] {
        ruby.arg(format!("--{directory}")).arg(&confdir);
    }
    ruby.arg(confdir.join("site.pp")).spawn().expect("ruby")
}

/// Returns the memory in kB and the processor time in ms that the run took.
fn measured(node: &Node, name: &str, mut run: Child) -> [u64; 2] {
    let ended = run.wait().expect("an end");
    assert!(
        ended.success(),
        "{ended}: {:?}",
        fs::read_to_string(node.path(name).join("log"))
    );
    let text = fs::read_to_string(node.path(name).join("measured")).expect("a measure");
    let numbers = text.split(' ').map(|one| one.parse().expect("a number"));
    numbers.collect::<Vec<u64>>().try_into().expect("two")
}

#[test]
fn a_big_run_of_puppet_takes_little_more_with_events_and_is_told_whole() {
    let many = many();
    let server = Server::start(Kind::Etcd);
    let node = node(&server);
    let straight = Straight::at(&server, "lb1.test");
    let hook = "again_events { 'this node': spool => 'DIR/spool', socket => 'DIR/run/events', helper => '/nonexistent' }";
    let runs = [("plain", ""), ("told", hook)];
    let runs = runs.map(|(name, more)| (name, big_run(&node, name, more)));
    let [without, with] = runs.map(|(name, run)| measured(&node, name, run));
    let left = || {
        let entries = fs::read_dir(node.path("spool")).expect("a spool");
        // The service removes some files meanwhile.
        let sizes = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
        sizes.sum::<u64>()
    };
    let left = left();
    let whole: Vec<u64> = (1..=many + 1).collect();
    until("all of it", || {
        told(&straight).into_values().eq([whole.clone()])
    });
    let counts = || fs::read_to_string(node.path("state/serve/counts.json")).unwrap_or_default();
    let all = format!(r#","sent":{},"spooled":0,"dropped":0,"#, many + 1);
    until("its count", || counts().contains(&all));
    let peak = most_memory(node.pid());
    let more = [0, 1].map(|i| with[i].saturating_sub(without[i]));
    println!(
        "{many} events: {} kB more of {}, {} µs an event, {left} bytes left at the end, {peak} MiB for the service",
        more[0],
        without[0],
        more[1] * 1000 / many
    );
    assert!(left <= MOST_LEFT, "{left} bytes");
    assert!(peak < 64, "{peak} MiB");
    assert!(
        more[0] < 64 << 10,
        "{with:?} kB and ms with events, {without:?} without"
    );
    // The cost of an event is measured separately, on an idle machine (tests/tools/events-cost).
    assert!(
        with[1] < 2 * without[1],
        "{with:?} kB and ms with events, {without:?} without"
    );
}
