//! Waiting calls, each in its own file. The executor writes the files, and `again-fleet call`
//! removes them.
//!
//! A call is written to a file beside the directory, synced and renamed into the directory, which
//! is then synced; only then does the call count. The name of the file has the queue position, a
//! hash of the rule's name, and the id.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use again_base::directory::{Directory, Keeps, shown};
use again_base::model::Span;
use again_base::sys::file::{OnDisk, read_regular, sync, write_through};
use ring::digest::{SHA256, digest};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::wire::event::Event;
use crate::wire::lineage::Lineage;
use crate::wire::name::{Id, Node};

/// Directory of the calls, in the state directory. It has no other files: systemd starts the
/// program as soon as it has any.
const DIRECTORY: &str = "calls";
/// Directory of incomplete and unreadable calls, which has the ledger too.
const BESIDE: &str = "executor";
const NEW: &str = "call.new";
const UNREADABLE: &str = "call.unreadable";
/// Maximum number of calls that wait for one rule.
pub const MOST_OF_A_RULE: usize = 1000;
/// Largest size of a file, in bytes.
const LARGEST: u64 = 1 << 20;
const VERSION: u32 = 1;

/// Event in the input of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInput {
    /// Node on which the event happened.
    pub node: Node,
    /// Run in which the event happened.
    pub run: Id,
    /// Environment of the run.
    pub environment: String,
    /// Event.
    pub event: Event,
    /// Origins of the event's trigger.
    pub origins: Lineage,
}

/// Waiting call: the rule, its program, and the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Name of the rule.
    pub rule: String,
    /// Program, by its absolute path, and its arguments.
    pub command: Vec<String>,
    /// Time limit of the program.
    pub timeout: Span,
    /// Id of the call; always the same for the same rule and event.
    pub id: Id,
    /// Event that matched the rule.
    pub event: EventInput,
}

/// Standard input of a program.
#[derive(Serialize)]
struct Input<'a> {
    version: u32,
    id: &'a Id,
    rule: &'a str,
    node: &'a Node,
    run: &'a Id,
    environment: &'a str,
    event: &'a Event,
    origins: &'a Lineage,
}

impl Call {
    /// Standard input of the program: a JSON object on one line.
    pub fn input(&self) -> Vec<u8> {
        let EventInput {
            node,
            run,
            environment,
            event,
            origins,
        } = &self.event;
        let input = Input {
            version: VERSION,
            id: &self.id,
            rule: &self.rule,
            node,
            run,
            environment,
            event,
            origins,
        };
        let mut text = serde_json::to_vec(&input).expect("plain values");
        text.push(b'\n');
        text
    }
}

/// Content of a file.
#[derive(Serialize, Deserialize)]
struct Page<C> {
    version: u32,
    call: C,
}

/// Reason why a call was not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPut {
    /// [`MOST_OF_A_RULE`] calls of the rule wait already.
    Full,
    /// I/O error, as a message.
    Failed(String),
}

/// Directory of calls. One process adds calls, and one removes them.
pub struct Calls {
    directory: Directory,
    beside: Directory,
}

impl Calls {
    /// Opens the calls in this state directory; creates missing directories.
    ///
    /// # Errors
    /// A directory cannot be used; the message says which, and why.
    pub fn open(state_dir: &Path) -> Result<Calls, String> {
        let opened = Directory::open(state_dir, Keeps::State).and_then(|state_dir| {
            Ok(Calls {
                directory: state_dir.below(DIRECTORY, 0o700)?,
                beside: state_dir.below(BESIDE, 0o700)?,
            })
        });
        opened.map_err(|e| format!("{e:#}").replace("AGAIN_STATE_DIR", "AGAIN_FLEET_STATE_DIR"))
    }

