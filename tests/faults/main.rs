//! What goes wrong on real machines, provoked: broken disks and records, exhausted limits, a hostile neighbour.
//! Deaths at every system call are in `tests/process`; what happens to units and across reboots is in `tests/lab`.
#![allow(missing_docs, unsafe_code)]

/// Everything that can happen to a timer, in any order, over the real store and a clock that is a number.
mod model;
