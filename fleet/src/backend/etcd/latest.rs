//! The most recently written values below a prefix, read without everything that is stored there.
//!
//! etcd 3.4 sorts by revision only after it has read everything below the prefix, whatever the
//! limit. Therefore one request reads the newest keys without values. Reading all keys in pages
//! takes longer, since each page makes etcd count all keys that follow. The values are then read by
//! their keys, and no others.

use std::time::Duration;

use etcd_client::{GetOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse};

use super::{Etcd, LONGEST, PAGE, end, error, value};
use crate::backend::{Error, Limit, List, Value, is_latest};

/// Longest time for etcd to sort, for all attempts together.
const SORTING: Duration = Duration::from_secs(20);
/// Longest key that is read, in bytes. Our keys are shorter; etcd accepts keys of 1.5 MB.
const LONGEST_KEY: usize = 4096;
/// Largest number of values that one request reads. etcd allows 128 by default.
const LONGEST_BATCH: usize = 64;
/// Longest answer with several values, in bytes: the client copies the answer.
const LONGEST_ANSWER: usize = 4 << 20;
/// Largest number of bytes of an answer per value, besides the key and the value.
const OVERHEAD: usize = 256;

impl Etcd {
    /// The newest values below a prefix. The bytes received hardly exceed the limit: the client
    /// rejects an answer by its length.
    pub(super) async fn newest_values(&self, prefix: &str, limit: Limit) -> Result<List, Error> {
        let (mut keys, is_more) = self.newest_keys(prefix, limit.values).await?;
        let count = keys.len();
        keys.retain(|key| key.len() <= LONGEST_KEY);
        let mut list = List {
            is_cut: is_more || keys.len() < count,
            ..List::default()
        };
        let (mut rest, mut keys, mut batch) = (limit, &keys[..], LONGEST_BATCH / 4);
        while !keys.is_empty() {
            let (next, later) = keys.split_at(batch.min(keys.len()));
            let longest = if next.len() > 1 {
                LONGEST_ANSWER
            } else {
                LONGEST
            };
            let longest = longest.min(rest.bytes + next.len() * OVERHEAD);
            let values = match self.values(next, longest).await {
                Err(Error::TooLarge) if next.len() > 1 => {
                    batch = (next.len() / 4).max(1);
                    continue;
                }
                Err(Error::TooLarge) => {
                    list.is_cut = true;
                    return Ok(list);
                }
                values => values?,
            };
            for value in values {
                if !rest.take(value.size()) {
                    list.is_cut = true;
                    return Ok(list);
                }
                list.values.push(value);
            }
            keys = later;
            batch = LONGEST_BATCH.min(2 * batch);
        }
        Ok(list)
    }

    /// The most recently written keys, newest first, at most `most` of them, and whether there are
    /// more.
    async fn newest_keys(&self, prefix: &str, most: usize) -> Result<(Vec<Vec<u8>>, bool), Error> {
        let mut limit = i64::try_from(most).unwrap_or(i64::MAX).max(1);
        let mut client = self.client.kv_client().max_decoding_message_size(LONGEST);
        let (before, _) = prefix.split_once('*').unwrap_or((prefix, ""));
        let keys = self.read_within(SORTING, async {
            loop {
                let options = GetOptions::new()
                    .with_range(end(before))
                    .with_keys_only()
                    .with_sort(SortTarget::Mod, SortOrder::Descend)
                    .with_limit(limit);
                match client.get(before, Some(options)).await {
                    // Some keys are long. Each attempt makes etcd sort again, and a page of the
                    // longest keys fits.
                    Err(e) if limit > PAGE && error(&e) == Error::TooLarge => limit = PAGE,
                    answer => return answer,
                }
            }
        });
        let answer = keys.await?;
        let keys = answer.kvs().iter().map(|kv| kv.key());
        let keys = keys.filter(|key| is_latest(&String::from_utf8_lossy(key), prefix));
        Ok((keys.map(<[u8]>::to_vec).collect(), answer.more()))
    }

    /// The values at these keys, except those longer than `longest` bytes. Several are read per
    /// request, and fewer if the answer is too long.
    pub(super) async fn values_up_to(
        &self,
        keys: &[String],
        longest: usize,
    ) -> Result<Vec<Value>, Error> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let (mut rest, mut batch, mut found) = (&keys[..], LONGEST_BATCH, Vec::new());
        while !rest.is_empty() {
            let (next, later) = rest.split_at(batch.min(rest.len()));
            let answer = match next {
                [key] => key.len() + longest + OVERHEAD,
                _ => LONGEST_ANSWER,
            };
            match self.values(next, answer).await {
                Err(Error::TooLarge) if next.len() > 1 => {
                    batch = (next.len() / 4).max(1);
                    continue;
                }
                Err(Error::TooLarge) => {}
                values => found.extend(values?),
            }
            (rest, batch) = (later, LONGEST_BATCH.min(2 * batch));
        }
        found.retain(|value| value.bytes.len() <= longest);
        Ok(found)
    }

    /// The existing values at these keys, in the order of `keys`.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the answer is longer than `longest` bytes.
    async fn values(&self, keys: &[Vec<u8>], longest: usize) -> Result<Vec<Value>, Error> {
        let gets: Vec<TxnOp> = keys
            .iter()
            .map(|key| TxnOp::get(key.clone(), None))
            .collect();
        let mut client = self.client.kv_client().max_decoding_message_size(longest);
        let answer = self.read(client.txn(Txn::new().and_then(gets))).await?;
        let mut values = Vec::new();
        for response in answer.op_responses() {
            if let TxnOpResponse::Get(got) = response {
                values.extend(got.kvs().iter().map(value));
            }
        }
        Ok(values)
    }
}
