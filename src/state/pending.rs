//! Index of the targets with an order, so that commands need not read idle targets.
//!
//! `pending/ID.TOKEN` exists for each order: created before the order, removed once the order is
//! gone and the record no longer names it. A process that dies in between leaves a surplus entry,
//! never a missing one. `pending/whole-PLACE.BOOT` exists once the index was completed under that
//! boot. Under any other boot, after an upgrade or a power failure, the index is rebuilt from the
//! directories and the records.

use std::collections::BTreeSet;
use std::fs::{DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::files::{self, cannot_write};
use super::record::Record;
use super::store::{Store, is_id, names};
use again_base::directory::shown;
use again_base::sys::clock::{boot_id, place};

/// Directory of the index.
const PENDING: &str = "pending";
/// Prefix of the name of the file that says under which boot the index was completed here.
fn whole() -> String {
    format!("whole{}.", place().tag())
}

/// Splits the name of an entry into target and token.
fn parse(name: &str) -> Option<(&str, &str)> {
    let (id, token) = name.split_once('.')?;
    (is_id(id) && is_id(token)).then_some((id, token))
}

impl Store {
    fn index(&self) -> PathBuf {
        self.path().join(PENDING)
    }

    /// Ids of the targets with an order, sorted: those with a timer, or with a rerun that was not
    /// yet seen to have ended. If the index is not reliable, the ids of all targets.
    pub fn pending(&self) -> Vec<String> {
        let indexed = self.make_index().and_then(|()| self.indexed());
        indexed.unwrap_or_else(|_| self.targets())
    }

    /// Ids in the index, sorted. A long listing may miss a target if one of its entries is removed
    /// and the next one is added meanwhile, so the directory is listed twice.
    fn indexed(&self) -> Result<Vec<String>> {
        let mut ids = BTreeSet::new();
        for _ in 0..2 {
            let names = listed(&self.index())?;
            ids.extend(
                names
                    .iter()
                    .filter_map(|name| Some(parse(name)?.0.to_owned())),
            );
        }
        Ok(ids.into_iter().collect())
    }

    /// Ids of the targets with an order, from the index and the directories. Adds the missing
    /// entries to the index; failures are only logged.
    pub fn repair_index(&self) -> Vec<String> {
        let mut ids: BTreeSet<String> = self.pending().into_iter().collect();
        for id in self.targets() {
            for token in names(&self.target_dir(&id).join("orders")).filter(|name| is_id(name)) {
                if let Err(e) = self.add_entry(&id, &token) {
                    tracing::debug!("{e:#}");
                }
                ids.insert(id.clone());
            }
        }
        ids.into_iter().collect()
    }

    /// Completes the index if it is not whole: from the directories and, since an order may be
    /// missing, from the records.
    ///
    /// # Errors
    /// The first failure, or an unknown boot, under which it cannot be told whether the index is
    /// whole.
    fn make_index(&self) -> Result<()> {
        let boot = boot_id();
        ensure!(!boot.is_empty(), "the boot ID is unknown");
        let made = self.index().join(whole() + &boot);
        if made.exists() || !self.path().join("targets").is_dir() {
            return Ok(());
        }
        self.below(PENDING)?;
        for id in listed(&self.path().join("targets"))?
            .iter()
            .filter(|name| is_id(name))
        {
            let mut tokens = listed(&self.target_dir(id).join("orders"))?;
            let record = match self.read(id) {
                // A damaged record, or one of a newer version, names no tokens.
                Err(e) if !e.is::<io::Error>() => None,
                read => read?,
            };
            tokens.extend(record.iter().flat_map(Record::tokens).map(str::to_owned));
            for token in tokens.iter().filter(|name| is_id(name)) {
                self.add_entry(id, token)?;
            }
        }
        for name in listed(&self.index())?
            .iter()
            .filter(|name| name.starts_with(&whole()))
        {
            let _ = std::fs::remove_file(self.index().join(name));
        }
        create(&made)
    }

    /// Adds the entry of an order that is about to be written.
    ///
    /// # Errors
    /// The file that cannot be written, and the cause.
    pub(super) fn add_entry(&self, id: &str, token: &str) -> Result<()> {
        create(&self.index().join(format!("{id}.{token}")))
    }

    /// Rebuilds the index if it is incomplete, then adds the entry of an order.
    pub(super) fn add_entry_to_index(&self, id: &str, token: &str) -> Result<()> {
        if let Err(e) = self.make_index() {
            tracing::debug!("the index of what is pending is not whole: {e:#}");
        }
        self.below(PENDING)?;
        self.add_entry(id, token)
    }

    /// Removes the entry of an order that is gone.
    pub(super) fn remove_entry(&self, id: &str, token: &str) {
        let _ = std::fs::remove_file(self.index().join(format!("{id}.{token}")));
    }

    /// Removes all entries of a target. Call with its lock held and an empty record.
    pub(super) fn remove_entries(&self, id: &str) {
        for name in names(&self.index()) {
            if let Some((of, token)) = parse(&name)
                && of == id
            {
                self.remove_entry(id, token);
            }
        }
    }

    /// Removes the entries of a target's orders that are gone and that nothing refers to. Call with
    /// the target's lock held, so that no other process is about to write an order.
    pub(super) fn remove_stray_entries(&self, id: &str, is_known: impl Fn(&str) -> bool) {
        for name in names(&self.index()) {
            if let Some((of, token)) = parse(&name)
                && of == id
                && !is_known(token)
                && !self.has_order(id, token)
            {
                self.remove_entry(id, token);
            }
        }
    }
}

/// Creates an empty file, unless it exists.
fn create(path: &Path) -> Result<()> {
    let mut options = File::options();
    match files::open(path, 0o644, options.write(true).create_new(true)) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(cannot_write(path, e)),
        _ => Ok(()),
    }
}

