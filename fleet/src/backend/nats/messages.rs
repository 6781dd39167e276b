//! The messages of a consumer.
//!
//! The client's own readers (async-nats 0.51) are not usable for a watch. `push::Messages` does not
//! detect a lost message, and ignores the server's message that it ended the consumer.
//! `push::Ordered` detects both, but gets a heartbeat every five seconds, which wakes an idle node
//! as often for each of its watches, and replaces its consumer automatically with
//! `CONSUMER.DELETE`, which nodes may not call.

use std::time::Instant;

use async_nats::jetstream::{Context, Message};
use async_nats::{StatusCode, Subscriber};
use futures_util::StreamExt;
use tokio::sync::watch;

use super::headers::{is_removal, sizes};
use crate::backend::denials::Denials;
use crate::backend::{Change, Error, Feed, Value, beginning};
use crate::wire::name::Namespace;

/// Messages that a consumer sends.
pub struct Messages {
    pub(super) jetstream: Context,
    pub(super) namespace: Namespace,
    pub(super) denials: Denials,
    pub(super) heard: Subscriber,
    /// Inbox of the subscription.
    pub(super) inbox: String,
    /// Time of the subscription.
    pub(super) since: Instant,
    /// Number of messages that have arrived.
    pub(super) sent: u64,
}

/// A message that has arrived.
pub struct Delivered {
    /// The change; its value is empty if only headers are sent.
    pub change: Change,
    /// Bytes of the key, and of the headers and the value that arrived.
    pub came: usize,
    /// Bytes of the key, and of the headers and the value according to the server.
    pub size: usize,
    /// Number of messages that wait after this one.
    pub pending: u64,
}

impl Messages {
    /// The next message, or the reason why there is none. The server sends more only after its
    /// flow-control requests are answered.
    pub async fn next(&mut self) -> Result<Delivered, Error> {
        let ended = |why: &str| Error::Unreachable(why.to_owned());
        let message = loop {
            let message = tokio::select! {
                message = self.heard.next() => message,
                denied = self.denials.of(&self.inbox, self.since) => return Err(denied),
            };
            let message = message.ok_or_else(|| ended("the connection was lost"))?;
            // A stored message has its own subject, and any status that its writer chose.
            if message.subject.as_str() != self.inbox {
                break message;
            }
            if message.status != Some(StatusCode::IDLE_HEARTBEAT) {
                return Err(ended("the server has ended what it was asked for"));
            }
            if let Some(reply) = message.reply {
                // Without a connection no more messages arrive; `Following::next` notices that.
                let client = self.jetstream.client();
                let _ = client.publish(reply, b"".as_slice().into()).await;
            }
        };
        let message = Message {
            message,
            context: self.jetstream.clone(),
        };
        let count = message.info();
        let count = count.map_err(|_| broken("a message without its place"))?;
        self.sent += 1;
        if count.consumer_sequence != self.sent {
            return Err(ended("the connection lost a message"));
        }
        let change = self.change(&message, count.stream_sequence)?;
        let key = change.key().len();
        let (came, size) = sizes(&message);
        Ok(Delivered {
            came: key + came,
            size: key.saturating_add(size),
            pending: count.pending,
            change,
        })
    }

    fn change(&self, message: &Message, revision: u64) -> Result<Change, Error> {
        let key = self
            .key(&message.subject)
            .ok_or_else(|| broken("another fleet's message"))?;
        Ok(if is_removal(message.headers.as_ref()) {
            Change::Removed { key, revision }
        } else {
            Change::Put(Value::new(key, beginning(&message.payload), revision))
        })
    }

    /// The key of a subject.
    fn key(&self, subject: &str) -> Option<String> {
        let below = subject.strip_prefix(&format!("$KV.again_{}_", self.namespace))?;
        Some(format!(
            "again/v1/{}/{}",
            self.namespace,
            below.replace('.', "/")
        ))
    }
}

/// Changes in the order in which the server sends them.
pub struct Following {
    pub(super) messages: Messages,
    pub(super) broken: watch::Receiver<u64>,
}

impl Feed for Following {
    async fn next(&mut self) -> Result<Change, Error> {
        let lost = || Error::Unreachable("the connection was lost".to_owned());
        tokio::select! {
            next = self.messages.next() => next.map(|next| next.change),
            _ = self.broken.changed() => Err(lost()),
        }
    }
}

/// Error of a message that the server should not have sent.
fn broken(what: &str) -> Error {
    Error::Unreachable(format!("the server sent {what}"))
}
