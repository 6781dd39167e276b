//! Programs that run another one and do not change which one it is: `env`, `nice`, `ionice`,
//! `timeout`, `flock` and `setsid` (coreutils 9, util-linux 2.38).

use std::path::{Path, PathBuf};

use crate::sys::process::{base_name, os};

/// Words of such programs before the command that they run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Number of words; 0 if the first word is the command itself.
    pub length: usize,
    /// Directory that the prefix changes to (`env -C`).
    pub directory: Option<Vec<u8>>,
}

impl Prefix {
    /// Directory in which the command runs if the prefix is started in this one.
    pub fn directory_from(&self, directory: &Path) -> PathBuf {
        let changed = self.directory.as_deref();
        changed.map_or(directory.to_owned(), |path| directory.join(os(path)))
    }
}

/// Options and operands of one of these programs.
struct Program {
    name: &'static [u8],
    /// Letters of options that take a value, and of those that take none.
    valued: &'static [u8],
    plain: &'static [u8],
    /// Long options that take a value, and those that take none.
    long_valued: &'static [&'static str],
    long_plain: &'static [&'static str],
    /// Number of words between the options and the command.
    operands: usize,
}

const PROGRAMS: [Program; 6] = [
    Program {
        name: b"env",
        valued: b"uCa",
        plain: b"i0v",
        long_valued: &["unset", "chdir", "argv0"],
        long_plain: &[
            "ignore-environment",
            "null",
            "debug",
            "block-signal",
            "default-signal",
            "ignore-signal",
            "list-signal-handling",
        ],
        operands: 0,
    },
    Program {
        name: b"nice",
        valued: b"n",
        plain: b"0123456789",
        long_valued: &["adjustment"],
        long_plain: &[],
        operands: 0,
    },
    Program {
        name: b"ionice",
        valued: b"cn",
        plain: b"t",
        long_valued: &["class", "classdata"],
        long_plain: &["ignore"],
        operands: 0,
    },
    Program {
        name: b"timeout",
        valued: b"ks",
        plain: b"vfp",
        long_valued: &["kill-after", "signal"],
        long_plain: &["foreground", "preserve-status", "verbose"],
        operands: 1,
    },
    Program {
        name: b"flock",
        valued: b"wE",
        plain: b"sxenoF",
        long_valued: &["wait", "timeout", "conflict-exit-code"],
        long_plain: &[
            "shared",
            "exclusive",
            "nonblock",
            "nb",
            "close",
            "no-fork",
            "verbose",
            "fcntl",
        ],
        operands: 1,
    },
    Program {
        name: b"setsid",
        valued: b"",
        plain: b"cfw",
        long_valued: &[],
        long_plain: &["ctty", "fork", "wait"],
        operands: 0,
    },
];

/// Finds the beginning of the command. The text of a shell (`sh -c`, `flock -c`, `env -S`) is not
/// parsed, and neither is a program with an unknown option: its words are then the command.
pub fn of(words: &[Vec<u8>]) -> Prefix {
    let mut prefix = Prefix::default();
    while let Some((length, directory)) = words.get(prefix.length..).and_then(one) {
        prefix.length += length;
        if let Some(further) = directory {
            prefix.directory = Some(match prefix.directory.take() {
                Some(first) if !further.starts_with(b"/") => [&first[..], b"/", &further].concat(),
                _ => further,
            });
        }
    }
    prefix
}

