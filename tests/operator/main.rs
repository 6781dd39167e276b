//! What an operator types, against the real binary: every test has a state
//! directory of its own and runs that take milliseconds. Real Puppet is used where
//! its summary is the point.
#![allow(missing_docs)]

/// The completions, in the shells that they are for.
mod completions;
/// `again explain`.
mod explain;
/// `again history`.
mod history;
/// A lock that a stopped process holds.
mod locks;
/// `again log`.
mod log;
/// What is logged, where, and how much.
mod logging;
/// The manual pages, held against the program.
mod manual;
/// `again metrics`, by the real promtool.
mod metrics;
/// The rules and the dashboard for a monitoring, by a real Prometheus.
mod monitoring;
/// `again now`.
mod now;
/// What needs more than the root of a container may do.
mod privileged;
/// What is said when something is in the way, lost, or not there.
mod said;
/// `again status`, its JSON, and how reruns ended.
mod status;
/// `again disable`, `enable`, `reset`.
mod switch;
/// `again status --watch`.
mod watch;
