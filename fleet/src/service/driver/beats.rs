//! Beats of this node and of others.

use std::slice;
use std::time::Duration;

use again_base::sys::clock;
use tracing::warn;

use super::{Driver, then};
use crate::backend::Error;
use crate::policy::beat::{Dead, Found};
use crate::service::beats::Effect;
use crate::service::failures::Work;
use crate::service::link::{Call, Listed};
use crate::service::places::Act;
use crate::step::model;
use crate::wire::beat::Covered;
use crate::wire::envelope::Draft;
use crate::wire::key::Key;
use crate::wire::name::Node;

/// Time that a beat stays in the backend: longer than any node compares it.
const STAYS: Duration = Duration::from_secs(600);

impl Driver {
    /// Writes a beat, if this node has slots or locks, and reads the beats of the nodes that it
    /// watches.
    pub fn beat(&mut self) {
        if !self.health.is_up {
            return;
        }
        self.send_beat();
        let watched = [self.slots.watched(), self.locks.watched()].concat();
        let effect = self.beats.look(watched, clock::boottime());
        self.do_with_beats(effect);
    }

    fn send_beat(&mut self) {
        let (slots, locks) = (self.slots.covered(), self.locks.covered());
        let now = (clock::boottime(), clock::walltime());
        let effect = self.beats.beat(slots, locks, now);
        self.do_with_beats(effect);
    }

    fn do_with_beats(&mut self, effect: Option<Effect>) {
        match effect {
            Some(Effect::Find) => self.list_beats(slice::from_ref(&self.me), true),
            Some(Effect::Look(nodes)) => self.list_beats(&nodes, false),
            Some(Effect::Put(beat)) => {
                let draft = Draft::new(&self.namespace, &beat).map_err(|e| e.to_string());
                match draft.and_then(|draft| self.sealed(&draft)) {
                    Ok(bytes) => self.order(Call::Put {
                        key: Key::Beat(beat.node),
                        bytes,
                        ttl: Some(STAYS),
                        needs_room: false,
                        then: then(Driver::beat_written),
                    }),
                    Err(e) => {
                        self.beats.answered(false);
                        warn!("the beat cannot be signed: {e}");
                    }
                }
            }
            Some(Effect::Check(beat)) => {
                let slots = beat.slots.iter().map(slot_key(&self.me));
                let locks = beat.locks.iter().map(lock_key);
                self.list_for_beats(slots.chain(locks), |driver, _, answer| {
                    driver.places_read(answer);
                });
            }
            None => {}
        }
    }

    fn list_beats(&self, nodes: &[Node], is_own: bool) {
        let keys = nodes.iter().map(|node| Key::Beat(node.clone()));
        self.list_for_beats(keys, move |driver, asked, answer| {
            driver.beats_read(is_own, asked, answer);
        });
    }

    fn list_for_beats(
        &self,
        keys: impl Iterator<Item = Key>,
        act: impl FnOnce(&mut Driver, &[String], Listed) + 'static,
    ) {
        let keys = keys.map(|key| key.encode(&self.namespace));
        self.list(keys.collect(), act);
    }

    /// Handles the answer to the write of a beat. After an error it is not known whether the beat
    /// is written.
    fn beat_written(&mut self, answer: Result<u64, Error>) {
        match &answer {
            Ok(_) => self.health.failures.succeeded(&Work::Beat),
            Err(e) => {
                let what =
                    format!("slots and locks end, as no beat can be written: the backend {e}");
                self.note_refusal(Work::Beat, e, &what);
            }
        }
        let effect = self.beats.answered(answer.is_ok());
        self.do_with_beats(effect);
    }

