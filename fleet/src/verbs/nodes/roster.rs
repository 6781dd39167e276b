//! PURE: who is there, and what each node tells of itself.

use std::collections::{BTreeMap, BTreeSet};

use again::layout::{Look, Tone};
use again::model::Walltime;
use again::sys::localtime::utc;
use again::sys::terminal::clean;
use serde_json::{Value, json};

use super::super::clock;
use crate::ask::Answer;
use crate::policy::select::{Condition, Selection};
use crate::policy::slots::Standing;
use crate::wire::inventory::Inventory;
use crate::wire::name::Node;
use crate::wire::outcome::Outcome;

/// All nodes that the engine knows of.
#[derive(Debug, Default)]
pub struct Roster(pub(super) BTreeMap<Node, Box<Entry>>);

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub told: Option<Inventory>,
    pub is_alive: bool,
    /// What stands at its key counts for nothing: it has not signed that, or published something newer before.
    pub is_liar: bool,
    /// Where it runs or waits for a slot.
    pub slots: Vec<Standing>,
}

impl Roster {
    /// Takes up what the service says of one of them; whether that is what was asked.
    pub(super) fn hear(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Node(told) => {
                let entry = self.0.entry(told.node.clone()).or_default();
                entry.told = Some(*told);
            }
            Answer::Ignored(node) => self.0.entry(node).or_default().is_liar = true,
            Answer::Alive(node) => self.0.entry(node).or_default().is_alive = true,
            _ => return false,
        }
        true
    }

    /// Those who are meant.
    pub fn selected(&self, selection: &Selection) -> impl Iterator<Item = &Node> {
        self.meant(selection).into_iter().map(|(node, _)| node)
    }

    /// Those who are meant, of all who are there or have told something.
    pub(super) fn meant(&self, selection: &Selection) -> Vec<(&Node, &Entry)> {
        let mut meant = Vec::new();
        for (node, one) in &self.0 {
            let told = one.told.as_ref();
            if (one.is_alive || told.is_some()) && selection.has(told) {
                meant.push((node, &**one));
            }
        }
        meant
    }

    /// Names of the facts that a selection's conditions need and no node publishes.
    pub(super) fn unpublished<'a>(&self, selection: &'a Selection) -> BTreeSet<&'a str> {
        let is_published = |fact: &&str| {
            let mut told = self.0.values().filter_map(|one| one.told.as_ref());
            told.any(|told| told.facts.contains_key(*fact))
        };
        let facts = selection.facts.iter().filter_map(Condition::needed_fact);
        facts.filter(|fact| !is_published(fact)).collect()
    }

    /// Nodes whose facts count for nothing, though something stands at their keys.
    pub(super) fn ignored(&self) -> Vec<Node> {
        let is_ignored = |one: &Entry| one.is_liar && one.told.is_none();
        let ignored = self.0.iter().filter(|(_, one)| is_ignored(one));
        ignored.map(|(node, _)| node.clone()).collect()
    }

    /// Whether a node's service is connected.
    pub fn is_alive(&self, node: &Node) -> bool {
        self.0.get(node).is_some_and(|one| one.is_alive)
    }
}

/// What a row has in its columns, and how that looks.
pub(super) type Row = [(Tone, String); 5];

const HEADINGS: [&str; 5] = ["NODE", "THERE", "ENVIRONMENT", "LAST RUN", "NOW"];
/// What is left of a column that has to shrink.
const NARROWEST: usize = 12;

/// How wide the columns have been. They do not shrink, so that nothing moves that has not changed.
#[derive(Debug, Default)]
pub(super) struct Columns([usize; 5]);

impl Columns {
    /// These rows below a heading; as wide as the terminal at most, if that can be.
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
    pub(super) fn row(&self, node: &Node, now: Walltime) -> Row {
        let at = |millis| clock(Walltime::from_millis(millis), now);
        let node = (Tone::Plain, node.to_string());
        let told = self.told.as_ref();
        let there = match (self.is_alive, told) {
            (true, _) => (Tone::Good, "alive".to_owned()),
            (false, Some(told)) => (Tone::Attention, format!("gone, told {}", at(told.at))),
            (false, None) => (Tone::Attention, "gone".to_owned()),
        };
        let Some(told) = told else {
            let nothing = match self.is_liar {
                true => (Tone::Attention, "not believed".to_owned()),
                false => (Tone::Plain, "told nothing".to_owned()),
            };
            let none = || (Tone::Plain, String::new());
            return [node, there, none(), nothing, none()];
        };
        let last = told.last.map_or((Tone::Plain, String::new()), |last| {
            let tone = match last {
                Outcome::Failed => Tone::Bad,
                Outcome::Unknown => Tone::Attention,
                _ => Tone::Good,
            };
            let when = told
                .ended
                .map_or_else(String::new, |ended| format!(" {}", at(ended)));
            (tone, format!("{last}{when}"))
        });
        let environment = (Tone::Plain, clean(&told.environment));
        [node, there, environment, last, self.state(told, now)]
    }

    /// What goes on there, in words.
    fn state(&self, told: &Inventory, now: Walltime) -> (Tone, String) {
        let mut words = Vec::new();
        let mut tone = Tone::Plain;
        if told.disabled {
            (tone, words) = (Tone::Attention, vec!["disabled".to_owned()]);
        }
        if let Some(since) = told.running.filter(|_| self.is_alive) {
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

    pub(super) fn json(&self, node: &Node) -> Value {
        let told = self.told.as_ref();
        let time = |millis| utc(Walltime::from_millis(millis));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        json!({
            "node": node,
            "alive": self.is_alive,
            "at": told.map(|told| time(told.at)),
            "facts": told.map(|told| &told.facts).cloned().unwrap_or_default(),
            "classes": told.map(|told| &told.classes).cloned().unwrap_or_default(),
            "environment": told.and_then(|told| some(&told.environment)),
            "again_fleet": told.and_then(|told| some(&told.version)),
            "puppet": told.and_then(|told| some(&told.puppet)),
            "last": told.and_then(|told| told.last),
            "ended": told.and_then(|told| told.ended).map(time),
            "running": self.is_alive && told.is_some_and(|told| told.running.is_some()),
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

    fn roster() -> Roster {
        let of = |name: &str, change: fn(&mut Inventory)| {
            let mut one = told(&[("role", "x")]);
            one.node = name.parse().expect("a certname");
            change(&mut one);
            Answer::Node(Box::new(one))
        };
        let mut roster = Roster::default();
        for answer in [
            of("web2.example.com", |one| {
                (one.last, one.ended) = (Some(Outcome::Failed), Some(1));
                (one.disabled, one.pending, one.cap) = (true, 2, Some((5, 3)));
            }),
            of("web1.example.com", |one| one.running = Some(1)),
            Answer::Alive("web1.example.com".parse().expect("a certname")),
            Answer::Alive("db1".parse().expect("a certname")),
        ] {
            assert!(roster.hear(answer));
        }
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
    fn a_table_has_all_and_fits() {
        let look = |width| Look {
            width,
            colour: false,
        };
        let now = Walltime::from_millis(2);
        let at = clock(now, now);
        let table = |roster: &Roster, width| {
            let meant = roster.meant(&Selection::default()).into_iter();
            let rows = meant.map(|(node, one)| one.row(node, now)).collect();
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
        // What another node calls its environment stays in its column.
        let mut hostile = roster();
        for one in hostile.0.values_mut() {
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
