//! An engine in memory: what etcd and NATS have in common, and what goes wrong with both.

use std::collections::BTreeMap;

/// A value, and the revision that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    pub bytes: Vec<u8>,
    pub revision: u64,
    /// When it goes by itself.
    pub expires: u64,
}

#[derive(Debug, Default)]
pub struct Engine {
    pub is_up: bool,
    /// Which one it is: whoever was connected to an earlier one is not connected to this one.
    pub life: u64,
    revision: u64,
    values: BTreeMap<String, Value>,
}

impl Engine {
    /// Begins, with what it had.
    pub fn start(&mut self) {
        self.is_up = true;
        self.life += 1;
    }

    /// Loses everything, and counts from one again.
    pub fn wipe(&mut self) {
        self.revision = 0;
        self.values.clear();
    }

    /// Loses what it had confirmed last, without a word.
    pub fn forget_newest(&mut self, count: u64) {
        let from = self.revision.saturating_sub(count);
        self.values.retain(|_, value| value.revision <= from);
    }

    pub fn put(&mut self, key: &str, bytes: Vec<u8>, expires: u64) -> u64 {
        self.revision += 1;
        let revision = self.revision;
        self.values.insert(
            key.to_owned(),
            Value {
                bytes,
                revision,
                expires,
            },
        );
        revision
    }

    /// Removes a value if this revision stands there, and gives it back.
    pub fn remove(&mut self, key: &str, revision: u64) -> Option<Value> {
        self.values
            .get(key)
            .filter(|value| value.revision == revision)?;
        self.revision += 1;
        self.values.remove(key)
    }

    pub fn keys(&self, now: u64) -> impl Iterator<Item = &str> {
        let values = self
            .values
            .iter()
            .filter(move |(_, value)| value.expires > now);
        values.map(|(key, _)| key.as_str())
    }

    pub fn list(&mut self, prefix: &str, now: u64) -> Vec<(String, Value)> {
        self.values.retain(|_, value| value.expires > now);
        let from = self.values.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}
