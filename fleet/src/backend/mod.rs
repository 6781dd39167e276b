//! The store that the nodes share: one trait, and its implementations for etcd and NATS.
//!
//! A backend stores small values under keys (`wire::key`). Every write gets a revision that is
//! higher than all earlier ones, until the backend loses its data. The implementations hide the
//! differences between two backends, or report them as [`Error`].

/// Calls that a NATS server forbids.
mod denials;
/// Connections to etcd's servers.
pub mod dial;
/// etcd 3.
pub mod etcd;
/// NATS with JetStream.
pub mod nats;
/// Limits on what is read of each sender's values.
pub mod shares;
/// Configuration of TLS to a server, for rustls.
pub mod tls;
/// A watch of the changes below a prefix.
pub mod watch;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use self::shares::Sorter;
use crate::identity::authority::Revocation;
use crate::wire::key::is_list_of_targets;
pub use crate::wire::value::Value;

/// Values below a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// The values in the order of their keys, or of their revisions.
    pub values: Vec<Value>,
    /// Revision of the list, which has every write up to it; 0 for [`Backend::latest`].
    pub revision: u64,
    /// Name of the store: only a store that was set up in the same way has the same one. Empty for
    /// [`Backend::latest`].
    pub store: String,
    /// Whether older values were left out.
    pub is_cut: bool,
}

impl From<Vec<Value>> for List {
    fn from(values: Vec<Value>) -> List {
        List {
            values,
            ..List::default()
        }
    }
}

/// A list with no more than a share of each sender.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    /// The values that were read.
    pub list: List,
    /// Senders that have more than was read, each as its segment of the keys.
    pub cut: BTreeSet<String>,
    /// Some of the keys that were not read.
    pub foreign: BTreeSet<String>,
}

impl From<List> for Shares {
    fn from(list: List) -> Shares {
        Shares {
            list,
            ..Shares::default()
        }
    }
}

impl Shares {
    fn new(list: List, sorter: Sorter<'_>) -> Shares {
        Shares {
            list,
            cut: sorter.cut,
            foreign: sorter.foreign,
        }
    }
}

/// The most that one call reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bytes of keys and values.
    pub bytes: usize,
    /// Number of values.
    pub values: usize,
}

impl Limit {
    /// Subtracts a value of this size if the limit allows it; whether it does.
    pub fn take(&mut self, size: usize) -> bool {
        let is_allowed = self.values > 0 && size <= self.bytes;
        if is_allowed {
            self.values -= 1;
            self.bytes -= size;
        }
        is_allowed
    }
}

/// A write below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A new value, or a new version of a value.
    Put(Value),
    /// The removal of a value.
    Removed {
        /// Key of the value.
        key: String,
        /// Revision of the removal.
        revision: u64,
    },
}

impl Change {
    /// Key of the value.
    pub fn key(&self) -> &str {
        match self {
            Change::Put(value) => &value.key,
            Change::Removed { key, .. } => key,
        }
    }

    /// Revision of the write.
    pub fn revision(&self) -> u64 {
        match self {
            Change::Put(value) => value.revision,
            Change::Removed { revision, .. } => *revision,
        }
    }
}

/// Reason why a call failed, or why its effect is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The call did not reach the backend.
    Unreachable(String),
    /// The backend does not allow this node the call.
    Denied(String),
    /// The key has another value, or the lease has ended.
    Conflict,
    /// The value is larger than the backend stores.
    TooLarge,
    /// The backend is out of space. The call may have succeeded: etcd still stores the value that
    /// exceeds its quota.
    Full(String),
    /// The call may have succeeded.
    Unknown(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable(why) => write!(f, "cannot be reached: {why}"),
            Error::Denied(why) => write!(f, "does not allow it: {why}"),
            Error::Conflict => f.write_str("holds something else there"),
            Error::TooLarge => f.write_str("does not hold values of this size"),
            Error::Full(why) => write!(f, "has no room: {why}"),
            Error::Unknown(why) => write!(f, "did not answer, and may have done it: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// Error of a backend that cannot order waiting runs for slots.
pub const NO_PLACES: &str = "slots need etcd: on NATS a key that is renewed loses its place";

/// The same error for locks.
pub const NO_LOCKS: &str = "locks need etcd: on NATS a key that is renewed loses its place";

/// Lifetime of a lease without a renewal, in seconds.
pub const LEASE: u64 = 60;

/// Time limits for the use of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// Time limit of a call.
    pub call: Duration,
    /// Lifetime of a lease without a renewal.
    pub lease: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Times {
            call: Duration::from_secs(5),
            lease: Duration::from_secs(LEASE),
        }
    }
}

