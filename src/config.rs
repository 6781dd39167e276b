//! The settings. Precedence: flags, `AGAIN_*`, /etc/again.toml, defaults.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::cli::{Global, Run};
use crate::policy::{cap::window, shutdown};
use crate::puppet::paths::Paths;
use again_base::model::{Bytes, Cap, LogLimits, OnCap, Span, Stuck, Usage};
use again_base::settings::{Setting, Value, Words, choice, option, parsed, variable};
use again_base::sys::file::read_settings;
use again_base::toml::Written;

/// Default settings file.
pub const FILE: &str = "/etc/again.toml";

/// Default of the cap over all targets together, as a multiple of one target's.
const TIMES_TOTAL: u32 = 3;

/// Whether a waiter gets a systemd scope of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// A scope if systemd runs and this process is root's.
    Auto,
    /// Nowhere.
    Never,
}

/// Whether a container may end with a run in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Container {
    /// Unless a process above the run is known to live on.
    Auto,
    /// Requests are granted: the container outlives its runs.
    Stays,
}

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Maximum jitter; `None`: a quarter of delta, at least 2 s.
    pub jitter: Option<Span>,
    /// Limit for the growth of the jitter along a chain.
    pub max_jitter: Span,
    /// Cap on the reruns of one target.
    pub cap: Cap,
    /// Maximum number of reruns of all targets together within the cap's window.
    pub max_runs_total: u32,
    /// Action when the cap is reached.
    pub on_cap: OnCap,
    /// Action for a run that exceeds its time.
    pub stuck: Stuck,
    /// Whether a rerun of Puppet waits for a slot of the fleet.
    pub slots: bool,
    /// Whether environments are stored on disk for use after a reboot.
    pub save_environment: bool,
    /// Whether a waiter gets a systemd scope of its own.
    pub scope: Scope,
    /// Whether a container may end with a run in it.
    pub container: Container,
    /// Time before a shutdown during which a timer is held; zero: never.
    pub hold_before_shutdown: Span,
    /// Command line that replaces a run's own.
    pub command: Option<Vec<OsString>>,
    /// State directory.
    pub state_dir: PathBuf,
    /// Directory for the output of reruns.
    pub log_dir: PathBuf,
    /// Limits on the output that is kept.
    pub logs: LogLimits,
    /// Paths of Puppet's own files that the operator set.
    pub paths: Paths,
}

/// Boolean setting.
#[derive(Debug)]
struct Switch(bool);

impl Setting for Switch {
    fn of(written: Written) -> Result<Self, String> {
        match written {
            Written::Switch(value) => Ok(Switch(value)),
            Written::Variable(_) => match written.text("")?.as_str() {
                "true" | "1" | "yes" => Ok(Switch(true)),
                "false" | "0" | "no" => Ok(Switch(false)),
                text => Err(format!("'{text}' is neither true nor false")),
            },
            _ => Err("expected true or false, without quotes".to_owned()),
        }
    }
}

/// Types of values, each with the function that parses it.
macro_rules! values {
    ($($name:ident($type:ty) $read:ident;)*) => {$(
        #[derive(Debug)]
        struct $name($type);

        impl Value for $name {
            const WANTED: &'static str = "a whole number, or a string such as \"2m\"";

            fn read(text: &str) -> Result<Self, String> {
                $read(text).map($name)
            }
        }
    )*};
}

values! {
    Duration(Span) parsed;
    Window(Span) window;
    Number(u32) number;
    Size(u64) size;
}

impl Value for Scope {
    fn read(text: &str) -> Result<Self, String> {
        choice(text)
    }
}

impl Value for Container {
    fn read(text: &str) -> Result<Self, String> {
        choice(text)
    }
}

fn number(text: &str) -> Result<u32, String> {
    let number = text.parse();
    number.map_err(|_| format!("'{text}' is not a whole number from 0 to {}", u32::MAX))
}

/// Parses a size in bytes, or with one of the units of journald.conf(5): powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(['K', 'M', 'G']);
    let unit = match &text[number.len()..] {
        "" => Some(1),
        "K" => Some(1 << 10),
        "M" => Some(1 << 20),
        "G" => Some(1 << 30),
        _ => None,
    };
    let bytes = unit.and_then(|unit| number.parse::<u64>().ok()?.checked_mul(unit));
    bytes.ok_or_else(|| format!("'{text}' is not a size: a number of bytes, or 500K, 16M, 1G"))
}

