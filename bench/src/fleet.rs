//! Measures the cost of `again-fleet`: sending a trigger, an idle service, and the time from a
//! trigger on one node to a run on another. Two nodes and an etcd run on this machine, with TLS and
//! signatures from a Puppet CA.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use again_fleet::backend::etcd::Etcd;
use again_fleet::backend::{Backend, Feed, Times, Tls};
use again_fleet::identity::authority::Revocation;
use again_fleet::identity::own::Own;
use again_fleet::wire::envelope::{Draft, seal};
use again_fleet::wire::inventory::Inventory;
use again_test_support::{now, wait_until};
use anyhow::{Result, ensure};

use crate::chain::charges;
use crate::crowd;
use crate::numbers::{Samples, Table, many, quick, short, verdict};
use crate::peers::{Loop, thousand};
use crate::runs;
use crate::scene::{PATIENCE, Scene, crowd, texts};
use crate::start::as_exec_does;
use crate::waiter::needs;

/// Environment variable with the directory of the scene.
const ON_STAGE: &str = "AGAIN_BENCH_FLEET";
/// Name of no node: a trigger for it starts nothing.
const NOBODY: &str = "db1.test";

/// Writes the time into a file atomically, and appends a line to a file of all times; waits while
/// the file `hold` exists.
pub fn stamp(path: &str) -> Result<()> {
    let time = now();
    let new = format!("{path}.new");
    fs::write(&new, time.to_string())?;
    fs::rename(new, path)?;
    let mut options = fs::File::options();
    let all = options.append(true).create(true);
    let mut all = all.open(format!("{path}.all"))?;
    writeln!(all, "{time}")?;
    while fs::exists(format!("{path}.hold"))? {
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

pub fn measure(part: &str, table: &mut Table) -> Result<()> {
    if let Some(dir) = std::env::var_os(ON_STAGE) {
        let mut scene = Scene::new(dir.into())?;
        return match part {
            "crowd" => crowd::play(&mut scene, table),
            _ => play(&scene, table),
        };
    }
    let dir = tempfile::tempdir()?;
    let made = Command::new("ruby")
        .arg("fleet/tests/support/ca.rb")
        .arg(dir.path())
        .arg(crowd().to_string())
        .stdout(Stdio::null())
        .status()?;
    ensure!(made.success(), "no CA");
    let settings = dir.path().join("again.toml");
    let state = dir.path().join("again");
    // A short window: the record has a realistic number of starts, however many samples there are.
    let text = format!(
        "state_dir = {state:?}\nlog_dir = {state:?}\nscope = 'never'\njitter = 0\nmax_runs = 1000\nwindow = '1s'\n"
    );
    fs::write(&settings, text)?;
    // `again` finds its settings through the environment, which every program of the scene
    // inherits. The child process prints the rows itself.
    let played = Command::new(std::env::current_exe()?)
        .arg(part)
        .env(ON_STAGE, dir.path())
        .env("AGAIN_CONFIG", settings)
        .status()?;
    ensure!(played.success(), "the scene failed");
    Ok(())
}

/// Runs the measurements in the scene, and prints the rows.
fn play(scene: &Scene, table: &mut Table) -> Result<()> {
    // Before any trigger has been sent.
    idle(scene, table)?;
    charge(scene, table)?;
    let peer = Loop::new(scene)?;
    way(scene, &peer, table)?;
    thousand(scene, &peer, table)?;
    drop(peer);
    throng(scene, table)
}

fn idle(scene: &Scene, table: &mut Table) -> Result<()> {
    let web1 = scene.cast[2].0.id();
    let seconds = if quick() { 2 } else { 240 };
    sleep(Duration::from_secs(if quick() { 1 } else { 30 }));
    let before = needs(web1)?;
    sleep(Duration::from_secs(seconds));
    let after = needs(web1)?;
    let (resident, anonymous) = (after.resident, after.anonymous);
    table.add(
        "an idle service's resident memory; anonymous, of that",
        &format!(
            "{} kB; {} kB",
            short(resident as f64),
            short(anonymous as f64)
        ),
        "",
        "",
        &verdict("≤ 4 MB", resident <= 4096),
    );
    let minute = (after.wakeups - before.wakeups) as f64 * 60.0 / seconds as f64;
    table.add(
        &format!("its wakeups in a minute, over {seconds} s, over etcd"),
        &short(minute),
        "",
        "",
        &verdict("≤ 5", minute <= 5.0),
    );
    Ok(())
}

fn charge(scene: &Scene, table: &mut Table) -> Result<()> {
    let scratch = runs::scratch();
    let [floor, peer, ours] = charges(
        &scratch,
        [
            ("true", &|_| vec!["/bin/true".to_owned()]),
            ("etcdctl", &|_| texts(&scene.put())),
            ("trigger", &|_| texts(&scene.trigger(NOBODY))),
        ],
        (many(6, 1), many(25, 3)),
        || Ok(()),
    )?;
    let ratio = ours.median() / floor.median();
    table.add(
        "what Puppet charges an Exec that fires a trigger (`evaluation_time`)",
        &ours.text("ms"),
        &format!("`/bin/true` {}", floor.text("ms")),
        &format!("`etcdctl put` {}", peer.text("ms")),
        &verdict(&format!("≤ 3 × floor ({ratio:.2} ×)"), ratio <= 3.0),
    );
    Ok(())
}

/// Returns the milliseconds from the start of the sending program to the first instruction of the
/// run's program.
fn fired(fire: &[CString], stamp: &Path) -> Result<f64> {
    let began = now();
    let cost = as_exec_does(fire)?;
    ensure!(cost.status == 0, "{}", cost.output);
    wait_until("the run", PATIENCE, || stamp.exists());
    let ran: u64 = fs::read_to_string(stamp)?.parse()?;
    fs::remove_file(stamp)?;
    // The statuses of this run are published meanwhile.
    sleep(Duration::from_millis(20));
    Ok((ran - began) as f64 / 1e6)
}

/// Measures the time from a trigger to the run on another node, that of a loop in a shell, and the
/// backend alone.
fn way(scene: &Scene, peer: &Loop, table: &mut Table) -> Result<()> {
    let (stamp, fire) = (scene.dir.join("stamp"), scene.trigger("lb1.test"));
    let backend = Alone::new(scene)?;
    let mut all: [Samples; 3] = Default::default();
    for n in 0..many(300, 5) {
        all[0].add(fired(&fire, &stamp)?);
        all[1].add(backend.put_to_watch(n)? * 1e3);
        all[2].add(fired(&peer.fire(), &peer.stamp)?);
    }
    let [ours, floor, peer] = all;
    let above = |part: f64| ours.quantile(part) - floor.quantile(part);
    let (half, most) = (above(0.5), above(0.99));
    table.add(
        &format!(
            "from a trigger's start to the exec on another node, {} tries",
            ours.len()
        ),
        &ours.text("ms"),
        &format!("the backend's own put to watch {}", floor.text("ms")),
        &format!(
            "`etcdctl put`, `etcdctl watch` and task-spooler {}",
            peer.text("ms")
        ),
        &verdict(
            &format!(
                "p50 ≤ 20 ms, p99 ≤ 50 ms above the floor ({}, {} ms)",
                short(half),
                short(most)
            ),
            half <= 20.0 && most <= 50.0,
        ),
    );
    Ok(())
}

/// Measures listing and selecting among a thousand nodes, whose inventories are signed with keys
/// like Puppet's own.
fn throng(scene: &Scene, table: &mut Table) -> Result<()> {
    let count = crowd();
    let backend = Alone::new(scene)?;
    let (all, key) = (
        fs::read_to_string(scene.at("crowd.pem"))?,
        fs::read(scene.at("crowd.key"))?,
    );
    for (n, pem) in all
        .split_inclusive("-----END CERTIFICATE-----\n")
        .enumerate()
    {
        let own = Own::new(pem.as_bytes(), &key)?;
        let namespace = "test".parse()?;
        let draft = Draft::new(&namespace, &told(&own, n))?;
        let sealed = seal(&[draft], |message| own.sign(message))?;
        let place = own.signer().node.as_str().replace('.', "=");
        let key = format!("again/v1/test/node/{place}");
        backend
            .runtime
            .block_on(backend.writer.put(&key, &sealed[0], None))?;
    }
    let time = |command: &[CString], times: usize| -> Result<Samples> {
        let mut took = Samples::default();
        let command = texts(command);
        for _ in 0..times {
            let began = now();
            // The output exceeds the buffer of a pipe.
            let ended = Command::new(&command[0])
                .args(&command[1..])
                .stdout(Stdio::null())
                .status()?;
            ensure!(ended.success(), "{command:?}: {ended}");
            took.add((now() - began) as f64 / 1e6);
        }
        Ok(took)
    };
    let times = many(30, 3);
    let peer = time(
        &scene.etcdctl(&["get", "--prefix", "again/v1/test/node/"]),
        times,
    )?;
    // The service has verified none of the inventories yet.
    let rows = [
        (&["nodes"][..], 1, ", the first time"),
        (&["nodes"], times, ""),
        (&["trigger", "--where", "role=lb"], times, ""),
    ];
    for (words, times, when) in rows {
        let took = time(&scene.ours(words), times)?;
        table.add(
            &format!("`again-fleet {}` with {count} nodes{when}", words.join(" ")),
            &took.few("ms"),
            "",
            &format!("`etcdctl get --prefix` {}", peer.few("ms")),
            &verdict("each ≤ 500 ms", took.most() <= 500.0),
        );
    }
    Ok(())
}

/// Returns the inventory of a node in the crowd. Every hundredth node is a load balancer.
fn told(own: &Own, n: usize) -> Inventory {
    let role = if n.is_multiple_of(100) { "lb" } else { "web" };
    let facts = [
        ("role", role.to_owned()),
        ("fqdn", own.signer().node.to_string()),
        ("ipaddress", format!("192.0.2.{}", n % 256)),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value));
    let classes = (0..40).map(|n| format!("profile::component{n}::config"));
    Inventory {
        node: own.signer().node.clone(),
        at: 1_795_219_387_000,
        serial: 1_795_219_387_000,
        facts: facts.into(),
        classes: classes.collect(),
        environment: "production".to_owned(),
        version: "0.1.0".to_owned(),
        puppet: "7.23.0".to_owned(),
        running: None,
        last: None,
        ended: None,
        pending: 0,
        disabled: false,
        cap: Some((10, 0)),
        tokens: BTreeMap::new(),
        resets: BTreeMap::new(),
    }
}

/// Two clients of the backend, without any service.
struct Alone {
    runtime: tokio::runtime::Runtime,
    writer: Etcd,
    reader: Etcd,
}

impl Alone {
    const PREFIX: &str = "again/v1/test/bench/";

    fn new(scene: &Scene) -> Result<Alone> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build()?;
        let tls = Tls {
            ca: fs::read(scene.at("ca.pem"))?,
            crl: Vec::new(),
            revocation: Revocation::Off,
            certificate: fs::read(scene.at("web2.test.pem"))?,
            key: fs::read(scene.at("web2.test.key"))?,
            refuses_open_servers: false,
        };
        let client = || {
            let addresses = [scene.address()];
            runtime.block_on(Etcd::new(&addresses, Some(&tls), Times::default()))
        };
        let (writer, reader) = (client()?, client()?);
        Ok(Alone {
            runtime,
            writer,
            reader,
        })
    }

    /// Returns the seconds until one client sees a value that the other has put.
    fn put_to_watch(&self, n: usize) -> Result<f64> {
        self.runtime.block_on(async {
            let list = self.reader.list(Self::PREFIX).await?;
            let mut feed = self.reader.follow(Self::PREFIX, list.revision).await?;
            let value = [b'x'; 2048];
            let key = format!("{}{}", Self::PREFIX, n % 10);
            let began = now();
            let (put, seen) = tokio::join!(self.writer.put(&key, &value, None), async {
                feed.next().await.map(|_| now())
            });
            put?;
            Ok((seen? - began) as f64 / 1e9)
        })
    }
}
