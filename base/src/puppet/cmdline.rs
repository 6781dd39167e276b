//! Command lines of Puppet, read as Puppet reads them.
//!
//! Puppet parses the same words twice. One parser (util/command_line/trollop.rb) decides every
//! *setting*: exact names only, and it skips the values of settings but not those of application
//! options. The other (Ruby's OptionParser) decides the *application options* such as `--test`,
//! with abbreviations, and which words are left over. This module differs between them in the same
//! way.

use std::borrow::Cow;
use std::iter::Peekable;
use std::ops::Range;
use std::slice::Iter;

pub use super::options::Application;
use super::options::{FLAGS, OCCASIONS, RUBYS_VALUED, Takes, VALUED, of_application};
use super::prefix;
use crate::sys::process::base_name;

/// Parsed command line of Puppet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// Index of the `puppet` script; the application's name is the next word.
    pub script: usize,
    /// Application that the command line starts.
    pub application: Application,
    /// Settings that are true or false, in order; the last one of a name counts.
    pub flags: Vec<(String, bool)>,
    /// Indices of words that only request daemonising.
    pub daemonize_words: Vec<usize>,
    /// Other settings with their values, in order; the last one of a name counts.
    pub values: Vec<(String, Vec<u8>)>,
    /// Whether `--test` is given, in any spelling.
    pub test: bool,
    /// Whether `--detailed-exitcodes` is in effect, by itself or as part of `--test`.
    pub detailed: bool,
    /// Whether an option such as `--disable`, `--fingerprint` or `--help` makes it something other
    /// than a catalog run.
    pub is_no_run: bool,
    /// Whether `--execute` is given.
    pub execute: bool,
    /// Value of `--execute`.
    pub code: Option<Vec<u8>>,
    /// Value of `--catalog`.
    pub catalog: Option<Vec<u8>>,
    /// Words that belong to no option: for apply, the manifest.
    pub loose: Vec<Vec<u8>>,
    /// Index of the word that ends with the value of `--catalog`.
    pub catalog_word: Option<usize>,
    /// Index of the first loose word.
    pub loose_word: Option<usize>,
    /// Ranges of words that name only the occasion of the run.
    pub occasion: Vec<Range<usize>>,
    /// Index at which added options take effect and override earlier ones.
    pub end: usize,
}

impl Invocation {
    /// Value of a flag on the command line.
    pub fn flag(&self, name: &str) -> Option<bool> {
        let mut flags = self.flags.iter().rev();
        flags.find(|(n, _)| n == name).map(|(_, is_on)| *is_on)
    }

    /// Last value of a setting on the command line.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let mut values = self.values.iter().rev();
        values.find(|(n, _)| n == name).map(|(_, v)| v.as_slice())
    }

    /// Whether `apply` reads its manifest from standard input, because nothing else names one.
    pub fn reads_standard_input(&self) -> bool {
        self.application == Application::Apply
            && match &self.catalog {
                Some(file) => file == b"-",
                None => !self.execute && self.loose.is_empty(),
            }
    }

    /// Whether `apply` needs its working directory: for a relative path or standard input.
    pub fn depends_on_directory(&self) -> bool {
        const PATHS: [&str; 4] = ["dir", "path", "config", "manifest"];
        let is_relative = |path: &[u8]| !path.starts_with(b"/");
        let names_path = |name: &str| PATHS.iter().any(|end| name.ends_with(end));
        let mut values = self.values.iter();
        self.reads_standard_input()
            || self.manifest().is_some_and(is_relative)
            || values.any(|(name, value)| names_path(name) && is_relative(value))
    }

    /// Manifest file or directory, or catalog, that `apply` reads.
    pub fn manifest(&self) -> Option<&[u8]> {
        let is_file = self.application == Application::Apply && !self.execute;
        match &self.catalog {
            Some(file) if is_file && file != b"-" => Some(file),
            None if is_file => self.loose.first().map(Vec::as_slice),
            _ => None,
        }
    }

    /// Index of the word that ends with the name of [`Invocation::manifest`].
    pub fn manifest_word(&self) -> Option<usize> {
        match self.catalog {
            Some(_) => self.catalog_word,
            None => self.loose_word,
        }
    }
}

/// Parses a command line; `None` if it is not `puppet apply` or `puppet agent`.
pub fn parse(argv: &[Vec<u8>]) -> Option<Invocation> {
    let script = find_script(argv)?;
    let application = match argv.get(script + 1)?.as_slice() {
        b"apply" => Application::Apply,
        b"agent" => Application::Agent,
        _ => return None,
    };
    let first = script + 2;
    let words = argv.get(first..).unwrap_or_default();
    let mut invocation = Invocation {
        script,
        application,
        end: first + words.iter().position(|w| w == b"--").unwrap_or(words.len()),
        ..Invocation::default()
    };
    read_settings(words, first, &mut invocation);
    read_options(words, first, &mut invocation);
    Some(invocation)
}

