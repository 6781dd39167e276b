//! From a waiter to the rerun: decide once more under the lock, record the start, exec.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};

use super::ledger::Ledger;
use super::observer::Observer;
use super::world::World;
use crate::outcome;
use crate::policy::waiter::{Step, step};
use crate::puppet::environment;
use crate::puppet::rerun::with_job;
use crate::state::change::Change;
use crate::state::history::What;
use crate::state::logs::Logs;
use crate::state::order::Order;
use crate::state::record::{BeforeStart, Record, Running, Timer};
use crate::state::reruns::Rerun;
use crate::state::store::Locked;
use crate::state::upkeep::Upkeep;
use crate::sys::mounts;
use again_base::model::{Bytes, Identity, Moment};
use again_base::sys::clock::{self, moment};
use again_base::sys::file::is_null;
use again_base::sys::process::own_identity;
use again_base::sys::spawn::{self, ExecFailure, Image};
use again_base::sys::{attributes, user};

/// Rerun whose start is on record, and which this process is about to become.
#[derive(Debug)]
pub struct Start<'a> {
    world: &'a World,
    order: &'a Order,
    /// Timer, which is no longer pending.
    pub timer: Timer,
    log: Option<File>,
    _observer: Option<Observer>,
    whole: File,
}

/// Records the start of the rerun. None if no rerun is to start after all: the next observation
/// shows why.
///
/// # Errors
/// The failed operation. Either nothing has changed, or record and history say it too.
pub fn launch<'a>(
    world: &'a mut World,
    ledger: &Ledger,
    order: &'a Order,
    is_told_to_end: &mut dyn FnMut() -> bool,
) -> Result<Option<Start<'a>>> {
    let mut locked = world.lock(ledger)?;
    let before = locked.record.clone();
    let now = moment();
    // Settle first: a rerun that never began must not count as a run that satisfies this timer.
    let settled = outcome::settle(&world.store, &mut locked.record, &now);
    let view = world.view(ledger, &locked.record, Some(order))?;
    // A signal that arrives from here on stays pending, and reaches the rerun.
    if step(&view) != Step::Launch || is_told_to_end() {
        return Ok(None);
    }
    // Opened before anything is recorded: a rerun whose order cannot be emptied is not started.
    let whole = world.order_to_empty()?;
    let Some(mut timer) = ledger.take(&mut locked.record, &now) else {
        return Ok(None);
    };
    timer.run = locked.record.next_number(&timer.chain, timer.run);
    timer.lineage = timer.whole();
    timer.lineage.join(locked.record.take_ready(&now));
    timer.taken.clear();
    let world = &*world;
    let World { store, ticket, .. } = world;
    if !store.count_start(timer.total(), &now, &ticket.target, &timer.token)? {
        return Ok(None);
    }
    let directory = order.log_dir.path();
    let logs = Logs::open(&directory, order.logs);
    let upkeep = Upkeep::of(store, &directory);
    let largest = upkeep.as_ref().map_or(0, Upkeep::largest);
    let largest = largest.max(settled.largest_log());
    let created = match &logs {
        Ok(logs) => logs.create(&ticket.target, &timer, now.wall, largest),
        Err(e) => Err(anyhow!("{e:#}")),
    };
    let created = created.map_err(|e| format!("{e:#}"));
    let path = created.as_ref().map(|(path, _)| path.as_path());
    let observer = observe(world, order, &timer);
    let observed_by = observer.as_ref().map(|observer| observer.process);
    if let Err(e) = record(world, &mut locked, order, &timer, path, observed_by, &now) {
        if let (Ok(logs), Ok(path)) = (&logs, path) {
            logs.remove(path);
        }
        undo(world, locked, before, &timer, &now);
        return Err(e.context("the rerun cannot be recorded, and does not start"));
    }
    drop(locked);
    settled.note_without_logs(store, &ticket.target);
    // The entry has the time that the cap counts; a slow disk may have moved that well into the
    // past.
    let lost = created.as_ref().err();
    let lost = lost.map(|why| format!("its output is lost: {why}"));
    let reason = lost.as_deref().unwrap_or_default();
    note(world, &timer, What::Started, now, reason);
    tracing::error_span!("run", run = timer.run);
    tracing::info!("starts the rerun");
    if let Some(lost) = lost {
        tracing::warn!("{lost}");
    }
    if let Ok(path) = path {
        let window = timer.cap.window;
        if let Err(e) = upkeep.and_then(|upkeep| upkeep.add_log(store, order.logs, window, path)) {
            tracing::warn!("cannot remove old logs until the next rerun: {e:#}");
        }
    }
    Ok(Some(Start {
        world,
        order,
        timer,
        log: created.ok().map(|(_, file)| file),
        _observer: observer,
        whole,
    }))
}

