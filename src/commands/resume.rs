//! `again resume`: gives new waiters to timers that have lost theirs, mostly after a reboot.

use std::path::Path;

use anyhow::{Result, bail};

use super::targets::Account;
use crate::cli::{Global, Run};
use crate::config::{self, Settings, Surroundings};
use crate::outcome;
use crate::policy::resume;
use crate::state::change::About;
use crate::state::files::token;
use crate::state::history::What;
use crate::state::leaving;
use crate::state::order::{Order, decode};
use crate::state::record::{Running, Timer};
use crate::state::standing::{Standing, owner};
use crate::state::store::{Locked, Store};
use crate::waiter::start::{Arm, Armed, ScopeWish, arm};
use again_base::delay;
use again_base::layout::complain;
use again_base::model::{Exit, Kind, Moment};
use again_base::sys::clock::moment;
use again_base::sys::machine::random;
use again_base::sys::pidfd::{self, Handle};
use again_base::sys::{flock, localtime, user};

/// Resumes everything.
///
/// # Errors
/// The failures; everything else was resumed.
pub fn main(global: &Global) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, &Run::default(), &around)?;
    let store = Store::existing(&settings.state_dir);
    let resume = Resume::new(&store, &settings, false);
    let mut account = Account::new(&store, &[]);
    // From the directories too, because a power failure may have left entries out of the index.
    account.each_target(store.repair_index(), |account, id| {
        // The request died before it recorded anything; its files are removed.
        if matches!(store.read(id), Ok(None)) {
            if let Ok(locked) = store.lock(id, Kind::Command, around.uid) {
                store.remove_strays(&locked.record, &moment());
            }
            return Ok(());
        }
        resume.target(id, account)
    });
    store.forget_quiet(settings.cap.window, &moment());
    account.conclude("every pending timer has its waiter")
}

/// Resumes timers as a side effect of a command: each command that changes something gives new
/// waiters to timers that have lost theirs. A locked target is left to the next command.
pub fn in_passing(global: &Global, state_dir: &Path) {
    let store = Store::existing(state_dir).without_waiting();
    let mut ids = store.pending();
    ids.retain(|id| store.has_loose_order(id));
    if ids.is_empty() {
        return;
    }
    // Not the settings of a request, whose options apply to its own timer only.
    let Ok(settings) = config::of_command(global) else {
        return;
    };
    let resume = Resume::new(&store, &settings, true);
    let mut account = Account::new(&store, &[]);
    account.each_target(ids, |account, id| match resume.target(id, account) {
        Err(e) if flock::is_busy(&e) => Ok(()),
        done => done,
    });
    if let Err(e) = account.end() {
        tracing::warn!("not everything can be resumed: {e:#}");
    }
}

/// Inputs for resuming timers.
struct Resume<'a> {
    store: &'a Store,
    settings: &'a Settings,
    scope: ScopeWish,
    /// Whether another command resumes as a side effect: unchanged timers are then not mentioned.
    in_passing: bool,
}

impl<'a> Resume<'a> {
    fn new(store: &'a Store, settings: &'a Settings, in_passing: bool) -> Self {
        let scope = crate::request::waiter::wants_scope(settings, user::effective());
        Resume {
            store,
            settings,
            scope,
            in_passing,
        }
    }

    fn target(&self, id: &str, account: &mut Account) -> Result<()> {
        let mut locked = self.store.lock_existing(id)?;
        let set_aside = locked.set_aside.clone();
        let now = moment();
        let has_ended = |run: &Running| self.store.rerun_stands(id, run, &now) == Standing::Ended;
        // Timers of reruns that never began are pending again after this.
        if locked.record.running.iter().any(has_ended) {
            outcome::settle_locked(self.store, &mut locked, &now)?;
        }
        for (name, old) in locked.record.timers.clone() {
            match self.store.waiter_stands(id, &old, &now) {
                Standing::Alive => continue,
                Standing::Foreign { .. } if self.in_passing => continue,
                Standing::Foreign { whose, .. } => {
                    account.found(&name);
                    let (kind, whose) = (locked.record.kind, owner(whose, &old.boot, &now));
                    account.note(format!(
                        "again: left alone: timer '{name}' of {kind} is {whose}; 'again stop' clears it"
                    ));
                    continue;
                }
                Standing::Ended => {}
            }
            match self.timer(&mut locked, &name, &old, &now) {
                Ok(line) => {
                    account.found(&name);
                    account.did(About::timer(id, &name, &old), line);
                }
                Err(e) => account.failed(format!("timer '{name}': {e:#}")),
            }
        }
        drop(locked);
        if let Some(what) = set_aside {
            complain(&format!(
                "again: warning: a record was rebuilt from the history: {what}"
            ));
        }
        account.say();
        leaving::clean_up(self.store, id, &mut || false)?;
        Ok(())
    }

