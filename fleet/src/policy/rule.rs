//! PURE: rules, which select the events that this node reacts to, and the triggers that these
//! events become.
//!
//! An event that matches a rule is a trigger, signed by the node of the event. The service and the
//! executor create it with the same function from the same signed batch, so that both get the same
//! trigger every time.

use again_base::model::Span;
use ring::digest::{Context, SHA256};

use super::accept::is_like;
use super::lineage::{TooFar, next_hop};
use super::select::{Condition, is_class};
use crate::wire::event::{Batch, Change, Event};
use crate::wire::inventory::Inventory;
use crate::wire::lineage::{Cause, MOST_HOPS};
use crate::wire::name::{Id, Name, Namespace, Node, OF_RULES};
use crate::wire::trigger::{Ask, MOST_TTL, Trigger};

/// Time for which an event counts, in milliseconds: an hour.
pub const COUNTS: u64 = 3_600_000;
/// Maximum length of the part of a rule's name that the name of the trigger has, in bytes.
const SHOWN: usize = 96;

/// Rule of this node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rule {
    /// Unique name of the rule.
    pub name: String,
    /// Resource of the event; none for any.
    pub resource: Option<Resource>,
    /// Changes of the resource; none for any.
    pub changes: Vec<Change>,
    /// Class that has the resource, or that the node of the event has published; none for any.
    pub class: Option<String>,
    /// Conditions on the published facts of the node of the event.
    pub conditions: Vec<Condition>,
    /// Environment of the run; none for any.
    pub environment: Option<String>,
    /// Whether events of this node match too.
    pub own: bool,
    /// Minimum time that Puppet waits.
    pub delta: Span,
    /// Program that is called with the event, and its arguments; empty if the rule runs Puppet.
    pub command: Vec<String>,
    /// Time limit of the program.
    pub timeout: Span,
}

/// Resource reference in Puppet's syntax, in which `*` matches any characters, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Resource type in lower case.
    kind: String,
    /// Title, including the closing bracket.
    title: String,
}

impl Resource {
    /// Parses a reference.
    ///
    /// # Errors
    /// The text is not a resource reference.
    pub fn read(text: &str) -> Result<Resource, String> {
        let parts = text.split_once('[').filter(|_| text.ends_with(']'));
        let parts = parts.filter(|(kind, title)| !kind.is_empty() && title.len() > 1);
        let Some((kind, title)) = parts else {
            let shown = crate::wire::shown(text);
            return Err(format!(
                "'{shown}' is no resource, such as Service[httpd] or File[/etc/haproxy/*]"
            ));
        };
        Ok(Resource {
            kind: kind.to_ascii_lowercase(),
            title: title.to_owned(),
        })
    }

    fn is_met_by(&self, resource: &str) -> bool {
        let (kind, title) = resource.split_once('[').unwrap_or((resource, "]"));
        is_like(&self.title, title) && is_like(&self.kind, &kind.to_ascii_lowercase())
    }
}

/// Result of matching an event against a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// No match.
    No,
    /// Unknown: the result depends on the facts of the node, which are not known.
    Untold,
    /// Match.
    Yes,
}

