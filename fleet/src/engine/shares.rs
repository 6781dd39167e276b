//! How much is read of what each sender has below a prefix: keys are `PREFIX/SENDER/NAME`, and what one sender puts there must not fill
//! the memory of who reads, nor keep another's values from being read.

use std::collections::BTreeSet;

use crate::wire::quota::{Amount, Quotas};

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
    pub fn new(prefix: &'p str, limit: Amount) -> Self {
        Sorter {
            prefix,
            used: Quotas::new(limit),
            cut: BTreeSet::new(),
        }
    }

    /// Whether a value of this size, in bytes, is within its sender's share. After the first that is not, none is.
    pub fn takes(&mut self, key: &str, size: usize) -> bool {
        let sender = segment(self.prefix, key).to_owned();
        let is_cut = self.cut.contains(&sender) || !self.used.has_room(&sender, size);
        if is_cut {
            self.cut.insert(sender);
        } else {
            self.used.add(&sender, size);
        }
        !is_cut
    }

    /// If a value is not, the first key behind all those of its sender.
    pub fn skips(&mut self, key: &str, size: usize) -> Option<Vec<u8>> {
        if self.takes(key, size) {
            return None;
        }
        let sender = segment(self.prefix, key);
        // The character after the slash.
        Some(format!("{}{sender}0", self.prefix).into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_ends_for_a_sender_with_the_first_value_beyond_its_share() {
        let limit = Amount {
            values: 2,
            bytes: 100,
        };
        let mut sorter = Sorter::new("to/a/", limit);
        let mut takes = |key: &str, bytes| sorter.takes(&format!("to/a/{key}"), bytes);
        assert!(takes("x/1", 10) && takes("x/2", 10) && !takes("x/3", 1));
        assert!(takes("y/1", 1000) && !takes("y/2", 1));
        assert!(takes("z", 50));
        let end = sorter.skips("to/a/x/3", 1).expect("beyond its share");
        assert!(end > b"to/a/x/zzz".to_vec() && end < b"to/a/x=1/a".to_vec());
        assert_eq!(sorter.cut, ["x", "y"].map(str::to_owned).into());
    }
}
