//! The state directory: one folder per target, changed only under its lock, and only by writing a
//! new file and renaming it over the old one.
//!
//! ```text
//! targets/ID/state.json    public record
//! targets/ID/command       command line, readable by its owner only
//! targets/ID/lock          held while state.json is read and replaced
//! targets/ID/orders/TOKEN  command line and environment of one timer, locked by its waiter
//! pending/ID.TOKEN         exists for each order, see `pending`
//! upkeep/                  state of the upkeep of the logs, see `upkeep`
//! starts                   start times of reruns of all targets, see `together`
//! reruns/PID               target of a rerun's process
//! triggered/ID             exists for each target that accepted triggers, see `triggered`
//! drivers/                 converge drivers, see `driver`
//! history.jsonl            events of every request
//! disabled                 exists while requests are refused
//! ```

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::files::{
    Draft, PATIENCE, is_transient, private_file, read_bounded, replace_file, sync_directory, token,
};
use super::history::{self, Entry};
use super::newer::{self, Newer};
use super::record::{Record, Start};
use again_base::directory::{Directory, Keeps, shown};
use again_base::model::{Kind, Span};
use again_base::sys::clock::moment;
use again_base::sys::file::{is_synced_with_its_name, sync, write_out};
use again_base::sys::flock;
use again_base::sys::user;

/// Handle on a state directory.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    /// Open directory, once something was written.
    held: OnceCell<Directory>,
    /// Maximum time to wait for a lock.
    patience: Duration,
}

/// Maximum time that a request waits for a lock. Hundreds of requests may arrive at the same time;
/// this is well below the timeout of their Exec, which the class sets to 60 s.
const PATIENCE_OF_REQUESTS: Duration = Duration::from_secs(30);

/// Target's record, with its lock held until this is dropped.
#[derive(Debug)]
pub struct Locked {
    /// Keeps the path of the directory valid.
    _held: Option<Directory>,
    directory: PathBuf,
    /// Record as it was read; change it, then call [`Locked::commit`].
    pub record: Record,
    /// Problem with the record, if it was rebuilt from the history.
    pub set_aside: Option<String>,
    _lock: File,
}

/// Content of the file that `again disable` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disabled {
    /// Reason given by the operator; may be empty.
    pub reason: String,
    /// Time of the command, in milliseconds since 1970.
    pub since: u64,
}

/// File name of a target's record.
pub(super) const RECORD: &str = "state.json";

/// Minimum time that a target must be idle before it is forgotten.
pub const QUIET: Span = Span::from_secs(24 * 60 * 60);
/// Name of the file that disables requests while it exists.
const DISABLED: &str = "disabled";

impl Store {
    /// Opens the directory for a request: creates it if it is missing, and checks that nobody else
    /// can write to it.
    ///
    /// # Errors
    /// The directory, what is wrong with it, and the remedy.
    pub fn open(root: &Path) -> Result<Self> {
        let mut store = Store::existing(root);
        store.patience = PATIENCE_OF_REQUESTS;
        store.check()?;
        Ok(store)
    }

    /// Opens the directory as it is, for reading; it may not exist.
    pub fn existing(root: &Path) -> Self {
        Store {
            root: root.to_owned(),
            held: OnceCell::new(),
            patience: PATIENCE,
        }
    }

    /// Creates the directory if it is missing. Fails if others can write to it, or if it is not the
    /// one that was opened first, whose descriptor is used from then on.
    ///
    /// # Errors
    /// The directory, what is wrong with it, and the remedy.
    pub fn check(&self) -> Result<()> {
        // Once the directory was opened safely, only its name is checked again.
        if self.held.get().is_some_and(|held| held.is_at(&self.root)) {
            return Ok(());
        }
        let found = Directory::open(&self.root, Keeps::State)?;
        let held = self.held.get_or_init(|| found.clone());
        if !held.is(&found) {
            bail!(
                "{} is another directory than before: somebody has moved or replaced it",
                self.root.display()
            );
        }
        found.below("targets", 0o755)?;
        found.below("reruns", 0o755)?;
        // Only once the directory is known to be ours.
        if let Ok(descriptor) = held.descriptor() {
            again_base::sys::log::last_resort(descriptor);
        }
        Ok(())
    }

