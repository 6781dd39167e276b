//! The terminal that our standard descriptors are connected to.

use std::io::IsTerminal;
use std::ops::RangeInclusive;

/// The width of the terminal that standard output is, if it is one.
pub fn columns() -> Option<usize> {
    let out = std::io::stdout();
    // A terminal that does not know its width counts as an ordinary one.
    let size = || rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    let columns = out.is_terminal().then(size);
    columns.map(|columns| if columns > 0 { columns } else { 80 })
}

/// Whether we are in the foreground of the terminal on standard error.
pub fn is_in_foreground() -> bool {
    nix::unistd::tcgetpgrp(std::io::stderr()) == Ok(nix::unistd::getpgrp())
}

/// Characters that show nothing, beyond those that `escape_debug` knows: joiners, fillers and variation
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

/// Text on one line, with control, bidirectional and invisible characters as escapes such as
/// `\u{202e}`. A tab becomes a space.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Behind a letter an accent is not escaped, as it is at the beginning of a text.
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

/// [`clean`] for each line of a text.
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
