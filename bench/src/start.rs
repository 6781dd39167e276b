//! Starts and times a program like Puppet's Exec.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

use again_test_support::now;
use anyhow::{Context, Result, bail};

/// Cost of one start of a program.
#[derive(Debug)]
pub struct Cost {
    /// Time in seconds from before the fork until the program was reaped.
    pub seconds: f64,
    /// Number of page faults that needed no disk.
    pub faults: i64,
    pub status: i32,
    pub output: String,
}

pub fn words(words: &[&str]) -> Vec<CString> {
    words
        .iter()
        .map(|word| CString::new(*word).expect("no NUL"))
        .collect()
}

fn pointers(words: &[CString]) -> Vec<*const libc::c_char> {
    words
        .iter()
        .map(|word| word.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Creates a pipe with both ends closed on exec.
pub fn pipe() -> io::Result<(std::fs::File, std::fs::File)> {
    let mut ends = [0; 2];
    // SAFETY: an array of two integers.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened both for us.
    Ok(unsafe {
        (
            std::fs::File::from_raw_fd(ends[0]),
            std::fs::File::from_raw_fd(ends[1]),
        )
    })
}

/// Runs a program by its path: fork, setsid, /dev/null on standard input, one pipe on standard
/// output and error, everything else closed, and the environment without HOME, USER and LOGNAME.
/// Must be called while single-threaded.
pub fn as_exec_does(arguments: &[CString]) -> Result<Cost> {
    let argv = pointers(arguments);
    let environment: Vec<CString> = std::env::vars()
        .filter(|(name, _)| !["HOME", "USER", "LOGNAME"].contains(&name.as_str()))
        .map(|(name, value)| CString::new(format!("{name}={value}")))
        .collect::<Result<_, _>>()?;
    let envp = pointers(&environment);
    let null = std::fs::File::open("/dev/null")?;
    let (mut reader, writer) = pipe()?;
    let began = now();
    // SAFETY: one thread; the child calls what is safe after a fork only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: open descriptors, NUL-terminated strings, null-terminated arrays.
        unsafe {
            libc::setsid();
            libc::dup2(null.as_raw_fd(), 0);
            libc::dup2(writer.as_raw_fd(), 1);
            libc::dup2(writer.as_raw_fd(), 2);
            libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32);
            libc::execve(argv[0], argv.as_ptr(), envp.as_ptr());
            libc::_exit(127);
        }
    }
    if pid < 0 {
        return Err(io::Error::last_os_error()).context("fork");
    }
    drop(writer);
    let mut status = 0;
    // SAFETY: all zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: our own child and two valid places.
    while unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) } != pid {}
    let seconds = (now() - began) as f64 / 1e9;
    let mut output = String::new();
    reader.read_to_string(&mut output)?;
    if !libc::WIFEXITED(status) {
        bail!("{:?} was killed: {output}", arguments[0]);
    }
    Ok(Cost {
        seconds,
        faults: usage.ru_minflt,
        status: libc::WEXITSTATUS(status),
        output,
    })
}
