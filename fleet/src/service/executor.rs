//! Requests to the executor over its Unix socket; each carries a bounded number of triggers.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::handover::{self, HEAD, MOST_BYTES, MOST_PIDFDS, MOST_TOGETHER};
use crate::policy::replay::TriggerKey;
use crate::step::model::{Answer, Handed};
use crate::wire::name::Id;

/// Longest time that the executor may take for a request: it gives `again` half a minute for each
/// of two requests and two checks, and may have to finish two requests that were begun before.
const PATIENCE: Duration = Duration::from_secs(190);

/// Hands all triggers over. Returns the answers, and why the rest was not answered.
pub async fn hand_over(socket: &Path, values: Vec<Handed>) -> (Vec<Answer>, Option<String>) {
    let mut answers = Vec::with_capacity(values.len());
    for part in parts(values) {
        let asked = timeout(PATIENCE, ask(socket, &part)).await;
        let asked = asked.unwrap_or_else(|_| {
            Err(io::Error::other(format!(
                "no answer within {} s",
                PATIENCE.as_secs()
            )))
        });
        match asked {
            Ok(said) => {
                let told = part.into_iter().zip(said).map(|((which, _), said)| Answer {
                    which,
                    outcome: said.outcome,
                    why: said.why,
                    above: said.above,
                });
                answers.extend(told);
            }
            Err(e) => return (answers, Some(format!("{}: {e}", socket.display()))),
        }
    }
    (answers, None)
}

/// Splits the values into parts that each fit into one request.
fn parts(values: Vec<Handed>) -> Vec<Vec<Handed>> {
    let mut parts: Vec<Vec<Handed>> = Vec::new();
    let mut bytes = 0;
    for value in values {
        bytes += value.1.length();
        match parts.last_mut() {
            Some(part) if part.len() < MOST_TOGETHER && bytes <= MOST_BYTES => part.push(value),
            _ => {
                bytes = value.1.length();
                parts.push(vec![value]);
            }
        }
    }
    parts
}

/// Answers about triggers that were accepted, and pidfds of the processes whose ends change these
/// answers.
#[derive(Debug, Default)]
pub struct Became {
    /// Answer for each trigger.
    pub answers: Vec<(TriggerKey, handover::Answer)>,
    /// Descriptors that came with the answers, at most [`MOST_PIDFDS`] with each. They may be
    /// descriptors of any kind.
    pub pidfds: Vec<OwnedFd>,
}

/// Asks the executor what became of accepted triggers.
///
/// # Errors
/// The executor does not answer.
pub async fn became(socket: &Path, taken: Vec<TriggerKey>) -> io::Result<Became> {
    let mut became = Became::default();
    for part in taken.chunks(MOST_TOGETHER) {
        let ids: Vec<Id> = part.iter().map(|which| which.id.clone()).collect();
        let question = handover::became(&ids).map_err(io::Error::other)?;
        let asked = timeout(PATIENCE, converse(socket, &question, part.len())).await;
        let (said, pidfds) = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        became.answers.extend(part.iter().cloned().zip(said));
        became.pidfds.extend(pidfds);
    }
    Ok(became)
}

/// Asks the executor to mark the files of runs whose events are all published, and to remove
/// requests that are done.
///
/// # Errors
/// The executor does not answer.
pub async fn mark(socket: &Path, ids: &[Id]) -> io::Result<()> {
    for part in ids.chunks(MOST_TOGETHER) {
        let question = handover::mark(part).map_err(io::Error::other)?;
        let asked = timeout(PATIENCE, converse(socket, &question, 0)).await;
        asked.map_err(|_| io::ErrorKind::TimedOut)??;
    }
    Ok(())
}

async fn ask(socket: &Path, part: &[Handed]) -> io::Result<Vec<handover::Answer>> {
    let values: Vec<Vec<u8>> = part.iter().map(|(_, value)| value.bytes()).collect();
    let question = handover::ask(&values).map_err(io::Error::other)?;
    let (answers, _) = converse(socket, &question, part.len()).await?;
    Ok(answers)
}

