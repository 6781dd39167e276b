//! Content of a target's ledger file: the first line has everything, and each further line has one
//! change.

use again_base::model::Moment;
use serde::{Deserialize, Serialize};

use super::replay::{Record, ReplayLedger};
use super::share::Shares;
use crate::wire::trigger::Trigger;

/// Path of the file, in the state directory.
pub const FILE: &str = "executor/ledger";
/// Largest size of the file, in bytes.
pub const LARGEST: u64 = 160 << 20;
/// Maximum by which the file may exceed twice the length of its first line, in bytes.
const SPARE: u64 = 64 << 10;
const VERSION: u32 = 2;

/// Everything that the executor stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    version: u32,
    /// Outcomes of triggers.
    pub replays: ReplayLedger,
    /// Triggers for which a request to `again` has begun.
    pub begun: Vec<Trigger>,
    /// Use of the cap by each node.
    pub shares: Shares,
}

/// Change of the stored data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Outcome of a trigger.
    Recorded(Box<Record>),
    /// Removal of the entries that no longer mattered at this time.
    Forgotten(Moment),
    /// Triggers for which a request to `again` has begun; replaces all earlier ones.
    Begun(Vec<Trigger>),
    /// Use of the cap by each node; replaces the earlier one.
    Shares(Shares),
}

impl Default for Page {
    fn default() -> Page {
        Page {
            version: VERSION,
            replays: ReplayLedger::default(),
            begun: Vec::new(),
            shares: Shares::default(),
        }
    }
}

impl Page {
    /// Applies a change. Returns whether anything has changed.
    pub fn apply(&mut self, change: &Change) -> bool {
        match change {
            Change::Recorded(record) => self.replays.record(record),
            Change::Forgotten(now) => self.replays.forget(now),
            Change::Begun(begun) => replace(&mut self.begun, begun),
            Change::Shares(shares) => replace(&mut self.shares, shares),
        }
    }

    /// Reads a file, whose end may be torn. The second value is false if the end is torn.
    ///
    /// # Errors
    /// The file has another version, or a line cannot be read.
    pub fn parse(text: &[u8]) -> Result<(Page, bool), String> {
        let whole = text.strip_suffix(b"\n");
        let mut lines = whole.unwrap_or(text).split(|byte| *byte == b'\n');
        let first = lines.next().unwrap_or_default();
        let mut page: Page = serde_json::from_slice(first).map_err(|e| e.to_string())?;
        if page.version != VERSION {
            return Err(format!("it is of version {}", page.version));
        }
        let read = |line: &[u8]| serde_json::from_slice::<Change>(line);
        while let Some(line) = lines.next() {
            match read(line) {
                Ok(change) => drop(page.apply(&change)),
                // No change may follow a line that was not written completely.
                Err(e) if lines.any(|line| read(line).is_ok()) => return Err(e.to_string()),
                Err(_) => return Ok((page, false)),
            }
        }
        Ok((page, whole.is_some()))
    }
}

fn replace<T: PartialEq + Clone>(old: &mut T, new: &T) -> bool {
    let is_new = old != new;
    if is_new {
        old.clone_from(new);
    }
    is_new
}

/// Line of the file.
pub fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec(value).expect("plain values");
    text.push(b'\n');
    text
}

/// Maximum length of the file if its first line has this length, in bytes.
pub fn most(first: u64) -> u64 {
    first.saturating_mul(2).saturating_add(SPARE)
}

#[cfg(test)]
mod tests {
    use again_base::model::Span;

    use super::super::replay::MOST_ENTRIES;
    use super::super::term::tests::moment;
    use super::*;
    use crate::wire::name::{Id, Name, Node};
    use crate::wire::outcome::Outcome;
    use crate::wire::trigger::MOST_TTL;
    use crate::wire::trigger::tests::trigger;
    use proptest::prelude::*;

    const SKEW: Span = Span::from_secs(300);

    fn recorded(trigger: &Trigger, outcome: Outcome, now: &Moment) -> Change {
        let record = Record::new(trigger, outcome, "why", SKEW, now);
        Change::Recorded(Box::new(record))
    }

    fn written(changes: &[Change]) -> (Page, Vec<u8>) {
        let mut page = Page::default();
        let mut text = line(&page);
        for change in changes {
            page.apply(change);
            text.extend(line(change));
        }
        (page, text)
    }

