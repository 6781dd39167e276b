//! A waiter's main loop: observe the world, take one step, and observe again after every sleep.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Error, Result};

use super::launch::{Start, launch};
use super::ledger::{Ledger, Why};
use super::question::Question;
use super::start::{self, Arm, ScopeWish};
use super::world::{World, may_pass};
use crate::policy::shutdown::Shutdown;
use crate::policy::waiter::{ASK_AGAIN, Finish, Slot, Step, step};
use crate::state::change::Change;
use crate::state::files::token;
use crate::state::history::What;
use crate::state::leaving;
use crate::state::order::{Order, decode};
use crate::state::record::{Record, Timer, Waits};
use crate::sys::sleep::{LOOK_AGAIN, Sleeper, Wake, Watch};
use crate::sys::{shutdown, title};
use again_base::model::{Boottime, Bytes, Hold, Identity, Obstacle, Span};
use again_base::sys::clock::{self, moment};
use again_base::sys::localtime;
use again_base::sys::pidfd::{self, Handle};

/// Pause before the first retry after a failure that may be transient, such as a full disk. It
/// doubles with each retry.
const FIRST_PAUSE: Span = Span::from_secs(1);
/// Time that a stuck run has to end after TERM.
const GRACE: Span = Span::from_secs(10);
/// Maximum pause between attempts.
const LONGEST_PAUSE: Span = Span::from_secs(60);
/// Time for which words in the record stay if the waiter only waits at another place of a queue.
const WORDS_STAY: Span = Span::from_secs(60);

/// State of a waiter.
#[derive(Debug)]
pub struct Life {
    /// State that the waiter observes.
    pub world: World,
    /// Knowledge of the timer.
    pub ledger: Ledger,
    /// Order, once it was needed.
    order: Option<Order>,
    /// Last line in the log.
    shown: String,
    /// Run that was sent a signal to end, with its deadline.
    told: Option<(Identity, Boottime)>,
    /// Request for a slot that has no answer yet.
    question: Option<Question>,
    /// Whether a slot was ever requested: this process may hold one, or a position in the queue,
    /// until it ends.
    has_asked: bool,
    /// Reason why there was no slot.
    denied: String,
    /// Pause before the next attempt after a failure.
    pause: Span,
    /// Last failure that was logged.
    trouble: String,
    /// Time of the last write into the record.
    written: Boottime,
}

/// Action after an observation of the world.
#[derive(Debug)]
pub enum Turn {
    /// Observe again.
    Look,
    /// Sleep, then observe again.
    Sleep(Rest),
    /// [`Life::finish`].
    Finish(Finish),
    /// [`Life::launch`].
    Launch,
    /// End: another waiter has the timer.
    End,
}

/// Events that end a sleep, whichever is first.
#[derive(Debug, Default)]
pub struct Rest {
    what: String,
    process: Option<Rc<Handle>>,
    until: Option<Boottime>,
    /// Files whose change also ends the sleep.
    files: Option<Files>,
    why: Option<Why>,
}

/// Files that a waiter watches: those that hold a timer or show another run; for a shutdown also
/// those that announce it, and the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    Holds,
    Shutdown,
}

impl Life {
    /// State of the waiter in this world.
    pub fn new(world: World) -> Self {
        Life {
            ledger: Ledger::new(&world.ticket, &clock::boot_id()),
            world,
            order: None,
            shown: String::new(),
            told: None,
            question: None,
            has_asked: false,
            denied: String::new(),
            pause: FIRST_PAUSE,
            trouble: String::new(),
            written: Boottime::default(),
        }
    }

    /// Runs until there is a reason to end, and retries after failures that may be transient. Does
    /// not return if the process becomes the rerun.
    ///
    /// # Errors
    /// The reason why the waiter gives up.
    pub fn live(mut self, mut sleeper: Sleeper) -> Result<()> {
        let record = self.world.store.read(&self.world.ticket.target);
        if let Ok(Some(record)) = record
            && let Some(timer) = self.ledger.timer(&record)
        {
            tracing::error_span!("chain", chain = timer.chain, run = timer.run);
            self.begin(&mut || sleeper.is_told_to_end());
        }
        loop {
            match self.go_on(&mut sleeper) {
                Err(e) if may_pass(&e) && !sleeper.was_told_to_end() => {
                    self.pause(&e, &mut sleeper)?;
                }
                ended => return ended,
            }
        }
    }

