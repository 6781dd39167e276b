//! `again run`: a request.

use anyhow::Result;

use super::{complain, say};
use crate::cli::{Global, Run};
pub use crate::layout::quoted;
use crate::model::Exit;
use crate::request::{Answer, Request};
use crate::sys::attributes::SignalState;

/// Makes a request, and prints what came of it in one line.
///
/// # Errors
/// What went wrong; no timer was set then.
pub fn main(global: &Global, run: &Run, signals: SignalState) -> Result<Exit> {
    match Request::new(global, run, signals)?.make()? {
        Answer::Taken(change) => {
            // Whoever does not read it does not want to be told so either.
            if let Err(e) = say(&change.line)
                && e.kind() != std::io::ErrorKind::BrokenPipe
            {
                complain(&format!("again: warning: the timer is set, but {e}"));
            }
            Ok(Exit::Success)
        }
        Answer::Refused(refusal) => {
            let line = format!("again: {refusal}");
            if refusal.exit() == Exit::Success {
                say(&line)?;
            } else {
                complain(&line);
            }
            Ok(refusal.exit())
        }
    }
}
