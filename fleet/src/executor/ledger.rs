//! Ledger on disk, which has a single writer. Only synced data counts as stored. Changes are
//! appended; when they are about as long as the rest, the file is rewritten.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tracing::warn;

use again_base::directory::{Directory, Keeps, shown};
use again_base::model::{Moment, Span};
use again_base::sys::file::{OnDisk, atomic_write, read_regular, sync};
use rustix::fs::OFlags;

use crate::policy::page::{self, Change, LARGEST, Page};
use crate::policy::replay::{Record, ReplayLedger};
use crate::policy::share::Shares;
use crate::wire::outcome::Outcome;
use crate::wire::trigger::Trigger;

/// Ledger file, and its content.
pub struct Ledger {
    directory: Directory,
    page: Page,
    /// Changes that are not in the file yet.
    pending: Vec<u8>,
    is_saved: bool,
    file: Appended,
    /// Lock, held as long as this value exists.
    _lock: File,
}

/// Ledger file that is open for appending.
#[derive(Default)]
struct Appended {
    /// File; none if it has to be rewritten.
    file: Option<File>,
    /// Length, and the length beyond which the file is rewritten, in bytes.
    length: u64,
    most: u64,
}

impl Ledger {
    /// Opens the ledger in this state directory; creates missing directories.
    ///
    /// # Errors
    /// A directory cannot be used (the message says which, and why), or another process has the
    /// ledger.
    pub fn open(state_dir: &Path) -> Result<Ledger, String> {
        let (below, _) = parts();
        let directory = Directory::open(state_dir, Keeps::State)
            .and_then(|state_dir| state_dir.below(below, 0o700));
        let directory = directory
            .map_err(|e| format!("{e:#}").replace("AGAIN_STATE_DIR", "AGAIN_FLEET_STATE_DIR"))?;
        let path = directory.path();
        let lock = locked(&path.join("lock"), "executor")
            .map_err(|e| format!("{} cannot be locked: {e}", shown(&path).display()))?;
        let (page, file) = read(&path.join(parts().1));
        Ok(Ledger {
            directory,
            page,
            pending: Vec::new(),
            is_saved: true,
            file,
            _lock: lock,
        })
    }

    /// Replay ledger.
    pub fn replays(&self) -> &ReplayLedger {
        &self.page.replays
    }

    /// Triggers for which a request to `again` has begun and not ended.
    pub fn begun(&self) -> &[Trigger] {
        &self.page.begun
    }

    /// Use of the cap by each node.
    pub fn shares(&self) -> &Shares {
        &self.page.shares
    }

    fn change(&mut self, change: &Change) {
        if self.page.apply(change) {
            self.is_saved = false;
            self.pending.extend(page::line(change));
        }
    }

    /// Replaces the use of the cap by each node.
    pub fn set_shares(&mut self, shares: Shares) {
        self.change(&Change::Shares(shares));
    }

    /// Records the outcome of a trigger.
    pub fn record(
        &mut self,
        trigger: &Trigger,
        outcome: Outcome,
        why: &str,
        skew: Span,
        now: &Moment,
    ) {
        let record = Record::new(trigger, outcome, why, skew, now);
        self.change(&Change::Recorded(Box::new(record)));
    }

    /// Removes entries that no longer matter.
    pub fn forget(&mut self, now: &Moment) {
        self.change(&Change::Forgotten(now.clone()));
    }

    /// Stores the triggers for which a request to `again` is about to begin. Returns when these,
    /// and all earlier changes, are on disk.
    ///
    /// # Errors
    /// The file cannot be written; then no request has begun.
    pub fn begin(&mut self, triggers: Vec<Trigger>) -> Result<(), String> {
        self.end(triggers);
        self.save().inspect_err(|_| self.page.begun.clear())
    }

    /// Notes that the request to `again` has ended. `unknown` are the triggers whose result is not
    /// known. The change may be written to disk later.
    pub fn end(&mut self, unknown: Vec<Trigger>) {
        self.change(&Change::Begun(unknown));
    }

    /// Returns when all changes are on disk.
    ///
    /// # Errors
    /// The file cannot be written. The next attempt rewrites the whole file.
    pub fn save(&mut self) -> Result<(), String> {
        if self.is_saved {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let path = self.directory.path();
        let file = std::mem::take(&mut self.file);
        let saved = file.append(&pending, || Appended::anew(&path, &page::line(&self.page)));
        self.file = saved.map_err(|e| {
            let path = shown(&path.join(parts().1));
            format!("{} cannot be written: {e}", path.display())
        })?;
        self.is_saved = true;
        Ok(())
    }
}

impl Appended {
    /// Appends to the file and syncs it, or rewrites it if it is too long or incomplete.
    fn append(
        mut self,
        text: &[u8],
        anew: impl FnOnce() -> io::Result<Appended>,
    ) -> io::Result<Appended> {
        let length = self.length + text.len() as u64;
        match &mut self.file {
            Some(file) if length <= self.most => {
                file.write_all(text)?;
                sync(file)?;
                Ok(Appended { length, ..self })
            }
            _ => anew(),
        }
    }

