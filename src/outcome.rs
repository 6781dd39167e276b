//! Outcomes of reruns, determined from their traces.

use std::io::ErrorKind;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::Result;

use crate::puppet::summary::Summary;
use crate::state::change::{About, Change};
use crate::state::history::What;
use crate::state::logs;
use crate::state::record::{Ended, Record, Running};
use crate::state::standing::Standing;
use crate::state::store::{Locked, Store};
use crate::state::upkeep::Upkeep;
use again_base::model::{Boottime, Identity, Kind, Moment, Outcome, Span, Walltime};
use again_base::sys::file::read_regular;

/// Reruns that were removed from a record.
#[derive(Debug)]
#[must_use]
pub struct Settled {
    ended: Vec<(Running, Change)>,
    never_began: Vec<Running>,
    now: Moment,
}

impl Settled {
    /// Records the outcomes in the history, trims the logs, and removes the orders. Call when the
    /// record without the reruns is in place: otherwise the next process to read the record removes
    /// them once more.
    pub fn note(self, store: &Store, id: &str) {
        for (rerun, _) in &self.ended {
            logs::settle(Path::new(&rerun.log), rerun.log_limit);
        }
        self.publish_log_size(store);
        self.note_without_logs(store, id);
    }

    /// Publishes the size of the largest log of the ended reruns to the upkeep files; does nothing
    /// if these cannot be opened.
    fn publish_log_size(&self, store: &Store) {
        let log = self.ended.iter().find(|(rerun, _)| !rerun.log.is_empty());
        if let Some(directory) = log.and_then(|(rerun, _)| Path::new(&rerun.log).parent())
            && let Ok(upkeep) = Upkeep::of(store, directory)
        {
            upkeep.grew(self.largest_log());
        }
    }

    /// Size of the largest log of the ended reruns, in bytes.
    pub fn largest_log(&self) -> u64 {
        let logs = self
            .ended
            .iter()
            .map(|(rerun, _)| std::fs::metadata(&rerun.log));
        logs.flatten().map(|meta| meta.len()).max().unwrap_or(0)
    }

    /// As [`Settled::note`], without trimming logs: for a waiter that is due.
    pub fn note_without_logs(self, store: &Store, id: &str) {
        for rerun in self.never_began {
            store.forget_rerun(rerun.process, rerun.started.place);
            store.discount_lost(&self.now, &rerun.token);
            logs::discard(Path::new(&rerun.log));
            let about = About::rerun(id, &rerun);
            let change = about.became(What::TakenBack, self.now.clone());
            let why = "its waiter died before the rerun began; its start does not count";
            store.note(&change.because(why).entry);
        }
        for (rerun, change) in self.ended {
            store.forget_rerun(rerun.process, rerun.started.place);
            store.remove_order(id, &rerun.token);
            store.note(&change.entry);
        }
    }

    /// Whether nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.never_began.is_empty()
    }
}

/// Removes ended reruns from the record, and takes back those that never began. Foreign reruns
/// stay.
pub fn settle(store: &Store, record: &mut Record, now: &Moment) -> Settled {
    let (ended, never_began) = take_out(store, record, now);
    record.last = ended.last().cloned().or(record.last.take());
    let change = |ended: Ended| {
        let mut change = About::rerun(&record.id, &ended.rerun)
            .became(What::Ended, ended.moment())
            .ended(ended.outcome, ended.evidence);
        change.entry.noticed = ended.ended.is_none();
        (ended.rerun, change)
    };
    Settled {
        ended: ended.into_iter().map(change).collect(),
        never_began,
        now: now.clone(),
    }
}

/// Takes back the start of this process, which does not become the rerun.
pub fn settle_own(record: &mut Record, me: Identity, now: &Moment) -> Settled {
    let never_began = record.take_runs(|run| run.process == me);
    record.take_back(&never_began);
    Settled {
        ended: Vec::new(),
        never_began,
        now: now.clone(),
    }
}

/// Puts the timers of reruns that were recorded and never began back on the record.
pub fn take_back(store: &Store, record: &mut Record, now: &Moment) {
    let id = record.id.clone();
    let has_ended = |run: &Running| store.rerun_stands(&id, run, now) == Standing::Ended;
    let is_one = |run: &Running| has_ended(run) && store.never_began(&id, run, now);
    let never_began = record.take_runs(is_one);
    record.take_back(&never_began);
}

