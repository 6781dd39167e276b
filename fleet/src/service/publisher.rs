//! When what of the spool is told: one batch at a time, not too many bytes in an hour, and not too soon after a failure.

use std::collections::BTreeSet;

use again_base::model::{Boottime, Span};
use serde::Deserialize;

use super::event_batch::{Chunk, EventBatch, cut};
use super::positions::Positions;
use crate::spool::{LONGEST_READ, RunFile, Spool};
use crate::wire::event::Begun;
use crate::wire::name::Id;

/// Between two batches: each is a signature. Runs do not ring again within half of that.
const PACE: Span = Span::from_nanos(20_000_000);
/// After a failure.
const PAUSE: Span = Span::from_secs(10);
/// How much a node may tell at once, in bytes, and within an hour after that.
const HOURLY: u64 = 8 << 20;

/// How much was told, for `again metrics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Events and ends of runs that the backend has.
    pub sent: u64,
    /// Bytes that wait in the spool.
    pub spooled: u64,
    /// Events that will never be told, and runs that were dropped whole, as one each.
    pub dropped: u64,
}

/// A batch on its way, and the file that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The file.
    pub file: RunFile,
    /// Where the batch begins in it, in bytes.
    offset: u64,
    /// How the run began.
    pub begun: Begun,
    /// What is told of it.
    pub event_batch: EventBatch,
    /// Whether the run has ended with this.
    pub is_last: bool,
}

/// What was told, and when the next may be.
#[derive(Debug)]
pub struct EventPublisher {
    spool: Spool,
    /// How far the files are told.
    positions: Positions,
    /// Runs whose events are all told, and requests that are done; the executor is to mark the files of these, and to remove those.
    pub told: BTreeSet<Id>,
    /// When the executor may be asked to; nothing while it is.
    marks_at: Option<Boottime>,
    /// Why it could not be asked last.
    marks_trouble: Option<String>,
    /// How much was told.
    counts: Counts,
    /// What is on its way.
    under_way: Option<Sent>,
    /// Nothing is told before.
    not_before: Boottime,
    /// Whether anything waits for that.
    waits: bool,
    budget: Budget,
    /// What went wrong last, to be said once.
    trouble: Option<String>,
}

/// How many bytes may be told.
#[derive(Debug)]
struct Budget {
    left: u64,
    at: Boottime,
}

impl Budget {
    /// Takes so much; or when there will be enough.
    fn take(&mut self, bytes: u64, now: Boottime) -> Result<(), Boottime> {
        let nanos = Span::from_secs(3600).nanos() / HOURLY;
        let grown = now.since(self.at).nanos() / nanos;
        self.left = self.left.saturating_add(grown).min(HOURLY);
        self.at = self.at + Span::from_nanos(grown.saturating_mul(nanos));
        match bytes.checked_sub(self.left) {
            Some(missing @ 1..) => Err(now + Span::from_nanos((missing + 1) * nanos)),
            _ => {
                self.left -= bytes;
                Ok(())
            }
        }
    }
}

impl EventPublisher {
    /// Of this spool, where so much was told before.
    pub fn new(
        spool: Spool,
        positions: Positions,
        counts: Counts,
        now: Boottime,
    ) -> EventPublisher {
        EventPublisher {
            spool,
            positions,
            told: BTreeSet::new(),
            marks_at: Some(now),
            marks_trouble: None,
            counts,
            under_way: None,
            not_before: now,
            waits: false,
            budget: Budget {
                left: HOURLY,
                at: now,
            },
            trouble: None,
        }
    }

    /// When it is worth to look again, if nothing is heard until then.
    pub fn wakes(&self) -> Option<Boottime> {
        let marks = self.marks_at.filter(|_| !self.told.is_empty());
        let event_batch = (self.waits && self.under_way.is_none()).then_some(self.not_before);
        [marks, event_batch].into_iter().flatten().min()
    }

    /// Runs and requests for which the executor is asked now.
    pub fn marks(&mut self, now: Boottime) -> Vec<Id> {
        if self.told.is_empty() || self.marks_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.marks_at = None;
        std::mem::take(&mut self.told).into_iter().collect()
    }

