//! Reads files that may come from others, and functions for writing ours that nix lacks.
#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Reads a regular file of at most `most` bytes. Never blocks: a fifo, a device or a larger file is
/// an error.
///
/// # Errors
/// The errors of open(2) and read(2), and a file of another kind or of too many bytes.
pub fn read_regular(path: &Path, most: u64, flags: i32) -> io::Result<Vec<u8>> {
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY | flags)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > most {
        return Err(io::Error::other("it is not a file of a sensible size"));
    }
    // One byte more, so that the end is found without growing the buffer.
    let mut text = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0) + 1);
    file.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Largest file of settings or configuration: 1 MB.
pub const LARGEST_SETTINGS: u64 = 1 << 20;

/// Reads a file that a person, an option or a variable names: a regular file of at most `most`
/// bytes, or /dev/null, which is empty. Other files are not opened, because opening alone may have
/// an effect.
///
/// # Errors
/// The errors of stat(2), open(2) and read(2), and a file of another kind or of too many bytes.
pub fn read_named(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let meta = std::fs::metadata(path)?;
    if is_null(&meta) {
        return Ok(Vec::new());
    }
    if meta.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let too_large = || io::Error::other(format!("it is larger than {most} bytes"));
    if meta.len() > most {
        return Err(too_large());
    }
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0) + 1);
    // Files of /proc, for example, have size 0 in stat(2).
    file.take(most + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > most {
        return Err(too_large());
    }
    Ok(text)
}

/// Reads a named file of settings as text.
///
/// # Errors
/// The errors of [`read_named`], and text that is not UTF-8.
pub fn read_settings(path: &Path) -> io::Result<String> {
    let text = read_named(path, LARGEST_SETTINGS)?;
    String::from_utf8(text)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Whether the file is /dev/null: null(4).
pub fn is_null(meta: &Metadata) -> bool {
    meta.file_type().is_char_device() && meta.rdev() == nix::sys::stat::makedev(1, 3)
}

/// Waits until a file's content is on the disk, but not its size or name, for which a file system
/// has to commit its journal: sync_file_range(2), otherwise fdatasync(2).
///
/// # Errors
/// The errors of fdatasync(2), such as a full disk.
pub fn write_out(file: &File) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: integers only, on a descriptor that is open.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, all) } {
        0 => Ok(()),
        _ => file.sync_data(),
    }
}

/// Calls fsync(2) on a file or a directory, and then fstat(2), which does not wait for a disk. XFS
/// returns 0 from fsync(2) if a disk error shuts it down while the call waits for the journal, and
/// fails from the next call on.
///
/// # Errors
/// The errors of fsync(2), and a file system that has shut down.
pub fn sync(file: &File) -> io::Result<()> {
    file.sync_all()?;
    file.metadata().map(drop)
}

/// Data that is on the disk when [`atomic_write`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnDisk {
    /// No guarantee: a power failure may lose the new content. No reader sees half of it.
    Nothing,
    /// The new content, under the old name or the new one.
    Content,
    /// The new content, under its own name.
    Name,
}

/// Replaces the content of a file: readers see the old content or the new one. The new content is
/// first written to the file's name with the ending `.new`, which only one process at a time may
/// do.
///
/// # Errors
/// The errors of open(2), write(2), fsync(2) and rename(2). The old content is then still there,
/// except after a failure that follows the rename.
pub fn atomic_write(path: &Path, bytes: &[u8], mode: u32, wanted: OnDisk) -> io::Result<File> {
    write_through(&path.with_extension("new"), path, bytes, mode, wanted)
}

/// Same as [`atomic_write`], with another name on the same file system for the file that is written
/// first.
///
/// # Errors
/// As [`atomic_write`].
pub fn write_through(
    new: &Path,
    path: &Path,
    bytes: &[u8],
    mode: u32,
    wanted: OnDisk,
) -> io::Result<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let write = || {
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(true);
        let mut file = options.mode(mode).custom_flags(flags).open(new)?;
        file.write_all(bytes)?;
        if wanted >= OnDisk::Content {
            sync(&file)?;
        }
        match wanted {
            OnDisk::Name => rename(new, path)?,
            _ => std::fs::rename(new, path)?,
        }
        Ok(file)
    };
    // Frees the space of the incomplete file, in case the disk is full.
    write().inspect_err(|_: &io::Error| drop(std::fs::remove_file(new)))
}