    /// Opens a directory below the state directory, and creates it if it is missing.
    ///
    /// # Errors
    /// As for [`Store::check`].
    pub(super) fn below(&self, name: &str) -> Result<Directory> {
        self.check()?;
        let held = self.held.get().context("the state directory is not open")?;
        held.below(name, 0o755)
    }

    /// Path of the directory, for people.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path for access: through the descriptor, once there is one.
    pub fn path(&self) -> PathBuf {
        self.held
            .get()
            .map_or_else(|| self.root.clone(), Directory::path)
    }

    pub(super) fn target_dir(&self, id: &str) -> PathBuf {
        let mut path = self.path();
        path.push("targets");
        path.push(id);
        path
    }

    pub(super) fn record_path(&self, id: &str) -> PathBuf {
        self.target_dir(id).join(RECORD)
    }

    /// Ids of all targets, sorted.
    pub fn targets(&self) -> Vec<String> {
        let mut ids: Vec<String> = names(&self.path().join("targets"))
            .filter(|name| is_id(name))
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Reads a record without its lock, as it is at this moment. `None` if there is none.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn read(&self, id: &str) -> Result<Option<Record>> {
        let path = self.target_dir(id).join(RECORD);
        match read_bounded(&path) {
            Ok(text) => parse_record(&text, id)
                .map(Some)
                .with_context(|| format!("the record {} cannot be used", shown(&path).display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot read {}", shown(&path).display())),
        }
    }

    /// Describes the loss of a target's record, if the target has an order but no record, and no
    /// process works on it. A target that is not in the history was left by a request that died.
    pub fn lost(&self, id: &str) -> Option<String> {
        let target = self.target_dir(id);
        let has_order = names(&target.join("orders")).any(|name| is_id(&name));
        let is_known = || {
            let (entries, _) = super::history::read(&self.root);
            entries.iter().any(|entry| entry.target == id)
        };
        let is_lost = has_order
            && super::files::is_locked(&self.lock_path(id)) != Some(true)
            && matches!(self.read(id), Ok(None))
            && is_known();
        is_lost.then(|| {
            format!(
                "the record {} is missing",
                shown(&target.join(RECORD)).display()
            )
        })
    }

    /// Reads a record for a command that will change it. A missing or unreadable record is first
    /// rebuilt, with a warning.
    ///
    /// # Errors
    /// As [`Store::lock`].
    pub fn read_or_mend(&self, id: &str) -> Result<Option<Record>> {
        if let Ok(Some(record)) = self.read(id) {
            return Ok(Some(record));
        }
        let locked = self.lock_existing(id)?;
        if let Some(what) = &locked.set_aside {
            tracing::warn!("a record was rebuilt from the history: {what}");
        }
        Ok(Some(locked.record.clone()))
    }

    /// Handle on this directory for a command that only reads: it does not wait for locks.
    #[must_use]
    pub fn without_waiting(&self) -> Self {
        let patience = Duration::ZERO;
        Store {
            patience,
            ..self.clone()
        }
    }

    /// Path of a target's lock file.
    pub fn lock_path(&self, id: &str) -> PathBuf {
        self.target_dir(id).join("lock")
    }

    /// Locks a target that exists.
    ///
    /// # Errors
    /// As [`Store::lock`]; also if the target does not exist.
    pub fn lock_existing(&self, id: &str) -> Result<Locked> {
        if !self.target_dir(id).is_dir() {
            bail!("there is no target {id} in {}", self.root.display());
        }
        // The record says who owns the target and of what kind it is.
        self.lock(id, Kind::Command, user::effective())
    }

    /// Locks a target and reads its record, or begins one.
    ///
    /// A record of a newer version is left alone. Any other that cannot be read is set aside,
    /// whatever its file type. The count of starts then comes from the history, as it does for a
    /// missing record, so that damage does not open the cap. The new record is written immediately:
    /// if this process dies, the next one must not find a count of zero.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn lock(&self, id: &str, kind: Kind, uid: u32) -> Result<Locked> {
        let lock = self.lock_file(id)?;
        let directory = self.target_dir(id);
        let path = directory.join(RECORD);
        let locked = |record| Locked {
            _held: self.held.get().cloned(),
            directory: directory.clone(),
            record,
            set_aside: None,
            _lock: lock,
        };
        let why = match read_bounded(&path) {
            Ok(text) => match parse_record(&text, id) {
                Ok(record) => return Ok(locked(record)),
                // The record is intact; only this program cannot read it.
                Err(e) if e.is::<Newer>() => {
                    let path = shown(&path);
                    return Err(e.context(format!("left alone: the record {}", path.display())));
                }
                Err(e) => e,
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut locked = locked(self.record_by_history(id, kind, uid));
                let counted = locked
                    .record
                    .moments()
                    .filter(|at| at.age(&moment()) < QUIET);
                let known = counted.count();
                if known > 0 || !locked.record.running.is_empty() {
                    locked.commit()?;
                    locked.set_aside = Some(format!(
                        "{} was missing; by the history {known} reruns had started lately",
                        shown(&path).display()
                    ));
                }
                return Ok(locked);
            }
            // A transient error says nothing about the record.
            Err(e) if is_transient(&e) => {
                return Err(e).with_context(|| format!("cannot read {}", shown(&path).display()));
            }
            Err(e) => anyhow!("cannot read {}: {e}", shown(&path).display()),
        };
        let mut locked = locked(self.record_by_history(id, kind, uid));
        let aside = directory.join(format!("state.json.unreadable-{}", token()));
        // A directory cannot be hard-linked.
        std::fs::hard_link(&path, &aside)
            .or_else(|_| std::fs::rename(&path, &aside))
            .with_context(|| format!("cannot set {} aside", shown(&path).display()))?;
        locked.commit().inspect_err(|_| {
            let _ = match path.symlink_metadata() {
                Ok(_) => std::fs::remove_file(&aside),
                Err(_) => std::fs::rename(&aside, &path),
            };
        })?;
        locked.set_aside = Some(format!("{why:#}; it is now {}", shown(&aside).display()));
        Ok(locked)
    }

    /// Opens and locks a target's lock file. The directory may be forgotten during the wait, and is
    /// then created again.
    fn lock_file(&self, id: &str) -> Result<File> {
        loop {
            let targets = self.below("targets")?;
            targets.below(id, 0o755)?.below("orders", 0o700)?;
            let path = self.lock_path(id);
            let lock = match private_file(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                opened => {
                    opened.with_context(|| format!("cannot open {}", shown(&path).display()))?
                }
            };
            flock::lock(&lock, || shown(&path), self.patience)?;
            if lock.metadata()?.nlink() > 0 {
                return Ok(lock);
            }
        }
    }

    /// Removes all files of an idle target. Call with its lock held.
    pub(super) fn forget(&self, id: &str) {
        // First, because the lock is deleted with the directory.
        self.remove_entries(id);
        let _ = std::fs::remove_dir_all(self.target_dir(id));
        self.forget_triggered(id);
    }

    /// Time since a target's record, or else its directory, was changed.
    pub(super) fn age_of(&self, id: &str) -> Option<Span> {
        let directory = self.target_dir(id);
        let meta = directory.join(RECORD).symlink_metadata();
        let meta = meta.or_else(|_| directory.symlink_metadata()).ok()?;
        let age = meta.modified().ok()?.elapsed().ok()?;
        Some(Span::from_secs(age.as_secs()))
    }

    /// Record with the starts from the history, and the running reruns from their notes. Pending
    /// timers are lost.
    fn record_by_history(&self, id: &str, kind: Kind, uid: u32) -> Record {
        use history::What::{Opened, Reset, Satisfied, Started, Stopped, TakenBack};
        let mut record = Record::new(id, kind, uid);
        let entries = history::of_target(&self.path(), id);
        let driven = entries.iter().filter(|e| e.what == Opened);
        let driven: Vec<String> = driven.map(|entry| entry.chain.clone()).collect();
        // The runs of a driver count for the driver alone.
        for entry in entries.into_iter().filter(|e| !driven.contains(&e.chain)) {
            if matches!(entry.what, Started | Satisfied | Stopped) {
                // Triggers that were acted on are not acted on again; those that were only
                // requested are lost with the record.
                let _ = record.remember(&entry.lineage.triggers, moment().wall);
            }
            let is_same = |start: &Start| (&start.chain, start.run) == (&entry.chain, entry.run);
            match entry.what {
                Started if !record.starts.iter().any(is_same) => record.starts.push(Start {
                    at: entry.at,
                    chain: entry.chain,
                    run: entry.run,
                    forgotten: false,
                }),
                // The start does not count, and the timer is lost with the record.
                TakenBack => record.starts.retain(|start| !is_same(start)),
                Reset => record
                    .starts
                    .iter_mut()
                    .for_each(|start| start.forgotten = true),
                _ => {}
            }
        }
        for run in self.noted_reruns(id, &moment()) {
            record.note_running(run);
        }
        record.starts.sort_by_key(|start| start.at.wall);
        record
    }

    /// Appends to the history. A failure is only logged, because the record is authoritative.
    pub fn note(&self, entry: &Entry) {
        if let Err(e) = history::append(&self.path(), entry) {
            tracing::warn!("cannot write {}/history.jsonl: {e}", self.root.display());
        }
    }

    /// Waits until a timer's order, the record that names it, and the names of both and of their
    /// target, which may all be new, are on disk. The record's name came last, so a journal that
    /// has it has them all.
    ///
    /// # Errors
    /// The failed operation and its file or directory.
    pub fn sync_all(&self, id: &str, order: &File) -> Result<()> {
        sync(order).context("cannot sync the order")?;
        let target = self.target_dir(id);
        if is_synced_with_its_name(order)
            && let Ok(record) = File::open(target.join(RECORD))
        {
            return sync(&record).context("cannot sync the record");
        }
        self.sync_names(id)
    }

    /// Waits until the names of a target's orders, of its record and of the target itself are on
    /// disk.
    ///
    /// # Errors
    /// The failed operation and its directory.
    pub fn sync_names(&self, id: &str) -> Result<()> {
        let target = self.target_dir(id);
        sync_directory(&target.join("orders"))?;
        sync_directory(&target)?;
        sync_directory(&self.path().join("targets"))
    }

    /// Records that requests are refused, for all commands and waiters.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn disable(&self, disabled: &Disabled) -> Result<()> {
        replace_file(
            &self.path(),
            DISABLED,
            &serde_json::to_vec(disabled)?,
            0o644,
        )?;
        sync_directory(&self.path())
    }

    /// Enables requests again. False if they were not disabled.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn enable(&self) -> Result<bool> {
        if self.path().join(DISABLED).symlink_metadata().is_ok() {
            self.check()?;
        }
        let path = self.path().join(DISABLED);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).with_context(|| format!("cannot remove {}", shown(&path).display())),
        }
    }

    /// Reason and time since requests are refused, if they are. An unreadable file counts as
    /// refused.
    pub fn disabled(&self) -> Option<Disabled> {
        let unreadable = |reason: String| Disabled { reason, since: 0 };
        match read_bounded(&self.path().join(DISABLED)) {
            Ok(text) => Some(serde_json::from_slice(&text).unwrap_or_else(|_| {
                unreadable("the file 'disabled' in the state directory cannot be read".into())
            })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => Some(unreadable(format!(
                "cannot read the file 'disabled' in the state directory: {e}"
            ))),
        }
    }
}

