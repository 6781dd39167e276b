//! A thousand nodes on one etcd, on this machine: the service of each is a process of its own, with a certificate of its own. Root's side
//! of each is played by this program, which takes everything at once, for what runs then is a node's own affair.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, sleep};
use std::time::Duration;

use again_fleet::handover::{Answer, Asked, HEAD, asked, measured, say};
use again_fleet::wire::name::Id;
use again_fleet::wire::outcome::Outcome;
use again_rig::{now, wait_until};
use anyhow::{Context, Result, ensure};

use crate::fleet::{self, Scene, program};
use crate::numbers::{Samples, Table, many, short, verdict};
use crate::waiter::{Ended, needs};

const PATIENCE: Duration = Duration::from_secs(180);
/// How many may have a slot.
pub const SLOTS: usize = 8;
/// How long each has it.
const HOLDS: Duration = Duration::from_millis(100);

/// The nodes, each a process, and when each was handed something.
struct Crowd<'s> {
    scene: &'s mut Scene,
    names: Vec<String>,
    cast: Vec<Ended>,
    taken: Receiver<u64>,
}

pub fn play(scene: &mut Scene, table: &mut Table) -> Result<()> {
    let before = scene.engine_memory()?;
    let began = now();
    let mut crowd = Crowd::new(scene)?;
    crowd.wait_for(1)?;
    let started = (now() - began) as f64 / 1e9;
    let count = crowd.names.len();
    table.add(
        &format!("{count} services, each a process of its own, started and there"),
        &format!("{} s", short(started)),
        "",
        "",
        "",
    );
    crowd.idle(before, table)?;
    crowd.fan_out(table)?;
    crowd.slots(table)?;
    crowd.storm(table)
}

impl<'s> Crowd<'s> {
    fn new(scene: &'s mut Scene) -> Result<Crowd<'s>> {
        let pems = fs::read_to_string(scene.at("crowd.pem"))?;
        let pems = pems.split_inclusive("-----END CERTIFICATE-----\n");
        let pems = pems.take(fleet::crowd()).enumerate();
        let (tell, taken) = channel();
        let mut crowd = Crowd {
            scene,
            names: Vec::new(),
            cast: Vec::new(),
            taken,
        };
        for (n, pem) in pems {
            let name = format!("m{:04}.test", n + 1);
            fs::write(crowd.scene.path(&name, "pem"), pem)?;
            crowd.begin(&name, tell.clone())?;
            crowd.names.push(name);
        }
        Ok(crowd)
    }

    fn begin(&mut self, name: &str, tell: Sender<u64>) -> Result<()> {
        let settings = self.scene.settings(name, "crowd.key")?;
        let listener = UnixListener::bind(self.scene.path(name, "run").join("take"))?;
        let builder = thread::Builder::new().stack_size(64 << 10);
        builder.spawn(move || take_all(&listener, &tell))?;
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

    /// Until each has said so often that it has reached the engine.
    fn wait_for(&self, times: usize) -> Result<()> {
        let is_there = |name: &String| {
            let log = fs::read_to_string(self.scene.path(name, "log"));
            log.is_ok_and(|log| log.matches("is reached").count() >= times)
        };
        let mut left: Vec<&String> = self.names.iter().collect();
        wait_until("all services", PATIENCE, || {
            left.retain(|name| !is_there(name));
            left.is_empty()
        });
        Ok(())
    }

    fn idle(&self, before: u64, table: &mut Table) -> Result<()> {
        let count = self.names.len() as f64;
        let seconds = many(60, 1) as u64;
        let busy = self.scene.engine_busy()?;
        sleep(Duration::from_secs(seconds));
        let busy = self.scene.engine_busy()? - busy;
        let memory = self.scene.engine_memory()?;
        let resident: Vec<f64> = self
            .cast
            .iter()
            .map(|one| Ok(needs(one.0.id())?.resident as f64))
            .collect::<Result<_>>()?;
        let resident: Samples = resident.into_iter().collect();
        table.add(
            &format!(
                "what {count} idle services cost etcd: memory, and of a processor, over {seconds} s"
            ),
            &format!(
                "{} kB each, {} % together",
                short((memory.saturating_sub(before)) as f64 / count),
                short(100.0 * busy / seconds as f64),
            ),
            "",
            "",
            "",
        );
        table.add(
            "the resident memory of each of them",
            &resident.few("kB"),
            "",
            "",
            "",
        );
        Ok(())
    }

    /// One trigger for all.
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

    /// A tenth of them want a slot at the same time: each has a place to sign and others to verify, and all do so on this machine's few
    /// processors.
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

    /// The engine ends and begins anew.
    fn storm(&mut self, table: &mut Table) -> Result<()> {
        let count = self.names.len();
        self.scene.engine_anew()?;
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

/// Takes whatever is handed over, and says when.
fn take_all(listener: &UnixListener, tell: &Sender<u64>) {
    for stream in listener.incoming() {
        let served = stream
            .map_err(anyhow::Error::from)
            .and_then(|stream| serve(stream, tell));
        if let Err(e) = served {
            eprintln!("bench: root's side: {e}");
        }
    }
}

fn serve(mut stream: UnixStream, tell: &Sender<u64>) -> Result<()> {
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
    };
    let answer = Answer {
        outcome: Outcome::Taken,
        why: String::new(),
        ran: None,
    };
    Ok(stream.write_all(&say(&vec![answer; count]))?)
}
