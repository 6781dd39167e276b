//! The completions for bash, zsh and fish. They are files, so that the generator is not part of the program.
//!
//! Those of the second program are written by its test of them: this one links none of it.

use anyhow::{Context, Result, ensure};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::repository;

/// Writes the files in completions/, after a change to the command line; a test says when that was forgotten.
pub fn write() -> Result<()> {
    for (name, text) in files() {
        let path = repository().join("completions").join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let fleet = ["test", "--quiet", "--package", "again-fleet"];
    let test = ["--test", "manual", "the_completions_are_fresh"];
    let status = std::process::Command::new(env!("CARGO"))
        .args(fleet)
        .args(test)
        .env("AGAIN_WRITE_COMPLETIONS", "1")
        .current_dir(repository())
        .status()
        .context("cannot start cargo")?;
    ensure!(
        status.success(),
        "the completions of again-fleet were not written"
    );
    Ok(())
}

/// Each file, under the name that its shell looks for.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let shells = [
        ("again.bash", Shell::Bash),
        ("_again", Shell::Zsh),
        ("again.fish", Shell::Fish),
    ];
    shells
        .into_iter()
        .map(|(name, shell)| {
            let mut text = Vec::new();
            let mut command = again::cli::Cli::command();
            clap_complete::generate(shell, &mut command, "again", &mut text);
            if shell == Shell::Zsh {
                text = commands_first(&text);
            }
            (name, text)
        })
        .collect()
}

/// `again -- COMMAND` makes the generator for zsh take the first word for COMMAND,
/// and the second for a command of ours; it is the first that is one.
fn commands_first(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("'::command -- "))
        .collect();
    assert_eq!(
        kept.len() + 1,
        text.lines().count(),
        "the generator has changed"
    );
    let mut text = kept.join("\n").replace("$line[2]", "$line[1]");
    text.push('\n');
    text.into_bytes()
}

#[cfg(test)]
#[test]
fn the_files_are_fresh() {
    for (name, text) in files() {
        let file = std::fs::read(repository().join("completions").join(name)).unwrap_or_default();
        assert!(
            file == text,
            "completions/{name} is not what the program has; run: cargo xtask completions"
        );
    }
}
