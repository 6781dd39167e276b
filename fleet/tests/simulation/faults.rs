//! What goes wrong, and how it is mended.

use crate::world::{Ev, MINUTE, SECOND, World};

/// One thing breaks, and the next one is planned.
pub fn strike(world: &mut World) {
    let n = usize::try_from(world.dice.below(world.machines.len() as u64)).expect("small");
    match world.dice.below(14) {
        0 | 1 => {
            world.promises.count("killed");
            world.kill(n);
        }
        2 => {
            world.promises.count("power off");
            world.power_off(n, 20 * MINUTE);
        }
        3 | 4 => {
            world.promises.count("partition");
            world.machines[n].is_reachable = false;
            world.notice(n, 30 * SECOND);
            mend_later(world, n, 10 * MINUTE);
        }
        5 => engine_stops(world, false),
        6 => engine_stops(world, true),
        7 => {
            world.promises.count("forgotten");
            let count = 1 + world.dice.below(5);
            world.engine.forget_newest(count);
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
                crate::take::flood(world, n, &sender);
            }
        }
        10 => {
            world.promises.count("disabled");
            world.machines[n].tool.is_disabled = true;
            mend_later(world, n, 10 * MINUTE);
        }
        _ => {
            // For good; but some have to be left.
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

fn engine_stops(world: &mut World, is_wiped: bool) {
    if !world.engine.is_up {
        return;
    }
    world.promises.count(if is_wiped {
        "engine wiped"
    } else {
        "engine away"
    });
    world.engine.is_up = false;
    if is_wiped {
        world.engine.wipe();
    }
    for n in 0..world.machines.len() {
        world.notice(n, SECOND);
    }
    let delay = SECOND + world.dice.below(5 * MINUTE);
    world.after(delay, 0, Ev::EngineUp);
}

/// Everything is whole from now on.
pub fn heal(world: &mut World) {
    world.odds = crate::world::Odds::default();
    if !world.engine.is_up {
        world.engine.start();
    }
    for n in 0..world.machines.len() {
        world.power_on(n);
        world.mend(n);
    }
}
