//! `again run`: a request.

use anyhow::{Context, Result, bail};

use super::{complain, say};
use crate::cli::{Global, Run};
use crate::config::{self, Scope, Settings, Surroundings};
use crate::layout::quoted;
use crate::model::{Base, Exit, Identity, Moment, Refusal, Span, Usage, Use};
use crate::observe::{self, Observation};
use crate::outcome;
use crate::policy::cap;
use crate::policy::delay;
use crate::policy::judge::{Case, Verdict, judge};
use crate::state::change::Change;
use crate::state::files::token;
use crate::state::history::What;
use crate::state::order::Order;
use crate::state::record::{Origin, Record, Timer};
use crate::state::store::Store;
use crate::sys::attributes::SignalState;
use crate::sys::clock::moment;
use crate::sys::{pidfd, unit};
use crate::target;
use crate::waiter::start::{Arm, Armed, ScopeWish, arm};

/// The name of a timer that got none.
const DEFAULT_NAME: &str = "again";

/// Makes a request.
///
/// # Errors
/// What went wrong; no timer was set then.
pub fn main(global: &Global, run: &Run, signals: SignalState) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, run, &around)?;
    let name = name(run)?;
    if run.command.first().is_some_and(|word| word.is_empty()) {
        return Err(Usage("the command has no name: its first word is empty".into()).into());
    }
    let given = config::given_paths(run);
    let seen = observe::observe(
        observe::parent(),
        &run.command,
        &given,
        &settings,
        &around,
        signals,
    )?;
    // A driver above runs its own command again; another one is for a waiter.
    if run.command.is_empty()
        && let Some(exit) = super::handover::main(run, &settings, &seen, &name, around.uid)?
    {
        return Ok(exit);
    }
    let now = moment();
    let Some(order) = &seen.order else {
        return refuse_without_target(&seen, &settings, &now);
    };
    // Taken hold of while the run waits for us: no later process can be taken for it.
    let handle = seen
        .run_identity()
        .map(|who| {
            pidfd::open(who)
                .with_context(|| format!("cannot take hold of the run (pid {})", who.pid))
        })
        .transpose()?;
    let store = Store::open(&settings.state_dir)?;
    let id = target::id(order, around.uid);
    let mut locked = store.lock(&id, order.kind, around.uid)?;
    // Said when the lock is free: whoever does not read what we print must hold up no run.
    let set_aside = locked.set_aside.clone();
    let warn = || {
        if let Some(what) = &set_aside {
            complain(&format!("again: warning: a record was unreadable: {what}"));
        }
    };
    let settled = outcome::settle(&mut locked.record, &now);
    if let Some(who) = seen.run_identity() {
        locked.record.note_run(&started_moment(who, &now));
    }
    let usage = cap::usage(settings.cap, locked.record.moments(), &now);
    let case = Case {
        above: seen.above.clone(),
        disabled: store.disabled().map(|disabled| disabled.reason),
        cap: settings.cap,
        usage,
        on_cap: settings.on_cap,
    };
    let not_before = match judge(&case) {
        Verdict::Schedule { not_before } => not_before,
        Verdict::Refuse(refusal) => {
            let place = place(&seen, &store, &locked.record, &now);
            locked.record.note_refused(&name, &refusal, now.clone());
            let committed = locked.commit();
            drop(locked);
            warn();
            committed?;
            settled.note(&store);
            let timer = timer(run, &settings, &now, &place, Span::ZERO, Span::ZERO);
            let change = Change::of_timer(&id, &name, &timer, What::Refused, now).refused(&refusal);
            store.note(&change.entry);
            change.log();
            return report(&refusal);
        }
    };
    let place = place(&seen, &store, &locked.record, &now);
    // With the service that a chain began in, all of it stops.
    let inherited;
    let order = match place.daemon {
        daemon @ Some(_) if order.daemon.is_none() => {
            inherited = Order {
                daemon,
                ..order.clone()
            };
            &inherited
        }
        _ => order,
    };
    let delta = run.delta.unwrap_or(Span::ZERO);
    let range = delay::jitter_range(delta, settings.jitter, settings.max_jitter, place.run - 1);
    let jitter = delay::draw(range, &mut rand::rng());
    let mut timer = timer(run, &settings, &now, &place, delta.max(not_before), jitter);
    timer.put_off = Span::from_nanos(timer.delta.nanos().saturating_sub(delta.nanos()));
    timer.waits_for = seen.run_identity();
    if timer.base == Base::Request || handle.is_none() {
        let wait = timer.delta + timer.jitter;
        timer.due = Some(now.uptime + wait);
        timer.due_wall = Some(now.wall + wait);
    }
    let armed = arm(
        &store,
        &mut locked,
        Arm {
            name: &name,
            timer,
            order,
            run: handle.as_ref(),
            save_environment: settings.save_environment,
            scope: wants_scope(&settings, around.uid),
        },
    );
    drop(locked);
    warn();
    let armed = armed?;
    settled.note(&store);
    let mut line = scheduled_line(&name, &armed, order, range, usage, &settings);
    if run.command.is_empty()
        && let Some(pid) = super::handover::stranger(&seen)
    {
        line.push_str(&format!(
            "; 'again converge' above it (pid {pid}) does not take it: it keeps its state in another directory than {}, or is not in a run",
            settings.state_dir.display()
        ));
    }
    let mut wait = format!("delta {delta}, jitter {}", armed.timer.jitter);
    if armed.timer.put_off > Span::ZERO {
        wait.push_str(&format!(", put off {} by the cap", armed.timer.put_off));
    }
    if let Some(resource) = &armed.timer.resource {
        wait.push_str(&format!(", by {resource}"));
    }
    let change = Change::of_timer(&id, &name, &armed.timer, What::Requested, moment())
        .because(wait)
        .saying(line);
    store.note(&change.entry);
    let said = super::say_change(&change);
    // Whoever does not read it does not want to be told so either.
    if let Err(e) = said
        && e.kind() != std::io::ErrorKind::BrokenPipe
    {
        complain(&format!("again: warning: the timer is set, but {e}"));
    }
    Ok(Exit::Success)
}

