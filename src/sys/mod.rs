//! The kernel, and, but for the entry point, the only room with unsafe code: one module
//! per need.

pub mod attributes;
// The release's libc; elsewhere the unwinder is shared, and tests want it.
#[cfg(target_env = "musl")]
mod backtrace;
pub mod clock;
pub mod file;
pub mod flock;
pub mod foreground;
pub mod localtime;
pub mod log;
pub mod memory;
pub mod mounts;
pub mod pidfd;
pub mod process;
pub mod sleep;
pub mod spawn;
pub mod start;
pub mod terminal;
pub mod title;
pub mod unit;
pub mod user;
