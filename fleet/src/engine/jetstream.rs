//! JetStream's words: what a server is asked for, what it answers, and what it says of each message. The client's own reading of
//! all of that is a good part of the program. No socket in here.

use std::time::Duration;

use async_nats::{HeaderMap, Message};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Error;

/// No stream of this name.
pub const NO_STREAM: u16 = 10059;
/// Another message was the last one of its subject. 10070 and 10164 say the same in other releases.
const OTHER_LAST: [u16; 3] = [10070, 10071, 10164];
/// The resources of the account or of the server are used up, or its storage is.
const NO_ROOM: [u16; 3] = [10002, 10023, 10047];
/// The message could not be stored, as the words tell: also where the limit of a stream or of the disk is reached.
const NOT_STORED: u16 = 10077;

/// A condition: the number of the last message of a subject; 0 for none.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// The number of a message that was asked for.
pub const NUMBER: &str = "Nats-Sequence";
/// The size of a message of which only the headers are sent.
const SIZE: &str = "Nats-Msg-Size";
/// Setting of a stream that lets one message, with a header, replace all messages of the stream. No right of NATS's forbids that header.
pub const ROLLUPS: &str = "allow_rollup_hdrs";
/// A removal, as NATS's own clients mark it.
const OPERATION: &str = "KV-Operation";
const REMOVED: &str = "DEL";

/// Headers of a removal that is stored if the last message of its subject has this number; 0 for none.
pub fn removing(last: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(EXPECTED, last.to_string());
    headers.insert(OPERATION, REMOVED);
    headers
}

/// Whether a message with these headers is a removal.
pub fn is_removal(headers: Option<&HeaderMap>) -> bool {
    let operation = headers.and_then(|headers| headers.get(OPERATION));
    operation.is_some_and(|operation| matches!(operation.as_str(), REMOVED | "PURGE"))
}

/// Sizes of a message without its subjects, in bytes: of what came, and of the whole message according to the server. Where the server
/// leaves the payload out, it adds a header with the payload's size, which is the last of that name: others are the writer's. A writer
/// whose headers are malformed can still hide it, so that only what came is certain.
pub fn sizes(message: &Message) -> (usize, usize) {
    let subjects = message.subject.len() + message.reply.as_ref().map_or(0, |reply| reply.len());
    let came = message.length.saturating_sub(subjects);
    let headers = message
        .headers
        .as_ref()
        .filter(|_| message.payload.is_empty());
    let size = headers.and_then(|headers| {
        let size: usize = headers.get_last(SIZE)?.as_str().parse().ok()?;
        let is_only = headers.len() == 1 && headers.get_all(SIZE).count() == 1;
        Some(if is_only {
            size
        } else {
            came.saturating_add(size)
        })
    });
    (came, size.unwrap_or(came))
}

/// A stream that keeps the newest message of each subject, to be made by `$JS.API.STREAM.CREATE.NAME`.
#[derive(Serialize)]
pub struct Stream<'s> {
    name: &'s str,
    subjects: [&'s str; 1],
    storage: &'static str,
    discard: &'static str,
    max_msgs_per_subject: u64,
    max_age: u128,
    num_replicas: usize,
    allow_direct: bool,
    allow_rollup_hdrs: bool,
    deny_delete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_bytes: Option<i64>,
}

impl<'s> Stream<'s> {
    /// One whose messages live for so long, for ever if that is zero, held by so many members.
    pub fn new(name: &'s str, subject: &'s str, age: Duration, replicas: usize) -> Stream<'s> {
        Stream {
            name,
            subjects: [subject],
            storage: "file",
            discard: "new",
            max_msgs_per_subject: 1,
            max_age: age.as_nanos(),
            num_replicas: replicas,
            allow_direct: true,
            allow_rollup_hdrs: false,
            deny_delete: true,
            max_bytes: None,
        }
    }

    /// Of at most so many bytes, for which its oldest messages make room.
    pub fn bound(&mut self, bytes: i64) {
        (self.max_bytes, self.discard) = (Some(bytes), "old");
    }
}

