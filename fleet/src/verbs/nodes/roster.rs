//! PURE: the nodes of the fleet and their inventories.

use std::collections::{BTreeMap, BTreeSet};

use again_base::layout::{Look, Tone, plural};
use again_base::model::{Span, Walltime};
use again_base::sys::localtime::utc;
use again_base::sys::terminal::clean;
use serde_json::{Value, json};

use super::super::{clock, named};
use crate::ask::Answer;
use crate::policy::last_inventory::RETURN;
use crate::policy::presence::Presence;
use crate::policy::select::{Condition, Selection};
use crate::policy::slots::Standing;
use crate::wire::inventory::Inventory;
use crate::wire::name::Node;

/// All nodes in the backend, or in the last inventory.
#[derive(Debug, Default)]
pub struct Roster {
    pub(super) nodes: BTreeMap<Node, Box<Entry>>,
    /// Time and reason of the last inventory; `None` if the nodes are those in the backend now.
    pub stored: Option<(Walltime, String)>,
}

/// A node of the roster.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub told: Option<Inventory>,
    /// Whether the node's service is connected, at the last update.
    pub presence: Presence,
    /// Time since which the backend lacks the node's earlier inventory.
    pub missing_since: Option<Walltime>,
    /// Whether the value of the node's key is ignored: it is not signed by the node, or older than
    /// an inventory read before.
    pub is_liar: bool,
    /// Entries of the node in slot queues.
    pub slots: Vec<Standing>,
}

