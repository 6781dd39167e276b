//! Limits of what is stored for each sender, so that none uses the space of the others.

use std::collections::BTreeMap;

/// Number of values, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of values.
    pub values: usize,
    /// Total number of bytes.
    pub bytes: usize,
}

/// Amounts that are stored for each sender, up to a limit that is the same for all.
#[derive(Debug, Clone)]
pub struct Quotas<K> {
    limit: Amount,
    /// Limit for the bytes of all senders together.
    most_bytes: usize,
    kept: BTreeMap<K, Amount>,
    values: usize,
    bytes: usize,
}

/// Divisor of a sender's limit in bytes: a sender with at most this part of its limit has little.
/// For other senders the limit over all senders together is only half.
const LITTLE: usize = 32;

impl<K: Ord + Clone> Quotas<K> {
    /// Quotas without any stored value.
    pub fn new(limit: Amount) -> Self {
        Quotas {
            limit,
            most_bytes: usize::MAX,
            kept: BTreeMap::new(),
            values: 0,
            bytes: 0,
        }
    }

    /// Sets a limit for the bytes of all senders together. Half of it is reserved for senders that
    /// have little.
    #[must_use]
    pub fn with_most_bytes(mut self, most_bytes: usize) -> Self {
        self.most_bytes = most_bytes;
        self
    }

    /// Whether one more value of this size, in bytes, may be stored for a sender. Its first value
    /// may have any size, if the limit over all senders allows it.
    pub fn has_room(&self, sender: &K, bytes: usize) -> bool {
        let kept = self.kept.get(sender).copied().unwrap_or_default();
        let with_it = kept.bytes.saturating_add(bytes);
        let is_within = kept.values < self.limit.values && with_it <= self.limit.bytes;
        let most = if with_it <= self.limit.bytes / LITTLE {
            self.most_bytes
        } else {
            self.most_bytes / 2
        };
        let all_have_room = self.values == 0 || self.bytes.saturating_add(bytes) <= most;
        all_have_room && (kept.values == 0 || is_within)
    }

    /// Fill level with the bytes of all senders together, from 0 to 2: at 0 there is space for all
    /// senders, at 1 for those that have little.
    pub fn fullness(&self) -> u8 {
        let part = self.most_bytes / 8;
        u8::from(self.bytes > 3 * part) + u8::from(self.bytes > 6 * part)
    }

    /// Whether at most half of a sender's limit is used.
    pub fn is_half_empty(&self, sender: &K) -> bool {
        self.kept.get(sender).is_none_or(|kept| {
            2 * kept.values <= self.limit.values && 2 * kept.bytes <= self.limit.bytes
        })
    }

    /// Counts a value that is stored.
    pub fn add(&mut self, sender: &K, bytes: usize) {
        let kept = self.kept.entry(sender.clone()).or_default();
        kept.values += 1;
        kept.bytes = kept.bytes.saturating_add(bytes);
        self.values += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Subtracts a counted value that is no longer stored.
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
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Number of stored values of all senders together.
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

    #[test]
    fn many_senders_are_bounded_together_and_few_leave_room_for_others() {
        let limit = Amount {
            values: 100,
            bytes: 320,
        };
        let mut quotas: Quotas<u8> = Quotas::new(limit).with_most_bytes(1000);
        quotas.add(&0, 300);
        assert!(quotas.has_room(&1, 200) && !quotas.has_room(&1, 201));
        quotas.add(&1, 200);
        assert!(quotas.has_room(&2, 10) && !quotas.has_room(&2, 11));
        for sender in 2..52 {
            assert!(quotas.has_room(&sender, 10));
            assert_eq!(quotas.fullness(), 1 + u8::from(sender > 27));
            quotas.add(&sender, 10);
        }
        assert!(!quotas.has_room(&60, 1) && !quotas.has_room(&2, 1));
        quotas.remove(&0, 300);
        assert!(quotas.has_room(&60, 10) && quotas.fullness() == 1);
        // Whatever is too large by itself is read when there is nothing else.
        let empty: Quotas<u8> = Quotas::new(limit).with_most_bytes(1000);
        assert!(empty.has_room(&1, 5000));
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
            prop_assert_eq!((quotas.values(), quotas.bytes), (0, 0));
            prop_assert!(quotas.kept.is_empty());
        }
    }
}
