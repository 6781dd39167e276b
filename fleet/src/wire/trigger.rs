//! Request that Puppet runs on another node. It carries no command and no option except a bounded
//! delta.

use again_base::model::{Span, Walltime};
use serde::{Deserialize, Serialize};

use super::Malformed;
use super::body::Content;
use super::key::Key;
use super::lineage::Lineage;
use super::name::{Id, Name, Node, OF_RULES};
use super::slot::MOST_SLOTS;

/// Longest ttl of a trigger, in milliseconds: a day.
pub const MOST_TTL: u64 = 86_400_000;
/// Longest delta, in milliseconds: a day.
pub const MOST_DELTA: u64 = 86_400_000;
/// Most targets of a trigger.
pub const MOST_TARGETS: u32 = 1 << 20;

again_base::shown_words! {
    /// Request of a sender.
    pub enum Ask {
        /// Run Puppet.
        Run = "run",
        /// Forget an earlier request of this name, unless it was accepted.
        Cancel = "cancel",
    }
}

/// Value at `to/TARGET/SENDER/NAME`. All of it is signed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Trigger {
    /// Request of the sender.
    pub ask: Ask,
    /// Id of the trigger in messages, results and stories.
    pub id: Id,
    /// Node that has to run Puppet.
    pub target: Node,
    /// Node that signs the trigger.
    pub sender: Node,
    /// Node on whose behalf the sender acts, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf: Option<Node>,
    /// Name of the trigger: a newer trigger of the sender for this target with the same name
    /// replaces it.
    pub name: Name,
    /// Number, which increases with every trigger of this sender, target and name: milliseconds of
    /// the wall clock, at least the last number + 1.
    pub number: u64,
    /// Time at which it was sent, in milliseconds of the sender's wall clock after 1970; not after
    /// `number`.
    pub at: u64,
    /// Time within which it has to be accepted, in milliseconds.
    pub ttl: u64,
    /// Time that the target waits at least, in milliseconds.
    pub delta: u64,
    /// Number of targets that it was sent to together.
    pub targets: u32,
    /// Most targets that may run at the same time; 0 for all.
    #[serde(default, skip_serializing_if = "is_none")]
    pub parallel: u32,
    /// Number of failed targets at which the rest does not begin any more; 0 for no limit.
    #[serde(default, skip_serializing_if = "is_none")]
    pub stop_after: u32,
    /// Origins of the trigger.
    pub lineage: Lineage,
}

impl Trigger {
    /// Key at which the trigger is stored.
    pub fn key(&self) -> Key {
        Key::To {
            target: self.target.clone(),
            sender: self.sender.clone(),
            name: self.name.clone(),
        }
    }

    /// Node whose change this is: the sender, or the node on whose behalf it acts.
    pub fn firing(&self) -> &Node {
        self.on_behalf.as_ref().unwrap_or(&self.sender)
    }

    /// Time at which it was sent, on the sender's clock.
    pub fn fired(&self) -> Walltime {
        Walltime::from_millis(self.at)
    }

    /// Time after which it may not be accepted any more, on the sender's clock.
    pub fn expires(&self) -> Walltime {
        Walltime::from_millis(self.at.saturating_add(self.ttl))
    }

    /// Number of targets that may start together.
    pub fn together(&self) -> u32 {
        match self.parallel {
            0 => self.targets,
            parallel => parallel.min(self.targets),
        }
    }

    /// Delta as a span.
    pub fn delta(&self) -> Span {
        Span::from_nanos(self.delta.saturating_mul(1_000_000))
    }
}

/// Whether a number is 0. Such a field is left out, as in versions before it existed.
#[allow(clippy::trivially_copy_pass_by_ref)]
pub fn is_none(number: &u32) -> bool {
    *number == 0
}

/// Checks the bounds of a rolling run.
///
/// # Errors
/// A sentence that says which bound is exceeded.
pub fn check_rolling(parallel: u32, stop_after: u32) -> Result<(), Malformed> {
    if parallel.max(stop_after) > MOST_SLOTS {
        return Err(Malformed::new(format!(
            "{parallel} nodes at once, {stop_after} failures: {MOST_SLOTS} are allowed"
        )));
    }
    if parallel == 0 && stop_after > 0 {
        return Err(Malformed::new(
            "what begins all together cannot stop after failures",
        ));
    }
    Ok(())
}

impl Content for Trigger {
    const KIND: &'static str = "trigger.1";

