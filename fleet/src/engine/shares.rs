//! How much is read of what each sender has below a prefix: keys are `PREFIX/SENDER/NAME`, and what one sender puts there must not fill
//! the memory of who reads, nor keep another's values from being read.

use std::collections::BTreeSet;

use super::{Limit, List, Value};
use crate::wire::quota::{Amount, Quotas};

/// A list of which no sender has more than its share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    /// What was read.
    pub list: List,
    /// The senders that have more, as their segment of the keys.
    pub cut: BTreeSet<String>,
}

impl From<List> for Shares {
    fn from(list: List) -> Shares {
        let cut = BTreeSet::new();
        Shares { list, cut }
    }
}

impl From<Limit> for Amount {
    fn from(Limit { bytes, values }: Limit) -> Amount {
        Amount { values, bytes }
    }
}

/// The segment of a key that follows a prefix.
pub fn segment<'k>(prefix: &str, key: &'k str) -> &'k str {
    let below = key.strip_prefix(prefix).unwrap_or(key);
    below.split('/').next().unwrap_or(below)
}

/// Sorts out what is beyond a share, while a list is read.
pub(super) struct Sorter<'p> {
    prefix: &'p str,
    used: Quotas<String>,
    /// The senders that have more.
    pub cut: BTreeSet<String>,
}

impl<'p> Sorter<'p> {
    /// For keys below this prefix.
    pub fn new(prefix: &'p str, limit: Limit) -> Self {
        Sorter {
            prefix,
            used: Quotas::new(limit.into()),
            cut: BTreeSet::new(),
        }
    }

    /// Whether a value is within its sender's share. After the first that is not, none is.
    pub fn takes(&mut self, value: &Value) -> bool {
        let sender = segment(self.prefix, &value.key).to_owned();
        let is_cut = self.cut.contains(&sender) || !self.used.has_room(&sender, value.size());
        if is_cut {
            self.cut.insert(sender);
        } else {
            self.used.add(&sender, value.size());
        }
        !is_cut
    }

    /// If a value is not, the first key behind all those of its sender.
    pub fn skips(&mut self, value: &Value) -> Option<Vec<u8>> {
        if self.takes(value) {
            return None;
        }
        let sender = segment(self.prefix, &value.key);
        // The character after the slash.
        Some(format!("{}{sender}0", self.prefix).into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_ends_for_a_sender_with_the_first_value_beyond_its_share() {
        let limit = Limit {
            values: 2,
            bytes: 100,
        };
        let mut sorter = Sorter::new("to/a/", limit);
        let value = |key: &str, bytes| Value::new(format!("to/a/{key}"), vec![0; bytes], 1);
        let mut takes = |key, bytes| sorter.takes(&value(key, bytes));
        assert!(takes("x/1", 10) && takes("x/2", 10) && !takes("x/3", 1));
        assert!(takes("y/1", 1000) && !takes("y/2", 1));
        assert!(takes("z", 50));
        let end = sorter.skips(&value("x/3", 1)).expect("beyond its share");
        assert!(end > b"to/a/x/zzz".to_vec() && end < b"to/a/x=1/a".to_vec());
        assert_eq!(sorter.cut, ["x", "y"].map(str::to_owned).into());
    }
}
