//! A thousand nodes with one etcd, on this machine: the service of each is a separate process, with
//! its own certificate. This program replaces the executor of each, and accepts every trigger
//! immediately, because the runs would be a node's own load.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, sleep};
use std::time::Duration;

use again_fleet::handover::{Answer, Asked, HEAD, asked, measured, say};
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::Outcome;
use again_test_support::{now, wait_until};
use anyhow::{Context, Result, ensure};

use crate::numbers::{Samples, Table, many, short, verdict};
use crate::plots::{plot, write};
use crate::scene::{self, SLOTS, Scene, program};
use crate::waiter::{Ended, needs};

const PATIENCE: Duration = Duration::from_secs(180);
/// Number of targets of a rolling run that may run at a time.
const PARALLEL: usize = 5;
/// Time for which each node holds a slot, or runs.
const HOLDS: Duration = Duration::from_millis(100);

/// Nodes, each a process, and the times at which each was handed a trigger.
struct Crowd<'s> {
    scene: &'s mut Scene,
    names: Vec<String>,
    cast: Vec<Ended>,
    tell: Sender<u64>,
    taken: Receiver<u64>,
    /// Whether accepted triggers run for a moment, with a change as the result.
    runs: Arc<AtomicBool>,
}

/// Cost of a number of idle services for the backend.
#[derive(Clone, Copy)]
struct Point {
    nodes: usize,
    /// Resident memory of the backend in MB.
    memory: f64,
    /// Processor usage of the backend in percent.
    busy: f64,
    /// Size of the backend's database on disk in MB.
    disk: f64,
}

/// Returns the numbers of services at which the backend is measured.
fn steps() -> [usize; 3] {
    let all = scene::crowd();
    [all / 10, 3 * all / 10, all]
}

pub fn play(scene: &mut Scene, table: &mut Table) -> Result<()> {
    let count = scene::crowd();
    let mut crowd = Crowd::new(scene)?;
    let (mut started, mut points) = (0.0, Vec::new());
    for step in steps() {
        started += crowd.grow(step)?;
        points.push(crowd.idle()?);
    }
    table.add(
        &format!("{count} services, each a process of its own, started and there"),
        &format!("{} s", short(started)),
        "",
        "",
        "",
    );
    cost(&points, table);
    crowd.memory(table)?;
    if let Some(to) = std::env::var_os("PLOTS") {
        draw(Path::new(&to), &points)?;
    }
    crowd.fan_out(table)?;
    crowd.slots(table)?;
    crowd.rolling(table)?;
    crowd.storm(table)
}

/// Extrapolates the line through the first and the last point to more nodes.
fn at(points: &[Point], nodes: usize) -> Point {
    let (first, last) = (points[0], points[points.len() - 1]);
    let more = (nodes as f64 - last.nodes as f64) / (last.nodes - first.nodes) as f64;
    Point {
        nodes,
        memory: last.memory + more * (last.memory - first.memory),
        busy: last.busy + more * (last.busy - first.busy),
        disk: last.disk + more * (last.disk - first.disk),
    }
}

fn cost(points: &[Point], table: &mut Table) {
    let (first, last) = (points[0], points[points.len() - 1]);
    for nodes in [last.nodes, 10_000, 100_000] {
        let point = at(points, nodes);
        let how = match nodes == last.nodes {
            true => {
                format!("what {nodes} idle services cost etcd: memory, of a processor, on disk")
            }
            false => format!(
                "the same of {} by the line from {} to {}",
                short(nodes as f64),
                first.nodes,
                last.nodes
            ),
        };
        let figures = [point.memory, point.busy, point.disk].map(short);
        let ours = format!("{} MB; {} %; {} MB", figures[0], figures[1], figures[2]);
        table.add(&how, &ours, "", "", "");
    }
}

fn draw(to: &Path, points: &[Point]) -> Result<()> {
    let more = [3000, 10_000, 30_000, 100_000].map(|nodes| at(points, nodes));
    let all: Vec<Point> = points.iter().copied().chain(more).collect();
    let line = |name, of: fn(&Point) -> f64| {
        let values = all.iter().map(|one| (one.nodes as u64, of(one)));
        (name, values.collect())
    };
    let lines = [
        line("memory in MB", |one| one.memory),
        line("of a processor in %", |one| one.busy),
    ];
    write(&to.join("crowd.csv"), "nodes", &lines)?;
    plot(
        &to.join("crowd"),
        "what idle nodes cost one etcd: measured up to 1,000, a straight line from there",
        ["nodes", "MB, and % of a processor"],
        [true, true],
    )
}

