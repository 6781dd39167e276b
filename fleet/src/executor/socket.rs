//! Socket of the executor, which systemd opens and for which it starts this program: one request at
//! a time, and one for each connection.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use tracing::warn;

use again_base::sys::pidfd::{inherit, is_readable_by};
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::Executor;
use super::helper::group;
use crate::handover::{Asked, HEAD, MOST_PIDFDS, asked, ids, measured, say};
use crate::wire::name::Id;

/// Time limit for the transfer of a request, and for that of its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Socket that systemd passes (sd_listen_fds(3)). It closes at the next exec.
///
/// # Errors
/// No socket was passed, or more than one.
pub fn passed() -> io::Result<UnixListener> {
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|is| is == value);
    if is("LISTEN_PID", &std::process::id().to_string()) && is("LISTEN_FDS", "1") {
        return Ok(UnixListener::from(inherit(3)?));
    }
    Err(io::Error::other(
        "no socket was passed; systemctl start again-fleet-executor.socket, which starts this program when it is needed",
    ))
}

/// Answers requests until there was none for the time `idle`, or until an upgrade has replaced this
/// program; then the next request starts the new one. Continues while there is a waiter that could
/// not get its own scope, since it would end with this service.
///
/// # Errors
/// Waiting on the socket failed.
pub fn attend(listener: &UnixListener, taker: &mut Executor, idle: Duration) -> io::Result<()> {
    let at_first = group().unwrap_or_default();
    loop {
        let is_asked = is_readable_by(listener.as_fd(), Instant::now() + idle)?;
        if is_asked {
            let served = listener
                .accept()
                .and_then(|(stream, _)| converse(&stream, taker));
            if let Err(e) = served {
                warn!("a question was not answered: {e}");
            }
        }
        if (!is_asked || is_replaced()) && group().is_none_or(|now| now.is_subset(&at_first)) {
            taker.rest();
            return Ok(());
        }
    }
}

/// Whether the file of this program was replaced or removed, so that it has no name any more.
fn is_replaced() -> bool {
    std::fs::metadata("/proc/self/exe").is_ok_and(|program| program.nlink() == 0)
}

fn converse(mut stream: &UnixStream, taker: &mut Executor) -> io::Result<()> {
    let (answers, pidfds) = match question(stream)? {
        Question::Take(values) => (taker.answer(&values), Vec::new()),
        Question::Became(ids) => taker.became(&ids),
        Question::Mark(runs) => {
            taker.mark(&runs);
            (Vec::new(), Vec::new())
        }
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer = say(&answers);
    // The pidfds come with the first byte.
    let sent = send(stream, &answer, &pidfds)?;
    stream.write_all(&answer[sent..])
}

/// Sends the first of these bytes, at least one, together with the descriptors. Returns the number
/// of bytes sent.
fn send(stream: &UnixStream, bytes: &[u8], pidfds: &[OwnedFd]) -> io::Result<usize> {
    let pidfds: Vec<BorrowedFd<'_>> = pidfds.iter().map(OwnedFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PIDFDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !pidfds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&pidfds)) {
        return Err(io::Error::other("too many pidfds for one answer"));
    }
    let bytes = [IoSlice::new(bytes)];
    let sent = retry_on_intr(|| sendmsg(stream, &bytes, &mut control, SendFlags::NOSIGNAL))?;
    Ok(sent)
}

/// Request of the service.
enum Question {
    Take(Vec<Vec<u8>>),
    Became(Vec<Id>),
    Mark(Vec<Id>),
}

fn question(stream: &UnixStream) -> io::Result<Question> {
    let deadline = Instant::now() + PATIENCE;
    let read = |length| read(stream, length, deadline);
    let read_ids = |count| ids(&read(count * Id::MOST)?).map_err(io::Error::other);
    match asked(&read(HEAD)?).map_err(io::Error::other)? {
        Asked::Take(count) => {
            let lengths = measured(count, &read(4 * count)?).map_err(io::Error::other)?;
            let values: io::Result<_> = lengths.into_iter().map(read).collect();
            values.map(Question::Take)
        }
        Asked::Became(count) => Ok(Question::Became(read_ids(count)?)),
        Asked::Mark(count) => Ok(Question::Mark(read_ids(count)?)),
    }
}

/// Reads this number of bytes, until the deadline.
fn read(mut stream: &UnixStream, length: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut at = 0;
    while at < length {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::other("it did not arrive in time"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[at..]) {
            Ok(0) => return Err(io::Error::other("it was cut short")),
            Ok(more) => at += more,
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}
