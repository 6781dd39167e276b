//! The output of reruns: one file each, its name beginning with the time.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::directory::{Directory, Keeps};
use super::files::{self, GUARDED, is_locked, private_file};
use super::record::Timer;
use crate::model::{LogLimits, Walltime};
use crate::sys::localtime;

/// The end of every log's name.
pub const LOG_SUFFIX: &str = ".log";

/// How many old logs one new log has us look at.
const AT_ONCE: usize = 256;

/// With so many more logs than are kept, or `AT_ONCE` in all, the directory is crowded: thousands of
/// reruns have started at once, and hold theirs.
const CROWD: usize = 64;

/// For how long one process's look at a crowded directory serves the others too.
const CALM: Duration = Duration::from_millis(100);

/// The least that is reserved for a log, in bytes.
const LEAST: u64 = 1 << 20;

/// The directory of the logs, held open.
#[derive(Debug)]
pub struct Logs<'a> {
    directory: &'a Path,
    held: Directory,
    limits: LogLimits,
    /// Its time is that of the last look at a crowded directory. Such a look is slow, and each
    /// of the reruns that crowd the directory would take one.
    crowded: PathBuf,
}

impl<'a> Logs<'a> {
    /// Opens the directory, which is made if it is missing; `state` is the state directory.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(directory: &'a Path, limits: LogLimits, state: &Path) -> Result<Self> {
        Ok(Logs {
            directory,
            held: Directory::open(directory, Keeps::Logs)?,
            limits,
            crowded: state.join(".logs.crowded"),
        })
    }

    /// Makes the file for the output of a target's rerun: its name begins with the time, so
    /// that names sort by age. It is locked, and stays so until no process can write to it any
    /// more: the lock goes with the descriptor, through exec and to children. Space is
    /// reserved for as much as the largest of the others has, so that the rerun does not die
    /// of a full disk at its first line.
    ///
    /// # Errors
    /// What cannot be made or had, and why.
    pub fn create(&self, target: &str, timer: &Timer, now: Walltime) -> Result<(PathBuf, File)> {
        let stamp: String = localtime::utc(now)
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(18)
            .collect();
        let target = target.get(..8).unwrap_or(target);
        let name = format!("{stamp}-{}-{}-{target}{LOG_SUFFIX}", timer.chain, timer.run);
        let (path, held) = (self.directory.join(&name), self.held.path().join(&name));
        let mut options = File::options();
        let new = files::open(&held, 0o600, options.append(true).create_new(true));
        let file = new.map_err(|e| files::cannot_write(&path, e))?;
        let _ = file.try_lock();
        reserve(&file, self.largest())
            .inspect_err(|_| self.remove(&path))
            .with_context(|| format!("no space can be reserved for {}", path.display()))?;
        Ok((path, file))
    }

    /// Removes a log.
    pub fn remove(&self, path: &Path) {
        let name = path.file_name().unwrap_or_default();
        let _ = std::fs::remove_file(self.held.path().join(name));
    }

    /// What is reserved for the next log, in bytes.
    fn largest(&self) -> u64 {
        let sizes = || self.all().into_iter().map(|log| log.size).max();
        let most = if is_calm(&self.crowded) {
            None
        } else {
            sizes()
        };
        let known = match self.limits.each {
            0 => most,
            each => most.map(|most| most.min(each)),
        };
        known.unwrap_or(0).max(LEAST)
    }

    /// The logs, the newest first.
    fn all(&self) -> Vec<Log> {
        let entries = std::fs::read_dir(self.held.path()).into_iter().flatten();
        let mut logs: Vec<Log> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok();
                let name = name.filter(|name| is_log_name(name))?;
                let meta = entry.metadata().ok();
                let size = meta.as_ref().map_or(0, Metadata::len);
                let has_room = meta.is_some_and(|meta| is_reserved(&meta));
                Some(Log {
                    name,
                    size,
                    has_room,
                })
            })
            .collect();
        logs.sort_unstable_by(|one, other| other.name.cmp(&one.name));
        logs
    }

    /// Removes the oldest logs that are more than are kept of a target, or of all, and
    /// brings the others to their size. The log `newest` stays even if the wall clock was
    /// set back and its name sorts before others. So do those of reruns that are under way.
    pub fn tidy(&self, newest: Option<&Path>) {
        if is_calm(&self.crowded) {
            return;
        }
        let newest = newest.and_then(Path::file_name);
        // A log of 0.1.0 counts towards every target, and so is removed in time.
        let ours = newest.and_then(|name| target_of(name.to_str()?));
        let mut logs = self.all();
        // It counts first.
        logs.sort_by_key(|log| newest != Some(log.name.as_ref()));
        let (mut of_target, mut bytes) = (BTreeMap::new(), 0_u64);
        let LogLimits { keep, each, all } = self.limits;
        let (surplus, kept): (Vec<&Log>, Vec<&Log>) = logs.iter().partition(|log| {
            let target = target_of(&log.name).or(ours);
            let count = of_target.entry(target).or_insert(0_u32);
            *count += 1;
            bytes = bytes.saturating_add(log.size);
            let is_surplus = *count > keep.max(1) || (all > 0 && bytes > all);
            is_surplus && newest != Some(log.name.as_ref())
        });
        if surplus.len() > CROWD || logs.len() > AT_ONCE {
            let _ =
                private_file(&self.crowded).and_then(|file| file.set_modified(SystemTime::now()));
        }
        for log in surplus.iter().rev().take(AT_ONCE) {
            let path = self.held.path().join(&log.name);
            if is_locked(&path) != Some(true) {
                let _ = std::fs::remove_file(path);
            }
        }
        let is_unfit = |log: &&&Log| log.has_room || (each > 0 && log.size > each);
        for log in kept.iter().filter(is_unfit).take(AT_ONCE) {
            let _ = fit(&self.held.path().join(&log.name), each);
        }
    }
}

