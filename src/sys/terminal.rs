//! The terminal that our standard descriptors are connected to.

use std::io::IsTerminal;

/// The width of the terminal that standard output is, if it is one.
pub fn columns() -> Option<usize> {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return None;
    }
    // A terminal that does not know its width counts as an ordinary one.
    let size = rustix::termios::tcgetwinsize(out).ok();
    let columns = size.map(|size| usize::from(size.ws_col));
    Some(columns.filter(|columns| *columns > 0).unwrap_or(80))
}

/// Our process group.
pub fn own_group() -> i32 {
    nix::unistd::getpgrp().as_raw()
}

/// Whether we are in the foreground of the terminal on standard error.
pub fn is_in_foreground() -> bool {
    nix::unistd::tcgetpgrp(std::io::stderr()) == Ok(nix::unistd::getpgrp())
}
