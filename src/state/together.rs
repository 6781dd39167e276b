//! The starts of all targets' reruns, for the cap over all targets, and the removal of idle
//! targets.
//!
//! `starts` has a line for each start, the newest last, below one line with the boot. The records
//! hold the same, each for one target. The file is rebuilt from them if it cannot be read, and
//! under another boot, since the disk may then lack a part of it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::files::{Draft, GUARDED, cannot_write, private_file, read_bounded, token};
use super::record::{Record, Start as Counted};
use super::store::{QUIET, RECORD, Store};
use crate::policy::cap;
use again_base::directory::shown;
use again_base::model::{Cap, Moment, Span, Use};
use again_base::sys::flock;

const STARTS: &str = "starts";

/// File whose modification time is that of the last search for idle targets.
const FORGET_STAMP: &str = "forgotten";

/// Minimum time between two searches.
const FORGET_INTERVAL: std::time::Duration = std::time::Duration::from_secs(3600);

/// The size in bytes from which lines that no longer count are removed.
const LARGE: usize = 1 << 12;

#[derive(Debug, Serialize, Deserialize)]
struct Start {
    at: Moment,
    target: String,
    /// Token of the timer; empty for a start from a record.
    token: String,
}

/// Use of the cap, if these lines reach it. Too few lines need not be parsed.
fn reached(text: &str, cap: Cap, now: &Moment) -> Option<Use> {
    let starts = text.lines().skip(1);
    if starts.clone().count() < cap.max_runs as usize {
        return None;
    }
    let starts: Vec<Start> = starts
        .filter_map(|s| serde_json::from_str(s).ok())
        .collect();
    let usage = cap::usage(cap, starts.iter().map(|start| &start.at), now);
    usage.is_reached().then_some(usage)
}

fn line(start: &Start) -> Result<String> {
    Ok(serde_json::to_string(start)? + "\n")
}

impl Store {
    /// Use of the cap over all targets, if it is reached.
    pub fn together(&self, cap: Cap, now: &Moment) -> Option<Use> {
        let text = self.starts(now).unwrap_or_else(|| self.rebuilt(now));
        reached(&text, cap, now)
    }

    /// Starts from the records, written to the file if that is possible, because there may be many
    /// targets and many requests.
    fn rebuilt(&self, now: &Moment) -> String {
        let lock = self.lock_starts();
        self.starts(now).unwrap_or_else(|| {
            let text = self.starts_by_records(now);
            let _ = lock.and_then(|_lock| self.write_starts(&text));
            text
        })
    }