    /// Adds a call at the end of the queue. When this returns, the call survives a crash. A call
    /// whose id is in the queue already stays unchanged.
    ///
    /// # Errors
    /// The call is not stored, or may not survive a crash.
    pub fn put(&self, call: &Call) -> Result<(), NotPut> {
        let path = self.path();
        let failed = |e: io::Error| {
            let path = shown(&path);
            NotPut::Failed(format!("{} cannot be written to: {e}", path.display()))
        };
        let names = self.waiting().map_err(failed)?;
        let (rule, id) = (hash(&call.rule), call.id.as_str());
        if !names.iter().any(|name| name.ends_with(id)) {
            let of_rule = names.iter().filter(|name| of(name) == Some(&rule));
            if of_rule.count() >= MOST_OF_A_RULE {
                return Err(NotPut::Full);
            }
            let last = names
                .iter()
                .filter_map(|name| name.get(..PLACE)?.parse().ok());
            let place = last.max().map_or(1, |last: u64| last + 1);
            self.write(call, &format!("{place:0PLACE$}-{rule}-{id}"))
                .map_err(failed)?;
        }
        // A call that was in the queue already is synced too: the first sync may have failed.
        File::open(&path)
            .and_then(|directory| sync(&directory))
            .map_err(failed)
    }

    fn write(&self, call: &Call, name: &str) -> io::Result<()> {
        let version = VERSION;
        let text = serde_json::to_vec(&Page { version, call }).expect("plain values");
        if text.len() as u64 > LARGEST {
            return Err(io::Error::other("the call is too large"));
        }
        let new = self.beside.path().join(NEW);
        let path = self.path().join(name);
        write_through(&new, &path, &text, 0o600, OnDisk::Content).map(drop)
    }

    /// Names of all waiting calls, oldest first. Names that begin with a dot are left out, since
    /// systemd ignores them too (systemd.path(5)).
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn waiting(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path())? {
            let name = entry?.file_name();
            names.extend(
                name.into_string()
                    .ok()
                    .filter(|name| !name.starts_with('.')),
            );
        }
        names.sort();
        Ok(names)
    }

    /// Path of the directory, which is valid as long as this value exists.
    pub fn path(&self) -> PathBuf {
        self.directory.path()
    }

    /// Path of a file in the directory of the ledger.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.beside.path().join(name)
    }

    /// Path of the last file that was not a valid call.
    pub fn unreadable(&self) -> PathBuf {
        self.beside(UNREADABLE)
    }
}

/// Number of digits of the queue position in a file's name.
const PLACE: usize = 16;

/// Hash of the rule in a file's name; none if the name is malformed.
pub fn of(name: &str) -> Option<&str> {
    let mut parts = name.split('-');
    let (_place, rule, id) = (parts.next()?, parts.next()?, parts.next()?);
    (id.len() == Id::MOST && parts.next().is_none()).then_some(rule)
}

