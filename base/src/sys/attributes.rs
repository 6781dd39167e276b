//! Attributes of a process besides arguments and environment: umask, nice level, resource limits,
//! signal dispositions and blocked signals.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use serde::{Deserialize, Serialize};

use super::process;

/// Attributes of a run, which its rerun gets too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// File mode creation mask.
    pub umask: Option<u32>,
    /// Nice level.
    pub nice: Option<i32>,
    /// Resource limits: the name in /proc/PID/limits, soft, hard (`u64::MAX`: unlimited).
    pub limits: Vec<(String, u64, u64)>,
    /// Ignored signals, one bit each, signal 1 lowest (proc_pid_status(5), SigIgn).
    pub ignored: u64,
    /// Blocked signals, one bit each, signal 1 lowest (proc_pid_status(5), SigBlk).
    pub blocked: u64,
}

/// Signals that a process ignores and blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalState {
    /// Ignored signals, as in [`Attributes::ignored`].
    pub ignored: u64,
    /// Blocked signals, as in [`Attributes::blocked`].
    pub blocked: u64,
}

impl SignalState {
    /// State from /proc/self/status; call before any handler is installed.
    pub fn of_this_process() -> Self {
        let text = process::read_whole("/proc/self/status").unwrap_or_default();
        Self::parse(&process::lossy(text))
    }

    /// Whether the signal is ignored.
    pub fn ignores(&self, signal: i32) -> bool {
        self.ignored >> (signal - 1) & 1 == 1
    }

    /// Whether all signals that can be blocked are; 32 and 33 are the C library's own.
    fn blocks_all(&self) -> bool {
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP) | bit(32) | bit(33);
        self.blocked | never == u64::MAX
    }

    /// Parses the lines of /proc/PID/status; a missing line means no signals.
    fn parse(status: &str) -> Self {
        // SigBlk, SigIgn and SigCgt follow each other, after most of the file.
        let from = status.find("\nSigBlk:").unwrap_or(0);
        let mut lines = status.get(from..).unwrap_or_default().split('\n').take(3);
        let mut field = |name: &str| {
            lines
                .find_map(|line| line.strip_prefix(name))
                .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
                .unwrap_or(0)
        };
        SignalState {
            blocked: field("SigBlk:"),
            ignored: field("SigIgn:"),
        }
    }
}

/// Attributes of a running process. Its signals are read only if they are not given: a run ignores
/// the signals that it was started to ignore, and its children inherit that.
///
/// # Errors
/// The errors of reading its /proc entry.
pub fn of_process(pid: i32, signals: Option<SignalState>) -> io::Result<Attributes> {
    let read = || process::read_whole(&format!("/proc/{pid}/status")).map(process::lossy);
    let mut status = read()?;
    // Ruby blocks all signals while it forks, and its child may reach this code first.
    for _ in 0..20 {
        if signals.is_some() || !SignalState::parse(&status).blocks_all() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        status = read()?;
    }
    let signals = signals.unwrap_or_else(|| SignalState::parse(&status));
    let limits = process::lossy(process::read_whole(&format!("/proc/{pid}/limits"))?);
    Ok(Attributes {
        umask: process::parse_status(&status).and_then(|status| status.umask),
        nice: Some(process::stat(pid)?.nice),
        limits: parse_limits(&limits),
        ignored: signals.ignored,
        blocked: signals.blocked,
    })
}

const LIMITS: [(&str, Resource); 16] = [
    ("Max cpu time", Resource::RLIMIT_CPU),
    ("Max file size", Resource::RLIMIT_FSIZE),
    ("Max data size", Resource::RLIMIT_DATA),
    ("Max stack size", Resource::RLIMIT_STACK),
    ("Max core file size", Resource::RLIMIT_CORE),
    ("Max resident set", Resource::RLIMIT_RSS),
    ("Max processes", Resource::RLIMIT_NPROC),
    ("Max open files", Resource::RLIMIT_NOFILE),
    ("Max locked memory", Resource::RLIMIT_MEMLOCK),
    ("Max address space", Resource::RLIMIT_AS),
    ("Max file locks", Resource::RLIMIT_LOCKS),
    ("Max pending signals", Resource::RLIMIT_SIGPENDING),
    ("Max msgqueue size", Resource::RLIMIT_MSGQUEUE),
    ("Max nice priority", Resource::RLIMIT_NICE),
    ("Max realtime priority", Resource::RLIMIT_RTPRIO),
    ("Max realtime timeout", Resource::RLIMIT_RTTIME),
];

