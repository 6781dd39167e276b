//! Triggers that are part of a rolling run wait for their turn in a group of slots of their own, which the id of the trigger names.

use std::collections::BTreeSet;

use again::model::Identity;
use again::sys::clock;

use super::Driver;
use crate::ask::{self, Wish};
use crate::engine::{Limit, NO_PLACES, Value};
use crate::policy::books::Which;
use crate::service::link::Answer;
use crate::service::slots::{Holder, Run, Slots, named};
use crate::step::model::{self, Client, Event, State};
use crate::wire::key::{Key, Prefix};
use crate::wire::lineage::Lineage;
use crate::wire::name::{Id, Node};
use crate::wire::outcome::{Entry, Outcome};

/// Outcomes that count as failed, as JSON strings.
const FAILED: [&str; 2] = ["\"failed\"", "\"unknown\""];

/// How much is read of the story of a rolling run: what more than 20,000 targets have told, at up to three kilobytes each. No entry is
/// shorter than 800 bytes.
const OUTCOMES: Limit = Limit {
    bytes: 64_000_000,
    values: 80_000,
};

/// The origins below which all targets of a rolling run publish what became of its triggers: the one that it is itself. A run that
/// Puppet began has those of the run that fired it instead, and at one target perhaps those of older triggers besides: all of them then.
fn shared<'l>(lineage: &'l Lineage, id: &Id) -> Vec<&'l Id> {
    let origins = lineage.0.iter().map(|origin| &origin.id);
    match origins.clone().find(|origin| *origin == id) {
        Some(own) => vec![own],
        None => origins.collect(),
    }
}

/// Why nobody knows how many targets of a run have failed, which are published below these.
fn too_much(prefixes: &[String]) -> String {
    let below = prefixes.join(" and ");
    format!(
        "failed targets cannot be counted: etcd holds more than 64 MB or 80,000 values below {below}; remove keys there that are not from the run's targets ('etcdctl get --prefix --keys-only' shows them), or fire again without --stop-after-failures"
    )
}

/// The outcome of a trigger whose turn has come, if it may not begin: so many of its targets have failed as far as was read, and so many
/// are too many. What was not read may hold more that have failed.
fn verdict(failed: usize, most: Option<usize>, is_cut: bool) -> Option<Outcome> {
    match most {
        Some(most) if failed >= most => Some(Outcome::Halted),
        Some(_) if is_cut => Some(Outcome::Held),
        _ => None,
    }
}

impl Driver {
    /// Gets those in line that wait for their turn, and gives up the places of those that need them no longer.
    pub(super) fn roll(&mut self) {
        for (which, at_once) in std::mem::take(&mut self.queued) {
            self.queue(which, at_once);
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
            self.turns.0.retain(|(_, one)| *one != which);
            let deeds = self.slots().ended(&group, &Holder::Trigger(which));
            self.do_all(deeds);
        }
    }

    fn queue(&mut self, which: Which, at_once: u32) {
        if self.health.engine == "nats" {
            return self.no_turn(which, Outcome::Refused, NO_PLACES);
        }
        let known = self.turns.0.iter().find(|(_, one)| *one == which);
        let client = known.map_or_else(|| self.callers.stranger(), |(client, _)| *client);
        self.turns.insert(client, which.clone());
        let wanted = format!("at once {}", which.id).parse().map(|group| Wish {
            group,
            limit: at_once,
            run: Identity { pid: 0, start: 0 },
            why: String::new(),
        });
        let run = Run::of(which.clone(), clock::walltime().millis());
        let wanted = wanted.map_err(|e| e.to_string());
        match wanted.and_then(|wish| self.slots().want(client, &wish, run)) {
            Ok(deeds) => self.do_all(deeds),
            Err(why) => self.no_turn(which, Outcome::Held, &why),
        }
    }

    fn no_turn(&mut self, which: Which, outcome: Outcome, why: &str) {
        let why = ask::words(why);
        self.feed(Event::NoTurn(model::Answer {
            which,
            outcome,
            why,
        }));
    }

