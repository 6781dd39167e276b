//! `again history`: every request and its events.
//!
//! For people, the events of a chain are one story. For machines, there is a line of JSON for each
//! event, oldest first, as again-json(5) describes it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use serde_json::json;

use super::status::command_text;
use super::targets::place;

use crate::cli::{self, Global};
use crate::config;
use crate::outcome::read_settled;
use crate::state::history::{self, Entry, What};
use crate::state::store::Store;
use again_base::layout::{Look, Tone, complain, plural, say};
use again_base::model::{Exit, Kind, Moment, Span, Walltime, outcome_of};
use again_base::schema::SCHEMA;
use again_base::schema::history::Event;
use again_base::sys::clock::moment;
use again_base::sys::localtime::{self, utc};

/// Number of chains that people see by default.
const CHAINS: usize = 10;

/// Target on record, as far as the caller may see it.
struct Target {
    kind: Kind,
    command: Option<String>,
}

type Targets = BTreeMap<String, Target>;

/// Shows the history.
///
/// # Errors
/// Errors of the settings and of writing; a chain that does not exist.
pub fn main(global: &Global, args: &cli::History) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::existing(&settings.state_dir);
    let now = moment();
    // Records the ends of reruns that have ended since the last command.
    let mut exit = Exit::Success;
    for id in store.pending() {
        if let Err(e) = read_settled(&store, &id, &now) {
            complain(&format!("again: error: target {id}: {e:#}"));
            exit = Exit::Failure;
        }
    }
    let (entries, unreadable) = history::read(store.root());
    let place = place(&settings.state_dir)?;
    let chosen = choose(&entries, args, if args.json { usize::MAX } else { CHAINS });
    let ids: BTreeSet<&String> = chosen.iter().map(|entry| &entry.target).collect();
    let target = |id: &String| {
        let kind = store.read(id).ok().flatten()?.kind;
        let command = store.command(id).map(|line| command_text(&line, kind));
        Some((id.clone(), Target { kind, command }))
    };
    let targets: Targets = ids.into_iter().filter_map(target).collect();
    if let (Some(chain), true) = (&args.chain, chosen.is_empty()) {
        bail!("no chain in the history begins with '{chain}' ({place})");
    }
    if args.json {
        for entry in &chosen {
            say(&json!(event(entry, &targets)).to_string())?;
        }
        if unreadable.lines > 0 {
            let mut line = json!({ "schema": SCHEMA, "unreadable": unreadable.lines });
            if let Some(newer) = unreadable.newer {
                line["newer_version"] = newer.0.into();
            }
            say(&line.to_string())?;
        }
        return Ok(exit);
    }
    if chosen.is_empty() {
        say(&format!("no request on record ({place})"))?;
    } else {
        say(&stories(&chosen, &targets, &Look::of_this_process(), &now))?;
    }
    if unreadable.lines > 0 {
        let lines = unreadable.lines;
        let why = unreadable.newer.map(|newer| format!(": {newer}"));
        complain(&format!(
            "again: warning: {lines} line{} of the history cannot be read and {} left out (history.jsonl in {place}){}",
            plural(lines),
            if lines == 1 { "was" } else { "were" },
            why.unwrap_or_default()
        ));
    }
    Ok(exit)
}

#[rustfmt::skip]
fn event(entry: &Entry, targets: &Targets) -> Event {
    Event {
        schema: SCHEMA, at: utc(entry.at.wall), what: entry.what, target: entry.target.clone(),
        kind: targets.get(&entry.target).map(|target| target.kind), timer: entry.timer.clone(), request: entry.token.clone(),
        chain: entry.chain.clone(), run: entry.run, outcome: entry.outcome, reason: entry.text(),
        noticed: entry.noticed, chain_began_at: entry.began.map(utc), origin: entry.lineage.shown(),
    }
}

/// Key of the story that an entry belongs to: its chain, or its target if the whole target was
/// changed.
fn story(entry: &Entry) -> (&str, &str) {
    let target = if entry.chain.is_empty() {
        entry.target.as_str()
    } else {
        ""
    };
    (&entry.chain, target)
}

/// Events of the stories with the newest events, in their original order.
fn choose<'a>(entries: &'a [Entry], args: &cli::History, default: usize) -> Vec<&'a Entry> {
    let wanted: Vec<&Entry> = entries
        .iter()
        .filter(|entry| {
            args.chain
                .as_ref()
                .is_none_or(|chain| !entry.chain.is_empty() && entry.chain.starts_with(chain))
        })
        .collect();
    let mut newest: BTreeSet<(&str, &str)> = BTreeSet::new();
    for entry in wanted.iter().rev() {
        if newest.len() == args.newest.map_or(default, std::num::NonZeroUsize::get) {
            break;
        }
        newest.insert(story(entry));
    }
    let mut chosen = wanted;
    chosen.retain(|entry| newest.contains(&story(entry)));
    chosen
}

