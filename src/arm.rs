//! Setting a timer: order, waiter, record, in an order that leaves no gap.
//!
//! The waiter is started first, and blocks until it is told to go on. The record
//! that names it is then committed: that is the moment at which the promise is
//! made and an older timer of the same name is replaced. If we die before it, the
//! waiter finds itself unnamed and ends; if after it, the waiter finds itself named
//! and goes on without having been told. The new waiter also ends the one that it
//! replaces, on its own time rather than Puppet's.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::commands::wait;
use crate::model::Identity;
use crate::state::change::Change;
use crate::state::history::What;
use crate::state::order::{Order, Ticket, encode};
use crate::state::record::{Leaving, Timer};
use crate::state::store::{Locked, Store};
use crate::sys::pidfd::{self, Handle};
use crate::sys::spawn::{self, Image, Plan};
use crate::sys::{attributes::SignalState, clock, title};

/// How long systemd may take to make a scope.
const SCOPE_LIMIT: Duration = Duration::from_secs(10);
/// How long a program may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a replaced waiter may take to end before it is killed.
const REPLACED_LIMIT: Duration = Duration::from_secs(1);

/// What is to be armed.
#[derive(Debug)]
pub struct Arm<'a> {
    /// The timer's name.
    pub name: &'a str,
    /// The timer; its waiter and scope are filled in here.
    pub timer: Timer,
    /// What it runs.
    pub order: &'a Order,
    /// The run to wait for.
    pub run: Option<&'a Handle>,
    /// Whether the environment is kept on disk.
    pub save_environment: bool,
    /// Whether to try for a scope of systemd's.
    pub scope: ScopeWish,
}

/// Whether a waiter is to move into a systemd scope of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeWish {
    /// It stays where it is.
    None,
    /// It needs one.
    Own,
    /// It needs one and cannot have it, for this reason.
    Refused(&'static str),
}

/// What came of it.
#[derive(Debug)]
pub struct Armed {
    /// The timer as recorded.
    pub timer: Timer,
    /// The timer it replaced.
    pub replaced: Option<Timer>,
    /// Why there is no scope, where there should be one.
    pub scope_failed: Option<String>,
}

/// Arms a timer and commits the record. On failure nothing is left behind.
///
/// # Errors
/// What failed on which file or process; the record is then as it was.
pub fn arm(store: &Store, locked: &mut Locked, arm: Arm<'_>) -> Result<Armed> {
    let Arm {
        name,
        mut timer,
        order,
        run,
        save_environment,
        scope,
    } = arm;
    let id = locked.record.id.clone();
    let ticket = Ticket {
        state_dir: store.root().into(),
        target: id.clone(),
        name: name.to_owned(),
        token: timer.token.clone(),
        run: run.map(Handle::identity),
    };
    let full = encode(&ticket, order)?;
    let on_disk = if save_environment {
        full.clone()
    } else {
        let without = Order {
            environment: None,
            ..order.clone()
        };
        encode(&ticket, &without)?
    };
    let lock: OwnedFd = store.write_order(&id, &timer.token, &on_disk)?.into();
    let token = timer.token.clone();
    let undo = |e: anyhow::Error| {
        store.remove_order(&id, &token);
        e
    };
    let memory = spawn::memory_file(c"again-order", &full)
        .context("cannot pass the order to the waiter")
        .map_err(undo)?;
    let before = locked.record.clone();
    let replaced = locked.record.take_timer(name);
    let mut unit = (scope == ScopeWish::Own).then(|| unit_name(name, &timer.token));
    let mut properties = SCOPE_PROPERTIES;
    let mut scope_failed = match scope {
        ScopeWish::Refused(why) => Some(why.to_owned()),
        ScopeWish::None | ScopeWish::Own => None,
    };
    let started = loop {
        let mut start = || {
            let scope = unit.as_deref().map(|unit| (unit, properties));
            let starting = Starting::begin(name, run, &memory, &lock, scope)?;
            timer.waiter = Some(starting.waiter);
            timer.scope.clone_from(&unit);
            locked.record.timers.insert(name.to_owned(), timer.clone());
            // Written to the disk while the waiter gets ready; both take long.
            let draft = locked.draft().and_then(|mut draft| {
                draft.sync()?;
                Ok(draft)
            });
            starting.finish().map(|go| (draft, go))
        };
        match start() {
            // A systemd that knows no such property of a scope.
            Err(e) if !properties.is_empty() && format!("{e:#}").contains(OOM_POLICY) => {
                properties = &[];
            }
            Err(e) if unit.is_some() => {
                scope_failed = Some(format!("{e:#}"));
                unit = None;
            }
            started => break started.context("cannot start the waiter"),
        }
    };
    // Where there is no record, the waiter finds that none names it, and ends.
    let promised = started.and_then(|(draft, go)| draft?.exchange().map(|()| go));
    match promised {
        Ok(go) => spawn::tell_ready(go),
        Err(e) => {
            locked.record = before;
            return Err(undo(e));
        }
    }
    if let Some(old) = &replaced {
        let change = Change::of_timer(&id, name, old, What::Merged, clock::moment())
            .because("replaced by a newer request of the same name");
        store.note(&change.entry);
    }
    Ok(Armed {
        timer,
        replaced,
        scope_failed,
    })
}