again_base::layer! {
    jitter: Duration, "AGAIN_JITTER";
    max_jitter: Duration, "AGAIN_MAX_JITTER" => Duration(Span::from_secs(300));
    max_runs: Number, "AGAIN_MAX_RUNS" => Number(10);
    max_runs_total: Number, "AGAIN_MAX_RUNS_TOTAL";
    window: Window, "AGAIN_WINDOW" => Window(Span::from_secs(3600));
    on_cap: OnCap, "AGAIN_ON_CAP" => OnCap::Fail;
    stuck: Stuck, "AGAIN_STUCK" => Stuck::Report;
    slots: Switch, "AGAIN_SLOTS" => Switch(false);
    save_environment: Switch, "AGAIN_SAVE_ENVIRONMENT" => Switch(true);
    scope: Scope, "AGAIN_SCOPE" => Scope::Auto;
    container: Container, "AGAIN_CONTAINER" => Container::Auto;
    hold_before_shutdown: Duration, "AGAIN_HOLD_BEFORE_SHUTDOWN" => Duration(shutdown::WITHIN);
    command: Words;
    state_dir: PathBuf, "AGAIN_STATE_DIR";
    log_dir: PathBuf, "AGAIN_LOG_DIR";
    keep_logs: Number;
    max_log_size: Size;
    max_logs_size: Size;
    agent_catalog_run_lockfile: PathBuf;
    agent_disabled_lockfile: PathBuf;
    lastrunfile: PathBuf;
    pidfile: PathBuf;
}

/// Keys of the settings file.
pub const KEYS: &[&str] = Layer::KEYS;

impl Layer {
    fn of_flags(global: &Global, run: &Run) -> Result<Self, String> {
        Ok(Layer {
            jitter: run.jitter.map(Duration),
            max_runs: run.max_runs.map(Number),
            max_runs_total: run.max_runs_total.map(Number),
            window: run.window.map(Window),
            on_cap: run.on_cap,
            state_dir: option("--state-dir", &global.state_dir)?,
            log_dir: option("--log-dir", &global.log_dir)?,
            ..Layer::default()
        })
    }
}

/// Facts about the process that settings depend on, gathered once.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Environment of the process.
    pub environment: Vec<(OsString, OsString)>,
    /// Effective user id.
    pub uid: u32,
    /// Home directory according to the user database; Puppet removes HOME.
    pub home: Option<PathBuf>,
}

