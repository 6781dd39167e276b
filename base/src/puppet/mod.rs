//! Syntax of Puppet: its command lines and its configuration.
#![forbid(unsafe_code)]

pub mod cmdline;
pub mod conf;
pub mod options;
pub mod prefix;
