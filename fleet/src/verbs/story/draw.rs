//! PURE: a story as lines, as JSON, and as a Graphviz graph.
//!
//! Names and reasons are from other nodes; they are cleaned or quoted in each format.

use std::collections::BTreeMap;

use again_base::layout::{Look, Tone, plural};
use again_base::model::{Span, Walltime};
use again_base::sys::localtime::{local, utc};
use again_base::sys::terminal::clean;
use serde_json::{Value, json};

use crate::policy::story::{State, Step, Story, nodes};
use crate::wire::lineage::Cause;
use crate::wire::name::{Id, Node};
use crate::wire::outcome::Ran;

/// A tree of text, with a heading and a summary.
pub fn lines(story: &Story, look: &Look, now: Walltime) -> Vec<String> {
    let at = Walltime::from_millis(story.at);
    let mut lines = vec![look.entry(
        &format!("story {} ", story.id),
        Tone::Heading,
        &clean(&format!(
            "begun by {} on {}, {}, {} ago",
            by(story.cause),
            story.node,
            local(at),
            now.since(at),
        )),
    )];
    let bars = bars(story);
    for (step, bar) in story.steps.iter().zip(bars) {
        let label = format!(
            "{bar}{}  {}  ",
            clean(step.target.as_str()),
            step.state.word()
        );
        lines.push(look.entry(&label, tone(step.state), &details(step)));
    }
    let (steps, nodes) = (story.steps.len(), nodes(story));
    lines.push(format!(
        "{steps} trigger{} for {nodes} node{}: {}",
        plural(steps),
        plural(nodes),
        counts(story)
    ));
    lines
}

