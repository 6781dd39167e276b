//! `again` runs the same puppet command line again, once the current run has ended.
//!
//! # Theory of operation
//!
//! A request ([`request`]) is made from inside a puppet run, which waits for it. It *observes* the
//! run above it ([`request::observe`]), *judges* whether there is to be a rerun ([`policy::judge`],
//! pure), *records* a timer ([`state`]), *spawns* a waiter in a session of its own
//! ([`again_base::sys::spawn`]), prints one line, and exits.
//!
//! The waiter ([`waiter`]) observes the world, gets one step from [`policy::waiter`], takes it, and
//! observes again, until it becomes the rerun by exec or has a reason to end. It sleeps on a pidfd,
//! a timer on CLOCK_BOOTTIME and a signalfd. If pidfds exist, it polls neither for the end of a run
//! nor for its time.
//!
//! A converge driver ([`mod@converge`]) runs a command in the foreground. A request below it goes
//! through the driver's inbox ([`state::driver`]) rather than to a waiter, and [`policy::converge`]
//! decides what comes next.
//!
//! Every decision rests on the target's record, which is changed only under its lock and
//! only by renaming a new file over it: the first process to commit wins, and a process
//! that dies at any point leaves the old record or the new one.

pub mod cli;
pub mod commands;
pub mod config;
pub mod converge;
pub mod outcome;
pub mod policy;
pub mod puppet;
pub mod request;
pub mod state;
pub mod sys;
pub mod waiter;

use std::ffi::OsString;

use again_base::layout::{self, complain};
use again_base::model::{Exit, Usage};
use again_base::sys::attributes::{self, SignalState};
use again_base::sys::{clock, log, process, start};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use cli::{Cli, Command};

/// Runs the program; `arguments` holds the program's name first. Returns the exit status.
pub fn main(arguments: Vec<OsString>) -> i32 {
    start::fill_standard_descriptors();
    if start::is_raised() {
        complain(
            "again: error: this program has more privilege than its caller, whose environment it would obey (set-user-ID, set-group-ID or file capabilities); remove them",
        );
        return Exit::Failure as i32;
    }
    let verb = arguments.get(1);
    let is_observer = verb.is_some_and(|word| word == waiter::observer::NAME);
    let is_waiter = verb.is_some_and(|word| word == waiter::handshake::NAME) || is_observer;
    // A waiter was started with the signals that its order names.
    let signals = if is_waiter {
        SignalState::default()
    } else {
        SignalState::of_this_process()
    };
    // A failed write is an error to handle, not a reason to die.
    attributes::let_writes_fail();
    if is_observer {
        return waiter::observer::main(&arguments);
    }
    if is_waiter {
        return waiter::main(&arguments);
    }
    if arguments
        .get(1)
        .is_some_and(|word| word == state::upkeep::NAME)
    {
        return state::upkeep::main(&arguments);
    }
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let begun = log::of_command(cli.global.verbose).and_then(|()| Ok(clock::locate()?));
    let begun = begun.and_then(|()| sees_processes());
    match begun.and_then(|()| dispatch(cli, signals)) {
        Ok(status) => status,
        Err(e) if is_broken_pipe(&e) => 0,
        Err(e) => {
            complain(&format!("again: error: {e:#}"));
            if e.is::<Usage>() {
                Exit::Usage as i32
            } else {
                Exit::Failure as i32
            }
        }
    }
}

/// Parses the command line. Returns the exit status if nothing is left to do.
fn parse(arguments: &[OsString]) -> Result<Cli, i32> {
    let known = Cli::request(arguments).or_else(|| Cli::fleet(arguments));
    let cli = known.map_or_else(|| Cli::try_parse_from(arguments), Ok);
    let cli = cli.map_err(|e| {
        if e.use_stderr() {
            complain(&format!("again: error: {}", misread(&e, arguments)));
        } else {
            let _ = e.print();
        }
        e.exit_code()
    })?;
    if cli.command.is_some() && cli.run != cli::Run::default() {
        complain(
            "again: error: the options of a request go after 'run' (again run --delta 120); no other command takes them",
        );
        return Err(Exit::Usage as i32);
    }
    Ok(cli)
}

/// Message in one line about an invalid command line. Only this program knows that a word which is
/// not a command cannot be an argument of `run`.
fn misread(error: &clap::Error, arguments: &[OsString]) -> String {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && !word.starts_with('-')
        && !arguments.iter().skip(1).any(|word| cli::is_command(word))
    {
        let what = format!("there is no command '{word}'");
        return match cli::meant(word) {
            Some(meant) => format!("{what}; did you mean '{meant}'?"),
            None => format!("{what}; see 'again --help'"),
        };
    }
    layout::misread(error, "again")
}

fn dispatch(cli: Cli, signals: SignalState) -> anyhow::Result<i32> {
    let global = &cli.global;
    // A request resumes timers itself, with its own settings.
    use Command::{Disable, Enable, Reset, Stop};
    let changes = matches!(cli.command, Some(Stop(_) | Disable(_) | Enable | Reset(_)));
    let exit = match cli.command {
        None => commands::run::main(global, &cli.run, signals),
        Some(Command::Run(run)) => commands::run::main(global, &run, signals),
        Some(Command::Status(args)) => commands::status::main(global, &args, signals),
        Some(Command::Stop(args)) => commands::stop::main(global, &args),
        Some(Command::Resume) => commands::resume::main(global),
        Some(Command::Now(args)) => commands::now::main(global, &args),
        Some(Command::Disable(args)) => commands::disable::main(global, &args),
        Some(Command::Enable) => commands::enable::main(global),
        Some(Command::Reset(args)) => commands::reset::main(global, &args),
        Some(Command::History(args)) => commands::history::main(global, &args),
        Some(Command::Log(args)) => commands::log::main(global, &args, signals),
        Some(Command::Metrics) => commands::metrics::main(global),
        Some(Command::Explain(args)) => commands::explain::main(global, &args, signals),
        Some(Command::Fleet(args)) => commands::fleet::main(&args, signals),
        // The status may be any that a run can end with.
        Some(Command::Converge(args)) => return commands::converge::main(global, &args, signals),
    };
    // Each command that changes something resumes timers that have lost their waiter.
    if changes && let Ok(settings) = config::of_command(global) {
        commands::resume::in_passing(global, &settings.state_dir);
    }
    exit.map(|exit| exit as i32)
}

/// Checks that /proc is mounted. Without it a living process would look dead.
fn sees_processes() -> anyhow::Result<()> {
    match process::own_identity() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => anyhow::bail!(
            "no process can be seen, since /proc is not mounted; mount it: mount -t proc proc /proc"
        ),
        _ => Ok(()),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
