//! The waiter: sleeps until it is time, then becomes the rerun.
//!
//! Not for people; `again run` starts it with descriptors that are open already.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use crate::model::{Boottime, Bytes, Identity, Kind, Moment, Span};
use crate::outcome;
use crate::policy::cap;
use crate::policy::waiter::{AtDue, Blocker, Finish, Service, Step, View, step};
use crate::puppet::environment;
use crate::puppet::live;
use crate::state::change::Change;
use crate::state::directory::make_directory;
use crate::state::files::unnamed_file;
use crate::state::history::{Entry, What};
use crate::state::logs::open_log;
use crate::state::order::{Order, Ticket, decode};
use crate::state::record::{Record, Running, Timer};
use crate::state::store::{Locked, Rerun, Store};
use crate::sys::attributes::{self, SignalState};
use crate::sys::clock::moment;
use crate::sys::pidfd::{self, Handle};
use crate::sys::process;
use crate::sys::process::is_alive;
use crate::sys::sleep::{LOOK_AGAIN, Sleeper, Wake, Watch};
use crate::sys::spawn::{self, Image};
use crate::sys::{clock, localtime, title, user};

/// The verb, which the ordinary command line does not know.
pub const NAME: &str = "wait";

/// The waiter's own arguments: its verb and the numbers of its descriptors.
pub fn arguments(
    order: &OwnedFd,
    lock: &OwnedFd,
    run: Option<&OwnedFd>,
    go: &OwnedFd,
    ready: &OwnedFd,
) -> Vec<OsString> {
    let number = |fd: &OwnedFd| OsString::from(fd.as_raw_fd().to_string());
    vec![
        NAME.into(),
        number(order),
        number(lock),
        run.map_or_else(|| "-".into(), number),
        number(go),
        number(ready),
    ]
}

/// The descriptors a waiter was started with.
struct Inherited {
    order: File,
    lock: OwnedFd,
    run: Option<OwnedFd>,
    go: OwnedFd,
    ready: OwnedFd,
}

fn inherit(arguments: &[OsString]) -> Option<Inherited> {
    let take = |at: usize| {
        let number: i32 = arguments.get(at)?.to_str()?.parse().ok()?;
        pidfd::inherit(number).ok()
    };
    Some(Inherited {
        order: File::from(take(2)?),
        lock: take(3)?,
        run: take(4),
        go: take(5)?,
        ready: take(6)?,
    })
}

/// Runs a waiter to its end. Returns its exit status, unless it becomes the rerun.
pub fn main(arguments: &[OsString]) -> i32 {
    let Some(inherited) = inherit(arguments) else {
        super::complain(
            "again: error: 'wait' is what 'again run' starts; it cannot be called by hand",
        );
        return crate::model::Exit::Usage as i32;
    };
    // systemd-run's standard error was the ready pipe.
    spawn::silence_standard_descriptors();
    title::set_short(c"again");
    match run(inherited) {
        Ok(()) => 0,
        Err(e) => {
            tracing::error!("a waiter has to give up: {e:#}");
            1
        }
    }
}

/// What has to be had before the requester is told that we are there.
fn prepare(order: &File) -> Result<(Ticket, Sleeper)> {
    let ticket = read_ticket(order)?;
    crate::sys::log::of_waiter(ticket.state_dir.path().join("again.log"));
    tracing::error_span!("timer", target = ticket.target, timer = ticket.name);
    // From here on a signal to end finds us able to act on it.
    let sleeper = Sleeper::new(SignalState::default()).context("cannot take over the signals")?;
    Ok((ticket, sleeper))
}

