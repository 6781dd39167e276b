//! etcd 3, over gRPC. The server knows this node by the common name of its certificate.

/// Errors of etcd's client.
mod errors;
/// Most recently written values.
mod latest;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, KeyValue, LeaseKeepAliveStream, LeaseKeeper,
    PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchFilterType, WatchOptions,
    WatchStream,
};
use futures_util::future::join_all;
use rand::seq::IndexedRandom;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use self::errors::{error, words};
use super::shares::Sorter;
use super::{Backend, Change, Error, Feed, Health, Limit, List, Shares, Times, Tls, Value};

/// Time that a value may live longer than requested, so that many values share a lease.
const SLACK: Duration = Duration::from_secs(3600);

/// Bytes that the store may use while more events are accepted: half of the least quota that the
/// Puppet class sets.
const ROOM: i64 = 128 << 20;
/// Time for which an answer that there is room counts.
const ROOM_LASTS: Duration = Duration::from_secs(1);

/// Number of values in the first page, and the longest answer in bytes: that many values of etcd's
/// default maximum size.
const PAGE: i64 = 16;
const LONGEST: usize = 32 << 20;
/// Largest number of values in a later page, if the values are small. If an answer is too long, the
/// page shrinks by the factor `PARTS`.
const LONG_PAGE: i64 = 256;
const PARTS: i64 = 16;

/// Client of etcd.
pub struct Etcd {
    client: Client,
    times: Times,
    /// Leases of values that have a TTL, and the end of each, soonest first.
    shared: RefCell<Vec<(Instant, i64)>>,
    /// Revision of the store, if the last renewal returned it.
    newest: Cell<Option<u64>>,
    /// Time until which the last answer that there is room counts.
    has_room: Cell<Option<Instant>>,
}

/// A lease with the stream of its renewals. A new stream for each renewal would need more round
/// trips.
pub struct Lease {
    id: i64,
    renewals: RefCell<Option<(LeaseKeeper, LeaseKeepAliveStream)>>,
}

/// A random server among those that accept connections, or among all if none does. A client of
/// several servers has a connection to each, and a renewal over one of them says nothing of the
/// others.
pub async fn one_of(endpoints: &[String], patience: Duration) -> Option<&String> {
    let takes = |endpoint: &String| {
        let address = endpoint.split("://").last().unwrap_or_default().to_owned();
        async move {
            matches!(
                timeout(patience, TcpStream::connect(address)).await,
                Ok(Ok(_))
            )
        }
    };
    let mut left: Vec<&String> = endpoints.iter().collect();
    if endpoints.len() > 1 {
        let taken = join_all(endpoints.iter().map(takes)).await;
        let those = endpoints.iter().zip(taken).filter(|(_, takes)| *takes);
        let those: Vec<&String> = those.map(|(endpoint, _)| endpoint).collect();
        if !those.is_empty() {
            left = those;
        }
    }
    left.choose(&mut rand::rng()).copied()
}

impl Etcd {
    /// A client of these servers (`https://HOST:PORT` each), which connects when it is used.
    ///
    /// # Errors
    /// An address is not a server's, or a certificate file cannot be used.
    pub async fn new(endpoints: &[String], tls: Option<&Tls>, times: Times) -> Result<Etcd, Error> {
        let channel = super::dial::channel(endpoints, tls, times.call)?;
        let client = Client::from_channel(channel, None).await;
        let client = client.map_err(|e| Error::Unreachable(words(&e)))?;
        Ok(Etcd {
            client,
            times,
            shared: RefCell::default(),
            newest: Cell::new(None),
            has_room: Cell::new(None),
        })
    }

