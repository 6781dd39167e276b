//! One file per verb, and their shared code: targets.rs and report.rs.
#![forbid(unsafe_code)]

pub mod converge;
pub mod disable;
pub mod enable;
pub mod explain;
pub mod fleet;
pub mod history;
pub mod log;
pub mod metrics;
pub mod now;
mod report;
pub mod reset;
pub mod resume;
pub mod run;
pub mod status;
pub mod stop;
mod targets;
