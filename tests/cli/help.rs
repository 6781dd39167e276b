use std::collections::BTreeSet;

use again::cli::Cli;
use clap::CommandFactory;

use again_test_support::Scratch;

const OF_RUN: [&str; 11] = [
    "--delta",
    "--jitter",
    "--start-timer-now",
    "--name",
    "--max-runs",
    "--window",
    "--on-cap",
    "--agent-catalog-run-lockfile",
    "--agent-disabled-lockfile",
    "--lastrunfile",
    "--pidfile",
];
const GLOBAL: [&str; 4] = ["--state-dir", "--log-dir", "--config", "--verbose"];

/// The commands there are.
fn all_commands() -> BTreeSet<String> {
    let cli = Cli::command();
    let names = cli.get_subcommands().map(|command| command.get_name());
    names.map(str::to_owned).collect()
}

/// The commands that the help lists.
fn commands(help: &str) -> BTreeSet<String> {
    let (_, rest) = help
        .split_once("\nCommands:\n")
        .expect("a list of commands");
    rest.lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The long options that a help names at the beginning of a line.
fn options(help: &str) -> BTreeSet<String> {
    help.lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
        .filter_map(|line| {
            line.split([' ', ',', '.'])
                .find(|word| word.starts_with("--"))
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_and_option_is_in_the_help() {
    let scratch = Scratch::new();
    let help = scratch.again_well(&["--help"]);
    let listed = commands(&help);
    assert_eq!(listed, all_commands());
    let named = options(&help);
    for option in OF_RUN.iter().chain(&GLOBAL) {
        assert!(named.contains(*option), "{option} is not in {named:?}");
    }
    // What `again fleet` takes is the other program's.
    for command in listed.iter().filter(|command| *command != "fleet") {
        let help = scratch.again_well(&[command, "--help"]);
        let first = help.lines().next().expect("a line");
        assert!(
            first.starts_with(char::is_uppercase) && first.len() > 10 && !first.ends_with('.'),
            "{command}: {first}"
        );
        assert!(help.contains(&format!("Usage: again {command}")), "{help}");
        let named = options(&help);
        for option in GLOBAL {
            assert!(
                named.contains(option),
                "{command}: {option} is not in {named:?}"
            );
        }
        if command == "run" || command == "explain" {
            for option in OF_RUN {
                assert!(
                    named.contains(option),
                    "{command}: {option} is not in {named:?}"
                );
            }
        }
        // The short help is a part of the long one.
        let short = scratch.again_well(&[command, "-h"]);
        assert!(options(&short).is_subset(&named), "{command}");
    }
    assert!(options(&scratch.again_well(&["stop", "--help"])).contains("--run"));
    assert!(options(&scratch.again_well(&["status", "--help"])).contains("--json"));
    assert!(options(&scratch.again_well(&["explain", "--help"])).contains("--pid"));
    println!("{} commands", listed.len());
}

/// Every option of the help is one that is taken, so none of them is a slip of the pen.
#[test]
fn every_option_of_the_help_works() {
    let scratch = Scratch::new();
    let value = |option: &str| match option {
        "--start-timer-now" | "--json" | "--run" | "--this-run" | "--verbose" | "--help"
        | "--version" | "--follow" => None,
        "--delta" | "--jitter" | "--window" | "--timeout" | "--retry" => Some("1h".to_owned()),
        "--until" => Some("requests".to_owned()),
        "--max-runs" | "--max-runs-total" => Some("5".to_owned()),
        "--on-cap" => Some("skip".to_owned()),
        "--name" => Some("n".to_owned()),
        "--pid" => Some(std::process::id().to_string()),
        "--config" => Some(scratch.at("again.toml")),
        "--state-dir" | "--log-dir" => Some(scratch.at("elsewhere")),
        _ => Some(scratch.at("none")),
    };
    let mut count = 0;
    for command in all_commands().iter().filter(|one| *one != "fleet") {
        let command = command.as_str();
        for option in options(&scratch.again_well(&[command, "--help"])) {
            // It goes on until somebody ends it.
            if option == "--watch" {
                continue;
            }
            let value = value(&option);
            let mut words = vec![command, option.as_str()];
            words.extend(value.as_deref());
            if command == "run" || command == "explain" {
                words.extend(
                    ["--delta", "1h", "--", "/bin/true"]
                        .into_iter()
                        .skip(if option == "--delta" { 2 } else { 0 }),
                );
            }
            if option == "--retry" {
                words.extend(["--timeout", "1h"]);
            }
            if command == "converge" {
                words.extend(["--", "/bin/true"]);
            }
            let done = scratch.again(&words);
            let expected: &[i32] = match (command, option.as_str()) {
                ("status", _) => &[0, 3],
                // There is no such chain, no such target, and no output of any rerun.
                ("history", "--chain") | ("reset", "--target") | ("log", _) => &[0, 1],
                _ => &[0],
            };
            let code = done.code.expect("not killed");
            assert!(expected.contains(&code), "{words:?}: {done:?}");
            assert!(!done.err.contains("usage"), "{words:?}: {done:?}");
            scratch.again_well(&["enable"]);
            count += 1;
        }
    }
    scratch.again_well(&["stop"]);
    scratch.again_well(&["stop", "--state-dir", &scratch.at("elsewhere")]);
    println!("{count} uses of an option");
}

#[test]
fn global_options_work_before_and_after_the_verb() {
    let scratch = Scratch::new();
    let elsewhere = scratch.at("elsewhere");
    for words in [
        &["status", "--state-dir", &elsewhere][..],
        &["--state-dir", &elsewhere, "status"],
        &["-v", "status", "--state-dir", &elsewhere],
        &[
            "--config",
            &scratch.at("again.toml"),
            "--state-dir",
            &elsewhere,
            "-vv",
            "status",
        ],
    ] {
        let done = scratch.again(words);
        assert_eq!(done.code, Some(3), "{words:?}: {done:?}");
        assert!(done.out.contains(&elsewhere), "{words:?}: {done:?}");
    }
    for words in [
        &[
            "--state-dir",
            &elsewhere,
            "run",
            "--delta",
            "1h",
            "--",
            "/bin/true",
        ][..],
        &["--state-dir", &elsewhere, "stop"],
        &[
            "-v",
            "--state-dir",
            &elsewhere,
            "explain",
            "--",
            "/bin/true",
        ],
    ] {
        let done = scratch.again(words);
        assert_eq!(done.code, Some(0), "{words:?}: {done:?}");
    }
    assert!(scratch.waiters().is_empty());
}

#[test]
fn the_version_is_the_packages() {
    let scratch = Scratch::new();
    let expected = format!("again {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(scratch.again_well(&["--version"]), expected);
    assert_eq!(scratch.again_well(&["-V"]), expected);
}

/// Without a verb `run` is meant, with the flags of the original.
#[test]
fn bare_again_is_a_request() {
    let scratch = Scratch::new();
    for words in [
        &["--delta", "1h", "--", "/bin/true"][..],
        &["--start-timer-now", "--delta", "1h", "--", "/bin/true"],
        &["--delta=3600", "--name", "x", "--", "/bin/true"],
    ] {
        let done = scratch.again(words);
        assert_eq!(
            (
                done.code,
                again_test_support::assert_line(&done.out).as_str()
            ),
            (Some(0), "scheduled"),
            "{words:?}"
        );
    }
    assert_eq!(scratch.timers().len(), 2);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Nothing is done, something is said on standard error, and the status is 2.
#[test]
fn usage_errors() {
    let scratch = Scratch::new();
    let cases: [&[&str]; 26] = [
        &["--frobnicate"],
        &["frobnicate"],
        &["run", "word"],
        &["run", "--delta"],
        &["run", "--delta", "x", "--", "/bin/true"],
        &["run", "--delta", "-1", "--", "/bin/true"],
        &["run", "--delta", "1.5", "--", "/bin/true"],
        &["run", "--delta", "", "--", "/bin/true"],
        &["run", "--delta", "99999999999999999999", "--", "/bin/true"],
        &["run", "--jitter", "soon", "--", "/bin/true"],
        &["run", "--max-runs", "many", "--", "/bin/true"],
        &["run", "--max-runs", "-1", "--", "/bin/true"],
        &["run", "--on-cap", "explode", "--", "/bin/true"],
        &["run", "--window", "1w", "--", "/bin/true"],
        &["run", "--name"],
        &["run", "--delta", "1", "--delta", "2", "--", "/bin/true"],
        &["status", "--xml"],
        &["status", "word"],
        &["stop", "--frob"],
        &["explain", "--pid", "x"],
        &["resume", "word"],
        &["wait"],
        &["run", "--window", "0", "--", "/bin/true"],
        &["run", "--", ""],
        &["run", "--", "", "word"],
        &["history", "-n", "0"],
    ];
    for words in cases {
        let done = scratch.again(words);
        assert_eq!(done.code, Some(2), "{words:?}: {done:?}");
        assert_eq!(done.out, "", "{words:?}");
        assert!(
            done.err.starts_with("again: error: "),
            "{words:?}: {done:?}"
        );
        assert_eq!(done.err.lines().count(), 1, "{words:?}: {done:?}");
    }
    assert!(!scratch.path("state").exists());
    // What was wrong is named.
    let done = scratch.again(&["run", "--delta", "soon", "--", "/bin/true"]);
    assert!(
        done.err.contains("'soon'") && done.err.contains("--delta"),
        "{done:?}"
    );
    let done = scratch.again(&["run", "--on-cap", "explode"]);
    assert!(
        ["fail", "wait", "skip"]
            .iter()
            .all(|word| done.err.contains(word)),
        "{done:?}"
    );
    // In words for people, and with the word that was perhaps meant.
    for (words, wanted) in [
        (
            &["statsu"][..],
            "there is no command 'statsu'; did you mean 'status'?\n",
        ),
        (
            &["--state-dir", "/x", "statsu"],
            "there is no command 'statsu'; did you mean 'status'?\n",
        ),
        (&["-v", "statsu"], "did you mean 'status'?"),
        (
            &["reset", "nosuch"],
            "unexpected argument 'nosuch' found; see",
        ),
        (&["frobnicate"], "there is no command 'frobnicate'; see"),
        (&["status", "--jsn"], "a similar argument exists: '--json'"),
        (
            &["run", "--max-runs", "many", "--", "/bin/true"],
            "for '--max-runs <N>': write a whole number",
        ),
        (&["explain", "--pid", "x"], "write a whole number"),
        (&["history", "-n", "0"], "write a whole number"),
    ] {
        let done = scratch.again(words);
        assert!(done.err.contains(wanted), "{words:?}: {done:?}");
    }
    println!("{} usage errors", cases.len());
}

/// Durations are Puppet's.
#[test]
fn durations() {
    let scratch = Scratch::new();
    for (given, seconds) in [
        ("0", 0),
        ("120", 120),
        ("90s", 90),
        ("2m", 120),
        ("1h", 3600),
        ("1d", 86400),
        ("007", 7),
    ] {
        scratch.again_well(&[
            "run",
            "--delta",
            given,
            "--jitter",
            "2h",
            "--",
            "/bin/true",
            given,
        ]);
        let timer = &scratch.timers()[0];
        assert_eq!(
            timer["delta_seconds"].as_f64(),
            Some(f64::from(seconds)),
            "{given}"
        );
        assert!(timer["jitter_seconds"].as_f64().expect("a number") <= 7200.0);
        scratch.again_well(&["stop"]);
    }
    scratch.assert_nothing_left();
}