fn run(inherited: Inherited) -> Result<()> {
    std::panic::set_hook(Box::new(|info| {
        tracing::error!("a waiter has to give up: {info}");
    }));
    let (ticket, sleeper) = match prepare(&inherited.order) {
        Ok(prepared) => prepared,
        Err(e) => {
            spawn::tell_why_not(inherited.ready, &format!("{e:#}"));
            return Err(e);
        }
    };
    let store = Store::existing(&ticket.state_dir.path());
    spawn::tell_ready(inherited.ready);
    let run = match (inherited.run, ticket.run) {
        (Some(fd), Some(who)) => Some(Handle::Pidfd(fd, who)),
        (None, Some(who)) => pidfd::hold(who),
        (_, None) => None,
    };
    // Told to go on, or left alone: either way the record says who is in charge.
    let _ = File::from(inherited.go).read(&mut [0]);
    let mut waiter = Waiter {
        store,
        ticket,
        order: inherited.order,
        lock: File::from(inherited.lock),
        run,
        due: None,
        outdated: None,
        away: Cell::new(None),
        run_ended: None,
        told_to_end: false,
        boot: clock::boot_id(),
        sleeper,
        shown: String::new(),
        pause: FIRST_PAUSE,
        trouble: String::new(),
        prepared: Prepared::default(),
        me: process::own_identity().ok(),
    };
    if let Ok(Some(record)) = waiter.store.read(&waiter.ticket.target)
        && let Some(timer) = waiter.timer(&record)
    {
        tracing::error_span!("chain", chain = timer.chain, run = timer.run);
    }
    if waiter.is_in_charge() {
        // Puppet need not wait for that.
        if let Err(e) = waiter.keep_promise() {
            tracing::warn!("a loss of power could lose the timer: {e:#}");
        }
        let cleaned = {
            let Waiter {
                store,
                ticket,
                sleeper,
                told_to_end,
                ..
            } = &mut waiter;
            crate::arm::clean_up(store, &ticket.target, &mut || {
                *told_to_end |= sleeper.is_told_to_end();
                *told_to_end
            })
        };
        if let Err(e) = cleaned {
            tracing::warn!("cannot clean up: {e:#}");
        }
        waiter.prepare();
    }
    let ended = waiter.live();
    if let Ok(me) = waiter.identity() {
        waiter.store.forget_rerun(me);
    }
    ended
}

/// Reads the first line of the order, and no more of it than needed.
fn read_ticket(order: &File) -> Result<Ticket> {
    let mut text = vec![0; 4096];
    loop {
        let length = order
            .read_at(&mut text, 0)
            .context("cannot read the order")?;
        if let Some(end) = text[..length].iter().position(|&b| b == b'\n') {
            return serde_json::from_slice(&text[..end]).context("the order is damaged");
        }
        if length < text.len() {
            bail!("the order is cut short");
        }
        text.resize(text.len() * 2, 0);
    }
}

struct Waiter {
    store: Store,
    ticket: Ticket,
    order: File,
    /// Held while we live: the sign of life that needs no pid.
    lock: File,
    run: Option<Handle>,
    /// Kept here too, should the record refuse to be written.
    due: Option<Boottime>,
    /// What the record goes on saying of it, if it refused to.
    outdated: Option<Boottime>,
    /// When our run was seen to have ended, where the record does not have it yet.
    run_ended: Option<Boottime>,
    told_to_end: bool,
    boot: String,
    sleeper: Sleeper,
    /// What the log was told last.
    shown: String,
    /// How long to wait before the next attempt at what failed.
    pause: Span,
    /// What was logged of it.
    trouble: String,
    /// Since when no agent daemon was seen to live.
    away: Cell<Option<Boottime>>,
    prepared: Prepared,
    /// Ourselves, once known: the kernel takes its time to tell.
    me: Option<Identity>,
}

/// What takes a disk long, made before it is needed where the rerun is to follow at once.
/// What cannot be had is made when it is needed, and what is wrong with it is told then.
#[derive(Debug, Default)]
struct Prepared {
    order: Option<Order>,
    /// The number under which this process was noted as a rerun.
    number: Option<u32>,
    files: Files,
}

/// Not kept open for what may take days.
#[derive(Debug, Default)]
struct Files {
    /// The file for the output, which has no name yet, and goes with us if it gets none.
    log: Option<File>,
    /// Whether there is room for it among the logs that are kept.
    is_pruned: bool,
    /// The file for the record that says that the rerun started; it has no name either.
    record: Option<File>,
}

/// After a failure that may pass, such as that of a full disk, the next attempt is
/// made after this long; from then on after twice as long each time.
const FIRST_PAUSE: Span = Span::from_secs(1);
/// The longest pause between attempts.
const LONGEST_PAUSE: Span = Span::from_secs(60);

/// Whether an error may pass, so that it is worth to try again. A missing or damaged
/// record does not come back.
fn may_pass(error: &anyhow::Error) -> bool {
    use nix::libc::{ELOOP, ENOENT, ENOTDIR};
    let io = error
        .chain()
        .find_map(|e| e.downcast_ref::<std::io::Error>());
    io.and_then(std::io::Error::raw_os_error)
        .is_some_and(|errno| ![ENOENT, ENOTDIR, ELOOP].contains(&errno))
}

