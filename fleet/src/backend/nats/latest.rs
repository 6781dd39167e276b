//! The most recently written values below a prefix, read without everything that is stored there.
//!
//! A consumer reads forward only. The headers of the last messages give their sizes, from which the
//! first message to read is computed. A removal is a message too, and counts as a value. A writer
//! can also write long headers and removals, and can make a size look smaller than it is: each read
//! ends when more bytes arrive than its limit, and fewer messages are read instead. All attempts
//! together read at most twice the limit, and about ten megabytes of headers if the limit is 20,000
//! values.

use std::time::Duration;

use super::Nats;
use super::consumer::Start;
use super::messages::Delivered;
use crate::backend::{Change, Error, Limit, List};

/// Bytes of key and headers that a message may have on average. Messages of a fleet have fewer.
const HEADERS: usize = 512;
/// Divisor of the number of messages to read after they had too many bytes together.
const PART: usize = 16;

impl Nats {
    /// The newest values; `None` if some did not arrive, each within `patience`.
    pub(super) async fn latest_once(
        &self,
        prefix: &str,
        limit: Limit,
        patience: Duration,
    ) -> Result<Option<List>, Error> {
        let last = self.stream(prefix).await?.state.last_sequence;
        let (mut fewer, mut is_cut) = (limit, false);
        loop {
            match self.newest_values(prefix, last, fewer, patience).await {
                Err(Error::TooLarge) if fewer.values > 0 => {
                    fewer.values /= PART;
                    fewer.bytes /= 2;
                    is_cut = true;
                }
                Ok(Some(mut list)) => {
                    list.is_cut |= is_cut;
                    return Ok(Some(list));
                }
                other => return other,
            }
        }
    }

    /// Values of the messages; [`Error::TooLarge`] if more bytes arrived than that number of
    /// messages should have.
    async fn newest_values(
        &self,
        prefix: &str,
        last: u64,
        limit: Limit,
        patience: Duration,
    ) -> Result<Option<List>, Error> {
        let start = self.start(prefix, last, limit.values).await?;
        let mut found = Vec::new();
        let see = |Delivered { change, size, .. }: Delivered| {
            let is_value = matches!(change, Change::Put(_));
            found.push((change.revision(), size, is_value));
        };
        let most = limit.values.saturating_mul(HEADERS);
        let headers = self.read(prefix, (Start::Headers(start), last), most, patience, see);
        if headers.await?.is_none() {
            return Ok(None);
        }
        let mut rest = limit;
        let fitting = found.iter().rev();
        let fitting = fitting.take_while(|(_, size, _)| rest.take(*size)).count();
        let (older, newer) = found.split_at(found.len() - fitting);
        let mut list = List {
            is_cut: start > 1 || older.iter().any(|(.., is_value)| *is_value),
            ..List::default()
        };
        let values = newer.iter().filter(|(.., is_value)| *is_value);
        let values: Vec<u64> = values.map(|(revision, ..)| *revision).collect();
        if let (Some(oldest), Some(newest)) = (values.first(), values.last()) {
            let see = |Delivered { change, .. }: Delivered| {
                if let Change::Put(value) = change {
                    list.values.push(value);
                }
            };
            let range = (Start::Number(*oldest), *newest);
            let values = self.read(prefix, range, limit.bytes, patience, see);
            if values.await?.is_none() {
                return Ok(None);
            }
        }
        list.values.reverse();
        Ok(Some(list))
    }

    /// Sequence number from which on there are at most `most` messages below a prefix, or up to an
    /// eighth fewer. Two consumers find it if all messages fit, or if the last numbers of the
    /// stream are still in it; otherwise a binary search does.
    async fn start(&self, prefix: &str, last: u64, most: usize) -> Result<u64, Error> {
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        if self.waiting(prefix, 1).await? <= most {
            return Ok(1);
        }
        let (mut low, mut high) = (2, (last + 1).saturating_sub(most).max(2));
        let mut middle = high;
        loop {
            let waiting = self.waiting(prefix, middle).await?;
            if waiting > most {
                low = middle + 1;
            } else {
                high = middle;
            }
            if low >= high || (most - most / 8..=most).contains(&waiting) {
                return Ok(high);
            }
            middle = low.midpoint(high);
        }
    }

    /// Number of messages below a prefix from a sequence number on, according to a consumer without
    /// a subscriber.
    pub(super) async fn waiting(&self, prefix: &str, from: u64) -> Result<u64, Error> {
        let inbox = self.client.new_inbox();
        self.consume(prefix, Start::Count(from), &inbox).await
    }
}
