//! The command that a driver runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::config::Surroundings;
use crate::puppet::environment;
use crate::sys::foreground::{self, Held};
use again_base::layout::quoted;
use again_base::sys::attributes::SignalState;
use again_base::sys::process::os;
use again_base::sys::spawn::Image;

/// Program and signal state of every run.
#[derive(Debug)]
pub struct Command {
    /// Program; its environment lacks the variables that differ from run to run.
    pub image: Image,
    /// Signal state that this process was started with.
    pub signals: SignalState,
}

impl Command {
    /// Forks a run, which waits until it is released. `variables` are this run's own.
    ///
    /// # Errors
    /// Errors of fork(2) and of building the arguments.
    pub fn fork(&self, variables: &[(&str, &str)]) -> io::Result<Held> {
        let mut image = self.image.clone();
        let own = variables
            .iter()
            .map(|(name, v)| format!("{name}={v}").into());
        image.environment.extend(own);
        foreground::fork(&image, self.signals)
    }

    /// Command line for people, shortened.
    pub fn shown(&self) -> String {
        shown(&self.image.arguments)
    }

    /// First word of the command, for people.
    pub fn name(&self) -> String {
        shown(&self.image.arguments[..1])
    }
}

fn shown(words: &[OsString]) -> String {
    let words = words.iter().map(|word| quoted(&word.to_string_lossy()));
    let line = words.collect::<Vec<_>>().join(" ");
    if line.chars().count() > 100 {
        line.chars().take(99).chain(['…']).collect()
    } else {
        line
    }
}

/// Environment of every run: ours, without the variables that mark a rerun, and with the state
/// directory, if it is given.
pub fn environment(around: &Surroundings, state_dir: Option<&PathBuf>) -> Vec<OsString> {
    let entries = around
        .environment
        .iter()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .filter(|entry| state_dir.is_none() || environment::name(entry) != b"AGAIN_STATE_DIR")
        .collect();
    let mut entries = environment::without_ours(entries);
    if let Some(directory) = state_dir {
        entries.push([b"AGAIN_STATE_DIR=", directory.as_os_str().as_bytes()].concat());
    }
    entries.iter().map(|entry| os(entry)).collect()
}

/// Regular file on standard input, which every run reads from the same offset.
#[derive(Debug)]
pub struct Input {
    file: File,
    from: u64,
}

impl Input {
    /// Current standard input, if it is a regular file.
    pub fn now() -> Option<Self> {
        let mut file = File::from(foreground::standard_input().ok()?);
        let is_file = file.metadata().ok()?.is_file();
        let from = file.stream_position().ok().filter(|_| is_file)?;
        Some(Input { file, from })
    }

    /// Seeks to the initial offset.
    pub fn rewind(&mut self) {
        let _ = self.file.seek(SeekFrom::Start(self.from));
    }
}
