//! Status of a trigger, which its target publishes: to the sender, and to all nodes as part of a
//! story.

use again_base::layout::Tone;
use serde::{Deserialize, Serialize};

use super::Malformed;
use super::body::{Content, Placed, at_most};
use super::key::Key;
use super::lineage::{MOST_ORIGINS, Origin};
use super::name::{Id, Name, Node};

/// Longest sentence of a result, in bytes.
const MOST_WORDS: usize = 1000;
/// Longest name of a log, in bytes.
const MOST_LOG: usize = 64;

again_base::shown_words! {
    /// Outcome of a trigger.
    pub enum Outcome {
        /// The target has accepted the trigger; it waits there, in the target's own replay ledger.
        Taken = "taken",
        /// The target cannot accept the trigger yet; it checks the trigger again until the ttl has
        /// passed.
        Held = "held",
        /// The target rejects the trigger.
        Refused = "refused",
        /// A newer trigger of the same name replaced it.
        Superseded = "superseded",
        /// The sender cancelled the trigger in time.
        Cancelled = "cancelled",
        /// The sender tried to cancel the trigger after it had been accepted.
        TooLate = "too late",
        /// Another run did the trigger's job.
        Satisfied = "satisfied",
        /// The trigger's run has begun.
        Started = "started",
        /// The trigger's run has ended, and changed something.
        Changed = "changed",
        /// The trigger's run has ended, and changed nothing.
        Unchanged = "unchanged",
        /// The trigger's run has failed.
        Failed = "failed",
        /// The trigger's run has ended with an unknown outcome.
        Unknown = "unknown",
        /// The trigger's ttl passed before the trigger could be accepted.
        Expired = "expired",
        /// The trigger calls a program: the call is stored on disk.
        Called = "called",
        /// The trigger's turn in a rolling run came after too many other targets had failed.
        Halted = "halted",
    }
}

/// Class of an outcome with respect to the run that the trigger requests, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The run failed, or there will be none because of a failure or a refusal.
    Failed,
    /// There will be no run of this trigger, or nobody knows how it ended.
    NoRun,
    /// No run began in time.
    Late,
    /// The run waits, or has not ended.
    Open,
    /// The run, or another one in its place, did its job.
    Done,
}

impl Class {
    /// Colour in tables, stories and summary lines.
    pub const fn tone(self) -> Tone {
        match self {
            Class::Failed => Tone::Bad,
            Class::NoRun | Class::Late => Tone::Attention,
            Class::Open => Tone::Plain,
            Class::Done => Tone::Good,
        }
    }
}

impl Outcome {
    /// Class of the outcome, for all tables and colours.
    pub const fn class(self) -> Class {
        use Outcome::*;
        match self {
            Failed | Refused | Halted => Class::Failed,
            Unknown | Cancelled | Superseded => Class::NoRun,
            Held | Expired | TooLate => Class::Late,
            Taken | Started => Class::Open,
            Changed | Unchanged | Satisfied | Called => Class::Done,
        }
    }

    /// Whether the sender may drop the trigger: the target has it, or will never have it.
    pub fn releases(self) -> bool {
        self != Outcome::Held
    }

    /// Whether the trigger was accepted to start a run.
    pub fn is_of_a_run(self) -> bool {
        let others = [Outcome::Taken, Outcome::Satisfied, Outcome::Started];
        others.contains(&self) || self.ends_a_run()
    }

    /// Whether it is the outcome of a run that has ended.
    pub fn ends_a_run(self) -> bool {
        matches!(
            self,
            Outcome::Changed | Outcome::Unchanged | Outcome::Failed | Outcome::Unknown
        )
    }

    /// Whether an operator may have to act: no run has started, or the run was not successful.
    pub fn is_bad(self) -> bool {
        use Outcome::{Expired, Failed, Halted, Held, Refused, Unknown};
        matches!(self, Expired | Failed | Halted | Held | Refused | Unknown)
    }

    /// Whether the run counts as failed: it failed, or its outcome is unknown.
    pub fn counts_as_failed(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::Unknown)
    }

    /// Whether the other targets of a rolling run count it: the run began and has not ended, or
    /// failed.
    pub fn is_counted(self) -> bool {
        self.counts_as_failed() || !self.is_final() && self != Outcome::Held
    }

    /// Whether the status will not change any more.
    pub fn is_final(self) -> bool {
        !matches!(
            self,
            Outcome::Taken | Outcome::Held | Outcome::Started | Outcome::TooLate
        )
    }
}

