//! Conversion of the NATS client's errors to those of a backend.

use std::error::Error as _;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::backend::Error;

/// Codes for a subject whose last message is another one; releases of NATS differ.
const OTHER_LAST: [ErrorCode; 3] = [
    ErrorCode::STREAM_WRONG_LAST_MESSAGE_ID,
    ErrorCode::STREAM_WRONG_LAST_SEQUENCE,
    ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT,
];
/// Codes for exhausted resources or storage of the account or of the server.
const NO_ROOM: [ErrorCode; 3] = [
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
];

/// Whether a server is out of space. For a limit of a stream or of the disk, only the words of the
/// refusal say so.
fn is_full(refusal: &jetstream::Error) -> bool {
    let words = refusal.to_string();
    let is_limit = ["maximum bytes", "no space"]
        .iter()
        .any(|part| words.contains(part));
    let code = refusal.error_code();
    NO_ROOM.contains(&code) || (code == ErrorCode::STREAM_STORE_FAILED && is_limit)
}

/// Content of an answer of JetStream's API, or the refusal. Unlike the client's own type, the error
/// names a field that cannot be read.
///
/// # Errors
/// A field is missing or has another type.
pub fn read<T: DeserializeOwned>(answer: &Value) -> Result<Result<T, jetstream::Error>, Error> {
    let read = match answer.get("error") {
        Some(refusal) => jetstream::Error::deserialize(refusal).map(Err),
        None => T::deserialize(answer).map(Ok),
    };
    read.map_err(unreadable)
}

/// Error of an answer in which something is missing or has another type.
pub fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Unreachable(format!("the server's answer cannot be read: {error}"))
}

/// Error of a message that was to be stored under this subject.
pub fn of_message(subject: &str, error: &PublishError) -> Error {
    let refusal = error.source();
    let refusal = refusal.and_then(|e| e.downcast_ref::<jetstream::Error>());
    match (refusal, error.kind()) {
        (Some(refusal), _) if OTHER_LAST.contains(&refusal.error_code()) => Error::Conflict,
        (Some(refusal), _) if is_full(refusal) => Error::Full(refusal.to_string()),
        (None, PublishErrorKind::MaxPayloadExceeded) => Error::TooLarge,
        // The subject has no subscriber: nothing has changed.
        (None, PublishErrorKind::StreamNotFound) => {
            Error::Unreachable(format!("no responders at {subject}"))
        }
        _ => Error::Unknown(causes(error)),
    }
}

/// Error of a call that the server refused and that changes nothing or may be repeated.
pub fn of_call(refusal: &jetstream::Error) -> Error {
    match is_full(refusal) {
        true => Error::Full(refusal.to_string()),
        false => Error::Unreachable(refusal.to_string()),
    }
}

/// An error and its causes, in one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    crate::backend::with_causes(error.to_string(), error.source())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::description::Stream;
    use super::*;

    fn stream(answer: Value) -> Result<u64, String> {
        match read::<Stream>(&answer) {
            Ok(Ok(stream)) => Ok(stream.state.last_sequence),
            Ok(Err(refusal)) => Err(refusal.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn answer_is_read_with_settings_of_newer_servers_and_its_errors_name_what_is_wrong() {
        let answer = json!({
            "type": "io.nats.jetstream.api.v1.stream_info_response",
            "config": { "retention": "of a newer server", "allow_rollup_hdrs": true },
            "created": "2026-01-01T00:00:00.5Z",
            "state": { "last_seq": 7, "messages": "many" },
        });
        assert_eq!(stream(answer.clone()), Ok(7));
        let mut wrong = answer.clone();
        wrong["state"]["last_seq"] = json!("7");
        let error = stream(wrong).expect_err("wrong");
        assert!(
            error.contains(r#"cannot be read: invalid type: string "7", expected u64"#),
            "{error}"
        );
        let mut missing = answer;
        missing["state"] = json!({});
        let error = stream(missing).expect_err("missing");
        assert!(
            error.contains("cannot be read: missing field `last_seq`"),
            "{error}"
        );
        let refusal = json!({ "error": { "code": 404, "err_code": 10059, "description": "stream not found" } });
        let error = stream(refusal).expect_err("refused");
        assert!(error.starts_with("stream not found"), "{error}");
    }
}
