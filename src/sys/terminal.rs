//! What standard output is connected to.
#![allow(unsafe_code)]

use std::io::IsTerminal;

/// The width of the terminal that standard output is, if it is one.
pub fn columns() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    // SAFETY: winsize is plain data.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ (ioctl_tty(2)) fills in one winsize, which outlives the call.
    let done = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    // A terminal that does not know its width counts as an ordinary one.
    Some(match size.ws_col {
        columns if done == 0 && columns > 0 => usize::from(columns),
        _ => 80,
    })
}
