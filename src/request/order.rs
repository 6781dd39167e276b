//! Creates the order of a rerun.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::asked::Request;
use super::manifest::{self, Looked};
use crate::config::{Container, Surroundings};
use crate::policy::judge::{Facts, Input, obstacle};
use crate::puppet::ancestry::{Line, Seen};
use crate::puppet::command::{Command, Place};
use crate::puppet::container;
use crate::puppet::environment;
use crate::puppet::job::Job;
use crate::puppet::live::is_deleted;
use crate::puppet::paths::{Paths, Setup};
use crate::puppet::rerun::identity;
use crate::state::newer::VERSION;
use crate::state::order::Order;
use crate::sys::mounts;
use again_base::model::{Bytes, Kind, Refusal, Span, target_id};
use again_base::puppet::cmdline::{Application, Invocation};
use again_base::sys::attributes;
use again_base::sys::links::leads_safely;
use again_base::sys::process::{self, os, split_block};
use again_base::sys::user;

/// Plan for the rerun of a run or of a named command.
#[derive(Debug)]
pub struct Plan {
    /// Id of the target.
    pub target: String,
    /// Command line of the run, or the one that was named outside any run.
    pub original: Vec<Vec<u8>>,
    /// Whether the exit status of the run says if anything changed.
    pub detailed: bool,
    /// Puppet's own limit of a run's time.
    pub run_timeout: Option<Span>,
    /// Whether the requesting run does the same as its rerun: it does the job of another timer that
    /// was due when this run started.
    pub run_does_it: bool,
    /// Order of the rerun.
    pub order: Order,
    /// Name of the manifest as given, and the name that the rerun gets, if different.
    pub manifest: Option<(String, String)>,
    /// Obstacle under any settings, if any.
    pub obstacle: Option<Refusal>,
}

/// Plan for the rerun of a run, or the reason why there can be none. `line` is the command line
/// that the run was started with: its daemon's, if it has one.
///
/// # Errors
/// The data of the run that could not be read, and the cause.
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
    // No file that another user's command line names is opened.
    if let Some(refusal) = obstacle(&facts).filter(|_| is_other) {
        return Ok(Err(refusal));
    }
    let directory = process::cwd(pid)
        .with_context(|| format!("cannot see the working directory of the run (pid {pid})"))?;
    let is_gone = is_deleted(&directory);
    let whole = Some(directory.as_path()).filter(|_| !is_gone);
    let environment = environment_of(run, daemon, &request.around);
    let place = Place {
        directory: whole.map_or_else(|| "/".into(), |real| named_directory(&environment, real)),
        environment,
        home: request.home().map(Path::to_owned),
    };
    let (line, mut looked) = look_at_manifest(line, &place, pid);
    let own = Command::of_run(line, run.exe.as_deref(), &place);
    let named = request.replacement().map(|words| {
        let (named, of_named) = named_command(words, &place);
        looked = of_named;
        named
    });
    let command = named.as_ref().unwrap_or(&own);
    // The command in the settings is a wrapper that is assumed to run what the run is. A command in
    // the request means what its words say, and any other program is not a run of Puppet.
    let is_wrapper = command.setup.invocation.is_none() && request.run.command.is_empty();
    let is_own = named.is_none() || is_wrapper;
    let puppet = if is_own { &own.setup } else { &command.setup };
    facts.chroot = mounts::is_chrooted(above.iter().map(|seen| seen.identity.pid));
    // A daemon continues with its next run.
    facts.container = match daemon {
        None => ending_container(request, above, pid),
        Some(_) => None,
    };
    facts.directory_gone = is_gone.then(|| directory.display().to_string());
    facts.noop = noop(&own.setup).or_else(|| noop(&command.setup));
    facts.once = looked.once;
    let mut plan = plan(request, &place, command, puppet, facts)?;
    if is_own && daemon.is_some() {
        plan.order.kind = Kind::Daemon;
    }
    if is_wrapper {
        let words = own.arguments().into_iter().map(Bytes);
        plan.order.wraps = Some(words.collect());
    }
    let wanted = if is_own { &own } else { command }.job(&place.directory);
    let does = |run: Job| wanted.is_some_and(|wanted| run.does(&wanted));
    plan.run_does_it = own.job(&place.directory).is_some_and(does);
    if plan.order.kind == Kind::Command && daemon.is_some() {
        let files = own.setup.paths(&request.given, &request.settings.paths);
        plan.order.paths.pidfile = files.pidfile;
    }
    plan.order.daemon = daemon.map(|seen| seen.identity);
    plan.detailed = own.setup.invocation.is_some_and(|line| line.detailed);
    plan.original = own.words;
    plan.manifest = looked.replaced;
    Ok(Ok(plan))
}

