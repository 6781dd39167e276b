//! One file per verb.
#![forbid(unsafe_code)]

pub mod explain;
pub mod resume;
pub mod run;
pub mod status;
pub mod stop;
pub mod wait;

use std::io::{self, Write};

use crate::policy::cap::Moment;
use crate::sys::clock;

/// Writes a line to standard output.
///
/// # Errors
/// Those of write(2); a reader that has gone is not an error worth a message.
pub fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Writes a line to standard error; there is nobody to tell if that fails.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// This moment.
pub fn moment() -> Moment {
    Moment {
        boot: clock::boot_id(),
        uptime: clock::boottime(),
        wall: clock::walltime(),
    }
}
