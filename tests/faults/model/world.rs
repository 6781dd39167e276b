//! World of the model: processes that take turns, and the invariants that must hold after each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use again::cli::{self, Global};
use again::commands;
use again::config::{self, Surroundings};
use again::outcome::settle_locked;
use again::request::asked::Request;
use again::state::files;
use again::state::history::{self, Entry, What};
use again::state::newer::Newer;
use again::state::store::Store;
use again_base::model::{Cap, Identity, OnCap, Span};
use again_base::sys::attributes::SignalState;
use again_base::sys::machine::{Replaced, replace};
use again_base::sys::user;

use super::above::{observation, running};
use super::event::{Damage, Event, Wish};
use super::machine::{Death, Kernel, NANOS, OTHER_BOOT_ID, PLACES, WITHOUT_BOOT_ID};
use super::promises::{Books, Cause, Fate, Promise};
use super::waiter::{Turn, Waiter};
use super::{Checked, NAMES, TARGETS};

/// Living run or rerun.
#[derive(Clone, Copy)]
pub struct Run {
    pub process: Identity,
    target: usize,
    place: usize,
    /// Whether the run satisfies timers as a rerun does.
    pub does_job: bool,
    /// Whether the run holds the agent's lock.
    holds_lock: bool,
}

/// Start of a run that satisfied a timer.
#[derive(Debug)]
pub struct Begun {
    process: Identity,
    target: usize,
    boot: u32,
    /// True time in nanoseconds.
    at: u64,
    /// Pid namespace in which its waiter died before the run began. Only a process there can tell
    /// that the run never began.
    died_in: Option<usize>,
}

pub struct World {
    pub machine: Rc<Kernel>,
    _replaced: Replaced,
    pub store: Store,
    global: Global,
    pub cap: Cap,
    on_cap: OnCap,
    /// Living runs and reruns, by pid.
    pub runs: BTreeMap<i32, Run>,
    /// Waiters that have become the living reruns, with the locks that those have inherited.
    pub reruns: BTreeMap<i32, Waiter>,
    pub waiters: Vec<Waiter>,
    /// Runs that have satisfied a timer.
    pub begun: Vec<Begun>,
    pub books: Books,
    /// Whether a target's record is a newer version's, which no process here may change.
    newer: [bool; 2],
}

impl World {
    /// Creates a world in this directory.
    ///
    /// # Errors
    ///
    /// The store cannot be opened, or its settings cannot be written.
    pub fn new(dir: &Path, cap: Cap, on_cap: OnCap) -> Result<Self, String> {
        let store = Store::open(&dir.join("state")).map_err(|e| format!("{e:#}"))?;
        let config = dir.join("again.toml");
        std::fs::write(&config, "jitter = 1\nscope = \"never\"\n").map_err(|e| e.to_string())?;
        let machine = Rc::new(Kernel::new());
        Ok(World {
            _replaced: replace(machine.clone()),
            machine,
            store,
            global: Global {
                state_dir: Some(dir.join("state")),
                log_dir: Some(dir.join("log")),
                config: Some(config),
                verbose: 0,
            },
            cap,
            on_cap,
            runs: BTreeMap::new(),
            reruns: BTreeMap::new(),
            waiters: Vec::new(),
            begun: Vec::new(),
            books: Books::default(),
            newer: [false; 2],
        })
    }

