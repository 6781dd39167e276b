//! The store between the nodes: one trait, and what stands behind it.
//!
//! A backend holds small values under keys (`wire::key`). Every write gets a revision that is higher than all before it, until
//! somebody throws the backend's data away. What two backends do differently is hidden here, or said in [`Error`].

/// What a NATS server forbids.
mod denials;
/// Connections to etcd's servers.
pub mod dial;
/// etcd 3.
pub mod etcd;
/// NATS with JetStream.
pub mod nats;
/// How much is read of what each sender has.
pub mod shares;
/// TLS to a server, as rustls is told of it.
pub mod tls;
/// What changes below a prefix, told for as long as it takes.
pub mod watch;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use self::shares::Sorter;
use crate::identity::authority::Revocation;
use crate::wire::key::is_list_of_targets;
pub use crate::wire::value::Value;

/// What stands below a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// In order of their keys, or of their revisions.
    pub values: Vec<Value>,
    /// Everything up to this one is in the list; not known of the latest values.
    pub revision: u64,
    /// Name of the store, which another store has only if it was set up in the same way; not known of the latest values.
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

/// A list of which no sender has more than its share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    /// What was read.
    pub list: List,
    /// The senders that have more, as their segment of the keys.
    pub cut: BTreeSet<String>,
    /// Some of the keys that are not read.
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

/// How much is read at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bytes of keys and values.
    pub bytes: usize,
    /// Number of values.
    pub values: usize,
}

impl Limit {
    /// Takes a value of this size off, if the limit allows one more.
    pub fn take(&mut self, size: usize) -> bool {
        let is_allowed = self.values > 0 && size <= self.bytes;
        if is_allowed {
            self.values -= 1;
            self.bytes -= size;
        }
        is_allowed
    }
}

/// One write below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A value is new, or newer.
    Put(Value),
    /// A value is gone.
    Removed {
        /// Where it stood.
        key: String,
        /// Of its removal.
        revision: u64,
    },
}

impl Change {
    /// Key that has changed.
    pub fn key(&self) -> &str {
        match self {
            Change::Put(value) => &value.key,
            Change::Removed { key, .. } => key,
        }
    }

    /// Of the write.
    pub fn revision(&self) -> u64 {
        match self {
            Change::Put(value) => value.revision,
            Change::Removed { revision, .. } => *revision,
        }
    }
}

/// Why a backend did not do it, or why nobody knows whether it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// It did not get there.
    Unreachable(String),
    /// The backend does not let this node do it.
    Denied(String),
    /// Something else stands there, or the lease has ended.
    Conflict,
    /// The backend does not hold values of this size.
    TooLarge,
    /// The backend has no room for it. It may have happened: etcd still takes the value that uses its quota up.
    Full(String),
    /// It may have happened.
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

/// What a backend says that cannot rank those who wait.
pub const NO_PLACES: &str = "slots need etcd: on NATS a key that is renewed loses its place";

/// The same of locks.
pub const NO_LOCKS: &str = "locks need etcd: on NATS a key that is renewed loses its place";

/// How long a lease lives without a renewal, in seconds.
pub const LEASE: u64 = 60;

/// How a backend is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// How long a call may take.
    pub call: Duration,
    /// How long a lease lives without a renewal.
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

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Its version.
    pub version: String,
    /// What it complains of, in its own words.
    pub alarms: Vec<String>,
}

/// Certificates, key and revocation lists for a connection, as PEM.
#[derive(Clone)]
pub struct Tls {
    /// The CA's certificates.
    pub ca: Vec<u8>,
    /// The CA's revocation lists; not read where revocation is off.
    pub crl: Vec<u8>,
    /// How far revocation is looked at.
    pub revocation: Revocation,
    /// This node's certificate.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
    /// Whether a server that asks for no client certificate is refused.
    pub refuses_open_servers: bool,
}

/// The store. Futures run on one thread, so none of them has to be `Send`.
#[allow(async_fn_in_trait)]
pub trait Backend {
    /// What [`Backend::follow`] gives.
    type Feed: Feed;
    /// What keeps places of this node alive.
    type Lease;

    /// Values below a prefix now. Here and below, a prefix that does not end with a slash is one whole key.
    async fn list(&self, prefix: &str) -> Result<List, Error>;

    /// The same, without what is sorted out.
    async fn list_shares(&self, prefix: &str, mut sorter: Sorter<'_>) -> Result<Shares, Error> {
        let mut list = self.list(prefix).await?;
        let is_taken = |value: &Value| sorter.takes(&value.key, value.size());
        list.values.retain(is_taken);
        Ok(Shares::new(list, sorter))
    }

    /// The values below a prefix that were written last, the newest first, up to a limit. Where it is the number of values that cuts the list,
    /// there may be an eighth fewer. A segment `*` of the prefix stands for any one. Lists of targets are left out: each may be as long as a
    /// hundred results.
    async fn latest(&self, prefix: &str, limit: Limit) -> Result<List, Error>;

