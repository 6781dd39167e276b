//! The history: one line of JSON for each thing that became of a request.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::policy::cap::Moment;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A timer was set.
    Requested,
    /// A request was not granted.
    Refused,
    /// A newer request of the same name took its place.
    Merged,
    /// The rerun was started.
    Started,
    /// The rerun ended.
    Ended,
    /// Another run had done its job.
    Satisfied,
    /// Somebody stopped it, or the service it belongs to.
    Stopped,
    /// It was due and could not be run.
    Failed,
    /// A converge driver began.
    Opened,
    /// A converge driver ended, and how.
    Closed,
    /// It lost its waiter, and got another.
    Resumed,
    /// It lost its waiter, and what it was to run cannot be known.
    Lost,
    /// The reruns that counted towards the target's cap were forgotten.
    Reset,
}

/// One line of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The record's version.
    pub version: u32,
    /// When.
    pub at: Moment,
    /// What.
    pub what: What,
    /// The target's id.
    pub target: String,
    /// The timer's name.
    pub timer: String,
    /// The request's token.
    pub token: String,
    /// The chain.
    pub chain: String,
    /// The number of the rerun in its chain.
    pub run: u32,
    /// Why, or what came of it.
    pub reason: String,
}

/// The size at which a new file is begun, in bytes. One older file is kept.
const ROTATE_AT: u64 = 1 << 20;

/// Appends a line. One write(2), so that lines of several writers do not mix.
///
/// # Errors
/// Those of open(2) and write(2).
pub fn append(state_dir: &Path, entry: &Entry) -> io::Result<()> {
    let path = state_dir.join("history.jsonl");
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    let open = || {
        File::options()
            .append(true)
            .create(true)
            .mode(0o644)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(&path)
    };
    let mut file = open()?;
    if file.metadata()?.len() > ROTATE_AT {
        // Of two that find it full, one locks first; the other finds a new file.
        file.lock()?;
        let current = std::fs::metadata(&path)?;
        if current.len() > ROTATE_AT {
            std::fs::rename(&path, state_dir.join("history.1.jsonl"))?;
        }
        file = open()?;
    }
    file.write_all(&line)
}

/// Reads the history, oldest first. Lines that cannot be read are left out and counted.
pub fn read(state_dir: &Path) -> (Vec<Entry>, usize) {
    let mut entries = Vec::new();
    let mut unreadable = 0;
    for name in ["history.1.jsonl", "history.jsonl"] {
        let Ok(text) = std::fs::read(state_dir.join(name)) else {
            continue;
        };
        for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(entry) => entries.push(entry),
                Err(_) => unreadable += 1,
            }
        }
    }
    (entries, unreadable)
}
