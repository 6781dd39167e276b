use std::process::Command;

use again_rig::{Ended, answer, repository};

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