    /// Carries out an event, and checks all invariants.
    ///
    /// # Errors
    ///
    /// The invariant that does not hold.
    pub fn happen(&mut self, event: &Event) -> Checked {
        match event {
            Event::Run {
                target,
                place,
                does_job,
                holds_lock,
            } => {
                let run = Run {
                    process: self.machine.born(*place),
                    target: *target,
                    place: *place,
                    does_job: *does_job,
                    // Only one run holds the lock at a time.
                    holds_lock: *holds_lock && self.lock_holder(*target, *place).is_none(),
                };
                if *does_job {
                    self.note_begun(run.process, *target, None);
                }
                self.runs.insert(run.process.pid, run);
            }
            Event::Request { wish, death } => self.request(*wish, *death)?,
            Event::End { run } => self.end(*run),
            Event::Skip { rerun, death } => self.skip(*rerun, *death)?,
            Event::StartElsewhere { target } => self.start_elsewhere(*target)?,
            Event::Step { waiter, death } if *waiter < self.waiters.len() => {
                self.step(*waiter, *death)?;
            }
            Event::Kill { waiter } if *waiter < self.waiters.len() => {
                self.machine.ends(self.waiters[*waiter].process);
                self.books.count("waiters killed");
            }
            Event::Step { .. } | Event::Kill { .. } => {}
            Event::Pass { seconds } => self.machine.pass(seconds * NANOS),
            Event::PassUntilDue { waiter } => {
                if let Some(due) = self.waiters.get(*waiter).and_then(|w| w.due) {
                    let until = self.machine.true_time(due);
                    self.machine.pass(until.saturating_sub(self.machine.at()));
                }
            }
            Event::Stop { name, death } => {
                let name = name.map(|name| NAMES[name]);
                let args = cli::Stop {
                    names: name.map(str::to_owned).into_iter().collect(),
                    run: false,
                };
                let stop = |global: &Global| commands::stop::main(global, &args).map(drop);
                self.verb(0, *death, Cause::Stop { name }, stop)?;
            }
            Event::Now { name, death } => {
                let names = name.map(|name| NAMES[name].to_owned());
                let args = cli::Names {
                    names: names.into_iter().collect(),
                };
                let now = |global: &Global| commands::now::main(global, &args).map(drop);
                self.verb(0, *death, Cause::Now, now)?;
            }
            Event::Reset { target } => self.reset(*target)?,
            Event::Resume { place, death } => self.resume(*place, *death)?,
            Event::Elsewhere => self.resume_changes_nothing(PLACES)?,
            Event::ByLocks { knows_a_boot } => {
                if self.all_live() {
                    self.books.count("looks by the locks alone");
                    self.resume_changes_nothing(match knows_a_boot {
                        true => OTHER_BOOT_ID,
                        false => WITHOUT_BOOT_ID,
                    })?;
                }
            }
            Event::Reboot { off } => self.reboot(*off),
            Event::Jump { seconds } => {
                self.machine.set_clock(*seconds);
                self.books.forwards |= *seconds > 0;
            }
            Event::Damage { target, how } => self.damage(*target, *how),
            Event::Disable => {
                let reason = cli::Disable { reason: vec![] };
                let disable = |global: &Global| commands::disable::main(global, &reason).map(drop);
                self.verb(0, None, Cause::Other, disable)?;
            }
            Event::Enable => {
                let enable = |global: &Global| commands::enable::main(global).map(drop);
                self.verb(0, None, Cause::Other, enable)?;
            }
        }
        self.reap();
        self.check()
    }

    /// Runs a verb. Its errors are checked by the records that it leaves.
    fn verb(
        &mut self,
        place: usize,
        death: Option<Death>,
        cause: Cause<'_>,
        verb: impl FnOnce(&Global) -> anyhow::Result<()>,
    ) -> Checked {
        let who = self.machine.born(place);
        let global = self.global.clone();
        let machine = self.machine.clone();
        let done = machine.act(who, place, death, || verb(&global));
        self.machine.ends(who);
        if done.is_none() {
            self.books.count("verbs killed");
            self.tear(death);
        }
        self.notice(cause)
    }

