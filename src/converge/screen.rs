//! Standard error, and what a driver writes there.

use std::io::{IsTerminal, Write, stderr};

use again_base::layout::{Look, Tone, complain, complain_painted};
use again_base::model::{Outcome, Span, Walltime};
use again_base::sys::localtime;
use again_base::sys::terminal::{self, clean};

/// The widest progress line: one that fits a terminal of the usual size.
const WIDEST: usize = 79;

/// Standard error, and what may be done on it.
#[derive(Debug)]
pub struct Screen {
    terminal: bool,
    look: Look,
    /// A progress line stands there without a line feed.
    progress: bool,
    /// The lines of the table at the end.
    rows: Vec<String>,
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
            rows: Vec::new(),
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

    /// Says how a run ended, with its outcome in colour.
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

    /// Keeps a line of the table: a run, when it began and how long it took, how it went
    /// and why it started.
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

    /// The runs, one line each.
    pub fn table(&mut self) {
        self.clear();
        if !self.rows.is_empty() {
            complain("  run  started    took    outcome    asked by");
        }
        for row in &self.rows {
            complain_painted(row);
        }
    }

    /// The last word.
    pub fn verdict(&self, text: &str, good: bool) {
        let text = self.paint(&clean(text), good);
        complain_painted(&format!("again: {text}"));
    }
}
