//! Whether a timer's waiter or a rerun on record lives.

use super::record::{Running, Timer};
use super::store::Store;
use again_base::model::{Foreign, Identity, Moment, Provenance};
use again_base::sys::clock;
use again_base::sys::process::is_alive;

/// How a process on record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It lives.
    Alive,
    /// It has ended.
    Ended,
    /// It is foreign: it cannot be seen from here, and is not ended, settled or resumed here.
    Foreign {
        /// Where it comes from.
        whose: Foreign,
        /// It may live: a process holds its lock, or the lock cannot be seen.
        may_live: bool,
    },
}

/// Whose something foreign is that was written under this boot, in words: `another machine's`.
/// What another machine wrote may be our own, of an earlier boot, if our id changes with each.
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
    /// The process whose end settles it: its observer's, if that outlives it.
    pub fn last_process(&self) -> Identity {
        let observer = self.observer.filter(|observer| is_alive(*observer));
        let is_over = |_: &Identity| !is_alive(self.process);
        observer.filter(is_over).unwrap_or(self.process)
    }
}

impl Store {
    /// Whether a rerun is under way. Here its process decides, and its observer, which may
    /// have to settle it: a daemon that it started may hold its lock for longer.
    pub fn rerun_stands(&self, id: &str, run: &Running, now: &Moment) -> Standing {
        let alive = || is_alive(run.process) || run.observer.is_some_and(is_alive);
        self.stands(id, &run.token, run.provenance(now), alive)
    }

    /// Whether a timer has a waiter. Its process may be hidden from us, its lock is not.
    pub fn waiter_stands(&self, id: &str, timer: &Timer, now: &Moment) -> Standing {
        let is_held = || self.order_is_held(id, &timer.token) == Some(true);
        let alive = || timer.waiter.is_some_and(is_alive) || is_held();
        self.stands(id, &timer.token, timer.provenance(now), alive)
    }

    /// How the process stands that had this order's lock. `is_alive` compares pid and start time.
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

    /// Whether a rerun on record, whose process has ended, died before it began: here and under this boot, with
    /// its order whole.
    pub fn never_began(&self, id: &str, run: &Running, now: &Moment) -> bool {
        run.before_start.is_some()
            && run.provenance(now) == Provenance::Here
            && self.order_is_whole(id, &run.token)
    }

    /// Whether an order has been removed. Another user may not look, and cannot tell.
    fn is_gone(&self, id: &str, token: &str) -> bool {
        let looked = self.order_path(id, token).symlink_metadata();
        looked.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    }
}
