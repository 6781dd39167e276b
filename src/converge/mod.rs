//! The converge driver, which runs a command in the foreground.
//!
//! The run stays in our process group, so that it has the terminal and ^C reaches all processes of
//! the group; the driver notes the signal and waits for the run. A signal sent to the driver alone
//! is passed on to the processes that ^C would reach.
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