    /// The executor has answered, or cannot be asked for this reason. Files that are still unmarked are found again. The reason, if it is news.
    pub fn marked(&mut self, why: Option<String>, now: Boottime) -> Option<String> {
        self.marks_at = Some(now + PAUSE);
        let is_news = why != self.marks_trouble;
        self.marks_trouble.clone_from(&why);
        why.filter(|_| is_news)
    }

    /// What is to be told now; nothing if nothing is, or not yet. It is on its way then.
    ///
    /// # Errors
    /// What is wrong with the spool, told once.
    pub fn next(&mut self, now: Boottime) -> Result<Option<Sent>, String> {
        if self.under_way.is_some() {
            return Ok(None);
        }
        if now < self.not_before {
            self.waits = true;
            return Ok(None);
        }
        self.waits = false;
        match self.look(now) {
            Ok(sent) => {
                self.under_way.clone_from(&sent);
                Ok(sent)
            }
            Err(why) => {
                if !self.waits {
                    self.pause(now);
                }
                self.say(why).map_or(Ok(None), Err)
            }
        }
    }

    /// What is wrong, if that is news.
    fn say(&mut self, why: String) -> Option<String> {
        let is_news = self.trouble.as_ref() != Some(&why);
        self.trouble = Some(why.clone());
        is_news.then_some(why)
    }

    fn pause(&mut self, now: Boottime) {
        (self.not_before, self.waits) = (now + PAUSE, true);
    }

    /// The oldest run that has left something to tell.
    fn look(&mut self, now: Boottime) -> Result<Option<Sent>, String> {
        let directory = self.spool.path().display().to_string();
        let named = |e: std::io::Error| format!("events cannot be read in {directory}: {e}");
        let files = self.spool.waiting().map_err(named)?;
        self.positions.keep(files.iter().map(|(file, _)| &file.run));
        self.counts.spooled = self.untold(&files);
        let mut unread = None;
        for (file, _) in files {
            let offset = self.positions.of(&file.run);
            let read = match self.spool.read(&file, offset) {
                // Whoever makes room for newer ones has removed it.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                // The others are told all the same.
                Err(e) => {
                    unread = Some(named(e));
                    continue;
                }
                Ok(read) => read,
            };
            let event_batch = cut(Chunk {
                bytes: &read.bytes,
                is_last: read.is_last,
                is_full: read.bytes.len() == LONGEST_READ,
            });
            if event_batch.length == 0 {
                self.told.extend(read.is_last.then_some(file.run));
                continue;
            }
            if let Err(at) = self.budget.take(event_batch.length as u64, now) {
                (self.not_before, self.waits) = (at, true);
                let most = HOURLY >> 20;
                return Err(format!(
                    "events wait: this node has told {most} MiB of them within an hour; have it tell fewer, by 'events' of its class"
                ));
            }
            return Ok(Some(Sent {
                begun: self.spool.begun(&file).map_err(named)?,
                file,
                offset,
                is_last: read.is_last && event_batch.length == read.bytes.len(),
                event_batch,
            }));
        }
        unread.map_or(Ok(None), Err)
    }

    /// How many bytes of these files are not told.
    fn untold(&self, files: &[(RunFile, u64)]) -> u64 {
        let untold =
            |(file, size): &(RunFile, u64)| size.saturating_sub(self.positions.of(&file.run));
        files.iter().map(untold).sum()
    }

    /// The backend has what was on its way, or never will.
    ///
    /// # Errors
    /// That is not on disk: the service after this one tells it again.
    pub fn done(&mut self, is_told: bool, now: Boottime) -> Result<(), String> {
        let Some(sent) = self.under_way.take() else {
            return Ok(());
        };
        self.not_before = now + PACE;
        self.waits = true;
        let (told, dropped) = (sent.event_batch.told(), sent.event_batch.dropped());
        let (told, lost) = if is_told { (told, 0) } else { (0, told) };
        self.counts.sent += told;
        self.counts.dropped += dropped + lost;
        // What is over the bound is over it from one portion to the next.
        if self.budget.left >= LONGEST_READ as u64 {
            self.trouble = None;
        }
        self.told
            .extend(sent.is_last.then(|| sent.file.run.clone()));
        let position = sent.offset + sent.event_batch.length as u64;
        let put = self.positions.put(&sent.file.run, position);
        put.or_else(|e| {
            let why = format!("events will be told again after a restart: {e}");
            self.say(why).map_or(Ok(()), Err)
        })
    }