impl Waiter {
    /// Lives until there is a reason to end, and through what may pass.
    fn live(&mut self) -> Result<()> {
        loop {
            match self.go_on() {
                Err(e) if may_pass(&e) && !self.told_to_end => self.pause(&e)?,
                ended => return ended,
            }
        }
    }

    fn pause(&mut self, error: &anyhow::Error) -> Result<()> {
        self.prepared.files = Files::default();
        let trouble = format!("{error:#}");
        if trouble != self.trouble {
            tracing::warn!("tries again, every minute at least: {trouble}");
            self.trouble = trouble;
        }
        // Not by `show`: the log has its one line.
        title::set(&format!(
            "again: timer '{}' tries again what failed",
            self.ticket.name
        ));
        let until = clock::boottime() + self.pause;
        self.pause = self.pause.times(2).min(LONGEST_PAUSE);
        let woken = sleep(&mut self.sleeper, None, Some(until), None)?;
        self.note_wake(woken);
        Ok(())
    }

    fn go_on(&mut self) -> Result<()> {
        let mut looked_around = false;
        // None: not set yet. Some(None): it cannot be had.
        let mut watch: Option<Option<Watch>> = None;
        // Read an instant ago; before a rerun it is read once more, under the lock.
        let mut known: Option<Record> = None;
        loop {
            let record = match known.take() {
                Some(record) => record,
                None => self.read_record()?,
            };
            if looked_around && self.prepared.order.is_none() {
                self.prepared.order = Some(self.read_order()?);
            }
            let order = self.prepared.order.as_ref().filter(|_| looked_around);
            let view = self.view(&record, order)?;
            looked_around = false;
            let next = step(&view);
            let holding = matches!(next, Step::Hold(_));
            if holding
                || matches!(
                    next,
                    Step::AwaitDue(_) | Step::AwaitProcess(_) | Step::AwaitService(_)
                )
            {
                self.prepared.files = Files::default();
            }
            match next {
                Step::AwaitRun => {
                    self.show(&format!(
                        "waits for the run with pid {} to end",
                        self.run_pid()
                    ));
                    let Waiter { run, sleeper, .. } = self;
                    let woken = sleep(sleeper, run.as_ref(), None, None)?;
                    self.note_wake(woken);
                    if woken == Wake::Ended {
                        self.run = None;
                        self.follow_at_once()?;
                    }
                }
                Step::SetDue(due) if view.due.is_some() => self.put_off(due, view.due),
                Step::SetDue(due) => {
                    self.set_due(due, view.now, view.delta + view.jitter);
                    known = self.run_ended.is_some().then_some(record);
                }
                Step::AwaitDue(due) => {
                    self.show(&format!(
                        "waits until {}",
                        localtime::local(self.wall_of(due))
                    ));
                    let woken = sleep(&mut self.sleeper, None, Some(due), None)?;
                    self.note_wake(woken);
                }
                Step::LookAround => {
                    looked_around = true;
                    known = Some(record);
                }
                Step::AwaitProcess(who) => match pidfd::open(who) {
                    Ok(handle) => {
                        self.write_run_end();
                        self.show(&format!(
                            "is due, waits for the run with pid {} to end",
                            who.pid
                        ));
                        let woken = sleep(&mut self.sleeper, Some(&handle), None, None)?;
                        self.note_wake(woken);
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                    Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                        self.write_run_end();
                        self.show(&format!(
                            "is due, waits for the run with pid {}, which it may not see, to end",
                            who.pid
                        ));
                        let until = clock::boottime() + LOOK_AGAIN;
                        let woken = sleep(&mut self.sleeper, None, Some(until), None)?;
                        self.note_wake(woken);
                    }
                    Err(e) => return Err(e).context("cannot wait for a process"),
                },
                Step::AwaitService(until) => {
                    self.write_run_end();
                    self.show("is due, no agent daemon lives: waits for the service to come back");
                    let woken = sleep(&mut self.sleeper, None, Some(until), None)?;
                    self.note_wake(woken);
                }
                Step::Hold(reason) => match &watch {
                    // Look once more after the watch is set, lest a change falls between.
                    None => {
                        let disabled = order.and_then(|o| {
                            o.paths.agent_disabled_lockfile.as_ref().map(Bytes::path)
                        });
                        let directories = [
                            Some(self.store.root()),
                            disabled.as_deref().and_then(Path::parent),
                        ];
                        let set = Watch::on(directories.into_iter().flatten());
                        if let Err(e) = &set {
                            tracing::warn!(
                                "is held, and looks every {LOOK_AGAIN} since no directory can be watched: {e}"
                            );
                        }
                        watch = Some(set.ok());
                        looked_around = true;
                    }
                    Some(set) => {
                        let reason = reason.to_string();
                        self.note_held(Some(&reason));
                        self.show(&format!("is due, held: {reason}"));
                        let until = set.is_none().then(|| clock::boottime() + LOOK_AGAIN);
                        let woken = sleep(&mut self.sleeper, None, until, set.as_ref())?;
                        self.note_wake(woken);
                    }
                },
                Step::Finish(finish) => return self.finish(&finish),
                Step::Launch => {
                    let order = self.prepared.order.take().context("no order was read")?;
                    self.launch(&order, false)?;
                    self.prepared.order = Some(order);
                }
            }
            if !holding {
                watch = None;
            }
        }
    }