/// Whether the waiter is to move into a scope of its own.
pub fn wants_scope(settings: &Settings, uid: u32) -> ScopeWish {
    if settings.scope == Scope::Never || !unit::systemd_is_here() || !unit::is_in_a_unit() {
        ScopeWish::None
    } else if uid == 0 {
        ScopeWish::Own
    } else {
        ScopeWish::Refused("only root gets one")
    }
}

/// A timer's name, checked.
fn name(run: &Run) -> Result<String> {
    let name = run.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned());
    if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
        return Err(Usage(format!(
            "a timer cannot have this name: use 1 to 200 bytes without control characters ('{}')",
            name.escape_debug()
        ))
        .into());
    }
    Ok(name)
}

/// The resource that asks. It is only shown, so nothing about it is an error.
pub(super) fn resource(run: &Run) -> Option<String> {
    let text = run.resource.as_ref()?.to_string_lossy();
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let text: String = text.chars().take(200).map(plain).collect();
    (!text.is_empty()).then_some(text)
}

/// Judges what needs no target: there is nothing that could be run.
fn refuse_without_target(seen: &Observation, settings: &Settings, now: &Moment) -> Result<Exit> {
    let case = Case {
        above: seen.above.clone(),
        disabled: None,
        cap: settings.cap,
        usage: Use {
            used: 0,
            frees_in: Span::ZERO,
        },
        on_cap: settings.on_cap,
    };
    match judge(&case) {
        Verdict::Refuse(refusal) => report(&refusal),
        Verdict::Schedule { .. } => bail!("nothing to run was found (at {})", now.wall.millis()),
    }
}

/// Prints a refusal in its one line.
pub fn report(refusal: &Refusal) -> Result<Exit> {
    let line = format!("again: {refusal}");
    if refusal.exit() == Exit::Success {
        say(&line)?;
    } else {
        complain(&line);
    }
    Ok(refusal.exit())
}

/// Where a rerun stands in its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The chain's id.
    pub chain: String,
    /// The number of the rerun asked for; the first run is 1.
    pub run: u32,
    /// Where the request came from.
    pub origin: Origin,
    /// The agent daemon whose run began the chain, if one did.
    pub daemon: Option<Identity>,
}

