//! Executor of a node, which may die at each of its steps: judge with the ledger, save what is
//! begun, let the tool record it, save the outcome, answer. A death loses whatever was not saved.

use again_base::model::{Moment, Span};
use again_fleet::policy::judge::{self, Rules, Verdict};
use again_fleet::policy::pace::{self, Pace};
use again_fleet::policy::page::{Change, Page};
use again_fleet::policy::replay::{MOST_NAMES, Record, ReplayLedger, TriggerKey};
use again_fleet::step::model::{Answer, Found};
use again_fleet::wire::lineage::{Cause, Lineage, Origin};
use again_fleet::wire::name::{Id, Node};
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::{Ask, Trigger};

use crate::seal;
use crate::tool::Order;
use crate::world::{EPOCH, Machine, Mutant, World};

const TEN_YEARS: u64 = 10 * 365 * 86_400_000;

/// Ledger of an executor, in memory and on disk.
#[derive(Debug, Default)]
pub struct Ledger {
    page: Page,
    saved: Page,
}

impl Ledger {
    /// Ends the executor; the next one reads the disk.
    pub fn die(&mut self) {
        self.page.clone_from(&self.saved);
    }

    fn record(
        &mut self,
        trigger: &Trigger,
        outcome: Outcome,
        why: &str,
        (rules, now): (&Rules, &Moment),
    ) {
        let record = Record::new(trigger, outcome, why, rules.skew, now);
        self.page.apply(&Change::Recorded(Box::new(record)));
    }
}

/// Accepts or rejects a batch; returns nothing if the executor died before it answered.
pub fn take(world: &mut World, n: usize, batch: &[Vec<u8>]) -> Option<Vec<Answer>> {
    let now = world.moment(n);
    let rules = world.machines[n].rules.clone();
    let knows_numbers = world.mutant != Some(Mutant::ForgetsNumbers);
    let ledger = &mut world.machines[n].ledger;
    if !knows_numbers {
        ledger.page.replays = ReplayLedger::default();
    }
    ledger.page.apply(&Change::Forgotten(now.clone()));
    finish(world, n, &rules, &now)?;
    let mut triggers: Vec<Trigger> = batch
        .iter()
        .filter_map(|bytes| admitted(&rules, bytes))
        .collect();
    triggers.sort_by_key(|trigger| trigger.number);
    let (mut taken, mut rest) = (Vec::new(), Vec::new());
    for trigger in triggers {
        let ledger = &mut world.machines[n].ledger;
        let verdict = judge::judge(&rules, &ledger.page.replays, &trigger, &now);
        match verdict {
            Verdict::Take(lineage) => {
                ledger.record(&trigger, Outcome::Held, "", (&rules, &now));
                if world.machines[n].tool.is_disabled {
                    world.promises.count("held");
                    rest.push((trigger, Outcome::Held, "disabled".to_owned(), None));
                } else {
                    taken.push((trigger, lineage));
                }
            }
            Verdict::Held(why) => {
                world.promises.count("held");
                rest.push((trigger, Outcome::Held, why, None));
            }
            Verdict::Settled(outcome, why) => {
                ledger.record(&trigger, outcome, &why, (&rules, &now));
                rest.push((trigger, outcome, why, None));
            }
            Verdict::Known(outcome, why) => rest.push((trigger, outcome, why, None)),
            Verdict::Superseded(above) => {
                if above == ledger.page.replays.floor(&trigger) {
                    let me = world.machines[n].name.clone();
                    world.promises.is_below_a_floor(&me, &trigger);
                }
                rest.push((trigger, Outcome::Superseded, String::new(), Some(above)));
            }
        }
    }
    let begun = taken.iter().map(|(trigger, _)| trigger.clone()).collect();
    world.machines[n].ledger.page.apply(&Change::Begun(begun));
    if world.dies(n) {
        return None;
    }
    if !saves(world, n) {
        let ledger = &mut world.machines[n].ledger;
        ledger.page.apply(&Change::Begun(Vec::new()));
        let all = taken.into_iter().map(|(trigger, _)| trigger);
        let all = all.chain(rest.into_iter().map(|(trigger, ..)| trigger));
        let held = |trigger| answer((trigger, Outcome::Held, "no space".to_owned(), None));
        return Some(all.map(held).collect());
    }
    // The executor may die before and after the tool records the triggers.
    if world.dies(n) {
        return None;
    }
    pass_on(world, n, &taken, (&rules, &now))?;
    settle(world, n, &rest);
    if world.dies(n) {
        return None;
    }
    let taken = taken
        .into_iter()
        .map(|(trigger, _)| (trigger, Outcome::Taken, String::new(), None));
    Some(taken.chain(rest).map(answer).collect())
}

type Judged = (Trigger, Outcome, String, Option<u64>);

fn answer((trigger, outcome, why, above): Judged) -> Answer {
    Answer {
        which: TriggerKey::from(&trigger),
        outcome,
        why,
        above,
    }
}

