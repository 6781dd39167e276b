//! Gathering what a request is judged by: the run above us and all that its
//! rerun needs. Reads /proc and Puppet's files; decides nothing.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::config::{Settings, Surroundings};
use crate::model::{Bytes, Identity, Kind};
use crate::policy::judge::{Above, Input};
use crate::puppet::ancestry::{Found, Seen, find_run, titled_words};
use crate::puppet::cmdline::{Application, Invocation};
use crate::puppet::conf::Conf;
use crate::puppet::environment;
use crate::puppet::live::{chain_from, is_deleted, read_conf, read_pid, see};
use crate::puppet::paths::{self, Layout, Paths};
use crate::puppet::rerun::{Started, is_daemon, rewrite};
use crate::state::order::Order;
use crate::state::record::VERSION;
use crate::sys::attributes::{self, SignalState};
use crate::sys::process::{self, os, split_block};
use crate::sys::user;

/// What was seen above us.
#[derive(Debug)]
pub struct Observation {
    /// For the judgement.
    pub above: Above,
    /// The ancestors, the nearest first.
    pub chain: Vec<Seen>,
    /// Index of the run in `chain`.
    pub run: Option<usize>,
    /// Why that is the run, in a line for people.
    pub why: Option<String>,
    /// The command line the run was started with.
    pub original: Vec<Vec<u8>>,
    /// What is to be run again, if anything is.
    pub order: Option<Order>,
}

impl Observation {
    /// The run's process.
    pub fn run_identity(&self) -> Option<Identity> {
        Some(self.chain.get(self.run?)?.identity)
    }
}

/// The name of the user whom a process acts as, where that can be seen.
pub fn user_of(pid: i32) -> String {
    process::status(pid).map_or_else(|_| "?".to_owned(), |status| user::name(status.euid))
}

/// Our parent's pid.
pub fn parent() -> i32 {
    nix::unistd::getppid().as_raw()
}

/// Looks at the processes from `pid` upwards.
///
/// # Errors
/// What could not be read of the run, and why.
pub fn observe(
    pid: i32,
    command: &[OsString],
    given: &Paths,
    settings: &Settings,
    around: &Surroundings,
    signals: SignalState,
) -> Result<Observation> {
    let chain = chain_from(pid);
    let home = if around.uid == 0 {
        None
    } else {
        around.home.as_deref()
    };
    let exe = |seen: Option<&Seen>| seen.and_then(|seen| seen.exe.clone()).unwrap_or_default();
    let layout_of = |seen: Option<&Seen>| paths::layout(&exe(seen), home, |path| path.exists());
    let layout = layout_of(chain.iter().find(|seen| seen.exe.is_some()));
    let found = find_run(&chain, |invocation| {
        // The file is read for an agent only: an apply never is one.
        invocation.application == Application::Agent
            && is_daemon(invocation, &read_conf(Some(invocation), &layout))
    });
    let replaced = if command.is_empty() {
        settings.command.as_deref().unwrap_or_default()
    } else {
        command
    };
    let run = match &found {
        Found::Run {
            at,
            argv,
            invocation,
            started,
            daemon,
        } => Some((
            *at,
            argv.clone(),
            invocation.as_ref().clone(),
            *started,
            daemon.and_then(|at| chain.get(at)).cloned(),
        )),
        Found::Orphan { at } => living_daemon(&chain, *at, given, settings, &layout).map(
            |(daemon, argv, invocation)| (*at, argv, invocation, Started::ByDaemon, Some(daemon)),
        ),
        // Its words serve to tell what kind of run it is; what is run is the command that was set.
        Found::Retitled { at } if !replaced.is_empty() => chain
            .get(*at)
            .and_then(|seen| titled_words(&seen.cmdline))
            .map(|(words, invocation)| (*at, words, invocation, Started::OneOff, None)),
        _ => None,
    };
    if let Some((at, argv, invocation, started, daemon)) = run {
        let layout = layout_of(chain.get(at));
        let pid = chain.get(at).map_or(0, |seen| seen.identity.pid);
        let euid = process::status(pid)
            .with_context(|| format!("cannot see the run (pid {pid})"))?
            .euid;
        let finder = Finder {
            euid,
            // What another user's command line names is not opened.
            conf: if euid == around.uid {
                read_conf(Some(&invocation), &layout)
            } else {
                Conf::unreadable()
            },
            chain: &chain,
            at,
            argv: &argv,
            invocation: &invocation,
            started,
            daemon: daemon.as_ref(),
            layout: &layout,
            settings,
            around,
        };
        let above = finder.above()?;
        let order = if finder.is_ours() {
            Some(finder.order(given, replaced)?)
        } else {
            None
        };
        return Ok(Observation {
            above,
            why: found.why(daemon.as_ref().map(|daemon| daemon.identity.pid)),
            run: Some(at),
            original: argv,
            order,
            chain,
        });
    }
    match found {
        Found::Nothing if !command.is_empty() => {
            let order = command_order(command, settings, around, signals, given, &layout)?;
            Ok(Observation {
                above: Above::Command,
                run: None,
                why: None,
                original: command.iter().map(|w| w.as_bytes().to_vec()).collect(),
                order: Some(order),
                chain,
            })
        }
        other => {
            let pid_at = |at: usize| chain.get(at).map_or(0, |seen| seen.identity.pid);
            let above = match other {
                Found::Orphan { at } => Above::Orphan { pid: pid_at(at) },
                Found::Retitled { at } => Above::Retitled { pid: pid_at(at) },
                Found::DaemonItself { at } => Above::DaemonItself { pid: pid_at(at) },
                Found::Nothing | Found::Run { .. } => Above::Nothing(
                    chain
                        .iter()
                        .map(|seen| String::from_utf8_lossy(&seen.comm).into_owned())
                        .collect(),
                ),
            };
            Ok(Observation {
                above,
                run: None,
                why: None,
                original: Vec::new(),
                order: None,
                chain,
            })
        }
    }
}

