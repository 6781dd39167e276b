//! PURE: cap and triggers in the records of `again`: again-json(5), `again status --json` and
//! `again history --json`.

use std::collections::BTreeSet;

use again_base::model::{Span, Walltime};
use again_base::schema::history::{self, Event as Line, What};
use again_base::schema::origin::{Asked, Origins};
use again_base::schema::status::{Running, Status, Target};
use again_base::sys::localtime::from_utc;

use crate::policy::share::{Cap, Event, Observation, Recorded};

/// Observation of the target that triggers run: the target of the newest request in the history, or
/// else the one that was `known` before, or else one that works for triggers now.
///
/// # Errors
/// The status cannot be read, `again` cannot read the record of the target, or the target has no
/// cap; the message has the reason.
pub fn observation(
    status: &str,
    history: &str,
    known: Option<&str>,
) -> Result<Observation, String> {
    let status: Status = serde_json::from_str(status).map_err(|e| e.to_string())?;
    let lines = history::events(history);
    let requests =
        |line: &&Line| line.what == What::Requested && !triggers(&line.origin).is_empty();
    let newest = lines.iter().rfind(requests);
    let newest = newest.map(|line| line.target.as_str()).or(known);
    let target = status.targets.iter().find(|target| match newest {
        Some(id) => target.id == id,
        None => works_for_triggers(target),
    });
    if let (None, Some(why)) = (target, status.unreadable.first()) {
        return Err(why.clone());
    }
    if target.is_some_and(|target| target.cap.window_seconds == 0) {
        return Err("the target has no cap".to_owned());
    }
    let id = target.map(|target| target.id.as_str()).or(newest);
    let timers = target.iter().flat_map(|target| &target.timers);
    let timers = timers.map(|one| triggers(&one.origin));
    let running = target.and_then(|target| target.running.as_ref());
    let of_target = lines.iter().filter(|line| Some(&*line.target) == id);
    let mut events: Vec<(Walltime, Event)> = of_target.filter_map(event).collect();
    if let Some(started) = running.and_then(started)
        && !events.contains(&started)
    {
        // The history gets the start of a run a moment after the status, and may have dropped it.
        let later = events.iter().position(|(at, _)| *at > started.0);
        events.insert(later.unwrap_or(events.len()), started);
    }
    Ok(Observation {
        target: id.map(str::to_owned),
        cap: target.map(|target| Cap {
            max_runs: target.cap.max_runs,
            window: Span::from_secs(target.cap.window_seconds),
        }),
        timers: timers.filter(|one| !one.is_empty()).collect(),
        running: running.map_or_else(Vec::new, |run| triggers(&run.origin)),
        events: events.into_iter().map(|(_, event)| event).collect(),
        mentioned: BTreeSet::from_iter(lines.iter().flat_map(|line| triggers(&line.origin))),
    })
}

fn works_for_triggers(target: &Target) -> bool {
    let timers = target.timers.iter().map(|timer| &timer.origin);
    let mut all = timers.chain(target.running.iter().map(|run| &run.origin));
    all.any(|origin| !triggers(origin).is_empty())
}

/// Start of a run, as the history shows it.
fn started(run: &Running) -> Option<(Walltime, Event)> {
    let at = from_utc(&run.started_at)?;
    let event = Event::Started {
        log: history::log(&run.chain, run.run),
        at,
        triggers: triggers(&run.origin),
    };
    Some((at, event))
}

fn event(line: &Line) -> Option<(Walltime, Event)> {
    let at = from_utc(&line.at)?;
    let event = match line.what {
        What::Started => Event::Started {
            log: line.log(),
            at,
            triggers: triggers(&line.origin),
        },
        What::TakenBack => Event::TakenBack(line.log()),
        What::Reset => Event::Reset,
        _ => return None,
    };
    Some((at, event))
}

