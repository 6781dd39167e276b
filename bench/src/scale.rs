//! Thousands of timers on one machine.

use std::collections::BTreeMap;
use std::time::Duration;

use again_test_support::{Scratch, now};
use anyhow::{Context, Result, ensure};

use crate::numbers::{Samples, Table, many, short, verdict};
use crate::runs;
use crate::waiter::{compiled, pids_of, start};

/// C program that sleeps until a moment of CLOCK_BOOTTIME, in nanoseconds, and becomes the rest of
/// its arguments; if it gets the name of a file, it first writes one of a record's size to the
/// disk, with its name.
const SLEEP: &str = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <stdlib.h>\n#include <time.h>\n#include <unistd.h>\n\
    int main(int count, char **words) {\n\
      long long due = atoll(words[1]);\n\
      struct timespec at = { due / 1000000000, due % 1000000000 };\n\
      while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &at, 0)) {}\n\
      if (*words[2]) {\n\
        static char record[1024];\n\
        int file = open(words[2], O_WRONLY | O_CREAT, 0600), here = open(\".\", O_RDONLY);\n\
        if (write(file, record, sizeof record) != sizeof record || fdatasync(file) || fsync(here)) return 126;\n\
      }\n\
      execv(words[3], words + 3);\n\
      return 127;\n\
    }\n";

/// Returns resident and proportional memory of all waiters, in kB.
fn memory(pids: &[i32]) -> (u64, u64) {
    let mut sum = (0, 0);
    for pid in pids {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let number = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        sum.0 += number("Rss:");
        sum.1 += number("Pss:");
    }
    sum
}

pub fn status(scratch: &Scratch, words: &[&str], times: usize) -> Result<(Samples, String)> {
    let mut taken = Samples::default();
    let mut said = String::new();
    for _ in 0..times {
        let began = now();
        said = runs::ask(scratch, words)?;
        taken.add((now() - began) as f64 / 1e6);
    }
    Ok((taken, said))
}

/// Returns more than the seconds in which this number of timers can be armed, estimated from twenty
/// of them under the machine's current load.
fn lead(scratch: &Scratch, count: usize) -> Result<u64> {
    let tries = 20;
    let began = now();
    for nth in 0..tries {
        runs::ask(
            scratch,
            &["run", "--delta", "1d", "--", "/bin/true", &format!("{nth}")],
        )?;
    }
    let each = (now() - began) as f64 / 1e9 / f64::from(tries);
    runs::stop_all(scratch)?;
    std::fs::remove_dir_all(scratch.path("state"))?;
    // Each request reads the records of those before it.
    Ok((each * count as f64 * 6.0) as u64 + 4)
}

/// Results of a number of timers.
struct Timers {
    /// Seconds to arm all of them.
    armed: f64,
    resident: u64,
    shared: u64,
    late: Vec<f64>,
    early: usize,
}

impl Timers {
    fn arming(&self) -> String {
        let each = self.armed * 1e3 / self.late.len() as f64;
        format!("{} ms; {} s", short(each), short(self.armed))
    }

    fn memory(&self) -> String {
        let (shared, resident) = (self.shared as f64 / 1e3, self.resident as f64 / 1e3);
        format!("{} MB ({} MB resident)", short(shared), short(resident))
    }

    fn lateness(&self) -> String {
        let late = Samples::from_iter(self.late.iter().copied());
        format!("{}; most {} ms", late.text("ms"), short(late.most()))
    }
}

/// Returns a command that records its time under this name as the first thing it does.
fn stamping(scratch: &Scratch, name: &str) -> [String; 4] {
    [
        scratch.at("bin/helper"),
        "stamp".to_owned(),
        scratch.at("stamps"),
        name.to_owned(),
    ]
}

/// Waits until all timers have fired, with one stamp for each; returns how late each was in ms, and
/// how many were early.
fn fired(
    scratch: &Scratch,
    mut dues: BTreeMap<String, u64>,
    end: u64,
) -> Result<(Vec<f64>, usize)> {
    while scratch.text("stamps").lines().count() < dues.len() {
        ensure!(now() < end, "not all have fired");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut late = Vec::new();
    let mut early = 0;
    for stamp in scratch.stamps() {
        let name = stamp.words.first().context("a name")?;
        let due = dues.remove(name).context("fired twice")?;
        if stamp.at < due {
            early += 1;
        }
        late.push((stamp.at.saturating_sub(due)) as f64 / 1e6);
    }
    Ok((late, early))
}

/// Measures the floor: the same number of C programs, each asleep until its moment, as far apart as
/// the timers are, and then the same command; `synced` with a file that is on the disk before it.
fn asleep(
    scratch: &Scratch,
    dues: &BTreeMap<String, u64>,
    lead: u64,
    synced: bool,
) -> Result<Timers> {
    let sleep = compiled(scratch, "sleep", SLEEP)?;
    std::fs::remove_file(scratch.path("stamps"))?;
    let first = *dues.values().min().context("moments")?;
    let began = now();
    let moved: BTreeMap<String, u64> = dues
        .iter()
        .map(|(name, due)| (name.clone(), began + lead * 1_000_000_000 + (due - first)))
        .collect();
    let mut all = Vec::new();
    for (name, due) in &moved {
        let mut command = scratch.command(&sleep);
        command
            .arg(due.to_string())
            .arg(if synced {
                format!("{name}.start")
            } else {
                String::new()
            })
            .args(stamping(scratch, name));
        all.push(start(&mut command)?);
    }
    let armed = (now() - began) as f64 / 1e9;
    ensure!(
        armed < lead as f64,
        "starting takes longer than was thought"
    );
    let pids: Vec<i32> = all.iter().map(|one| one.0.id() as i32).collect();
    let (resident, shared) = memory(&pids);
    let (late, early) = fired(scratch, moved, now() + (lead + 120) * 1_000_000_000)?;
    Ok(Timers {
        armed,
        resident,
        shared,
        late,
        early,
    })
}

/// Timers of different targets, all due within one second.
pub struct Together {
    ours: Timers,
    dues: BTreeMap<String, u64>,
    /// Seconds from the first request to the moment at which all are due.
    lead: u64,
    /// Times that `status` and `status --json` took while all were pending.
    status: [Samples; 2],
}

impl Together {
    /// Returns how late the timers fired, in milliseconds.
    pub fn late(&self) -> Samples {
        Samples::from_iter(self.ours.late.iter().copied())
    }
}

/// Sets `count` timers of different targets, and waits until all have fired.
pub fn due_together(scratch: &Scratch, count: usize) -> Result<Together> {
    // Armed from the moment of the request; due at the same time, when the last one is armed.
    let lead = lead(scratch, count)?;
    let due = now() + lead * 1_000_000_000;
    let began = now();
    for nth in 0..count {
        let name = format!("n{nth:05}");
        let left = due.saturating_sub(now()) as f64 / 1e9;
        ensure!(left > 0.5, "arming takes longer than was thought");
        // A command of its own is a target of its own.
        let mut command = scratch.again_command(&["run", "--jitter", "0", "--delta"]);
        // Whole seconds: the exact moment is taken from the record.
        command.arg(format!("{}", left.ceil() as u64)).arg("--");
        command.args(stamping(scratch, &name));
        command.stdout(std::process::Stdio::null());
        let status = command.status()?;
        ensure!(status.success(), "a request failed");
    }
    let armed = (now() - began) as f64 / 1e9;
    let waiters = pids_of(scratch);
    let (resident, shared) = memory(&waiters);
    let (taken, said) = status(scratch, &["status", "--json"], many(10, 2))?;
    let (words, _) = status(scratch, &["status"], many(10, 2))?;
    let json: serde_json::Value = serde_json::from_str(&said)?;
    let mut dues = BTreeMap::new();
    let targets = json["targets"].as_array().context("targets")?;
    for target in targets {
        let command = target["command"].as_array().context("a command")?;
        let name = command
            .last()
            .and_then(|word| word.as_str())
            .context("a name")?;
        dues.insert(
            name.to_owned(),
            record_due(scratch, target["id"].as_str().context("an id")?)?,
        );
    }
    ensure!(dues.len() == count, "{} of {count} are pending", dues.len());
    let end = now() + (lead + 120) * 1_000_000_000;
    let (late, early) = fired(scratch, dues.clone(), end)?;
    runs::stop_all(scratch)?;
    let ours = Timers {
        armed,
        resident,
        shared,
        late,
        early,
    };
    Ok(Together {
        ours,
        dues,
        lead,
        status: [words, taken],
    })
}

/// Measures as many timers as fit, beside C programs that sleep.
fn all_at_once(table: &mut Table, count: usize) -> Result<()> {
    let scratch = runs::scratch();
    let Together {
        ours,
        dues,
        lead,
        status: [words, taken],
    } = due_together(&scratch, count)?;
    let floor = asleep(&scratch, &dues, lead, false)?;
    // A start that survives a power failure needs at least one write to the disk.
    let synced = asleep(&scratch, &dues, lead, true)?;
    ensure!(
        floor.early + synced.early == 0,
        "a sleeping program was early"
    );
    let n = short(count as f64);
    table.add(
        &format!("{n} timers pending, each of its own target: to arm one; all"),
        &ours.arming(),
        &format!("to start C programs that sleep {}", floor.arming()),
        "",
        "",
    );
    table.add(
        &format!("{n}: memory of all waiters, shared pages counted once"),
        &ours.memory(),
        &format!("C programs {}", floor.memory()),
        "",
        "",
    );
    table.add(
        &format!("{n}: `status`; `status --json`"),
        &format!("{}; {}", words.text("ms"), taken.text("ms")),
        "",
        "",
        &verdict("≤ 100 ms", words.median() <= 100.0),
    );
    table.add(
        &format!("{n}: due within 1 s of each other; fired late by"),
        &ours.lateness(),
        &format!(
            "C programs {}; that sync a file first {}",
            floor.lateness(),
            synced.lateness()
        ),
        "",
        &verdict(
            &format!(
                "all fire ({}), none early ({})",
                ours.late.len(),
                ours.early
            ),
            ours.late.len() == count && ours.early == 0,
        ),
    );
    Ok(())
}

/// Returns the time at which the timer of a target is due, in nanoseconds of CLOCK_BOOTTIME.
fn record_due(scratch: &Scratch, id: &str) -> Result<u64> {
    let record: serde_json::Value =
        serde_json::from_str(&scratch.text(&format!("state/targets/{id}/state.json")))?;
    let timers = record["timers"].as_object().context("timers")?;
    let timer = timers.values().next().context("a timer")?;
    timer["due"].as_u64().context("a due time")
}

/// Measures targets whose caps are used up, with a full history.
fn histories(table: &mut Table) -> Result<()> {
    let scratch = runs::scratch();
    let targets = many(200, 5);
    for nth in 0..targets {
        let name = format!("h{nth:03}");
        runs::ask(
            &scratch,
            &[
                "run",
                "--delta",
                "1d",
                "--name",
                &name,
                "--",
                "/bin/true",
                &name,
            ],
        )?;
    }
    runs::stop_all(&scratch)?;
    // As many starts on each record as the cap's window can hold, and both files of the history
    // full.
    let history = scratch.path("state/history.jsonl");
    let line = scratch.text("state/history.jsonl");
    let full = line.repeat((1 << 20) / line.len().max(1));
    std::fs::write(&history, &full)?;
    std::fs::write(scratch.path("state/history.1.jsonl"), &full)?;
    for target in std::fs::read_dir(scratch.path("state/targets"))?.flatten() {
        let path = target.path().join("state.json");
        let mut record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        let at = serde_json::json!({ "boot": "b", "uptime": 1, "wall": 1 });
        let start =
            serde_json::json!({ "at": at, "chain": "0123abcd", "run": 2, "forgotten": false });
        record["starts"] = serde_json::Value::Array(vec![start; 100]);
        std::fs::write(&path, serde_json::to_vec(&record)?)?;
    }
    let times = many(10, 2);
    let (words, _) = status(&scratch, &["status"], times)?;
    let (json, said) = status(&scratch, &["status", "--json"], times)?;
    let parsed: serde_json::Value = serde_json::from_str(&said)?;
    ensure!(parsed["unreadable"] == serde_json::json!([]), "{said}");
    let (told, _) = status(&scratch, &["history"], times)?;
    let began = now();
    runs::ask(
        &scratch,
        &["run", "--delta", "1d", "--", "/bin/true", "one more"],
    )?;
    let request = (now() - began) as f64 / 1e6;
    table.add(
        &format!("{targets} targets with full records and 2 MB of history: `status`; `--json`; `history`; a request"),
        &format!("{}; {}; {}; {} ms", short(words.median()), short(json.median()), short(told.median()), short(request)),
        "",
        "",
        "",
    );
    runs::stop_all(&scratch)
}

pub fn measure(table: &mut Table) -> Result<()> {
    all_at_once(table, many(1000, 20))?;
    histories(table)
}
