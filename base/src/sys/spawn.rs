//! Fork and exec: a waiter outside the run's session, a run in the foreground, a rerun. All share
//! one exec(3), and one way to report its failure.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{
    ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, execve, fork, getpid, getppid, setsid,
};

use super::attributes::{SignalState, set_signals};
use super::machine::replacement;
use super::process;
use crate::model::Identity;

/// Byte before the errno of a failed exec (ASCII's NAK).
const FAILED: u8 = 0x15;

/// Program to execute.
#[derive(Debug, Clone)]
pub struct Image {
    /// Candidate paths of the program, tried in turn.
    pub programs: Vec<PathBuf>,
    /// Command line, including the first element.
    pub arguments: Vec<OsString>,
    /// Whole environment, one `NAME=VALUE` each.
    pub environment: Vec<OsString>,
}

/// Process to start in a session of its own.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Program to execute.
    pub image: Image,
    /// Descriptors that stay open under the same numbers. All others above 2 are closed.
    pub keep: &'a [&'a OwnedFd],
    /// Signal state at its start.
    pub signals: SignalState,
    /// Whether its standard error is the ready pipe, so that its error messages are seen.
    pub errors_to_ready: bool,
}

/// Starts `plan` with fork(2), setsid(2) and exec(3), with /dev/null on 0, 1 and 2. Returns its
/// identity, which exec(3) does not change. Call while single-threaded.
///
/// # Errors
/// The errors of fork(2) and of building the arguments. A failed exec is reported in the ready
/// pipe: [`failed_exec`].
pub fn start(plan: &Plan<'_>, ready: &OwnedFd) -> io::Result<Identity> {
    if let Some(machine) = replacement() {
        return machine.start(plan.keep, ready);
    }
    let image = Exec::new(&plan.image)?;
    let null = null()?;
    close_all_on_exec();
    fork_exec(&image, plan.signals, ready, || {
        setsid()?;
        set_standard_descriptors(&null, Some(&null))?;
        for fd in plan.keep.iter().chain([&ready]) {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        if plan.errors_to_ready {
            dup2_stderr(ready)?;
        }
        std::env::set_current_dir("/")
    })
}

/// Starts a child that is killed when this process ends for any reason: prctl(2), PR_SET_PDEATHSIG,
/// which survives exec(3). Its output goes into the pipe. Call while single-threaded.
///
/// # Errors
/// The errors of fork(2) and of building the arguments. A failed exec is reported in the pipe:
/// [`failed_exec`].
pub fn start_below(image: &Image, output: &OwnedFd) -> io::Result<Identity> {
    let image = Exec::new(image)?;
    let (null, parent) = (null()?, getpid());
    close_all_on_exec();
    fork_exec(&image, SignalState::default(), output, || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended before that.
        if getppid() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        dup2_stdin(&null)?;
        dup2_stdout(output)?;
        Ok(dup2_stderr(output)?)
    })
}

/// Starts `image` in a new session, reparented to init, so that this process need not reap it. It
/// keeps one descriptor under the same number. Call while single-threaded.
///
/// # Errors
/// The errors of fork(2), and a NUL byte in the arguments. A failed exec is not reported.
pub fn start_detached(image: &Image, keep: &OwnedFd) -> io::Result<()> {
    // No test waits for such a process.
    if replacement().is_some() {
        return Ok(());
    }
    let image = Exec::new(image)?;
    let null = null()?;
    close_all_on_exec();
    // SAFETY: this process has one thread, so the child may use anything.
    match unsafe { fork() }? {
        ForkResult::Child => {
            // SAFETY: as above.
            if let Ok(ForkResult::Child) = unsafe { fork() } {
                let ready = || -> io::Result<()> {
                    setsid()?;
                    set_standard_descriptors(&null, Some(&null))?;
                    fcntl(keep, FcntlArg::F_SETFD(FdFlag::empty()))?;
                    std::env::set_current_dir("/")
                };
                if ready().is_ok() {
                    set_signals(SignalState::default());
                    image.exec();
                }
            }
            // SAFETY: an integer; it runs none of the parent's handlers.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => Ok(nix::sys::wait::waitpid(child, None).map(drop)?),
    }
}

/// [`Image`] with C strings for exec(3).
pub struct Exec {
    programs: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Exec {
    /// Copies the words of an image.
    ///
    /// # Errors
    /// `InvalidInput` for a NUL byte.
    pub fn new(image: &Image) -> io::Result<Self> {
        fn all<T: AsRef<OsStr>>(words: &[T]) -> io::Result<Vec<CString>> {
            let texts = words
                .iter()
                .map(|word| CString::new(word.as_ref().as_bytes()));
            Ok(texts.collect::<Result<_, _>>()?)
        }
        Ok(Exec {
            programs: all(&image.programs)?,
            arguments: all(&image.arguments)?,
            environment: all(&image.environment)?,
        })
    }

    /// Tries the candidates in turn. Returns only on failure: the first candidate that failed with
    /// another error than "no such file", and that error; `None` and ENOENT if there is none.
    fn exec(&self) -> (Option<&CStr>, Errno) {
        let mut worst = (None, Errno::ENOENT);
        for program in &self.programs {
            let Err(e) = execve(program, &self.arguments, &self.environment);
            if worst.1 == Errno::ENOENT && e != Errno::ENOENT {
                worst = (Some(program.as_c_str()), e);
            }
        }
        worst
    }
}

/// Forks a child that calls `get_ready`, sets the signal state and becomes `image`. Failures are
/// written to `report`, for [`failed_exec`].
pub fn fork_exec(
    image: &Exec,
    signals: SignalState,
    report: &OwnedFd,
    get_ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<Identity> {
    // SAFETY: this process has one thread, so the child may use anything.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let errno = match get_ready() {
                Ok(()) => {
                    set_signals(signals);
                    image.exec().1 as i32
                }
                Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
            };
            let mut message = vec![FAILED];
            message.extend_from_slice(&errno.to_ne_bytes());
            let _ = nix::unistd::write(report, &message);
            // SAFETY: an integer; it runs none of the parent's handlers.
            unsafe { libc::_exit(127) }
        }
        // Not yet reaped, so that /proc shows it even if it has ended already.
        ForkResult::Parent { child } => process::stat(child.as_raw()).map(|stat| Identity {
            pid: child.as_raw(),
            start: stat.start,
        }),
    }
}

