//! Processes that hold slots, whose ends are watched, and the files that keep slots and locks when
//! the service restarts.

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

/// Name of the file with the locks.
const LOCKS: &str = "locks";

/// Callback for the end of a process.
pub type Ended = Box<dyn FnOnce() + Send>;

/// File with the slots of this node. The first line is the boot id, because processes are known
/// within one boot only.
pub struct File(PathBuf);

impl File {
    /// Opens the file in this directory, reads the slots, and watches for the ends of their
    /// processes. If the backend has no slots, the file is removed, and entries in another backend
    /// are left to their leases.
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

    /// Text of the locks' file beside it, which is valid after a reboot too; empty if it cannot be
    /// read.
    pub fn locks(&self) -> String {
        fs::read_to_string(self.0.with_file_name(LOCKS)).unwrap_or_default()
    }

    /// Writes the locks. When this returns, they are on disk.
    ///
    /// # Errors
    /// The disk refuses the locks.
    pub fn write_locks(&self, locks: &Locks) -> io::Result<()> {
        let path = self.0.with_file_name(LOCKS);
        atomic_write(&path, locks.written().as_bytes(), 0o600, OnDisk::Name).map(drop)
    }

    /// Writes the slots.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn write(&self, slots: &Slots) -> io::Result<()> {
        let text = format!("{}\n{}", clock::boot_id(), slots.written());
        atomic_write(&self.0, text.as_bytes(), 0o600, OnDisk::Nothing).map(drop)
    }
}

/// Opens a pidfd of a process. Returns it with the inode number of its file. If /proc does not show
/// the process, its start time cannot be compared.
///
/// # Errors
/// The process has ended, or pidfd_open(2) or fstat(2) fails.
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

/// Calls `ended` when a process has ended.
///
/// # Errors
/// Any error of epoll_ctl(2).
pub fn tell_end(fd: OwnedFd, ended: Ended) -> io::Result<()> {
    let fd = waited_for(fd)?;
    tokio::spawn(async move {
        let _ = fd.readable().await;
        ended();
    });
    Ok(())
}
