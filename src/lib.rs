//! `again` runs the same puppet command line again, once the current run has ended.
//!
//! # Theory of operation
//!
//! A request ([`commands::run`]) is made from inside a puppet run, which waits for
//! it. It *observes* the run above it ([`observe`]), *judges* whether there is to
//! be a rerun ([`policy::judge`], pure), *records* a timer ([`state`]), *spawns* a
//! waiter in a session of its own ([`sys::spawn`]), prints one line, and exits.
//!
//! The waiter ([`waiter`]) looks at the world, asks [`policy::waiter`] for
//! one step, takes it, and looks again, until it becomes the rerun by exec or has
//! a reason to end. It sleeps on a pidfd, a timer on CLOCK_BOOTTIME and a
//! signalfd, and does not wake up to look where the kernel can tell it.
//!
//! A converge driver ([`mod@converge`]) runs a command in the foreground. A
//! request below it is handed over through the driver's inbox ([`state::driver`])
//! rather than to a waiter, and [`policy::converge`] decides what comes next.
//!
//! Everything anyone decides by lies in the target's record, which is changed only
//! under its lock and only by renaming a new file over it: whoever commits first
//! wins, and a process that dies at any point leaves the old record or the new one.

pub mod cli;
pub mod commands;
pub mod config;
pub mod converge;
pub mod layout;
pub mod model;
pub mod observe;
pub mod outcome;
pub mod policy;
pub mod puppet;
pub mod state;
pub mod sys;
pub mod target;
pub mod waiter;

use std::ffi::OsString;

use clap::Parser;

use cli::{Cli, Command};
use model::{Exit, Usage};
use sys::attributes::SignalState;

/// Runs the program; `arguments` holds the program's name first. The exit status.
pub fn main(arguments: Vec<OsString>) -> i32 {
    sys::start::fill_standard_descriptors();
    if sys::start::is_raised() {
        commands::complain(
            "again: error: it has more privilege than whoever started it, whose environment it would obey (set-user-ID, set-group-ID or file capabilities); take them away",
        );
        return Exit::Failure as i32;
    }
    let is_waiter = arguments
        .get(1)
        .is_some_and(|word| word == waiter::handshake::NAME);
    // A waiter was started with those that its order says.
    let signals = if is_waiter {
        SignalState::default()
    } else {
        SignalState::of_this_process()
    };
    // A write that cannot be done is an error to handle, not a reason to die.
    sys::attributes::let_writes_fail();
    if is_waiter {
        return waiter::main(&arguments);
    }
    let cli = match Cli::request(&arguments).map_or_else(|| Cli::try_parse_from(&arguments), Ok) {
        Ok(cli) => cli,
        Err(e) => {
            let status = e.exit_code();
            if e.use_stderr() {
                // One line, since an Exec logs it; the rest is in the help.
                let text = e.to_string();
                let what: Vec<&str> = text
                    .lines()
                    .map(str::trim)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let what = what.join(" ");
                let what = what.strip_prefix("error: ").unwrap_or(&what);
                commands::complain(&format!("again: error: {what}; see 'again --help'"));
            } else {
                let _ = e.print();
            }
            return status;
        }
    };
    if cli.command.is_some() && cli.run != cli::Run::default() {
        commands::complain(
            "again: error: the options of a request go behind 'run' (again run --delta 120), and no other command takes them",
        );
        return Exit::Usage as i32;
    }
    match sys::log::of_command(cli.global.verbose).and_then(|()| dispatch(cli, signals)) {
        Ok(status) => status,
        Err(e) if is_broken_pipe(&e) => 0,
        Err(e) => {
            commands::complain(&format!("again: error: {e:#}"));
            if e.is::<Usage>() {
                Exit::Usage as i32
            } else {
                Exit::Failure as i32
            }
        }
    }
}

fn dispatch(cli: Cli, signals: SignalState) -> anyhow::Result<i32> {
    let global = &cli.global;
    let exit = match cli.command {
        None => commands::run::main(global, &cli.run, signals),
        Some(Command::Run(run)) => commands::run::main(global, &run, signals),
        Some(Command::Status(args)) => commands::status::main(global, &args),
        Some(Command::Stop(args)) => commands::stop::main(global, &args),
        Some(Command::Resume) => commands::resume::main(global),
        Some(Command::Now(args)) => commands::now::main(global, &args),
        Some(Command::Disable(args)) => commands::disable::main(global, &args),
        Some(Command::Enable) => commands::enable::main(global),
        Some(Command::Reset(args)) => commands::reset::main(global, &args),
        Some(Command::History(args)) => commands::history::main(global, &args),
        Some(Command::Log(args)) => commands::log::main(global, &args),
        Some(Command::Metrics) => commands::metrics::main(global),
        Some(Command::Explain(args)) => commands::explain::main(global, &args, signals),
        // Its status may be any that a run can end with.
        Some(Command::Converge(args)) => return commands::converge::main(global, &args, signals),
    };
    exit.map(|exit| exit as i32)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
