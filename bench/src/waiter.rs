//! Resources of a waiter while it waits.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use again_test_support::Scratch;
use anyhow::{Context, Result, ensure};

use crate::numbers::{Samples, Table, many, quick, short, verdict};
use crate::runs;

const PAUSE: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n";

/// Script that waits for another process by polling it.
const POLL: &str =
    "import os, sys, time\nwhile True:\n    os.kill(int(sys.argv[1]), 0)\n    time.sleep(1)\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    pub resident: u64,
    pub anonymous: u64,
    page_tables: u64,
    threads: u64,
    pub wakeups: u64,
}

/// Returns the resources that a process uses now: sizes in kB, and the number of times that it went
/// to sleep until it was woken. Preemptions by another program (nonvoluntary switches,
/// proc_pid_status(5)) depend on the machine and do not count.
pub fn needs(pid: u32) -> Result<Needs> {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/{name}")).context("a waiter has gone")
    };
    let memory = read("smaps_rollup")?;
    let status = read("status")?;
    let number = |text: &str, name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let words = line.with_context(|| format!("no {name}"))?;
        Ok(words
            .split_whitespace()
            .next()
            .context("a number")?
            .parse()?)
    };
    Ok(Needs {
        resident: number(&memory, "Rss:")?,
        anonymous: number(&memory, "Anonymous:")?,
        page_tables: number(&status, "VmPTE:")?,
        threads: number(&status, "Threads:")?,
        wakeups: number(&status, "voluntary_ctxt_switches:")?,
    })
}

/// Child process that is ended when the value is dropped.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn start(command: &mut Command) -> Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(Ended(command.spawn()?))
}

/// Returns the pids of the waiters.
pub fn pids_of(scratch: &Scratch) -> Vec<i32> {
    scratch.agains().iter().map(|process| process.pid).collect()
}

/// Compiles a static C program.
pub fn compiled(scratch: &Scratch, name: &str, text: &str) -> Result<PathBuf> {
    let source = scratch.path(&format!("{name}.c"));
    let program = scratch.path(name);
    std::fs::write(&source, text)?;
    let built = Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .args([&program, &source])
        .status()?;
    ensure!(built.success(), "cc");
    Ok(program)
}

/// Several processes of one kind, measured at the same time.
struct Kind {
    pids: Vec<u32>,
    before: Vec<Needs>,
    woken: u64,
}

impl Kind {
    fn new(pids: Vec<u32>) -> Result<Kind> {
        let before = pids.iter().map(|pid| needs(*pid)).collect::<Result<_>>()?;
        Ok(Kind {
            pids,
            before,
            woken: 0,
        })
    }

    fn look_again(&mut self) -> Result<()> {
        for (pid, before) in self.pids.iter().zip(&self.before) {
            self.woken += needs(*pid)?.wakeups - before.wakeups;
        }
        Ok(())
    }

    fn of(&self, which: fn(&Needs) -> u64) -> Samples {
        self.before
            .iter()
            .map(|needs| which(needs) as f64)
            .collect()
    }
}

fn pids(all: &[Ended]) -> Vec<u32> {
    all.iter().map(|one| one.0.id()).collect()
}

pub fn measure(table: &mut Table) -> Result<()> {
    let scratch = runs::scratch();
    let pause = compiled(&scratch, "pause", PAUSE)?;
    let each = many(5, 1);
    let mut floor = Vec::new();
    let mut peer = Vec::new();
    let mut held = Vec::new();
    for nth in 0..each {
        floor.push(start(&mut Command::new(&pause))?);
        peer.push(start(
            Command::new("python3")
                .args(["-c", POLL])
                .arg(std::process::id().to_string()),
        )?);
        // These wait for the end of a run.
        held.push(runs::held_run(
            &scratch,
            &format!("held{nth}"),
            &["--delta", "1d"],
        )?);
    }
    let for_the_run = pids_of(&scratch);
    // These wait for their due time.
    for nth in 0..each {
        runs::held_run(&scratch, &format!("ended{nth}"), &["--delta", "1d"])?.end();
    }
    std::thread::sleep(Duration::from_millis(500));
    let (for_the_run, for_the_time): (Vec<i32>, Vec<i32>) = pids_of(&scratch)
        .into_iter()
        .partition(|pid| for_the_run.contains(pid));
    ensure!(
        for_the_run.len() == each && for_the_time.len() == each,
        "waiters: {for_the_run:?}, {for_the_time:?}"
    );
    let ours = |pids: &[i32]| Kind::new(pids.iter().map(|pid| *pid as u32).collect());
    let mut kinds = [
        ours(&for_the_run)?,
        ours(&for_the_time)?,
        Kind::new(pids(&floor))?,
        Kind::new(pids(&peer))?,
    ];
    let seconds = if quick() { 2 } else { 60 };
    std::thread::sleep(Duration::from_secs(seconds));
    for kind in &mut kinds {
        kind.look_again()?;
    }
    let [for_the_run, for_the_time, floor, peer] = kinds;
    // The resources of all waiters of `again`, whatever they wait for.
    let ours = |which: fn(&Needs) -> u64| -> Samples {
        let all = for_the_run.before.iter().chain(&for_the_time.before);
        all.map(|needs| which(needs) as f64).collect()
    };
    let resident = |needs: &Needs| needs.resident;
    let anonymous = |needs: &Needs| needs.anonymous;
    table.add(
        &format!(
            "a waiter's resident memory: median (least to most) of {}, {each}, {each}",
            2 * each
        ),
        &ours(resident).few("kB"),
        &format!("C in pause() {}", floor.of(resident).few("kB")),
        &format!("Python polling {}", peer.of(resident).few("kB")),
        &verdict("≤ 500 kB", ours(resident).most() <= 500.0),
    );
    table.add(
        "anonymous, of that",
        &ours(anonymous).few("kB"),
        &floor.of(anonymous).few("kB"),
        &peer.of(anonymous).few("kB"),
        &verdict("≤ 256 kB", ours(anonymous).most() <= 256.0),
    );
    table.add(
        "what a leaner image to wait in could save at most: its anonymous memory less the floor's",
        &format!(
            "{} kB",
            short(ours(anonymous).median() - floor.of(anonymous).median())
        ),
        "0 kB",
        "",
        "",
    );
    let others = |page_tables: Samples, threads: Samples| {
        format!("{}; {}", page_tables.few("kB"), short(threads.most()))
    };
    let page_tables = |needs: &Needs| needs.page_tables;
    let threads = |needs: &Needs| needs.threads;
    table.add(
        "its page tables; threads",
        &others(ours(page_tables), ours(threads)),
        &others(floor.of(page_tables), floor.of(threads)),
        &others(peer.of(page_tables), peer.of(threads)),
        "",
    );
    table.add(
        &format!("wakeups in {seconds} s, of all {each} of a kind"),
        &format!(
            "{} waiting for the run's end, {} for the time",
            for_the_run.woken, for_the_time.woken
        ),
        &floor.woken.to_string(),
        &peer.woken.to_string(),
        &verdict("0", for_the_run.woken + for_the_time.woken == 0),
    );
    for run in held {
        run.end();
    }
    Ok(())
}
