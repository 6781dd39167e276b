//! First steps of a program: the arguments as the kernel passed them, and three open standard
//! descriptors.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStringExt;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// Command line as owned strings; empty elements are kept.
///
/// # Safety
/// `argc` and `argv` must be those that the C runtime passed to `main`.
pub unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    (0..usize::try_from(argc).unwrap_or(0))
        .map(|index| {
            // SAFETY: the C runtime's argv has argc valid, NUL-terminated elements.
            let element = unsafe { CStr::from_ptr(*argv.add(index)) };
            OsString::from_vec(element.to_bytes().to_vec())
        })
        .collect()
}

/// Opens /dev/null on each of 0, 1 and 2 that is closed, so that no file of ours gets such a number
/// and is written to as an output.
pub fn fill_standard_descriptors() {
    // The kernel assigns the lowest free number. Not closed on exec.
    while let Ok(null) = open("/dev/null", OFlag::O_RDWR, Mode::empty()) {
        if null.as_raw_fd() > 2 {
            return;
        }
        let _ = null.into_raw_fd();
    }
}

/// Whether this program gained privileges from its file: getauxval(3), AT_SECURE.
pub fn is_raised() -> bool {
    auxiliary(libc::AT_SECURE) != 0
}

/// Value of the kernel's auxiliary vector: getauxval(3). 0 if it is missing.
pub fn auxiliary(kind: libc::c_ulong) -> usize {
    // SAFETY: an integer; it reads memory that stays as it is.
    let value = unsafe { libc::getauxval(kind) };
    usize::try_from(value).unwrap_or(0)
}