/// State that a server reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Version of the server.
    pub version: String,
    /// Alarms in the server's own words.
    pub alarms: Vec<String>,
}

/// Certificates, key and revocation lists for a connection, as PEM.
#[derive(Clone)]
pub struct Tls {
    /// The CA's certificates.
    pub ca: Vec<u8>,
    /// The CA's revocation lists; not used if revocation checks are off.
    pub crl: Vec<u8>,
    /// Extent of the revocation checks.
    pub revocation: Revocation,
    /// This node's certificate.
    pub certificate: Vec<u8>,
    /// Key of this node's certificate.
    pub key: Vec<u8>,
    /// Whether a server that requests no client certificate is rejected.
    pub refuses_open_servers: bool,
}

/// The store. Futures run on one thread and need not be `Send`.
#[allow(async_fn_in_trait)]
pub trait Backend {
    /// Stream of changes that [`Backend::follow`] returns.
    type Feed: Feed;
    /// A lease, which keeps keys of this node alive.
    type Lease;

    /// Values below a prefix now. In all methods, a prefix that does not end with a slash is one
    /// whole key.
    async fn list(&self, prefix: &str) -> Result<List, Error>;

    /// Values below a prefix now, without those that the sorter rejects.
    async fn list_shares(&self, prefix: &str, mut sorter: Sorter<'_>) -> Result<Shares, Error> {
        let mut list = self.list(prefix).await?;
        let is_taken = |value: &Value| sorter.takes(&value.key, value.size());
        list.values.retain(is_taken);
        Ok(Shares::new(list, sorter))
    }

    /// The most recently written values below a prefix, newest first, up to a limit. If the number
    /// of values cuts the list, it may have an eighth fewer. A segment `*` of the prefix matches
    /// any one segment. Lists of targets are left out: each may be as long as a hundred results.
    async fn latest(&self, prefix: &str, limit: Limit) -> Result<List, Error>;

    /// Writes below a prefix after a revision. Of several writes to one key, the older ones may be
    /// left out.
    async fn follow(&self, prefix: &str, after: u64) -> Result<Self::Feed, Error>;

    /// Writes a value, whether the key exists or not, and returns its revision. The value lives at
    /// least for `ttl`, or until it is removed.
    async fn put(&self, key: &str, bytes: &[u8], ttl: Option<Duration>) -> Result<u64, Error>;

    /// Creates a key that lives as long as the lease, and returns its revision; [`Error::Conflict`]
    /// if the key exists.
    async fn create(&self, _key: &str, _bytes: &[u8], _lease: &Self::Lease) -> Result<u64, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Whether a key keeps its position in the queue while its lease is renewed. Slots need that.
    const HAS_PLACES: bool = false;

    /// Values below a prefix that were not written after the revision `until`: those that were
    /// written first, in that order. About `most` of them, or all if there are fewer.
    async fn oldest(&self, _prefix: &str, _until: u64, _most: usize) -> Result<List, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Removals below a prefix after a revision. The feed may contain writes too.
    async fn follow_removals(&self, _prefix: &str, _after: u64) -> Result<Self::Feed, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Values at these keys. A value with more than `longest` bytes is left out, with its key.
    async fn get(&self, _keys: &[String], _longest: usize) -> Result<Vec<Value>, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Replaces the value of this revision for the lifetime of the lease, and returns the new
    /// revision; [`Error::Conflict`] if the key has another revision or does not exist.
    async fn replace(
        &self,
        _key: &str,
        _bytes: &[u8],
        _revision: u64,
        _lease: &Self::Lease,
    ) -> Result<u64, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Writes a value, whether `key` exists or not, provided that `other` does not exist, and
    /// returns the revision; [`Error::Conflict`] if `other` exists.
    async fn put_unless(&self, _key: &str, _bytes: &[u8], _other: &str) -> Result<u64, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Number of a lease, with which another connection can use it.
    fn number(&self, _lease: &Self::Lease) -> i64 {
        0
    }