/// Finishes what a replacement, a stop or a killed process has left of a target:
/// ends the waiters of timers that are no longer on record, and removes files that
/// nothing refers to. Call without the target's lock: a waiter may be waiting for it.
///
/// Returns the tokens of waiters that do not end. They start nothing all the same,
/// and stay on the list. `is_interrupted` ends the waiting for them.
///
/// # Errors
/// What failed on which file.
pub fn clean_up(
    store: &Store,
    id: &str,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Result<Vec<String>> {
    let boot = crate::sys::clock::boot_id();
    let me = crate::sys::process::own_identity().ok();
    let found = store.lock_existing(id)?;
    if let Some(what) = &found.set_aside {
        tracing::error!("what was pending on target {id} is lost: {what}");
    }
    let leaving: Vec<Leaving> = found
        .record
        .leaving
        .iter()
        // Replaced ourselves meanwhile: that is for our successor to finish.
        .filter(|leaving| me.is_none() || leaving.waiter != me)
        .cloned()
        .collect();
    drop(found);
    let stayed = dismiss_all(store, id, &leaving, &boot, is_interrupted);
    let mut locked = store.lock_existing(id)?;
    let before = locked.record.leaving.len();
    locked.record.leaving.retain(|one| {
        stayed.contains(&one.token) || !leaving.iter().any(|done| done.token == one.token)
    });
    if locked.record.leaving.len() != before {
        locked.commit()?;
    }
    store.remove_strays(&locked.record, &boot);
    Ok(stayed)
}

/// Ends waiters, all at once, and removes the orders of those that have ended. The
/// tokens of those that have not.
pub fn dismiss_all(
    store: &Store,
    id: &str,
    leaving: &[Leaving],
    boot: &str,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Vec<String> {
    let mut alive: Vec<(&Leaving, Handle)> = leaving
        .iter()
        .filter(|one| one.boot == boot)
        .filter_map(|one| Some((one, pidfd::open(one.waiter?).ok()?)))
        .collect();
    for signal in [nix::libc::SIGTERM, nix::libc::SIGKILL] {
        for (_, handle) in &alive {
            let _ = handle.signal(signal);
        }
        let deadline = Instant::now() + REPLACED_LIMIT;
        while !alive.is_empty() && Instant::now() < deadline && !is_interrupted() {
            let (_, first) = &alive[0];
            first.wait(Duration::from_millis(20));
            alive.retain(|(_, handle)| !handle.wait(Duration::ZERO));
        }
        if is_interrupted() {
            break;
        }
    }
    let stayed: Vec<String> = alive.iter().map(|(one, _)| one.token.clone()).collect();
    for one in leaving.iter().filter(|one| !stayed.contains(&one.token)) {
        store.remove_order(id, &one.token);
        if let Some(waiter) = one.waiter {
            store.forget_rerun(waiter);
        }
    }
    stayed
}

/// A waiter that has been started and is not ready yet.
/// Of scopes since systemd 253 (its NEWS), and in what distributions have made of 252.
const OOM_POLICY: &str = "OOMPolicy";

/// One process killed for want of memory must not take the rest of the scope along.
const SCOPE_PROPERTIES: &[&str] = &["--property=OOMPolicy=continue"];

struct Starting {
    waiter: Identity,
    ready: OwnedFd,
    go: OwnedFd,
    limit: Duration,
    program: PathBuf,
}

impl Starting {
    /// Starts it, in a scope of systemd's if there is a name for one, with properties.
    fn begin(
        name: &str,
        run: Option<&Handle>,
        memory: &OwnedFd,
        lock: &OwnedFd,
        scope: Option<(&str, &[&str])>,
    ) -> Result<Self> {
        let (go_reader, go_writer) = spawn::pipe().context("cannot make a pipe")?;
        let (ready_reader, ready_writer) = spawn::pipe().context("cannot make a pipe")?;
        let program = own_program();
        let run_fd = match run {
            Some(Handle::Pidfd(fd, _)) => Some(fd),
            _ => None,
        };
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some((unit, properties)) = scope {
            let fixed = ["systemd-run", "--scope", "--quiet", "--collect"];
            let named = [
                format!("--unit={unit}"),
                format!("--description=again: timer '{name}'"),
                "--".to_owned(),
            ];
            arguments.extend(fixed.iter().chain(properties).map(OsString::from));
            arguments.extend(named.map(OsString::from));
            arguments.push(program.clone().into_os_string());
        } else {
            arguments.push("again".into());
        }
        arguments.extend(wait::arguments(
            memory,
            lock,
            run_fd,
            &go_reader,
            &ready_writer,
        ));
        arguments.push(" ".repeat(title::ROOM).into());
        let program = match scope {
            Some(_) => PathBuf::from("/usr/bin/systemd-run"),
            None => program,
        };
        // Of all that a waiter is told by us, the rerun gets nothing.
        let log_level = std::env::var_os("AGAIN_LOG").map(|level| {
            let mut entry = OsString::from("AGAIN_LOG=");
            entry.push(level);
            entry
        });
        let mut keep = vec![memory, lock, &go_reader, &ready_writer];
        keep.extend(run_fd);
        let waiter = spawn::start(
            &Plan {
                image: Image {
                    programs: vec![program.clone()],
                    arguments,
                    environment: log_level.into_iter().collect(),
                },
                keep: &keep,
                signals: SignalState::default(),
                errors_to_ready: scope.is_some(),
            },
            &ready_writer,
        )
        .context("cannot start a process")?;
        Ok(Starting {
            waiter,
            ready: ready_reader,
            go: go_writer,
            limit: if scope.is_some() {
                SCOPE_LIMIT
            } else {
                START_LIMIT
            },
            program,
        })
    }

    /// Waits until it says that it is there. The pipe by which it is told to go on.
    fn finish(self) -> Result<OwnedFd> {
        if let Err(e) = spawn::await_ready(self.ready, self.limit) {
            // Our own child, not yet reaped: its pid cannot be anybody else's.
            let pid = nix::unistd::Pid::from_raw(self.waiter.pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            spawn::reap(self.waiter.pid);
            return Err(e).with_context(|| self.program.display().to_string());
        }
        Ok(self.go)
    }
}

/// Our own program, also when it was replaced or removed since we started.
fn own_program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if !crate::puppet::live::is_deleted(&path) => path,
        // Whoever opens this gets the file that we run, whatever its name is now.
        _ => PathBuf::from(format!("/proc/{}/exe", std::process::id())),
    }
}

/// The name of a timer's scope, such as `again-kick_start-0123abcd.scope`.
fn unit_name(name: &str, token: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(64)
        .collect();
    format!("again-{plain}-{}.scope", token.get(..8).unwrap_or(token))
}

/// Whether systemd is here to make a scope, by sd_booted(3).
pub fn systemd_is_here() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Whether this process is in the cgroup of a service or of a login session, so
/// that something may clean up after it.
pub fn is_in_a_unit() -> bool {
    std::fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| is_a_units_cgroup(&text))
}

