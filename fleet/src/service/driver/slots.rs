//! Runs that wait for a slot, and this node's entries in the queues for slots.

use again_base::model::Identity;
use again_base::sys::clock;
use tracing::{error, warn};

use super::{Driver, then};
use crate::ask::{self, Wish};
use crate::backend::{Error, NO_PLACES, Value};
use crate::policy::slots::{Lease, Standing};
use crate::service::failures::Work;
use crate::service::holders::{hold, tell_end};
use crate::service::link::{Call, Order};
use crate::service::places::{Act, Entered, Line, Seen};
use crate::service::slots::{Effect, Holder, Run, Slots, Waiter, Waits};
use crate::step::model::Client;
use crate::wire::envelope::Draft;
use crate::wire::key::{Key, Prefix};
use crate::wire::name::{Name, Node};
use crate::wire::slot::Slot;

impl Driver {
    /// Slots and queues of this node, with the current time.
    pub fn slots(&mut self) -> &mut Slots {
        self.slots.now = clock::boottime();
        &mut self.slots
    }

    /// Whether the backend supports slots; if not, the client is told so.
    pub fn has_places(&mut self, client: Client) -> bool {
        let has_places = self.health.backend.supports_slots();
        if !has_places {
            let why = ask::Answer::Refused(NO_PLACES.to_owned());
            self.callers.answer(client, why);
        }
        has_places
    }

    /// Handles a client's request for a slot for a run.
    pub fn wish(&mut self, client: Client, wish: &Wish) {
        if !self.has_places(client) {
            return;
        }
        let known = self.slots.group(&wish.group);
        let known = known.and_then(|group| {
            group
                .runs
                .iter()
                .find(|run| run.who == Holder::Process(wish.run))
        });
        let begun = known.cloned().map_or_else(|| self.watched_run(wish), Ok);
        self.callers.stand(client);
        let waiter = Waiter::Client(client);
        match begun.and_then(|run| self.slots().want(waiter, &wish.group, wish.limit, run)) {
            Ok(effects) => self.do_all(effects),
            Err(why) => {
                let why = ask::Answer::Refused(ask::words(&why));
                self.callers.answer(client, why);
            }
        }
    }

    /// Run with a watch for its end.
    fn watched_run(&self, wish: &Wish) -> Result<Run, String> {
        let begun = hold(wish.run).and_then(|(fd, file)| {
            tell_end(fd, self.ways.run_ended(&wish.group, wish.run))?;
            Ok(Run {
                who: Holder::Process(wish.run),
                file,
                since: clock::walltime().millis(),
                why: wish.why.clone(),
            })
        });
        begun.map_err(|e| format!("the run cannot be watched: {e}"))
    }

    /// Handles the end of a run.
    pub fn run_ended(&mut self, group: &Name, who: Identity) {
        let effects = self.slots().ended(group, &Holder::Process(who));
        self.do_all(effects);
    }

    /// Does what is due. On a beat, it also renews the leases of slots.
    pub fn slots_go_on(&mut self, is_beat: bool) {
        let mut effects = self.slots().tick();
        if is_beat {
            effects.extend(self.slots.beat());
        }
        self.do_all(effects);
    }

    fn slot_key(&self, group: &Name) -> Key {
        let (group, node) = (group.clone(), self.me.clone());
        Key::Slot { group, node }
    }

    /// Handles the answer to the first write of an entry in a queue, which is empty.
    fn entered(&mut self, group: &Name, answer: Result<Entered, Error>) {
        let effects = match answer {
            Ok(Entered { first, lease }) => self.slots().entered(group, first, lease),
            Err(e) => self.no_slot(group, &e),
        };
        self.do_all(effects);
    }

    /// Handles the answer to the second write of an entry, which is signed.
    fn signed(&mut self, group: &Name, lease: Lease, answer: Result<u64, Error>) {
        if answer.is_ok() && self.has_place(group, lease) {
            // A renewal also succeeds when nothing can be written.
            let work = Work::Slot(group.clone());
            self.health.failures.succeeded(&work);
        }
        self.confirmed(group, lease, answer.map(Some));
    }

