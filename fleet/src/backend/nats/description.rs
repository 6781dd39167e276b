//! Descriptions of streams by the server.

use serde::Deserialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;

/// The fields of a stream's description that are used. The settings are the server's, including
/// those that this client does not know.
#[derive(Deserialize)]
pub struct Stream {
    pub config: Map<String, Value>,
    #[serde(with = "time::serde::rfc3339")]
    pub created: OffsetDateTime,
    pub state: State,
}

/// The field of a stream's state that is used.
#[derive(Deserialize)]
pub struct State {
    #[serde(rename = "last_seq")]
    pub last_sequence: u64,
}