    /// Replaces the file atomically.
    fn anew(directory: &Path, text: &[u8]) -> io::Result<Appended> {
        let file = atomic_write(&directory.join(parts().1), text, 0o600, OnDisk::Name)?;
        Ok(Appended {
            file: Some(file),
            length: text.len() as u64,
            most: page::most(text.len() as u64),
        })
    }

    /// Opens the file, which has this content. Syncs it, since an earlier process may not have done
    /// so.
    fn open(path: &Path, text: &[u8]) -> io::Result<Appended> {
        let mut options = File::options();
        let options = options
            .append(true)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(path)?;
        sync(&file)?;
        let first = text.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        Ok(Appended {
            file: Some(file),
            length: text.len() as u64,
            most: page::most(first as u64),
        })
    }
}

/// Directory and name of the file.
fn parts() -> (&'static str, &'static str) {
    page::FILE.split_once('/').expect("below a directory")
}

/// Locks a file, which is created if it is missing, so that only one process of this verb runs.
pub(super) fn locked(path: &Path, verb: &str) -> io::Result<File> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(io::Error::other(format!(
            "another 'again-fleet {verb}' is at work"
        ))),
        Err(fs::TryLockError::Error(e)) => Err(e),
    }
}

/// Content of the file. A file that cannot be read is set aside: `again` remembers the numbers too.
fn read(path: &Path) -> (Page, Appended) {
    let text = match read_regular(path, LARGEST, OFlags::NOFOLLOW.bits() as i32) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Default::default(),
        Err(e) => return set_aside(path, &e.to_string()),
    };
    match Page::parse(&text) {
        Ok((page, is_whole)) => {
            // A file that cannot be opened, or has a torn end, is rewritten.
            let file = is_whole.then(|| Appended::open(path, &text).unwrap_or_default());
            (page, file.unwrap_or_default())
        }
        Err(why) => set_aside(path, &why),
    }
}

