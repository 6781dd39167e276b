//! Limits on what is read of each sender's values below a prefix. Keys are `PREFIX/SENDER/NAME`;
//! the values of one sender must not fill the memory of the reader, nor keep the values of others
//! from being read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Formatter};
use std::ops::Bound;
use std::rc::Rc;

use crate::wire::quota::{Amount, Quotas};

/// Largest number of senders with more values than were read that are known by name.
pub const MOST_CUT: usize = 1000;
/// Largest number of keys not read that are reported together.
const MOST_FOREIGN: usize = 16;

/// Limits on what is read below a prefix.
#[derive(Clone)]
pub struct Bounds {
    /// Limit for each sender.
    pub of_sender: Amount,
    /// Limit for all senders together, in bytes.
    pub most_bytes: usize,
    /// Whether a key is read. Other keys do not count towards the limits.
    pub is_read: Rc<dyn Fn(&str) -> bool>,
}

impl Debug for Bounds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (of_sender, most_bytes) = (self.of_sender, self.most_bytes);
        write!(f, "{of_sender:?} of each, {most_bytes} bytes of all")
    }
}

impl Bounds {
    /// Quotas of which nothing is used yet.
    pub fn quotas(&self) -> Quotas<String> {
        Quotas::new(self.of_sender).with_most_bytes(self.most_bytes)
    }
}

/// The segment of a key that follows a prefix.
pub fn segment<'k>(prefix: &str, key: &'k str) -> &'k str {
    let below = key.strip_prefix(prefix).unwrap_or(key);
    below.split('/').next().unwrap_or(below)
}

/// Filter that rejects values beyond a share while a list is read. Values that were read before
/// have priority.
#[derive(Debug, Clone)]
pub struct Sorter<'r> {
    prefix: &'r str,
    bounds: &'r Bounds,
    /// Sizes of the values that were read before, in bytes.
    known: &'r BTreeMap<String, usize>,
    used: Quotas<String>,
    /// Senders that have more than was read; at most one more than `MOST_CUT`.
    pub cut: BTreeSet<String>,
    /// Some of the keys that are not read.
    pub foreign: BTreeSet<String>,
}

impl<'r> Sorter<'r> {
    /// A filter for keys below this prefix. `known` are the values read before, and `used` counts
    /// them.
    pub fn new(
        prefix: &'r str,
        bounds: &'r Bounds,
        known: &'r BTreeMap<String, usize>,
        used: Quotas<String>,
    ) -> Self {
        Sorter {
            prefix,
            bounds,
            known,
            used,
            cut: BTreeSet::new(),
            foreign: BTreeSet::new(),
        }
    }

    /// Whether a value of this size, in bytes, is read. After the first new value beyond its
    /// sender's share, no new value of that sender is.
    pub fn takes(&mut self, key: &str, size: usize) -> bool {
        if !(self.bounds.is_read)(key) {
            if self.foreign.len() < MOST_FOREIGN {
                self.foreign.insert(key.to_owned());
            }
            return false;
        }
        let sender = segment(self.prefix, key).to_owned();
        let known = self.known.get(key).copied();
        if let Some(size) = known {
            self.used.remove(&sender, size);
        }
        let is_taken =
            (known.is_some() || !self.cut.contains(&sender)) && self.used.has_room(&sender, size);
        if is_taken {
            self.used.add(&sender, size);
        } else if self.cut.len() <= MOST_CUT {
            self.cut.insert(sender);
        }
        is_taken
    }

    /// The first key after this one that may be read, if its sender has more than was read.
    pub fn skips(&self, key: &str) -> Option<Vec<u8>> {
        let sender = segment(self.prefix, key);
        if !self.cut.contains(sender) {
            return None;
        }
        // 0 is the character after the slash.
        let end = format!("{}{sender}0", self.prefix);
        let behind = (Bound::Excluded(key), Bound::Excluded(end.as_str()));
        let mut known = self.known.range::<str, _>(behind);
        let next = known.next().map(|(key, _)| key.clone());
        Some(next.unwrap_or(end).into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_goes_on_behind_a_sender_with_more_than_its_share_or_at_what_was_read_before() {
        let bounds = Bounds {
            of_sender: Amount {
                values: 2,
                bytes: 100,
            },
            most_bytes: usize::MAX,
            is_read: Rc::new(|key| !key.ends_with("junk")),
        };
        let known = BTreeMap::from([("to/a/x/7".to_owned(), 10)]);
        let mut used = bounds.quotas();
        used.add(&"x".to_owned(), 10);
        let mut sorter = Sorter::new("to/a/", &bounds, &known, used);
        let mut takes = |key: &str, bytes| sorter.takes(&format!("to/a/{key}"), bytes);
        assert!(!takes("x/junk", 1000) && !takes("x/junk", 1000) && !takes("x/0junk", 1));
        assert!(takes("x/1", 10) && !takes("x/2", 10) && !takes("x/3", 1));
        assert!(takes("y/1", 1000) && !takes("y/2", 1));
        assert!(takes("z", 50));
        assert_eq!(sorter.skips("to/a/x/3"), Some(b"to/a/x/7".to_vec()));
        assert_eq!(sorter.skips("to/a/z"), None);
        let end = sorter.skips("to/a/x/7").expect("beyond its share");
        assert!(end > b"to/a/x/zzz".to_vec() && end < b"to/a/x=1/a".to_vec());
        assert!(sorter.takes("to/a/x/7", 10) && !sorter.takes("to/a/x/8", 1));
        assert_eq!(sorter.cut, ["x", "y"].map(str::to_owned).into());
        assert_eq!(sorter.foreign.len(), 2);
    }
}