impl Locked {
    /// Replaces the record on disk with `self.record`: all or nothing.
    ///
    /// # Errors
    /// The failed operation; the old record then still exists.
    pub fn commit(&self) -> Result<()> {
        self.draft()?.publish()?;
        Ok(())
    }

    /// Writes and syncs the file that [`Draft::publish`] puts in place, so that the caller can work
    /// in between.
    ///
    /// # Errors
    /// As for [`Locked::commit`].
    pub fn draft(&self) -> Result<Draft> {
        self.unsynced()?.on_disk(File::sync_data)
    }

    /// [`Locked::commit`] for the start of a rerun: the record is on disk before the exec.
    ///
    /// The content is written out first, since a file system may commit a rename before the content
    /// of the file; then one commit of its journal covers size and name. If a file system is not
    /// known to do that, the directory is synced too, which elsewhere would only flush the disk's
    /// cache once more.
    ///
    /// # Errors
    /// The failed operation. The new record may be in place then, and has to be taken back.
    pub fn commit_start(&self) -> Result<()> {
        let file = self.unsynced()?.on_disk(write_out)?.publish()?;
        sync(&file).context("cannot sync the record")?;
        if is_synced_with_its_name(&file) {
            return Ok(());
        }
        sync_directory(&self.directory)
    }

