//! Puppet's command line, read as Puppet reads it.
//!
//! Two parsers of Puppet's go over the same words. One (util/command_line/trollop.rb)
//! decides every *setting*: exact names only, and it skips the values of settings
//! but not those of application options. The other (Ruby's OptionParser) decides
//! the *application options* such as `--test`, with abbreviations, and what words
//! are left over. Where they differ, so does this.

use super::options::{FLAGS, VALUED};

/// Which of Puppet's applications runs a catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// `puppet apply`.
    Apply,
    /// `puppet agent`.
    Agent,
}

impl std::fmt::Display for Application {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Application::Apply => "puppet apply",
            Application::Agent => "puppet agent",
        })
    }
}

/// A puppet command line, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// Index of the `puppet` script; the application's name is the next word.
    pub script: usize,
    /// The application.
    pub application: Application,
    /// `onetime`, as the command line sets it.
    pub onetime: Option<bool>,
    /// `daemonize`.
    pub daemonize: Option<bool>,
    /// `splay`.
    pub splay: Option<bool>,
    /// `noop`.
    pub noop: Option<bool>,
    /// Indices of words that do nothing but ask to daemonise.
    pub daemonize_words: Vec<usize>,
    /// Other settings with their values, in order; the last of a name counts.
    pub values: Vec<(String, Vec<u8>)>,
    /// `--test`, in any spelling.
    pub test: bool,
    /// `--detailed-exitcodes`, by itself or as part of `--test`.
    pub detailed: bool,
    /// `--execute` was given.
    pub execute: bool,
    /// The value of `--catalog`.
    pub catalog: Option<Vec<u8>>,
    /// Words that belong to no option: for apply, the manifest.
    pub loose: Vec<Vec<u8>>,
    /// Index at which options can be added so that they count and win.
    pub end: usize,
}

impl Invocation {
    /// A setting's last value on the command line.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        self.values
            .iter()
            .rev()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_slice())
    }

    /// `apply` takes its manifest from standard input when nothing names one.
    pub fn reads_standard_input(&self) -> bool {
        self.application == Application::Apply
            && match &self.catalog {
                Some(file) => file == b"-",
                None => !self.execute && self.loose.is_empty(),
            }
    }

    /// The manifest file or directory that `apply` reads.
    pub fn manifest(&self) -> Option<&[u8]> {
        let is_file = self.application == Application::Apply && !self.execute;
        match &self.catalog {
            Some(file) if is_file && file != b"-" => Some(file),
            None if is_file => self.loose.first().map(Vec::as_slice),
            _ => None,
        }
    }
}

/// Reads a command line. `None` if it is not `puppet apply` or `puppet agent`.
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
        onetime: None,
        daemonize: None,
        splay: None,
        noop: None,
        daemonize_words: Vec::new(),
        values: Vec::new(),
        test: false,
        detailed: false,
        execute: false,
        catalog: None,
        loose: Vec::new(),
        end: first + words.iter().position(|w| w == b"--").unwrap_or(words.len()),
    };
    read_settings(words, first, &mut invocation);
    read_options(words, &mut invocation);
    Some(invocation)
}

/// The index of the puppet script: the first element itself, or what a ruby runs.
pub fn find_script(argv: &[Vec<u8>]) -> Option<usize> {
    let name = base_name(argv.first()?);
    if is_puppet_name(name) {
        return Some(0);
    }
    if !is_ruby_name(name) {
        return None;
    }
    let mut at = 1;
    loop {
        let word = argv.get(at)?.as_slice();
        match word {
            // Ruby's options that take the next word (ruby(1)).
            b"-I"
            | b"-r"
            | b"-C"
            | b"-E"
            | b"-X"
            | b"--encoding"
            | b"--external-encoding"
            | b"--internal-encoding" => at += 2,
            b"--" => {
                at += 1;
                break;
            }
            // A program in the command line has no script.
            b"-e" | b"-" => return None,
            _ if word.starts_with(b"-") => at += 1,
            _ => break,
        }
    }
    is_puppet_name(base_name(argv.get(at)?)).then_some(at)
}

/// The last component of a path.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or_default()
}

/// `ruby`, `ruby3.1`, `ruby2.7-static` …, but not `rubyfoo`.
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

/// What a short letter stands for among the settings.
fn short_setting(letter: u8) -> Option<&'static str> {
    match letter {
        b'D' => Some("daemonize"),
        b'o' => Some("onetime"),
        b'E' => Some("environment"),
        _ => None,
    }
}

