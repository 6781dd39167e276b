//! The observer of an agent's rerun. It checks whether the rerun gets Puppet's lock, and ends as
//! soon as the rerun has it. A rerun that ends without it, while another run has the lock or the
//! agent is disabled, has applied nothing: Puppet skips it. Its timer is then set once more.
//!
//! The rerun's exit status does not show that, because a failed run has the same; nor does its
//! summary, which the other run has written.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Error, Result};
use serde::{Deserialize, Serialize};

use super::start::{Arm, ScopeWish, arm};
use crate::outcome;
use crate::puppet::live;
use crate::state::change::Change;
use crate::state::files::token;
use crate::state::history::What;
use crate::state::order::{Order, Ticket, decode, encode};
use crate::state::record::{Record, Timer};
use crate::state::store::Store;
use crate::sys::sleep::{Sleeper, Wake, Watch};
use crate::sys::title;
use again_base::model::{Base, Identity, Moment, Span};
use again_base::sys::attributes::SignalState;
use again_base::sys::clock::{self, boottime, moment};
use again_base::sys::log;
use again_base::sys::pidfd;
use again_base::sys::process;
use again_base::sys::spawn::{self, Image, Plan};

/// Verb of the observer, which the ordinary command line does not know.
pub const NAME: &str = "observe";

/// Interval for checking the lock if its directory cannot be watched.
const LOOK: Span = Span::from_nanos(500_000_000);

/// Observer that waits for this process to become the rerun, or to end.
#[derive(Debug)]
pub struct Observer {
    /// Process of the observer.
    pub process: Identity,
    /// Closed by exec(3), so that the observer begins.
    _begin: OwnedFd,
}

impl Observer {
    /// Starts the observer of the rerun that this process is about to become.
    ///
    /// # Errors
    /// Errors of memfd_create(2), pipe(2) and fork(2).
    pub fn start(store: &Store, ticket: &Ticket, order: &Order, timer: &Timer) -> Result<Self> {
        let kept = store.read_order(&ticket.target, &ticket.token)?;
        let kept = decode(&kept).map_err(Error::msg)?.1;
        let rerun = Rerun {
            process: process::own_identity()?,
            timer: timer.clone(),
            saves_environment: kept.environment.is_some(),
        };
        let mut text = encode(ticket, order)?;
        serde_json::to_writer(&mut text, &rerun)?;
        let order = spawn::memory_file(c"again-observer", &text)?;
        let (begin, end) = spawn::pipe()?;
        let (_report, reports) = spawn::pipe()?;
        let number = |fd: &OwnedFd| OsString::from(fd.as_raw_fd().to_string());
        let image = Image {
            // `/proc/self/exe` is this program when the new process executes it.
            programs: vec!["/proc/self/exe".into()],
            arguments: vec![
                "again".into(),
                NAME.into(),
                number(&order),
                number(&begin),
                " ".repeat(title::ROOM).into(),
            ],
            environment: Vec::new(),
        };
        let plan = Plan {
            image,
            keep: &[&order, &begin],
            signals: SignalState::default(),
            errors_to_ready: false,
        };
        let process = spawn::start(&plan, &reports)?;
        Ok(Observer {
            process,
            _begin: end,
        })
    }
}

/// Rerun, and how its timer was set.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rerun {
    /// Process of the rerun.
    pub process: Identity,
    /// Timer of the rerun, as it was at the start.
    pub timer: Timer,
    /// Whether the order on disk has the environment.
    pub saves_environment: bool,
}

/// Input of an observer.
#[derive(Debug)]
pub struct Observed {
    /// Ticket of the waiter that became the rerun.
    pub ticket: Ticket,
    /// Order that the rerun executes.
    pub order: Order,
    /// Rerun to observe.
    pub rerun: Rerun,
}

/// Runs an observer to its end. Returns its exit status.
pub fn main(arguments: &[OsString]) -> i32 {
    let take = |at: usize| {
        let number: i32 = arguments.get(at)?.to_str()?.parse().ok()?;
        pidfd::inherit(number).ok().map(File::from)
    };
    let (Some(order), Some(begin)) = (take(2), take(3)) else {
        let _ = writeln!(
            io::stderr(),
            "again: error: '{NAME}' is what a waiter starts; it cannot be called by hand"
        );
        return again_base::model::Exit::Usage as i32;
    };
    title::set_short(c"again");
    match run(order, begin) {
        Ok(()) => 0,
        Err(e) => {
            tracing::warn!("whether a rerun was skipped is not known: {e:#}");
            1
        }
    }
}

