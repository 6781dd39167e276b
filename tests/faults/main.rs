//! What goes wrong on real machines, provoked: broken disks and records, exhausted limits, a hostile neighbour.
//! Deaths at every system call are in `tests/process`; what happens to units and across reboots is in `tests/lab`.
#![allow(missing_docs, unsafe_code)]

/// The clock is set, and the machine suspended, under real processes.
mod clock;
/// An unprivileged user of the same machine. SECURITY.md names these tests.
mod hostile;
/// Many at once, and deaths at random moments.
mod many;
/// Everything that can happen to a timer, in any order, over the real store and a clock that is a number.
mod model;
/// What needs more than the root of a container may do.
mod privileged;
/// Under a waiter: its descriptors, its program, the clock.
mod under;
