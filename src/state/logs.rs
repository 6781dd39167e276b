//! The output of reruns: one file each, its name beginning with the time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::directory::make_directory;
use super::files::{self, is_locked, private_file};
use super::record::Timer;
use crate::model::Walltime;
use crate::sys::localtime;

/// The end of every log's name.
pub const LOG_SUFFIX: &str = ".log";

/// Makes the file for a rerun's output: its name begins with the time, so that names
/// sort by age. It is locked, and stays so until nobody can write to it any more: the
/// lock goes with the descriptor, through exec and to children.
///
/// # Errors
/// What cannot be made, and why.
pub fn open_log(directory: &Path, timer: &Timer, now: Walltime) -> Result<(PathBuf, File)> {
    let stamp: String = localtime::utc(now)
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(18)
        .collect();
    let path = directory.join(format!("{stamp}-{}-{}{LOG_SUFFIX}", timer.chain, timer.run));
    make_directory(directory, 0o755)?;
    let new = files::open(&path, 0o600, File::options().append(true).create_new(true));
    let file = new.map_err(|e| files::cannot_write(&path, e))?;
    let _ = file.try_lock();
    Ok((path, file))
}

/// How many logs are looked at for one new one.
const AT_ONCE: usize = 256;

/// With so many more logs than are kept the directory is crowded: thousands of reruns
/// have started at once, and hold theirs.
const CROWD: usize = 64;

/// For how long one look at a crowded directory is enough for everybody.
const CALM: Duration = Duration::from_millis(100);

/// Removes the oldest logs but for the newest `keep`, of which `newest` is one, even
/// if the wall clock was set back and its name sorts before others; or is to be one.
/// Those of reruns that are under way are kept beside.
///
/// The time of the file `crowded` is when somebody last looked at a crowded directory.
/// A look at it takes as long as it is large, and as many would look as have made it so.
pub(super) fn prune(directory: &Path, keep: u32, newest: Option<&Path>, crowded: &Path) {
    let looked = std::fs::symlink_metadata(crowded).and_then(|meta| meta.modified());
    // A time to come is from before the wall clock was set back.
    if looked.is_ok_and(|time| time.elapsed().is_ok_and(|ago| ago < CALM)) {
        return;
    }
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let mut names: Vec<_> = entries
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name.to_str().is_some_and(is_log_name))
        .filter(|name| newest.is_none_or(|newest| newest.file_name() != Some(name)))
        .collect();
    let surplus = (names.len() + 1).saturating_sub(keep.max(1) as usize);
    if surplus > CROWD {
        let _ = private_file(crowded).and_then(|file| file.set_modified(SystemTime::now()));
    }
    names.sort_unstable();
    let surplus = names.iter().take(surplus.min(AT_ONCE));
    for path in surplus.map(|name| directory.join(name)) {
        if is_locked(&path) != Some(true) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// `20261121T140307123-0123abcd-2.log`: one of ours, and nobody else's.
pub fn is_log_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(LOG_SUFFIX) else {
        return false;
    };
    let parts: Vec<&str> = stem.split('-').collect();
    matches!(parts.as_slice(), [stamp, chain, run]
        if stamp.len() == 18
            && stamp.as_bytes().get(8) == Some(&b'T')
            && chain.len() == 8
            && chain.bytes().all(|b| b.is_ascii_hexdigit())
            && !run.is_empty()
            && run.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_the_oldest_logs_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        for n in 0..5 {
            let name = format!("2026112{n}T140307123-0123abcd-2.log");
            std::fs::write(dir.path().join(name), "").expect("written");
        }
        for other in ["precious.log", "20261120T140307123-x-2.log", "x"] {
            std::fs::write(dir.path().join(other), "").expect("written");
        }
        // The clock was set back before the newest.
        let newest = dir.path().join("20261120T140307123-0123abcd-2.log");
        let long = File::open(dir.path().join("20261122T140307123-0123abcd-2.log"));
        long.as_ref().expect("there").lock().expect("locked");
        // Anyone may open the directory, and lock it: that keeps no log.
        let foreign = File::open(dir.path()).expect("there");
        foreign.lock().expect("locked");
        let crowded = dir.path().join("crowded");
        prune(dir.path(), 2, Some(&newest), &crowded);
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .expect("dir")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                "20261120T140307123-0123abcd-2.log",
                "20261120T140307123-x-2.log",
                "20261122T140307123-0123abcd-2.log",
                "20261124T140307123-0123abcd-2.log",
                "precious.log",
                "x"
            ]
        );
    }

    /// One look is enough for all that start within a moment, and the next one goes on.
    #[test]
    fn a_crowded_directory_is_left_alone_for_a_moment() {
        let dir = tempfile::tempdir().expect("a directory");
        let (logs, crowded) = (dir.path().join("logs"), dir.path().join("crowded"));
        std::fs::create_dir(&logs).expect("made");
        let add = |from: usize, to: usize| {
            for n in from..to {
                let name = format!("20261121T140307123-{n:08x}-2.log");
                std::fs::write(logs.join(name), "").expect("written");
            }
        };
        let count = || std::fs::read_dir(&logs).expect("there").count();
        let set = |time| {
            let file = File::options().write(true).open(&crowded).expect("there");
            file.set_modified(time).expect("set");
        };
        add(0, 19 + CROWD);
        prune(&logs, 20, None, &crowded);
        assert_eq!(count(), 19);
        assert!(!crowded.exists(), "that was no crowd");
        add(100, 400);
        prune(&logs, 20, None, &crowded);
        assert_eq!(count(), 319 - AT_ONCE);
        // On a busy machine a moment may pass in between.
        let calm = (0..50).any(|nth| {
            add(2000 + 300 * nth, 2300 + 300 * nth);
            let before = count();
            set(SystemTime::now());
            prune(&logs, 20, None, &crowded);
            count() == before
        });
        assert!(calm, "looked at though somebody had just done so");
        while count() > 19 {
            let before = count();
            set(SystemTime::now() - CALM);
            prune(&logs, 20, None, &crowded);
            assert!(count() < before);
        }
        add(400, 410);
        set(SystemTime::now() + Duration::from_secs(3600));
        prune(&logs, 20, None, &crowded);
        assert_eq!(count(), 19);
    }
}
