//! The streams: what is asked of them, and how they are made.

use std::time::Duration;

use super::Nats;
use crate::engine::Error;
use crate::engine::jetstream::{Answer, NO_STREAM, ROLLUPS, Stream, json};

/// How long what is told stays: longer than any trigger is worth something.
const DAY: Duration = Duration::from_secs(25 * 3600);
/// How long events stay, and how many bytes of them: the oldest make room.
const HOUR: Duration = Duration::from_secs(3600);
const MOST_EVENTS: i64 = 64 << 20;
/// How many members of a cluster hold a stream.
const REPLICAS: usize = 3;

impl Nats {
    /// What the server says of a room's stream. Makes the stream if there is none: nobody has yet, or the server has lost it.
    pub(super) async fn prepare(&self, room: &str) -> Result<Answer, Error> {
        self.is_connected()?;
        let bucket = self.bucket(room);
        let name = format!("KV_{bucket}");
        if let Some(stream) = self.ask_stream("INFO", &name, b"").await? {
            return Ok(stream);
        }
        let age = match room {
            "node" => Duration::ZERO,
            "event" => HOUR,
            _ => DAY,
        };
        let replicas = match self.client.server_info().cluster {
            Some(_) => REPLICAS,
            None => 1,
        };
        let subject = format!("$KV.{bucket}.>");
        let mut stream = Stream::new(&name, &subject, age, replicas);
        if room == "event" {
            stream.bound(MOST_EVENTS);
        }
        let stream = json(&stream);
        let made = self.ask_stream("CREATE", &name, &stream).await;
        if let Ok(Some(stream)) = made {
            return Ok(stream);
        }
        // Another node may have made it at the same moment, which a server refuses in one way or another.
        match self.ask_stream("INFO", &name, b"").await {
            Ok(Some(stream)) => Ok(stream),
            _ => made?.ok_or_else(|| Error::Unreachable(format!("no stream {name}"))),
        }
    }

    /// Forbids rollups in a stream that was made while they were allowed. With rights for streams nodes may not change it.
    pub(super) async fn forbid_rollups(&self, room: &str, stream: Answer) -> Result<(), Error> {
        let mut config = stream.config;
        if config.insert(ROLLUPS.to_owned(), false.into()) != Some(true.into()) {
            return Ok(());
        }
        let name = format!("KV_{}", self.bucket(room));
        match self.ask_stream("UPDATE", &name, &json(&config)).await {
            Ok(_) | Err(Error::Denied(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks JetStream about a stream, or for it: its answer, if the stream is there.
    pub(super) async fn ask_stream(
        &self,
        verb: &str,
        stream: &str,
        payload: &[u8],
    ) -> Result<Option<Answer>, Error> {
        let subject = format!("$JS.API.STREAM.{verb}.{stream}");
        let answer = Answer::read(&self.look(subject, payload).await?.payload)?;
        match answer.error {
            Some(error) if error.err_code == NO_STREAM => Ok(None),
            Some(failure) => Err(failure.of_a_stream()),
            None => Ok(Some(answer)),
        }
    }
}