/// Removes a skipped rerun from the record: it does not count as a run of the target. `None` if the
/// rerun is not on record, or has never begun.
pub fn skipped(
    store: &Store,
    record: &mut Record,
    token: &str,
    why: &str,
    now: &Moment,
) -> Option<Settled> {
    let at = record.running.iter().position(|run| run.token == token)?;
    if store.never_began(&record.id, &record.running[at], now) {
        return None;
    }
    let mut rerun = record.running.remove(at);
    rerun.before_start = None;
    record.seen_run.take_if(|seen| *seen == rerun.started);
    let evidence = format!("it applied nothing: {why}");
    let change = About::rerun(&record.id, &rerun)
        .became(What::Ended, now.clone())
        .ended(Outcome::Skipped, evidence.clone());
    record.last = Some(Ended {
        rerun: rerun.clone(),
        outcome: Outcome::Skipped,
        evidence,
        ended: Some(now.wall),
        noticed: now.clone(),
    });
    Some(Settled {
        ended: vec![(rerun, change)],
        never_began: Vec::new(),
        now: now.clone(),
    })
}

/// Removes ended reruns from a locked record, and writes the record.
///
/// # Errors
/// The reason why the record cannot be written.
pub fn settle_locked(store: &Store, locked: &mut Locked, now: &Moment) -> Result<()> {
    let settled = settle(store, &mut locked.record, now);
    locked.commit()?;
    settled.note(store, &locked.record.id);
    Ok(())
}

/// Reads the record without the reruns that have ended, and writes it back if the caller may.
///
/// # Errors
/// The reason why the record cannot be read.
pub fn read_settled(store: &Store, id: &str, now: &Moment) -> Result<Option<Record>> {
    let Some(mut record) = store.read(id)? else {
        return Ok(None);
    };
    let has_ended = |run: &Running| store.rerun_stands(id, run, now) == Standing::Ended;
    if !record.running.iter().any(has_ended) {
        return Ok(Some(record));
    }
    // A command that only reads does not wait for a lock.
    if let Ok(mut locked) = store.without_waiting().lock_existing(id) {
        if settle_locked(store, &mut locked, now).is_ok() {
            store.remove_strays(&locked.record, now);
        }
        return Ok(Some(locked.record.clone()));
    }
    // A record that cannot be written is settled in memory only.
    let (mut ended, _) = take_out(store, &mut record, now);
    record.last = ended.pop().or(record.last);
    Ok(Some(record))
}

/// Removes ended reruns from the record, and takes back those that never began. Returns the ended
/// ones, oldest first, then the others. One check decides, because a process may end between two.
fn take_out(store: &Store, record: &mut Record, now: &Moment) -> (Vec<Ended>, Vec<Running>) {
    let id = record.id.clone();
    let taken = record.take_runs(|run| store.rerun_stands(&id, run, now) == Standing::Ended);
    let never_began = |run: &Running| store.never_began(&id, run, now);
    let (never_began, ended): (Vec<_>, Vec<_>) = taken.into_iter().partition(never_began);
    record.take_back(&never_began);
    let later = |rerun: &Running| -> Vec<Moment> {
        let starts = record.starts.iter().map(|start| &start.at);
        let known = starts.chain(record.seen_run.as_ref());
        let is_later = |at: &&Moment| at.wall > rerun.started.wall;
        known.filter(is_later).cloned().collect()
    };
    let how = |mut rerun: Running| {
        // Only a rerun that never began is taken back.
        rerun.before_start = None;
        let told = tell(&look(&rerun, &later(&rerun), record.kind, now));
        Ended {
            rerun,
            outcome: told.outcome,
            evidence: told.evidence,
            ended: told.ended,
            noticed: now.clone(),
        }
    };
    let ended = ended.into_iter().map(how).collect();
    (ended, never_began)
}

/// Traces of a rerun.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Traces {
    kind: Kind,
    started: Walltime,
    /// User who ended the rerun, and the way.
    stopped: Option<String>,
    /// Time of the last write to the log, if any.
    wrote: Option<Walltime>,
    /// Earliest known start of a later run, or of the machine.
    next: Option<(Walltime, &'static str)>,
    /// Path and content of the summary.
    summary: Option<(String, Written)>,
}

/// Time and content of a summary, or the reason why they are unknown.
type Written = std::result::Result<(Walltime, Summary), String>;

/// Outcome of a rerun, with the evidence and the time of its end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    outcome: Outcome,
    evidence: String,
    ended: Option<Walltime>,
}

