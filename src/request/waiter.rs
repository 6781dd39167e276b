//! A request that a waiter serves.

use anyhow::{Context, Result};

use super::asked::{Answer, Request};
use super::case::case;
use super::line;
use super::observe::Observation;
use super::order::Plan;
use super::place::{self, Place};
use super::triggered::{self, Goes};
use crate::config::{Scope, Settings};
use crate::outcome;
use crate::policy::judge::{Case, Verdict, judge};
use crate::state::change::Change;
use crate::state::files::token;
use crate::state::history::What;
use crate::state::order::{CommandLine, Order};
use crate::state::record::{Record, Timer};
use crate::state::store::{Locked, Store};
use crate::sys::unit;
use crate::waiter::start::{Arm, ScopeWish, arm};
use again_base::delay;
use again_base::model::{Base, Exit, Identity, Moment, Span};
use again_base::schema::origin::Lineage;
use again_base::sys::clock::moment;
use again_base::sys::machine::random;
use again_base::sys::pidfd::{self, Handle};
use again_base::sys::process::is_alive;

/// Judges the request with the record, and sets a timer.
///
/// # Errors
/// The failure; no timer was set then.
pub fn take(request: &Request<'_>, seen: &Observation, plan: &Plan) -> Result<Answer> {
    // Opened while the run waits for us, so that no later process can be confused with it.
    let hold = |who: Identity| {
        pidfd::open(who).with_context(|| format!("cannot take hold of the run (pid {})", who.pid))
    };
    let run = seen.run_identity().map(hold).transpose()?;
    let store = Store::open(&request.settings.state_dir)?;
    let locked = store.lock(&plan.target, plan.order.kind, request.around.uid)?;
    let set_aside = locked.set_aside.clone();
    let taking = Taking {
        request,
        seen,
        plan,
        run: run.as_ref(),
        store: &store,
        now: moment(),
    };
    let answer = match &request.word {
        None => taking.judge(locked, None),
        Some(word) => match triggered::new(word, &store, &locked.record) {
            new if new.is_empty() => triggered::known(word, &store),
            new => taking.judge(locked, Some(word.lineage(new))),
        },
    };
    // Logged after the lock is released: a slow reader must not delay a run.
    if let Some(what) = set_aside {
        tracing::warn!("a record was rebuilt from the history: {what}");
    }
    answer
}

/// Request in progress.
struct Taking<'a> {
    request: &'a Request<'a>,
    seen: &'a Observation,
    plan: &'a Plan,
    run: Option<&'a Handle>,
    store: &'a Store,
    now: Moment,
}

