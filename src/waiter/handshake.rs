//! The start of a waiter, from both sides.
//!
//! ```text
//! requester                                       waiter
//! Starting::begin   "again wait ORDER LOCK RUN GO READY"   Inherited::take
//! Starting::finish  <── READY: one byte or an error ──     Inherited::is_ready, cannot
//! record, close GO  ── GO: its end ──>                     Inherited::is_ready
//! ```
//!
//! The five arguments are numbers of descriptors. The order is in memory, because its environment
//! may not be stored on disk. A pidfd, if there is one, holds the run.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::sys::title;
use again_base::model::Identity;
use again_base::sys::attributes::SignalState;
use again_base::sys::pidfd::{self, Handle};
use again_base::sys::spawn::{self, Image, Plan};
use anyhow::Result;

/// Verb of the waiter, which the ordinary command line does not know.
pub const NAME: &str = "wait";
/// Variables that a waiter inherits. It does not pass them on to the rerun.
const VARIABLES: &[&str] = &[
    "AGAIN_LOG",
    #[cfg(feature = "shift-clock")]
    "SHIFT_CLOCK",
];

/// Byte with which a waiter reports that it is ready (ASCII's ACK).
const READY: u8 = 0x06;

/// Waiter that has been started and is not ready yet.
#[derive(Debug)]
pub struct Starting {
    /// Process of the waiter.
    pub waiter: Identity,
    ready: OwnedFd,
    go: OwnedFd,
    limit: Duration,
}

/// Reason why a waiter did not get ready.
#[derive(Debug)]
pub enum NotReady {
    /// The waiter could not be started, or the wait for it failed.
    Failed(io::Error),
    /// The waiter ended with this message.
    Said(String),
}

impl From<io::Error> for NotReady {
    fn from(e: io::Error) -> Self {
        NotReady::Failed(e)
    }
}

impl Starting {
    /// Maximum time that a program may take to start.
    const LIMIT: Duration = Duration::from_secs(30);
    /// Maximum time that a program which starts the waiter elsewhere may take.
    const LIMIT_THROUGH: Duration = Duration::from_secs(10);

    /// Starts a waiter for the order, with the order's file locked. A nonempty `through` is the
    /// command line of a program that starts the waiter elsewhere and becomes it.
    ///
    /// # Errors
    /// Errors of pipe(2) and fork(2).
    pub fn begin(
        order: &OwnedFd,
        lock: &OwnedFd,
        run: Option<&Handle>,
        through: &[OsString],
    ) -> io::Result<Self> {
        let (go, go_on) = spawn::pipe()?;
        let (ready, is_ready) = spawn::pipe()?;
        let run = run.and_then(Handle::pidfd);
        let own = spawn::own_program();
        let mut arguments = match through {
            [] => vec!["again".into()],
            words => [words, &[own.clone().into()]].concat(),
        };
        let number = |fd: &OwnedFd| OsString::from(fd.as_raw_fd().to_string());
        arguments.extend([
            NAME.into(),
            number(order),
            number(lock),
            run.map_or_else(|| "-".into(), number),
            number(&go),
            number(&is_ready),
            " ".repeat(title::ROOM).into(),
        ]);
        let variables = VARIABLES.iter().filter_map(|name| {
            let mut entry = OsString::from(format!("{name}="));
            entry.push(std::env::var_os(name)?);
            Some(entry)
        });
        let mut keep = vec![order, lock, &go, &is_ready];
        keep.extend(run);
        let plan = Plan {
            image: Image {
                programs: vec![through.first().map_or(own, PathBuf::from)],
                arguments,
                environment: variables.collect(),
            },
            keep: &keep,
            signals: SignalState::default(),
            errors_to_ready: !through.is_empty(),
        };
        Ok(Starting {
            waiter: spawn::start(&plan, &is_ready)?,
            ready,
            go: go_on,
            limit: if through.is_empty() {
                Self::LIMIT
            } else {
                Self::LIMIT_THROUGH
            },
        })
    }

    /// Waits until the waiter reports that it is ready. The waiter continues once the returned end
    /// of the pipe is closed, and reads in the record whether it is in charge.
    ///
    /// # Errors
    /// The reason why the waiter is not ready; it has then been ended.
    pub fn finish(self) -> Result<OwnedFd, NotReady> {
        match await_ready(File::from(self.ready), self.limit) {
            Ok(()) => Ok(self.go),
            Err(e) => {
                spawn::end_child(self.waiter.pid);
                Err(e)
            }
        }
    }
}

fn await_ready(mut ready: File, limit: Duration) -> Result<(), NotReady> {
    let deadline = Instant::now() + limit;
    let mut text: Vec<u8> = Vec::new();
    while pidfd::is_readable_by(ready.as_fd(), deadline)? {
        let mut part = [0; 256];
        let length = ready.read(&mut part)?;
        text.extend_from_slice(&part[..length]);
        if text.last() == Some(&READY) {
            return Ok(());
        }
        if length == 0 || text.len() > 4096 {
            if let Some(e) = spawn::failed_exec(&text) {
                return Err(e.into());
            }
            let words = String::from_utf8_lossy(&text).trim().replace('\n', " ");
            return Err(NotReady::Said(words));
        }
    }
    Err(io::Error::from(io::ErrorKind::TimedOut).into())
}

/// Descriptors with which a waiter was started.
#[derive(Debug)]
pub struct Inherited {
    /// Order, in memory.
    pub order: File,
    /// File of the order. Its lock shows that the waiter lives, without a pid.
    pub lock: File,
    run: Option<OwnedFd>,
    go: File,
    ready: File,
}

impl Inherited {
    /// Takes the descriptors from the arguments. None if they are not as [`Starting::begin`] passes
    /// them.
    pub fn take(arguments: &[OsString]) -> Option<Self> {
        let take = |at: usize| {
            let number: i32 = arguments.get(at)?.to_str()?.parse().ok()?;
            pidfd::inherit(number).ok()
        };
        Some(Inherited {
            order: File::from(take(2)?),
            lock: File::from(take(3)?),
            run: take(4),
            go: File::from(take(5)?),
            ready: File::from(take(6)?),
        })
    }

    /// Reports why there will be no waiter.
    pub fn cannot(mut self, why: &str) {
        let _ = self.ready.write_all(why.as_bytes());
    }

    /// Reports that the waiter is ready, and waits until the requester has committed the record, or
    /// has died. Returns the order, its lock, and the run.
    pub fn is_ready(mut self, run: Option<Identity>) -> (File, File, Option<Handle>) {
        let _ = self.ready.write_all(&[READY]);
        drop(self.ready);
        let run = match (self.run, run) {
            (Some(fd), Some(who)) => Some(Handle::Pidfd(fd, who)),
            (None, Some(who)) => pidfd::hold(who),
            (_, None) => None,
        };
        let _ = self.go.read(&mut [0]);
        (self.order, self.lock, run)
    }
}