    /// Does the work that Puppet need not wait for: syncs the promise to disk, and ends the waiter
    /// that this one replaces.
    pub fn begin(&mut self, is_interrupted: &mut dyn FnMut() -> bool) {
        let World { store, ticket, .. } = &self.world;
        if let Err(e) = store.sync_all(&ticket.target, &self.world.lock) {
            tracing::warn!("a loss of power could lose the timer: {e:#}");
        }
        if let Err(e) = leaving::clean_up(store, &ticket.target, is_interrupted) {
            tracing::warn!("cannot clean up: {e:#}");
        }
    }

    fn pause(&mut self, error: &anyhow::Error, sleeper: &mut Sleeper) -> Result<()> {
        let words = format!("will retry within a minute: {error:#}");
        self.complain(&words);
        let name = &self.world.ticket.name;
        title::set(&format!("again: timer '{name}' {words}"));
        let why = Why::waits(Obstacle::Other, &words);
        // The disk may be the cause of the failure.
        let record = self.world.record();
        let _ = record.and_then(|mut record| self.write_down(&mut record, why.as_ref()));
        let rest = Rest {
            until: Some(clock::boottime() + self.pause),
            ..Rest::default()
        };
        self.pause = self.pause.times(2).min(LONGEST_PAUSE);
        self.sleep(sleeper, &rest, None).map(drop)
    }

    fn go_on(&mut self, sleeper: &mut Sleeper) -> Result<()> {
        // None: not set yet. Some((_, None)): watching failed.
        let mut watch: Option<(Files, Option<Watch>)> = None;
        loop {
            let is_blind = matches!(watch, Some((_, None)));
            let rest = match self.turn(sleeper.was_told_to_end(), is_blind)? {
                Turn::Look => continue,
                Turn::Sleep(rest) => rest,
                Turn::Finish(finish) => return self.finish(&finish, sleeper.was_told_to_end()),
                Turn::Launch => match self.launch(&mut || sleeper.is_told_to_end())? {
                    Some(start) => return Err(start.become_rerun()),
                    None => continue,
                },
                Turn::End => return Ok(()),
            };
            watch = watch.filter(|(files, _)| rest.files == Some(*files));
            if let (Some(files), None) = (rest.files, &watch) {
                watch = Some((files, self.watch(files)));
                // Observes once more, so that no change in between is missed.
                continue;
            }
            self.show(&rest.what);
            let watched = watch.as_ref().and_then(|(_, watch)| watch.as_ref());
            let wake = self.sleep(sleeper, &rest, watched)?;
            if rest.files == Some(Files::Shutdown) && wake == Wake::Changed {
                // A new directory may have to be watched.
                watch = None;
            }
        }
    }

    /// Observes the world. Before a sleep it writes into the record what the record lacks.
    ///
    /// # Errors
    /// The failed observation, or that the timer is lost with its record.
    pub fn turn(&mut self, told_to_end: bool, is_blind: bool) -> Result<Turn> {
        self.hear();
        let mut record = self.world.record()?;
        let next = self.decide(&record, told_to_end)?;
        if !matches!(next, Step::AwaitSlot(_) | Step::Launch) {
            // A slot is not requested while there is something else to wait for.
            (self.question, self.world.slot) = (None, Slot::Wanted);
            if self.has_asked && next.is_long() && self.pass_on() {
                return Ok(Turn::End);
            }
        }
        let rest = match next {
            Step::Finish(finish) => return Ok(Turn::Finish(finish)),
            Step::Launch => return Ok(Turn::Launch),
            next => self.rest(&next, is_blind)?,
        };
        let Some(mut rest) = rest else {
            return Ok(Turn::Look);
        };
        self.keep_words(&record, &mut rest);
        let written = self.write_down(&mut record, rest.why.as_ref());
        written.unwrap_or_else(|e| self.complain(&format!("{e:#}")));
        Ok(Turn::Sleep(rest))
    }

    /// Leaves the words in the record for a minute if they differ only after the first colon: with
    /// each run that ends before this one in the queue of a slot that part changes, and each write
    /// would wake all waiters of the target.
    fn keep_words(&self, record: &Record, rest: &mut Rest) {
        let old = self
            .ledger
            .timer(record)
            .and_then(|timer| timer.waits.clone());
        let beginning = |waits: &Waits| waits.words.split(':').next().map(str::to_owned);
        let until = self.written + WORDS_STAY;
        if let (Some(Why::Waits(new)), Some(old)) = (&rest.why, old)
            && (beginning(new), clock::boottime() < until) == (beginning(&old), true)
            && *new != old
        {
            rest.why = Some(Why::Waits(old));
            rest.until = Some(rest.until.map_or(until, |at| at.min(until)));
        }
    }