/// A log, as its directory shows it.
#[derive(Debug)]
struct Log {
    name: String,
    size: u64,
    /// It has reserved space, as that of a rerun under way.
    has_room: bool,
}

/// How the id of a log's target begins; none for a log of 0.1.0.
fn target_of(name: &str) -> Option<&str> {
    name.strip_suffix(LOG_SUFFIX)?.split('-').nth(3)
}

fn is_calm(crowded: &Path) -> bool {
    let looked = std::fs::symlink_metadata(crowded).and_then(|meta| meta.modified());
    // A time to come is from before the wall clock was set back.
    looked.is_ok_and(|time| time.elapsed().is_ok_and(|ago| ago < CALM))
}

/// Brings the log of a rerun that has ended to its size: [`fit`].
pub fn settle(path: &Path, most: u64) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let is_log = name.to_str().is_some_and(is_log_name) && path.exists();
    if is_log && let Ok(held) = Directory::open(directory, Keeps::Logs) {
        let _ = fit(&held.path().join(name), most);
    }
}

/// Has the disk keep this much space for a file: fallocate(2). A file system that cannot
/// tell is no reason to do without the file.
fn reserve(file: &File, bytes: u64) -> Result<(), Errno> {
    const NOT_TO_BE_HAD: [Errno; 5] = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::IO,
        Errno::ROFS,
        Errno::FBIG,
    ];
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes))
        .or_else(|e| match NOT_TO_BE_HAD.contains(&e) {
            true => Err(e),
            false => Ok(()),
        })
}

/// Brings a log that no process writes to any more to its size: gives back what was reserved
/// and not used, and cuts what is longer than `most` bytes, unless that is 0. Beginning and
/// end stay, with a line in between that says so.
fn fit(path: &Path, most: u64) -> io::Result<()> {
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .custom_flags(GUARDED)
        .open(path)?;
    let meta = file.metadata()?;
    let is_long = most > 0 && meta.len() > most;
    if !meta.is_file() || meta.nlink() > 1 || !(is_long || is_reserved(&meta)) {
        return Ok(());
    }
    if file.try_lock().is_err() {
        return Ok(());
    }
    let (length, modified) = (file.metadata()?.len(), meta.modified()?);
    let length = if is_long {
        cut(&file, length, most)?
    } else {
        length
    };
    file.set_len(length)?;
    // When the rerun last wrote, by which its end is known.
    file.set_modified(modified)
}

/// Whether more space is kept for a file than it takes.
fn is_reserved(meta: &Metadata) -> bool {
    meta.blocks() * 512 > meta.len().next_multiple_of(1 << 16)
}

