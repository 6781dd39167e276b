//! Benchmarks with real Puppet: the time that it charges to the Exec, and the cost of a chain over
//! runs that a shell starts one after the other.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use again_test_support::{Scratch, now};
use anyhow::{Context, Result, ensure};

use crate::cost::PYTHON;
use crate::numbers::{Samples, Table, many, short, verdict};
use crate::runs;

/// Prepares `puppet apply` with all its directories in the scratch directory.
fn apply(scratch: &Scratch, manifest: &Path) -> Command {
    let mut command = scratch.command("puppet");
    command.args(["apply", "--color", "false"]);
    for (option, name) in [
        ("--confdir", "puppet/conf"),
        ("--vardir", "puppet/var"),
        ("--publicdir", "puppet/public"),
        ("--rundir", "puppet/run"),
        ("--logdir", "puppet/log"),
    ] {
        command.arg(option).arg(scratch.path(name));
    }
    command
        .arg("--lastrunreport")
        .arg(scratch.path("report.yaml"));
    command
        .arg(manifest)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Returns the `evaluation_time` of an Exec in the report.
fn charged(report: &str, title: &str) -> Option<f64> {
    let from = report.find(&format!("\n  Exec[{title}]:"))?;
    let rest = report.get(from..)?;
    let at = rest.find("evaluation_time: ")?;
    let number = rest.get(at + 17..)?.lines().next()?;
    number.trim().parse().ok()
}

/// Title of an Exec, and a function that returns the command for the nth run.
type Called<'c> = (&'c str, &'c dyn Fn(usize) -> Vec<String>);

/// Returns the times in milliseconds that Puppet charges to these programs, called in turns as
/// Execs of one catalog in several runs. The given function is called after each run.
pub fn charges<const N: usize>(
    scratch: &Scratch,
    programs: [Called; N],
    (runs, each): (usize, usize),
    mut after: impl FnMut() -> Result<()>,
) -> Result<[Samples; N]> {
    let mut manifest = String::new();
    for nth in 0..each {
        for (title, words) in &programs {
            let words: Vec<String> = words(nth).iter().map(|word| format!("'{word}'")).collect();
            let words = words.join(", ");
            manifest += &format!("exec {{ '{title}-{nth}': command => [{words}] }}\n");
        }
    }
    let path = scratch.path("work/charge.pp");
    std::fs::write(&path, manifest)?;
    let mut taken = [const { Vec::new() }; N];
    for _ in 0..runs {
        let status = apply(scratch, &path).status().context("puppet")?;
        ensure!(status.success(), "puppet apply failed");
        let report = scratch.text("report.yaml");
        for (taken, (title, _)) in taken.iter_mut().zip(&programs) {
            for nth in 0..each {
                let seconds = charged(&report, &format!("{title}-{nth}"));
                taken.push(seconds.context("no evaluation_time in the report")? * 1e3);
            }
        }
        after()?;
    }
    Ok(taken.map(Samples::from_iter))
}

/// Measures the time that Puppet charges to an Exec that requests a run.
pub fn charge(table: &mut Table) -> Result<()> {
    let scratch = runs::scratch();
    std::fs::write(scratch.path("peer.py"), PYTHON)?;
    let path = |name: &str| scratch.path(name).display().to_string();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let [floor, peer, ours] = charges(
        &scratch,
        [
            ("true", &|_| words(&["/bin/true"])),
            ("python", &|_| {
                words(&["/usr/bin/python3", &path("peer.py")])
            }),
            ("again", &|nth| {
                let name = format!("n{nth}");
                words(&[&path("bin/again"), "run", "--delta", "1d", "--name", &name])
            }),
        ],
        (many(6, 1), many(25, 3)),
        || runs::stop_all(&scratch),
    )?;
    let ratio = ours.median() / floor.median();
    table.add(
        "what Puppet charges the Exec (`evaluation_time`)",
        &ours.text("ms"),
        &format!("`/bin/true` {}", floor.text("ms")),
        &format!("Python {}", peer.text("ms")),
        &verdict(&format!("≤ 2 × floor ({ratio:.2} ×)"), ratio <= 2.0),
    );
    Ok(())
}

const RUNS: usize = 5;

/// Returns a manifest that counts its runs, and in a chain requests the next one; otherwise its
/// Exec, which a run has to load and to start all the same, does nothing.
fn counting(scratch: &Scratch) -> String {
    let file = scratch.path("count").display().to_string();
    format!(
        "$n = find_file('{file}') ? {{ undef => 0, default => Integer(strip(file('{file}'))) }} + 1\n\
         file {{ '{file}': content => \"${{n}}\\n\" }}\n\
         $ask = $facts['bench'] ? {{ 'chain' => ['{}', 'run', '--delta', '0', '--jitter', '0'], default => ['/bin/true'] }}\n\
         if $n < {RUNS} {{\n\
           exec {{ 'again': command => $ask, refreshonly => true, subscribe => File['{file}'] }}\n\
         }}\n",
        scratch.path("bin/again").display()
    )
}

/// Returns the seconds that five runs take, started by each other or by a loop.
fn five(scratch: &Scratch, manifest: &Path, chained: bool) -> Result<f64> {
    let _ = std::fs::remove_file(scratch.path("count"));
    let began = now();
    if !chained {
        let script = "n=0; while [ $n -lt 5 ]; do \"$@\" || exit 1; n=$((n + 1)); done";
        let run = apply(scratch, manifest);
        let mut shell = scratch.command("/bin/sh");
        shell
            .env("FACTER_bench", "loop")
            .args(["-c", script, "sh"])
            .arg(run.get_program())
            .args(run.get_args());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        ensure!(shell.status()?.success(), "a run failed");
        ensure!(scratch.text("count").trim() == "5", "not five runs");
        return Ok((now() - began) as f64 / 1e9);
    }
    ensure!(
        apply(scratch, manifest)
            .env("FACTER_bench", "chain")
            .status()?
            .success(),
        "the first run failed"
    );
    let end = now() + 120_000_000_000;
    let pause = || std::thread::sleep(Duration::from_millis(5));
    while scratch.text("count").trim() != "5" {
        ensure!(now() < end, "the chain did not end");
        pause();
    }
    let status: serde_json::Value =
        serde_json::from_str(&runs::ask(scratch, &["status", "--json"])?)?;
    let pid = &status["targets"][0]["running"]["pid"];
    let stat = format!("/proc/{}/stat", pid.as_i64().context("the fifth run")?);
    // A zombie counts as ended, whenever its parent reaps it.
    let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    while runs() {
        pause();
    }
    Ok((now() - began) as f64 / 1e9)
}

fn chain(table: &mut Table) -> Result<()> {
    let scratch = runs::scratch();
    let path = scratch.path("work/chain.pp");
    std::fs::write(&path, counting(&scratch))?;
    five(&scratch, &path, false)?;
    let (mut ours, mut floor, mut overhead) =
        (Samples::default(), Samples::default(), Samples::default());
    let pairs = many(12, 1);
    for nth in 0..pairs {
        // The order alternates, since a machine may become slower over time.
        let first = nth % 2 == 0;
        let a = five(&scratch, &path, first)?;
        let b = five(&scratch, &path, !first)?;
        let (chained, looped) = if first { (a, b) } else { (b, a) };
        ours.add(chained / RUNS as f64);
        floor.add(looped / RUNS as f64);
        overhead.add((chained - looped) * 100.0 / looped);
    }
    table.add(
        "five `puppet apply` in a chain, per run",
        &ours.text("s"),
        &format!("a shell loop {}", floor.text("s")),
        "",
        &verdict(
            &format!(
                "≤ 2 % more ({pairs} pairs: median {} %, quartiles {} to {} %)",
                short(overhead.median()),
                short(overhead.quantile(0.25)),
                short(overhead.quantile(0.75))
            ),
            overhead.median() <= 2.0,
        ),
    );
    Ok(())
}

pub fn measure(table: &mut Table) -> Result<()> {
    chain(table)
}
