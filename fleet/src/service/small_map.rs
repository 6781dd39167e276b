//! Map with few entries. A tree would make a program several times larger.

/// Values by their keys, in the order in which the keys were inserted.
#[derive(Debug)]
pub struct SmallMap<K, V>(pub Vec<(K, V)>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        SmallMap(Vec::new())
    }
}

impl<K: PartialEq, V> SmallMap<K, V> {
    /// Value of this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let found = self.0.iter().find(|(one, _)| one == key);
        found.map(|(_, value)| value)
    }

    /// Mutable value of this key.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let found = self.0.iter_mut().find(|(one, _)| one == key);
        found.map(|(_, value)| value)
    }

    /// Inserts a value, in place of the previous one of this key.
    pub fn insert(&mut self, key: K, value: V) {
        match self.get_mut(&key) {
            Some(old) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Removes and returns the value of this key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.0.iter().position(|(one, _)| one == key)?;
        Some(self.0.remove(at).1)
    }
}
