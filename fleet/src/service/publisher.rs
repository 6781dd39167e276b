//! Event publisher: it decides when the events of the spool are published. One batch is sent at a
//! time, the bytes per hour are limited, and a failure is followed by a pause.

use std::collections::BTreeSet;

use again_base::model::{Boottime, Span};
use serde::Deserialize;

use super::event_batch::{Chunk, EventBatch, cut};
use super::positions::Positions;
use crate::spool::{LONGEST_READ, RunFile, Spool};
use crate::wire::event::Begun;
use crate::wire::name::Id;

/// Time between two batches, each of which takes a signature. Wakeups are at least half of it
/// apart.
const PACE: Span = Span::from_nanos(20_000_000);
/// Pause after a failure.
const PAUSE: Span = Span::from_secs(10);
/// Largest number of bytes that a node may publish in one burst, and in each hour after that.
const HOURLY: u64 = 8 << 20;

/// Numbers of events, for `again metrics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Events and ends of runs that the backend has.
    pub sent: u64,
    /// Bytes that wait in the spool.
    pub spooled: u64,
    /// Events that will never be published; a run that was dropped whole counts as one.
    pub dropped: u64,
}

/// Batch that is being sent, and the file that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// File of the run.
    pub file: RunFile,
    /// Offset of the batch in the file, in bytes.
    offset: u64,
    /// Beginning of the run.
    pub begun: Begun,
    /// Events of the batch.
    pub event_batch: EventBatch,
    /// Whether the run has ended and nothing follows the batch.
    pub is_last: bool,
}

/// Events that were published, and the time of the next batch.
#[derive(Debug)]
pub struct EventPublisher {
    spool: Spool,
    positions: Positions,
    /// Runs whose events are all published, and requests that are done: the executor is to mark the
    /// files of the runs and to remove the requests.
    pub told: BTreeSet<Id>,
    /// Earliest time of the next request to the executor; none while one is open.
    marks_at: Option<Boottime>,
    /// Last error of such a request.
    marks_trouble: Option<String>,
    counts: Counts,
    /// Batch that is being sent.
    under_way: Option<Sent>,
    /// Earliest time of the next batch.
    not_before: Boottime,
    /// Whether events wait for that time.
    waits: bool,
    budget: Budget,
    /// Last error, which is reported once.
    trouble: Option<String>,
}

/// Number of bytes that may be published, which grows with time.
#[derive(Debug)]
struct Budget {
    left: u64,
    at: Boottime,
}

impl Budget {
    /// Takes a number of bytes. If there are too few, returns the time at which there will be
    /// enough.
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
    /// Creates a publisher for this spool, with the counts of earlier services.
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

    /// Time of the next check unless something happens before; none if nothing waits.
    pub fn wakes(&self) -> Option<Boottime> {
        let marks = self.marks_at.filter(|_| !self.told.is_empty());
        let event_batch = (self.waits && self.under_way.is_none()).then_some(self.not_before);
        [marks, event_batch].into_iter().flatten().min()
    }

    /// Takes the runs and requests for which the executor is to be asked now.
    pub fn marks(&mut self, now: Boottime) -> Vec<Id> {
        if self.told.is_empty() || self.marks_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.marks_at = None;
        std::mem::take(&mut self.told).into_iter().collect()
    }

    /// Records that the executor has answered, or why it could not be asked. Returns the reason if
    /// it is a new one. Files that are still unmarked are found again.
    pub fn marked(&mut self, why: Option<String>, now: Boottime) -> Option<String> {
        self.marks_at = Some(now + PAUSE);
        let is_news = why != self.marks_trouble;
        self.marks_trouble.clone_from(&why);
        why.filter(|_| is_news)
    }

    /// Takes the next batch; none if there is none, or not yet. The batch counts as being sent
    /// until [`EventPublisher::done`] or [`EventPublisher::failed`].
    ///
    /// # Errors
    /// The spool cannot be read, or the bytes of this hour are used up. The same error is returned
    /// once.
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

    /// Records an error. Returns it if it is a new one.
    fn say(&mut self, why: String) -> Option<String> {
        let is_news = self.trouble.as_ref() != Some(&why);
        self.trouble = Some(why.clone());
        is_news.then_some(why)
    }

    fn pause(&mut self, now: Boottime) {
        (self.not_before, self.waits) = (now + PAUSE, true);
    }

    /// Finds the oldest run that has events to publish.
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
                // The file was removed to make room for newer ones.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                // Events of other runs are published all the same.
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

    /// Number of bytes of these files that are not published.
    fn untold(&self, files: &[(RunFile, u64)]) -> u64 {
        let untold =
            |(file, size): &(RunFile, u64)| size.saturating_sub(self.positions.of(&file.run));
        files.iter().map(untold).sum()
    }

    /// Records that the backend has the batch, or never will.
    ///
    /// # Errors
    /// The position is not on disk: the next service publishes the batch again.
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
        // While the bytes of this hour are nearly used up, the error is kept, so that it is
        // reported once.
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

    /// Records that the batch could not be sent; it is sent again later. Returns the reason if it
    /// is a new one.
    pub fn failed(&mut self, why: String, now: Boottime) -> Option<String> {
        if let Some(sent) = self.under_way.take() {
            self.budget.left += sent.event_batch.length as u64;
        }
        self.pause(now);
        self.say(why)
    }

    /// Records a new connection: waiting events need not wait longer.
    pub fn reached(&mut self, now: Boottime) {
        self.not_before = now;
    }

    /// Counts, with the current number of bytes that wait.
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
