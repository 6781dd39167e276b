//! Configuration of a consumer.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy};

/// First message that a consumer sends.
#[derive(Clone, Copy)]
pub enum Start {
    /// The newest message of each subject.
    Newest,
    /// The message of this sequence number.
    Number(u64),
    /// The message of this sequence number; only headers are sent.
    Headers(u64),
    /// The message of this sequence number; nothing is sent, only the waiting messages are counted.
    Count(u64),
}

/// Interval of the server's heartbeats while there are no messages. Flow control requires
/// heartbeats; the renewals of the lease check whether the server is alive and sends everything.
const BEAT: Duration = Duration::from_secs(3600);
/// Lifetime of a consumer after its subscriber has left.
const UNHEARD: Duration = Duration::from_secs(30);
/// Lifetime of a consumer that only counts messages.
const COUNTED: Duration = Duration::from_secs(1);

impl Start {
    /// Configuration of a consumer that sends to an inbox. The consumer has a name because an
    /// unnamed one is created with another call, which needs other permissions.
    pub fn config(self, name: &str, filter: &str, inbox: &str) -> Config {
        let deliver_policy = match self {
            Start::Newest => DeliverPolicy::LastPerSubject,
            Start::Number(start_sequence)
            | Start::Headers(start_sequence)
            | Start::Count(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
        };
        Config {
            name: Some(name.to_owned()),
            deliver_subject: Some(inbox.to_owned()),
            filter_subject: filter.to_owned(),
            deliver_policy,
            headers_only: matches!(self, Start::Headers(_) | Start::Count(_)),
            ack_policy: AckPolicy::None,
            max_deliver: 1,
            idle_heartbeat: BEAT,
            inactive_threshold: match self {
                Start::Count(_) => COUNTED,
                _ => UNHEARD,
            },
            flow_control: true,
            memory_storage: true,
            ..Config::default()
        }
    }
}