    /// State that the server reports: alarms such as NOSPACE, or a missing leader.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn health(&self) -> Result<Health, Error> {
        let mut client = self.client.clone();
        let status = self.read(client.status()).await?;
        Ok(Health {
            version: status.version().to_owned(),
            alarms: status.errors().to_vec(),
        })
    }

    /// Whether this node may read below a prefix.
    ///
    /// # Errors
    /// The node may not, or the server did not answer.
    pub async fn may_read(&self, prefix: &str) -> Result<(), Error> {
        let options = GetOptions::new()
            .with_range(end(prefix))
            .with_keys_only()
            .with_limit(1);
        let mut client = self.client.clone();
        self.read(client.get(prefix, Some(options))).await.map(drop)
    }

    /// Makes a call that only reads: without an answer, nothing has changed.
    async fn read<T>(
        &self,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        self.read_within(self.times.call, call).await
    }

    async fn read_within<T>(
        &self,
        time: Duration,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        match within(time, call).await {
            Err(Error::Unknown(why)) => Err(Error::Unreachable(why)),
            other => other,
        }
    }

    /// Values below a prefix in the order of keys, without those that the sorter rejects; or, if
    /// `until` is not 0, the values up to that revision in the order of revisions, until there are
    /// `most` of them.
    async fn pages(
        &self,
        prefix: &str,
        (until, most): (u64, usize),
        mut sorter: Option<&mut Sorter<'_>>,
    ) -> Result<List, Error> {
        let mut list = List::default();
        let mut from = prefix.as_bytes().to_vec();
        let (mut page, mut longest, mut least) = (PAGE, LONG_PAGE, 0);
        if until > 0 {
            // For each of these pages the backend reads everything below the prefix.
            page = LONG_PAGE.min(i64::try_from(most).unwrap_or(LONG_PAGE));
        }
        loop {
            let options = GetOptions::new()
                .with_range(end(prefix))
                .with_limit(page.max(1));
            // All pages are of the same revision.
            let mut options = options.with_revision(signed(list.revision));
            // A value that is too long on its own is not ours: only its key is read.
            if page == 0 {
                options = options.with_keys_only();
            }
            if until > 0 {
                options = options.with_sort(SortTarget::Mod, SortOrder::Ascend);
                options = options.with_max_mod_revision(signed(until));
                options = options.with_min_mod_revision(least);
            }
            let mut client = self.client.kv_client().max_decoding_message_size(LONGEST);
            let answer = match self.read(client.get(from.clone(), Some(options))).await {
                Err(Error::TooLarge) if page > 0 => {
                    page /= PARTS;
                    longest = page.max(1);
                    continue;
                }
                answer => answer?,
            };
            if let Some(header) = answer.header().filter(|_| list.revision == 0) {
                list.revision = number(header.revision());
                list.store = format!("etcd {:x}", header.cluster_id());
            }
            let mut skip = Vec::new();
            for value in answer.kvs().iter().map(value) {
                let is_taken = |sorter: &mut &mut Sorter<'_>| {
                    let is_taken = sorter.takes(&value.key, value.size());
                    skip = sorter.skips(&value.key).unwrap_or_default();
                    is_taken
                };
                if sorter.as_mut().is_none_or(is_taken) {
                    list.values.push(value);
                }
            }
            match answer.kvs().last() {
                Some(last) if answer.more() && list.values.len() < most => {
                    if until > 0 {
                        least = last.mod_revision() + 1;
                    } else {
                        from = skip.max([last.key(), &[0]].concat());
                    }
                    page = longest.min(i64::try_from(most).unwrap_or(longest));
                    longest = LONG_PAGE.min(2 * longest);
                }
                _ => return Ok(list),
            }
        }
    }

    async fn watch(
        &self,
        prefix: &str,
        after: u64,
        filters: &[WatchFilterType],
    ) -> Result<Following, Error> {
        let client = self.client.watch_client();
        let mut client = client.max_decoding_message_size(LONGEST);
        let options = WatchOptions::new()
            .with_range(end(prefix))
            .with_fragment()
            .with_filters(filters)
            .with_start_revision(signed(after).saturating_add(1));
        let stream = self.read(client.watch(prefix, Some(options))).await?;
        Ok(Following {
            stream,
            ready: VecDeque::new(),
        })
    }

    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        within(self.times.call, call).await
    }

    /// A lease for a value that is to live for `ttl`. The value may live longer, and may share the
    /// lease with others.
    async fn shared(&self, ttl: Duration) -> Result<i64, Error> {
        let now = Instant::now();
        let slack = ttl.min(SLACK);
        let fits = {
            let mut shared = self.shared.borrow_mut();
            shared.retain(|(ends, _)| *ends > now);
            let fits = shared
                .iter()
                .find(|(ends, _)| (now + ttl..=now + ttl + slack).contains(ends));
            fits.map(|(_, lease)| *lease)
        };
        if let Some(lease) = fits {
            return Ok(lease);
        }
        let lease = self.new_lease(ttl + slack).await?;
        self.shared.borrow_mut().push((now + ttl + slack, lease));
        Ok(lease)
    }

    async fn new_lease(&self, length: Duration) -> Result<i64, Error> {
        let seconds = i64::try_from(length.as_secs().max(1)).unwrap_or(i64::MAX);
        let mut client = self.client.clone();
        Ok(self.call(client.lease_grant(seconds, None)).await?.id())
    }

    /// Runs `act` if all conditions hold; otherwise returns the value of the key.
    async fn if_so(
        &self,
        key: &str,
        conditions: impl Into<Vec<Compare>>,
        act: TxnOp,
    ) -> Result<Result<u64, Option<Value>>, Error> {
        let txn = Txn::new()
            .when(conditions)
            .and_then([act])
            .or_else([TxnOp::get(key, None)]);
        let mut client = self.client.clone();
        let answer = self.call(client.txn(txn)).await?;
        if answer.succeeded() {
            return Ok(Ok(answer
                .header()
                .map_or(0, |header| number(header.revision()))));
        }
        let there = answer
            .op_responses()
            .into_iter()
            .find_map(|response| match response {
                TxnOpResponse::Get(got) => got.kvs().first().map(value),
                _ => None,
            });
        Ok(Err(there))
    }
}

