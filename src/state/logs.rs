//! The output of reruns: one file each, with a name that begins with the time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::files::{self, GUARDED, is_locked};
use super::record::Timer;
use again_base::directory::{Directory, Keeps};
use again_base::model::{LogLimits, Walltime};
use again_base::sys::localtime;

/// Suffix of every log's name.
pub const LOG_SUFFIX: &str = ".log";

/// Minimum space reserved for a log, in bytes.
const LEAST: u64 = 1 << 20;

/// Directory of the logs, held open.
#[derive(Debug)]
pub struct Logs<'a> {
    directory: &'a Path,
    held: Directory,
    limits: LogLimits,
}

impl<'a> Logs<'a> {
    /// Opens the directory, and creates it if it is missing.
    ///
    /// # Errors
    /// The problem with the directory.
    pub fn open(directory: &'a Path, limits: LogLimits) -> Result<Self> {
        Ok(Logs {
            directory,
            held: Directory::open(directory, Keeps::Logs)?,
            limits,
        })
    }

    /// Creates the file for the output of a target's rerun. Its name begins with the time, so that
    /// names sort by age. The file stays locked until no process can write to it any more: the lock
    /// belongs to the descriptor, which exec and children inherit. Space is reserved for as much as
    /// the largest of the other logs has, so that a full disk does not kill the rerun at its first
    /// line.
    ///
    /// # Errors
    /// The file that cannot be created, or the space that cannot be reserved, and the cause.
    pub fn create(
        &self,
        target: &str,
        timer: &Timer,
        now: Walltime,
        largest: u64,
    ) -> Result<(PathBuf, File)> {
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
        reserve(&file, self.to_reserve(largest))
            .inspect_err(|_| self.remove(&path))
            .with_context(|| format!("no space can be reserved for {}", path.display()))?;
        Ok((path, file))
    }

    /// Removes a log.
    pub fn remove(&self, path: &Path) {
        let name = path.file_name().unwrap_or_default();
        let _ = std::fs::remove_file(self.held.path().join(name));
    }

    /// Space reserved for the next log, in bytes.
    fn to_reserve(&self, largest: u64) -> u64 {
        let most = match self.limits.each {
            0 => largest,
            each => largest.min(each),
        };
        most.max(LEAST)
    }

    /// All logs, the newest first.
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

    /// Removes the oldest logs in excess of the limits per target or for all targets, and trims the
    /// others to their size. The `newest` logs stay even if the wall clock was set back and their
    /// names sort before others. The logs of running reruns stay too. Returns the size of the
    /// largest log that stays, in bytes.
    pub fn tidy(&self, newest: &[String]) -> u64 {
        // Of the logs begun in one round, only the last of each target stays.
        let last: BTreeMap<&str, &str> = newest
            .iter()
            .map(|name| (target_of(name), name.as_str()))
            .collect();
        let newest: BTreeSet<&str> = last.into_values().collect();
        let mut logs = self.all();
        // The newest count first.
        logs.sort_by_key(|log| !newest.contains(log.name.as_str()));
        let (mut of_target, mut bytes) = (BTreeMap::new(), 0_u64);
        let LogLimits { keep, each, all } = self.limits;
        let (surplus, kept): (Vec<&Log>, Vec<&Log>) = logs.iter().partition(|log| {
            let count = of_target.entry(target_of(&log.name)).or_insert(0_u32);
            *count += 1;
            bytes = bytes.saturating_add(log.size);
            let is_surplus = *count > keep.max(1) || (all > 0 && bytes > all);
            is_surplus && !newest.contains(log.name.as_str())
        });
        for log in surplus.iter().rev() {
            let path = self.held.path().join(&log.name);
            if is_locked(&path) != Some(true) {
                let _ = std::fs::remove_file(path);
            }
        }
        let is_unfit = |log: &&&Log| log.has_room || (each > 0 && log.size > each);
        for log in kept.iter().filter(is_unfit) {
            let _ = fit(&self.held.path().join(&log.name), each);
        }
        kept.iter().map(|log| log.size).max().unwrap_or(0)
    }
}

/// Log file, as listed in its directory.
#[derive(Debug)]
struct Log {
    name: String,
    size: u64,
    /// Whether the log has unused reserved space, as that of a running rerun has.
    has_room: bool,
}

/// Beginning of the id of a log's target.
fn target_of(name: &str) -> &str {
    let id = name.rsplit_once('-').map_or("", |(_, id)| id);
    id.strip_suffix(LOG_SUFFIX).unwrap_or(id)
}

/// Trims the log of a rerun that has ended: [`fit`].
pub fn settle(path: &Path, most: u64) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let is_log = name.to_str().is_some_and(is_log_name) && path.exists();
    if is_log && let Ok(held) = Directory::open(directory, Keeps::Logs) {
        let _ = fit(&held.path().join(name), most);
    }
}

