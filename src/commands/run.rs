//! `again run`: a request.

use anyhow::Result;

use crate::cli::{Global, Run};
use crate::layout::{complain, say};
use crate::model::Exit;
use crate::request::{asked::Request, make};
use crate::sys::attributes::SignalState;

/// Makes a request, and prints its result in one line.
///
/// # Errors
/// What went wrong; no timer was set then.
pub fn main(global: &Global, run: &Run, signals: SignalState) -> Result<Exit> {
    let answer = make(&Request::new(global, run, signals)?)?;
    if answer.exit != Exit::Success {
        complain(&answer.line);
    } else if let Err(e) = say(&answer.line)
        // A reader that has closed the pipe wants no warning either.
        && e.kind() != std::io::ErrorKind::BrokenPipe
    {
        let line = answer.line.trim_start_matches("again: ");
        complain(&format!("again: warning: {e}; the line was: {line}"));
    }
    Ok(answer.exit)
}