/// All stories, the one with the newest event last.
fn stories(entries: &[&Entry], targets: &Targets, look: &Look, now: &Moment) -> String {
    let mut order: Vec<(&str, &str)> = Vec::new();
    for entry in entries.iter().rev() {
        if !order.contains(&story(entry)) {
            order.insert(0, story(entry));
        }
    }
    let tell = |wanted: (&str, &str)| {
        let mut events: Vec<&Entry> = entries.to_vec();
        events.retain(|entry| story(entry) == wanted);
        let first = events.first()?;
        let target = targets.get(&first.target);
        let kind = match (first.what, target) {
            (What::Opened, _) => "'again converge'".to_owned(),
            (_, Some(target)) => target.kind.to_string(),
            (_, None) => "a target".to_owned(),
        };
        let name = match first.chain.as_str() {
            "" => format!("{kind} "),
            chain => format!("chain {chain} of {kind} "),
        };
        let about = format!("(target {}, {} ago)", first.target, first.at.age(now));
        let mut lines = vec![look.entry(&name, Tone::Heading, &about)];
        let command = target.and_then(|target| target.command.as_deref());
        lines.extend(command.map(|command| look.entry("  command  ", Tone::Plain, command)));
        let began = events.iter().find_map(|entry| entry.began);
        lines.extend(began.map(|at| {
            let label = label(at, 1, "began");
            look.entry(&label, Tone::Plain, "the run that asked first")
        }));
        lines.extend(lines_of(&events, look));
        Some(lines.join("\n"))
    };
    let told: Vec<String> = order.into_iter().filter_map(tell).collect();
    told.join("\n\n")
}

/// Beginning of a line: time, run and event.
fn label(at: Walltime, run: u32, what: &str) -> String {
    let at = localtime::local(at);
    let run = match run {
        0 => String::new(),
        run => format!("run {run}"),
    };
    format!("  {at}  {run:<7} {what:<10}")
}

/// Number of requests of a timer in a row that have a line each.
const REQUESTS: usize = 2;

/// Lines for the events. In a longer row of requests, each replaced by a newer one or merged with
/// it, only the newest of each timer has a line, with their count.
fn lines_of(events: &[&Entry], look: &Look) -> Vec<String> {
    let is_request = |entry: &Entry| matches!(entry.what, What::Requested | What::Merged);
    let mut lines = Vec::new();
    let mut index = 0;
    for row in events.chunk_by(|a, b| is_request(a) && is_request(b)) {
        let mut left: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in row.iter().filter(|e| e.what == What::Requested) {
            *left.entry(&entry.timer).or_default() += 1;
        }
        let counts = left.clone();
        for entry in row {
            let count = counts.get(entry.timer.as_str()).copied().unwrap_or(0);
            let mut is_newest = false;
            if let (What::Requested, Some(left)) = (entry.what, left.get_mut(&*entry.timer)) {
                *left -= 1;
                is_newest = *left == 0;
            }
            if count <= REQUESTS || is_newest {
                lines.push(line(entry, &events[..index], count, look));
            }
            index += 1;
        }
    }
    lines
}

