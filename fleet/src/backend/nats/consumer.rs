//! How a consumer is made.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config, DeliverPolicy};

/// Where a consumer begins.
#[derive(Clone, Copy)]
pub enum Start {
    /// With the newest message of each subject.
    Newest,
    /// With the message of this number.
    Number(u64),
    /// The same, and of each message its headers only.
    Headers(u64),
    /// The same, and nothing is sent: how many messages wait is all that is asked.
    Count(u64),
}

/// What the server beats while nothing is to tell; flow control demands some beat. Whether it lives, and tells all, is asked with
/// the renewals of the lease.
const BEAT: Duration = Duration::from_secs(3600);
/// How long a consumer outlives its listener.
const UNHEARD: Duration = Duration::from_secs(30);
/// The same where nobody listens at all.
const COUNTED: Duration = Duration::from_secs(1);

impl Start {
    /// Configuration of a consumer that sends to an inbox. It has a name: under permissions an unnamed one is made by another call.
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
