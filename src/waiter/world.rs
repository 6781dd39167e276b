//! What a waiter's view is built from: its record, its order, and the machine.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::ledger::Ledger;
use crate::outcome;
use crate::policy::waiter::{AtDue, Blocker, Service, Slot, View};
use crate::policy::{cap, shutdown};
use crate::puppet::command::{Command, Place};
use crate::puppet::live;
use crate::state::newer::Newer;
use crate::state::order::{Order, Ticket, decode};
use crate::state::record::{Record, Running, Timer};
use crate::state::standing::Standing;
use crate::state::store::{Locked, Store};
use crate::sys::shutdown::announced;
use again_base::model::{
    Boottime, Bytes, Foreign, Identity, Kind, Moment, Provenance, Span, Stuck,
};
use again_base::sys::clock::{boottime, moment};
use again_base::sys::machine::replacement;
use again_base::sys::pidfd::{self, Handle};
use again_base::sys::process::{is_alive, own_identity};
use again_base::sys::user;

/// Where a waiter looks.
#[derive(Debug)]
pub struct World {
    /// The state directory.
    pub store: Store,
    /// What the waiter was started for.
    pub ticket: Ticket,
    /// The runs to wait for, as long as they live.
    pub runs: Vec<Rc<Handle>>,
    /// The order's file. Its lock is our sign of life, and then the rerun's.
    pub lock: File,
    /// How far the slot is, if one is needed.
    pub slot: Slot,
    order: File,
    /// Since when no agent daemon was seen to live.
    away: Option<Boottime>,
}

impl World {
    /// The world of the waiter that this ticket and order are for.
    pub fn new(ticket: Ticket, store: Store, order: File, lock: File, run: Option<Handle>) -> Self {
        let others = ticket.others.iter().filter_map(|who| pidfd::hold(*who));
        World {
            store,
            runs: run.into_iter().chain(others).map(Rc::new).collect(),
            ticket,
            lock,
            slot: Slot::Wanted,
            order,
            away: None,
        }
    }

    /// Lets go of the runs that have ended, and has it noted.
    pub fn look_at_runs(&mut self, ledger: &mut Ledger) {
        self.runs.retain(|run| !run.wait(Duration::ZERO));
        let all = self.ticket.run.iter().chain(&self.ticket.others);
        let lives = |who: &&Identity| self.runs.iter().any(|run| run.identity() == **who);
        let now = boottime();
        all.filter(|who| !lives(who))
            .for_each(|who| ledger.saw_end(*who, now));
    }

    /// The record as it is at this moment.
    ///
    /// # Errors
    /// Why it cannot be read, or that it is gone.
    pub fn record(&self) -> Result<Record> {
        let found = self.store.read(&self.ticket.target).and_then(|record| {
            let root = self.store.root().display();
            record.with_context(|| format!("its record in {root} is gone"))
        });
        let mut record = found.map_err(|e| self.lost(e))?;
        // A rerun that never began must not count as a run that satisfies this timer.
        outcome::take_back(&self.store, &mut record, &moment());
        Ok(record)
    }

    /// A failure that does not pass loses the timer.
    fn lost(&self, e: anyhow::Error) -> anyhow::Error {
        match may_pass(&e) {
            true => e,
            false => e.context(format!("timer '{}' is lost", self.ticket.name)),
        }
    }

    /// The record, locked.
    ///
    /// # Errors
    /// What failed on which file, or that the timer was lost with a damaged record.
    pub fn lock(&self, ledger: &Ledger) -> Result<Locked> {
        let locked = self.store.lock_existing(&self.ticket.target);
        let locked = locked.map_err(|e| self.lost(e))?;
        if let Some(what) = &locked.set_aside {
            if ledger.timer(&locked.record).is_none() {
                bail!("timer '{}' is lost: {what}", self.ticket.name);
            }
            tracing::warn!("the record was damaged: {what}");
        }
        Ok(locked)
    }

    /// Order file opened for writing, through the descriptor of its lock, in case its name now
    /// leads elsewhere.
    ///
    /// # Errors
    /// Errors of open(2), such as on a read-only file system.
    pub fn order_to_empty(&self) -> Result<File> {
        let own = format!("/proc/self/fd/{}", self.lock.as_raw_fd());
        let opened = File::options().write(true).open(own);
        opened.context("cannot open the rerun's order file for writing")
    }

