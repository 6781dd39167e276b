//! Announced shutdowns: systemd-logind announces one with a file, sysvinit's shutdown(8) with its
//! pid file.

use std::io;
use std::path::{Path, PathBuf};

use crate::policy::shutdown::{Announced, holds, scheduled};
use again_base::model::{Hold, Identity, Span, Walltime};
use again_base::sys::file::read_regular;
use again_base::sys::process::identify;
use again_base::sys::{clock, localtime};

/// File of systemd-logind's scheduled shutdown (src/login/logind-dbus.c).
const SCHEDULED: &str = "/run/systemd/shutdown/scheduled";
/// Pid file of sysvinit's shutdown(8).
const PID: &str = "/run/shutdown.pid";

/// Maximum size that is read, in bytes; both files are smaller.
const LARGEST: u64 = 4096;

/// Shutdowns that are announced now. An unreadable file counts as none.
pub fn announced() -> Announced {
    let read = |path: &str| match read_regular(Path::new(path), LARGEST, 0) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => {
            tracing::debug!("{path} is not read: {e}");
            None
        }
    };
    let pid = |text: Vec<u8>| -> Option<i32> { String::from_utf8_lossy(&text).trim().parse().ok() };
    let lives = |pid: i32| identify(pid).ok().filter(|_| pid > 0);
    Announced {
        at: read(SCHEDULED).as_deref().and_then(scheduled),
        by: read(PID).and_then(pid).and_then(lives),
    }
}

/// Announcement in words: its time, or the process that counts down.
pub fn words(at: Option<Walltime>, by: Option<Identity>) -> String {
    match (at, by) {
        (Some(at), _) => format!("for {}", localtime::local(at)),
        (None, Some(who)) => format!("by the process with pid {}", who.pid),
        (None, None) => String::new(),
    }
}

/// Reason that holds a timer that is due now, with this setting.
pub fn hold(within: Span) -> Option<Hold> {
    let shutdown = holds(announced(), within, clock::walltime())?;
    Some(Hold::Shutdown(words(shutdown.at, shutdown.by)))
}

/// Directories in which an announcement is added and removed: those of the files, or their nearest
/// existing ancestors.
pub fn directories() -> Vec<PathBuf> {
    let there = |file: &str| -> Option<PathBuf> {
        let mut above = Path::new(file).ancestors().skip(1);
        above.find(|path| path.is_dir()).map(Path::to_owned)
    };
    [SCHEDULED, PID].into_iter().filter_map(there).collect()
}