impl Backend for Etcd {
    type Feed = Following;
    type Lease = Lease;

    async fn list(&self, prefix: &str) -> Result<List, Error> {
        self.pages(prefix, (0, usize::MAX), None).await
    }

    async fn list_shares(&self, prefix: &str, mut sorter: Sorter<'_>) -> Result<Shares, Error> {
        let all = (0, usize::MAX);
        let list = self.pages(prefix, all, Some(&mut sorter)).await?;
        Ok(Shares::new(list, sorter))
    }

    async fn latest(&self, prefix: &str, limit: Limit) -> Result<List, Error> {
        self.newest_values(prefix, limit).await
    }

    async fn oldest(&self, prefix: &str, until: u64, most: usize) -> Result<List, Error> {
        self.pages(prefix, (until, most), None).await
    }

    async fn follow(&self, prefix: &str, after: u64) -> Result<Following, Error> {
        self.watch(prefix, after, &[]).await
    }

    async fn get(&self, keys: &[String], longest: usize) -> Result<Vec<Value>, Error> {
        self.values_up_to(keys, longest).await
    }

    async fn follow_removals(&self, prefix: &str, after: u64) -> Result<Following, Error> {
        self.watch(prefix, after, &[WatchFilterType::NoPut]).await
    }

    async fn put(&self, key: &str, bytes: &[u8], ttl: Option<Duration>) -> Result<u64, Error> {
        for is_last in [false, true] {
            let mut options = PutOptions::new();
            if let Some(ttl) = ttl {
                options = options.with_lease(self.shared(ttl).await?);
            }
            let mut client = self.client.clone();
            match self.call(client.put(key, bytes, Some(options))).await {
                // The lease no longer exists: the data was lost, or an administrator revoked it.
                Err(Error::Conflict) if !is_last => self.shared.borrow_mut().clear(),
                answer => {
                    return Ok(answer?
                        .header()
                        .map_or(0, |header| number(header.revision())));
                }
            }
        }
        Err(Error::Conflict)
    }

    async fn create(&self, key: &str, bytes: &[u8], lease: &Lease) -> Result<u64, Error> {
        let put = TxnOp::put(key, bytes, Some(PutOptions::new().with_lease(lease.id)));
        self.if_so(key, [is_absent(key)], put)
            .await?
            .map_err(|_| Error::Conflict)
    }

    const HAS_PLACES: bool = true;

    async fn replace(
        &self,
        key: &str,
        bytes: &[u8],
        revision: u64,
        lease: &Lease,
    ) -> Result<u64, Error> {
        let put = TxnOp::put(key, bytes, Some(PutOptions::new().with_lease(lease.id)));
        self.if_so(key, [is_of(key, revision)], put)
            .await?
            .map_err(|_| Error::Conflict)
    }

    async fn put_unless(&self, key: &str, bytes: &[u8], other: &str) -> Result<u64, Error> {
        let put = TxnOp::put(key, bytes, None);
        self.if_so(other, [is_absent(other)], put)
            .await?
            .map_err(|_| Error::Conflict)
    }

    fn number(&self, lease: &Lease) -> i64 {
        lease.id
    }