impl Taking<'_> {
    /// Judges the request, with the triggers that it is for, and sets a timer.
    fn judge(&self, mut locked: Locked, triggers: Option<Lineage>) -> Result<Answer> {
        let Taking {
            request,
            seen,
            plan,
            store,
            ref now,
            ..
        } = *self;
        let before = triggers.as_ref().map(|_| locked.record.clone());
        let settled = outcome::settle(store, &mut locked.record, now);
        self.look(&mut locked.record);
        let case = case(request, seen, None, store, Some(&locked.record), now);
        let mut place = place::find(seen, store, &locked.record, now);
        let mut order = plan.order.clone();
        // If the service in which a chain began stops, the whole chain stops.
        order.daemon = order.daemon.or(place.daemon);
        let rerun = place.rerun.take();
        let mut timer = timer(request, place, now);
        let not_before = match judge(&case) {
            Verdict::Schedule { not_before } => not_before,
            Verdict::Refuse(refusal) => {
                let name = &request.name;
                locked.record.note_refused(name, &refusal, now.clone());
                locked.commit()?;
                drop(locked);
                settled.note(store, &plan.target);
                let what = What::Refused;
                let change = Change::of_timer(&plan.target, name, &timer, what, moment());
                let exit = request.exit(&refusal);
                return Ok(Answer::of(store, change.refused(&refusal), exit));
            }
        };
        let range = request.jitter_range(timer.run);
        set_wait(&mut timer, not_before, range, self.run, now);
        let set = match (triggers, before) {
            (Some(triggers), Some(before)) => {
                self.set_triggers(&mut locked, timer, &order, &case, triggers, before)
            }
            _ => {
                let uid = request.around.uid;
                timer.lineage = triggered::lineage(seen, plan, uid, rerun.as_ref(), store, now);
                // These triggers have already had their run.
                timer.lineage.triggers.clear();
                self.set(&mut locked, &request.name, timer, &order, &case)
            }
        };
        drop(locked);
        let change = set?;
        settled.note(store, &plan.target);
        Ok(Answer::of(store, change, Exit::Success))
    }

    /// Stores facts about the run and the target in the record.
    fn look(&self, record: &mut Record) {
        let Taking {
            seen, plan, store, ..
        } = *self;
        if let Some(who) = seen.run_identity().filter(|_| plan.run_does_it) {
            let uptime = who.started();
            let wall = self.now.wall - self.now.uptime.since(uptime);
            let now = self.now.clone();
            record.note_run(&Moment {
                uptime,
                wall,
                ..now
            });
        }
        record.set_run_timeout(plan.run_timeout);
        let paths = plan.order.paths.clone();
        record.lock = paths.agent_catalog_run_lockfile;
        store.keep_command(
            &plan.target,
            &CommandLine {
                arguments: plan.order.arguments.clone(),
                directory: plan.order.directory.clone(),
            },
        );
    }

    /// Sets a timer under this name.
    fn set(
        &self,
        locked: &mut Locked,
        name: &str,
        mut timer: Timer,
        order: &Order,
        case: &Case,
    ) -> Result<Change> {
        let Taking {
            request,
            seen,
            plan,
            run,
            store,
            ref now,
        } = *self;
        let range = request.jitter_range(timer.run);
        if let Some(old) = locked.record.timers.get(name) {
            timer.keep_promises(old, now, is_alive);
            timer.take_over(old);
        }
        if !timer.lineage.is_empty() {
            store.note_triggered(&plan.target)?;
        }
        let wish = Arm {
            name,
            timer,
            order,
            run,
            save_environment: request.settings.save_environment,
            scope: wants_scope(&request.settings, request.around.uid),
        };
        let armed = arm(store, locked, wish)?;
        let limits = (case.cap, case.usage);
        let line = line::scheduled(request, name, seen, &armed, order, range, limits);
        let what = What::Requested;
        let change = Change::of_timer(&plan.target, name, &armed.timer, what, moment());
        let lineage = &change.entry.lineage;
        let wait = line::wait(request, &armed.timer, lineage);
        let mut change = change.because(wait).saying(line);
        let began = |who: Identity| now.wall - now.uptime.since(who.started());
        let is_first = armed.timer.run == 2;
        change.entry.began = seen.run_identity().filter(|_| is_first).map(began);
        Ok(change)
    }

    /// Adds triggers to a pending timer, or sets a timer for them, and syncs the record.
    fn set_triggers(
        &self,
        locked: &mut Locked,
        mut timer: Timer,
        order: &Order,
        case: &Case,
        triggers: Lineage,
        before: Record,
    ) -> Result<Change> {
        let Taking {
            request,
            store,
            ref now,
            ..
        } = *self;
        store.note_triggered(&locked.record.id)?;
        let goes = triggered::place(request, &triggers, &mut timer, &mut locked.record, now)?;
        let mut change = match goes {
            Goes::With(name) => {
                locked.commit()?;
                triggered::go_with(request, &name, &triggers, &locked.record)
            }
            Goes::As(name) => self.set(locked, &name, timer, order, case)?,
        };
        let kept = store.keep(&locked.record);
        kept.inspect_err(|_| {
            locked.record = before;
            if let Err(e) = locked.commit() {
                tracing::error!("the record may have triggers that were refused: {e:#}");
            }
        })?;
        change.entry.lineage = triggers;
        Ok(change)
    }
}

/// Timer for the request, before the decision.
fn timer(request: &Request<'_>, place: Place, now: &Moment) -> Timer {
    Timer {
        token: token(),
        chain: place.chain,
        run: place.run,
        origin: place.origin,
        resource: request.resource(),
        delta: request.delta(),
        jitter: Span::ZERO,
        base: request.base(),
        requested: now.clone(),
        waits_for: None,
        promises: Vec::new(),
        due: None,
        due_wall: None,
        hurry: false,
        put_off: Span::ZERO,
        held: None,
        waits: None,
        waiter: None,
        boot: now.boot.clone(),
        place: now.place,
        cap: request.settings.cap,
        max_runs_total: request.settings.max_runs_total,
        on_cap: request.settings.on_cap,
        scope: None,
        lineage: Lineage::default(),
        taken: Vec::new(),
    }
}

/// Sets the wait of a timer, and its due time if that is known.
fn set_wait(timer: &mut Timer, not_before: Span, range: Span, run: Option<&Handle>, now: &Moment) {
    let asked = timer.delta;
    timer.delta = asked.max(not_before);
    timer.put_off = Span::from_nanos(timer.delta.nanos() - asked.nanos());
    timer.jitter = delay::draw(range, &mut random());
    timer.waits_for = run.map(Handle::identity);
    if timer.base == Base::Request || run.is_none() {
        let wait = timer.delta + timer.jitter;
        timer.due = Some(now.uptime + wait);
        timer.due_wall = Some(now.wall + wait);
    }
}

/// Whether a waiter needs a scope of its own.
pub fn wants_scope(settings: &Settings, uid: u32) -> ScopeWish {
    if settings.scope == Scope::Never || !unit::systemd_is_here() || !unit::is_in_a_unit() {
        ScopeWish::None
    } else if uid == 0 {
        ScopeWish::Own
    } else {
        ScopeWish::Refused("only root gets one")
    }
}