    /// Makes a request with the program's own code; the processes above it are the model's.
    fn request(&mut self, wish: Wish, death: Option<Death>) -> Checked {
        let name = NAMES[wish.name];
        // If `by` exceeds the living runs, a person makes the request.
        let mut runs = self.runs.values().filter(|run| run.target == wish.target);
        let above = runs.nth(wish.by).copied();
        let place = above.map_or(0, |run| run.place);
        let run = above.map(|run| run.process);
        let asked = cli::Run {
            delta: Some(Span::from_secs(wish.delta)),
            jitter: Some(Span::from_secs(wish.jitter)),
            start_timer_now: wish.from_now,
            name: Some(name.to_owned()),
            max_runs: Some(self.cap.max_runs),
            max_runs_total: Some(u32::MAX),
            window: Some(self.cap.window),
            on_cap: Some(self.on_cap),
            ..cli::Run::default()
        };
        let around = Surroundings {
            uid: user::effective(),
            ..Surroundings::default()
        };
        let seen = observation(above.as_ref(), wish.target, self.store.root());
        let who = self.machine.born(place);
        let now = self.machine.moment_in(place);
        let (machine, global) = (self.machine.clone(), self.global.clone());
        let done = machine.act(who, place, death, || {
            let settings = config::settings(&global, &asked, &around)?;
            let request = Request::of(&asked, settings, around, SignalState::default());
            let plan = seen.plan.as_ref().expect("a plan");
            again::request::waiter::take(&request, &seen, plan)
        });
        self.machine.ends(who);
        let (before, is_killed) = (self.books.promises.len(), done.is_none());
        match done {
            None => {
                self.books.count("requests killed");
                self.tear(death);
            }
            Some(Err(e)) if self.newer[wish.target] && e.is::<Newer>() => {
                self.books.count("requests for a newer version's record");
            }
            Some(answer) => {
                answer.map_err(|e| format!("a request fails: {e:#}"))?;
            }
        }
        let delta = wish.delta * NANOS;
        let counts = wish.from_now || run.is_none();
        let promise = Promise {
            target: wish.target,
            fate: Fate::Pending,
            not_before: counts.then_some(self.machine.at() + delta),
            delta,
            run,
            keeps: BTreeSet::new(),
        };
        self.notice(Cause::Request {
            target: wish.target,
            name,
            promise,
            now: &now,
        })?;
        if !is_killed && self.books.promises.len() == before {
            self.books.count("requests refused");
        }
        Ok(())
    }

    fn end(&mut self, run: usize) {
        let Some(pid) = self.runs.keys().nth(run).copied() else {
            return;
        };
        let run = self.runs.remove(&pid).expect("there");
        self.reruns.remove(&pid);
        self.machine.ends(run.process);
        self.books.ended(run.process, self.machine.at());
    }

    fn note_begun(&mut self, process: Identity, target: usize, died_in: Option<usize>) {
        self.begun.push(Begun {
            process,
            target,
            boot: self.machine.boot(),
            at: self.machine.at(),
            died_in,
        });
    }

    /// Returns the run that holds the agent's lock of a target, as seen in this pid namespace.
    fn lock_holder(&self, target: usize, place: usize) -> Option<&Run> {
        let is_its = |run: &&Run| run.holds_lock && run.target == target && run.place == place;
        self.runs.values().find(is_its)
    }

    /// Lets Puppet skip a rerun, whose observer tries it again.
    fn skip(&mut self, rerun: usize, death: Option<Death>) -> Checked {
        let Some(pid) = self.reruns.keys().nth(rerun).copied() else {
            return Ok(());
        };
        let waiter = self.reruns.remove(&pid).expect("there");
        let run = self.runs.remove(&pid).expect("there");
        let observed = waiter.observed();
        self.machine.ends(run.process);
        self.books.ended(run.process, self.machine.at());
        self.books.count("reruns skipped");
        let observer = self.machine.born(run.place);
        let (machine, store) = (self.machine.clone(), self.store.clone());
        let tried = machine.act(observer, run.place, death, || {
            observed.try_again(&store, &mut || false, "another run had the lock")
        });
        self.machine.ends(observer);
        match tried {
            None => {
                self.books.count("observers killed");
                self.tear(death);
            }
            Some(Err(e)) if !e.is::<Newer>() => {
                return Err(format!("a skipped rerun is lost: {e:#}"));
            }
            // The record of a newer version does not tell.
            Some(Err(_)) => {}
            Some(Ok(())) => self.begun.retain(|begun| begun.process != run.process),
        }
        self.notice(Cause::Skip {
            target: run.target,
            token: observed.ticket.token,
        })
    }

    /// Starts and ends a rerun on another machine, if the cap allows it.
    fn start_elsewhere(&mut self, target: usize) -> Checked {
        let id = TARGETS[target];
        let at = self.machine.at();
        let is_whole = matches!(self.store.read(id), Ok(Some(_)));
        if !is_whole || !self.books.allows(target, self.cap, at) {
            return Ok(());
        }
        let process = self.machine.born(PLACES);
        let running = running(process, self.machine.moment_in(PLACES));
        let (machine, store, cap) = (self.machine.clone(), self.store.clone(), self.cap);
        let started = machine.act(process, PLACES, None, || {
            let mut locked = store.lock_existing(id)?;
            locked.record.note_start(running, cap);
            locked.commit_start()
        });
        self.machine.ends(process);
        let other = self.machine.born(PLACES);
        let ended = self.machine.act(other, PLACES, None, || {
            let now = self.machine.moment_in(PLACES);
            settle_locked(&self.store, &mut self.store.lock_existing(id)?, &now)
        });
        self.machine.ends(other);
        for done in [started, ended] {
            let done = done.expect("nobody killed it");
            done.map_err(|e| format!("no start elsewhere: {e:#}"))?;
        }
        self.books.started_elsewhere(target, at);
        self.notice(Cause::Other)
    }

