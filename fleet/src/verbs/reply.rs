//! The service's answer to a trigger or a cancellation: the result for each target, and a summary.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::Walltime;
use again_base::sys::terminal::clean;
use serde_json::{Value, json};

use super::{clock, named};
use crate::ask::{Answer, Summary};
use crate::step::model::SelectionState;
use crate::wire::name::Node;

/// Answers of the service so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    /// Result for each target.
    pub targets: BTreeMap<Node, Fired>,
    /// Paths of origins that were left out.
    pub left_out: Vec<String>,
    /// Summary for all targets, the last answer.
    pub summary: Option<Summary>,
}

/// Result for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// The backend has the trigger.
    Delivered,
    /// The outbox of this node has the trigger.
    Kept,
    /// A file on this node has the trigger; the service does not answer.
    Waiting,
    /// The trigger is stored nowhere, for this reason.
    Failed(String),
}

impl Reply {
    /// Records an answer; returns it if it is about something else.
    pub fn hear(&mut self, answer: Answer) -> Option<Answer> {
        match answer {
            Answer::Delivered(node) => self.note(node, Fired::Delivered),
            Answer::Kept(node) => self.note(node, Fired::Kept),
            Answer::Failed(node, why) => self.note(node, Fired::Failed(why)),
            Answer::LeftOut(way) => self.left_out.push(way),
            Answer::Said(summary) => self.summary = Some(summary),
            other => return Some(other),
        }
        None
    }

    /// Records a result. Of several triggers for a node, the worst result counts.
    fn note(&mut self, node: Node, fired: Fired) {
        let rank = |fired: &Fired| match fired {
            Fired::Delivered => 0,
            Fired::Kept | Fired::Waiting => 1,
            Fired::Failed(_) => 2,
        };
        match self.targets.get(&node) {
            Some(known) if rank(known) >= rank(&fired) => {}
            _ => drop(self.targets.insert(node, fired)),
        }
    }

    /// Marks the requested targets without an answer as failed.
    pub fn expect(&mut self, targets: &BTreeSet<Node>) {
        for node in targets {
            let unsaid = || Fired::Failed("the service said nothing of it".to_owned());
            self.targets.entry(node.clone()).or_insert_with(unsaid);
        }
    }

    /// Targets with this result.
    fn with(&self, fired: &Fired) -> Vec<&Node> {
        let are = self.targets.iter().filter(|(_, is)| *is == fired);
        are.map(|(node, _)| node).collect()
    }

    /// Results in lines; `what` is a subject and verb in front of "delivered".
    pub fn lines(&self, what: &str, now: Walltime) -> Vec<String> {
        let Some(summary) = &self.summary else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        let Summary {
            backend,
            away,
            until,
            ..
        } = summary;
        let delivered = self.with(&Fired::Delivered);
        if !delivered.is_empty() {
            lines.push(format!(
                "{what}delivered to {backend} for {}",
                named(delivered)
            ));
        }
        let kept = self.with(&Fired::Kept);
        if !kept.is_empty() {
            let why = match away.as_deref() {
                Some("") => format!("{backend} cannot be reached"),
                Some(why) => format!("{backend} cannot be reached ({})", clean(why)),
                None => format!("{backend} has not confirmed it yet"),
            };
            let until = clock(Walltime::from_millis(*until), now);
            lines.push(format!(
                "{what}kept: {why}; sent until {until} to {}",
                named(kept)
            ));
        }
        lines
    }

    /// Fate of the selection, in a line. It is deferred if nothing is sent before it is resolved.
    pub fn selection(&self, is_deferred: bool, now: Walltime) -> Option<String> {
        let summary = self.summary.as_ref()?;
        let Summary { backend, until, .. } = summary;
        let until = clock(Walltime::from_millis(*until), now);
        (summary.selection == Some(SelectionState::Stored)).then(|| match is_deferred {
            true => format!(
                "not sent yet: the selection is stored until {until}, and its nodes are selected when {backend} shows all nodes"
            ),
            false => format!(
                "the selection is stored until {until}: further nodes that it selects when {backend} shows all nodes get it then"
            ),
        })
    }

    /// Reason why the selection is not stored, in a line.
    pub fn not_stored(&self) -> Option<String> {
        match &self.summary.as_ref()?.selection {
            Some(SelectionState::NotStored(why)) => {
                Some(format!("the selection is not stored: {}", clean(why)))
            }
            _ => None,
        }
    }

    /// Whether a stored selection was cancelled.
    pub fn is_selection_cancelled(&self) -> bool {
        let summary = self.summary.as_ref();
        summary.is_some_and(|all| all.selection == Some(SelectionState::Cancelled))
    }

    /// Origins that were left out, in a line.
    pub fn warning(&self) -> Option<String> {
        let ways = self.left_out.join("; ");
        (!ways.is_empty()).then(|| format!("not passed on: {ways}"))
    }