impl Surroundings {
    /// Facts about this process.
    pub fn of_this_process() -> Self {
        let uid = again_base::sys::user::effective();
        Surroundings {
            environment: std::env::vars_os().collect(),
            uid,
            home: again_base::sys::user::home(uid),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        variable(&self.environment, name).map(PathBuf::from)
    }
}

/// Merges the settings of all sources.
///
/// # Errors
/// A [`Usage`] that says which setting is wrong, where, and how.
pub fn settings(global: &Global, run: &Run, around: &Surroundings) -> Result<Settings> {
    put_together(global, run, around)
        .map_err(|e| Usage(format!("the settings cannot be used: {e}")).into())
}

/// Settings of a command that does not make a request.
///
/// # Errors
/// As for [`settings`].
pub fn of_command(global: &Global) -> Result<Settings> {
    settings(global, &Run::default(), &Surroundings::of_this_process())
}

fn put_together(global: &Global, run: &Run, around: &Surroundings) -> Result<Settings, String> {
    let file = read_file(global, around)?;
    let mut set = Layer::of_flags(global, run)?
        .or(Layer::of_environment(&around.environment)?)
        .or(file);
    let is_system = set.state_dir.is_none() && around.uid == 0;
    let state_dir = match set.state_dir.take() {
        Some(dir) => dir,
        None => default_state_dir(around),
    };
    let log_dir = match set.log_dir.take() {
        Some(dir) => dir,
        None if is_system => PathBuf::from("/var/log/again"),
        None => state_dir.join("log"),
    };
    let bytes = |path: &Option<PathBuf>| path.as_deref().map(Bytes::from);
    let max_runs = set.max_runs().0;
    let total = set.max_runs_total.take();
    let known = LogLimits::default();
    Ok(Settings {
        paths: Paths {
            agent_catalog_run_lockfile: bytes(&set.agent_catalog_run_lockfile),
            agent_disabled_lockfile: bytes(&set.agent_disabled_lockfile),
            lastrunfile: bytes(&set.lastrunfile),
            pidfile: bytes(&set.pidfile),
        },
        max_jitter: set.max_jitter().0,
        cap: Cap {
            max_runs,
            window: set.window().0,
            is_total: false,
        },
        max_runs_total: total.map_or(max_runs.saturating_mul(TIMES_TOTAL), |most| most.0),
        on_cap: set.on_cap(),
        stuck: set.stuck(),
        slots: set.slots().0,
        save_environment: set.save_environment().0,
        scope: set.scope(),
        container: set.container(),
        hold_before_shutdown: set.hold_before_shutdown().0,
        logs: LogLimits {
            keep: set.keep_logs.map_or(known.keep, |most| most.0),
            each: set.max_log_size.map_or(known.each, |most| most.0),
            all: set.max_logs_size.map_or(known.all, |most| most.0),
        },
        jitter: set.jitter.map(|jitter| jitter.0),
        command: set
            .command
            .map(|words| words.0.into_iter().map(OsString::from).collect()),
        state_dir,
        log_dir,
    })
}

impl Settings {
    /// Cap over all targets together.
    pub fn total(&self) -> Cap {
        Cap {
            max_runs: self.max_runs_total,
            is_total: true,
            ..self.cap
        }
    }
}

/// Paths from a request's own flags.
pub fn given_paths(run: &Run) -> Paths {
    let bytes = |path: &Option<PathBuf>| path.as_deref().map(Bytes::from);
    Paths {
        agent_catalog_run_lockfile: bytes(&run.agent_catalog_run_lockfile),
        agent_disabled_lockfile: bytes(&run.agent_disabled_lockfile),
        lastrunfile: bytes(&run.lastrunfile),
        pidfile: bytes(&run.pidfile),
    }
}

fn default_state_dir(around: &Surroundings) -> PathBuf {
    if around.uid == 0 {
        return PathBuf::from("/var/lib/again");
    }
    let named = around
        .path("XDG_STATE_HOME")
        .filter(|dir| dir.is_absolute());
    // From the user database rather than HOME: Puppet removes HOME from the environment of an Exec,
    // and a command run by hand must find the same state.
    let home = || Some(around.home.as_ref()?.join(".local/state"));
    match named.or_else(home) {
        Some(dir) => dir.join("again"),
        None => PathBuf::from(format!("/var/tmp/again-{}", around.uid)),
    }
}

fn read_file(global: &Global, around: &Surroundings) -> Result<Layer, String> {
    let named = global
        .config
        .clone()
        .or_else(|| around.path("AGAIN_CONFIG"));
    let path = named.clone().unwrap_or_else(|| PathBuf::from(FILE));
    match read_settings(&path) {
        Ok(text) => Layer::of_file(&text).map_err(|e| format!("{}: {e}", path.display())),
        // The default file may be readable by root alone, because of a secret command; other users
        // do without it.
        Err(e)
            if named.is_none()
                && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
        {
            tracing::debug!("the settings {} are not read: {e}", path.display());
            Ok(Layer::default())
        }
        Err(e) => Err(format!("{} cannot be read: {e}", path.display())),
    }
}

/// Checks whether a text is a valid settings file.
///
/// # Errors
/// A sentence that names line and key.
pub fn check(text: &str) -> Result<(), String> {
    Layer::of_file(text).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

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
    fn all_targets_together_run_three_times_as_often_unless_something_else_is_set() {
        let total = |file, environment: &[(&str, &str)], run| {
            let settings = with(file, environment, run).expect("settings");
            settings.max_runs_total
        };
        let (none, flag) = (
            Run::default(),
            Run {
                max_runs_total: Some(1),
                ..Run::default()
            },
        );
        assert_eq!(total("", &[], &none), 30);
        assert_eq!(total("max_runs = 4", &[], &none), 12);
        assert_eq!(total("max_runs = 4000000000", &[], &none), u32::MAX);
        let file = "max_runs_total = 7";
        let variable = [("AGAIN_MAX_RUNS_TOTAL", "5")];
        assert_eq!(total(file, &[], &none), 7);
        assert_eq!(total(file, &variable, &none), 5);
        assert_eq!(total(file, &variable, &flag), 1);
    }

    #[test]
    fn a_size_is_bytes_or_has_a_unit() {
        let each = |text: &str| with(&format!("max_log_size = {text}"), &[], &Run::default());
        for (text, bytes) in [
            ("0", 0),
            ("\"1000\"", 1000),
            ("\"3K\"", 3 << 10),
            ("\"2M\"", 2 << 20),
            ("\"1G\"", 1 << 30),
        ] {
            assert_eq!(each(text).expect(text).logs.each, bytes);
        }
        for text in [
            "-1",
            "\"\"",
            "\"M\"",
            "\"1MM\"",
            "\"1T\"",
            "\"99999999999G\"",
            "1.5",
            "true",
        ] {
            let error = format!("{:#}", each(text).expect_err(text));
            assert!(
                error.contains("line 1") && error.contains("max_log_size"),
                "{error}"
            );
        }
        let known = with("", &[], &Run::default()).expect("settings").logs;
        assert_eq!(
            (known.keep, known.each, known.all),
            (20, 16 << 20, 256 << 20)
        );
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
        let stranger = |environment: &[(&str, &str)]| {
            let words = environment.iter().map(|(n, v)| (n.into(), v.into()));
            default_state_dir(&Surroundings {
                environment: words.collect(),
                uid: 4242,
                home: None,
            })
        };
        assert_eq!(
            stranger(&[("HOME", "/h")]),
            Path::new("/var/tmp/again-4242")
        );
        assert_eq!(stranger(&[("XDG_STATE_HOME", "/x")]), Path::new("/x/again"));
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
            (
                "command = \"puppet agent\"",
                &[
                    "line 1",
                    "command",
                    "a list of strings such as [\"puppet\", \"agent\"]",
                ],
            ),
            (
                "command = [\"puppet\", 3]",
                &["line 1", "command", "a string"],
            ),
            (
                "save_environment = \"yes\"",
                &["line 1", "save_environment", "true or false"],
            ),
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
            let _ = Layer::of_file(&text);
        }
    }
}