/// Number of words of the first of these programs, and the directory that it changes to.
fn one(words: &[Vec<u8>]) -> Option<(usize, Option<Vec<u8>>)> {
    let name = base_name(words.first()?);
    let program = PROGRAMS.iter().find(|program| program.name == name)?;
    let mut directory = None;
    let mut at = 1;
    loop {
        let word = words.get(at)?.as_slice();
        match word {
            b"--" => {
                at += 1;
                break;
            }
            b"-" if program.name == b"env" => at += 1,
            // `nice --5` means `nice -n -5`.
            [b'-', b'-', level @ ..] if program.name == b"nice" && is_number(level) => at += 1,
            [b'-', b'-', long @ ..] => {
                at += program.long(long, words.get(at + 1), &mut directory)?
            }
            [b'-', letters @ ..] if !letters.is_empty() => {
                at += program.letters(letters, words.get(at + 1), &mut directory)?;
            }
            _ => break,
        }
    }
    at += program.operands;
    if program.name == b"env" {
        let is_variable = |word: &&Vec<u8>| word.contains(&b'=');
        at += words.get(at..)?.iter().take_while(is_variable).count();
    }
    // A command has to follow; `flock -c` has a shell's text instead.
    let command = words.get(at)?;
    let is_shell_text = program.name == b"flock" && command.starts_with(b"-");
    (!is_shell_text).then_some((at, directory))
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

impl Program {
    /// Number of words that a long option takes: one, or two with its value.
    fn long(
        &self,
        long: &[u8],
        next: Option<&Vec<u8>>,
        directory: &mut Option<Vec<u8>>,
    ) -> Option<usize> {
        let mut parts = long.splitn(2, |&b| b == b'=');
        let (name, joined) = (parts.next()?, parts.next());
        // GNU's getopt_long accepts any unambiguous abbreviation.
        let begun = |known: &&&str| known.as_bytes().starts_with(name);
        let valued = self.long_valued.iter().filter(begun);
        let plain = self.long_plain.iter().filter(begun);
        let exact = |known: &&&str| known.as_bytes() == name;
        let all: Vec<(&str, bool)> = valued
            .map(|name| (*name, true))
            .chain(plain.map(|name| (*name, false)))
            .collect();
        let (known, takes) = match all.as_slice() {
            [one] => *one,
            several => *several.iter().find(|(name, _)| exact(&name))?,
        };
        let value = joined.or_else(|| next.filter(|_| takes).map(Vec::as_slice));
        if known == "chdir" {
            *directory = Some(value?.to_vec());
        }
        Some(1 + usize::from(takes && joined.is_none()))
    }

    /// Number of words that a word of short options takes: one, or two with the last one's value.
    fn letters(
        &self,
        letters: &[u8],
        next: Option<&Vec<u8>>,
        directory: &mut Option<Vec<u8>>,
    ) -> Option<usize> {
        for (at, letter) in letters.iter().enumerate() {
            if self.valued.contains(letter) {
                let joined = &letters[at + 1..];
                if *letter == b'C' {
                    let value = if joined.is_empty() {
                        next?.as_slice()
                    } else {
                        joined
                    };
                    *directory = Some(value.to_vec());
                }
                return Some(1 + usize::from(joined.is_empty()));
            }
            if !self.plain.contains(letter) {
                return None;
            }
        }
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect()
    }

    fn command(text: &str) -> String {
        let words = words(text);
        let rest = &words[of(&words).length..];
        String::from_utf8_lossy(&rest.join(&b' ')).into_owned()
    }

    #[test]
    fn looks_through_the_options_of_each_program() {
        for line in [
            "env puppet agent -t",
            "/usr/bin/env -i - X=1 PATH=/a puppet agent -t",
            "env -u HOME --unset=A --unset B -iv X= puppet agent -t",
            "env --ignore-env --block-signal=INT puppet agent -t",
            "nice puppet agent -t",
            "nice -n 5 puppet agent -t",
            "nice -n-5 puppet agent -t",
            "nice -10 puppet agent -t",
            "nice --10 puppet agent -t",
            "nice --adj 5 puppet agent -t",
            "ionice -c3 puppet agent -t",
            "ionice -c 2 -n7 -t puppet agent -t",
            "timeout 60 puppet agent -t",
            "timeout -k 5 -s KILL --foreground 60 puppet agent -t",
            "timeout --kill-after=5 --sig TERM 1h puppet agent -t",
            "flock /f puppet agent -t",
            "flock -w 5 -n /f puppet agent -t",
            "flock --timeout 5 --nonblock /f puppet agent -t",
            "setsid -w puppet agent -t",
            "env -i X=1 nice -n 5 ionice -c3 timeout -k 5 60 flock -w 5 /f setsid -w puppet agent -t",
            "env -- nice -- timeout -- 5 puppet agent -t",
            "puppet agent -t",
        ] {
            assert_eq!(command(line), "puppet agent -t", "{line}");
        }
    }

    #[test]
    fn does_not_look_through_what_is_not_a_plain_prefix() {
        for line in [
            "sh -c puppet agent -t",
            "flock /f -c puppet agent -t",
            "flock -w 5 /f --command puppet",
            "flock 9",
            "env -S puppet agent",
            "env",
            "env X=1",
            "nice",
            "nice -n 5",
            "timeout 5",
            "ionice -p 7",
            "setsid --version",
            "sudo puppet agent -t",
            "nicer puppet agent -t",
        ] {
            assert_eq!(command(line), line, "{line}");
        }
        assert_eq!(command("nice flock /f -c x"), "flock /f -c x");
    }

    #[test]
    fn knows_the_directory_that_env_changes_to() {
        for (line, directory) in [
            ("env -C /d puppet apply x.pp", Some("/d")),
            ("env -iC/d puppet apply x.pp", Some("/d")),
            ("env --chdir=d env --chd e puppet apply x.pp", Some("d/e")),
            ("env -C /d env -C /e puppet apply x.pp", Some("/e")),
            ("env puppet apply x.pp", None),
        ] {
            let found = of(&words(line)).directory;
            let expected = directory.map(|path| path.as_bytes().to_vec());
            assert_eq!(found, expected, "{line}");
            assert_eq!(command(line), "puppet apply x.pp", "{line}");
        }
    }

    proptest! {
        #[test]
        fn total(words in proptest::collection::vec("(env|nice|timeout|flock|setsid|-[a-z]{1,3}|--[a-z]{0,6}(=x)?|X=1|x|)", 0..10)) {
            let words: Vec<Vec<u8>> = words.into_iter().map(String::into_bytes).collect();
            let prefix = of(&words);
            prop_assert!(prefix.length == 0 || prefix.length < words.len());
        }
    }
}
