//! PURE: cuts the lines that a run has left into batches of events.

use crate::wire::event::{Batch, Begun, Ended, Event, Line, MOST_EVENTS};
use crate::wire::name::{Id, Node};

/// Largest size in bytes of the lines of one batch, and of a run's end that is published together
/// with events before it.
const MOST_BYTES: usize = 32 << 10;

/// Chunk of a run's file, from the beginning of a line.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'p> {
    /// Bytes of the chunk.
    pub bytes: &'p [u8],
    /// Whether nothing will ever follow these bytes.
    pub is_last: bool,
    /// Whether a line that does not end in this chunk is longer than any line may be.
    pub is_full: bool,
}

/// Events of a run that are published together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventBatch {
    /// Beginning of the run, if it is in this batch.
    pub begun: Option<Begun>,
    /// Events of the run.
    pub events: Vec<Event>,
    /// End of the run, if it is in this batch.
    pub ended: Option<Ended>,
    /// Number of bytes of the file that this batch covers.
    pub length: usize,
    /// Number of lines in these bytes that cannot be read.
    pub unread: u64,
}

/// Cuts whole lines off a chunk, as many as are published together. A batch of length 0 has to wait
/// for more bytes.
pub fn cut(chunk: Chunk<'_>) -> EventBatch {
    let mut event_batch = EventBatch::default();
    loop {
        let rest = &chunk.bytes[event_batch.length..];
        let end = rest.iter().position(|byte| *byte == b'\n');
        let Some(end) = end else {
            // Either the run was killed while it wrote this line, or this is not a line at all.
            if !rest.is_empty() && (chunk.is_last || (chunk.is_full && event_batch.length == 0)) {
                event_batch.unread += 1;
                event_batch.length = chunk.bytes.len();
            }
            return event_batch;
        };
        let line = Line::read(&rest[..end]);
        let is_first = event_batch.events.is_empty();
        match line {
            Ok(Line::Ended(_)) if !is_first && end > MOST_BYTES => return event_batch,
            Ok(Line::Event(_)) if !is_first && !has_room(&event_batch, end) => return event_batch,
            Ok(Line::Begun(begun)) => event_batch.begun = Some(begun),
            Ok(Line::Event(event)) => event_batch.events.push(event),
            Ok(Line::Ended(ended)) => event_batch.ended = Some(ended),
            Err(_) => event_batch.unread += 1,
        }
        event_batch.length += end + 1;
        if event_batch.ended.is_some() {
            return event_batch;
        }
    }
}

fn has_room(event_batch: &EventBatch, more: usize) -> bool {
    event_batch.length + more <= MOST_BYTES && event_batch.events.len() < MOST_EVENTS
}

impl EventBatch {
    /// Value for the backend; none if there is nothing to publish. `begun` is how the run began.
    pub fn batch(&self, node: &Node, run: &Id, begun: &Begun) -> Option<Batch> {
        let batch = Batch {
            node: node.clone(),
            run: run.clone(),
            begun: begun.clone(),
            events: self.events.clone(),
            ended: self.ended.clone(),
        };
        (batch.first() > 0).then_some(batch)
    }

    /// Number of events that will never be published: lines that cannot be read, and events that
    /// the run itself had no room for.
    pub fn dropped(&self) -> u64 {
        let begun = self.begun.as_ref().map_or(0, |begun| begun.lost);
        let ended = self.ended.as_ref().map_or(0, |ended| ended.dropped);
        self.unread.saturating_add(begun).saturating_add(ended)
    }