    /// Handles the values at the keys that the last beat covers, which are read after the beat was
    /// written.
    fn places_read(&mut self, answer: Listed) {
        match &answer {
            Ok(_) => self.health.failures.succeeded(&Work::Beat),
            Err(e) => {
                let what = format!("slots and locks end, as they cannot be read: the backend {e}");
                self.note_refusal(Work::Beat, e, &what);
            }
        }
        let Some((sent, beat)) = self.beats.checked(answer.is_ok()) else {
            return;
        };
        let found = answer.unwrap_or_default().values;
        let (namespace, node) = (self.namespace.clone(), self.me.clone());
        let is_there = |key: Key, first| {
            let key = key.encode(&namespace);
            found.iter().any(|one| one.key == key && one.first == first)
        };
        let slot = slot_key(&node);
        let stands = |one: &Covered| is_there(lock_key(one), one.first);
        let effects = self.locks().beaten(&beat.locks, sent, stands);
        self.do_with_locks(effects);
        let stands = |one: &Covered| is_there(slot(one), one.first);
        let effects = self.slots().beaten(&beat.slots, sent, stands);
        self.do_all(effects);
    }

    /// Handles the beats that were read: this node's own, or those of others.
    fn beats_read(&mut self, is_own: bool, asked: &[String], answer: Listed) {
        match &answer {
            Ok(_) => self.health.failures.succeeded(&Work::Beats),
            Err(e) => {
                let what = if is_own {
                    "slots and locks end, as the last beat cannot be read"
                } else {
                    "cannot see which holders are alive"
                };
                self.note_refusal(Work::Beats, e, &format!("{what}: the backend {e}"));
            }
        }
        let found = answer.ok().map(|list| {
            let values = list
                .values
                .iter()
                .filter(|value| asked.contains(&value.key));
            let found = values.filter_map(|value| {
                let key = Key::decode(&value.key, &self.namespace).ok()?;
                let Key::Beat(node) = key.clone() else {
                    return None;
                };
                let beat = self.seals.beat(&value.bytes, &key);
                let mut is_unclear = false;
                if let Err(why) = &beat
                    && let model::Found::Unclear(why) = &**why
                {
                    is_unclear = true;
                    warn!(
                        "whether {node} is alive cannot be told, and its slots and locks are left to their leases: {why}"
                    );
                }
                Some(Found {
                    node,
                    revision: value.revision,
                    beat: beat.ok(),
                    is_unclear,
                })
            });
            found.collect::<Vec<_>>()
        });
        if is_own {
            let last = found.map(|found| found.into_iter().find_map(|one| one.beat));
            let counter = last.map(|beat| beat.map_or(0, |beat| beat.counter));
            self.beats.found(counter);
            if counter.is_some() {
                self.send_beat();
            }
            return;
        }
        for dead in self.beats.looked(found.as_deref(), clock::boottime()) {
            self.evict(dead);
        }
    }

    fn evict(&mut self, Dead { place, beat }: Dead) {
        let at = Key::Beat(place.node.clone()).encode(&self.namespace);
        let act = Act::Evict {
            revision: place.revision,
            beat: (at, beat),
        };
        let (key, node) = (place.key.clone(), place.node);
        let then = then(move |driver, answer| driver.evicted(&place.key, &node, answer));
        self.order(Call::Place { key, act, then });
    }

    /// Handles the answer to the removal of a dead node's slot or lock.
    fn evicted(&mut self, key: &Key, node: &Node, answer: Result<(), Error>) {
        let what = match key {
            Key::Slot { group, .. } => format!("place in group '{group}'"),
            Key::Lock(name) => format!("lock '{name}'"),
            _ => return,
        };
        match answer {
            Ok(_) => {
                self.health.failures.succeeded(&Work::Eviction(key.clone()));
                warn!("{node} has lost its {what}: no beat of its service was seen for 90 s");
            }
            // The node has sent a beat, or another node has removed the slot or lock first.
            Err(Error::Conflict) => {
                let work = Work::Eviction(key.clone());
                self.health.failures.succeeded(&work);
            }
            Err(e) => {
                let what = format!("{node} is dead and keeps its {what}: the backend {e}");
                self.note_refusal(Work::Eviction(key.clone()), &e, &what);
            }
        }
    }
}

fn slot_key(node: &Node) -> impl Fn(&Covered) -> Key {
    move |place| Key::Slot {
        group: place.name.clone(),
        node: node.clone(),
    }
}

fn lock_key(lock: &Covered) -> Key {
    Key::Lock(lock.name.clone())
}