impl Roster {
    /// Records an answer of the service; `false` if it does not answer the question.
    pub(super) fn hear(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Node(told) => {
                let entry = self.nodes.entry(told.node.clone()).or_default();
                entry.told = Some(*told);
            }
            Answer::Ignored(node) => self.nodes.entry(node).or_default().is_liar = true,
            Answer::Missing { node, since } => {
                let since = Some(Walltime::from_millis(since));
                self.nodes.entry(node).or_default().missing_since = since;
            }
            Answer::Stored { at, why } => self.stored = Some((Walltime::from_millis(at), why)),
            _ => return false,
        }
        true
    }

    /// Updates which nodes are connected, if the backend shows their inventories. Returns whether
    /// that has changed.
    pub fn judge(&mut self, now: Walltime, skew: Span) -> bool {
        if self.stored.is_some() {
            return false;
        }
        let mut has_changed = false;
        for one in self.nodes.values_mut() {
            let told = one.told.as_ref().filter(|_| one.missing_since.is_none());
            let presence = told.map(|told| Presence::of(Walltime::from_millis(told.at), now, skew));
            let presence = presence.unwrap_or_default();
            has_changed |= std::mem::replace(&mut one.presence, presence) != presence;
        }
        has_changed
    }

    /// Names of the selected nodes.
    pub fn selected(&self, selection: &Selection) -> impl Iterator<Item = &Node> {
        self.meant(selection).into_iter().map(|(node, _)| node)
    }

    /// The selected nodes among those with an inventory.
    pub(super) fn meant(&self, selection: &Selection) -> Vec<(&Node, &Entry)> {
        let mut meant = Vec::new();
        for (node, one) in &self.nodes {
            let told = one.told.as_ref();
            if told.is_some() && selection.has(told) {
                meant.push((node, &**one));
            }
        }
        meant
    }

    /// Names of the facts that the conditions of a selection need and no node publishes.
    pub(super) fn unpublished<'a>(&self, selection: &'a Selection) -> BTreeSet<&'a str> {
        let is_published = |fact: &&str| {
            let mut told = self.nodes.values().filter_map(|one| one.told.as_ref());
            told.any(|told| told.facts.contains_key(*fact))
        };
        let facts = selection.facts.iter().filter_map(Condition::needed_fact);
        facts.filter(|fact| !is_published(fact)).collect()
    }

    /// Nodes whose facts are ignored although their keys have a value.
    pub(super) fn ignored(&self) -> Vec<Node> {
        let is_ignored = |one: &Entry| one.is_liar && one.told.is_none();
        let ignored = self.nodes.iter().filter(|(_, one)| is_ignored(one));
        ignored.map(|(node, _)| node.clone()).collect()
    }

    /// Whether a node's service is known to be disconnected.
    pub fn is_away(&self, node: &Node) -> bool {
        let presence = self.nodes.get(node).map(|one| one.presence);
        self.stored.is_none() && presence.unwrap_or_default() == Presence::Gone
    }

    /// Whether all nodes are known: the backend shows them, the facts of each are valid, and no
    /// node may still return after the backend lost its data.
    pub fn is_complete(&self, now: Walltime) -> bool {
        let missing = self.nodes.values().filter_map(|one| one.missing_since);
        let mut returning = missing.filter(|since| now.since(*since) < RETURN);
        self.stored.is_none() && self.ignored().is_empty() && returning.next().is_none()
    }

    /// Sentences about nodes whose inventories the backend has lost: those that may still publish
    /// them again, and those that had time enough to.
    fn missing(&self, now: Walltime) -> Vec<String> {
        let nodes = self.nodes.iter();
        let missing = nodes.filter(|(_, one)| one.told.is_some());
        let missing = missing.filter_map(|(node, one)| Some((node, one.missing_since?)));
        let missing: Vec<_> = missing.collect();
        let Some(since) = missing.iter().map(|(_, since)| *since).min() else {
            return Vec::new();
        };
        let lost = format!("since the backend lost its data at {}", clock(since, now));
        let (late, others): (Vec<_>, Vec<_>) = missing
            .into_iter()
            .partition(|(_, since)| now.since(*since) >= RETURN);
        let mut sentences = Vec::new();
        if !others.is_empty() {
            let (count, s) = (others.len(), plural(others.len()));
            sentences.push(format!(
                "the last inventory still counts {count} node{s} without new facts {lost}"
            ));
        }
        let nodes = || late.iter().map(|(node, _)| *node);
        match late.as_slice() {
            [] => {}
            [(node, _)] => sentences.push(format!(
                "{node} still counts without new facts {lost}; if it is gone for good, 'again-fleet forget {node}'"
            )),
            _ => sentences.push(format!(
                "still counted without new facts {lost}: {}; 'again-fleet forget NODE' for each that is gone for good",
                named(nodes())
            )),
        }
        sentences
    }

    /// Warnings about missing information.
    pub(super) fn warnings(&self, now: Walltime) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some((at, why)) = &self.stored {
            let (age, at) = (Span::from_secs(now.since(*at).secs()), clock(*at, now));
            warnings.push(format!(
                "the nodes are those of the last inventory, read {age} ago at {at}: {why}"
            ));
        }
        warnings.extend(self.missing(now));
        let nodes = self.nodes.iter();
        let ahead = nodes.filter(|(_, one)| one.presence == Presence::Ahead);
        let ahead: Vec<&Node> = ahead.map(|(node, _)| node).collect();
        if !ahead.is_empty() {
            warnings.push(format!(
                "cannot tell whether these nodes are connected, as their clocks are ahead of this node's: {}",
                named(ahead)
            ));
        }
        let ignored = self.ignored();
        if !ignored.is_empty() {
            warnings.push(format!(
                "ignored the facts of {}: not signed, or older than facts read before; see 'journalctl -u again-fleet'",
                named(&ignored)
            ));
        }
        warnings
    }
}

/// Text and tone of each column of a row.
pub(super) type Row = [(Tone, String); 5];

const HEADINGS: [&str; 5] = ["NODE", "THERE", "ENVIRONMENT", "LAST RUN", "NOW"];
/// Width to which a column may shrink, in characters.
const NARROWEST: usize = 12;

