//! What root's side tells the helper of the triggers that it has taken: one word of JSON, `again run --origin WORD`.
//!
//! The helper puts it on record with the timer, and it becomes part of the lineage of the run. Of the triggers it keeps the
//! numbers as long as they can still be handed over: a number that is on record already asks for nothing a second time, and that
//! is a success. With `--origin` the helper ends with 0 if everything in the word is on record, and with anything else if nothing
//! is; its line of output says why.

use again_base::model::Span;
use serde::{Deserialize, Serialize};

use crate::wire::lineage::Lineage;
use crate::wire::name::{Id, Name, Node};
use crate::wire::trigger::Trigger;

/// The longest word, in bytes. The kernel takes arguments of 128 KiB each (execve(2), MAX_ARG_STRLEN), with the NUL behind them.
pub const LONGEST: usize = (128 << 10) - 1;

/// The version of this.
const VERSION: u32 = 1;

/// Triggers that were taken together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// 1.
    pub version: u32,
    /// Where they come from: each origin with the nodes that it passed, which are its hops.
    pub origins: Lineage,
    /// The widest jitter, in milliseconds, in the place of `--jitter`, which knows whole seconds only.
    pub jitter: u64,
    /// The triggers.
    pub triggers: Vec<Numbered>,
}

/// By what a trigger is known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// In messages, results and stories.
    pub id: Id,
    /// The node that signed it.
    pub sender: Node,
    /// Its name.
    pub name: Name,
    /// Grows with each trigger of this sender and name.
    pub number: u64,
    /// How long the number has to be remembered, milliseconds of the wall clock after 1970.
    pub until: u64,
}

impl Numbered {
    /// Of this trigger, where clocks may be so far apart.
    pub fn new(trigger: &Trigger, skew: Span) -> Self {
        Numbered {
            id: trigger.id.clone(),
            sender: trigger.sender.clone(),
            name: trigger.name.clone(),
            number: trigger.number,
            until: (trigger.expires() + skew).millis(),
        }
    }
}

impl Word {
    /// Of these triggers.
    pub fn new(origins: Lineage, jitter: Span, triggers: Vec<Numbered>) -> Self {
        Word {
            version: VERSION,
            origins,
            jitter: jitter.millis(),
            triggers,
        }
    }

    /// As it is passed.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("plain text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::MOST_TOGETHER;
    use crate::wire::lineage::{Cause, MOST_HOPS, MOST_ORIGINS, Origin};
    use crate::wire::trigger::tests::trigger;

    #[test]
    fn it_is_written_as_the_helper_reads_it() {
        let one = trigger();
        let numbered = Numbered::new(&one, Span::from_secs(300));
        let word = Word::new(one.lineage, Span::from_nanos(50_000_000), vec![numbered]);
        let text = r#"{"version":1,"origins":[{"id":"00000000000000000000000000000001","cause":"refresh","path":["web1"]}],"jitter":50,"triggers":[{"id":"00000000000000000000000000000007","sender":"web1","name":"again","number":1000000,"until":4900000}]}"#;
        assert_eq!(word.text(), text);
        assert_eq!(serde_json::from_str::<Word>(text).ok(), Some(word));
    }

    /// All counts and lengths at their bounds.
    #[test]
    fn the_longest_word_is_one_argument() {
        let node: Node = "\"".repeat(Node::MOST).parse().expect("a certname");
        let numbered = Numbered {
            id: Id::from_bits(u128::MAX),
            sender: node.clone(),
            name: "\\".repeat(Name::MOST).parse().expect("a name"),
            number: u64::MAX,
            until: u64::MAX,
        };
        let origin = Origin {
            id: Id::from_bits(u128::MAX),
            cause: Cause::Refresh,
            path: vec![node; MOST_HOPS],
        };
        let origins = Lineage(vec![origin; MOST_ORIGINS]);
        let longest = Word::new(
            origins,
            Span::from_nanos(u64::MAX),
            vec![numbered; MOST_TOGETHER],
        );
        let length = longest.text().len();
        assert!((LONGEST * 3 / 4..=LONGEST).contains(&length), "{length}");
    }
}
