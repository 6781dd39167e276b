//! PURE: an event as a line for people, as JSON, and as metrics for Graphite.
//!
//! Names and texts are from other nodes; control characters in them cannot break a line.

use again_base::layout::{Look, Tone, plural};
use again_base::model::Walltime;
use again_base::sys::localtime::{local, utc};
use again_base::sys::terminal::clean;
use serde_json::{Value, json};

use crate::cli;
use crate::wire::event::{Batch, Change, Ended, Event, Status};

/// Version of the JSON format.
const SCHEMA: u32 = 1;

/// A line and the time of its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLine {
    /// Milliseconds of the node's wall clock after 1970.
    pub at: u64,
    /// Text of the line.
    pub line: String,
}

/// Filters and format of the events to show.
pub struct Form {
    look: Look,
    kind: Option<String>,
    failed: bool,
    json: bool,
    graphite: Option<String>,
}

impl Form {
    /// Whether the output is for Graphite.
    pub fn is_for_graphite(&self) -> bool {
        self.graphite.is_some()
    }

    /// Filters and format from the command line.
    pub fn new(args: &cli::Events, look: Look) -> Form {
        Form {
            look,
            kind: args.kind.as_ref().map(|kind| kind.to_lowercase()),
            failed: args.failed,
            json: args.json,
            graphite: args.graphite.clone(),
        }
    }

    /// The lines of a batch of a run whose last known event number is `known`.
    pub fn told(&self, batch: &Batch, known: Option<u64>) -> Vec<EventLine> {
        let told = |at, line| EventLine { at, line };
        let mut lines = Vec::new();
        let mut last = known.unwrap_or(0);
        if known.is_none() && batch.begun.lost > 0 {
            lines.extend(self.lost(batch).map(|line| told(batch.begun.at, line)));
        }
        for event in batch.events.iter().filter(|event| Some(event.n) > known) {
            let gap = event.n.saturating_sub(last + 1);
            lines.extend(self.gap(batch, gap).map(|line| told(event.at, line)));
            last = event.n;
            if self.wants(event) {
                lines.extend(self.event(batch, event).map(|line| told(event.at, line)));
            }
        }
        if let Some(ended) = batch.ended.as_ref().filter(|ended| Some(ended.n) > known) {
            let gap = ended.n.saturating_sub(last + 1);
            lines.extend(self.gap(batch, gap).map(|line| told(ended.at, line)));
            let ends = self.ended(batch, ended);
            lines.extend(ends.into_iter().map(|line| told(ended.at, line)));
        }
        lines
    }

    fn wants(&self, event: &Event) -> bool {
        let is_kind = |kind: &String| {
            let of = event.resource.split('[').next().unwrap_or_default();
            of.to_lowercase() == *kind
        };
        self.kind.as_ref().is_none_or(is_kind) && (!self.failed || event.change == Change::Failed)
    }

    fn line(&self, at: u64, batch: &Batch, tone: Tone, text: &str) -> String {
        let at = local(Walltime::from_millis(at));
        let label = format!("{at}  {}  ", clean(batch.node.as_str()));
        self.look.entry(&label, tone, &clean(text))
    }

    fn lost(&self, batch: &Batch) -> Option<String> {
        let lost = batch.begun.lost;
        if self.json {
            return Some(self.object(batch, "lost", json!({ "runs": lost })));
        }
        let s = plural(usize::try_from(lost).unwrap_or(usize::MAX));
        let text = format!("what {lost} earlier run{s} did is lost: the spool was full");
        let is_for_people = self.graphite.is_none();
        is_for_people.then(|| self.line(batch.begun.at, batch, Tone::Attention, &text))
    }

    fn gap(&self, batch: &Batch, gap: u64) -> Option<String> {
        if gap == 0 {
            return None;
        }
        if self.json {
            return Some(self.object(batch, "missing", json!({ "events": gap })));
        }
        let s = plural(usize::try_from(gap).unwrap_or(usize::MAX));
        let text = format!("{gap} event{s} of this run are not there, or not any more");
        let is_for_people = self.graphite.is_none();
        is_for_people.then(|| self.line(batch.begun.at, batch, Tone::Attention, &text))
    }

    fn event(&self, batch: &Batch, event: &Event) -> Option<String> {
        if self.graphite.is_some() {
            return None;
        }
        if self.json {
            let mut told = serde_json::to_value(event).unwrap_or_default();
            told["at"] = utc(Walltime::from_millis(event.at)).into();
            return Some(self.object(batch, "event", told));
        }
        let mut text = format!("{} {}", event.resource, event.change);
        if let Some(property) = event
            .property
            .as_ref()
            .filter(|_| event.change == Change::Changed)
        {
            text = format!("{text} ({property})");
        }
        if event.corrective {
            text.push_str(", corrective");
        }
        if let Some(message) = &event.message {
            text = format!("{text}: {message}");
        }
        let tone = match event.change {
            Change::Failed => Tone::Bad,
            _ => Tone::Plain,
        };
        Some(self.line(event.at, batch, tone, &text))
    }

    fn ended(&self, batch: &Batch, ended: &Ended) -> Vec<String> {
        if let Some(prefix) = &self.graphite {
            return graphite(prefix, batch, ended);
        }
        if self.json {
            let mut told = serde_json::to_value(ended).unwrap_or_default();
            told["at"] = utc(Walltime::from_millis(ended.at)).into();
            return vec![self.object(batch, "end", told)];
        }
        let of = |name: &str| ended.metrics.get(name).and_then(serde_json::Number::as_f64);
        let mut text = format!("the run has ended: {}", ended.status);
        if let Some(seconds) = of("time.total") {
            text.push_str(&format!(", {seconds:.1} s"));
        }
        for word in ["changed", "failed"] {
            if let Some(count) = of(&format!("resources.{word}")).filter(|count| *count > 0.0) {
                text.push_str(&format!(", {count} {word}"));
            }
        }
        if ended.dropped > 0 {
            text.push_str(&format!(", {} events found no room", ended.dropped));
        }
        let tone = match ended.status {
            Status::Failed => Tone::Bad,
            Status::Changed | Status::Unchanged => Tone::Good,
        };
        vec![self.line(ended.at, batch, tone, &text)]
    }

