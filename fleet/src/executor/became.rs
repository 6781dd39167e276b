//! PURE: outcomes of triggers, from the history of `again`: again-json(5), `again history --json`.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{self, Walltime};
use again_base::schema::history::{Event, What, events};
use again_base::sys::localtime::from_utc;

use crate::handover::Answer;
use crate::wire::name::Id;
use crate::wire::outcome::{self, Outcome, Ran};

/// Newest outcome of each trigger in the history of `again`. Lines without an outcome of a trigger
/// are ignored.
pub fn became(history: &str) -> BTreeMap<Id, Answer> {
    let lines = events(history);
    let mut became: BTreeMap<Id, Answer> = BTreeMap::new();
    let mut runs: BTreeMap<(&str, u32), Ran> = BTreeMap::new();
    for line in &lines {
        let (Some(outcome), Some(origin)) = (outcome(line), &line.origin) else {
            continue;
        };
        let ran = ran(&mut runs, line);
        for id in origin.triggers.iter().map(|trigger| &trigger.id) {
            // A final outcome stays, whatever the order of the lines.
            let is_news = |known: &Answer| !known.outcome.is_final();
            if became.get(id).is_none_or(is_news) {
                let answer = Answer {
                    outcome,
                    why: outcome::words(&line.reason),
                    ran: ran.clone(),
                    is_unwatched: false,
                    above: None,
                };
                became.insert(id.clone(), answer);
            }
        }
    }
    for ran in became.values_mut().filter_map(|one| one.ran.as_mut()) {
        follow(ran, &lines);
    }
    became
}

fn outcome(line: &Event) -> Option<Outcome> {
    use model::Outcome::{Changed, Skipped, Succeeded, Unchanged, Unknown};
    match (line.what, line.outcome) {
        (What::Started, _) => Some(Outcome::Started),
        // If a run only succeeded, it is not known whether it has changed anything.
        (What::Ended, Some(Changed | Succeeded)) => Some(Outcome::Changed),
        (What::Ended, Some(Unchanged)) => Some(Outcome::Unchanged),
        (What::Ended, Some(Unknown)) => Some(Outcome::Unknown),
        // Puppet applied nothing, and the timer was set again.
        (What::Ended, Some(Skipped)) => None,
        (What::Ended | What::Failed | What::Lost | What::Stopped, _) => Some(Outcome::Failed),
        (What::Satisfied, _) => Some(Outcome::Satisfied),
        _ => None,
    }
}

/// Run whose beginning or end a line reports.
fn ran<'a>(runs: &mut BTreeMap<(&'a str, u32), Ran>, line: &'a Event) -> Option<Ran> {
    let has_begun = line.what == What::Started;
    if !has_begun && line.what != What::Ended {
        return None;
    }
    let log = line.log();
    let ran = runs.entry((&line.chain, line.run)).or_insert(Ran {
        log,
        began: None,
        ended: None,
        reruns: 0,
        last: None,
        more: false,
    });
    let at = from_utc(&line.at).map(Walltime::millis);
    *(if has_begun {
        &mut ran.began
    } else {
        &mut ran.ended
    }) = at;
    ran.check().is_ok().then(|| ran.clone())
}

