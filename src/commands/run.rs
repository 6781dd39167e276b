//! `again run`: makes a request.

use anyhow::Result;

use super::resume;
use crate::cli::{Global, Run};
use crate::request::asked::{Answer, Request};
use crate::request::make;
use again_base::layout::{complain, say_clean};
use again_base::model::Exit;
use again_base::sys::attributes::SignalState;

/// Makes a request, and prints its result in one line.
///
/// # Errors
/// The failure; no timer was set then.
pub fn main(global: &Global, run: &Run, signals: SignalState) -> Result<Exit> {
    let request = Request::new(global, run, signals)?;
    let exit = make(&request).map(tell);
    resume::in_passing(global, &request.settings.state_dir);
    exit
}

fn tell(answer: Answer) -> Exit {
    if answer.exit != Exit::Success {
        complain(&answer.line);
    } else if let Err(e) = say_clean(&answer.line)
        // A reader that has closed the pipe does not need a warning either.
        && e.kind() != std::io::ErrorKind::BrokenPipe
    {
        let line = answer.line.trim_start_matches("again: ");
        complain(&format!("again: warning: {e}; the line was: {line}"));
    }
    answer.exit
}
