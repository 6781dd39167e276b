//! Measures the cost of a request for the run that makes it.

use std::ffi::CString;
use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::numbers::{Samples, Table, many, verdict};
use crate::runs::{ruby_words, scratch};
use crate::start::{as_exec_does, words};

/// Program that parses arguments, reads /proc upwards, forks, and does nothing else.
pub const PYTHON: &str = r#"
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument('--delta', default='0')
parser.parse_args()
pid = os.getppid()
while pid > 1:
    with open('/proc/%d/cmdline' % pid, 'rb') as f: f.read()
    with open('/proc/%d/stat' % pid) as f: pid = int(f.read().rsplit(')', 1)[1].split()[1])
if os.fork() == 0:
    os.setsid()
    os._exit(0)
print('scheduled')
"#;

/// Name of this part inside a run: `again-bench within AGAIN TIMES PEER`.
pub const WITHIN: &str = "within";

/// Inside a run, starts each program in turn, `times` times, and prints the cost.
pub fn within(again: &str, times: usize, python: &str) -> Result<()> {
    let programs: [Vec<CString>; 3] = [
        words(&["/bin/true"]),
        words(&["/usr/bin/python3", python]),
        words(&[again, "run", "--delta", "120"]),
    ];
    let stop = words(&[again, "stop"]);
    let mut out = std::io::stdout().lock();
    for _ in 0..times {
        for (which, program) in programs.iter().enumerate() {
            let cost = as_exec_does(program)?;
            ensure!(cost.status == 0, "{program:?}: {}", cost.output);
            writeln!(out, "{which} {} {}", cost.seconds, cost.faults)?;
        }
        // Not timed: each request must find no timer before it.
        let cost = as_exec_does(&stop)?;
        ensure!(cost.status == 0, "stop: {}", cost.output);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}

pub fn measure(table: &mut Table) -> Result<()> {
    let scratch = scratch();
    let peer = scratch.write("peer.py", PYTHON).display().to_string();
    let (times, bench) = (many(400, 10).to_string(), std::env::current_exe()?);
    let bench = bench.to_str().context("a plain path")?;
    let again = scratch.at("bin/again");
    let words = ruby_words(&[bench, WITHIN, &again, &times, &peer]);
    let output = scratch
        .apply("cost", &format!("exit(system({words}))"))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the run failed");
    let mut seconds: [Vec<f64>; 3] = Default::default();
    let mut faults: [Vec<f64>; 3] = Default::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut parts = line.split(' ');
        let which: usize = parts.next().context("which")?.parse()?;
        seconds[which].push(parts.next().context("seconds")?.parse::<f64>()? * 1e3);
        faults[which].push(parts.next().context("faults")?.parse()?);
    }
    let [floor, peer, ours] = seconds.map(Samples::from_iter);
    let ratio = ours.median() / floor.median();
    table.add(
        "a request, started as an Exec starts it",
        &ours.text("ms"),
        &format!("`/bin/true` {}", floor.text("ms")),
        &format!("Python {}", peer.text("ms")),
        &verdict(&format!("≤ 3 × floor ({ratio:.2} ×)"), ratio <= 3.0),
    );
    let [floor, peer, ours] = faults.map(Samples::from_iter);
    table.add(
        "its page faults",
        &format!("{:.0}", ours.median()),
        &format!("`/bin/true` {:.0}", floor.median()),
        &format!("Python {:.0}", peer.median()),
        "",
    );
    Ok(())
}
