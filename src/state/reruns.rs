//! Which target the process of a rerun belongs to, for the requests that come from below it.

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

/// Which target a rerun belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// The rerun's process.
    pub process: Identity,
    /// The boot it runs under.
    pub boot: String,
    /// Where the process is.
    pub place: Place,
    /// The target's id.
    pub target: String,
    /// The chain.
    pub chain: String,
    /// Its number in the chain.
    pub run: u32,
    /// The timer it came from.
    pub timer: String,
    /// The agent daemon whose run began the chain, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<Identity>,
    /// The entry in its target's record, kept here in case the record is lost. None for a run
    /// of a driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Running>,
}

impl Store {
    /// Notes to which target the process of a rerun belongs.
    ///
    /// # Errors
    /// What failed on which file.
    pub fn note_rerun(&self, rerun: &Rerun) -> Result<()> {
        let path = self.rerun_path(rerun.process, rerun.place);
        let text = serde_json::to_vec(rerun)?;
        // Nobody asks for it before the rerun is there to ask, and it means
        // nothing under another boot: neither a rename nor a sync is worth its time.
        let mut options = File::options();
        let anew = options.write(true).create(true).truncate(true);
        let anew = anew.custom_flags(GUARDED);
        let file = files::open(&path, 0o644, anew).or_else(|e| {
            // Its directory may have gone since it was made.
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

    /// Of two processes with one pid, in two places, each has a note of its own.
    fn rerun_path(&self, who: Identity, place: Place) -> PathBuf {
        let name = format!("{}{}", who.pid, place.tag());
        self.path().join("reruns").join(name)
    }

    /// The note of a process.
    fn rerun_note(&self, who: Identity, place: Place) -> Option<(PathBuf, Rerun)> {
        let path = self.rerun_path(who, place);
        let rerun = read_rerun(&path).filter(|rerun| rerun.process == who)?;
        Some((path, rerun))
    }

    /// The rerun that the process `who` is, if it is one.
    pub fn rerun_of(&self, who: Identity, now: &Moment) -> Option<Rerun> {
        let (_, rerun) = self.rerun_note(who, now.place)?;
        let is_here = match now.provenance(&rerun.boot, rerun.place) {
            // It lives, and its start time is the note's.
            Provenance::Here | Provenance::UnknownBoot => true,
            Provenance::OtherBoot | Provenance::Foreign(_) => false,
        };
        is_here.then_some(rerun)
    }

    /// Whether the process of a note under another boot, or one that is not known, may live.
    pub(super) fn may_live(&self, rerun: &Rerun, provenance: Provenance) -> bool {
        let lives = || is_alive(rerun.process);
        match &rerun.running {
            Some(run) => {
                self.stands(&rerun.target, &run.token, provenance, lives) != Standing::Ended
            }
            None => provenance == Provenance::UnknownBoot && lives(),
        }
    }

    /// The reruns of a target that may be under way, by their own notes.
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

    /// Forgets the process of a rerun that has ended.
    pub fn forget_rerun(&self, who: Identity, place: Place) {
        if let Some((path, _)) = self.rerun_note(who, place) {
            let _ = std::fs::remove_file(path);
        }
    }
}

pub(super) fn read_rerun(path: &Path) -> Option<Rerun> {
    serde_json::from_slice(&read_bounded(path).ok()?).ok()
}

/// The note of a rerun is written by that very process.
pub(super) fn is_unfinished_by_the_dead(name: &str, now: &Moment) -> bool {
    let pid = name.strip_suffix(&now.place.tag()).unwrap_or(name);
    pid.parse().is_ok_and(|pid: i32| {
        again_base::sys::process::identify(pid).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    })
}
