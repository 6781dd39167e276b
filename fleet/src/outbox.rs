//! A directory with durable values: each key has a complete value or none, even after a crash of
//! the machine.
//!
//! A value is written to `tmp`, synced, renamed into `kept`, and `kept` is synced; then it is
//! durable. A file ends with a hash over its key and value, which detects torn writes. A file with
//! a wrong hash or format is moved to `aside` and reported.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use again_base::sys::file::sync;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

/// Format and version of a file.
const MAGIC: &[u8; 4] = b"AGO1";
const TMP: &str = "tmp";
const KEPT: &str = "kept";
const ASIDE: &str = "aside";
/// Largest size of a file with key and value, in bytes.
pub const MOST: usize = 1 << 20;
/// Largest number of damaged files in `aside`.
const MOST_ASIDE: usize = 100;

/// File system operations of an outbox. Paths are relative: a directory, or a directory and a name
/// with a slash between them.
pub trait Disk {
    /// Creates a directory if it does not exist.
    ///
    /// # Errors
    /// Any error of the file system.
    fn make(&mut self, directory: &str) -> io::Result<()>;
    /// Names of the entries of a directory.
    ///
    /// # Errors
    /// Any error of the file system.
    fn list(&mut self, directory: &str) -> io::Result<Vec<String>>;
    /// Reads the beginning of a file, at most `most` + 1 bytes.
    ///
    /// # Errors
    /// Any error of the file system, or the file is not a regular file.
    fn read(&mut self, file: &str, most: usize) -> io::Result<Vec<u8>>;
    /// Writes a new file, which may not survive a crash yet.
    ///
    /// # Errors
    /// Any error of the file system, or the file exists.
    fn write(&mut self, file: &str, bytes: &[u8]) -> io::Result<()>;
    /// Makes the content of a file durable.
    ///
    /// # Errors
    /// Any error of the file system. The content is then undefined.
    fn sync(&mut self, file: &str) -> io::Result<()>;
    /// Renames a file and replaces any file of the new name.
    ///
    /// # Errors
    /// Any error of the file system.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// Any error of the file system.
    fn remove(&mut self, file: &str) -> io::Result<()>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// Any error of the file system.
    fn sync_names(&mut self, directory: &str) -> io::Result<()>;
}

/// A directory on this machine, used by this process alone.
#[derive(Debug)]
pub struct Directory(pub PathBuf);

impl Disk for Directory {
    fn make(&mut self, directory: &str) -> io::Result<()> {
        match fs::DirBuilder::new()
            .mode(0o700)
            .create(self.0.join(directory))
        {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => sync(&File::open(&self.0)?),
        }
    }

    fn list(&mut self, directory: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.0.join(directory))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn read(&mut self, file: &str, most: usize) -> io::Result<Vec<u8>> {
        let path = self.0.join(file);
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?
            .take(most as u64 + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&mut self, file: &str, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(self.0.join(file))?.write_all(bytes)
    }

    fn sync(&mut self, file: &str) -> io::Result<()> {
        sync(&File::open(self.0.join(file))?)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&mut self, file: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(file))
    }

    fn sync_names(&mut self, directory: &str) -> io::Result<()> {
        sync(&File::open(self.0.join(directory))?)
    }
}

/// Limits of an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Largest number of values.
    pub count: usize,
    /// Largest total size of the files, in bytes.
    pub bytes: usize,
}

/// Durable storage of values by key.
#[derive(Debug)]
pub struct Outbox<D> {
    disk: D,
    bounds: Bounds,
    /// Size of each file in `kept`, by name.
    sizes: BTreeMap<String, usize>,
}

/// Contents of an outbox when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Value of each key.
    pub values: BTreeMap<String, Vec<u8>>,
    /// Damaged files that were moved to `aside`, with the reasons.
    pub aside: Vec<String>,
}

/// Reason why a value is not stored.
#[derive(Debug)]
pub enum NotKept {
    /// The limits would be exceeded.
    Full(Bounds),
    /// The value is larger than the limit for one value; its size in bytes.
    TooLarge(usize),
    /// An error of the file system.
    Disk(io::Error),
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotKept::Full(Bounds { count, bytes }) => {
                write!(
                    f,
                    "the outbox is full: {count} values or {bytes} bytes are allowed"
                )
            }
            NotKept::TooLarge(size) => write!(f, "{size} bytes are too many for one value"),
            NotKept::Disk(e) => write!(f, "cannot write to the outbox: {e}"),
        }
    }
}

impl std::error::Error for NotKept {}

impl From<io::Error> for NotKept {
    fn from(e: io::Error) -> Self {
        NotKept::Disk(e)
    }
}

