//! Root's side of a node, which may die at each of its steps: judge with the books, have the tool record, write the books,
//! answer.

use again::model::Span;
use again_fleet::policy::books::{Books, Which};
use again_fleet::policy::judge::{self, Verdict};
use again_fleet::policy::pace::{self, Pace};
use again_fleet::step::model::{Answer, Found};
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::Trigger;

use crate::seal;
use crate::tool::Order;
use crate::world::{Mutant, World};

/// Takes a batch; nothing if it died before it answered.
pub fn take(world: &mut World, n: usize, batch: &[Vec<u8>]) -> Option<Vec<Answer>> {
    let now = world.moment(n);
    let rules = world.machines[n].rules.clone();
    let knows_numbers = world.mutant != Some(Mutant::ForgetsNumbers);
    let mut books = if knows_numbers {
        books(world, n)
    } else {
        Books::default()
    };
    books.forget(&now);
    let (mut orders, mut taken, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for bytes in batch {
        let Found::Good(signed) = seal::found(bytes) else {
            continue;
        };
        if judge::admit(&rules, &signed).is_err() {
            continue;
        }
        let trigger = signed.trigger;
        match judge::judge(&rules, &books, &trigger, &now) {
            Verdict::Take(_) if world.machines[n].tool.is_disabled => {
                world.promises.count("held");
                rest.push((trigger, Outcome::Held, "disabled".to_owned(), false));
            }
            Verdict::Take(lineage) => {
                let delta = trigger.delta().millis();
                let range = pace::range(
                    &Pace::default(),
                    Span::ZERO,
                    trigger.together(),
                    lineage.hops(),
                );
                let extra = world.dice.below(range.millis() + 1);
                orders.push(Order {
                    which: Which::from(&trigger),
                    lineage,
                    ready: world.now + delta,
                    due: world.now + delta + extra,
                });
                taken.push(trigger);
            }
            Verdict::Held(why) => {
                world.promises.count("held");
                rest.push((trigger, Outcome::Held, why, false));
            }
            Verdict::Settled(outcome, why) => rest.push((trigger, outcome, why, true)),
            Verdict::Known(outcome, why) => rest.push((trigger, outcome, why, false)),
        }
    }
    if world.dies() {
        return None;
    }
    let me = world.machines[n].name.clone();
    for which in world.machines[n].tool.record(orders, knows_numbers) {
        world.promises.records(&me, &which);
    }
    if world.dies() {
        return None;
    }
    for trigger in &taken {
        books.enter(&Which::from(trigger), Outcome::Taken, "", rules.skew, &now);
    }
    for (trigger, outcome, why, is_new) in &rest {
        if *is_new {
            books.enter(&Which::from(trigger), *outcome, why, rules.skew, &now);
        }
    }
    world.machines[n].books = books;
    settle(world, n, &rest);
    if world.dies() {
        return None;
    }
    let taken = taken
        .into_iter()
        .map(|trigger| (trigger, Outcome::Taken, String::new(), true));
    let answer = |(trigger, outcome, why, _): (Trigger, Outcome, String, bool)| Answer {
        which: Which::from(&trigger),
        outcome,
        why,
    };
    Some(taken.chain(rest).map(answer).collect())
}

/// The books, with what the tool recorded before whoever took could write it down.
fn books(world: &World, n: usize) -> Books {
    let now = world.moment(n);
    let machine = &world.machines[n];
    let mut books = machine.books.clone();
    for which in machine.tool.recorded.values() {
        let seen = books.seen(&which.sender, &which.name);
        if seen.is_none_or(|seen| seen.number < which.number) {
            books.enter(which, Outcome::Taken, "", machine.rules.skew, &now);
        }
    }
    books
}

fn settle(world: &mut World, n: usize, rest: &[(Trigger, Outcome, String, bool)]) {
    let me = world.machines[n].name.clone();
    let is_clock_right = !world.machines[n].was_clock_wrong;
    for (trigger, outcome, _, _) in rest {
        if *outcome != Outcome::Held {
            world
                .promises
                .settles(&me, trigger, *outcome, world.now, is_clock_right);
        }
    }
}
