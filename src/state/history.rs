//! The history: one line of JSON for each event of a request.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub use super::entry::{Entry, FIRST, What};
use super::files::{PATIENCE, private_file};
use super::newer::{self, Newer};
use again_base::sys::flock;

/// Size in bytes at which a new file is begun. One older file is kept.
const ROTATE_AT: u64 = 1 << 20;

/// Name of the older file.
const OLDER: &str = "history.1.jsonl";

/// Appends a line with a single write(2), so that lines of several writers do not mix.
///
/// # Errors
/// Errors of open(2) and write(2).
pub fn append(state_dir: &Path, entry: &Entry) -> io::Result<()> {
    let path = state_dir.join("history.jsonl");
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    let open = || {
        File::options()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o644)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(&path)
    };
    // A file with more than one hard link may belong to somebody else, so it is rotated unchanged.
    let is_to_rotate = |meta: &Metadata| meta.len() > ROTATE_AT || meta.nlink() > 1;
    let mut file = open()?;
    if is_to_rotate(&file.metadata()?) {
        // Of two processes that find the file full, one locks first; the other finds a new file.
        // The history itself is not locked, because any reader could hold that lock forever.
        let beside = state_dir.join(".history.lock");
        let lock = private_file(&beside)?;
        flock::lock(&lock, || beside, PATIENCE)?;
        if is_to_rotate(&std::fs::metadata(&path)?) {
            drop_oldest(state_dir)?;
            std::fs::rename(&path, state_dir.join(OLDER))?;
        }
        file = open()?;
    }
    // The umask of the run must not hide the history from other users.
    let meta = file.metadata()?;
    if meta.mode() & 0o777 != 0o644 && meta.uid() == again_base::sys::user::effective() {
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    // A line that a full disk cut short must not spoil this one.
    let length = file.metadata()?.len();
    let mut end = [b'\n'];
    if length > 0 && file.read_at(&mut end, length - 1).is_ok() && end != [b'\n'] {
        line.insert(0, b'\n');
    }
    file.write_all(&line)
}

/// Number of events by name and, if there are several kinds, by kind: `started`, `refused cap`,
/// `ended failed`.
pub type Tally = BTreeMap<String, u64>;

/// File with the counts of entries that were rotated out of the history.
const DROPPED: &str = "history.dropped.json";

/// Counts all events that ever happened, as far as they are known.
pub fn tally(state_dir: &Path) -> Tally {
    let mut tally = dropped(state_dir);
    count(&read(state_dir).0, &mut tally);
    tally
}

fn dropped(state_dir: &Path) -> Tally {
    let text = read_ours(&state_dir.join(DROPPED));
    serde_json::from_slice(&text).unwrap_or_default()
}

fn count(entries: &[Entry], tally: &mut Tally) {
    for entry in entries {
        *tally.entry(key(entry)).or_default() += 1;
    }
}

fn key(entry: &Entry) -> String {
    match (entry.what, entry.kind.as_str(), entry.outcome) {
        (What::Started | What::Ended, FIRST, _) => FIRST.to_owned(),
        (What::Ended, _, Some(outcome)) => format!("ended {outcome}"),
        (What::Refused, kind @ ("cap" | "disabled" | "noop"), _) => format!("refused {kind}"),
        (What::Refused, "cap-total", _) => "refused cap".to_owned(),
        (What::Refused, ..) => "refused other".to_owned(),
        (what, ..) => what.kind().to_owned(),
    }
}

/// Counts the older file before the newer one replaces it, so that counts never go down. Call with
/// the history locked.
fn drop_oldest(state_dir: &Path) -> io::Result<()> {
    let mut tally = dropped(state_dir);
    let mut entries = Vec::new();
    read_file(
        &state_dir.join(OLDER),
        &mut entries,
        &mut Unreadable::default(),
    );
    count(&entries, &mut tally);
    let text = serde_json::to_vec(&tally)?;
    super::files::replace_file(state_dir, DROPPED, &text, 0o644).map_err(io::Error::other)
}

/// Lines of the history that were skipped.
#[derive(Debug, Default)]
pub struct Unreadable {
    /// Number of skipped lines.
    pub lines: usize,
    /// Version of a skipped line that a newer program wrote, if any.
    pub newer: Option<Newer>,
}

/// Reads the history, oldest first. Unreadable lines are skipped and counted.
pub fn read(state_dir: &Path) -> (Vec<Entry>, Unreadable) {
    let (mut entries, mut unreadable) = (Vec::new(), Unreadable::default());
    for name in [OLDER, "history.jsonl"] {
        read_file(&state_dir.join(name), &mut entries, &mut unreadable);
    }
    (entries, unreadable)
}