    /// Counts a start for the cap over all targets, before it is on its target's record. False if
    /// the cap is reached.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn count_start(&self, cap: Cap, at: &Moment, target: &str, token: &str) -> Result<bool> {
        let _lock = self.lock_starts()?;
        let counts = |start: &Start| start.at.age(at) < cap.window;
        // The first line is the oldest start.
        let is_short = |text: &String| {
            text.len() < LARGE || text.lines().nth(1).is_none_or(|line| stays(line, counts))
        };
        let known = self.starts(at);
        let is_to_append = known.as_ref().is_some_and(is_short);
        let text = known.unwrap_or_else(|| self.starts_by_records(at));
        if reached(&text, cap, at).is_some() {
            return Ok(false);
        }
        let new = line(&Start {
            at: at.clone(),
            target: target.to_owned(),
            token: token.to_owned(),
        })?;
        let path = self.path().join(STARTS);
        if is_to_append {
            let mut options = File::options();
            let file = options.append(true).custom_flags(GUARDED).open(&path);
            let written = file.and_then(|mut file| file.write_all(new.as_bytes()));
            return written.map(|()| true).map_err(|e| cannot_write(&path, e));
        }
        self.write_starts(&(retain(&text, counts) + &new))?;
        Ok(true)
    }

    /// Removes the starts whose token or target is `of`: a timer that did not start, or a target
    /// whose reruns no longer count.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn discount_starts(&self, now: &Moment, of: &str) -> Result<()> {
        let _lock = self.lock_starts()?;
        let known = self.starts(now);
        known.map_or(Ok(()), |text| {
            let left = retain(&text, |start| start.token != of && start.target != of);
            if left == text {
                return Ok(());
            }
            self.write_starts(&left)
        })
    }

    /// Removes the start of a timer whose rerun never began from the cap over all targets. A
    /// failure is only logged.
    pub fn discount_lost(&self, now: &Moment, token: &str) {
        if let Err(e) = self.discount_starts(now, token) {
            tracing::warn!("the cap over all targets still counts a rerun that never began: {e:#}");
        }
    }

    fn lock_starts(&self) -> Result<File> {
        let path = self.path().join(".starts.lock");
        let lock = private_file(&path).map_err(|e| cannot_write(&path, e))?;
        flock::lock(&lock, || shown(&path), super::files::PATIENCE)
            .context("cannot lock the starts of all targets")?;
        Ok(lock)
    }

    /// Text of the file, if its starts are of this boot.
    fn starts(&self, now: &Moment) -> Option<String> {
        let text = read_bounded(&self.path().join(STARTS)).ok()?;
        let text = String::from_utf8(text).ok()?;
        let is_ours = text
            .lines()
            .next()
            .is_some_and(|boot| boot == now.boot || now.boot.is_empty());
        (is_ours && text.ends_with('\n')).then_some(text)
    }

    fn starts_by_records(&self, now: &Moment) -> String {
        let mut starts: Vec<Start> = Vec::new();
        for target in self.targets() {
            let counted = self.starts_of(&target).into_iter().flatten();
            starts.extend(counted.map(|at| Start {
                at,
                target: target.clone(),
                token: String::new(),
            }));
        }
        starts.sort_by_key(|start| start.at.wall);
        let lines = starts.iter().filter_map(|start| line(start).ok());
        format!("{}\n", now.boot) + &lines.collect::<String>()
    }

    /// Start times on a target's record. Nothing else is parsed, because there may be many targets.
    fn starts_of(&self, id: &str) -> Option<Vec<Moment>> {
        #[derive(Deserialize)]
        struct Known {
            id: String,
            #[serde(default)]
            starts: Vec<Counted>,
        }
        let text = read_bounded(&self.target_dir(id).join(RECORD)).ok()?;
        let known: Known = serde_json::from_slice(&text).ok()?;
        let counted = known.starts.into_iter().filter(|start| !start.forgotten);
        (known.id == id).then(|| counted.map(|start| start.at).collect())
    }

    fn write_starts(&self, text: &str) -> Result<()> {
        // The file is not used under another boot, so it is not synced.
        let write = || -> Result<()> {
            Draft::write(&self.path(), STARTS, text.as_bytes(), 0o600)?.publish()?;
            Ok(())
        };
        write().or_else(|e| {
            let path = self.path().join(STARTS);
            if !path.is_dir() {
                return Err(e);
            }
            let aside = self.path().join(format!("{STARTS}.unreadable-{}", token()));
            std::fs::rename(&path, aside).map_err(|e| cannot_write(&path, e))?;
            write()
        })
    }

    /// Forgets idle targets at most once an hour, because the search looks at every target.
    pub fn forget_quiet_hourly(&self, window: Span, now: &Moment) {
        let path = self.path().join(FORGET_STAMP);
        let modified = path.symlink_metadata().and_then(|meta| meta.modified());
        // A modification time in the future is from before the wall clock was set back.
        let age = modified.ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age < FORGET_INTERVAL) {
            return;
        }
        let stamp = private_file(&path);
        let _ = stamp.and_then(|file| file.set_modified(std::time::SystemTime::now()));
        self.forget_quiet(window, now);
    }

    /// Forgets the targets that have been idle for a day, with nothing pending, running or in the
    /// window. The history keeps their entries.
    pub fn forget_quiet(&self, window: Span, now: &Moment) {
        let is_quiet = |record: &Record| {
            let counts = |at: &Moment| at.age(now) < window.max(QUIET);
            record.timers.is_empty()
                && record.leaving.is_empty()
                && record.running.is_empty()
                && !record.moments().any(counts)
                && !record.remembers(now.wall)
        };
        for id in self.targets() {
            let is_old = || self.age_of(&id).is_some_and(|age| age > QUIET);
            let quiet = |found: Option<Record>| found.is_none_or(|record| is_quiet(&record));
            if !is_old() || !self.read(&id).is_ok_and(quiet) {
                continue;
            }
            // The process that holds the lock is working on the target.
            if let Ok(locked) = self.without_waiting().lock_existing(&id)
                && is_old()
                && is_quiet(&locked.record)
            {
                self.forget(&id);
            }
        }
    }
}

