//! `again converge`: runs a command in the foreground until no request for another run is left.

use anyhow::{Context, Result};

use crate::cli::{Converge, Global, Run};
use crate::config::{self, Surroundings};
use crate::converge::{self, Command};
use crate::puppet::command::{Command as Line, Place};
use crate::puppet::paths::Paths;
use again_base::model::{Usage, target_id};
use again_base::puppet::cmdline::without_occasion;
use again_base::sys::attributes::SignalState;
use again_base::sys::spawn::Image;

/// Runs the driver until it ends. Returns the exit status of this process.
///
/// # Errors
/// Failures of the driver itself.
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
    let home = around.home.as_deref().filter(|_| around.uid != 0);
    let place =
        Place::here(&around.environment, home).context("cannot see the working directory")?;
    let line = Line::named(&args.command, &place);
    let target = target_id(around.uid, None, &without_occasion(line.words));
    let paths = line.setup.paths(&Paths::default(), &settings.paths);
    // Requests below find the driver in this directory, however it was set on our own command line.
    let named = global.state_dir.is_some() || global.config.is_some();
    let command = Command {
        image: Image {
            programs: line.programs,
            arguments: args.command.clone(),
            environment: converge::environment(&around, named.then_some(&settings.state_dir)),
        },
        signals,
    };
    let known = converge::Known::of(
        line.setup.invocation.as_ref(),
        paths,
        settings.paths.clone(),
    );
    converge::main(args, &settings, target, command, known)
}
