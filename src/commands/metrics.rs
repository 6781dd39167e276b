//! `again metrics`: the state in the text format of node_exporter's textfile collector
//! (prometheus.io/docs/instrumenting/exposition_formats).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;

use super::fleet::numbers;
use super::report::{Report, Target};
use super::targets::place;
use crate::cli::Global;
use crate::config;
use crate::state::history::{self, Tally};
use crate::state::store::Store;
use again_base::layout::say;
use again_base::model::{Exit, Moment, Outcome, Span, TimerState, Walltime};
use again_base::sys::clock::moment;
use again_base::sys::user;

/// Writes the metrics.
///
/// # Errors
/// Errors of the settings and of writing.
pub fn main(global: &Global) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::existing(&settings.state_dir);
    place(&settings.state_dir)?;
    let report = Report::numbers(&store, &settings, moment());
    // Read after the report, which has counted the reruns that had ended.
    let tally = history::tally(&settings.state_dir);
    let mut out = String::new();
    let targets = labelled(&report);
    for metric in METRICS {
        metric.write(&report, &targets, &tally, &mut out);
    }
    fleet(&numbers(), report.now.wall, &mut out);
    say(out.trim_end())?;
    Ok(Exit::Success)
}

/// Conversion of a number of the service into a sample.
enum Of {
    /// The number itself.
    Number,
    /// A total, as a counter.
    Total,
    /// A time in milliseconds, converted to seconds.
    Time,
    /// The time since then in seconds; 0 for none.
    Age,
}

/// Numbers of the service: key in its file, metric, help, and conversion.
#[rustfmt::skip]
const FLEET: &[(&str, &str, &str, Of)] = &[
    ("at", "written_timestamp_seconds", "When the service of again-fleet wrote these numbers; it does so every half minute.", Of::Time),
    ("down", "backend_down_seconds", "How long the backend has not been reached; 0 while it is.", Of::Age),
    ("triggers", "outbox_triggers", "Triggers of this node that wait for their nodes.", Of::Number),
    ("results", "outbox_results", "Results of this node that wait to be sent.", Of::Number),
    ("oldest", "outbox_oldest_age_seconds", "Time since the oldest of these triggers was fired; 0 for none.", Of::Age),
    ("running", "slots_running", "Runs of this node that have a slot.", Of::Number),
    ("waiting", "slots_waiting", "Runs of this node that wait for a slot.", Of::Number),
    ("since", "slots_oldest_wait_seconds", "How long the oldest of these has waited; 0 for none.", Of::Age),
    ("ended", "slots_ended", "Runs of this node that go on though their slot has ended with its lease.", Of::Number),
    ("rejected", "rejected_total", "Values in the backend that nobody may have put there, since the service began.", Of::Total),
    ("troubles", "troubles", "What 'again-fleet check' names: what the backend refuses, the disk, the executor.", Of::Number),
    ("sent", "events_sent_total", "Events of runs that the backend was told.", Of::Total),
    ("spooled", "events_spooled_bytes", "Bytes of events that wait to be told.", Of::Number),
    ("dropped", "events_dropped_total", "Events that were never told, and runs that were dropped whole.", Of::Total),
];

/// Writes the numbers of the service, without those that are unknown.
#[allow(clippy::cast_precision_loss)]
fn fleet(numbers: &BTreeMap<String, u64>, now: Walltime, out: &mut String) {
    for (key, name, help, of) in FLEET {
        let Some(number) = numbers.get(*key).copied() else {
            continue;
        };
        let kind = if let Of::Total = of {
            "counter"
        } else {
            "gauge"
        };
        let value = match of {
            Of::Number | Of::Total => number as f64,
            Of::Time => number as f64 / 1000.0,
            Of::Age if number == 0 => 0.0,
            Of::Age => now.since(Walltime::from_millis(number)).secs_f64(),
        };
        let _ = writeln!(
            out,
            "# HELP again_fleet_{name} {help}\n# TYPE again_fleet_{name} {kind}\nagain_fleet_{name} {value}"
        );
    }
}

