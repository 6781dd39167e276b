//! Text for people: lines that fit the terminal, colours on a terminal, and their output.
#![forbid(unsafe_code)]

/// Lines that replace those drawn before.
pub mod frame;

use std::ffi::OsStr;
use std::io::{self, Write};

use crate::model::Outcome;
use crate::sys::machine::replacement;
use crate::sys::terminal::{clean, clean_lines};

/// Writes a line to standard output.
///
/// # Errors
/// The errors of write(2), with a message that names standard output.
pub fn say(line: &str) -> io::Result<()> {
    if let Some(machine) = replacement() {
        machine.print(line);
        return Ok(());
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| {
            let what = format!("cannot write to standard output ({})", e.kind());
            io::Error::new(e.kind(), what)
        })
}

/// Writes a line to standard output, cleaned by [`clean`].
///
/// # Errors
/// As [`say`].
pub fn say_clean(line: &str) -> io::Result<()> {
    say(&clean(line))
}

/// Writes lines to standard error, cleaned by [`clean_lines`]; ignores write errors.
pub fn complain(lines: &str) {
    complain_painted(&clean_lines(lines));
}

/// Writes lines to standard error as they are, with their colours.
pub fn complain_painted(lines: &str) {
    if let Some(machine) = replacement() {
        return machine.print(lines);
    }
    let _ = writeln!(io::stderr(), "{lines}");
}

/// Plural `s`; empty if `count` is 1.
pub fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Width and colours of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Most characters in a line; `None`: lines are not wrapped.
    pub width: Option<usize>,
    /// Whether colours are used.
    pub colour: bool,
}

/// Meaning of a piece of text, which determines its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// A heading.
    Heading,
    /// The normal state.
    Good,
    /// A state that may need an operator.
    Attention,
    /// A failure.
    Bad,
    /// None of these: not coloured.
    Plain,
}

/// Colour of a run that has ended.
impl From<Outcome> for Tone {
    fn from(outcome: Outcome) -> Tone {
        match outcome {
            Outcome::Failed | Outcome::Killed => Tone::Bad,
            Outcome::Unknown | Outcome::Skipped => Tone::Attention,
            Outcome::Changed | Outcome::Unchanged | Outcome::Succeeded => Tone::Good,
        }
    }
}

impl Look {
    /// Look for a terminal of this width, if there is one; NO_COLOR (no-color.org) and TERM=dumb
    /// turn colours off.
    pub fn new(columns: Option<usize>, no_color: Option<&OsStr>, term: Option<&OsStr>) -> Self {
        Look {
            // Wrapping to fewer columns makes a text harder to read.
            width: columns.map(|columns| columns.max(40)),
            colour: columns.is_some()
                && no_color.is_none_or(OsStr::is_empty)
                && term.is_none_or(|term| term != "dumb"),
        }
    }

    /// Look of this process's standard output.
    pub fn of_this_process() -> Self {
        let variable = |name| std::env::var_os(name);
        Look::new(
            crate::sys::terminal::columns(),
            variable("NO_COLOR").as_deref(),
            variable("TERM").as_deref(),
        )
    }

    /// Text in the colour of its tone; unchanged if colours are off.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Heading => "1",
            Tone::Good => "32",
            Tone::Attention => "33",
            Tone::Bad => "31",
            Tone::Plain => return text.to_owned(),
        };
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Line that begins with `label` in its tone. In the text, line feeds and tabs become spaces
    /// and other special characters are escaped; the lines of a long text are aligned below its
    /// beginning.
    pub fn entry(&self, label: &str, tone: Tone, text: &str) -> String {
        let indent = label.chars().count();
        let text = clean(&text.replace(['\n', '\t'], " "));
        let body = match self.width {
            // Beside a longer label, too few columns are left to wrap the text.
            Some(width) if width > indent + 16 => wrap(&text, width - indent),
            _ => vec![text],
        };
        let body = body.join(&format!("\n{}", " ".repeat(indent)));
        format!("{}{body}", self.paint(tone, label))
    }
}

/// Wraps a text at spaces to lines of at most `width` characters; a longer word stays whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        if !line.is_empty() && !fits {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// First 500 characters of a text; if it is longer, with its size in bytes and the command that
/// shows all of it.
pub fn cut(text: String) -> String {
    const MOST: usize = 500;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!(
            "{} … ({} bytes; all of it: again status --json)",
            &text[..end],
            text.len()
        ),
        None => text,
    }
}

/// Memory size in whole megabytes, rounded up.
pub fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

/// Word quoted for a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-+:@%/=,".contains(&b);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Message about an invalid command line on one line, because an Exec logs it; it refers to the
/// program's `--help` for the rest.
pub fn misread(error: &clap::Error, program: &str) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    let tip = lines.clone().find_map(|line| line.strip_prefix("tip: "));
    let tip = tip.map_or_else(String::new, |tip| format!("; {tip}"));
    let what: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let what = what.join(" ");
    let what = what.trim_start_matches("error: ");
    format!("{what}{tip}; see '{program} --help'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Look = Look {
        width: Some(40),
        colour: false,
    };

    #[test]
    fn runs_that_failed_or_were_killed_are_red() {
        let red = Outcome::ALL
            .iter()
            .filter(|one| Tone::from(**one) == Tone::Bad);
        let failures = Outcome::ALL.iter().filter(|one| one.is_failure());
        assert!(red.eq(failures));
        assert_eq!(Tone::from(Outcome::Skipped), Tone::Attention);
    }

    #[test]
    fn goes_on_below_the_text() {
        assert_eq!(
            PLAIN.entry(
                "  label     ",
                Tone::Good,
                "one two three four five six seven eight"
            ),
            "  label     one two three four five six\n            seven eight"
        );
        let look = Look {
            width: None,
            ..PLAIN
        };
        assert_eq!(
            look.entry("a ", Tone::Good, "b\nc\x1b[31m"),
            "a b c\\u{1b}[31m"
        );
    }

    #[test]
    fn colours_only_on_a_terminal_that_wants_them() {
        let look = |columns, no_color: &'static str, term: &'static str| {
            Look::new(columns, Some(OsStr::new(no_color)), Some(OsStr::new(term))).colour
        };
        assert!(look(Some(80), "", "xterm"));
        assert!(!look(None, "", "xterm"));
        assert!(!look(Some(80), "1", "xterm"));
        assert!(!look(Some(80), "", "dumb"));
        let painted = Look {
            colour: true,
            ..PLAIN
        }
        .paint(Tone::Bad, "x");
        assert_eq!(painted, "\x1b[31mx\x1b[0m");
        assert_eq!(PLAIN.paint(Tone::Bad, "x"), "x");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_what_can_fits(text in "[a-z ]{0,200}", width in 1..60usize) {
            let lines = wrap(&text, width);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(words(&lines.join(" ")), words(&text));
            for line in lines {
                prop_assert!(line.trim().chars().count() <= width || !line.trim().contains(' '));
            }
        }
    }
}