    /// Lets a waiter take one step, and checks the result.
    pub fn step(&mut self, at: usize, death: Option<Death>) -> Checked {
        let mut waiter = self.waiters.remove(at);
        let holder = self.lock_holder(waiter.target, waiter.place);
        let machine = self.machine.clone();
        machine
            .holder
            .set(holder.map(|run| (run.process, run.does_job)));
        let launches = waiter.launches;
        let done = machine.act(waiter.process, waiter.place, death, || {
            waiter.turn(&machine)
        });
        if done.is_none() {
            self.books.count("waiters killed");
            self.tear(death);
        }
        let is_rerun = matches!(done, Some(Turn::Launched));
        let launch = Cause::Launch {
            unnoted: !is_rerun && !self.has_noted_start(&waiter),
            began: waiter.has_emptied_order(),
        };
        let (cause, stays) = match done {
            Some(Turn::Goes(stays)) => (Cause::Other, stays),
            Some(Turn::Finished { how, least }) => {
                if let Some(least) = least {
                    self.is_satisfied(&waiter, machine.true_time(least))?;
                }
                (Cause::Finish(how), false)
            }
            Some(Turn::Failed(why)) => return Err(format!("a waiter gives up: {why}")),
            Some(Turn::Launched) => (launch, false),
            // The waiter was killed: its record tells whether the step was complete.
            None if launches => (launch, false),
            None => (Cause::Finish("ended by one that was killed".into()), false),
        };
        let kinds = ["reruns", "reruns not begun"];
        let of_starts = |world: &World| kinds.map(|kind| world.books.done.get(kind).copied());
        let before = of_starts(self);
        let target = waiter.target;
        let is_launch = matches!(cause, Cause::Launch { .. });
        self.notice(cause)?;
        let after = of_starts(self);
        if is_launch && after[1] != before[1] {
            self.note_begun(waiter.process, target, Some(waiter.place));
        }
        if is_launch && after[0] != before[0] {
            if let Some(other) = self.reruns.values().find(|rerun| rerun.target == target) {
                let pid = other.process.pid;
                return Err(format!("two reruns of a target at once: {pid} still runs"));
            }
            if let Some(holder) = self.lock_holder(target, waiter.place) {
                let pid = holder.process.pid;
                return Err(format!("a rerun starts beside {pid}, which has the lock"));
            }
            self.note_begun(waiter.process, target, None);
        }
        if stays {
            self.waiters.insert(at.min(self.waiters.len()), waiter);
        } else if is_rerun {
            let rerun = Run {
                process: waiter.process,
                target,
                place: waiter.place,
                does_job: true,
                holds_lock: false,
            };
            self.runs.insert(rerun.process.pid, rerun);
            self.reruns.insert(waiter.process.pid, waiter);
        } else {
            self.machine.ends(waiter.process);
        }
        Ok(())
    }

    /// Whether the history contains the start of a waiter's rerun.
    fn has_noted_start(&self, waiter: &Waiter) -> bool {
        let ticket = &waiter.life.world.ticket;
        let entries = history::of_target(self.store.root(), &ticket.target);
        let is_its = |entry: &Entry| entry.what == What::Started && entry.token == ticket.token;
        entries.iter().any(is_its)
    }

    /// Checks that a run of the target has started since the timer was due.
    fn is_satisfied(&mut self, waiter: &Waiter, due: u64) -> Checked {
        let boot = self.machine.boot();
        let did_it = |begun: &Begun| {
            begun.target == waiter.target
                && begun.boot == boot
                && begun.at >= due
                && begun.died_in != Some(waiter.place)
        };
        if !self.begun.iter().any(did_it) {
            return Err(format!(
                "satisfied by no run: due at {due}, runs {:?}",
                self.begun
            ));
        }
        self.books.count("timers satisfied");
        Ok(())
    }