    /// It has not come.
    pub(super) fn waits(&mut self, which: Which, words: &str, is_away: bool) {
        // How many run at a time is said by the trigger.
        let before = words.split_once(": ").map(|(_, before)| before);
        let why = if is_away { Some(words) } else { before };
        // Where the engine is away nobody could be told.
        if let Some(why) = why.filter(|_| self.health.is_up) {
            self.feed(Event::Waits(which, why.to_owned()));
        }
    }

    /// It has come; but those that have failed may be too many.
    pub(super) fn turn(&mut self, client: Client, which: Which) {
        match self.state.waiting(&which) {
            Some(trigger) if trigger.stop_after > 0 => {
                let origins = shared(&trigger.lineage, &which.id);
                let stories: Vec<_> = origins.into_iter().map(Prefix::Story).collect();
                self.look(client, &stories, Some(OUTCOMES));
            }
            _ => self.begins(client, which),
        }
    }

    fn begins(&mut self, client: Client, which: Which) {
        self.turns.remove(&client);
        self.feed(Event::Turn(which));
    }

    /// What all have told so far.
    pub(super) fn counted(&mut self, client: Client, prefixes: &[String], answer: Answer) {
        let Some(which) = self.turns.get(&client).cloned() else {
            return;
        };
        let most = self
            .state
            .waiting(&which)
            .map(|one| one.stop_after as usize);
        match answer {
            Err(e) => {
                let why = format!("what others have told cannot be read: the engine {e}");
                self.no_turn(which, Outcome::Held, &why);
            }
            Ok(list) => {
                let failed = self.failed(&which, &list.values);
                let count = failed.len();
                match verdict(count, most, list.is_cut) {
                    None => self.begins(client, which),
                    Some(Outcome::Halted) => {
                        let names = named(&mut failed.iter(), count);
                        let why = format!("{count} of its targets have failed: {names}");
                        self.no_turn(which, Outcome::Halted, &why);
                    }
                    Some(outcome) => self.no_turn(which, outcome, &too_much(prefixes)),
                }
            }
        }
    }

    /// The targets that have failed, by what each has signed; only where it may say so a signature is looked at.
    fn failed(&mut self, which: &Which, values: &[Value]) -> BTreeSet<Node> {
        let mut failed = BTreeSet::new();
        for value in values {
            let key = Key::decode(&value.key, &self.namespace);
            let text = String::from_utf8_lossy(&value.bytes);
            let may_say_so = FAILED.iter().any(|word| text.contains(word));
            let (true, Ok(key)) = (may_say_so, key) else {
                continue;
            };
            match self.seals.entry(&value.bytes, &key) {
                Ok(Entry { told, .. })
                    if (&told.id, &told.sender) == (&which.id, &which.sender)
                        && told.outcome.counts_as_failed() =>
                {
                    failed.insert(told.target);
                }
                Ok(_) => {}
                Err(why) => self.turn_away(&format!("{} is not believed: {why}", value.key)),
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::lineage::tests::lineage;

    #[test]
    fn failures_are_counted_below_an_origin_that_all_targets_share() {
        let of = |ways: &[&str], id: u128| {
            let (lineage, id) = (lineage(ways), Id::from_bits(id));
            let origins: Vec<Id> = shared(&lineage, &id).into_iter().cloned().collect();
            origins
        };
        let ids = |ids: &[u128]| -> Vec<Id> { ids.iter().map(|id| Id::from_bits(*id)).collect() };
        // One target still had the trigger of an older run.
        assert_eq!(of(&["2: a"], 2), ids(&[2]));
        assert_eq!(of(&["1: a", "2: a"], 2), ids(&[2]));
        // The run was fired by a run with origins.
        assert_eq!(of(&["1: a", "2: b a"], 3), ids(&[1, 2]));
    }

    #[test]
    fn turn_is_held_while_failures_cannot_all_be_read() {
        for (failed, most, is_cut, outcome) in [
            (0, Some(1), false, None),
            (1, Some(1), false, Some(Outcome::Halted)),
            (1, Some(2), true, Some(Outcome::Held)),
            (2, Some(2), true, Some(Outcome::Halted)),
            (2, None, true, None),
        ] {
            assert_eq!(
                verdict(failed, most, is_cut),
                outcome,
                "{failed} of {most:?}"
            );
        }
    }
}