/// Name, help and source of a metric.
struct Metric(&'static str, &'static str, Source);

/// Source of a metric's samples.
enum Source {
    /// One sample for the whole report.
    All(fn(&Report) -> f64),
    /// A sample for each target, unless its value is None.
    Each(fn(&Target, &Moment) -> Option<f64>),
    /// The version, as a label.
    Version,
    /// A sample for each of these outcomes of the last rerun of each target.
    Last(&'static [Outcome]),
    /// Number of events with this key in the history.
    Count(&'static str),
    /// Number of events of each of these kinds in the history: label, prefix of the keys, kinds.
    /// All are present from the start, so that the first one counts as an increase.
    Kinds(&'static str, &'static str, &'static [&'static str]),
}

use Source::{All, Count, Each, Kinds, Last, Version};

#[rustfmt::skip]
const METRICS: &[Metric] = &[
    Metric("build_info", "The version of again.", Version),
    Metric("disabled", "Whether 'again disable' is in force.", All(|r| yes(r.disabled.is_some()))),
    Metric("records_unreadable", "Records of targets that cannot be read.", All(|r| number(r.unreadable.len()))),
    Metric("converge_drivers", "Drivers ('again converge') that are under way.", All(|r| number(r.drivers.len()))),
    Metric("timers_pending", "Timers that are pending, in any state.", Each(|t, _| Some(number(t.timers.len())))),
    Metric("timers_held", "Timers that are due and held by an operator.",
        Each(|t, _| Some(timers(t, TimerState::Held)))),
    Metric("timers_dead", "Timers whose waiter is dead.", Each(|t, _| Some(timers(t, TimerState::Dead)))),
    Metric("oldest_timer_age_seconds", "Time since the oldest pending timer was asked for; 0 for none.",
        Each(|t, now| Some(t.timers.iter().map(|t| t.timer.requested.age(now)).max().unwrap_or(Span::ZERO).secs_f64()))),
    Metric("runs_stuck", "Runs of the target, or in the way of its timers, that have outlived Puppet's runtimeout, or 2 h.",
        Each(|t, now| Some(number(t.stuck(now).len())))),
    Metric("running", "Whether a rerun is under way.", Each(|t, _| Some(yes(t.running().is_some())))),
    Metric("cap_reruns", "Reruns that count towards the cap.", Each(|t, _| Some(t.usage.used.into()))),
    Metric("cap_max_reruns", "The most reruns that the cap allows within its window.", Each(|t, _| Some(t.cap.max_runs.into()))),
    Metric("cap_window_seconds", "The length of the cap's window.", Each(|t, _| Some(t.cap.window.secs_f64()))),
    Metric("last_rerun_outcome", "How the last rerun ended: 1 for its outcome, 0 for the others.",
        Last(&[Outcome::Changed, Outcome::Unchanged, Outcome::Failed, Outcome::Unknown])),
    Metric("last_rerun_timestamp_seconds", "When the last rerun that has ended was started.",
        Each(|t, _| Some(t.record.last.as_ref()?.rerun.started.wall.since(Walltime::default()).secs_f64()))),
    Metric("requests_total", "Requests that were granted.", Count("requested")),
    Metric("refusals_total", "Requests that were refused, and timers that were refused when they were due.",
        Kinds("reason", "refused ", &["cap", "disabled", "noop", "other"])),
    Metric("reruns_total", "Reruns that were started.", Count("started")),
    Metric("reruns_ended_total", "Reruns that were seen to have ended.",
        Kinds("outcome", "ended ", &["changed", "unchanged", "failed", "succeeded", "killed", "skipped", "unknown"])),
    Metric("timers_dropped_total", "Timers that ended without a rerun.",
        Kinds("reason", "", &["merged", "satisfied", "stopped", "failed", "lost"])),
];

fn yes(is_so: bool) -> f64 {
    u8::from(is_so).into()
}

fn number(count: usize) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

fn timers(target: &Target, state: TimerState) -> f64 {
    number(
        target
            .timers
            .iter()
            .filter(|timer| timer.state == state)
            .count(),
    )
}

/// Escapes a label's value (exposition formats, "Comments, help text, and type information").
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Targets with the labels of their samples, computed once: there may be many targets, with many
/// samples each.
fn labelled(report: &Report) -> Vec<(&Target, String)> {
    let label = |target: &'_ Target| {
        let record = &target.record;
        labels(&[
            ("target", record.id.as_str()),
            ("kind", record.kind.kind()),
            ("user", user::name(record.uid).as_str()),
        ])
    };
    let all: Vec<String> = report.targets.iter().map(label).collect();
    report.targets.iter().zip(all).collect()
}

