//! Headers of a stream's messages: conditions, removals, and sizes according to the server.

use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_SEQUENCE};
use async_nats::jetstream::message::StreamMessage;
use async_nats::{HeaderMap, Message, StatusCode};

use super::errors::unreadable;
use crate::backend::Error;

/// Header with the payload size of a message of which only the headers are sent.
const SIZE: &str = "Nats-Msg-Size";
/// Header that marks a removal, as NATS's own clients set it.
const OPERATION: &str = "KV-Operation";
const REMOVED: &str = "DEL";

/// Headers of a removal that is stored only if the last message of its subject has this sequence
/// number; 0 for none.
pub fn removing(last: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, last.to_string());
    headers.insert(OPERATION, REMOVED);
    headers
}

/// Whether a message with these headers is a removal.
pub fn is_removal(headers: Option<&HeaderMap>) -> bool {
    let operation = headers.and_then(|headers| headers.get(OPERATION));
    operation.is_some_and(|operation| matches!(operation.as_str(), REMOVED | "PURGE"))
}

/// Sequence number of the message in the answer to a request for the newest message of a subject,
/// and whether it is a value rather than a removal. The server appends its headers to those of the
/// stored message and keeps the writer's status: a status is the server's only if there is no
/// number.
pub fn newest(answer: Message) -> Result<Option<(u64, bool)>, Error> {
    let number = answer.headers.as_ref();
    let number = number.and_then(|headers| headers.get_last(NATS_SEQUENCE));
    match (number, answer.status) {
        (None, Some(StatusCode::NOT_FOUND)) => return Ok(None),
        (None, Some(status)) => {
            let why = format!("the server answered with status {status}");
            return Err(Error::Unreachable(why));
        }
        _ => {}
    }
    let message = StreamMessage::try_from(answer).map_err(unreadable)?;
    Ok(Some((
        message.sequence,
        !is_removal(Some(&message.headers)),
    )))
}

/// Sizes of a message without its subjects, in bytes: the size that arrived, and the size of the
/// whole message according to the server. If the server leaves the payload out, it appends a header
/// with the payload's size, which is the last of that name: others are the writer's. A writer with
/// malformed headers can still hide it, so only the size that arrived is certain.
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
}
