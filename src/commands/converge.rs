//! `again converge`: runs a command in the foreground until nothing asks for more.

use anyhow::Result;

use crate::cli::{Converge, Global, Run};
use crate::config::{self, Surroundings};
use crate::converge::{self, Command};
use crate::model::Usage;
use crate::observe;
use crate::sys::attributes::SignalState;
use crate::sys::spawn::Image;

/// Drives the command to the end. The exit status of this process.
///
/// # Errors
/// What went wrong on our side.
pub fn main(global: &Global, args: &Converge, signals: SignalState) -> Result<i32> {
    let around = Surroundings::of_this_process();
    let run = Run {
        max_runs: args.max_runs,
        ..Run::default()
    };
    let settings = config::settings(global, &run, &around)?;
    if args.max_runs == Some(0) {
        let what = "the settings cannot be used: --max-runs must be at least 1";
        return Err(Usage(what.into()).into());
    }
    let line = observe::command_line(&args.command, &settings, &around, signals)?;
    // Requests below find us by it, however it was named on our own command line.
    let named = global.state_dir.is_some() || global.config.is_some();
    let command = Command {
        image: Image {
            programs: line.programs,
            arguments: args.command.clone(),
            environment: converge::environment(&around, named.then_some(&settings.state_dir)),
        },
        signals,
    };
    let known = converge::Known::of(line.invocation.as_ref(), line.paths);
    converge::main(args, &settings, line.target, command, known)
}
