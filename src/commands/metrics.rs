//! `again metrics`: the state in the text format of node_exporter's textfile collector
//! (prometheus.io/docs/instrumenting/exposition_formats).

use std::fmt::Write as _;

use anyhow::Result;

use super::say;
use super::status::{Report, TargetReport, gather};
use crate::cli::{Global, Run};
use crate::config::{self, Surroundings};
use crate::model::{Exit, Outcome, Span, TimerState};
use crate::state::history::{self, Tally};
use crate::state::store::Store;
use crate::sys::clock::moment;

/// Writes the metrics.
///
/// # Errors
/// Those of the settings and of writing.
pub fn main(global: &Global) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, &Run::default(), &around)?;
    let store = Store::existing(&settings.state_dir);
    let now = moment();
    let report = gather(&store, &settings, &around, &now, false);
    // Read after it: reruns that had ended have been counted by then.
    let tally = history::tally(&settings.state_dir);
    say(text(&report, &tally).trim_end())?;
    Ok(Exit::Success)
}

/// A label's value (exposition formats, "Comments, help text, and type information").
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Metrics being written: each name with its help and type, then its samples.
#[derive(Default)]
struct Text(String);

impl Text {
    fn metric(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let _ = writeln!(
            self.0,
            "# HELP again_{name} {help}\n# TYPE again_{name} {kind}"
        );
        for (labels, value) in samples {
            let labels: Vec<String> = labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                .collect();
            let labels = if labels.is_empty() {
                String::new()
            } else {
                format!("{{{}}}", labels.join(","))
            };
            let _ = writeln!(self.0, "again_{name}{labels} {value}");
        }
    }
}

