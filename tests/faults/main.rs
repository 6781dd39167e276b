//! Faults of real machines, caused on purpose: broken disks and records, exhausted limits, a
//! hostile neighbour. Deaths at every system call are in `tests/process`; units and reboots are in
//! `tests/lab`.
#![allow(missing_docs, unsafe_code)]

/// Changes of the clock and suspends, with real processes.
mod clock;
/// Unprivileged user of the same machine. SECURITY.md names these tests.
mod hostile;
/// Many processes at the same time, and deaths at random moments.
mod many;
/// Every event in a timer's life, in any order, with the real store and a clock that is a number.
mod model;
/// Tests that need more privileges than the root of a container may have.
mod privileged;
/// Changes beneath a waiter: its descriptors, its program, the clock.
mod under;