/// Finds the chain by the processes above us: a record says which of them is a rerun.
pub fn place(seen: &Observation, store: &Store, record: &Record, now: &Moment) -> Place {
    let from = seen.run.unwrap_or(0);
    // A rerun's command may have become this very process.
    let me = crate::sys::process::own_identity()
        .ok()
        .filter(|_| seen.run.is_none());
    let above = seen.chain.iter().skip(from).map(|seen| seen.identity);
    let rerun = me
        .into_iter()
        .chain(above)
        .find_map(|who| store.rerun_of(who, &now.boot));
    let origin = if seen.run.is_some() {
        Origin::Run
    } else {
        Origin::Command
    };
    if let Some(rerun) = rerun {
        return Place {
            run: record.next_number(&rerun.chain, rerun.run.saturating_add(1)),
            chain: rerun.chain,
            origin,
            daemon: rerun.daemon,
        };
    }
    // Outside any run and any rerun, each request begins a chain of its own.
    let chain = seen.run_identity().map_or_else(
        || token().get(..8).unwrap_or_default().to_owned(),
        |who| target::chain_id(who, &now.boot),
    );
    Place {
        run: record.next_number(&chain, 2),
        chain,
        origin,
        daemon: None,
    }
}

fn timer(
    run: &Run,
    settings: &Settings,
    now: &Moment,
    place: &Place,
    delta: Span,
    jitter: Span,
) -> Timer {
    Timer {
        token: token(),
        chain: place.chain.clone(),
        run: place.run,
        origin: place.origin.clone(),
        resource: resource(run),
        delta,
        jitter,
        base: if run.start_timer_now {
            Base::Request
        } else {
            Base::End
        },
        requested: now.clone(),
        waits_for: None,
        due: None,
        due_wall: None,
        hurry: false,
        put_off: Span::ZERO,
        held: None,
        waiter: None,
        boot: now.boot.clone(),
        cap: settings.cap,
        on_cap: settings.on_cap,
        scope: None,
    }
}

/// When the run started, on both clocks.
fn started_moment(who: crate::model::Identity, now: &Moment) -> Moment {
    let uptime = Identity::started(who);
    Moment {
        boot: now.boot.clone(),
        uptime,
        wall: now.wall - now.uptime.since(uptime),
    }
}

fn scheduled_line(
    name: &str,
    armed: &Armed,
    order: &Order,
    range: Span,
    usage: Use,
    settings: &Settings,
) -> String {
    let timer = &armed.timer;
    let wait = if range == Span::ZERO {
        timer.delta.to_string()
    } else {
        format!("{} to {}", timer.delta, timer.delta + range)
    };
    let from = match (timer.base, timer.waits_for) {
        (_, None) => "from now".to_owned(),
        (Base::Request, Some(run)) => {
            format!("from now, and after this run has ended (pid {})", run.pid)
        }
        (Base::End, Some(run)) => format!("after this run has ended (pid {})", run.pid),
    };
    let mut line = format!(
        "again: scheduled: {} runs again {wait} {from} (timer '{name}', run {} of chain {}, {} of at most {} reruns within {} used); see it by: again status; cancel it by: again stop {}",
        order.kind,
        timer.run,
        timer.chain,
        usage.used,
        settings.cap.max_runs,
        settings.cap.window,
        as_argument(name),
    );
    if armed.replaced.is_some() {
        line.push_str("; it replaces the pending timer of that name");
    }
    if let Some(why) = &armed.scope_failed {
        line.push_str(&format!(
            "; without a systemd scope of its own it ends with the unit it is in ({})",
            why.replace('\n', " ")
        ));
    }
    line
}

/// A timer's name as it can be given to `again stop`.
fn as_argument(name: &str) -> String {
    let dashes = if name.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_typed_as_it_is_shown() {
        assert_eq!(quoted("again"), "again");
        assert_eq!(quoted("peers joined"), "'peers joined'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(as_argument("-dash"), "-- -dash");
    }
}