/// Hash of a rule's name, for a file's name: the rule's name may have any characters.
fn hash(rule: &str) -> String {
    let hash = digest(&SHA256, rule.as_bytes());
    let bytes = hash.as_ref()[..8].iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// Call in a file.
///
/// # Errors
/// The file cannot be read, or is not a valid call.
pub fn read(path: &Path) -> Result<Call, String> {
    let text = read_regular(path, LARGEST, OFlags::NOFOLLOW.bits() as i32);
    let text = text.map_err(|e| e.to_string())?;
    let page: Page<Call> = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    if page.version != VERSION {
        return Err(format!("it is of version {}", page.version));
    }
    match page.call.command.first() {
        Some(program) if program.starts_with('/') => Ok(page.call),
        _ => Err("its program has no absolute path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::event::tests::{batch, event};
    use std::os::unix::fs::PermissionsExt;

    fn call(rule: &str, n: u64) -> Call {
        let batch = batch();
        Call {
            rule: rule.to_owned(),
            command: vec!["/bin/true".to_owned()],
            timeout: Span::from_secs(60),
            id: Id::from_bits(n.into()),
            event: EventInput {
                node: batch.node,
                run: batch.run,
                environment: batch.begun.environment,
                event: event(n),
                origins: Lineage::default(),
            },
        }
    }

    fn all(calls: &Calls) -> Vec<Call> {
        let names = calls.waiting().expect("listed");
        let read = |name: &String| read(&calls.path().join(name)).expect("a call");
        names.iter().map(read).collect()
    }

    #[test]
    fn calls_are_there_again_in_their_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let calls = Calls::open(dir.path()).expect("opened");
        // The name of a rule is in no path.
        let put = [call("../b/\n", 12), call("a", 3), call("../b/\n", 7)];
        for one in &put {
            calls.put(one).expect("put");
        }
        drop(calls);
        let calls = Calls::open(dir.path()).expect("opened");
        assert_eq!(all(&calls), put);
        let names = calls.waiting().expect("listed");
        assert_eq!(of(&names[0]), of(&names[2]));
        assert_ne!(of(&names[0]), of(&names[1]));
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 2);
        assert_eq!(
            fs::read_dir(calls.beside.path()).expect("listed").count(),
            0
        );
        // Where the first is gone, a new one still comes last.
        fs::remove_file(calls.path().join(&names[0])).expect("removed");
        calls.put(&call("a", 1)).expect("put");
        assert_eq!(all(&calls)[2], call("a", 1));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&calls.path()), 0o700);
        assert_eq!(mode(&calls.path().join(&names[1])), 0o600);
    }

    #[test]
    fn the_same_call_is_there_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let calls = Calls::open(dir.path()).expect("opened");
        calls.put(&call("a", 1)).expect("put");
        let mut again = call("a", 1);
        again.command.push("other".to_owned());
        calls.put(&again).expect("there already");
        assert_eq!(all(&calls), [call("a", 1)]);
    }

    #[test]
    fn a_rule_has_so_many_at_most() {
        let dir = tempfile::tempdir().expect("a directory");
        let calls = Calls::open(dir.path()).expect("opened");
        for n in 0..MOST_OF_A_RULE as u64 {
            calls.put(&call("a", n)).expect("put");
        }
        assert_eq!(calls.put(&call("a", 5000)), Err(NotPut::Full));
        calls.put(&call("a", 0)).expect("there already");
        calls.put(&call("b", 5000)).expect("another rule's");
        let names = calls.waiting().expect("listed");
        fs::remove_file(calls.path().join(&names[500])).expect("removed");
        calls.put(&call("a", 6000)).expect("put");
    }

    #[test]
    fn what_is_no_call_is_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x");
        let good = serde_json::to_string(&Page {
            version: 1,
            call: call("a", 1),
        })
        .expect("JSON");
        fs::write(&path, &good).expect("written");
        assert_eq!(read(&path), Ok(call("a", 1)));
        for bad in [
            String::new(),
            "{}".to_owned(),
            good.replace("\"version\":1", "\"version\":2"),
            good.replace("/bin/true", "true"),
            good.replace("\"/bin/true\"", ""),
            good.replace('}', ""),
        ] {
            fs::write(&path, bad).expect("written");
            assert!(read(&path).is_err());
        }
        for name in [
            "",
            "x",
            "1-2",
            "1-2-3",
            "1-2-00000000000000000000000000000001-4",
            "é-ü-ß",
        ] {
            assert_eq!(of(name), None);
        }
    }

    #[test]
    fn what_cannot_be_written_is_not_put() {
        let dir = tempfile::tempdir().expect("a directory");
        let calls = Calls::open(dir.path()).expect("opened");
        fs::create_dir(calls.beside(NEW)).expect("in the way");
        let put = calls.put(&call("a", 1));
        assert!(matches!(put, Err(NotPut::Failed(why)) if why.contains("cannot be written to")));
        fs::remove_dir(calls.beside(NEW)).expect("out of the way");
        let mut large = call("a", 1);
        large.command = vec!["x".repeat(2 << 20)];
        assert!(matches!(calls.put(&large), Err(NotPut::Failed(why)) if why.contains("too large")));
        assert!(all(&calls).is_empty());
        let elsewhere = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("state")).expect("linked");
        let error = Calls::open(&dir.path().join("state"))
            .err()
            .expect("refused");
        assert!(error.contains("AGAIN_FLEET_STATE_DIR"), "{error}");
    }

    #[test]
    fn a_program_reads_one_line() {
        let text = String::from_utf8(call("a \"web\" server", 2).input()).expect("text");
        assert!(text.starts_with(
            r#"{"version":1,"id":"00000000000000000000000000000002","rule":"a \"web\" server","node":"web1.test","run":"00000000000000000000000000000001","environment":"production","event":{"n":2,"at":1002,"resource":"Service[httpd]","change":"started""#
        ), "{text}");
        assert!(text.ends_with("},\"origins\":[]}\n"), "{text}");
    }
}
