//! Progress while a command waits: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, Write, stderr};

use again_base::layout::say;

use super::Problem;

/// Width of the bar with its text: that of a terminal of the usual size.
const WIDEST: usize = 79;

/// Form in which progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screen {
    /// A terminal.
    Bar,
    /// A log or another program.
    Lines,
    /// No output of progress: standard output is for JSON.
    Silent,
}

impl Screen {
    /// Form for the standard error of this process.
    pub fn new(json: bool) -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if stderr().is_terminal() && !is_dumb {
            Screen::Bar
        } else if json {
            Screen::Silent
        } else {
            Screen::Lines
        }
    }

    /// Shows a progress bar.
    pub fn bar(self, text: &str) {
        if self == Screen::Bar {
            let line: String = format!("again-fleet: {text}")
                .chars()
                .take(WIDEST)
                .collect();
            let _ = write!(stderr(), "\r\x1b[2K{line}");
        }
    }

    /// Prints the new state of a target.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn line(self, text: &str) -> Result<(), Problem> {
        if self == Screen::Lines {
            say(&format!("again-fleet: {text}"))?;
        }
        Ok(())
    }

    /// Removes the progress bar.
    pub fn clear(self) {
        if self == Screen::Bar {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }
}
