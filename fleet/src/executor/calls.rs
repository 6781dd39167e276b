//! The calls that wait, each in a file of its own. The executor puts them there, and `again-fleet call` takes them away.
//!
//! A call is written beside the directory, synced, renamed into it, and the directory is synced; then it counts. A file's name has
//! its place in the order, its rule as a hash, and its id.

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

/// Where the calls are, in the state directory. Nothing else is in there: systemd starts the program as soon as something is.
const DIRECTORY: &str = "calls";
/// What is not yet a call, and what is none, is among the replays.
const BESIDE: &str = "executor";
const NEW: &str = "call.new";
const UNREADABLE: &str = "call.unreadable";
/// How many calls may wait for one rule.
pub const MOST_OF_A_RULE: usize = 1000;
/// The longest file, in bytes.
const LARGEST: u64 = 1 << 20;
const VERSION: u32 = 1;

/// An event as a program is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInput {
    /// Where it happened.
    pub node: Node,
    /// The run in which it did.
    pub run: Id,
    /// The run's environment.
    pub environment: String,
    /// What happened.
    pub event: Event,
    /// What began the story of the run.
    pub origins: Lineage,
}

/// A call that waits: which rule, its program, and the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The name of the rule.
    pub rule: String,
    /// The program, by its absolute path, and its arguments.
    pub command: Vec<String>,
    /// How long the program may take.
    pub timeout: Span,
    /// The same for the same rule and event, however often they come.
    pub id: Id,
    /// The event.
    pub event: EventInput,
}

/// What a program reads from its standard input.
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
    /// What its program reads from its standard input: an object of JSON on one line.
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

/// What is in a file.
#[derive(Serialize, Deserialize)]
struct Page<C> {
    version: u32,
    call: C,
}

/// Why a call was not put there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPut {
    /// [`MOST_OF_A_RULE`] wait for its rule already.
    Full,
    /// The disk's answer.
    Failed(String),
}

/// The directory of calls. One process puts calls there, and one takes them away.
pub struct Calls {
    directory: Directory,
    beside: Directory,
}

impl Calls {
    /// Opens the calls in this state directory; directories are made where they are missing.
    ///
    /// # Errors
    /// What is wrong with which directory.
    pub fn open(state_dir: &Path) -> Result<Calls, String> {
        let opened = Directory::open(state_dir, Keeps::State).and_then(|state_dir| {
            Ok(Calls {
                directory: state_dir.below(DIRECTORY, 0o700)?,
                beside: state_dir.below(BESIDE, 0o700)?,
            })
        });
        opened.map_err(|e| format!("{e:#}").replace("AGAIN_STATE_DIR", "AGAIN_FLEET_STATE_DIR"))
    }

    /// Puts a call behind all others; when this returns, it survives a crash. One whose id is there already stays as it is.
    ///
    /// # Errors
    /// It is not there, or not certainly so.
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
        // Also for one that was there: it may be that this failed the first time.
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

    /// The names of all that wait, the oldest first; names that systemd does not see either are none (systemd.path(5)).
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

    /// A path by which the directory is found, as long as this lives.
    pub fn path(&self) -> PathBuf {
        self.directory.path()
    }

    /// Where one file is among the replays.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.beside.path().join(name)
    }

    /// Where the last file is that was no call.
    pub fn unreadable(&self) -> PathBuf {
        self.beside(UNREADABLE)
    }
}

/// How many digits the place of a call has, in its name.
const PLACE: usize = 16;

/// What of a file's name stands for its rule.
pub fn of(name: &str) -> Option<&str> {
    let mut parts = name.split('-');
    let (_place, rule, id) = (parts.next()?, parts.next()?, parts.next()?);
    (id.len() == Id::MOST && parts.next().is_none()).then_some(rule)
}

/// A rule in a file's name: its own name may have any characters.
fn hash(rule: &str) -> String {
    let hash = digest(&SHA256, rule.as_bytes());
    let bytes = hash.as_ref()[..8].iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The call in a file.
///
/// # Errors
/// Why it is none.
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