/// Maximum time between a run's last line of output and its summary. A later run takes longer than
/// that just to load Puppet.
const AFTER_OUTPUT: Span = Span::from_secs(1);

/// Maximum time that a rerun takes to load Puppet and its facts, on a slow machine.
const LOADING: Span = Span::from_secs(120);

fn modified(meta: &std::fs::Metadata) -> Option<Walltime> {
    let since = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Walltime::from_millis(
        u64::try_from(since.as_millis()).ok()?,
    ))
}

/// Maximum size of a summary, in bytes. Its directory may belong to the user puppet, who could put
/// anything there.
const LARGEST_SUMMARY: u64 = 1 << 20;

/// Reads one of Puppet's summaries.
///
/// # Errors
/// Errors of open(2); also if the file is not a regular file, or too large for a summary.
pub fn read_summary(path: &Path) -> std::io::Result<Vec<u8>> {
    read_regular(path, LARGEST_SUMMARY, 0)
}

fn look(rerun: &Running, later: &[Moment], kind: Kind, now: &Moment) -> Traces {
    let booted = now.wall - now.uptime.since(Boottime::from_nanos(0));
    let rebooted = !now.may_be_under(&rerun.started.boot);
    let next = later
        .iter()
        .map(|at| (at.wall, "another run started"))
        .chain(rebooted.then_some((booted, "the machine was rebooted")))
        .min_by_key(|(at, _)| *at);
    let wrote = std::fs::metadata(&rerun.log)
        .ok()
        .filter(|meta| meta.len() > 0)
        .and_then(|meta| modified(&meta));
    let summary = rerun.lastrunfile.clone().map(|path| {
        let read = || -> std::io::Result<(Walltime, Summary)> {
            let at = modified(&std::fs::metadata(&path)?).unwrap_or_default();
            let text = read_summary(Path::new(&path))?;
            let summary = Summary::parse(&text);
            // The time in the summary, in whole seconds, counts too: an old summary may be put
            // back.
            let own = summary.last_run().map(|seconds| {
                Walltime::from_millis(seconds.saturating_add(1).saturating_mul(1000))
            });
            Ok((own.map_or(at, |own| at.min(own)), summary))
        };
        let summary = read().map_err(|e| match e.kind() {
            ErrorKind::NotFound => format!("there is no summary {path}"),
            _ => format!("the summary {path} cannot be read: {e}"),
        });
        (path, summary)
    });
    Traces {
        kind,
        started: rerun.started.wall,
        stopped: rerun.stopped.clone(),
        wrote,
        next,
        summary,
    }
}