    /// A JSON object with the batch's node and run.
    fn object(&self, batch: &Batch, what: &str, mut told: Value) -> String {
        told["schema"] = SCHEMA.into();
        told["what"] = what.into();
        told["node"] = batch.node.as_str().into();
        told["run"] = batch.run.as_str().into();
        told["environment"] = batch.begun.environment.clone().into();
        let origins = batch.begun.origins.0.iter();
        let origins: Vec<&str> = origins.map(|origin| origin.id.as_str()).collect();
        told["origins"] = origins.into();
        told.to_string()
    }
}

/// Metrics of a run: `PREFIX.NODE.GROUP.NAME VALUE SECONDS`. A dot in the node's name becomes `_`,
/// because it would start another level.
fn graphite(prefix: &str, batch: &Batch, ended: &Ended) -> Vec<String> {
    let plain = |text: &str, dots: bool| -> String {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_".contains(*c);
        text.chars()
            .map(|c| {
                if is_plain(&c) || (dots && c == '.') {
                    c
                } else {
                    '_'
                }
            })
            .collect()
    };
    let (prefix, node) = (plain(prefix, true), plain(batch.node.as_str(), false));
    let seconds = ended.at / 1000;
    let all = ended
        .metrics
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_string()));
    let all = all.chain([("again.dropped", ended.dropped.to_string())]);
    all.map(|(name, value)| format!("{prefix}.{node}.{} {value} {seconds}", plain(name, true)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::event::tests::{batch, ended, event};

    fn form() -> Form {
        Form {
            look: Look::of_this_process(),
            kind: None,
            failed: false,
            json: false,
            graphite: None,
        }
    }

    fn texts(form: &Form, batch: &Batch, known: Option<u64>) -> Vec<String> {
        let lines = form.told(batch, known).into_iter();
        lines.map(|told| told.line).collect()
    }

    #[test]
    fn a_run_is_told_line_by_line() {
        let lines = texts(&form(), &batch(), None);
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].contains("web1.test  Service[httpd] started"),
            "{lines:?}"
        );
        assert!(
            lines[2].ends_with("the run has ended: changed, 1.2 s"),
            "{lines:?}"
        );
        // The rest of it, and nothing.
        assert_eq!(texts(&form(), &batch(), Some(1)).len(), 2);
        assert_eq!(texts(&form(), &batch(), Some(3)), [""; 0]);
    }

    #[test]
    fn what_is_missing_is_said() {
        let told = Batch {
            events: vec![event(3), event(6)],
            ended: Some(Ended {
                dropped: 2,
                ..ended(9)
            }),
            begun: crate::wire::event::Begun {
                lost: 2,
                ..batch().begun
            },
            ..batch()
        };
        let lines = texts(&form(), &told, None).join("\n");
        for part in [
            "what 2 earlier runs did is lost",
            "2 events of this run are not there",
            "2 events found no room",
        ] {
            assert!(lines.contains(part), "no {part:?} in {lines}");
        }
        let lines = texts(
            &Form {
                json: true,
                ..form()
            },
            &told,
            None,
        )
        .join("\n");
        assert!(
            lines.contains(r#""runs":2"#) && lines.contains(r#""events":2"#),
            "{lines}"
        );
    }

    #[test]
    fn only_what_is_wanted_is_shown() {
        let failed = Event {
            change: Change::Failed,
            resource: "Exec[x]".to_owned(),
            ..event(2)
        };
        let told = Batch {
            events: vec![event(1), failed],
            ended: None,
            ..batch()
        };
        let services = Form {
            kind: Some("service".to_owned()),
            ..form()
        };
        assert!(
            texts(&services, &told, None)
                .concat()
                .contains("Service[httpd]")
        );
        assert_eq!(texts(&services, &told, None).len(), 1);
        let failures = Form {
            failed: true,
            ..form()
        };
        assert!(
            texts(&failures, &told, None)
                .concat()
                .contains("Exec[x] failed")
        );
        assert_eq!(texts(&failures, &told, None).len(), 1);
    }

    #[test]
    fn graphite_has_a_line_for_each_metric() {
        let form = Form {
            graphite: Some("puppet".to_owned()),
            ..form()
        };
        assert_eq!(
            texts(&form, &batch(), None),
            [
                "puppet.web1_test.resources.total 7 2",
                "puppet.web1_test.time.total 1.25 2",
                "puppet.web1_test.again.dropped 0 2"
            ]
        );
    }

    proptest! {
        /// Whatever others write, a line is a line.
        #[test]
        fn all_stays_in_its_line(text in "\\PC{0,40}", name in "\\PC{1,20}", json: bool, lines: bool) {
            let event = Event { resource: text.clone(), message: Some(text), ..event(1) };
            let mut end = ended(2);
            end.metrics.insert(name.clone(), 1.into());
            let told = Batch { events: vec![event], ended: Some(end), ..batch() };
            let graphite = lines.then_some(name);
            let form = Form { json, graphite: graphite.filter(|_| !json), ..form() };
            for line in texts(&form, &told, None) {
                prop_assert!(!line.chars().any(char::is_control), "{line:?}");
                if lines && !json {
                    prop_assert_eq!(line.split(' ').count(), 3);
                }
            }
        }
    }
}
