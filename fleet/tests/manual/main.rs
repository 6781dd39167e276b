//! Manual pages are written by hand. They must describe everything that the program has, and
//! nothing else. The completions are files too.

use std::collections::BTreeSet;
use std::path::Path;

use again_fleet::cli::Cli;
use again_fleet::settings::{self, Flags, KEYS, Settings, Surroundings, VARIABLES};
use again_fleet::wire::slot::MOST_SLOTS;
use again_test_support::manual::{commands, flags, flags_of, parts, plain};
use clap::CommandFactory;
use clap_complete::Shell;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../man")
        .join(name);
    std::fs::read_to_string(path).expect("a manual page")
}

#[test]
fn every_command_and_every_flag_and_none_else() {
    let text = page("again-fleet.8");
    let parts = parts(&text);
    let mut command = Cli::command();
    command.build();
    let real = command
        .get_subcommands()
        .map(|c| format!("again-fleet {}", c.get_name()));
    assert_eq!(commands(&parts), real.collect());
    assert_eq!(
        flags(&parts["OPTIONS FOR EVERY COMMAND"]),
        flags_of(&command, true)
    );
    for sub in command.get_subcommands() {
        let name = sub.get_name();
        let documented = flags(&parts[&format!("COMMANDS/again-fleet {name}")]);
        assert_eq!(documented, flags_of(sub, false), "{name}");
        assert!(
            parts["SYNOPSIS"].contains(&format!(".Cm {name}").as_str()),
            "{name} is not in the synopsis"
        );
    }
}

/// Completions are written if AGAIN_WRITE_COMPLETIONS is set, as `cargo xtask completions` does.
#[test]
fn the_completions_are_fresh() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../completions");
    for (name, shell) in [
        ("again-fleet.bash", Shell::Bash),
        ("_again-fleet", Shell::Zsh),
        ("again-fleet.fish", Shell::Fish),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "again-fleet", &mut text);
        let path = directory.join(name);
        if std::env::var_os("AGAIN_WRITE_COMPLETIONS").is_some() {
            std::fs::write(&path, &text).expect("written");
        }
        let file = std::fs::read(&path).unwrap_or_default();
        assert!(
            file == text,
            "completions/{name} is not what the program has; run: cargo xtask completions"
        );
    }
}

#[test]
fn every_environment_variable_and_none_else() {
    let text = page("again-fleet.8");
    let parts = parts(&text);
    let items = parts["ENVIRONMENT"]
        .iter()
        .filter_map(|line| line.strip_prefix(".It Ev "));
    let documented: BTreeSet<&str> = items.flat_map(|line| line.split(" , ")).collect();
    let real = VARIABLES
        .iter()
        .map(|(_, name)| *name)
        .chain(["AGAIN_FLEET_CONFIG"]);
    assert_eq!(documented, real.collect());
}

#[test]
fn every_key_of_the_settings_and_none_else() {
    let text = page("again-fleet.toml.5");
    let parts = parts(&text);
    let items = parts["KEYS"]
        .iter()
        .filter_map(|line| line.strip_prefix(".It Ic "));
    let documented: Vec<&str> = items.collect();
    // The keys are in the order of the program's own messages.
    assert_eq!(documented, KEYS);
}

/// Settings from a file with this content.
fn with(file: &str) -> Result<Settings, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("again-fleet.toml");
    std::fs::write(&path, file).expect("written");
    let flags = Flags {
        config: Some(path),
        ..Flags::default()
    };
    let around = Surroundings {
        environment: Vec::new(),
        root: directory.path().to_owned(),
        program: "/usr/bin/again-fleet".into(),
    };
    settings::settings(&flags, &around).map_err(|e| e.to_string())
}

