//! Rolling runs: each target's queue position in the backend, and the real policy that decides when
//! its turn comes. The positions are simpler than real ones, which have a simulation of their own:
//! one write, renewed while its node reaches the backend.

use std::collections::BTreeSet;

use again_fleet::policy::replay::TriggerKey;
use again_fleet::policy::rolling::{Count, Effect, Fact};
use again_fleet::step::model::{Answer, Event};
use again_fleet::wire::key::{Key, Prefix};
use again_fleet::wire::name::{Id, Name, Node};
use again_fleet::wire::outcome::Outcome;
use again_fleet::wire::trigger::Trigger;

use crate::seal;
use crate::world::{Ev, MINUTE, Mutant, SECOND, World};

/// Time for which a queue position outlives its node.
const LEASE: u64 = MINUTE;
/// Interval between a node's checks of the queue.
const PAUSE: u64 = 2 * SECOND;

/// State of a trigger that waits for its turn.
#[derive(Default)]
pub struct Waiter {
    parallel: u32,
    has_said: bool,
    look: Option<Look>,
}

/// Count by a target of the others that have failed.
struct Look {
    count: Count,
    since: u64,
    due: u64,
    is_new: bool,
    /// Nodes whose failures were read.
    read: BTreeSet<Node>,
    /// Nodes whose failures were stored in the backend when this count began.
    stored: BTreeSet<Node>,
}

fn group(id: &Id) -> Name {
    format!("at once {id}").parse().expect("a name")
}

impl World {
    fn place_of(&self, n: usize, id: &Id) -> String {
        let (group, node) = (group(id), self.machines[n].name.clone());
        Key::Slot { group, node }.encode(&seal::namespace())
    }

    /// Queues a trigger until its turn.
    pub fn queue(&mut self, n: usize, which: TriggerKey, parallel: u32) {
        self.promises.queues(&self.machines[n].name, &which);
        let machine = &mut self.machines[n];
        machine.places.insert(which.clone());
        let waiters = &mut machine.service.as_mut().expect("alive").waiters;
        waiters.entry(which).or_default().parallel = parallel;
        let delay = 1 + self.dice.below(100);
        self.roll_after(n, delay);
    }

    pub fn roll_after(&mut self, n: usize, delay: u64) {
        let at = self.now + delay;
        if let Some(service) = self.machines[n].service.as_mut()
            && service.rolls.is_none_or(|rolls| at < rolls)
        {
            service.rolls = Some(at);
            let life = service.life;
            self.after(delay, n, Ev::Roll(life));
        }
    }

    /// Renews a node's queue positions, and starts the triggers whose turn has come.
    pub fn roll(&mut self, n: usize, life: u64) {
        let now = self.now;
        let Some(service) = self.service(n, life) else {
            return;
        };
        if service.rolls.take_if(|rolls| *rolls == now).is_none() {
            return;
        }
        let state = &service.state;
        service
            .waiters
            .retain(|which, _| state.waiting(which).is_some());
        let waiting: Vec<TriggerKey> = service.waiters.keys().cloned().collect();
        self.keep_places(n);
        for which in waiting {
            if self.life(n) == life {
                self.turn(n, &which);
            }
        }
        let has_places = !self.machines[n].places.is_empty();
        if let Some(service) = self.service(n, life)
            && (has_places || !service.waiters.is_empty())
        {
            let looks = service.waiters.values().filter_map(|one| one.look.as_ref());
            let due = looks.map(|look| look.due.saturating_sub(now)).min();
            self.roll_after(n, due.unwrap_or(PAUSE).clamp(1, PAUSE));
        }
    }

    /// Renews the queue positions that are still needed, and removes the others.
    fn keep_places(&mut self, n: usize) {
        if !self.has_backend(n) {
            return;
        }
        for which in self.machines[n].places.clone() {
            let service = self.machines[n].service.as_ref().expect("alive");
            let is_over = service
                .state
                .is_over(&which, self.now >= service.reached + MINUTE);
            let (place, until) = (self.place_of(n, &which.id), self.now + LEASE);
            if !is_over {
                if !self.backend.renew(&place, self.now, until) {
                    self.backend.put(&place, Vec::new(), until);
                }
                continue;
            }
            let places = &mut self.machines[n].places;
            places.remove(&which);
            if !places.iter().any(|other| other.id == which.id) {
                self.backend.delete(&place);
            }
        }
    }

    fn may_run(&mut self, n: usize, id: &Id, parallel: u32) -> bool {
        let mine = self.place_of(n, id);
        let line = Prefix::Slots(&group(id)).encode(&seal::namespace());
        let line = self.backend.list(&line, self.now);
        let mine = line.iter().find(|(key, _)| *key == mine);
        mine.is_some_and(|(_, mine)| {
            let before = line.iter();
            let before = before.filter(|(_, other)| other.revision < mine.revision);
            before.count() < parallel as usize
        })
    }