/// Pipe with both ends closed on exec.
///
/// # Errors
/// The errors of pipe2(2).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

/// Error of a failed exec, if these bytes of the ready pipe report one.
pub fn failed_exec(text: &[u8]) -> Option<io::Error> {
    match text {
        [.., FAILED, a, b, c, d] => Some(io::Error::from_raw_os_error(i32::from_ne_bytes([
            *a, *b, *c, *d,
        ]))),
        _ => None,
    }
}

/// Kills and reaps a child of ours. Its pid is not reused before it is reaped.
pub fn end_child(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
    let _ = nix::sys::wait::waitpid(pid, None);
}

/// Path of our own program, even if it was replaced or removed since we started.
pub fn own_program() -> PathBuf {
    match std::env::current_exe() {
        // For a removed program, the kernel shows a name that does not exist.
        Ok(path) if path.exists() => path,
        // Opening this path gives the file that we run, whatever its name is now.
        _ => PathBuf::from(format!("/proc/{}/exe", std::process::id())),
    }
}

/// Sealed anonymous memory that passes a block of bytes across exec.
///
/// # Errors
/// The errors of memfd_create(2) and write(2).
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

/// Reason why exec did not happen.
#[derive(Debug)]
pub enum ExecFailure {
    /// The last call before exec failed.
    BeforeExec(io::Error),
    /// Exec failed: the program, and the error of the first candidate that failed with another
    /// error than "no such file".
    Failed(PathBuf, io::Error),
}

/// Replaces this process with `image`. Every descriptor above 2 except `keep` is closed. `last` is
/// the last call before exec, and nothing is executed if it fails.
///
/// Returns only on failure.
pub fn become_image(
    image: &Image,
    keep: &File,
    last: impl FnOnce() -> io::Result<()>,
) -> ExecFailure {
    close_all_on_exec();
    let _ = fcntl(keep, FcntlArg::F_SETFD(FdFlag::empty()));
    // A program that was not found is named as it was called, not with the last path that was
    // tried.
    let called = || PathBuf::from(image.arguments.first().cloned().unwrap_or_default());
    match Exec::new(image) {
        Err(e) => ExecFailure::Failed(called(), e),
        Ok(exec) => {
            if let Err(e) = last() {
                return ExecFailure::BeforeExec(e);
            }
            let (program, errno) = exec.exec();
            let path = program.map(|program| OsStr::from_bytes(program.to_bytes()).into());
            ExecFailure::Failed(path.unwrap_or_else(called), errno.into())
        }
    }
}

/// Marks every descriptor above 2 to be closed on exec, including inherited ones.
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
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    for fd in open
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|&fd| fd > 2)
    {
        // SAFETY: only borrowed for fcntl(2), which fails if it is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let _ = fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    }
}

fn null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Connects /dev/null to 0, 1 and 2.
pub fn silence_standard_descriptors() {
    if let Ok(null) = null() {
        let _ = set_standard_descriptors(&null, Some(&null));
    }
}

/// Connects `input` to 0 and `output` to 1 and 2; without an output, 1 and 2 stay unchanged.
///
/// # Errors
/// The errors of dup2(2).
pub fn set_standard_descriptors(input: &File, output: Option<&File>) -> io::Result<()> {
    dup2_stdin(input)?;
    if let Some(output) = output {
        dup2_stdout(output)?;
        dup2_stderr(output)?;
    }
    Ok(())
}
