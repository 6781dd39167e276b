//! The life of a converge driver, which runs a command in the foreground.
//!
//! The run stays in our process group, so that the terminal is its own and ^C reaches all of
//! us at once; we note the signal and wait for the run. A signal sent to us alone is passed on
//! to the processes that ^C would reach.
#![forbid(unsafe_code)]

mod attend;
mod command;
mod driving;
mod known;
mod life;
mod run;
mod screen;
mod verdict;

pub use command::{Command, environment};
pub use known::Known;
pub use life::main;