type Labels = Vec<(&'static str, String)>;

fn labels(target: &TargetReport) -> Labels {
    vec![
        ("target", target.id.clone()),
        ("kind", target.kind.kind().to_owned()),
        ("user", target.user.clone()),
    ]
}

#[allow(clippy::cast_precision_loss)]
fn text(report: &Report, tally: &Tally) -> String {
    let mut out = Text::default();
    let one = |value: f64| [(Labels::new(), value)];
    let each = |value: &dyn Fn(&TargetReport) -> Option<f64>| -> Vec<(Labels, f64)> {
        let targets = report.targets.iter();
        targets
            .filter_map(|target| Some((labels(target), value(target)?)))
            .collect()
    };
    let count = |target: &TargetReport, state: TimerState| {
        target.timers.iter().filter(|t| t.state == state).count() as f64
    };
    out.metric(
        "build_info",
        "gauge",
        "The version of again.",
        [(vec![("version", report.version.to_owned())], 1.0)],
    );
    out.metric(
        "disabled",
        "gauge",
        "Whether 'again disable' is in force.",
        one(f64::from(u8::from(report.disabled.is_some()))),
    );
    out.metric(
        "records_unreadable",
        "gauge",
        "Records of targets that cannot be read.",
        one(report.unreadable.len() as f64),
    );
    out.metric(
        "converge_drivers",
        "gauge",
        "Drivers ('again converge') that are under way.",
        one(report.drivers.len() as f64),
    );
    out.metric(
        "timers_pending",
        "gauge",
        "Timers that are pending, in whatever state.",
        each(&|target| Some(target.timers.len() as f64)),
    );
    out.metric(
        "timers_held",
        "gauge",
        "Timers that are due and held by an operator.",
        each(&|target| Some(count(target, TimerState::Held))),
    );
    out.metric(
        "timers_dead",
        "gauge",
        "Timers whose waiter is dead.",
        each(&|target| Some(count(target, TimerState::Dead))),
    );
    out.metric(
        "oldest_timer_age_seconds",
        "gauge",
        "Time since the oldest pending timer was asked for; 0 for none.",
        each(&|target| {
            let ages = target.timers.iter().map(|timer| timer.age);
            Some(ages.max().unwrap_or(Span::ZERO).secs_f64())
        }),
    );
    out.metric(
        "running",
        "gauge",
        "Whether a rerun is under way.",
        each(&|target| Some(f64::from(u8::from(target.running.is_some())))),
    );
    out.metric(
        "cap_reruns",
        "gauge",
        "Reruns that count towards the cap.",
        each(&|target| Some(f64::from(target.cap.used))),
    );
    out.metric(
        "cap_max_reruns",
        "gauge",
        "The most reruns that the cap allows within its window.",
        each(&|target| Some(f64::from(target.cap.max_runs))),
    );
    out.metric(
        "cap_window_seconds",
        "gauge",
        "The length of the cap's window.",
        each(&|target| Some(target.cap.window_seconds as f64)),
    );
    let outcomes = [
        Outcome::Changed,
        Outcome::Unchanged,
        Outcome::Failed,
        Outcome::Unknown,
    ];
    let last = report.targets.iter().filter_map(|target| {
        let last = target.last.as_ref()?;
        Some(outcomes.map(|outcome| {
            let mut labels = labels(target);
            labels.push(("outcome", outcome.to_string()));
            (labels, f64::from(u8::from(last.outcome == outcome)))
        }))
    });
    out.metric(
        "last_rerun_outcome",
        "gauge",
        "How the last rerun ended: 1 for its outcome, 0 for the others.",
        last.flatten(),
    );
    out.metric(
        "last_rerun_timestamp_seconds",
        "gauge",
        "When the last rerun that has ended was started.",
        each(&|target| Some(target.last.as_ref()?.started.millis() as f64 / 1000.0)),
    );
    // All of them from the start, so that the first one counts as an increase.
    let tallied = |label: &'static str, keys: &[(&str, &str)]| -> Vec<(Labels, f64)> {
        let sample = |(name, key): &(&str, &str)| {
            let count = tally.get(*key).copied().unwrap_or(0) as f64;
            (vec![(label, (*name).to_owned())], count)
        };
        keys.iter().map(sample).collect()
    };
    out.metric(
        "requests_total",
        "counter",
        "Requests that were granted.",
        one(tally.get("requested").copied().unwrap_or(0) as f64),
    );
    out.metric(
        "refusals_total",
        "counter",
        "Requests that were refused, and timers that were when they were due.",
        tallied(
            "reason",
            &[
                ("cap", "refused cap"),
                ("disabled", "refused disabled"),
                ("noop", "refused noop"),
                ("other", "refused other"),
            ],
        ),
    );
    out.metric(
        "reruns_total",
        "counter",
        "Reruns that were started.",
        one(tally.get("started").copied().unwrap_or(0) as f64),
    );
    out.metric(
        "reruns_ended_total",
        "counter",
        "Reruns that were seen to have ended.",
        tallied(
            "outcome",
            &[
                ("changed", "ended changed"),
                ("unchanged", "ended unchanged"),
                ("failed", "ended failed"),
                ("succeeded", "ended succeeded"),
                ("killed", "ended killed"),
                ("skipped", "ended skipped"),
                ("unknown", "ended unknown"),
            ],
        ),
    );
    out.metric(
        "timers_dropped_total",
        "counter",
        "Timers that ended without a rerun.",
        tallied(
            "reason",
            &[
                ("merged", "merged"),
                ("satisfied", "satisfied"),
                ("stopped", "stopped"),
                ("failed", "failed"),
                ("lost", "lost"),
            ],
        ),
    );
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_anything() {
        let mut out = Text::default();
        out.metric(
            "x",
            "gauge",
            "X.",
            [(vec![("a", "b\\c\"d\ne".to_owned())], 1.5)],
        );
        out.metric("y", "gauge", "Y.", []);
        assert_eq!(
            out.0,
            "# HELP again_x X.\n# TYPE again_x gauge\nagain_x{a=\"b\\\\c\\\"d\\ne\"} 1.5\n"
        );
    }
}
