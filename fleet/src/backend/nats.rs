//! NATS with JetStream: a stream for each section of keys, laid out as NATS lays out its buckets of keys and values.
//!
//! A stream keeps the newest message of each subject. A removal is a message that says so; it is sent under the condition that
//! the last message is the one that was read. Everything in a stream lives equally long. There are no leases.

/// How a consumer is made.
mod consumer;
/// Descriptions of streams by the server.
mod description;
/// Meaning of the client's errors.
mod errors;
/// Headers of messages.
mod headers;
/// The values that were written last.
mod latest;
/// The messages of a consumer.
mod messages;
/// The streams: what is asked of them, and how they are made.
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

/// As seldom as can be: whether the server lives is asked with each beat.
const PING: Duration = Duration::from_secs(24 * 3600);
/// The sections that nodes watch.
const WATCHED: [&str; 2] = ["to", "result"];

/// How often a removal is tried while members of a cluster disagree on what stands at the key.
const REMOVALS: usize = 5;

/// A client.
#[derive(Clone)]
pub struct Nats {
    client: Client,
    jetstream: Context,
    namespace: Namespace,
    times: Times,
    /// What the server forbade of late.
    denials: Denials,
    /// The last revision that a list showed, by prefix.
    listed: Arc<Mutex<BTreeMap<String, u64>>>,
    /// The last numbers of the streams that are watched, as far as the last renewal was told them.
    newest: Rc<RefCell<BTreeMap<&'static str, u64>>>,
    /// How often the connection was lost. The client makes another one by itself, of which a server that began anew knows nothing.
    broken: watch::Receiver<u64>,
}

impl Nats {
    /// Connects to one of these servers, `tls://HOST:PORT` each, as this node, and makes the streams of a fleet that are not there.
    ///
    /// # Errors
    /// No server can be reached, none lets this node in, or none has JetStream.
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
            // A cluster names its members by addresses, which stand in no certificate of Puppet's.
            .ignore_discovered_servers()
            // Answers for this node go where no other may listen.
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

    /// What the server says of itself. That it has JetStream was known before.
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
    /// The node has no right to, or the server did not answer.
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

    /// Asks JetStream's API for something that changes nothing, or may be done twice: what it answers, or why it refuses.
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

    /// The section and the subject of a key, or of a prefix that ends with a slash.
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

    /// Nothing may be sent while there is no connection: the client would keep it and send it later.
    fn is_connected(&self) -> Result<(), Error> {
        if self.client.connection_state() == State::Connected {
            return Ok(());
        }
        Err(Error::Unreachable("there is no connection".to_owned()))
    }

    /// Delivers what stands, or comes, below a prefix; and how much stands there.
    async fn deliver(&self, prefix: &str, from: Start) -> Result<(Messages, u64), Error> {
        self.is_connected()?;
        let (inbox, since) = (self.client.new_inbox(), Instant::now());
        // Before the consumer, whose first messages nobody would hear.
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

    /// Makes a consumer, which sends to an inbox if somebody listens there. How many messages wait for it.
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
            // A stream that is made at this very moment is said to be invalid.
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
            // Nobody listens there: nothing has happened.
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

    /// What the server says of a prefix's stream.
    async fn stream(&self, prefix: &str) -> Result<Stream, Error> {
        let (section, _) = self.place(prefix)?;
        self.prepare(section).await
    }

    /// Number of the newest message under a key, and whether it is a value, not a removal.
    async fn newest(&self, key: &str) -> Result<Option<(u64, bool)>, Error> {
        let (section, subject) = self.place(key)?;
        self.is_connected()?;
        let name = format!("KV_{}", self.bucket(section));
        let call = format!("$JS.API.DIRECT.GET.{name}.{subject}");
        let answer = self.answer_as_it_comes(&call);
        headers::newest(self.unless_denied(&call, answer).await??)
    }

    /// Sends a question without content. The client's own calls interpret the status of an answer before its headers, but in an answer that
    /// holds a stored message both may be from the writer of that message.
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

    /// Asks for the last numbers of the streams that are watched. One that this node may not ask for, or that is gone, is not known.
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

    /// Reads with more and more patience, until all of it came.
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

    /// Sees the messages below a prefix, up to this number; nothing if not all of them came, each within this time;
    /// [`Error::TooLarge`] if they have more bytes than this. What was counted first and has expired since never comes.
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

    /// Values below a prefix, without what is sorted out; none if not all of them came.
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

    /// A server sends everything. What is beyond a share is dropped as it comes.
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
        // The member that lists may not know yet what the one that leads has counted.
        let shown = {
            let listed = self.listed.lock().unwrap_or_else(|e| e.into_inner());
            listed.get(prefix).map_or(after, |shown| after.min(*shown))
        };
        let mut broken = self.broken.clone();
        broken.mark_unchanged();
        // Beyond its end a stream that began anew would be silent until it has grown that far.
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

    /// In a cluster only the leader knows the newest message of a key, and `newest` may be answered by a member that lags behind. A
    /// key that looks gone is therefore removed again under the condition that its last message is the one seen: the leader decides.
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

/// The part of a consumer's description that is used.
#[derive(Deserialize)]
struct Consumer {
    num_pending: u64,
}

/// Name of a store by the time when its stream was made, which a backup keeps.
fn name_of_store(created: OffsetDateTime) -> String {
    format!("nats {}", created.unix_timestamp_nanos())
}