/// Adds the later runs in the chain of a run: their number, the last outcome, and whether more
/// follow.
fn follow(ran: &mut Ran, lines: &[Event]) {
    // Few requests are open at a time, and each is listed once.
    let (mut begun, mut open) = (BTreeSet::new(), Vec::new());
    for line in lines {
        let is_later = || {
            let (chain, run) = ran.log.rsplit_once('-')?;
            Some(chain == line.chain && run.parse().is_ok_and(|run: u32| run < line.run))
        };
        if is_later() != Some(true) {
            continue;
        }
        let of_run = (line.run, line.timer.as_str());
        let own = (of_run, line.request.as_str());
        let known = open.iter().position(|one| *one == own);
        let was_open = known.map(|at| open.swap_remove(at)).is_some();
        match line.what {
            What::Requested | What::Delayed => open.push(own),
            // The new waiter has its own request.
            What::Resumed => {
                open.retain(|(of, _)| *of != of_run);
                open.push(own);
            }
            What::Started => {
                begun.insert(line.run);
                open.push(own);
            }
            What::Ended | What::Failed | What::Lost if was_open => ran.last = outcome(line),
            _ => {}
        }
    }
    ran.reruns = u32::try_from(begun.len()).unwrap_or(u32::MAX);
    ran.more = !open.is_empty();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line about the run of this number in the chain `c`.
    fn line_of(run: u32, what: &str, outcome: &str, reason: &str, ids: &[u128]) -> String {
        let triggers = ids.iter().map(|id| serde_json::json!({ "id": Id::from_bits(*id), "sender": "web1", "name": "again", "number": 1 }));
        let origin = serde_json::json!({ "origins": [], "triggers": triggers.collect::<Vec<_>>() });
        let outcome = (!outcome.is_empty()).then_some(outcome);
        let at = format!(
            "2026-11-21T00:03:{:02}.045Z",
            run + u32::from(what == "ended")
        );
        serde_json::json!({
            "schema": 1, "at": at, "what": what, "outcome": outcome, "reason": reason, "origin": origin, "timer": "again-fleet",
            "request": format!("r{run}"), "chain": "c", "run": run,
        })
        .to_string()
    }

    fn line(what: &str, outcome: &str, reason: &str, ids: &[u128]) -> String {
        line_of(1, what, outcome, reason, ids)
    }

    #[test]
    fn the_last_that_is_known_of_a_trigger_counts() {
        let history = [
            line("requested", "", "", &[1, 2, 3, 4]),
            line("satisfied", "", "by run 7", &[3]),
            line("started", "", "in time", &[1, 2]),
            line("ended", "changed", "changed (2)", &[1]),
            line("started", "", "again", &[1]),
            line("stopped", "", "by root", &[5]),
            r#"{"schema":1,"what":"ended","outcome":"failed","reason":"","origin":null}"#
                .to_owned(),
            r#"{"schema":1,"unreadable":2}"#.to_owned(),
            "no line".to_owned(),
        ];
        let became = became(&history.join("\n"));
        let shown: Vec<(u128, Outcome, &str)> = (1..6)
            .filter_map(|bits| {
                let one = became.get(&Id::from_bits(bits))?;
                Some((bits, one.outcome, one.why.as_str()))
            })
            .collect();
        let expected = [
            (1, Outcome::Changed, "changed (2)"),
            (2, Outcome::Started, "in time"),
            (3, Outcome::Satisfied, "by run 7"),
            (5, Outcome::Failed, "by root"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn each_end_has_an_outcome() {
        for (word, outcome) in [
            ("changed", Outcome::Changed),
            ("succeeded", Outcome::Changed),
            ("unchanged", Outcome::Unchanged),
            ("failed", Outcome::Failed),
            ("killed", Outcome::Failed),
            ("unknown", Outcome::Unknown),
            ("a word of a newer version", Outcome::Failed),
        ] {
            let became = became(&line("ended", word, "", &[1]));
            assert_eq!(became[&Id::from_bits(1)].outcome, outcome, "{word}");
        }
    }

    #[test]
    fn trigger_of_a_skipped_run_has_the_outcome_of_the_next() {
        let history = [
            line("started", "", "", &[1]),
            line("ended", "skipped", "another run had the lock", &[1]),
            line("started", "", "", &[1]),
            line("ended", "changed", "changed (2)", &[1]),
        ];
        let outcome =
            |lines: usize| became(&history[..lines].join("\n"))[&Id::from_bits(1)].outcome;
        assert_eq!(outcome(2), Outcome::Started);
        assert_eq!(outcome(4), Outcome::Changed);
    }

    /// The run that did the job, and what its chain has done since: whatever had reruns before it does not count.
    #[test]
    fn a_run_is_told_with_its_reruns() {
        let history = [
            line_of(2, "started", "", "", &[]),
            line_of(3, "requested", "", "", &[1]),
            line_of(3, "started", "", "", &[1]),
            line_of(4, "requested", "", "", &[]),
            line_of(3, "ended", "changed", "", &[1]),
            line_of(4, "started", "", "", &[]),
            line_of(5, "requested", "", "", &[]),
            line_of(4, "ended", "unchanged", "", &[]),
            line_of(5, "stopped", "", "", &[]),
        ];
        let ran = |lines: usize| {
            let became = became(&history[..lines].join("\n"));
            became[&Id::from_bits(1)].ran.clone().expect("a run")
        };
        let at = |seconds: u64| Some(1_795_219_380_045 + 1000 * seconds);
        let began = Ran {
            log: "c-3".to_owned(),
            began: at(3),
            ended: None,
            reruns: 0,
            last: None,
            more: false,
        };
        assert_eq!(ran(3), began);
        let ended = Ran {
            ended: at(4),
            more: true,
            ..began
        };
        assert_eq!(ran(5), ended);
        let last = Some(Outcome::Unchanged);
        let reruns = |more| Ran {
            reruns: 1,
            last,
            more,
            ..ended.clone()
        };
        assert_eq!(ran(8), reruns(true));
        assert_eq!(ran(9), reruns(false));
        // One that waits for a slot goes on waiting, and ends with the request of its newest waiter.
        let slot = |told: &[String]| {
            let told = [&history[..5], &[line_of(4, "delayed", "", "", &[])], told].concat();
            let became = became(&told.join("\n"));
            became[&Id::from_bits(1)].ran.clone().expect("a run").more
        };
        assert!(slot(&[]));
        let newer = |what, outcome| {
            line_of(4, what, outcome, "", &[]).replace("\"request\":\"", "\"request\":\"newer")
        };
        assert!(slot(&[newer("resumed", "")]));
        let ends = [newer("started", ""), newer("ended", "changed")];
        assert!(!slot(&[&[newer("resumed", "")][..], &ends].concat()));
        // What was never run has no log.
        let refused = became(&line("stopped", "", "", &[1]));
        assert_eq!(refused[&Id::from_bits(1)].ran, None);
    }
}
