//! PURE: outcomes of the targets while a command waits.

use std::collections::{BTreeMap, BTreeSet};

use again_base::layout::{Look, Tone, plural};
use again_base::model::Span;
use again_base::sys::terminal::clean;
use serde_json::{Value, json};

use super::Exit;
use super::reply::{Fired, Reply};
use crate::step::model::News;
use crate::wire::name::Node;
use crate::wire::outcome::{Class, Outcome};

/// Largest number of rows of the table.
const MOST_ROWS: usize = 200;
/// Width of the bar, in characters.
const BAR: usize = 20;

/// States of the targets of a trigger, or of cancellations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressTable {
    targets: BTreeMap<Node, Stand>,
    wish: Wish,
}

/// Purpose of the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// A run of Puppet is wanted.
    Run,
    /// The run is to be cancelled.
    Cancel,
}

/// State of a target, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stand {
    state: State,
    why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The trigger was not sent to the target.
    NotFired,
    /// The target has published nothing yet.
    Silent,
    /// The target has published this outcome.
    Known(Outcome),
    /// The target has published nothing in time.
    NoAnswer,
}

impl State {
    /// Class of the state for a command that waits for a run.
    fn class(self) -> Class {
        match self {
            State::Known(outcome) => outcome.class(),
            State::NotFired => Class::Failed,
            State::Silent => Class::Open,
            State::NoAnswer => Class::Late,
        }
    }

    /// Class of the state for a command that cancels: success is that no run begins.
    fn class_of_cancel(self) -> Class {
        use Outcome::{Cancelled, Expired, Halted, Held, Refused, Superseded};
        match self {
            State::Known(Cancelled | Superseded | Refused | Expired | Halted) => Class::Done,
            State::Silent | State::NoAnswer | State::Known(Held) => Class::Late,
            _ => Class::Failed,
        }
    }

    /// Whether the state is final.
    fn is_over(self) -> bool {
        match self {
            State::NotFired | State::NoAnswer => true,
            State::Silent => false,
            State::Known(outcome) => outcome.is_final(),
        }
    }

    fn word(self) -> String {
        match self {
            State::NotFired => "not fired".to_owned(),
            State::Silent => "no word yet".to_owned(),
            State::NoAnswer => "no answer".to_owned(),
            State::Known(outcome) => outcome.to_string(),
        }
    }
}

impl ProgressTable {
    /// Table for the answer to a trigger.
    pub fn new(reply: &Reply) -> Self {
        let stand = |(node, fired): (&Node, &Fired)| {
            let (state, why) = match fired {
                Fired::Failed(why) => (State::NotFired, why.clone()),
                _ => (State::Silent, String::new()),
            };
            (node.clone(), Stand { state, why })
        };
        ProgressTable {
            targets: reply.targets.iter().map(stand).collect(),
            wish: Wish::Run,
        }
    }

    /// Table for the answer to a cancellation. A node may have had several triggers: the worst of
    /// them counts.
    pub fn of_cancels(reply: &Reply) -> Self {
        ProgressTable {
            wish: Wish::Cancel,
            ..ProgressTable::new(reply)
        }
    }

    fn class(&self, stand: &Stand) -> Class {
        match self.wish {
            Wish::Run => stand.state.class(),
            Wish::Cancel => stand.state.class_of_cancel(),
        }
    }

    /// Records news of a target. Returns a line if the state has changed. News after a final state
    /// is ignored.
    pub fn hear(&mut self, target: &Node, news: News) -> Option<String> {
        let wish = self.wish;
        let stand = self.targets.get_mut(target)?;
        if wish == Wish::Run && stand.state.is_over() {
            return None;
        }
        let new = match news {
            News::Status(outcome, why) => Stand {
                state: State::Known(outcome),
                why,
            },
            News::NoAnswer => Stand {
                state: State::NoAnswer,
                why: "it told nothing in time".to_owned(),
            },
            News::ReplacedBy(id) => Stand {
                why: format!("a newer trigger stands for it ({id})"),
                ..stand.clone()
            },
        };
        let is_better = wish == Wish::Cancel
            && stand.state.class_of_cancel() != Class::Late
            && stand.state.class_of_cancel() < new.state.class_of_cancel();
        if new == *stand || is_better {
            return None;
        }
        *stand = new;
        Some(format!("{target}: {}", stand.words()))
    }