/// Largest widths of the columns so far. They do not shrink, so that unchanged text does not move.
#[derive(Debug, Default)]
pub(super) struct Columns([usize; 5]);

impl Columns {
    /// Rows below a heading, at most as wide as the terminal if possible.
    pub(super) fn table(&mut self, mut rows: Vec<Row>, look: &Look) -> Vec<String> {
        rows.insert(0, HEADINGS.map(|text| (Tone::Heading, text.to_owned())));
        for row in &rows {
            for (width, (_, text)) in self.0.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        let mut widths = self.0;
        let all: usize = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
        let mut over = all.saturating_sub(look.width.unwrap_or(usize::MAX));
        for column in [0, 2, 3, 4] {
            let less = over.min(widths[column].saturating_sub(NARROWEST));
            widths[column] -= less;
            over -= less;
        }
        rows.iter().map(|row| line(row, &widths, look)).collect()
    }
}

fn line(row: &Row, widths: &[usize; 5], look: &Look) -> String {
    let cells = row.iter().zip(widths).map(|((tone, text), width)| {
        let count = text.chars().count();
        let mut shown = text.clone();
        if count > *width {
            shown = text.chars().take(width.saturating_sub(1)).collect();
            shown.push('\u{2026}');
        }
        let room = " ".repeat(width.saturating_sub(count));
        format!("{}{room}", look.paint(*tone, &shown))
    });
    let cells: Vec<String> = cells.collect();
    cells.join("  ").trim_end().to_owned()
}

impl Entry {
    /// Whether the node's service is known to be connected.
    pub(super) fn is_alive(&self) -> bool {
        self.presence == Presence::Connected
    }

    /// Row of a node. For a node of the last inventory, whether it is connected is not known.
    pub(super) fn row(&self, node: &Node, now: Walltime, is_stored: bool) -> Row {
        let at = |millis| clock(Walltime::from_millis(millis), now);
        let node = (Tone::Plain, node.to_string());
        let told = self.told.as_ref();
        let none = || (Tone::Plain, String::new());
        let Some(told) = told else {
            return [node, none(), none(), none(), none()];
        };
        let there = match self.presence {
            Presence::Connected => (Tone::Good, "alive".to_owned()),
            Presence::Ahead => (
                Tone::Attention,
                format!("clock ahead, told {}", at(told.at)),
            ),
            Presence::Gone if is_stored => {
                (Tone::Plain, format!("not known, told {}", at(told.at)))
            }
            Presence::Gone if self.missing_since.is_some() => {
                (Tone::Attention, "not back".to_owned())
            }
            Presence::Gone => (Tone::Attention, format!("gone, told {}", at(told.at))),
        };
        if !told.is_of_a_run() {
            let nothing = (Tone::Plain, "told nothing".to_owned());
            return [node, there, none(), nothing, none()];
        }
        let last = told.last.map_or((Tone::Plain, String::new()), |last| {
            let when = told
                .ended
                .map_or_else(String::new, |ended| format!(" {}", at(ended)));
            (last.class().tone(), format!("{last}{when}"))
        });
        let environment = (Tone::Plain, clean(&told.environment));
        [node, there, environment, last, self.state(told, now)]
    }

    /// State of the node's Puppet runs and reruns, in words.
    fn state(&self, told: &Inventory, now: Walltime) -> (Tone, String) {
        let mut words = Vec::new();
        let mut tone = Tone::Plain;
        if told.disabled {
            (tone, words) = (Tone::Attention, vec!["disabled".to_owned()]);
        }
        if let Some(since) = told.running.filter(|_| self.is_alive()) {
            let since = clock(Walltime::from_millis(since), now);
            words.push(format!("running since {since}"));
        }
        if told.pending > 0 {
            words.push(format!("{} pending", told.pending));
        }
        if let Some((most, used)) = told.cap.filter(|(_, used)| *used > 0) {
            words.push(format!("cap {used}/{most}"));
        }
        (tone, words.join(", "))
    }

