//! A map of few entries. A tree makes a program several times larger.

/// Values by their keys, in the order in which they came.
#[derive(Debug)]
pub struct SmallMap<K, V>(pub Vec<(K, V)>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        SmallMap(Vec::new())
    }
}

impl<K: PartialEq, V> SmallMap<K, V> {
    /// The value of this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let found = self.0.iter().find(|(one, _)| one == key);
        found.map(|(_, value)| value)
    }

    /// The value of this key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let found = self.0.iter_mut().find(|(one, _)| one == key);
        found.map(|(_, value)| value)
    }

    /// Puts a value in the place of the one of this key.
    pub fn insert(&mut self, key: K, value: V) {
        match self.get_mut(&key) {
            Some(old) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Removes the value of this key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.0.iter().position(|(one, _)| one == key)?;
        Some(self.0.remove(at).1)
    }
}
