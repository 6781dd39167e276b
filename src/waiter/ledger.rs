//! A waiter's knowledge of its timer, whether it is on record or not: when the runs ended, when the
//! timer is due, and how far the cap has delayed it.
//!
//! The record is changed only when the waiter goes to sleep, or with the start, so that a rerun
//! that follows immediately costs one change.

use crate::policy::cap;
use crate::policy::waiter::{AtDue, Blocker, Due, Finish, Service, Slot, View};
use crate::state::change::Change;
use crate::state::history::What;
use crate::state::order::Ticket;
use crate::state::record::{Record, Running, Timer, Waits};
use crate::state::standing::Standing;
use again_base::model::{Boottime, Identity, Moment, Obstacle, Span};

/// One waiter's knowledge of its timer.
#[derive(Debug, Clone)]
pub struct Ledger {
    name: String,
    token: String,
    boot: String,
    /// Runs that this waiter saw to have ended, and when it did.
    ended: Vec<(Identity, Boottime)>,
    /// Newest decision of the cap to delay the timer.
    put_off: Option<PutOff>,
}

/// Delay of the timer by the cap.
#[derive(Debug, Clone, Copy)]
struct PutOff {
    due: Boottime,
    by: Span,
    /// Due time in the record at the moment of the decision. While the record still has that value,
    /// it lacks this decision.
    instead_of: Option<Boottime>,
}

/// Reason why a due timer does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The timer is held, for this reason.
    Held(String),
    /// The waiter waits for something.
    Waits(Waits),
}

impl Why {
    /// Reason that the waiter waits for this obstacle.
    pub fn waits(what: Obstacle, words: &str) -> Option<Why> {
        let words = words.to_owned();
        Some(Why::Waits(Waits { what, words }))
    }
}

impl Ledger {
    /// Empty ledger.
    pub fn new(ticket: &Ticket, boot: &str) -> Self {
        Ledger {
            name: ticket.name.clone(),
            token: ticket.token.clone(),
            boot: boot.to_owned(),
            ended: Vec::new(),
            put_off: None,
        }
    }

