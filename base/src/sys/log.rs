//! Subscriber for `tracing` events. They go to the journal, else to syslog, else to a file; a
//! command also writes warnings, and what `-v` asks for, to standard error. Each event is one line,
//! and each change of state is an event, with target, timer, chain and run as fields: `journalctl
//! AGAIN_TIMER=again`. A service's events go to standard error, with a level if systemd forwards
//! that to the journal.
//!
//! Cargo.toml says why this is not a subscriber from another crate.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat, renameat};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::terminal::clean_lines;

/// Socket of the journal for messages with fields (systemd, "Native Journal Protocol").
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Socket of syslog(3).
const SYSLOG: &str = "/dev/log";

/// Longest time that a system log may take to accept a line.
const PATIENCE: Duration = Duration::from_millis(200);

/// Format of an event on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// For a person: `again: warning: TEXT`.
    Command,
    /// For a file: `PROGRAM: TEXT`.
    Service(&'static str),
    /// For the journal, which strips the level: `<4>PROGRAM: TEXT` (sd-daemon(3)).
    Journal(&'static str),
}

#[derive(Debug)]
struct Log {
    form: Form,
    stderr: LevelFilter,
    system: LevelFilter,
    /// Fields of this process's spans, which are added to every event.
    about: Mutex<Vec<(&'static str, String)>>,
}

/// Directory of the file for events that no system log accepts.
static LAST_RESORT: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Name of the file for events that neither the journal nor syslog accepts.
const FILE: &str = "again.log";
/// Size in bytes above which a new file is begun. One older file is kept.
const ROTATE_AT: u64 = 1 << 20;
/// Name of the older file.
const OLDER: &str = "again.log.1";

/// Sets the directory of the file for events that neither the journal nor syslog accepts. Only the
/// first call has an effect.
pub fn last_resort(directory: OwnedFd) {
    if let Ok(mut known) = LAST_RESORT.lock() {
        known.get_or_insert(directory);
    }
}

/// Installs the log of a command: events go to the system's log, and warnings, or what `-v` and
/// `AGAIN_LOG` ask for, to standard error.
///
/// # Errors
/// An invalid `AGAIN_LOG`.
pub fn of_command(verbose: u8) -> anyhow::Result<()> {
    let by_flag = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let wanted = wanted()?;
    install(
        Form::Command,
        wanted.unwrap_or(by_flag),
        wanted.unwrap_or(LevelFilter::INFO),
    );
    Ok(())
}

/// Installs the log of a process without a terminal: events go to the system's log, or to the file
/// if there is none.
pub fn of_waiter() {
    // The request has already reported a bad level.
    let wanted = wanted().ok().flatten();
    let system = wanted.unwrap_or(LevelFilter::INFO);
    install(Form::Command, LevelFilter::OFF, system);
}

/// Installs the log of a service of this name: events go to standard error only.
pub fn of_service(program: &'static str) {
    let stream = std::env::var_os("JOURNAL_STREAM");
    let file = std::io::stderr().as_fd().try_clone_to_owned();
    let file = file.and_then(|file| File::from(file).metadata());
    let is_journal = file.is_ok_and(|file| is_journal(stream.as_deref(), file.dev(), file.ino()));
    let form = if is_journal {
        Form::Journal
    } else {
        Form::Service
    };
    install(form(program), LevelFilter::INFO, LevelFilter::OFF);
}

/// Whether a file is the one that systemd connected to the journal, from its device and inode
/// (systemd.exec(5), `$JOURNAL_STREAM`).
fn is_journal(stream: Option<&OsStr>, device: u64, inode: u64) -> bool {
    stream.is_some_and(|stream| stream == format!("{device}:{inode}").as_str())
}

/// Level in `AGAIN_LOG`: error, warn, info, debug, trace or off; `None` if it is not set.
fn wanted() -> anyhow::Result<Option<LevelFilter>> {
    let Some(value) = std::env::var_os("AGAIN_LOG").filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    match value.parse() {
        Ok(level) => Ok(Some(level)),
        Err(_) => Err(crate::model::Usage(format!(
            "the environment variable AGAIN_LOG: '{}' is not one of off, error, warn, info, debug, trace",
            value.escape_debug()
        ))
        .into()),
    }
}

fn install(form: Form, stderr: LevelFilter, system: LevelFilter) {
    // Fails only if a subscriber is installed already.
    let _ = tracing::subscriber::set_global_default(Log {
        form,
        stderr,
        system,
        about: Mutex::default(),
    });
}

/// Message and fields of an event.
#[derive(Debug, Default)]
struct Text {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }
}

impl Text {
    fn put(&mut self, field: &Field, value: &str) {
        let value = clean_lines(value);
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push((name, value)),
        }
    }

    /// Message and fields on one line.
    fn line(&self) -> String {
        let mut line = self.message.replace('\n', " ");
        for (name, value) in &self.fields {
            let _ = write!(line, " {name}={}", value.replace('\n', " "));
        }
        line
    }

    /// Datagram for the journal: upper-case names, and values with their length if they contain a
    /// line feed.
    fn journal(&self, priority: u8) -> Vec<u8> {
        let mut datagram =
            format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=again\nSYSLOG_FACILITY=3\n")
                .into_bytes();
        let own = std::iter::once(("MESSAGE".to_owned(), &self.message));
        let fields = self
            .fields
            .iter()
            .map(|(name, value)| (format!("AGAIN_{}", name.to_uppercase()), value));
        for (name, value) in own.chain(fields) {
            datagram.extend_from_slice(name.as_bytes());
            if value.contains('\n') {
                datagram.push(b'\n');
                datagram.extend_from_slice(&(value.len() as u64).to_le_bytes());
            } else {
                datagram.push(b'=');
            }
            datagram.extend_from_slice(value.as_bytes());
            datagram.push(b'\n');
        }
        datagram
    }
}

