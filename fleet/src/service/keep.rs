//! Outboxes on disk: one for what this node sends on its own account, one for the statuses of
//! triggers that other nodes sent. So others cannot use up the room of this node's own triggers.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::outbox::{Bounds, Directory, NotKept, Outbox};
use crate::policy::fire::Numbers;
use crate::step::model::{Draft, EntryId, Logged};

/// Limits of each outbox: more than the largest number of entries, with room for the numbers of
/// triggers, the logged failures and this node's facts.
const BOUNDS: Bounds = Bounds {
    count: 20_003,
    bytes: 128 << 20,
};
/// Key of the numbers that were given to triggers. No entry has this key.
const NUMBER: &str = "number";
/// Key of the failures that were logged. No entry has this key.
const LOGGED: &str = "logged";

/// Both outboxes of this node.
pub struct Keep {
    fired: Outbox<Directory>,
    told: Outbox<Directory>,
    /// Logged failures, as they were last stored.
    logged: Logged,
    /// Lock on the directory, held for as long as this lives.
    _lock: File,
}

/// Content of both outboxes when they were opened.
#[derive(Debug, Default)]
pub struct Found {
    /// Numbers that were given to triggers.
    pub numbers: Numbers,
    /// Failures that were logged.
    pub logged: Logged,
    /// Entries of both outboxes.
    pub drafts: Vec<Draft>,
    /// Values that cannot be read, each with the reason.
    pub unread: Vec<String>,
}

impl Keep {
    /// Opens both outboxes in a directory, which is created if it is missing.
    ///
    /// # Errors
    /// The directory cannot be used, or another service uses it.
    pub fn open(directory: &Path) -> io::Result<(Keep, Found)> {
        let named = |e: io::Error| {
            let directory = directory.display();
            io::Error::new(e.kind(), format!("{directory} cannot be used: {e}"))
        };
        make(directory).map_err(named)?;
        let lock = lock(&directory.join("lock")).map_err(named)?;
        let mut found = Found::default();
        let mut open = |name| {
            let directory = directory.join(name);
            make(&directory)?;
            let (outbox, held) = Outbox::open(Directory(directory), BOUNDS)?;
            found.unread.extend(held.aside);
            for (key, value) in held.values {
                found.take(&key, &value);
            }
            Ok(outbox)
        };
        let fired = open("fired").map_err(named)?;
        let told = open("told").map_err(named)?;
        let keep = Keep {
            fired,
            told,
            logged: found.logged.clone(),
            _lock: lock,
        };
        Ok((keep, found))
    }

    fn of(&mut self, entry: &EntryId) -> &mut Outbox<Directory> {
        match entry {
            EntryId::Node | EntryId::Targets(_) | EntryId::To(..) | EntryId::Selection(..) => {
                &mut self.fired
            }
            EntryId::Status(_) => &mut self.told,
        }
    }

    /// Stores an entry in place of its older version. When this returns, it is on disk.
    ///
    /// # Errors
    /// The disk or the limits refuse the entry.
    pub fn put(&mut self, draft: &Draft) -> Result<(), NotKept> {
        let value = serde_json::to_vec(draft).map_err(io::Error::from)?;
        self.of(&draft.entry).put(&draft.entry.to_string(), &value)
    }

    /// Stores the failures that were logged, if they have changed.
    ///
    /// # Errors
    /// The disk or the limits refuse them; the next service may log them again.
    pub fn put_logged(&mut self, logged: &Logged) -> Result<(), NotKept> {
        if *logged == self.logged {
            return Ok(());
        }
        let pairs: Vec<_> = logged.iter().collect();
        let value = serde_json::to_vec(&pairs).map_err(io::Error::from)?;
        self.fired.put(LOGGED, &value)?;
        self.logged.clone_from(logged);
        Ok(())
    }

    /// Stores the numbers that were given to triggers.
    ///
    /// # Errors
    /// The disk or the limits refuse the numbers.
    pub fn put_numbers(&mut self, numbers: Numbers) -> Result<(), NotKept> {
        let value = serde_json::to_vec(&numbers).map_err(io::Error::from)?;
        self.fired.put(NUMBER, &value)
    }

