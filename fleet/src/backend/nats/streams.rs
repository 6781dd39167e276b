//! The streams: their creation and the requests about them.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use serde::Serialize;
use serde_json::{Map, Value};

use super::description::Stream;
use super::{Nats, errors};
use crate::backend::Error;

/// Lifetime of values: longer than any trigger is valid.
const DAY: Duration = Duration::from_secs(25 * 3600);
/// Lifetime of events, and their largest total size in bytes: new events replace the oldest.
const HOUR: Duration = Duration::from_secs(3600);
const MOST_EVENTS: i64 = 64 << 20;
/// Number of members of a cluster that store a stream.
const REPLICAS: usize = 3;

/// Setting of a stream that lets one message replace all others.
const ROLLUP: &str = "allow_rollup_hdrs";

impl Nats {
    /// The server's description of a section's stream. Creates the stream if it does not exist: no
    /// node has created it yet, or the server has lost it.
    pub(super) async fn prepare(&self, section: &str) -> Result<Stream, Error> {
        self.is_connected()?;
        let bucket = self.bucket(section);
        let name = format!("KV_{bucket}");
        if let Some(stream) = self.ask_stream("INFO", &name, &()).await? {
            return Ok(stream);
        }
        let age = match section {
            "node" => Duration::ZERO,
            "event" => HOUR,
            _ => DAY,
        };
        let replicas = match self.client.server_info().cluster {
            Some(_) => REPLICAS,
            None => 1,
        };
        let mut config = Config {
            name: name.clone(),
            subjects: vec![format!("$KV.{bucket}.>")],
            discard: DiscardPolicy::New,
            max_messages_per_subject: 1,
            max_age: age,
            num_replicas: replicas,
            allow_direct: true,
            deny_delete: true,
            ..Config::default()
        };
        if section == "event" {
            (config.max_bytes, config.discard) = (MOST_EVENTS, DiscardPolicy::Old);
        }
        let made = self.ask_stream("CREATE", &name, &config).await;
        if let Ok(Some(stream)) = made {
            return Ok(stream);
        }
        // If another node creates the stream at the same time, the server refuses with one of
        // several errors.
        match self.ask_stream("INFO", &name, &()).await {
            Ok(Some(stream)) => Ok(stream),
            _ => made?.ok_or_else(|| Error::Unreachable(format!("no stream {name}"))),
        }
    }

    /// Forbids rollups in a stream that was created while they were allowed: one message, with a
    /// header that no permission of NATS can forbid, would replace all messages of the stream.
    /// Nodes with permissions for streams may not change the setting.
    pub(super) async fn forbid_rollups(&self, section: &str, stream: Stream) -> Result<(), Error> {
        let Some(config) = without_rollups(stream.config) else {
            return Ok(());
        };
        let name = format!("KV_{}", self.bucket(section));
        match self.ask_stream("UPDATE", &name, &config).await {
            Ok(_) | Err(Error::Denied(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Calls JetStream's API for a stream: its description, or `None` if the stream does not exist.
    pub(super) async fn ask_stream(
        &self,
        verb: &str,
        stream: &str,
        question: &impl Serialize,
    ) -> Result<Option<Stream>, Error> {
        match self
            .ask(&format!("STREAM.{verb}.{stream}"), question)
            .await?
        {
            Ok(stream) => Ok(Some(stream)),
            Err(refusal) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            Err(refusal) => Err(errors::of_call(&refusal)),
        }
    }
}

/// Settings of a stream that allows rollups, with only that changed; `None` if it does not allow
/// them.
fn without_rollups(mut config: Map<String, Value>) -> Option<Map<String, Value>> {
    let allowed = config.get_mut(ROLLUP)?;
    if *allowed != true {
        return None;
    }
    *allowed = false.into();
    Some(config)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn update_keeps_settings_that_only_a_newer_server_knows() {
        let changed = |config: Value| {
            let config = config.as_object().expect("an object").clone();
            without_rollups(config).map(Value::Object)
        };
        assert_eq!(changed(json!({ "allow_rollup_hdrs": false })), None);
        assert_eq!(changed(json!({})), None);
        let allowed = json!({ "allow_rollup_hdrs": true, "new": { "a": 1 }, "storage": "tape" });
        let forbidden = json!({ "allow_rollup_hdrs": false, "new": { "a": 1 }, "storage": "tape" });
        assert_eq!(changed(allowed), Some(forbidden));
    }
}