/// The first parser: settings.
fn read_settings(words: &[Vec<u8>], first: usize, invocation: &mut Invocation) {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let here = at;
        at += 1;
        if word == b"--" {
            break;
        }
        if let Some(long) = word.strip_prefix(b"--") {
            let (name, value) = match long.iter().position(|&b| b == b'=') {
                Some(equals) => (&long[..equals], Some(long[equals + 1..].to_vec())),
                None => (long, None),
            };
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            if FLAGS.contains(&name) {
                set_flag(invocation, name, true);
                if name == "daemonize" {
                    invocation.daemonize_words.push(first + here);
                }
            } else if let Some(flag) = name.strip_prefix("no-").filter(|n| FLAGS.contains(n)) {
                set_flag(invocation, flag, false);
            } else if VALUED.contains(&name) {
                let value = value.or_else(|| {
                    let next = words.get(at).filter(|next| !is_option(next))?;
                    at += 1;
                    Some(next.clone())
                });
                if let Some(value) = value {
                    invocation.values.push((name.to_owned(), value));
                }
            }
        } else if word.len() > 1 && word.starts_with(b"-") {
            for letter in &word[1..] {
                match short_setting(*letter) {
                    Some("environment") => {
                        if let Some(next) = words.get(at).filter(|next| !is_option(next)) {
                            at += 1;
                            invocation.values.push(("environment".into(), next.clone()));
                        }
                    }
                    Some(flag) => set_flag(invocation, flag, true),
                    None => {}
                }
            }
            if word == b"-D" {
                invocation.daemonize_words.push(first + here);
            }
        }
    }
}

fn set_flag(invocation: &mut Invocation, name: &str, value: bool) {
    match name {
        "onetime" => invocation.onetime = Some(value),
        "daemonize" => invocation.daemonize = Some(value),
        "splay" => invocation.splay = Some(value),
        "noop" => invocation.noop = Some(value),
        _ => {}
    }
}

/// Whether the first parser takes a word for an option rather than a value:
/// `^-(-|\.$|[^\d\.])` (util/command_line/trollop.rb).
fn is_option(word: &[u8]) -> bool {
    let Some(rest) = word.strip_prefix(b"-") else {
        return false;
    };
    match rest.first() {
        None => false,
        Some(b'.') => rest.len() == 1,
        Some(b) => !b.is_ascii_digit(),
    }
}

/// How an application option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    Perhaps,
}

/// Application options: long name, short letter or NUL, value.
const COMMON: [(&str, u8, Takes); 7] = [
    ("version", b'V', Takes::Nothing),
    ("help", b'h', Takes::Nothing),
    ("debug", b'd', Takes::Nothing),
    ("test", b't', Takes::Nothing),
    ("verbose", b'v', Takes::Nothing),
    ("detailed-exitcodes", 0, Takes::Nothing),
    ("logdest", b'l', Takes::Value),
];
const APPLY: [(&str, u8, Takes); 6] = [
    ("execute", b'e', Takes::Value),
    ("catalog", b'c', Takes::Value),
    ("loadclasses", b'L', Takes::Nothing),
    ("use-nodes", 0, Takes::Nothing),
    ("write-catalog-summary", 0, Takes::Nothing),
    ("parseonly", 0, Takes::Nothing),
];
const AGENT: [(&str, u8, Takes); 8] = [
    ("fqdn", b'f', Takes::Value),
    ("digest", 0, Takes::Value),
    ("sourceaddress", 0, Takes::Value),
    ("waitforcert", b'w', Takes::Value),
    ("job-id", 0, Takes::Value),
    ("disable", 0, Takes::Perhaps),
    ("enable", 0, Takes::Nothing),
    ("fingerprint", 0, Takes::Nothing),
];

fn application_options(
    application: Application,
) -> impl Iterator<Item = &'static (&'static str, u8, Takes)> {
    let own: &[_] = match application {
        Application::Apply => &APPLY,
        Application::Agent => &AGENT,
    };
    COMMON.iter().chain(own)
}

