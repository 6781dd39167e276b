//! Errors of NATS's client, as those of an engine.

use std::error::Error as _;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};

use crate::engine::Error;

/// Another message was the last one of its subject: releases say that in three ways.
const OTHER_LAST: [ErrorCode; 3] = [
    ErrorCode::STREAM_WRONG_LAST_MESSAGE_ID,
    ErrorCode::STREAM_WRONG_LAST_SEQUENCE,
    ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT,
];
/// The resources of the account or of the server are used up, or its storage is.
const NO_ROOM: [ErrorCode; 3] = [
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
];

/// Whether a server has no room. A limit of a stream or of the disk only shows in the words of a message that was not stored.
fn is_full(refusal: &jetstream::Error) -> bool {
    let words = refusal.to_string();
    let is_limit = ["maximum bytes", "no space"]
        .iter()
        .any(|part| words.contains(part));
    let code = refusal.error_code();
    NO_ROOM.contains(&code) || (code == ErrorCode::STREAM_STORE_FAILED && is_limit)
}

/// Error of a message that was to be stored.
pub fn of_message(error: &PublishError) -> Error {
    let refusal = error.source();
    let refusal = refusal.and_then(|e| e.downcast_ref::<jetstream::Error>());
    match (refusal, error.kind()) {
        (Some(refusal), _) if OTHER_LAST.contains(&refusal.error_code()) => Error::Conflict,
        (Some(refusal), _) if is_full(refusal) => Error::Full(refusal.to_string()),
        (None, PublishErrorKind::MaxPayloadExceeded) => Error::TooLarge,
        // Nobody listens there: nothing has happened.
        (None, PublishErrorKind::StreamNotFound) => Error::Unreachable(causes(error)),
        _ => Error::Unknown(causes(error)),
    }
}

/// Error of a call that changes nothing, or may be done again, which the server refused.
pub fn of_call(refusal: &jetstream::Error) -> Error {
    match is_full(refusal) {
        true => Error::Full(refusal.to_string()),
        false => Error::Unreachable(refusal.to_string()),
    }
}

/// The words of an error and of its causes.
pub fn causes(error: &dyn std::error::Error) -> String {
    crate::engine::with_causes(error.to_string(), error.source())
}
