//! The books on disk, of which there is one writer. Nothing is believed to be on disk that was not synced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use again::layout::complain;
use again::model::{Moment, Span};
use again::state::directory::{Directory, Keeps, shown};
use again::sys::file::{read_regular, sync};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::policy::books::Books;
use crate::policy::share::Shares;
use crate::wire::outcome::Outcome;
use crate::wire::trigger::Trigger;

/// Where the books are, in the state directory.
const DIRECTORY: &str = "take";
/// The books, in their directory.
const FILE: &str = "books.json";
/// More than the books of any fleet have, in bytes.
const LARGEST: u64 = 256 << 20;
const VERSION: u32 = 1;

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Page {
    version: u32,
    books: Books,
    /// What the helper is being asked for.
    begun: Vec<Trigger>,
    /// Each node's use of the cap. Earlier versions kept none.
    #[serde(default)]
    shares: Shares,
}

/// The file, and what is to be in it.
pub struct Ledger {
    directory: Directory,
    page: Page,
    is_saved: bool,
    /// Held as long as this lives.
    _lock: File,
}

impl Ledger {
    /// Opens the books in this state directory; directories are made where they are missing.
    ///
    /// # Errors
    /// What is wrong with which directory; or another process has the books.
    pub fn open(state_dir: &Path) -> Result<Ledger, String> {
        let directory = Directory::open(state_dir, Keeps::State)
            .and_then(|state_dir| state_dir.below(DIRECTORY, 0o700));
        let directory = directory
            .map_err(|e| format!("{e:#}").replace("AGAIN_STATE_DIR", "AGAIN_FLEET_STATE_DIR"))?;
        let path = directory.path();
        let lock = locked(&path.join("lock"), "take")
            .map_err(|e| format!("{} cannot be locked: {e}", shown(&path).display()))?;
        Ok(Ledger {
            page: read(&path.join(FILE)),
            directory,
            is_saved: true,
            _lock: lock,
        })
    }

    /// The books.
    pub fn books(&self) -> &Books {
        &self.page.books
    }

    /// What was begun with and not ended.
    pub fn begun(&self) -> &[Trigger] {
        &self.page.begun
    }

    /// Each node's use of the cap.
    pub fn shares(&self) -> &Shares {
        &self.page.shares
    }

    /// Takes over each node's use of the cap.
    pub fn set_shares(&mut self, shares: Shares) {
        self.is_saved &= shares == self.page.shares;
        self.page.shares = shares;
    }

    /// Enters what becomes of a trigger.
    pub fn enter(
        &mut self,
        trigger: &Trigger,
        outcome: Outcome,
        why: &str,
        skew: Span,
        now: &Moment,
    ) {
        self.page
            .books
            .enter(&trigger.into(), outcome, why, skew, now);
        self.is_saved = false;
    }

    /// Forgets what no longer matters.
    pub fn forget(&mut self, now: &Moment) {
        self.page.books.forget(now);
    }

    /// Writes down for which triggers the helper is going to be asked; and waits until the disk has that, and all that was entered.
    ///
    /// # Errors
    /// It cannot be written; then nothing has begun.
    pub fn begin(&mut self, triggers: Vec<Trigger>) -> Result<(), String> {
        self.is_saved &= triggers.is_empty();
        self.page.begun = triggers;
        self.save().inspect_err(|_| self.page.begun.clear())
    }

    /// The helper has been asked; of all but these it is known what it did. The disk may learn that later.
    pub fn end(&mut self, unknown: Vec<Trigger>) {
        self.is_saved &= self.page.begun == unknown;
        self.page.begun = unknown;
    }

    /// Waits until the disk has everything.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&mut self) -> Result<(), String> {
        if self.is_saved {
            return Ok(());
        }
        let text = serde_json::to_vec(&self.page).expect("plain values");
        let path = self.directory.path();
        replace(&path, &text).map_err(|e| {
            let path = shown(&path.join(FILE));
            format!("{} cannot be written: {e}", path.display())
        })?;
        self.is_saved = true;
        Ok(())
    }
}

/// Locks a file, which is made if it is missing; there is one process of this verb.
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

/// What is in the file. Books that cannot be read are set aside: the helper remembers the numbers too.
fn read(path: &Path) -> Page {
    let new = Page {
        version: VERSION,
        books: Books::default(),
        begun: Vec::new(),
        shares: Shares::default(),
    };
    let text = match read_regular(path, LARGEST, OFlags::NOFOLLOW.bits() as i32) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return new,
        Err(e) => return set_aside(path, &e.to_string(), new),
    };
    match serde_json::from_slice::<Page>(&text) {
        Ok(page) if page.version == VERSION => page,
        Ok(page) => set_aside(path, &format!("it is of version {}", page.version), new),
        Err(e) => set_aside(path, &e.to_string(), new),
    }
}