impl<D: Disk> Outbox<D> {
    /// Opens an outbox and reads its values.
    ///
    /// # Errors
    /// The directory cannot be used. A damaged file is not an error: it is set aside.
    pub fn open(mut disk: D, bounds: Bounds) -> io::Result<(Outbox<D>, Held)> {
        for directory in [TMP, KEPT, ASIDE] {
            disk.make(directory)?;
        }
        // Files that were incomplete at a crash.
        for name in disk.list(TMP)? {
            disk.remove(&path(TMP, &name))?;
        }
        let sizes = BTreeMap::new();
        let mut outbox = Outbox {
            disk,
            bounds,
            sizes,
        };
        let mut held = Held::default();
        for name in outbox.disk.list(KEPT)? {
            match outbox.read(&name) {
                Ok((key, value, size)) => {
                    outbox.sizes.insert(name, size);
                    held.values.insert(key, value);
                }
                Err(why) => {
                    let done = outbox.set_aside(&name);
                    let done = done.map_or_else(
                        |e| format!("cannot be set aside: {e}"),
                        |()| "set aside".to_owned(),
                    );
                    held.aside
                        .push(format!("{}: {why}; {done}", path(KEPT, &name)));
                }
            }
        }
        Ok((outbox, held))
    }

    fn read(&mut self, name: &str) -> Result<(String, Vec<u8>, usize), String> {
        let bytes = self
            .disk
            .read(&path(KEPT, name), MOST)
            .map_err(|e| e.to_string())?;
        let (key, value) = decode(&bytes)?;
        if name_of(&key) != name {
            return Err("it bears another file's name".to_owned());
        }
        Ok((key, value, bytes.len()))
    }

    fn set_aside(&mut self, name: &str) -> io::Result<()> {
        let lying = self.disk.list(ASIDE)?;
        if lying.len() >= MOST_ASIDE {
            return Err(io::Error::other(format!(
                "{MOST_ASIDE} files lie in {ASIDE} already"
            )));
        }
        self.disk.rename(&path(KEPT, name), &path(ASIDE, name))
    }

    /// Stores a value in place of the key's older one. On success it is durable; on failure either
    /// value may be.
    ///
    /// # Errors
    /// The value is not stored durably.
    pub fn put(&mut self, key: &str, value: &[u8]) -> Result<(), NotKept> {
        let (name, bytes) = (name_of(key), encode(key, value));
        self.is_room_for(&name, bytes.len())?;
        let new = path(TMP, &name);
        let written = self
            .disk
            .write(&new, &bytes)
            .and_then(|()| self.disk.sync(&new));
        if let Err(e) = written {
            // The file may not exist.
            let _ = self.disk.remove(&new);
            return Err(e.into());
        }
        if let Err(e) = self.disk.rename(&new, &path(KEPT, &name)) {
            let _ = self.disk.remove(&new);
            return Err(e.into());
        }
        self.sizes.insert(name, bytes.len());
        Ok(self.disk.sync_names(KEPT)?)
    }

    fn is_room_for(&self, name: &str, size: usize) -> Result<(), NotKept> {
        if size > MOST {
            return Err(NotKept::TooLarge(size));
        }
        let older = self.sizes.get(name);
        let count = self.sizes.len() + usize::from(older.is_none());
        let bytes = self.sizes.values().sum::<usize>() + size - older.copied().unwrap_or(0);
        if count > self.bounds.count || bytes > self.bounds.bytes {
            return Err(NotKept::Full(self.bounds));
        }
        Ok(())
    }

    /// Removes a key and its value. They may be back after a crash.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn remove(&mut self, key: &str) -> io::Result<()> {
        let name = name_of(key);
        if self.sizes.remove(&name).is_none() {
            return Ok(());
        }
        self.disk.remove(&path(KEPT, &name))
    }

    /// The disk that was passed to [`Outbox::open`].
    pub fn into_disk(self) -> D {
        self.disk
    }
}

fn path(directory: &str, name: &str) -> String {
    format!("{directory}/{name}")
}

/// File name for a key, from a hash: a key may be longer than a file name and have any characters.
fn name_of(key: &str) -> String {
    let hash = digest(&SHA256, key.as_bytes());
    hash.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn encode(key: &str, value: &[u8]) -> Vec<u8> {
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let mut bytes = [&MAGIC[..], &length.to_be_bytes(), key.as_bytes(), value].concat();
    let hash = digest(&SHA256, &bytes);
    bytes.extend(hash.as_ref());
    bytes
}

fn decode(bytes: &[u8]) -> Result<(String, Vec<u8>), String> {
    let torn = || "it is torn".to_owned();
    if bytes.len() > MOST {
        return Err(format!("it is longer than {MOST} bytes"));
    }
    let unknown = || crate::wire::other_version(MAGIC, bytes, "a file of the outbox").to_string();
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(unknown)?;
    let end = bytes
        .len()
        .checked_sub(SHA256_OUTPUT_LEN)
        .ok_or_else(torn)?;
    let (body, hash) = bytes.split_at(end);
    if digest(&SHA256, body).as_ref() != hash {
        return Err(torn());
    }
    // The hash is right, so the rest is as written.
    let (length, rest) = rest[..end - MAGIC.len()]
        .split_first_chunk()
        .ok_or_else(torn)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| torn())?;
    let (key, value) = rest.split_at_checked(length).ok_or_else(torn)?;
    let key = String::from_utf8(key.to_vec()).map_err(|_| torn())?;
    Ok((key, value.to_vec()))
}