/// Where a consumer begins.
#[derive(Clone, Copy)]
pub enum From {
    /// With the newest message of each subject.
    Newest,
    /// With the message of this number.
    Number(u64),
    /// The same, and of each message its headers only.
    Headers(u64),
    /// The same, and nothing is sent: how many messages wait is all that is asked.
    Count(u64),
}

/// What makes a consumer, by `$JS.API.CONSUMER.CREATE.STREAM.NAME.FILTER`.
#[derive(Serialize)]
pub struct Consumer<'s> {
    stream_name: &'s str,
    config: Config<'s>,
}

#[derive(Serialize)]
struct Config<'s> {
    name: &'s str,
    deliver_subject: &'s str,
    filter_subject: &'s str,
    deliver_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    opt_start_seq: Option<u64>,
    headers_only: bool,
    ack_policy: &'static str,
    replay_policy: &'static str,
    max_deliver: u64,
    idle_heartbeat: u128,
    inactive_threshold: u128,
    flow_control: bool,
    mem_storage: bool,
}

/// What the server beats while nothing is to tell; flow control demands some beat. Whether it lives, and tells all, is asked with
/// the renewals of the lease.
const BEAT: Duration = Duration::from_secs(3600);
/// How long a consumer outlives its listener.
const UNHEARD: Duration = Duration::from_secs(30);
/// The same where nobody listens at all.
const COUNTED: Duration = Duration::from_secs(1);

impl<'s> Consumer<'s> {
    /// One with a name: under permissions an unnamed one is made by another call.
    pub fn new(
        stream: &'s str,
        name: &'s str,
        filter: &'s str,
        deliver: &'s str,
        from: From,
    ) -> Consumer<'s> {
        let (deliver_policy, opt_start_seq) = match from {
            From::Newest => ("last_per_subject", None),
            From::Number(number) | From::Headers(number) | From::Count(number) => {
                ("by_start_sequence", Some(number))
            }
        };
        let outlives = match from {
            From::Count(_) => COUNTED,
            _ => UNHEARD,
        };
        let config = Config {
            name,
            deliver_subject: deliver,
            filter_subject: filter,
            deliver_policy,
            opt_start_seq,
            headers_only: matches!(from, From::Headers(_) | From::Count(_)),
            ack_policy: "none",
            replay_policy: "instant",
            max_deliver: 1,
            idle_heartbeat: BEAT.as_nanos(),
            inactive_threshold: outlives.as_nanos(),
            flow_control: true,
            mem_storage: true,
        };
        Consumer {
            stream_name: stream,
            config,
        }
    }
}

/// What a server answers, as far as it is wanted: about a stream, a consumer or a message that it stored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// What went wrong.
    pub error: Option<Failure>,
    /// When a stream was made, by the server.
    pub created: String,
    /// How a stream is.
    pub state: State,
    /// How a stream was made.
    pub config: Map<String, Value>,
    /// The number of the message that was stored.
    pub seq: u64,
    /// How many messages wait for a consumer.
    pub num_pending: u64,
}

impl Answer {
    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn read(payload: &[u8]) -> Result<Answer, Error> {
        let answer = serde_json::from_slice(payload);
        answer.map_err(|e| Error::Unreachable(format!("the server's answer cannot be read: {e}")))
    }
}

/// What is sent of it.
pub fn json(of: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and yes or no cannot fail to be written.
    serde_json::to_vec(of).unwrap_or_default()
}

/// How a stream is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct State {
    /// The number of its last message.
    pub last_seq: u64,
}

/// Why a server did not do what it was asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Which failure.
    pub err_code: u16,
    /// In words.
    pub description: String,
}