    /// Removes an entry, after the numbers, if any, were stored.
    ///
    /// # Errors
    /// The disk refuses the change; the entry stays.
    pub fn forget(&mut self, entry: &EntryId, numbers: Option<Numbers>) -> Result<(), NotKept> {
        if let Some(numbers) = numbers {
            self.put_numbers(numbers)?;
        }
        Ok(self.of(entry).remove(&entry.to_string())?)
    }
}

impl Found {
    fn take(&mut self, key: &str, value: &[u8]) {
        if key == NUMBER {
            match serde_json::from_slice(value) {
                Ok(numbers) => self.numbers = numbers,
                Err(e) => self.unread.push(format!("the numbers of triggers: {e}")),
            }
            return;
        }
        if key == LOGGED {
            match serde_json::from_slice::<Vec<_>>(value) {
                Ok(pairs) => self.logged = pairs.into_iter().collect(),
                Err(e) => self
                    .unread
                    .push(format!("the failures that were logged: {e}")),
            }
            return;
        }
        match serde_json::from_slice::<Draft>(value) {
            Ok(draft) => self.drafts.push(draft),
            Err(e) => self.unread.push(format!("'{key}' is no entry: {e}")),
        }
    }
}

/// Creates a directory that only this user may enter, or checks that an existing one is such.
fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is no directory of this user's"));
    }
    if found.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "others may enter it; chmod 700 {}",
            directory.display()
        )));
    }
    Ok(())
}

fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::other("another 'again-fleet serve' is at work"))
        }
        Err(TryLockError::Error(e)) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::wire::name::Id;
    use crate::wire::outcome::Outcome;
    use again_base::model::Moment;

    use crate::policy::term::Term;
    use crate::step::model::Content;
    use crate::wire::trigger::tests::trigger;

    fn draft(version: u64) -> Draft {
        let trigger = trigger();
        Draft {
            entry: EntryId::To(trigger.target.clone(), trigger.name.clone()),
            version,
            term: Term {
                began: Moment::default(),
                until: trigger.expires(),
            },
            content: Content::Trigger(trigger),
        }
    }

    #[test]
    fn entries_and_the_number_are_there_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("serve");
        let (mut keep, found) = Keep::open(&path).expect("opened");
        assert_eq!((found.numbers, found.drafts.len()), (Numbers::default(), 0));
        keep.put(&draft(1)).expect("kept");
        keep.put(&draft(2)).expect("kept");
        drop(keep);
        let (mut keep, found) = Keep::open(&path).expect("opened");
        assert_eq!(
            (found.numbers, found.drafts),
            (Numbers::default(), vec![draft(2)])
        );
        let numbers = Numbers { last: 7, before: 9 };
        keep.forget(&draft(2).entry, Some(numbers))
            .expect("forgotten");
        let failed = (2, Id::from_bits(1), Outcome::Failed, false);
        let logged = Logged::from([(draft(2).entry, failed)]);
        keep.put_logged(&logged).expect("kept");
        drop(keep);
        let (_, found) = Keep::open(&path).expect("opened");
        assert_eq!(
            (found.numbers, found.drafts, found.unread),
            (numbers, vec![], vec![])
        );
        assert_eq!(found.logged, logged);
    }

    #[test]
    fn what_is_no_entry_is_said_and_stops_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("serve");
        let (mut keep, _) = Keep::open(&path).expect("opened");
        keep.fired.put("to/x", b"{}").expect("kept");
        keep.fired.put(NUMBER, b"1").expect("kept");
        keep.fired.put(LOGGED, b"1").expect("kept");
        drop(keep);
        let (_, found) = Keep::open(&path).expect("opened");
        assert_eq!((found.drafts, found.unread.len()), (vec![], 3));
    }

    #[test]
    fn a_directory_is_one_services_and_nobody_elses() {
        let dir = tempfile::tempdir().expect("a directory");
        let directory = dir.path().join("serve");
        let first = Keep::open(&directory).expect("opened");
        let error = |path: &Path| Keep::open(path).err().expect("refused").to_string();
        assert!(error(&directory).contains("another 'again-fleet serve'"));
        drop(first);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).expect("linked");
        assert!(error(&link).contains("no directory of this user's"));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o750)).expect("its mode");
        assert!(error(&directory).contains("chmod 700"));
    }
}