/// Parses /proc/PID/limits; unknown lines are skipped.
pub fn parse_limits(text: &str) -> Vec<(String, u64, u64)> {
    let number = |word: &str| match word {
        "unlimited" => Some(u64::MAX),
        digits => digits.parse().ok(),
    };
    text.lines()
        .filter_map(|line| {
            let (name, _) = LIMITS.iter().find(|(name, _)| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(' '))
            })?;
            let mut words = line.get(name.len()..)?.split_ascii_whitespace();
            Some((
                (*name).to_owned(),
                number(words.next()?)?,
                number(words.next()?)?,
            ))
        })
        .collect()
}

/// Sets the attributes of this process, just before it becomes the rerun.
///
/// Returns a message for each attribute that could not be set; the rerun starts nevertheless.
pub fn apply(attributes: &Attributes) -> Vec<String> {
    let mut failed = Vec::new();
    if let Some(mask) = attributes.umask {
        umask(Mode::from_bits_truncate(mask as libc::mode_t));
    }
    for (name, soft, hard) in &attributes.limits {
        let Some((_, resource)) = LIMITS.iter().find(|(known, _)| known == name) else {
            continue;
        };
        if let Err(e) = setrlimit(*resource, *soft, *hard) {
            failed.push(format!("{}: {e}", name.to_lowercase()));
        }
    }
    if let Some(nice) = attributes.nice {
        // Setting the current level again needs no privilege.
        if let Err(e) = rustix::process::setpriority_process(None, nice) {
            failed.push(format!("nice level {nice}: {e}"));
        }
    }
    set_signals(SignalState {
        ignored: attributes.ignored,
        blocked: attributes.blocked,
    });
    failed
}

/// Sets every signal's disposition to ignored or default, and the mask.
pub fn set_signals(state: SignalState) {
    for signal in 1..=64 {
        set_disposition(signal, state.ignores(signal));
    }
    // The C library hides some realtime signals from its own sets, so the system call is made
    // directly; the kernel's set on every 64-bit Linux is one 64-bit word.
    // SAFETY: a valid word of the size that is named, and no old set.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const state.blocked,
            std::ptr::null_mut::<u64>(),
            size_of::<u64>(),
        );
    }
}

/// Ignores a signal, or sets its default action.
///
/// Fails harmlessly for KILL, STOP and the C library's own signals.
pub fn set_disposition(signal: i32, ignored: bool) {
    let handler = if ignored {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    };
    // SAFETY: no handler function is installed, only one of the two constants.
    unsafe { libc::signal(signal, handler) };
}

/// Makes a write to a pipe without a reader, or beyond the file size limit, fail instead of killing
/// us.
pub fn let_writes_fail() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        set_disposition(signal, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mask_of_a_process_that_forks_blocks_all() {
        let blocks = |blocked| {
            let ignored = 0;
            SignalState { ignored, blocked }.blocks_all()
        };
        assert!(blocks(0xffff_fffe_7ffb_feff), "as Ruby has it");
        assert!(!blocks(0xffff_fffe_7ffb_beff), "without TERM");
        assert!(!blocks(0));
    }

    #[test]
    fn our_own_limits_are_all_understood() {
        let text = std::fs::read_to_string("/proc/self/limits").expect("/proc");
        assert_eq!(parse_limits(&text).len(), LIMITS.len());
    }

    proptest! {
        #[test]
        fn limits_are_total(text in "(Max (cpu time|open files|x)? ?[a-z0-9 ]{0,40}\n){0,6}") {
            let _ = parse_limits(&text);
        }
    }
}