/// The agent daemon that lives now, when the one that started a run was restarted
/// meanwhile, perhaps by that very run: the one that the pid file names, or, since
/// a new daemon writes that only seconds after its start, the only one there is.
fn living_daemon(
    chain: &[Seen],
    at: usize,
    given: &Paths,
    settings: &Settings,
    layout: &Layout,
) -> Option<(Seen, Vec<Vec<u8>>, Invocation)> {
    let conf = read_conf(None, layout);
    let paths = paths::resolve(given, &settings.paths, None, &conf, layout);
    let run = chain.get(at)?;
    let euid = process::status(run.identity.pid).ok()?.euid;
    let look = |pid: i32| {
        // Asked first: what another user's command line names is not even opened.
        let is_alike = |seen: &Seen| {
            seen.exe == run.exe && process::status(pid).is_ok_and(|status| status.euid == euid)
        };
        let daemon = see(pid).filter(is_alike)?;
        let argv = split_block(&daemon.cmdline);
        let invocation = crate::puppet::cmdline::parse(&argv)?;
        let conf = read_conf(Some(&invocation), layout);
        is_daemon(&invocation, &conf).then_some((daemon, argv, invocation))
    };
    let named = paths
        .pidfile
        .and_then(|path| read_pid(&path.path()))
        .and_then(look);
    if named.is_some() {
        return named;
    }
    let mut found: Option<(Seen, Vec<Vec<u8>>, Invocation)> = None;
    for pid in process::all_pids() {
        let Some(daemon) = look(pid) else { continue };
        if found.as_ref().is_some_and(|(_, argv, _)| *argv != daemon.1) {
            // Two that differ: which one it would be is a guess.
            return None;
        }
        found = Some(daemon);
    }
    found
}

/// A run that was found, and where to look for the rest.
struct Finder<'a> {
    chain: &'a [Seen],
    at: usize,
    argv: &'a [Vec<u8>],
    invocation: &'a Invocation,
    started: Started,
    daemon: Option<&'a Seen>,
    layout: &'a Layout,
    settings: &'a Settings,
    around: &'a Surroundings,
    euid: u32,
    conf: Conf,
}