    fn turn(&mut self, n: usize, which: &TriggerKey) {
        let (now, has_backend) = (self.now, self.has_backend(n));
        let service = self.machines[n].service.as_mut().expect("alive");
        let Some(trigger) = service.state.waiting(which).cloned() else {
            return;
        };
        let Some(waiter) = service.waiters.get_mut(which) else {
            return;
        };
        if waiter.look.as_ref().is_some_and(|look| look.due > now) {
            return;
        }
        let (look, parallel, has_said) = (waiter.look.take(), waiter.parallel, waiter.has_said);
        if !has_backend {
            if look.is_some() {
                self.no_turn(n, which, Outcome::Held);
            }
            return;
        }
        let may_run = self.may_run(n, &which.id, parallel);
        match look {
            Some(look) => self.look(n, which, &trigger, (look, may_run)),
            None if !may_run => {
                if !has_said {
                    self.waits(n, which);
                }
            }
            None if trigger.stop_after == 0 => self.begin(n, which, &trigger, BTreeSet::new()),
            None => {
                let look = Look {
                    count: Count::new(&trigger, group(&which.id)),
                    since: now,
                    due: now,
                    is_new: true,
                    read: BTreeSet::new(),
                    stored: BTreeSet::new(),
                };
                self.look(n, which, &trigger, (look, true));
            }
        }
    }

    /// Takes one step of a target's count of the others.
    fn look(
        &mut self,
        n: usize,
        which: &TriggerKey,
        trigger: &Trigger,
        (mut look, may_run): (Look, bool),
    ) {
        let me = self.machines[n].name.clone();
        self.promises.looks(&me, &which.id, look.since, self.now);
        if std::mem::take(&mut look.is_new) {
            look.count.look();
            look.stored = self.failures(&which.id);
        }
        match look.count.next(self.moment(n).uptime) {
            Effect::Read(keys) => {
                for key in keys {
                    self.read(&key, &mut look);
                }
                look.due = self.now + 1 + self.dice.below(20);
                self.looks_on(n, which, look);
            }
            Effect::Wait(at, missing) => {
                if !missing.is_empty() {
                    self.promises.count("waits for an end");
                }
                let at = at.nanos().div_ceil(1_000_000) + self.machines[n].booted;
                (look.due, look.is_new) = (at.max(self.now + 1), true);
                self.looks_on(n, which, look);
                self.waits(n, which);
            }
            Effect::Begin if may_run => {
                let now = self.failures(&which.id);
                let failed = look.stored.intersection(&now).cloned();
                let failed = failed.chain(look.read).collect();
                self.begin(n, which, trigger, failed);
            }
            // The queue position was lost meanwhile.
            Effect::Begin => {}
            Effect::Halt { failed, missing } => {
                let most = trigger.stop_after as usize;
                self.promises
                    .halts(&me, &which.id, most, (&failed, &missing));
                self.no_turn(n, which, Outcome::Halted);
            }
            Effect::Unlisted => {
                self.promises.count("unlisted");
                self.no_turn(n, which, Outcome::Held);
            }
        }
    }

    fn read(&mut self, key: &Key, look: &mut Look) {
        let text = key.encode(&seal::namespace());
        let value = self.backend.get(&text, self.now);
        let Some(fact) = value.and_then(|value| seal::fact(key, &value.bytes)) else {
            return;
        };
        if let Fact::Status(told) = &fact
            && told.outcome.counts_as_failed()
        {
            look.read.insert(told.target.clone());
            if self.mutant == Some(Mutant::IgnoresFailures) {
                return;
            }
        }
        look.count.record(fact);
    }

    fn looks_on(&mut self, n: usize, which: &TriggerKey, look: Look) {
        let waiters = &mut self.machines[n].service.as_mut().expect("alive").waiters;
        waiters.get_mut(which).expect("it waits").look = Some(look);
    }

    /// Targets of a run whose failures are stored in the backend.
    fn failures(&mut self, id: &Id) -> BTreeSet<Node> {
        let stories = Prefix::Stories(None).encode(&seal::namespace());
        let stories = self.backend.list(&stories, self.now);
        let of_run = stories.iter().filter(|(key, _)| key.ends_with(id.as_str()));
        let failed = of_run.filter_map(|(key, value)| {
            let key = Key::decode(key, &seal::namespace()).ok()?;
            match seal::fact(&key, &value.bytes)? {
                Fact::Status(told) if told.outcome.counts_as_failed() => Some(told.target),
                _ => None,
            }
        });
        failed.collect()
    }

    fn begin(&mut self, n: usize, which: &TriggerKey, trigger: &Trigger, failed: BTreeSet<Node>) {
        let me = self.machines[n].name.clone();
        self.promises.begins(&me, trigger, failed);
        self.feed(n, Event::Turn(which.clone()));
    }

    fn waits(&mut self, n: usize, which: &TriggerKey) {
        let waiters = &mut self.machines[n].service.as_mut().expect("alive").waiters;
        waiters.get_mut(which).expect("it waits").has_said = true;
        self.feed(n, Event::Waits(which.clone(), "others".to_owned()));
    }

    fn no_turn(&mut self, n: usize, which: &TriggerKey, outcome: Outcome) {
        let answer = Answer {
            which: which.clone(),
            outcome,
            why: "because".to_owned(),
            above: None,
        };
        self.feed(n, Event::NoTurn(answer));
    }
}