/// `3 changed, 1 failed`.
pub(super) fn counts(story: &Story) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for step in &story.steps {
        *counts.entry(step.state.word()).or_default() += 1;
    }
    let counts = counts.iter().map(|(word, count)| format!("{count} {word}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// Prefix of each step: branches of a tree in plain ASCII.
fn bars(story: &Story) -> Vec<String> {
    let mut bars = vec![String::new(); story.steps.len()];
    // For each depth, whether another step follows below the same parent.
    let mut more: Vec<bool> = Vec::new();
    for (n, step) in story.steps.iter().enumerate().rev() {
        more.truncate(step.depth + 1);
        more.resize(step.depth + 1, false);
        let above = more[..step.depth].iter();
        let above: String = above
            .map(|more| if *more { "|  " } else { "   " })
            .collect();
        let own = if more[step.depth] { "|- " } else { "`- " };
        bars[n] = above + own;
        more[step.depth] = true;
    }
    bars
}

pub(super) fn by(cause: Cause) -> &'static str {
    match cause {
        Cause::Refresh => "a run of Puppet",
        Cause::Kick => "a report",
        Cause::Person => "a person",
        Cause::Event => "an event",
        Cause::Lock => "a lock",
    }
}

pub(super) fn tone(state: State) -> Tone {
    match state {
        State::Known(outcome, _) => outcome.class().tone(),
        _ => Tone::Attention,
    }
}

/// Details of a step without its node and its state, on one line.
pub(super) fn details(step: &Step) -> String {
    let time = |at: u64| local(Walltime::from_millis(at));
    let mut parts = vec![format!("'{}' fired {}", step.name, time(step.fired))];
    let is_plain = step.untold.is_empty() && step.path.last() == Some(&step.sender);
    if !is_plain {
        parts[0].push_str(&format!(" by {}", step.sender));
    }
    if !step.untold.is_empty() {
        let untold: Vec<&str> = step.untold.iter().map(Node::as_str).collect();
        parts.push(format!(
            "after {}, of which nothing is told",
            untold.join(" and ")
        ));
    }
    match (&step.ran, step.state) {
        (Some(ran), _) => parts.extend(run(ran)),
        (None, State::Known(_, at)) => parts.push(format!("told {}", time(at))),
        (None, State::OnTheWay(until)) => parts.push(format!("sent until {}", time(until))),
    }
    if !step.why.is_empty() {
        parts.push(step.why.clone());
    }
    match step.clock {
        Some(off) if off < 0 => parts.push(format!(
            "clocks disagree: its own is behind that of {} by {} or more",
            step.sender,
            span(off)
        )),
        Some(off) => parts.push(format!(
            "clocks disagree: its own is ahead of this node's by {} or more",
            span(off)
        )),
        None => {}
    }
    parts.extend(
        step.ran
            .iter()
            .map(|ran| format!("output: {}", command(ran))),
    );
    clean(&parts.join("; "))
}

fn span(milliseconds: i64) -> Span {
    Span::from_nanos(milliseconds.unsigned_abs().saturating_mul(1_000_000))
}

/// Command that shows the output of a run, on its node.
fn command(ran: &Ran) -> String {
    format!("again log {}", ran.log)
}

/// Times of a run, and the reruns that it caused on its node.
fn run(ran: &Ran) -> Vec<String> {
    let mut parts = Vec::new();
    let times = (
        ran.began.map(Walltime::from_millis),
        ran.ended.map(Walltime::from_millis),
    );
    match times {
        (Some(began), Some(ended)) => {
            parts.push(format!(
                "began {}, took {}",
                local(began),
                ended.since(began)
            ));
        }
        (Some(began), None) => parts.push(format!("began {}", local(began))),
        (None, Some(ended)) => parts.push(format!("ended {}", local(ended))),
        (None, None) => {}
    }
    let s = plural(usize::try_from(ran.reruns).unwrap_or(usize::MAX));
    match (ran.reruns, ran.more, ran.last) {
        (0, true, _) => parts.push("a rerun waits there".to_owned()),
        (0, false, _) => {}
        (many, true, _) => parts.push(format!("{many} rerun{s} there, not over yet")),
        (many, false, Some(last)) => parts.push(format!("{many} rerun{s} there, the last {last}")),
        (many, false, None) => parts.push(format!("{many} rerun{s} there")),
    }
    parts
}

/// Description of each step, by node and trigger id. It changes whenever the step changes.
pub fn states(story: &Story) -> BTreeMap<(Node, Id), String> {
    let state = |step: &Step| {
        let (node, word) = (clean(step.target.as_str()), step.state.word());
        let words = format!("{node}: {word}: {}", details(step));
        ((step.target.clone(), step.id.clone()), words)
    };
    story.steps.iter().map(state).collect()
}

/// A story as one JSON object; the man page describes it.
pub fn json(story: &Story, is_complete: bool) -> Value {
    let time = |at: u64| utc(Walltime::from_millis(at));
    let run = |ran: &Ran| {
        json!({
            "log_command": command(ran), "began_at": ran.began.map(time), "ended_at": ran.ended.map(time),
            "reruns": ran.reruns, "last_rerun": ran.last, "more": ran.more,
        })
    };
    let entry = |(n, step): (usize, &Step)| {
        let (outcome, told, until) = match step.state {
            State::Known(outcome, at) => (Some(outcome), Some(time(at)), None),
            State::OnTheWay(until) => (None, None, Some(time(until))),
        };
        json!({
            "entry": n, "parent": step.parent, "node": step.target, "trigger": step.id, "name": step.name,
            "sender": step.sender, "path": step.path, "untold": step.untold, "outcome": outcome, "why": step.why,
            "fired_at": time(step.fired), "told_at": told, "sent_until": until, "run": step.ran.as_ref().map(run),
            "clock_off_ms": step.clock, "over": step.is_over(),
        })
    };
    let entries: Vec<Value> = story.steps.iter().enumerate().map(entry).collect();
    json!({
        "schema": 1, "version": env!("CARGO_PKG_VERSION"), "id": story.id, "cause": story.cause, "node": story.node,
        "fired_at": time(story.at), "over": is_complete && story.is_over(), "complete": is_complete,
        "entries": entries,
    })
}

/// A story as a Graphviz graph.
pub fn dot(story: &Story) -> String {
    let at = local(Walltime::from_millis(story.at));
    let origin = format!(
        "{}\nbegun by {}\n{at}",
        clean(story.node.as_str()),
        by(story.cause)
    );
    let mut out = format!(
        "digraph story {{\n  node [shape=box];\n  origin [shape=ellipse, label={}];\n",
        quoted(&origin)
    );
    for (n, step) in story.steps.iter().enumerate() {
        let colour = match tone(step.state) {
            Tone::Good => "darkgreen",
            Tone::Bad => "red",
            Tone::Attention => "orange",
            Tone::Plain | Tone::Heading => "black",
        };
        let (node, word) = (clean(step.target.as_str()), step.state.word());
        let label = format!("{node}\n{word}\n{}", details(step).replace("; ", "\n"));
        let from = step
            .parent
            .map_or("origin".to_owned(), |parent| format!("n{parent}"));
        let style = if step.untold.is_empty() {
            "solid"
        } else {
            "dashed"
        };
        out.push_str(&format!(
            "  n{n} [color={colour}, label={}];\n  {from} -> n{n} [style={style}];\n",
            quoted(&label)
        ));
    }
    out + "}\n"
}

/// A Graphviz string for a label, in which `\` and `&` are special too.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::story::tests::{entries, entry};
    use crate::wire::outcome::{Entry, Outcome};
    use proptest::prelude::*;

    const PLAIN: Look = Look {
        width: None,
        colour: false,
    };

    fn story(entries: Vec<Entry>) -> Story {
        Story::of(entries, vec![], None, [1 << 41; 2]).expect("a story")
    }

    fn at(millis: u64) -> String {
        local(Walltime::from_millis(millis))
    }

    #[test]
    fn a_tree_says_what_became_of_each() {
        let mut first = entry(1, "a b", 1_000_000, 1_009_000, Some(1_004_000));
        if let Some(ran) = &mut first.told.ran {
            (ran.reruns, ran.last) = (2, Some(Outcome::Unchanged));
        }
        let mut refused = entry(2, "a b c", 1_005_000, 1_006_000, None);
        refused.told.outcome = Outcome::Refused;
        refused.told.why = "nobody may".to_owned();
        let late = entry(3, "a b d", 1_006_000, 1_003_000, None);
        let gap = entry(4, "a x y", 1_001_000, 1_002_000, None);
        let story = story(vec![gap, late, refused, first]);
        let now = Walltime::from_millis(1_060_000);
        let head = format!("begun by a person on a, {}, 1m ago", at(1_000_000));
        let expected = [
            format!("story {} {head}", story.id),
            format!(
                "|- b  changed  'again' fired {}; began {}, took 5s; 2 reruns there, the last unchanged; output: again log c-1",
                at(1_000_000),
                at(1_004_000)
            ),
            format!(
                "|  |- c  refused  'again' fired {}; told {}; nobody may",
                at(1_005_000),
                at(1_006_000)
            ),
            format!(
                "|  `- d  changed  'again' fired {}; told {}; clocks disagree: its own is behind that of b by 3s or more",
                at(1_006_000),
                at(1_003_000)
            ),
            format!(
                "`- y  changed  'again' fired {} by x; after x, of which nothing is told; told {}",
                at(1_001_000),
                at(1_002_000)
            ),
            "4 triggers for 4 nodes: 3 changed, 1 refused".to_owned(),
        ];
        assert_eq!(lines(&story, &PLAIN, now), expected);
    }

    #[test]
    fn what_would_break_a_line_is_shown_by_its_number() {
        assert_eq!(quoted("a\\\"b\n&lt;"), r#""a\\\"b\n&amp;lt;""#);
    }

    /// What Graphviz takes for a string and for what is between strings.
    fn outside_strings(dot: &str) -> Option<String> {
        let (mut outside, mut is_inside) = (String::new(), false);
        let mut rest = dot.chars();
        while let Some(c) = rest.next() {
            match c {
                '"' => is_inside = !is_inside,
                '\\' if is_inside => drop(rest.next()?),
                '\n' if is_inside => return None,
                c if !is_inside => outside.push(c),
                _ => {}
            }
        }
        (!is_inside).then_some(outside)
    }

    proptest! {
        /// Nothing that comes over the network can leave its place, in lines or in a picture.
        #[test]
        fn hostile_names_stay_in_their_place(all in entries(), name in "[\\PC]{1,20}|[\"\\\\\\n<>&;{}\\[\\]-]{1,20}", why in "\\PC{0,30}|.{0,30}") {
            let name = name.replace(char::is_control, " ");
            let mut hostile = all.clone();
            for one in &mut hostile {
                one.told.name = name.chars().take(30).collect::<String>().parse().expect("a name");
                one.told.why = crate::wire::outcome::words(&why);
            }
            let (plain, hostile) = (story(all), story(hostile));
            let now = Walltime::from_millis(1 << 41);
            let drawn = lines(&hostile, &PLAIN, now);
            prop_assert_eq!(drawn.len(), hostile.steps.len() + 2);
            prop_assert!(drawn.iter().all(|line| !line.chars().any(char::is_control)));
            let outside = outside_strings(&dot(&hostile));
            prop_assert!(outside.is_some());
            prop_assert_eq!(outside, outside_strings(&dot(&plain)));
        }
    }
}
