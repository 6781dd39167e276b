//! What it means: flags before `AGAIN_*` before /etc/again.toml before defaults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::{Deserialize, Deserializer};

use crate::cli::{Global, Run};
use crate::model::{Bytes, Cap, OnCap, Span, Usage};
use crate::policy::cap;
use crate::puppet::paths::Paths;

/// Where settings are read from unless another file is named.
pub const FILE: &str = "/etc/again.toml";

/// Whether a waiter gets a systemd scope of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Where systemd runs and we are root.
    Auto,
    /// Nowhere.
    Never,
}

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The widest jitter; `None`: a quarter of delta, at least 2 s.
    pub jitter: Option<Span>,
    /// How wide the jitter may grow along a chain.
    pub max_jitter: Span,
    /// The cap.
    pub cap: Cap,
    /// What to do at the cap.
    pub on_cap: OnCap,
    /// Whether environments are kept on disk for the time after a reboot.
    pub save_environment: bool,
    /// Whether a waiter gets a systemd scope of its own.
    pub scope: Scope,
    /// What is run instead of a run's own command line.
    pub command: Option<Vec<OsString>>,
    /// Where state is kept.
    pub state_dir: PathBuf,
    /// Where the output of reruns is kept.
    pub log_dir: PathBuf,
    /// How many outputs are kept.
    pub keep_logs: u32,
    /// Puppet's own files, where an operator named them.
    pub paths: Paths,
}

/// A duration in the file: a whole number of seconds, or a string with a unit.
#[derive(Debug, Clone, Copy)]
struct Duration(Span);

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Duration;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("whole seconds, or a string such as \"90s\", \"2m\", \"1h\"")
            }
            fn visit_i64<E: serde::de::Error>(self, seconds: i64) -> Result<Duration, E> {
                self.visit_str(&seconds.to_string())
            }
            fn visit_u64<E: serde::de::Error>(self, seconds: u64) -> Result<Duration, E> {
                self.visit_str(&seconds.to_string())
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
                text.parse().map(Duration).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The file, all of it optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    jitter: Option<Duration>,
    max_jitter: Option<Duration>,
    max_runs: Option<u32>,
    window: Option<Duration>,
    on_cap: Option<OnCap>,
    save_environment: Option<bool>,
    scope: Option<Scope>,
    command: Option<Vec<String>>,
    state_dir: Option<PathBuf>,
    log_dir: Option<PathBuf>,
    keep_logs: Option<u32>,
    agent_catalog_run_lockfile: Option<PathBuf>,
    agent_disabled_lockfile: Option<PathBuf>,
    lastrunfile: Option<PathBuf>,
    pidfile: Option<PathBuf>,
}

/// The keys of the file.
const KEYS: [&str; 15] = [
    "jitter",
    "max_jitter",
    "max_runs",
    "window",
    "on_cap",
    "save_environment",
    "scope",
    "command",
    "state_dir",
    "log_dir",
    "keep_logs",
    "agent_catalog_run_lockfile",
    "agent_disabled_lockfile",
    "lastrunfile",
    "pidfile",
];

/// What else settings depend on, gathered at the edge.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Our environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Our user id.
    pub uid: u32,
    /// Our home directory by the user database; Puppet takes HOME away.
    pub home: Option<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        let uid = crate::sys::user::effective();
        Surroundings {
            environment: std::env::vars_os().collect(),
            uid,
            home: crate::sys::user::home(uid),
        }
    }

    fn variable(&self, name: &str) -> Option<&OsString> {
        self.environment
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
            .filter(|value| !value.is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from)
    }

    fn parsed<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(value) = self.variable(name) else {
            return Ok(None);
        };
        value
            .to_str()
            .ok_or_else(|| "it is not UTF-8".to_owned())
            .and_then(parse)
            .map(Some)
            .map_err(|e| anyhow!("the environment variable {name}: {e}"))
    }
}

fn span(text: &str) -> Result<Span, String> {
    text.parse::<Span>().map_err(|e| e.to_string())
}

fn number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a whole number"))
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(format!("'{text}' is neither true nor false")),
    }
}

fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let known: Vec<_> = T::value_variants()
            .iter()
            .filter_map(ValueEnum::to_possible_value)
            .map(|value| value.get_name().to_owned())
            .collect();
        format!("'{text}' is not one of {}", known.join(", "))
    })
}

/// Puts the settings together.
///
/// # Errors
/// A [`Usage`]: which setting is wrong, where, and how.
pub fn settings(global: &Global, run: &Run, around: &Surroundings) -> Result<Settings> {
    put_together(global, run, around)
        .map_err(|e| Usage(format!("the settings cannot be used: {e:#}")).into())
}

