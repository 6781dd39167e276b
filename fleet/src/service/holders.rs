//! The processes that this node's slots are for: what outlives a service of them, and of locks, and when they have ended.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use again_base::model::Identity;
use again_base::sys::file::{OnDisk, atomic_write};
use again_base::sys::{clock, process};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::alarm::waited_for;
use super::locks::Locks;
use super::slots::{Holder, Slots};
use crate::wire::name::Name;

/// The file of locks.
const LOCKS: &str = "locks";

/// What is done when a process has ended.
pub type Ended = Box<dyn FnOnce() + Send>;

/// Where is kept what outlives a service: it is about processes of one boot, which the first line names.
pub struct File(PathBuf);

impl File {
    /// In this directory, with what is kept there; ends of processes are told from now on. What another backend holds, where this one has
    /// no places, is left to its leases.
    pub fn open(
        directory: &Path,
        has_places: bool,
        ended: impl Fn(&Name, Identity) -> Ended,
    ) -> (File, Slots) {
        let path = directory.join("slots");
        if !has_places {
            let _ = fs::remove_file(&path);
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        let (boot, kept) = kept.split_once('\n').unwrap_or_default();
        let (mut slots, is_same) = (Slots::read(kept), boot == clock::boot_id());
        slots.now = clock::boottime();
        slots.begin(|group, run| {
            let Holder::Process(who) = run.who else {
                return true;
            };
            let held = if is_same { hold(who).ok() } else { None };
            let held = held.filter(|(_, file)| *file == run.file);
            held.is_some_and(|(fd, _)| tell_end(fd, ended(group, who)).is_ok())
        });
        (File(path), slots)
    }

    /// What is kept of locks beside it; it is about no boot.
    pub fn locks(&self) -> String {
        fs::read_to_string(self.0.with_file_name(LOCKS)).unwrap_or_default()
    }

    /// Writes the locks down. When this returns, they are on disk.
    ///
    /// # Errors
    /// They are not.
    pub fn write_locks(&self, locks: &Locks) -> io::Result<()> {
        let path = self.0.with_file_name(LOCKS);
        atomic_write(&path, locks.written().as_bytes(), 0o600, OnDisk::Name).map(drop)
    }

    /// Writes them down.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn write(&self, slots: &Slots) -> io::Result<()> {
        let text = format!("{}\n{}", clock::boot_id(), slots.written());
        atomic_write(&self.0, text.as_bytes(), 0o600, OnDisk::Nothing).map(drop)
    }
}

/// A process, and the number of the pidfd's file. Where /proc does not show it, its start cannot be compared.
///
/// # Errors
/// It has ended.
pub fn hold(who: Identity) -> io::Result<(OwnedFd, u64)> {
    let pid = Pid::from_raw(who.pid).ok_or(io::ErrorKind::NotFound)?;
    let fd = pidfd_open(pid, PidfdFlags::empty())?;
    match process::identify(who.pid) {
        Ok(now) if now != who => Err(io::ErrorKind::NotFound.into()),
        _ => {
            let file = rustix::fs::fstat(&fd)?.st_ino;
            Ok((fd, file))
        }
    }
}

/// Tells when a process has ended.
///
/// # Errors
/// Those of epoll_ctl(2).
pub fn tell_end(fd: OwnedFd, ended: Ended) -> io::Result<()> {
    let fd = waited_for(fd)?;
    tokio::spawn(async move {
        let _ = fd.readable().await;
        ended();
    });
    Ok(())
}
