//! Faults, and how they are repaired.

use again_fleet::wire::key::{Key, Prefix};

use crate::seal;
use crate::world::{Ev, MINUTE, SECOND, World};

/// State of the backend's data when it comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Whole,
    Empty,
    Restored,
}

/// Causes one fault, and schedules the next one.
pub fn strike(world: &mut World) {
    let n = usize::try_from(world.dice.below(world.machines.len() as u64)).expect("small");
    match world.dice.below(20) {
        0 | 1 => {
            world.promises.count("killed");
            world.kill(n);
        }
        2 | 19 => {
            // If a rolling run has begun on a target, the fault hits that one: it publishes no end
            // for a long time.
            let begun = (0..world.machines.len()).find(|n| {
                let machine = &world.machines[*n];
                !machine.places.is_empty() && machine.tool.running.is_some()
            });
            let n = begun.unwrap_or(n);
            world.promises.count("power off");
            world.power_off(n, 20 * MINUTE);
        }
        3 | 4 => {
            world.promises.count("partition");
            world.machines[n].is_reachable = false;
            world.notice(n, 30 * SECOND);
            mend_later(world, n, 10 * MINUTE);
        }
        5 => backend_stops(world, Data::Whole),
        6 => backend_stops(world, Data::Empty),
        14 => world.backend.back_up(),
        15 => backend_stops(world, Data::Restored),
        16 | 17 => harm_story(world),
        18 => replay(world),
        7 => {
            world.promises.count("forgotten");
            let count = 1 + world.dice.below(5);
            world.backend.forget_newest(count);
        }
        8 | 9 => {
            world.promises.count("clock off");
            let off = i64::try_from(world.dice.below(180 * MINUTE)).expect("small");
            world.machines[n].clock = off - 90 * i64::try_from(MINUTE).expect("small");
            world.machines[n].was_clock_wrong = true;
            mend_later(world, n, 30 * MINUTE);
        }
        12 => {
            world.promises.count("restarted with its clock set back");
            let back = i64::try_from(world.dice.below(90 * MINUTE)).expect("small");
            world.machines[n].clock -= back;
            world.machines[n].was_clock_wrong = true;
            world.kill(n);
            mend_later(world, n, 30 * MINUTE);
        }
        13 => {
            let other = usize::try_from(world.dice.below(world.machines.len() as u64));
            let sender = world.machines[other.expect("small")].name.clone();
            if world.dice.permille(300) {
                world.promises.count("flooded");
                crate::executor::flood(world, n, &sender);
            } else if world.dice.permille(300) && world.backend.is_up {
                world.promises.count("dated ahead");
                crate::executor::date_ahead(world, n, &sender);
            }
        }
        10 => {
            world.promises.count("disabled");
            world.machines[n].tool.is_disabled = true;
            mend_later(world, n, 10 * MINUTE);
        }
        _ => {
            // This node is decommissioned, but at least three have to be left.
            if world.gone().is_empty() && world.machines.len() > 3 {
                world.promises.count("gone");
                world.machines[n].is_gone = true;
                world.power_off(n, SECOND);
            }
        }
    }
    let delay = SECOND + world.dice.below(2 * MINUTE);
    world.after(delay, 0, Ev::Fault);
}

fn mend_later(world: &mut World, n: usize, longest: u64) {
    let delay = SECOND + world.dice.below(longest);
    world.after(delay, n, Ev::Mended);
}

/// Removes or replaces a value below `story/`, as somebody with the rights of all nodes can.
fn harm_story(world: &mut World) {
    let stories = Prefix::Stories(None).encode(&seal::namespace());
    let values = world.backend.list(&stories, world.now);
    if values.is_empty() {
        return;
    }
    let mut one_of =
        || &values[usize::try_from(world.dice.below(values.len() as u64)).expect("small")];
    let ((key, value), (_, other)) = (one_of(), one_of());
    world.promises.count("junk below story");
    let expires = value.expires;
    match world.dice.below(3) {
        0 => world.backend.delete(key),
        1 => drop(world.backend.put(key, b"junk".to_vec(), expires)),
        _ => drop(world.backend.put(key, other.bytes.clone(), expires)),
    }
}

/// Replaces what a node has signed with something that it had signed before.
fn replay(world: &mut World) {
    if world.past.is_empty() || !world.backend.is_up {
        return;
    }
    let at = usize::try_from(world.dice.below(world.past.len() as u64)).expect("small");
    let (key, bytes) = world.past[at].clone();
    world.promises.count(match key {
        Key::Node(_) => "facts put back",
        _ => "story put back",
    });
    world.put(&key, bytes, u64::MAX);
}

fn backend_stops(world: &mut World, data: Data) {
    if !world.backend.is_up {
        return;
    }
    world.backend.is_up = false;
    world.promises.count(match data {
        Data::Whole => "backend away",
        Data::Empty => {
            let has_new_name = world.dice.permille(500);
            world.backend.wipe(has_new_name);
            "backend wiped"
        }
        Data::Restored => {
            world.backend.restore();
            "backend restored"
        }
    });
    for n in 0..world.machines.len() {
        world.notice(n, SECOND);
    }
    let delay = SECOND + world.dice.below(5 * MINUTE);
    world.after(delay, 0, Ev::BackendUp);
}

/// Repairs everything, and allows no more faults.
pub fn heal(world: &mut World) {
    world.odds = crate::world::Odds::default();
    if !world.backend.is_up {
        world.backend.start();
    }
    for n in 0..world.machines.len() {
        world.power_on(n);
        world.mend(n);
    }
}
