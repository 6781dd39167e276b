//! Facts about Puppet. Nothing here knows about `again`.
#![forbid(unsafe_code)]

// For a while.
pub use again_base::puppet::{cmdline, conf, options, prefix};

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
