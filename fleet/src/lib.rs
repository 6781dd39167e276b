//! `again-fleet` sends triggers between machines: a change on one node starts runs on others.

/// Access to the backend.
pub mod access;
/// The protocol between a command and the service.
pub mod ask;
/// The store that the nodes share.
pub mod backend;
/// The command line.
pub mod cli;
/// The executor.
pub mod executor;
/// The protocol between the service and the executor.
pub mod handover;
/// Output of `again`, with limits.
mod helper;
/// Certificates, signatures and their verification.
pub mod identity;
/// Durable storage for values that the service has to send.
pub mod outbox;
/// Decisions, without input or output.
pub mod policy;
mod puppet;
/// Signing and verification of values in the backend.
pub mod seal;
/// The service of a node.
pub mod service;
/// The settings.
pub mod settings;
/// Files of events and requests on this node.
pub mod spool;
/// The service's state machine.
pub mod step;
/// The commands that Puppet and people run.
pub mod verbs;
/// Encoding of values in the backend.
pub mod wire;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use again_base::layout::{complain, misread};
use again_base::sys::{log, start};
use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command};
use executor::Executor;
use settings::{Flags, Surroundings};
use verbs::{Exit, Problem};

/// Runs the program and returns its exit status; `arguments` begins with the program's name.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    if start::is_raised() {
        complain(
            "again-fleet: error: this program has more privilege than its caller, whose environment it would obey (set-user-ID, set-group-ID or file capabilities); take them away",
        );
        return ExitCode::from(Exit::Failed as u8);
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(e) => {
            // clap reports a missing command as an error whose text is the help.
            if e.use_stderr() && e.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                complain(&format!(
                    "again-fleet: error: {}",
                    misread(&e, "again-fleet")
                ));
            } else {
                let _ = e.print();
            }
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(Exit::Usage as u8));
        }
    };
    let is_service = matches!(
        cli.command,
        Command::Serve | Command::Executor(_) | Command::Call(_)
    );
    if is_service {
        log::of_service("again-fleet");
    }
    match dispatch(cli) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(Problem::NobodyReads) => ExitCode::SUCCESS,
        Err(e) => {
            match is_service {
                true => tracing::error!("error: {e}"),
                false => complain(&format!("again-fleet: error: {e}")),
            }
            let is_usage = matches!(e, Problem::Usage(_));
            let exit = if is_usage { Exit::Usage } else { Exit::Failed };
            ExitCode::from(exit as u8)
        }
    }
}

fn dispatch(cli: Cli) -> Result<Exit, Problem> {
    let flags = Flags {
        config: cli.global.config,
        state_dir: cli.global.state_dir,
    };
    let around = Surroundings::of_this_process();
    match cli.command {
        Command::Serve => {
            service::serve(&flags, &around)?;
            Ok(Exit::Done)
        }
        Command::Executor(take) => {
            let mut taker = Executor::new(flags, around);
            let idle = Duration::from_nanos(take.idle.nanos());
            executor::socket::attend(&executor::socket::passed()?, &mut taker, idle)?;
            Ok(Exit::Done)
        }
        Command::Call(call) => {
            let settings = settings::settings(&flags, &around)?;
            let idle = Duration::from_nanos(call.idle.nanos());
            executor::caller::work(&settings.state_dir, idle).map_err(Problem::Failed)?;
            Ok(Exit::Done)
        }
        Command::Trigger(args) => verbs::trigger::main(&flags, &around, &args),
        Command::Cancel(args) => verbs::cancel::main(&flags, &around, &args),
        Command::Story(args) => verbs::story::main(&flags, &around, &args),
        Command::Events(args) => verbs::events::main(&flags, &around, &args),
        Command::Nodes(args) => verbs::nodes::main(&flags, &around, &args),
        Command::Forget(args) => verbs::nodes::forget(&flags, &around, &args),
        Command::Tell(args) => verbs::tell::main(&flags, &around, &args),
        Command::Slot(args) => verbs::slot::main(&flags, &around, &args),
        Command::Slots(args) => verbs::slots::main(&flags, &around, &args),
        Command::Release(args) => verbs::slots::release(&flags, &around, &args),
        Command::Locks(args) => verbs::locks::main(&flags, &around, &args),
        Command::Move(args) => verbs::locks::move_lock(&flags, &around, &args),
        Command::Check(args) => verbs::check::main(&flags, &around, &args),
        Command::Ca(args) => verbs::ca::main(&args),
    }
}

/// The name that this crate has in `tests/support`.
#[cfg(test)]
extern crate self as again_fleet;
