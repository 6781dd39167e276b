//! What is done to the sources, and with them.

mod completions;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Parser;

/// What is done to the sources of again, and with them.
#[derive(Parser)]
enum Task {
    /// Write the completions for bash, zsh and fish, after a change to the command line.
    Completions,
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Completions => completions::write(),
    }
}

/// The root of the repository.
fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("a parent").to_owned()
}