impl Finder<'_> {
    fn run(&self) -> &Seen {
        &self.chain[self.at]
    }

    fn pid(&self) -> i32 {
        self.run().identity.pid
    }

    fn is_ours(&self) -> bool {
        self.euid == self.around.uid
    }

    fn above(&self) -> Result<Above> {
        let pid = self.pid();
        if !self.is_ours() {
            return Ok(Above::Run {
                pid,
                other_user: Some(user::name(self.euid)),
                noop: None,
                input: Input::NotRead,
                directory_gone: None,
            });
        }
        let directory = process::cwd(pid)
            .with_context(|| format!("cannot see the working directory of the run (pid {pid})"))?;
        let gone = self.invocation.application == Application::Apply && is_deleted(&directory);
        Ok(Above::Run {
            pid,
            other_user: None,
            noop: match self.invocation.noop {
                Some(word) => word.then_some("--noop"),
                None => self
                    .conf
                    .is_noop(self.invocation.application)
                    .then_some("noop = true in puppet.conf"),
            },
            input: self.input()?,
            directory_gone: gone.then(|| directory.display().to_string()),
        })
    }

    fn input(&self) -> Result<Input> {
        if !self.invocation.reads_standard_input() {
            return Ok(Input::NotRead);
        }
        let pid = self.pid();
        let what = process::descriptor(pid, 0)
            .with_context(|| format!("cannot see the standard input of the run (pid {pid})"))?;
        let kind = std::fs::metadata(format!("/proc/{pid}/fd/0")).map(|meta| meta.file_type());
        Ok(match kind {
            Ok(kind) if kind.is_file() && !is_deleted(&what) => Input::File,
            Ok(kind) if kind.is_char_device() && what == Path::new("/dev/null") => Input::NotRead,
            _ => Input::Once(what.display().to_string()),
        })
    }

    fn kind(&self) -> Kind {
        match (self.invocation.application, self.started) {
            (Application::Apply, _) => Kind::Apply,
            (Application::Agent, Started::OneOff) => Kind::Agent,
            (Application::Agent, Started::ByDaemon) => Kind::Daemon,
        }
    }

    /// The run's own environment; from the daemon's process where there is one,
    /// since the run's is overwritten by its title; else ours, mended.
    fn environment(&self) -> Vec<Vec<u8>> {
        let own_title = self.daemon.is_some();
        let from = self.daemon.unwrap_or(self.run());
        let block = process::environ(from.identity.pid)
            .ok()
            .filter(|block| environment::is_whole(block) && !(own_title && block.is_empty()));
        let entries = block.map_or_else(
            || {
                let own = self
                    .around
                    .environment
                    .iter()
                    .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
                    .collect();
                environment::restored(
                    own,
                    self.around
                        .home
                        .as_ref()
                        .map(|home| home.as_os_str().as_bytes()),
                    user::name(self.around.uid).as_bytes(),
                )
            },
            |block| split_block(&block),
        );
        environment::without_ours(entries)
    }

    fn order(&self, given: &Paths, replaced: &[OsString]) -> Result<Order> {
        let pid = self.pid();
        let environment = self.environment();
        let directory = process::cwd(pid)
            .ok()
            .filter(|directory| !is_deleted(directory))
            .unwrap_or_else(|| PathBuf::from("/"));
        let (arguments, programs) = if replaced.is_empty() {
            let arguments = rewrite(self.argv, self.invocation, self.started, &self.conf);
            let programs = programs(
                self.run().exe.as_deref(),
                arguments.first().map(Vec::as_slice).unwrap_or_default(),
                &environment,
                &directory,
            );
            (arguments, programs)
        } else {
            let arguments: Vec<Vec<u8>> = replaced.iter().map(|w| w.as_bytes().to_vec()).collect();
            let programs = programs(None, &arguments[0], &environment, &directory);
            (arguments, programs)
        };
        let file = |path: &[u8]| directory.join(os(path));
        let input = match self.input()? {
            Input::File => Some(process::descriptor(pid, 0)?),
            _ => None,
        };
        Ok(Order {
            version: VERSION,
            kind: self.kind(),
            programs: programs.iter().map(|p| Bytes::from(p.as_path())).collect(),
            arguments: arguments.into_iter().map(Bytes).collect(),
            directory: Bytes::from(directory.as_path()),
            environment: Some(environment.into_iter().map(Bytes).collect()),
            attributes: attributes::of_process(pid, None)
                .with_context(|| format!("cannot see the attributes of the run (pid {pid})"))?,
            manifest: self
                .invocation
                .manifest()
                .filter(|_| replaced.is_empty())
                .map(|path| Bytes::from(file(path).as_path())),
            input: input.map(|path| Bytes::from(path.as_path())),
            paths: paths::resolve(
                given,
                &self.settings.paths,
                Some(self.invocation),
                &self.conf,
                self.layout,
            )
            .from_directory(&directory),
            daemon: self.daemon.map(|seen| seen.identity),
            log_dir: Bytes::from(self.settings.log_dir.as_path()),
            keep_logs: self.settings.keep_logs,
        })
    }
}

/// The order for a command that a person named, outside any run.
fn command_order(
    command: &[OsString],
    settings: &Settings,
    around: &Surroundings,
    signals: SignalState,
    given: &Paths,
    layout: &Layout,
) -> Result<Order> {
    let directory = std::env::current_dir().context("cannot see the working directory")?;
    let environment: Vec<Vec<u8>> = around
        .environment
        .iter()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .collect();
    let environment = environment::without_ours(environment);
    let mut arguments: Vec<Vec<u8>> = command.iter().map(|w| w.as_bytes().to_vec()).collect();
    // Two programs of the same relative name in two directories are two targets.
    if let Some(first) = arguments.first_mut()
        && first.contains(&b'/')
    {
        *first = directory.join(os(first)).into_os_string().into_vec();
    }
    let programs = programs(
        None,
        arguments.first().map(Vec::as_slice).unwrap_or_default(),
        &environment,
        &directory,
    );
    let me = process::own_identity().context("cannot read /proc")?;
    let none = Paths::default();
    Ok(Order {
        version: VERSION,
        kind: Kind::Command,
        programs: programs.iter().map(|p| Bytes::from(p.as_path())).collect(),
        arguments: arguments.into_iter().map(Bytes).collect(),
        directory: Bytes::from(directory.as_path()),
        environment: Some(environment.into_iter().map(Bytes).collect()),
        attributes: attributes::of_process(me.pid, Some(signals)).context("cannot read /proc")?,
        manifest: None,
        input: None,
        paths: if *given == none && settings.paths == none {
            none
        } else {
            paths::resolve(
                given,
                &settings.paths,
                None,
                &read_conf(None, layout),
                layout,
            )
        },
        daemon: None,
        log_dir: Bytes::from(settings.log_dir.as_path()),
        keep_logs: settings.keep_logs,
    })
}