/// Value at `result/SENDER/TARGET/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TriggerStatus {
    /// Id of the trigger.
    pub id: Id,
    /// Number of the trigger.
    pub number: u64,
    /// Node that sent the trigger.
    pub sender: Node,
    /// Target, which publishes and signs this.
    pub target: Node,
    /// Name of the trigger.
    pub name: Name,
    /// Outcome of the trigger.
    pub outcome: Outcome,
    /// Reason in a sentence for people; may be empty.
    pub why: String,
    /// Time in milliseconds of the target's wall clock after 1970.
    pub at: u64,
    /// Origins of the trigger that were stopped at the hop limit, there or further on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<Stopped>,
    /// Run that did the trigger's job, once it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<Ran>,
    /// Number above which a trigger would have been accepted, if this one is superseded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<u64>,
    /// Whether it is held until its turn in a rolling run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// Run that did a trigger's job, as recorded by its target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ran {
    /// Argument for `again log` on that node: letters, digits and `-`.
    pub log: String,
    /// Start of the run, in milliseconds of the target's wall clock after 1970.
    pub began: Option<u64>,
    /// End of the run, according to the same clock.
    pub ended: Option<u64>,
    /// Number of reruns of the target's own that have followed from it.
    pub reruns: u32,
    /// Outcome of the last of these, if one has ended.
    pub last: Option<Outcome>,
    /// Whether another one waits, or is under way.
    pub more: bool,
}

impl Ran {
    /// Checks the bounds. The name of the log has to be safe in a shell, because a person may type
    /// it there.
    ///
    /// # Errors
    /// A sentence that says which bound is exceeded.
    pub fn check(&self) -> Result<(), Malformed> {
        at_most("bytes of the name of a log", self.log.len(), MOST_LOG)?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if self.log.is_empty() || self.log.starts_with('-') || !self.log.bytes().all(is_plain) {
            return Err(Malformed::new(
                "the name of a log has letters, digits and '-' only",
            ));
        }
        Ok(())
    }
}

/// Origin that was stopped at the hop limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stopped {
    /// Id of the origin.
    pub origin: Id,
    /// Path from the origin, in words.
    pub way: String,
}

impl TriggerStatus {
    /// Key at which the sender of the trigger finds this.
    pub fn key(&self) -> Key {
        Key::Result {
            sender: self.sender.clone(),
            target: self.target.clone(),
            name: self.name.clone(),
        }
    }

    /// Reason, and the origins that were stopped.
    pub fn sentence(&self) -> String {
        let ways = self.stopped.iter().map(|one| one.way.as_str());
        let parts = std::iter::once(self.why.as_str()).chain(ways);
        let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
        parts.join("; ")
    }

    /// Whether the target will publish more about it: its run, or reruns that follow.
    pub fn goes_on(&self) -> bool {
        let has_more = self.ran.as_ref().is_some_and(|ran| ran.more);
        has_more || [Outcome::Taken, Outcome::Started].contains(&self.outcome)
    }
}

impl Placed for TriggerStatus {
    fn place(&self) -> (Key, &Node) {
        (self.key(), &self.target)
    }
}

impl Content for TriggerStatus {
    const KIND: &'static str = "result.1";

    fn check(&self) -> Result<(), Malformed> {
        at_most(
            "origins that were stopped",
            self.stopped.len(),
            MOST_ORIGINS,
        )?;
        self.stopped.iter().try_for_each(|one| sentence(&one.way))?;
        self.ran.as_ref().map_or(Ok(()), Ran::check)?;
        if self.waits && self.outcome != Outcome::Held {
            return Err(Malformed::new(
                "only a trigger that is held waits for its turn",
            ));
        }
        sentence(&self.why)
    }
}

/// Value at `story/NODE/ORIGIN/TRIGGER`: a result, and the path of its trigger from one of its
/// origins.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Status of the trigger.
    pub told: TriggerStatus,
    /// Origin, and the path from there.
    pub origin: Origin,
}

impl Placed for Entry {
    fn place(&self) -> (Key, &Node) {
        let key = Key::Story {
            node: self.told.target.clone(),
            origin: self.origin.id.clone(),
            trigger: self.told.id.clone(),
        };
        (key, &self.told.target)
    }
}

impl Content for Entry {
    const KIND: &'static str = "story.1";

