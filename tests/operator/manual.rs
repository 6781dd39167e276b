//! The manual pages are written by hand; nothing that the program has may be
//! missing from them, and nothing be in them that it has not.

use std::collections::BTreeSet;
use std::process::Command;

use again::cli::Cli;
use clap::CommandFactory;

use again_test_support::manual::{commands, flags, flags_of, parts, plain};
use again_test_support::repository;

const PAGES: [&str; 3] = ["man/again.8", "man/again-json.5", "man/again.toml.5"];

fn page(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).expect("a manual page")
}

fn source(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).expect("source")
}

#[test]
fn every_command_and_every_flag_and_none_else() {
    let text = page("man/again.8");
    let parts = parts(&text);
    let mut command = Cli::command();
    command.build();
    let subcommands: BTreeSet<String> = command
        .get_subcommands()
        .map(|c| format!("again {}", c.get_name()))
        .collect();
    // `again` alone is `again run`, and `explain` takes the options of `run`.
    assert_eq!(commands(&parts), subcommands);
    assert_eq!(
        flags(&parts["OPTIONS FOR EVERY COMMAND"]),
        flags_of(&command, true)
    );
    let run = flags_of(command.find_subcommand("run").expect("run"), false);
    assert_eq!(flags_of(&command, false), run);
    for sub in command.get_subcommands() {
        let mut real = flags_of(sub, false);
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
    let source = source("base/src/model/exit.rs");
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
    let real: BTreeSet<String> = ["src/config.rs", "base/src/sys/log.rs"]
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
    let real: BTreeSet<&str> = again::config::KEYS.iter().copied().collect();
    let text = page("man/again.toml.5");
    let parts = parts(&text);
    let documented: BTreeSet<&str> = parts["KEYS"]
        .iter()
        .filter_map(|line| line.strip_prefix(".It Ic "))
        .collect();
    assert!(real.len() > 10);
    assert_eq!(documented, real);
}

/// The settings where this file has all that is set.
fn settings(file: &str, uid: u32, home: &str) -> again::config::Settings {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("again.toml");
    std::fs::write(&path, file).expect("written");
    let global = again::cli::Global {
        config: Some(path),
        ..Default::default()
    };
    let around = again::config::Surroundings {
        uid,
        home: Some(home.into()),
        ..Default::default()
    };
    again::config::settings(&global, &Default::default(), &around).expect("settings")
}

#[test]
fn every_default_is_the_programs() {
    let defaults = settings("", 0, "/root");
    let others = settings("", 1000, "/home/u");
    let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let (runs, logs) = (defaults.cap.max_runs, defaults.logs.keep);
    let (on_cap, scope) = (name(&defaults.on_cap), name(&defaults.scope));
    let most = defaults.max_jitter;
    assert_eq!(defaults.jitter, None);
    let jitter = |delta| {
        let delta = again_base::model::Span::from_secs(delta);
        again_base::delay::jitter_range(delta, None, most, 1).secs()
    };
    let (quarter, least) = (120 / jitter(120), jitter(0));
    assert_eq!(quarter, 4);
    assert_eq!(defaults.cap.window.to_string(), "1h");
    let home = others.state_dir.strip_prefix("/home/u").expect("at home");
    let home = format!("~/{}", home.display());
    assert_eq!(others.log_dir, others.state_dir.join("log"));

    let text = page("man/again.toml.5");
    let parts = parts(&text);
    let keys = plain(&parts["KEYS"]);
    for said in [
        format!(
            "jitter Duration. A random wait of up to this much is added to each delta. The default is a quarter of delta, at least {least} s;"
        ),
        format!("max_jitter Duration, by default {}.", most.secs()),
        format!("max_runs Whole number, by default {runs}."),
        format!("window Duration, by default {} .", defaults.cap.window),
        format!("on_cap What to do when a cap is reached: {on_cap} refuse, exit 1; the default,"),
        format!("slots {} the default or", defaults.slots),
        format!(
            "save_environment {} the default or",
            defaults.save_environment
        ),
        format!("scope {scope} the default or"),
        format!(
            "state_dir Path, by default {}, for other users than root {home} .",
            defaults.state_dir.display()
        ),
        format!(
            "log_dir Path, by default {}, for other users than root log in the state directory.",
            defaults.log_dir.display()
        ),
        format!("keep_logs Whole number, by default {logs}."),
        format!(
            "max_log_size Size, by default {}M .",
            defaults.logs.each >> 20
        ),
        format!(
            "max_logs_size Size, by default {}M .",
            defaults.logs.all >> 20
        ),
        format!(
            "stuck What to do about a run that outlives its time (Puppet's runtimeout, or 2 h) and is in the way of a timer that is due: {} show it; the default or",
            name(&defaults.stuck)
        ),
    ] {
        assert!(
            keys.contains(&format!(".It Ic {said}")),
            "again.toml(5) lacks {said:?}: {keys}"
        );
    }

    let text = page("man/again.8");
    let manual = plain(&text.lines().collect::<Vec<_>>());
    let words = [
        "none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    ];
    for said in [
        format!(
            "at most {} reruns of a target start within any hour, unless another limit is set.",
            words[runs as usize]
        ),
        format!("The default is a quarter of delta, at least {least} s;"),
        format!("{on_cap} refuse, exit 1; the default,"),
        format!(
            ".It Pa {}/ State; for other users than root {home}/ .",
            defaults.state_dir.display()
        ),
        format!(
            ".It Pa {}/ The output of the newest {logs} reruns of each target,",
            defaults.log_dir.display()
        ),
    ] {
        assert!(manual.contains(&said), "again(8) lacks {said:?}");
    }

    let text = page("README.md");
    let readme = plain(&text.lines().collect::<Vec<_>>());
    for said in [
        format!(
            "at most {runs} reruns of a command within an hour (`max_runs`, `window` of the class)"
        ),
        format!("(`on_cap`: `{on_cap}`, "),
        format!("a random jitter of up to a quarter of it, or {least} s."),
        format!("output is in `{}`.", defaults.log_dir.display()),
    ] {
        assert!(readme.contains(&said), "README.md lacks {said:?}");
    }

    let text = page("puppet-module/manifests/again.pp");
    let class = plain(&text.lines().collect::<Vec<_>>());
    for (key, said) in [
        (
            "jitter",
            format!("By default a quarter of the delta and at least {least} seconds."),
        ),
        (
            "max_jitter",
            format!("The program's default is {} seconds.", most.secs()),
        ),
        ("max_runs", format!("The program's default is {runs}.")),
        ("window", "The program's default is one hour.".to_owned()),
        ("on_cap", format!("The program's default is `{on_cap}`.")),
        (
            "wait_for_slot",
            format!("The program's default is {}.", defaults.slots),
        ),
        (
            "pending",
            format!(
                "has it after a reboot. By default {}.",
                defaults.save_environment
            ),
        ),
        (
            "logs",
            format!("number of logs to keep for each command. By default {logs}."),
        ),
        (
            "logs",
            format!(
                "beginning and end are kept. By default {}M.",
                defaults.logs.each >> 20
            ),
        ),
        (
            "logs",
            format!(
                "maximum size of all logs together. By default {}M.",
                defaults.logs.all >> 20
            ),
        ),
    ] {
        let mut of_key = class.split("@param ");
        let of_key = of_key.find(|text| text.split(' ').next() == Some(key));
        assert!(
            of_key.is_some_and(|text| text.contains(&said)),
            "the class lacks {said:?} of {key}"
        );
    }
}

/// What the sample does not call an example is what holds without it.
#[test]
fn every_default_of_the_sample_is_the_programs() {
    let text = page("packaging/again.toml");
    let (mut file, mut defaults) = (String::new(), 0);
    for part in text.split("\n\n") {
        let is_value = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
        let (values, words): (Vec<&str>, Vec<&str>) = part.lines().partition(is_value);
        if !plain(&words).to_lowercase().contains(" example") {
            defaults += values.len();
            file.extend(values.iter().map(|line| format!("{}\n", &line[1..])));
        }
    }
    assert!(defaults > 8, "{file}");
    let (sample, without) = (settings(&file, 0, "/root"), settings("", 0, "/root"));
    assert_eq!(sample, without, "{file}");
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
