//! `again converge`: the foreground driver, with real processes, terminals and a real Puppet.
//!
//! The binary under test is `AGAIN_BIN`, or what `make build` left. A scratch is a scratch
//! directory for everything; when it goes, nothing that was started in it may be left.
#![allow(missing_docs)]

/// Signals, from a terminal and from elsewhere; the driver killed.
mod endings;
/// Who takes which request.
mod handover;
/// As the first process of a pid namespace.
mod privileged;
/// Real puppet runs.
mod puppet;
/// What is shown where.
mod screen;