/// Moves the end of a file behind its beginning, without any more space. The new length.
fn cut(file: &File, length: u64, most: u64) -> io::Result<u64> {
    let line = |gone: u64| {
        format!("\n[again: {gone} bytes were cut out here, see max_log_size in again.toml(5)]\n")
    };
    let room = most.saturating_sub(line(length).len() as u64);
    let (head, mut from) = (room.div_ceil(2), length - room / 2);
    let line = line(from - head);
    file.write_all_at(line.as_bytes(), head)?;
    let mut to = head + line.len() as u64;
    let mut part = vec![0; 1 << 16];
    while from < length {
        let read = file.read_at(&mut part, from)?;
        if read == 0 {
            break;
        }
        file.write_all_at(&part[..read], to)?;
        (from, to) = (from + read as u64, to + read as u64);
    }
    Ok(to)
}

/// `20261121T140307123-0123abcd-2-89abcdef.log`: one of ours, and nobody else's. 0.1.0 left
/// out the target.
pub fn is_log_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(LOG_SUFFIX) else {
        return false;
    };
    let is_id = |id: &str| id.len() == 8 && id.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = stem.split('-').collect();
    matches!(parts.as_slice(), [stamp, chain, run, target @ ..]
        if stamp.len() == 18
            && stamp.as_bytes().get(8) == Some(&b'T')
            && is_id(chain)
            && !run.is_empty()
            && run.bytes().all(|b| b.is_ascii_digit())
            && target.len() <= 1
            && target.iter().all(|id| is_id(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(directory: &Path, limits: LogLimits) -> Logs<'_> {
        let state = directory.parent().expect("a parent");
        Logs::open(directory, limits, state).expect("opened")
    }

    fn keeping(keep: u32) -> LogLimits {
        LogLimits {
            keep,
            ..LogLimits::default()
        }
    }

    fn left(directory: &Path) -> Vec<String> {
        let mut left: Vec<String> = std::fs::read_dir(directory)
            .expect("dir")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn removes_the_oldest_logs_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("logs");
        std::fs::create_dir(&at).expect("made");
        for n in 0..5 {
            let name = format!("2026112{n}T140307123-0123abcd-2.log");
            std::fs::write(at.join(name), "").expect("written");
        }
        // Of other targets, which have their own newest.
        let others = [
            "20261001T140307123-0123abcd-2-89abcdef.log",
            "20261002T140307123-0123abcd-3-89abcdef.log",
            "20261003T140307123-0123abcd-4-01234567.log",
        ];
        for other in ["precious.log", "20261120T140307123-x-2.log", "x"]
            .iter()
            .chain(&others)
        {
            std::fs::write(at.join(other), "").expect("written");
        }
        // The clock was set back before the newest.
        let newest = at.join("20261120T140307123-0123abcd-2.log");
        let long = File::open(at.join("20261122T140307123-0123abcd-2.log"));
        long.as_ref().expect("there").lock().expect("locked");
        // Anyone may open the directory, and lock it: that keeps no log.
        let foreign = File::open(&at).expect("there");
        foreign.lock().expect("locked");
        logs(&at, keeping(2)).tidy(Some(&newest));
        let mut expected = vec![
            "20261120T140307123-0123abcd-2.log",
            "20261120T140307123-x-2.log",
            "20261122T140307123-0123abcd-2.log",
            "20261124T140307123-0123abcd-2.log",
            "precious.log",
            "x",
        ];
        expected.extend(others);
        expected.sort_unstable();
        assert_eq!(left(&at), expected);
    }

    #[test]
    fn all_logs_together_are_bounded() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("logs");
        std::fs::create_dir(&at).expect("made");
        for n in 0..5 {
            let name = format!("2026112{n}T140307123-0123abcd-2-0000000{n}.log");
            std::fs::write(at.join(name), "x".repeat(1000)).expect("written");
        }
        let limits = LogLimits {
            all: 2500,
            ..LogLimits::default()
        };
        logs(&at, limits).tidy(None);
        assert_eq!(left(&at).len(), 2);
        assert!(left(&at)[0].starts_with("20261123"));
        let one = LogLimits { all: 1, ..limits };
        let newest = at.join(&left(&at)[0]);
        logs(&at, one).tidy(Some(&newest));
        assert_eq!(left(&at).len(), 1, "the newest stays, whatever its size");
    }

    #[test]
    fn a_long_log_is_cut_in_its_middle_once_nobody_writes_to_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("20261120T140307123-0123abcd-2.log");
        let text: String = (0..60_000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(&path, &text).expect("written");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let writer = File::options().append(true).open(&path).expect("there");
        writer.set_modified(at).expect("set");
        writer.lock().expect("locked");
        settle(&path, 300_000);
        settle(&path, 0);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        drop(writer);
        settle(&path, 0);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        settle(&path, 300_000);
        let now = std::fs::read_to_string(&path).expect("there");
        assert!(now.len() <= 300_000 && now.len() > 299_900, "{}", now.len());
        let (head, rest) = now.split_once("\n[again: ").expect("the cut is said");
        let (gone, tail) = rest
            .split_once(" bytes were cut out here, see max_log_size in again.toml(5)]\n")
            .expect("said");
        assert!(text.starts_with(head) && text.ends_with(tail));
        let gone: usize = gone.parse().expect("a number");
        assert_eq!(gone, text.len() - head.len() - tail.len());
        let modified = std::fs::metadata(&path).and_then(|meta| meta.modified());
        assert_eq!(modified.expect("known"), at);
        settle(&path, 10);
        assert!(
            std::fs::read_to_string(&path)
                .expect("there")
                .contains("bytes were cut")
        );
    }

    #[test]
    fn what_was_reserved_is_as_much_as_the_largest_and_is_given_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("logs");
        let all = logs(&at, LogLimits::default());
        assert_eq!(all.largest(), LEAST);
        std::fs::write(
            at.join("20261120T140307123-0123abcd-2.log"),
            vec![b'x'; 3 << 20],
        )
        .expect("written");
        assert_eq!(all.largest(), 3 << 20);
        let small = LogLimits {
            each: 2 << 20,
            ..LogLimits::default()
        };
        assert_eq!(logs(&at, small).largest(), 2 << 20);
        let path = at.join("20261121T140307123-0123abcd-2.log");
        let file = File::create(&path).expect("made");
        reserve(&file, 3 << 20).expect("there is space");
        let blocks = || std::fs::metadata(&path).expect("there").blocks() * 512;
        // Not where the file system cannot do it.
        if blocks() >= 3 << 20 {
            drop(file);
            settle(&path, 0);
            assert_eq!(blocks(), 0);
        }
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 0);
    }

    /// One look is enough for all that start within a moment, and the next one goes on.
    #[test]
    fn a_crowded_directory_is_left_alone_for_a_moment() {
        let dir = tempfile::tempdir().expect("a directory");
        let (at, crowded) = (dir.path().join("logs"), dir.path().join(".logs.crowded"));
        let logs = logs(&at, keeping(20));
        let add = |from: usize, to: usize| {
            for n in from..to {
                let name = format!("20261121T140307123-{n:08x}-2.log");
                std::fs::write(at.join(name), "").expect("written");
            }
        };
        let count = || std::fs::read_dir(&at).expect("there").count();
        let set = |time| {
            let file = File::options().write(true).open(&crowded).expect("there");
            file.set_modified(time).expect("set");
        };
        add(0, 20 + CROWD);
        logs.tidy(None);
        assert_eq!(count(), 20);
        assert!(!crowded.exists(), "that was no crowd");
        add(100, 400);
        logs.tidy(None);
        assert_eq!(count(), 320 - AT_ONCE);
        // On a busy machine a moment may pass in between.
        let calm = (0..50).any(|nth| {
            add(2000 + 300 * nth, 2300 + 300 * nth);
            let before = count();
            set(SystemTime::now());
            logs.tidy(None);
            count() == before
        });
        assert!(calm, "looked at though somebody had just done so");
        while count() > 20 {
            let before = count();
            set(SystemTime::now() - CALM);
            logs.tidy(None);
            assert!(count() < before);
        }
        add(400, 410);
        set(SystemTime::now() + Duration::from_secs(3600));
        logs.tidy(None);
        assert_eq!(count(), 20);
    }
}
