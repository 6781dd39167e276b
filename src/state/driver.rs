//! Converge drivers: their public records, and the inbox for requests from below a driver.
//!
//! ```text
//! drivers/TOKEN.json   public record of a driver
//! drivers/TOKEN/       its inbox, one file for each request; locked while the driver lives
//! ```
//!
//! A request is accepted once its file was renamed into the inbox. A driver ends only after it has
//! removed the empty inbox, so no accepted request is forgotten.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::change::{About, Change};
use super::files::{GUARDED, is_locked, read_bounded, replace_file, token};
use super::history::What;
use super::newer::{self, Versioned};
use super::store::{self, Store};
use crate::puppet::paths::Paths;
use again_base::directory::shown;
use again_base::model::{Base, Boottime, Identity, Kind, Moment, Provenance, Span};
use again_base::sys::process::is_alive;

/// Public record of a driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// The record's version.
    pub version: u32,
    /// Token that identifies the driver.
    pub token: String,
    /// Process of the driver.
    pub process: Identity,
    /// Boot under which the driver runs.
    pub boot: String,
    /// User id of the owner.
    pub uid: u32,
    /// Id of the driver's target.
    pub target: String,
    /// Chain of the driver's runs.
    pub chain: String,
    /// Start time of the driver.
    pub began: Moment,
    /// Maximum number of runs that the driver may start.
    pub max_runs: u32,
    /// Number of the current or the last run; 0 before the first.
    pub run: u32,
    /// Process of the current run.
    pub child: Option<Identity>,
    /// Pending timers by name, with their due times.
    pub timers: BTreeMap<String, Boottime>,
    /// Resources that requested the timers, by timer name, if known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, String>,
    /// Reason why the next run is held although it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

impl Versioned for Driver {
    fn version(&self) -> u32 {
        self.version
    }
}

impl From<&Driver> for About {
    fn from(driver: &Driver) -> Self {
        About {
            timer: String::new(),
            target: driver.target.clone(),
            token: driver.token.clone(),
            chain: driver.chain.clone(),
            run: driver.run,
            ..About::default()
        }
    }
}

impl Change {
    /// Change of a converge driver as a whole.
    pub fn of_driver(driver: &Driver, what: What, at: Moment) -> Self {
        About::from(driver).became(what, at)
    }
}

/// Request for a driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The record's version.
    pub version: u32,
    /// The request's token.
    pub token: String,
    /// The timer's name.
    pub name: String,
    /// Resource that requested the rerun, according to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Minimum wait.
    pub delta: Span,
    /// Maximum jitter, if set.
    pub jitter: Option<Span>,
    /// Moment from which delta and jitter count.
    pub base: Base,
    /// Time of the request.
    pub requested: Moment,
    /// Kind of the requesting run, if Puppet's.
    pub kind: Option<Kind>,
    /// Whether the exit status of the run says if anything changed.
    pub detailed: bool,
    /// Paths of Puppet's own files, as the run sees them.
    pub paths: Paths,
}

impl Versioned for Handed {
    fn version(&self) -> u32 {
        self.version
    }
}

/// Finds the driver of the process whose ancestors, itself first, are `chain`: the nearest one that
/// has a current run to which the process belongs. The bool is true if the driver lives; a run may
/// outlive a driver that was killed.
pub fn above(
    drivers: Vec<(Driver, bool)>,
    chain: &[Identity],
    boot: &str,
) -> Option<(Driver, bool)> {
    let at = |who: Option<Identity>| who.and_then(|who| chain.iter().position(|c| *c == who));
    drivers
        .into_iter()
        // If a boot is unknown, living processes decide.
        .filter(|(driver, _)| [boot, ""].contains(&driver.boot.as_str()) || boot.is_empty())
        .filter_map(|(driver, alive)| {
            let child = at(driver.child)?;
            // A living driver is the parent of its run.
            let is_parent = chain.get(child + 1) == Some(&driver.process);
            (is_parent || !alive).then_some((child, driver, alive))
        })
        .min_by_key(|(child, _, _)| *child)
        .map(|(_, driver, alive)| (driver, alive))
}

