//! What is done to the sources, and with them.

/// What is known against the crates of others.
mod advisories;
/// Benchmarks and their tables.
mod bench;
mod completions;
/// Counts of instructions.
mod counts;
/// What the sources themselves have to keep to.
mod house;
/// Rooms of tests.
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// What is done to the sources of again, and with them
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Run rooms of tests; the last line counts them
    Test(test::Options),
    /// Check formatting, lints and the syntax of scripts
    Style,
    /// Measure, and write the tables of doc/numbers; half an hour on an idle machine
    Bench(bench::Options),
    /// Count the instructions of a request, of status and of a waiter, and hold them against doc/numbers/counts
    Counts {
        /// Keep today's counts instead
        #[arg(long)]
        write: bool,
    },
    /// Count the lines of code in src, room by room
    Lines,
    /// Write the completions for bash, zsh and fish, after a change to the command line
    Completions,
    /// Renew packaging/advisories.toml from a checkout of the RustSec database
    Advisories {
        /// The checkout of https://github.com/rustsec/advisory-db
        directory: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(&Task::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("cargo xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does it; whether all was well.
fn run(task: &Task) -> Result<bool> {
    match task {
        Task::Test(options) => return test::test(options),
        Task::Style => return test::style(),
        Task::Counts { write } => return counts::counts(*write),
        Task::Bench(options) => bench::bench(options)?,
        Task::Lines => house::lines::show(),
        Task::Completions => completions::write()?,
        Task::Advisories { directory } => advisories::renew(directory)?,
    }
    Ok(true)
}

/// The root of the repository.
fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("a parent").to_owned()
}
