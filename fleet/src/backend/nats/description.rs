//! Descriptions of streams by the server.

use serde::Deserialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;

/// The part of a stream's description that is used. Its settings are those of the server, also where this client does not know them.
#[derive(Deserialize)]
pub struct Stream {
    pub config: Map<String, Value>,
    #[serde(with = "time::serde::rfc3339")]
    pub created: OffsetDateTime,
    pub state: State,
}

/// The part of a stream's state that is used.
#[derive(Deserialize)]
pub struct State {
    #[serde(rename = "last_seq")]
    pub last_sequence: u64,
}