    /// Handles the answer to the renewal of a lease.
    fn resumed(&mut self, group: &Name, lease: Lease, answer: Result<(), Error>) {
        self.confirmed(group, lease, answer.map(|()| None));
    }

    /// Handles the confirmation of an entry, with the revision of its second write if that is new;
    /// or an error.
    fn confirmed(&mut self, group: &Name, lease: Lease, answer: Result<Option<u64>, Error>) {
        if !self.has_place(group, lease) {
            return;
        }
        let effects = match answer {
            Ok(revision) => self.slots().stands(group, revision),
            Err(Error::Conflict) => self.slots().gone(group, false),
            Err(e) => self.no_slot(group, &e),
        };
        self.do_all(effects);
    }

    /// Handles the answer to the removal of this node's entry.
    fn gave_up(&mut self, group: &Name, lease: Lease, answer: Result<(), Error>) {
        if !self.has_place(group, lease) {
            return;
        }
        let effects = match answer {
            Ok(()) | Err(Error::Conflict) => self.slots().left(group, lease),
            Err(e) => self.no_slot(group, &e),
        };
        self.do_all(effects);
    }

    /// Whether an answer about an entry under this lease is about this node's current one.
    fn has_place(&self, group: &Name, lease: Lease) -> bool {
        let place = self.slots.group(group).and_then(|one| one.place);
        place.is_some_and(|place| place.lease == lease)
    }

    fn no_slot(&mut self, group: &Name, e: &Error) -> Vec<Effect> {
        let what = format!("no slot in group '{group}': the backend {e}");
        self.note_refusal(Work::Slot(group.clone()), e, &what);
        let why = ask::words(&format!("the backend {e}"));
        self.slots().failed(group, why)
    }

    /// Handles an observation of the queues in which this node has an entry.
    pub fn watched(&mut self, number: u64, seen: Seen) {
        if number != self.slots().round() {
            return;
        }
        let effects = match seen {
            Seen::Line(group, values, is_all) => {
                self.health.failures.succeeded(&Work::Queues);
                let (mut line, mut stands) = (Vec::new(), false);
                let place = self.slots.group(&group).and_then(|one| one.place);
                for value in values {
                    match self.standing(&value) {
                        Ok(None) => {
                            stands |= place.is_some_and(|one| one.revision == value.revision)
                        }
                        Ok(standing) => line.extend(standing),
                        Err(why) => {
                            self.reject(&format!("{} is not believed: {why}", value.key));
                        }
                    }
                }
                self.slots.saw(&group, line, is_all, stands)
            }
            Seen::Gone(key) => match Key::decode(&key, &self.namespace) {
                Ok(Key::Slot { group, node }) => self.slots.saw_go(&group, &node, &self.me),
                _ => return,
            },
            Seen::Lost(e) => {
                let what = format!("cannot see who waits for slots: the backend {e}");
                self.note_refusal(Work::Queues, &e, &what);
                return;
            }
        };
        self.do_all(effects);
    }

    /// Another node's entry in a queue; `None` for this node's own, and for one that is not signed
    /// yet, whose value is empty.
    fn standing(&mut self, value: &Value) -> Result<Option<Standing>, String> {
        let key = Key::decode(&value.key, &self.namespace).map_err(|e| e.to_string())?;
        let Key::Slot { node, .. } = &key else {
            return Ok(None);
        };
        if *node == self.me || value.bytes.is_empty() {
            return Ok(None);
        }
        self.stands(value, &key).map(Some)
    }

    /// Verified entry of any node in a queue.
    pub fn stands(&mut self, value: &Value, key: &Key) -> Result<Standing, String> {
        let slot = self.seals.read(&value.bytes, key)?;
        let standing = Standing::new(slot, value.revision, value.first, value.writes);
        standing.ok_or_else(|| "it was put there another time".to_owned())
    }

