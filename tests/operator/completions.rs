use std::process::Command;

use again::cli::Cli;
use again_test_support::{Ended, answer, repository};
use clap::CommandFactory;
use clap_complete::Shell;

fn shell(program: &str, words: &[&str]) -> Ended {
    // fish makes directories in it.
    let home = tempfile::tempdir().expect("a directory");
    answer(
        Command::new(program)
            .args(words)
            .current_dir(repository())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm")
            .env("HOME", home.path()),
    )
}

#[test]
fn bash_completes_commands_options_and_values() {
    let complete = |words: &str| {
        let script = format!(
            "source /usr/share/bash-completion/bash_completion && source completions/again.bash && \
             COMP_WORDS=({words}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) && \
             _again again \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\" && printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let said = shell("bash", &["--norc", "-c", &script]);
        assert_eq!((said.status(), said.err.as_str()), (0, ""), "{said:?}");
        said.out
    };
    assert_eq!(complete("again sta"), "status\n");
    assert!(complete("again status --").contains("--json\n"));
    assert_eq!(complete("again run --on-cap sk"), "skip\n");
}

#[test]
fn zsh_loads_its_function_and_completes() {
    // compinit finds the file by its first line; a terminal is needed to complete.
    let script = "zmodload zsh/zpty || exit 9
zpty shell 'zsh -f -i'
expect() { local all='' piece; for n in {1..200}; do zpty -r -t shell piece && all+=$piece; [[ $all == *$1* ]] && return 0; sleep 0.05; done; print -r -- \"no $1 in: $all\"; return 1 }
zpty -w shell 'PS1=; fpath=(completions $fpath); autoload -Uz compinit && compinit -u -D; print lo''aded $_comps[again]'
expect 'loaded _again' || exit 1
zpty -n -w shell $'again stat\\t--js\\t'
expect ' --json' || exit 2
zpty -d shell";
    let said = shell("zsh", &["-f", "-c", script]);
    assert_eq!(said.status(), 0, "{said:?}");
}

#[test]
fn fish_completes_commands_options_and_values() {
    let complete = |line: &str| {
        let script = format!("source completions/again.fish; complete --do-complete '{line}'");
        let said = shell("fish", &["--no-config", "--private", "-c", &script]);
        assert_eq!(said.status(), 0, "{said:?}");
        said.out
    };
    assert!(complete("again sta").starts_with("status\tShow what is pending"));
    assert!(complete("again status --j").starts_with("--json\t"));
    assert!(
        complete("again run --on-cap s").starts_with("skip"),
        "{}",
        complete("again run --on-cap s")
    );
}

/// With AGAIN_WRITE_COMPLETIONS the files are written: `cargo xtask completions` sets it.
#[test]
fn completion_files_have_every_command_and_option() {
    for (name, shell) in [
        ("again.bash", Shell::Bash),
        ("_again", Shell::Zsh),
        ("again.fish", Shell::Fish),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "again", &mut text);
        if shell == Shell::Zsh {
            text = commands_first(&text);
        }
        let path = repository().join("completions").join(name);
        if std::env::var_os("AGAIN_WRITE_COMPLETIONS").is_some() {
            std::fs::write(&path, &text).expect("written");
        }
        assert!(
            std::fs::read(&path).unwrap_or_default() == text,
            "completions/{name} is not what the program has; run: cargo xtask completions"
        );
    }
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