    fn any_change() -> impl Strategy<Value = Change> {
        let named = (0..40_u64, 0..30_u64, prop::sample::select(Outcome::ALL));
        prop_oneof![
            8 => named.prop_map(|(number, name, outcome)| {
                let one = Trigger {
                    number: 1_000_000 + number,
                    name: name.to_string().parse().expect("a name"),
                    id: Id::from_bits(number.into()),
                    ..trigger()
                };
                recorded(&one, outcome, &moment("a", number, 1_000_000))
            }),
            1 => (0..3 * MOST_TTL).prop_map(|at| Change::Forgotten(moment("a", at, 1_000_000 + at))),
            1 => any::<bool>().prop_map(|is_one| Change::Begun(is_one.then(trigger).into_iter().collect())),
        ]
    }

    proptest! {
        /// What was written is there again, wherever the last line is torn.
        #[test]
        fn changes_come_back_and_a_torn_last_line_is_left_out(
            changes in prop::collection::vec(any_change(), 1..60), at in any::<prop::sample::Index>(),
        ) {
            let (page, text) = written(&changes);
            prop_assert_eq!(Page::parse(&text), Ok((page, true)));
            let (before, kept) = written(&changes[..changes.len() - 1]);
            let end = kept.len() + at.index(text.len() - kept.len() - 1);
            prop_assert_eq!(Page::parse(&text[..end]), Ok((before, end == kept.len())));
        }
    }

    #[test]
    fn what_is_damaged_before_its_end_or_of_another_version_is_an_error() {
        let change = recorded(&trigger(), Outcome::Taken, &moment("a", 0, 1_000_000));
        let (_, text) = written(&[change.clone(), change]);
        let mut damaged = text.clone();
        let second = text.iter().position(|byte| *byte == b'\n').expect("a line") + 5;
        damaged[second] = 0;
        assert!(Page::parse(&damaged).is_err());
        let newer = String::from_utf8(text).expect("UTF-8");
        let newer = newer.replacen(r#""version":2"#, r#""version":3"#, 1);
        assert_eq!(
            Page::parse(newer.as_bytes()),
            Err("it is of version 3".to_owned())
        );
        // A disk may have lengthened the file before it wrote.
        let torn = [line(&Page::default()), vec![0; 5000]].concat();
        assert_eq!(Page::parse(&torn), Ok((Page::default(), false)));
    }

    /// Names, nodes and reasons of the greatest length, each in quotes that JSON escapes.
    #[test]
    fn longest_entries_fit_into_the_largest_file() {
        let now = Moment {
            place: again_base::sys::clock::moment().place,
            ..moment(&"b".repeat(36), u64::MAX / 2_000_000, u64::MAX)
        };
        let node = |n: usize| -> Node {
            let text = format!("{n:03}{}", "\"".repeat(Node::MOST - 3));
            text.parse().expect("a certname")
        };
        let name = |n: usize| -> Name {
            let text = format!("{n:03}{}", "\\".repeat(Name::MOST - 3));
            text.parse().expect("a name")
        };
        let mut all = 0;
        // Many names of one node, names of many nodes, and senders with one name each.
        for shape in 0..3 {
            let mut page = Page::default();
            let mut text = line(&page);
            let before = text.len();
            for n in 0..50 {
                let one = Trigger {
                    sender: node(if shape == 2 { n } else { 0 }),
                    on_behalf: Some(node(if shape == 1 { n } else { 0 })),
                    name: name(n),
                    id: Id::from_bits(n as u128),
                    number: u64::MAX,
                    at: u64::MAX,
                    ..trigger()
                };
                let record = Record::new(&one, Outcome::Taken, &"\"".repeat(2000), SKEW, &now);
                let change = Change::Recorded(Box::new(record));
                assert!(page.apply(&change));
                text.extend(line(&change));
            }
            let each = (line(&page).len() - before) as u64 / page.replays.size() as u64 + 1;
            // With what `again` is being asked for, and the shares.
            all = all.max(most(each * MOST_ENTRIES as u64 + (8 << 20)));
            assert_eq!(Page::parse(&text), Ok((page, true)));
        }
        assert!((LARGEST / 2..LARGEST).contains(&all), "{all} of {LARGEST}");
    }
}
