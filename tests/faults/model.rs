//! A machine in which everything that can happen to a timer happens in any order: the real store on a real file
//! system, the real policy, and a clock that is a number. Requests, waiters, operators and accidents take turns; what
//! a process does between two of its system calls that others could notice is one turn.
//!
//! What a waiter knows, sees, writes and takes off the record is the program's own (`waiter::{ledger, life}`), with the
//! clock and the processes of this machine. What a request and an operator do between store and policy is the test's and
//! follows `commands::{run, resume, stop, now, reset}`; that the real glue does the same is what the rooms with real
//! processes are for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};

use again::model::{
    Base, Boottime, Cap, Identity, Kind, Lineage, Moment, OnCap, Place, Provenance, Span, Walltime,
};
use again::policy::cap;
use again::policy::hurry::{Hurry, hurry, release};
use again::policy::judge::{Case, Verdict, judge};
use again::policy::resume;
use again::policy::waiter::{AtDue, Finish, Step, View, step};
use again::state::files;
use again::state::history::{Entry, What};
use again::state::order::Ticket;
use again::state::record::{Origin, Record, Running, Timer};
use again::state::reruns::Rerun;
use again::state::standing::Standing;
use again::state::store::Store;
use again::waiter::ledger::Ledger;
use again::waiter::life;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const TARGETS: [&str; 2] = ["00000000000000aa", "00000000000000bb"];
const NAMES: [&str; 3] = ["again", "later", "much later"];
const NANOS: u64 = 1_000_000_000;
/// Pid namespaces of the machine, in each of which a process sees its like alone.
const PLACES: usize = 2;

/// Where a process is killed in the middle of what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    None,
    /// Before it wrote anything.
    AtOnce,
    /// With its order, or its note of the rerun, on disk.
    BeforeCommit,
    /// With half of the new record in the temporary file.
    InCommit,
    /// With the record in place, and nothing after it done.
    AfterCommit,
}

/// How a record is damaged.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Emptied,
    Halved,
    Garbage,
    Newer,
    /// Gone, as after a restore.
    Missing,
    /// A directory lies in its place.
    Directory,
}

#[derive(Debug, Clone)]
enum Event {
    /// Somebody starts a run by hand, here or in a container that shares the directory.
    Run {
        target: usize,
        place: usize,
    },
    /// A process asks: one of the runs of the target, or a person.
    Request {
        target: usize,
        by: usize,
        name: usize,
        delta: u64,
        jitter: u64,
        now: bool,
        death: Death,
    },
    /// A run ends, whoever started it.
    End {
        run: usize,
    },
    /// A waiter takes one step.
    Step {
        waiter: usize,
        death: Death,
    },
    /// A waiter is killed.
    Kill {
        waiter: usize,
    },
    /// Nothing happens for a while.
    Pass {
        seconds: u64,
    },
    /// As long as it takes for a waiter to be due.
    PassUntilDue {
        waiter: usize,
    },
    Stop {
        target: usize,
        name: Option<usize>,
        death: Death,
    },
    Now {
        target: usize,
    },
    Reset {
        target: usize,
    },
    Resume {
        place: usize,
        death: Death,
    },
    /// Somebody looks, settles and resumes in a place where none of this happens: on another machine.
    Elsewhere,
    Reboot {
        off: u64,
    },
    /// Somebody sets the clock.
    Jump {
        seconds: i64,
    },
    Damage {
        target: usize,
        how: Damage,
    },
    Disable,
    Enable,
}

fn death() -> impl Strategy<Value = Death> {
    prop_oneof![
        6 => Just(Death::None),
        1 => Just(Death::AtOnce),
        1 => Just(Death::BeforeCommit),
        1 => Just(Death::InCommit),
        1 => Just(Death::AfterCommit),
    ]
}

fn event(jumps: bool) -> impl Strategy<Value = Event> {
    let target = 0..TARGETS.len();
    let some = 0..8_usize;
    let day = 86_400_i64;
    prop_oneof![
        2 => (target.clone(), 0..PLACES).prop_map(|(target, place)| Event::Run { target, place }),
        8 => (target.clone(), 0..4_usize, 0..NAMES.len(), 0..40_u64, 0..6_u64, any::<bool>(), death()).prop_map(
            |(target, by, name, delta, jitter, now, death)| Event::Request { target, by, name, delta, jitter, now, death }),
        4 => some.clone().prop_map(|run| Event::End { run }),
        24 => (some.clone(), death()).prop_map(|(waiter, death)| Event::Step { waiter, death }),
        1 => some.clone().prop_map(|waiter| Event::Kill { waiter }),
        4 => (0..40_u64).prop_map(|seconds| Event::Pass { seconds }),
        6 => some.prop_map(|waiter| Event::PassUntilDue { waiter }),
        1 => (target.clone(), proptest::option::of(0..NAMES.len()), death())
            .prop_map(|(target, name, death)| Event::Stop { target, name, death }),
        1 => target.clone().prop_map(|target| Event::Now { target }),
        1 => target.clone().prop_map(|target| Event::Reset { target }),
        2 => (0..PLACES, death()).prop_map(|(place, death)| Event::Resume { place, death }),
        2 => Just(Event::Elsewhere),
        1 => (1..100_u64).prop_map(|off| Event::Reboot { off }),
        1 => (if jumps { -2 * day..2 * day } else { -2 * day..1 }).prop_map(|seconds| Event::Jump { seconds }),
        1 => (target, prop_oneof![Just(Damage::Emptied), Just(Damage::Halved), Just(Damage::Garbage), Just(Damage::Newer), Just(Damage::Missing), Just(Damage::Directory)])
            .prop_map(|(target, how)| Event::Damage { target, how }),
        1 => Just(Event::Disable),
        2 => Just(Event::Enable),
    ]
}

