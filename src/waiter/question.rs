//! The request for a slot of the fleet: a child of the waiter, which queues for it and ends once
//! the run may start. The slot belongs to the process that started the child, and so to the rerun.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::launch::environment_of;
use crate::state::order::Order;
use crate::sys::foreground;
use again_base::model::End;
use again_base::schema::slot::SlotState;
use again_base::sys::pidfd;
use again_base::sys::spawn::{self, Image};
use again_base::sys::terminal::clean;

/// Maximum length of a line that is kept, in bytes.
const LONGEST: usize = 2000;

/// Request for a slot that has no answer yet.
#[derive(Debug)]
pub struct Question {
    child: Option<i32>,
    /// Output of the child, until it is closed.
    output: Option<File>,
    /// End of the output that is not a whole line yet.
    rest: Vec<u8>,
    /// Last state that the child printed.
    state: Option<SlotState>,
    /// Last line of the output that is no state: an error of a program that could not begin.
    error: String,
}

impl Question {
    /// Starts the child with the rerun's environment.
    ///
    /// # Errors
    /// Errors of pipe(2) and fork(2).
    pub fn ask(order: &Order) -> io::Result<Self> {
        let (output, input) = spawn::pipe()?;
        let own = spawn::own_program();
        let words = ["fleet", "slot", "--json"].map(OsString::from);
        let image = Image {
            arguments: [own.clone().into()].into_iter().chain(words).collect(),
            programs: vec![own],
            environment: environment_of(order),
        };
        let child = spawn::start_below(&image, &input)?;
        Ok(Question {
            child: Some(child.pid),
            output: Some(output.into()),
            rest: Vec::new(),
            state: None,
            error: String::new(),
        })
    }

    /// Descriptor that becomes readable when there is more output.
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(File::as_fd)
    }

    /// Obstacle in words.
    pub fn waits(&self) -> String {
        match &self.state {
            Some(SlotState::Waits(words)) => words.clone(),
            _ => "waits for a slot".to_owned(),
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
        Some(match (end, &self.state) {
            (End::Exit(0), _) => Ok(()),
            (End::Exit(_), Some(SlotState::Refused(why))) => Err(why.clone()),
            (End::Exit(status), _) => Err(format!(
                "'again fleet slot' ended with status {status}: {}",
                self.error
            )),
            (End::Signal(signal), _) => {
                Err(format!("'again fleet slot' was ended by signal {signal}"))
            }
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

    /// Processes a whole line.
    fn line(&mut self) {
        let line = std::mem::take(&mut self.rest);
        match serde_json::from_slice::<SlotState>(&line) {
            Ok(state) => {
                tracing::info!("{}", clean(&state.sentence()));
                self.state = Some(state);
            }
            Err(_) if line.is_empty() => {}
            Err(_) => {
                self.error = clean(&String::from_utf8_lossy(&line));
                tracing::info!("{}", self.error);
            }
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