    /// Records the start of the rerun, unless the record has changed since the observation.
    ///
    /// # Errors
    /// The failed operation. Either nothing has changed, or record and history say it too.
    pub fn launch(
        &mut self,
        is_told_to_end: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Start<'_>>> {
        let order = self.order.as_ref().context("no order was read")?;
        launch(&mut self.world, &self.ledger, order, is_told_to_end)
    }

    /// Next step that the waiter has to sleep for or act on.
    fn decide(&mut self, record: &Record, told_to_end: bool) -> Result<Step> {
        let mut looks = false;
        loop {
            if looks && self.order.is_none() {
                self.order = Some(self.world.read_order()?);
            }
            self.world.look_at_runs(&mut self.ledger);
            let order = self.order.as_ref().filter(|_| looks);
            let mut view = self.world.view(&self.ledger, record, order)?;
            self.world.add_total(&self.ledger, record, &mut view);
            view.told_to_end = told_to_end;
            match step(&view) {
                Step::PutOff(due) => {
                    self.ledger.put_off(record, due, view.now);
                    looks = false;
                }
                Step::LookAround => looks = true,
                next => return Ok(next),
            }
        }
    }

    /// Events to sleep for in a step. None if the wait is over already.
    fn rest(&mut self, step: &Step, is_blind: bool) -> Result<Option<Rest>> {
        let mut rest = Rest::default();
        let again = Some(clock::boottime() + LOOK_AGAIN);
        rest.what = match step {
            Step::AwaitRuns => {
                rest.process = self.world.runs.first().cloned();
                let run = rest.process.as_ref().map_or(0, |run| run.identity().pid);
                format!("waits for the run with pid {run} to end")
            }
            Step::AwaitDue(due) => {
                rest.until = Some(*due);
                let wall = clock::walltime() + due.since(clock::boottime());
                format!("waits until {}", localtime::local(wall))
            }
            Step::AwaitProcess(who) | Step::AwaitHolder(who, _) | Step::EndHolder(who, _) => {
                let unseen = match pidfd::open(*who) {
                    Ok(handle) => {
                        rest.until = match step {
                            Step::AwaitHolder(_, end) => Some(*end),
                            Step::EndHolder(_, age) => self.end_holder(&handle, *age),
                            _ => None,
                        };
                        rest.process = Some(Rc::new(handle));
                        ""
                    }
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                    Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                        rest.until = again;
                        ", which it may not see,"
                    }
                    Err(e) => return Err(e).context("cannot wait for a process"),
                };
                let run = who.pid;
                format!("is due, waits for the run with pid {run}{unseen} to end")
            }
            Step::AwaitForeign(whose) => {
                rest.until = again;
                format!("is due, waits for the rerun of {} to end", whose.kind())
            }
            Step::AwaitService(until) => {
                rest.until = Some(*until);
                "is due, no agent daemon lives: waits for the service to come back".to_owned()
            }
            Step::Hold(reason) => {
                rest.files = Some(Files::Holds);
                rest.until = again.filter(|_| is_blind);
                rest.why = Some(Why::Held(reason.to_string()));
                format!("is due, held: {reason}")
            }
            Step::AwaitShutdown(shutdown) => return Ok(Some(for_shutdown(*shutdown, is_blind))),
            Step::AwaitSlot(until) => {
                rest.files = Some(Files::Holds);
                rest.until = until.or(again.filter(|_| is_blind));
                let words = match until {
                    Some(_) => {
                        let why = &self.denied;
                        format!("waits for a slot, and asks again within a minute: {why}")
                    }
                    None => match self.ask() {
                        Some(question) => question.waits(),
                        None => return Ok(None),
                    },
                };
                rest.why = Why::waits(Obstacle::Slot, &words);
                format!("is due, {words}")
            }
            Step::PutOff(_) | Step::LookAround | Step::Finish(_) | Step::Launch => return Ok(None),
        };
        if rest.why.is_none() && !matches!(step, Step::AwaitRuns | Step::AwaitDue(_)) {
            rest.why = Why::waits(Obstacle::Other, &rest.what);
        }
        Ok(Some(rest))
    }

    /// Requests a slot, unless that was done. None if that fails.
    fn ask(&mut self) -> Option<&Question> {
        if self.question.is_none() {
            let order = self.order.as_ref()?;
            self.has_asked = true;
            match Question::ask(order) {
                Ok(question) => self.question = Some(question),
                Err(e) => self.answer(Err(format!("'again fleet slot' cannot be started: {e}"))),
            }
        }
        self.question.as_ref()
    }

    /// Gives the timer to a new waiter, which has not requested a slot yet. Returns whether that
    /// succeeded: this waiter then ends and frees its slot, so that others need not wait for it.
    fn pass_on(&mut self) -> bool {
        let World { store, ticket, .. } = &self.world;
        let pass = || -> Result<()> {
            let order = self.order.as_ref().context("no order was read")?;
            let mut locked = self.world.lock(&self.ledger)?;
            let old = self.ledger.take(&mut locked.record, &moment());
            let old = old.context("it is another's by now")?;
            let kept = store.read_order(&ticket.target, &old.token)?;
            let kept = decode(&kept).map_err(Error::msg)?.1;
            let timer = Timer {
                token: token(),
                ..old.clone()
            };
            let arm = Arm {
                name: &ticket.name,
                timer,
                order,
                run: None,
                save_environment: kept.environment.is_some(),
                scope: ScopeWish::None,
            };
            let timer = start::arm(store, &mut locked, arm)?.timer;
            store.remove_order(&ticket.target, &old.token);
            let (target, name) = (&ticket.target, &ticket.name);
            let resumed = Change::of_timer(target, name, &timer, What::Resumed, moment());
            let why = "it does not start yet, and keeps no slot from others";
            store.note(&resumed.because(why).entry);
            Ok(())
        };
        pass()
            .inspect_err(|e| tracing::warn!("a slot may be kept from others for now: {e:#}"))
            .is_ok()
    }

    /// Processes the answer to the request for a slot, if there is one.
    fn hear(&mut self) {
        if let Some(answer) = self.question.as_mut().and_then(Question::hear) {
            self.question = None;
            self.answer(answer);
        }
    }

    /// Processes the answer. The reason for a refusal is logged and recorded once.
    fn answer(&mut self, answer: Result<(), String>) {
        let Err(why) = answer else {
            self.world.slot = Slot::Free;
            return;
        };
        self.world.slot = Slot::Denied(clock::boottime() + ASK_AGAIN);
        if why == self.denied {
            return;
        }
        let World { store, ticket, .. } = &self.world;
        tracing::warn!("no slot, asks again within a minute: {why}");
        if let Ok(Some(record)) = store.read(&ticket.target)
            && let Some(timer) = self.ledger.timer(&record)
        {
            let name = &ticket.name;
            let change = Change::of_timer(&ticket.target, name, timer, What::Delayed, moment());
            store.note(&change.because(&why).entry);
        }
        self.denied = why;
    }

    /// Ends a run that has exceeded its time: with TERM, and with KILL if that does not help.
    /// Returns the deadline.
    fn end_holder(&mut self, handle: &Handle, age: Span) -> Option<Boottime> {
        let (who, now) = (handle.identity(), clock::boottime());
        let told = self.told.filter(|(told, _)| *told == who);
        if told.is_some_and(|(_, until)| now < until) {
            return told.map(|(_, until)| until);
        }
        let (signal, name) = match told {
            None => (nix::libc::SIGTERM, "TERM"),
            Some(_) => (nix::libc::SIGKILL, "KILL"),
        };
        let pid = who.pid;
        tracing::warn!("the run with pid {pid} is stuck, and is ended by {name} after {age}");
        if let Err(e) = handle.signal(signal) {
            tracing::warn!("the run with pid {pid} cannot be ended: {e}");
        }
        self.told = Some((who, now + GRACE));
        Some(now + GRACE)
    }

    /// Watches the directories of these files, if possible.
    fn watch(&self, watched: Files) -> Option<Watch> {
        let World { store, ticket, .. } = &self.world;
        let mut files: Vec<PathBuf> = Vec::new();
        if let Some(Order { paths, slots, .. }) = &self.order {
            let run = paths.agent_catalog_run_lockfile.as_ref();
            let locks = [
                paths.agent_disabled_lockfile.as_ref(),
                run.filter(|_| *slots),
            ];
            files.extend(locks.into_iter().flatten().map(Bytes::path));
            // Another run's actions end a wait for a slot too.
            files.extend(slots.then(|| store.lock_path(&ticket.target)));
        }
        let directories = files.iter().filter_map(|file| file.parent());
        let announced = shutdown::directories();
        Watch::on(directories.chain([store.root()]))
            .and_then(|watch| match watched {
                Files::Shutdown => watch.and_clock(announced.iter().map(PathBuf::as_path)),
                Files::Holds => Ok(watch),
            })
            .inspect_err(|e| {
                tracing::warn!(
                    "waits, and looks every {LOOK_AGAIN} since no directory can be watched: {e}"
                );
            })
            .ok()
    }

    fn sleep(&mut self, sleeper: &mut Sleeper, rest: &Rest, watch: Option<&Watch>) -> Result<Wake> {
        let output = self.question.as_ref().and_then(Question::output);
        // The sleeper knows whether it got a signal to end; the next observation shows the rest.
        let woken = sleeper.sleep_and_hear(rest.process.as_deref(), rest.until, watch, output);
        let woken = woken.context("cannot wait")?;
        if woken == Wake::Hurry {
            self.ledger.forget_put_off();
            if let Slot::Denied(_) = self.world.slot {
                self.world.slot = Slot::Wanted;
            }
        }
        Ok(woken)
    }

    /// Logs a continuing failure once.
    fn complain(&mut self, trouble: &str) {
        if trouble != self.trouble {
            trouble.clone_into(&mut self.trouble);
            tracing::warn!("{trouble}");
        }
    }

    /// Shows in the process title, and once in the log, what the waiter waits for.
    fn show(&mut self, what: &str) {
        if self.shown != what {
            what.clone_into(&mut self.shown);
            tracing::info!("{what}");
        }
        let name = &self.world.ticket.name;
        title::set(&format!("again: timer '{name}' {what}"));
    }

    /// Writes into the record, just read, the knowledge that it lacks, for other processes and for
    /// use after a reboot. The wait continues if that fails.
    fn write_down(&mut self, record: &mut Record, why: Option<&Why>) -> Result<()> {
        let now = moment();
        if self.ledger.enter(record, why, &now) {
            let mut locked = self.world.lock(&self.ledger)?;
            if self.ledger.enter(&mut locked.record, why, &now) {
                locked.commit()?;
                self.written = now.uptime;
            }
        }
        Ok(())
    }

    /// Removes the timer from the record and records why, unless it is to stay.
    ///
    /// # Errors
    /// The failed operation on the record.
    pub fn finish(&self, finish: &Finish, told_to_end: bool) -> Result<()> {
        let World { store, ticket, .. } = &self.world;
        match finish {
            Finish::Superseded => {
                // A command that replaces or stops a timer sends its waiter a signal.
                if !told_to_end {
                    tracing::warn!(
                        "no rerun: the timer is no longer on record, as happens when the record is lost"
                    );
                }
                // A rerun on record keeps its order until it is settled.
                let record = store.read(&ticket.target)?;
                let mut reruns = record.iter().flat_map(|record| &record.running);
                if reruns.all(|rerun| rerun.token != ticket.token) {
                    store.remove_order(&ticket.target, &ticket.token);
                }
                return Ok(());
            }
            Finish::Interrupted => {
                tracing::warn!(
                    "again: interrupted: the waiter of timer '{}' was ended by a signal (target {}, pid {}); the timer stays on record: the next request starts another waiter, as 'again resume' does; 'again stop' cancels it",
                    ticket.name,
                    ticket.target,
                    std::process::id()
                );
                return Ok(());
            }
            _ => {}
        }
        let mut locked = self.world.lock(&self.ledger)?;
        let Some(change) = self.ledger.end(&mut locked.record, finish, moment()) else {
            return Ok(());
        };
        locked.commit()?;
        store.note(&change.entry);
        store.remove_order(&ticket.target, &ticket.token);
        let reason = &change.entry.reason;
        match change.entry.what {
            What::Refused | What::Failed => tracing::warn!("no rerun: {reason}"),
            _ => tracing::info!("no rerun: {reason}"),
        }
        Ok(())
    }
}

/// Events that wake a timer which a shutdown holds.
fn for_shutdown(shutdown: Shutdown, is_blind: bool) -> Rest {
    let now = clock::boottime();
    let process = shutdown.by.and_then(pidfd::hold).map(Rc::new);
    // A process that has ended meanwhile does not hold the timer.
    let ended = (shutdown.by.is_some() && process.is_none()).then_some(now);
    let again = is_blind.then(|| now + LOOK_AGAIN);
    let over = shutdown.left.map(|left| now + left);
    let hold = Hold::Shutdown(shutdown::words(shutdown.at, shutdown.by)).to_string();
    Rest {
        what: format!("is due, held: {hold}"),
        process,
        until: [ended, again, over].into_iter().flatten().min(),
        files: Some(Files::Shutdown),
        why: Some(Why::Held(hold)),
    }
}
