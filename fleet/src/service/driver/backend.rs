//! News from the link: whether the backend is reached, values in the backend, and answers to calls.

use again_base::layout::plural;
use again_base::model::Walltime;
use again_base::sys::clock;
use tracing::{info, warn};

use super::{Driver, Note, Reply, then};
use crate::ask::{self, Reason};
use crate::backend::{Change, Error, Value};
use crate::handover::Evidence;
use crate::policy::newest::Ignored;
use crate::policy::presence::Presence;
use crate::service::failures::Work;
use crate::service::link::{Call, Listed, News, OF_A_SENDER, OWN_KEY};
use crate::service::nodes::{Shown, Source};
use crate::step::model::{Client, EntryId, Event, Found, Place, Sight};
use crate::step::own_key::OwnKey;
use crate::wire;
use crate::wire::inventory::Inventory;
use crate::wire::key::{Key, Prefix};
use crate::wire::lock::Reset;
use crate::wire::name::Node;
use crate::wire::quota::Amount;

/// Number of values of a list that are verified together, which takes some milliseconds.
const PORTION: usize = 64;

/// Largest number of senders of too many triggers that are named.
const MOST_CUT: usize = 1000;

impl Driver {
    /// Handles news from the link.
    pub fn told(&mut self, news: News<Reply>) {
        match news {
            News::Reached => self.reached(),
            News::Lost(why) => self.lost(why),
            News::Changes(changes) => self.changed(changes),
            News::Cut(segment) => self.cut_off(&segment),
            News::Foreign(key) => self.foreign(&key),
            News::Watched(number, None) => {
                self.health.failures.succeeded(&Work::Watch(number));
                self.own_key_seen(number, true);
            }
            News::Watched(number, Some((prefix, error))) => {
                let what = match number {
                    OWN_KEY => "cannot watch this node's own facts, which are not restored if another value is put in their place".to_owned(),
                    _ => format!("cannot see what is below '{prefix}'"),
                };
                let what = format!("{what}: the backend {error}");
                self.note_refusal(Work::Watch(number), &error, &what);
                self.own_key_lost(number, &error);
            }
            News::Answered(reply) => reply(self),
            News::Seen(number, seen) => self.watched(number, seen),
        }
    }

    /// Handles the backend's answer to the put of an entry.
    pub(super) fn entry_put(
        &mut self,
        entry: EntryId,
        version: u64,
        key: Key,
        answer: Result<u64, Error>,
    ) {
        self.sent(&entry, version, &answer);
        if let (EntryId::Node, Ok(revision)) = (&entry, &answer) {
            let (revision, found) = (*revision, OwnKey::Unchanged);
            self.feed(Event::OwnKey { revision, found });
        }
        let answer = answer.map(drop).map_err(|e| e.to_string());
        self.feed(Event::Put {
            entry,
            version,
            key,
            answer,
        });
    }

    /// Removes a value for this node if it has this revision.
    pub(super) fn remove(&self, place: Place, revision: u64) {
        let (sender, name) = place.clone();
        let target = self.me.clone();
        let key = Key::To {
            target,
            sender,
            name,
        };
        let then = then(move |driver, answer| driver.register_removed(place, revision, answer));
        self.order(Call::Remove {
            key,
            revision,
            then,
        });
    }

    fn register_removed(&mut self, place: Place, revision: u64, answer: Result<(), Error>) {
        let answer = match answer {
            // The key has another revision, or no value.
            Ok(()) | Err(Error::Conflict) => Ok(()),
            Err(e) => Err(e.to_string()),
        };
        self.feed(Event::Removed {
            place,
            revision,
            answer,
        });
    }

    /// Notes whether an entry was sent. Failures of this node's own entry and of a full backend are
    /// logged once.
    fn sent(&mut self, entry: &EntryId, version: u64, answer: &Result<u64, Error>) {
        let work = Work::OutboxEntry(entry.clone());
        let error = match answer {
            Ok(_) => return self.health.failures.succeeded(&work),
            Err(error) => error,
        };
        let kind = match entry {
            EntryId::Node => "this node's own entry",
            EntryId::Targets(_) => "the targets of a rolling run",
            EntryId::To(..) => "a trigger",
            EntryId::Selection(..) => "a selection",
            EntryId::Status(_) => "a result",
        };
        let what = format!("cannot send {kind}: the backend {error}");
        let now = clock::boottime();
        let is_news = self.health.failures.refused(work, error, &what, now);
        let is_refused = matches!(error, Error::Denied(_) | Error::TooLarge);
        if is_refused && *entry != EntryId::Node {
            warn!("{entry} is not sent: the backend {error}");
        } else if is_news {
            warn!("{what}");
        }
        if is_refused && *entry == EntryId::Node {
            self.feed(Event::NotTaken(version));
        }
    }