    fn unsynced(&self) -> Result<Draft> {
        let mut text = serde_json::to_vec(&self.record)?;
        text.push(b'\n');
        Draft::write(&self.directory, RECORD, &text, 0o644)
    }
}

/// Whether a name is that of a temporary file: `.NAME.TOKEN`.
pub(super) fn is_temporary(name: &str) -> bool {
    name.strip_prefix('.')
        .and_then(|rest| rest.rsplit_once('.'))
        .is_some_and(|(_, token)| is_id(token))
}

pub(super) fn is_older_than_a_minute(path: &Path) -> bool {
    path.symlink_metadata()
        .and_then(|meta| meta.modified())
        .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() > 60))
}

/// Names in a directory that are UTF-8, as all of ours are.
pub(super) fn names(directory: &Path) -> impl Iterator<Item = String> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
}

/// Whether a name is a target's id.
pub fn is_id(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Reads a record of the target `id`.
///
/// # Errors
/// The parse error, or that the record belongs to another target.
pub fn parse_record(text: &[u8], id: &str) -> Result<Record> {
    let record: Record = newer::read(text)?;
    if record.id != id {
        bail!("it belongs to target {}", record.id);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::super::newer::VERSION;
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("state")).expect("a store");
        (dir, store)
    }

    const ID: &str = "0123456789abcdef";

    fn at(n: u64) -> again_base::model::Moment {
        again_base::model::Moment {
            boot: "b".into(),
            place: again_base::model::Place::default(),
            uptime: again_base::model::Boottime::from_nanos(n),
            wall: again_base::model::Walltime::from_millis(n),
        }
    }

    /// A line of the history, about the rerun of this number.
    fn line(what: history::What, run: u32) -> Entry {
        Entry {
            target: ID.into(),
            timer: "again".into(),
            token: "t".into(),
            chain: "c".into(),
            run,
            ..Entry::new(what, at(run.into()))
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_committed() {
        let (_dir, store) = store();
        assert!(store.read(ID).expect("none yet").is_none());
        let mut locked = store.lock(ID, Kind::Apply, 0).expect("locked");
        locked.record.version = VERSION;
        locked.commit().expect("committed");
        let read = store.read(ID).expect("readable").expect("there");
        assert_eq!(read, locked.record);
        assert_eq!(store.targets(), [ID]);
    }

    #[test]
    fn damage_is_set_aside_and_does_not_open_the_cap() {
        let (_dir, store) = store();
        let path = store.target_dir(ID).join("state.json");
        store
            .lock(ID, Kind::Apply, 0)
            .expect("locked")
            .commit()
            .expect("written");
        store.note(&line(history::What::Started, 2));
        for damage in [&b""[..], b"{", b"{\"version\":1}", b"\xff\xfe", b"[]"] {
            std::fs::write(&path, damage).expect("damaged");
            assert!(store.read(ID).is_err());
            let locked = store.lock(ID, Kind::Apply, 0).expect("still usable");
            assert!(locked.set_aside.is_some());
            assert_eq!(locked.record.starts.len(), 1);
            locked.commit().expect("a new record");
        }
        let aside = std::fs::read_dir(store.target_dir(ID))
            .expect("dir")
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().contains("unreadable"))
            .count();
        assert_eq!(aside, 5);
    }

    /// Also one of another shape.
    #[test]
    fn a_record_of_a_newer_version_is_left_alone() {
        let (_dir, store) = store();
        let locked = store.lock(ID, Kind::Apply, 0).expect("locked");
        locked.commit().expect("written");
        drop(locked);
        let path = store.target_dir(ID).join("state.json");
        let known = std::fs::read_to_string(&path).expect("there");
        let newer = known.replace("\"version\":1", "\"version\":7");
        for text in [newer.as_str(), "{\"version\":7,\"timers\":[]}"] {
            std::fs::write(&path, text).expect("written");
            for e in [
                store.read(ID).expect_err("not ours"),
                store.lock_existing(ID).expect_err("not ours"),
                store.read_or_mend(ID).expect_err("not ours"),
            ] {
                assert!(e.is::<Newer>(), "{e:#}");
                assert!(format!("{e:#}").contains("record version 7"), "{e:#}");
            }
            assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
            assert_eq!(
                names(&store.target_dir(ID)).count(),
                3,
                "and nothing beside it"
            );
        }
    }

    fn pending(locked: &mut Locked, name: &str) {
        let at = at(5);
        let timer = serde_json::json!({
            "token": format!("token-of-{name}"), "chain": "c", "run": 2, "origin": "run",
            "delta": 0, "jitter": 0, "base": "end", "requested": at, "waits_for": null,
            "due": null, "due_wall": null, "waiter": null, "boot": "b",
            "cap": {"max_runs": 10, "window": 3600}, "on_cap": "fail", "max_runs_total": 30,
            "hurry": false, "put_off": 0, "place": at.place,
        });
        let timer = serde_json::from_value(timer).expect("a timer");
        locked.record.timers.insert(name.to_owned(), timer);
    }

    #[test]
    fn a_reset_forgets_the_starts_before_it_and_no_other() {
        use history::What::{Reset, Started};
        let (_dir, store) = store();
        for entry in [line(Started, 2), line(Reset, 0), line(Started, 3)] {
            store.note(&entry);
        }
        let locked = store.lock(ID, Kind::Apply, 0).expect("locked");
        let starts = locked.record.starts.iter();
        let starts: Vec<_> = starts.map(|start| (start.run, start.forgotten)).collect();
        assert_eq!(starts, [(2, true), (3, false)]);
    }

    #[test]
    fn a_start_takes_the_place_of_the_record_and_leaves_nothing_else() {
        let (_dir, store) = store();
        let mut locked = store.lock(ID, Kind::Apply, 0).expect("locked");
        for name in ["a", "b"] {
            pending(&mut locked, name);
        }
        locked.commit().expect("committed");
        for (name, left) in [("a", ["b"].as_slice()), ("b", &[])] {
            locked.record.timers.remove(name);
            locked.commit_start().expect("committed");
            let now = store.read(ID).expect("readable").expect("there");
            assert!(now.timers.keys().eq(left), "{now:?}");
        }
        let directory = store.target_dir(ID);
        let meta = std::fs::metadata(directory.join(RECORD)).expect("there");
        assert_eq!(meta.mode() & 0o777, 0o644);
        let mut left: Vec<String> = names(&directory).collect();
        left.sort_unstable();
        assert_eq!(left, ["lock", "orders", RECORD]);
    }

    #[test]
    fn an_order_is_private_and_its_lock_is_seen() {
        let (_dir, store) = store();
        let _locked = store.lock(ID, Kind::Apply, 0).expect("locked");
        let held = store.write_order(ID, "t", b"secret").expect("written");
        let path = store.order_path(ID, "t");
        assert_eq!(
            std::fs::metadata(&path).expect("there").mode() & 0o777,
            0o600
        );
        assert_eq!(store.order_is_held(ID, "t"), Some(true));
        drop(held);
        assert_eq!(store.order_is_held(ID, "t"), Some(false));
        store.remove_order(ID, "t");
        assert_eq!(store.order_is_held(ID, "t"), None);
    }
}