fn labels(labels: &[(&str, &str)]) -> String {
    let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    let labels: Vec<String> = labels.iter().map(label).collect();
    format!("{{{}}}", labels.join(","))
}

impl Metric {
    /// Calls `give` with the labels and value of each sample.
    #[allow(clippy::cast_precision_loss)]
    fn samples(
        &self,
        report: &Report,
        targets: &[(&Target, String)],
        tally: &Tally,
        mut give: impl FnMut(&str, f64),
    ) {
        let counted = |key: &str| tally.get(key).copied().unwrap_or(0) as f64;
        match &self.2 {
            All(value) => give("", value(report)),
            Each(value) => {
                for (target, labels) in targets {
                    if let Some(value) = value(target, &report.now) {
                        give(labels, value);
                    }
                }
            }
            Version => give(&labels(&[("version", env!("CARGO_PKG_VERSION"))]), 1.0),
            Last(outcomes) => {
                for (target, labels) in targets {
                    let Some(last) = &target.record.last else {
                        continue;
                    };
                    let own = labels.trim_end_matches('}');
                    for outcome in *outcomes {
                        let labels = format!("{own},outcome=\"{}\"}}", outcome.kind());
                        give(&labels, yes(*outcome == last.outcome));
                    }
                }
            }
            Count(key) => give("", counted(key)),
            Kinds(label, prefix, kinds) => {
                for kind in *kinds {
                    let labels = labels(&[(label, kind)]);
                    give(&labels, counted(&format!("{prefix}{kind}")));
                }
            }
        }
    }

    /// Writes the metric's help, type and samples, if it has any samples.
    fn write(
        &self,
        report: &Report,
        targets: &[(&Target, String)],
        tally: &Tally,
        out: &mut String,
    ) {
        let Metric(name, help, source) = self;
        let kind = match source {
            Count(_) | Kinds(..) => "counter",
            _ => "gauge",
        };
        let mut head = Some(format!(
            "# HELP again_{name} {help}\n# TYPE again_{name} {kind}\n"
        ));
        self.samples(report, targets, tally, |labels, value| {
            out.push_str(&head.take().unwrap_or_default());
            let _ = writeln!(out, "again_{name}{labels} {value}");
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_of_a_fleet_has_written_is_told() {
        let numbers = [
            ("at", 90_000),
            ("down", 60_000),
            ("oldest", 0),
            ("since", 91_000),
            ("sent", 5),
            ("spooled", 70),
            ("later", 2),
        ];
        let numbers = numbers.map(|(key, number)| (key.to_owned(), number));
        let mut out = String::new();
        fleet(&numbers.into(), Walltime::from_millis(90_500), &mut out);
        for line in [
            "written_timestamp_seconds 90",
            "backend_down_seconds 30.5",
            "outbox_oldest_age_seconds 0",
            "slots_oldest_wait_seconds 0",
            "events_sent_total 5",
            "events_spooled_bytes 70",
        ] {
            assert!(out.contains(&format!("\nagain_fleet_{line}\n")), "{out}");
        }
        assert_eq!(out.lines().count(), 18);
    }

    #[test]
    fn a_label_holds_anything() {
        assert_eq!(
            labels(&[("a", "b\\c\"d\ne"), ("x", "y")]),
            "{a=\"b\\\\c\\\"d\\ne\",x=\"y\"}"
        );
    }
}