    /// Whether all states are final. For cancellations, only the service knows.
    pub fn is_over(&self) -> bool {
        self.wish == Wish::Run && self.targets.values().all(|stand| stand.state.is_over())
    }

    /// Exit status of the command, from the worst state.
    pub fn exit(&self) -> Exit {
        match self.classes().next() {
            Some(Class::Failed | Class::NoRun) => Exit::Failed,
            Some(Class::Late | Class::Open) => Exit::NotInTime,
            Some(Class::Done) | None => Exit::Done,
        }
    }

    /// Classes of all targets, the worst first.
    fn classes(&self) -> impl Iterator<Item = Class> {
        let mut classes: Vec<Class> = self.targets.values().map(|one| self.class(one)).collect();
        classes.sort();
        classes.into_iter()
    }

    /// Number of targets in each state, in words.
    fn counts(&self) -> String {
        let mut counts = BTreeMap::<(Class, String), usize>::new();
        for stand in self.targets.values() {
            *counts
                .entry((self.class(stand), stand.state.word()))
                .or_default() += 1;
        }
        let words: Vec<String> = counts
            .iter()
            .rev()
            .map(|((_, word), count)| format!("{count} {word}"))
            .collect();
        words.join(", ")
    }

    /// Number of targets in a final state, and of all targets.
    fn share(&self) -> (usize, usize) {
        let over = self.targets.values().filter(|stand| stand.state.is_over());
        (over.count(), self.targets.len())
    }

    /// Progress bar for a terminal.
    pub fn bar(&self, took: Span) -> String {
        let (over, all) = self.share();
        let full = (BAR * over).checked_div(all).unwrap_or(BAR);
        let bar = format!("{}{}", "#".repeat(full), "-".repeat(BAR - full));
        format!("[{bar}] {over} of {all} in {took}: {}", self.counts())
    }

    /// A row for each target, the worst first.
    pub fn table(&self, look: &Look) -> Vec<String> {
        let width = self.targets.keys().map(|node| node.as_str().len()).max();
        let width = width.unwrap_or(0).min(40);
        let mut rows: Vec<(Class, &Node, &Stand)> = self
            .targets
            .iter()
            .map(|(node, stand)| (self.class(stand), node, stand))
            .collect();
        rows.sort_by_key(|(class, node, _)| (*class, *node));
        let row = |(class, node, stand): &(Class, &Node, &Stand)| {
            let word = look.paint(class.tone(), &format!("{:<11}", stand.state.word()));
            format!("  {:<width$}  {word}  {}", node.as_str(), clean(&stand.why))
                .trim_end()
                .to_owned()
        };
        let mut lines: Vec<String> = rows.iter().take(MOST_ROWS).map(row).collect();
        if let Some(more) = rows.len().checked_sub(MOST_ROWS).filter(|more| *more > 0) {
            lines.push(format!("  and {more} more"));
        }
        lines
    }

    /// Summary in one line.
    pub fn verdict(&self, took: Span) -> String {
        let all = self.targets.len();
        let done = self.classes().filter(|class| *class == Class::Done).count();
        let (s, counts) = (plural(all), self.counts());
        format!("{done} of {all} node{s} done in {took}: {counts}")
    }

    /// Tone of the summary: that of the worst class.
    pub fn tone(&self) -> Tone {
        self.classes().next().unwrap_or(Class::Done).tone()
    }

    /// State of a target for JSON: a word and the reason.
    pub fn json(&self, target: &Node) -> (Value, Value) {
        let told = self
            .targets
            .get(target)
            .filter(|one| one.state != State::NotFired);
        told.map_or((Value::Null, Value::Null), |stand| {
            let state = match stand.state {
                State::Silent => Value::Null,
                state => json!(state.word()),
            };
            (state, json!(stand.why))
        })
    }

