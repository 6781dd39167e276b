//! Upkeep process: removes old logs and forgets idle targets, at idle priority. A due waiter only
//! appends the name of its log and reads the size to reserve.
//!
//! ```text
//! upkeep/KEY.new    logs begun since the last round, one name a line
//! upkeep/KEY.lock   held by the process that is working
//! upkeep/KEY.size   size of the largest log, in bytes
//! ```
//!
//! KEY is a hash of the log directory's path. A waiter that finds the lock free starts an upkeep
//! process that inherits it. If the lock is held, its holder checks `KEY.new` again after releasing
//! it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use siphasher::sip::SipHasher13;

use super::files::{self, GUARDED, private_file, read_bounded};
use super::logs::Logs;
use super::store::Store;
use crate::sys::{idle, title};
use again_base::model::{LogLimits, Span};
use again_base::sys::clock::{self, moment};
use again_base::sys::pidfd;
use again_base::sys::spawn::{self, Image};

/// Verb of the process, which the ordinary command line does not know.
pub const NAME: &str = "upkeep";

/// Pause between two rounds, so that of a thousand logs begun at the same time few have a round
/// each.
const PAUSE: Duration = Duration::from_millis(200);

/// Directory below the state directory.
const UPKEEP: &str = "upkeep";

/// Files for one directory of logs.
#[derive(Debug)]
pub struct Upkeep {
    directory: PathBuf,
    /// Path of each file without its extension.
    base: PathBuf,
}

impl Upkeep {
    /// Upkeep of this directory of logs. Creates its own directory if it is missing.
    ///
    /// # Errors
    /// Errors of that directory.
    pub fn of(store: &Store, logs: &Path) -> Result<Self> {
        store.below(UPKEEP)?;
        // Accessed through the descriptor that the store holds.
        Ok(Self::at(&store.path().join(UPKEEP), logs))
    }

    fn at(directory: &Path, logs: &Path) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(logs.as_os_str().as_bytes());
        let base = directory.join(format!("{:016x}", hasher.finish()));
        Upkeep {
            directory: logs.to_owned(),
            base,
        }
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.base.with_extension(ending)
    }

    /// Size of the largest log in bytes; 0 if unknown.
    pub fn largest(&self) -> u64 {
        let known = read_bounded(&self.file("size")).ok();
        let known = known.and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok());
        known.unwrap_or(0)
    }

    /// Records the size of a log that has ended, if it is the largest.
    pub fn grew(&self, bytes: u64) {
        if bytes > self.largest() {
            self.set_largest(bytes);
        }
    }

    fn set_largest(&self, bytes: u64) {
        let file = self.open("size", File::options().write(true).truncate(true));
        if let Err(e) = file.and_then(|mut file| writeln!(file, "{bytes}")) {
            tracing::debug!("the size of the largest log cannot be kept: {e}");
        }
    }

    /// Opens one of the files, or creates it. A hard link, which a restored backup may have
    /// created, is replaced.
    fn open(&self, ending: &str, options: &mut OpenOptions) -> io::Result<File> {
        let path = self.file(ending);
        if path.symlink_metadata().is_ok_and(|meta| meta.nlink() > 1) {
            std::fs::remove_file(&path)?;
        }
        files::open(&path, 0o600, options.create(true).custom_flags(GUARDED))
    }

    /// Adds a new log to the next round, and starts an upkeep process unless one is running.
    /// `window` is the cap's: targets with starts in it are not forgotten.
    ///
    /// # Errors
    /// An upkeep file that cannot be written, or a failed fork; the next new log retries.
    pub fn add_log(&self, store: &Store, limit: LogLimits, window: Span, log: &Path) -> Result<()> {
        let name = log.file_name().unwrap_or_default();
        let mut new = self.open("new", File::options().append(true))?;
        new.write_all(&[name.as_bytes(), b"\n"].concat())?;
        let lock = private_file(&self.file("lock"))?;
        if lock.try_lock().is_err() {
            return Ok(());
        }
        let lock = OwnedFd::from(lock);
        let LogLimits { keep, each, all } = limit;
        let numbers = [u64::from(keep), each, all, window.nanos()];
        let mut arguments: Vec<OsString> = vec!["again".into(), NAME.into()];
        arguments.extend([store.root().into(), self.directory.clone().into()]);
        arguments.extend(numbers.map(|number| number.to_string().into()));
        arguments.push(lock.as_raw_fd().to_string().into());
        let image = Image {
            // Still this program when the new process executes it, even if the calling process has
            // become another program by then.
            programs: vec!["/proc/self/exe".into()],
            arguments,
            environment: Vec::new(),
        };
        spawn::start_detached(&image, &lock).context("cannot start the upkeep process")
    }
}