/// Plan for a command that was named outside any run.
///
/// # Errors
/// The data of this process that could not be read.
pub fn of_command(request: &Request<'_>, above: &[Seen]) -> Result<Plan> {
    let mut place = Place::here(&request.around.environment, request.home())
        .context("cannot see the working directory")?;
    place.directory = named_directory(&place.environment, &place.directory);
    let (command, looked) = named_command(&request.run.command, &place);
    let me = std::process::id().cast_signed();
    let facts = Facts {
        noop: noop(&command.setup),
        container: ending_container(request, above, me),
        once: looked.once,
        chroot: mounts::is_chrooted(above.iter().map(|seen| seen.identity.pid)),
        ..Facts::default()
    };
    let mut plan = plan(request, &place, &command, &command.setup, facts)?;
    plan.manifest = looked.replaced;
    Ok(plan)
}

/// Command line of a run, with a name of its manifest that the rerun can use too.
fn look_at_manifest(line: Line, place: &Place, pid: i32) -> (Line, Looked) {
    let mut words = line.argv.clone();
    let looked = manifest::look(&mut words, &place.directory, pid);
    (Line::parse(words).unwrap_or(line), looked)
}

/// Named command. Descriptors in its words are those of this process.
fn named_command(words: &[OsString], place: &Place) -> (Command, Looked) {
    let mut bytes: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
    let me = std::process::id().cast_signed();
    let looked = manifest::look(&mut bytes, &place.directory, me);
    let words: Vec<OsString> = bytes.iter().map(|word| os(word)).collect();
    (Command::named(&words, place), looked)
}

/// Name of a working directory: `PWD` of the environment, if that leads there and nobody else can
/// redirect it. A link in it may point to a new release when the rerun starts.
fn named_directory(environment: &[Vec<u8>], real: &Path) -> PathBuf {
    let named = environment::value(environment, b"PWD").map(|name| PathBuf::from(os(name)));
    let named = named.filter(|named| named == real || leads_safely(named, real));
    named.unwrap_or_else(|| real.to_owned())
}

/// Process 1 of the container that this process is in, if the container may end with it.
fn ending_container(request: &Request<'_>, chain: &[Seen], pid: i32) -> Option<String> {
    if request.settings.container == Container::Stays || !process::is_in_pid_namespace(pid) {
        return None;
    }
    if pid == 1 {
        return Some("this command".to_owned());
    }
    let own = chain.iter().position(|seen| seen.identity.pid == pid);
    container::may_end_with(&chain[own.map_or(0, |at| at + 1)..])
}

/// Creates the plan. `puppet` determines the kind of run and the paths of its files.
fn plan(
    request: &Request<'_>,
    place: &Place,
    command: &Command,
    puppet: &Setup,
    mut facts: Facts,
) -> Result<Plan> {
    let directory = place.directory.as_path();
    // Outside any run, the rerun gets the attributes of this process.
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
    // Any other program does not have these files: a summary there is another run's.
    let paths = match kind {
        Kind::Command => Paths::default(),
        _ => {
            let (given, set) = (&request.given, &request.settings.paths);
            puppet.paths(given, set).from_directory(directory)
        }
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
        wraps: None,
        manifest: manifest.map(|name| path(&command.directory(directory).join(os(name)))),
        input: input.as_ref().map(path),
        paths,
        daemon: None,
        stuck: request.settings.stuck,
        slots: request.settings.slots && kind != Kind::Command,
        hold_before_shutdown: request.settings.hold_before_shutdown,
        log_dir: path(&request.settings.log_dir),
        logs: request.settings.logs,
    };
    let apply_in = (kind == Kind::Apply).then_some(directory.as_os_str().as_bytes());
    Ok(Plan {
        target: target_id(
            request.around.uid,
            apply_in,
            &command.as_run(identity(arguments)),
        ),
        original: command.words.clone(),
        run_timeout: puppet.run_timeout().filter(|_| kind != Kind::Command),
        run_does_it: false,
        detailed: line.is_some_and(|line| line.detailed),
        order,
        manifest: None,
        obstacle: obstacle(&facts),
    })
}

/// Option or setting that makes a run of Puppet a noop run, if any.
fn noop(setup: &Setup) -> Option<&'static str> {
    let line = setup.invocation.as_ref()?;
    match line.flag("noop") {
        Some(is_on) => is_on.then_some("--noop"),
        None => {
            let is_on = setup.conf.flag(line.application, "noop");
            (is_on == Some(true)).then_some("noop = true in puppet.conf")
        }
    }
}

/// Source of a manifest on standard input.
fn standard_input(pid: i32) -> Result<(Input, Option<PathBuf>)> {
    let what = process::descriptor(pid, 0)
        .with_context(|| format!("cannot see the standard input (pid {pid})"))?;
    let link = PathBuf::from(format!("/proc/{pid}/fd/0"));
    Ok(match manifest::named(&link, Path::new("")) {
        Ok(path) if path == Path::new("/dev/null") => (Input::NotRead, None),
        Ok(path) if path.is_file() => (Input::File, Some(path)),
        _ => (Input::Once(what.display().to_string()), None),
    })
}

/// Environment of the run. It is read from the daemon's process if there is one, since the run's is
/// overwritten by its title; if that fails, ours is used, with the missing variables restored.
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
