//! The question for a slot of the fleet: a child of the waiter, which waits in its place and ends
//! once the run may start. The run is the process that called it, so what is had is the rerun's.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::launch::environment_of;
use crate::state::order::Order;
use crate::sys::foreground;
use again_base::model::End;
use again_base::sys::pidfd;
use again_base::sys::spawn::{self, Image};

/// The longest line that is kept, in bytes.
const LONGEST: usize = 1000;

/// A question that has no answer yet.
#[derive(Debug)]
pub struct Question {
    child: Option<i32>,
    /// Its output, until that is closed.
    output: Option<File>,
    /// The end of that, which is no whole line yet.
    rest: Vec<u8>,
    /// The last line.
    said: String,
}

impl Question {
    /// Asks, as the rerun would: with its environment.
    ///
    /// # Errors
    /// Those of pipe(2) and fork(2).
    pub fn ask(order: &Order) -> io::Result<Self> {
        let (output, input) = spawn::pipe()?;
        let own = spawn::own_program();
        let image = Image {
            arguments: vec![own.clone().into(), "fleet".into(), "slot".into()],
            programs: vec![own],
            environment: environment_of(order),
        };
        let child = spawn::start_below(&image, &input)?;
        Ok(Question {
            child: Some(child.pid),
            output: Some(output.into()),
            rest: Vec::new(),
            said: String::new(),
        })
    }

    /// Where more can be heard.
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(File::as_fd)
    }

    /// What is waited for, in words.
    pub fn waits(&self) -> String {
        match self.said.strip_prefix("the run waits for a slot") {
            Some(what) => format!("waits for a slot{what}"),
            None if self.said.is_empty() => "waits for a slot".to_owned(),
            None => format!("waits for a slot: {}", self.said),
        }
    }

    /// Hears what was said meanwhile. The answer, if that is there: why there is no slot, if
    /// there is none.
    pub fn hear(&mut self) -> Option<Result<(), String>> {
        let end = foreground::reap(self.child?);
        self.read();
        let end = end?;
        self.child = None;
        if let Some(e) = spawn::failed_exec(&self.rest) {
            return Some(Err(format!("'again fleet slot' cannot be started: {e}")));
        }
        self.line();
        Some(match end {
            End::Exit(0) => Ok(()),
            End::Exit(status) if self.said.is_empty() => {
                Err(format!("'again fleet slot' ended with status {status}"))
            }
            End::Exit(_) => Err(self.said.clone()),
            End::Signal(signal) => Err(format!("'again fleet slot' was ended by signal {signal}")),
        })
    }

    /// Reads what is there, and not for ever.
    fn read(&mut self) {
        for _ in 0..16 {
            let Some(output) = &mut self.output else {
                return;
            };
            if !pidfd::is_readable_by(output.as_fd(), Instant::now()).unwrap_or(false) {
                return;
            }
            let mut part = [0; 512];
            let length = output.read(&mut part).unwrap_or(0);
            if length == 0 {
                self.output = None;
            }
            for byte in &part[..length] {
                match byte {
                    b'\n' => self.line(),
                    byte if self.rest.len() < LONGEST => self.rest.push(*byte),
                    _ => {}
                }
            }
        }
    }

    /// Takes a line, without the name of the program that says it.
    fn line(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        let line = String::from_utf8_lossy(&rest).replace(char::is_control, " ");
        let line = ["again-fleet: ", "again: ", "error: "]
            .iter()
            .fold(line.trim(), |line, name| {
                line.strip_prefix(name).unwrap_or(line)
            });
        if !line.is_empty() {
            tracing::info!("{line}");
            line.clone_into(&mut self.said);
        }
    }
}

/// Nobody waits for an answer any longer.
impl Drop for Question {
    fn drop(&mut self) {
        // Not reaped yet, so that its pid is no other's.
        if let Some(child) = self.child {
            spawn::end_child(child);
        }
    }
}