/// A command that a driver runs, as far as it can be understood beforehand.
#[derive(Debug)]
pub struct CommandLine {
    /// The target's id: of the command, whatever puppet runs below it.
    pub target: String,
    /// Where its program may be found, the best first.
    pub programs: Vec<PathBuf>,
    /// The command as puppet's, if it is puppet itself.
    pub invocation: Option<Invocation>,
    /// Puppet's own files, as far as the command tells.
    pub paths: Paths,
}

/// Looks at a command before it is run.
///
/// # Errors
/// What could not be seen.
pub fn command_line(
    command: &[OsString],
    settings: &Settings,
    around: &Surroundings,
    signals: SignalState,
) -> Result<CommandLine> {
    let words: Vec<Vec<u8>> = command.iter().map(|w| w.as_bytes().to_vec()).collect();
    let invocation = crate::puppet::cmdline::parse(&words);
    let home = around.home.as_deref().filter(|_| around.uid != 0);
    let none = Paths::default();
    let mut order = command_order(
        command,
        settings,
        around,
        signals,
        &none,
        &paths::layout(Path::new(""), home, |path| path.exists()),
    )?;
    let programs: Vec<PathBuf> = order.programs.drain(..).map(|p| p.path()).collect();
    // A link may lead to where the packages keep their own.
    let exe = programs
        .iter()
        .find_map(|program| program.canonicalize().ok())
        .unwrap_or_default();
    let layout = paths::layout(&exe, home, |path| path.exists());
    let conf = read_conf(invocation.as_ref(), &layout);
    Ok(CommandLine {
        target: crate::target::id(&order, around.uid),
        programs,
        paths: paths::resolve(&none, &settings.paths, invocation.as_ref(), &conf, &layout),
        invocation,
    })
}

/// Where the program of a command line may be found at the time of the rerun, the
/// best first: what the run executes; what its first argument names. If the file
/// was replaced meanwhile, the name goes first, then what is now at its old place.
fn programs(
    exe: Option<&Path>,
    first: &[u8],
    environment: &[Vec<u8>],
    directory: &Path,
) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let named: Vec<PathBuf> = if first.contains(&b'/') {
        vec![directory.join(os(first))]
    } else {
        let path = environment
            .iter()
            .find_map(|entry| entry.strip_prefix(b"PATH="))
            .unwrap_or(b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        path.split(|&b| b == b':')
            // An empty or relative element would make it depend on a directory.
            .filter(|dir| dir.starts_with(b"/"))
            .map(|dir| PathBuf::from(os(dir)).join(os(first)))
            .collect()
    };
    match exe {
        Some(exe) if is_deleted(exe) => {
            found.extend(named);
            let bytes = exe.as_os_str().as_bytes();
            let name = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
            found.push(PathBuf::from(os(name)));
        }
        Some(exe) => {
            found.push(exe.to_owned());
            found.extend(named);
        }
        None => found.extend(named),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_program_is_looked_up_by_name_first() {
        let environment = [b"PATH=/a:rel::/b".to_vec()];
        let list = |exe: &str, first: &[u8]| -> Vec<String> {
            programs(Some(Path::new(exe)), first, &environment, Path::new("/d"))
                .iter()
                .map(|p| p.display().to_string())
                .collect()
        };
        assert_eq!(
            list("/usr/bin/ruby3.1", b"/usr/bin/ruby"),
            ["/usr/bin/ruby3.1", "/usr/bin/ruby"]
        );
        assert_eq!(
            list("/usr/bin/ruby3.1 (deleted)", b"ruby"),
            ["/a/ruby", "/b/ruby", "/usr/bin/ruby3.1"]
        );
        assert_eq!(list("/x", b"./y"), ["/x", "/d/./y"]);
    }

    #[test]
    fn the_chain_ends_at_the_first_process() {
        let chain = chain_from(i32::try_from(std::process::id()).expect("pid"));
        assert_eq!(chain[1].identity.pid, parent());
        assert!(
            chain
                .last()
                .is_some_and(|seen| process::stat(seen.identity.pid).is_ok_and(|s| s.ppid == 0))
        );
    }
}
