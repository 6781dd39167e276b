//! File with the nodes as they were last read. The content is not held in memory, because it may be
//! many times larger than everything else.

use std::io;
use std::path::{Path, PathBuf};

use again_base::model::{Moment, Walltime};
use again_base::sys::file::{OnDisk, atomic_write};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::policy::last_inventory::{Entry, LastInventory};
use crate::wire::name::{Namespace, Node};

/// Largest size of the file in bytes: 5,000 nodes that publish 3 kB each. A request that reads the
/// file takes about four times as much memory.
const LONGEST: usize = 16 << 20;

/// File with the last inventory of a fleet.
pub struct File {
    path: PathBuf,
    namespace: Namespace,
}

/// First line of the file, as JSON. The values of all nodes follow in the same order, as they were
/// signed.
#[derive(Serialize, Deserialize)]
struct Head {
    namespace: Namespace,
    read: u64,
    store: String,
    revision: u64,
    lost: Option<Moment>,
    nodes: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    node: Node,
    first: u64,
    revision: u64,
    is_current: bool,
    missing_since: Option<u64>,
    length: usize,
}

impl File {
    /// File in this directory, for this fleet.
    pub fn new(directory: &Path, namespace: Namespace) -> File {
        File {
            path: directory.join("inventory"),
            namespace,
        }
    }

    /// Whether the file exists.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Inventory in the file. A file that cannot be read, or is of another fleet, holds nothing;
    /// the log says why a file cannot be read.
    pub fn read(&self) -> LastInventory {
        let (longest, flags) = (LONGEST as u64, OFlags::NOFOLLOW.bits() as i32);
        let bytes = again_base::sys::file::read_regular(&self.path, longest, flags);
        let known = bytes.and_then(|bytes| parse(&bytes, &self.namespace));
        known.unwrap_or_else(|e| {
            if e.kind() != io::ErrorKind::NotFound {
                let path = self.path.display();
                warn!("the last inventory is not known: {path}: {e}");
            }
            LastInventory::default()
        })
    }

    /// Replaces the inventory. Readers see the old one or the new one.
    ///
    /// # Errors
    /// Any error of the disk, or the inventory is larger than the file may be.
    pub fn write(&self, last: &LastInventory) -> io::Result<()> {
        let bytes = bytes(last, &self.namespace)?;
        if bytes.len() > LONGEST {
            let (is, most) = (bytes.len(), LONGEST);
            let what = format!("it would have {is} bytes, and {most} are allowed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        atomic_write(&self.path, &bytes, 0o600, OnDisk::Content).map(drop)
    }
}

fn bytes(last: &LastInventory, namespace: &Namespace) -> io::Result<Vec<u8>> {
    let line = |(node, entry): (&Node, &Entry)| Line {
        node: node.clone(),
        first: entry.first,
        revision: entry.revision,
        is_current: entry.is_current,
        missing_since: entry.missing_since.map(Walltime::millis),
        length: entry.bytes.len(),
    };
    let head = Head {
        namespace: namespace.clone(),
        read: last.read.unwrap_or_default().millis(),
        store: last.store.clone(),
        revision: last.revision,
        lost: last.lost.clone(),
        nodes: last.nodes.iter().map(line).collect(),
    };
    let mut bytes = serde_json::to_vec(&head)?;
    bytes.push(b'\n');
    for entry in last.nodes.values() {
        bytes.extend_from_slice(&entry.bytes);
    }
    Ok(bytes)
}

fn parse(bytes: &[u8], namespace: &Namespace) -> io::Result<LastInventory> {
    let cut = || io::Error::other("it is cut short");
    let end = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or_else(cut)?;
    let (head, mut rest) = (&bytes[..end], &bytes[end + 1..]);
    let head: Head = serde_json::from_slice(head)?;
    if head.namespace != *namespace {
        return Ok(LastInventory::default());
    }
    let mut last = LastInventory {
        read: Some(Walltime::from_millis(head.read)),
        store: head.store,
        revision: head.revision,
        lost: head.lost,
        ..LastInventory::default()
    };
    for line in head.nodes {
        let (bytes, more) = rest.split_at_checked(line.length).ok_or_else(cut)?;
        rest = more;
        let entry = Entry {
            bytes: bytes.to_vec(),
            first: line.first,
            revision: line.revision,
            is_current: line.is_current,
            missing_since: line.missing_since.map(Walltime::from_millis),
        };
        last.nodes.insert(line.node, entry);
    }
    if !rest.is_empty() {
        return Err(io::Error::other("it holds more than it names"));
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::term::tests::moment;

    fn last() -> LastInventory {
        let entry = |bytes: &[u8], missing: Option<u64>| Entry {
            bytes: bytes.to_vec(),
            first: 3,
            revision: 7,
            is_current: missing.is_none() && !bytes.is_empty(),
            missing_since: missing.map(Walltime::from_millis),
        };
        let node = |name: &str| name.parse().expect("a certname");
        LastInventory {
            read: Some(Walltime::from_millis(5)),
            store: "etcd 1".to_owned(),
            revision: 9,
            lost: Some(moment("a", 3, 4)),
            nodes: [
                (node("lb1"), entry(b"a\nb\0", None)),
                (node("web1"), entry(b"", None)),
                (node("web2"), entry(b"{}", Some(4))),
            ]
            .into(),
        }
    }

    #[test]
    fn inventory_is_there_again_for_the_same_fleet() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |fleet: &str| File::new(dir.path(), fleet.parse().expect("a fleet"));
        assert_eq!(file("a").read(), LastInventory::default());
        file("a").write(&last()).expect("written");
        assert_eq!(file("a").read(), last());
        assert_eq!(file("b").read(), LastInventory::default());
    }

    #[test]
    fn damaged_file_holds_nothing() {
        let fleet: Namespace = "a".parse().expect("a fleet");
        let whole = bytes(&last(), &fleet).expect("JSON");
        assert_eq!(parse(&whole, &fleet).expect("whole"), last());
        for length in 0..whole.len() {
            assert!(parse(&whole[..length], &fleet).is_err(), "{length}");
        }
        let more = [&whole[..], b"x"].concat();
        assert!(parse(&more, &fleet).is_err());
    }

    #[test]
    fn inventory_that_is_too_large_leaves_the_old_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::new(dir.path(), "a".parse().expect("a fleet"));
        file.write(&last()).expect("written");
        let mut large = last();
        for entry in large.nodes.values_mut() {
            entry.bytes = vec![b'x'; LONGEST / 3 + 1];
        }
        let error = file.write(&large).expect_err("too large").to_string();
        assert!(error.contains("are allowed"), "{error}");
        assert_eq!(file.read(), last());
    }
}
