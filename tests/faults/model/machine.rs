//! Machine of the model: its clock is a number, its processes are entries in a table.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use again_base::model::{Boottime, Identity, Moment, Place, Walltime};
use again_base::sys::machine::Machine;

pub const NANOS: u64 = 1_000_000_000;
/// Number of pid namespaces of the machine; a process only sees those in its own. The next number
/// is another machine.
pub const PLACES: usize = 2;
/// Place on this machine where the boot ID cannot be read; the next one has another boot ID.
pub const WITHOUT_BOOT_ID: usize = PLACES + 1;
pub const OTHER_BOOT_ID: usize = PLACES + 2;
/// First pid of the model, which Linux never assigns: PID_MAX_LIMIT.
const FIRST_PID: i32 = 1 << 22;
/// Byte that a waiter sends when it is ready.
const READY: u8 = 0x06;

/// Point at which a process is killed: at its next access to the machine after `looks` others. What
/// it did before is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    pub looks: u32,
    /// Whether it leaves half of a record in a temporary file.
    pub torn: bool,
}

/// Panic payload that ends a killed process's turn.
struct Killed;

/// Waiter that was just started.
pub struct Started {
    pub process: Identity,
    pub place: usize,
    pub order: File,
    pub lock: File,
}

pub struct Kernel {
    /// True time in nanoseconds.
    at: Cell<u64>,
    booted: Cell<u64>,
    boot: Cell<u32>,
    /// Error of the wall clock in milliseconds.
    off: Cell<i64>,
    /// Pid namespace of the process that acts.
    place: Cell<usize>,
    /// Pid of the process that acts.
    acts: Cell<i32>,
    /// Number of accesses before the acting process is killed.
    looks: Cell<Option<u32>>,
    newest: Cell<i32>,
    /// Run that holds the agent's lock, as the acting process sees it, and whether the run
    /// satisfies timers.
    pub holder: Cell<Option<(Identity, bool)>>,
    /// Living processes, with their pid namespaces.
    living: RefCell<BTreeMap<i32, (Identity, usize)>>,
    started: RefCell<Vec<Started>>,
    seeds: Cell<u64>,
}

impl Kernel {
    /// Creates a machine that has been up for a while, at a date from which the clock can be set
    /// back.
    pub fn new() -> Self {
        Kernel {
            at: Cell::new(10_000_000 * NANOS),
            booted: Cell::new(9_999_000 * NANOS),
            boot: Cell::new(0),
            off: Cell::new(0),
            place: Cell::new(0),
            acts: Cell::new(FIRST_PID),
            looks: Cell::new(None),
            newest: Cell::new(FIRST_PID),
            holder: Cell::default(),
            living: RefCell::default(),
            started: RefCell::default(),
            seeds: Cell::new(0),
        }
    }

    /// Returns the true time in nanoseconds.
    pub fn at(&self) -> u64 {
        self.at.get()
    }

    pub fn boot(&self) -> u32 {
        self.boot.get()
    }

    /// Returns the true time of a moment of this boot.
    pub fn true_time(&self, uptime: Boottime) -> u64 {
        self.booted.get() + uptime.nanos()
    }

    pub fn pass(&self, nanos: u64) {
        self.at.set(self.at() + nanos);
    }

    pub fn set_clock(&self, seconds: i64) {
        self.off.set(self.off.get() + seconds * 1000);
    }

    /// Ends every process, and begins a new boot after `off` seconds.
    pub fn reboot(&self, off: u64) {
        self.living.borrow_mut().clear();
        self.pass(off * NANOS);
        self.booted.set(self.at());
        self.boot.set(self.boot() + 1);
        self.pass(NANOS);
    }

    pub fn born(&self, place: usize) -> Identity {
        self.newest.set(self.newest.get() + 1);
        let uptime = self.at() - self.booted.get();
        let who = Identity {
            pid: self.newest.get(),
            start: uptime / 10_000_000,
        };
        self.living.borrow_mut().insert(who.pid, (who, place));
        who
    }

