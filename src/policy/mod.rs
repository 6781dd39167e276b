//! Decisions, as functions of data. Time and random values are arguments; nothing here reads a
//! clock, a file or a process.
#![forbid(unsafe_code)]

pub mod cap;
pub mod converge;
pub mod hurry;
pub mod judge;
pub mod next;
pub mod resume;
pub mod shutdown;
pub mod waiter;
