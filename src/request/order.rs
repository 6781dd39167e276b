//! What is to be run again, with all that it needs.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::observe::Asked;
use crate::config::Surroundings;
use crate::model::{Bytes, Identity, Kind, Refusal, target_id};
use crate::policy::judge::{Facts, Input, obstacle};
use crate::puppet::ancestry::{Line, Seen};
use crate::puppet::cmdline::Application;
use crate::puppet::command::{self, Command};
use crate::puppet::environment;
use crate::puppet::live::is_deleted;
use crate::puppet::paths::{Paths, Setup};
use crate::state::order::Order;
use crate::state::record::VERSION;
use crate::sys::attributes::{self, SignalState};
use crate::sys::process::{self, os, split_block};
use crate::sys::user;

/// What is to be run again.
#[derive(Debug)]
pub struct Plan {
    /// The target's id.
    pub target: String,
    /// The command line of the run, or the one that was named outside any.
    pub original: Vec<Vec<u8>>,
    /// The run says by its exit status whether anything changed.
    pub detailed: bool,
    /// What exactly is run.
    pub order: Order,
    /// What stands in the way whatever was set, if anything does.
    pub obstacle: Option<Refusal>,
}

/// Whose circumstances a rerun gets: the run's or, outside any, our own.
struct Circumstances {
    pid: i32,
    environment: Vec<Vec<u8>>,
    directory: PathBuf,
    /// Ours; none for a run, whose process shows them.
    signals: Option<SignalState>,
    daemon: Option<Identity>,
}

impl Circumstances {
    fn place<'a>(&'a self, asked: &'a Asked<'_>) -> command::Place<'a> {
        command::Place {
            environment: &self.environment,
            directory: &self.directory,
            home: asked.home(),
        }
    }

    /// Where a manifest on standard input comes from.
    fn input(&self) -> Result<(Input, Option<PathBuf>)> {
        let what = process::descriptor(self.pid, 0)
            .with_context(|| format!("cannot see the standard input (pid {})", self.pid))?;
        let meta = std::fs::metadata(format!("/proc/{}/fd/0", self.pid));
        Ok(match meta.map(|meta| meta.file_type()) {
            Ok(kind) if kind.is_file() && !is_deleted(&what) => (Input::File, Some(what)),
            Ok(kind) if kind.is_char_device() && what == Path::new("/dev/null") => {
                (Input::NotRead, None)
            }
            _ => (Input::Once(what.display().to_string()), None),
        })
    }
}

/// What a run is followed by, or why nothing can follow it. `line` is the command line
/// that it was started with: its daemon's, if it has one.
///
/// # Errors
/// What could not be read of the run, and why.
pub fn of_run(
    asked: &Asked<'_>,
    run: &Seen,
    line: Line,
    daemon: Option<&Seen>,
) -> Result<Result<Plan, Refusal>> {
    let pid = run.identity.pid;
    let euid = process::status(pid)
        .with_context(|| format!("cannot see the run (pid {pid})"))?
        .euid;
    let mut facts = Facts {
        pid: Some(pid),
        other_user: (euid != asked.around.uid).then(|| user::name(euid)),
        ..Facts::default()
    };
    // Of what another user's command line names, nothing is opened.
    if facts.other_user.is_some()
        && let Some(refusal) = obstacle(&facts)
    {
        return Ok(Err(refusal));
    }
    let directory = process::cwd(pid)
        .with_context(|| format!("cannot see the working directory of the run (pid {pid})"))?;
    let gone = is_deleted(&directory).then(|| directory.display().to_string());
    let circumstances = Circumstances {
        pid,
        environment: environment_of(run, daemon, asked.around),
        directory: if gone.is_some() {
            PathBuf::from("/")
        } else {
            directory
        },
        signals: None,
        daemon: daemon.map(|seen| seen.identity),
    };
    let place = circumstances.place(asked);
    let own = Command::of_run(line, run.exe.as_deref(), place);
    let words = asked
        .replacement()
        .iter()
        .map(|word| word.as_bytes().to_vec());
    let named =
        Some(Command::named(words.collect(), place)).filter(|named| !named.words.is_empty());
    let command = named.as_ref().unwrap_or(&own);
    // A wrapper is taken to run what the run is.
    let puppet = if command.setup.invocation.is_some() {
        command
    } else {
        &own
    };
    let invocation = puppet.setup.invocation.as_ref();
    let is_apply = invocation.is_some_and(|line| line.application == Application::Apply);
    facts.directory_gone = gone.filter(|_| is_apply);
    facts.noop = noop(&own.setup).or_else(|| noop(&command.setup));
    let mut plan = plan(asked, &circumstances, command, &puppet.setup, facts)?;
    if daemon.is_some() && std::ptr::eq(puppet, &own) {
        plan.order.kind = Kind::Daemon;
    }
    plan.detailed = own.setup.invocation.is_some_and(|line| line.detailed);
    plan.original = own.words;
    Ok(Ok(plan))
}

