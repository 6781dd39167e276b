//! The terminal on standard output.

use std::io::{self, IsTerminal, Write, stdout};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

/// A terminal that we write to as we like. It is as it was before when this is gone.
#[derive(Debug)]
pub struct Terminal(Option<Termios>);

impl Terminal {
    /// That of this process, if it has one that can be drawn on, in whose foreground it is.
    pub fn new() -> Option<Terminal> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let is_ours = tcgetpgrp(stdout()).is_ok_and(|group| group == getpgrp());
        if is_dumb || !stdout().is_terminal() || !is_ours {
            return None;
        }
        let before = tcgetattr(stdout()).ok();
        let terminal = Terminal(before);
        terminal.is_quiet();
        Some(terminal)
    }

    /// What is typed is not shown: it would move what is drawn.
    pub fn is_quiet(&self) {
        if let Some(before) = self.before() {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ECHO;
            let _ = tcsetattr(stdout(), OptionalActions::Now, &quiet);
        }
    }

    /// How it was, if it may be set.
    fn before(&self) -> Option<&Termios> {
        self.0.as_ref().filter(|_| !is_anothers())
    }

    /// How many lines and columns it has.
    pub fn size(&self) -> [usize; 2] {
        let size = tcgetwinsize(stdout()).map(|size| [size.ws_row, size.ws_col]);
        let [rows, columns] = size.unwrap_or_default().map(usize::from);
        // One that does not know its size counts as an ordinary one.
        [(rows, 24), (columns, 80)].map(|(is, usual)| if is > 0 { is } else { usual })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = self.before() {
            // What was typed meanwhile is for nobody.
            let _ = tcsetattr(stdout(), OptionalActions::Flush, before);
        }
    }
}

/// Whether another job has the terminal. Who sets it nevertheless is stopped, even on its way to its end.
pub fn is_anothers() -> bool {
    tcgetpgrp(stdout()).is_ok_and(|group| group != getpgrp())
}

/// Writes all of it at once.
///
/// # Errors
/// Those of write(2).
pub fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether somebody reads what we write; a pipe says it also while nothing is written.
pub fn is_read() -> bool {
    let out = stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec::default();
    let is_polled = poll(&mut polled, Some(&at_once)).is_ok();
    !is_polled || !polled[0].revents().contains(PollFlags::ERR)
}
