//! Liveness of a timer's waiter or of a rerun on record.

use super::record::{Running, Timer};
use super::store::Store;
use again_base::model::{Foreign, Identity, Moment, Provenance};
use again_base::sys::clock;
use again_base::sys::process::is_alive;

/// Liveness of a process on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The process lives.
    Alive,
    /// The process has ended.
    Ended,
    /// The process is foreign: it cannot be seen from here, and is not ended, settled or resumed
    /// here.
    Foreign {
        /// Origin of the process.
        whose: Foreign,
        /// Whether the process may live: some process holds its lock, or the lock cannot be seen.
        may_live: bool,
    },
}

/// Owner in words of something foreign that was written under `boot`, such as `another machine's`.
/// A record of another machine may be this machine's own, from an earlier boot, if the machine id
/// changes with each boot.
pub fn owner(whose: Foreign, boot: &str, now: &Moment) -> String {
    if whose == Foreign::Boot && now.may_be_under(boot) {
        return "owned by a process whose boot ID is unknown".to_owned();
    }
    let may_be_ours = whose == Foreign::Machine && boot != now.boot;
    let why = may_be_ours.then(clock::why_id_changes).flatten();
    let unsure = why.map_or_else(String::new, |why| {
        format!(" or an earlier boot's, since {why}")
    });
    format!("{}'s{unsure}", whose.kind())
}

impl Running {
    /// Process whose end settles the rerun: its observer's, if that outlives the rerun.
    pub fn last_process(&self) -> Identity {
        let observer = self.observer.filter(|observer| is_alive(*observer));
        let is_over = |_: &Identity| !is_alive(self.process);
        observer.filter(is_over).unwrap_or(self.process)
    }
}

impl Store {
    /// Liveness of a rerun. Here its process decides, and its observer, which may have to settle
    /// it; the lock does not, because a daemon that the rerun started may hold it for longer.
    pub fn rerun_stands(&self, id: &str, run: &Running, now: &Moment) -> Standing {
        let alive = || is_alive(run.process) || run.observer.is_some_and(is_alive);
        self.stands(id, &run.token, run.provenance(now), alive)
    }

    /// Liveness of a timer's waiter. Its process may be hidden from us, its lock is not.
    pub fn waiter_stands(&self, id: &str, timer: &Timer, now: &Moment) -> Standing {
        let is_held = || self.order_is_held(id, &timer.token) == Some(true);
        let alive = || timer.waiter.is_some_and(is_alive) || is_held();
        self.stands(id, &timer.token, timer.provenance(now), alive)
    }

    /// Liveness of the process that held this order's lock. `is_alive` compares pid and start time.
    pub fn stands(
        &self,
        id: &str,
        token: &str,
        provenance: Provenance,
        is_alive: impl Fn() -> bool,
    ) -> Standing {
        match provenance {
            Provenance::Here if is_alive() => Standing::Alive,
            Provenance::Here => Standing::Ended,
            Provenance::OtherBoot | Provenance::UnknownBoot => {
                let is_seen = provenance == Provenance::UnknownBoot && is_alive();
                match is_seen || self.order_may_be_held(id, token) {
                    true => Standing::Foreign {
                        whose: Foreign::Boot,
                        may_live: true,
                    },
                    false => Standing::Ended,
                }
            }
            Provenance::Foreign(whose) => Standing::Foreign {
                whose,
                may_live: self.order_is_held(id, token) != Some(false) && !self.is_gone(id, token),
            },
        }
    }

    /// Whether a rerun on record, whose process has ended, died before it began: here, under this
    /// boot, and with its order whole.
    pub fn never_began(&self, id: &str, run: &Running, now: &Moment) -> bool {
        run.before_start.is_some()
            && run.provenance(now) == Provenance::Here
            && self.order_is_whole(id, &run.token)
    }

    /// Whether an order has been removed. False for another user, who may not look.
    fn is_gone(&self, id: &str, token: &str) -> bool {
        let looked = self.order_path(id, token).symlink_metadata();
        looked.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    }
}
