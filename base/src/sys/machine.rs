//! Machine that this program runs on: the kernel's clocks, processes and signals, unless a test has
//! replaced them for its thread. The model in `tests/faults` runs requests, verbs and waiters this
//! way, with a clock that is a number and processes that are entries in a table.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::model::{Identity, Moment};

/// Replacement for the kernel.
pub trait Machine {
    /// Moment with boot, place and both clocks.
    fn moment(&self) -> Moment;
    /// Pid of the process that acts.
    fn own_pid(&self) -> i32;
    /// Identity of the process with this pid.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    fn identify(&self, pid: i32) -> io::Result<Identity>;
    /// Sends a signal to a process.
    ///
    /// # Errors
    /// `NotFound` if there is no such process.
    fn signal(&self, who: Identity, signal: i32) -> io::Result<()>;
    /// Starts a process that keeps these descriptors, and reports through `ready` that it has
    /// started.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    fn start(&self, keep: &[&OwnedFd], ready: &OwnedFd) -> io::Result<Identity>;
    /// Run that holds the agent's lock of a target, and whether it does the job of its rerun.
    fn lock_holder(&self, target: &str) -> Option<(Identity, bool)>;
    /// Called at a point at which the acting process may end.
    fn look(&self);
    /// Prints a line.
    fn print(&self, line: &str);
    /// Seed of a random source.
    fn seed(&self) -> u64;
}

thread_local! {
    static REPLACEMENT: RefCell<Option<Rc<dyn Machine>>> = const { RefCell::new(None) };
}

/// Guard: the kernel is replaced in this thread until it is dropped.
#[derive(Debug)]
pub struct Replaced(());

impl Drop for Replaced {
    fn drop(&mut self) {
        REPLACEMENT.set(None);
    }
}

/// Replaces the kernel in this thread. For tests only.
pub fn replace(machine: Rc<dyn Machine>) -> Replaced {
    REPLACEMENT.set(Some(machine));
    Replaced(())
}

/// Replacement for the kernel in this thread; `None` outside tests.
pub fn replacement() -> Option<Rc<dyn Machine>> {
    REPLACEMENT.with_borrow(Clone::clone)
}

/// Marks a point at which a test may end this process.
pub fn look() {
    if let Some(machine) = replacement() {
        machine.look();
    }
}

/// Source of random numbers.
pub fn random() -> StdRng {
    match replacement() {
        Some(machine) => StdRng::seed_from_u64(machine.seed()),
        None => StdRng::from_rng(&mut rand::rng()),
    }
}
