//! A request that a waiter takes.

use anyhow::{Context, Result};

use super::asked::{Answer, Request};
use super::case::case;
use super::line;
use super::observe::Observation;
use super::order::Plan;
use super::place::{self, Place};
use crate::config::{Scope, Settings};
use crate::model::{Base, Exit, Identity, Moment, Span};
use crate::outcome;
use crate::policy::delay;
use crate::policy::judge::{Verdict, judge};
use crate::state::change::Change;
use crate::state::files::token;
use crate::state::history::What;
use crate::state::order::{CommandLine, Order};
use crate::state::record::Timer;
use crate::state::store::{Locked, Store};
use crate::sys::clock::moment;
use crate::sys::pidfd::{self, Handle};
use crate::sys::process::is_alive;
use crate::sys::unit;
use crate::waiter::start::{Arm, Armed, ScopeWish, arm};

/// Judges the request by the record, and sets a timer.
///
/// # Errors
/// What went wrong; no timer was set then.
pub fn take(request: &Request<'_>, seen: &Observation, plan: &Plan) -> Result<Answer> {
    // Taken hold of while the run waits for us: no later process can be taken for it.
    let hold = |who: Identity| {
        pidfd::open(who).with_context(|| format!("cannot take hold of the run (pid {})", who.pid))
    };
    let run = seen.run_identity().map(hold).transpose()?;
    let store = Store::open(&request.settings.state_dir)?;
    let locked = store.lock(&plan.target, plan.order.kind, request.around.uid)?;
    let set_aside = locked.set_aside.clone();
    let answer = judge_and_take(request, seen, plan, run.as_ref(), &store, locked);
    // Said when the lock is free: a reader that is slow must hold up no run.
    if let Some(what) = set_aside {
        tracing::warn!("a record was rebuilt from the history: {what}");
    }
    answer
}

fn judge_and_take(
    request: &Request<'_>,
    seen: &Observation,
    plan: &Plan,
    run: Option<&Handle>,
    store: &Store,
    mut locked: Locked,
) -> Result<Answer> {
    let now = moment();
    let settled = outcome::settle(store, &mut locked.record, &now);
    if let Some(who) = seen.run_identity() {
        let uptime = who.started();
        let wall = now.wall - now.uptime.since(uptime);
        let now = now.clone();
        locked.record.note_run(&Moment {
            uptime,
            wall,
            ..now
        });
    }
    locked.record.set_run_timeout(plan.run_timeout);
    let paths = plan.order.paths.clone();
    locked.record.lock = paths.agent_catalog_run_lockfile;
    store.keep_command(
        &plan.target,
        &CommandLine {
            arguments: plan.order.arguments.clone(),
            directory: plan.order.directory.clone(),
        },
    );
    let case = case(request, seen, None, store, Some(&locked.record), &now);
    let place = place::find(seen, store, &locked.record, &now);
    // With the service that a chain began in, all of it stops.
    let daemon = plan.order.daemon.or(place.daemon);
    let mut timer = timer(request, place, &now);
    let name = request.name.as_str();
    let change = |timer: &Timer, what| Change::of_timer(&plan.target, name, timer, what, moment());
    let not_before = match judge(&case) {
        Verdict::Schedule { not_before } => not_before,
        Verdict::Refuse(refusal) => {
            locked.record.note_refused(name, &refusal, now);
            locked.commit()?;
            drop(locked);
            settled.note(store);
            let change = change(&timer, What::Refused).refused(&refusal);
            return Ok(Answer::of(store, change, refusal.exit()));
        }
    };
    let range = request.jitter_range(timer.run);
    set_wait(&mut timer, not_before, range, run, &now);
    if let Some(old) = locked.record.timers.get(name) {
        timer.keep_promises(old, &now, is_alive);
    }
    let order = Order {
        daemon,
        ..plan.order.clone()
    };
    let armed = start(request, store, &mut locked, timer, &order, run);
    drop(locked);
    let armed = armed?;
    settled.note(store);
    let line = line::scheduled(
        request,
        seen,
        &armed,
        order.kind,
        range,
        (case.cap, case.usage),
    );
    let change = change(&armed.timer, What::Requested).because(line::wait(request, &armed.timer));
    let mut change = change.saying(line);
    let began = |who: Identity| now.wall - now.uptime.since(who.started());
    let is_first = armed.timer.run == 2;
    change.entry.began = seen.run_identity().filter(|_| is_first).map(began);
    Ok(Answer::of(store, change, Exit::Success))
}
/// A timer for the request, not yet judged.
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
        waiter: None,
        boot: now.boot.clone(),
        place: now.place,
        cap: request.settings.cap,
        max_runs_total: Some(request.settings.max_runs_total),
        on_cap: request.settings.on_cap,
        scope: None,
    }
}

/// Sets how long a timer waits, and when it is due where that is known.
fn set_wait(timer: &mut Timer, not_before: Span, range: Span, run: Option<&Handle>, now: &Moment) {
    let asked = timer.delta;
    timer.delta = asked.max(not_before);
    timer.put_off = Span::from_nanos(timer.delta.nanos() - asked.nanos());
    timer.jitter = delay::draw(range, &mut rand::rng());
    timer.waits_for = run.map(Handle::identity);
    if timer.base == Base::Request || run.is_none() {
        let wait = timer.delta + timer.jitter;
        timer.due = Some(now.uptime + wait);
        timer.due_wall = Some(now.wall + wait);
    }
}

/// Starts the waiter, and records the timer.
fn start(
    request: &Request<'_>,
    store: &Store,
    locked: &mut Locked,
    timer: Timer,
    order: &Order,
    run: Option<&Handle>,
) -> Result<Armed> {
    let wish = Arm {
        name: &request.name,
        timer,
        order,
        run,
        save_environment: request.settings.save_environment,
        scope: wants_scope(&request.settings, request.around.uid),
    };
    arm(store, locked, wish)
}

/// Whether a waiter is to move into a scope of its own.
pub fn wants_scope(settings: &Settings, uid: u32) -> ScopeWish {
    if settings.scope == Scope::Never || !unit::systemd_is_here() || !unit::is_in_a_unit() {
        ScopeWish::None
    } else if uid == 0 {
        ScopeWish::Own
    } else {
        ScopeWish::Refused("only root gets one")
    }
}
