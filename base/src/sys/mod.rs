//! Access to the kernel for both programs: one module per purpose.

pub mod attributes;
pub mod clock;
pub mod file;
pub mod flock;
pub mod links;
pub mod localtime;
pub mod log;
pub mod machine;
pub mod pidfd;
pub mod process;
pub mod spawn;
pub mod start;
pub mod terminal;
pub mod trust;
pub mod user;
pub mod viewer;
