//! `again resume`: arms again what has lost its waiter, after a reboot above all.

use anyhow::{Result, bail};

use super::{complain, has_waiter, say};
use crate::cli::{Global, Run};
use crate::config::{self, Settings, Surroundings};
use crate::model::{Exit, Kind, Moment};
use crate::outcome;
use crate::policy::{delay, resume};
use crate::state::change::{self, Change};
use crate::state::files::token;
use crate::state::history::What;
use crate::state::leaving;
use crate::state::order::{Order, decode};
use crate::state::record::Timer;
use crate::state::store::{Locked, Store};
use crate::sys::clock::moment;
use crate::sys::localtime;
use crate::sys::pidfd::{self, Handle};
use crate::waiter::start::{Arm, ScopeWish, arm};

/// Resumes everything.
///
/// # Errors
/// What could not be resumed; the rest was.
pub fn main(global: &Global) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, &Run::default(), &around)?;
    let store = Store::existing(&settings.state_dir);
    let scope = crate::request::wants_scope(&settings, around.uid);
    let mut resumed = 0;
    let mut failures = Vec::new();
    for id in store.targets() {
        // A request died before it recorded anything; what it wrote goes.
        if matches!(store.read(&id), Ok(None)) {
            if let Ok(locked) = store.lock(&id, Kind::Command, around.uid) {
                store.remove_strays(&locked.record, &moment().boot);
            }
            continue;
        }
        match resume_target(&store, &id, &settings, scope) {
            Ok((count, failed)) => {
                resumed += count;
                failures.extend(failed);
            }
            Err(e) => failures.push(format!("target {id}: {e:#}")),
        }
    }
    if resumed == 0 && failures.is_empty() {
        say(&format!(
            "again: nothing to do: every pending timer has its waiter (state in {})",
            settings.state_dir.display()
        ))?;
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(Exit::Success)
}

fn resume_target(
    store: &Store,
    id: &str,
    settings: &Settings,
    scope: ScopeWish,
) -> Result<(usize, Vec<String>)> {
    let mut locked = store.lock_existing(id)?;
    let set_aside = locked.set_aside.clone();
    let now = moment();
    let settled = outcome::settle(&mut locked.record, &now);
    locked.commit()?;
    settled.note(store);
    let without_waiter: Vec<(String, Timer)> = locked
        .record
        .timers
        .iter()
        .filter(|(_, timer)| !has_waiter(store, id, timer, &now.boot))
        .map(|(name, timer)| (name.clone(), timer.clone()))
        .collect();
    let mut lines = Vec::new();
    let mut failures = Vec::new();
    for (name, old) in without_waiter {
        match resume_timer(store, &mut locked, &name, &old, settings, scope, &now) {
            Ok(line) => lines.push(line),
            Err(e) => failures.push(format!("timer '{name}': {e:#}")),
        }
    }
    // Whoever does not read what we print must hold up no run.
    drop(locked);
    if let Some(what) = set_aside {
        complain(&format!("again: warning: a record was unreadable: {what}"));
    }
    let resumed = lines.len();
    for line in lines {
        say(&line)?;
    }
    leaving::clean_up(store, id, &mut || false)?;
    Ok((resumed, failures))
}

fn resume_timer(
    store: &Store,
    locked: &mut Locked,
    name: &str,
    old: &Timer,
    settings: &Settings,
    scope: ScopeWish,
    now: &Moment,
) -> Result<String> {
    let id = locked.record.id.clone();
    let order = match read_order(store, &id, old) {
        Ok(order) => order,
        Err(Unread::Now(e)) => bail!("what it is to run cannot be read: {e}"),
        Err(Unread::Ever(e)) => {
            // Nobody will ever know what it was to run.
            locked.record.timers.remove(name);
            let reason = format!("what it was to run cannot be read: {e}");
            let record = &mut locked.record;
            record.note_missed(name, What::Lost, &reason, now.clone());
            locked.commit()?;
            let lost = Change::of_timer(&id, name, old, What::Lost, now.clone());
            store.note(&lost.because(reason.clone()).entry);
            store.remove_order(&id, &old.token);
            bail!("it is lost: {reason}");
        }
    };
    let nth = old.run.saturating_sub(1);
    let range = delay::jitter_range(old.delta, settings.jitter, settings.max_jitter, nth);
    // Its waiter died while the run that asked lives on: that has to end first.
    let run = old
        .waits_for
        .filter(|_| old.boot == now.boot)
        .and_then(pidfd::hold);
    let waits = run.is_some() && old.due.is_none();
    let due = resume::due(
        &old.wait(&now.boot),
        now,
        delay::draw(range, &mut rand::rng()),
    );
    let timer = Timer {
        token: token(),
        boot: now.boot.clone(),
        waits_for: run.as_ref().map(Handle::identity),
        waiter: None,
        scope: None,
        held: None,
        due: (!waits).then_some(due),
        due_wall: (!waits).then(|| now.wall + due.since(now.uptime)),
        ..old.clone()
    };
    let before = locked.record.timers.remove(name);
    let armed = arm(
        store,
        locked,
        Arm {
            name,
            timer,
            order: &order,
            run: run.as_ref(),
            save_environment: order.environment.is_some(),
            scope,
        },
    );
    let armed = match armed {
        Ok(armed) => armed,
        Err(e) => {
            if let Some(before) = before {
                locked.record.timers.insert(name.to_owned(), before);
            }
            return Err(e);
        }
    };
    store.remove_order(&id, &old.token);
    let why = if old.boot == now.boot {
        "its waiter had died"
    } else {
        "the machine was rebooted"
    };
    let resumed = Change::of_timer(&id, name, &armed.timer, What::Resumed, moment());
    store.note(&resumed.because(why).entry);
    let unscoped = armed.scope_failed.map_or_else(String::new, |why| {
        format!("; without a systemd scope of its own ({why})")
    });
    let when = match run.filter(|_| waits) {
        Some(run) => format!(
            "{} after its run has ended, which still runs with pid {}",
            old.delta + old.jitter,
            run.identity().pid
        ),
        None => format!("at {}", localtime::local(now.wall + due.since(now.uptime))),
    };
    let line = format!(
        "again: resumed: timer '{name}' of {} is due {when} ({why}; run {} of chain {}){unscoped}",
        locked.record.kind, old.run, old.chain
    );
    change::log(&id, name, &old.chain, old.run, &line);
    Ok(line)
}

/// Why an order cannot be read.
enum Unread {
    /// It may be another time.
    Now(std::io::Error),
    /// It is gone or damaged.
    Ever(String),
}

fn read_order(store: &Store, id: &str, timer: &Timer) -> Result<Order, Unread> {
    let text = store
        .read_order(id, &timer.token)
        .map_err(|e| match e.raw_os_error() {
            Some(errno) if errno != nix::libc::ENOENT && errno != nix::libc::ELOOP => {
                Unread::Now(e)
            }
            _ => Unread::Ever(e.to_string()),
        })?;
    decode(&text).map(|(_, order)| order).map_err(Unread::Ever)
}
