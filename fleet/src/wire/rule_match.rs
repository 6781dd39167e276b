//! Event that matched a rule, as the service passes it to the executor: the rule's name, the batch
//! and number of the event, and the node's inventory if the rule requires it. Batch and inventory
//! are signed by their node; the rest is unsigned.

use std::sync::Arc;

use super::Malformed;
use super::body::at_most;
use super::envelope::{self, Reader};

/// Longest name of a rule, in characters.
pub const MOST_NAME: usize = 64;
/// Longest rule match, in bytes.
pub const MOST: usize = 2 * envelope::MOST + (1 << 10);

/// Format and version of a rule match.
const MAGIC: &[u8] = b"AGE1";

/// Event that matched a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMatch {
    /// Name of the rule.
    pub rule: String,
    /// Number of the event.
    pub n: u64,
    /// Batch that contains the event, sealed.
    pub batch: Arc<[u8]>,
    /// Inventory of the event's node, sealed.
    pub inventory: Option<Arc<[u8]>>,
}

impl RuleMatch {
    /// Whether the bytes begin like a rule match.
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Length in bytes when written.
    pub fn length(&self) -> usize {
        let parts = self.parts().map(<[u8]>::len);
        MAGIC.len() + 8 + parts.iter().map(|length| 4 + length).sum::<usize>()
    }

    fn parts(&self) -> [&[u8]; 3] {
        let inventory = self.inventory.as_deref().unwrap_or_default();
        [self.rule.as_bytes(), &self.batch, inventory]
    }

    /// Writes the rule match as bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.length());
        out.extend(MAGIC);
        out.extend(self.n.to_be_bytes());
        for part in self.parts() {
            out.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend(part);
        }
        out
    }

    /// Reads a rule match.
    ///
    /// # Errors
    /// The bytes are not a rule match, or exceed a bound.
    pub fn read(bytes: &[u8]) -> Result<RuleMatch, Malformed> {
        at_most("bytes of an event that matched a rule", bytes.len(), MOST)?;
        let mut reader = Reader { rest: bytes };
        let met = parse(&mut reader).filter(|_| reader.rest.is_empty());
        let met = met.ok_or_else(|| Malformed::new("that is no event that matched a rule"))?;
        let long = [&met.batch, met.inventory.as_ref().unwrap_or(&met.batch)].map(|one| one.len());
        for length in long {
            at_most("bytes of a value", length, envelope::MOST)?;
        }
        at_most(
            "characters of a rule's name",
            met.rule.chars().count(),
            MOST_NAME,
        )?;
        Ok(met)
    }
}

fn parse(reader: &mut Reader<'_>) -> Option<RuleMatch> {
    reader.take(MAGIC.len()).filter(|magic| *magic == MAGIC)?;
    let n = u64::from_be_bytes(reader.take(8)?.try_into().ok()?);
    let rule = std::str::from_utf8(reader.part()?).ok()?.to_owned();
    let batch = reader.part()?.into();
    let inventory = Some(reader.part()?).filter(|part| !part.is_empty());
    Some(RuleMatch {
        rule,
        n,
        batch,
        inventory: inventory.map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn met(rule: &str, batch: usize, inventory: usize) -> RuleMatch {
        let bytes = |length: usize| Arc::from(vec![7; length]);
        RuleMatch {
            rule: rule.to_owned(),
            n: 3,
            batch: bytes(batch),
            inventory: (inventory > 0).then(|| bytes(inventory)),
        }
    }

    #[test]
    fn what_breaks_a_bound_is_not_read() {
        let (name, full) = ("\u{20ac}".repeat(MOST_NAME), envelope::MOST);
        let most = met(&name, full, full);
        assert_eq!(RuleMatch::read(&most.write()), Ok(most.clone()));
        assert!(most.length() <= MOST);
        for bad in [
            met(&"x".repeat(MOST_NAME + 1), 1, 1),
            met("x", full + 1, 1),
            met("x", 1, full + 1),
            met("x", MOST, MOST),
        ] {
            assert!(RuleMatch::read(&bad.write()).is_err());
        }
        let good = met("x", 9, 9).write();
        let mut other = good.clone();
        other[3] = b'2';
        for bad in [
            &other,
            &[&good[..], b"x"].concat(),
            &good[..good.len() - 1].to_vec(),
        ] {
            assert!(RuleMatch::read(bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn it_comes_back(rule in "\\PC{0,64}", n: u64, batch in 0..2000_usize, inventory in 0..2000_usize) {
            let one = RuleMatch { n, ..met(&rule, batch, inventory) };
            let written = one.write();
            prop_assert_eq!(written.len(), one.length());
            prop_assert!(RuleMatch::is(&written));
            prop_assert_eq!(RuleMatch::read(&written), Ok(one));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), is_ours: bool) {
            if is_ours {
                bytes.splice(..0, *b"AGE1");
            }
            if let Ok(met) = RuleMatch::read(&bytes) {
                prop_assert_eq!(met.write(), bytes);
            }
        }
    }
}
