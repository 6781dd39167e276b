//! The command listener: each connection carries one request and its answers, until the last answer
//! or until the client disconnects. The wakeup socket is opened here too.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use again_base::sys::pidfd::inherit;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use rustix::process::{geteuid, umask};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::net::{UnixDatagram, UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::ask::{self, Answer, HEAD, Question};

/// Largest number of clients at a time. More wait in the backlog of the listener.
const MOST_CLIENTS: usize = 1000;
/// Longest time for a request to arrive, and for an answer to be written.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest number of wakeups that count as one.
const MOST_RINGS: usize = 1000;
/// Pause after a wakeup before the next one is read.
const BETWEEN_RINGS: Duration = Duration::from_millis(10);
/// Pause after a connection could not be accepted, for example for lack of a descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// Connection of a client.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

/// Command listener and wakeup socket.
pub struct Sockets {
    /// Socket for the requests of clients.
    pub listener: UnixListener,
    /// Socket for wakeups, which runs and commands send after they have left events or requests on
    /// disk; none if systemd passes none.
    pub wakeup: Option<UnixDatagram>,
}

/// Opens the sockets: those that systemd passes, otherwise new ones in this directory.
///
/// # Errors
/// A socket cannot be opened, or systemd passes the wrong ones.
pub fn open(directory: &Path) -> io::Result<Sockets> {
    let (listener, wakeup) = match passed()? {
        (Some(listener), wakeup) => (listener, wakeup),
        (None, _) => {
            let listener = bound(&directory.join("trigger"), |path| {
                net::UnixListener::bind(path)
            })?;
            let wakeup = bound(&directory.join("events"), |path| {
                net::UnixDatagram::bind(path)
            })?;
            (listener, Some(wakeup))
        }
    };
    listener.set_nonblocking(true)?;
    let wakeup = wakeup.map(|wakeup| {
        wakeup.set_nonblocking(true)?;
        UnixDatagram::from_std(wakeup)
    });
    Ok(Sockets {
        listener: UnixListener::from_std(listener)?,
        wakeup: wakeup.transpose()?,
    })
}

/// Sockets that systemd passes, as in sd_listen_fds(3), distinguished by their type.
fn passed() -> io::Result<(Option<net::UnixListener>, Option<net::UnixDatagram>)> {
    let (mut listener, mut wakeup) = (None, None);
    for fd in sd_notify::listen_fds()? {
        let fd = inherit(fd)?;
        let is_new = match socket_type(&fd)? {
            SocketType::DGRAM => wakeup.replace(net::UnixDatagram::from(fd)).is_none(),
            _ => listener.replace(net::UnixListener::from(fd)).is_none(),
        };
        if !is_new {
            return Err(io::Error::other("two sockets of one kind were passed"));
        }
    }
    match (&listener, &wakeup) {
        (None, Some(_)) => Err(io::Error::other("a socket for events alone was passed")),
        _ => Ok((listener, wakeup)),
    }
}

/// Binds a new socket, in place of one that an earlier service has left.
fn bound<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let bind = || {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        // Nobody else may connect, not even before the mode is set.
        let before = umask(Mode::from_raw_mode(0o177));
        let socket = bind(path);
        umask(before);
        let socket = socket?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(socket)
    };
    bind().map_err(|e: io::Error| {
        let path = path.display();
        io::Error::new(e.kind(), format!("{path} cannot be opened: {e}"))
    })
}

/// Calls `rung` after each wakeup; wakeups that arrive together count once. Returns the error that
/// ends the loop.
pub async fn listen(wakeup: UnixDatagram, rung: impl Fn()) -> io::Error {
    let mut byte = [0];
    loop {
        // A message that is longer than a byte is cut.
        if let Err(e) = wakeup.recv(&mut byte).await {
            return e;
        }
        // The bound keeps a sender that never stops from blocking this loop.
        for _ in 0..MOST_RINGS {
            if wakeup.try_recv(&mut byte).is_err() {
                break;
            }
        }
        rung();
        sleep(BETWEEN_RINGS).await;
    }
}