/// Main function of the process: repeats rounds until there is nothing new. Returns the exit
/// status.
pub fn main(arguments: &[OsString]) -> i32 {
    title::set_short(c"again");
    i32::from(rounds(arguments).is_none())
}

/// Rounds of the process. None if it was not started by [`Upkeep::add_log`], or cannot work.
fn rounds(arguments: &[OsString]) -> Option<()> {
    let [_, _, state, logs, keep, each, all, window, lock] = arguments else {
        return None;
    };
    let number = |word: &OsString| word.to_str()?.parse::<u64>().ok();
    let limits = LogLimits {
        keep: u32::try_from(number(keep)?).ok()?,
        each: number(each)?,
        all: number(all)?,
    };
    let window = Span::from_nanos(number(window)?);
    let lock = File::from(pidfd::inherit(i32::try_from(number(lock)?).ok()?).ok()?);
    clock::locate().ok()?;
    let store = Store::open(Path::new(state)).ok()?;
    let upkeep = Upkeep::of(&store, Path::new(logs)).ok()?;
    // Before idle priority, because this holds the locks of targets.
    store.forget_quiet_hourly(window, &moment());
    idle::become_idle();
    loop {
        let newest = upkeep.take_new();
        let logs = Logs::open(&upkeep.directory, limits).ok()?;
        upkeep.set_largest(logs.tidy(&newest));
        if upkeep.file("new").exists() {
            std::thread::sleep(PAUSE);
            continue;
        }
        lock.unlock().ok()?;
        // A waiter that found the lock held had already appended its log.
        if !upkeep.file("new").exists() || lock.try_lock().is_err() {
            return Some(());
        }
    }
}

impl Upkeep {
    /// Takes the names of the logs begun since the last round.
    fn take_new(&self) -> Vec<String> {
        let taken = self.file("taken");
        let _ = std::fs::rename(self.file("new"), &taken);
        let text = read_bounded(&taken).unwrap_or_default();
        let _ = std::fs::remove_file(&taken);
        let text = String::from_utf8_lossy(&text);
        text.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upkeep_keeps_the_largest_log_size_until_the_next_round() {
        let dir = tempfile::tempdir().expect("a directory");
        let upkeep = Upkeep::at(dir.path(), Path::new("/x"));
        assert_eq!(upkeep.largest(), 0);
        upkeep.grew(7);
        upkeep.grew(5);
        assert_eq!(upkeep.largest(), 7);
        upkeep.set_largest(3);
        assert_eq!(upkeep.largest(), 3);
        let other = Upkeep::at(dir.path(), Path::new("/y"));
        assert_eq!(other.largest(), 0, "each directory has its own");
    }

    #[test]
    fn upkeep_rejects_invalid_arguments() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        for wrong in [
            &["again", NAME][..],
            &["again", NAME, "/s", "/l", "x", "1", "1", "1", "9"],
            &["again", NAME, "/s", "/l", "1", "1", "1", "1", "99999"],
        ] {
            assert!(rounds(&words(wrong)).is_none(), "{wrong:?}");
        }
    }
}