    /// Gives a timer another waiter. Returns the message.
    fn timer(&self, locked: &mut Locked, name: &str, old: &Timer, now: &Moment) -> Result<String> {
        let id = locked.record.id.clone();
        let order = match read_order(self.store, &id, old) {
            Ok(order) => order,
            Err(Unread::Now(e)) => bail!("the command of its rerun cannot be read: {e}"),
            Err(Unread::Ever(e)) => return self.lost(locked, name, old, now, &e),
        };
        // The waiter died while the requesting run lives on: that run has to end first.
        let run = old
            .waits_for
            .filter(|_| now.may_be_under(&old.boot))
            .and_then(pidfd::hold);
        let armed = self.arm(locked, name, old, &order, run.as_ref(), now)?;
        self.store.remove_order(&id, &old.token);
        // The waiter may have died just before it recorded the start.
        self.store.discount_lost(now, &old.token);
        let why = if now.may_be_under(&old.boot) {
            tracing::info!("the waiter of timer '{name}' had died; another takes its place");
            "its waiter had died"
        } else {
            "the machine was rebooted"
        };
        let resumed = About::timer(&id, name, &armed.timer).became(What::Resumed, moment());
        self.store.note(&resumed.because(why).entry);
        let when = match (armed.timer.due_wall, run) {
            (None, Some(run)) => format!(
                "{} after the end of its run, which still runs with pid {}",
                old.delta + old.jitter,
                run.identity().pid
            ),
            (due, _) => format!("at {}", localtime::local(due.unwrap_or(now.wall))),
        };
        let unscoped = armed.scope_failed.map_or_else(String::new, |why| {
            format!("; without a systemd scope of its own ({why})")
        });
        Ok(format!(
            "again: resumed: timer '{name}' of {} is due {when} ({why}; run {} of chain {}){unscoped}",
            locked.record.kind, old.run, old.chain
        ))
    }

    /// Starts the new waiter; the record is unchanged if that fails.
    fn arm(
        &self,
        locked: &mut Locked,
        name: &str,
        old: &Timer,
        order: &Order,
        run: Option<&Handle>,
        now: &Moment,
    ) -> Result<Armed> {
        let nth = old.run.saturating_sub(1);
        let settings = self.settings;
        let range = delay::jitter_range(old.delta, settings.jitter, settings.max_jitter, nth);
        let drawn = delay::draw(range, &mut random());
        let waits = run.is_some() && old.due.is_none();
        let rebooted = !now.may_be_under(&old.boot);
        let due = (!waits).then(|| resume::due(&old.wait(now), now, drawn));
        let mut promises = old.promises.clone();
        if !now.is_under(&old.boot) {
            promises.iter_mut().for_each(|one| one.limit(now));
        }
        let mut timer = Timer {
            token: token(),
            boot: now.boot.clone(),
            place: now.place,
            waits_for: run.map(Handle::identity),
            waiter: None,
            scope: None,
            held: None,
            waits: None,
            promises: if rebooted { Vec::new() } else { promises },
            jitter: if rebooted { drawn } else { old.jitter },
            due,
            due_wall: due.map(|due| now.wall + due.since(now.uptime)),
            ..old.clone()
        };
        if let Some(due) = due {
            let ready = if rebooted { due - drawn } else { due };
            // A time of another or an unknown boot may never come.
            let is_void = |ready| rebooted || (!now.is_under(&old.boot) && ready > due);
            let all = timer.taken.iter_mut().filter(|one| is_void(one.ready));
            all.for_each(|one| one.begin_anew(ready));
        }
        let before = locked.record.timers.remove(name);
        let wish = Arm {
            name,
            timer,
            order,
            run,
            save_environment: order.environment.is_some(),
            scope: self.scope,
        };
        arm(self.store, locked, wish).inspect_err(|_| {
            if let Some(before) = before {
                locked.record.timers.insert(name.to_owned(), before);
            }
        })
    }

    /// Gives up a timer whose command is permanently lost.
    fn lost(
        &self,
        locked: &mut Locked,
        name: &str,
        old: &Timer,
        now: &Moment,
        why: &str,
    ) -> Result<String> {
        let reason = format!("the command of its rerun cannot be read: {why}");
        let record = &mut locked.record;
        record.timers.remove(name);
        record.note_missed(name, What::Lost, &reason, now.clone());
        let lost = About::timer(&record.id, name, old).became(What::Lost, now.clone());
        locked.commit()?;
        self.store.note(&lost.because(reason.clone()).entry);
        self.store.remove_order(&locked.record.id, &old.token);
        self.store.discount_lost(now, &old.token);
        bail!("it is lost: {reason}")
    }
}

/// Reason why an order cannot be read.
enum Unread {
    /// A later attempt may succeed.
    Now(std::io::Error),
    /// The order is missing or damaged.
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