    /// Value that this node signs for its entry in the queue of this group.
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
            beats: true,
        })
    }

    /// Releases the slot of a node, or its position in the queue.
    pub fn release(&mut self, client: Client, group: Name, node: Node) {
        if !self.has_places(client) {
            return;
        }
        if let Err(why) = self.may("takes no places away") {
            return self.callers.answer(client, ask::Answer::Refused(why));
        }
        let key = Key::Slot { group, node };
        let then = then(move |driver, answer| driver.released(client, answer));
        self.order(Call::Release { key, then });
    }

    /// Whether this node is an operator.
    pub(super) fn may(&self, what: &str) -> Result<(), String> {
        if self.seals.am_among(&self.operators) {
            return Ok(());
        }
        let me = &self.me;
        Err(format!(
            "{me} {what}: the setting operators does not list it"
        ))
    }

    /// Answers a client whether a slot was released.
    fn released(&mut self, client: Client, answer: Result<bool, Error>) {
        let said = match answer {
            Ok(true) => return self.callers.end(client),
            Ok(false) => ask::Answer::Refused("it neither runs nor waits there".to_owned()),
            Err(e) => self.not_seen(&e),
        };
        self.callers.answer(client, said);
    }

    /// Performs effects on slots.
    pub fn do_all(&mut self, effects: Vec<Effect>) {
        let mut is_kept = true;
        for effect in effects {
            match effect {
                Effect::Save => is_kept = false,
                Effect::Enter(group) => self.order(Call::Enter {
                    key: self.slot_key(&group),
                    is_own: true,
                    then: then(move |driver, answer| driver.entered(&group, answer)),
                }),
                Effect::Sign(group) => self.sign(group),
                Effect::Resume(group, lease) => self.order(Call::Place {
                    key: self.slot_key(&group),
                    act: Act::Resume(lease),
                    then: then(move |driver, answer| driver.resumed(&group, lease, answer)),
                }),
                Effect::Leave(group, lease) => self.order(Call::Place {
                    key: self.slot_key(&group),
                    act: Act::Leave(lease),
                    then: then(move |driver, answer| driver.gave_up(&group, lease, answer)),
                }),
                Effect::Look => self.look_at_lines(),
                Effect::Tell(Waiter::Client(client), waits) => {
                    let answer = match waits {
                        Waits::Place => ask::Answer::Waits(String::new()),
                        Waits::Backend(why) => ask::Answer::Away(why),
                        Waits::Others(limit, before) => {
                            ask::Answer::Waits(format!(", which has {limit}: {before}"))
                        }
                    };
                    self.callers.tell(client, answer);
                }
                Effect::Tell(Waiter::Trigger(which), waits) => match waits {
                    Waits::Place => {}
                    Waits::Backend(why) | Waits::Others(_, why) => self.waits(which, why),
                },
                Effect::Turn(Waiter::Client(client)) => self.callers.end(client),
                Effect::Turn(Waiter::Trigger(which)) => self.turn(which),
                Effect::Say(text) => warn!("{text}"),
            }
        }
        if !is_kept && let Err(e) = self.slots_file.write(&self.slots) {
            error!("a restart would lose slots: {e}");
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
                self.order(Call::Sign {
                    key: self.slot_key(&group),
                    entered: Entered { first, lease },
                    bytes,
                    then: then(move |driver, answer| driver.signed(&group, lease, answer)),
                });
            }
            Err(e) => {
                let effects = self.slots().failed(&group, ask::words(&e.to_string()));
                self.do_all(effects);
            }
        }
    }

    fn look_at_lines(&self) {
        let line = |(group, revision, most, is_known): (&Name, _, _, _)| Line {
            group: group.clone(),
            prefix: Prefix::Slots(group).encode(&self.namespace),
            revision,
            most,
            is_known,
        };
        let lines: Vec<Line> = self.slots.lines().map(line).collect();
        let prefix = match &lines[..] {
            [line] => line.prefix.clone(),
            _ => Prefix::AllSlots.encode(&self.namespace),
        };
        let look = Order::Look(self.slots.round(), prefix, lines);
        let _ = self.ways.orders.send(look);
    }
}