    /// What is written below a prefix after a revision. Of several writes to one key the older ones may be left out.
    async fn follow(&self, prefix: &str, after: u64) -> Result<Self::Feed, Error>;

    /// Writes a value, whatever stood there, for this long at least or until it is removed. Its revision.
    async fn put(&self, key: &str, bytes: &[u8], ttl: Option<Duration>) -> Result<u64, Error>;

    /// Writes a value where none is, for as long as the lease lives. Its revision; [`Error::Conflict`] where one is.
    async fn create(&self, _key: &str, _bytes: &[u8], _lease: &Self::Lease) -> Result<u64, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Whether a key keeps its place while its lease is renewed; without that there are no slots.
    const HAS_PLACES: bool = false;

    /// Of what stands below a prefix and was not written after a revision, the values that were written first, in that order; about
    /// so many, or all if they are fewer.
    async fn oldest(&self, _prefix: &str, _until: u64, _most: usize) -> Result<List, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// What is removed below a prefix after a revision. What is written there may be told too.
    async fn follow_removals(&self, _prefix: &str, _after: u64) -> Result<Self::Feed, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// The values at these keys. A value that has more bytes than this is left out, with its key.
    async fn get(&self, _keys: &[String], _longest: usize) -> Result<Vec<Value>, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Writes a value in the place of the one of this revision, for as long as the lease lives. Its revision;
    /// [`Error::Conflict`] where another one stands, or none.
    async fn replace(
        &self,
        _key: &str,
        _bytes: &[u8],
        _revision: u64,
        _lease: &Self::Lease,
    ) -> Result<u64, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// Writes a value, whatever stood there, while nothing stands at another key. Its revision; [`Error::Conflict`] where something does.
    async fn put_unless(&self, _key: &str, _bytes: &[u8], _other: &str) -> Result<u64, Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// The number of a lease, by which another connection finds it again.
    fn number(&self, _lease: &Self::Lease) -> i64 {
        0
    }

    /// The lease of this number, whether it lives or not; none where leases have no numbers.
    fn lease(&self, _number: i64) -> Option<Self::Lease> {
        None
    }

    /// Removes a value if it is the one of this revision or gone already; [`Error::Conflict`] if it is another.
    async fn remove(&self, key: &str, revision: u64) -> Result<(), Error>;

    /// Removes the value of this revision while the value at another key is the one of that revision, or none is where that is 0;
    /// [`Error::Conflict`] where either is another.
    async fn remove_while(
        &self,
        _key: &str,
        _revision: u64,
        _other: (&str, u64),
    ) -> Result<(), Error> {
        Err(Error::Denied(NO_PLACES.to_owned()))
    }

    /// A new lease, of the length in [`Times`].
    async fn grant(&self) -> Result<Self::Lease, Error>;

    /// Begins a lease's time anew; [`Error::Conflict`] if it has ended. By nothing else is it noticed that a connection fell
    /// silent: whoever follows does this again and again.
    async fn renew(&self, lease: &Self::Lease) -> Result<(), Error>;

    /// The revision that a list below a prefix had when a lease was renewed last, if the backend said it. A list of that revision
    /// need not be made again.
    fn newest(&self, _prefix: &str) -> Option<u64> {
        None
    }

    /// Whether there is room for what is worth less than triggers; [`Error::Full`] if there is not.
    async fn has_room(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Ends a lease, and removes its keys.
    async fn revoke(&self, _lease: Self::Lease) -> Result<(), Error> {
        Ok(())
    }
}

/// Changes, as they come.
#[allow(async_fn_in_trait)]
pub trait Feed {
    /// The next change; an error if there will be none, because the backend went away or no longer knows them. Giving up
    /// waiting loses nothing.
    async fn next(&mut self) -> Result<Change, Error>;
}

/// Whether a key is below a prefix, or the key that the prefix is.
pub fn is_below(key: &str, prefix: &str) -> bool {
    key == prefix || (is_open(prefix) && key.starts_with(prefix))
}

/// Whether [`Backend::latest`] reads a key: a segment `*` of the prefix stands for any one.
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

/// Whether keys may continue a prefix; otherwise it is one whole key.
fn is_open(prefix: &str) -> bool {
    prefix.is_empty() || prefix.ends_with('/')
}

/// How much is kept of a value: more than any of ours has, so that a longer one is none.
const KEPT: usize = 2 << 20;

/// What is kept of a value. Whoever may write there could have many long ones kept otherwise.
fn beginning(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len().min(KEPT)].to_vec()
}

/// Whether a connection has ended without a farewell.
fn is_closed(cause: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    let kind = cause.downcast_ref().map(std::io::Error::kind);
    let no_farewell = "peer closed connection without sending TLS close_notify";
    matches!(kind, Some(BrokenPipe | ConnectionAborted | ConnectionReset))
        || cause.to_string().starts_with(no_farewell)
}

/// The words of an error and of its causes, in a line. A connection that ends is told without the libraries' words, which are of TLS, of
/// HTTP/2 or of a pipe, as it happens.
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