    /// A node as JSON. For a node of the last inventory, whether it is connected is not known.
    pub(super) fn json(&self, node: &Node, is_stored: bool) -> Value {
        let told = self.told.as_ref();
        let time = |millis| utc(Walltime::from_millis(millis));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        json!({
            "node": node,
            "alive": (!is_stored && self.presence != Presence::Ahead).then_some(self.is_alive()),
            "missing_since": self.missing_since.map(utc),
            "at": told.map(|told| time(told.at)),
            "facts": told.map(|told| &told.facts).cloned().unwrap_or_default(),
            "classes": told.map(|told| &told.classes).cloned().unwrap_or_default(),
            "environment": told.and_then(|told| some(&told.environment)),
            "again_fleet": told.and_then(|told| some(&told.version)),
            "puppet": told.and_then(|told| some(&told.puppet)),
            "last": told.and_then(|told| told.last),
            "ended": told.and_then(|told| told.ended).map(time),
            "running": self.is_alive() && told.is_some_and(|told| told.running.is_some()),
            "running_since": told.and_then(|told| told.running).map(time),
            "pending": told.map_or(0, |told| told.pending),
            "disabled": told.is_some_and(|told| told.disabled),
            "cap": told.and_then(|told| told.cap).map(|(most, used)| json!({"max_runs": most, "used": used})),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::select::tests::node as told;
    use crate::wire::outcome::Outcome;

    fn roster() -> Roster {
        let of = |name: &str, change: fn(&mut Inventory)| {
            let mut one = told(&[("role", "x")]);
            one.node = name.parse().expect("a certname");
            change(&mut one);
            Answer::Node(Box::new(one))
        };
        let now = Walltime::from_millis(3_600_001);
        let mut roster = Roster::default();
        for answer in [
            of("web2.example.com", |one| {
                (one.last, one.ended) = (Some(Outcome::Failed), Some(1));
                (one.disabled, one.pending, one.cap) = (true, 2, Some((5, 3)));
            }),
            of("web1.example.com", |one| {
                (one.at, one.running) = (3_600_000, Some(1))
            }),
            // No run has told anything there.
            of("db1", |one| {
                (one.at, one.environment) = (3_600_000, String::new());
                one.facts.clear();
            }),
        ] {
            assert!(roster.hear(answer));
        }
        assert!(roster.judge(now, Span::ZERO) && !roster.judge(now, Span::ZERO));
        assert!(!roster.hear(Answer::End));
        roster
    }

    #[test]
    fn unpublished_names_facts_that_no_node_publishes() {
        let selection = |conditions: &[&str]| Selection {
            facts: conditions
                .iter()
                .map(|one| one.parse().expect("a condition"))
                .collect(),
            ..Selection::default()
        };
        let all = selection(&["role=y", "rack>1", "rack<9", "zone!=b"]);
        assert_eq!(roster().unpublished(&all), ["rack"].into());
        assert!(roster().unpublished(&Selection::default()).is_empty());
    }

    #[test]
    fn warnings_say_how_old_the_nodes_are_and_who_is_missing() {
        let minutes = |count: u64| Walltime::from_millis(count * 60_000);
        let (lost, read) = (minutes(10), minutes(8));
        let mut roster = roster();
        assert_eq!(roster.warnings(minutes(20)), [""; 0]);
        assert!(!roster.is_away(&"db1".parse().expect("a certname")));
        let web2: Node = "web2.example.com".parse().expect("a certname");
        assert!(roster.is_away(&web2));
        let since = lost.millis();
        for node in [web2.clone(), "gone".parse().expect("a certname")] {
            assert!(roster.hear(Answer::Missing { node, since }));
        }
        let now = minutes(14);
        assert!(!roster.is_complete(now) && roster.is_complete(minutes(15)));
        let liar: Node = "liar".parse().expect("a certname");
        assert!(roster.hear(Answer::Ignored(liar.clone())));
        assert!(!roster.is_complete(minutes(15)));
        roster.nodes.remove(&liar);
        let at = clock(lost, now);
        assert_eq!(
            roster.warnings(now),
            [format!(
                "the last inventory still counts 1 node without new facts since the backend lost its data at {at}"
            )]
        );
        let why = "etcd is away".to_owned();
        let at = read.millis();
        assert!(roster.hear(Answer::Stored { at, why }));
        assert!(!roster.is_complete(minutes(15)));
        let now = minutes(15);
        let [age, loss] = &roster.warnings(now)[..] else {
            panic!("two warnings");
        };
        let at = clock(read, now);
        assert_eq!(
            *age,
            format!("the nodes are those of the last inventory, read 7m ago at {at}: etcd is away")
        );
        let lost = clock(lost, now);
        assert_eq!(
            *loss,
            format!(
                "web2.example.com still counts without new facts since the backend lost its data at {lost}; if it is gone for good, 'again-fleet forget web2.example.com'"
            )
        );
        assert!(!roster.is_away(&web2));
        let (_, one) = roster.nodes.first_key_value().expect("a node");
        assert_eq!(one.json(&web2, true)["alive"], Value::Null);
    }

    #[test]
    fn a_table_has_all_and_fits() {
        let look = |width| Look {
            width,
            colour: false,
        };
        let now = Walltime::from_millis(3_600_001);
        let at = clock(Walltime::from_millis(1), now);
        let table = |roster: &Roster, width| {
            let meant = roster.meant(&Selection::default()).into_iter();
            let rows = meant.map(|(node, one)| one.row(node, now, false)).collect();
            Columns::default().table(rows, &look(width))
        };
        let lines = table(&roster(), None);
        assert_eq!(
            lines,
            [
                format!(
                    "{:16}  {:16}  ENVIRONMENT  {:12}  NOW",
                    "NODE", "THERE", "LAST RUN"
                ),
                format!("{:16}  {:16}  {:11}  told nothing", "db1", "alive", ""),
                format!(
                    "web1.example.com  {:16}  {:11}  {:12}  running since {at}",
                    "alive", "production", ""
                ),
                format!(
                    "web2.example.com  {:16}  {:11}  {:12}  disabled, 2 pending, cap 3/5",
                    format!("gone, told {at}"),
                    "production",
                    format!("failed {at}")
                ),
            ]
        );
        // A clock that is ahead, of a node that may be dead.
        let mut ahead = roster();
        assert!(ahead.judge(Walltime::from_millis(1), Span::from_secs(60)));
        let lines = table(&ahead, None).join("\n");
        assert!(
            lines.contains("db1               clock ahead, told "),
            "{lines}"
        );
        let [warning] = &ahead.warnings(Walltime::from_millis(1))[..] else {
            panic!("one warning");
        };
        assert!(
            warning.ends_with(" ahead of this node's: 2 nodes: db1, web1.example.com"),
            "{warning}"
        );
        let db1: Node = "db1".parse().expect("a certname");
        assert!(!ahead.is_away(&db1));
        assert_eq!(ahead.nodes[&db1].json(&db1, false)["alive"], Value::Null);
        // What another node calls its environment stays in its column.
        let mut hostile = roster();
        for one in hostile.nodes.values_mut() {
            if let Some(told) = &mut one.told {
                told.environment = "a\u{202e}\u{1b}".to_owned();
            }
        }
        let lines = table(&hostile, None).join("\n");
        assert!(lines.contains(r"a\u{202e}\u{1b}  "), "{lines}");
        let narrow = table(&roster(), Some(76));
        assert!(
            narrow.iter().all(|line| line.chars().count() <= 76),
            "{narrow:#?}"
        );
        assert!(narrow[3].starts_with("web2.exampl\u{2026}"), "{narrow:#?}");
    }
}