/// What a command becomes that somebody named outside any run.
///
/// # Errors
/// What could not be seen of this process.
pub fn of_command(asked: &Asked<'_>) -> Result<Plan> {
    let me = process::own_identity().context("cannot read /proc")?;
    let circumstances = Circumstances {
        pid: me.pid,
        environment: environment::without_ours(environment::entries(&asked.around.environment)),
        directory: std::env::current_dir().context("cannot see the working directory")?,
        signals: Some(asked.signals),
        daemon: None,
    };
    let words = asked.command.iter().map(|word| word.as_bytes().to_vec());
    let command = Command::named(words.collect(), circumstances.place(asked));
    let facts = Facts {
        noop: noop(&command.setup),
        ..Facts::default()
    };
    plan(asked, &circumstances, &command, &command.setup, facts)
}

/// Puts it together. `puppet` tells what kind of run it is and where its files are.
fn plan(
    asked: &Asked<'_>,
    circumstances: &Circumstances,
    command: &Command,
    puppet: &Setup,
    mut facts: Facts,
) -> Result<Plan> {
    let Circumstances { pid, directory, .. } = circumstances;
    let invocation = puppet.invocation.as_ref();
    let kind = match invocation.map(|line| line.application) {
        Some(Application::Apply) => Kind::Apply,
        Some(Application::Agent) => Kind::Agent,
        None => Kind::Command,
    };
    let mut input = None;
    if invocation.is_some_and(|line| line.reads_standard_input()) {
        (facts.input, input) = circumstances.input()?;
    }
    let own = command.setup.invocation.as_ref();
    let manifest = own
        .and_then(|line| line.manifest())
        .map(|path| directory.join(os(path)));
    let (given, set) = (&asked.given, &asked.settings.paths);
    // Any other program has such files only if somebody says so.
    let is_named = [given, set].iter().any(|paths| **paths != Paths::default());
    let paths = if kind == Kind::Command && !is_named {
        Paths::default()
    } else {
        puppet.paths(given, set).from_directory(directory)
    };
    let bytes = |path: &PathBuf| Bytes::from(path.as_path());
    let arguments = command.arguments();
    let order = Order {
        version: VERSION,
        kind,
        programs: command.programs.iter().map(bytes).collect(),
        arguments: arguments.iter().cloned().map(Bytes).collect(),
        directory: bytes(directory),
        environment: Some(
            circumstances
                .environment
                .iter()
                .cloned()
                .map(Bytes)
                .collect(),
        ),
        attributes: attributes::of_process(*pid, circumstances.signals)
            .with_context(|| format!("cannot see the attributes of the process (pid {pid})"))?,
        manifest: manifest.as_ref().map(bytes),
        input: input.as_ref().map(bytes),
        paths,
        daemon: circumstances.daemon,
        log_dir: bytes(&asked.settings.log_dir),
        keep_logs: asked.settings.keep_logs,
    };
    let apply_in = (kind == Kind::Apply).then_some(directory.as_os_str().as_bytes());
    Ok(Plan {
        target: target_id(asked.around.uid, apply_in, &command.as_run(arguments)),
        original: command.words.clone(),
        detailed: own.is_some_and(|line| line.detailed),
        order,
        obstacle: obstacle(&facts),
    })
}

/// What says that a run of Puppet is a noop run, if it is one.
fn noop(setup: &Setup) -> Option<&'static str> {
    let line = setup.invocation.as_ref()?;
    match line.noop {
        Some(is_on) => is_on.then_some("--noop"),
        None => setup
            .conf
            .is_noop(line.application)
            .then_some("noop = true in puppet.conf"),
    }
}

/// The run's own environment; from the daemon's process where there is one, since the
/// run's is overwritten by its title; else ours, mended.
fn environment_of(run: &Seen, daemon: Option<&Seen>, around: &Surroundings) -> Vec<Vec<u8>> {
    let block = process::environ(daemon.unwrap_or(run).identity.pid)
        .ok()
        .filter(|block| environment::is_whole(block) && !(daemon.is_some() && block.is_empty()));
    let home = around.home.as_ref().map(|home| home.as_os_str().as_bytes());
    let mended = || {
        let own = environment::entries(&around.environment);
        environment::restored(own, home, user::name(around.uid).as_bytes())
    };
    environment::without_ours(block.map_or_else(mended, |block| split_block(&block)))
}
