//! The manifest of a command line, if it is named by a descriptor of the run, such as `/dev/stdin`:
//! the rerun does not have that descriptor.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use again_base::puppet::cmdline::{Invocation, parse};
use again_base::puppet::prefix;
use again_base::sys::file::is_null;
use again_base::sys::links::{Leads, follow};
use again_base::sys::process::os;

/// Settings that name a file which Puppet reads before its catalog.
const CONFIGURATION: [&str; 2] = ["config", "hiera_config"];

/// Result of examining the manifest of a command line.
#[derive(Debug, Default)]
pub struct Looked {
    /// Name of the manifest as given, and the name that replaces it.
    pub replaced: Option<(String, String)>,
    /// File that can be read only once: its name, and its type.
    pub once: Option<(String, String)>,
}

/// Examines the manifest of a command line, as the process `pid` sees it from this directory. The
/// name of a descriptor is replaced by the name of the file that it refers to. Words such as `nice
/// -n 5` may precede Puppet's own.
pub fn look(words: &mut [Vec<u8>], directory: &Path, pid: i32) -> Looked {
    let before = prefix::of(words);
    let (words, directory) = (
        &mut words[before.length..],
        &before.directory_from(directory),
    );
    let mut looked = Looked::default();
    let Some(line) = parse(words) else {
        return looked;
    };
    looked.once = configuration(&line, directory, pid);
    let (Some(name), Some(at)) = (line.manifest(), line.manifest_word()) else {
        return looked;
    };
    let shown = || String::from_utf8_lossy(name).into_owned();
    match found(&directory.join(os(name)), pid) {
        Found::AsNamed => {}
        Found::Once(what) => looked.once = Some((shown(), what)),
        Found::Named(path) => {
            looked.replaced = Some((shown(), path.display().to_string()));
            // The value is the end of its word, as in --catalog=FILE.
            if let Some(word) = words.get_mut(at) {
                word.truncate(word.len() - name.len());
                word.extend_from_slice(path.as_os_str().as_bytes());
            }
        }
    }
    looked
}

/// First configuration file that is named by a descriptor.
fn configuration(line: &Invocation, directory: &Path, pid: i32) -> Option<(String, String)> {
    CONFIGURATION.into_iter().find_map(|setting| {
        let name = line.value(setting)?;
        let what = match found(&directory.join(os(name)), pid) {
            Found::AsNamed => return None,
            Found::Named(path) => path.display().to_string(),
            Found::Once(what) => what,
        };
        Some((String::from_utf8_lossy(name).into_owned(), what))
    })
}

/// File that a name leads to.
enum Found {
    /// A file whose name can be used again, or no file.
    AsNamed,
    /// A descriptor of a file that has this name.
    Named(PathBuf),
    /// A file that can be read only once, as /proc names it.
    Once(String),
}

fn found(path: &Path, pid: i32) -> Found {
    match follow(path, pid, &mut |_, _| Ok(())) {
        Ok(Leads::To(path)) => match fs::metadata(&path) {
            Ok(meta) if !is_lasting(&meta) => Found::Once(kind(&meta).to_owned()),
            _ => Found::AsNamed,
        },
        Ok(Leads::ToDescriptor { link, rest }) => {
            named(&link, &rest).map_or_else(Found::Once, Found::Named)
        }
        // Puppet has read it, or could not read it either.
        Err(_) => Found::AsNamed,
    }
}

/// Name of the file that a descriptor refers to, or of a file below it.
///
/// # Errors
/// The text of its link in /proc, if no name leads to a file that can be read again.
pub fn named(link: &Path, rest: &Path) -> Result<PathBuf, String> {
    let text = fs::read_link(link).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => "a descriptor that is closed".to_owned(),
        _ => e.to_string(),
    })?;
    let what = text.display().to_string();
    let file = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    // A deleted file, or one in another mount namespace, has no name, or one that belongs to
    // another file.
    let is_its_name = file(&text).is_ok_and(|named| file(link).is_ok_and(|held| held == named));
    let below = if rest.as_os_str().is_empty() {
        text
    } else {
        text.join(rest)
    };
    let lasts = || fs::metadata(&below).is_ok_and(|meta| is_lasting(&meta));
    if is_its_name && lasts() {
        Ok(below)
    } else {
        Err(what)
    }
}

/// Whether a file can be read again.
fn is_lasting(meta: &Metadata) -> bool {
    meta.is_file() || meta.is_dir() || is_null(meta)
}

fn kind(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
