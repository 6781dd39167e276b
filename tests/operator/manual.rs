//! The manual pages are written by hand; nothing that the program has may be
//! missing from them, and nothing be in them that it has not.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use again::cli::Cli;
use clap::CommandFactory;

use crate::bench::repository;

const PAGES: [&str; 2] = ["man/again.8", "man/again.toml.5"];

fn page(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).expect("a manual page")
}

fn source(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).expect("source")
}

/// Lines by their heading: `.Sh`, or `.Sh` and `.Ss`.
fn parts(page: &str) -> BTreeMap<String, Vec<&str>> {
    let mut parts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut section = String::new();
    let mut heading = String::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix(".Sh ") {
            section = name.to_owned();
            heading = section.clone();
        } else if let Some(name) = line.strip_prefix(".Ss ") {
            heading = format!("{section}/{name}");
        } else {
            parts.entry(heading.clone()).or_default().push(line);
        }
    }
    parts
}

/// The flags of `.It Fl` lines, as they are typed.
fn flags(lines: &[&str]) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for line in lines.iter().filter_map(|line| line.strip_prefix(".It ")) {
        let words: Vec<&str> = line.split(' ').collect();
        for pair in words.windows(2).filter(|pair| pair[0] == "Fl") {
            flags.insert(format!("-{}", pair[1]));
        }
    }
    // The end of options, before a command.
    flags.remove("--");
    flags
}

/// A command's own flags, as they are typed.
fn clap_flags(command: &clap::Command, global: bool) -> BTreeSet<String> {
    let mut flags = BTreeSet::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
        let everywhere =
            arg.is_global_set() || ["help", "version"].contains(&arg.get_id().as_str());
        if everywhere == global {
            flags.extend(arg.get_long().map(|long| format!("--{long}")));
            flags.extend(arg.get_short().map(|short| format!("-{short}")));
        }
    }
    flags
}

#[test]
fn every_command_and_every_flag_and_none_else() {
    let text = page("man/again.8");
    let parts = parts(&text);
    let mut command = Cli::command();
    command.build();
    let subcommands: BTreeSet<String> = command
        .get_subcommands()
        .map(|c| format!("COMMANDS/again {}", c.get_name()))
        .collect();
    let documented: BTreeSet<String> = parts
        .keys()
        .filter(|name| name.starts_with("COMMANDS/"))
        .cloned()
        .collect();
    // `again` alone is `again run`, and `explain` takes the options of `run`.
    assert_eq!(documented, subcommands);
    assert_eq!(
        flags(&parts["OPTIONS FOR EVERY COMMAND"]),
        clap_flags(&command, true)
    );
    let run = clap_flags(command.find_subcommand("run").expect("run"), false);
    assert_eq!(clap_flags(&command, false), run);
    for sub in command.get_subcommands() {
        let mut real = clap_flags(sub, false);
        if sub.get_name() == "explain" {
            assert!(real.is_superset(&run));
            real.retain(|flag| !run.contains(flag));
        }
        assert_eq!(
            flags(&parts[&format!("COMMANDS/again {}", sub.get_name())]),
            real,
            "{}",
            sub.get_name()
        );
        let synopsis = parts["SYNOPSIS"].iter().any(|line| {
            line.split(' ')
                .collect::<Vec<_>>()
                .windows(2)
                .any(|pair| pair == ["Cm", sub.get_name()])
                || *line == format!(".Cm {}", sub.get_name())
        });
        assert!(synopsis, "{} is not in the synopsis", sub.get_name());
    }
}

#[test]
fn every_exit_status_and_none_else() {
    let source = source("src/exit.rs");
    let mut real: BTreeSet<String> = source
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter_map(|line| Some(line.split_once(" = ")?.1.to_owned()))
        .collect();
    if source.contains("pub const BY_SIGNAL: i32 = 128;") {
        real.insert("128+n".to_owned());
    }
    let text = page("man/again.8");
    let documented: BTreeSet<String> = parts(&text)["EXIT STATUS"]
        .iter()
        .filter_map(|line| line.strip_prefix(".It "))
        .map(str::to_owned)
        .collect();
    assert!(real.len() > 3);
    assert_eq!(documented, real);
}

/// The words of a text that begin with AGAIN_.
fn variables(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'))
        .filter(|word| word.starts_with("AGAIN_") && word.len() > 6)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_environment_variable_and_none_else() {
    let real: BTreeSet<String> = ["src/config.rs", "src/log.rs"]
        .iter()
        .flat_map(|name| {
            let text = source(name);
            let code = text.split("#[cfg(test)]").next().expect("code");
            let code = code.lines().filter(|line| !line.trim().starts_with("//!"));
            variables(&code.collect::<Vec<_>>().join("\n"))
        })
        .collect();
    let text = page("man/again.8");
    let documented: BTreeSet<String> = parts(&text)["ENVIRONMENT"]
        .iter()
        .filter(|line| line.starts_with(".It Ev"))
        .flat_map(|line| variables(line))
        .collect();
    assert_eq!(documented, real);
}

#[test]
fn every_key_of_the_settings_and_none_else() {
    let source = source("src/config.rs");
    let list = source.split("const KEYS").nth(1).expect("the keys");
    let list = list.split("];").next().expect("their end");
    let real: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    let text = page("man/again.toml.5");
    let parts = parts(&text);
    let documented: BTreeSet<&str> = parts["KEYS"]
        .iter()
        .filter_map(|line| line.strip_prefix(".It Ic "))
        .collect();
    assert!(real.len() > 10);
    assert_eq!(documented, real);
}

/// What `mandoc -T lint` says, but for what depends on the machine's other pages.
#[test]
fn mandoc_has_nothing_to_say() {
    for name in PAGES {
        let output = Command::new("mandoc")
            .args(["-T", "lint", "-W", "all"])
            .arg(repository().join(name))
            .output()
            .expect("mandoc, of the Debian package of that name");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("referenced manual not found"))
            .collect();
        assert!(said.is_empty(), "{said:#?}");
    }
}

#[test]
fn fits_eighty_columns() {
    for name in PAGES {
        let output = Command::new("mandoc")
            .args(["-T", "utf8", "-O", "width=78"])
            .arg(repository().join(name))
            .output()
            .expect("mandoc");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.lines().count() > 60, "{text}");
        for line in text.lines() {
            // Overstriking is how bold and underlined text is written.
            let mut shown = String::new();
            for c in line.chars() {
                if c == '\u{8}' {
                    shown.pop();
                } else {
                    shown.push(c);
                }
            }
            assert!(shown.chars().count() <= 80, "{name}: {shown}");
        }
    }
}