fn admitted(rules: &Rules, bytes: &[u8]) -> Option<Trigger> {
    let Found::Good(signed) = seal::found(bytes) else {
        return None;
    };
    judge::admit(rules, &signed)
        .is_ok()
        .then_some(signed.trigger)
}

/// Finishes what an earlier process had begun; returns nothing if the executor dies again.
fn finish(world: &mut World, n: usize, rules: &Rules, now: &Moment) -> Option<()> {
    let Machine { ledger, tool, .. } = &mut world.machines[n];
    let mut taken = Vec::new();
    for trigger in ledger.page.begun.clone() {
        if let Verdict::Take(lineage) = judge::judge(rules, &ledger.page.replays, &trigger, now) {
            taken.push((trigger, lineage));
        } else if tool.has(&trigger.id) {
            ledger.record(&trigger, Outcome::Taken, "", (rules, now));
        }
    }
    if !taken.is_empty() {
        world.promises.count("finished");
    }
    pass_on(world, n, &taken, (rules, now))
}

/// Lets the tool record triggers, and notes this in the ledger; returns nothing if the executor
/// dies in between.
fn pass_on(
    world: &mut World,
    n: usize,
    taken: &[(Trigger, Lineage)],
    (rules, now): (&Rules, &Moment),
) -> Option<()> {
    let orders = taken.iter().map(|(trigger, lineage)| {
        let delta = trigger.delta().millis();
        let together = trigger.together();
        let range = pace::range(&Pace::default(), Span::ZERO, together, lineage.hops());
        let extra = world.dice.below(range.millis() + 1);
        Order {
            which: TriggerKey::from(trigger),
            lineage: lineage.clone(),
            ready: world.now + delta,
            due: world.now + delta + extra,
        }
    });
    let orders = orders.collect();
    let me = world.machines[n].name.clone();
    let knows_numbers = world.mutant != Some(Mutant::ForgetsNumbers);
    for which in world.machines[n].tool.record(orders, knows_numbers) {
        world.promises.records(&me, &which);
    }
    if world.dies(n) {
        return None;
    }
    let ledger = &mut world.machines[n].ledger;
    for (trigger, _) in taken {
        ledger.record(trigger, Outcome::Taken, "", (rules, now));
    }
    ledger.page.apply(&Change::Begun(Vec::new()));
    Some(())
}

/// Saves the ledger; returns whether the disk could store it.
fn saves(world: &mut World, n: usize) -> bool {
    if world.odds(world.odds.refuse) {
        world.promises.count("disk refuses");
        return false;
    }
    let ledger = &mut world.machines[n].ledger;
    ledger.saved.clone_from(&ledger.page);
    true
}

fn settle(world: &mut World, n: usize, rest: &[Judged]) {
    let me = world.machines[n].name.clone();
    let is_clock_right = !world.machines[n].was_clock_wrong;
    for (trigger, outcome, ..) in rest {
        if *outcome != Outcome::Held {
            world
                .promises
                .settles(&me, trigger, *outcome, world.now, is_clock_right);
        }
    }
}

/// Returns a trigger that somebody with a sender's key has made.
fn made(world: &World, n: usize, sender: &Node, (ask, name): (Ask, usize), number: u64) -> Trigger {
    Trigger {
        ask,
        id: Id::from_bits(u128::from(world.now) << 64 | name as u128),
        target: world.machines[n].name.clone(),
        sender: sender.clone(),
        on_behalf: None,
        name: format!("name {name}").parse().expect("a name"),
        number,
        at: number,
        ttl: 1000,
        delta: 0,
        targets: 1,
        parallel: 0,
        stop_after: 0,
        lineage: Lineage(vec![Origin {
            id: Id::from_bits(1),
            cause: Cause::Person,
            path: vec![sender.clone()],
        }]),
    }
}

/// Uses so many names of a sender that older ones are displaced.
pub fn flood(world: &mut World, n: usize, sender: &Node) {
    let now = world.moment(n);
    for name in 0..MOST_NAMES {
        let number = now.wall.millis() + name as u64 / 100;
        let one = made(world, n, sender, (Ask::Cancel, name), number);
        let machine = &mut world.machines[n];
        let verdict = judge::judge(&machine.rules, &machine.ledger.page.replays, &one, &now);
        if let Verdict::Settled(outcome, why) = verdict {
            machine
                .ledger
                .record(&one, outcome, &why, (&machine.rules, &now));
        }
    }
}

/// Dates triggers of a sender ten years ahead. Their target holds them for a day, and no other
/// trigger waits for that.
pub fn date_ahead(world: &mut World, n: usize, sender: &Node) {
    let number = EPOCH + world.now + TEN_YEARS;
    for name in 0..20 {
        let one = made(world, n, sender, (Ask::Run, name), number);
        world.promises.is_ahead(&one.id);
        let bytes = seal::trigger(sender, &one);
        world.put(&one.key(), bytes, u64::MAX);
    }
}
