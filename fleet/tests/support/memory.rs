//! Backend in memory. Its clones are clients of one store; its time is tokio's, which a test can
//! stop.
#![allow(dead_code)]

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use again_fleet::backend::{
    Backend, Change, Error, Feed, Limit, List, Times, Value, is_below, is_latest,
};

/// Maximum size of a value in bytes, NATS's default.
const LARGEST: usize = 1 << 20;

/// Client of the store.
#[derive(Clone)]
pub struct Memory {
    store: Rc<Store>,
    times: Times,
}

struct Store {
    state: RefCell<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    revision: u64,
    values: BTreeMap<String, Held>,
    /// All changes after revision `compacted`.
    log: VecDeque<Change>,
    compacted: u64,
    /// Leases, with the time at which each expires.
    leases: BTreeMap<u64, Instant>,
    next_lease: u64,
}

struct Held {
    value: Value,
    ends: Ends,
}

enum Ends {
    Never,
    At(Instant),
    With(u64),
}

impl Memory {
    /// Creates a new store, and a client of it.
    pub fn new(times: Times) -> Memory {
        let store = Store {
            state: RefCell::default(),
            changed: Notify::new(),
        };
        Memory {
            store: Rc::new(store),
            times,
        }
    }

    /// Drops all changes so far: a watch from an older revision gets an error.
    pub fn compact(&self) {
        let mut state = self.store.state.borrow_mut();
        state.compacted = state.revision;
        state.log.clear();
        drop(state);
        self.store.changed.notify_waiters();
    }

    /// Removes all data; revisions begin again at one.
    pub fn wipe(&self) {
        *self.store.state.borrow_mut() = State::default();
        self.store.changed.notify_waiters();
    }

    /// Applies a function to the state after expiring what has ended.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.store.state.borrow_mut();
        state.expire(Instant::now());
        let before = state.revision;
        let done = act(&mut state);
        if state.revision != before {
            self.store.changed.notify_waiters();
        }
        done
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        self.leases.retain(|_, ends| *ends > now);
        let leases = &self.leases;
        let is_over = |held: &Held| match held.ends {
            Ends::Never => false,
            Ends::At(at) => at <= now,
            Ends::With(lease) => !leases.contains_key(&lease),
        };
        let over: Vec<String> = self
            .values
            .iter()
            .filter(|(_, held)| is_over(held))
            .map(|(key, _)| key.clone())
            .collect();
        over.iter().for_each(|key| self.remove(key));
    }

    /// Time at which the next value or lease expires.
    fn ends(&self) -> Option<Instant> {
        let at = self.values.values().filter_map(|held| {
            if let Ends::At(at) = held.ends {
                Some(at)
            } else {
                None
            }
        });
        at.chain(self.leases.values().copied()).min()
    }

    fn put(&mut self, key: &str, bytes: &[u8], ends: Ends) -> u64 {
        self.revision += 1;
        let revision = self.revision;
        let before = self.values.get(key).map(|held| &held.value);
        let value = Value {
            key: key.to_owned(),
            bytes: bytes.to_vec(),
            revision,
            first: before.map_or(revision, |value| value.first),
            writes: before.map_or(1, |value| value.writes + 1),
        };
        self.log.push_back(Change::Put(value.clone()));
        self.values.insert(key.to_owned(), Held { value, ends });
        revision
    }

    fn remove(&mut self, key: &str) {
        if self.values.remove(key).is_some() {
            self.revision += 1;
            self.log.push_back(Change::Removed {
                key: key.to_owned(),
                revision: self.revision,
            });
        }
    }
}

fn fits(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() > LARGEST {
        Err(Error::TooLarge)
    } else {
        Ok(())
    }
}

impl Backend for Memory {
    type Feed = Followed;
    type Lease = u64;

    async fn list(&self, prefix: &str) -> Result<List, Error> {
        Ok(self.with(|state| {
            let below = state
                .values
                .range(prefix.to_owned()..)
                .take_while(|(key, _)| is_below(key, prefix));
            List {
                values: below.map(|(_, held)| held.value.clone()).collect(),
                revision: state.revision,
                store: "memory".to_owned(),
                is_cut: false,
            }
        }))
    }

    async fn latest(&self, prefix: &str, limit: Limit) -> Result<List, Error> {
        let (before, _) = prefix.split_once('*').unwrap_or((prefix, ""));
        let (mut list, mut limit) = (self.list(before).await?, limit);
        list.values.retain(|value| is_latest(&value.key, prefix));
        list.values.sort_by_key(|value| Reverse(value.revision));
        let allowed = list.values.iter();
        let allowed = allowed.take_while(|value| limit.take(value.size()));
        let allowed = allowed.count();
        list.is_cut = allowed < list.values.len();
        list.values.truncate(allowed);
        Ok(list)
    }

    async fn follow(&self, prefix: &str, after: u64) -> Result<Followed, Error> {
        Ok(Followed {
            memory: self.clone(),
            prefix: prefix.to_owned(),
            after,
        })
    }