fn directory(store: &Store) -> PathBuf {
    store.path().join("drivers")
}

/// Logs that a driver cannot be used.
pub fn warn(what: String) {
    tracing::warn!("{what}");
}

/// Drivers on record, each with whether it lives. Passes errors about unusable records to `tell`.
pub fn all(store: &Store, mut tell: impl FnMut(String)) -> Vec<(Driver, bool)> {
    let directory = directory(store);
    tokens(store, ".json")
        .into_iter()
        .filter_map(|token| {
            let text = read_bounded(&directory.join(format!("{token}.json"))).ok()?;
            let driver: Driver = newer::read(&text)
                .inspect_err(|e| tell(format!("cannot use the driver {token}: {e}")))
                .ok()?;
            let alive =
                is_locked(&directory.join(&token)).unwrap_or_else(|| is_alive(driver.process));
            (driver.token == token).then_some((driver, alive))
        })
        .collect()
}

/// Living drivers, for commands that act on them.
///
/// # Errors
/// The reason why their records cannot be trusted, if there are any.
pub fn living(store: &Store) -> Result<Vec<Driver>> {
    let living: Vec<Driver> = all(store, warn)
        .into_iter()
        .filter_map(|(driver, alive)| alive.then_some(driver))
        .collect();
    if !living.is_empty() {
        store.below("drivers")?;
    }
    Ok(living)
}

/// Removes what killed drivers left behind, once their runs have ended too. Until then the record
/// shows a request that its driver is gone.
pub fn sweep(store: &Store, now: &Moment) {
    if !directory(store).exists() || store.below("drivers").is_err() {
        return;
    }
    let directory = directory(store);
    for (driver, alive) in all(store, drop) {
        let provenance = now.provenance(&driver.boot, driver.began.place);
        let is_foreign = matches!(provenance, Provenance::Foreign(_));
        let lives = |who: Identity| !is_foreign && is_alive(who);
        if !alive && !is_foreign && !driver.child.is_some_and(lives) {
            bury(store, &driver, now);
        }
    }
    for token in tokens(store, "") {
        let inbox = directory.join(&token);
        // Held until the inbox is gone: a driver that has just created it checks, once it has the
        // lock, that the inbox still exists.
        let file = File::options()
            .read(true)
            .custom_flags(GUARDED)
            .open(&inbox);
        let ours = file.ok().filter(|file| file.try_lock().is_ok());
        if ours.is_some() && !directory.join(format!("{token}.json")).exists() {
            let _ = std::fs::remove_dir(inbox);
        }
    }
    for name in store::names(&directory).filter(|name| store::is_temporary(name)) {
        let path = directory.join(name);
        if store::is_older_than_a_minute(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes what a killed driver left, and records it in the history. If several processes try, one
/// succeeds.
fn bury(store: &Store, driver: &Driver, now: &Moment) {
    let directory = directory(store);
    if std::fs::remove_file(directory.join(format!("{}.json", driver.token))).is_err() {
        return;
    }
    remove_inbox(&directory, &driver.token);
    if let Some(child) = driver.child {
        store.forget_rerun(child, driver.began.place);
    }
    let reason = format!(
        "'again converge' was killed (pid {}) after {} runs began",
        driver.process.pid, driver.run
    );
    let change = Change::of_driver(driver, What::Closed, now.clone());
    store.note(&change.because(reason).entry);
}

/// File names in the directory of drivers that are tokens followed by `ending`, without it.
fn tokens(store: &Store, ending: &str) -> Vec<String> {
    let directory = directory(store);
    let tokens =
        store::names(&directory).filter_map(|name| name.strip_suffix(ending).map(str::to_owned));
    let mut tokens: Vec<String> = tokens.filter(|token| store::is_id(token)).collect();
    tokens.sort_unstable();
    tokens
}

/// Creates an inbox, in a directory that was checked, and locks it.
fn make_inbox(inbox: &Path) -> io::Result<File> {
    std::fs::DirBuilder::new().mode(0o700).create(inbox)?;
    // Independent of the umask.
    std::fs::set_permissions(inbox, Permissions::from_mode(0o700))?;
    let lock = File::open(inbox)?;
    lock.lock()?;
    Ok(lock)
}

/// Removes an inbox with its content, and files that were on their way there.
fn remove_inbox(directory: &Path, token: &str) {
    let _ = std::fs::remove_dir_all(directory.join(token));
    let under_way = format!("{token}.new-");
    for name in store::names(directory).filter(|name| name.starts_with(&under_way)) {
        let _ = std::fs::remove_file(directory.join(name));
    }
}

/// Hands a request to a driver. The request is accepted if this succeeds.
///
/// # Errors
/// The failed operation and its file; also if the driver has just ended.
pub fn hand_over(store: &Store, driver: &Driver, handed: &Handed) -> Result<()> {
    store.below("drivers")?;
    let directory = directory(store);
    let temporary = directory.join(format!("{}.new-{}", driver.token, handed.token));
    let inbox = directory.join(&driver.token).join(&handed.token);
    let write = || -> io::Result<()> {
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?
            .write_all(&serde_json::to_vec(handed)?)?;
        std::fs::rename(&temporary, &inbox)
    };
    write()
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&temporary);
        })
        .with_context(|| {
            format!(
                "cannot hand the request to 'again converge' (pid {}): cannot write {}",
                driver.process.pid,
                shown(&inbox).display()
            )
        })
}

