//! How long after the end of a run its rerun begins.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};

use crate::numbers::{Samples, Table, many, verdict};
use crate::stage::Stage;
use crate::start::{as_exec_does, now, words};

/// A run that asks (or does not), says when it ends, and ends. As a rerun it says when it began.
pub fn stand_in(stage: &Path, again: &str, began: u64, how: &str) -> Result<()> {
    if std::env::var_os("AGAIN_RUN").is_some() || std::env::var_os("BENCH_RERUN").is_some() {
        // Opened before the clock was read: a write to a fifo wakes the reader.
        File::options()
            .write(true)
            .open(stage.join("fifo"))?
            .write_all(&began.to_le_bytes())?;
        return Ok(());
    }
    if how == "asks" {
        let cost = as_exec_does(&words(&[again, "run", "--delta", "0", "--jitter", "0"]))?;
        ensure!(cost.status == 0, "{}", cost.output);
        // The waiter is to be asleep when the run ends, as it is after a run of seconds.
        std::thread::sleep(Duration::from_millis(150));
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&now().to_le_bytes())?;
    out.flush()?;
    // SAFETY: ends this process, and nothing else.
    unsafe { libc::_exit(0) }
}

/// When a run said that it ended.
fn ended(mut out: impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    out.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn began(fifo: &mut File) -> Result<u64> {
    let mut bytes = [0; 8];
    fifo.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// When whoever looks once a second looks first: one draw from each of equal parts of the second, in any order.
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
    let stage = Stage::new()?;
    let path = std::ffi::CString::new(stage.path("fifo").to_str().context("plain")?)?;
    // SAFETY: a NUL-terminated path.
    ensure!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) } == 0, "mkfifo");
    // Open for both, so that no end of file comes between.
    let mut fifo = File::options()
        .read(true)
        .write(true)
        .open(stage.path("fifo"))?;
    let times = many(300, 10);
    // Each takes half a second; a third as many are enough for a 99th percentile.
    let mut phases = phases(times.div_ceil(3));
    let looks = phases.len();
    let mut all: [Vec<f64>; 3] = Default::default();
    for nth in 0..times {
        // Ours; a target of its own each time, or else the record of its starts would be as long as no cap allows.
        let mut run = stage
            .run(&format!("exit{nth}"), "exit asks")?
            .stdout(Stdio::piped())
            .spawn()?;
        let end = ended(run.stdout.take().context("a pipe")?)?;
        all[0].push((began(&mut fifo)? - end) as f64 / 1e6);
        // Not before: we are not to be in the way.
        run.wait()?;
        // The floor: a parent that waits for its child, syncs a small file, and becomes the next run. A shell would
        // add its own start.
        let started = stage.path("state").join("floor");
        let mut run = stage.run("floor", "exit silent")?;
        let mut next = stage.run("floor", "exit silent")?;
        next.env("BENCH_RERUN", "1");
        run.stdout(Stdio::piped());
        let (reader, writer) = crate::start::pipe()?;
        // SAFETY: one thread.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            run.stdout(writer);
            let _ = run.status();
            let _ = File::create(&started).and_then(|mut file| {
                file.write_all(&[b'x'; 1024])?;
                file.sync_all()
            });
            let _ = next.exec();
            // SAFETY: ends the child.
            unsafe { libc::_exit(127) }
        }
        ensure!(parent > 0, "fork");
        drop(writer);
        drop(run);
        let end = ended(reader)?;
        all[1].push((began(&mut fifo)? - end) as f64 / 1e6);
        // SAFETY: our own child.
        unsafe { libc::waitpid(parent, std::ptr::null_mut(), 0) };
        // The peer looks once a second.
        if nth % 3 == 0 {
            let phase = phases.pop().context("a phase")?;
            let mut run = stage.run("peer", "exit silent")?;
            let mut next = stage.run("peer", "exit silent")?;
            next.env("BENCH_RERUN", "1");
            let mut run = run.stdout(Stdio::piped()).spawn()?;
            let out = run.stdout.take().context("a pipe")?;
            let pid = run.id();
            let polling = std::thread::spawn(move || {
                std::thread::sleep(phase);
                // SAFETY: a signal of 0 does nothing.
                while unsafe { libc::kill(pid as i32, 0) } == 0 {
                    std::thread::sleep(Duration::from_secs(1));
                }
                next.spawn()
            });
            let end = ended(out)?;
            run.wait()?;
            let mut next = polling.join().ok().context("a thread")??;
            all[2].push((began(&mut fifo)? - end) as f64 / 1e6);
            next.wait()?;
        }
    }
    let [ours, floor, peer] = all.map(Samples::from_iter);
    let p50 = ours.median() - floor.median();
    let p99 = ours.quantile(0.99) - floor.quantile(0.99);
    table.add(
        &format!("from the run's exit to the rerun's exec, {times} tries"),
        &ours.text("ms"),
        &format!(
            "a parent in waitpid that syncs a small file {}",
            floor.text("ms")
        ),
        &format!("looking once a second, {looks} tries: {}", peer.text("ms")),
        &verdict(
            &format!("p50 and p99 ≤ 2 ms above the floor ({p50:.2}, {p99:.2} ms)"),
            p50 <= 2.0 && p99 <= 2.0,
        ),
    );
    stage.stop_all()
}
