//! How much is kept of what each sender causes, so that none of them takes the room of the others.

use std::collections::BTreeMap;

/// A number of values, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many values.
    pub values: usize,
    /// Their bytes together.
    pub bytes: usize,
}

/// What is kept of each sender, up to a limit that is the same for all.
#[derive(Debug, Clone)]
pub struct Quotas<K> {
    limit: Amount,
    kept: BTreeMap<K, Amount>,
    values: usize,
}

impl<K: Ord + Clone> Quotas<K> {
    /// Nothing is kept yet.
    pub fn new(limit: Amount) -> Self {
        Quotas {
            limit,
            kept: BTreeMap::new(),
            values: 0,
        }
    }

    /// Whether one more value of this size, in bytes, may be kept of a sender. The first one may always.
    pub fn has_room(&self, sender: &K, bytes: usize) -> bool {
        self.kept.get(sender).is_none_or(|kept| {
            kept.values < self.limit.values && kept.bytes.saturating_add(bytes) <= self.limit.bytes
        })
    }

    /// Whether no more than half of what may be kept of a sender is.
    pub fn is_half_empty(&self, sender: &K) -> bool {
        self.kept.get(sender).is_none_or(|kept| {
            2 * kept.values <= self.limit.values && 2 * kept.bytes <= self.limit.bytes
        })
    }

    /// Counts a value that is kept.
    pub fn add(&mut self, sender: &K, bytes: usize) {
        let kept = self.kept.entry(sender.clone()).or_default();
        kept.values += 1;
        kept.bytes = kept.bytes.saturating_add(bytes);
        self.values += 1;
    }

    /// Counts a value that was counted before, and is kept no longer.
    pub fn remove(&mut self, sender: &K, bytes: usize) {
        let Some(kept) = self.kept.get_mut(sender) else {
            return;
        };
        kept.values -= 1;
        kept.bytes = kept.bytes.saturating_sub(bytes);
        if kept.values == 0 {
            self.kept.remove(sender);
        }
        self.values -= 1;
    }

    /// How many values are kept of all senders together.
    pub fn values(&self) -> usize {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quotas() -> Quotas<u8> {
        Quotas::new(Amount {
            values: 3,
            bytes: 100,
        })
    }

    #[test]
    fn one_sender_takes_no_room_from_another() {
        let mut quotas = quotas();
        for _ in 0..3 {
            assert!(quotas.has_room(&1, 10));
            quotas.add(&1, 10);
        }
        assert!(!quotas.has_room(&1, 10) && !quotas.is_half_empty(&1));
        assert!(quotas.has_room(&2, 100));
        quotas.remove(&1, 10);
        assert!(quotas.has_room(&1, 80) && !quotas.has_room(&1, 81));
        quotas.remove(&1, 10);
        assert!(quotas.is_half_empty(&1));
        // A value that is too large by itself is kept alone, so that it can be judged and removed.
        assert!(quotas.has_room(&3, 1000));
    }

    proptest! {
        #[test]
        fn nothing_is_left_of_what_was_removed(added in prop::collection::vec((0..4_u8, 0..200_usize), 0..50)) {
            let mut quotas = quotas();
            for (sender, bytes) in &added {
                quotas.add(sender, *bytes);
            }
            prop_assert_eq!(quotas.values(), added.len());
            for (sender, bytes) in &added {
                quotas.remove(sender, *bytes);
            }
            prop_assert_eq!(quotas.values(), 0);
            prop_assert!(quotas.kept.is_empty());
        }
    }
}
