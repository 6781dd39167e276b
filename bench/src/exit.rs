//! Measures the time from the end of a run to the start of its rerun.
//!
//! A run becomes `helper stamp` at its very end, and its rerun is the same program: both write the
//! time into a fifo as the first thing they do.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use again_test_support::Scratch;
use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};

use crate::numbers::{Samples, Table, many, verdict};
use crate::runs::{self, ruby_words};

/// Fifo in which the times arrive.
struct Fifo(BufReader<File>);

impl Fifo {
    fn new(path: &Path) -> Result<Fifo> {
        let made = Command::new("mkfifo").arg(path).status()?;
        ensure!(made.success(), "mkfifo");
        // Opened for reading and writing, so that there is no end of file in between.
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Fifo(BufReader::new(file)))
    }

    /// Returns the next time, which must be labelled `of`.
    fn next(&mut self, of: &str) -> Result<u64> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, _, name, ..] = words[..] else {
            anyhow::bail!("no stamp: {line}");
        };
        ensure!(name == of, "the {name} where the {of} was to come");
        Ok(at.parse()?)
    }

    /// Returns the milliseconds from the end of a run to the start of the next.
    fn between(&mut self) -> Result<f64> {
        let end = self.next("end")?;
        let start = self.next("start")?;
        Ok((start as f64 - end as f64) / 1e6)
    }
}

/// Directory and paths of the measurement.
struct Place {
    scratch: Scratch,
    fifo: String,
    helper: String,
}

impl Place {
    /// Prepares a run that makes a request, or does not, and writes the time of its end.
    fn run(&self, name: &str, asks: bool) -> Command {
        let stamp = |what| [&self.helper, "stamp", &self.fifo, what];
        let request = ["run", "--delta", "0", "--jitter", "0", "--"];
        let ask = ruby_words(&[&request[..], &stamp("start"), &[name]].concat());
        // The waiter must be asleep when the run ends, as it is after a run of seconds.
        let ask = format!("ask({ask}) == 0 or exit(1)\nsleep 0.15\n");
        let ask = if asks { &ask } else { "" };
        let end = ruby_words(&stamp("end"));
        self.scratch.apply(name, &format!("{ask}exec({end})"))
    }

    /// Prepares the next run after one without a request.
    fn next(&self) -> Command {
        let mut next = self.scratch.command(&self.helper);
        next.args(["stamp", &self.fifo, "start"]);
        next
    }

    /// Starts the floor: a parent that waits for its child, writes a file to the disk, and becomes
    /// the next run. A shell would add its own start, and a start that is not on the disk would be
    /// lost in a power failure.
    fn floor(&self) -> Result<i32> {
        let (mut run, mut next) = (self.run("floor", false), self.next());
        let (file, work) = (self.scratch.path("work/start"), self.scratch.path("work"));
        // SAFETY: one thread.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            let start = || -> std::io::Result<()> {
                run.status()?;
                let mut file = File::create(file)?;
                file.write_all(&[b' '; 1024])?;
                file.sync_data()?;
                File::open(work)?.sync_all()?;
                Err(next.exec())
            };
            let _ = start();
            // SAFETY: ends the child.
            unsafe { libc::_exit(127) }
        }
        ensure!(parent > 0, "fork");
        Ok(parent)
    }
}

/// Returns the delays before the first check of a process that polls once a second: one draw from
/// each of equal parts of the second, in random order.
fn phases(count: usize) -> Vec<Duration> {
    let mut dice = StdRng::seed_from_u64(count as u64);
    let part = 1.0 / count as f64;
    let mut phases: Vec<Duration> = (0..count)
        .map(|nth| Duration::from_secs_f64((nth as f64 + dice.random_range(0.0..1.0)) * part))
        .collect();
    phases.shuffle(&mut dice);
    phases
}

pub fn measure(table: &mut Table) -> Result<()> {
    let scratch = runs::scratch();
    // A short window and one target: the record and the logs have a realistic size, however many
    // samples there are.
    scratch.settings("scope = \"never\"\nmax_runs = 50\nwindow = \"1s\"");
    let place = Place {
        fifo: scratch.at("fifo"),
        helper: scratch.at("bin/helper"),
        scratch,
    };
    let mut fifo = Fifo::new(Path::new(&place.fifo))?;
    let times = many(300, 10);
    // Each sample takes half a second; a third of the number is enough for a 99th percentile.
    let mut phases = phases(times.div_ceil(3));
    let looks = phases.len();
    let mut all: [Vec<f64>; 3] = Default::default();
    for nth in 0..times {
        let mut run = place.run("ours", true).spawn()?;
        all[0].push(fifo.between()?);
        // Waiting earlier would disturb the measurement.
        run.wait()?;
        let parent = place.floor()?;
        all[1].push(fifo.between()?);
        // SAFETY: our own child.
        unsafe { libc::waitpid(parent, std::ptr::null_mut(), 0) };
        // The peer polls once a second.
        if nth % 3 == 0 {
            let phase = phases.pop().context("a phase")?;
            let (mut run, mut next) = (place.run("peer", false).spawn()?, place.next());
            let pid = run.id();
            let polling = std::thread::spawn(move || {
                std::thread::sleep(phase);
                // SAFETY: a signal of 0 does nothing.
                while unsafe { libc::kill(pid as i32, 0) } == 0 {
                    std::thread::sleep(Duration::from_secs(1));
                }
                next.spawn()
            });
            let end = fifo.next("end")?;
            run.wait()?;
            let start = fifo.next("start")?;
            all[2].push((start as f64 - end as f64) / 1e6);
            polling.join().ok().context("a thread")??.wait()?;
        }
    }
    let [ours, floor, peer] = all.map(Samples::from_iter);
    let p50 = ours.median() - floor.median();
    let p99 = ours.quantile(0.99) - floor.quantile(0.99);
    table.add(
        &format!("from the run's exit to the rerun's exec, {times} tries"),
        &ours.text("ms"),
        &format!(
            "a parent in waitpid that syncs a file before it goes on {}",
            floor.text("ms")
        ),
        &format!("looking once a second, {looks} tries: {}", peer.text("ms")),
        &verdict(
            &format!("p50 and p99 ≤ 2 ms above the floor ({p50:.2}, {p99:.2} ms)"),
            p50 <= 2.0 && p99 <= 2.0,
        ),
    );
    runs::stop_all(&place.scratch)
}