    /// Launches what was prepared. Whatever speaks against it is seen there, under the
    /// lock, and then once more on the long way, which knows what to do about it.
    fn follow_at_once(&mut self) -> Result<()> {
        let Some(order) = self.prepared.order.take() else {
            return Ok(());
        };
        self.run_ended = Some(clock::boottime());
        let launched = self.launch(&order, true);
        self.prepared.order = Some(order);
        launched
    }

    /// Waits until the disk has the order, and the name under which the record was put.
    /// Where the rerun follows at once, what the disk has would have to be freed again in
    /// its way, for a promise of seconds.
    fn keep_promise(&self) -> Result<()> {
        let record = self.store.read(&self.ticket.target)?;
        let timer = record.as_ref().and_then(|record| self.timer(record));
        if timer.is_some_and(follows_at_once) {
            return Ok(());
        }
        self.lock.sync_all().context("cannot sync the order")?;
        self.store.sync_all(&self.ticket.target)
    }

    fn identity(&self) -> Result<Identity> {
        self.me
            .map_or_else(process::own_identity, Ok)
            .context("cannot read /proc")
    }

    fn prepare(&mut self) {
        // Where there is no run to wait for there is no time to win.
        if self.run.is_none() {
            return;
        }
        let Ok(Some(record)) = self.store.read(&self.ticket.target) else {
            return;
        };
        let (Some(timer), Ok(order)) = (self.timer(&record), self.read_order()) else {
            return;
        };
        if !follows_at_once(timer) {
            return;
        }
        let number = record.next_number(&timer.chain, timer.run);
        if let Ok(me) = self.identity() {
            let rerun = self.rerun(me, &timer.chain, number, &order);
            self.prepared.number = self.store.note_rerun(&rerun).ok().map(|()| number);
        }
        let log_dir = order.log_dir.path();
        // Only its owner may read it: output may hold secrets.
        self.prepared.files.log = make_directory(&log_dir, 0o755)
            .ok()
            .and_then(|()| unnamed_file(&log_dir, 0o600).ok());
        // The only one that is kept may be that of the run we wait for.
        if order.keep_logs > 1 && self.prepared.files.log.is_some() {
            self.store.prune_logs(&log_dir, order.keep_logs, None);
            self.prepared.files.is_pruned = true;
        }
        self.prepared.files.record = self.store.unnamed_record(&self.ticket.target).ok();
        self.prepared.order = Some(order);
    }

    fn rerun(&self, me: Identity, chain: &str, run: u32, order: &Order) -> Rerun {
        Rerun {
            process: me,
            boot: self.boot.clone(),
            target: self.ticket.target.clone(),
            chain: chain.to_owned(),
            run,
            timer: self.ticket.name.clone(),
            daemon: order.daemon,
        }
    }

    fn lock_record(&self) -> Result<Locked> {
        let locked = self.store.lock_existing(&self.ticket.target)?;
        if let Some(what) = &locked.set_aside {
            if self.timer(&locked.record).is_none() {
                bail!("timer '{}' is lost: {what}", self.ticket.name);
            }
            tracing::warn!("the record was damaged: {what}");
        }
        Ok(locked)
    }

