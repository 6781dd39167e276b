//! The sources of a waiter's view: its record, its order, and the machine.

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

/// State that a waiter observes.
#[derive(Debug)]
pub struct World {
    /// State directory.
    pub store: Store,
    /// Ticket that the waiter was started with.
    pub ticket: Ticket,
    /// Living runs that have to end first.
    pub runs: Vec<Rc<Handle>>,
    /// File of the order. Its lock shows that the waiter, and then the rerun, lives.
    pub lock: File,
    /// State of the request for a slot, if one is needed.
    pub slot: Slot,
    order: File,
    /// Time since which no agent daemon was seen to live.
    away: Option<Boottime>,
}

impl World {
    /// World of the waiter with this ticket and order.
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

    /// Releases the runs that have ended, and records their ends in the ledger.
    pub fn look_at_runs(&mut self, ledger: &mut Ledger) {
        self.runs.retain(|run| !run.wait(Duration::ZERO));
        let all = self.ticket.run.iter().chain(&self.ticket.others);
        let lives = |who: &&Identity| self.runs.iter().any(|run| run.identity() == **who);
        let now = boottime();
        all.filter(|who| !lives(who))
            .for_each(|who| ledger.saw_end(*who, now));
    }

    /// Current record.
    ///
    /// # Errors
    /// The reason why it cannot be read, or that it is missing.
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

    /// Adds to a permanent failure that the timer is lost.
    fn lost(&self, e: anyhow::Error) -> anyhow::Error {
        match may_pass(&e) {
            true => e,
            false => e.context(format!("timer '{}' is lost", self.ticket.name)),
        }
    }

    /// Locks and reads the record.
    ///
    /// # Errors
    /// The failed operation and its file, or that the timer was lost with a damaged record.
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

    /// Opens the order file for writing, through the descriptor of its lock, in case its name now
    /// leads to another file.
    ///
    /// # Errors
    /// Errors of open(2), such as on a read-only file system.
    pub fn order_to_empty(&self) -> Result<File> {
        let own = format!("/proc/self/fd/{}", self.lock.as_raw_fd());
        let opened = File::options().write(true).open(own);
        opened.context("cannot open the rerun's order file for writing")
    }

    /// Reads the order.
    ///
    /// # Errors
    /// The problem with the order.
    pub fn read_order(&mut self) -> Result<Order> {
        let mut text = Vec::new();
        self.order
            .rewind()
            .and_then(|()| self.order.read_to_end(&mut text))
            .context("cannot read the order")?;
        let (_, order) = decode(&text).map_err(|e| anyhow!("the order is damaged: {e}"))?;
        Ok(order)
    }

    /// Current view; with an order, also of the things that matter once the timer is due.
    ///
    /// # Errors
    /// The failed observation, such as for lack of descriptors.
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
            // Under an unknown boot, a process with that start time is waited for.
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

    /// Adds to a view the use of the cap over all targets. The start checks it again.
    pub fn add_total(&self, ledger: &Ledger, record: &Record, view: &mut View) {
        if let Some(at_due) = &mut view.at_due
            && let Some(total) = ledger.timer(record).map(Timer::total)
        {
            let usage = self.store.together(total, &moment());
            let own = (at_due.cap, at_due.usage);
            (at_due.cap, at_due.usage) = cap::binding(own, usage.map(|usage| (total, usage)));
        }
    }

    /// Adds the state of the machine to a view from the record.
    fn look(
        &mut self,
        known: AtDue,
        order: &Order,
        now: &Moment,
        stuck_after: Span,
        is_hurried: bool,
    ) -> Result<AtDue> {
        // Without a spare descriptor none of the following can be observed, and what cannot be
        // observed must not count as absent.
        let me = own_identity().context("cannot read /proc")?;
        let is_agent = order.kind.is_agent();
        // A run of something else does not do the rerun's job, but must not be disturbed by the
        // rerun.
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
            // A process that has released the lock by now is not ended.
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

/// Whether an error may be transient, so that it is worth retrying. A missing or damaged record
/// does not come back.
pub fn may_pass(error: &anyhow::Error) -> bool {
    use nix::libc::{ELOOP, ENOENT, ENOTDIR};
    let io = error
        .chain()
        .find_map(|e| e.downcast_ref::<std::io::Error>());
    // A newer version gives the timer a new waiter, or the record comes back.
    error.is::<Newer>()
        // Another process releases a lock at the latest when it ends.
        || io.is_some_and(|e| e.kind() == std::io::ErrorKind::TimedOut)
        || io
            .and_then(std::io::Error::raw_os_error)
            .is_some_and(|errno| ![ENOENT, ENOTDIR, ELOOP].contains(&errno))
}

/// Reads the first line of an order, and hardly more.
///
/// # Errors
/// The problem with the order.
pub fn read_ticket(order: &File) -> Result<Ticket> {
    let mut line = Vec::new();
    let mut file = order;
    file.rewind()
        .and_then(|()| BufReader::new(file).read_until(b'\n', &mut line))
        .context("cannot read the order")?;
    serde_json::from_slice(&line).context("the order is damaged")
}

/// Whether the run of another process does the rerun's job.
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

/// File or directory that the rerun needs and that is missing.
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
