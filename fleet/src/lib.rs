//! `again-fleet` carries triggers between machines: what one node's change starts on others.

/// How the backend is reached.
pub mod access;
/// The language between a command and the service.
pub mod ask;
/// The store between the nodes.
pub mod backend;
/// What was typed.
pub mod cli;
/// The executor.
pub mod executor;
/// The language between the service and the executor.
pub mod handover;
/// What `again` prints.
mod helper;
/// Who signed what.
pub mod identity;
/// What must not be lost.
pub mod outbox;
/// What a node decides.
pub mod policy;
mod puppet;
/// Values as they stand in the backend: signed, verified.
pub mod seal;
/// The service of a node.
pub mod service;
/// What can be set.
pub mod settings;
/// Files in which runs leave their events.
pub mod spool;
/// The service, one step at a time.
pub mod step;
/// What Puppet and people call.
pub mod verbs;
/// What stands in the backend, as bytes.
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

/// Runs the program; `arguments` holds the program's name first. The exit status.
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
