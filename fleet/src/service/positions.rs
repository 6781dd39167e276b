//! File with the position up to which the events of each run are published. The spool itself
//! belongs to root.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use tracing::warn;

use again_base::sys::file::{OnDisk, atomic_write, read_regular};
use rustix::fs::OFlags;

use crate::wire::name::Id;

/// Largest size of the file in bytes, for as many runs as the spool may hold.
const LONGEST: u64 = 1 << 20;

/// Number of bytes of each run's file that the backend has.
#[derive(Debug)]
pub struct Positions {
    path: PathBuf,
    offsets: BTreeMap<Id, u64>,
}

impl Positions {
    /// Reads the positions from the file in this directory. A file that cannot be read holds none,
    /// and is named in the log.
    pub fn open(directory: &Path) -> Positions {
        let path = directory.join("positions.json");
        let read = read_regular(&path, LONGEST, OFlags::NOFOLLOW.bits() as i32);
        let read = read.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other));
        let offsets = read.unwrap_or_else(|e| {
            if e.kind() != io::ErrorKind::NotFound {
                let path = path.display();
                warn!("{path} cannot be read: {e}; events of the last runs are published again");
            }
            BTreeMap::new()
        });
        Positions { path, offsets }
    }

    /// Position in the file of a run, in bytes; 0 if none is known.
    pub fn of(&self, run: &Id) -> u64 {
        self.offsets.get(run).copied().unwrap_or(0)
    }

    /// Sets the position of a run, in memory and on disk. A power failure may lose the latest ones.
    ///
    /// # Errors
    /// Any error of the disk, with the path.
    pub fn put(&mut self, run: &Id, position: u64) -> Result<(), String> {
        self.offsets.insert(run.clone(), position);
        let text = serde_json::to_vec(&self.offsets).expect("plain values");
        let written = atomic_write(&self.path, &text, 0o600, OnDisk::Nothing);
        written
            .map(drop)
            .map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// Removes the positions of all runs but these.
    pub fn keep<'r>(&mut self, runs: impl Iterator<Item = &'r Id>) {
        let runs: BTreeSet<&Id> = runs.collect();
        self.offsets.retain(|run, _| runs.contains(run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn positions_are_there_again_for_runs_whose_files_are_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let [one, two] = [1, 2].map(Id::from_bits);
        let mut positions = Positions::open(dir.path());
        positions.put(&one, 7).expect("written");
        positions.put(&two, 9).expect("written");
        let mut positions = Positions::open(dir.path());
        assert_eq!((positions.of(&one), positions.of(&two)), (7, 9));
        positions.keep([&two].into_iter());
        assert_eq!((positions.of(&one), positions.of(&two)), (0, 9));
        fs::write(dir.path().join("positions.json"), "garbage").expect("written");
        assert_eq!(Positions::open(dir.path()).of(&two), 0);
        let error = positions.put(&two, 1).and_then(|()| {
            positions.path = dir.path().join("none/positions.json");
            positions.put(&two, 2)
        });
        assert!(
            error
                .expect_err("no directory")
                .contains("positions.json: No such file")
        );
        assert_eq!(positions.of(&two), 2);
    }
}
