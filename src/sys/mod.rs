//! The kernel, and, but for the entry point, the only room with unsafe code: one module
//! per need.

pub mod attributes;
pub mod clock;
pub mod file;
pub mod flock;
pub mod foreground;
pub mod idle;
pub mod links;
pub mod localtime;
pub mod log;
pub mod machine;
pub mod memory;
pub mod mounts;
pub mod pidfd;
pub mod process;
pub mod shutdown;
pub mod sleep;
pub mod spawn;
pub mod start;
pub mod terminal;
pub mod title;
pub mod tree;
pub mod trust;
pub mod unit;
pub mod user;
pub mod viewer;