/// Whether a line is a start for which `of` is true.
fn stays(line: &str, of: impl Fn(&Start) -> bool) -> bool {
    serde_json::from_str(line).is_ok_and(|start| of(&start))
}

/// First line, followed by the lines for which `of` is true.
fn retain(text: &str, of: impl Fn(&Start) -> bool) -> String {
    let mut lines = text.lines();
    let boot = lines.next().into_iter();
    let stay = boot.chain(lines.filter(|line| stays(line, &of)));
    stay.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::{Boottime, Kind, Place, Walltime};

    const CAP: Cap = Cap {
        max_runs: 3,
        window: Span::from_secs(3600),
        is_total: true,
    };

    fn at(boot: &str, seconds: u64) -> Moment {
        Moment {
            boot: boot.into(),
            place: Place::default(),
            uptime: Boottime::from_nanos(seconds * 1_000_000_000),
            wall: Walltime::from_millis(seconds * 1000),
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("state")).expect("a store");
        (dir, store)
    }

    fn count(store: &Store, now: &Moment, target: &str) -> bool {
        let token = format!("token of {target}");
        store
            .count_start(CAP, now, target, &token)
            .expect("counted")
    }

    #[test]
    fn the_starts_of_all_targets_reach_their_cap_and_leave_its_window() {
        let (_dir, store) = store();
        for (second, target) in [(1, "a"), (2, "b"), (3, "c")] {
            assert!(store.together(CAP, &at("b", second)).is_none());
            assert!(count(&store, &at("b", second), target));
        }
        let usage = store.together(CAP, &at("b", 4)).expect("reached");
        assert_eq!((usage.used, usage.frees_in), (3, Span::from_secs(3597)));
        assert!(!count(&store, &at("b", 4), "d"));
        store.discount_starts(&at("b", 4), "b").expect("a target's");
        assert!(count(&store, &at("b", 5), "d"));
        assert!(!count(&store, &at("b", 5), "e"));
        store
            .discount_starts(&at("b", 5), "token of d")
            .expect("a timer's");
        assert!(count(&store, &at("b", 5), "e"));
        assert!(!count(&store, &at("b", 3600), "f"));
        assert!(
            count(&store, &at("b", 3601), "f"),
            "the first has left the window"
        );
    }

    /// Under another boot, and whatever lies there, the records tell.
    #[test]
    fn the_records_know_it_too() {
        const ID: &str = "0123456789abcdef";
        let (dir, store) = store();
        let mut locked = store.lock(ID, Kind::Apply, 0).expect("locked");
        for (second, forgotten) in [(1, true), (2, false), (3, false)] {
            locked.record.starts.push(Counted {
                at: at("a", second),
                chain: "c".into(),
                run: 2,
                forgotten,
            });
        }
        locked.commit().expect("committed");
        drop(locked);
        let path = dir.path().join("state").join(STARTS);
        let ruins: [&dyn Fn(); 4] = [
            &|| {},
            &|| std::fs::write(&path, "a\n").expect("written"),
            &|| std::fs::write(&path, b"\xff").expect("written"),
            &|| std::fs::create_dir(&path).expect("made"),
        ];
        for ruin in ruins {
            ruin();
            assert!(store.together(CAP, &at("b", 4)).is_none());
            let known = std::fs::read_to_string(&path).expect("written");
            assert_eq!(
                known.lines().count(),
                3,
                "the next one need not look: {known}"
            );
            assert!(count(&store, &at("b", 4), "other"));
            assert_eq!(store.together(CAP, &at("b", 4)).expect("reached").used, 3);
            assert!(!count(&store, &at("b", 4), "other"));
            std::fs::remove_file(&path).expect("there");
        }
    }

    #[test]
    fn what_no_longer_counts_is_left_out_once_there_is_much() {
        let (dir, store) = store();
        let cap = Cap {
            max_runs: 100_000,
            ..CAP
        };
        let path = dir.path().join("state").join(STARTS);
        let mut largest = 0;
        for n in 0..3000 {
            let now = at("b", n * 200);
            assert!(
                store
                    .count_start(cap, &now, "target", "token")
                    .expect("counted")
            );
            largest = largest.max(std::fs::metadata(&path).expect("there").len());
        }
        assert!(largest < LARGE as u64 + 1000, "{largest}");
        // Where all count there is nothing to leave out, and a line is added to the same file.
        use std::os::unix::fs::MetadataExt;
        let inode = || std::fs::metadata(&path).expect("there").ino();
        let now = at("b", 1_000_000);
        let count = || {
            let counted = store.count_start(cap, &now, "target", "token");
            assert!(counted.expect("counted"));
        };
        (0..100).for_each(|_| count());
        let first = inode();
        (0..100).for_each(|_| count());
        assert!(std::fs::metadata(&path).expect("there").len() > LARGE as u64);
        assert_eq!(inode(), first);
        let usage = cap::usage(cap, &[], &at("b", 0));
        assert_eq!(usage.used, 0);
        let tight = Cap { max_runs: 1, ..CAP };
        let usage = store.together(tight, &now).expect("reached");
        assert_eq!(usage.used, 200, "none that counts is left out");
    }

    #[test]
    fn a_target_is_forgotten_once_it_is_quiet() {
        use std::time::{Duration, SystemTime};
        let (dir, store) = store();
        let now = again_base::sys::clock::moment();
        let ids: Vec<String> = (0..5).map(|n| format!("{n:016x}")).collect();
        let set = |id: &str, name: &str, days: u64| {
            let path = dir.path().join("state/targets").join(id).join(name);
            let file = File::open(path).expect("there");
            let age = Duration::from_secs(days * 24 * 3600 + 60);
            file.set_modified(SystemTime::now() - age).expect("set");
        };
        for id in &ids {
            let mut locked = store.lock(id, Kind::Apply, 0).expect("locked");
            if *id == ids[1] {
                let ago = Span::from_secs(2 * 24 * 3600);
                locked.record.starts.push(Counted {
                    at: Moment {
                        boot: "another".into(),
                        wall: now.wall - ago,
                        ..now.clone()
                    },
                    chain: "c".into(),
                    run: 2,
                    forgotten: false,
                });
            }
            if *id != ids[4] {
                locked.commit().expect("committed");
                set(id, "state.json", if *id == ids[2] { 0 } else { 1 });
            }
        }
        set(&ids[4], "", 1);
        let busy = store.lock(&ids[3], Kind::Apply, 0).expect("locked");
        let three_days = Span::from_secs(3 * 24 * 3600);
        store.forget_quiet(three_days, &now);
        assert_eq!(store.targets(), ids[1..4], "in the window, heard of, held");
        drop(busy);
        store.forget_quiet(Span::from_secs(3600), &now);
        assert_eq!(store.targets(), ids[2..3]);
        store.lock(&ids[0], Kind::Apply, 0).expect("as good as new");
    }
}
