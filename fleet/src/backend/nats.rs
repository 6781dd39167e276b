//! NATS with JetStream: one stream for each section of keys, laid out like a key-value bucket of
//! NATS.
//!
//! A stream keeps the newest message of each subject. A removal is a message with a header that
//! marks it; the server stores it only if the last message is the one that was read. All messages
//! of a stream have the same lifetime. There are no leases.

/// Configuration of a consumer.
mod consumer;
/// Descriptions of streams by the server.
mod description;
/// Conversion of the client's errors.
mod errors;
/// Headers of messages.
mod headers;
/// Most recently written values.
mod latest;
/// The messages of a consumer.
mod messages;
/// The streams: their creation and the requests about them.
mod streams;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::{Context, ContextBuilder, Error as Refusal};
use async_nats::{Client, ConnectOptions, Event, HeaderMap, Message};
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::timeout;

use self::consumer::Start;
use self::description::Stream;
use self::errors::causes;
use self::headers::removing;
use self::messages::{Delivered, Following, Messages};
use super::denials::Denials;
use super::shares::Sorter;
use super::{Backend, Change, Error, Health, Limit, List, Shares, Times, Tls, Value};
use crate::wire::name::{Namespace, Node};

/// Interval of the client's pings, as long as possible: each renewal of the lease checks the server
/// anyway.
const PING: Duration = Duration::from_secs(24 * 3600);
/// The sections that nodes watch.
const WATCHED: [&str; 2] = ["to", "result"];

/// Number of attempts to remove a key while members of a cluster disagree on its value.
const REMOVALS: usize = 5;

/// Client of NATS.
#[derive(Clone)]
pub struct Nats {
    client: Client,
    jetstream: Context,
    namespace: Namespace,
    times: Times,
    /// Recent refusals of the server.
    denials: Denials,
    /// Last revision that a list had, by prefix.
    listed: Arc<Mutex<BTreeMap<String, u64>>>,
    /// Last sequence numbers of the watched streams that the last renewal returned.
    newest: Rc<RefCell<BTreeMap<&'static str, u64>>>,
    /// Number of lost connections. The client reconnects automatically, but a server that restarted
    /// does not know the consumers of the old connection.
    broken: watch::Receiver<u64>,
}

impl Nats {
    /// Connects to one of these servers (`tls://HOST:PORT` each) as this node, and creates the
    /// missing streams of the fleet.
    ///
    /// # Errors
    /// No server is reachable, none admits this node, or none has JetStream.
    pub async fn connect(
        servers: &[String],
        tls: Option<&Tls>,
        node: &Node,
        namespace: Namespace,
        times: Times,
    ) -> Result<Nats, Error> {
        let (notes, denials) = Denials::new(times.call);
        let (breaks, broken) = watch::channel(0_u64);
        let mut options = ConnectOptions::new()
            .name("again-fleet")
            .connection_timeout(times.call)
            .request_timeout(Some(times.call))
            .ping_interval(PING)
            // A cluster announces its members by addresses, which are not in the certificates of
            // Puppet's CA.
            .ignore_discovered_servers()
            // Only this node may subscribe to its inbox prefix.
            .custom_inbox_prefix(format!("_INBOX_{}", node.segment()))
            .event_callback(move |event| {
                match event {
                    Event::ServerError(error) => notes.note(error.to_string()),
                    Event::Disconnected => breaks.send_modify(|count| *count += 1),
                    _ => {}
                }
                std::future::ready(())
            });
        if let Some(tls) = tls {
            options = options.require_tls(true).tls_client_config(
                super::tls::configuration(tls).map_err(|e| Error::Unreachable(e.to_string()))?,
            );
        }
        let client = options.connect(servers).await.map_err(|e| {
            let why = causes(&e);
            if why.contains("authorization violation") {
                Error::Denied(why)
            } else {
                Error::Unreachable(why)
            }
        })?;
        let jetstream = ContextBuilder::new().timeout(times.call);
        let nats = Nats {
            jetstream: jetstream.build(client.clone()),
            client,
            namespace,
            times,
            denials,
            listed: Arc::default(),
            newest: Rc::default(),
            broken,
        };
        for section in ["to", "result", "story", "node"] {
            let stream = nats.prepare(section).await?;
            nats.forbid_rollups(section, stream).await?;
        }
        let events = format!("KV_{}", nats.bucket("event"));
        if let Some(stream) = nats.ask_stream("INFO", &events, &()).await? {
            nats.forbid_rollups("event", stream).await?;
        }
        Ok(nats)
    }

