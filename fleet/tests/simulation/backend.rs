//! Backend in memory: what etcd and NATS have in common, and the faults of both.

use std::collections::BTreeMap;

/// Value, with the revision that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    pub bytes: Vec<u8>,
    pub revision: u64,
    /// Revision of the first write since the key had no value.
    pub first: u64,
    /// Time at which the value expires.
    pub expires: u64,
}

#[derive(Debug, Default)]
pub struct Backend {
    pub is_up: bool,
    /// Number of the backend's life. A connection to an earlier life is dead.
    pub life: u64,
    /// Number of the data: it changes when the backend is set up anew.
    pub store: u64,
    pub revision: u64,
    values: BTreeMap<String, Value>,
    /// No value expires before this time.
    earliest: u64,
    backup: (u64, BTreeMap<String, Value>),
}

impl Backend {
    /// Starts the backend with the data that it had.
    pub fn start(&mut self) {
        self.is_up = true;
        self.life += 1;
    }

    /// Removes all data, and counts revisions from one again. A backend that was set up in the same
    /// way has the same name.
    pub fn wipe(&mut self, has_new_name: bool) {
        self.store += u64::from(has_new_name);
        self.revision = 0;
        self.values.clear();
        self.backup = (0, BTreeMap::new());
    }

    pub fn back_up(&mut self) {
        self.backup = (self.revision, self.values.clone());
    }

    /// Restores the backup.
    pub fn restore(&mut self) {
        (self.revision, self.values) = self.backup.clone();
        self.earliest = 0;
    }

    /// Loses the newest confirmed writes silently.
    pub fn forget_newest(&mut self, count: u64) {
        let from = self.revision.saturating_sub(count);
        self.values.retain(|_, value| value.revision <= from);
    }

    pub fn put(&mut self, key: &str, bytes: Vec<u8>, expires: u64) -> Value {
        self.revision += 1;
        let revision = self.revision;
        let first = self.values.get(key).map_or(revision, |value| value.first);
        let value = Value {
            bytes,
            revision,
            first,
            expires,
        };
        self.values.insert(key.to_owned(), value.clone());
        self.earliest = self.earliest.min(expires);
        value
    }

    /// Removes a value if it has this revision, and returns it.
    pub fn remove(&mut self, key: &str, revision: u64) -> Option<Value> {
        self.values
            .get(key)
            .filter(|value| value.revision == revision)?;
        self.revision += 1;
        self.values.remove(key)
    }

    /// Removes a value of any revision.
    pub fn delete(&mut self, key: &str) {
        self.revision += u64::from(self.values.remove(key).is_some());
    }

    /// Extends the life of a value to this time; returns whether the value still exists.
    pub fn renew(&mut self, key: &str, now: u64, expires: u64) -> bool {
        self.earliest = self.earliest.min(expires);
        let value = self.values.get_mut(key).filter(|value| value.expires > now);
        value.map(|value| value.expires = expires).is_some()
    }

    pub fn get(&self, key: &str, now: u64) -> Option<&Value> {
        self.values.get(key).filter(|value| value.expires > now)
    }

    pub fn keys(&self, now: u64) -> impl Iterator<Item = &str> {
        let values = self
            .values
            .iter()
            .filter(move |(_, value)| value.expires > now);
        values.map(|(key, _)| key.as_str())
    }

    pub fn list(&mut self, prefix: &str, now: u64) -> Vec<(String, Value)> {
        if now >= self.earliest {
            self.values.retain(|_, value| value.expires > now);
            let left = self.values.values().map(|value| value.expires);
            self.earliest = left.min().unwrap_or(u64::MAX);
        }
        let from = self.values.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}