    /// What is to be run.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read_order(&mut self) -> Result<Order> {
        let mut text = Vec::new();
        self.order
            .rewind()
            .and_then(|()| self.order.read_to_end(&mut text))
            .context("cannot read the order")?;
        let (_, order) = decode(&text).map_err(|e| anyhow!("the order is damaged: {e}"))?;
        Ok(order)
    }

    /// The view of a moment; with an order, of what matters once the timer is due too.
    ///
    /// # Errors
    /// What keeps it from being seen, such as a want of descriptors.
    pub fn view(
        &mut self,
        ledger: &Ledger,
        record: &Record,
        order: Option<&Order>,
    ) -> Result<View> {
        let now = moment();
        let mut view = ledger.view(record, now.uptime, !self.runs.is_empty());
        let stands = |run: &Running| {
            let stands = self.store.rerun_stands(&self.ticket.target, run, &now);
            // Under a boot that is not known, a process with that start time is waited for.
            let may_be_seen = run.provenance(&now) == Provenance::UnknownBoot;
            match stands {
                Standing::Foreign {
                    whose: Foreign::Boot,
                    ..
                } if may_be_seen && is_alive(run.process) => Standing::Alive,
                stands => stands,
            }
        };
        if let (Some(mut known), Some(order)) = (ledger.at_due(record, &now, stands), order) {
            if let Some(rerun) = &mut known.rerun {
                let mut running = record.running.iter();
                let found = running.find(|run| run.process == rerun.process);
                rerun.process = found.map_or(rerun.process, Running::last_process);
            }
            let is_hurried = ledger.timer(record).is_some_and(|timer| timer.hurry);
            view.at_due = Some(self.look(known, order, &now, record.stuck_after, is_hurried)?);
        }
        Ok(view)
    }

    /// Adds to a view how the cap over all targets is used. The start itself asks once more.
    pub fn add_total(&self, ledger: &Ledger, record: &Record, view: &mut View) {
        if let Some(at_due) = &mut view.at_due
            && let Some(total) = ledger.timer(record).map(Timer::total)
        {
            let usage = self.store.together(total, &moment());
            let own = (at_due.cap, at_due.usage);
            (at_due.cap, at_due.usage) = cap::binding(own, usage.map(|usage| (total, usage)));
        }
    }

    /// Adds what only the machine can tell to what the record says.
    fn look(
        &mut self,
        known: AtDue,
        order: &Order,
        now: &Moment,
        stuck_after: Span,
        is_hurried: bool,
    ) -> Result<AtDue> {
        // Without a descriptor to spare nothing of what follows can be seen, and what
        // cannot be seen must not count as not being there.
        let me = own_identity().context("cannot read /proc")?;
        let is_agent = order.kind.is_agent();
        // A run of something else does not do the job, but is not disturbed by it.
        let seen = match replacement() {
            Some(machine) => machine.lock_holder(&self.ticket.target),
            None => live::lock_holder(&order.paths)
                .map(|holder| (holder, is_agent && does_job(holder, order))),
        };
        let holder = seen
            .filter(|(holder, _)| *holder != me && order.kind != Kind::Command)
            .map(|(process, does_job)| Blocker {
                process,
                started: if does_job {
                    process.started()
                } else {
                    Boottime::default()
                },
            });
        let ends_after = holder.filter(|_| order.stuck == Stuck::End).map(|holder| {
            let lock = order.paths.agent_catalog_run_lockfile.as_ref();
            let age = now.uptime.since(holder.process.started());
            let held = lock
                .and_then(|lock| live::held_for(&lock.path(), holder.process, now.wall).ok()?);
            // A process that has released it by now is not ended.
            (now.uptime - age.min(held.unwrap_or_default()), stuck_after)
        });
        let service = match order.daemon {
            None => Service::None,
            Some(daemon) if live::daemon_lives(daemon, &order.paths) => {
                self.away = None;
                Service::Alive
            }
            Some(_) => Service::Away(*self.away.get_or_insert(now.uptime)),
        };
        Ok(AtDue {
            holder,
            ends_after,
            shutdown: match is_hurried {
                true => None,
                false => shutdown::holds(announced(), order.hold_before_shutdown, now.wall),
            },
            disabled: self.store.disabled().map(|disabled| disabled.reason),
            agent_disabled: is_agent
                .then(|| live::agent_disabled(&order.paths))
                .flatten(),
            service,
            missing: missing(order),
            slot: match order.slots {
                true => self.slot,
                false => Slot::Free,
            },
            ..known
        })
    }
}

/// Whether an error may pass, so that it is worth to try again. A missing or damaged
/// record does not come back.
pub fn may_pass(error: &anyhow::Error) -> bool {
    use nix::libc::{ELOOP, ENOENT, ENOTDIR};
    let io = error
        .chain()
        .find_map(|e| e.downcast_ref::<std::io::Error>());
    // A newer version gives the timer a waiter of its own, or the record comes back.
    error.is::<Newer>()
        // A lock that another process holds comes free with that process.
        || io.is_some_and(|e| e.kind() == std::io::ErrorKind::TimedOut)
        || io
            .and_then(std::io::Error::raw_os_error)
            .is_some_and(|errno| ![ENOENT, ENOTDIR, ELOOP].contains(&errno))
}

/// Reads the first line of an order, and hardly more.
///
/// # Errors
/// What is wrong with it.
pub fn read_ticket(order: &File) -> Result<Ticket> {
    let mut line = Vec::new();
    let mut file = order;
    file.rewind()
        .and_then(|()| BufReader::new(file).read_until(b'\n', &mut line))
        .context("cannot read the order")?;
    serde_json::from_slice(&line).context("the order is damaged")
}

/// Whether the run of another process does what the rerun would do.
fn does_job(run: Identity, order: &Order) -> bool {
    let words = order.wraps.as_ref().unwrap_or(&order.arguments);
    let words: Vec<OsString> = words.iter().map(Bytes::os).collect();
    let directory = order.directory.path();
    let environment = order.environment.as_deref().unwrap_or_default();
    let uid = user::effective();
    let place = Place {
        // Only PATH matters.
        environment: environment.iter().map(|one| one.0.clone()).collect(),
        directory: directory.clone(),
        home: if uid == 0 { None } else { user::home(uid) },
    };
    let wanted = Command::named(&words, &place).job(&directory);
    wanted.is_some_and(|wanted| live::job_of(run).is_some_and(|run| run.does(&wanted)))
}

/// What the rerun needs and is missing.
fn missing(order: &Order) -> Option<String> {
    let directory = order.directory.path();
    if !directory.is_dir() {
        return Some(format!("the working directory {}", directory.display()));
    }
    let named = [
        ("the manifest", &order.manifest),
        ("the manifest on standard input", &order.input),
    ];
    named.into_iter().find_map(|(what, path)| {
        let path = path.as_ref()?.path();
        (!path.exists()).then(|| format!("{what} {}", path.display()))
    })
}