impl<'s> Crowd<'s> {
    fn new(scene: &'s mut Scene) -> Result<Crowd<'s>> {
        let pems = fs::read_to_string(scene.at("crowd.pem"))?;
        let pems = pems.split_inclusive("-----END CERTIFICATE-----\n");
        let pems = pems.take(scene::crowd()).enumerate();
        let (tell, taken) = channel();
        let mut names = Vec::new();
        for (n, pem) in pems {
            let name = format!("m{:04}.test", n + 1);
            fs::write(scene.path(&name, "pem"), pem)?;
            names.push(name);
        }
        Ok(Crowd {
            scene,
            names,
            cast: Vec::new(),
            tell,
            taken,
            runs: Arc::default(),
        })
    }

    /// Starts nodes up to this number; returns the seconds until all are connected.
    fn grow(&mut self, to: usize) -> Result<f64> {
        let began = now();
        for at in self.cast.len()..to {
            let name = self.names[at].clone();
            self.begin(&name)?;
        }
        self.wait_for(1)?;
        Ok((now() - began) as f64 / 1e9)
    }

    fn begin(&mut self, name: &str) -> Result<()> {
        let settings = self.scene.settings(name, "crowd.key")?;
        let listener = UnixListener::bind(self.scene.path(name, "run").join("executor"))?;
        let (tell, runs) = (self.tell.clone(), self.runs.clone());
        let builder = thread::Builder::new().stack_size(64 << 10);
        builder.spawn(move || take_all(&listener, &tell, &runs))?;
        let log = fs::File::create(self.scene.path(name, "log"))?;
        let mut serve = Command::new(program());
        serve
            .args(["--config", &settings, "serve"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let serve = serve.spawn().context("a service")?;
        self.cast.push(Ended(serve));
        Ok(())
    }

    /// Waits until each node has logged this number of times that it has connected to the backend.
    fn wait_for(&self, times: usize) -> Result<()> {
        let is_there = |name: &String| {
            let log = fs::read_to_string(self.scene.path(name, "log"));
            log.is_ok_and(|log| log.matches("is reached").count() >= times)
        };
        let mut left: Vec<&String> = self.names[..self.cast.len()].iter().collect();
        wait_until("all services", PATIENCE, || {
            left.retain(|name| !is_there(name));
            left.is_empty()
        });
        Ok(())
    }

    fn idle(&self) -> Result<Point> {
        let seconds = many(60, 1) as u64;
        // The services finish their start.
        sleep(Duration::from_secs(seconds / 3));
        let busy = self.scene.backend_busy()?;
        sleep(Duration::from_secs(seconds));
        let busy = self.scene.backend_busy()? - busy;
        Ok(Point {
            nodes: self.cast.len(),
            memory: self.scene.backend_memory()? as f64 / 1e3,
            busy: 100.0 * busy / seconds as f64,
            disk: fs::metadata(self.scene.at("etcd/member/snap/db"))?.len() as f64 / 1e6,
        })
    }

    fn memory(&self, table: &mut Table) -> Result<()> {
        let resident = |one: &Ended| Ok(needs(one.0.id())?.resident as f64);
        let resident: Vec<f64> = self.cast.iter().map(resident).collect::<Result<_>>()?;
        let resident: Samples = resident.into_iter().collect();
        table.add(
            "the resident memory of each of them",
            &resident.few("kB"),
            "",
            "",
            "",
        );
        Ok(())
    }

    /// Measures one trigger for all nodes.
    fn fan_out(&self, table: &mut Table) -> Result<()> {
        let count = self.names.len();
        let mut command = Command::new(program());
        command.args(["--config", &self.scene.at("web1.test.toml"), "trigger"]);
        for name in &self.names {
            command.args(["--to", name]);
        }
        let began = now();
        let fired = command.stdout(Stdio::null()).status()?;
        ensure!(fired.success(), "not fired: {fired}");
        let mut took = Samples::default();
        for _ in 0..count {
            let at = self
                .taken
                .recv_timeout(PATIENCE)
                .context("not all have taken it")?;
            took.add((at - began) as f64 / 1e9);
        }
        let most = took.most();
        table.add(
            &format!("one trigger for {count} nodes, without a spread: from its start until each has handed it over; all"),
            &format!("{}; {} s", took.text("s"), short(most)),
            "",
            "",
            &verdict("all ≤ 5 s", most <= 5.0),
        );
        Ok(())
    }

    /// Measures a tenth of the nodes that request a slot at the same time: each has a queue
    /// position to sign and others to verify, all on this machine's few processors.
    fn slots(&self, table: &mut Table) -> Result<()> {
        let count = self.names.len().div_ceil(10);
        let began = now();
        let mut runs = Vec::new();
        for name in &self.names[..count] {
            let settings = self.scene.path(name, "toml");
            let (program, settings, holds) = (program(), settings.display(), HOLDS.as_secs_f64());
            let text = format!("{program} --config {settings} slot >/dev/null && sleep {holds}");
            let run = Command::new("sh")
                .args(["-c", &text])
                .stdin(Stdio::null())
                .spawn()?;
            runs.push(Ended(run));
        }
        for run in &mut runs {
            let ended = run.0.wait()?;
            ensure!(ended.success(), "a run without a slot: {ended}");
        }
        let took = (now() - began) as f64 / 1e9;
        let least = count.div_ceil(SLOTS) as f64 * HOLDS.as_secs_f64();
        table.add(
            &format!("{count} nodes want one of {SLOTS} slots at once, and hold it for {} ms each: until all are done", HOLDS.as_millis()),
            &format!("{} s", short(took)),
            &format!("without a moment between two {} s", short(least)),
            "",
            "",
        );
        Ok(())
    }

    /// Measures a rolling run over a tenth of the nodes, beside a loop on one machine that starts
    /// the equivalent of an ssh session to each, the same number at a time.
    fn rolling(&self, table: &mut Table) -> Result<()> {
        let names = &self.names[..self.names.len().div_ceil(10)];
        self.runs.store(true, Ordering::Relaxed);
        let (settings, parallel) = (self.scene.at("web1.test.toml"), PARALLEL.to_string());
        let mut ours = Command::new(program());
        ours.args(["--config", &settings, "trigger", "--name", "rolling"]);
        ours.args(["--parallel", &parallel, "--wait"]);
        names.iter().for_each(|name| {
            ours.args(["--to", name]);
        });
        let mut peer = Command::new("sh");
        let hold = format!("sh -c 'sleep {}' ", HOLDS.as_secs_f64());
        let text = format!("printf '%s\\n' \"$@\" | xargs -n 1 -P {parallel} {hold}");
        peer.args(["-c", &text, "sh"]).args(names);
        let time = |command: &mut Command| -> Result<f64> {
            let began = now();
            let ended = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()?;
            ensure!(ended.success(), "{command:?}: {ended}");
            Ok((now() - began) as f64 / 1e9)
        };
        let (ours, peer) = (time(&mut ours)?, time(&mut peer)?);
        self.runs.store(false, Ordering::Relaxed);
        let (count, least) = (
            names.len(),
            HOLDS.as_secs_f64() * names.len().div_ceil(PARALLEL) as f64,
        );
        table.add(
            &format!("a rolling run over {count} nodes, {PARALLEL} at once, for {} ms each: until all have told", HOLDS.as_millis()),
            &format!("{} s", short(ours)),
            &format!("without a moment between two {} s", short(least)),
            &format!("a loop that could die {} s", short(peer)),
            "",
        );
        Ok(())
    }

    /// Measures a restart of the backend.
    fn storm(&mut self, table: &mut Table) -> Result<()> {
        let count = self.names.len();
        self.scene.backend_anew()?;
        let began = now();
        self.wait_for(2)?;
        table.add(
            &format!("etcd is killed and started again: until all {count} services are back"),
            &format!("{} s", short((now() - began) as f64 / 1e9)),
            "",
            "",
            "",
        );
        Ok(())
    }
}

/// Accepts every trigger that is handed over, and reports the time.
fn take_all(listener: &UnixListener, tell: &Sender<u64>, runs: &AtomicBool) {
    for stream in listener.incoming() {
        let served = stream
            .map_err(anyhow::Error::from)
            .and_then(|stream| serve(stream, tell, runs.load(Ordering::Relaxed)));
        if let Err(e) = served {
            eprintln!("bench: the executor: {e}");
        }
    }
}

fn serve(mut stream: UnixStream, tell: &Sender<u64>, runs: bool) -> Result<()> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let count = match asked(&head)? {
        Asked::Take(count) => {
            let mut lengths = vec![0; 4 * count];
            stream.read_exact(&mut lengths)?;
            let all: usize = measured(count, &lengths)?.iter().sum();
            stream.read_exact(&mut vec![0; all])?;
            let _ = tell.send(now());
            count
        }
        Asked::Became(count) => {
            stream.read_exact(&mut vec![0; count * Id::MOST])?;
            count
        }
        Asked::Mark(count) => {
            stream.read_exact(&mut vec![0; count * Id::MOST])?;
            0
        }
    };
    if runs {
        sleep(HOLDS);
    }
    let answer = Answer {
        outcome: if runs {
            Outcome::Changed
        } else {
            Outcome::Taken
        },
        why: String::new(),
        ran: None,
        above: None,
        is_unwatched: false,
    };
    Ok(stream.write_all(&say(&vec![answer; count]))?)
}
