//! Runs that wait for a slot, and this node's places among those that share slots.

use again::layout::complain;
use again::model::{Boottime, Identity, Span};
use again::sys::clock;

use super::Driver;
use crate::ask::{self, Wish};
use crate::engine::{Change, Error, NO_PLACES, Value, watch};
use crate::policy::slots::{Lease, Standing};
use crate::service::holders::{hold, tell_end};
use crate::service::link::{Answer, Call, Order};
use crate::service::places::Act;
use crate::service::slots::{Deed, Run};
use crate::step::model::Client;
use crate::wire::envelope::Draft;
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Name, Node};
use crate::wire::slot::Slot;

/// Before what has failed is tried again: less than a run waits for a service that says nothing.
const PAUSE: Span = Span::from_secs(2);

impl Driver {
    /// Whether places can be had with this engine; if not, somebody is told so.
    pub fn has_places(&mut self, client: Client) -> bool {
        let has_places = self.health.engine != "nats";
        if !has_places {
            let why = ask::Answer::Refused(NO_PLACES.to_owned());
            self.callers.answer(client, why);
        }
        has_places
    }

    /// Somebody wants a slot for a run.
    pub fn wish(&mut self, client: Client, wish: &Wish) {
        if !self.has_places(client) {
            return;
        }
        let begun = hold(wish.run).and_then(|(fd, file)| {
            tell_end(fd, self.ways.run_ended(&wish.group, wish.run))?;
            Ok(Run {
                who: wish.run,
                file,
                since: clock::walltime().millis(),
                why: wish.why.clone(),
            })
        });
        let begun = begun.map_err(|e| format!("the run cannot be watched: {e}"));
        self.callers.stand(client);
        match begun.and_then(|run| self.slots.want(client, wish, run)) {
            Ok(deeds) => self.do_all(deeds),
            Err(why) => {
                let why = ask::Answer::Refused(ask::words(&why));
                self.callers.answer(client, why);
            }
        }
    }

    /// A run has ended.
    pub fn run_ended(&mut self, group: &Name, who: Identity) {
        let deeds = self.slots.ended(group, who);
        self.do_all(deeds);
    }

    /// Begins again with what has failed, if it is time.
    pub fn try_again(&mut self, now: Boottime) {
        if self.places_due.is_none_or(|at| now < at) {
            return;
        }
        self.places_due = None;
        let deeds = self.slots.retry();
        self.do_all(deeds);
    }

    /// What was done with a place has failed.
    fn try_later(&mut self) {
        self.places_due = Some(clock::boottime() + PAUSE);
    }

    /// Something came of what was done with a place.
    pub fn placed(&mut self, group: &Name, act: &Act, answer: Answer) {
        let value = answer.map(|found| found.into_iter().next());
        let place = self.slots.group(group).and_then(|one| one.place);
        let is_of = |lease: &Lease| place.is_some_and(|place| place.lease == *lease);
        // It was about a place that is not this node's any more.
        if let Act::Sign { lease, .. } | Act::Resume(lease) | Act::Leave(lease) = act
            && !is_of(lease)
        {
            return;
        }
        let deeds = match (act, value) {
            (
                Act::Enter,
                Ok(Some(Value {
                    bytes, revision, ..
                })),
            ) => {
                let lease = bytes.try_into().map_or(0, i64::from_be_bytes);
                self.slots.entered(group, revision, lease)
            }
            (Act::Sign { .. }, Ok(Some(value))) => self.slots.stands(group, Some(value.revision)),
            (Act::Resume(_), Ok(_)) => self.slots.stands(group, None),
            (Act::Leave(lease), Ok(_) | Err(Error::Conflict)) => self.slots.left(group, *lease),
            (Act::Sign { .. } | Act::Resume(_), Err(Error::Conflict)) => {
                self.slots.gone(group, false)
            }
            (_, Err(e)) => {
                if let Error::Denied(_) | Error::TooLarge = e
                    && self.health.denied.insert(e.to_string())
                {
                    complain(&format!(
                        "again-fleet: no slot in group '{group}': the engine {e}"
                    ));
                }
                self.try_later();
                self.slots
                    .failed(group, ask::words(&format!("the engine {e}")))
            }
            (_, Ok(None)) => Vec::new(),
        };
        self.do_all(deeds);
    }

    /// Others have come or gone.
    pub fn watched(&mut self, number: u64, events: Vec<watch::Event>) {
        if number != self.slots.watch().0 {
            return;
        }
        for event in events {
            match event {
                watch::Event::Complete => self.slots.complete(),
                watch::Event::Changed(change) => self.saw(&change),
                watch::Event::Lost(Error::Denied(why)) => {
                    if self.health.denied.insert(why.clone()) {
                        complain(&format!(
                            "again-fleet: the engine does not let this node see who waits for slots: {why}"
                        ));
                    }
                }
                watch::Event::Lost(_) => {}
            }
        }
        for name in self.slots.missing(&self.me) {
            self.try_later();
            let deeds = self.slots.gone(&name, true);
            self.do_all(deeds);
        }
        let deeds = self.slots.look();
        self.do_all(deeds);
    }