    async fn put(&self, key: &str, bytes: &[u8], ttl: Option<Duration>) -> Result<u64, Error> {
        fits(bytes)?;
        let ends = ttl.map_or(Ends::Never, |ttl| Ends::At(Instant::now() + ttl));
        Ok(self.with(|state| state.put(key, bytes, ends)))
    }

    async fn create(&self, key: &str, bytes: &[u8], lease: &u64) -> Result<u64, Error> {
        fits(bytes)?;
        self.with(|state| {
            if state.values.contains_key(key) || !state.leases.contains_key(lease) {
                return Err(Error::Conflict);
            }
            Ok(state.put(key, bytes, Ends::With(*lease)))
        })
    }

    const HAS_PLACES: bool = true;

    async fn oldest(&self, prefix: &str, until: u64, most: usize) -> Result<List, Error> {
        let mut list = self.list(prefix).await?;
        list.values.retain(|value| value.revision <= until);
        list.values.sort_by_key(|value| value.revision);
        list.values.truncate(most);
        Ok(list)
    }

    async fn get(&self, keys: &[String], longest: usize) -> Result<Vec<Value>, Error> {
        Ok(self.with(|state| {
            let values = keys.iter().filter_map(|key| state.values.get(key));
            let values = values.map(|held| held.value.clone());
            values
                .filter(|value| value.bytes.len() <= longest)
                .collect()
        }))
    }

    async fn follow_removals(&self, prefix: &str, after: u64) -> Result<Followed, Error> {
        self.follow(prefix, after).await
    }

    async fn replace(
        &self,
        key: &str,
        bytes: &[u8],
        revision: u64,
        lease: &u64,
    ) -> Result<u64, Error> {
        fits(bytes)?;
        self.with(|state| {
            let before = state.values.get(key).map(|held| held.value.revision);
            if before != Some(revision) || !state.leases.contains_key(lease) {
                return Err(Error::Conflict);
            }
            Ok(state.put(key, bytes, Ends::With(*lease)))
        })
    }

    async fn put_unless(&self, key: &str, bytes: &[u8], other: &str) -> Result<u64, Error> {
        fits(bytes)?;
        self.with(|state| {
            if state.values.contains_key(other) {
                return Err(Error::Conflict);
            }
            Ok(state.put(key, bytes, Ends::Never))
        })
    }

    fn number(&self, lease: &u64) -> i64 {
        i64::try_from(*lease).unwrap_or(i64::MAX)
    }

    fn lease(&self, number: i64) -> Option<u64> {
        u64::try_from(number).ok()
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<(), Error> {
        self.with(|state| match state.values.get(key) {
            Some(held) if held.value.revision != revision => Err(Error::Conflict),
            _ => {
                state.remove(key);
                Ok(())
            }
        })
    }

    async fn remove_while(
        &self,
        key: &str,
        revision: u64,
        (other, at): (&str, u64),
    ) -> Result<(), Error> {
        self.with(|state| {
            let of = |key| state.values.get(key).map_or(0, |held| held.value.revision);
            if (of(key), of(other)) != (revision, at) {
                return Err(Error::Conflict);
            }
            state.remove(key);
            Ok(())
        })
    }

    async fn grant(&self) -> Result<u64, Error> {
        Ok(self.with(|state| {
            state.next_lease += 1;
            state
                .leases
                .insert(state.next_lease, Instant::now() + self.times.lease);
            state.next_lease
        }))
    }

    async fn renew(&self, lease: &u64) -> Result<(), Error> {
        self.with(|state| {
            let ends = state.leases.get_mut(lease).ok_or(Error::Conflict)?;
            *ends = Instant::now() + self.times.lease;
            Ok(())
        })
    }

    async fn revoke(&self, lease: u64) -> Result<(), Error> {
        self.with(|state| {
            state.leases.remove(&lease);
            state.expire(Instant::now());
        });
        Ok(())
    }
}

/// Feed of changes.
pub struct Followed {
    memory: Memory,
    prefix: String,
    after: u64,
}

impl Followed {
    fn ready(&mut self) -> Result<Option<Change>, Error> {
        let (prefix, after) = (&self.prefix, self.after);
        let found = self.memory.with(|state| {
            if after < state.compacted || after > state.revision {
                let why = format!("changes after revision {after} are not known any more");
                return Err(Error::Unreachable(why));
            }
            let mut later = state.log.iter().filter(|change| change.revision() > after);
            Ok((
                later.find(|change| is_below(change.key(), prefix)).cloned(),
                state.revision,
            ))
        });
        let (change, revision) = found?;
        self.after = change.as_ref().map_or(revision, Change::revision);
        Ok(change)
    }
}

impl Feed for Followed {
    async fn next(&mut self) -> Result<Change, Error> {
        loop {
            let store = Rc::clone(&self.memory.store);
            let changed = store.changed.notified();
            if let Some(change) = self.ready()? {
                return Ok(change);
            }
            let ends = store.state.borrow().ends();
            match ends {
                None => changed.await,
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }
}
