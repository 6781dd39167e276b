//! Starting a waiter outside the run's session, and becoming a rerun.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::attributes::{SignalState, set_signals};
use super::process;
use crate::model::Identity;

/// The byte before the errno of an exec that failed (ASCII's NAK).
const FAILED: u8 = 0x15;

/// What to start, in a session of its own.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Path of the program.
    pub program: &'a Path,
    /// Its command line, the first element included.
    pub arguments: &'a [OsString],
    /// Its whole environment.
    pub environment: &'a [(OsString, OsString)],
    /// Descriptors it keeps under the same numbers. All others above 2 are closed.
    pub keep: &'a [&'a OwnedFd],
    /// The signal state it is to start with.
    pub signals: SignalState,
    /// Its standard error is the ready pipe, so that what it complains of is seen.
    pub errors_to_ready: bool,
}

/// Starts `plan` by fork(2), setsid(2) and exec(3), with /dev/null on 0, 1 and 2.
/// Returns who it is, which no exec(3) changes. Call while single-threaded.
///
/// # Errors
/// Those of fork(2) and of building the arguments. A failed exec shows in the ready pipe: [`failed_exec`].
pub fn start(plan: &Plan<'_>, ready: &OwnedFd) -> io::Result<Identity> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
    let program = text(plan.program.as_os_str().as_bytes())?;
    let arguments: Vec<CString> = plan
        .arguments
        .iter()
        .map(|a| text(a.as_bytes()))
        .collect::<Result<_, _>>()?;
    let environment: Vec<CString> = plan
        .environment
        .iter()
        .map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<_, _>>()?;
    let argv = pointers(&arguments);
    let envp = pointers(&environment);
    let null = File::options().read(true).write(true).open("/dev/null")?;
    close_all_on_exec();

    // SAFETY: this process has one thread, so the child may use anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: integers only, on descriptors that are open.
            unsafe {
                libc::setsid();
                for fd in 0..=2 {
                    libc::dup2(null.as_raw_fd(), fd);
                }
                for fd in plan.keep {
                    libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0);
                }
                libc::fcntl(ready.as_raw_fd(), libc::F_SETFD, 0);
                if plan.errors_to_ready {
                    libc::dup2(ready.as_raw_fd(), 2);
                }
            }
            let _ = std::env::set_current_dir("/");
            set_signals(plan.signals);
            // SAFETY: NUL-terminated strings and null-terminated arrays that live on.
            unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            let mut message = vec![FAILED];
            message.extend_from_slice(&errno.to_ne_bytes());
            // SAFETY: a valid buffer; _exit runs none of the parent's handlers.
            unsafe {
                libc::write(ready.as_raw_fd(), message.as_ptr().cast(), message.len());
                libc::_exit(127)
            }
        }
        // Not yet reaped, so it is there even if it has ended already.
        pid => process::stat(pid).map(|stat| Identity {
            pid,
            start: stat.start,
        }),
    }
}

/// A pipe, both ends closed on exec.
///
/// # Errors
/// Those of pipe2(2).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

/// The error of an exec that failed, if that is what these bytes of the ready pipe say.
pub fn failed_exec(text: &[u8]) -> Option<io::Error> {
    match text {
        [.., FAILED, a, b, c, d] => Some(io::Error::from_raw_os_error(i32::from_ne_bytes([
            *a, *b, *c, *d,
        ]))),
        _ => None,
    }
}

/// Kills and reaps a child of ours. Not yet reaped, its pid cannot be anybody else's.
pub fn end_child(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    let _ = nix::sys::wait::waitpid(pid, None);
}

/// Our own program, also when it was replaced or removed since we started.
pub fn own_program() -> PathBuf {
    match std::env::current_exe() {
        // Of one that was removed, the kernel shows a name that is none.
        Ok(path) if path.exists() => path,
        // Whoever opens this gets the file that we run, whatever its name is now.
        _ => PathBuf::from(format!("/proc/{}/exe", std::process::id())),
    }
}

/// Anonymous memory that passes a block of bytes across exec, sealed.
///
/// # Errors
/// Those of memfd_create(2) and write(2).
pub fn memory_file(name: &std::ffi::CStr, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(content)?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// What a waiter becomes.
#[derive(Debug)]
pub struct Image {
    /// Candidates for the program's path, tried in turn.
    pub programs: Vec<PathBuf>,
    /// The command line, the first element included.
    pub arguments: Vec<OsString>,
    /// The whole environment, one `NAME=VALUE` each.
    pub environment: Vec<OsString>,
}

/// Replaces this process by `image`. Every descriptor above 2 is closed.
///
/// Returns only on failure: the error of the candidate that got furthest
/// (anything rather than "no such file"), with its path.
pub fn become_image(image: &Image) -> (PathBuf, io::Error) {
    close_all_on_exec();
    let nul = |s: &OsStr| CString::new(s.as_bytes());
    let arguments: Result<Vec<CString>, _> = image.arguments.iter().map(|a| nul(a)).collect();
    let environment: Result<Vec<CString>, _> = image.environment.iter().map(|a| nul(a)).collect();
    let (Ok(arguments), Ok(environment)) = (arguments, environment) else {
        return (
            PathBuf::from(image.arguments.first().cloned().unwrap_or_default()),
            io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte in an argument"),
        );
    };
    let argv = pointers(&arguments);
    let envp = pointers(&environment);
    let mut worst = (
        PathBuf::from(image.arguments.first().cloned().unwrap_or_default()),
        io::Error::from_raw_os_error(libc::ENOENT),
    );
    for program in &image.programs {
        let Ok(path) = nul(program.as_os_str()) else {
            continue;
        };
        // SAFETY: NUL-terminated strings and null-terminated arrays that live on.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        let error = io::Error::last_os_error();
        // What is nowhere is named as it was called, not as the last place it is not at.
        if worst.1.kind() == io::ErrorKind::NotFound && error.kind() != io::ErrorKind::NotFound {
            worst = (program.clone(), error);
        }
    }
    worst
}

pub(super) fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain(std::iter::once(std::ptr::null()))
        .collect()
}

/// Marks every descriptor above 2 to be closed on exec, whoever opened it.
pub fn close_all_on_exec() {
    // SAFETY: integers only. CLOSE_RANGE_CLOEXEC exists since Linux 5.11.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3_u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        return;
    }
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    for fd in open
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|&fd| fd > 2)
    {
        // SAFETY: F_SETFD on a number touches no memory.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Puts /dev/null on 0, 1 and 2.
pub fn silence_standard_descriptors() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for fd in 0..=2 {
            // SAFETY: two descriptors, the first of them open.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        }
    }
}

/// Puts `input` on 0 and `output` on 1 and 2; without an output they stay as they are.
///
/// # Errors
/// Those of dup2(2).
pub fn set_standard_descriptors(input: File, output: Option<File>) -> io::Result<()> {
    let mut pairs = vec![(input.as_raw_fd(), 0)];
    if let Some(output) = &output {
        pairs.extend([(output.as_raw_fd(), 1), (output.as_raw_fd(), 2)]);
    }
    for (from, to) in pairs {
        // SAFETY: two descriptors, the first of them open.
        if unsafe { libc::dup2(from, to) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