    /// Notes a failure, and logs it if it is new.
    pub(super) fn note_failure(&mut self, work: Work, reason: Reason, what: &str) {
        let now = clock::boottime();
        if self.health.failures.failed(work, reason, what, now) {
            warn!("{what}");
        }
    }

    /// Notes a refusal of the backend, and logs it if it is new.
    pub(super) fn note_refusal(&mut self, work: Work, error: &Error, what: &str) {
        let now = clock::boottime();
        if self.health.failures.refused(work, error, what, now) {
            warn!("{what}");
        }
    }

    fn reached(&mut self) {
        info!("{} is reached", self.health.backend);
        let health = &mut self.health;
        (health.is_up, health.since) = (true, clock::walltime());
        health.why.clear();
        health.failures.forget_refusals();
        self.reactions.begin_anew();
        // A service that ran another version of this program may have published before.
        self.retell(&[]);
        self.feed(Event::Reached);
        self.read_nodes_again();
        self.events_go_on();
        let effects = self.slots().reached();
        self.do_all(effects);
        let effects = self.locks().reached();
        self.do_with_locks(effects);
        self.beat();
    }

    fn lost(&mut self, why: String) {
        // Whoever shows the reason adds that the backend is not reached.
        let why = why.strip_prefix("cannot be reached: ").unwrap_or(&why);
        let why = why.to_owned();
        let health = &mut self.health;
        // Failed attempts are logged once, and again whenever the reason changes.
        if health.is_up || health.why != why {
            warn!("{} is not reached: {why}", health.backend);
        }
        let was_up = std::mem::take(&mut health.is_up);
        health.why = why;
        health.failures.forget_refusals();
        if was_up {
            health.since = clock::walltime();
            self.feed(Event::Lost);
        }
        let why = ask::words(&self.health.why);
        let effects = self.slots().lost(&why);
        self.do_all(effects);
        self.locks().lost(&why);
        self.beats.lost();
    }

    /// Handles values that were written or removed at the watched keys: below `to/`, `result/` and
    /// `event/`, at this node's own key, and at the keys of locks, their moves and resets.
    fn changed(&mut self, changes: Vec<Change>) {
        self.look_at_files();
        let mut sights = Vec::new();
        for change in changes {
            match (Key::decode(change.key(), &self.namespace), change) {
                (Ok(Key::To { sender, name, .. }), Change::Put(value)) => {
                    sights.push(self.sight((sender, name), value));
                }
                (Ok(Key::To { sender, name, .. }), Change::Removed { .. }) => {
                    self.seen(&mut sights);
                    self.feed(Event::Gone((sender, name)));
                }
                (Ok(key @ Key::Result { .. }), Change::Put(value)) => self.heard(&key, &value),
                (Ok(key @ Key::Event { .. }), Change::Put(value)) => {
                    sights.extend(self.react(key, value.bytes));
                }
                (Ok(Key::Node(node)), change) if node == self.me => self.own_key_changed(change),
                (Ok(Key::Lock(name)), change) => self.lock_changed(&name, change),
                (Ok(key @ Key::Move { .. }), Change::Put(value)) => self.move_seen(&key, &value),
                (Ok(key @ Key::Reset { .. }), Change::Put(value)) => {
                    self.reset_seen(&key, &value);
                }
                (Ok(_), _) | (Err(_), Change::Removed { .. }) => {}
                (Err(e), Change::Put(_)) => {
                    self.reject(&format!(
                        "the backend holds something that is not ours: {e}"
                    ));
                }
            }
        }
        self.seen(&mut sights);
        self.ask_for_nodes();
    }

    /// Logs and counts a key that is not read.
    fn foreign(&mut self, key: &str) {
        let why = match Key::decode(key, &self.namespace) {
            Ok(_) => format!(
                "'{}' has a name that only this node gives",
                wire::shown(key)
            ),
            Err(e) => e.to_string(),
        };
        self.reject(&format!(
            "the backend holds something that is not ours: {why}"
        ));
    }

