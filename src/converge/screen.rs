//! Standard error, and the driver's output on it.

use std::io::{IsTerminal, Write, stderr};

use again_base::layout::{Look, Tone, complain, complain_painted};
use again_base::model::{Outcome, Span, Walltime};
use again_base::sys::localtime;
use again_base::sys::terminal::{self, clean};

/// Maximum width of the progress line, for a terminal of the usual size.
const WIDEST: usize = 79;

/// Standard error and its capabilities.
#[derive(Debug)]
pub struct Screen {
    terminal: bool,
    look: Look,
    /// Whether a progress line without a line feed is shown.
    progress: bool,
    /// Lines of the table at the end.
    rows: Vec<String>,
}

impl Screen {
    /// Current standard error.
    pub fn new() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let (no_color, term) = (variable("NO_COLOR"), variable("TERM"));
        let terminal = stderr().is_terminal() && term.as_ref().is_some_and(|term| term != "dumb");
        let width = terminal.then_some(WIDEST);
        Screen {
            terminal,
            look: Look::new(width, no_color.as_deref(), term.as_deref()),
            progress: false,
            rows: Vec::new(),
        }
    }

    /// Whether progress can be shown: never from the background, where it would overwrite
    /// somebody's prompt.
    pub fn shows_progress(&self) -> bool {
        self.terminal && terminal::is_in_foreground()
    }

    /// Prints a message.
    pub fn say(&mut self, what: &str) {
        self.clear();
        complain(&format!("again: converge: {what}"));
    }

    /// Prints how a run ended, with its outcome in colour.
    pub fn say_outcome(&mut self, what: &str, outcome: Outcome) {
        self.clear();
        let word = outcome.kind();
        let painted = self.paint(word, !outcome.is_failure());
        let what = clean(what).replacen(word, &painted, 1);
        complain_painted(&format!("again: converge: {what}"));
    }

    /// Replaces the progress line.
    pub fn progress(&mut self, what: &str) {
        let line = format!("again: converge: {what}");
        let line: String = clean(&line).chars().take(WIDEST).collect();
        let _ = write!(stderr(), "\r\x1b[2K{line}");
        self.progress = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.progress) {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }

    fn paint(&self, text: &str, good: bool) -> String {
        let tone = if good { Tone::Good } else { Tone::Bad };
        self.look.paint(tone, text)
    }

    /// Adds a line to the table: number of the run, start time, duration, outcome and reason for
    /// the start.
    pub fn row(&mut self, run: u32, at: Walltime, took: Span, outcome: Outcome, asked_by: &str) {
        let at = localtime::local(at);
        let at = at.split(' ').nth(1).unwrap_or(&at);
        let took = took.to_string();
        let outcome = self.paint(&format!("{:<9}", outcome.kind()), !outcome.is_failure());
        self.rows.push(format!(
            "{run:>5}  {at:<9}  {took:<6}  {outcome}  {}",
            clean(asked_by)
        ));
    }

    /// Prints the table of the runs, one line each.
    pub fn table(&mut self) {
        self.clear();
        if !self.rows.is_empty() {
            complain("  run  started    took    outcome    asked by");
        }
        for row in &self.rows {
            complain_painted(row);
        }
    }

    /// Prints the last message.
    pub fn verdict(&self, text: &str, good: bool) {
        let text = self.paint(&clean(text), good);
        complain_painted(&format!("again: {text}"));
    }
}
