//! Facts about Puppet. Nothing here depends on `again`.
#![forbid(unsafe_code)]

pub mod ancestry;
pub mod command;
pub mod container;
pub mod environment;
pub mod job;
pub mod live;
pub mod locks;
pub mod paths;
pub mod rerun;
pub mod summary;
