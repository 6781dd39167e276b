//! Errors of etcd's client, as those of a backend.

use std::error::Error as _;
use std::io;

use crate::backend::Error;

/// Error of a call that may have reached the server.
pub(super) fn error(error: &etcd_client::Error) -> Error {
    let why = words(error);
    match error {
        etcd_client::Error::GRpcStatus(status) => match i32::from(status.code()) {
            // INVALID_ARGUMENT, RESOURCE_EXHAUSTED and OUT_OF_RANGE: codes of the server and of the
            // client for a message that is too large.
            3 | 8 | 11 if why.contains("too large") || why.contains("larger than max") => {
                Error::TooLarge
            }
            8 if why.contains("space exceeded") => Error::Full(why),
            7 | 16 => Error::Denied(why),
            // NOT_FOUND: only a lease can be missing.
            5 => Error::Conflict,
            _ if never_left(status) => Error::Unreachable(why),
            _ => Error::Unknown(why),
        },
        etcd_client::Error::LeaseKeepAliveError(_) => Error::Conflict,
        _ => Error::Unknown(why),
    }
}

/// Whether there was no connection over which to send anything.
fn never_left(status: &(dyn std::error::Error + 'static)) -> bool {
    let mut source = status.source();
    while let Some(cause) = source {
        if let Some(e) = cause.downcast_ref::<io::Error>() {
            use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound};
            return matches!(
                e.kind(),
                ConnectionRefused | HostUnreachable | NetworkUnreachable | NotFound
            );
        }
        source = cause.source();
    }
    false
}

/// Message of an answer without the library's own words if something other than etcd answers, such
/// as a proxy in front of it.
fn plain(words: &str) -> String {
    match words.split_once("grpc-status header missing, mapped from HTTP status code ") {
        Some((_, status)) => format!("what answers there is not etcd: HTTP status {status}"),
        None => words.to_owned(),
    }
}

pub(super) fn words(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) => {
            let cause = status.source();
            // This error only says that it is an error of the transport.
            let is_wrapper = cause.is_some_and(|e| e.is::<tonic::transport::Error>());
            let cause = cause.and_then(|e| if is_wrapper { e.source() } else { Some(e) });
            crate::backend::with_causes(plain(status.message()), cause)
        }
        etcd_client::Error::TransportError(e) => {
            crate::backend::with_causes(e.to_string(), e.source())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_before_etcd_is_told_in_plain_words() {
        let status = "grpc-status header missing, mapped from HTTP status code 503";
        let status = tonic::Status::unavailable(status);
        assert_eq!(
            words(&etcd_client::Error::GRpcStatus(status)),
            "what answers there is not etcd: HTTP status 503"
        );
    }
}