    pub fn ends(&self, who: Identity) {
        self.living.borrow_mut().remove(&who.pid);
    }

    pub fn lives(&self, who: Identity) -> bool {
        self.living.borrow().contains_key(&who.pid)
    }

    /// Returns the waiters that were started since the last call.
    pub fn take_started(&self) -> Vec<Started> {
        self.started.take()
    }

    /// Returns this moment as a process in this pid namespace sees it.
    pub fn moment_in(&self, place: usize) -> Moment {
        let wall = i64::try_from(self.at() / 1_000_000).expect("a date") + self.off.get();
        Moment {
            boot: match place {
                WITHOUT_BOOT_ID => String::new(),
                OTHER_BOOT_ID => "another boot".into(),
                PLACES => "another machine's boot".into(),
                _ => format!("boot {}", self.boot()),
            },
            place: match place {
                PLACES => Place::new("another", 1),
                WITHOUT_BOOT_ID | OTHER_BOOT_ID => Place::new("this", 1),
                pids => Place::new("this", pids as u64 + 1),
            },
            uptime: Boottime::from_nanos(self.at() - self.booted.get()),
            wall: Walltime::from_millis(u64::try_from(wall).unwrap_or(0)),
        }
    }

    /// Lets a process act; returns none if it was killed meanwhile. What it held, such as a lock,
    /// is free then.
    pub fn act<T>(
        &self,
        who: Identity,
        place: usize,
        death: Option<Death>,
        deed: impl FnOnce() -> T,
    ) -> Option<T> {
        self.acts.set(who.pid);
        self.place.set(place);
        self.looks.set(death.map(|death| death.looks));
        let done = catch_unwind(AssertUnwindSafe(deed));
        self.looks.set(None);
        self.place.set(0);
        match done {
            Ok(done) => Some(done),
            Err(why) if why.is::<Killed>() => {
                self.ends(who);
                None
            }
            Err(why) => resume_unwind(why),
        }
    }
}

impl Machine for Kernel {
    fn moment(&self) -> Moment {
        self.look();
        self.moment_in(self.place.get())
    }

    fn own_pid(&self) -> i32 {
        self.acts.get()
    }

    fn identify(&self, pid: i32) -> io::Result<Identity> {
        self.look();
        let living = self.living.borrow();
        let seen = living
            .get(&pid)
            .filter(|(_, place)| *place == self.place.get());
        let found = seen.map(|(who, _)| *who);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A signal that wakes a process has no effect: a waiter looks whenever it has its turn.
    fn signal(&self, who: Identity, signal: i32) -> io::Result<()> {
        self.identify(who.pid)?;
        if matches!(signal, nix::libc::SIGTERM | nix::libc::SIGKILL) {
            self.ends(who);
        }
        Ok(())
    }

    fn start(&self, keep: &[&OwnedFd], ready: &OwnedFd) -> io::Result<Identity> {
        self.look();
        let process = self.born(self.place.get());
        let file = |nth: usize| keep[nth].try_clone().map(File::from);
        self.started.borrow_mut().push(Started {
            process,
            place: self.place.get(),
            order: file(0)?,
            lock: file(1)?,
        });
        File::from(ready.try_clone()?).write_all(&[READY])?;
        self.look();
        Ok(process)
    }

    fn lock_holder(&self, _: &str) -> Option<(Identity, bool)> {
        self.holder.get()
    }

    fn look(&self) {
        match self.looks.get() {
            Some(0) => resume_unwind(Box::new(Killed)),
            Some(left) => self.looks.set(Some(left - 1)),
            None => {}
        }
    }

    /// Printing is a moment at which the process may be killed.
    fn print(&self, _: &str) {
        self.look();
    }

    fn seed(&self) -> u64 {
        self.seeds.set(self.seeds.get() + 1);
        self.seeds.get()
    }
}
