//! Names of files that rename(2) cannot give them.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;

/// renameat2(2) with `RENAME_EXCHANGE`, which nix has for glibc only: each of two files
/// gets the other's name, in one step.
///
/// # Errors
/// Those of renameat2(2): `NotFound` if one is missing; `InvalidInput` where the file
/// system cannot do it, NFS for one.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let one = CString::new(one.as_os_str().as_bytes())?;
    let other = CString::new(other.as_os_str().as_bytes())?;
    // SAFETY: two NUL-terminated strings that live on, and integers.
    let done = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            one.as_ptr(),
            libc::AT_FDCWD,
            other.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives a file that was opened without a name (open(2), `O_TMPFILE`) its name.
///
/// # Errors
/// Those of linkat(2): `AlreadyExists` if the name is taken; `NotFound` if the directory
/// is gone, or /proc is not there.
pub fn name(file: &File, path: &Path) -> io::Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(
        AT_FDCWD,
        from.as_str(),
        AT_FDCWD,
        path,
        AtFlags::AT_SYMLINK_FOLLOW,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn a_file_gets_its_name_late_and_never_anothers() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = File::options()
            .append(true)
            .custom_flags(libc::O_TMPFILE)
            .open(dir.path())
            .expect("a file without a name");
        file.write_all(b"early").expect("written");
        let (taken, free) = (dir.path().join("taken"), dir.path().join("free"));
        std::fs::write(&taken, "another's").expect("written");
        let refused = name(&file, &taken).expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        name(&file, &free).expect("named");
        assert_eq!(std::fs::read(&taken).expect("there"), b"another's");
        assert_eq!(std::fs::read(&free).expect("there"), b"early");
    }

    #[test]
    fn each_gets_the_others_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "a").expect("written");
        let missing = exchange(&a, &b).expect_err("there is but one");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::write(&b, "b").expect("written");
        exchange(&a, &b).expect("exchanged");
        assert_eq!(std::fs::read(&a).expect("there"), b"b");
        assert_eq!(std::fs::read(&b).expect("there"), b"a");
    }
}
