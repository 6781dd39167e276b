//! What a waiter needs while it waits.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::numbers::{Table, quick, verdict};
use crate::stage::Stage;

const PAUSE: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n";

/// What a script does that waits for another process and has nothing better than to look.
const POLL: &str =
    "import os, sys, time\nwhile True:\n    os.kill(int(sys.argv[1]), 0)\n    time.sleep(1)\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Needs {
    resident: u64,
    anonymous: u64,
    page_tables: u64,
    threads: u64,
    switches: u64,
}

fn needs(pid: u32) -> Result<Needs> {
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
        switches: number(&status, "voluntary_ctxt_switches:")?
            + number(&status, "nonvoluntary_ctxt_switches:")?,
    })
}

/// Ends with whoever started it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(Ended(command.spawn()?))
}

pub fn measure(table: &mut Table) -> Result<()> {
    let stage = Stage::new()?;
    let source = stage.path("pause.c");
    let pause = stage.path("pause");
    std::fs::write(&source, PAUSE)?;
    let built = Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .args([&pause, &source])
        .status()?;
    ensure!(built.success(), "cc");
    let floor = start(&mut Command::new(&pause))?;
    let peer = start(
        Command::new("python3")
            .args(["-c", POLL])
            .arg(std::process::id().to_string()),
    )?;
    // One waits for a run to end, one for its time to come.
    let held = stage.held_run("held", "--delta 1d --name for-the-run")?;
    stage
        .held_run("ended", "--delta 1d --name for-the-time")?
        .end()?;
    std::thread::sleep(Duration::from_millis(500));
    let waiters = stage.waiters();
    ensure!(waiters.len() == 2, "two waiters: {waiters:?}");
    let pids: Vec<u32> = waiters
        .iter()
        .map(|pid| *pid as u32)
        .chain([floor.0.id(), peer.0.id()])
        .collect();
    let before: Vec<Needs> = pids.iter().map(|pid| needs(*pid)).collect::<Result<_>>()?;
    let seconds = if quick() { 2 } else { 60 };
    std::thread::sleep(Duration::from_secs(seconds));
    let after: Vec<Needs> = pids.iter().map(|pid| needs(*pid)).collect::<Result<_>>()?;
    let woken: Vec<u64> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after.switches - before.switches)
        .collect();
    // The larger of the two.
    let ours = if before[0].resident >= before[1].resident {
        before[0]
    } else {
        before[1]
    };
    let (floor, peer) = (before[2], before[3]);
    table.add(
        "a waiter's resident memory",
        &format!("{} kB", ours.resident),
        &format!("C in pause() {} kB", floor.resident),
        &format!("Python polling {} kB", peer.resident),
        &verdict("≤ 500 kB", ours.resident <= 500),
    );
    table.add(
        "anonymous, of that",
        &format!("{} kB", ours.anonymous),
        &format!("{} kB", floor.anonymous),
        &format!("{} kB", peer.anonymous),
        &verdict("≤ 256 kB", ours.anonymous <= 256),
    );
    table.add(
        "its page tables; threads",
        &format!("{} kB; {}", ours.page_tables, ours.threads),
        &format!("{} kB; {}", floor.page_tables, floor.threads),
        &format!("{} kB; {}", peer.page_tables, peer.threads),
        "",
    );
    table.add(
        &format!("wakeups in {seconds} s"),
        &format!(
            "{} waiting for the run's end, {} for the time",
            woken[0], woken[1]
        ),
        &woken[2].to_string(),
        &woken[3].to_string(),
        &verdict("0", woken[0] + woken[1] == 0),
    );
    held.end()
}
