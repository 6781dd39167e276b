//! Starts a run in the foreground, and reaps it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{Signal, raise};
use rustix::process::{WaitOptions, wait};

use again_base::model::{End, Identity};
use again_base::sys::attributes::{SignalState, set_signals};
use again_base::sys::spawn::{self, Exec, Image};

/// Process that has not become the run yet.
#[derive(Debug)]
pub struct Held {
    /// Identity of the process, which exec(3) does not change.
    pub process: Identity,
    go: File,
    failed: File,
}

/// Starts `image` with fork(2), in our own process group, with our standard descriptors. The child
/// waits before its exec(3) until it is released, so that it can be recorded first. Call while
/// single-threaded.
///
/// # Errors
/// Errors of fork(2) and of building the arguments.
pub fn fork(image: &Image, signals: SignalState) -> io::Result<Held> {
    let image = Exec::new(image)?;
    let (go_reader, go_writer) = spawn::pipe()?;
    let (failed_reader, failed_writer) = spawn::pipe()?;
    let mut go_writer = Some(go_writer);
    let process = spawn::fork_exec(&image, signals, &failed_writer, || {
        // Otherwise the child would wait forever if the parent were killed now.
        drop(go_writer.take());
        File::from(go_reader).read_exact(&mut [0])
    })?;
    Ok(Held {
        process,
        go: File::from(go_writer.ok_or(io::ErrorKind::BrokenPipe)?),
        failed: File::from(failed_reader),
    })
}

impl Held {
    /// Releases the process, so that it becomes the run.
    ///
    /// # Errors
    /// Error of exec(3), for the candidate that got furthest.
    pub fn release(mut self) -> io::Result<()> {
        // The process may have been killed already, which is noticed when it is reaped.
        let _ = self.go.write_all(&[0]);
        drop(self.go);
        let mut said = Vec::new();
        self.failed.read_to_end(&mut said)?;
        match said.as_slice() {
            [] => Ok(()),
            said => Err(spawn::failed_exec(said)
                .unwrap_or_else(|| io::Error::other("it ended without a word"))),
        }
    }
}

/// Reaps every child that has ended: as the first process of a container we have children that we
/// did not start. Returns how `run` ended, if it was among them.
pub fn reap(run: i32) -> Option<End> {
    let mut end = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid.as_raw_nonzero().get() == run {
            let exit = status.exit_status().map(End::Exit);
            end = exit.or_else(|| status.terminating_signal().map(End::Signal));
        }
    }
    end
}

/// Ends this process with a signal, as if that had never been caught. Returns if that is not
/// possible, as for the first process of a container.
pub fn die_by(signal: i32) {
    set_signals(SignalState::default());
    let _ = Signal::try_from(signal).and_then(raise);
}

/// Copy of our standard input.
///
/// # Errors
/// Errors of dup(2).
pub fn standard_input() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}