async fn converse(
    socket: &Path,
    question: &[u8],
    count: usize,
) -> io::Result<(Vec<handover::Answer>, Vec<OwnedFd>)> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(question).await?;
    let mut head = [0; HEAD];
    let (length, pidfds) = receive(&stream, &mut head).await?;
    stream.read_exact(&mut head[length..]).await?;
    let mut rest = vec![0; handover::length(&head).map_err(io::Error::other)?];
    stream.read_exact(&mut rest).await?;
    let answers = handover::answers(count, &rest).map_err(io::Error::other)?;
    Ok((answers, pidfds))
}

/// Receives bytes and the descriptors that come with them, which close at an exec. Returns the
/// number of bytes, 0 at the end of the stream. The kernel closes descriptors that exceed the
/// limit, and those that come with any later byte.
async fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PIDFDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = stream.async_io(Interest::READABLE, || {
        let bytes = &mut [IoSliceMut::new(bytes)];
        Ok(recvmsg(stream, bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes)
    });
    let length = received.await?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    // The buffer may hold one descriptor more.
    Ok((length, rights.flatten().take(MOST_PIDFDS).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, Read};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;

    use crate::handover::Evidence;
    use crate::wire::outcome::Outcome;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use crate::wire::trigger::tests::trigger;

    /// Answers one question for what became of a trigger with this many copies of a descriptor.
    fn answer(listener: &UnixListener, descriptor: OwnedFd, count: usize) {
        let (mut stream, _) = listener.accept().expect("asked");
        stream
            .read_exact(&mut [0; HEAD + Id::MOST])
            .expect("a question");
        let answer = handover::say(&[handover::Answer {
            outcome: Outcome::Started,
            why: String::new(),
            ran: None,
            is_unwatched: false,
            above: None,
        }]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let copies = vec![descriptor.as_fd(); count];
        assert!(control.push(SendAncillaryMessage::ScmRights(&copies)));
        // The first bytes come alone.
        let (first, rest) = answer.split_at(3);
        let sent = sendmsg(
            &stream,
            &[IoSlice::new(first)],
            &mut control,
            SendFlags::empty(),
        );
        assert_eq!(sent, Ok(3));
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&copies)));
        let sent = sendmsg(
            &stream,
            &[IoSlice::new(rest)],
            &mut control,
            SendFlags::empty(),
        );
        assert_eq!(sent, Ok(rest.len()));
    }

    /// More descriptors than are allowed, at the first byte and at another one: what is not kept is closed, and so is the rest when
    /// nobody needs it any more.
    #[tokio::test]
    async fn descriptors_that_come_with_an_answer_are_bounded_and_closed() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("executor");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let server = std::thread::spawn(move || answer(&listener, writer.into(), 100));
        let which = TriggerKey::from(&trigger());
        let became = became(&socket, vec![which]).await.expect("an answer");
        server.join().expect("answered");
        assert_eq!(became.answers[0].1.outcome, Outcome::Started);
        assert_eq!(became.pidfds.len(), MOST_PIDFDS);
        for fd in &became.pidfds {
            let flags = rustix::io::fcntl_getfd(fd).expect("open");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        drop(became.pidfds);
        // The end of the pipe: no copy is open any longer.
        assert_eq!(reader.read(&mut [0]).expect("read"), 0);
    }

    fn sizes(lengths: &[usize]) -> Vec<Vec<usize>> {
        let which = TriggerKey::from(&trigger());
        let values = lengths
            .iter()
            .map(|length| (which.clone(), Evidence::Register(vec![0; *length])));
        let parts = parts(values.collect());
        let sizes = parts
            .iter()
            .map(|part| part.iter().map(|(_, value)| value.length()).collect());
        sizes.collect()
    }

    #[test]
    fn no_question_has_more_than_it_may() {
        assert!(sizes(&[]).is_empty());
        assert_eq!(
            sizes(&[1; 70]).iter().map(Vec::len).collect::<Vec<_>>(),
            [32, 32, 6]
        );
        let third = MOST_BYTES / 3;
        assert_eq!(
            sizes(&[third, third, third, third, 1, 1]),
            [vec![third; 3], vec![third, 1, 1]]
        );
        assert_eq!(sizes(&[MOST_BYTES, 1]), [vec![MOST_BYTES], vec![1]]);
    }
}