/// Name of a level in the program's messages, and its severity in syslog(3).
fn name(level: Level) -> (&'static str, u8) {
    match level {
        Level::ERROR => ("error", 3),
        Level::WARN => ("warning", 4),
        Level::INFO => ("info", 6),
        Level::DEBUG => ("debug", 7),
        Level::TRACE => ("trace", 7),
    }
}

fn send(socket: &str, datagram: &[u8]) -> bool {
    UnixDatagram::unbound()
        .and_then(|unbound| {
            // A log that hangs must not block its caller, which may hold the lock of a record.
            unbound.set_write_timeout(Some(PATIENCE))?;
            unbound.send_to(datagram, socket)
        })
        .is_ok()
}

/// Appends a line to the file in this directory. Does not follow links, block, or write to a file
/// with several names, which would be another user's file.
fn append(directory: &OwnedFd, line: &str) -> std::io::Result<()> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let open = || openat(directory, FILE, flags, Mode::from_raw_mode(0o600)).map(File::from);
    let mut file = open()?;
    let is_full = |file: &File| file.metadata().map(|meta| meta.len() > ROTATE_AT);
    // If two processes reach the limit, one renames the file: the one that has locked the full file
    // and still finds it under its name.
    if is_full(&file)? && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let newest = open()?;
        if is_full(&newest)? {
            renameat(directory, FILE, directory, OLDER)?;
            file = open()?;
        } else {
            file = newest;
        }
    }
    let meta = file.metadata()?;
    if meta.is_file() && meta.nlink() == 1 {
        let at = crate::sys::localtime::utc(crate::sys::clock::walltime());
        file.write_all(format!("{at} {line}\n").as_bytes())?;
    }
    Ok(())
}

impl Form {
    fn line(self, level: Level, text: &str) -> String {
        let (name, priority) = name(level);
        match self {
            Form::Command => format!("again: {name}: {text}\n"),
            Form::Service(program) => format!("{program}: {text}\n"),
            Form::Journal(program) => format!("<{priority}>{program}: {text}\n"),
        }
    }
}

impl Subscriber for Log {
    /// Excludes events of other crates.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = metadata.target().starts_with("again");
        is_ours && *metadata.level() <= self.stderr.max(self.system)
    }

    fn event(&self, event: &Event<'_>) {
        let level = *event.metadata().level();
        let mut text = Text::default();
        event.record(&mut text);
        if let Ok(about) = self.about.lock() {
            let said: Vec<_> = text.fields.iter().map(|(name, _)| *name).collect();
            let rest = about.iter().filter(|(name, _)| !said.contains(name));
            text.fields.extend(rest.cloned());
        }
        let (_, priority) = name(level);
        if level <= self.stderr {
            let line = self.form.line(level, &text.line());
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        if level <= self.system {
            // 3 is the facility of daemons.
            let syslog = || {
                let pid = std::process::id();
                format!("<{}>again[{pid}]: {}", 3 * 8 + priority, text.line())
            };
            if !send(JOURNAL, &text.journal(priority))
                && !send(SYSLOG, syslog().as_bytes())
                && let Ok(known) = LAST_RESORT.lock()
                && let Some(directory) = known.as_ref()
            {
                // A failure is not logged, because this log itself has failed.
                let _ = append(directory, &text.line());
            }
        }
    }

    /// Stores the span's fields for the lifetime of the process; those of a later span replace
    /// fields of the same name.
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut text = Text::default();
        attributes.record(&mut text);
        if let Ok(mut about) = self.about.lock() {
            let said = |name| text.fields.iter().any(|(other, _)| *other == name);
            about.retain(|(name, _)| !said(*name));
            about.append(&mut text.fields);
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_file_is_a_full_one_however_many_come_to_the_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let full = vec![b'\n'; usize::try_from(ROTATE_AT).expect("small") + 1];
        for _ in 0..30 {
            std::fs::write(dir.path().join(FILE), &full).expect("written");
            let start = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        let directory = File::open(dir.path()).expect("opened").into();
                        start.wait();
                        append(&directory, "line").expect("appended");
                    });
                }
            });
            let older = dir.path().join(OLDER).metadata().expect("there");
            assert!(older.len() > ROTATE_AT, "{}", older.len());
        }
    }

    #[test]
    fn service_writes_a_level_where_its_standard_error_is_the_journal() {
        let is = |stream| is_journal(Some(OsStr::new(stream)), 8, 42);
        assert!(is("8:42"));
        assert!(!is("8:4") && !is("9:42") && !is("") && !is_journal(None, 8, 42));
        let journal = Form::Journal("again-fleet");
        assert_eq!(journal.line(Level::ERROR, "x"), "<3>again-fleet: x\n");
        assert_eq!(journal.line(Level::INFO, "x"), "<6>again-fleet: x\n");
        let file = Form::Service("again-fleet");
        assert_eq!(file.line(Level::ERROR, "x"), "again-fleet: x\n");
    }

    #[test]
    fn writes_the_journals_native_form() {
        let text = Text {
            message: "two\nlines".into(),
            fields: vec![("timer", "again".into())],
        };
        let datagram = text.journal(6);
        let expected = b"PRIORITY=6\nSYSLOG_IDENTIFIER=again\nSYSLOG_FACILITY=3\nMESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\nAGAIN_TIMER=again\n";
        assert_eq!(datagram, expected);
        assert_eq!(text.line(), "two lines timer=again");
    }
}
