//! Promises, and how each was kept, according to the records alone, after each event.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use again::state::record::{Record, Timer};
use again_base::model::{Cap, Identity, Moment, Provenance};

use super::{Checked, TARGETS};

/// Promise to one request, whichever tokens represent it.
#[derive(Debug)]
pub struct Promise {
    pub target: usize,
    pub fate: Fate,
    /// Earliest start in true time, when it is known.
    pub not_before: Option<u64>,
    /// Delta in nanoseconds.
    pub delta: u64,
    pub run: Option<Identity>,
    /// Promises to other runs that it keeps too.
    pub keeps: BTreeSet<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Pending,
    Started,
    Over(String),
}

/// Start of a rerun, in true time.
#[derive(Debug)]
pub struct Start {
    pub target: usize,
    pub at: u64,
    pub boot: u32,
    /// Number of resets of the target's count before the start.
    pub epoch: u32,
    /// Whether its line in the history was never written.
    pub unnoted: bool,
    /// Whether the record that counted it was damaged, and the history does not contain it.
    pub forgotten: bool,
    /// Whether its order was emptied: it may have begun. A start that has not begun is taken back
    /// under its boot.
    pub began: bool,
    /// Timer's name and record before the start; none for another machine's.
    timer: Option<(String, Timer)>,
}

/// Cause of a record's change.
pub enum Cause<'a> {
    /// Request with this name.
    Request {
        target: usize,
        name: &'a str,
        promise: Promise,
        /// Moment as the process of the request saw it.
        now: &'a Moment,
    },
    Stop {
        name: Option<&'a str>,
    },
    Now,
    /// End of a timer by its waiter.
    Finish(String),
    /// Start of a rerun by its waiter, which may have been killed before that. Its line in the
    /// history may be missing.
    Launch {
        unnoted: bool,
        began: bool,
    },
    /// New timer that the observer of a skipped rerun has set.
    Skip {
        target: usize,
        token: String,
    },
    /// Any other event: no timer comes or goes, but one may have a new waiter.
    Other,
}

/// All promises and starts so far.
#[derive(Default)]
pub struct Books {
    pub promises: Vec<Promise>,
    pub tokens: BTreeMap<String, usize>,
    pub starts: Vec<Start>,
    /// Timers of each target, as its record had them last.
    pub known: [BTreeMap<String, Timer>; 2],
    /// Whether the target's record was damaged.
    pub damaged: [bool; 2],
    pub epochs: [u32; 2],
    /// Whether the wall clock was set forwards.
    pub forwards: bool,
    pub done: BTreeMap<&'static str, usize>,
}

impl Books {
    pub fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    pub fn is_pending(&self) -> bool {
        self.promises.iter().any(|p| p.fate == Fate::Pending)
            || self.starts.iter().any(|start| !start.began)
    }

    /// Takes back the starts that never began and that a process has settled: their timers were
    /// pending before.
    fn taken_back(&mut self, target: usize, record: &Record, boot: u32) -> Vec<Start> {
        let is_open = |token: &String| record.running.iter().any(|run| run.token == *token);
        let is_settled = |start: &Start| {
            let timer = start.timer.as_ref();
            let is_closed = timer.is_some_and(|(_, timer)| !is_open(&timer.token));
            start.target == target && !start.began && is_closed
        };
        // Under another boot no process can tell that it has not begun.
        for start in self.starts.iter_mut().filter(|start| is_settled(start)) {
            start.began = start.boot != boot;
        }
        self.starts
            .extract_if(.., |start| is_settled(start))
            .collect()
    }

    /// Records that a run has ended: the deltas of its requests count from now on.
    pub fn ended(&mut self, who: Identity, at: u64) {
        for promise in self.promises.iter_mut().filter(|p| p.run == Some(who)) {
            promise.not_before.get_or_insert(at + promise.delta);
        }
    }

