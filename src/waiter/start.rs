//! Setting a timer: order, waiter, record, in an order that leaves no gap.
//!
//! The waiter is started first, and blocks until the requester lets it continue. The record that
//! names it is then committed: at that moment the promise is made, and an older timer of the same
//! name is replaced. If the requester dies before that, the waiter finds that the record does not
//! name it and ends; if after, the waiter finds that the record names it and continues by itself.
//! The new waiter also ends the one that it replaces, on its own time rather than Puppet's.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};

use super::handshake::{NotReady, Starting};
use crate::state::change::Change;
use crate::state::history::What;
use crate::state::order::{Order, Ticket, encode};
use crate::state::record::Timer;
use crate::state::store::{Locked, Store};
use crate::sys::unit;
use again_base::sys::pidfd::Handle;
use again_base::sys::{clock, spawn};

/// Timer to arm.
#[derive(Debug)]
pub struct Arm<'a> {
    /// Name of the timer.
    pub name: &'a str,
    /// Timer record; its waiter and scope are filled in by [`arm`].
    pub timer: Timer,
    /// Order that the timer executes.
    pub order: &'a Order,
    /// Run that has to end first.
    pub run: Option<&'a Handle>,
    /// Whether the environment is stored on disk.
    pub save_environment: bool,
    /// Whether to try to create a systemd scope.
    pub scope: ScopeWish,
}

/// Whether a waiter is to move into a systemd scope of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeWish {
    /// A scope is not needed.
    None,
    /// A scope is needed.
    Own,
    /// A scope is needed but cannot be created, for this reason.
    Refused(&'static str),
}

/// The result of arming.
#[derive(Debug)]
pub struct Armed {
    /// Timer as recorded.
    pub timer: Timer,
    /// Timer that it replaced.
    pub replaced: Option<Timer>,
    /// Reason why there is no scope, although one was wanted.
    pub scope_failed: Option<String>,
}

/// Arms a timer and commits the record. On failure nothing is left behind.
///
/// # Errors
/// The failed operation and its file or process; the record is then unchanged.
pub fn arm(store: &Store, locked: &mut Locked, mut arm: Arm<'_>) -> Result<Armed> {
    let id = locked.record.id.clone();
    let ticket = Ticket {
        state_dir: store.root().into(),
        target: id.clone(),
        name: arm.name.to_owned(),
        token: arm.timer.token.clone(),
        run: arm.run.map(Handle::identity),
        others: arm.timer.promises.iter().filter_map(|p| p.run).collect(),
    };
    let full = encode(&ticket, arm.order)?;
    let on_disk = if arm.save_environment {
        full.clone()
    } else {
        let environment = None;
        let order = arm.order.clone();
        encode(
            &ticket,
            &Order {
                environment,
                ..order
            },
        )?
    };
    let lock: OwnedFd = store.write_order(&id, &ticket.token, &on_disk)?.into();
    let before = locked.record.clone();
    let replaced = locked.record.take_timer(arm.name);
    let armed = spawn::memory_file(c"again-order", &full)
        .or_else(|_| store.unnamed_order(&id, &full))
        .context("cannot pass the order to the waiter")
        .and_then(|order| start(locked, &mut arm, &order, &lock))
        .inspect_err(|_| {
            store.remove_order(&id, &ticket.token);
            locked.record = before;
        });
    let scope_failed = armed?;
    if let Some(old) = &replaced {
        let change = Change::of_timer(&id, arm.name, old, What::Merged, clock::moment())
            .because("replaced by a newer request of the same name");
        store.note(&change.entry);
    }
    Ok(Armed {
        timer: arm.timer,
        replaced,
        scope_failed,
    })
}

/// Starts the waiter and commits the record that names it, in a scope if one is wanted and can be
/// created. Returns the reason why there is no scope.
fn start(
    locked: &mut Locked,
    arm: &mut Arm<'_>,
    order: &OwnedFd,
    lock: &OwnedFd,
) -> Result<Option<String>> {
    let mut scope_failed = match arm.scope {
        ScopeWish::Refused(why) => Some(why.to_owned()),
        ScopeWish::None | ScopeWish::Own => None,
    };
    let mut unit = (arm.scope == ScopeWish::Own).then(|| unit_name(arm.name, &arm.timer.token));
    // Older versions of systemd do not know this property of a scope, so a failed attempt with a
    // message is repeated once without it.
    let mut with_policy = true;
    loop {
        let through = unit.as_ref().map_or_else(Vec::new, |unit| {
            unit::scope(unit, &format!("again: timer '{}'", arm.name), with_policy)
        });
        let mut attempt = || -> Result<_, NotReady> {
            let starting = Starting::begin(order, lock, arm.run, &through)?;
            arm.timer.waiter = Some(starting.waiter);
            arm.timer.scope.clone_from(&unit);
            let timers = &mut locked.record.timers;
            timers.insert(arm.name.to_owned(), arm.timer.clone());
            // Written to disk while the waiter gets ready; both take long.
            let draft = locked.draft();
            Ok((starting.finish()?, draft))
        };
        let why = match attempt() {
            Ok((go, draft)) => {
                // Without a record, the waiter finds that none names it, and ends.
                draft?.publish()?;
                drop(go);
                return Ok(scope_failed);
            }
            Err(NotReady::Said(_)) if with_policy && unit.is_some() => {
                with_policy = false;
                continue;
            }
            Err(NotReady::Said(words)) if words.is_empty() => "it ended without a word".to_owned(),
            Err(NotReady::Said(words)) => words,
            Err(NotReady::Failed(e)) => e.to_string(),
        };
        let own = spawn::own_program().into_os_string();
        let program = through.first().unwrap_or(&own).display();
        if unit.take().is_none() {
            bail!("cannot start the waiter: {program}: {why}");
        }
        scope_failed = Some(format!("{program}: {why}"));
    }
}

/// Name of a timer's scope, such as `again-kick_start-0123abcd.scope`.
fn unit_name(name: &str, token: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(64)
        .collect();
    format!("again-{plain}-{}.scope", token.get(..8).unwrap_or(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_units_name_has_nothing_odd_in_it() {
        assert_eq!(
            unit_name("peers joined/é", "0123456789abcdef"),
            "again-peers_joined__-01234567.scope"
        );
    }
}
