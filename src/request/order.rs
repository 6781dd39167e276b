//! Makes the order of a rerun.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::asked::Request;
use crate::config::Surroundings;
use crate::model::{Bytes, Kind, Refusal, Span, target_id};
use crate::policy::judge::{Facts, Input, obstacle};
use crate::puppet::ancestry::{Line, Seen};
use crate::puppet::cmdline::{Application, Invocation, without_occasion};
use crate::puppet::command::{Command, Place};
use crate::puppet::environment;
use crate::puppet::live::is_deleted;
use crate::puppet::paths::{Paths, Setup};
use crate::state::order::Order;
use crate::state::record::VERSION;
use crate::sys::process::{self, os, split_block};
use crate::sys::user;
use crate::sys::{attributes, mounts};

/// The rerun of a run or of a named command.
#[derive(Debug)]
pub struct Plan {
    /// The target's id.
    pub target: String,
    /// The command line of the run, or the one that was named outside any.
    pub original: Vec<Vec<u8>>,
    /// The run says by its exit status whether anything changed.
    pub detailed: bool,
    /// Puppet's own limit of a run's time.
    pub run_timeout: Option<Span>,
    /// What exactly is run.
    pub order: Order,
    /// What stands in the way under any settings, if anything does.
    pub obstacle: Option<Refusal>,
}

/// The rerun of a run, or why there can be none. `line` is the command line that it was
/// started with: its daemon's, if it has one.
///
/// # Errors
/// What could not be read of the run, and why.
pub fn of_run(
    request: &Request<'_>,
    above: &[Seen],
    run: &Seen,
    line: Line,
    daemon: Option<&Seen>,
) -> Result<Result<Plan, Refusal>> {
    let pid = run.identity.pid;
    let status = process::status(pid).with_context(|| format!("cannot see the run (pid {pid})"))?;
    let is_other = status.euid != request.around.uid;
    let mut facts = Facts {
        pid: Some(pid),
        other_user: is_other.then(|| user::name(status.euid)),
        ..Facts::default()
    };
    // Of what another user's command line names, nothing is opened.
    if let Some(refusal) = obstacle(&facts).filter(|_| is_other) {
        return Ok(Err(refusal));
    }
    let directory = process::cwd(pid)
        .with_context(|| format!("cannot see the working directory of the run (pid {pid})"))?;
    let is_gone = is_deleted(&directory);
    let whole = Some(directory.as_path()).filter(|_| !is_gone);
    let place = Place {
        environment: environment_of(run, daemon, &request.around),
        directory: whole.unwrap_or(Path::new("/")).to_owned(),
        home: request.home().map(Path::to_owned),
    };
    let own = Command::of_run(line, run.exe.as_deref(), &place);
    let words = request.replacement();
    let named = words.map(|words| Command::named(words, &place));
    let command = named.as_ref().unwrap_or(&own);
    // A wrapper is taken to run what the run is.
    let is_own = command.setup.invocation.is_none() || named.is_none();
    let puppet = if is_own { &own.setup } else { &command.setup };
    facts.chroot = mounts::is_chrooted(above.iter().map(|seen| seen.identity.pid));
    facts.directory_gone = is_gone.then(|| directory.display().to_string());
    facts.noop = noop(&own.setup).or_else(|| noop(&command.setup));
    let mut plan = plan(request, &place, command, puppet, facts)?;
    if is_own && daemon.is_some() {
        plan.order.kind = Kind::Daemon;
    }
    plan.order.daemon = daemon.map(|seen| seen.identity);
    plan.detailed = own.setup.invocation.is_some_and(|line| line.detailed);
    plan.original = own.words;
    Ok(Ok(plan))
}

/// The order of a command that was named outside any run.
///
/// # Errors
/// What could not be seen of this process.
pub fn of_command(request: &Request<'_>, above: &[Seen]) -> Result<Plan> {
    let place = Place::here(&request.around.environment, request.home())
        .context("cannot see the working directory")?;
    let command = Command::named(&request.run.command, &place);
    let facts = Facts {
        noop: noop(&command.setup),
        chroot: mounts::is_chrooted(above.iter().map(|seen| seen.identity.pid)),
        ..Facts::default()
    };
    plan(request, &place, &command, &command.setup, facts)
}