    /// State that the server reports. JetStream was checked when the connection was made.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn health(&self) -> Result<Health, Error> {
        self.is_connected()?;
        Ok(Health {
            version: self.client.server_info().version,
            alarms: Vec::new(),
        })
    }

    /// Whether this node may read below a prefix.
    ///
    /// # Errors
    /// The node may not, or the server did not answer.
    pub async fn may_read(&self, prefix: &str) -> Result<(), Error> {
        self.waiting(prefix, 1).await.map(drop)
    }

    /// Waits for the end of a call, or until the server forbids its subject.
    async fn unless_denied<T>(
        &self,
        subject: &str,
        call: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let since = Instant::now();
        tokio::select! {
            answer = call => Ok(answer),
            denied = self.denials.of(subject, since) => Err(denied),
        }
    }

    /// Makes a call of JetStream's API that changes nothing or may be repeated: its answer, or the
    /// refusal.
    async fn ask<T: DeserializeOwned>(
        &self,
        call: &str,
        question: &impl Serialize,
    ) -> Result<Result<T, Refusal>, Error> {
        let answer = self.jetstream.request(call.to_owned(), question);
        match self
            .unless_denied(&format!("$JS.API.{call}"), answer)
            .await?
        {
            Ok(answer) => errors::read(&answer),
            Err(e) if e.kind() == RequestErrorKind::NoResponders => Err(Error::Unreachable(
                format!("no responders at $JS.API.{call}"),
            )),
            Err(e) => Err(Error::Unreachable(causes(&e))),
        }
    }

    fn bucket(&self, section: &str) -> String {
        format!("again_{}_{section}", self.namespace)
    }

    /// Section and subject of a key, or of a prefix that ends with a slash.
    fn place<'k>(&self, key: &'k str) -> Result<(&'k str, String), Error> {
        let root = format!("again/v1/{}/", self.namespace);
        let below = key
            .strip_prefix(&root)
            .and_then(|below| below.split_once('/'));
        let (section, rest) =
            below.ok_or_else(|| Error::Denied(format!("'{key}' is no key of this fleet's")))?;
        let below = rest.replace('/', ".");
        let is_prefix = rest.is_empty() || rest.ends_with('/');
        let end = if is_prefix { ">" } else { "" };
        Ok((
            section,
            format!("$KV.{}.{below}{end}", self.bucket(section)),
        ))
    }

    /// Checks that there is a connection: without one, the client would keep a message and send it
    /// later.
    fn is_connected(&self) -> Result<(), Error> {
        if self.client.connection_state() == State::Connected {
            return Ok(());
        }
        Err(Error::Unreachable("there is no connection".to_owned()))
    }

    /// Messages below a prefix from `from` on, and the number of those already stored.
    async fn deliver(&self, prefix: &str, from: Start) -> Result<(Messages, u64), Error> {
        self.is_connected()?;
        let (inbox, since) = (self.client.new_inbox(), Instant::now());
        // The subscription precedes the consumer, whose first messages would be lost otherwise.
        let heard = self.client.subscribe(inbox.clone()).await;
        let heard = heard.map_err(|e| Error::Unreachable(causes(&e)))?;
        let pending = self.consume(prefix, from, &inbox).await?;
        let messages = Messages {
            jetstream: self.jetstream.clone(),
            namespace: self.namespace.clone(),
            denials: self.denials.clone(),
            heard,
            inbox,
            since,
            sent: 0,
        };
        Ok((messages, pending))
    }

    /// Creates a consumer, which sends to the inbox if there is a subscriber. Returns the number of
    /// messages that wait for it.
    async fn consume(&self, prefix: &str, from: Start, inbox: &str) -> Result<u64, Error> {
        let (section, filter) = self.place(prefix)?;
        self.is_connected()?;
        let stream = format!("KV_{}", self.bucket(section));
        let name = self.client.new_inbox().replace('.', "_");
        let config = from.config(&name, &filter, inbox);
        let question = json!({ "stream_name": stream, "config": config });
        let call = format!("CONSUMER.CREATE.{stream}.{name}.{filter}");
        let mut made = self.ask::<Consumer>(&call, &question).await?;
        if made.is_err() {
            // The server calls a stream invalid that is being created at the same time.
            tokio::time::sleep(self.times.call / 10).await;
            made = self.ask(&call, &question).await?;
        }
        match made {
            Ok(made) => Ok(made.num_pending),
            Err(refusal) => Err(Error::Unreachable(refusal.to_string())),
        }
    }

    async fn publish(&self, key: &str, bytes: &[u8], headers: HeaderMap) -> Result<u64, Error> {
        let (section, _) = self.place(key)?;
        match self.publish_once(key, bytes, &headers).await {
            // The stream has no subscriber: nothing has changed.
            Err(Error::Unreachable(_)) => {
                self.prepare(section).await?;
                self.publish_once(key, bytes, &headers).await
            }
            answer => answer,
        }
    }

    async fn publish_once(
        &self,
        key: &str,
        bytes: &[u8],
        headers: &HeaderMap,
    ) -> Result<u64, Error> {
        let (_, subject) = self.place(key)?;
        self.is_connected()?;
        let stored = async {
            let (headers, payload) = (headers.clone(), bytes.to_vec().into());
            let sent = self
                .jetstream
                .publish_with_headers(subject.clone(), headers, payload);
            sent.await?.await
        };
        match self.unless_denied(&subject, stored).await? {
            Ok(stored) => Ok(stored.sequence),
            Err(e) => Err(errors::of_message(&subject, &e)),
        }
    }

    /// The server's description of a prefix's stream.
    async fn stream(&self, prefix: &str) -> Result<Stream, Error> {
        let (section, _) = self.place(prefix)?;
        self.prepare(section).await
    }

    /// Sequence number of the newest message of a key, and whether it is a value rather than a
    /// removal.
    async fn newest(&self, key: &str) -> Result<Option<(u64, bool)>, Error> {
        let (section, subject) = self.place(key)?;
        self.is_connected()?;
        let name = format!("KV_{}", self.bucket(section));
        let call = format!("$JS.API.DIRECT.GET.{name}.{subject}");
        let answer = self.answer_as_it_comes(&call);
        headers::newest(self.unless_denied(&call, answer).await??)
    }

    /// Sends a request without content. The client's own calls interpret the status of an answer
    /// before its headers, but in an answer with a stored message the writer of that message may
    /// have set both.
    async fn answer_as_it_comes(&self, call: &str) -> Result<Message, Error> {
        let inbox = self.client.new_inbox();
        let answers = self.client.subscribe(inbox.clone()).await;
        let mut answers = answers.map_err(|e| Error::Unreachable(causes(&e)))?;
        let question = b"".as_slice().into();
        let sent = self
            .client
            .publish_with_reply(call.to_owned(), inbox, question);
        sent.await.map_err(|e| Error::Unreachable(causes(&e)))?;
        let answer = timeout(self.times.call, answers.next()).await;
        let answer = answer.ok().flatten();
        answer.ok_or_else(|| Error::Unreachable(format!("no answer from {call}")))
    }

    /// Reads the last sequence numbers of the watched streams. The number stays unknown for a
    /// stream that does not exist or that this node may not query.
    async fn look_at_streams(&self) -> Result<(), Error> {
        let numbers = join_all(WATCHED.map(|section| async move {
            let stream = format!("KV_{}", self.bucket(section));
            (section, self.ask_stream("INFO", &stream, &()).await)
        }));
        for (section, last) in numbers.await {
            match last {
                Ok(Some(stream)) => {
                    let last = stream.state.last_sequence;
                    self.newest.borrow_mut().insert(section, last);
                }
                Ok(None) | Err(Error::Denied(_)) => {}
                Err(error) => {
                    self.newest.borrow_mut().clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Repeats a read with longer and longer time limits until it is complete.
    async fn patiently<T>(
        &self,
        read: impl AsyncFn(Duration) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let call = self.times.call;
        for patience in [call / 5, call / 2, call] {
            if let Some(all) = read(patience).await? {
                return Ok(all);
            }
        }
        Err(Error::Unreachable("the list ended early".to_owned()))
    }

    /// Passes the messages below a prefix up to the sequence number `until` to `see`; `None` if one
    /// takes longer than `patience`; [`Error::TooLarge`] if they have more than `most` bytes. A
    /// message that expires after it was counted never arrives.
    async fn read(
        &self,
        prefix: &str,
        (from, until): (Start, u64),
        most: usize,
        patience: Duration,
        mut see: impl FnMut(Delivered),
    ) -> Result<Option<()>, Error> {
        let (mut messages, waiting) = self.deliver(prefix, from).await?;
        let mut left = most;
        let mut is_more = waiting > 0;
        while is_more {
            let Ok(next) = timeout(patience, messages.next()).await else {
                return Ok(None);
            };
            let next = next?;
            if next.change.revision() > until {
                break;
            }
            left = left.checked_sub(next.came).ok_or(Error::TooLarge)?;
            is_more = next.pending > 0;
            see(next);
        }
        Ok(Some(()))
    }

    /// Values below a prefix, without those that the sorter rejects; `None` if some did not arrive
    /// in time.
    async fn list_once(
        &self,
        prefix: &str,
        patience: Duration,
        mut sorter: Option<&mut Sorter<'_>>,
    ) -> Result<Option<List>, Error> {
        let stream = self.stream(prefix).await?;
        let (mut values, mut shown) = (BTreeMap::new(), 0);
        let mut is_taken = |value: &Value| {
            let sorter = sorter.as_mut();
            sorter.is_none_or(|sorter| sorter.takes(&value.key, value.size()))
        };
        let see = |Delivered { change, .. }: Delivered| {
            shown = shown.max(change.revision());
            match change {
                Change::Put(value) if is_taken(&value) => values.insert(value.key.clone(), value),
                change => values.remove(change.key()),
            };
        };
        let all = (Start::Newest, u64::MAX);
        let read = self.read(prefix, all, usize::MAX, patience, see);
        if read.await?.is_none() {
            return Ok(None);
        }
        let mut listed = self.listed.lock().unwrap_or_else(|e| e.into_inner());
        listed.insert(prefix.to_owned(), shown);
        Ok(Some(List {
            values: values.into_values().collect(),
            revision: stream.state.last_sequence.max(shown),
            store: name_of_store(stream.created),
            is_cut: false,
        }))
    }
}

impl Backend for Nats {
    type Feed = Following;
    type Lease = ();

    async fn list(&self, prefix: &str) -> Result<List, Error> {
        self.patiently(async |patience| self.list_once(prefix, patience, None).await)
            .await
    }

    /// Values below a prefix. The server sends all of them; those beyond a share are dropped on
    /// arrival.
    async fn list_shares(&self, prefix: &str, sorter: Sorter<'_>) -> Result<Shares, Error> {
        self.patiently(async |patience| {
            let mut sorter = sorter.clone();
            let list = self.list_once(prefix, patience, Some(&mut sorter)).await?;
            Ok(list.map(|list| Shares::new(list, sorter)))
        })
        .await
    }

    async fn latest(&self, prefix: &str, limit: Limit) -> Result<List, Error> {
        self.patiently(async |patience| self.latest_once(prefix, limit, patience).await)
            .await
    }

    async fn follow(&self, prefix: &str, after: u64) -> Result<Following, Error> {
        // The member that lists may lag behind the leader's sequence number.
        let shown = {
            let listed = self.listed.lock().unwrap_or_else(|e| e.into_inner());
            listed.get(prefix).map_or(after, |shown| after.min(*shown))
        };
        let mut broken = self.broken.clone();
        broken.mark_unchanged();
        // A stream that was recreated would send nothing until its numbers exceed `after`.
        if self.stream(prefix).await?.state.last_sequence < after {
            return Err(Error::Unreachable(format!(
                "changes after revision {after} are not known any more"
            )));
        }
        let (messages, _) = self.deliver(prefix, Start::Number(shown + 1)).await?;
        Ok(Following { messages, broken })
    }

    async fn put(&self, key: &str, bytes: &[u8], _ttl: Option<Duration>) -> Result<u64, Error> {
        self.publish(key, bytes, HeaderMap::new()).await
    }

    /// Removes a value. In a cluster only the leader knows the newest message of a key, and a
    /// member that lags behind may answer `newest`. A key that seems removed is therefore removed
    /// again, on condition that its last message is the one seen: the leader decides.
    async fn remove(&self, key: &str, revision: u64) -> Result<(), Error> {
        let mut last = revision;
        for _ in 0..REMOVALS {
            match self.publish(key, b"", removing(last)).await {
                Err(Error::Conflict) => {}
                answer => return answer.map(drop),
            }
            last = match self.newest(key).await? {
                Some((number, true)) if number > revision => break,
                Some((_, true)) => revision,
                Some((number, false)) => number,
                None => 0,
            };
            tokio::time::sleep(self.times.call / 100).await;
        }
        Err(Error::Conflict)
    }

    async fn grant(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn renew(&self, (): &()) -> Result<(), Error> {
        self.newest.borrow_mut().clear();
        self.look_at_streams().await
    }

    fn newest(&self, prefix: &str) -> Option<u64> {
        let (section, _) = self.place(prefix).ok()?;
        self.newest.borrow().get(section).copied()
    }
}

/// The fields of a consumer's description that are used.
#[derive(Deserialize)]
struct Consumer {
    num_pending: u64,
}

/// Name of a store: the time when its stream was created, which a backup preserves.
fn name_of_store(created: OffsetDateTime) -> String {
    format!("nats {}", created.unix_timestamp_nanos())
}