/// Words of a command line that identify a target: without those that name the occasion of a run.
pub fn without_occasion(mut words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let start = prefix::of(&words).length;
    let line = parse(&words[start..]);
    for range in line.map(|line| line.occasion).into_iter().flatten().rev() {
        words.drain(start + range.start..start + range.end);
    }
    words
}

/// Index of the puppet script: the first element itself, or the script of a ruby.
pub fn find_script(argv: &[Vec<u8>]) -> Option<usize> {
    let name = base_name(argv.first()?);
    if is_puppet_name(name) {
        return Some(0);
    }
    if !is_ruby_name(name) {
        return None;
    }
    let takes_next = |word| std::str::from_utf8(word).is_ok_and(|w| RUBYS_VALUED.contains(w));
    let mut at = 1;
    while let word = argv.get(at)?.as_slice()
        && word.starts_with(b"-")
    {
        at += 1;
        match word {
            b"--" => break,
            // A program on the command line has no script.
            b"-e" | b"-" => return None,
            _ => at += usize::from(takes_next(word)),
        }
    }
    is_puppet_name(base_name(argv.get(at)?)).then_some(at)
}

/// Whether the name is `ruby`, `ruby3.1`, `ruby2.7-static` …, but not `rubyfoo`.
pub fn is_ruby_name(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"j").unwrap_or(name);
    name.strip_prefix(b"ruby")
        .is_some_and(|rest| rest.first().is_none_or(|b| !b.is_ascii_alphabetic()))
}

fn is_puppet_name(name: &[u8]) -> bool {
    let name = name.strip_suffix(b".rb").unwrap_or(name);
    name.strip_prefix(b"puppet")
        .is_some_and(|rest| rest.iter().all(|b| b.is_ascii_digit() || *b == b'.'))
}

/// Words after the application's name, as a parser reads them.
type Words<'a> = Peekable<Iter<'a, Vec<u8>>>;

/// Name of a long option, and the value that is joined to it.
fn long(word: &[u8]) -> Option<(String, Option<Vec<u8>>)> {
    let mut parts = word.strip_prefix(b"--")?.splitn(2, |&b| b == b'=');
    let name = String::from_utf8_lossy(parts.next()?).into_owned();
    Some((name, parts.next().map(<[u8]>::to_vec)))
}

/// First parser: settings.
fn read_settings(words: &[Vec<u8>], first: usize, invocation: &mut Invocation) {
    let can_be_value = |next: &&Vec<u8>| !is_option(next);
    let mut left: Words<'_> = words.iter().peekable();
    while let Some(word) = left.next().filter(|word| *word != b"--") {
        let index = first + words.len() - left.len() - 1;
        let mut is_only_daemonize = word == b"-D";
        if let Some((name, joined)) = long(word) {
            let flag = name.strip_prefix("no-").unwrap_or(&name);
            is_only_daemonize = name == "daemonize";
            if FLAGS.contains(flag) {
                invocation.flags.push((flag.to_owned(), flag == name));
            } else if VALUED.contains(&name)
                && let Some(value) = joined.or_else(|| left.next_if(can_be_value).cloned())
            {
                invocation.values.push((name, value));
            }
        } else if let [b'-', letters @ ..] = word.as_slice() {
            for letter in letters {
                match letter {
                    b'D' => invocation.flags.push(("daemonize".to_owned(), true)),
                    b'o' => invocation.flags.push(("onetime".to_owned(), true)),
                    b'E' => {
                        let value = left.next_if(can_be_value).cloned();
                        let named = value.map(|value| ("environment".to_owned(), value));
                        invocation.values.extend(named);
                    }
                    _ => {}
                }
            }
        }
        if is_only_daemonize {
            invocation.daemonize_words.push(index);
        }
    }
}

/// Whether the first parser treats a word as an option rather than a value: `^-(-|\.$|[^\d\.])`
/// (util/command_line/trollop.rb).
fn is_option(word: &[u8]) -> bool {
    match word {
        [b'-', b'.', rest @ ..] => rest.is_empty(),
        [b'-', b, ..] => !b.is_ascii_digit(),
        _ => false,
    }
}