/// A living waiter.
struct Waiter {
    process: Identity,
    target: usize,
    name: String,
    token: String,
    place: usize,
    runs: Vec<Identity>,
    ledger: Ledger,
    /// When it is due, as it saw it last.
    due: Option<Boottime>,
    /// It has looked around, and acts on it in its next turn.
    looked: bool,
    /// It has decided to launch, and locks in its next turn.
    launches: bool,
    lock: File,
}

fn ledger(target: usize, name: &str, timer: &Timer) -> Ledger {
    let ticket = Ticket {
        state_dir: std::path::Path::new("/").into(),
        target: TARGETS[target].into(),
        name: name.into(),
        token: timer.token.clone(),
        run: timer.waits_for,
        others: timer.runs().skip(1).collect(),
    };
    Ledger::new(&ticket, &timer.boot)
}

/// What was promised to one request, whatever tokens stand for it.
#[derive(Debug)]
struct Promise {
    target: usize,
    fate: Fate,
    /// In true time, once it is known.
    not_before: Option<u64>,
    delta: u64,
    run: Option<Identity>,
    /// The promises to other runs that it keeps too.
    keeps: BTreeSet<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Pending,
    Started,
    Over(String),
}

/// A start as it truly was.
#[derive(Debug)]
struct Start {
    target: usize,
    at: u64,
    boot: u32,
    /// How often the target's count was reset before.
    epoch: u32,
    /// Its line in the history was never written.
    unnoted: bool,
    /// The record that counted it was damaged, and the history does not know it.
    forgotten: bool,
}

struct World {
    store: Store,
    cap: Cap,
    on_cap: OnCap,
    /// True time, in nanoseconds.
    at: u64,
    booted: u64,
    boot: u32,
    /// What the wall clock is off by, in milliseconds.
    off: i64,
    forwards: bool,
    disabled: bool,
    next: i32,
    /// Where the process is that acts; one more than all for another machine.
    place: usize,
    /// Runs and reruns that live: who, of which target, where.
    runs: BTreeMap<i32, (Identity, usize, usize)>,
    /// The locks that reruns have inherited.
    locks: BTreeMap<i32, File>,
    waiters: Vec<Waiter>,
    promises: Vec<Promise>,
    tokens: BTreeMap<String, usize>,
    starts: Vec<Start>,
    /// When runs of a target started, under which boot, and since then known to a record.
    begun: Vec<(usize, u32, u64)>,
    epochs: [u32; 2],
    done: BTreeMap<&'static str, usize>,
}

type Checked = Result<(), String>;

impl World {
    fn now(&self) -> Moment {
        let wall = i64::try_from(self.at / 1_000_000).expect("a date") + self.off;
        Moment {
            boot: format!("boot {}", self.boot),
            place: match self.place {
                PLACES => Place::new("another", 1),
                pids => Place::new("this", pids as u64 + 1),
            },
            uptime: Boottime::from_nanos(self.at - self.booted),
            wall: Walltime::from_millis(u64::try_from(wall).unwrap_or(0)),
        }
    }

