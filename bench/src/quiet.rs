//! Measures the cost of old logs and idle targets for starts and commands.

use std::fs;
use std::path::Path;

use again_test_support::{Scratch, now, wait_until};
use anyhow::{Context, Result, ensure};

use crate::numbers::{Samples, Table, many, short, verdict};
use crate::runs;
use crate::scale::{due_together, status};

/// Writes logs of reruns, twenty of each target, into the log directory.
fn leave_logs(scratch: &Scratch, count: usize) -> Result<()> {
    let logs = scratch.path("logs");
    fs::create_dir_all(&logs)?;
    for nth in 0..count {
        let (run, target) = (nth % 20 + 1, nth / 20);
        let name = format!("20261120T{nth:09}-{nth:08x}-{run}-{target:08x}.log");
        fs::write(logs.join(name), "x\n")?;
    }
    Ok(())
}

/// Returns how late single timers start, in milliseconds.
fn lateness(scratch: &Scratch, times: usize) -> Result<Samples> {
    let mut late = Samples::default();
    for nth in 0..times {
        let before = scratch.stamps().len();
        let (stamps, helper) = (scratch.at("stamps"), scratch.at("bin/helper"));
        let name = format!("single{nth}");
        let words = [
            "run", "--delta", "1", "--jitter", "0", "--", &helper, "stamp", &stamps, &name,
        ];
        runs::ask(scratch, &words)?;
        let records = scratch.records("state");
        let mut timers = records.iter().map(|record| &record["timers"]["again"]);
        let due = timers.find_map(|timer| timer["due"].as_u64());
        wait_until("the rerun", again_test_support::SHORT, || {
            scratch.stamps().len() > before
        });
        let at = scratch.stamps().last().context("a stamp")?.at;
        late.add(at.saturating_sub(due.context("a due time")?) as f64 / 1e6);
    }
    Ok(late)
}

/// Measures the lateness of starts with an empty log directory, and with one full of other targets'
/// logs.
pub fn logs(table: &mut Table) -> Result<()> {
    let (count, timers) = (many(20_000, 100), many(1000, 20));
    let scratch = runs::scratch();
    let times = many(10, 1);
    let empty = lateness(&scratch, times)?;
    leave_logs(&scratch, count)?;
    let full = lateness(&scratch, times)?;
    let n = short(count as f64);
    table.add(
        &format!("a start beside {n} logs of other targets: late by"),
        &full.text("ms"),
        &format!("beside none {}", empty.text("ms")),
        "",
        &verdict("≤ 3 ×", full.median() <= 3.0 * empty.median().max(1.0)),
    );
    let empty = due_together(&runs::scratch(), timers)?.late();
    let scratch = runs::scratch();
    leave_logs(&scratch, count)?;
    let full = due_together(&scratch, timers)?.late();
    table.add(
        &format!(
            "{} due within 1 s beside {n} logs: late by",
            short(timers as f64)
        ),
        &format!("{}; most {} ms", full.text("ms"), short(full.most())),
        &format!(
            "beside none {}; most {} ms",
            empty.text("ms"),
            short(empty.most())
        ),
        "",
        &verdict(
            "median ≤ 1.5 ×, most ≤ 1 s",
            full.median() <= 1.5 * empty.median() && full.most() <= 1000.0,
        ),
    );
    Ok(())
}

/// Makes `count` copies of an idle target.
fn multiply(scratch: &Scratch, count: usize) -> Result<()> {
    let target = scratch.target();
    let id = target
        .file_name()
        .context("an id")?
        .to_string_lossy()
        .into_owned();
    for nth in 0..count {
        let other = format!("{nth:016x}");
        let to = target.with_file_name(&other);
        fs::create_dir_all(to.join("orders"))?;
        for name in ["state.json", "command", "lock"] {
            copy(&target.join(name), &to.join(name), &id, &other)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, id: &str, other: &str) -> Result<()> {
    if from.exists() {
        fs::write(to, fs::read_to_string(from)?.replace(id, other))?;
    }
    Ok(())
}

/// Measures a request with one target, and with many more that are idle; then each verb.
pub fn targets(table: &mut Table) -> Result<()> {
    let scratch = runs::scratch();
    let (count, times) = (many(10_000, 50), many(20, 2));
    let request = ["run", "--delta", "1d", "--", "/bin/true"];
    let (alone, _) = status(&scratch, &request, times)?;
    runs::stop_all(&scratch)?;
    multiply(&scratch, count)?;
    let (among, _) = status(&scratch, &request, times)?;
    let mut most = 0.0_f64;
    let mut each = Vec::new();
    for verb in [
        "status", "resume", "now", "reset", "disable", "enable", "metrics", "history", "stop",
    ] {
        let began = now();
        runs::ask(&scratch, &[verb])?;
        let taken = (now() - began) as f64 / 1e6;
        most = most.max(taken);
        each.push(format!("{verb} {}", short(taken)));
    }
    runs::stop_all(&scratch)?;
    ensure!(
        scratch.records("state").len() == count + 1,
        "a target is gone"
    );
    let n = short(count as f64);
    table.add(
        &format!("{n} quiet targets: a request"),
        &among.text("ms"),
        &format!("with one target {}", alone.text("ms")),
        "",
        &verdict("≤ 2 ×", among.median() <= 2.0 * alone.median()),
    );
    table.add(
        &format!("{n} quiet targets: each verb"),
        &format!("{} ms", each.join(", ")),
        "",
        "",
        &verdict("≤ 250 ms", most <= 250.0),
    );
    Ok(())
}
