//! Events of the model.

use proptest::prelude::*;

use super::machine::{Death, PLACES};
use super::{NAMES, TARGETS};

/// Damage to a record.
#[derive(Debug, Clone, Copy)]
pub enum Damage {
    Emptied,
    Halved,
    Garbage,
    /// A newer version has written the record; the next time, it is restored.
    Newer,
    /// The record is missing, as after a restore.
    Missing,
    /// A directory has replaced the record.
    Directory,
}

/// Content of a request.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    pub target: usize,
    /// Index of the living run of the target that makes the request; beyond them, a person.
    pub by: usize,
    pub name: usize,
    /// Delta in seconds.
    pub delta: u64,
    /// Jitter in seconds.
    pub jitter: u64,
    /// Whether the delta counts from the request.
    pub from_now: bool,
}

#[derive(Debug, Clone)]
pub enum Event {
    /// Start of a run by hand, here or in a container that shares the directory.
    Run {
        target: usize,
        place: usize,
        /// Whether the run satisfies timers as a rerun does.
        does_job: bool,
        /// Whether the run holds the agent's lock.
        holds_lock: bool,
    },
    /// Request by a run of the target, or by a person.
    Request {
        wish: Wish,
        death: Option<Death>,
    },
    /// End of any run.
    End {
        run: usize,
    },
    /// Skip of a rerun by Puppet, after which its observer tries it again.
    Skip {
        rerun: usize,
        death: Option<Death>,
    },
    /// Start and end of a rerun on another machine that shares the directory.
    StartElsewhere {
        target: usize,
    },
    /// Step of a waiter.
    Step {
        waiter: usize,
        death: Option<Death>,
    },
    /// Death of a waiter.
    Kill {
        waiter: usize,
    },
    /// Time without an event.
    Pass {
        seconds: u64,
    },
    /// Time until a waiter is due.
    PassUntilDue {
        waiter: usize,
    },
    Stop {
        name: Option<usize>,
        death: Option<Death>,
    },
    Now {
        name: Option<usize>,
        death: Option<Death>,
    },
    Reset {
        target: usize,
    },
    Resume {
        place: usize,
        death: Option<Death>,
    },
    /// Resume on another machine, where none of these processes exists.
    Elsewhere,
    /// The same verbs on this machine, where the boot ID cannot be read or is another one, while
    /// all that is pending or running lives.
    ByLocks {
        knows_a_boot: bool,
    },
    Reboot {
        off: u64,
    },
    /// Change of the wall clock.
    Jump {
        seconds: i64,
    },
    Damage {
        target: usize,
        how: Damage,
    },
    Disable,
    Enable,
}

fn death() -> impl Strategy<Value = Option<Death>> {
    let at = (0..24_u32, any::<bool>());
    prop_oneof![
        2 => Just(None),
        1 => at.prop_map(|(looks, torn)| Some(Death { looks, torn })),
    ]
}

fn wish() -> impl Strategy<Value = Wish> {
    let which = (0..TARGETS.len(), 0..4_usize, 0..NAMES.len());
    let wait = (0..40_u64, 0..6_u64, any::<bool>());
    (which, wait).prop_map(|((target, by, name), (delta, jitter, from_now))| Wish {
        target,
        by,
        name,
        delta,
        jitter,
        from_now,
    })
}

fn run() -> impl Strategy<Value = Event> {
    let which = (0..TARGETS.len(), 0..PLACES, any::<bool>(), any::<bool>());
    which.prop_map(|(target, place, does_job, holds_lock)| Event::Run {
        target,
        place,
        does_job,
        holds_lock,
    })
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        Just(Damage::Emptied),
        Just(Damage::Halved),
        Just(Damage::Garbage),
        Just(Damage::Newer),
        Just(Damage::Missing),
        Just(Damage::Directory)
    ]
}

/// Generates any event; with `jumps`, the clock is set forwards too.
pub fn event(jumps: bool) -> impl Strategy<Value = Event> {
    let target = 0..TARGETS.len();
    let some = 0..8_usize;
    let name = || proptest::option::of(0..NAMES.len());
    let day = 86_400_i64;
    let jump = if jumps {
        -2 * day..2 * day
    } else {
        -2 * day..1
    };
    prop_oneof![
        4 => run(),
        8 => (wish(), death()).prop_map(|(wish, death)| Event::Request { wish, death }),
        4 => some.clone().prop_map(|run| Event::End { run }),
        6 => (0..2_usize, death()).prop_map(|(rerun, death)| Event::Skip { rerun, death }),
        1 => target.clone().prop_map(|target| Event::StartElsewhere { target }),
        24 => (some.clone(), death()).prop_map(|(waiter, death)| Event::Step { waiter, death }),
        1 => some.clone().prop_map(|waiter| Event::Kill { waiter }),
        4 => (0..40_u64).prop_map(|seconds| Event::Pass { seconds }),
        6 => some.prop_map(|waiter| Event::PassUntilDue { waiter }),
        1 => (name(), death()).prop_map(|(name, death)| Event::Stop { name, death }),
        1 => (name(), death()).prop_map(|(name, death)| Event::Now { name, death }),
        1 => target.clone().prop_map(|target| Event::Reset { target }),
        2 => (0..PLACES, death()).prop_map(|(place, death)| Event::Resume { place, death }),
        2 => Just(Event::Elsewhere),
        2 => any::<bool>().prop_map(|knows_a_boot| Event::ByLocks { knows_a_boot }),
        1 => (1..100_u64).prop_map(|off| Event::Reboot { off }),
        1 => jump.prop_map(|seconds| Event::Jump { seconds }),
        1 => (target, damage()).prop_map(|(target, how)| Event::Damage { target, how }),
        1 => Just(Event::Disable),
        2 => Just(Event::Enable),
    ]
}
