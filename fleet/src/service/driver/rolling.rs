//! Triggers that are part of a rolling run wait for their turn in a group of slots of their own,
//! which is named after the id of the trigger.

use again_base::model::Boottime;
use again_base::sys::clock;

use super::{Driver, then};
use crate::ask;
use crate::backend::{Error, NO_PLACES, Value};
use crate::policy::replay::TriggerKey;
use crate::policy::rolling::{Count, Effect, Fact};
use crate::service::link::Call;
use crate::service::slots::{Holder, Run, Slots, Waiter, named};
use crate::step::model::{self, Event, State};
use crate::wire::Malformed;
use crate::wire::key::Key;
use crate::wire::name::{Id, Name};
use crate::wire::outcome::{Entry, Outcome};

/// Outcomes that decide whether others begin, as JSON strings: those of a run that has begun, and
/// of one that failed.
const DECIDING: [&str; 5] = [
    "\"taken\"",
    "\"started\"",
    "\"too late\"",
    "\"failed\"",
    "\"unknown\"",
];

/// Group of slots of a rolling run.
fn group(id: &Id) -> Result<Name, String> {
    let group = format!("at once {id}").parse();
    group.map_err(|e: Malformed| e.to_string())
}

/// Reason, in words, that the targets of this run are not known.
fn unlisted(which: &TriggerKey) -> String {
    let TriggerKey { sender, id, .. } = which;
    format!("{sender} has not published the list of targets of run {id}")
}

impl Driver {
    /// Queues the triggers that wait for their turn, and gives up the slots of those that no longer
    /// need them.
    pub(super) fn roll(&mut self) {
        self.look_due();
        for (which, parallel) in std::mem::take(&mut self.queued) {
            self.queue(which, parallel);
        }
        let health = &self.health;
        let up = clock::walltime().since(health.since);
        let are_seen = health.is_up && up.secs() >= 60;
        let is_over = |state: &State, slots: &Slots| {
            let mut all = slots.triggers();
            let over = all.find(|(_, which)| state.is_over(which, are_seen));
            over.map(|(group, which)| (group.clone(), which.clone()))
        };
        while let Some((group, which)) = is_over(&self.state, &self.slots) {
            self.turns.remove(&which);
            let effects = self.slots().ended(&group, &Holder::Trigger(which));
            self.do_all(effects);
        }
    }

    fn queue(&mut self, which: TriggerKey, parallel: u32) {
        if !self.health.backend.supports_slots() {
            return self.no_turn(which, Outcome::Refused, NO_PLACES);
        }
        self.turns.insert(which.clone());
        let run = Run::of(which.clone(), clock::walltime().millis());
        let waiter = Waiter::Trigger(which.clone());
        let group = group(&which.id);
        match group.and_then(|group| self.slots().want(waiter, &group, parallel, run)) {
            Ok(effects) => self.do_all(effects),
            Err(why) => self.no_turn(which, Outcome::Held, &why),
        }
    }

    fn no_turn(&mut self, which: TriggerKey, outcome: Outcome, why: &str) {
        let why = ask::words(why);
        self.feed(Event::NoTurn(model::Answer {
            which,
            outcome,
            why,
            above: None,
        }));
    }

    /// Publishes that the turn of a trigger has not come.
    pub(super) fn waits(&mut self, which: TriggerKey, why: String) {
        // While the backend is away, nothing can be published.
        if self.health.is_up && self.turns.contains(&which) {
            self.feed(Event::Waits(which, why));
        }
    }

    /// Handles that the turn of a trigger has come. Failed targets are counted first, if the run
    /// stops after failures.
    pub(super) fn turn(&mut self, which: TriggerKey) {
        // The trigger was queued again while its count is under way, or no longer waits.
        if self.counts.get(&which).is_some() || !self.turns.contains(&which) {
            return;
        }
        match (self.state.waiting(&which), group(&which.id)) {
            (Some(trigger), Ok(group)) if trigger.stop_after > 0 => {
                let count = Count::new(trigger, group);
                self.counts.insert(which.clone(), (count, None));
                self.count_on(which);
            }
            _ => self.begins(which),
        }
    }

    fn begins(&mut self, which: TriggerKey) {
        self.turns.remove(&which);
        self.feed(Event::Turn(which));
    }

