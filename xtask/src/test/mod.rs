//! Runs test suites, several at the same time if there are cores for them, and counts the results.

pub mod guard;
mod jobs;
mod programs;
mod results;
mod suites;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use self::jobs::{Ended, Job, Jobs};
use self::programs::Programs;
use self::results::Results;
use self::suites::{BUILD, SUITES, Set, Suite};
use crate::repository;

/// Which suites run, and how.
#[derive(clap::Args)]
pub struct Options {
    /// Only what every change has to pass in a few minutes
    #[arg(long, conflicts_with_all = ["system", "nightly", "suites"])]
    check: bool,
    /// What needs all privileges of root
    #[arg(long, conflicts_with_all = ["nightly", "suites"])]
    system: bool,
    /// What takes hours
    #[arg(long, conflicts_with = "suites")]
    nightly: bool,
    /// Test this program instead of building dist/again
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// One suite at a time
    #[arg(long)]
    alone: bool,
    /// Another suite, as a row of the table of suites
    #[arg(long, value_name = "ROW", hide = true)]
    row: Option<String>,
    /// Suites, by name; the default is everything that a container's root may do
    suites: Vec<String>,
    /// Arguments of the test programs, for example a filter
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Results of a suite that has ended.
struct Outcome {
    ended: Ended,
    results: Results,
}

/// Runs the suites; returns whether all of them passed. The last line counts the tests.
pub fn test(options: &Options) -> Result<bool> {
    let began = Instant::now();
    let suites = wanted(options)?;
    let mut jobs = Jobs::new()?;
    let programs = prepare(options, &suites, &mut jobs)?;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let capacity = if options.alone { 0 } else { 10 * cores as u32 };
    let suites = suites.iter().map(|suite| job(suite, &programs, options));
    let mut outcomes = Vec::new();
    jobs.run(suites.collect::<Result<_>>()?, capacity, |ended| {
        let results = judged(Results::of(&ended.output), ended.status, &ended.name);
        let outcome = Outcome { ended, results };
        outcome.show();
        outcomes.push(outcome);
        Ok(())
    })?;
    println!();
    for outcome in &outcomes {
        println!("{}", outcome.line());
    }
    println!("all suites took {} s", began.elapsed().as_secs());
    Ok(sum_up(&outcomes))
}

/// Prints failures, skipped tests, and the sums; returns whether the run passes. With `CI=true` a
/// skipped test is a failure.
fn sum_up(outcomes: &[Outcome]) -> bool {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for Outcome { ended, results } in outcomes {
        for skip in &results.skips {
            println!("skipped in {}: {skip}", ended.name);
        }
        if results.failed > 0 {
            println!("failed in {}: {}", ended.name, results.bad.join(", "));
        }
        passed += results.passed;
        failed += results.failed;
        skipped += results.skipped;
    }
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let is_good = failed == 0 && (skipped == 0 || !is_ci);
    if failed == 0 && !is_good {
        println!("failed: with CI=true no test may be skipped");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    is_good
}

fn wanted(options: &Options) -> Result<Vec<Suite>> {
    let mut all = SUITES.clone();
    if let Some(row) = &options.row {
        all.push(Suite::parse(row.clone().leak())?);
    }
    let names: Vec<&str> = all.iter().map(|suite| suite.name).collect();
    for name in &options.suites {
        let is_known = names.contains(&name.as_str());
        ensure!(is_known, "there is no suite {name}: {}", names.join(" "));
    }
    all.retain(|suite| match suite.set {
        _ if !options.suites.is_empty() => options.suites.iter().any(|name| name == suite.name),
        Set::Check => !options.nightly && !options.system,
        Set::Test => !options.nightly && !options.system && !options.check,
        Set::System => options.system,
        Set::Nightly => options.nightly,
    });
    Ok(all)
}

/// Installs Debian packages, then builds the programs, the tests, and images.
fn prepare(options: &Options, suites: &[Suite], jobs: &mut Jobs) -> Result<Programs> {
    const BUILT: &str = "tests/tools/build";
    /// Build without the suites that need the released `again-fleet`.
    const AGAIN_ALONE: &str = "tests/tools/build x86_64 again";
    let job = |name: &str, words: Vec<String>| Job {
        name: name.to_owned(),
        load: 0,
        limit: 3600,
        words,
        environment: Vec::new(),
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut packages: Vec<&str> = suites.iter().flat_map(|one| one.packages.clone()).collect();
    packages.extend(BUILD.split(' '));
    packages.sort_unstable();
    packages.dedup();
    let need = words(&format!("tests/tools/need {}", packages.join(" ")));
    jobs.must(vec![job("packages", need)])?;

    let before = || suites.iter().flat_map(|suite| &suite.before);
    let mut builds = Vec::new();
    if before().any(|script| *script == BUILT) {
        builds.push(job("programs", words(BUILT)));
    } else if options.bin.is_none() {
        builds.push(job("programs", words(AGAIN_ALONE)));
    }
    let mut scripts: Vec<&str> = Vec::new();
    for script in before().filter(|script| **script != BUILT) {
        if !scripts.contains(script) {
            scripts.push(script);
        }
    }
    if !scripts.is_empty() {
        let all = scripts.join(" && ");
        builds.push(job("images", vec!["sh".into(), "-c".into(), all]));
    }
    let has_programs = |suite: &Suite| {
        suite.program().is_some() || suite.needs_programs() || suite.needs_all_programs()
    };
    if !suites.iter().any(has_programs) {
        jobs.must(builds)?;
        return Ok(Programs::default());
    }
    builds.push(job("tests", programs::build(suites)));
    jobs.must(builds)?;
    let programs = Programs::read(&fs::read_to_string(jobs::log("tests"))?);
    for warning in &programs.warnings {
        eprintln!("{warning}");
    }
    Ok(programs)
}

/// Script that runs the privileged tests of each test program.
const PRIVILEGED: &str = "\
    status=0; for program; do \
    \"$program\" privileged:: --quiet --show-output --test-threads=2 || status=1; \
    done; exit $status";

/// Returns the job that runs a suite.
fn job(suite: &Suite, programs: &Programs, options: &Options) -> Result<Job> {
    let mut environment = Vec::new();
    if let Some(path) = &options.bin {
        let path = path.canonicalize().context("--bin")?;
        for name in ["AGAIN_BIN", "LAB_BINARY", "AGAIN"] {
            environment.push((name, path.clone()));
        }
    }
    if matches!(suite.set, Set::Check | Set::Test) {
        // Every ruby of the suite loads bytecode.
        let hook = repository().join("tests/support/module/lib/puppet_x/rig/bytecode.rb");
        let bytecode = repository().join("target/bytecode");
        fs::create_dir_all(&bytecode)?;
        // RUBYOPT cannot name a path with a space.
        if !hook.to_string_lossy().contains(char::is_whitespace) {
            environment.push(("RUBYOPT", format!("-r{}", hook.display()).into()));
        }
        environment.push(("RIG_BYTECODE", bytecode));
        // A quarter of the nightly number.
        environment.push(("PROPTEST_CASES", "64".into()));
    }
    let own = || suite.runs.iter().map(|word| (*word).to_owned());
    let program = suite.program().map(|key| programs.get(&key)).transpose()?;
    let words = match (&suite.runs[..], program) {
        (["tests/matrix/run", ..], Some(program)) => {
            environment.push(("MATRIX_PROGRAM", program.into()));
            own().collect()
        }
        (["newer", _, rest @ ..], Some(program)) => {
            let words = libtest(program, rest, suite, options);
            std::iter::once("tests/backends/newer".to_owned())
                .chain(words)
                .collect()
        }
        (["programs", ..], None) => {
            environment.push(("PROGRAMS", programs.directory()?));
            own().skip(1).collect()
        }
        ([_, _, rest @ ..], Some(program)) => libtest(program, rest, suite, options),
        (["privileged"], None) => {
            let mut words = ["sh", "-c", PRIVILEGED, "sh"].map(str::to_owned).to_vec();
            let suites = SUITES
                .iter()
                .filter(|suite| matches!(suite.set, Set::Check | Set::Test));
            for key in suites.filter_map(Suite::program) {
                words.push(programs.get(&key)?);
            }
            words
        }
        (["xtask", ..], None) => std::iter::once(jobs::this_program())
            .chain(own().skip(1))
            .collect(),
        _ => own().collect(),
    };
    Ok(Job {
        name: suite.name.to_owned(),
        load: suite.load,
        limit: 60 * suite.limit,
        words,
        environment,
    })
}

/// Returns the command line of a libtest program, whose suite names a number of threads and then
/// filters; without a number it uses as many threads as there are cores.
fn libtest(program: String, rest: &[&str], suite: &Suite, options: &Options) -> Vec<String> {
    let mut words = vec![program, "--quiet".to_owned(), "--show-output".to_owned()];
    if let Some(threads) = rest.first() {
        words.push(format!("--test-threads={threads}"));
    }
    words.extend(rest.iter().skip(1).map(|filter| (*filter).to_owned()));
    // Another suite runs these.
    let skipped: &[&str] = match suite.set {
        _ if !options.arguments.is_empty() => &[],
        Set::Check | Set::Test => &["--skip=privileged::", "--skip=nightly::"],
        Set::System => &["--skip=nightly::"],
        Set::Nightly => &[],
    };
    let more = skipped.iter().map(|word| (*word).to_owned());
    words.extend(more.chain(options.arguments.iter().cloned()));
    words
}

impl Outcome {
    /// Prints the relevant part of the output.
    fn show(&self) {
        println!("=== {}", self.ended.name);
        if self.results.failed > 0 {
            print!("{}", self.ended.output);
        }
        for line in &self.results.said {
            println!("  {line}");
        }
        println!("{}", self.line());
    }

    fn line(&self) -> String {
        let Outcome { ended, results } = self;
        format!(
            "=== {}: {} passed, {} failed, {} skipped, {} s, {} s of a processor",
            ended.name, results.passed, results.failed, results.skipped, ended.seconds, ended.busy
        )
    }
}

/// Adjusts the results of a suite to its exit status: a suite that failed for another reason than a
/// test has failed, and so has one that ran no test.
fn judged(mut results: Results, status: ExitStatus, name: &str) -> Results {
    if results.failed == 0 && !status.success() {
        results.failed = 1;
        results.bad.push(format!("{name} ended with {status}"));
    } else if results.failed == 0 && results.passed + results.skipped == 0 {
        results.failed = 1;
        results.bad.push(format!("{name} ran no test"));
    }
    results
}

/// Script that checks the syntax of every script.
const SYNTAX: &str = r#"find tests packaging .ci -type f | while read -r file; do
  ! head -n 1 "$file" | grep -qa '^#!.*bash$' || bash -n "$file" || exit 1
done"#;

/// Checks the formatting, the lints of the last build of the tests, and scripts. Prints the sums;
/// returns whether all checks passed.
pub fn style() -> Result<bool> {
    let checks = [
        vec!["cargo", "fmt", "--all", "--check"],
        vec!["bash", "-c", SYNTAX],
    ];
    let built = fs::read_to_string(jobs::log("tests"))?;
    let warnings = Programs::read(&built).warnings.len();
    let mut failed = usize::from(warnings > 0);
    if warnings > 0 {
        println!("FAILED lints: {warnings} warnings, which the build of the tests shows");
    }
    for words in &checks {
        let status = Command::new(words[0])
            .args(&words[1..])
            .current_dir(repository())
            .status()?;
        if status.success() {
            println!("ok {}", words.join(" "));
        } else {
            println!("FAILED {}", words.join(" "));
            failed += 1;
        }
    }
    let all = checks.len() + 1;
    println!("style: {} passed, {failed} failed", all - failed);
    Ok(failed == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn names_are_unique_and_every_directory_of_tests_is_a_suite() {
        let mut names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for entry in fs::read_dir(repository().join("tests")).expect("tests") {
            let entry = entry.expect("an entry");
            if entry.path().join("main.rs").exists() {
                let name = entry.file_name().into_string().expect("plain");
                assert!(names.contains(&name.as_str()), "{name} is not a suite");
            }
        }
    }

    #[test]
    fn a_suite_that_fails_without_a_failed_test_or_runs_none_has_failed() {
        let ok = ExitStatus::from_raw(0);
        let bad = ExitStatus::from_raw(1 << 8);
        let with = |passed, failed| Results {
            passed,
            failed,
            ..Results::default()
        };
        assert_eq!(judged(with(3, 0), ok, "x").failed, 0);
        assert_eq!(judged(with(3, 0), bad, "x").failed, 1);
        assert_eq!(judged(with(0, 0), ok, "x").failed, 1);
        assert_eq!(judged(with(3, 2), bad, "x").failed, 2);
    }
}