    /// What was on its way is tried again later. Why, if that is news.
    pub fn failed(&mut self, why: String, now: Boottime) -> Option<String> {
        if let Some(sent) = self.under_way.take() {
            self.budget.left += sent.event_batch.length as u64;
        }
        self.pause(now);
        self.say(why)
    }

    /// There is a connection: what waits need not wait longer.
    pub fn reached(&mut self, now: Boottime) {
        self.not_before = now;
    }

    /// How much was told, and how much waits.
    pub fn counts(&mut self) -> Counts {
        if let Ok(files) = self.spool.waiting() {
            self.counts.spooled = self.untold(&files);
        }
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::Path;

    use super::*;
    use crate::wire::event::Line;
    use crate::wire::event::tests::{batch, ended, event};

    fn at(seconds: u64) -> Boottime {
        Boottime::from_nanos(0) + Span::from_secs(seconds)
    }

    /// A run that writes: its file is locked until it is dropped.
    fn run(directory: &Path, number: u128, lines: &[Line]) -> File {
        let path = directory.join(format!("{number}-{}", Id::from_bits(number)));
        let mut file = File::create_new(path).expect("made");
        file.try_lock().expect("locked");
        lines.iter().for_each(|line| write(&mut file, line));
        file
    }

    fn write(file: &mut File, line: &Line) {
        let text = serde_json::to_string(line).expect("JSON");
        writeln!(file, "{text}").expect("written");
    }

    /// With the positions in the same directory.
    fn publisher(directory: &Path) -> EventPublisher {
        let (spool, positions) = (Spool(directory.to_owned()), Positions::open(directory));
        EventPublisher::new(spool, positions, Counts::default(), at(0))
    }

    /// The numbers of what is told next.
    fn next(publisher: &mut EventPublisher, seconds: u64) -> Option<Vec<u64>> {
        let sent = publisher.next(at(seconds)).expect("a good spool")?;
        let events = sent.event_batch.events.iter().map(|event| event.n);
        Some(
            events
                .chain(sent.event_batch.ended.map(|ended| ended.n))
                .collect(),
        )
    }

    #[test]
    fn run_is_told_as_it_goes_and_its_file_is_to_be_marked_at_its_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let begun = Line::Begun(batch().begun);
        let mut file = run(dir.path(), 7, &[begun, Line::Event(event(1))]);
        let mut publisher = publisher(dir.path());
        assert_eq!(next(&mut publisher, 1), Some(vec![1]));
        // One at a time.
        write(&mut file, &Line::Event(event(2)));
        assert_eq!(next(&mut publisher, 1), None);
        publisher.done(true, at(1)).expect("kept");
        assert_eq!(next(&mut publisher, 2), Some(vec![2]));
        publisher.done(true, at(2)).expect("kept");
        // It says nothing, but may yet.
        assert_eq!(next(&mut publisher, 3), None);
        write(&mut file, &Line::Ended(ended(3)));
        assert_eq!(next(&mut publisher, 4), Some(vec![3]));
        publisher.done(true, at(4)).expect("kept");
        assert_eq!(publisher.marks(at(4)), []);
        drop(file);
        assert_eq!(next(&mut publisher, 5), None);
        let run = Id::from_bits(7);
        assert_eq!(publisher.marks(at(5)), std::slice::from_ref(&run));
        assert_eq!((publisher.counts.sent, publisher.counts.dropped), (3, 0));
        // One question at a time. Where the file stays as it is, the executor is asked again later.
        assert_eq!(next(&mut publisher, 6), None);
        assert_eq!(publisher.marks(at(6)), []);
        assert_eq!(
            publisher.marked(Some("gone".to_owned()), at(6)),
            Some("gone".to_owned())
        );
        assert_eq!(publisher.wakes(), Some(at(16)));
        assert_eq!(publisher.marks(at(16)), std::slice::from_ref(&run));
        publisher.spool.mark(&[run]).expect("marked");
        assert_eq!(publisher.marked(None, at(17)), None);
        assert_eq!(
            (next(&mut publisher, 27), publisher.marks(at(27))),
            (None, vec![])
        );
    }