/// Reads proc_pid_cgroup(5): systemd's own hierarchy is the unified one, or on older
/// systems the one named systemd. The others may have been set up by anybody.
pub fn is_a_units_cgroup(text: &str) -> bool {
    text.lines()
        .filter_map(|line| {
            line.strip_prefix("0::")
                .or_else(|| line.split_once(":name=systemd:").map(|(_, path)| path))
        })
        .flat_map(|path| path.split('/'))
        .any(|part| {
            Path::new(part)
                .extension()
                .is_some_and(|e| e == OsStr::new("service") || e == OsStr::new("scope"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_a_units_cgroup() {
        assert!(is_a_units_cgroup("0::/system.slice/puppet-run.service\n"));
        assert!(is_a_units_cgroup(
            "0::/user.slice/user-0.slice/session-1.scope\n"
        ));
        assert!(is_a_units_cgroup(
            "4:cpu:/\n1:name=systemd:/system.slice/cron.service\n"
        ));
        assert!(!is_a_units_cgroup("0::/\n9:memory:/docker/x.scope\n"));
        assert!(!is_a_units_cgroup("0::/user.slice\n"));
        assert!(!is_a_units_cgroup(""));
    }

    #[test]
    fn a_units_name_has_nothing_odd_in_it() {
        assert_eq!(
            unit_name("peers joined/é", "0123456789abcdef"),
            "again-peers_joined__-01234567.scope"
        );
    }
}