impl Start<'_> {
    /// Becomes the rerun. Returns why that failed, which record and history say too.
    pub fn become_rerun(self) -> Error {
        let Err(e) = execute(&self);
        not_started(self.world, &self.timer, &e)
    }

    /// Empties the order, as the last call before exec: an order with content can be resumed, an
    /// empty one never is.
    ///
    /// # Errors
    /// Errors of ftruncate(2).
    pub fn empty_order(&self) -> std::io::Result<()> {
        self.whole.set_len(0)
    }
}

/// Records that this process has not become the rerun.
fn not_started(world: &World, timer: &Timer, why: &Error) -> Error {
    let reason = format!("{why:#}");
    let name = &world.ticket.name;
    if why.is::<CannotEmpty>() {
        // If that fails, the next command does it, and gives the timer another waiter.
        if let Err(e) = put_back(world) {
            tracing::warn!("{e:#}");
        }
        return anyhow!(
            "timer '{name}': the rerun did not start and stays pending: {reason}; \
             to retry: again resume"
        );
    }
    take_back(world, timer, &reason);
    anyhow!("timer '{name}': the rerun could not be started: {reason}")
}

/// Starts the observer of an agent's rerun; it begins when this process has become the rerun. A
/// wrapper does not get one, because the Puppet that it starts need not be below it.
fn observe(world: &World, order: &Order, timer: &Timer) -> Option<Observer> {
    let World { store, ticket, .. } = world;
    let start = || Observer::start(store, ticket, order, timer);
    let is_observed = order.kind.is_agent() && order.wraps.is_none();
    let observer = is_observed.then(start)?;
    observer
        .inspect_err(|e| tracing::warn!("a rerun that Puppet skips will not be noticed: {e:#}"))
        .ok()
}

/// The failure to empty an order, so that its rerun was not started.
#[derive(Debug)]
struct CannotEmpty(std::io::Error);

impl std::fmt::Display for CannotEmpty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot empty its order file: {}", self.0)
    }
}

impl std::error::Error for CannotEmpty {}

/// Puts the timer of a rerun that did not begin back on the record: this process ends, and another
/// waiter replaces it.
fn put_back(world: &World) -> Result<()> {
    let (me, now) = (own_identity()?, moment());
    let mut locked = world.store.lock_existing(&world.ticket.target)?;
    let settled = outcome::settle_own(&mut locked.record, me, &now);
    locked.commit()?;
    settled.note(&world.store, &world.ticket.target);
    Ok(())
}

/// Records the start on disk, and notes which process the rerun is.
fn record(
    world: &World,
    locked: &mut Locked,
    order: &Order,
    timer: &Timer,
    log: Result<&Path, &String>,
    observer: Option<Identity>,
    now: &Moment,
) -> Result<()> {
    let process = own_identity().context("cannot read /proc")?;
    let name = &world.ticket.name;
    let before_start = BeforeStart {
        timer: timer.clone(),
        seen_run: locked.record.seen_run.clone(),
    };
    let running = Running {
        process,
        token: timer.token.clone(),
        chain: timer.chain.clone(),
        run: timer.run,
        timer: name.clone(),
        started: now.clone(),
        log: log.map_or_else(|_| String::new(), |path| path.display().to_string()),
        log_lost: log.err().cloned(),
        log_limit: order.logs.each,
        lastrunfile: order.paths.lastrunfile.as_ref().map(Bytes::lossy),
        stopped: None,
        observer,
        lineage: timer.lineage.clone(),
        before_start: Some(Box::new(before_start)),
    };
    locked.record.note_start(running.clone(), timer.cap);
    // The note refers to this process only, so it is harmless if this process dies before the
    // record is committed.
    world.store.note_rerun(&Rerun {
        process,
        boot: now.boot.clone(),
        place: now.place,
        target: world.ticket.target.clone(),
        chain: timer.chain.clone(),
        run: timer.run,
        timer: name.clone(),
        daemon: order.daemon,
        running: Some(running),
    })?;
    let committed = locked.commit_start();
    committed.inspect_err(|_| world.store.forget_rerun(process, now.place))
}

