//! What a waiter knows of its timer, the record or not: when the run ended, when the
//! timer is due, and what the cap put off.
//!
//! Knowing and writing are two things. The record is changed when the waiter goes to
//! sleep, or with the start: a rerun that follows at once costs one change.

use crate::model::{Boottime, Identity, Moment, Span};
use crate::policy::cap;
use crate::policy::waiter::{AtDue, Blocker, Service, View};
use crate::state::order::Ticket;
use crate::state::record::{Record, Running, Timer};
use crate::state::standing::Standing;

/// What one waiter knows of its timer.
#[derive(Debug, Clone)]
pub struct Ledger {
    name: String,
    token: String,
    run: Option<Identity>,
    boot: String,
    /// The end of the run, once it was seen.
    ended: Option<Ended>,
    /// The newest decision of the cap.
    put_off: Option<PutOff>,
}

/// The run has ended.
#[derive(Debug, Clone, Copy)]
struct Ended {
    /// When this waiter saw it.
    seen: Boottime,
    /// What the timer waits from then on.
    wait: Span,
}

/// The cap has put the timer off.
#[derive(Debug, Clone, Copy)]
struct PutOff {
    due: Boottime,
    by: Span,
    /// What the record said then. While it says so, it was not told of this.
    instead_of: Option<Boottime>,
}

impl Ledger {
    /// A ledger that knows nothing yet.
    pub fn new(ticket: &Ticket, boot: &str) -> Self {
        Ledger {
            name: ticket.name.clone(),
            token: ticket.token.clone(),
            run: ticket.run,
            boot: boot.to_owned(),
            ended: None,
            put_off: None,
        }
    }