    /// Logs a sender of more triggers than are read, once.
    fn cut_off(&mut self, segment: &str) {
        let below = Prefix::To(&self.me).encode(&self.namespace);
        let key = Key::decode(&format!("{below}{segment}/x"), &self.namespace);
        let Ok(Key::To { sender, .. }) = key else {
            return;
        };
        if self.cut.len() < MOST_CUT && self.cut.insert(sender.clone()) {
            let (backend, Amount { bytes, values }) = (&self.health.backend, OF_A_SENDER);
            warn!(
                "{sender} has sent more than {values} triggers or {} MB that wait here: the rest is read from {backend} when these are done",
                bytes >> 20
            );
        }
    }

    fn sight(&mut self, place: Place, value: Value) -> Sight {
        let Value {
            bytes, revision, ..
        } = value;
        let found = self.seals.found(&bytes);
        let is_trigger = matches!(found, Found::Good(_));
        let bytes = if is_trigger { bytes } else { Vec::new() };
        Sight {
            place,
            revision,
            found,
            evidence: Evidence::Register(bytes),
        }
    }

    pub(super) fn seen(&mut self, sights: &mut Vec<Sight>) {
        if !sights.is_empty() {
            self.feed(Event::Seen(std::mem::take(sights)));
        }
    }

    /// Answers a client with values from the backend, as far as they are signed by the nodes that
    /// they name.
    pub(super) fn listed(&mut self, client: Client, prefixes: &[String], answer: Listed) {
        self.look_at_files();
        let slots = Prefix::AllSlots.encode(&self.namespace);
        let values = match answer {
            Ok(mut list) => {
                if list.is_cut {
                    let words = cut(prefixes, &list.values);
                    self.callers.tell(client, ask::Answer::Incomplete(words));
                }
                // An empty value is the first write of a node that is entering a queue or taking a
                // lock.
                list.values.retain(|value| !value.bytes.is_empty());
                list.values
            }
            Err(e) => {
                let mut why = self.not_seen(&e);
                let own = self.slots.own(false);
                if let ask::Answer::NotSeen(why) = &mut why
                    && prefixes.iter().any(|prefix| prefix.starts_with(&slots))
                    && !own.is_empty()
                {
                    *why = ask::words(&format!("{why}; here {}", own.join("; ")));
                }
                return self.callers.answer(client, why);
            }
        };
        self.begin_to_show(client, values, Source::Backend);
    }

    /// Begins to show a list, a portion at a time.
    pub(super) fn begin_to_show(&mut self, client: Client, values: Vec<Value>, source: Source) {
        let values = values.into_iter();
        self.lists.push_back(Shown {
            client,
            values,
            source,
        });
        if self.lists.len() == 1 {
            self.show_more();
        }
    }