fn put_together(global: &Global, run: &Run, around: &Surroundings) -> Result<Settings> {
    let file = read_file(global, around)?;
    let state_dir = global
        .state_dir
        .clone()
        .or_else(|| around.path("AGAIN_STATE_DIR"))
        .or(file.state_dir);
    let log_dir = global
        .log_dir
        .clone()
        .or_else(|| around.path("AGAIN_LOG_DIR"))
        .or(file.log_dir);
    let is_default = state_dir.is_none();
    let state_dir = match state_dir {
        Some(dir) => dir,
        None => default_state_dir(around)?,
    };
    if !state_dir.is_absolute() {
        bail!(
            "the state directory must be an absolute path, not {}",
            state_dir.display()
        );
    }
    let log_dir = log_dir.unwrap_or_else(|| {
        if is_default && around.uid == 0 {
            PathBuf::from("/var/log/again")
        } else {
            state_dir.join("log")
        }
    });
    if !log_dir.is_absolute() {
        bail!(
            "the log directory must be an absolute path, not {}",
            log_dir.display()
        );
    }
    let duration = |d: Option<Duration>| d.map(|d| d.0);
    Ok(Settings {
        jitter: run
            .jitter
            .or(around.parsed("AGAIN_JITTER", span)?)
            .or(duration(file.jitter)),
        max_jitter: around
            .parsed("AGAIN_MAX_JITTER", span)?
            .or(duration(file.max_jitter))
            .unwrap_or(Span::from_secs(300)),
        cap: Cap {
            max_runs: run
                .max_runs
                .or(around.parsed("AGAIN_MAX_RUNS", number)?)
                .or(file.max_runs)
                .unwrap_or(10),
            window: run
                .window
                .or(around.parsed("AGAIN_WINDOW", cap::window)?)
                .or(duration(file.window))
                .unwrap_or(Span::from_secs(3600)),
        },
        on_cap: run
            .on_cap
            .or(around.parsed("AGAIN_ON_CAP", choice)?)
            .or(file.on_cap)
            .unwrap_or(OnCap::Fail),
        save_environment: around
            .parsed("AGAIN_SAVE_ENVIRONMENT", boolean)?
            .or(file.save_environment)
            .unwrap_or(true),
        scope: around
            .parsed("AGAIN_SCOPE", choice)?
            .or(file.scope)
            .unwrap_or(Scope::Auto),
        command: file
            .command
            .map(|words| words.into_iter().map(OsString::from).collect()),
        state_dir,
        log_dir,
        keep_logs: file.keep_logs.unwrap_or(20),
        paths: Paths {
            agent_catalog_run_lockfile: bytes(file.agent_catalog_run_lockfile.as_deref()),
            agent_disabled_lockfile: bytes(file.agent_disabled_lockfile.as_deref()),
            lastrunfile: bytes(file.lastrunfile.as_deref()),
            pidfile: bytes(file.pidfile.as_deref()),
        },
    })
}

/// The paths that a request's own flags name.
pub fn given_paths(run: &Run) -> Paths {
    Paths {
        agent_catalog_run_lockfile: bytes(run.agent_catalog_run_lockfile.as_deref()),
        agent_disabled_lockfile: bytes(run.agent_disabled_lockfile.as_deref()),
        lastrunfile: bytes(run.lastrunfile.as_deref()),
        pidfile: bytes(run.pidfile.as_deref()),
    }
}

fn bytes(path: Option<&Path>) -> Option<Bytes> {
    path.map(Bytes::from)
}

fn default_state_dir(around: &Surroundings) -> Result<PathBuf> {
    if around.uid == 0 {
        return Ok(PathBuf::from("/var/lib/again"));
    }
    if let Some(dir) = around
        .path("XDG_STATE_HOME")
        .filter(|dir| dir.is_absolute())
    {
        return Ok(dir.join("again"));
    }
    // The user database first: Puppet takes HOME away from what an Exec runs, and
    // state must be found at the same place by hand.
    around
        .home
        .clone()
        .or_else(|| around.path("HOME").filter(|home| home.is_absolute()))
        .map(|home| home.join(".local/state/again"))
        .context("this user has no home directory to keep state in; name one with --state-dir or AGAIN_STATE_DIR")
}