/// Removes the log of a rerun that never began.
pub fn discard(path: &Path) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let is_log = name.to_str().is_some_and(is_log_name) && path.exists();
    if is_log && let Ok(held) = Directory::open(directory, Keeps::Logs) {
        let _ = std::fs::remove_file(held.path().join(name));
    }
}

/// Reserves this much disk space for a file with fallocate(2). A file system without support for
/// that is not an error.
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

/// Trims a log that no process writes to any more: frees unused reserved space, and cuts the log if
/// it is longer than `most` bytes, unless that is 0. Beginning and end stay, with a line in between
/// that says so.
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
    // The time of the rerun's last write, which shows when it ended.
    file.set_modified(modified)
}

/// Whether more space is reserved for a file than it uses.
fn is_reserved(meta: &Metadata) -> bool {
    meta.blocks() * 512 > meta.len().next_multiple_of(1 << 16)
}

/// Moves the end of a file behind its beginning, without using more space. Returns the new length.
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

/// Whether a name is that of one of our logs: `20261121T140307123-0123abcd-2-89abcdef.log`.
pub fn is_log_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(LOG_SUFFIX) else {
        return false;
    };
    let is_id = |id: &str| id.len() == 8 && id.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = stem.split('-').collect();
    matches!(parts.as_slice(), [stamp, chain, run, target]
        if stamp.len() == 18
            && stamp.as_bytes().get(8) == Some(&b'T')
            && is_id(chain)
            && !run.is_empty()
            && run.bytes().all(|b| b.is_ascii_digit())
            && is_id(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn logs(directory: &Path, limits: LogLimits) -> Logs<'_> {
        Logs::open(directory, limits).expect("opened")
    }

    fn name(path: &Path) -> Vec<String> {
        let name = path.file_name().expect("a name");
        vec![name.to_string_lossy().into_owned()]
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
            let name = format!("2026112{n}T140307123-0123abcd-2-00000007.log");
            std::fs::write(at.join(name), "").expect("written");
        }
        // Of other targets, which have their own newest.
        let others = [
            "20261001T140307123-0123abcd-2-89abcdef.log",
            "20261002T140307123-0123abcd-3-89abcdef.log",
            "20261003T140307123-0123abcd-4-01234567.log",
        ];
        for other in ["precious.log", "20261120T140307123-x-2-00000007.log", "x"]
            .iter()
            .chain(&others)
        {
            std::fs::write(at.join(other), "").expect("written");
        }
        // The clock was set back before the newest.
        let newest = at.join("20261120T140307123-0123abcd-2-00000007.log");
        let long = File::open(at.join("20261122T140307123-0123abcd-2-00000007.log"));
        long.as_ref().expect("there").lock().expect("locked");
        // Anyone may open the directory, and lock it: that keeps no log.
        let foreign = File::open(&at).expect("there");
        foreign.lock().expect("locked");
        assert_eq!(logs(&at, keeping(2)).tidy(&name(&newest)), 0);
        let mut expected = vec![
            "20261120T140307123-0123abcd-2-00000007.log",
            "20261120T140307123-x-2-00000007.log",
            "20261122T140307123-0123abcd-2-00000007.log",
            "20261124T140307123-0123abcd-2-00000007.log",
            "precious.log",
            "x",
        ];
        expected.extend(others);
        expected.sort_unstable();
        assert_eq!(left(&at), expected);
    }

    #[test]
    fn tidy_keeps_the_last_log_of_each_target_of_one_round() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("logs");
        std::fs::create_dir(&at).expect("made");
        let name = |nth, target| format!("2026112{nth}T140307123-0123abcd-2-{target:08x}.log");
        let begun = [name(1, 7), name(3, 7), name(2, 7), name(4, 8)];
        for name in &begun {
            std::fs::write(at.join(name), "").expect("written");
        }
        logs(&at, keeping(1)).tidy(&begun);
        assert_eq!(left(&at), [name(2, 7), name(4, 8)]);
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
        assert_eq!(logs(&at, limits).tidy(&[]), 1000);
        assert_eq!(left(&at).len(), 2);
        assert!(left(&at)[0].starts_with("20261123"));
        let one = LogLimits { all: 1, ..limits };
        let newest = at.join(&left(&at)[0]);
        logs(&at, one).tidy(&name(&newest));
        assert_eq!(left(&at).len(), 1, "the newest stays, whatever its size");
    }

    #[test]
    fn a_long_log_is_cut_in_its_middle_once_nobody_writes_to_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir
            .path()
            .join("20261120T140307123-0123abcd-2-00000007.log");
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
        assert_eq!(all.to_reserve(0), LEAST);
        assert_eq!(all.to_reserve(3 << 20), 3 << 20);
        let small = LogLimits {
            each: 2 << 20,
            ..LogLimits::default()
        };
        assert_eq!(logs(&at, small).to_reserve(3 << 20), 2 << 20);
        let path = at.join("20261121T140307123-0123abcd-2-00000007.log");
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
}
