//! Writes the completions for bash, zsh and fish into a directory.
//!
//! `cargo run --example completions -- completions`, after a change to the command
//! line; a test says when that was forgotten. They are files, so that the generator
//! is not part of the program.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

fn main() {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: completions DIRECTORY");
        std::process::exit(2);
    };
    for (name, text) in files() {
        let path = Path::new(&directory).join(name);
        if let Err(e) = std::fs::write(&path, text) {
            eprintln!("cannot write {}: {e}", path.display());
            std::process::exit(1);
        }
    }
}

/// Each file, under the name that its shell looks for.
pub fn files() -> Vec<(&'static str, Vec<u8>)> {
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
