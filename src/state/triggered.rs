//! A target's triggers from other nodes: those that wait in its timers, those whose job a run did,
//! and the numbers that are not accepted twice.
//!
//! `triggered/ID` exists for each target that ever accepted a trigger, so that others need not be
//! searched.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::Result;

use super::files::{GUARDED, cannot_write, sync_directory};
use super::record::{Record, Timer};
use super::reruns::Rerun;
use super::store::{Store, is_id, names};
use again_base::model::{Boottime, Identity, Kind, Moment, Provenance, Walltime};
use again_base::schema::origin::{Lineage, Taken, Trigger};

/// Directory with the ids of targets that accepted triggers.
const TRIGGERED: &str = "triggered";
/// Number of runs of others kept that did the job of a timer.
const SERVED_KEPT: usize = 4;
/// Maximum number of trigger numbers that a target keeps.
const MOST_NUMBERS: usize = 4096;

impl Timer {
    /// Earliest start of a run that does the job of all triggers waiting in this timer.
    pub fn ready(&self) -> Option<Boottime> {
        self.taken.iter().map(|taken| taken.ready).max()
    }

    /// Earliest start of a run that does the timer's own job, if known.
    fn least(&self) -> Option<Boottime> {
        Some(self.due? - (self.jitter + self.put_off))
    }

    /// Lineage of the rerun, with the triggers that wait in this timer.
    pub fn whole(&self) -> Lineage {
        let mut whole = self.lineage.clone();
        for taken in &self.taken {
            whole.join(taken.lineage.clone());
        }
        whole
    }

    /// Takes over the lineage of an older request of the same name, and the triggers that waited in
    /// it.
    pub fn take_over(&mut self, old: &Timer) {
        self.lineage.join(old.lineage.clone());
        let mut taken = old.taken.clone();
        if old.boot != self.boot {
            taken
                .iter_mut()
                .for_each(|one| one.begin_anew(self.requested.uptime));
        }
        taken.append(&mut self.taken);
        self.taken = taken;
    }
}

impl Record {
    /// Whether the record has this number, or a higher one of that sender and name.
    pub fn knows(&self, trigger: &Trigger) -> bool {
        let mut numbers = self.numbers.iter().filter(|one| one.is_of(trigger));
        numbers.any(|one| one.number >= trigger.number)
    }

    /// Stores numbers until they expire.
    ///
    /// # Errors
    /// A sentence: there are too many.
    pub fn remember(&mut self, triggers: &[Trigger], now: Walltime) -> Result<(), String> {
        self.numbers.retain(|one| one.until >= now);
        for trigger in triggers.iter().filter(|one| one.until >= now) {
            let mut numbers = self.numbers.iter_mut();
            match numbers.find(|one| one.is_of(trigger)) {
                // The entry also covers lower numbers, some of which may live longer.
                Some(known) => {
                    let until = known.until.max(trigger.until);
                    if known.number < trigger.number {
                        known.clone_from(trigger);
                    }
                    known.until = until;
                }
                None => self.numbers.push(trigger.clone()),
            }
        }
        match self.numbers.len() {
            many if many > MOST_NUMBERS => Err(format!(
                "{many} numbers of triggers would have to be remembered: {MOST_NUMBERS} are"
            )),
            _ => Ok(()),
        }
    }

    /// Whether a number has yet to expire.
    pub fn remembers(&self, now: Walltime) -> bool {
        self.numbers.iter().any(|one| one.until >= now)
    }

    /// Removes the triggers whose job a run that starts now does. Returns their lineage.
    pub fn take_ready(&mut self, now: &Moment) -> Lineage {
        let mut ready = Lineage::default();
        for timer in self.timers.values_mut().filter(|one| one.boot == now.boot) {
            let those = timer.taken.extract_if(.., |one| one.ready <= now.uptime);
            those.for_each(|one| ready.join(one.lineage));
        }
        ready
    }

    /// Records that a run of others, which started at `started`, did the job of a timer.
    pub fn note_served(&mut self, started: Boottime, lineage: Lineage, now: &Moment) {
        if self.served_boot != now.boot {
            self.served.clear();
            self.served_boot.clone_from(&now.boot);
        }
        let surplus = (self.served.len() + 1).saturating_sub(SERVED_KEPT);
        self.served.drain(..surplus);
        self.served.push(Taken {
            from: started,
            ready: started,
            lineage,
        });
    }

    /// Lineage of a run that started at `start`, and its process at `process`: all that was ready
    /// for it, and all whose job it did.
    fn carried(&self, start: Boottime, process: Boottime, now: &Moment) -> Lineage {
        let mut carried = Lineage::default();
        let is_here = |timer: &&Timer| timer.provenance(now) == Provenance::Here;
        let waiting = self.timers.values().filter(is_here);
        for timer in waiting {
            if timer.least().is_some_and(|least| least <= start) {
                carried.join(timer.lineage.clone());
            }
            for taken in timer.taken.iter().filter(|one| one.from <= start) {
                carried.join(taken.lineage.clone());
            }
        }
        let is_known = |one: &&Taken| [process, start].contains(&one.from);
        let served = self.served.iter().filter(is_known);
        for served in served.filter(|_| self.served_boot == now.boot) {
            carried.join(served.lineage.clone());
        }
        carried
    }
}

