//! Terminal output that replaces lines shown before: only changed lines are sent. Pure.

/// Last lines that a terminal shows; the cursor is at the beginning of the line below them.
#[derive(Debug, Default)]
pub struct Frame(Vec<String>);

/// Turns line wrapping off while lines are written: a wrapped line would occupy a row that is not
/// counted.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

impl Frame {
    /// Shows these lines instead, each cut to `width` characters. Empty if nothing changes.
    pub fn show(&mut self, mut lines: Vec<String>, width: usize) -> String {
        lines.iter_mut().for_each(|line| *line = cut(line, width));
        let (old, mut at) = (&self.0, self.0.len());
        let mut out = String::new();
        let go = |out: &mut String, from: usize, to: usize| {
            out.push('\r');
            if to < from {
                out.push_str(&format!("\x1b[{}A", from - to));
            } else if from < to {
                out.push_str(&format!("\x1b[{}B", to - from));
            }
        };
        for (n, line) in lines.iter().enumerate() {
            let known = old.get(n);
            if known == Some(line) {
                continue;
            }
            go(&mut out, at, n);
            at = n;
            if known.is_some() {
                out.push_str("\x1b[2K");
            }
            out.push_str(line);
            if known.is_none() {
                out.push_str("\r\n");
                at += 1;
            }
        }
        if lines.len() < old.len() {
            go(&mut out, at, lines.len());
            out.push_str("\x1b[J");
        } else if !out.is_empty() {
            go(&mut out, at, lines.len());
        }
        self.0 = lines;
        if out.is_empty() {
            return out;
        }
        format!("{NO_WRAP}{out}{WRAP}")
    }

    /// Clears the terminal, after its size has changed or another program has written to it.
    pub fn clear(&mut self) -> &'static str {
        self.0.clear();
        "\x1b[H\x1b[J"
    }
}

/// First `width` visible characters of a line. All colour sequences are kept, so that none affects
/// the text that follows.
fn cut(line: &str, width: usize) -> String {
    let (mut shown, mut is_colour) = (0, false);
    let stays = |c: &char| {
        is_colour |= *c == '\x1b';
        let stays = is_colour || shown < width;
        shown += usize::from(!is_colour);
        is_colour &= *c != 'm';
        stays
    };
    line.chars().filter(stays).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A terminal that knows what is sent: its lines, and where the cursor is.
    #[derive(Default)]
    struct Terminal {
        lines: Vec<String>,
        at: (usize, usize),
        wraps: bool,
        is_coloured: bool,
    }

    impl Terminal {
        fn write(&mut self, sent: &str) {
            let mut rest = sent;
            while let Some(c) = rest.chars().next() {
                rest = &rest[c.len_utf8()..];
                match c {
                    '\r' => self.at.1 = 0,
                    '\n' => self.at.0 += 1,
                    '\x1b' => {
                        let end = rest.find(char::is_alphabetic).expect("an end") + 1;
                        self.obey(&rest[1..end]);
                        rest = &rest[end..];
                    }
                    c => {
                        assert!(!self.wraps);
                        self.lines
                            .resize(self.lines.len().max(self.at.0 + 1), String::new());
                        let line = &mut self.lines[self.at.0];
                        assert_eq!(line.chars().count(), self.at.1, "over what stands there");
                        line.push(c);
                        self.at.1 += 1;
                    }
                }
            }
        }

        fn obey(&mut self, words: &str) {
            let (number, what) = words.split_at(words.len() - 1);
            match (number, what) {
                ("?7", _) => self.wraps = what == "h",
                (code, "m") => self.is_coloured = code != "0",
                ("2", "K") => self.lines[self.at.0].clear(),
                ("", "J") => self.lines.truncate(self.at.0),
                ("", "H") => self.at = (0, 0),
                (number, "A") => self.at.0 -= number.parse::<usize>().expect("a number"),
                (number, "B") => self.at.0 += number.parse::<usize>().expect("a number"),
                other => panic!("{other:?}"),
            }
        }
    }

    fn lines(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn only_what_is_new_is_sent() {
        let mut frame = Frame::default();
        let show = |frame: &mut Frame, text: &str| frame.show(lines(text), 80);
        let of = |body: &str| format!("{NO_WRAP}{body}{WRAP}");
        assert_eq!(show(&mut frame, "a b c"), of("\ra\r\n\rb\r\n\rc\r\n\r"));
        assert_eq!(show(&mut frame, "a b c"), "");
        assert_eq!(show(&mut frame, "a x c"), of("\r\x1b[2A\x1b[2Kx\r\x1b[2B"));
        assert_eq!(show(&mut frame, "a x c d"), of("\rd\r\n\r"));
        assert_eq!(show(&mut frame, "a"), of("\r\x1b[3A\x1b[J"));
        frame.clear();
        assert_eq!(show(&mut frame, "a"), of("\ra\r\n\r"));
    }

    proptest! {
        #[test]
        fn the_terminal_shows_the_last_of_them_as_far_as_it_is_wide(all in prop::collection::vec((prop::collection::vec("([abm]{1,3}|\x1b\\[31m[abm]{1,3}\x1b\\[0m){1,3}", 0..6), 0..9), 1..12), width in 1..10usize) {
            let (mut frame, mut terminal) = (Frame::default(), Terminal::default());
            for (lines, what) in all {
                if what == 0 {
                    terminal.write(frame.clear());
                }
                let sent = frame.show(lines.clone(), width);
                terminal.write(&sent);
                prop_assert!(!terminal.is_coloured);
                let plain = lines.iter().map(|line| line.replace("\x1b[31m", "").replace("\x1b[0m", ""));
                let shown: Vec<String> = plain.map(|line| line.chars().take(width).collect()).collect();
                prop_assert_eq!(&terminal.lines, &shown);
                prop_assert_eq!(terminal.at, (lines.len(), 0));
                prop_assert!(sent.is_empty() || terminal.wraps);
                prop_assert_eq!(frame.show(lines, width), "");
            }
        }
    }
}