    fn born(&mut self) -> Identity {
        self.next += 1;
        Identity {
            pid: self.next,
            start: u64::from(self.boot),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    /// Whether it lives, as it can be seen from here.
    fn is_alive(&self, who: Identity) -> bool {
        let is_run = |(_, _, place): &(Identity, usize, usize)| *place == self.place;
        self.runs.get(&who.pid).is_some_and(is_run)
            || self
                .waiters
                .iter()
                .any(|w| w.process == who && w.place == self.place)
    }

    /// As `Store::rerun_stands`.
    fn rerun_stands(&self, id: &str, run: &Running) -> Standing {
        let is_alive = || self.is_alive(run.process);
        let provenance = run.provenance(&self.now());
        self.store.stands(id, &run.token, provenance, is_alive)
    }

    /// As `Store::waiter_stands`.
    fn waiter_stands(&self, id: &str, timer: &Timer) -> Standing {
        let is_held = || self.store.order_is_held(id, &timer.token) == Some(true);
        let is_alive = || timer.waiter.is_some_and(|who| self.is_alive(who)) || is_held();
        let provenance = timer.provenance(&self.now());
        self.store.stands(id, &timer.token, provenance, is_alive)
    }

    /// As `outcome::settle`.
    fn settle(&self, record: &mut Record) {
        let id = record.id.clone();
        let has_ended = |run: &Running| self.rerun_stands(&id, run) == Standing::Ended;
        for ended in record.take_ended(has_ended) {
            self.store.forget_rerun(ended.process, ended.started.place);
            self.store.remove_order(&record.id, &ended.token);
        }
    }

    fn note(&self, target: usize, what: What, timer: Option<(&str, &Timer)>) {
        self.store.note(&Entry {
            target: TARGETS[target].into(),
            timer: timer.map_or(String::new(), |(name, _)| name.into()),
            token: timer.map_or(String::new(), |(_, t)| t.token.clone()),
            chain: timer.map_or(String::new(), |(_, t)| t.chain.clone()),
            run: timer.map_or(0, |(_, t)| t.run),
            ..Entry::new(what, self.now())
        });
    }

    /// A record half written, as a process leaves it that dies while it commits.
    fn torn(&self, target: usize, record: &Record) {
        let text = serde_json::to_vec(record).expect("JSON");
        let path = self.store.root().join("targets").join(TARGETS[target]);
        let path = path.join(format!(".state.json.{}", files::token()));
        std::fs::write(path, &text[..text.len() / 2]).expect("written");
    }

    fn happen(&mut self, event: &Event) -> Checked {
        match event {
            Event::Run { target, place } => {
                let who = self.born();
                self.runs.insert(who.pid, (who, *target, *place));
                self.begun.push((*target, self.boot, self.at));
            }
            Event::Request {
                target,
                by,
                name,
                delta,
                jitter,
                now,
                death,
            } => {
                self.request(*target, *by, NAMES[*name], *delta, *jitter, *now, *death)?;
            }
            Event::End { run } => {
                let Some(pid) = self.runs.keys().nth(*run).copied() else {
                    return Ok(());
                };
                let (who, ..) = self.runs.remove(&pid).expect("there");
                self.locks.remove(&pid);
                let at = self.at;
                for promise in self.promises.iter_mut().filter(|p| p.run == Some(who)) {
                    promise.not_before.get_or_insert(at + promise.delta);
                }
            }
            Event::Step { waiter, death } => {
                if *waiter < self.waiters.len() {
                    self.place = self.waiters[*waiter].place;
                    self.step(*waiter, *death)?;
                    self.place = 0;
                }
            }
            Event::Kill { waiter } => {
                if *waiter < self.waiters.len() {
                    self.waiters.remove(*waiter);
                    self.count("waiters killed");
                }
            }
            Event::Pass { seconds } => self.at += seconds * NANOS,
            Event::PassUntilDue { waiter } => {
                if let Some(due) = self.waiters.get(*waiter).and_then(|w| w.due) {
                    self.at = self.at.max(self.booted + due.nanos());
                }
            }
            Event::Stop {
                target,
                name,
                death,
            } => self.stop(*target, name.map(|n| NAMES[n]), *death)?,
            Event::Now { target } => self.hurry(*target),
            Event::Reset { target } => self.reset(*target),
            Event::Resume { place, death } => {
                self.place = *place;
                self.resume(*death)?;
                self.place = 0;
            }
            Event::Elsewhere => self.elsewhere()?,
            Event::Reboot { off } => {
                self.waiters.clear();
                self.locks.clear();
                let gone: Vec<Identity> = std::mem::take(&mut self.runs)
                    .into_values()
                    .map(|(who, ..)| who)
                    .collect();
                for promise in self
                    .promises
                    .iter_mut()
                    .filter(|p| p.run.is_some_and(|run| gone.contains(&run)))
                {
                    promise.not_before.get_or_insert(self.at + promise.delta);
                }
                self.at += off * NANOS;
                self.booted = self.at;
                self.boot += 1;
                self.at += NANOS;
                self.count("reboots");
            }
            Event::Jump { seconds } => {
                self.off += seconds * 1000;
                self.forwards |= *seconds > 0;
            }
            Event::Damage { target, how } => self.damage(*target, *how),
            Event::Disable => self.disabled = true,
            Event::Enable => self.disabled = false,
        }
        self.check()
    }

    /// As `commands::run` and `arm`.
    #[allow(clippy::too_many_arguments)]
    fn request(
        &mut self,
        target: usize,
        by: usize,
        name: &str,
        delta: u64,
        jitter: u64,
        at_once: bool,
        death: Death,
    ) -> Checked {
        if death == Death::AtOnce {
            return Ok(());
        }
        // With a number beyond the living runs it is a person who asks.
        let mut runs = self.runs.values().filter(|(_, of, _)| *of == target);
        let run = runs.nth(by).copied();
        self.place = run.map_or(0, |(_, _, place)| place);
        let run = run.map(|(who, ..)| who);
        let done = self.request_by(target, run, name, delta, jitter, at_once, death);
        self.place = 0;
        done
    }

    #[allow(clippy::too_many_arguments)]
    fn request_by(
        &mut self,
        target: usize,
        run: Option<Identity>,
        name: &str,
        delta: u64,
        jitter: u64,
        at_once: bool,
        death: Death,
    ) -> Checked {
        let now = self.now();
        let id = TARGETS[target];
        let mut locked = self
            .store
            .lock(id, Kind::Apply, 0)
            .map_err(|e| format!("{e:#}"))?;
        if locked.set_aside.is_some() {
            self.lose(target);
        }
        self.settle(&mut locked.record);
        let usage = cap::usage(self.cap, locked.record.moments(), &now);
        let case = Case {
            obstacle: None,
            disabled: self.disabled.then(String::new),
            cap: self.cap,
            usage,
            on_cap: self.on_cap,
        };
        let not_before = match judge(&case) {
            Verdict::Schedule { not_before } => not_before,
            Verdict::Refuse(_) => {
                locked.commit().map_err(|e| format!("{e:#}"))?;
                self.count("requests refused");
                return Ok(());
            }
        };
        let rerun = run.and_then(|who| self.store.rerun_of(who, &now));
        let chain = rerun.as_ref().map_or_else(
            || format!("{:08x}", run.map_or(7, |who| who.pid)),
            |r| r.chain.clone(),
        );
        let asked = Span::from_secs(delta);
        let mut timer = Timer {
            token: files::token(),
            run: locked.record.next_number(
                &chain,
                rerun.map_or(if run.is_some() { 2 } else { 1 }, |r| r.run + 1),
            ),
            chain,
            origin: if run.is_some() {
                Origin::Run
            } else {
                Origin::Command
            },
            resource: None,
            delta: asked.max(not_before),
            jitter: Span::from_secs(jitter),
            base: if at_once { Base::Request } else { Base::End },
            requested: now.clone(),
            waits_for: run,
            promises: Vec::new(),
            due: None,
            due_wall: None,
            hurry: false,
            put_off: Span::ZERO,
            held: None,
            waiter: None,
            boot: now.boot.clone(),
            place: now.place,
            cap: self.cap,
            max_runs_total: None,
            on_cap: self.on_cap,
            scope: None,
            lineage: Lineage::default(),
            taken: Vec::new(),
        };
        timer.put_off = Span::from_nanos(timer.delta.nanos() - asked.nanos());
        if at_once || run.is_none() {
            timer.due = Some(now.uptime + (timer.delta + timer.jitter));
            timer.due_wall = Some(now.wall + (timer.delta + timer.jitter));
        }
        if let Some(old) = locked.record.timers.get(name) {
            timer.keep_promises(old, &now, |who| self.is_alive(who));
        }
        let lock = self
            .store
            .write_order(id, &timer.token, timer.token.as_bytes())
            .map_err(|e| format!("{e:#}"))?;
        if death == Death::BeforeCommit {
            return Ok(());
        }
        let process = self.born();
        timer.waiter = Some(process);
        let replaced = locked.record.timers.insert(name.into(), timer.clone());
        let waiter = Waiter {
            process,
            target,
            name: name.into(),
            token: timer.token.clone(),
            place: self.place,
            runs: timer.runs().collect(),
            ledger: ledger(target, name, &timer),
            due: None,
            looked: false,
            launches: false,
            lock,
        };
        self.waiters.push(waiter);
        if death == Death::InCommit {
            // Its waiter finds itself on no record, and ends.
            self.torn(target, &locked.record);
            return Ok(());
        }
        locked.commit().map_err(|e| format!("{e:#}"))?;
        self.count("timers set");
        let delta = delta * NANOS;
        self.tokens.insert(timer.token.clone(), self.promises.len());
        self.promises.push(Promise {
            target,
            fate: Fate::Pending,
            not_before: (at_once || run.is_none()).then_some(self.at + delta),
            delta,
            run,
            keeps: replaced
                .as_ref()
                .map_or_else(BTreeSet::new, |old| self.kept(old, run)),
        });
        if let Some(old) = replaced {
            self.over(&old.token, "merged")?;
            if death != Death::AfterCommit {
                self.dismiss(target, &old);
            }
        }
        Ok(())
    }

    /// The promises to other runs that stand behind a timer, for a request of this run in its place.
    fn kept(&self, old: &Timer, run: Option<Identity>) -> BTreeSet<usize> {
        let nth = self.tokens[&old.token];
        // A run that is not of here is seen by nobody here.
        if old.provenance(&self.now()) != Provenance::Here {
            return BTreeSet::new();
        }
        let all = self.promises[nth].keeps.iter().copied().chain([nth]);
        let is_anothers = |nth: &usize| {
            let asked = self.promises[*nth].run;
            asked.is_some() && asked != run
        };
        all.filter(is_anothers).collect()
    }

    fn dismiss(&mut self, target: usize, timer: &Timer) {
        self.waiters.retain(|w| timer.waiter != Some(w.process));
        self.store.remove_order(TARGETS[target], &timer.token);
    }

    fn over(&mut self, token: &str, why: &str) -> Checked {
        let nth = *self
            .tokens
            .get(token)
            .ok_or_else(|| format!("timer {token} was never promised"))?;
        let fate = &mut self.promises[nth].fate;
        if *fate != Fate::Pending {
            return Err(format!("a promise that is {fate:?} is {why} as well"));
        }
        *fate = Fate::Over(why.into());
        Ok(())
    }

    /// What was pending in a record that was set aside is lost, and so is a start that no history knows.
    fn lose(&mut self, target: usize) {
        for promise in self
            .promises
            .iter_mut()
            .filter(|p| p.target == target && p.fate == Fate::Pending)
        {
            promise.fate = Fate::Over("lost with the record".into());
        }
        for start in self
            .starts
            .iter_mut()
            .filter(|s| s.target == target && s.unnoted)
        {
            start.forgotten = true;
        }
        *self.done.entry("records set aside").or_default() += 1;
    }

    fn damage(&mut self, target: usize, how: Damage) {
        let path = self
            .store
            .root()
            .join("targets")
            .join(TARGETS[target])
            .join("state.json");
        let Ok(text) = std::fs::read(&path) else {
            return;
        };
        let damaged = match how {
            Damage::Emptied => Vec::new(),
            Damage::Halved => text[..text.len() / 2].to_vec(),
            Damage::Garbage => b"\xff\0not a record".to_vec(),
            Damage::Newer => String::from_utf8_lossy(&text)
                .replacen("\"version\":1", "\"version\":99", 1)
                .into_bytes(),
            Damage::Missing | Damage::Directory => {
                std::fs::remove_file(&path).expect("removed");
                if let Damage::Directory = how {
                    std::fs::create_dir(&path).expect("made");
                } else {
                    self.lose(target);
                }
                return;
            }
        };
        std::fs::write(path, damaged).expect("damaged");
    }

    /// What `world::World` adds to a ledger's view, of this machine.
    fn view(&mut self, at: usize, record: &Record, looked: bool) -> View {
        let now = self.now();
        let waiter = &self.waiters[at];
        let (alive, ended): (Vec<Identity>, _) =
            waiter.runs.iter().partition(|run| self.is_alive(**run));
        let ledger = &mut self.waiters[at].ledger;
        ended
            .into_iter()
            .for_each(|run| ledger.saw_end(run, now.uptime));
        let ledger = &self.waiters[at].ledger;
        let mut view = ledger.view(record, now.uptime, !alive.is_empty());
        let known = ledger
            .at_due(record, &now, |run| self.rerun_stands(&record.id, run))
            .filter(|_| looked);
        view.at_due = known.map(|known| AtDue {
            disabled: self.disabled.then(String::new),
            ..known
        });
        view
    }

    /// As `life::Life::go_on`, one step of it.
    fn step(&mut self, at: usize, death: Death) -> Checked {
        if death == Death::AtOnce {
            self.waiters.remove(at);
            return Ok(());
        }
        if self.waiters[at].launches {
            return self.launch(at, death);
        }
        let (target, token) = (self.waiters[at].target, self.waiters[at].token.clone());
        let Ok(Some(record)) = self.store.read(TARGETS[target]) else {
            // It reports that it is lost.
            self.waiters.remove(at);
            return Ok(());
        };
        let looked = std::mem::take(&mut self.waiters[at].looked);
        let view = self.view(at, &record, looked);
        self.waiters[at].due = view.due.map(|due| due.at);
        match step(&view) {
            Step::AwaitRuns
            | Step::AwaitDue(_)
            | Step::AwaitProcess(_)
            | Step::AwaitHolder(..)
            | Step::EndHolder(..)
            | Step::AwaitForeign(_)
            | Step::AwaitService(_)
            | Step::AwaitSlot(_) => self.write_down(at, record, None, death)?,
            Step::Hold(hold) => self.write_down(at, record, Some(hold.to_string()), death)?,
            Step::LookAround => self.waiters[at].looked = true,
            Step::Launch => self.waiters[at].launches = true,
            Step::PutOff(due) => {
                self.waiters[at].ledger.put_off(&record, due, view.now);
                self.waiters[at].due = Some(due);
            }
            Step::Finish(Finish::Superseded) => {
                self.store.remove_order(TARGETS[target], &token);
                self.waiters.remove(at);
            }
            Step::Finish(finish) => return self.finish(at, &finish, death),
        }
        Ok(())
    }

    /// As `life::Life::write_down`, before it sleeps.
    fn write_down(
        &mut self,
        at: usize,
        mut record: Record,
        held: Option<String>,
        death: Death,
    ) -> Checked {
        let (now, waiter) = (self.now(), &self.waiters[at]);
        if !waiter.ledger.enter(&mut record, held.as_deref(), &now) {
            return Ok(());
        }
        let target = waiter.target;
        let mut locked = self
            .store
            .lock_existing(TARGETS[target])
            .map_err(|e| format!("{e:#}"))?;
        waiter
            .ledger
            .enter(&mut locked.record, held.as_deref(), &now);
        match death {
            Death::BeforeCommit => {}
            Death::InCommit => self.torn(target, &locked.record),
            _ => locked.commit().map_err(|e| format!("{e:#}"))?,
        }
        if death != Death::None {
            self.waiters.remove(at);
        }
        Ok(())
    }

    fn finish(&mut self, at: usize, finish: &Finish, death: Death) -> Checked {
        let now = self.now();
        let waiter = &self.waiters[at];
        let (target, token) = (waiter.target, waiter.token.clone());
        let mut locked = self
            .store
            .lock_existing(TARGETS[target])
            .map_err(|e| format!("{e:#}"))?;
        let due = waiter.ledger.due(&locked.record);
        let change = life::end(&waiter.ledger, &mut locked.record, finish, now);
        if change.is_some() && death != Death::BeforeCommit && death != Death::InCommit {
            locked.commit().map_err(|e| format!("{e:#}"))?;
            if let Finish::Satisfied(..) = finish {
                let due = self.booted + due.expect("it was due").least.nanos();
                let did_it = |begun: &(usize, u32, u64)| {
                    begun.0 == target && begun.1 == self.boot && begun.2 >= due
                };
                if !self.begun.iter().any(did_it) {
                    return Err(format!(
                        "satisfied by no run: due at {due}, runs {:?}",
                        self.begun
                    ));
                }
                self.count("timers satisfied");
            }
            self.over(&token, &format!("{finish:?}"))?;
            self.store.remove_order(TARGETS[target], &token);
        }
        self.waiters.remove(at);
        Ok(())
    }

    fn launch(&mut self, at: usize, death: Death) -> Checked {
        self.waiters[at].launches = false;
        let (target, name, token) = {
            let w = &self.waiters[at];
            (w.target, w.name.clone(), w.token.clone())
        };
        let Ok(mut locked) = self.store.lock_existing(TARGETS[target]) else {
            self.waiters.remove(at);
            return Ok(());
        };
        if locked.set_aside.is_some() {
            self.lose(target);
        }
        self.settle(&mut locked.record);
        if step(&self.view(at, &locked.record, true)) != Step::Launch {
            return Ok(());
        }
        let now = self.now();
        let ledger = &self.waiters[at].ledger;
        let mut timer = ledger.take(&mut locked.record, &now).ok_or("no timer")?;
        timer.run = locked.record.next_number(&timer.chain, timer.run);
        let me = self.waiters[at].process;
        let running = Running {
            process: me,
            token: token.clone(),
            chain: timer.chain.clone(),
            run: timer.run,
            timer: name.clone(),
            started: now.clone(),
            log: String::new(),
            log_lost: None,
            log_limit: 0,
            lastrunfile: None,
            stopped: None,
            lineage: timer.lineage.clone(),
        };
        let rerun = Rerun {
            process: me,
            boot: now.boot.clone(),
            place: now.place,
            target: TARGETS[target].into(),
            chain: timer.chain.clone(),
            run: timer.run,
            timer: name.clone(),
            daemon: None,
            running: Some(running.clone()),
        };
        self.store
            .note_rerun(&rerun)
            .map_err(|e| format!("{e:#}"))?;
        locked.record.note_start(running, timer.cap);
        if matches!(death, Death::BeforeCommit | Death::InCommit) {
            if death == Death::InCommit {
                self.torn(target, &locked.record);
            }
            self.waiters.remove(at);
            return Ok(());
        }
        locked.commit_start().map_err(|e| format!("{e:#}"))?;
        drop(locked);
        // From here on it counts as started, even if it dies before it becomes the rerun.
        let nth = *self
            .tokens
            .get(&token)
            .ok_or("a rerun that nobody was promised")?;
        let promise = &mut self.promises[nth];
        if promise.fate != Fate::Pending {
            return Err(format!("a rerun for a promise that is {:?}", promise.fate));
        }
        promise.fate = Fate::Started;
        let keeps = promise.keeps.clone();
        for nth in keeps.iter().chain([&nth]) {
            let promise = &self.promises[*nth];
            let early = promise
                .not_before
                .is_none_or(|not_before| self.at < not_before);
            // After a reboot only the wall clock knows how long it has waited.
            if early && !(self.forwards && self.boot > 0) {
                return Err(format!("early: {} before {promise:?}", self.at));
            }
        }
        *self.done.entry("promises of other runs kept").or_default() += keeps.len();
        let runs = self.runs.values();
        let mut reruns =
            runs.filter(|(who, of, _)| *of == target && self.locks.contains_key(&who.pid));
        if let Some((who, ..)) = reruns.next() {
            return Err(format!(
                "two reruns of a target at once: pid {} still runs",
                who.pid
            ));
        }
        self.starts.push(Start {
            target,
            at: self.at,
            boot: self.boot,
            epoch: self.epochs[target],
            unnoted: death == Death::AfterCommit,
            forgotten: false,
        });
        let waiter = self.waiters.remove(at);
        self.count("reruns");
        self.begun.push((target, self.boot, self.at));
        if death != Death::AfterCommit {
            self.note(target, What::Started, Some((&name, &timer)));
            self.store.empty_order(TARGETS[target], &token);
            self.runs.insert(me.pid, (me, target, waiter.place));
            self.locks.insert(me.pid, waiter.lock);
        }
        Ok(())
    }

    fn stop(&mut self, target: usize, name: Option<&str>, death: Death) -> Checked {
        if self.store.read(TARGETS[target]).ok().flatten().is_none() || death == Death::AtOnce {
            return Ok(());
        }
        let mut locked = self
            .store
            .lock_existing(TARGETS[target])
            .map_err(|e| format!("{e:#}"))?;
        self.settle(&mut locked.record);
        let (gone, left) = std::mem::take(&mut locked.record.timers)
            .into_iter()
            .partition(|(n, _)| name.is_none_or(|name| name == n));
        locked.record.timers = left;
        let gone: BTreeMap<String, Timer> = gone;
        match death {
            Death::BeforeCommit => return Ok(()),
            Death::InCommit => {
                self.torn(target, &locked.record);
                return Ok(());
            }
            _ => locked.commit().map_err(|e| format!("{e:#}"))?,
        }
        drop(locked);
        for timer in gone.values() {
            self.over(&timer.token, "stopped")?;
            if death != Death::AfterCommit {
                self.dismiss(target, timer);
            }
        }
        Ok(())
    }

    fn hurry(&mut self, target: usize) {
        let Ok(Some(_)) = self.store.read(TARGETS[target]) else {
            return;
        };
        let Ok(mut locked) = self.store.lock_existing(TARGETS[target]) else {
            return;
        };
        let now = self.now();
        let mut hurried = Vec::new();
        for timer in locked.record.timers.values_mut() {
            let alive = self.waiter_stands(TARGETS[target], timer) == Standing::Alive;
            if let Hurry::Changed(pending) = hurry(timer.pending(), alive, now.uptime) {
                timer.set_pending(pending, &now);
                hurried.push(timer.token.clone());
            }
        }
        locked.commit().expect("committed");
        drop(locked);
        for token in hurried {
            let nth = self.tokens[&token];
            for nth in self.promises[nth].keeps.clone().iter().chain([&nth]) {
                let promise = &mut self.promises[*nth];
                promise.delta = 0;
                promise.not_before = promise.not_before.map(|at| at.min(self.at));
            }
        }
    }

    fn reset(&mut self, target: usize) {
        let Ok(Some(_)) = self.store.read(TARGETS[target]) else {
            return;
        };
        let Ok(mut locked) = self.store.lock_existing(TARGETS[target]) else {
            return;
        };
        let now = self.now();
        for start in &mut locked.record.starts {
            start.forgotten = true;
        }
        for timer in locked.record.timers.values_mut() {
            if timer.put_off > Span::ZERO && timer.boot == now.boot {
                timer.set_pending(release(timer.pending(), now.uptime), &now);
            }
        }
        locked.commit().expect("committed");
        self.note(target, What::Reset, None);
        self.epochs[target] += 1;
        self.count("resets");
    }

    /// As `commands::resume`.
    fn resume(&mut self, death: Death) -> Checked {
        if death == Death::AtOnce {
            return Ok(());
        }
        for (target, id) in TARGETS.iter().enumerate() {
            if !self.store.targets().contains(&(*id).to_owned()) {
                continue;
            }
            let Ok(mut locked) = self.store.lock_existing(id) else {
                continue;
            };
            if locked.set_aside.is_some() {
                self.lose(target);
            }
            let now = self.now();
            self.settle(&mut locked.record);
            locked.commit().map_err(|e| format!("{e:#}"))?;
            let without: Vec<(String, Timer)> = locked
                .record
                .timers
                .iter()
                .filter(|(_, timer)| self.waiter_stands(id, timer) == Standing::Ended)
                .map(|(name, timer)| (name.clone(), timer.clone()))
                .collect();
            for (name, old) in without {
                if self.store.read_order(id, &old.token).is_err() {
                    return Err(format!(
                        "the order of timer '{name}' is gone while it is pending"
                    ));
                }
                let run = old
                    .waits_for
                    .filter(|who| old.boot == now.boot && self.is_alive(*who));
                let known = run.is_some() && old.due.is_none();
                let rebooted = old.boot != now.boot;
                let due =
                    (!known).then(|| resume::due(&old.wait(&now.boot), &now, Span::from_secs(1)));
                let process = self.born();
                let timer = Timer {
                    token: files::token(),
                    boot: now.boot.clone(),
                    place: now.place,
                    waits_for: run,
                    waiter: Some(process),
                    held: None,
                    promises: if rebooted {
                        Vec::new()
                    } else {
                        old.promises.clone()
                    },
                    jitter: if rebooted {
                        Span::from_secs(1)
                    } else {
                        old.jitter
                    },
                    due,
                    due_wall: due.map(|due| now.wall + due.since(now.uptime)),
                    ..old.clone()
                };
                let lock = self
                    .store
                    .write_order(id, &timer.token, timer.token.as_bytes())
                    .map_err(|e| format!("{e:#}"))?;
                if death == Death::BeforeCommit {
                    return Ok(());
                }
                locked.record.timers.insert(name.clone(), timer.clone());
                if death == Death::InCommit {
                    self.torn(target, &locked.record);
                    return Ok(());
                }
                locked.commit().map_err(|e| format!("{e:#}"))?;
                let promise = self.tokens[&old.token];
                self.tokens.insert(timer.token.clone(), promise);
                self.waiters.push(Waiter {
                    process,
                    target,
                    place: self.place,
                    runs: timer.runs().collect(),
                    ledger: ledger(target, &name, &timer),
                    name,
                    token: timer.token,
                    due: None,
                    looked: false,
                    launches: false,
                    lock,
                });
                self.count("timers resumed");
                if death == Death::AfterCommit {
                    return Ok(());
                }
                self.store.remove_order(id, &old.token);
            }
        }
        Ok(())
    }

    /// On another machine: it may do all that it likes, and changes nothing of ours.
    fn elsewhere(&mut self) -> Checked {
        let ours = |world: &World| {
            TARGETS.map(|id| {
                let record = world.store.read(id).ok().flatten();
                record.map(|record| (record.timers, record.running, record.last))
            })
        };
        let before = ours(self);
        self.place = PLACES;
        self.resume(Death::None)?;
        self.place = 0;
        let damaged = before.iter().any(Option::is_none);
        if !damaged && ours(self) != before {
            return Err(format!("changed from elsewhere: {before:?}"));
        }
        Ok(())
    }

    /// What must hold at every moment.
    fn check(&self) -> Checked {
        for (target, id) in TARGETS.iter().enumerate() {
            // The cap, in every window, as it truly was.
            let counted: Vec<&Start> = self
                .starts
                .iter()
                .filter(|s| s.target == target && !s.forgotten)
                .collect();
            for (n, first) in counted.iter().enumerate() {
                let within = counted[n..].iter().filter(|s| {
                    s.epoch == first.epoch
                        && s.at - first.at < self.cap.window.nanos()
                        // Between boots there is only the wall clock, and it was set forwards.
                        && (s.boot == first.boot || !self.forwards)
                });
                if within.count() > self.cap.max_runs as usize {
                    return Err(format!("more than {:?}: {counted:?}", self.cap));
                }
            }
            // What is promised and not yet kept is on record, and what is on record was promised.
            let Ok(Some(record)) = self.store.read(id) else {
                continue;
            };
            let on_record: BTreeSet<usize> = record
                .timers
                .values()
                .filter_map(|t| self.tokens.get(&t.token))
                .copied()
                .collect();
            if on_record.len() != record.timers.len() {
                return Err(format!(
                    "a timer on record that nobody was promised: {:?}",
                    record.timers
                ));
            }
            for (n, promise) in self
                .promises
                .iter()
                .enumerate()
                .filter(|(_, p)| p.target == target)
            {
                if (promise.fate == Fate::Pending) != on_record.contains(&n) {
                    return Err(format!(
                        "promise {n}, {promise:?}, and on record are {on_record:?}"
                    ));
                }
            }
            for timer in record.timers.values() {
                if self.store.read_order(id, &timer.token).is_err() {
                    return Err(format!("no order for a timer on record: {timer:?}"));
                }
            }
        }
        Ok(())
    }

    /// From here on nothing goes wrong: every promise is kept, or ends for a reason.
    fn settle_down(&mut self) -> Checked {
        self.disabled = false;
        for _ in 0..400 {
            for place in 0..PLACES {
                self.place = place;
                self.resume(Death::None)?;
            }
            while !self.runs.is_empty() {
                self.happen(&Event::End { run: 0 })?;
            }
            let mut at = 0;
            while at < self.waiters.len() {
                let before = self.waiters[at].process;
                for _ in 0..6 {
                    if self.waiters.get(at).is_some_and(|w| w.process == before) {
                        self.place = self.waiters[at].place;
                        self.step(at, Death::None)?;
                    }
                }
                at += 1;
            }
            self.check()?;
            if self.waiters.is_empty() && self.promises.iter().all(|p| p.fate != Fate::Pending) {
                return self.nothing_left();
            }
            self.at += 7 * NANOS;
        }
        Err(format!("it never settles: {:?}", self.promises))
    }

    /// No order is left on disk that no timer refers to, once somebody has looked.
    fn nothing_left(&mut self) -> Checked {
        while !self.runs.is_empty() {
            self.happen(&Event::End { run: 0 })?;
        }
        for place in 0..PLACES {
            self.place = place;
            self.resume(Death::None)?;
        }
        // A target of which no record was ever written is left to its next request.
        for id in TARGETS
            .iter()
            .filter(|id| matches!(self.store.read(id), Ok(Some(_))))
        {
            let record = self.store.read(id).ok().flatten().expect("a record");
            // Its reruns are not processes of this machine, so they all count as gone.
            let orders = self.store.root().join("targets").join(id).join("orders");
            let left = || {
                self.store.remove_strays(&record, &self.now());
                std::fs::read_dir(&orders).map(Iterator::count).unwrap_or(0)
            };
            // What another test starts has a copy of each lock until its exec.
            let mut tries = 200;
            let mut left_now = left();
            while left_now > 0 && tries > 0 {
                std::thread::sleep(std::time::Duration::from_millis(20));
                left_now = left();
                tries -= 1;
            }
            let left = left_now;
            if left > 0 {
                return Err(format!("{left} orders are left on disk"));
            }
        }
        Ok(())
    }
}

fn on_cap() -> impl Strategy<Value = OnCap> {
    prop_oneof![Just(OnCap::Fail), Just(OnCap::Wait), Just(OnCap::Skip)]
}

/// Memory, where there is some to be had as a file system: nothing here is about the disk.
fn scratch() -> tempfile::TempDir {
    let shm = std::path::Path::new("/dev/shm");
    let parent = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("again-model-")
        .tempdir_in(parent)
        .expect("a directory")
}

fn live(
    max_runs: u32,
    window: u64,
    on_cap: OnCap,
    events: &[Event],
) -> Result<BTreeMap<&'static str, usize>, String> {
    let dir = scratch();
    let store = Store::open(&dir.path().join("state")).map_err(|e| format!("{e:#}"))?;
    let mut world = World {
        store,
        cap: Cap {
            max_runs,
            window: Span::from_secs(window),
            is_total: false,
        },
        on_cap,
        // A date, so that the clock can be set back.
        at: 10_000_000 * NANOS,
        booted: 9_999_000 * NANOS,
        boot: 0,
        off: 0,
        forwards: false,
        disabled: false,
        next: 100,
        place: 0,
        runs: BTreeMap::new(),
        locks: BTreeMap::new(),
        waiters: Vec::new(),
        promises: Vec::new(),
        tokens: BTreeMap::new(),
        starts: Vec::new(),
        begun: Vec::new(),
        epochs: [0; 2],
        done: BTreeMap::new(),
    };
    for event in events {
        world.happen(event)?;
    }
    world.settle_down()?;
    Ok(world.done)
}

fn explore(cases: u32, jumps: bool) {
    let counts = std::sync::Mutex::new(BTreeMap::<&'static str, usize>::new());
    let lived = AtomicUsize::new(0);
    let lives = (
        1..4_u32,
        20..120_u64,
        on_cap(),
        proptest::collection::vec(event(jumps), 1..160),
    );
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..Config::default()
    });
    let outcome = runner.run(&lives, |(max_runs, window, on_cap, events)| {
        let done = live(max_runs, window, on_cap, &events).map_err(TestCaseError::fail)?;
        lived.fetch_add(1, Ordering::Relaxed);
        let mut counts = counts.lock().expect("nobody panicked");
        for (what, n) in done {
            *counts.entry(what).or_default() += n;
        }
        Ok(())
    });
    println!(
        "{} lives: {:?}",
        lived.load(Ordering::Relaxed),
        counts.lock().expect("nobody panicked")
    );
    if let Err(e) = outcome {
        panic!("{e}");
    }
}