    /// Compares a record with its state before this event.
    pub fn notice(
        &mut self,
        target: usize,
        record: &Record,
        mut cause: Cause<'_>,
        (at, boot): (u64, u32),
    ) -> Checked {
        if std::mem::take(&mut self.damaged[target]) {
            self.lose(target);
        }
        let mut before = std::mem::replace(&mut self.known[target], record.timers.clone());
        let taken_back = self.taken_back(target, record, boot);
        for (name, timer) in taken_back.into_iter().filter_map(|start| start.timer) {
            self.count("starts taken back");
            let nth = self.tokens[&timer.token];
            self.promises[nth].fate = Fate::Pending;
            match before.entry(name) {
                // A newer timer of that name replaces it.
                Entry::Occupied(_) => self.over(&timer.token, "merged")?,
                Entry::Vacant(place) => {
                    place.insert(timer);
                }
            }
        }
        for (name, old) in &before {
            match record.timers.get(name) {
                None => self.gone(target, name, old, record, &cause, (at, boot))?,
                Some(new) => {
                    if new.token != old.token {
                        self.replaced(target, name, old, new, &mut cause)?;
                    }
                    if matches!(cause, Cause::Now) && new.hurry && !old.hurry {
                        self.hurried(&new.token, at);
                    }
                }
            }
        }
        for (name, timer) in &record.timers {
            if before.contains_key(name) {
                continue;
            }
            match &mut cause {
                Cause::Request {
                    target: of,
                    name: asked,
                    promise,
                    ..
                } if *of == target && asked == name => {
                    let promise = take(promise);
                    self.promised(timer, promise);
                }
                Cause::Skip { target: of, token } if *of == target => {
                    let nth = self.tokens[token];
                    self.tokens.insert(timer.token.clone(), nth);
                    self.promises[nth].fate = Fate::Pending;
                    self.count("skipped reruns tried again");
                }
                _ => return Err(format!("timer '{name}' came by itself: {timer:?}")),
            }
        }
        Ok(())
    }

    fn promised(&mut self, timer: &Timer, promise: Promise) {
        self.count("timers set");
        self.tokens.insert(timer.token.clone(), self.promises.len());
        self.promises.push(promise);
    }

    fn replaced(
        &mut self,
        target: usize,
        name: &str,
        old: &Timer,
        new: &Timer,
        cause: &mut Cause<'_>,
    ) -> Checked {
        match cause {
            Cause::Request {
                target: of,
                name: asked,
                promise,
                now,
            } if *of == target && *asked == name => {
                let mut promise = take(promise);
                promise.keeps = self.kept(old, promise.run, now);
                self.promised(new, promise);
                self.over(&old.token, "merged")
            }
            Cause::Now | Cause::Stop { .. } | Cause::Other => {
                let promise = *self
                    .tokens
                    .get(&old.token)
                    .ok_or_else(|| format!("resumed, and never promised: {old:?}"))?;
                self.tokens.insert(new.token.clone(), promise);
                self.count("timers resumed");
                Ok(())
            }
            _ => Err(format!("timer '{name}' has a new waiter: {new:?}")),
        }
    }

    /// Promises to other runs that a timer keeps, when a request of this run replaces it.
    fn kept(&self, old: &Timer, run: Option<Identity>, now: &Moment) -> BTreeSet<usize> {
        let nth = self.tokens[&old.token];
        // A run from elsewhere is not visible here.
        if old.provenance(now) != Provenance::Here {
            return BTreeSet::new();
        }
        let all = self.promises[nth].keeps.iter().copied().chain([nth]);
        let is_anothers = |nth: &usize| {
            let asked = self.promises[*nth].run;
            asked.is_some() && asked != run
        };
        all.filter(is_anothers).collect()
    }