#[test]
fn every_default_is_the_programs() {
    let set = with("").expect("defaults");
    let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let text = page("again-fleet.toml.5");
    let keys = plain(&parts(&text)["KEYS"]).replace(" .", ".");
    let (backend, trust) = (name(&set.backend), name(&set.trust));
    let run_cmd: Vec<&str> = set
        .run_cmd
        .iter()
        .map(|word| word.to_str().expect("plain"))
        .collect();
    let [state, run, spool] =
        [&set.state_dir, &set.run_dir, &set.spool_dir].map(|path| path.display());
    for said in [
        format!(
            "backend What carries triggers between the nodes: {backend} version 3; the default or"
        ),
        format!("tls {} the default or", set.tls),
        format!(
            "namespace The name of the fleet, by default {} :",
            set.namespace
        ),
        format!("trust Whose word is believed. {trust} the default :"),
        format!("The default is {}.", run_cmd.join(" ")),
        format!("in which run_cmd starts, by default {}.", set.cwd.display()),
        format!("ttl Duration, by default {} and at most 1d.", set.ttl),
        format!("skew Duration, by default {} and at most 1h.", set.skew),
        format!("spread Duration, by default {}ms.", set.spread.millis()),
        format!(
            "hop_limit Whole number, by default {} and at most 20.",
            set.hop_limit
        ),
        format!(
            "cap_share Whole number, by default {} and at most 100.",
            set.cap_share
        ),
        format!(
            "slots_limit Whole number, by default {} and at most {MOST_SLOTS}.",
            set.slots_limit
        ),
        format!("can be asked; {} by default.", set.slots_required),
        format!(
            "slots_max_wait Duration, by default {} and at most 1d.",
            set.slots_max_wait
        ),
        format!("state_dir Path, by default {state}."),
        format!("run_dir Path, by default {run}."),
        format!("spool_dir Path, by default {spool}."),
    ] {
        assert!(
            keys.contains(&said),
            "again-fleet.toml(5) lacks {said:?}: {keys}"
        );
    }
    assert!(set.endpoints.is_empty() && set.accept.is_none() && set.accept_for.is_empty());
    assert!(set.slots_group.is_none());
    assert!(set.operators.is_empty() && set.facts.is_empty());
    for (most, more) in [
        ("ttl = '1d'", "ttl = 86401"),
        ("skew = '1h'", "skew = 3601"),
        ("hop_limit = 20", "hop_limit = 21"),
        ("cap_share = 100", "cap_share = 101"),
        ("cap_share = 1", "cap_share = 0"),
        ("slots_limit = 100000", "slots_limit = 100001"),
        ("slots_max_wait = '1d'", "slots_max_wait = 86401"),
    ] {
        assert!(with(most).is_ok() && with(more).is_err(), "{more}");
    }

    let text = page("again-fleet.8");
    let manual = plain(&text.lines().collect::<Vec<_>>()).replace(" .", ".");
    let idle = match Cli::command().find_subcommand("executor").and_then(|take| {
        take.get_arguments()
            .find(|arg| arg.get_id() == "idle")
            .cloned()
    }) {
        Some(arg) => arg.get_default_values()[0]
            .to_str()
            .expect("plain")
            .replace('s', " seconds"),
        None => panic!("no --idle"),
    };
    for said in [
        format!("End when nothing has been handed over for so long; {idle} by default."),
        format!("by default {}.", settings::FILE),
        format!("The directory for state, by default {state}."),
        format!(".It Pa {state}/executor/ledger"),
        format!(".It Pa {run}/executor"),
    ] {
        assert!(manual.contains(&said), "again-fleet(8) lacks {said:?}");
    }
}

#[test]
fn the_example_can_be_used() {
    let text = page("again-fleet.toml.5");
    let example = parts(&text)["EXAMPLES"].clone();
    let lines = example
        .into_iter()
        .skip_while(|line| !line.starts_with(".Bd"))
        .skip(1)
        .take_while(|line| *line != ".Ed");
    let set = with(&lines.collect::<Vec<_>>().join("\n")).expect("the example");
    assert_eq!(
        (
            set.endpoints.len(),
            set.accept.map(|all| all.len()),
            set.accept_for.len()
        ),
        (3, Some(1), 1)
    );
}