    /// Name of the timer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Timer of this waiter, if the record still names it.
    pub fn timer<'a>(&self, record: &'a Record) -> Option<&'a Timer> {
        let timer = record.timers.get(&self.name);
        timer.filter(|timer| timer.token == self.token)
    }

    /// Records that a requesting run has ended.
    pub fn saw_end(&mut self, run: Identity, now: Boottime) {
        if !self.ended.iter().any(|(who, _)| *who == run) {
            self.ended.push((run, now));
        }
    }

    /// Due time of the timer, if known: the latest of the times promised under its name, according
    /// to the record and to the knowledge that the record still lacks.
    pub fn due(&self, record: &Record) -> Option<Due> {
        let timer = self.timer(record)?;
        let said = self.said(timer);
        // A hurried timer accepts any run from now on. The delay by the cap is not a part of the
        // requested wait.
        let (delta, jitter) = match timer.hurry {
            true => (Span::ZERO, Span::ZERO),
            false => (timer.delta, timer.jitter + timer.put_off),
        };
        let delta = Span::from_nanos(delta.nanos().saturating_sub(timer.put_off.nanos()));
        let mut due = self.due_of(record, timer.waits_for, said, delta, jitter)?;
        for one in &timer.promises {
            let other = self.due_of(record, one.run, one.due, one.delta, one.jitter)?;
            due.least = due.least.max(other.least);
            due.at = due.at.max(other.at);
        }
        // A run does not do the job of triggers that are not ready for it, unless a person hurries.
        let is_here = timer.boot == self.boot && !timer.hurry;
        if let Some(ready) = timer.ready().filter(|_| is_here) {
            due.least = due.least.max(ready);
            due.at = due.at.max(ready);
        }
        if let Some(put_off) = self.put_off.filter(|off| off.instead_of == said) {
            due.at = put_off.due;
        }
        Some(due)
    }

    /// Due time of one request: the recorded time, or the time counted from the end of its run. The
    /// end of a run is one moment for all its timers, whichever waiter saw it first, so that one
    /// rerun can do the job of several.
    fn due_of(
        &self,
        record: &Record,
        run: Option<Identity>,
        said: Option<Boottime>,
        delta: Span,
        jitter: Span,
    ) -> Option<Due> {
        if let Some(at) = said {
            let least = at.nanos().saturating_sub(jitter.nanos());
            let least = Boottime::from_nanos(least);
            return Some(Due { least, at });
        }
        let seen = self.ended.iter().find(|(who, _)| Some(*who) == run)?;
        let mut noted = record.run_ends.iter();
        let noted = noted.find(|end| Some(end.run) == run && end.boot == self.boot);
        let least = noted.map_or(seen.1, |end| end.at) + delta;
        let at = least + jitter;
        Some(Due { least, at })
    }

    fn said(&self, timer: &Timer) -> Option<Boottime> {
        timer.due.filter(|_| timer.boot == self.boot)
    }

    /// Records that the cap delays the timer.
    pub fn put_off(&mut self, record: &Record, due: Boottime, now: Boottime) {
        self.put_off = Some(PutOff {
            due,
            by: due.since(now),
            instead_of: self.timer(record).and_then(|timer| self.said(timer)),
        });
    }

    /// Forgets a delay by the cap that the record lacks: the record has changed, so the cap decides
    /// again.
    pub fn forget_put_off(&mut self) {
        self.put_off = None;
    }

    /// Writes into the record the knowledge that it lacks, and why the due timer does not start.
    /// Returns whether the record has changed.
    pub fn enter(&self, record: &mut Record, why: Option<&Why>, now: &Moment) -> bool {
        let due = self.due(record).map(|due| due.at);
        let Some(before) = self.timer(record).cloned() else {
            return false;
        };
        let newest_end = record.run_ends.last().cloned();
        for (run, seen) in &self.ended {
            record.run_end(*run, &self.boot, *seen);
        }
        let said = self.said(&before);
        let mut timer = before.clone();
        if let Some(due) = due.filter(|due| said != Some(*due)) {
            timer.due = Some(due);
            timer.due_wall = Some(now.wall + due.since(now.uptime));
            if let Some(put_off) = self.put_off.filter(|off| off.instead_of == said) {
                timer.put_off = timer.put_off + put_off.by;
            }
        }
        (timer.held, timer.waits) = match why.cloned() {
            Some(Why::Held(reason)) => (Some(reason), None),
            Some(Why::Waits(waits)) => (None, Some(waits)),
            None => (None, None),
        };
        let changed = timer != before || record.run_ends.last() != newest_end.as_ref();
        record.timers.insert(self.name.clone(), timer);
        changed
    }

    /// View of the world before the timer is due.
    pub fn view(&self, record: &Record, now: Boottime, run_alive: bool) -> View {
        View {
            now,
            told_to_end: false,
            in_charge: self.timer(record).is_some(),
            run_alive,
            due: self.due(record),
            at_due: None,
        }
    }

    /// View from the record once the timer is due, without the state of the machine.
    pub fn at_due(
        &self,
        record: &Record,
        now: &Moment,
        stands: impl Fn(&Running) -> Standing,
    ) -> Option<AtDue> {
        let timer = self.timer(record)?;
        let lives = |run: &&Running| stands(run) == Standing::Alive;
        let rerun = record.running.iter().find(lives).map(|rerun| Blocker {
            process: rerun.process,
            started: rerun.started.uptime,
        });
        let elsewhere = record.running.iter().find_map(|rerun| match stands(rerun) {
            Standing::Foreign { whose, may_live } => may_live.then_some(whose),
            Standing::Alive | Standing::Ended => None,
        });
        Some(AtDue {
            holder: None,
            ends_after: None,
            rerun,
            elsewhere,
            newest_run: record.newest_run(now),
            shutdown: None,
            disabled: None,
            agent_disabled: None,
            service: Service::None,
            missing: None,
            cap: timer.cap,
            usage: cap::usage(timer.cap, record.moments(), now),
            on_cap: timer.on_cap,
            slot: Slot::Free,
        })
    }

    /// Removes the timer from the record, after the ledger was written into it.
    pub fn take(&self, record: &mut Record, now: &Moment) -> Option<Timer> {
        self.enter(record, None, now);
        self.timer(record)?;
        record.timers.remove(&self.name)
    }

    /// Removes a timer that ends without a rerun from the record, and records why. None if the timer is
    /// to stay.
    pub fn end(&self, record: &mut Record, finish: &Finish, now: Moment) -> Option<Change> {
        let (what, reason) = match finish {
            Finish::Superseded | Finish::Interrupted => return None,
            Finish::Capped(refusal) => (What::Refused, refusal.cause()),
            Finish::Satisfied(by, _) => (What::Satisfied, by.to_string()),
            Finish::ServiceStopped => (What::Stopped, "stopped with the service".to_owned()),
            Finish::Gone(what) => (What::Failed, format!("{what} is not there")),
        };
        let timer = self.take(record, &now)?;
        let change = Change::of_timer(&record.id, &self.name, &timer, what, now.clone());
        if let Finish::Satisfied(_, started) = finish
            && !change.entry.lineage.is_empty()
        {
            record.note_served(*started, change.entry.lineage.clone(), &now);
        }
        if let Finish::Capped(refusal) = finish {
            record.note_refused(&self.name, refusal, now);
            return Some(change.refused(refusal));
        }
        record.note_missed(&self.name, what, &reason, now);
        Some(change.because(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::{Kind, Place, Walltime};
    use proptest::prelude::*;

    const RUN: Identity = Identity { pid: 7, start: 7 };

    fn s(seconds: u64) -> Boottime {
        Boottime::from_nanos(seconds * 1_000_000_000)
    }

    fn at(seconds: u64) -> Moment {
        Moment {
            boot: "b".into(),
            place: Place::default(),
            uptime: s(seconds),
            wall: Walltime::from_millis(seconds * 1000 + 5_000_000),
        }
    }

    fn ledger(name: &str) -> Ledger {
        let ticket = Ticket {
            state_dir: std::path::Path::new("/").into(),
            target: "0123456789abcdef".into(),
            name: name.into(),
            token: format!("token of {name}"),
            run: Some(RUN),
            others: Vec::new(),
        };
        Ledger::new(&ticket, "b")
    }

    /// Timers that wait `delta` and `jitter` after the run's end.
    fn record(names: &[&str], delta: u64, jitter: u64) -> Record {
        let mut record = Record::new("0123456789abcdef", Kind::Apply, 0);
        for name in names {
            let timer = serde_json::json!({
                "token": format!("token of {name}"), "chain": "c", "run": 2, "origin": "run",
                "delta": delta * 1_000_000_000, "jitter": jitter * 1_000_000_000, "base": "end",
                "requested": at(1), "waits_for": RUN,
                "due": null, "due_wall": null, "waiter": null, "boot": "b",
                "cap": {"max_runs": 10, "window": 3600}, "on_cap": "wait",
                "max_runs_total": 30, "hurry": false, "put_off": 0, "place": at(1).place,
            });
            let timer = serde_json::from_value(timer).expect("a timer");
            record.timers.insert((*name).to_owned(), timer);
        }
        record
    }

    fn due(ledger: &Ledger, record: &Record) -> Option<Boottime> {
        ledger.due(record).map(|due| due.at)
    }

    #[test]
    fn the_end_of_a_run_is_one_moment_for_all_its_timers() {
        let mut record = record(&["first", "second"], 2, 0);
        let (mut first, mut second) = (ledger("first"), ledger("second"));
        assert_eq!(due(&second, &record), None, "while the run lives");
        second.saw_end(RUN, s(11));
        assert_eq!(due(&second, &record), Some(s(13)), "as it saw it itself");
        first.saw_end(RUN, s(10));
        assert!(first.enter(&mut record, None, &at(10)));
        assert_eq!(record.timers["first"].due, Some(s(12)));
        assert_eq!(record.timers["first"].due_wall, Some(at(12).wall));
        assert_eq!(
            due(&second, &record),
            Some(s(12)),
            "as the first to write it"
        );
        second.enter(&mut record, None, &at(13));
        assert_eq!(record.timers["second"].due, Some(s(12)));
        assert_eq!(record.run_ends.len(), 1);
    }

    #[test]
    fn what_the_record_was_not_told_of_the_cap_counts_until_somebody_changes_it() {
        let mut record = record(&["again"], 0, 0);
        let mut ledger = ledger("again");
        ledger.saw_end(RUN, s(10));
        assert!(ledger.enter(&mut record, None, &at(10)));
        ledger.put_off(&record, s(40), s(10));
        assert_eq!(
            due(&ledger, &record),
            Some(s(40)),
            "though the record says 10"
        );
        // It could not be written, and is put off once more.
        ledger.put_off(&record, s(60), s(40));
        assert_eq!(due(&ledger, &record), Some(s(60)));
        let mut told = record.clone();
        assert!(ledger.enter(&mut told, None, &at(40)));
        assert_eq!(told.timers["again"].due, Some(s(60)));
        assert_eq!(told.timers["again"].put_off, Span::from_secs(20));
        assert!(!ledger.enter(&mut told, None, &at(41)), "once is enough");
        // 'again now'.
        told.timers.get_mut("again").expect("there").due = Some(s(45));
        assert_eq!(due(&ledger, &told), Some(s(45)));
        ledger.forget_put_off();
        assert_eq!(due(&ledger, &record), Some(s(10)), "the cap is asked again");
    }

    #[test]
    fn a_person_who_does_not_want_to_wait_is_heard_though_the_due_time_was_never_written() {
        let mut record = record(&["again"], 60, 30);
        let mut ledger = ledger("again");
        ledger.saw_end(RUN, s(10));
        assert_eq!(due(&ledger, &record), Some(s(100)));
        record.timers.get_mut("again").expect("there").hurry = true;
        assert_eq!(due(&ledger, &record), Some(s(10)));
        assert_eq!(ledger.due(&record).map(|due| due.least), Some(s(10)));
    }

    /// The jitter, and what the cap added, only spread reruns.
    #[test]
    fn a_run_does_the_job_from_base_and_delta_on() {
        let mut record = record(&["again"], 60, 30);
        let mut ledger = ledger("again");
        ledger.saw_end(RUN, s(10));
        let expected = Due {
            least: s(70),
            at: s(100),
        };
        assert_eq!(ledger.due(&record), Some(expected));
        ledger.enter(&mut record, None, &at(10));
        assert_eq!(ledger.due(&record), Some(expected), "by the record too");
        ledger.put_off(&record, s(150), s(100));
        assert_eq!(ledger.due(&record).map(|due| due.least), Some(s(70)));
        ledger.enter(&mut record, None, &at(100));
        let put_off = Due {
            at: s(150),
            ..expected
        };
        assert_eq!(ledger.due(&record), Some(put_off));
    }

    /// A long run asked first, a short one later.
    #[test]
    fn what_was_promised_to_each_run_is_kept() {
        let other = Identity { pid: 9, start: 9 };
        let mut record = record(&["again"], 0, 0);
        let mut timer = record.timers["again"].clone();
        let old = Timer {
            waits_for: Some(other),
            delta: Span::from_secs(60),
            jitter: Span::from_secs(5),
            ..timer.clone()
        };
        timer.keep_promises(&old, &at(5), |_| true);
        assert!(timer.runs().eq([RUN, other]));
        record.timers.insert("again".into(), timer);
        let mut ledger = ledger("again");
        ledger.saw_end(RUN, s(10));
        assert_eq!(ledger.due(&record), None, "the other one lives");
        assert!(ledger.enter(&mut record, None, &at(10)));
        assert_eq!(record.timers["again"].due, None);
        ledger.saw_end(other, s(20));
        let latest = Due {
            least: s(80),
            at: s(85),
        };
        assert_eq!(ledger.due(&record), Some(latest));
        ledger.enter(&mut record, None, &at(20));
        assert_eq!(due(&ledger, &record), Some(s(85)));
        let timer = record.timers.get_mut("again").expect("there");
        timer.set_pending(
            crate::policy::hurry::Pending {
                due: Some(s(30)),
                hurry: true,
                ..timer.pending()
            },
            &at(30),
        );
        assert_eq!(due(&ledger, &record), Some(s(30)), "'again now'");
    }

    #[test]
    fn a_timer_that_is_anothers_is_left_alone() {
        let mut record = record(&["again"], 0, 0);
        record.timers.get_mut("again").expect("there").token = "newer".into();
        let before = record.clone();
        let mut ledger = ledger("again");
        ledger.saw_end(RUN, s(10));
        assert!(!ledger.enter(&mut record, Some(&Why::Held("held".to_owned())), &at(10)));
        assert_eq!(ledger.take(&mut record, &at(10)), None);
        assert!(!ledger.view(&record, s(10), false).in_charge);
        assert_eq!(record, before);
    }

    proptest! {
        #[test]
        fn writing_changes_nothing_that_is_known_and_is_done_once(
            waits in (0..100u64, 0..100u64, 0..100u64),
            put_off in proptest::collection::vec((0..100u64, 0..100u64, any::<bool>()), 0..6),
            others in proptest::option::of(0..100u64),
            held in proptest::option::of("[a-z]{1,4}"),
        ) {
            let (end, delta, jitter) = waits;
            let why = held.map(Why::Held);
            let mut record = record(&["again"], delta, jitter);
            let mut ledger = ledger("again");
            if let Some(seen) = others {
                record.run_end(RUN, "b", s(seen));
            }
            ledger.saw_end(RUN, s(end));
            let least = s(others.unwrap_or(end) + delta);
            prop_assert_eq!(ledger.due(&record).map(|due| due.least), Some(least));
            for (now, wait, written) in put_off {
                ledger.put_off(&record, s(now + wait), s(now));
                if written {
                    let due = due(&ledger, &record);
                    ledger.enter(&mut record, why.as_ref(), &at(now));
                    prop_assert_eq!(super::tests::due(&ledger, &record), due);
                    prop_assert_eq!(record.timers["again"].due, due);
                    prop_assert!(!ledger.enter(&mut record, why.as_ref(), &at(now + 1)));
                }
            }
            let due = due(&ledger, &record);
            let taken = ledger.take(&mut record, &at(200)).expect("ours");
            prop_assert_eq!(taken.due, due);
            prop_assert!(record.timers.is_empty());
        }
    }
}