/// Entries of one target, oldest first, without unreadable lines. Lines that do not contain the id
/// are not parsed.
pub fn of_target(state_dir: &Path, id: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for name in [OLDER, "history.jsonl"] {
        let text = read_ours(&state_dir.join(name));
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| line.contains(id));
        let parsed = lines.filter_map(|line| newer::read::<Entry>(line.as_bytes()).ok());
        entries.extend(parsed.filter(|entry| entry.target == id));
    }
    entries
}

/// Reads one of the history's files; empty if the path is not a regular file.
fn read_ours(path: &Path) -> Vec<u8> {
    let most = 64 * ROTATE_AT;
    again_base::sys::file::read_regular(path, most, nix::libc::O_NOFOLLOW).unwrap_or_default()
}

/// Adds the entries of one file, and counts its unreadable lines.
fn read_file(path: &Path, entries: &mut Vec<Entry>, unreadable: &mut Unreadable) {
    let text = read_ours(path);
    for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        match newer::read(line) {
            Ok(entry) => entries.push(entry),
            Err(e) => {
                unreadable.lines += 1;
                unreadable.newer = e.downcast_ref().copied().or(unreadable.newer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::{Boottime, Place, Walltime};
    use again_base::model::{Moment, Outcome};

    fn entry(what: What, reason: &str) -> Entry {
        let at = Moment {
            boot: "b".into(),
            place: Place::default(),
            uptime: Boottime::from_nanos(0),
            wall: Walltime::from_millis(0),
        };
        Entry {
            run: 2,
            reason: reason.into(),
            ..Entry::new(what, at)
        }
    }

    #[test]
    fn counts_never_go_down_when_files_are_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let reason = "x".repeat(20_000);
        let mut written = 0;
        while dropped(dir.path()).is_empty() {
            append(dir.path(), &entry(What::Started, &reason)).expect("written");
            written += 1;
            assert_eq!(tally(dir.path()).get("started"), Some(&written));
            assert!(written < 1000);
        }
        // A user who could open it could lock it, and so hold up every writer.
        let lock = std::fs::metadata(dir.path().join(".history.lock")).expect("there");
        assert_eq!(lock.mode() & 0o777, 0o600);
        let failed = Entry {
            outcome: Some(Outcome::Failed),
            ..entry(What::Ended, "x")
        };
        append(dir.path(), &failed).expect("written");
        assert_eq!(tally(dir.path()).get("ended failed"), Some(&1));
        assert!(u64::try_from(read(dir.path()).0.len()).expect("few") <= written);
    }

    #[test]
    fn a_line_cut_short_spoils_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        append(dir.path(), &entry(What::Requested, "")).expect("written");
        let path = dir.path().join("history.jsonl");
        let mut text = std::fs::read(&path).expect("read");
        text.extend_from_slice(b"{\"version\":1,\"at\":");
        std::fs::write(&path, text).expect("damaged");
        append(dir.path(), &entry(What::Started, "")).expect("written");
        let (entries, unreadable) = read(dir.path());
        assert_eq!((entries.len(), unreadable.lines), (2, 1));
        assert_eq!(unreadable.newer, None);
    }

    #[test]
    fn line_of_a_newer_version_is_left_out_with_its_number() {
        let dir = tempfile::tempdir().expect("a directory");
        append(dir.path(), &entry(What::Requested, "")).expect("written");
        let newer = Entry {
            version: 7,
            ..entry(What::Started, "")
        };
        append(dir.path(), &newer).expect("written");
        let (entries, unreadable) = read(dir.path());
        assert_eq!((entries.len(), unreadable.lines), (1, 1));
        assert_eq!(unreadable.newer, Some(Newer(7)));
        assert_eq!(of_target(dir.path(), &newer.target).len(), 1);
    }

    /// By its kind alone: an operator may give a reason that reads like a cap's.
    #[test]
    fn refusals_are_told_apart_by_their_kind() {
        let reason = "again is disabled (the cap is reached: 1 of at most 1)";
        for (kind, wanted) in [
            ("cap", "refused cap"),
            ("disabled", "refused disabled"),
            ("noop", "refused noop"),
            ("other-user", "refused other"),
        ] {
            let entry = Entry {
                kind: kind.into(),
                ..entry(What::Refused, reason)
            };
            assert_eq!(key(&entry), wanted);
        }
    }
}