    fn reset(&mut self, target: usize) -> Checked {
        let counted = |world: &World| {
            let record = world.store.read(TARGETS[target]).ok().flatten();
            record.map(|record| record.moments().count())
        };
        let before = counted(self);
        let args = cli::Reset {
            target: Some(TARGETS[target].into()),
        };
        let reset = |global: &Global| commands::reset::main(global, &args).map(drop);
        self.verb(0, None, Cause::Other, reset)?;
        if before.is_some() && counted(self) == Some(0) {
            self.books.epochs[target] += 1;
            self.books.count("resets");
        }
        Ok(())
    }

    pub fn resume(&mut self, place: usize, death: Option<Death>) -> Checked {
        let resume = |global: &Global| commands::resume::main(global).map(drop);
        self.verb(place, death, Cause::Other, resume)
    }

    /// Whether each timer on record has its waiter, and each rerun runs.
    fn all_live(&self) -> bool {
        TARGETS.iter().all(|id| {
            let Ok(Some(record)) = self.store.read(id) else {
                return false;
            };
            let waits = |token: &String| {
                let mut waiters = self.waiters.iter();
                waiters.any(|waiter| waiter.life.world.ticket.token == *token)
            };
            let runs = |pid: i32| self.reruns.contains_key(&pid);
            record.timers.values().all(|timer| waits(&timer.token))
                && record.leaving.is_empty()
                && record.running.iter().all(|run| runs(run.process.pid))
        })
    }

    /// Checks that no verb in this pid namespace changes the state.
    fn resume_changes_nothing(&mut self, place: usize) -> Checked {
        let ours = |world: &World| {
            TARGETS.map(|id| {
                let record = world.store.read(id).ok().flatten();
                record.map(|record| (record.timers, record.running, record.last))
            })
        };
        let before = ours(self);
        self.resume(place, None)?;
        let damaged = before.iter().any(Option::is_none);
        if !damaged && ours(self) != before {
            return Err(format!("changed from place {place}: {before:?}"));
        }
        Ok(())
    }

    fn reboot(&mut self, off: u64) {
        self.waiters.clear();
        self.reruns.clear();
        for run in std::mem::take(&mut self.runs).into_values() {
            self.books.ended(run.process, self.machine.at());
        }
        self.machine.reboot(off);
        self.books.count("reboots");
        // Every second time the disk lacks the newest entries.
        if off.is_multiple_of(2) {
            for entry in std::fs::read_dir(self.index())
                .into_iter()
                .flatten()
                .flatten()
            {
                if !entry.file_name().to_string_lossy().starts_with("whole") {
                    let _ = std::fs::remove_file(entry.path());
                }
            }
            self.books.count("indexes lost");
        }
    }

    fn record_path(&self, target: usize) -> std::path::PathBuf {
        let targets = self.store.root().join("targets");
        targets.join(TARGETS[target]).join("state.json")
    }

    fn damage(&mut self, target: usize, how: Damage) {
        let path = self.record_path(target);
        let Ok(text) = std::fs::read(&path) else {
            return;
        };
        if let Damage::Newer = how {
            return self.upgrade(target, &String::from_utf8_lossy(&text));
        }
        self.newer[target] = false;
        self.books.damaged[target] = true;
        let damaged = match how {
            Damage::Emptied => Vec::new(),
            Damage::Halved => text[..text.len() / 2].to_vec(),
            Damage::Garbage => b"\xff\0not a record".to_vec(),
            Damage::Newer => text,
            Damage::Missing | Damage::Directory => {
                std::fs::remove_file(&path).expect("removed");
                if let Damage::Directory = how {
                    std::fs::create_dir(&path).expect("made");
                } else {
                    self.books.lose(target);
                }
                return;
            }
        };
        std::fs::write(path, damaged).expect("damaged");
    }

    /// Turns a record into one of a newer version, or back.
    fn upgrade(&mut self, target: usize, text: &str) {
        let versions = ["\"version\":1,", "\"version\":99,"];
        let [from, to] = match self.newer[target] {
            true => [versions[1], versions[0]],
            false => versions,
        };
        if text.contains(from) {
            let path = self.record_path(target);
            std::fs::write(path, text.replacen(from, to, 1)).expect("written");
            self.newer[target] = !self.newer[target];
        }
    }