    fn check(&self) -> Result<(), Malformed> {
        let bound = |what: &str, value: u64, most: u64| {
            if value <= most {
                return Ok(());
            }
            Err(Malformed::new(format!(
                "a {what} of {value} is too large: {most} is allowed"
            )))
        };
        bound("ttl in milliseconds", self.ttl, MOST_TTL)?;
        bound("delta in milliseconds", self.delta, MOST_DELTA)?;
        bound(
            "number of targets",
            self.targets.into(),
            MOST_TARGETS.into(),
        )?;
        if self.targets == 0 {
            return Err(Malformed::new("a trigger has at least one target"));
        }
        check_rolling(self.parallel, self.stop_after)?;
        // Because of this bound it is enough to remember numbers for the longest ttl.
        if self.at > self.number {
            return Err(Malformed::new("the trigger was fired after its number was"));
        }
        if self.name.is_of_a_rule() {
            return Err(Malformed::new(format!(
                "the name begins with '{}' or '{}' as those that rules give",
                OF_RULES[0], OF_RULES[1]
            )));
        }
        if self.on_behalf.as_ref() == Some(&self.sender) {
            return Err(Malformed::new("the sender speaks on behalf of itself"));
        }
        self.lineage.check()?;
        if self
            .lineage
            .0
            .iter()
            .any(|origin| origin.path.last() != Some(self.firing()))
        {
            return Err(Malformed::new(format!(
                "the lineage does not end with {}, which fired",
                self.firing()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::body::{MOST, decode, encode};
    use crate::wire::key::tests::{id, name, node};
    use crate::wire::lineage::{Cause, MOST_HOPS, MOST_ORIGINS, Origin};
    use proptest::prelude::*;

    /// A trigger of node `web1` for node `lb1`, fired a while ago.
    pub fn trigger() -> Trigger {
        let web1: Node = "web1".parse().expect("a certname");
        Trigger {
            ask: Ask::Run,
            id: Id::from_bits(7),
            target: "lb1".parse().expect("a certname"),
            sender: web1.clone(),
            on_behalf: None,
            name: "again".parse().expect("a name"),
            number: 1_000_000,
            at: 1_000_000,
            ttl: 3_600_000,
            delta: 0,
            targets: 1,
            parallel: 0,
            stop_after: 0,
            lineage: Lineage(vec![Origin {
                id: Id::from_bits(1),
                cause: Cause::Refresh,
                path: vec![web1],
            }]),
        }
    }

    prop_compose! {
        fn any_trigger()(
            ask in prop::sample::select(Ask::ALL), id in id(), target in node(), sender in node(), name in name(),
            number in any::<u64>(), before in any::<u64>(), ttl in 0..=MOST_TTL, delta in 0..=MOST_DELTA,
            targets in 1..=MOST_TARGETS, parallel in 0..=MOST_SLOTS, stop in 0..=MOST_SLOTS,
            origins in prop::collection::btree_map(id(), prop::collection::vec(node(), 0..MOST_HOPS), 1..=MOST_ORIGINS),
        ) -> Trigger {
            let origins = origins.into_iter().map(|(id, mut path)| {
                path.push(sender.clone());
                Origin { id, cause: Cause::Person, path }
            });
            let lineage = Lineage(origins.collect());
            Trigger { ask, id, target, sender, on_behalf: None, name, number, at: number.saturating_sub(before), ttl, delta, targets, parallel, stop_after: if parallel == 0 { 0 } else { stop }, lineage }
        }
    }

    fn why(change: impl FnOnce(&mut Trigger)) -> String {
        let mut changed = trigger();
        change(&mut changed);
        let error = encode(&changed).expect_err("refused").to_string();
        // Whoever reads it says the same.
        let bytes = serde_json::to_vec(&changed).expect("JSON");
        assert_eq!(
            decode::<Trigger>(&bytes).expect_err("refused").to_string(),
            error
        );
        error
    }

    #[test]
    fn what_breaks_a_bound_is_neither_written_nor_read() {
        assert!(why(|t| t.ttl = MOST_TTL + 1).contains("a ttl in milliseconds of 86400001"));
        assert!(why(|t| t.delta = MOST_DELTA + 1).contains("delta"));
        assert!(why(|t| t.targets = 0).contains("at least one target"));
        assert!(why(|t| t.targets = MOST_TARGETS + 1).contains("number of targets"));
        assert!(why(|t| t.parallel = MOST_SLOTS + 1).contains("100001 nodes at once"));
        assert!(why(|t| t.stop_after = 1).contains("begins all together"));
        assert!(
            why(|t| (t.parallel, t.stop_after) = (1, MOST_SLOTS + 1)).contains("100001 failures")
        );
        assert!(why(|t| t.number = t.at - 1).contains("after its number"));
        assert!(why(|t| t.on_behalf = Some(t.sender.clone())).contains("behalf of itself"));
        assert!(why(|t| t.on_behalf = Some(t.target.clone())).contains("does not end with lb1"));
        assert!(why(|t| t.lineage.0.clear()).contains("no origin"));
        assert!(why(|t| t.lineage.0[0].path.clear()).contains("passed no node"));
        assert!(
            why(|t| t.lineage.0[0].path.push(t.target.clone())).contains("does not end with web1")
        );
        assert!(
            why(|t| t.lineage.0[0].path = vec![t.sender.clone(); MOST_HOPS + 1])
                .contains("21 hops")
        );
        assert!(why(|t| t.lineage.0.push(t.lineage.0[0].clone())).contains("not in order"));
        let many = |n: u128| Origin {
            id: Id::from_bits(n),
            ..trigger().lineage.0[0].clone()
        };
        assert!(why(|t| t.lineage.0 = (0..9).map(many).collect()).contains("9 origins"));
    }

    /// All counts at their bounds: the body's own bound leaves room for it.
    #[test]
    fn the_largest_trigger_fits() {
        let long: Node = "\"".repeat(Node::MOST).parse().expect("a certname");
        let origin = |n: usize| Origin {
            id: Id::from_bits(n as u128),
            cause: Cause::Refresh,
            path: vec![long.clone(); MOST_HOPS],
        };
        let largest = Trigger {
            target: long.clone(),
            sender: "x".repeat(Node::MOST).parse().expect("a certname"),
            on_behalf: Some(long.clone()),
            name: "\\".repeat(Name::MOST).parse().expect("a name"),
            number: u64::MAX,
            at: u64::MAX,
            ttl: MOST_TTL,
            lineage: Lineage((0..MOST_ORIGINS).map(origin).collect()),
            ..trigger()
        };
        let size = encode(&largest).expect("it fits").len();
        assert!(size > MOST / 2, "the bound is far off: {size}");
    }

    #[test]
    fn a_trigger_is_written_as_it_always_was() {
        let text = r#"{"ask":"run","id":"00000000000000000000000000000007","target":"lb1","sender":"web1","name":"again","number":1000000,"at":1000000,"ttl":3600000,"delta":0,"targets":1,"lineage":[{"id":"00000000000000000000000000000001","cause":"refresh","path":["web1"]}]}"#;
        assert_eq!(
            String::from_utf8(encode(&trigger()).expect("written")).expect("UTF-8"),
            text
        );
        let rolling = Trigger {
            parallel: 5,
            stop_after: 2,
            ..trigger()
        };
        let text = text.replace(
            r#""targets":1,"#,
            r#""targets":1,"parallel":5,"stop_after":2,"#,
        );
        assert_eq!(
            String::from_utf8(encode(&rolling).expect("written")).expect("UTF-8"),
            text
        );
        let text = text.replace(r#""parallel":5,"stop_after":2,"#, "");
        // A later release may add a field.
        let newer = text.replacen('{', r#"{"colour":"red","#, 1);
        assert_eq!(decode::<Trigger>(newer.as_bytes()), Ok(trigger()));
    }

    #[test]
    fn a_trigger_knows_its_times_and_who_fired() {
        let mut one = trigger();
        assert_eq!(one.expires().since(one.fired()), Span::from_secs(3600));
        assert_eq!(one.firing(), &one.sender);
        one.on_behalf = Some("web2".parse().expect("a certname"));
        assert_eq!(one.firing().as_str(), "web2");
        assert_eq!(one.key().signer(), Some(&one.sender));
    }

    proptest! {
        #[test]
        fn a_trigger_comes_back(trigger in any_trigger()) {
            let bytes = encode(&trigger).expect("written");
            prop_assert_eq!(decode::<Trigger>(&bytes), Ok(trigger));
        }

        #[test]
        fn a_truncated_one_is_an_error(trigger in any_trigger(), at in any::<prop::sample::Index>()) {
            let bytes = encode(&trigger).expect("written");
            prop_assert!(decode::<Trigger>(&bytes[..at.index(bytes.len())]).is_err());
        }
    }
}