    fn gone(
        &mut self,
        target: usize,
        name: &str,
        old: &Timer,
        record: &Record,
        cause: &Cause<'_>,
        (at, boot): (u64, u32),
    ) -> Checked {
        match cause {
            Cause::Launch { unnoted, began }
                if record.running.iter().any(|r| r.token == old.token) =>
            {
                self.started(target, &old.token, at, boot)?;
                self.starts.push(Start {
                    target,
                    at,
                    boot,
                    epoch: self.epochs[target],
                    unnoted: *unnoted,
                    forgotten: false,
                    began: *began,
                    timer: Some((name.to_owned(), old.clone())),
                });
                self.count(if *began { "reruns" } else { "reruns not begun" });
                Ok(())
            }
            Cause::Finish(how) => self.over(&old.token, how),
            Cause::Stop { name: asked } if asked.is_none_or(|asked| asked == name) => {
                self.count("timers stopped");
                self.over(&old.token, "stopped")
            }
            _ => Err(format!("timer '{name}' is gone: {old:?}")),
        }
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

    /// Records a start. A rerun counts as started even if it dies before it begins.
    fn started(&mut self, target: usize, token: &str, at: u64, boot: u32) -> Checked {
        let nth = *self
            .tokens
            .get(token)
            .ok_or_else(|| format!("target {target}: a rerun that nobody was promised"))?;
        let promise = &mut self.promises[nth];
        if promise.fate != Fate::Pending {
            return Err(format!("a rerun for a promise that is {:?}", promise.fate));
        }
        promise.fate = Fate::Started;
        let keeps = promise.keeps.clone();
        for nth in keeps.iter().chain([&nth]) {
            let promise = &self.promises[*nth];
            let early = promise.not_before.is_none_or(|not_before| at < not_before);
            // After a reboot only the wall clock measures how long it has waited.
            if early && !(self.forwards && boot > 0) {
                return Err(format!("early: {at} before {promise:?}"));
            }
        }
        *self.done.entry("promises of other runs kept").or_default() += keeps.len();
        Ok(())
    }

    fn hurried(&mut self, token: &str, at: u64) {
        self.count("timers brought forward");
        let nth = self.tokens[token];
        for nth in self.promises[nth].keeps.clone().iter().chain([&nth]) {
            let promise = &mut self.promises[*nth];
            promise.delta = 0;
            promise.not_before = promise.not_before.map(|before| before.min(at));
        }
    }

    /// Drops what was pending in a record that was set aside, and starts that are not in the
    /// history.
    pub fn lose(&mut self, target: usize) {
        let of_target = self.promises.iter_mut().filter(|p| p.target == target);
        for promise in of_target.filter(|p| p.fate == Fate::Pending) {
            promise.fate = Fate::Over("lost with the record".into());
        }
        for start in self.starts.iter_mut().filter(|s| s.target == target) {
            start.forgotten |= start.unnoted;
            // The record also contained what the start replaced.
            start.began = true;
        }
        self.known[target].clear();
        self.count("records set aside");
    }

    /// Whether the cap truly allows another start now.
    pub fn allows(&self, target: usize, cap: Cap, at: u64) -> bool {
        let counts = |start: &&Start| {
            start.target == target
                && !start.forgotten
                && start.epoch == self.epochs[target]
                && at - start.at < cap.window.nanos()
        };
        self.starts.iter().filter(counts).count() < cap.max_runs as usize
    }

    /// Records the start of a rerun on another machine.
    pub fn started_elsewhere(&mut self, target: usize, at: u64) {
        self.count("starts of another machine");
        self.starts.push(Start {
            target,
            at,
            // The boot is not one of this machine's.
            boot: u32::MAX,
            epoch: self.epochs[target],
            unnoted: true,
            forgotten: false,
            began: true,
            timer: None,
        });
    }

    /// Checks the cap, in every window, in true time.
    pub fn check_cap(&self, target: usize, cap: Cap) -> Checked {
        let is_counted = |s: &&Start| s.target == target && !s.forgotten;
        let counted: Vec<&Start> = self.starts.iter().filter(is_counted).collect();
        for (n, first) in counted.iter().enumerate() {
            let within = counted[n..].iter().filter(|s| {
                s.epoch == first.epoch
                    && s.at - first.at < cap.window.nanos()
                    // Between boots there is only the wall clock, and it was set forwards.
                    && (s.boot == first.boot || !self.forwards)
            });
            if within.count() > cap.max_runs as usize {
                return Err(format!("more than {cap:?}: {counted:?}"));
            }
        }
        Ok(())
    }

    /// Checks that each promise that is not yet kept is on record, and that every timer on record
    /// was promised.
    pub fn check_record(&self, target: usize, record: &Record) -> Checked {
        let timers = record.timers.values();
        let on_record: BTreeSet<usize> = timers
            .filter_map(|t| self.tokens.get(&t.token))
            .copied()
            .collect();
        if on_record.len() != record.timers.len() {
            return Err(format!(
                "{}: a timer on record that nobody was promised: {:?}",
                TARGETS[target], record.timers
            ));
        }
        let promises = self.promises.iter().enumerate();
        for (n, promise) in promises.filter(|(_, p)| p.target == target) {
            if (promise.fate == Fate::Pending) != on_record.contains(&n) {
                return Err(format!(
                    "promise {n}, {promise:?}, and on record are {on_record:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns a promise, and leaves a used one in its place.
fn take(promise: &mut Promise) -> Promise {
    let spent = Promise {
        target: promise.target,
        fate: Fate::Over("made".into()),
        not_before: None,
        delta: 0,
        run: None,
        keeps: BTreeSet::new(),
    };
    std::mem::replace(promise, spent)
}