    /// Turns every record into one of this version.
    ///
    /// # Errors
    ///
    /// The invariant that does not hold.
    pub fn downgrade(&mut self) -> Checked {
        for target in 0..TARGETS.len() {
            if self.newer[target] {
                let how = Damage::Newer;
                self.happen(&Event::Damage { target, how })?;
            }
        }
        Ok(())
    }

    /// Leaves records half written, as a process does that dies while it commits.
    fn tear(&self, death: Option<Death>) {
        if !death.is_some_and(|death| death.torn) {
            return;
        }
        for path in (0..TARGETS.len()).map(|target| self.record_path(target)) {
            if let Ok(text) = std::fs::read(&path) {
                let torn = path.with_file_name(format!(".state.json.{}", files::token()));
                std::fs::write(torn, &text[..text.len() / 2]).expect("written");
            }
        }
    }

    /// Updates the bookkeeping with the changes of records and processes.
    fn notice(&mut self, cause: Cause<'_>) -> Checked {
        self.adopt();
        self.reap();
        let when = (self.machine.at(), self.machine.boot());
        let (mut cause, mut rest) = (Some(cause), TARGETS.len());
        // The target that the event is about comes last.
        let order: Vec<usize> = match &cause {
            Some(Cause::Request { target, .. } | Cause::Skip { target, .. }) => {
                vec![1 - target, *target]
            }
            _ => (0..TARGETS.len()).collect(),
        };
        for target in order {
            rest -= 1;
            let record = match self.store.read(TARGETS[target]) {
                Ok(Some(record)) => record,
                // A process that was killed had set the record aside before it wrote another.
                Ok(None) if std::mem::take(&mut self.books.damaged[target]) => {
                    self.books.lose(target);
                    continue;
                }
                _ => continue,
            };
            let why = match &cause {
                _ if rest == 0 => cause.take().expect("once"),
                Some(Cause::Stop { name }) => Cause::Stop { name: *name },
                Some(Cause::Now) => Cause::Now,
                Some(Cause::Finish(how)) => Cause::Finish(how.clone()),
                Some(Cause::Launch { unnoted, began }) => Cause::Launch {
                    unnoted: *unnoted,
                    began: *began,
                },
                _ => Cause::Other,
            };
            self.books.notice(target, &record, why, when)?;
        }
        Ok(())
    }

    /// Adds the waiters that were started.
    fn adopt(&mut self) {
        let machine = self.machine.clone();
        for started in machine.take_started() {
            if machine.lives(started.process) {
                let (who, place) = (started.process, started.place);
                let store = self.store.clone();
                let waiter = machine.act(who, place, None, || Waiter::new(started, store));
                self.waiters.extend(waiter);
            }
        }
    }

    /// Removes the processes that were killed.
    fn reap(&mut self) {
        let machine = &self.machine;
        self.waiters.retain(|waiter| machine.lives(waiter.process));
    }

    /// Path of the index of pending timers.
    fn index(&self) -> std::path::PathBuf {
        self.store.root().join("pending")
    }

    /// Whether a process has rebuilt the index since this boot: a power failure may have lost
    /// entries.
    fn index_is_whole(&self) -> bool {
        let files = std::fs::read_dir(self.index())
            .into_iter()
            .flatten()
            .flatten();
        let mut whole =
            files.filter(|file| file.file_name().to_string_lossy().starts_with("whole"));
        let boot = self.machine.moment_in(0).boot;
        whole.any(|file| file.file_name().to_string_lossy().ends_with(&boot))
    }

    /// Checks the invariants that hold at every moment.
    pub fn check(&self) -> Checked {
        for (target, id) in TARGETS.iter().enumerate() {
            self.books.check_cap(target, self.cap)?;
            let Ok(Some(record)) = self.store.read(id) else {
                continue;
            };
            self.books.check_record(target, &record)?;
            for timer in record.timers.values() {
                if self.store.read_order(id, &timer.token).is_err() {
                    return Err(format!("no order for a timer on record: {timer:?}"));
                }
                let entry = format!("{id}.{}", timer.token);
                if self.index_is_whole() && !self.index().join(entry).exists() {
                    return Err(format!("no entry for a timer on record: {timer:?}"));
                }
            }
        }
        Ok(())
    }
}