    #[test]
    fn another_service_goes_on_where_the_last_one_was_killed() {
        let dir = tempfile::tempdir().expect("a directory");
        let events = (1..=600).map(|n| Line::Event(event(n)));
        let lines: Vec<Line> = [Line::Begun(batch().begun)]
            .into_iter()
            .chain(events)
            .collect();
        drop(run(dir.path(), 7, &lines));
        let mut told = Vec::new();
        for round in 0.. {
            let mut publisher = publisher(dir.path());
            let Some(numbers) = next(&mut publisher, round) else {
                break;
            };
            // Every second one dies before the backend has answered.
            if round % 2 == 1 {
                told.extend(numbers);
                assert_eq!(
                    publisher.under_way.as_ref().map(|sent| &sent.begun),
                    Some(&batch().begun)
                );
                publisher.done(true, at(round)).expect("kept");
            }
        }
        assert_eq!(told, (1..=600).collect::<Vec<_>>());
    }

    #[test]
    fn what_failed_is_tried_again_later_and_at_once_with_a_new_connection() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(run(dir.path(), 7, &[Line::Event(event(1))]));
        let mut publisher = publisher(dir.path());
        assert_eq!(next(&mut publisher, 1), Some(vec![1]));
        let why = || "no answer".to_owned();
        assert_eq!(publisher.failed(why(), at(1)), Some(why()));
        assert_eq!(publisher.failed(why(), at(1)), None);
        assert_eq!(next(&mut publisher, 2), None);
        assert_eq!(publisher.wakes(), Some(at(11)));
        publisher.reached(at(3));
        assert_eq!(next(&mut publisher, 3), Some(vec![1]));
    }

    #[test]
    fn a_node_that_tells_too_much_waits() {
        let mut budget = Budget {
            left: HOURLY,
            at: at(0),
        };
        assert_eq!(budget.take(HOURLY, at(0)), Ok(()));
        let when = budget.take(HOURLY / 2, at(0)).expect_err("too much");
        assert!((at(1795)..=at(1805)).contains(&when));
        assert_eq!(budget.take(HOURLY / 2, when), Ok(()));
    }

    /// A run could have come from other nodes.
    #[test]
    fn where_the_first_line_is_lost_nobody_knows_who_asked() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = run(dir.path(), 7, &[]);
        writeln!(file, "\0\0\0").expect("written");
        write(&mut file, &Line::Event(event(1)));
        let mut publisher = publisher(dir.path());
        let sent = publisher
            .next(at(1))
            .expect("a good spool")
            .expect("an event");
        assert!(sent.begun.unknown);
        let batch = sent
            .event_batch
            .batch(&batch().node, &sent.file.run, &sent.begun);
        assert!(batch.expect("one").begun.unknown);
    }

    #[test]
    fn that_a_node_has_told_what_it_may_is_said_once() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(run(dir.path(), 7, &[Line::Event(event(1))]));
        let mut publisher = publisher(dir.path());
        publisher.budget.left = 0;
        let why = publisher.next(at(0)).expect_err("too much");
        assert!(why.contains("8 MiB"), "{why}");
        assert!(publisher.wakes() > Some(at(0)));
        publisher.not_before = at(0);
        assert_eq!(publisher.next(at(0)), Ok(None));
        assert_eq!(next(&mut publisher, 3600), Some(vec![1]));
    }

    #[test]
    fn what_others_put_there_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("notes"), "x").expect("written");
        std::os::unix::fs::symlink(
            "/etc/passwd",
            dir.path().join(format!("1-{}", Id::from_bits(1))),
        )
        .expect("linked");
        let mut one = publisher(dir.path());
        assert!(
            one.next(at(1))
                .expect_err("a link")
                .contains("cannot be read")
        );
        // Said once.
        assert_eq!(one.next(at(20)), Ok(None));
        assert!(dir.path().join("notes").exists());
        let nowhere = dir.path().join("none");
        let mut none = publisher(&nowhere);
        assert_eq!((none.next(at(1)), none.wakes()), (Ok(None), None));
        assert_eq!(none.counts(), Counts::default());
    }
}