/// Resolves a long name as OptionParser does: exact, or else the only one it begins.
fn complete(application: Application, name: &str) -> Option<(String, Takes)> {
    let mut found: Option<(String, Takes)> = None;
    let mut several = false;
    let mut consider = |candidate: &str, takes: Takes| {
        if candidate.len() < name.len()
            || !candidate
                .bytes()
                .zip(name.bytes())
                .all(|(c, n)| (if c == b'_' { b'-' } else { c }) == n)
        {
            return false;
        }
        if found.as_ref().is_some_and(|(known, _)| known != candidate) {
            several = true;
        }
        found = Some((candidate.replace('_', "-"), takes));
        candidate.len() == name.len()
    };
    for (option, _, takes) in application_options(application) {
        if consider(option, *takes) {
            return Some(((*option).to_owned(), *takes));
        }
    }
    let settings = (FLAGS.iter().map(|flag| (*flag, Takes::Nothing)))
        .chain(VALUED.iter().map(|valued| (*valued, Takes::Value)));
    for (setting, takes) in settings {
        if consider(setting, takes) {
            return Some((setting.replace('_', "-"), takes));
        }
        if takes == Takes::Nothing && consider(&format!("no-{setting}"), takes) {
            return Some((format!("no-{setting}"), takes));
        }
    }
    found.filter(|_| !several)
}

/// The second parser: application options, and the words that are left.
fn read_options(words: &[Vec<u8>], invocation: &mut Invocation) {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        if word == b"--" {
            invocation
                .loose
                .extend(words.get(at..).unwrap_or_default().iter().cloned());
            break;
        }
        if let Some(long) = word.strip_prefix(b"--") {
            let (name, joined) = match long.iter().position(|&b| b == b'=') {
                Some(equals) => (&long[..equals], Some(long[equals + 1..].to_vec())),
                None => (long, None),
            };
            let name = String::from_utf8_lossy(name)
                .to_ascii_lowercase()
                .replace('_', "-");
            let next_could_be_a_value = words.get(at).is_some_and(|next| !next.starts_with(b"-"));
            let (name, takes) =
                complete(invocation.application, &name).unwrap_or((name, Takes::Perhaps));
            let value = joined.or_else(|| {
                let takes_next = match takes {
                    Takes::Nothing => false,
                    Takes::Value => true,
                    Takes::Perhaps => next_could_be_a_value,
                };
                let next = words.get(at).filter(|_| takes_next)?;
                at += 1;
                Some(next.clone())
            });
            note_option(invocation, &name, value);
        } else if word.len() > 1 && word.starts_with(b"-") {
            let mut letters = &word[1..];
            while let [letter, rest @ ..] = letters {
                letters = rest;
                let option = application_options(invocation.application)
                    .find(|(_, short, _)| short == letter)
                    .map(|(name, _, takes)| (*name, *takes))
                    .or(match letter {
                        b'E' => Some(("environment", Takes::Value)),
                        _ => None,
                    });
                let Some((name, takes)) = option else {
                    continue;
                };
                let mut value = None;
                if takes == Takes::Value {
                    if rest.is_empty() {
                        value = words.get(at).cloned();
                        at += 1;
                    } else {
                        value = Some(rest.to_vec());
                    }
                    letters = &[];
                }
                note_option(invocation, name, value);
            }
        } else {
            invocation.loose.push(word.clone());
        }
    }
}

fn note_option(invocation: &mut Invocation, name: &str, value: Option<Vec<u8>>) {
    match name {
        // Only an agent's --test implies it (application/agent.rb, setup_test).
        "test" => {
            invocation.test = true;
            invocation.detailed |= invocation.application == Application::Agent;
        }
        "detailed-exitcodes" => invocation.detailed = true,
        "execute" => invocation.execute = true,
        "catalog" => invocation.catalog = value,
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
    fn settings_go_by_exact_names_and_the_last_one_wins() {
        assert_eq!(read("agent --onetime --no-daemonize").onetime, Some(true));
        assert_eq!(read("agent --onetim").onetime, None);
        assert_eq!(
            read("agent --daemonize --no-daemonize").daemonize,
            Some(false)
        );
        assert_eq!(read("agent --no-daemonize -D").daemonize, Some(true));
        assert_eq!(read("agent --server --noop").noop, Some(true));
        assert_eq!(
            read("agent --server noop --vardir=/v --vardir /w").value("vardir"),
            Some(&b"/w"[..])
        );
        assert_eq!(read("agent -- --noop").noop, None);
        // The first parser does not know that -e takes a value.
        assert_eq!(read("apply -e --noop").noop, Some(true));
        assert_eq!(read("apply --noop --no-noop x.pp").noop, Some(false));
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