    /// Shows a portion of a list. Verifying a long list at once would hold up everything else for
    /// too long.
    pub fn show_more(&mut self) {
        let Some(mut shown) = self.lists.pop_front() else {
            return;
        };
        let client = shown.client;
        // A client that has left gets nothing more, but the nodes that the backend has shown are
        // stored.
        if !self.callers.is_here(client) && !matches!(shown.source, Source::Nodes(..)) {
            shown.values = Vec::new().into_iter();
        }
        let all = shown.values.as_slice();
        self.seals.meet(&all[..all.len().min(PORTION)]);
        for value in shown.values.by_ref().take(PORTION) {
            let answer = match &shown.source {
                Source::Stored => self.shown_stored(&value),
                Source::Backend | Source::Nodes(..) => self.shown(&value),
            };
            let (key, is_valid) = (Key::decode(&value.key, &self.namespace), answer.is_ok());
            match answer {
                Ok(answer) => self.callers.tell(client, answer),
                Err(ignored) => {
                    if let Ok(Key::Node(node)) = &key {
                        let node = node.clone();
                        self.callers.tell(client, ask::Answer::Ignored(node));
                    }
                    self.ignore(&value.key, &ignored);
                }
            }
            if let Source::Nodes(reading, _) = &mut shown.source {
                Driver::remember(reading, value, key.ok(), is_valid);
            }
        }
        if shown.values.len() > 0 {
            self.lists.push_back(shown);
        } else if let Source::Nodes(reading, number) = shown.source {
            self.nodes_read(client, reading, number);
        } else {
            self.callers.end(client);
        }
        if !self.lists.is_empty() {
            let notes = self.ways.notes.clone();
            // Other pending work goes first.
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                let _ = notes.send(Note::More);
            });
        }
    }

    /// Removes the inventory of a node, unless the node is connected.
    pub(super) fn forget(&self, client: Client, node: Node) {
        let key = Key::Node(node.clone());
        let then = then(move |driver, found| driver.forget_unless_connected(client, node, found));
        self.order(Call::Find { key, then });
    }

    fn forget_unless_connected(
        &mut self,
        client: Client,
        node: Node,
        found: Result<Option<Value>, Error>,
    ) {
        self.look_at_files();
        let said = match found {
            // The backend has lost the inventory, and it counted all the same.
            Ok(None) => return self.forget_last(client, &node, false),
            Ok(Some(value)) if self.is_connected(&node, &value) => ask::Answer::Refused(format!(
                "{node} signed its entry within the last 15 minutes and counts as connected; stop its service and try again in 15 minutes"
            )),
            Ok(Some(Value { revision, .. })) => {
                let key = Key::Node(node.clone());
                let then = then(move |driver, answer| driver.forgotten(client, &node, answer));
                return self.order(Call::Remove {
                    key,
                    revision,
                    then,
                });
            }
            Err(e) => self.not_seen(&e),
        };
        self.callers.answer(client, said);
    }

    fn forgotten(&mut self, client: Client, node: &Node, answer: Result<(), Error>) {
        let said = match answer {
            Ok(()) => return self.forget_last(client, node, true),
            Err(Error::Conflict) => {
                ask::Answer::Refused(format!("{node} has published something new meanwhile"))
            }
            Err(e) => self.not_seen(&e),
        };
        self.callers.answer(client, said);
    }

    /// Whether the node has signed this value within the last 15 minutes.
    fn is_connected(&mut self, node: &Node, value: &Value) -> bool {
        let key = Key::Node(node.clone());
        let read = self.seals.read(&value.bytes, &key);
        let presence = |told: Inventory| {
            let (at, skew) = (Walltime::from_millis(told.at), self.state.rules.skew);
            Presence::of(at, clock::walltime(), skew)
        };
        read.is_ok_and(|told| presence(told) == Presence::Connected)
    }

    /// Answer that the backend did not show or do something, with its error.
    pub(super) fn not_seen(&self, e: &Error) -> ask::Answer {
        ask::Answer::NotSeen(ask::words(&format!("{} {e}", self.health.backend)))
    }

    /// Value of a list, verified, as it is shown to a client.
    fn shown(&mut self, value: &Value) -> Result<ask::Answer, Ignored> {
        let key = Key::decode(&value.key, &self.namespace).map_err(|e| e.to_string())?;
        match &key {
            Key::Node(_) => {
                let node = self.seals.inventory(&value.bytes, &key)?;
                Ok(ask::Answer::Node(Box::new(node)))
            }
            Key::Story { .. } => {
                let entry = self.seals.read(&value.bytes, &key)?;
                Ok(ask::Answer::Entry(Box::new(entry)))
            }
            Key::Slot { .. } => {
                let standing = self.stands(value, &key)?;
                Ok(ask::Answer::Slot(
                    Box::new(standing.slot),
                    standing.revision,
                ))
            }
            Key::Lock(_) => {
                let word = self.shown_lock(value, &key)?;
                Ok(ask::Answer::Lock(Box::new(word), String::new()))
            }
            Key::Reset { .. } => {
                let reset: Reset = self.seals.read(&value.bytes, &key)?;
                // Only values from operators count, according to this node's settings.
                self.is_operator(&value.bytes, &reset.node)
                    .map_err(|why| Ignored {
                        why,
                        is_news: false,
                    })?;
                Ok(ask::Answer::Reset(Box::new(reset)))
            }
            // Moves are listed beside resets, and targets among stories.
            Key::Move { .. } | Key::Targets { .. } => Err(Ignored {
                why: "nobody asked for it".to_owned(),
                is_news: false,
            }),
            Key::To { .. } | Key::Result { .. } | Key::Event { .. } | Key::Beat(_) => {
                Err("nobody asked for it".to_owned().into())
            }
        }
    }

    fn heard(&mut self, key: &Key, value: &Value) {
        match self.seals.read(&value.bytes, key) {
            Ok(told) => self.feed(Event::Heard(told)),
            Err(why) => self.reject(&format!("{} is not believed: {why}", value.key)),
        }
    }
}

/// Warning that only these values were read, the newest of each node below these prefixes.
fn cut(prefixes: &[String], values: &[Value]) -> String {
    let bytes: usize = values.iter().map(Value::size).sum();
    let (count, below) = (values.len(), prefixes.join(" and "));
    let (s, whole, tenths) = (plural(count), bytes / 1_000_000, bytes / 100_000 % 10);
    ask::words(&format!(
        "only {count} value{s} below {below} were read ({whole}.{tenths} MB), the newest of each node"
    ))
}