fn run(mut order: File, mut begin: File) -> Result<()> {
    let mut text = Vec::new();
    order.rewind()?;
    order.read_to_end(&mut text)?;
    let (ticket, order) = decode(&text).map_err(Error::msg)?;
    let rerun = text.rsplit(|&b| b == b'\n').next().unwrap_or_default();
    let rerun: Rerun = serde_json::from_slice(rerun).context("the timer is damaged")?;
    log::of_waiter();
    clock::locate()?;
    tracing::error_span!("timer", target = ticket.target, timer = ticket.name);
    let store = Store::open(&ticket.state_dir.path())?;
    let mut sleeper = Sleeper::new(SignalState::default())?;
    title::set(&format!(
        "again: timer '{}' observes its rerun",
        ticket.name
    ));
    let _ = begin.read(&mut [0]);
    let observed = Observed {
        ticket,
        order,
        rerun,
    };
    match observed.observe(&mut sleeper)? {
        Some(why) => observed.try_again(&store, &mut || sleeper.is_told_to_end(), &why),
        None => Ok(()),
    }
}

impl Observed {
    /// Waits until the rerun has the lock or has ended. Returns why it was skipped, if it was.
    fn observe(&self, sleeper: &mut Sleeper) -> Result<Option<String>> {
        let paths = &self.order.paths;
        let Some(lock) = paths.agent_catalog_run_lockfile.as_ref() else {
            return Ok(None);
        };
        let lock = lock.path();
        let mut other = None;
        let mut watch = None;
        loop {
            // Set before the check, so that no change in between is missed.
            let directory = lock.parent().filter(|directory| directory.is_dir());
            watch = watch.or_else(|| Watch::on([directory?]).ok());
            match self.holder(&lock) {
                Some(pid) if self.is_own(pid) => return Ok(None),
                holder => other = holder.or(other),
            }
            let Some(handle) = pidfd::hold(self.rerun.process) else {
                break;
            };
            let until = watch.is_none().then(|| boottime() + LOOK);
            match sleeper.sleep(Some(&handle), until, watch.as_ref())? {
                Wake::Signal { .. } => return Ok(None),
                Wake::Ended => break,
                _ => {}
            }
        }
        let disabled = live::agent_disabled(paths);
        Ok(match (disabled, other) {
            (Some(why), _) if why.is_empty() => Some("the agent is disabled".to_owned()),
            (Some(why), _) => Some(format!("the agent is disabled: {why}")),
            (None, Some(pid)) => Some(format!("another run of the agent had the lock (pid {pid})")),
            (None, None) => None,
        })
    }

    /// Living process that the lock file names.
    fn holder(&self, lock: &Path) -> Option<i32> {
        let pid = live::read_pid(lock)?;
        let is_own = self.is_own(pid);
        let is_other = || live::lock_holder(&self.order.paths).is_some_and(|who| who.pid == pid);
        (is_own || is_other()).then_some(pid)
    }

    /// Whether a process is the rerun or below it.
    fn is_own(&self, pid: i32) -> bool {
        let rerun = self.rerun.process;
        let mut above = live::chain_from(pid).into_iter();
        pid == rerun.pid || above.any(|above| above.identity == rerun)
    }

    /// Records that the rerun was skipped, and sets its timer once more, unless a newer one of
    /// that name is pending.
    ///
    /// # Errors
    /// Failures of the record, the order and fork(2), after which the rerun is not tried again.
    pub fn try_again(
        &self,
        store: &Store,
        is_told_to_end: &mut dyn FnMut() -> bool,
        why: &str,
    ) -> Result<()> {
        let Ticket { target, name, .. } = &self.ticket;
        let mut locked = store.lock_existing(target)?;
        // 'again stop --run' ends the observer before it ends the rerun.
        if is_told_to_end() {
            return Ok(());
        }
        let now = moment();
        let token = &self.rerun.timer.token;
        let Some(skipped) = outcome::skipped(store, &mut locked.record, token, why, &now) else {
            // Somebody has ended the rerun: it has been settled or taken back.
            return Ok(());
        };
        if let Some(pending) = locked.record.timers.get_mut(name) {
            pending.take_over(&self.rerun.timer);
            locked.commit()?;
            skipped.note(store, target);
            return Ok(());
        }
        let armed = Arm {
            name,
            timer: self.next(&locked.record, &now),
            order: &self.order,
            run: None,
            save_environment: self.rerun.saves_environment,
            scope: ScopeWish::None,
        };
        let timer = arm(store, &mut locked, armed)?.timer;
        drop(locked);
        skipped.note(store, target);
        let change = Change::of_timer(target, name, &timer, What::Resumed, moment());
        let why = format!("its rerun was skipped and applied nothing, and is tried again: {why}");
        store.note(&change.because(&why).entry);
        tracing::warn!("{why}");
        Ok(())
    }

    /// Copy of the timer that is due now, because its waits are over.
    fn next(&self, record: &Record, now: &Moment) -> Timer {
        let timer = self.rerun.timer.clone();
        Timer {
            token: token(),
            run: record.next_number(&timer.chain, timer.run),
            delta: Span::ZERO,
            jitter: Span::ZERO,
            put_off: Span::ZERO,
            base: Base::Request,
            requested: now.clone(),
            waits_for: None,
            promises: Vec::new(),
            due: Some(now.uptime),
            due_wall: Some(now.wall),
            hurry: false,
            held: None,
            waits: None,
            waiter: None,
            boot: now.boot.clone(),
            place: now.place,
            scope: None,
            ..timer
        }
    }
}