    fn read_record(&self) -> Result<Record> {
        match self.store.read(&self.ticket.target) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => bail!(
                "timer '{}' is lost: its record in {} is gone",
                self.ticket.name,
                self.store.root().display()
            ),
            Err(e) if may_pass(&e) => Err(e),
            Err(e) => Err(e.context(format!("timer '{}' is lost", self.ticket.name))),
        }
    }

    fn is_in_charge(&self) -> bool {
        matches!(self.store.read(&self.ticket.target), Ok(Some(record)) if self.timer(&record).is_some())
    }

    fn run_pid(&self) -> i32 {
        self.ticket.run.map_or(0, |who| who.pid)
    }

    /// Says what is waited for: to who looks at processes and, once, to the log.
    fn show(&mut self, what: &str) {
        if self.shown != what {
            what.clone_into(&mut self.shown);
            tracing::info!("{what}");
        }
        title::set(&format!("again: timer '{}' {what}", self.ticket.name));
    }

    fn note_wake(&mut self, woken: Wake) {
        match woken {
            Wake::Signal { .. } => self.told_to_end = true,
            // Somebody has changed the record, so that it can be written again.
            Wake::Hurry => self.outdated = None,
            Wake::NoMore | Wake::Child | Wake::Ended | Wake::Time | Wake::Changed => {}
        }
    }

    fn wall_of(&self, due: Boottime) -> crate::model::Walltime {
        clock::walltime() + due.since(clock::boottime())
    }

    fn read_order(&self) -> Result<Order> {
        let mut text = Vec::new();
        let length = self
            .order
            .metadata()
            .context("cannot read the order")?
            .len();
        text.resize(usize::try_from(length)?, 0);
        self.order
            .read_exact_at(&mut text, 0)
            .context("cannot read the order")?;
        decode(&text)
            .map(|(_, order)| order)
            .map_err(|e| anyhow!("the order is damaged: {e}"))
    }

    /// Our timer, if the record still names us for it.
    fn timer<'a>(&self, record: &'a Record) -> Option<&'a Timer> {
        record
            .timers
            .get(&self.ticket.name)
            .filter(|timer| timer.token == self.ticket.token)
    }

    fn view(&self, record: &Record, order: Option<&Order>) -> Result<View> {
        let timer = self.timer(record);
        let now = moment();
        let hurry = timer.is_some_and(|timer| timer.hurry);
        let wait = |span: Option<Span>| span.filter(|_| !hurry).unwrap_or(Span::ZERO);
        let at_due = timer
            .zip(order)
            .map(|(timer, order)| self.at_due(record, timer, order, &now));
        Ok(View {
            now: now.uptime,
            told_to_end: self.told_to_end,
            in_charge: timer.is_some(),
            run_alive: self
                .run
                .as_ref()
                .is_some_and(|run| !run.wait(std::time::Duration::ZERO)),
            due: timer
                .filter(|timer| timer.boot == self.boot)
                .and_then(|timer| timer.due)
                .filter(|due| Some(*due) != self.outdated)
                .or(self.due)
                .or_else(|| self.noted_run_end(record)),
            delta: wait(timer.map(|timer| timer.delta)),
            jitter: wait(timer.map(|timer| timer.jitter)),
            at_due: at_due.transpose()?,
        })
    }

    fn at_due(&self, record: &Record, timer: &Timer, order: &Order, now: &Moment) -> Result<AtDue> {
        let is_agent = matches!(order.kind, Kind::Agent | Kind::Daemon);
        // Without a descriptor to spare nothing of what follows can be seen, and what
        // cannot be seen must not count as not being there.
        File::open("/proc/self/stat").context("cannot read /proc")?;
        let me = Some(self.identity()?);
        Ok(AtDue {
            // An agent's run does not do the job of an apply, but is not disturbed by it.
            holder: live::lock_holder(&order.paths)
                .filter(|holder| Some(*holder) != me && order.kind != Kind::Command)
                .map(|process| Blocker {
                    process,
                    started: if is_agent {
                        Identity::started(process)
                    } else {
                        Boottime::default()
                    },
                }),
            rerun: record
                .running
                .iter()
                .find(|rerun| rerun.started.boot == self.boot && is_alive(rerun.process))
                .map(|rerun| Blocker {
                    process: rerun.process,
                    started: rerun.started.uptime,
                }),
            newest_run: record.newest_run(&self.boot),
            disabled: self.store.disabled().map(|disabled| disabled.reason),
            agent_disabled: is_agent
                .then(|| live::agent_disabled(&order.paths))
                .flatten(),
            service: match order.daemon {
                None => Service::None,
                Some(daemon) if live::daemon_lives(daemon, &order.paths) => {
                    self.away.set(None);
                    Service::Alive
                }
                Some(_) => {
                    let since = self.away.get().unwrap_or(now.uptime);
                    self.away.set(Some(since));
                    Service::Away(since)
                }
            },
            missing: missing(order),
            cap: timer.cap,
            usage: cap::usage(timer.cap, record.moments(), now),
            on_cap: timer.on_cap,
        })
    }

    /// Writes down when the timer is due, for others to see and for after a reboot.
    ///
    /// It counts from the end of the run, which is one moment for all the timers of
    /// that run, whichever waiter saw it first; so one rerun can do the job of several.
    fn set_due(&mut self, due: Boottime, now: Boottime, wait: Span) {
        if wait == Span::ZERO {
            // Due at once: it goes with the record of the start, since a disk takes
            // longer than all the rest. Should there be something else to wait for,
            // it is written before.
            self.run_ended = Some(now);
            return;
        }
        let mut due = due;
        let run = self.ticket.run;
        let boot = self.boot.clone();
        let since_now = self.wall_of(now);
        self.change_record(|record, name| {
            if let Some(run) = run {
                due = record.run_end(run, &boot, now) + wait;
            }
            let timer = record.timers.get_mut(name)?;
            timer.due = Some(due);
            timer.due_wall = Some(since_now + due.since(now));
            Some(())
        });
        self.due = Some(due);
    }

    /// When our run ended, by a waiter that saw it first or by what we saw ourselves.
    fn noted_run_end(&self, record: &Record) -> Option<Boottime> {
        let seen = self.run_ended?;
        let noted = self.ticket.run.and_then(|run| {
            let ends = record.run_ends.iter();
            ends.filter(|end| end.run == run && end.boot == self.boot)
                .map(|end| end.at)
                .next()
        });
        Some(noted.unwrap_or(seen))
    }

    /// Puts into the record what only we know yet of the run's end.
    fn note_run_end(&self, record: &mut Record) {
        let Some(seen) = self.run_ended else {
            return;
        };
        let due = match self.ticket.run {
            Some(run) => record.run_end(run, &self.boot, seen),
            None => seen,
        };
        let wall = self.wall_of(due);
        if let Some(timer) = record.timers.get_mut(&self.ticket.name)
            && timer.due.is_none()
        {
            timer.due = Some(due);
            timer.due_wall = Some(wall);
        }
    }

    /// Writes it down, before something else is waited for.
    fn write_run_end(&mut self) {
        if self.run_ended.is_some() && self.due.is_none() {
            self.change_record(|_, _| Some(()));
            self.due = self.run_ended;
        }
    }

    /// Writes down that the timer is due later, because of the cap.
    fn put_off(&mut self, due: Boottime, before: Option<Boottime>) {
        self.due = Some(due);
        let wall = self.wall_of(due);
        let by_cap = due.since(clock::boottime());
        let is_written = self.change_record(|record, name| {
            let timer = record.timers.get_mut(name)?;
            timer.due = Some(due);
            timer.due_wall = Some(wall);
            timer.put_off = timer.put_off + by_cap;
            Some(())
        });
        // Put off twice, the record has said the same since the first time.
        self.outdated = match (is_written, self.outdated) {
            (true, _) => None,
            (false, None) => before,
            (false, known) => known,
        };
    }

    fn note_held(&mut self, reason: Option<&str>) {
        let reason = reason.map(str::to_owned);
        self.change_record(|record, name| {
            record.timers.get_mut(name)?.held = reason;
            Some(())
        });
    }

    /// Changes the record, if our timer in it is still ours. What cannot be written is
    /// logged: the wait goes on all the same. Whether it was written.
    fn change_record(&self, change: impl FnOnce(&mut Record, &str) -> Option<()>) -> bool {
        let write = || -> Result<()> {
            let mut locked = self.lock_record()?;
            if self.timer(&locked.record).is_none() {
                return Ok(());
            }
            let before = locked.record.clone();
            self.note_run_end(&mut locked.record);
            change(&mut locked.record, &self.ticket.name);
            if locked.record != before {
                locked.commit()?;
            }
            Ok(())
        };
        write().inspect_err(|e| tracing::warn!("{e:#}")).is_ok()
    }

    fn finish(&self, finish: &Finish) -> Result<()> {
        match finish {
            Finish::Superseded => {
                self.store
                    .remove_order(&self.ticket.target, &self.ticket.token);
                return Ok(());
            }
            Finish::Interrupted => {
                tracing::warn!(
                    "again: interrupted: the waiter of timer '{}' was ended by a signal (target {}, pid {}); the timer stays on record: 'again resume' starts another waiter, 'again stop' cancels it",
                    self.ticket.name,
                    self.ticket.target,
                    std::process::id()
                );
                return Ok(());
            }
            _ => {}
        }
        let now = moment();
        let mut locked = self.lock_record()?;
        if self.timer(&locked.record).is_none() {
            return Ok(());
        }
        self.note_run_end(&mut locked.record);
        let Some(timer) = locked.record.timers.remove(&self.ticket.name) else {
            return Ok(());
        };
        let change = |what| {
            let (target, name) = (&self.ticket.target, &self.ticket.name);
            Change::of_timer(target, name, &timer, what, now.clone())
        };
        let change = match finish {
            Finish::Superseded | Finish::Interrupted => return Ok(()),
            Finish::Capped(refusal) => {
                let record = &mut locked.record;
                record.note_refused(&self.ticket.name, refusal, now.clone());
                change(What::Refused).refused(refusal)
            }
            Finish::Satisfied(by) => change(What::Satisfied).because(by.to_string()),
            Finish::ServiceStopped => change(What::Stopped).because("stopped with the service"),
            Finish::Gone(what) => change(What::Failed).because(format!("{what} is gone")),
        };
        let Entry { what, reason, .. } = &change.entry;
        if *what != What::Refused {
            let name = &self.ticket.name;
            locked.record.note_missed(name, *what, reason, now.clone());
        }
        locked.commit()?;
        self.store.note(&change.entry);
        self.store
            .remove_order(&self.ticket.target, &self.ticket.token);
        match what {
            What::Refused | What::Failed => tracing::warn!("no rerun: {reason}"),
            _ => tracing::info!("no rerun: {reason}"),
        }
        Ok(())
    }

    /// Judges once more under the lock, records the start, and becomes the rerun.
    /// Returns if it is not to be after all.
    ///
    /// The start of a rerun that does not follow at once, such as one that is resumed
    /// after a loss of power, is on the disk before it; so one that takes the machine
    /// down meets the cap.
    fn launch(&mut self, order: &Order, at_once: bool) -> Result<()> {
        let mut locked = self.lock_record()?;
        let now = moment();
        self.note_run_end(&mut locked.record);
        if step(&self.view(&locked.record, Some(order))?) != Step::Launch {
            return Ok(());
        }
        // What arrives from here on stays pending, and is the rerun's.
        self.told_to_end |= self.sleeper.is_told_to_end();
        if self.told_to_end {
            return Ok(());
        }
        let Some(mut timer) = locked.record.timers.remove(&self.ticket.name) else {
            return Ok(());
        };
        let settled = outcome::settle(&mut locked.record, &now);
        timer.run = locked.record.next_number(&timer.chain, timer.run);
        let me = self.identity()?;
        let log_dir = order.log_dir.path();
        let log = open_log(&log_dir, &timer, now.wall, self.prepared.files.log.take());
        let running = Running {
            process: me,
            token: timer.token.clone(),
            chain: timer.chain.clone(),
            run: timer.run,
            timer: self.ticket.name.clone(),
            started: now.clone(),
            log: log
                .as_ref()
                .map(|(path, _)| path.display().to_string())
                .unwrap_or_default(),
            lastrunfile: order.paths.lastrunfile.as_ref().map(Bytes::lossy),
            stopped: None,
        };
        locked.record.note_start(running, timer.cap);
        // It refers to this process only, so it is harmless should we die before the
        // record counts.
        let noted = if self.prepared.number.take() == Some(timer.run) {
            Ok(())
        } else {
            self.store
                .note_rerun(&self.rerun(me, &timer.chain, timer.run, order))
        };
        let mut commit = || {
            if at_once {
                return locked.commit_start(self.prepared.files.record.take());
            }
            locked.commit()?;
            if let Err(e) = self.store.sync(&self.ticket.target) {
                tracing::warn!("a loss of power could lose the start: {e:#}");
            }
            Ok(())
        };
        if let Err(e) = noted.and_then(|()| commit()) {
            // What cannot be recorded is not started: the cap could not be kept.
            self.store.forget_rerun(me);
            if let Ok((path, _)) = &log {
                let _ = std::fs::remove_file(path);
            }
            return Err(e.context("the rerun cannot be recorded, and does not start"));
        }
        drop(locked);
        settled.note(&self.store);
        let started = Change::of_timer(
            &self.ticket.target,
            &self.ticket.name,
            &timer,
            What::Started,
            now,
        );
        // The moment that the cap counts, which a slow disk has put well before this one.
        self.store.note(&started.entry);
        self.store
            .remove_order(&self.ticket.target, &self.ticket.token);
        tracing::error_span!("run", run = timer.run);
        tracing::info!("starts the rerun");
        match &log {
            Ok(_) if self.prepared.files.is_pruned => {}
            // Nothing is removed from a directory that others could have put there.
            Ok((path, _)) => self.store.prune_logs(&log_dir, order.keep_logs, Some(path)),
            Err(e) => tracing::warn!("the output of the rerun is lost: {e:#}"),
        }
        let error = self.become_rerun(order, &timer, log.ok().map(|(_, file)| file));
        let reason = format!("{error:#}");
        // Only reached when it could not be done.
        let take_back = || -> Result<()> {
            let mut locked = self.lock_record()?;
            locked.record.running.retain(|rerun| rerun.process != me);
            let name = &self.ticket.name;
            locked
                .record
                .note_missed(name, What::Failed, &reason, moment());
            locked.commit()
        };
        if let Err(e) = take_back() {
            tracing::warn!(timer = %self.ticket.name, target_id = %self.ticket.target, "{e:#}");
        }
        self.store.forget_rerun(me);
        let (target, name) = (&self.ticket.target, &self.ticket.name);
        let failed = Change::of_timer(target, name, &timer, What::Failed, moment());
        self.store.note(&failed.because(reason).entry);
        Err(error.context(format!(
            "timer '{}': the rerun could not be started",
            self.ticket.name
        )))
    }

    fn become_rerun(&self, order: &Order, timer: &Timer, log: Option<File>) -> anyhow::Error {
        let directory = order.directory.path();
        if let Err(e) = std::env::set_current_dir(&directory) {
            return anyhow!("cannot change to {}: {e}", directory.display());
        }
        let input = order
            .input
            .as_ref()
            .map_or_else(|| PathBuf::from("/dev/null"), Bytes::path);
        let input = match File::open(&input) {
            Ok(file) => file,
            Err(e) => return anyhow!("cannot open the standard input {}: {e}", input.display()),
        };
        if let Err(e) = spawn::set_standard_descriptors(&input, log.as_ref()) {
            return anyhow!("cannot set the standard descriptors: {e}");
        }
        let mut variables: Vec<OsString> = order
            .environment
            .clone()
            .unwrap_or_else(clean_environment)
            .iter()
            .map(Bytes::os)
            .collect();
        for (name, value) in [
            ("AGAIN_CHAIN", timer.chain.clone()),
            ("AGAIN_RUN", timer.run.to_string()),
            ("AGAIN_TIMER", self.ticket.name.clone()),
        ] {
            variables.push(format!("{name}={value}").into());
        }
        for failed in attributes::apply(&order.attributes) {
            tracing::warn!("cannot set {failed}");
        }
        let (program, error) = spawn::become_image(&Image {
            programs: order.programs.iter().map(Bytes::path).collect(),
            arguments: order.arguments.iter().map(Bytes::os).collect(),
            environment: variables,
        });
        anyhow!("cannot execute {}: {error}", program.display())
    }
}

fn follows_at_once(timer: &Timer) -> bool {
    timer.delta + timer.jitter == Span::ZERO
}

fn sleep(
    sleeper: &mut Sleeper,
    process: Option<&Handle>,
    until: Option<Boottime>,
    watch: Option<&Watch>,
) -> Result<Wake> {
    sleeper.sleep(process, until, watch).context("cannot wait")
}

/// What has to be there for the rerun and is not.
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

/// Where no environment was kept: what a service manager would give.
fn clean_environment() -> Vec<Bytes> {
    let uid = user::effective();
    let path = b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec();
    let home = user::home(uid);
    let home = home
        .as_deref()
        .map(|home| std::os::unix::ffi::OsStrExt::as_bytes(home.as_os_str()));
    environment::restored(vec![path], home, user::name(uid).as_bytes())
        .into_iter()
        .map(Bytes)
        .collect()
}