    /// Uptime at which the next count continues.
    pub(super) fn next_look(&self) -> Option<Boottime> {
        self.counts.0.iter().filter_map(|(_, (_, due))| *due).min()
    }

    /// Continues the counts that are due, and forgets those whose triggers no longer wait.
    fn look_due(&mut self) {
        let turns = &self.turns;
        self.counts.0.retain(|(which, _)| turns.contains(which));
        let now = clock::boottime();
        let all = self.counts.0.iter_mut();
        let due = all.filter_map(|(which, (count, due))| {
            due.take_if(|at| *at <= now)?;
            count.look();
            Some(which.clone())
        });
        let due: Vec<TriggerKey> = due.collect();
        due.into_iter().for_each(|which| self.count_on(which));
    }

    fn count_on(&mut self, which: TriggerKey) {
        let waits = self.turns.contains(&which);
        let Some((count, due)) = self.counts.get_mut(&which).filter(|_| waits) else {
            return;
        };
        let effect = count.next(clock::boottime());
        if let Effect::Read(keys) = effect {
            let then = then(move |driver, answer| driver.read(which, answer));
            return self.order(Call::Get { keys, then });
        }
        if let Effect::Wait(at, missing) = effect {
            *due = Some(at);
            let words = match missing.len() {
                0 => unlisted(&which),
                count => {
                    let names = named(&mut missing.iter(), count);
                    format!("{names} began, lost the slot and published no end")
                }
            };
            return self.waits(which, words);
        }
        self.counts.remove(&which);
        match effect {
            Effect::Halt { failed, missing } => {
                let count = failed.len();
                let names = named(&mut failed.iter(), count);
                let mut why = format!("{count} of its targets have failed: {names}");
                if !missing.is_empty() {
                    let names = named(&mut missing.iter(), missing.len());
                    why = format!("{why}; no end is known of {names}");
                }
                self.no_turn(which, Outcome::Halted, &why);
            }
            Effect::Unlisted => self.no_turn(which.clone(), Outcome::Held, &unlisted(&which)),
            _ => self.begins_with_slot(which),
        }
    }

    /// Begins the run, unless the slot was lost while failures were counted.
    fn begins_with_slot(&mut self, which: TriggerKey) {
        let group = group(&which.id).ok();
        let group = group.and_then(|group| self.slots.group(&group));
        let has_slot = group.is_some_and(|group| group.had_turn && group.place.is_some());
        let parallel = self.state.waiting(&which).map(|one| one.parallel);
        match parallel.filter(|_| !has_slot) {
            Some(parallel) => self.queued.push((which, parallel)),
            None => self.begins(which),
        }
    }

    /// Handles values that other targets have published.
    fn read(&mut self, which: TriggerKey, answer: Result<Vec<Value>, Error>) {
        if !self.turns.contains(&which) {
            return;
        }
        match answer {
            Err(e) => {
                self.counts.remove(&which);
                let why = format!("what others have published cannot be read: the backend {e}");
                self.no_turn(which, Outcome::Held, &why);
            }
            Ok(values) => {
                for value in &values {
                    match self.fact(value) {
                        Ok(Some(fact)) => {
                            let count = self.counts.get_mut(&which);
                            count
                                .into_iter()
                                .for_each(|(count, _)| count.record(fact.clone()));
                        }
                        Ok(None) => {}
                        Err(why) => self.reject(&format!("{} is not believed: {why}", value.key)),
                    }
                }
                self.count_on(which);
            }
        }
    }

    /// Fact that a value states, if its node has signed it there. Signatures are verified only for
    /// facts that may decide.
    fn fact(&mut self, value: &Value) -> Result<Option<Fact>, String> {
        let key = Key::decode(&value.key, &self.namespace).map_err(|e| e.to_string())?;
        Ok(Some(match &key {
            Key::Targets { .. } => Fact::Targets(self.seals.read(&value.bytes, &key)?),
            Key::Slot { .. } if value.bytes.is_empty() => return Ok(None),
            Key::Slot { .. } => Fact::Slot(self.stands(value, &key)?.slot.node),
            Key::Story { .. } => {
                let text = String::from_utf8_lossy(&value.bytes);
                if DECIDING.iter().any(|word| text.contains(word)) {
                    Fact::Status(self.seals.read::<Entry>(&value.bytes, &key)?.told)
                } else {
                    return Ok(None);
                }
            }
            _ => return Ok(None),
        }))
    }
}