    fn lease(&self, number: i64) -> Option<Lease> {
        Some(Lease {
            id: number,
            renewals: RefCell::default(),
        })
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<(), Error> {
        let delete = TxnOp::delete(key, None);
        match self.if_so(key, [is_of(key, revision)], delete).await? {
            Ok(_) | Err(None) => Ok(()),
            Err(Some(_)) => Err(Error::Conflict),
        }
    }

    async fn remove_while(
        &self,
        key: &str,
        revision: u64,
        (other, at): (&str, u64),
    ) -> Result<(), Error> {
        let conditions = [is_of(key, revision), is_of(other, at)];
        let delete = TxnOp::delete(key, None);
        let removed = self.if_so(key, conditions, delete).await?;
        removed.map(drop).map_err(|_| Error::Conflict)
    }

    async fn grant(&self) -> Result<Lease, Error> {
        let id = self.new_lease(self.times.lease).await?;
        Ok(Lease {
            id,
            renewals: RefCell::default(),
        })
    }

    async fn renew(&self, lease: &Lease) -> Result<(), Error> {
        let renewals = lease.renewals.take();
        let renewed = self
            .call(async {
                let Some((mut keeper, mut answers)) = renewals else {
                    // The first answer is awaited here; it has no other use.
                    let renewals = self.client.clone().lease_keep_alive(lease.id).await?;
                    return Ok((renewals, None));
                };
                keeper.keep_alive().await?;
                let ended = || etcd_client::Error::LeaseKeepAliveError("no answer".to_owned());
                let answer = answers.message().await?.ok_or_else(ended)?;
                if answer.ttl() <= 0 {
                    return Err(ended());
                }
                let revision = answer.header().map(|header| number(header.revision()));
                Ok(((keeper, answers), revision))
            })
            .await;
        self.newest
            .set(renewed.as_ref().map_or(None, |(_, newest)| *newest));
        lease.renewals.replace(Some(renewed?.0));
        Ok(())
    }

    fn newest(&self, _prefix: &str) -> Option<u64> {
        self.newest.get()
    }

    async fn has_room(&self) -> Result<(), Error> {
        let now = Instant::now();
        if self.has_room.get().is_some_and(|until| now < until) {
            return Ok(());
        }
        let mut client = self.client.clone();
        // This field is the size of the store without compacted data.
        let used = self.read(client.status()).await?.raft_used_db_size();
        if used > ROOM {
            let most = ROOM >> 20;
            return Err(Error::Full(format!(
                "more than {most} MiB are in use there, which is all that it may hold with events"
            )));
        }
        self.has_room.set(Some(now + ROOM_LASTS));
        Ok(())
    }

    async fn revoke(&self, lease: Lease) -> Result<(), Error> {
        let mut client = self.client.clone();
        match self.call(client.lease_revoke(lease.id)).await {
            Ok(_) | Err(Error::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Changes in the order in which the server sends them.
pub struct Following {
    stream: WatchStream,
    ready: VecDeque<Change>,
}

impl Feed for Following {
    async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            let message = self.stream.message().await.map_err(|e| match error(&e) {
                Error::Unknown(why) => Error::Unreachable(why),
                // The next list contains only the key of the value that is too long.
                Error::TooLarge => {
                    Error::Unreachable("it holds what is too long to be read".to_owned())
                }
                other => other,
            })?;
            let Some(message) = message else {
                return Err(Error::Unreachable("the server ended the watch".to_owned()));
            };
            // Compacted or not allowed: etcd reports neither as an error.
            if message.canceled() {
                let why = message.cancel_reason();
                return Err(if why.contains("permission denied") {
                    Error::Denied(why.to_owned())
                } else if message.compact_revision() > 0 {
                    Error::Unreachable("the changes were compacted away".to_owned())
                } else {
                    Error::Unreachable(format!("the server ended the watch: {why}"))
                });
            }
            self.ready
                .extend(message.events().iter().filter_map(change));
        }
    }
}

/// Makes a call with this time limit.
async fn within<T>(
    time: Duration,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Error> {
    match timeout(time, call).await {
        Ok(answer) => answer.map_err(|e| error(&e)),
        Err(_) => Err(Error::Unknown(format!("no answer within {time:?}"))),
    }
}

fn change(event: &etcd_client::Event) -> Option<Change> {
    let kv = event.kv()?;
    Some(match event.event_type() {
        EventType::Put => Change::Put(value(kv)),
        EventType::Delete => Change::Removed {
            key: text(kv),
            revision: number(kv.mod_revision()),
        },
    })
}

fn value(kv: &KeyValue) -> Value {
    Value {
        key: text(kv),
        bytes: super::beginning(kv.value()),
        revision: number(kv.mod_revision()),
        first: number(kv.create_revision()),
        writes: number(kv.version()),
    }
}

/// Condition that the key's value has this revision. No value has revision 0.
fn is_of(key: &str, revision: u64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, signed(revision))
}

/// Condition that the key does not exist.
fn is_absent(key: &str) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

/// Key as text. A key that is not UTF-8 is not ours and is rejected later.
fn text(kv: &KeyValue) -> String {
    String::from_utf8_lossy(kv.key()).into_owned()
}

/// First key after all keys below a prefix, or after the key itself if the prefix is a whole key.
fn end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if !super::is_open(prefix) {
        end.push(0);
        return end;
    }
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // The end of all keys.
    vec![0]
}

fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}