/// Takes back a start that could not be recorded: unrecorded, it would not count for the cap.
fn undo(world: &World, mut locked: Locked, before: Record, timer: &Timer, now: &Moment) {
    world.store.discount_lost(now, &timer.token);
    locked.record = before;
    if let Err(e) = locked.commit() {
        tracing::error!("the record may say that the rerun has started: {e:#}");
    }
}

/// Removes the start from all records, since the rerun did not start after all.
fn take_back(world: &World, timer: &Timer, reason: &str) {
    let (store, name) = (&world.store, &world.ticket.name);
    let forget = || -> Result<()> {
        let me = own_identity()?;
        store.forget_rerun(me, clock::place());
        // A process that finds the rerun ended must not conclude that it never began.
        store.empty_order(&world.ticket.target, &timer.token);
        let mut locked = store.lock_existing(&world.ticket.target)?;
        let record = &mut locked.record;
        record.running.retain(|rerun| rerun.process != me);
        record.note_missed(name, What::Failed, reason, moment());
        locked.commit()?;
        store.remove_order(&world.ticket.target, &timer.token);
        Ok(())
    };
    if let Err(e) = forget() {
        tracing::warn!("{e:#}");
    }
    note(world, timer, What::Failed, moment(), reason);
}

fn note(world: &World, timer: &Timer, what: What, at: Moment, reason: &str) {
    let (target, name) = (&world.ticket.target, &world.ticket.name);
    let change = Change::of_timer(target, name, timer, what, at);
    world.store.note(&change.because(reason).entry);
}

fn execute(start: &Start<'_>) -> Result<Infallible> {
    let Start {
        world,
        order,
        timer,
        ..
    } = start;
    if let Err(e) = mounts::renew_tmp() {
        tracing::warn!("the rerun has no /tmp but the unit's own, which goes with the unit: {e}");
    }
    let directory = order.directory.path();
    std::env::set_current_dir(&directory)
        .with_context(|| format!("cannot change to {}", directory.display()))?;
    let input = order.input.as_ref();
    let input = input.map_or_else(|| PathBuf::from("/dev/null"), Bytes::path);
    // Not a file that could block: another file may have got its name.
    let is_safe = std::fs::metadata(&input).map(|meta| meta.is_file() || is_null(&meta));
    if !is_safe.with_context(|| format!("cannot see the standard input {}", input.display()))? {
        bail!(
            "the standard input {} is no longer a regular file",
            input.display()
        );
    }
    let input = File::open(&input)
        .with_context(|| format!("cannot open the standard input {}", input.display()))?;
    spawn::set_standard_descriptors(&input, start.log.as_ref())
        .context("cannot set the standard descriptors")?;
    let mut variables = environment_of(order);
    variables.extend([
        format!("AGAIN_CHAIN={}", timer.chain).into(),
        format!("AGAIN_RUN={}", timer.run).into(),
        format!("AGAIN_TIMER={}", world.ticket.name).into(),
    ]);
    for failed in attributes::apply(&order.attributes) {
        tracing::warn!("cannot set {failed}");
    }
    let arguments = order.arguments.clone();
    let arguments = match &timer.lineage {
        past if past.is_empty() => arguments,
        past => with_job(arguments, &past.job(&timer.token)),
    };
    let image = Image {
        programs: order.programs.iter().map(Bytes::path).collect(),
        arguments: arguments.iter().map(Bytes::os).collect(),
        environment: variables,
    };
    match spawn::become_image(&image, &world.lock, || start.empty_order()) {
        ExecFailure::BeforeExec(e) => Err(CannotEmpty(e).into()),
        ExecFailure::Failed(program, e) => {
            Err(e).with_context(|| format!("cannot execute {}", program.display()))
        }
    }
}

/// Environment of the rerun, without the variables that describe the rerun itself.
pub fn environment_of(order: &Order) -> Vec<OsString> {
    let environment = order.environment.clone().unwrap_or_else(clean_environment);
    environment.iter().map(Bytes::os).collect()
}

/// Environment as a service manager would set it, if none was stored.
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