    /// Failed targets with the reasons, in a line.
    pub fn error(&self) -> Option<String> {
        let mut reasons = BTreeMap::<&str, Vec<&Node>>::new();
        for (node, fired) in &self.targets {
            if let Fired::Failed(why) = fired {
                reasons.entry(why).or_default().push(node);
            }
        }
        let parts: Vec<String> = reasons
            .into_iter()
            .map(|(why, nodes)| format!("for {}: {why}", named(nodes)))
            .collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl Fired {
    /// Result for JSON: a word and the reason.
    pub fn json(&self) -> (Value, Value) {
        match self {
            Fired::Delivered => (json!("delivered"), Value::Null),
            Fired::Kept => (json!("kept"), Value::Null),
            Fired::Waiting => (json!("waiting"), Value::Null),
            Fired::Failed(why) => (json!("failed"), json!(why)),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::settings::Backend;

    pub fn node(name: &str) -> Node {
        name.parse().expect("a certname")
    }

    fn summary(away: Option<&str>) -> Answer {
        Answer::Said(Summary {
            backend: Backend::Etcd,
            away: away.map(str::to_owned),
            until: 1_795_219_387_045,
            selection: None,
        })
    }

    pub fn reply(answers: Vec<Answer>) -> Reply {
        let mut reply = Reply::default();
        for answer in answers {
            assert_eq!(reply.hear(answer), None);
        }
        reply
    }

    fn now() -> Walltime {
        Walltime::from_millis(1_795_219_387_045)
    }

    #[test]
    fn what_is_true_is_said() {
        let delivered = ["lb1", "lb2", "lb3"].map(|name| Answer::Delivered(node(name)));
        let answers = delivered.into_iter().chain([summary(None)]).collect();
        assert_eq!(
            reply(answers).lines("", now()),
            ["delivered to etcd for 3 nodes: lb1, lb2, lb3"]
        );
        let at = clock(now(), now());
        for (away, words) in [
            (Some("refused"), "etcd cannot be reached (refused)"),
            (Some(""), "etcd cannot be reached"),
            (None, "etcd has not confirmed it yet"),
        ] {
            let kept = reply(vec![Answer::Kept(node("lb1")), summary(away)]);
            assert_eq!(
                kept.lines("", now()),
                [format!("kept: {words}; sent until {at} to 1 node: lb1")]
            );
            assert_eq!((kept.error(), kept.warning()), (None, None));
        }
    }

    #[test]
    fn selection_says_what_happens_next() {
        let with = |state| Reply {
            summary: Some(Summary {
                backend: Backend::Etcd,
                away: None,
                until: now().millis(),
                selection: state,
            }),
            ..Reply::default()
        };
        let stored = with(Some(SelectionState::Stored));
        let at = clock(now(), now());
        let line = |is_deferred| stored.selection(is_deferred, now()).expect("a line");
        assert_eq!(
            line(true),
            format!(
                "not sent yet: the selection is stored until {at}, and its nodes are selected when etcd shows all nodes"
            )
        );
        assert_eq!(
            line(false),
            format!(
                "the selection is stored until {at}: further nodes that it selects when etcd shows all nodes get it then"
            )
        );
        assert_eq!(
            (stored.not_stored(), stored.is_selection_cancelled()),
            (None, false)
        );
        let failed = with(Some(SelectionState::NotStored("full".to_owned())));
        let error = failed.not_stored();
        assert_eq!(error.as_deref(), Some("the selection is not stored: full"));
        assert_eq!(failed.selection(false, now()), None);
        assert!(with(Some(SelectionState::Cancelled)).is_selection_cancelled());
    }

    #[test]
    fn what_failed_for_the_same_reason_is_said_together() {
        let failed = |name, why: &str| Answer::Failed(node(name), why.to_owned());
        let said = reply(vec![
            Answer::Delivered(node("ok")),
            failed("b", "over 10 hops: b -> a -> b ..."),
            failed("a", "the outbox is full"),
            failed("c", "the outbox is full"),
            Answer::LeftOut("over 10 hops: x -> y ...".to_owned()),
            summary(None),
        ]);
        assert_eq!(
            said.error().as_deref(),
            Some(
                "for 1 node: b: over 10 hops: b -> a -> b ...; for 2 nodes: a, c: the outbox is full"
            )
        );
        assert_eq!(
            said.warning().as_deref(),
            Some("not passed on: over 10 hops: x -> y ...")
        );
        assert_eq!(said.lines("", now()), ["delivered to etcd for 1 node: ok"]);
    }

    #[test]
    fn a_target_that_was_not_named_has_failed() {
        let mut said = reply(vec![Answer::Delivered(node("a")), summary(None)]);
        said.expect(&BTreeSet::from([node("a"), node("b")]));
        assert_eq!(
            said.error().as_deref(),
            Some("for 1 node: b: the service said nothing of it")
        );
    }

    #[test]
    fn the_worst_of_several_counts() {
        let said = reply(vec![
            Answer::Kept(node("a")),
            Answer::Delivered(node("a")),
            summary(None),
        ]);
        assert_eq!(said.targets[&node("a")], Fired::Kept);
    }

    #[test]
    fn what_is_about_something_else_is_given_back() {
        assert_eq!(Reply::default().hear(Answer::End), Some(Answer::End));
        // Before all is said nothing is.
        let early = reply(vec![Answer::Delivered(node("a"))]);
        assert!(early.lines("", now()).is_empty());
    }
}