    /// Lease of this number, whether it is alive or not; `None` if leases have no numbers.
    fn lease(&self, _number: i64) -> Option<Self::Lease> {
        None
    }

    /// Removes the value of this revision. Succeeds if the key does not exist; [`Error::Conflict`]
    /// if it has another revision.
    async fn remove(&self, key: &str, revision: u64) -> Result<(), Error>;

    /// Removes the value of this revision, provided that the other key has the other revision, or
    /// does not exist if that is 0; [`Error::Conflict`] if either differs.
    async fn remove_while(
        &self,
        _key: &str,
        _revision: u64,
        _other: (&str, u64),
    ) -> Result<(), Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// A new lease with the lifetime in [`Times`].
    async fn grant(&self) -> Result<Self::Lease, Error>;

    /// Renews a lease; [`Error::Conflict`] if it has ended. Only a renewal detects a silent
    /// connection, so callers that follow changes renew periodically.
    async fn renew(&self, lease: &Self::Lease) -> Result<(), Error>;

    /// Revision that a list below a prefix had at the last renewal of a lease, if the backend
    /// returned it. A list of that revision need not be read again.
    fn newest(&self, _prefix: &str) -> Option<u64> {
        None
    }

    /// Checks that the backend has room for values that matter less than triggers; [`Error::Full`]
    /// if not.
    async fn has_room(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Ends a lease and removes its keys.
    async fn revoke(&self, _lease: Self::Lease) -> Result<(), Error> {
        Ok(())
    }
}

/// Changes in the order in which the backend sends them.
#[allow(async_fn_in_trait)]
pub trait Feed {
    /// The next change; an error if there will be none, because the backend is unreachable or no
    /// longer has the changes. Cancel-safe.
    async fn next(&mut self) -> Result<Change, Error>;
}

/// Whether a key is below a prefix, or is the prefix itself.
pub fn is_below(key: &str, prefix: &str) -> bool {
    key == prefix || (is_open(prefix) && key.starts_with(prefix))
}

/// Whether [`Backend::latest`] reads a key. A segment `*` of the prefix matches any one segment.
pub fn is_latest(key: &str, prefix: &str) -> bool {
    if is_list_of_targets(key) {
        return false;
    }
    let Some((before, after)) = prefix.split_once("*/") else {
        return is_below(key, prefix);
    };
    let rest = key.strip_prefix(before);
    let rest = rest.and_then(|rest| rest.split_once('/'));
    rest.is_some_and(|(_, rest)| is_below(rest, after))
}

/// Whether keys may continue a prefix; otherwise the prefix is one whole key.
fn is_open(prefix: &str) -> bool {
    prefix.is_empty() || prefix.ends_with('/')
}

/// Bytes of a value that are kept. Our values are shorter, so a cut value is always invalid.
const KEPT: usize = 2 << 20;

/// Beginning of a value, cut at `KEPT`: any writer could otherwise fill the memory with long
/// values.
fn beginning(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len().min(KEPT)].to_vec()
}

/// Whether a connection was closed without a proper shutdown.
fn is_closed(cause: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    let kind = cause.downcast_ref().map(std::io::Error::kind);
    let no_farewell = "peer closed connection without sending TLS close_notify";
    matches!(kind, Some(BrokenPipe | ConnectionAborted | ConnectionReset))
        || cause.to_string().starts_with(no_farewell)
}

/// An error and its causes in one line. A closed connection is reported without the libraries'
/// words, which may be about TLS, HTTP/2 or a pipe.
fn with_causes(words: String, mut source: Option<&(dyn std::error::Error + 'static)>) -> String {
    let mut words = words;
    while let Some(cause) = source {
        let more = cause.to_string();
        if is_closed(cause) {
            return "the connection was closed".to_owned();
        }
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        source = cause.source();
    }
    words
}

/// Another backend with faults.
#[cfg(test)]
#[path = "../../tests/support/faulty.rs"]
pub(crate) mod faulty;
/// A backend in memory.
#[cfg(test)]
#[path = "../../tests/support/memory.rs"]
pub(crate) mod memory;