    fn check(&self) -> Result<(), Malformed> {
        super::lineage::Lineage(vec![self.origin.clone()]).check()?;
        self.told.check()
    }
}

fn sentence(text: &str) -> Result<(), Malformed> {
    at_most("bytes of a sentence", text.len(), MOST_WORDS)?;
    if text.chars().any(char::is_control) {
        return Err(Malformed::new("a sentence has control characters"));
    }
    Ok(())
}

/// Sentence for publication: truncated at its bound, control characters replaced.
pub fn words(text: &str) -> String {
    cut(text, MOST_WORDS)
}

/// Text truncated to `most` bytes, control characters replaced.
pub fn cut(text: &str, most: usize) -> String {
    let mut words = String::new();
    for c in text.chars() {
        if words.len() + c.len_utf8() > most {
            break;
        }
        words.push(if c.is_control() { ' ' } else { c });
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::body::{decode, encode};
    use crate::wire::trigger::tests::trigger;
    use proptest::prelude::*;

    fn told() -> TriggerStatus {
        let trigger = trigger();
        TriggerStatus {
            id: trigger.id,
            number: trigger.number,
            sender: trigger.sender,
            target: trigger.target,
            name: trigger.name,
            outcome: Outcome::TooLate,
            why: "its run has begun".to_owned(),
            at: 1_000_500,
            stopped: vec![],
            ran: None,
            above: None,
            waits: false,
        }
    }

    #[test]
    fn a_word_is_the_same_in_json() {
        for outcome in Outcome::ALL {
            let json = serde_json::to_string(outcome).expect("JSON");
            assert_eq!(json, format!("\"{outcome}\""));
        }
        assert_eq!(Outcome::TooLate.to_string(), "too late");
    }

    #[test]
    fn what_is_final_releases_the_sender() {
        for outcome in Outcome::ALL {
            assert!(outcome.releases() || !outcome.is_final(), "{outcome}");
        }
        assert!(!Outcome::Held.releases());
        assert!(Outcome::Taken.releases() && !Outcome::Taken.is_final());
    }

    #[test]
    fn a_sentence_of_others_is_bounded_and_plain() {
        for why in ["x".repeat(1001), "a\u{1b}[2J".to_owned()] {
            let bad = TriggerStatus {
                why: why.clone(),
                ..told()
            };
            assert!(encode(&bad).is_err());
            assert!(decode::<TriggerStatus>(&serde_json::to_vec(&bad).expect("JSON")).is_err());
            assert!(
                encode(&TriggerStatus {
                    why: words(&why),
                    ..told()
                })
                .is_ok()
            );
        }
        let stopped = |way: &str| Stopped {
            origin: Id::from_bits(1),
            way: way.to_owned(),
        };
        let good = TriggerStatus {
            stopped: vec![stopped("over 3 hops")],
            ..told()
        };
        assert_eq!(decode(&encode(&good).expect("written")), Ok(good.clone()));
        assert_eq!(good.sentence(), "its run has begun; over 3 hops");
        for stopped in [vec![stopped("a\u{1b}[2J")], vec![stopped(""); 9]] {
            assert!(encode(&TriggerStatus { stopped, ..told() }).is_err());
        }
        for (log, is_good) in [
            ("0f2c-12", true),
            ("", false),
            ("-n", false),
            ("$(reboot)", false),
            (&"x".repeat(65), false),
        ] {
            let ran = Ran {
                log: log.to_owned(),
                began: Some(1),
                ended: None,
                reruns: 0,
                last: None,
                more: true,
            };
            let ran = Some(ran);
            assert_eq!(
                encode(&TriggerStatus { ran, ..told() }).is_ok(),
                is_good,
                "{log}"
            );
        }
        let origin = trigger().lineage.0.remove(0);
        let entry = Entry {
            told: told(),
            origin,
        };
        assert_eq!(decode(&encode(&entry).expect("written")), Ok(entry.clone()));
        let lost = Entry {
            origin: Origin {
                path: vec![],
                ..entry.origin
            },
            ..entry
        };
        assert!(encode(&lost).is_err());
    }

    proptest! {
        #[test]
        fn any_words_can_be_told(why in ".{0,40}|[\u{e9}\n]{900,1200}") {
            let one = TriggerStatus { why: words(&why), ..told() };
            prop_assert_eq!(decode::<TriggerStatus>(&encode(&one).expect("written")), Ok(one));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (decode::<TriggerStatus>(&bytes), decode::<Entry>(&bytes));
        }
    }
}