fn set_aside(path: &Path, why: &str) -> (Page, Appended) {
    let aside = path.with_extension("unreadable");
    let moved = fs::rename(path, &aside).map_or_else(
        |e| format!("and cannot be set aside: {e}"),
        |()| format!("and is now {}", shown(&aside).display()),
    );
    warn!(
        "{} cannot be read ({why}), {moved}; a trigger of the last day may be taken once more if the helper has forgotten it too",
        shown(path).display()
    );
    Default::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::share::{Limiter, SHARE};
    use crate::wire::trigger::tests::trigger;
    use again_base::sys::clock::moment;

    const SKEW: Span = Span::from_secs(300);

    fn fresh() -> Trigger {
        let now = moment().wall.millis();
        Trigger {
            at: now,
            number: now,
            ..trigger()
        }
    }

    /// One of this name.
    fn named(n: u64) -> Trigger {
        let one = fresh();
        Trigger {
            name: n.to_string().parse().expect("a name"),
            number: one.number + n,
            id: crate::wire::name::Id::from_bits(n.into()),
            ..one
        }
    }

    fn outcome(ledger: &Ledger, trigger: &Trigger) -> Option<Outcome> {
        ledger
            .replays()
            .seen(&trigger.sender, &trigger.name)
            .map(|seen| seen.outcome)
    }

    #[test]
    fn what_was_saved_is_there_again_and_what_was_not_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path();
        let one = fresh();
        let mut ledger = Ledger::open(path).expect("opened");
        ledger.begin(vec![one.clone()]).expect("written");
        ledger.record(&one, Outcome::Taken, "", SKEW, &moment());
        ledger.end(Vec::new());
        // Killed here, it does it again.
        drop(ledger);
        let mut ledger = Ledger::open(path).expect("opened");
        assert_eq!(
            (ledger.begun(), outcome(&ledger, &one)),
            (&[one.clone()][..], None)
        );
        ledger.record(&one, Outcome::Taken, "", SKEW, &moment());
        ledger.end(Vec::new());
        ledger.save().expect("written");
        drop(ledger);
        let ledger = Ledger::open(path).expect("opened");
        assert_eq!(
            (ledger.begun(), outcome(&ledger, &one)),
            (&[][..], Some(Outcome::Taken))
        );
    }

    /// Shares are on disk before `again` is asked, as a power cut finds them.
    #[test]
    fn shares_are_saved_with_what_has_begun() {
        let dir = tempfile::tempdir().expect("a directory");
        let one = fresh();
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        let mut shares = ledger.shares().clone();
        let mut limiter = Limiter::new(&mut shares, None, SHARE, moment().wall);
        limiter.accept(&one).expect("within its share");
        ledger.set_shares(shares.clone());
        ledger.begin(vec![one]).expect("written");
        drop(ledger);
        let ledger = Ledger::open(dir.path()).expect("opened");
        assert_eq!(ledger.shares(), &shares);
        assert_ne!(shares, Shares::default());
    }

    #[test]
    fn there_is_one_writer() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Ledger::open(dir.path()).expect("opened");
        let error = Ledger::open(dir.path()).err().expect("refused");
        assert!(
            error.ends_with("another 'again-fleet executor' is at work"),
            "{error}"
        );
        drop(first);
        assert!(Ledger::open(dir.path()).is_ok());
    }

    #[test]
    fn ledger_that_cannot_be_read_stops_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(page::FILE);
        fs::create_dir(path.parent().expect("a directory")).expect("made");
        for text in [
            "",
            "{}",
            "\u{0}",
            r#"{"version":3,"replays":{"senders":{},"size":0},"begun":[],"shares":{}}"#,
        ] {
            fs::write(&path, text).expect("written");
            let ledger = Ledger::open(dir.path()).expect("opened");
            assert!(ledger.begun().is_empty());
            let aside = path.with_extension("unreadable");
            assert_eq!(fs::read_to_string(aside).expect("set aside"), text);
        }
    }

    /// A power cut may leave a part of the last line.
    #[test]
    fn torn_last_line_is_left_out_and_does_not_spoil_the_next() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(page::FILE);
        let (one, other) = (named(1), named(2));
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        ledger.begin(vec![one.clone()]).expect("written");
        let length = fs::metadata(&path).expect("there").len();
        ledger.record(&one, Outcome::Taken, "", SKEW, &moment());
        ledger.save().expect("written");
        drop(ledger);
        let file = File::options().write(true).open(&path).expect("opened");
        file.set_len(length + 40).expect("torn");
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        assert_eq!((ledger.begun(), outcome(&ledger, &one)), (&[one][..], None));
        ledger.record(&other, Outcome::Cancelled, "", SKEW, &moment());
        ledger.save().expect("written");
        drop(ledger);
        let ledger = Ledger::open(dir.path()).expect("opened");
        assert_eq!(outcome(&ledger, &other), Some(Outcome::Cancelled));
    }

    /// Whatever is recorded, the file has no more than twice what is remembered, and a change costs as much as it is long.
    #[test]
    fn changes_are_appended_and_the_file_is_written_anew_when_they_are_many() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(page::FILE);
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).expect("there"));
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        let (mut last, mut anew) = (0, 0);
        for n in 0..5000 {
            ledger.record(&named(n), Outcome::Cancelled, "", SKEW, &moment());
            // Without waiting for the disk each time.
            if n % 25 == 0 {
                ledger.save().expect("written");
                anew += u32::from(std::mem::replace(&mut last, inode()) != last);
                let all = page::line(&ledger.page).len() as u64;
                let length = fs::metadata(&path).expect("there").len();
                assert!(length <= page::most(all), "{length} for {all}");
            }
        }
        assert!((3..40).contains(&anew), "{anew}");
        ledger.save().expect("written");
        let page = ledger.page.clone();
        drop(ledger);
        assert_eq!(Ledger::open(dir.path()).expect("opened").page, page);
    }

    #[test]
    fn what_cannot_be_written_has_not_begun() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("executor");
        let (one, other) = (named(1), named(2));
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        fs::create_dir(path.join("ledger.new")).expect("in the way");
        ledger.record(&other, Outcome::Cancelled, "", SKEW, &moment());
        let error = ledger.begin(vec![one.clone()]).expect_err("in the way");
        assert!(
            error.contains("executor/ledger cannot be written"),
            "{error}"
        );
        assert!(ledger.begun().is_empty());
        fs::remove_dir(path.join("ledger.new")).expect("out of the way");
        ledger.begin(Vec::new()).expect("written");
        drop(ledger);
        let ledger = Ledger::open(dir.path()).expect("opened");
        assert_eq!(outcome(&ledger, &other), Some(Outcome::Cancelled));
        assert!(ledger.begun().is_empty());
    }

    /// /dev/full takes no byte.
    #[test]
    fn full_disk_is_an_error_and_the_file_is_written_anew_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, other) = (named(1), named(2));
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        ledger.begin(vec![one.clone()]).expect("written");
        let full = File::options().write(true).open("/dev/full");
        ledger.file.file = Some(full.expect("opened"));
        ledger.record(&other, Outcome::Cancelled, "", SKEW, &moment());
        let error = ledger.begin(vec![other.clone()]).expect_err("full");
        assert!(error.contains("No space left"), "{error}");
        ledger.begin(vec![one.clone()]).expect("written");
        drop(ledger);
        let ledger = Ledger::open(dir.path()).expect("opened");
        assert_eq!(outcome(&ledger, &other), Some(Outcome::Cancelled));
        assert_eq!(ledger.begun(), [one]);
    }

    #[test]
    fn file_that_could_not_be_written_anew_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        fs::create_dir(dir.path().join("executor/ledger")).expect("in the way");
        ledger.begin(vec![named(1)]).expect_err("in the way");
        assert!(!dir.path().join("executor/ledger.new").exists());
    }

    #[test]
    fn a_directory_of_others_is_not_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let target = dir.path().join("elsewhere");
        fs::create_dir(&target).expect("made");
        std::os::unix::fs::symlink(&target, dir.path().join("executor")).expect("linked");
        let error = Ledger::open(dir.path()).err().expect("refused");
        assert!(
            error.contains("is a symbolic link") && error.contains("AGAIN_FLEET_STATE_DIR"),
            "{error}"
        );
    }
}