fn set_aside(path: &Path, why: &str, new: Page) -> Page {
    let aside = path.with_extension("unreadable");
    let moved = fs::rename(path, &aside).map_or_else(
        |e| format!("and cannot be set aside: {e}"),
        |()| format!("and is now {}", shown(&aside).display()),
    );
    complain(&format!(
        "again-fleet: {} cannot be read ({why}), {moved}; a trigger of the last day may be taken once more if the helper has forgotten it too",
        shown(path).display()
    ));
    new
}

/// Another file under the name: all or nothing.
fn replace(directory: &Path, text: &[u8]) -> io::Result<()> {
    let new = directory.join("books.new");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text)?;
    sync(&file)?;
    fs::rename(&new, directory.join(FILE))?;
    sync(&File::open(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::share::{Limiter, SHARE};
    use crate::wire::trigger::tests::trigger;
    use again::sys::clock::moment;

    const SKEW: Span = Span::from_secs(300);

    fn fresh() -> Trigger {
        let now = moment().wall.millis();
        Trigger {
            at: now,
            number: now,
            ..trigger()
        }
    }

    fn outcome(ledger: &Ledger, trigger: &Trigger) -> Option<Outcome> {
        ledger
            .books()
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
        ledger.enter(&one, Outcome::Taken, "", SKEW, &moment());
        ledger.end(Vec::new());
        // Killed here, it does it again.
        drop(ledger);
        let mut ledger = Ledger::open(path).expect("opened");
        assert_eq!(
            (ledger.begun(), outcome(&ledger, &one)),
            (&[one.clone()][..], None)
        );
        ledger.enter(&one, Outcome::Taken, "", SKEW, &moment());
        ledger.end(Vec::new());
        ledger.save().expect("written");
        drop(ledger);
        let ledger = Ledger::open(path).expect("opened");
        assert_eq!(
            (ledger.begun(), outcome(&ledger, &one)),
            (&[][..], Some(Outcome::Taken))
        );
    }

    /// Shares are on disk before `again` is asked, as a power cut finds them. Earlier versions kept none.
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
        drop(ledger);
        let path = dir.path().join(DIRECTORY).join(FILE);
        let before = r#"{"version":1,"books":{"senders":{},"forgotten":0},"begun":[]}"#;
        fs::write(&path, before).expect("written");
        let ledger = Ledger::open(dir.path()).expect("opened");
        assert_eq!(ledger.shares(), &Shares::default());
        assert!(!path.with_extension("unreadable").exists());
    }

    #[test]
    fn there_is_one_writer() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Ledger::open(dir.path()).expect("opened");
        let error = Ledger::open(dir.path()).err().expect("refused");
        assert!(
            error.ends_with("another 'again-fleet take' is at work"),
            "{error}"
        );
        drop(first);
        assert!(Ledger::open(dir.path()).is_ok());
    }

    #[test]
    fn books_that_cannot_be_read_stop_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(DIRECTORY);
        fs::create_dir(&path).expect("made");
        for text in [
            "",
            "{}",
            "\u{0}",
            r#"{"version":2,"books":{"senders":{},"forgotten":0},"begun":[]}"#,
        ] {
            fs::write(path.join(FILE), text).expect("written");
            let ledger = Ledger::open(dir.path()).expect("opened");
            assert!(ledger.begun().is_empty());
            assert_eq!(
                fs::read_to_string(path.join("books.unreadable")).expect("set aside"),
                text
            );
        }
    }

    #[test]
    fn what_cannot_be_written_has_not_begun() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(DIRECTORY);
        let mut ledger = Ledger::open(dir.path()).expect("opened");
        fs::create_dir(path.join("books.new")).expect("in the way");
        assert!(ledger.begin(vec![fresh()]).is_err());
        assert!(ledger.begun().is_empty());
        fs::remove_dir(path.join("books.new")).expect("out of the way");
        ledger.begin(Vec::new()).expect("written");
    }

    #[test]
    fn a_directory_of_others_is_not_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let target = dir.path().join("elsewhere");
        fs::create_dir(&target).expect("made");
        std::os::unix::fs::symlink(&target, dir.path().join(DIRECTORY)).expect("linked");
        let error = Ledger::open(dir.path()).err().expect("refused");
        assert!(
            error.contains("is a symbolic link") && error.contains("AGAIN_FLEET_STATE_DIR"),
            "{error}"
        );
    }
}