    /// Number of events in the batch; the end of the run counts as one.
    pub fn told(&self) -> u64 {
        self.events.len() as u64 + u64::from(self.ended.is_some())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::body::encode;
    use crate::wire::event::tests::{batch, ended, event};

    fn file(lines: &[Line]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, line).expect("JSON");
            bytes.push(b'\n');
        }
        bytes
    }

    fn run(events: u64) -> Vec<Line> {
        let begun = Line::Begun(batch().begun);
        let events = (1..=events).map(|n| Line::Event(event(n)));
        let end = Line::Ended(ended(events.clone().count() as u64 + 1));
        [begun].into_iter().chain(events).chain([end]).collect()
    }

    fn whole(bytes: &[u8]) -> Chunk<'_> {
        Chunk {
            bytes,
            is_last: true,
            is_full: false,
        }
    }

    #[test]
    fn a_small_run_is_told_at_once() {
        let bytes = file(&run(2));
        let event_batch = cut(whole(&bytes));
        assert_eq!(
            (
                event_batch.length,
                event_batch.told(),
                event_batch.dropped()
            ),
            (bytes.len(), 3, 0)
        );
        let (node, id) = (batch().node, batch().run);
        let begun = event_batch.begun.clone().expect("the beginning");
        assert_eq!(event_batch.batch(&node, &id, &begun), Some(batch()));
    }

    #[test]
    fn a_line_that_has_not_ended_waits_unless_nothing_follows() {
        let bytes = file(&run(1));
        let chunk = |is_last| Chunk {
            is_last,
            ..whole(&bytes[..bytes.len() - 1])
        };
        let event_batch = cut(chunk(false));
        assert_eq!((event_batch.told(), event_batch.ended.clone()), (1, None));
        let rest = Chunk {
            bytes: &chunk(false).bytes[event_batch.length..],
            ..chunk(false)
        };
        assert_eq!(cut(rest), EventBatch::default());
        let event_batch = cut(chunk(true));
        assert_eq!(
            (event_batch.length, event_batch.unread),
            (bytes.len() - 1, 1)
        );
    }

    #[test]
    fn a_line_that_never_ends_is_passed_over() {
        let chunk = Chunk {
            bytes: &[b'x'; 99],
            is_last: false,
            is_full: true,
        };
        let event_batch = cut(chunk);
        assert_eq!((event_batch.length, event_batch.dropped()), (99, 1));
    }

    #[test]
    fn what_found_no_room_is_counted() {
        let mut lines = run(1);
        if let Some(Line::Ended(ended)) = lines.last_mut() {
            ended.dropped = 5;
        }
        if let Some(Line::Begun(begun)) = lines.first_mut() {
            begun.lost = 2;
        }
        let mut bytes = file(&lines);
        bytes.splice(0..0, b"garbage\n".iter().copied());
        assert_eq!(cut(whole(&bytes)).dropped(), 8);
    }

    proptest! {
        /// Wherever a file is cut, each event is told once, in order, in batches that may be sent.
        #[test]
        fn nothing_is_lost_or_told_twice(
            count in 0..900_u64, reads in prop::collection::vec(1..70_000_usize, 1..40), long in 0..60_000_usize
        ) {
            let mut lines = run(count);
            if let Some(Line::Ended(ended)) = lines.last_mut() {
                ended.classes = vec!["x".repeat(500); long / 500];
            }
            let bytes = file(&lines);
            let (mut offset, mut seen, mut told) = (0_usize, 0_usize, Vec::new());
            let mut reads = reads.into_iter().chain(std::iter::repeat(usize::MAX));
            while offset < bytes.len() {
                seen = bytes.len().min(seen.saturating_add(reads.next().expect("endless")).max(offset));
                let is_last = seen == bytes.len();
                let event_batch = cut(Chunk { bytes: &bytes[offset..seen], is_last, is_full: false });
                prop_assert!(event_batch.length > 0 || !is_last);
                offset += event_batch.length;
                if let Some(batch) = event_batch.batch(&batch().node, &batch().run, &batch().begun) {
                    prop_assert!(encode(&batch).is_ok());
                    told.extend(batch.events.iter().map(|event| event.n));
                    told.extend(batch.ended.map(|ended| ended.n));
                }
                prop_assert_eq!(event_batch.dropped(), 0);
            }
            prop_assert_eq!(told, (1..=count + 1).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_dealt_with(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let event_batch = cut(whole(&bytes));
            prop_assert_eq!(event_batch.length, bytes.len());
        }
    }
}