/// Running run.
#[derive(Debug)]
pub struct Present<'a> {
    /// Process of the run.
    pub who: Identity,
    /// Rerun that this run is, or is below of.
    pub rerun: Option<&'a Rerun>,
    /// Target of the run.
    pub target: &'a str,
    /// Kind of the run.
    pub kind: Kind,
    /// User id of the owner.
    pub uid: u32,
}

impl Store {
    /// Ids of the targets that ever accepted triggers.
    pub fn triggered(&self) -> Vec<String> {
        let mut ids: Vec<String> = names(&self.path().join(TRIGGERED)).collect();
        ids.retain(|id| is_id(id));
        ids
    }

    /// Notes that a target accepts triggers.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn note_triggered(&self, id: &str) -> Result<()> {
        let held = self.below(TRIGGERED)?;
        let path = held.path().join(id);
        if path.symlink_metadata().is_ok() {
            return Ok(());
        }
        let mut options = File::options();
        let made = super::files::open(&path, 0o644, options.write(true).create(true));
        made.map_err(|e| cannot_write(&path, e))?;
        sync_directory(&held.path())?;
        sync_directory(&self.path())
    }

    /// Removes the note that a target accepts triggers.
    pub(super) fn forget_triggered(&self, id: &str) {
        let _ = std::fs::remove_file(self.path().join(TRIGGERED).join(id));
    }

    /// Lineage of a run, whoever started it: its rerun's lineage, and the triggers that were ready
    /// when it started. An agent's run does the job of every timer of an agent.
    pub fn lineage_of(&self, run: &Present<'_>, now: &Moment) -> Lineage {
        let running = run.rerun.and_then(|rerun| rerun.running.as_ref());
        let mut lineage = running.map(|run| run.lineage.clone()).unwrap_or_default();
        let process = run.who.started();
        // The process of a rerun is older than its start: it was its waiter.
        let itself = running.filter(|running| running.process == run.who);
        let start = itself.map_or(process, |running| running.started.uptime);
        for id in self.triggered() {
            let Ok(Some(record)) = self.read(&id) else {
                continue;
            };
            let is_agent = record.kind.is_agent() && run.kind.is_agent();
            if id == run.target || is_agent && record.uid == run.uid {
                lineage.join(record.carried(start, process, now));
            }
        }
        lineage
    }

    /// Waits until a target's record and the orders of its timers are on disk.
    ///
    /// # Errors
    /// The failed operation and its file.
    pub fn keep(&self, record: &Record) -> Result<()> {
        let sync = |path: &std::path::Path| {
            let file = File::options().read(true).custom_flags(GUARDED).open(path);
            file.and_then(|file| again_base::sys::file::sync(&file))
                .map_err(|e| cannot_write(path, e))
        };
        let orders = record.timers.values();
        let orders = orders.map(|timer| self.order_path(&record.id, &timer.token));
        // A missing order loses its timer, which the next command that checks the target reports.
        for order in orders.filter(|order| order.exists()) {
            sync(&order)?;
        }
        sync(&self.record_path(&record.id))?;
        self.sync_names(&record.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::schema::name::Id;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Moment {
        Moment {
            boot: "b".into(),
            uptime: Boottime::from_nanos(seconds),
            wall: Walltime::from_millis(seconds),
            ..Moment::default()
        }
    }

    fn trigger(sender: &str, number: u64, until: u64) -> Trigger {
        Trigger {
            id: Id::from_bits(number.into()),
            sender: sender.parse().expect("a certname"),
            name: "x".parse().expect("a name"),
            number,
            until: Walltime::from_millis(until),
        }
    }

    fn record() -> Record {
        Record::new("0123456789abcdef", Kind::Agent, 0)
    }

    fn timer(due: u64, jitter: u64, readies: &[u64]) -> Timer {
        let timer = serde_json::json!({
            "token": "t", "chain": "c", "run": 1, "origin": "command", "delta": 0, "jitter": jitter,
            "base": "request", "requested": at(0), "waits_for": null, "due": due, "due_wall": null,
            "waiter": null, "boot": "b", "cap": {"max_runs": 10, "window": 3600}, "on_cap": "wait",
            "max_runs_total": 30, "hurry": false, "put_off": 0, "place": at(0).place,
        });
        let mut timer: Timer = serde_json::from_value(timer).expect("a timer");
        for ready in readies {
            let ready = Boottime::from_nanos(*ready);
            let triggers = vec![trigger("n", ready.nanos(), 9)];
            let lineage = Lineage {
                origins: Vec::new(),
                triggers,
            };
            let taken = Taken {
                from: ready,
                ready,
                lineage,
            };
            timer.taken.push(taken);
        }
        timer
    }

    fn numbers(lineage: &Lineage) -> Vec<u64> {
        let mut all: Vec<u64> = lineage.triggers.iter().map(|one| one.number).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_run_takes_what_is_ready_and_no_more() {
        let mut record = record();
        record.timers.insert("a".into(), timer(50, 0, &[10, 30]));
        record.timers.insert("b".into(), timer(60, 0, &[20, 40]));
        let other = Timer {
            boot: "other".into(),
            ..timer(50, 0, &[1])
        };
        record.timers.insert("c".into(), other);
        let start = Boottime::from_nanos(20);
        assert_eq!(numbers(&record.carried(start, start, &at(25))), [10, 20]);
        assert_eq!(numbers(&record.take_ready(&at(20))), [10, 20]);
        assert_eq!(numbers(&record.carried(start, start, &at(25))), [0; 0]);
        assert_eq!(record.timers["a"].ready(), Some(Boottime::from_nanos(30)));
        assert_eq!(numbers(&record.take_ready(&at(100))), [30, 40]);
        assert_eq!(record.timers["a"].ready(), None);
    }

    /// What follows from a run of other nodes is theirs too, whoever then runs it.
    #[test]
    fn the_timer_of_a_rerun_is_carried_from_its_delta_on() {
        let mut record = record();
        let mut own = timer(50, 10, &[]);
        own.lineage.triggers.push(trigger("n", 7, 9));
        record.timers.insert("again".into(), own);
        for (start, carries) in [(39, vec![]), (40, vec![7]), (60, vec![7])] {
            let start = Boottime::from_nanos(start);
            assert_eq!(
                numbers(&record.carried(start, start, &at(70))),
                carries,
                "{start:?}"
            );
        }
    }

    #[test]
    fn the_run_that_did_the_job_is_known_by_its_start() {
        let mut record = record();
        for n in 1..=9 {
            let triggers = vec![trigger("n", n, 9)];
            let lineage = Lineage {
                origins: Vec::new(),
                triggers,
            };
            record.note_served(Boottime::from_nanos(n), lineage, &at(n));
        }
        assert_eq!(record.served.len(), SERVED_KEPT);
        let carried = |process, now: &Moment| {
            numbers(&record.carried(Boottime::default(), Boottime::from_nanos(process), now))
        };
        assert_eq!(
            (
                carried(9, &at(10)),
                carried(8, &at(10)),
                carried(1, &at(10))
            ),
            (vec![9], vec![8], vec![])
        );
        let rebooted = Moment {
            boot: "other".into(),
            ..at(10)
        };
        assert_eq!(carried(9, &rebooted), [0; 0]);
    }

    #[test]
    fn what_waited_in_an_older_timer_waits_in_the_newer() {
        let mut new = timer(90, 0, &[60]);
        new.take_over(&timer(50, 0, &[10]));
        assert_eq!(numbers(&new.whole()), [10, 60]);
        assert_eq!(new.ready(), Some(Boottime::from_nanos(60)));
        let mut new = timer(90, 0, &[]);
        new.requested = at(5);
        new.take_over(&Timer {
            boot: "other".into(),
            ..timer(50, 0, &[1000])
        });
        assert_eq!(new.ready(), Some(Boottime::from_nanos(5)));
    }

    proptest! {
        /// Whatever comes in whatever order: nothing that is known is new, and nothing is forgotten before its time.
        #[test]
        fn numbers_are_known_until_their_time_is_over(
            words in prop::collection::vec((0..3_u8, 0..20_u64, 1..50_u64, 0..9_u64), 1..60)
        ) {
            let mut record = record();
            let mut clock = 0;
            let mut acted: Vec<Trigger> = Vec::new();
            for (sender, number, term, pause) in words {
                clock += pause;
                let now = Walltime::from_millis(clock);
                let one = trigger(&format!("n{sender}"), number, clock + term);
                let known = acted.iter().filter(|other| other.is_of(&one) && other.until >= now);
                let highest = known.map(|other| other.number).max();
                if highest.is_some_and(|highest| highest >= number) {
                    prop_assert!(record.knows(&one));
                }
                if !record.knows(&one) {
                    acted.push(one.clone());
                }
                record.remember(std::slice::from_ref(&one), now).expect("room");
                prop_assert!(record.knows(&one) && record.remembers(now));
                prop_assert!(record.numbers.len() <= 3);
            }
        }
    }

    #[test]
    fn too_many_numbers_are_refused() {
        let mut record = record();
        let all: Vec<Trigger> = (0..=MOST_NUMBERS)
            .map(|n| trigger(&format!("n{n}"), 1, 9))
            .collect();
        assert!(record.remember(&all[1..], Walltime::from_millis(1)).is_ok());
        assert!(
            record
                .remember(&all[..1], Walltime::from_millis(1))
                .is_err()
        );
        assert!(record.remember(&[], Walltime::from_millis(10)).is_ok());
        assert!(record.numbers.is_empty());
    }
}