    /// The timer's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The waiter's timer, if the record still names it.
    pub fn timer<'a>(&self, record: &'a Record) -> Option<&'a Timer> {
        let timer = record.timers.get(&self.name);
        timer.filter(|timer| timer.token == self.token)
    }

    /// When the timer is due, if that is known: by the record, unless it could not be
    /// told the newest.
    ///
    /// The end of a run is one moment for all its timers, whichever waiter saw it first,
    /// so that one rerun can do the job of several.
    pub fn due(&self, record: &Record) -> Option<Boottime> {
        let timer = self.timer(record)?;
        let said = self.said(timer);
        if let Some(put_off) = self.put_off.filter(|off| off.instead_of == said) {
            return Some(put_off.due);
        }
        said.or_else(|| {
            let ended = self.ended?;
            let wait = if timer.hurry { Span::ZERO } else { ended.wait };
            let noted = record
                .run_ends
                .iter()
                .find(|end| Some(end.run) == self.run && end.boot == self.boot);
            Some(noted.map_or(ended.seen, |end| end.at) + wait)
        })
    }

    fn said(&self, timer: &Timer) -> Option<Boottime> {
        timer.due.filter(|_| timer.boot == self.boot)
    }

    /// Takes note of when the timer is due: first once the run has ended, then whenever
    /// the cap puts it off.
    pub fn set_due(&mut self, record: &Record, due: Boottime, now: Boottime) {
        let wait = due.since(now);
        if self.due(record).is_none() {
            self.ended = Some(Ended { seen: now, wait });
        } else {
            self.put_off = Some(PutOff {
                due,
                by: wait,
                instead_of: self.timer(record).and_then(|timer| self.said(timer)),
            });
        }
    }

    /// Forgets what the cap put off and the record was not told: somebody has changed the
    /// record, so the cap is asked again.
    pub fn forget_put_off(&mut self) {
        self.put_off = None;
    }

    /// Enters into the record what it lacks of all this, and why the timer is held, if it
    /// is. Whether the record has changed.
    pub fn enter(&self, record: &mut Record, held: Option<&str>, now: &Moment) -> bool {
        let due = self.due(record);
        let Some(before) = self.timer(record).cloned() else {
            return false;
        };
        let newest_end = record.run_ends.last().cloned();
        if let (Some(ended), Some(run)) = (self.ended, self.run) {
            record.run_end(run, &self.boot, ended.seen);
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
        timer.held = held.map(str::to_owned);
        let changed = timer != before || record.run_ends.last() != newest_end.as_ref();
        record.timers.insert(self.name.clone(), timer);
        changed
    }

    /// The world as far as it matters before the timer is due.
    pub fn view(&self, record: &Record, now: Boottime, run_alive: bool) -> View {
        let timer = self.timer(record);
        let waiting = timer.filter(|timer| !timer.hurry);
        View {
            now,
            told_to_end: false,
            in_charge: timer.is_some(),
            run_alive,
            due: self.due(record),
            delta: waiting.map_or(Span::ZERO, |timer| timer.delta),
            jitter: waiting.map_or(Span::ZERO, |timer| timer.jitter),
            at_due: None,
        }
    }

    /// What the record says of the world once the timer is due: nothing of the machine.
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
            rerun,
            elsewhere,
            newest_run: record.newest_run(&now.boot),
            disabled: None,
            agent_disabled: None,
            service: Service::None,
            missing: None,
            cap: timer.cap,
            usage: cap::usage(timer.cap, record.moments(), now),
            on_cap: timer.on_cap,
        })
    }

    /// Takes the timer off the record, which is told all of this before.
    pub fn take(&self, record: &mut Record, now: &Moment) -> Option<Timer> {
        self.enter(record, None, now);
        self.timer(record)?;
        record.timers.remove(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, Place, Walltime};
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
        };
        Ledger::new(&ticket, "b")
    }

    fn record(names: &[&str]) -> Record {
        let mut record = Record::new("0123456789abcdef", Kind::Apply, 0);
        for name in names {
            let timer = serde_json::json!({
                "token": format!("token of {name}"), "chain": "c", "run": 2, "origin": "run",
                "delta": 0, "jitter": 0, "base": "end", "requested": at(1), "waits_for": RUN,
                "due": null, "due_wall": null, "waiter": null, "boot": "b",
                "cap": {"max_runs": 10, "window": 3600}, "on_cap": "wait",
            });
            let timer = serde_json::from_value(timer).expect("a timer");
            record.timers.insert((*name).to_owned(), timer);
        }
        record
    }

    #[test]
    fn the_end_of_a_run_is_one_moment_for_all_its_timers() {
        let mut record = record(&["first", "second"]);
        let (mut first, mut second) = (ledger("first"), ledger("second"));
        second.set_due(&record, s(11), s(11));
        assert_eq!(second.due(&record), Some(s(11)), "as it saw it itself");
        first.set_due(&record, s(12), s(10));
        assert!(first.enter(&mut record, None, &at(10)));
        assert_eq!(record.timers["first"].due, Some(s(12)));
        assert_eq!(record.timers["first"].due_wall, Some(at(12).wall));
        assert_eq!(second.due(&record), Some(s(10)), "as the first to write it");
        second.enter(&mut record, None, &at(13));
        assert_eq!(record.timers["second"].due, Some(s(10)));
        assert_eq!(record.run_ends.len(), 1);
    }

    #[test]
    fn what_the_record_was_not_told_of_the_cap_counts_until_somebody_changes_it() {
        let mut record = record(&["again"]);
        let mut ledger = ledger("again");
        ledger.set_due(&record, s(10), s(10));
        assert!(ledger.enter(&mut record, None, &at(10)));
        ledger.set_due(&record, s(40), s(10));
        assert_eq!(
            ledger.due(&record),
            Some(s(40)),
            "though the record says 10"
        );
        // It could not be written, and is put off once more.
        ledger.set_due(&record, s(60), s(40));
        assert_eq!(ledger.due(&record), Some(s(60)));
        let mut told = record.clone();
        assert!(ledger.enter(&mut told, None, &at(40)));
        assert_eq!(told.timers["again"].due, Some(s(60)));
        assert_eq!(told.timers["again"].put_off, Span::from_secs(20));
        assert!(!ledger.enter(&mut told, None, &at(41)), "once is enough");
        // 'again now'.
        told.timers.get_mut("again").expect("there").due = Some(s(45));
        assert_eq!(ledger.due(&told), Some(s(45)));
        ledger.forget_put_off();
        assert_eq!(ledger.due(&record), Some(s(10)), "the cap is asked again");
    }

    #[test]
    fn a_person_who_does_not_want_to_wait_is_heard_though_the_due_time_was_never_written() {
        let mut record = record(&["again"]);
        let mut ledger = ledger("again");
        ledger.set_due(&record, s(100), s(10));
        assert_eq!(ledger.due(&record), Some(s(100)));
        record.timers.get_mut("again").expect("there").hurry = true;
        assert_eq!(ledger.due(&record), Some(s(10)));
        assert_eq!(ledger.view(&record, s(10), false).delta, Span::ZERO);
    }

    #[test]
    fn a_timer_that_is_anothers_is_left_alone() {
        let mut record = record(&["again"]);
        record.timers.get_mut("again").expect("there").token = "newer".into();
        let before = record.clone();
        let mut ledger = ledger("again");
        ledger.set_due(&record, s(100), s(10));
        assert!(!ledger.enter(&mut record, Some("held"), &at(10)));
        assert_eq!(ledger.take(&mut record, &at(10)), None);
        assert!(!ledger.view(&record, s(10), false).in_charge);
        assert_eq!(record, before);
    }

    proptest! {
        #[test]
        fn writing_changes_nothing_that_is_known_and_is_done_once(
            dues in proptest::collection::vec((0..100u64, 0..100u64, any::<bool>()), 1..6),
            others in proptest::option::of(0..100u64),
            held in proptest::option::of("[a-z]{1,4}"),
        ) {
            let mut record = record(&["again"]);
            let mut ledger = ledger("again");
            if let Some(seen) = others {
                record.run_end(RUN, "b", s(seen));
            }
            for (now, wait, written) in dues {
                ledger.set_due(&record, s(now + wait), s(now));
                if written {
                    let due = ledger.due(&record);
                    ledger.enter(&mut record, held.as_deref(), &at(now));
                    prop_assert_eq!(ledger.due(&record), due);
                    prop_assert_eq!(record.timers["again"].due, due);
                    prop_assert!(!ledger.enter(&mut record, held.as_deref(), &at(now + 1)));
                }
            }
            let due = ledger.due(&record);
            let taken = ledger.take(&mut record, &at(200)).expect("ours");
            prop_assert_eq!(taken.due, due);
            prop_assert!(record.timers.is_empty());
        }
    }
}