impl Rule {
    /// Matches an event of a batch against the rule, using the published facts of its node, if they
    /// are known.
    pub fn fit(&self, me: &Node, batch: &Batch, event: &Event, told: Option<&Inventory>) -> Fit {
        let is_any =
            |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|one| one == is);
        let is_met = (self.own || batch.node != *me)
            && (self.changes.is_empty() || self.changes.contains(&event.change))
            && is_any(&self.environment, &batch.begun.environment)
            && self
                .resource
                .as_ref()
                .is_none_or(|one| one.is_met_by(&event.resource));
        if !is_met {
            return Fit::No;
        }
        let has_tag = |class: &String| is_class(class, &event.tags);
        let needs_class = self.class.as_ref().filter(|class| !has_tag(class));
        if needs_class.is_none() && self.conditions.is_empty() {
            return Fit::Yes;
        }
        let Some(told) = told else {
            return Fit::Untold;
        };
        let is_met = needs_class.is_none_or(|class| is_class(class, &told.classes))
            && self.conditions.iter().all(|one| one.is_met_by(told));
        if is_met { Fit::Yes } else { Fit::No }
    }

    /// Whether the result of a match may depend on the published facts of a node.
    pub fn asks_the_node(&self) -> bool {
        self.class.is_some() || !self.conditions.is_empty()
    }

    /// Events of a batch that the rule reacts to, and whether further events may match once the
    /// facts of their node are known. If the rule runs Puppet, only the last matching event is
    /// returned, since one run is enough for all.
    pub fn picks<'b>(
        &self,
        me: &Node,
        batch: &'b Batch,
        told: Option<&Inventory>,
    ) -> (Vec<&'b Event>, bool) {
        let fits = batch.events.iter();
        let fits: Vec<_> = fits
            .map(|event| (event, self.fit(me, batch, event, told)))
            .collect();
        let met = fits.iter().filter(|(_, fit)| *fit == Fit::Yes);
        let mut met: Vec<&Event> = met.map(|(event, _)| *event).collect();
        if self.command.is_empty() && met.len() > 1 {
            met.drain(..met.len() - 1);
        }
        (met, fits.iter().any(|(_, fit)| *fit == Fit::Untold))
    }

    /// Trigger for an event of a batch that matches this rule.
    ///
    /// # Errors
    /// The cause of the run is unknown, or all its origins have made more hops than any trigger
    /// may.
    pub fn trigger(
        &self,
        fleet: &Namespace,
        me: &Node,
        batch: &Batch,
        event: &Event,
    ) -> Result<Trigger, String> {
        if batch.begun.unknown {
            let node = &batch.node;
            return Err(format!(
                "what asked for that run of {node} is not known there, and so it could be a circle"
            ));
        }
        let run = [
            fleet.as_str().as_bytes(),
            batch.node.as_str().as_bytes(),
            batch.run.as_str().as_bytes(),
        ];
        // Origins beyond this node's own limit are rejected, and reported, when the trigger is
        // judged.
        let new = (&id("run", &run, &[]), Cause::Event);
        let within = next_hop(&batch.begun.origins, new, &batch.node, me, MOST_HOPS);
        if within.lineage.0.is_empty() {
            let ways: Vec<String> = within.too_far.iter().map(TooFar::to_string).collect();
            return Err(ways.join("; "));
        }
        let n = event.n.to_be_bytes();
        // Each event has its own call. Runs share one name, so that a newer one replaces an older
        // one.
        let (begin, n_of_name, at): (_, &[u8], _) = if self.command.is_empty() {
            (OF_RULES[0], &[], batch.begun.at.saturating_add(event.n))
        } else {
            (OF_RULES[1], &n, event.at)
        };
        let rule = self.name.as_bytes();
        let hash = id("name", &run, &[rule, n_of_name]);
        let mut end = self.name.len().min(SHOWN);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        let name = format!("{begin}{}/{}", &self.name[..end], &hash.as_str()[..16]);
        let expires = event.at.saturating_add(COUNTS);
        Ok(Trigger {
            ask: Ask::Run,
            id: id("trigger", &run, &[rule, &n]),
            target: me.clone(),
            sender: batch.node.clone(),
            on_behalf: None,
            name: name.parse::<Name>().map_err(|e| e.to_string())?,
            number: at,
            at,
            ttl: expires.saturating_sub(at).min(MOST_TTL),
            delta: self.delta.millis(),
            targets: 1,
            parallel: 0,
            stop_after: 0,
            lineage: within.lineage,
        })
    }
}