/// Determines the outcome of a rerun from Puppet's summary, if that is certain to be its own.
///
/// A summary holds the outcome of the newest run, whether a rerun or not. A summary from before the
/// rerun, from after the next known run, or from long after the rerun's last line of output is not
/// its own; then the outcome is unknown, and the evidence says why.
fn tell(traces: &Traces) -> Finding {
    let unknown = |why: String| {
        let stopped = traces.stopped.as_ref().map(|how| format!("{how}; "));
        let caution = match traces.wrote {
            None => "; it wrote no output and may not have begun",
            Some(_) => "",
        };
        Finding {
            outcome: Outcome::Unknown,
            evidence: format!("{}{why}{caution}", stopped.unwrap_or_default()),
            ended: traces.wrote,
        }
    };
    let Some((path, summary)) = &traces.summary else {
        return unknown(match traces.kind {
            Kind::Command => "a command that is not puppet's leaves no summary".into(),
            _ => "the path of its summary is not known".into(),
        });
    };
    let (at, summary) = match summary {
        Ok((at, summary)) => (*at, summary),
        Err(why) => return unknown(why.clone()),
    };
    let Some((outcome, numbers)) = summary.outcome() else {
        return unknown(format!("{path} is not a summary"));
    };
    if at < traces.started {
        return unknown(format!(
            "it wrote no summary, like a run that is cut short or cannot start ({path} is older)"
        ));
    }
    if let Some((next, what)) = traces.next
        && at > next
    {
        return unknown(format!(
            "its summary was overwritten: {path} is from after {what}"
        ));
    }
    let caution = match traces.wrote {
        Some(wrote) if at > wrote + AFTER_OUTPUT => {
            return unknown(format!(
                "its summary was overwritten by a later run: {path} was written {} after its last output",
                at.since(wrote)
            ));
        }
        Some(_) => "",
        // A rerun without output: the run that wrote the summary must have begun when the rerun
        // did.
        None => match summary
            .took()
            .map(|took| Span::from_nanos((took * 1e9) as u64))
        {
            Some(took) if at > traces.started + LOADING + took => {
                return unknown(format!(
                    "its summary was overwritten by a later run: the run that wrote {path} began {} later",
                    at.since(traces.started + took)
                ));
            }
            _ => ", the newest since it started",
        },
    };
    let stopped = traces.stopped.as_ref().map(|how| format!("; {how}"));
    Finding {
        outcome,
        evidence: format!(
            "{numbers}, by {path}{caution}{}",
            stopped.unwrap_or_default()
        ),
        ended: Some(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Walltime {
        Walltime::from_millis(seconds * 1000 + 500)
    }

    fn summary(last_run: u64) -> Summary {
        let text = format!(
            "---\nversion:\n  config: 1\nresources:\n  changed: 2\n  failed: 0\ntime:\n  catalog_application: 0.1\n  last_run: {last_run}\n"
        );
        Summary::parse(text.as_bytes())
    }

    /// The summary was written at that second.
    fn traces(written: u64) -> Traces {
        Traces {
            kind: Kind::Apply,
            started: at(100),
            stopped: None,
            wrote: Some(at(110)),
            next: None,
            summary: Some(("/s".into(), Ok((at(written), summary(written))))),
        }
    }

    #[test]
    fn only_its_own_summary_counts() {
        let outcome = |traces: &Traces| tell(traces).outcome;
        for last_run in [100, 110, 111] {
            assert_eq!(outcome(&traces(last_run)), Outcome::Changed, "{last_run}");
        }
        assert_eq!(tell(&traces(110)).evidence, "2 resources changed, by /s");
        for (last_run, why) in [(99, "is older"), (112, "overwritten by a later run")] {
            let told = tell(&traces(last_run));
            assert_eq!(told.outcome, Outcome::Unknown);
            assert!(told.evidence.contains(why), "{told:?}");
            assert_eq!(told.ended, Some(at(110)));
        }
    }

    #[test]
    fn a_silent_rerun_is_told_with_caution() {
        let silent = Traces {
            wrote: None,
            ..traces(500)
        };
        assert_eq!(
            tell(&silent).evidence,
            "2 resources changed, by /s, the newest since it started"
        );
        let timed = |total: u64| {
            let text = format!(
                "version:\n  config: 1\nresources:\n  changed: 2\ntime:\n  catalog_application: 0.1\n  total: {total}.25\n  last_run: 500\n"
            );
            let summary = Some(("/s".into(), Ok((at(500), Summary::parse(text.as_bytes())))));
            tell(&Traces {
                summary,
                ..silent.clone()
            })
        };
        assert_eq!(timed(300).outcome, Outcome::Changed);
        let later = timed(100);
        assert_eq!(later.outcome, Outcome::Unknown);
        assert!(
            later.evidence.contains("overwritten by a later run"),
            "{later:?}"
        );
        let next = Some((at(300), "another run started"));
        assert_eq!(tell(&Traces { next, ..silent }).outcome, Outcome::Unknown);
    }

    #[test]
    fn says_what_kept_it_from_knowing() {
        let no_path = Traces {
            summary: None,
            kind: Kind::Command,
            ..traces(0)
        };
        assert!(tell(&no_path).evidence.contains("not puppet's"));
        let stopped = Traces {
            stopped: Some("ended by TERM".into()),
            ..traces(50)
        };
        assert!(
            tell(&stopped)
                .evidence
                .starts_with("ended by TERM; it wrote no summary")
        );
        let booted = Traces {
            next: Some((at(105), "the machine was rebooted")),
            ..traces(109)
        };
        assert!(
            tell(&booted)
                .evidence
                .contains("from after the machine was rebooted")
        );
    }

    proptest! {
        #[test]
        fn never_by_a_summary_from_before_it_or_from_after_the_next(
            last_run in 0..400u64,
            wrote in proptest::option::of(100..300u64),
            next in proptest::option::of(100..300u64),
        ) {
            let told = tell(&Traces {
                wrote: wrote.map(at),
                next: next.map(|n| (at(n), "another run started")),
                ..traces(last_run)
            });
            if told.outcome != Outcome::Unknown {
                prop_assert!(last_run >= 100);
                prop_assert!(next.is_none_or(|next| last_run <= next));
                prop_assert!(wrote.is_none_or(|wrote| last_run <= wrote + AFTER_OUTPUT.secs()));
                prop_assert!(told.ended >= Some(at(100)));
            }
        }
    }
}
