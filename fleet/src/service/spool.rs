//! The files that runs leave their events in: `MILLIS-RUN`, and `MILLIS-RUN@OFFSET` once so many bytes of one are confirmed. A run
//! holds the lock of its file as long as it lasts. The directory is root's; this service may rename and remove in it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::wire::name::Id;

/// How much of a file is read at a time. No line is longer.
pub const LONGEST_READ: usize = 256 << 10;
/// How many files are looked at; those who write leave fewer.
const MOST_FILES: usize = 1000;

/// The directory.
#[derive(Debug, Clone)]
pub struct Spool(pub PathBuf);

/// A run's file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    /// When it was made, milliseconds of the wall clock after 1970.
    pub at: u64,
    /// The run.
    pub run: Id,
    /// How many bytes of it the engine has.
    pub offset: u64,
}

/// What was read of a file.
pub struct Read {
    /// The bytes from the offset on.
    pub bytes: Vec<u8>,
    /// Whether there is nothing behind them, and nobody who will write more.
    pub is_last: bool,
}

impl Left {
    /// By the name of its file.
    fn of(name: &str) -> Option<Left> {
        let (name, offset) = match name.split_once('@') {
            None => (name, 0),
            Some((name, offset)) => (name, offset.parse().ok()?),
        };
        let (at, run) = name.split_once('-')?;
        Some(Left {
            at: at.parse().ok()?,
            run: run.parse().ok()?,
            offset,
        })
    }

    fn name(&self) -> String {
        let Left { at, run, offset } = self;
        match offset {
            0 => format!("{at}-{run}"),
            offset => format!("{at}-{run}@{offset}"),
        }
    }
}

impl Spool {
    /// The files, oldest first, and how many bytes in them wait. None where no run leaves events.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn left(&self) -> io::Result<(Vec<Left>, u64)> {
        let entries = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
            entries => entries?,
        };
        let (mut left, mut waiting) = (Vec::new(), 0);
        for entry in entries.take(MOST_FILES) {
            let entry = entry?;
            // What has another form of name is none of ours.
            let name = entry.file_name();
            let one = name.to_str().and_then(Left::of);
            let one = one.filter(|one| Some(&*one.name()) == name.to_str());
            if let (Some(one), Ok(found)) = (one, entry.metadata()) {
                waiting += found.len().saturating_sub(one.offset);
                left.push(one);
            }
        }
        left.sort();
        Ok((left, waiting))
    }

    fn open(&self, left: &Left) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = self.0.join(left.name());
        let file = File::options()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(path)?;
        let found = file.metadata()?;
        let me = rustix::process::geteuid().as_raw();
        if !found.is_file() || ![0, me].contains(&found.uid()) {
            return Err(io::Error::other("it is no file of a run's"));
        }
        Ok(file)
    }

    /// What has not been told of a file yet, or its beginning of that.
    ///
    /// # Errors
    /// It cannot be read, or is none of a run's.
    pub fn read(&self, left: &Left) -> io::Result<Read> {
        let file = self.open(left)?;
        // Before the bytes: what is written after them is not missed. Let go with the file.
        let is_over = file.try_lock_shared().is_ok();
        let mut bytes = vec![0; LONGEST_READ];
        let length = file.read_at(&mut bytes, left.offset)?;
        bytes.truncate(length);
        let end = left.offset + length as u64;
        let is_last = is_over && file.metadata()?.len() <= end;
        Ok(Read { bytes, is_last })
    }

    /// The first line of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn first_line(&self, left: &Left) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; LONGEST_READ];
        let length = self.open(left)?.read_at(&mut bytes, 0)?;
        let end = bytes[..length].iter().position(|byte| *byte == b'\n');
        bytes.truncate(end.unwrap_or(length));
        Ok(bytes)
    }

    /// So many more bytes are confirmed.
    ///
    /// # Errors
    /// That cannot be written down: they will be told again.
    pub fn confirm(&self, left: &Left, length: u64) -> io::Result<()> {
        let offset = left.offset + length;
        let new = Left {
            offset,
            ..left.clone()
        };
        fs::rename(self.0.join(left.name()), self.0.join(new.name()))
    }

    /// All of it was told, and the run has ended.
    ///
    /// # Errors
    /// It stays, and will be told again.
    pub fn remove(&self, left: &Left) -> io::Result<()> {
        fs::remove_file(self.0.join(left.name()))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}
