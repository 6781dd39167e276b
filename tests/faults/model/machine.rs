//! The machine of the model: its clock is a number, its processes are entries in a table.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use again_base::model::{Boottime, Identity, Moment, Place, Walltime};
use again_base::sys::machine::Machine;

pub const NANOS: u64 = 1_000_000_000;
/// Pid namespaces of the machine, in each of which a process sees its like alone. One more is another machine.
pub const PLACES: usize = 2;
/// On this machine, but where the boot ID cannot be read, or is another one.
pub const WITHOUT_BOOT_ID: usize = PLACES + 1;
pub const OTHER_BOOT_ID: usize = PLACES + 2;
/// Linux gives no pid from here on: PID_MAX_LIMIT.
const FIRST_PID: i32 = 1 << 22;
/// What a waiter says when it is there.
const READY: u8 = 0x06;

/// When a process is killed: at its next look at the machine after this many. What it did before is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    pub looks: u32,
    /// It leaves half of a record in a temporary file.
    pub torn: bool,
}

/// The process that acts was killed.
struct Killed;

/// A waiter that was just started.
pub struct Started {
    pub process: Identity,
    pub place: usize,
    pub order: File,
    pub lock: File,
}

pub struct Kernel {
    /// True time, in nanoseconds.
    at: Cell<u64>,
    booted: Cell<u64>,
    boot: Cell<u32>,
    /// What the wall clock is off by, in milliseconds.
    off: Cell<i64>,
    /// Where the process is that acts.
    place: Cell<usize>,
    /// Its pid.
    acts: Cell<i32>,
    /// How often it looks before it is killed.
    looks: Cell<Option<u32>>,
    newest: Cell<i32>,
    /// The run that holds the agent's lock, as the process that acts sees it, and whether the run does the rerun's job.
    pub holder: Cell<Option<(Identity, bool)>>,
    /// Who lives, and where.
    living: RefCell<BTreeMap<i32, (Identity, usize)>>,
    started: RefCell<Vec<Started>>,
    seeds: Cell<u64>,
}

impl Kernel {
    /// A machine that is up for a while, at a date from which the clock can be set back.
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

    /// True time.
    pub fn at(&self) -> u64 {
        self.at.get()
    }

    pub fn boot(&self) -> u32 {
        self.boot.get()
    }

    /// The true time of a moment of this boot.
    pub fn true_time(&self, uptime: Boottime) -> u64 {
        self.booted.get() + uptime.nanos()
    }

    pub fn pass(&self, nanos: u64) {
        self.at.set(self.at() + nanos);
    }

    pub fn set_clock(&self, seconds: i64) {
        self.off.set(self.off.get() + seconds * 1000);
    }

    /// Every process ends, and a new boot begins.
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

    /// The waiters that were started since the last call.
    pub fn take_started(&self) -> Vec<Started> {
        self.started.take()
    }

    /// What a process sees of this moment, in this place.
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

    /// Lets a process act; none if it was killed meanwhile. What it held, such as a lock, is free then.
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

    /// A signal that wakes has nothing to do: who waits looks whenever it has its turn.
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

    /// It takes a while.
    fn print(&self, _: &str) {
        self.look();
    }

    fn seed(&self) -> u64 {
        self.seeds.set(self.seeds.get() + 1);
        self.seeds.get()
    }
}