fn read_file(global: &Global, around: &Surroundings) -> Result<File> {
    let named = global
        .config
        .clone()
        .or_else(|| around.path("AGAIN_CONFIG"));
    let path = named.clone().unwrap_or_else(|| PathBuf::from(FILE));
    match std::fs::read_to_string(&path) {
        Ok(text) => parse_file(&text).map_err(|e| anyhow!("{}: {e}", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && named.is_none() => {
            Ok(File::default())
        }
        Err(e) => Err(e).with_context(|| format!("cannot read the settings {}", path.display())),
    }
}

/// The number of the line that sets a key.
fn line_of(text: &str, key: &str) -> usize {
    text.lines()
        .position(|line| {
            let found = line.split(['=', '.', ']']).next().unwrap_or_default();
            found.trim_matches([' ', '\t', '"', '\'', '[']) == key
        })
        .map_or(1, |at| at + 1)
}

/// Whether a text can be used as the file; else what is wrong with it.
///
/// # Errors
/// A sentence that names line and key.
pub fn check(text: &str) -> Result<(), String> {
    parse_file(text).map(|_| ())
}

/// Parses the file; an error names the line and the key.
fn parse_file(text: &str) -> Result<File, String> {
    // The parser names the first line for an unknown key, so that is looked for here.
    if let Ok(table) =
        basic_toml::from_str::<std::collections::BTreeMap<String, serde::de::IgnoredAny>>(text)
        && let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str()))
    {
        return Err(format!(
            "line {}: unknown key '{unknown}'; known are {}",
            line_of(text, unknown),
            KEYS.join(", ")
        ));
    }
    let file: File = basic_toml::from_str(text).map_err(|e| e.to_string())?;
    if file.command.as_ref().is_some_and(Vec::is_empty) {
        return Err(format!(
            "line {}: key 'command': it is empty; name a program, or remove the key",
            line_of(text, "command")
        ));
    }
    if file
        .window
        .as_ref()
        .is_some_and(|window| window.0 == Span::ZERO)
    {
        return Err(format!(
            "line {}: key 'window': the cap's window has to be at least 1s",
            line_of(text, "window")
        ));
    }
    for (key, path) in [
        ("state_dir", &file.state_dir),
        ("log_dir", &file.log_dir),
        (
            "agent_catalog_run_lockfile",
            &file.agent_catalog_run_lockfile,
        ),
        ("agent_disabled_lockfile", &file.agent_disabled_lockfile),
        ("lastrunfile", &file.lastrunfile),
        ("pidfile", &file.pidfile),
    ] {
        if path.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(format!(
                "line {}: key '{key}': it must be an absolute path",
                line_of(text, key)
            ));
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(file: &str, environment: &[(&str, &str)], run: &Run) -> Result<Settings> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("again.toml");
        std::fs::write(&path, file).expect("written");
        let global = Global {
            config: Some(path),
            ..Global::default()
        };
        let around = Surroundings {
            environment: environment
                .iter()
                .map(|(n, v)| (n.into(), v.into()))
                .collect(),
            uid: 1000,
            home: Some("/home/u".into()),
        };
        settings(&global, run, &around)
    }

    #[test]
    fn flags_before_environment_before_file_before_defaults() {
        let none = Run::default();
        let flag = Run {
            max_runs: Some(1),
            ..Run::default()
        };
        let runs = |file, environment: &[(&str, &str)], run| {
            with(file, environment, run).expect("settings").cap.max_runs
        };
        assert_eq!(runs("", &[], &none), 10);
        assert_eq!(runs("max_runs = 3", &[], &none), 3);
        assert_eq!(runs("max_runs = 3", &[("AGAIN_MAX_RUNS", "2")], &none), 2);
        assert_eq!(runs("max_runs = 3", &[("AGAIN_MAX_RUNS", "2")], &flag), 1);
    }

    #[test]
    fn state_is_the_users_own() {
        let none = Run::default();
        let dir = |environment: &[(&str, &str)]| {
            with("", environment, &none).expect("settings").state_dir
        };
        assert_eq!(dir(&[]), Path::new("/home/u/.local/state/again"));
        assert_eq!(
            dir(&[("HOME", "/h")]),
            Path::new("/home/u/.local/state/again")
        );
        assert_eq!(dir(&[("XDG_STATE_HOME", "/x")]), Path::new("/x/again"));
        assert_eq!(dir(&[("AGAIN_STATE_DIR", "/s")]), Path::new("/s"));
        assert!(with("", &[("AGAIN_STATE_DIR", "s")], &none).is_err());
    }

    #[test]
    fn an_error_names_file_line_and_key() {
        for (file, words) in [
            (
                "max_runs = 3\nmax_run = 4\n",
                &["again.toml", "line 2", "'max_run'"][..],
            ),
            (
                "\nwindow = \"x\"\n",
                &["again.toml", "line 2", "window", "'x' is not a duration"],
            ),
            ("on_cap = \"stop\"", &["line 1", "on_cap"]),
            ("max_runs = -1", &["line 1", "max_runs"]),
            ("state_dir = \"x\"", &["state_dir", "absolute"]),
            ("command = []", &["command", "empty"]),
            ("max_runs", &["line 1"]),
        ] {
            let error = format!("{:#}", with(file, &[], &Run::default()).expect_err(file));
            for word in words {
                assert!(error.contains(word), "{error:?} lacks {word:?}");
            }
        }
        let error = with("", &[("AGAIN_WINDOW", "soon")], &Run::default()).expect_err("refused");
        assert!(format!("{error:#}").contains("AGAIN_WINDOW"));
    }

    proptest! {
        #[test]
        fn total(text in "\\PC{0,60}") {
            let _ = parse_file(&text);
        }
    }
}