/// Names in a directory that are UTF-8; none if the directory is missing.
fn listed(directory: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries,
    };
    let name = |entry: io::Result<DirEntry>| Ok(entry?.file_name().into_string().ok());
    let names = entries.and_then(|entries| {
        entries
            .filter_map(|entry| name(entry).transpose())
            .collect()
    });
    names.with_context(|| format!("cannot list {}", shown(directory).display()))
}

#[cfg(test)]
mod tests {
    use super::super::leaving::dismiss_all;
    use super::super::record::Leaving;
    use super::*;
    use again_base::model::Kind;
    use again_base::sys::clock::moment;

    const IDS: [&str; 3] = ["0123456789abcdef", "1123456789abcdef", "2123456789abcdef"];
    const TOKEN: &str = "aaaaaaaaaaaaaaaa";

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("state")).expect("a store");
        for id in IDS {
            store.lock(id, Kind::Command, 0).expect("locked");
        }
        (dir, store)
    }

    #[test]
    fn write_order_adds_an_index_entry_and_remove_order_removes_it() {
        let (_dir, store) = store();
        assert!(store.pending().is_empty());
        store.write_order(IDS[1], TOKEN, b"x").expect("written");
        assert_eq!(store.pending(), [IDS[1]]);
        assert!(
            store.write_order(IDS[1], TOKEN, b"x").is_err(),
            "it is there"
        );
        assert_eq!(store.pending(), [IDS[1]]);
        store.remove_order(IDS[1], TOKEN);
        assert!(store.pending().is_empty());
    }

    #[test]
    fn pending_rebuilds_a_missing_or_outdated_index() {
        let (_dir, store) = store();
        // Without an entry.
        std::fs::write(store.order_path(IDS[2], TOKEN), b"x").expect("written");
        assert_eq!(store.pending(), [IDS[2]]);
        assert_eq!(store.indexed().expect("listed"), [IDS[2]]);
        std::fs::write(store.order_path(IDS[0], TOKEN), b"x").expect("written");
        assert_eq!(store.pending(), [IDS[2]], "nobody visits the others");
        assert_eq!(store.repair_index(), [IDS[0], IDS[2]]);
        assert_eq!(store.pending(), [IDS[0], IDS[2]]);
        // After a loss of power the disk may lack an entry.
        std::fs::write(store.order_path(IDS[1], TOKEN), b"x").expect("written");
        let made = store.index().join(whole() + &boot_id());
        std::fs::rename(&made, made.with_extension("another-boot")).expect("renamed");
        assert_eq!(store.pending(), IDS);
        // What cannot be listed is not taken for empty.
        std::fs::remove_dir_all(store.index()).expect("removed");
        std::fs::write(store.index(), "").expect("written");
        assert_eq!(store.pending(), IDS);
    }

    #[test]
    fn remove_strays_removes_index_entries_without_an_order() {
        let (_dir, store) = store();
        store.pending();
        store.add_entry(IDS[0], TOKEN).expect("entered");
        assert_eq!(store.repair_index(), [IDS[0]], "somebody looks after it");
        let locked = store.lock_existing(IDS[0]).expect("locked");
        store.remove_strays(&locked.record, &moment());
        assert!(store.repair_index().is_empty());
    }

    /// As where the disk is full: the record still has the timer whose waiter was ended.
    #[test]
    fn entry_stays_while_the_record_names_a_timer_whose_order_is_gone() {
        let (_dir, store) = store();
        let mut locked = store.lock_existing(IDS[0]).expect("locked");
        drop(store.write_order(IDS[0], TOKEN, b"x").expect("written"));
        let leaving = Leaving {
            token: TOKEN.to_owned(),
            waiter: None,
            boot: boot_id(),
            place: place(),
        };
        locked.record.leaving.push(leaving.clone());
        locked.commit().expect("committed");
        dismiss_all(&store, IDS[0], &[leaving], &moment(), &mut || false);
        assert!(!store.has_order(IDS[0], TOKEN));
        assert_eq!(store.pending(), [IDS[0]]);
        locked.record.leaving.clear();
        store.remove_strays(&locked.record, &moment());
        assert!(store.pending().is_empty());
    }

    #[test]
    fn forget_leaves_no_entry() {
        let (_dir, store) = store();
        store.pending();
        store.add_entry(IDS[0], TOKEN).expect("entered");
        let _locked = store.lock_existing(IDS[0]).expect("locked");
        store.forget(IDS[0]);
        assert!(store.pending().is_empty());
    }
}