fn triggers(origin: &Option<Origins>) -> Vec<Recorded> {
    let recorded = |one: &Asked| Recorded {
        sender: one.sender.clone(),
        id: one.id.clone(),
    };
    let triggers = origin.iter().flat_map(|origin| &origin.triggers);
    triggers.map(recorded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::name::Id;
    use serde_json::json;

    fn origin(ids: &[u128]) -> serde_json::Value {
        let triggers = ids.iter().map(|id| json!({ "id": Id::from_bits(*id), "sender": "web1", "name": "again", "number": 1 }));
        json!({ "origins": [], "triggers": triggers.collect::<Vec<_>>() })
    }

    fn line(target: &str, what: &str, run: u32, ids: &[u128]) -> String {
        json!({
            "schema": 1, "at": "2026-11-21T00:03:00.045Z", "what": what, "target": target, "outcome": null, "reason": "",
            "origin": origin(ids), "timer": "again-fleet", "request": "r", "chain": "c", "run": run,
        })
        .to_string()
    }

    fn status(unreadable: &[&str]) -> String {
        let timer = |ids: &[u128]| json!({ "name": "x", "origin": origin(ids) });
        let run = json!({ "chain": "d", "run": 2, "started_at": "2026-11-21T00:03:00.046Z", "origin": origin(&[3]) });
        let cap = |max_runs: u32| json!({ "used": 1, "max_runs": max_runs, "window_seconds": 60, "frees_at": null });
        let timers = [timer(&[4]), timer(&[5, 6]), json!({ "origin": null })];
        json!({ "schema": 1, "unreadable": unreadable, "targets": [
            { "id": "a", "cap": cap(3), "timers": [], "running": null },
            { "id": "b", "cap": cap(7), "timers": timers, "running": run },
        ] })
        .to_string()
    }

    fn recorded(id: u128) -> Recorded {
        Recorded {
            sender: "web1".parse().expect("a certname"),
            id: Id::from_bits(id),
        }
    }

    fn all(ids: &[u128]) -> Vec<Recorded> {
        ids.iter().copied().map(recorded).collect()
    }

    #[test]
    fn target_is_that_of_the_newest_request_for_triggers() {
        let history = [
            line("a", "requested", 1, &[1]),
            line("b", "requested", 1, &[2]),
            line("b", "started", 1, &[2]),
            line("b", "taken-back", 1, &[2]),
            line("b", "ended", 1, &[2]),
            line("b", "reset", 0, &[]),
            // What was asked for before its command was changed.
            line("a", "started", 1, &[1]),
            line("a", "requested", 2, &[]),
        ];
        let wanted = Observation {
            target: Some("b".to_owned()),
            cap: Some(Cap {
                max_runs: 7,
                window: Span::from_secs(60),
            }),
            timers: vec![all(&[4]), all(&[5, 6])],
            running: all(&[3]),
            events: vec![
                Event::Started {
                    log: "c-1".to_owned(),
                    at: Walltime::from_millis(1_795_219_380_045),
                    triggers: all(&[2]),
                },
                Event::TakenBack("c-1".to_owned()),
                Event::Reset,
                run_of_b(),
            ],
            mentioned: BTreeSet::from_iter(all(&[1, 2])),
        };
        let seen = observation(&status(&[]), &history.join("\n"), Some("a"));
        assert_eq!(seen, Ok(wanted));
    }

    /// The start of the run in the status.
    fn run_of_b() -> Event {
        Event::Started {
            log: "d-2".to_owned(),
            at: Walltime::from_millis(1_795_219_380_046),
            triggers: all(&[3]),
        }
    }

    #[test]
    fn run_that_is_just_starting_has_started() {
        let at = |millis, line: String| line.replace("00.045Z", &format!("00.{millis}Z"));
        let of_run = |millis, what| {
            let line = line("b", what, 2, &[3]);
            at(millis, line.replace("\"c\"", "\"d\""))
        };
        let (started, taken_back) = (of_run("046", "started"), of_run("047", "taken-back"));
        let reset = |millis| at(millis, line("b", "reset", 0, &[]));
        let seen = |history: &[&String]| {
            let lines: Vec<&str> = history.iter().map(|line| line.as_str()).collect();
            let seen = observation(&status(&[]), &lines.join("\n"), Some("b"));
            seen.expect("readable").events
        };
        let over = Event::TakenBack("d-2".to_owned());
        assert_eq!(seen(&[]), [run_of_b()]);
        assert_eq!(seen(&[&started]), [run_of_b()]);
        assert_eq!(seen(&[&reset("045")]), [Event::Reset, run_of_b()]);
        // Its line is lost, or its start was taken back before it had one.
        assert_eq!(seen(&[&reset("047")]), [run_of_b(), Event::Reset]);
        assert_eq!(seen(&[&taken_back]), [run_of_b(), over.clone()]);
        assert_eq!(seen(&[&started, &taken_back]), [run_of_b(), over]);
        // A start that is repeated has the same log.
        let before = [of_run("044", "started"), of_run("045", "taken-back")];
        let events = seen(&[&before[0], &before[1]]);
        assert_eq!((events.len(), &events[2]), (3, &run_of_b()));
    }

    #[test]
    fn without_a_request_the_known_target_counts_or_one_that_works_for_triggers() {
        let target = |known| {
            let history = line("a", "started", 1, &[]);
            let seen = observation(&status(&[]), &history, known).expect("readable");
            (seen.target, seen.cap.map(|cap| cap.max_runs))
        };
        assert_eq!(target(Some("a")), (Some("a".to_owned()), Some(3)));
        assert_eq!(target(None), (Some("b".to_owned()), Some(7)));
        // Its record is gone: it was idle.
        assert_eq!(target(Some("c")), (Some("c".to_owned()), None));
        let none = observation(r#"{"schema":1,"targets":[]}"#, "", None);
        assert_eq!(none, Ok(Observation::default()));
    }

    #[test]
    fn unreadable_record_is_an_error_unless_it_is_another_targets() {
        let seen = |known| observation(&status(&["record 'c' is damaged"]), "", Some(known));
        assert_eq!(seen("c"), Err("record 'c' is damaged".to_owned()));
        assert!(seen("a").is_ok());
        let unknown = observation(r#"{"schema":1,"targets":[],"unreadable":["x"]}"#, "", None);
        assert_eq!(unknown, Err("x".to_owned()));
        assert!(observation("again: error", "", None).is_err());
        let without = status(&[]).replace("window_seconds", "window");
        assert!(observation(&without, "", Some("a")).is_err());
    }
}
