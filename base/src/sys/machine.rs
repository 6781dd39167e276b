//! The machine that this program sees: the kernel's clocks, processes and signals, unless a test has replaced them for
//! its thread. The model in `tests/faults` drives requests, verbs and waiters so, with a clock that is a number and
//! processes that are entries in a table.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::model::{Identity, Moment};

/// What stands in for the kernel.
pub trait Machine {
    /// Boot, place and both clocks.
    fn moment(&self) -> Moment;
    /// The pid of the process that acts.
    fn own_pid(&self) -> i32;
    /// The process with this pid.
    ///
    /// # Errors
    /// `NotFound` where there is none.
    fn identify(&self, pid: i32) -> io::Result<Identity>;
    /// Sends a signal.
    ///
    /// # Errors
    /// `NotFound` where there is no such process.
    fn signal(&self, who: Identity, signal: i32) -> io::Result<()>;
    /// Starts a process that keeps these descriptors, and says through `ready` that it is there.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn start(&self, keep: &[&OwnedFd], ready: &OwnedFd) -> io::Result<Identity>;
    /// The run that holds the agent's lock of a target, and whether it does the job of its rerun.
    fn lock_holder(&self, target: &str) -> Option<(Identity, bool)>;
    /// A moment at which the process that acts may end.
    fn look(&self);
    /// Takes a line that is printed.
    fn print(&self, line: &str);
    /// The seed of a random source.
    fn seed(&self) -> u64;
}

thread_local! {
    static REPLACEMENT: RefCell<Option<Rc<dyn Machine>>> = const { RefCell::new(None) };
}

/// The kernel is replaced in this thread until this is dropped.
#[derive(Debug)]
pub struct Replaced(());

impl Drop for Replaced {
    fn drop(&mut self) {
        REPLACEMENT.set(None);
    }
}

/// Replaces the kernel in this thread. For tests alone.
pub fn replace(machine: Rc<dyn Machine>) -> Replaced {
    REPLACEMENT.set(Some(machine));
    Replaced(())
}

/// What replaces the kernel, in a test.
pub fn replacement() -> Option<Rc<dyn Machine>> {
    REPLACEMENT.with_borrow(Clone::clone)
}

/// A moment at which a test may end this process.
pub fn look() {
    if let Some(machine) = replacement() {
        machine.look();
    }
}

/// A source of random numbers.
pub fn random() -> StdRng {
    match replacement() {
        Some(machine) => StdRng::seed_from_u64(machine.seed()),
        None => StdRng::from_rng(&mut rand::rng()),
    }
}