impl Failure {
    /// Whether there is no room for what was to be stored.
    fn is_full(&self) -> bool {
        let words = ["maximum bytes", "no space"];
        let is_limit = words.iter().any(|words| self.description.contains(words));
        NO_ROOM.contains(&self.err_code) || (self.err_code == NOT_STORED && is_limit)
    }

    /// Error of a message that was to be stored.
    pub fn of_a_message(self) -> Error {
        match self.err_code {
            code if OTHER_LAST.contains(&code) => Error::Conflict,
            _ if self.is_full() => Error::Full(self.description),
            _ => Error::Unknown(self.description),
        }
    }

    /// Error of a question that changes nothing, or may be asked again.
    pub fn of_a_stream(self) -> Error {
        match self.is_full() {
            true => Error::Full(self.description),
            false => Error::Unreachable(self.description),
        }
    }
}

/// What a message says of itself, in the subject for its acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub struct Count {
    /// Its number in the stream.
    pub number: u64,
    /// How many its consumer was sent so far, itself included.
    pub sent: u64,
    /// How many wait behind it.
    pub pending: u64,
}

impl Count {
    /// Reads `$JS.ACK.STREAM.CONSUMER.DELIVERED.NUMBER.SENT.TIME.PENDING`, or the newer form with a domain and an account before
    /// the stream and more behind (NATS's ADR-15).
    pub fn read(reply: &str) -> Option<Count> {
        let words: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let at = match words.len() {
            7 => 0,
            9.. => 2,
            _ => return None,
        };
        let number = |i: usize| words.get(at + i)?.parse().ok();
        Some(Count {
            number: number(3)?,
            sent: number(4)?,
            pending: number(6)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: &[(&'static str, &str)], payload: &'static str) -> Message {
        let mut all = HeaderMap::new();
        let lines = headers.iter().map(|(name, value)| {
            all.append(*name, *value);
            name.len() + value.len() + ": \r\n".len()
        });
        let block = match lines.sum::<usize>() {
            0 => 0,
            lines => lines + "NATS/1.0\r\n\r\n".len(),
        };
        Message {
            subject: "subject".into(),
            reply: Some("reply".into()),
            payload: payload.into(),
            headers: Some(all).filter(|all| !all.is_empty()),
            status: None,
            description: None,
            length: "subjectreply".len() + block + payload.len(),
        }
    }

    #[test]
    fn size_of_a_message_is_what_the_server_says_and_not_its_writer() {
        assert_eq!(sizes(&message(&[], "12345")), (5, 5));
        // The server has left 9 bytes out.
        assert_eq!(sizes(&message(&[(SIZE, "9")], "")), (30, 9));
        for written in ["0", "99999999"] {
            let (came, whole) = sizes(&message(&[(SIZE, written), (SIZE, "9")], ""));
            assert_eq!(whole, came + 9, "{written}");
            // It came with its payload.
            let (came, whole) = sizes(&message(&[(SIZE, written)], "12345"));
            assert_eq!(whole, came, "{written}");
        }
        let (came, whole) = sizes(&message(&[(OPERATION, REMOVED), (SIZE, "9")], ""));
        assert!(came > 40 && whole == came + 9, "{came}, {whole}");
    }

    #[test]
    fn a_message_says_which_one_it_is() {
        let count = Some(Count {
            number: 17,
            sent: 2,
            pending: 5,
        });
        assert_eq!(Count::read("$JS.ACK.KV_x.name.1.17.2.1700000000.5"), count);
        let newer = "$JS.ACK.domain.account.KV_x.name.1.17.2.1700000000.5.token";
        assert_eq!(Count::read(newer), count);
        for wrong in [
            "",
            "$JS.ACK.a.b.1.2.3.4",
            "_INBOX.a.b.1.2.3.4.5",
            "$JS.ACK.a.b.1.x.3.4.5",
        ] {
            assert_eq!(Count::read(wrong), None, "{wrong}");
        }
    }
}