/// First half of a hash of these parts, each preceded by its length.
fn id(what: &str, run: &[&[u8]; 3], more: &[&[u8]]) -> Id {
    let mut context = Context::new(&SHA256);
    context.update(b"again-fleet 1 rule\0");
    for part in [what.as_bytes()].iter().chain(run).chain(more) {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut bits = [0; 16];
    bits.copy_from_slice(&context.finish().as_ref()[..16]);
    Id::from_bits(u128::from_be_bytes(bits))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::policy::lineage::within;
    use crate::wire::event::tests::{batch, event};
    use crate::wire::lineage::{Lineage, Origin};
    use proptest::prelude::*;

    pub fn rule() -> Rule {
        Rule {
            name: "a web server came up".to_owned(),
            resource: Some(Resource::read("Service[httpd]").expect("a resource")),
            ..Rule::default()
        }
    }

    fn node(name: &str) -> Node {
        name.parse().expect("a certname")
    }

    fn inventory() -> Inventory {
        Inventory {
            node: node("web1.test"),
            at: 1,
            serial: 1,
            facts: BTreeMap::from([("role".to_owned(), "web".to_owned())]),
            classes: BTreeSet::from(["roles::web".to_owned()]),
            environment: "production".to_owned(),
            version: String::new(),
            puppet: String::new(),
            running: None,
            last: None,
            ended: None,
            pending: 0,
            disabled: false,
            cap: None,
            tokens: BTreeMap::new(),
            resets: BTreeMap::new(),
        }
    }

    fn fit(rule: &Rule, event: &Event, told: Option<&Inventory>) -> Fit {
        rule.fit(&node("lb1.test"), &batch(), event, told)
    }

    #[test]
    fn a_resource_is_met_by_its_type_in_any_case_and_its_title() {
        for (pattern, resource, is_met) in [
            ("Service[httpd]", "Service[httpd]", true),
            ("service[httpd]", "Service[httpd]", true),
            ("Service[httpd]", "Service[HTTPD]", false),
            ("Service[*]", "Service[httpd]", true),
            ("File[/etc/haproxy/*]", "File[/etc/haproxy/a.cfg]", true),
            ("File[/etc/haproxy/*]", "File[/etc/haproxy]", false),
            ("File[/etc/*/a]", "File[/etc/b/c/a]", true),
            ("Roles::*[*]", "Roles::Web[x]", true),
            ("Exec[a[*]]", "Exec[a[1]]", true),
            ("Service[httpd]", "Service", false),
            ("Service[httpd]", "", false),
        ] {
            let one = Resource::read(pattern).expect(pattern);
            assert_eq!(one.is_met_by(resource), is_met, "{pattern} {resource}");
        }
        for bad in ["", "httpd", "[x]", "Service[", "Service[]", "Service[a] "] {
            assert!(Resource::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_that_a_rule_says_has_to_be_met() {
        let all = Rule {
            changes: vec![Change::Started, Change::Refreshed],
            environment: Some("production".to_owned()),
            ..rule()
        };
        assert_eq!(fit(&all, &event(1), None), Fit::Yes);
        let stopped = Event {
            change: Change::Stopped,
            ..event(1)
        };
        assert_eq!(fit(&all, &stopped, None), Fit::No);
        let other = Rule {
            environment: Some("test".to_owned()),
            ..rule()
        };
        assert_eq!(fit(&other, &event(1), None), Fit::No);
        let me = node("web1.test");
        assert_eq!(rule().fit(&me, &batch(), &event(1), None), Fit::No);
        let own = Rule {
            own: true,
            ..rule()
        };
        assert_eq!(own.fit(&me, &batch(), &event(1), None), Fit::Yes);
    }

    #[test]
    fn a_class_is_one_of_the_resource_or_of_its_node_and_conditions_are_of_the_node() {
        let class = |name: &str| Rule {
            class: Some(name.to_owned()),
            ..rule()
        };
        let told = inventory();
        assert_eq!(fit(&class("::HTTPD"), &event(1), None), Fit::Yes);
        let (web, db) = (class("roles::web"), class("roles::db"));
        assert_eq!(fit(&web, &event(1), None), Fit::Untold);
        assert_eq!(fit(&web, &event(1), Some(&told)), Fit::Yes);
        assert_eq!(fit(&db, &event(1), Some(&told)), Fit::No);
        let when = |text: &str| Rule {
            conditions: vec![text.parse().expect("a condition")],
            ..rule()
        };
        assert_eq!(fit(&when("role=web"), &event(1), None), Fit::Untold);
        assert_eq!(fit(&when("role=web"), &event(1), Some(&told)), Fit::Yes);
        assert_eq!(fit(&when("role=db"), &event(1), Some(&told)), Fit::No);
        // What does not meet the rest anyway needs no look at the node.
        let other = Event {
            resource: "Service[x]".to_owned(),
            ..event(1)
        };
        assert_eq!(fit(&when("role=web"), &other, None), Fit::No);
    }

    #[test]
    fn a_run_does_for_all_events_of_a_run_and_each_has_a_call() {
        let me = node("lb1.test");
        let call = Rule {
            command: vec!["/bin/true".to_owned()],
            ..rule()
        };
        let told = batch();
        let numbers = |rule: &Rule| {
            let (met, is_more) = rule.picks(&me, &told, None);
            assert!(!is_more);
            met.iter().map(|event| event.n).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&rule()), [2]);
        assert_eq!(numbers(&call), [1, 2]);
        let of = |rule: &Rule, n: usize, run: u128| {
            let batch = Batch {
                run: Id::from_bits(run),
                ..batch()
            };
            let fleet = "test".parse().expect("a namespace");
            rule.trigger(&fleet, &me, &batch, &batch.events[n])
                .expect("a trigger")
        };
        let name = |trigger: Trigger| trigger.name;
        assert_eq!(name(of(&rule(), 0, 1)), name(of(&rule(), 1, 1)));
        assert_ne!(name(of(&rule(), 0, 1)), name(of(&rule(), 0, 2)));
        assert_ne!(name(of(&call, 0, 1)), name(of(&call, 1, 1)));
        assert!(name(of(&call, 0, 1)).is_of_a_call() && !name(of(&rule(), 0, 1)).is_of_a_call());
        assert_ne!(of(&rule(), 0, 1).id, of(&rule(), 1, 1).id);
        let begin = "rule/a web server came up/";
        assert!(name(of(&rule(), 0, 1)).as_str().starts_with(begin));
    }

    fn origin(id: u128, hops: usize) -> Origin {
        let name = |n: usize| node(["web1.test", "lb1.test"][n % 2]);
        Origin {
            id: Id::from_bits(id),
            cause: Cause::Kick,
            path: (0..hops).map(name).collect(),
        }
    }

    proptest! {
        /// The same for both sides; newer for what came later; never beyond its hour; and it goes on from where the run came from.
        #[test]
        fn an_event_is_one_trigger(
            name in "\\PC{1,64}", command: bool, first in 1..u64::MAX / 2, at: u64, late in 0..10_000_000_u64,
            hops in proptest::collection::vec(1..=MOST_HOPS, 0..3), limit in 1..=MOST_HOPS
        ) {
            let command = if command { vec!["/x".to_owned()] } else { vec![] };
            let rule = Rule { name: name.clone(), command: command.clone(), ..rule() };
            let origins = hops.iter().enumerate().map(|(n, hops)| origin(n as u128, *hops)).collect();
            let mut told = batch();
            told.begun.at = at;
            told.begun.origins = Lineage(origins);
            told.events = [first, first + 1].map(|n| Event { at: at.saturating_add(late), ..event(n) }).to_vec();
            told.ended = None;
            let (fleet, me) = ("test".parse().expect("a namespace"), node("lb1.test"));
            let mut unknown = told.clone();
            unknown.begun.unknown = true;
            prop_assert!(rule.trigger(&fleet, &me, &unknown, &told.events[0]).is_err());
            let made: Vec<_> = told.events.iter().map(|one| rule.trigger(&fleet, &me, &told, one)).collect();
            let again: Vec<_> = told.events.iter().map(|one| rule.trigger(&fleet, &me, &told, one)).collect();
            prop_assert_eq!(&made, &again);
            let may = hops.is_empty() || hops.iter().any(|hops| *hops < MOST_HOPS);
            prop_assert_eq!(made[0].is_ok(), may);
            let (Ok(one), Ok(two)) = (&made[0], &made[1]) else { return Ok(()) };
            let begin: String = name.chars().take(20).collect();
            prop_assert!(one.name.is_of_a_rule() && one.name.as_str().contains(&begin));
            prop_assert!(one.at <= one.number && one.ttl <= MOST_TTL);
            prop_assert!(one.expires().millis() <= told.events[0].at.saturating_add(COUNTS).max(one.at));
            prop_assert!(one.lineage.check().is_ok());
            prop_assert!(one.lineage.0.iter().all(|one| one.path.last() == Some(&told.node)));
            prop_assert!(one.id != two.id);
            if command.is_empty() {
                prop_assert!(one.name == two.name);
                prop_assert!(one.number < two.number || two.number == u64::MAX);
            } else {
                prop_assert!(one.name != two.name);
            }
            // What the limit of a node leaves of it has not gone too far.
            let left = within(&one.lineage, &me, limit);
            let go_on = if hops.is_empty() { 1 } else { hops.iter().filter(|hops| **hops < limit).count() };
            prop_assert_eq!(left.lineage.0.len(), go_on);
        }
    }
}
