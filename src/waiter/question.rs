//! The request for a slot of the fleet: a child of the waiter, which queues for it and ends once
//! the run may start. The slot belongs to the process that started the child, and so to the rerun.

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

/// Maximum length of a line that is kept, in bytes.
const LONGEST: usize = 1000;

/// Request for a slot that has no answer yet.
#[derive(Debug)]
pub struct Question {
    child: Option<i32>,
    /// Output of the child, until it is closed.
    output: Option<File>,
    /// End of the output that is not a whole line yet.
    rest: Vec<u8>,
    /// Last line of the output.
    said: String,
}

impl Question {
    /// Starts the child with the rerun's environment.
    ///
    /// # Errors
    /// Errors of pipe(2) and fork(2).
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

    /// Descriptor that becomes readable when there is more output.
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(File::as_fd)
    }

    /// Obstacle in words.
    pub fn waits(&self) -> String {
        match self.said.strip_prefix("the run waits for a slot") {
            Some(what) => format!("waits for a slot{what}"),
            None if self.said.is_empty() => "waits for a slot".to_owned(),
            None => format!("waits for a slot: {}", self.said),
        }
    }

    /// Reads new output. Returns the answer, if the child has ended; the error says why there is no
    /// slot.
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

    /// Reads the available output, up to a limit.
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

    /// Ends a line, and drops the name of the program at its beginning.
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

/// Ends the child, since no process waits for the answer any longer.
impl Drop for Question {
    fn drop(&mut self) {
        // Not reaped yet, so the pid cannot belong to another process.
        if let Some(child) = self.child {
            spawn::end_child(child);
        }
    }
}