/// Puts the plan together. `puppet` tells what kind of run it is and where its files are.
fn plan(
    request: &Request<'_>,
    place: &Place,
    command: &Command,
    puppet: &Setup,
    mut facts: Facts,
) -> Result<Plan> {
    let directory = place.directory.as_path();
    // Outside any run, what is started is as this process is.
    let (pid, signals) = match facts.pid {
        Some(pid) => (pid, None),
        None => (std::process::id().cast_signed(), Some(request.signals)),
    };
    let kind = match puppet.invocation.as_ref().map(|line| line.application) {
        Some(Application::Apply) => Kind::Apply,
        Some(Application::Agent) => Kind::Agent,
        None => Kind::Command,
    };
    let needs_directory = puppet
        .invocation
        .as_ref()
        .is_some_and(Invocation::depends_on_directory);
    facts.directory_gone = facts
        .directory_gone
        .filter(|_| kind == Kind::Apply && needs_directory);
    let reads = |line: &Invocation| line.reads_standard_input();
    let mut input = None;
    if puppet.invocation.as_ref().is_some_and(reads) {
        (facts.input, input) = standard_input(pid)?;
    }
    let line = command.setup.invocation.as_ref();
    let manifest = line.and_then(|line| line.manifest());
    let (given, set, none) = (&request.given, &request.settings.paths, Paths::default());
    // Any other program has such files only if the request names them.
    let paths = if kind == Kind::Command && *given == none && *set == none {
        none
    } else {
        puppet.paths(given, set).from_directory(directory)
    };
    let all = |words: &[Vec<u8>]| words.iter().cloned().map(Bytes).collect();
    let path = |path: &PathBuf| Bytes::from(path.as_path());
    let arguments = command.arguments();
    let order = Order {
        version: VERSION,
        kind,
        programs: command.programs.iter().map(path).collect(),
        arguments: all(&arguments),
        directory: directory.into(),
        environment: Some(all(&place.environment)),
        attributes: attributes::of_process(pid, signals)
            .with_context(|| format!("cannot see the attributes of the process (pid {pid})"))?,
        manifest: manifest.map(|name| path(&directory.join(os(name)))),
        input: input.as_ref().map(path),
        paths,
        daemon: None,
        stuck: request.settings.stuck,
        slots: request.settings.slots && kind != Kind::Command,
        log_dir: path(&request.settings.log_dir),
        logs: request.settings.logs,
    };
    let apply_in = (kind == Kind::Apply).then_some(directory.as_os_str().as_bytes());
    Ok(Plan {
        target: target_id(
            request.around.uid,
            apply_in,
            &command.as_run(without_occasion(arguments)),
        ),
        original: command.words.clone(),
        run_timeout: puppet.run_timeout(),
        detailed: line.is_some_and(|line| line.detailed),
        order,
        obstacle: obstacle(&facts),
    })
}

/// The option or setting that makes a run of Puppet a noop run, if it is one.
fn noop(setup: &Setup) -> Option<&'static str> {
    let line = setup.invocation.as_ref()?;
    match line.flag("noop") {
        Some(is_on) => is_on.then_some("--noop"),
        None => {
            let is_on = setup.conf.is_noop(line.application);
            is_on.then_some("noop = true in puppet.conf")
        }
    }
}

/// Where a manifest on standard input comes from.
fn standard_input(pid: i32) -> Result<(Input, Option<PathBuf>)> {
    let what = process::descriptor(pid, 0)
        .with_context(|| format!("cannot see the standard input (pid {pid})"))?;
    let meta = std::fs::metadata(format!("/proc/{pid}/fd/0"));
    Ok(match meta.map(|meta| meta.file_type()) {
        Ok(kind) if kind.is_file() && !is_deleted(&what) => (Input::File, Some(what)),
        Ok(kind) if kind.is_char_device() && what == Path::new("/dev/null") => {
            (Input::NotRead, None)
        }
        _ => (Input::Once(what.display().to_string()), None),
    })
}

/// The run's own environment; from the daemon's process where there is one, since the
/// run's is overwritten by its title; else ours, mended.
fn environment_of(run: &Seen, daemon: Option<&Seen>, around: &Surroundings) -> Vec<Vec<u8>> {
    let block = process::environ(daemon.unwrap_or(run).identity.pid)
        .ok()
        .filter(|block| environment::is_whole(block) && !(daemon.is_some() && block.is_empty()));
    let mended = || {
        let home = around.home.as_ref().map(|home| home.as_os_str().as_bytes());
        let own = environment::entries(&around.environment);
        environment::restored(own, home, user::name(around.uid).as_bytes())
    };
    environment::without_ours(block.map_or_else(mended, |block| split_block(&block)))
}