/// Resolves a long name as OptionParser does: an exact match, or else the only name that it
/// abbreviates.
fn complete(application: Application, name: &str) -> Option<(String, Takes)> {
    let dashed = |b| if b == b'_' { b'-' } else { b };
    let is_begun = |candidate: &str| {
        let begin = candidate.bytes().take(name.len()).map(dashed);
        name.bytes().eq(begin)
    };
    let own = of_application(application).map(|(long, _, takes)| (Cow::from(long), takes));
    let flags = FLAGS.iter().map(|flag| (Cow::from(flag), Takes::Nothing));
    let negated = FLAGS
        .iter()
        .filter(|_| name.starts_with('n'))
        .map(|flag| (Cow::from(format!("no-{flag}")), Takes::Nothing));
    let valued = VALUED.iter().map(|name| (Cow::from(name), Takes::Value));
    let mut found: Option<(Cow<'_, str>, Takes)> = None;
    let mut several = false;
    let all = own.chain(flags).chain(negated).chain(valued);
    for (candidate, takes) in all.filter(|(candidate, _)| is_begun(candidate)) {
        if candidate.len() == name.len() {
            return Some((name.to_owned(), takes));
        }
        several |= found.as_ref().is_some_and(|(known, _)| *known != candidate);
        found = Some((candidate, takes));
    }
    let (name, takes) = found.filter(|_| !several)?;
    Some((name.replace('_', "-"), takes))
}

/// Second parser: application options, and the remaining words.
fn read_options(all: &[Vec<u8>], first: usize, invocation: &mut Invocation) {
    let mut words: Words<'_> = all.iter().peekable();
    let at = |left: &Words<'_>| first + all.len() - left.len();
    while let Some(word) = words.next() {
        let begin = at(&words) - 1;
        if word == b"--" {
            let first = at(&words);
            invocation.loose.extend(words.cloned());
            invocation.loose_word.get_or_insert(first);
            break;
        }
        if let Some((name, joined)) = long(word) {
            let name = name.to_ascii_lowercase().replace('_', "-");
            let (name, takes) =
                complete(invocation.application, &name).unwrap_or((name, Takes::Perhaps));
            let value = joined.or_else(|| match takes {
                Takes::Nothing => None,
                Takes::Value => words.next().cloned(),
                Takes::Perhaps => words.next_if(|next| !next.starts_with(b"-")).cloned(),
            });
            if invocation.application == Application::Agent && OCCASIONS.contains(&name) {
                invocation.occasion.push(begin..at(&words));
            }
            note_option(invocation, &name, value);
        } else if let [b'-', letters @ ..] = word.as_slice()
            && !letters.is_empty()
        {
            read_letters(letters, &mut words, invocation);
        } else {
            invocation.loose.push(word.clone());
            invocation.loose_word.get_or_insert(begin);
        }
        // Index of the last word that belongs to the option.
        if invocation.catalog.is_some() {
            invocation.catalog_word.get_or_insert(at(&words) - 1);
        }
    }
}

/// Reads one or more short options in one word; the rest of it may be the last one's value.
fn read_letters(mut letters: &[u8], words: &mut Words<'_>, invocation: &mut Invocation) {
    while let [letter, rest @ ..] = letters {
        letters = rest;
        let option = of_application(invocation.application)
            .find(|(_, short, _)| *short == Some(*letter))
            .map(|(name, _, takes)| (name, takes))
            .or((*letter == b'E').then_some(("environment", Takes::Value)));
        match option {
            Some((name, Takes::Value)) => {
                letters = &[];
                let joined = (!rest.is_empty()).then(|| rest.to_vec());
                let value = joined.or_else(|| words.next().cloned());
                note_option(invocation, name, value);
            }
            Some((name, _)) => note_option(invocation, name, None),
            None => {}
        }
    }
}

fn note_option(invocation: &mut Invocation, name: &str, value: Option<Vec<u8>>) {
    match name {
        // `--test` implies it for both applications (setup_test of application/agent.rb and
        // application/apply.rb).
        "test" => (invocation.test, invocation.detailed) = (true, true),
        "detailed-exitcodes" => invocation.detailed = true,
        "execute" => (invocation.execute, invocation.code) = (true, value),
        "catalog" => (invocation.catalog, invocation.catalog_word) = (value, None),
        "disable" | "enable" | "fingerprint" | "help" | "version" | "configprint" | "genconfig"
        | "genmanifest" => invocation.is_no_run = true,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ').map(|w| w.as_bytes().to_vec()).collect()
    }

    fn read(text: &str) -> Invocation {
        parse(&words(&format!("/usr/bin/ruby /usr/bin/puppet {text}"))).expect(text)
    }

    #[test]
    fn finds_the_script() {
        for (line, script) in [
            ("/usr/bin/ruby /usr/bin/puppet apply x", Some(1)),
            (
                "ruby3.1 -W0 -I lib /opt/puppetlabs/puppet/bin/puppet agent",
                Some(4),
            ),
            ("/opt/puppetlabs/bin/puppet agent -t", Some(0)),
            ("sh /usr/bin/puppet apply", None),
            ("ruby -e puppet apply", None),
            ("ruby /usr/bin/puppetserver apply", None),
            ("vim /etc/puppet apply", None),
            ("rubymine puppet apply", None),
        ] {
            assert_eq!(find_script(&words(line)), script, "{line}");
        }
        assert_eq!(parse(&words("ruby /usr/bin/puppet config print")), None);
        assert_eq!(parse(&words("ruby /usr/bin/puppet --test agent")), None);
    }

    #[test]
    fn what_names_an_occasion_is_no_part_of_the_identity() {
        let plain = words("ruby puppet agent -t --tags a");
        for line in [
            "ruby puppet agent --job-id 17 -t --tags a",
            "ruby puppet agent -t --job-id=18 --tags a",
            "ruby puppet agent -t --job_i 19 --job-id 20 --tags a",
            "ruby puppet agent -t --tags a --job-id",
        ] {
            assert_eq!(without_occasion(words(line)), plain, "{line}");
            let behind = words(&format!("env -i nice -n 5 {line}"));
            let expected = [words("env -i nice -n 5"), plain.clone()].concat();
            assert_eq!(without_occasion(behind), expected, "{line}");
        }
        for line in [
            "ruby puppet apply --job-id 17",
            "ruby puppet agent -- --job-id 17",
            "wrapper agent --job-id 17",
        ] {
            assert_eq!(without_occasion(words(line)), words(line), "{line}");
        }
    }

    #[test]
    fn settings_go_by_exact_names_and_the_last_one_wins() {
        assert_eq!(
            read("agent --onetime --no-daemonize").flag("onetime"),
            Some(true)
        );
        assert_eq!(read("agent --onetim").flag("onetime"), None);
        assert_eq!(
            read("agent --daemonize --no-daemonize").flag("daemonize"),
            Some(false)
        );
        assert_eq!(
            read("agent --no-daemonize -D").flag("daemonize"),
            Some(true)
        );
        assert_eq!(read("agent --server --noop").flag("noop"), Some(true));
        assert_eq!(
            read("agent --server noop --vardir=/v --vardir /w").value("vardir"),
            Some(&b"/w"[..])
        );
        assert_eq!(read("agent -- --noop").flag("noop"), None);
        // The first parser does not know that -e takes a value.
        assert_eq!(read("apply -e --noop").flag("noop"), Some(true));
        assert_eq!(
            read("apply --noop --no-noop x.pp").flag("noop"),
            Some(false)
        );
    }

    #[test]
    fn application_options_may_be_abbreviated() {
        for line in [
            "agent --test",
            "agent -t",
            "agent --te",
            "agent -vt",
            "agent -ot",
        ] {
            assert!(read(line).test, "{line}");
        }
        for line in [
            "agent --fqdn --test",
            "agent -f -t",
            "agent --tags --test",
            "agent -- --test",
        ] {
            assert!(!read(line).test, "{line}");
        }
    }

    #[test]
    fn knows_what_is_no_catalog_run() {
        for line in [
            "agent --disable why",
            "agent --enable",
            "agent --finger",
            "agent -t --help",
            "apply -V",
            "agent --configprint all",
        ] {
            assert!(read(line).is_no_run, "{line}");
        }
        for line in ["agent -t", "agent --tags --enable", "apply -- --help"] {
            assert!(!read(line).is_no_run, "{line}");
        }
    }

    #[test]
    fn knows_when_apply_reads_standard_input() {
        for line in [
            "apply",
            "apply --verbose",
            "apply -c -",
            "apply --modulepath /m",
            "apply --tags a -v",
            "apply -t",
        ] {
            assert!(read(line).reads_standard_input(), "{line}");
        }
        for line in [
            "apply x.pp",
            "apply -e x",
            "apply -ex",
            "apply --exec x",
            "apply -c f",
            "apply --noop true",
            "agent",
        ] {
            assert!(!read(line).reads_standard_input(), "{line}");
        }
        assert_eq!(
            read("apply -v --modulepath /m dir").manifest(),
            Some(&b"dir"[..])
        );
        assert_eq!(
            read("apply --catalog c.json").manifest(),
            Some(&b"c.json"[..])
        );
        assert_eq!(read("apply -e x").manifest(), None);
    }

    proptest! {
        #[test]
        fn total_on_any_words(argv in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..8)) {
            let _ = parse(&argv);
        }

        #[test]
        fn total_on_words_that_look_like_options(
            tail in proptest::collection::vec("(-|--|--no-)?(test|onetime|daemonize|noop|e|c|E|vardir|tags|[a-z=.]{0,6})(=x)?", 0..8),
        ) {
            let argv: Vec<Vec<u8>> = ["ruby", "puppet", "apply"].iter().map(|s| s.as_bytes().to_vec())
                .chain(tail.into_iter().map(String::into_bytes)).collect();
            let read = parse(&argv).expect("an apply");
            prop_assert!(read.end <= argv.len());
            prop_assert!(read.daemonize_words.iter().all(|at| *at < read.end));
        }
    }
}
