//! Network between the nodes and the backend: each request, answer and event may be lost or late.

use std::collections::BTreeSet;

use again_fleet::handover::Evidence;
use again_fleet::step::model::{Event, Found, Place, Sight};
use again_fleet::step::own_key::OwnKey;
use again_fleet::wire::key::{Key, Prefix};

use crate::backend::Value;
use crate::seal;
use crate::world::{Call, Ev, MINUTE, Op, SECOND, World};

/// Time for which a request waits for its answer.
const TIMEOUT: u64 = 5 * SECOND;

impl World {
    /// Sends a request to the backend. The answer may be lost.
    pub fn call(&mut self, n: usize, call: Call, key: Key, op: Op) {
        self.count += 1;
        let number = self.count;
        let is_late = self.odds(self.odds.late);
        let is_lost = !self.machines[n].is_reachable || self.odds(self.odds.lose);
        let service = self.machines[n].service.as_mut().expect("alive");
        service.calls.insert(number, call);
        let life = service.life;
        let connection = service.connection;
        if let Some((_, backend)) = connection.filter(|_| !is_lost) {
            let delay = if is_late {
                self.dice.below(10 * MINUTE)
            } else {
                1 + self.dice.below(10)
            };
            self.after(delay, n, Ev::Arrive(life, backend, number, key, op));
        }
        self.after(TIMEOUT, n, Ev::Reply(life, number, None));
    }

    pub fn arrive(&mut self, n: usize, (life, backend, call): (u64, u64, u64), key: &Key, op: Op) {
        if !self.backend.is_up || self.backend.life != backend {
            return;
        }
        let text = key.encode(&seal::namespace());
        let mut revision = 0;
        match op {
            Op::Put(bytes, expires) => {
                if matches!(key, Key::Node(_) | Key::Story { .. }) {
                    self.remember(key.clone(), bytes.clone());
                }
                revision = self.put(key, bytes, expires);
            }
            Op::Remove(revision) => {
                if let Some(value) = self.backend.remove(&text, revision) {
                    if let Found::Good(signed) = seal::found(&value.bytes) {
                        self.promises
                            .removes(&self.machines[n].name.clone(), &signed.trigger);
                    }
                    self.tell_watcher(key, None);
                }
            }
        }
        if self.machines[n].is_reachable && !self.odds(self.odds.lose) {
            let delay = 1 + self.dice.below(10);
            self.after(delay, n, Ev::Reply(life, call, Some(revision)));
        }
    }

    /// Writes a value, and notifies the watcher of its key.
    pub fn put(&mut self, key: &Key, bytes: Vec<u8>, expires: u64) -> u64 {
        let text = key.encode(&seal::namespace());
        let value = self.backend.put(&text, bytes, expires);
        self.tell_watcher(key, Some(&value));
        value.revision
    }

    fn remember(&mut self, key: Key, bytes: Vec<u8>) {
        if self.past.len() >= 100 {
            let at = self.dice.below(100);
            self.past.swap_remove(usize::try_from(at).expect("small"));
        }
        self.past.push((key, bytes));
    }

    /// Whether a node's connection leads to the current life of the backend.
    pub fn has_backend(&self, n: usize) -> bool {
        let service = self.machines[n].service.as_ref();
        let connection = service.and_then(|service| service.connection);
        let backend = (self.backend.is_up, self.backend.life);
        self.machines[n].is_reachable
            && connection.is_some_and(|(_, leads_to)| backend == (true, leads_to))
    }

    pub fn reply(&mut self, n: usize, life: u64, call: u64, answer: Option<u64>) {
        let Some(call) = self
            .service(n, life)
            .and_then(|service| service.calls.remove(&call))
        else {
            return;
        };
        if let (
            Call::Put {
                key: Key::Node(_), ..
            },
            Some(revision),
        ) = (&call, answer)
        {
            let found = OwnKey::Unchanged;
            self.feed(n, Event::OwnKey { revision, found });
        }
        let answer = answer.map(drop).ok_or_else(|| "no answer".to_owned());
        let event = match call {
            Call::Put {
                entry,
                version,
                key,
            } => Event::Put {
                entry,
                version,
                key,
                answer,
            },
            Call::Remove { place, revision } => Event::Removed {
                place,
                revision,
                answer,
            },
        };
        self.feed(n, event);
    }

    pub fn tell_watcher(&mut self, key: &Key, value: Option<&Value>) {
        let watcher = match key {
            Key::To { target, .. } => target,
            Key::Result { sender, .. } => sender,
            Key::Node(node) => node,
            _ => return,
        };
        let n = self.index[watcher];
        let (now, delay, is_lost) = (self.now, 1 + self.dice.below(10), self.odds(self.odds.lose));
        let backend = self.backend.life;
        let Some(service) = self.machines[n].service.as_mut() else {
            return;
        };
        if let Some((connection, leads_to)) = service.connection
            && leads_to == backend
            && !is_lost
        {
            // Changes arrive in order.
            service.watched = service.watched.max(now + delay);
            let (delay, life) = (service.watched - now, service.life);
            self.after(
                delay,
                n,
                Ev::Watch(life, connection, key.clone(), value.cloned()),
            );
        }
    }

