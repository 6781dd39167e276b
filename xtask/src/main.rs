//! Tasks for the sources of again.

/// Benchmarks and their tables.
mod bench;
/// Rules that the sources keep.
mod checks;
/// Suites of tests.
mod test;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

/// What is done to the sources of again, and with them
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Run suites of tests; the last line counts the tests
    Test(test::Options),
    /// Check formatting, the lints of the last build and the syntax of scripts
    #[command(hide = true)]
    Style,
    /// Run a command, and end everything that it started
    #[command(hide = true)]
    Guard {
        /// The time limit in seconds
        limit: u32,
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Measure, and write the tables of doc/numbers; half an hour on an idle machine
    Bench(bench::Options),
    /// Write doc/numbers/counts: the instructions of a request, of status and of a waiter
    Counts,
    /// Count the lines of code in src, layer by layer
    Lines,
    /// Write the completions for bash, zsh and fish, after a change to the command line
    Completions,
    /// Compare the crates with the advisories in the checkout that ADVISORY_DB names
    Advisories,
}

fn main() -> ExitCode {
    let task = Task::parse();
    if let Task::Guard { limit, words } = &task {
        return test::guard::run(*limit, words).map_or_else(failure, ExitCode::from);
    }
    match run(&task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => failure(e),
    }
}

/// Runs the tests that compare files with their expected content; with this variable they write
/// them.
fn write(variable: &str, programs: &[&str]) -> Result<bool> {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "--workspace"]);
    for program in programs {
        command.args(["--test", program]);
    }
    let filters = ["--", "completion", "instructions"];
    succeeds(command.args(filters).env(variable, "1"))
}

/// Runs a command in the root of the repository; returns whether it succeeds.
fn succeeds(command: &mut Command) -> Result<bool> {
    let status = command.current_dir(repository()).status();
    Ok(status.with_context(|| format!("{command:?}"))?.success())
}

fn failure(e: anyhow::Error) -> ExitCode {
    eprintln!("cargo xtask: {e:#}");
    ExitCode::FAILURE
}

/// Runs a task; returns whether it succeeded.
fn run(task: &Task) -> Result<bool> {
    match task {
        Task::Test(options) => return test::test(options),
        Task::Style => return test::style(),
        Task::Guard { .. } => unreachable!("main runs it"),
        Task::Counts => return write("AGAIN_WRITE_COUNTS", &["counts"]),
        Task::Bench(options) => bench::bench(options)?,
        Task::Lines => checks::lines::show(),
        Task::Completions => return write("AGAIN_WRITE_COMPLETIONS", &["operator", "manual"]),
        // The script reports it if no advisories were checked.
        Task::Advisories => return succeeds(Command::new("tests/tools/deny").arg("advisories")),
    }
    Ok(true)
}

/// Returns the root of the repository.
fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("a parent").to_owned()
}