    /// Targets without a final state.
    pub fn open(&self) -> BTreeSet<Node> {
        let open = self
            .targets
            .iter()
            .filter(|(_, stand)| [Class::Late, Class::Open].contains(&self.class(stand)));
        open.map(|(node, _)| node.clone()).collect()
    }
}

impl Stand {
    fn words(&self) -> String {
        let word = self.state.word();
        if self.why.is_empty() {
            word
        } else {
            format!("{word}: {}", clean(&self.why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Answer;
    use crate::verbs::reply::tests::{node, reply};
    use crate::wire::name::Id;

    const PLAIN: Look = Look {
        width: None,
        colour: false,
    };

    fn progress(names: &[&str]) -> ProgressTable {
        let answers = names.iter().map(|name| Answer::Delivered(node(name)));
        ProgressTable::new(&reply(answers.collect()))
    }

    fn told(progress: &mut ProgressTable, name: &str, outcome: Outcome) -> Option<String> {
        progress.hear(&node(name), News::Status(outcome, String::new()))
    }

    #[test]
    fn each_target_is_told_of_until_it_is_over() {
        let mut progress = progress(&["a", "b"]);
        assert_eq!(
            told(&mut progress, "a", Outcome::Taken).as_deref(),
            Some("a: taken")
        );
        assert_eq!(told(&mut progress, "a", Outcome::Taken), None);
        let why = News::Status(Outcome::Failed, "exit status 4\u{202e}".to_owned());
        assert_eq!(
            progress.hear(&node("a"), why).as_deref(),
            Some("a: failed: exit status 4\\u{202e}")
        );
        // Nothing comes after the end, and nobody else was asked for.
        assert_eq!(told(&mut progress, "a", Outcome::Changed), None);
        assert_eq!(told(&mut progress, "c", Outcome::Changed), None);
        assert!(!progress.is_over());
        assert_eq!(progress.open(), BTreeSet::from([node("b")]));
        told(&mut progress, "b", Outcome::Changed);
        assert!(progress.is_over());
    }

    #[test]
    fn a_newer_trigger_goes_on_for_an_older_one() {
        let mut progress = progress(&["a"]);
        let line = progress.hear(&node("a"), News::ReplacedBy(Id::from_bits(1)));
        assert!(line.is_some_and(|line| line.starts_with("a: no word yet: a newer trigger")));
        assert!(!progress.is_over());
        told(&mut progress, "a", Outcome::Unchanged);
        assert_eq!(progress.exit(), Exit::Done);
    }

    /// Each outcome ends the command in one way; a new outcome has to be thought of.
    #[test]
    fn every_outcome_has_its_exit_status() {
        for outcome in Outcome::ALL {
            let mut progress = progress(&["a"]);
            told(&mut progress, "a", *outcome);
            let expected = match outcome {
                Outcome::Changed | Outcome::Unchanged | Outcome::Satisfied | Outcome::Called => {
                    Exit::Done
                }
                Outcome::Failed | Outcome::Unknown | Outcome::Refused => Exit::Failed,
                Outcome::Cancelled | Outcome::Superseded | Outcome::Halted => Exit::Failed,
                _ => Exit::NotInTime,
            };
            assert_eq!(progress.exit(), expected, "{outcome}");
            // What may still come right is not over.
            let may_come = [
                Outcome::Taken,
                Outcome::Held,
                Outcome::Started,
                Outcome::TooLate,
            ];
            assert_eq!(progress.is_over(), !may_come.contains(outcome), "{outcome}");
        }
        let mut progress = progress(&["a", "b", "c"]);
        assert_eq!(progress.exit(), Exit::NotInTime);
        told(&mut progress, "a", Outcome::Changed);
        progress.hear(&node("b"), News::NoAnswer);
        told(&mut progress, "c", Outcome::Changed);
        assert_eq!(
            (progress.is_over(), progress.exit()),
            (true, Exit::NotInTime)
        );
        // A failure is worse than silence.
        let failed = Answer::Failed(node("b"), "no".to_owned());
        let progress = ProgressTable::new(&reply(vec![Answer::Kept(node("a")), failed]));
        assert_eq!(progress.exit(), Exit::Failed);
        assert_eq!(ProgressTable::new(&Reply::default()).exit(), Exit::Done);
    }

    #[test]
    fn taken_back_is_what_never_runs() {
        for (outcome, exit) in [
            (Outcome::Cancelled, Exit::Done),
            (Outcome::Expired, Exit::Done),
            (Outcome::TooLate, Exit::Failed),
            (Outcome::Taken, Exit::Failed),
            (Outcome::Started, Exit::Failed),
            (Outcome::Held, Exit::NotInTime),
        ] {
            let mut progress =
                ProgressTable::of_cancels(&reply(vec![Answer::Delivered(node("a"))]));
            assert_eq!(progress.exit(), Exit::NotInTime);
            told(&mut progress, "a", outcome);
            assert_eq!(
                (progress.exit(), progress.is_over()),
                (exit, false),
                "{outcome}"
            );
        }
        // Of two for a node one came too late, whichever was told first.
        for outcomes in [
            [Outcome::Cancelled, Outcome::TooLate],
            [Outcome::TooLate, Outcome::Cancelled],
        ] {
            let mut progress =
                ProgressTable::of_cancels(&reply(vec![Answer::Delivered(node("a"))]));
            for outcome in outcomes {
                told(&mut progress, "a", outcome);
            }
            assert_eq!(progress.exit(), Exit::Failed);
        }
    }

    #[test]
    fn the_table_begins_with_what_has_to_be_looked_at() {
        let failed = Answer::Failed(node("z"), "over 10\u{202e} hops".to_owned());
        let answers = ["a", "b", "lb10"].map(|name| Answer::Delivered(node(name)));
        let mut progress =
            ProgressTable::new(&reply(answers.into_iter().chain([failed]).collect()));
        told(&mut progress, "a", Outcome::Changed);
        told(&mut progress, "b", Outcome::Started);
        assert_eq!(
            progress.table(&PLAIN),
            [
                "  z     not fired    over 10\\u{202e} hops",
                "  b     started",
                "  lb10  no word yet",
                "  a     changed",
            ]
        );
        assert_eq!(
            progress.verdict(Span::from_secs(12)),
            "1 of 4 nodes done in 12s: 1 changed, 1 started, 1 no word yet, 1 not fired"
        );
        assert_eq!(
            progress.bar(Span::from_secs(3)),
            "[##########----------] 2 of 4 in 3s: 1 changed, 1 started, 1 no word yet, 1 not fired"
        );
        assert_eq!(progress.tone(), Tone::Bad);
    }

    #[test]
    fn table_has_the_colour_of_the_class_of_each_outcome() {
        let colour = Look {
            width: None,
            colour: true,
        };
        for outcome in Outcome::ALL {
            let mut progress = progress(&["a"]);
            told(&mut progress, "a", *outcome);
            let word = format!("{:<11}", outcome.to_string());
            let painted = colour.paint(outcome.class().tone(), &word);
            assert!(
                progress.table(&colour)[0].contains(painted.trim_end()),
                "{outcome}"
            );
            assert_eq!(progress.tone(), outcome.class().tone(), "{outcome}");
        }
    }

    #[test]
    fn a_long_table_is_cut() {
        let names: Vec<String> = (0..203).map(|n| format!("n{n}")).collect();
        let progress = progress(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let rows = progress.table(&PLAIN);
        assert_eq!((rows.len(), rows[200].as_str()), (201, "  and 3 more"));
    }

    #[test]
    fn json_has_the_outcome_that_was_told() {
        let mut progress = progress(&["a", "b"]);
        told(&mut progress, "a", Outcome::TooLate);
        assert_eq!(progress.json(&node("a")), (json!("too late"), json!("")));
        assert_eq!(progress.json(&node("b")), (Value::Null, json!("")));
    }
}