/// Accepts connections while there are fewer than `MOST_CLIENTS`. Returns the error that ends the
/// loop.
pub async fn attend(listener: UnixListener, let_in: impl Fn(Connection)) -> io::Error {
    let places = Arc::new(Semaphore::new(MOST_CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return io::Error::other("the listener is closed");
        };
        match listener.accept().await {
            Ok((stream, _)) => let_in(Connection {
                stream,
                _place: place,
            }),
            Err(e) if is_passing(&e) => sleep(PAUSE).await,
            Err(e) => return e,
        }
    }
}

/// Whether the next connection may still be accepted: a descriptor or memory was missing, the
/// client had gone, or a signal interrupted the call.
fn is_passing(e: &io::Error) -> bool {
    let passing = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOBUFS,
        Errno::CONNABORTED,
        Errno::INTR,
    ];
    passing
        .iter()
        .any(|one| e.raw_os_error() == Some(one.raw_os_error()))
}

/// Reads a request, passes it to `ask`, and writes the answers.
///
/// # Errors
/// The connection has ended, or the client does not read.
pub async fn converse(
    mut connection: Connection,
    ask: impl FnOnce(Question),
    mut answers: UnboundedReceiver<Answer>,
) -> io::Result<()> {
    let user = connection.stream.peer_cred()?.uid();
    let is_root = user == 0 || user == geteuid().as_raw();
    if !is_root && !is_for_a_group(&connection.stream) {
        let why = format!("user {user} may not ask this service; root may");
        return refuse(connection, &why).await;
    }
    let (mut ear, mut mouth) = connection.stream.split();
    let heard = timeout(PATIENCE, hear(&mut ear)).await;
    match heard.unwrap_or_else(|_| Err(io::Error::other("the question did not arrive in time"))) {
        Ok(question) if !is_root && question.is_roots() => {
            let why = format!("user {user} may fire and look; root may do this");
            return refuse(connection, &why).await;
        }
        Ok(question) => ask(question),
        Err(e) => return refuse(connection, &e.to_string()).await,
    }
    let mut has_said_all = false;
    loop {
        let mut byte = [0];
        tokio::select! {
            answer = answers.recv() => match answer {
                // The service ends before it has sent the last answer.
                None => return Ok(()),
                Some(answer) => {
                    say(&mut mouth, &answer).await?;
                    if answer == Answer::End {
                        return Ok(());
                    }
                    has_said_all |= matches!(answer, Answer::Said(_) | Answer::Waits(_) | Answer::Away(_));
                }
            },
            // A client may close its writing side and still read, but only until it has the result.
            _ = ear.read(&mut byte), if has_said_all => return Ok(()),
        }
    }
}

/// Whether the socket is open to its group, but not to everybody. A client that could connect is
/// then in the group.
fn is_for_a_group(stream: &UnixStream) -> bool {
    let address = stream.local_addr().ok();
    let path = address.as_ref().and_then(|address| address.as_pathname());
    let found = path.and_then(|path| fs::metadata(path).ok());
    found.is_some_and(|found| found.permissions().mode() & 0o022 == 0o020)
}

async fn refuse(mut connection: Connection, why: &str) -> io::Result<()> {
    let (ear, mut mouth) = connection.stream.split();
    say(&mut mouth, &Answer::Refused(ask::words(why))).await?;
    say(&mut mouth, &Answer::End).await?;
    mouth.shutdown().await?;
    // Closing a socket with unread data would discard the answer.
    let (mut rest, mut sink) = (ear.take(ask::LONGEST_QUESTION as u64), tokio::io::sink());
    let read = timeout(PATIENCE, tokio::io::copy(&mut rest, &mut sink)).await;
    read.map_or(Ok(()), |read| read.map(|_| ()))
}

async fn hear(ear: &mut ReadHalf<'_>) -> io::Result<Question> {
    let mut head = [0; HEAD];
    ear.read_exact(&mut head).await?;
    let length = ask::length_of_question(&head).map_err(io::Error::other)?;
    let mut rest = vec![0; length];
    ear.read_exact(&mut rest).await?;
    ask::question(&rest).map_err(io::Error::other)
}

async fn say(mouth: &mut WriteHalf<'_>, answer: &Answer) -> io::Result<()> {
    let bytes = ask::say(answer).map_err(io::Error::other)?;
    let written = timeout(PATIENCE, mouth.write_all(&bytes)).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
