//! Standard error, and what a driver writes there.

use std::io::{IsTerminal, Write, stderr};

use crate::layout::{Look, Tone, complain};
use crate::model::{End, Outcome, Span, Walltime};
use crate::sys::{localtime, terminal};

/// A run in the summary at the end.
#[derive(Debug)]
pub struct Row {
    /// Its number.
    pub run: u32,
    /// When it began.
    pub started: Walltime,
    /// How long it took.
    pub took: Span,
    /// How it went.
    pub outcome: Outcome,
    /// How its process ended.
    pub end: End,
    /// Why it started.
    pub asked_by: String,
}

/// The widest progress line: one that fits a terminal of the usual size.
const WIDEST: usize = 79;

/// Standard error, and what may be done on it.
#[derive(Debug)]
pub struct Screen {
    terminal: bool,
    look: Look,
    /// A progress line stands there without a line feed.
    progress: bool,
}

impl Screen {
    /// Standard error as it is now.
    pub fn new() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let (no_color, term) = (variable("NO_COLOR"), variable("TERM"));
        let terminal = stderr().is_terminal() && term.as_ref().is_some_and(|term| term != "dumb");
        let width = terminal.then_some(WIDEST);
        Screen {
            terminal,
            look: Look::new(width, no_color.as_deref(), term.as_deref()),
            progress: false,
        }
    }

    /// Never from the background, where it would write over somebody's prompt.
    pub fn shows_progress(&self) -> bool {
        self.terminal && terminal::is_in_foreground()
    }

    /// Says a line of ours.
    pub fn say(&mut self, what: &str) {
        self.clear();
        complain(&format!("again: converge: {what}"));
    }

    /// Replaces the progress line.
    pub fn progress(&mut self, what: &str) {
        let line = format!("again: converge: {what}");
        let line: String = line.chars().take(WIDEST).collect();
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

    /// An outcome in its colour.
    pub fn painted(&self, outcome: Outcome) -> String {
        self.paint(outcome.kind(), !outcome.is_failure())
    }

    /// The runs, one line each.
    pub fn table(&mut self, rows: &[Row]) {
        self.clear();
        if !rows.is_empty() {
            complain("  run  started    took    outcome    asked by");
        }
        for row in rows {
            let at = localtime::local(row.started);
            let time = at.split(' ').nth(1).unwrap_or(&at);
            let outcome = format!("{:<9}", row.outcome.kind());
            complain(&format!(
                "{:>5}  {time:<9}  {:<6}  {}  {}",
                row.run,
                row.took.to_string(),
                self.paint(&outcome, !row.outcome.is_failure()),
                row.asked_by
            ));
        }
    }

    /// The last word.
    pub fn verdict(&mut self, text: &str, good: bool) {
        self.clear();
        complain(&format!("again: {}", self.paint(text, good)));
    }
}