/// How many lives each of the two properties sees; the long version sets it.
fn cases() -> u32 {
    std::env::var("AGAIN_SOAK_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(250)
}

#[test]
fn no_rerun_beyond_the_cap_none_twice_and_no_promise_lost() {
    explore(cases(), false);
}

/// Somebody sets the clock, forwards too. Within a boot nothing is different; between boots the wall clock is all there
/// is, and a cap or a wait may seem to be over that is not.
#[test]
fn the_same_while_the_wall_clock_is_set() {
    explore(cases(), true);
}

/// The record of a rerun under way goes: the next rerun waits for it.
#[test]
fn a_record_that_goes_lets_no_two_reruns_overlap() {
    let request = Event::Request {
        target: 0,
        by: 8,
        name: 0,
        delta: 0,
        jitter: 0,
        now: true,
        death: Death::None,
    };
    let step = Event::Step {
        waiter: 0,
        death: Death::None,
    };
    for how in [Damage::Missing, Damage::Directory, Damage::Emptied] {
        let goes = Event::Damage { target: 0, how };
        let half = [vec![request.clone()], vec![step.clone(); 6]].concat();
        let events = [half.clone(), vec![goes, Event::Pass { seconds: 1 }], half].concat();
        let done = live(3, 100, OnCap::Fail, &events).expect("one at a time");
        assert_eq!(done["reruns"], 2, "{how:?}: {done:?}");
    }
}

/// A start, and then the record goes: the next request meets the cap all the same.
#[test]
fn a_record_that_goes_does_not_open_the_cap() {
    let request = Event::Request {
        target: 0,
        by: 0,
        name: 0,
        delta: 0,
        jitter: 0,
        now: true,
        death: Death::None,
    };
    let step = Event::Step {
        waiter: 0,
        death: Death::None,
    };
    for how in [Damage::Missing, Damage::Directory, Damage::Emptied] {
        let goes = Event::Damage { target: 0, how };
        let half = [vec![request.clone()], vec![step.clone(); 6]].concat();
        let events = [half.clone(), vec![Event::End { run: 0 }, goes], half].concat();
        let done = live(1, 100, OnCap::Fail, &events).expect("the cap holds");
        assert_eq!(
            (done["reruns"], done["requests refused"]),
            (1, 1),
            "{how:?}: {done:?}"
        );
    }
}
