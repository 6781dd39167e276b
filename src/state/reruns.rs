//! Notes on the target of each rerun's process, for requests from below that process.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::files::{self, GUARDED, cannot_write, read_bounded};
use super::record::Running;
use super::standing::Standing;
use super::store::{Store, names};
use again_base::model::{Identity, Moment, Place, Provenance};
use again_base::sys::process::is_alive;

/// Note on the target of a rerun's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// The rerun's process.
    pub process: Identity,
    /// Boot under which the process runs.
    pub boot: String,
    /// Pid namespace of the process.
    pub place: Place,
    /// The target's id.
    pub target: String,
    /// The chain.
    pub chain: String,
    /// Number of the rerun in the chain.
    pub run: u32,
    /// Timer that started the rerun.
    pub timer: String,
    /// Agent daemon whose run began the chain, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<Identity>,
    /// Entry in the target's record, kept here in case the record is lost. None for a run of a
    /// driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Running>,
}

impl Store {
    /// Notes the target of a rerun's process.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn note_rerun(&self, rerun: &Rerun) -> Result<()> {
        let path = self.rerun_path(rerun.process, rerun.place);
        let text = serde_json::to_vec(rerun)?;
        // Nobody reads the note before the rerun itself sends requests, and the note means nothing
        // under another boot: neither a rename nor a sync is worth its time.
        let mut options = File::options();
        let anew = options.write(true).create(true).truncate(true);
        let anew = anew.custom_flags(GUARDED);
        let file = files::open(&path, 0o644, anew).or_else(|e| {
            // The directory may have been removed since it was created.
            if e.kind() == io::ErrorKind::NotFound {
                self.below("reruns").map_err(io::Error::other)?;
                return files::open(&path, 0o644, anew);
            }
            Err(e)
        });
        file.and_then(|mut file| file.write_all(&text))
            .map_err(|e| {
                let _ = std::fs::remove_file(&path);
                cannot_write(&path, e)
            })
    }

    /// Path of a note. Two processes with the same pid in two pid namespaces have different notes.
    fn rerun_path(&self, who: Identity, place: Place) -> PathBuf {
        let name = format!("{}{}", who.pid, place.tag());
        self.path().join("reruns").join(name)
    }

    /// Note of a process.
    fn rerun_note(&self, who: Identity, place: Place) -> Option<(PathBuf, Rerun)> {
        let path = self.rerun_path(who, place);
        let rerun = read_rerun(&path).filter(|rerun| rerun.process == who)?;
        Some((path, rerun))
    }

    /// Note of the rerun whose process is `who`, if any.
    pub fn rerun_of(&self, who: Identity, now: &Moment) -> Option<Rerun> {
        let (_, rerun) = self.rerun_note(who, now.place)?;
        let is_here = match now.provenance(&rerun.boot, rerun.place) {
            // The process lives, and its start time is the note's.
            Provenance::Here | Provenance::UnknownBoot => true,
            Provenance::OtherBoot | Provenance::Foreign(_) => false,
        };
        is_here.then_some(rerun)
    }

    /// Whether the process of a note under another or an unknown boot may live.
    pub(super) fn may_live(&self, rerun: &Rerun, provenance: Provenance) -> bool {
        let lives = || is_alive(rerun.process);
        match &rerun.running {
            Some(run) => {
                self.stands(&rerun.target, &run.token, provenance, lives) != Standing::Ended
            }
            None => provenance == Provenance::UnknownBoot && lives(),
        }
    }

    /// Reruns of a target that may be running, from their own notes.
    pub(super) fn noted_reruns(&self, id: &str, now: &Moment) -> Vec<Running> {
        let reruns = self.path().join("reruns");
        let noted = names(&reruns).filter_map(|name| read_rerun(&reruns.join(name)));
        let of_target = noted.filter(|rerun| rerun.target == id);
        let may_live = |run: &Running| match self.rerun_stands(id, run, now) {
            Standing::Alive => true,
            Standing::Ended => false,
            Standing::Foreign { may_live, .. } => may_live,
        };
        let running = of_target.filter_map(|rerun| rerun.running);
        running.filter(may_live).collect()
    }

    /// Removes the note of a rerun that has ended.
    pub fn forget_rerun(&self, who: Identity, place: Place) {
        if let Some((path, _)) = self.rerun_note(who, place) {
            let _ = std::fs::remove_file(path);
        }
    }
}

pub(super) fn read_rerun(path: &Path) -> Option<Rerun> {
    serde_json::from_slice(&read_bounded(path).ok()?).ok()
}

/// Whether the process that wrote an unreadable note is gone: each rerun's process writes its own
/// note.
pub(super) fn is_unfinished_by_the_dead(name: &str, now: &Moment) -> bool {
    let pid = name.strip_suffix(&now.place.tag()).unwrap_or(name);
    pid.parse().is_ok_and(|pid: i32| {
        again_base::sys::process::identify(pid).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    })
}
