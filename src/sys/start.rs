//! What has to happen before anything else does: the arguments as the kernel
//! handed them over, and three open standard descriptors.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;

/// The command line as owned strings, empty elements kept.
///
/// # Safety
/// `argc` and `argv` must be what the C runtime passed to `main`.
pub unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    (0..usize::try_from(argc).unwrap_or(0))
        .map(|index| {
            // SAFETY: the C runtime's argv has argc valid, NUL-terminated elements.
            let element = unsafe { CStr::from_ptr(*argv.add(index)) };
            OsString::from_vec(element.to_bytes().to_vec())
        })
        .collect()
}

/// Opens /dev/null on each of 0, 1 and 2 that is closed, so that no file of
/// ours lands there and is written to as if it were an output.
pub fn fill_standard_descriptors() {
    for fd in 0..=2 {
        // SAFETY: F_GETFD on a number touches no memory.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            // SAFETY: a constant NUL-terminated path; the lowest free number is `fd`,
            // because the lower ones were found open or have just been opened.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        }
    }
}

/// Whether this program was given privilege by its file: getauxval(3), AT_SECURE.
pub fn is_raised() -> bool {
    // SAFETY: a constant; it reads what the kernel put beside our arguments.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
