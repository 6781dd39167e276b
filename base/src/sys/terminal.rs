//! Terminal that our standard descriptors are connected to.

use std::io::{self, IsTerminal, Write, stdout};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

/// Width of the terminal on standard output; `None` if that is not a terminal.
pub fn columns() -> Option<usize> {
    let out = std::io::stdout();
    // A terminal of unknown width counts as one with 80 columns.
    let size = || rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    let columns = out.is_terminal().then(size);
    columns.map(|columns| if columns > 0 { columns } else { 80 })
}

/// Whether we are in the foreground of the terminal on standard error.
pub fn is_in_foreground() -> bool {
    nix::unistd::tcgetpgrp(std::io::stderr()) == Ok(nix::unistd::getpgrp())
}

/// Terminal on standard output that a viewer draws on. Its settings are restored when this is
/// dropped.
#[derive(Debug)]
pub struct Terminal(Option<Termios>);

impl Terminal {
    /// Terminal of this process; `None` if it cannot be drawn on or we are not in its foreground.
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

    /// Turns echo off: typed characters would move the drawn lines.
    pub fn is_quiet(&self) {
        if let Some(before) = self.before() {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ECHO;
            let _ = tcsetattr(stdout(), OptionalActions::Now, &quiet);
        }
    }

    /// Saved settings, if we may restore them now.
    fn before(&self) -> Option<&Termios> {
        self.0.as_ref().filter(|_| !is_anothers())
    }

    /// Number of lines and columns.
    pub fn size(&self) -> [usize; 2] {
        let size = tcgetwinsize(stdout()).map(|size| [size.ws_row, size.ws_col]);
        let [rows, columns] = size.unwrap_or_default().map(usize::from);
        // An unknown size counts as 24 lines and 80 columns.
        [(rows, 24), (columns, 80)].map(|(is, usual)| if is > 0 { is } else { usual })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = self.before() {
            // Discards characters that were typed meanwhile.
            let _ = tcsetattr(stdout(), OptionalActions::Flush, before);
        }
    }
}

/// Whether another job is in the foreground of the terminal. A background process that changes
/// settings is stopped by a signal, even while it exits.
pub fn is_anothers() -> bool {
    tcgetpgrp(stdout()).is_ok_and(|group| group != getpgrp())
}

/// Writes a whole text to standard output and flushes it.
///
/// # Errors
/// The errors of write(2).
pub fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether standard output has a reader; for a pipe, poll(2) reports it even while nothing is
/// written.
pub fn is_read() -> bool {
    let out = stdout();
    let mut polled = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let is_polled = poll(&mut polled, PollTimeout::ZERO).is_ok();
    let revents = polled[0].revents().unwrap_or(PollFlags::empty());
    !is_polled || !revents.contains(PollFlags::POLLERR)
}

/// Invisible characters that `escape_debug` does not escape: joiners, fillers and variation
/// selectors.
const HIDDEN: [RangeInclusive<char>; 9] = [
    '\u{34f}'..='\u{34f}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{2800}'..='\u{2800}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{e0100}'..='\u{e01ef}',
];

/// Text on one line, with control, bidirectional and invisible characters escaped as in `\u{202e}`.
/// A tab becomes a space.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // `escape_debug` escapes an accent at the beginning of a text, but not after a letter.
        let is_shown = || format!("x{c}").escape_debug().nth(2).is_none();
        match c {
            ' '..='~' => out.push(c),
            '\t' => out.push(' '),
            c if HIDDEN.iter().any(|hidden| hidden.contains(&c)) => out.extend(c.escape_unicode()),
            c if is_shown() => out.push(c),
            c => out.extend(c.escape_unicode()),
        }
    }
    out
}

/// Text with [`clean`] applied to each line.
pub fn clean_lines(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_escapes_control_bidirectional_and_invisible_characters() {
        for text in ["it's \"\\N\" \u{e9}", "e\u{301}", "\u{e01}\u{e49}"] {
            assert_eq!(clean(text), text);
        }
        let hostile = "a\nb\u{1b}[2J\u{202e}\u{2028}\u{200b}";
        let shown = "a\\u{a}b\\u{1b}[2J\\u{202e}\\u{2028}\\u{200b}";
        assert_eq!(clean(hostile), shown);
        assert_eq!(
            clean("a\u{34f}\u{3164}\u{e0101}"),
            "a\\u{34f}\\u{3164}\\u{e0101}"
        );
        assert_eq!(clean_lines("a\tb\n\u{202e}"), "a b\n\\u{202e}");
    }
}