/// Renames a file or directory, and waits until the new name is on the disk.
///
/// # Errors
/// The errors of rename(2) and fsync(2). The file may have its new name then.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    let directory = to.parent().filter(|at| !at.as_os_str().is_empty());
    sync(&File::open(directory.unwrap_or(Path::new(".")))?)
}

/// Whether fsync(2) of a file includes a rename of it: the file system has one journal, whose
/// commit writes both to the disk (`tests/faults/privileged/power.rs`).
pub fn is_synced_with_its_name(file: &File) -> bool {
    // Magic numbers of ext4 and XFS: statfs(2).
    const JOURNALS: [u64; 2] = [0xef53, 0x5846_5342];
    rustix::fs::fstatfs(file).is_ok_and(|system| JOURNALS.contains(&(system.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_waits_nor_swallows_what_is_no_file_of_ours() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        let file = dir.path().join("file");
        std::fs::write(&file, b"12345").expect("written");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        let read = |path: &Path, most, flags| read_regular(path, most, flags).ok();
        assert_eq!(read(&file, 5, 0).as_deref(), Some(&b"12345"[..]));
        assert_eq!(read(&link, 5, 0).as_deref(), Some(&b"12345"[..]));
        assert_eq!(read(&link, 5, nix::libc::O_NOFOLLOW), None);
        for path in [&fifo, Path::new("/dev/zero"), dir.path()] {
            assert_eq!(read(path, 5, 0), None);
        }
        assert_eq!(read(&file, 4, 0), None);
    }

    #[test]
    fn file_has_its_old_content_or_the_new_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file.json");
        let names = || std::fs::read_dir(dir.path()).expect("read").count();
        for (text, wanted) in [
            ("1", OnDisk::Nothing),
            ("22", OnDisk::Content),
            ("3", OnDisk::Name),
        ] {
            atomic_write(&path, text.as_bytes(), 0o600, wanted).expect("written");
            assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), Some(text));
            assert_eq!(
                std::fs::metadata(&path).expect("there").mode() & 0o777,
                0o600
            );
            assert_eq!(names(), 1);
        }
        // Nothing can be renamed over a directory with a file in it.
        let taken = dir.path().join("taken");
        std::fs::create_dir_all(taken.join("x")).expect("made");
        atomic_write(&taken, b"1", 0o600, OnDisk::Nothing).expect_err("a directory");
        assert_eq!(names(), 2);
        // What somebody has put in the way is not followed.
        std::os::unix::fs::symlink(dir.path().join("victim"), dir.path().join("file.new"))
            .expect("linked");
        atomic_write(&path, b"4", 0o600, OnDisk::Nothing).expect_err("a link");
        assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), Some("3"));
        assert!(!dir.path().join("victim").exists());
    }

    #[test]
    fn settings_are_read_from_a_regular_file_of_bounded_size_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        let socket = dir.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        let file = dir.path().join("file");
        std::fs::write(&file, b"12345").expect("written");
        let sparse = dir.path().join("sparse");
        let grown = File::create(&sparse).expect("created");
        grown.set_len(1 << 40).expect("grown");
        assert_eq!(read_named(&file, 5).ok().as_deref(), Some(&b"12345"[..]));
        assert_eq!(read_named(Path::new("/dev/null"), 5).ok(), Some(Vec::new()));
        let said = |path: &Path| read_named(path, 4).expect_err("refused").to_string();
        for path in [&file, &sparse, Path::new("/proc/self/status")] {
            assert_eq!(said(path), "it is larger than 4 bytes");
        }
        for path in [
            &fifo,
            &socket,
            Path::new("/dev/zero"),
            Path::new("/dev/full"),
        ] {
            assert_eq!(said(path), "it is not a regular file");
        }
        assert!(said(dir.path()).contains("directory"));
    }
}
