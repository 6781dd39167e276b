//! The waiter: sleeps until the rerun is due, then becomes the rerun.
//!
//! Not for people: a request starts it with descriptors that are already open.
#![forbid(unsafe_code)]

pub mod handshake;
pub mod launch;
pub mod ledger;
pub mod life;
pub mod observer;
pub mod question;
pub mod start;
pub mod world;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;

use anyhow::{Context, Result};

use crate::state::order::Ticket;
use crate::state::store::Store;
use crate::sys::sleep::Sleeper;
use crate::sys::title;
use again_base::model::Exit;
use again_base::sys::attributes::SignalState;
use again_base::sys::{clock, log, spawn};

/// Runs a waiter to its end. Returns its exit status, unless the process becomes the rerun.
pub fn main(arguments: &[OsString]) -> i32 {
    let Some(inherited) = handshake::Inherited::take(arguments) else {
        let _ = writeln!(
            std::io::stderr(),
            "again: error: 'wait' is what 'again run' starts; it cannot be called by hand"
        );
        return Exit::Usage as i32;
    };
    // With systemd-run, the ready pipe was standard error.
    spawn::silence_standard_descriptors();
    title::set_short(c"again");
    std::panic::set_hook(Box::new(|info| {
        tracing::error!("a waiter has to give up: {info}");
    }));
    match run(inherited) {
        Ok(()) => 0,
        Err(e) => {
            tracing::error!("a waiter has to give up: {e:#}");
            1
        }
    }
}

fn run(inherited: handshake::Inherited) -> Result<()> {
    let (ticket, store, sleeper) = match prepare(&inherited.order) {
        Ok(prepared) => prepared,
        Err(e) => {
            inherited.cannot(&format!("{e:#}"));
            return Err(e);
        }
    };
    let (order, lock, run) = inherited.is_ready(ticket.run);
    let world = world::World::new(ticket, store, order, lock, run);
    life::Life::new(world).live(sleeper)
}

/// Acquires what the waiter needs before it reports to the requester that it is ready.
fn prepare(order: &File) -> Result<(Ticket, Store, Sleeper)> {
    let ticket = world::read_ticket(order)?;
    log::of_waiter();
    clock::locate()?;
    tracing::error_span!("timer", target = ticket.target, timer = ticket.name);
    // Held open from now on: a directory that later gets the same name is not ours.
    let store = Store::open(&ticket.state_dir.path())?;
    // From here on the waiter can act on a signal to end.
    let sleeper = Sleeper::new(SignalState::default()).context("cannot take over the signals")?;
    Ok((ticket, store, sleeper))
}