    fn saw(&mut self, change: &Change) {
        let Ok(key) = Key::decode(change.key(), &self.namespace) else {
            return;
        };
        let Key::Slot { group, node } = &key else {
            return;
        };
        let standing = match change {
            Change::Put(value) if *node == self.me => self.my_standing(group, value),
            // An empty one is the first write of somebody who comes.
            Change::Put(value) if !value.bytes.is_empty() => {
                let told = self.seals.slot(&value.bytes, &key);
                let Value {
                    revision,
                    first,
                    writes,
                    ..
                } = *value;
                let standing = told.and_then(|slot| {
                    Standing::new(slot, revision, first, writes)
                        .ok_or_else(|| "it was put there another time".to_owned())
                });
                if let Err(why) = &standing {
                    self.turn_away(&format!("{} is not believed: {why}", value.key));
                }
                standing.ok()
            }
            _ => None,
        };
        self.slots.saw(group, node, standing);
    }

    /// What this node has put there by itself.
    fn my_standing(&self, group: &Name, value: &Value) -> Option<Standing> {
        let place = self.slots.group(group)?.place?;
        let slot = self.slot(group)?;
        let revision = Some(value.revision).filter(|one| *one == place.revision)?;
        Some(Standing { slot, revision })
    }

    /// What this node says where it stands.
    fn slot(&self, name: &Name) -> Option<Slot> {
        let group = self.slots.group(name)?;
        let run = group.runs.first()?;
        Some(Slot {
            group: name.clone(),
            node: self.me.clone(),
            first: group.place?.first,
            limit: group.limit,
            since: run.since,
            why: run.why.clone(),
        })
    }

    /// Has a place taken away.
    pub fn release(&mut self, client: Client, group: Name, node: Node) {
        if !self.has_places(client) {
            return;
        }
        if !self.seals.am_among(&self.operators) {
            let why = format!(
                "{} takes no places away: the setting operators does not list it",
                self.me
            );
            return self.callers.answer(client, ask::Answer::Refused(why));
        }
        let key = Key::Slot { group, node };
        self.order(Call::Release { client, key });
    }

    /// Tells somebody whether a place was taken away.
    pub fn released(&mut self, client: Client, answer: Answer) {
        let said = match answer {
            Ok(found) if !found.is_empty() => return self.callers.end(client),
            Ok(_) => ask::Answer::Refused("it neither runs nor waits there".to_owned()),
            Err(e) => self.not_seen(&e),
        };
        self.callers.answer(client, said);
    }

    /// Does what is to be done about places.
    pub fn do_all(&mut self, deeds: Vec<Deed>) {
        let place = |group, act| Call::Place { group, act };
        let mut is_kept = true;
        for deed in deeds {
            match deed {
                Deed::Save => is_kept = false,
                Deed::Enter(group) => self.order(place(group, Act::Enter)),
                Deed::Sign(group) => self.sign(group),
                Deed::Resume(group, lease) => self.order(place(group, Act::Resume(lease))),
                Deed::Leave(group, lease) => self.order(place(group, Act::Leave(lease))),
                Deed::Watch => self.watch(),
                Deed::Tell(client, waits) => {
                    self.callers
                        .tell(client, ask::Answer::Waits(Box::new(waits)));
                }
                Deed::Turn(client) => self.callers.end(client),
                Deed::Say(text) => complain(&format!("again-fleet: {text}")),
            }
        }
        if !is_kept && let Err(e) = self.slots_file.write(&self.slots) {
            complain(&format!("again-fleet: a restart would lose slots: {e}"));
        }
    }

    fn sign(&mut self, group: Name) {
        let (Some(slot), Some(place)) = (
            self.slot(&group),
            self.slots.group(&group).and_then(|group| group.place),
        ) else {
            return;
        };
        let draft = Draft::new(&self.namespace, &slot);
        let sealed = draft.and_then(|draft| self.seals.seal(&[draft]));
        match sealed.map(|mut sealed| sealed.pop().unwrap_or_default()) {
            Ok(bytes) => {
                let (first, lease) = (place.first, place.lease);
                let act = Act::Sign {
                    first,
                    lease,
                    bytes,
                };
                self.order(Call::Place { group, act });
            }
            Err(e) => {
                self.try_later();
                let deeds = self.slots.failed(&group, ask::words(&e.to_string()));
                self.do_all(deeds);
            }
        }
    }

    fn watch(&self) {
        let (number, groups) = self.slots.watch();
        let prefix = match groups[..] {
            [] => None,
            [group] => Some(Prefix::Slots(group)),
            _ => Some(Prefix::AllSlots),
        };
        let prefix = prefix.map(|prefix| prefix.encode(&self.namespace));
        let _ = self.ways.orders.send(Order::Watch(number, prefix));
    }
}