    pub fn watch(&mut self, n: usize, life: u64, connection: u64, key: &Key, value: Option<Value>) {
        let is_reachable = self.machines[n].is_reachable;
        let Some(service) = self.service(n, life) else {
            return;
        };
        if !is_reachable || service.connection.map(|(number, _)| number) != Some(connection) {
            return;
        }
        match (key, value) {
            (Key::To { sender, name, .. }, value) => {
                let place = (sender.clone(), name.clone());
                match value {
                    Some(value) => self.see(n, vec![(place, value)]),
                    None => {
                        service.known.remove(&place);
                        self.feed(n, Event::Gone(place));
                    }
                }
            }
            (Key::Node(_), Some(value)) => self.own_key_is(n, value.revision, Some(&value.bytes)),
            (Key::Node(_), None) => self.own_key_is(n, self.backend.revision, None),
            (_, Some(value)) => self.hear(n, &value.bytes),
            (_, None) => {}
        }
    }

    pub fn hear(&mut self, n: usize, bytes: &[u8]) {
        if let Some(told) = seal::told(bytes) {
            self.feed(n, Event::Heard(told));
        }
    }

    pub fn see(&mut self, n: usize, values: Vec<(Place, Value)>) {
        let Some(service) = self.machines[n].service.as_mut() else {
            return;
        };
        let mut sights = Vec::new();
        for (place, value) in values {
            service.known.insert(place.clone());
            sights.push(Sight {
                place,
                revision: value.revision,
                found: seal::found(&value.bytes),
                evidence: Evidence::Register(value.bytes),
            });
        }
        if !sights.is_empty() {
            self.feed(n, Event::Seen(sights));
        }
    }

    pub fn connect(&mut self, n: usize) {
        let life = self.life(n);
        if !self.backend.is_up || !self.machines[n].is_reachable {
            let delay = SECOND + self.dice.below(4 * SECOND);
            self.after(delay, n, Ev::Connect(life));
            return;
        }
        self.count += 1;
        let (number, backend) = (self.count, self.backend.life);
        let service = self.machines[n].service.as_mut().expect("alive");
        service.connection = Some((number, backend));
        service.known.clear();
        service.reached = self.now;
        self.feed(n, Event::Reached);
        self.see_own_key(n);
        if self.has_facts {
            self.feed(n, Event::OwnKeySeen { is_shown: true });
        }
        self.list(n, life);
        self.read_nodes(n);
        let me = self.machines[n].name.clone();
        for (_, value) in self
            .backend
            .list(&Prefix::Results(&me).encode(&seal::namespace()), self.now)
        {
            self.hear(n, &value.bytes);
        }
        self.after(MINUTE, n, Ev::Beat(life, number));
    }

    /// Lists a node's triggers; those that are missing are removed.
    pub fn list(&mut self, n: usize, life: u64) {
        let prefix = Prefix::To(&self.machines[n].name).encode(&seal::namespace());
        let mut values = Vec::new();
        for (text, value) in self.backend.list(&prefix, self.now) {
            if let Ok(Key::To { sender, name, .. }) = Key::decode(&text, &seal::namespace()) {
                values.push(((sender, name), value));
            }
        }
        let Some(service) = self.service(n, life) else {
            return;
        };
        let there: BTreeSet<&Place> = values.iter().map(|(place, _)| place).collect();
        let gone: Vec<Place> = service
            .known
            .iter()
            .filter(|place| !there.contains(place))
            .cloned()
            .collect();
        for place in gone {
            if let Some(service) = self.service(n, life) {
                service.known.remove(&place);
                self.feed(n, Event::Gone(place));
            }
        }
        if self.life(n) == life {
            self.see(n, values);
        }
    }

    pub fn beat(&mut self, n: usize, life: u64, connection: u64) {
        let is_reachable = self.machines[n].is_reachable;
        let backend = (self.backend.is_up, self.backend.life);
        let Some(service) = self.service(n, life) else {
            return;
        };
        match service.connection {
            Some((number, _)) if number != connection => return,
            None => return,
            // A beat without an answer reveals it.
            Some((_, leads_to)) if !is_reachable || backend != (true, leads_to) => {
                self.lose_connection(n);
                return;
            }
            Some(_) => {}
        }
        self.list(n, life);
        self.see_own_key(n);
        self.after(MINUTE, n, Ev::Beat(life, connection));
    }

    pub fn lose_connection(&mut self, n: usize) {
        let Some(service) = self.machines[n].service.as_mut() else {
            return;
        };
        service.connection = None;
        let life = service.life;
        let calls: Vec<u64> = service.calls.keys().copied().collect();
        for call in calls {
            self.reply(n, life, call, None);
        }
        if self.life(n) == life {
            self.feed(n, Event::Lost);
        }
        let delay = SECOND + self.dice.below(4 * SECOND);
        self.after(delay, n, Ev::Connect(life));
    }

    /// Schedules the end of a connection within this time: half a minute if the peer has vanished,
    /// immediately if it refuses.
    pub fn notice(&mut self, n: usize, within: u64) {
        let delay = self.dice.below(within);
        let cut = self.machines[n]
            .service
            .as_ref()
            .and_then(|s| s.connection.map(|(c, _)| Ev::Cut(s.life, c)));
        if let Some(cut) = cut {
            self.after(delay, n, cut);
        }
    }
}