/// Line for one event, with the time since the event that led to it, and the number of requests
/// that it represents.
fn line(entry: &Entry, earlier: &[&Entry], requests: usize, look: &Look) -> String {
    let since = |what: What| -> Option<Span> {
        let before = earlier
            .iter()
            .rev()
            .find(|e| e.token == entry.token && e.what == what)?;
        Some(entry.at.age_of(&before.at))
    };
    let waited = || since(What::Requested).map(|after| format!("waited {after}"));
    let took = || {
        let how = if entry.noticed { "within" } else { "took" };
        since(What::Started).map(|after| format!("{how} {after}"))
    };
    let after = match entry.what {
        What::Ended | What::Failed => took().or_else(waited),
        What::Started | What::Merged | What::Satisfied | What::Stopped | What::Delayed => waited(),
        _ => None,
    };
    let tone = match (entry.what, entry.outcome) {
        (What::Ended, Some(outcome)) => outcome.into(),
        (What::Ended | What::Satisfied, _) => Tone::Good,
        (What::Refused | What::Stopped | What::Delayed, _) => Tone::Attention,
        (What::Failed | What::Lost, _) => Tone::Bad,
        _ => Tone::Plain,
    };
    let label = label(entry.at.wall, entry.run, entry.what.kind());
    let mut parts = Vec::from_iter(after);
    use What::{Merged, Refused, Requested, Satisfied};
    if matches!(entry.what, Requested | Refused | Merged | Satisfied) {
        parts.push(format!("timer '{}'", entry.timer));
    }
    let reason = match entry.what {
        // The label already contains the word.
        What::Refused if outcome_of(&entry.kind) == "refused" => entry.reason.clone(),
        _ => entry.text(),
    };
    if !reason.is_empty() {
        parts.push(reason);
    }
    if requests > REQUESTS {
        parts.push(format!("the newest of {requests} requests"));
    }
    look.entry(&label, tone, &parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::{Boottime, Outcome, Place};
    use proptest::prelude::*;

    fn entry(chain: &str, seconds: u64, what: What, reason: &str) -> Entry {
        let at = Moment {
            boot: "b".into(),
            place: Place::default(),
            uptime: Boottime::from_nanos(seconds * 1_000_000_000),
            wall: Walltime::from_millis(1_795_219_387_000 + seconds * 1000),
        };
        Entry {
            target: "0123456789abcdef".into(),
            timer: "again".into(),
            token: "t".into(),
            chain: chain.into(),
            run: if chain.is_empty() { 0 } else { 2 },
            outcome: (what == What::Ended).then_some(Outcome::Changed),
            reason: reason.into(),
            ..Entry::new(what, at)
        }
    }

    fn args(newest: Option<usize>, chain: Option<&str>) -> cli::History {
        cli::History {
            json: false,
            newest: newest.and_then(std::num::NonZeroUsize::new),
            chain: chain.map(str::to_owned),
        }
    }

    #[test]
    fn a_chain_is_one_story_with_its_waits() {
        let entries = [
            entry("aaaa0000", 0, What::Requested, "delta 0s, jitter 2s"),
            entry("bbbb0000", 1, What::Refused, "again is disabled (x)"),
            entry("aaaa0000", 2, What::Started, ""),
            entry("", 3, What::Reset, "1 counted reruns forgotten by root"),
            entry("aaaa0000", 7, What::Ended, "1 resource changed, by /x"),
        ];
        let chosen = choose(&entries, &args(None, None), CHAINS);
        let look = Look {
            width: None,
            colour: false,
        };
        let now = entry("", 67, What::Reset, "").at;
        let text = stories(&chosen, &BTreeMap::new(), &look, &now);
        let wanted = "\
chain bbbb0000 of a target (target 0123456789abcdef, 1m6s ago)
  TIME  run 2   refused   timer 'again', again is disabled (x)

a target (target 0123456789abcdef, 1m4s ago)
  TIME          reset     1 counted reruns forgotten by root

chain aaaa0000 of a target (target 0123456789abcdef, 1m7s ago)
  TIME  run 2   requested timer 'again', delta 0s, jitter 2s
  TIME  run 2   started   waited 2s
  TIME  run 2   ended     took 5s, changed (1 resource changed, by /x)";
        // Local times differ from machine to machine.
        let text: Vec<String> = text
            .lines()
            .map(|line| match line.strip_prefix("  20") {
                Some(_) => format!("  TIME{}", &line[21..]),
                None => line.to_owned(),
            })
            .collect();
        assert_eq!(text.join("\n"), wanted);
    }

    #[test]
    fn the_newest_chains_are_those_with_the_newest_events() {
        let entries = [
            entry("aaaa0000", 0, What::Requested, ""),
            entry("bbbb0000", 1, What::Requested, ""),
            entry("aaaa0000", 2, What::Started, ""),
        ];
        let times = |args: &cli::History| -> Vec<u64> {
            let chosen = choose(&entries, args, CHAINS);
            chosen
                .iter()
                .map(|e| e.at.uptime.nanos() / 1_000_000_000)
                .collect()
        };
        assert_eq!(times(&args(Some(1), None)), [0, 2]);
        assert_eq!(times(&args(None, Some("b"))), [1]);
    }

    proptest! {
        #[test]
        fn total(chains in proptest::collection::vec("[ab]{0,1}", 0..12), newest in 1..4usize, reason in "\\PC{0,20}") {
            let entries: Vec<Entry> = chains.iter().map(|c| entry(c, 1, What::Ended, &reason)).collect();
            let chosen = choose(&entries, &args(Some(newest), None), CHAINS);
            let look = Look { width: Some(60), colour: true };
            let now = entry("", 0, What::Reset, "").at;
            let _ = stories(&chosen, &BTreeMap::new(), &look, &now);
        }
    }
}