/// A driver's own handle on its record and inbox, which are removed on drop.
#[derive(Debug)]
pub struct Desk {
    store: Store,
    token: String,
    _lock: File,
}

impl Desk {
    /// Creates the inbox of a new driver and locks it.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn open(store: &Store) -> Result<Self> {
        store.below("drivers")?;
        let directory = directory(store);
        for _ in 0..10 {
            let token = token();
            let inbox = directory.join(&token);
            let lock = match make_inbox(&inbox) {
                // Swept away by another process before it was locked.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                made => made.with_context(|| format!("cannot make {}", shown(&inbox).display()))?,
            };
            if inbox.exists() {
                return Ok(Desk {
                    store: store.clone(),
                    token,
                    _lock: lock,
                });
            }
        }
        bail!("cannot keep an inbox in {}", shown(&directory).display());
    }

    /// Token that identifies the driver.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Replaces the public record.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn publish(&self, driver: &Driver) -> Result<()> {
        let name = format!("{}.json", self.token);
        replace_file(
            &directory(&self.store),
            &name,
            &serde_json::to_vec(driver)?,
            0o644,
        )
    }

    /// Takes all requests out of the inbox, the oldest first.
    pub fn take(&self) -> Vec<Handed> {
        let inbox = directory(&self.store).join(&self.token);
        let mut taken: Vec<Handed> = Vec::new();
        for entry in std::fs::read_dir(&inbox).into_iter().flatten().flatten() {
            let path = entry.path();
            match read_bounded(&path).map(|text| newer::read(&text)) {
                Ok(Ok(handed)) => taken.push(handed),
                Ok(Err(e)) => {
                    tracing::warn!("cannot use the request {}: {e}", shown(&path).display())
                }
                Err(e) => tracing::warn!("cannot read the request {}: {e}", shown(&path).display()),
            }
            // Anything left in the inbox, of whatever type, would keep it from being closed.
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
        }
        taken.sort_by_key(|handed| handed.requested.uptime);
        taken
    }

    /// Closes the inbox for good if it is empty. False if it is not.
    pub fn close(&self) -> bool {
        let inbox = directory(&self.store).join(&self.token);
        !matches!(std::fs::remove_dir(inbox), Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let directory = directory(&self.store);
        let _ = std::fs::remove_file(directory.join(format!("{}.json", self.token)));
        remove_inbox(&directory, &self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::super::newer::VERSION;
    use super::*;
    use again_base::model::{Place, Walltime};

    fn moment() -> Moment {
        Moment {
            boot: "b".into(),
            place: Place::default(),
            uptime: Boottime::from_nanos(5),
            wall: Walltime::from_millis(5),
        }
    }

    fn who(pid: i32) -> Identity {
        Identity { pid, start: 7 }
    }

    fn driver(pid: i32, child: i32) -> Driver {
        Driver {
            version: VERSION,
            token: format!("{pid:016x}"),
            process: who(pid),
            boot: "b".into(),
            uid: 0,
            target: "0123456789abcdef".into(),
            chain: "c".into(),
            began: moment(),
            max_runs: 10,
            run: 1,
            child: Some(who(child)),
            timers: BTreeMap::new(),
            resources: BTreeMap::new(),
            held: None,
        }
    }

    fn handed(token: &str, at: u64) -> Handed {
        Handed {
            version: VERSION,
            token: token.into(),
            name: "again".into(),
            resource: None,
            delta: Span::ZERO,
            jitter: None,
            base: Base::End,
            requested: Moment {
                uptime: Boottime::from_nanos(at),
                ..moment()
            },
            kind: None,
            detailed: false,
            paths: Paths::default(),
        }
    }

    #[test]
    fn the_nearest_driver_whose_run_we_belong_to() {
        let chain: Vec<Identity> = [30, 25, 20, 15, 10, 1].map(who).to_vec();
        let pid = |drivers| above(drivers, &chain, "b").map(|(d, alive)| (d.process.pid, alive));
        assert_eq!(pid(vec![]), None);
        assert_eq!(pid(vec![(driver(20, 25), true)]), Some((20, true)));
        let nested = vec![(driver(10, 15), true), (driver(20, 25), true)];
        assert_eq!(pid(nested), Some((20, true)));
        // The first process of a container adopts what is not of its run.
        assert_eq!(pid(vec![(driver(1, 99), true)]), None);
        assert_eq!(pid(vec![(driver(1, 20), true)]), None);
        // A run that outlived its driver.
        assert_eq!(pid(vec![(driver(99, 15), false)]), Some((99, false)));
        let other_boot = Driver {
            boot: "a".into(),
            ..driver(20, 25)
        };
        assert_eq!(pid(vec![(other_boot, true)]), None);
    }

    #[test]
    fn takes_requests_in_order_and_closes_only_when_empty() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("state")).expect("a store");
        let desk = Desk::open(&store).expect("a desk");
        let me = Driver {
            token: desk.token().to_owned(),
            ..driver(1, 2)
        };
        desk.publish(&me).expect("published");
        assert_eq!(all(&store, warn), [(me.clone(), true)]);
        for (token, at) in [("0000000000000001", 9), ("0000000000000002", 3)] {
            hand_over(&store, &me, &handed(token, at)).expect("handed over");
        }
        assert!(!desk.close());
        let taken: Vec<u64> = desk
            .take()
            .iter()
            .map(|h| h.requested.uptime.nanos())
            .collect();
        assert_eq!(taken, [3, 9]);
        assert!(desk.close());
        let late = hand_over(&store, &me, &handed("0000000000000003", 1));
        assert!(format!("{:#}", late.expect_err("refused")).contains("pid 1"));
        drop(desk);
        let left = std::fs::read_dir(dir.path().join("state/drivers")).expect("dir");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn what_a_killed_driver_left_is_swept_away_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("state")).expect("a store");
        let desk = Desk::open(&store).expect("a desk");
        let me = Driver {
            token: desk.token().to_owned(),
            ..driver(i32::MAX, i32::MAX - 1)
        };
        desk.publish(&me).expect("published");
        hand_over(&store, &me, &handed("0000000000000001", 9)).expect("handed over");
        sweep(&store, &moment());
        assert_eq!(all(&store, warn).len(), 1, "it lives");
        // Gone without a drop, as by SIGKILL.
        let Desk { _lock, .. } = &desk;
        _lock.unlock().expect("unlocked");
        sweep(&store, &moment());
        sweep(&store, &moment());
        assert_eq!(all(&store, warn).len(), 0);
        let (entries, _) = super::super::history::read(store.root());
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].what, What::Closed);
        let left = std::fs::read_dir(dir.path().join("state/drivers")).expect("dir");
        assert_eq!(left.count(), 0);
    }
}
