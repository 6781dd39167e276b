//! Requests of a command to the service of this node, each with a stream of answers.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use again_base::sys::pidfd::is_readable_by;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Problem;
use crate::ask::{self, Answer, HEAD, Question};
use crate::settings::Settings;

/// Time for the service to answer for each target.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Name of the service's socket in the directory of sockets.
const SOCKET: &str = "trigger";

/// Path of the service's socket.
pub fn socket(settings: &Settings) -> PathBuf {
    settings.run_dir.join(SOCKET)
}

/// A request and its answers.
#[derive(Debug)]
pub struct Conversation {
    stream: UnixStream,
    path: PathBuf,
    /// Bytes of an answer that is still incomplete.
    bytes: Vec<u8>,
}

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// An answer.
    Answer(Answer),
    /// No answer in time.
    Silence,
    /// The service closed the connection.
    End,
}

impl Conversation {
    /// Sends a request.
    ///
    /// # Errors
    /// The service does not listen, or did not accept the request in time.
    pub fn begin(path: &Path, question: &Question, until: Instant) -> Result<Self, Problem> {
        let bytes = ask::ask(question)?;
        let stream = connect(path, until).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => Problem::Failed(not_there(path, &e)),
            _ => Problem::Unreachable(not_there(path, &e)),
        })?;
        let conversation = Conversation {
            stream,
            path: path.to_owned(),
            bytes: Vec::new(),
        };
        let sent = write(&conversation.stream, &bytes, until);
        sent.map_err(|e| conversation.unreachable(&format!("did not take the question: {e}")))?;
        Ok(conversation)
    }

    /// The next answer, if it arrives in time.
    ///
    /// # Errors
    /// An answer is malformed.
    pub fn next(&mut self, until: Instant) -> Result<Heard, Problem> {
        loop {
            if let Some(answer) = self.whole()? {
                return Ok(Heard::Answer(answer));
            }
            if !is_readable_by(self.stream.as_fd(), until)? {
                return Ok(Heard::Silence);
            }
            let mut more = [0; 16 << 10];
            match self.stream.read(&mut more) {
                Ok(0) => return Ok(Heard::End),
                Ok(count) => self.bytes.extend(&more[..count]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(Heard::End),
                Err(e) => return Err(self.problem(&format!("cannot be heard: {e}"))),
            }
        }
    }

    /// Passes all answers up to the last to `takes`, which returns whether an answer is to the
    /// question. Each later answer may take [`PATIENCE`].
    ///
    /// # Errors
    /// The service did not send all answers in time, or reports why it cannot.
    pub fn each(
        &mut self,
        until: Instant,
        mut takes: impl FnMut(Answer) -> bool,
    ) -> Result<(), Problem> {
        self.each_of(until, &mut takes)
    }

    fn each_of(
        &mut self,
        mut until: Instant,
        takes: &mut dyn FnMut(Answer) -> bool,
    ) -> Result<(), Problem> {
        loop {
            match self.answer(until, PATIENCE)? {
                Answer::End => return Ok(()),
                Answer::NotSeen(why) => return Err(Problem::Failed(why)),
                answer => {
                    if !takes(answer) {
                        return Err(self.problem("answered something else than was asked"));
                    }
                    until = Instant::now() + PATIENCE;
                }
            }
        }
    }

    /// The next answer; `patience` is only for the message of a timeout.
    ///
    /// # Errors
    /// The service refuses the request, or does not answer in time.
    pub fn answer(&mut self, until: Instant, patience: Duration) -> Result<Answer, Problem> {
        match self.next(until)? {
            Heard::Answer(Answer::Refused(why)) => Err(self.problem(&format!("refuses: {why}"))),
            Heard::Answer(answer) => Ok(answer),
            Heard::Silence => {
                let seconds = patience.as_secs();
                Err(self.unreachable(&format!(
                    "has not answered within {seconds} s; 'again-fleet check' tells how it is"
                )))
            }
            Heard::End => Err(self.unreachable("ended before it had answered")),
        }
    }

    /// The first answer among the bytes read, if it is complete.
    fn whole(&mut self) -> Result<Option<Answer>, Problem> {
        let Some((head, rest)) = self.bytes.split_at_checked(HEAD) else {
            return Ok(None);
        };
        let length = ask::length_of_answer(head);
        let length = length.map_err(|e| self.problem(&format!("speaks another language: {e}")))?;
        let Some(rest) = rest.get(..length) else {
            return Ok(None);
        };
        let answer = ask::answer(rest);
        let answer = answer.map_err(|e| self.problem(&format!("said what is no answer: {e}")))?;
        self.bytes.drain(..HEAD + length);
        Ok(Some(answer))
    }

    /// Error of a service that answers wrongly.
    pub fn problem(&self, what: &str) -> Problem {
        Problem::Failed(self.sentence(what))
    }

    /// Error of a service that does not answer.
    fn unreachable(&self, what: &str) -> Problem {
        Problem::Unreachable(self.sentence(what))
    }

    fn sentence(&self, what: &str) -> String {
        let path = self.path.display();
        format!("the service of this node ({path}) {what}")
    }
}

/// Sends a request that the service only confirms.
///
/// # Errors
/// The service does not confirm the request.
pub fn done(settings: &Settings, question: &Question) -> Result<(), Problem> {
    let until = Instant::now() + PATIENCE;
    let mut conversation = Conversation::begin(&socket(settings), question, until)?;
    conversation.each(until, |_| false)
}

/// Connects, with a time limit in case the queue of the socket is full.
fn connect(path: &Path, until: Instant) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Send, Some(left(until)?))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

fn write(mut stream: &UnixStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reason why the connection failed, with a remedy.
fn not_there(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    let start = "'systemctl start again-fleet.socket' has systemd listen there, and start the service when it is asked";
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("the service of this node cannot be asked: there is no socket {path}; {start}")
        }
        io::ErrorKind::ConnectionRefused => {
            format!("the service of this node cannot be asked: nobody listens at {path}; {start}")
        }
        io::ErrorKind::PermissionDenied => format!(
            "the service of this node may not be asked by this user: {path} is for root; run it as root"
        ),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "the service of this node ({path}) takes nobody in: 'systemctl status again-fleet' tells what it does"
        ),
        _ => format!("the service of this node cannot be asked at {path}: {error}"),
    }
}
