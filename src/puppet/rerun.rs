//! The command line of a rerun.

use again_base::model::Bytes;
use again_base::puppet::cmdline::{Invocation, parse, without_occasion};
use again_base::puppet::conf::Conf;
use again_base::puppet::options::Application;
use again_base::puppet::prefix;

/// Command line for one prompt foreground run of the same configuration.
///
/// `apply` is run unchanged. A daemon's command line becomes that of a one-off run. Otherwise only
/// necessary options are added: [`LOCK_WAIT`] unless waiting for the lock is set already; and
/// without `--test`, `--no-daemonize` if it would go to the background (the default) and
/// `--no-splay` if it would splay, which the configuration file may set too. Rewriting twice has no
/// further effect.
pub fn rewrite(argv: &[Vec<u8>], invocation: &Invocation, conf: &Conf) -> Vec<Vec<u8>> {
    let mut line = argv.to_vec();
    if invocation.application == Application::Apply {
        return line;
    }
    let flag = |name| conf.flag(Application::Agent, name);
    let is_daemon = is_daemon(invocation, conf);
    let daemonizes = || is_daemon || flag("daemonize") != Some(false);
    let splays = || is_daemon || flag("splay") != Some(false) && !conf.is_without("splay");
    let is_daemonized = invocation.flag("daemonize").unwrap_or_else(daemonizes);
    let mut add = |is_wanted: bool, word: &str| {
        if is_wanted {
            line.insert(invocation.end, word.into());
        }
    };
    // Inserted in reverse order, at the same position.
    let in_file = conf.value(Application::Agent, "waitforlock");
    let waits = invocation.value("waitforlock").is_none() && in_file.is_none();
    LOCK_WAIT.iter().rev().for_each(|word| add(waits, word));
    if invocation.test {
        // An option without its value could consume an added word, and change the end of the line.
        let is_kept = parse(&line).is_some_and(|read| read.test);
        return if is_kept { line } else { argv.to_vec() };
    }
    add(
        invocation.flag("splay").unwrap_or_else(splays),
        "--no-splay",
    );
    add(is_daemonized, "--no-daemonize");
    add(
        is_daemon && invocation.flag("onetime") != Some(true),
        "--onetime",
    );
    for at in invocation.daemonize_words.iter().rev() {
        line.remove(*at);
    }
    line
}

/// Options that make an agent wait while another run holds the lock, rather than skip its run:
/// another agent may acquire the lock while this one loads Puppet. Puppet's own limit of that wait
/// is a minute (`maxwaitforlock`).
pub const LOCK_WAIT: [&str; 4] = ["--waitforlock", "10", "--maxwaitforlock", "unlimited"];

/// Words of a command line that identify a target: without those for the occasion of a run, and
/// without [`LOCK_WAIT`], which a rerun may have and its run not.
pub fn identity(words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut words = without_occasion(words);
    let is_added = |four: &[Vec<u8>]| four.iter().eq(LOCK_WAIT.map(str::as_bytes));
    if let Some(at) = words.windows(LOCK_WAIT.len()).position(is_added) {
        words.drain(at..at + LOCK_WAIT.len());
    }
    words
}

/// Adds this job (`--job-id`) to the command line of an agent's run, in place of any other; returns
/// any other command line unchanged.
pub fn with_job(argv: Vec<Bytes>, job: &str) -> Vec<Bytes> {
    let mut words: Vec<Vec<u8>> = argv.iter().map(|word| word.0.clone()).collect();
    let mut own = words.split_off(prefix::of(&words).length);
    own = without_occasion(own);
    match parse(&own) {
        Some(line) if line.application == Application::Agent && !line.is_no_run => {
            own.insert(line.end, format!("--job-id={job}").into());
            words.into_iter().chain(own).map(Bytes).collect()
        }
        _ => argv,
    }
}

/// Word that only one of the two command lines has, the rerun's or the run's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Kind of difference: `added`, or `taken away`.
    pub how: &'static str,
    /// Differing word.
    pub word: Vec<u8>,
    /// Reason for the difference.
    pub why: &'static str,
}

/// Changes that [`rewrite`] made to a command line. `None` if `line` is not its result, but another
/// command.
pub fn differences(argv: &[Vec<u8>], line: &[Vec<u8>]) -> Option<Vec<Difference>> {
    let mut found = Vec::new();
    let (mut left, mut right) = (argv.iter().peekable(), line.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return Some(found),
            (Some(a), Some(b)) if a == b => {
                left.next();
                right.next();
            }
            (Some(word), _) if word.starts_with(b"--daemonize") || *word == b"-D" => {
                found.push(Difference {
                    how: "taken away",
                    why: "a rerun stays in the foreground",
                    word: left.next()?.clone(),
                });
            }
            (_, Some(word)) if why_added(word).is_some() => {
                let why = why_added(word)?;
                let mut word = right.next()?.clone();
                if LOCK_WAIT
                    .iter()
                    .step_by(2)
                    .any(|name| word == name.as_bytes())
                {
                    word = [&word[..], b"=", right.next()?].concat();
                }
                let how = "added";
                found.push(Difference { how, word, why });
            }
            _ => return None,
        }
    }
}

fn why_added(word: &[u8]) -> Option<&'static str> {
    match word {
        b"--onetime" => Some("it would start a daemon; one that runs is left alone"),
        b"--no-daemonize" => Some("it would go to the background"),
        b"--no-splay" => Some("it would wait at random once more, after our own jitter"),
        b"--waitforlock" => Some("it would be skipped if another run took the lock meanwhile"),
        b"--maxwaitforlock" => Some("it would give up after a minute"),
        _ => None,
    }
}

/// Whether a command line starts a daemon rather than a single run.
pub fn is_daemon(invocation: &Invocation, conf: &Conf) -> bool {
    let is_once = || conf.flag(Application::Agent, "onetime") == Some(true);
    invocation.application == Application::Agent
        && !invocation.test
        && !invocation.flag("onetime").unwrap_or_else(is_once)
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::puppet::cmdline::parse;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ').map(|w| w.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_job_is_an_agents_and_takes_the_place_of_another() {
        for (line, with) in [
            ("puppet agent -t", "puppet agent -t --job-id=j"),
            (
                "ruby puppet agent --job-id 17 -t -- x",
                "ruby puppet agent -t --job-id=j -- x",
            ),
            ("puppet agent --enable", "puppet agent --enable"),
            ("puppet apply x.pp", "puppet apply x.pp"),
            ("wrapper agent -t", "wrapper agent -t"),
            (
                "nice -n 5 puppet agent -t --job-id 17",
                "nice -n 5 puppet agent -t --job-id=j",
            ),
        ] {
            let bytes = |line| words(line).into_iter().map(Bytes).collect::<Vec<_>>();
            assert_eq!(with_job(bytes(line), "j"), bytes(with), "{line}");
        }
    }

    fn again(line: &str, conf: &str) -> String {
        let argv = words(&format!("ruby puppet {line}"));
        let invocation = parse(&argv).expect(line);
        let line = rewrite(&argv, &invocation, &Conf::parse(conf.as_bytes()));
        let text: Vec<_> = line.iter().map(|w| String::from_utf8_lossy(w)).collect();
        text[2..].join(" ")
    }

    fn wait(expected: &str) -> String {
        expected.replace("WAIT", &LOCK_WAIT.join(" "))
    }

    #[test]
    fn one_off_runs_get_only_what_they_need() {
        for (line, conf, expected) in [
            ("apply -e x", "", "apply -e x"),
            ("apply --splay x.pp", "", "apply --splay x.pp"),
            ("agent --test --splay", "", "agent --test --splay WAIT"),
            ("agent -t", "[main]\nsplay=true", "agent -t WAIT"),
            ("agent -t", "[main]\nwaitforlock=0", "agent -t"),
            ("agent -t", "[agent]\nwaitforlock = 5s", "agent -t"),
            ("agent -t", "[user]\nwaitforlock = 5s", "agent -t WAIT"),
            ("agent -t", "[main]\nmaxwaitforlock = 5s", "agent -t WAIT"),
            ("agent -t --waitforlock=3", "", "agent -t --waitforlock=3"),
            ("agent --onetime", "", "agent --onetime --no-daemonize WAIT"),
            (
                "agent --onetime --no-daemonize",
                "",
                "agent --onetime --no-daemonize WAIT",
            ),
            (
                "agent --onetime",
                "[agent]\ndaemonize=false",
                "agent --onetime WAIT",
            ),
            (
                "agent -o --no-daemonize --splay",
                "",
                "agent -o --no-daemonize --splay --no-splay WAIT",
            ),
            (
                "agent -o --no-daemonize",
                "[main]\nsplay = true",
                "agent -o --no-daemonize --no-splay WAIT",
            ),
            (
                "agent -o --no-daemonize --no-splay",
                "[main]\nsplay = true",
                "agent -o --no-daemonize --no-splay WAIT",
            ),
            (
                "agent -D -o --verbose --",
                "",
                "agent -o --verbose --no-daemonize WAIT --",
            ),
        ] {
            assert_eq!(again(line, conf), wait(expected), "{line} {conf}");
        }
    }

    #[test]
    fn a_daemons_run_becomes_one_run() {
        for (line, expected) in [
            ("agent", "agent --onetime --no-daemonize --no-splay WAIT"),
            (
                "agent --no-daemonize",
                "agent --no-daemonize --onetime --no-splay WAIT",
            ),
            (
                "agent --daemonize --verbose",
                "agent --verbose --onetime --no-daemonize --no-splay WAIT",
            ),
            (
                "agent --tags --daemonize",
                "agent --tags --onetime --no-daemonize --no-splay WAIT",
            ),
        ] {
            assert_eq!(again(line, ""), wait(expected), "{line}");
        }
    }

    #[test]
    fn a_rerun_is_the_same_target_as_its_run() {
        for line in ["agent -t", "agent", "agent -o --tags x --"] {
            let argv = words(&format!("ruby puppet {line}"));
            let line = parse(&argv).expect(line);
            let rerun = rewrite(&argv, &line, &Conf::default());
            assert!(!identity(rerun.clone()).contains(&b"--waitforlock".to_vec()));
            let read = parse(&rerun).expect("an agent");
            let next = rewrite(&rerun, &read, &Conf::default());
            assert_eq!(identity(next), identity(rerun));
        }
        let own = words("ruby puppet agent -t --waitforlock 3");
        assert_eq!(identity(own.clone()), own);
    }

    #[test]
    fn another_command_is_no_rewriting() {
        let argv = words("ruby puppet agent");
        assert_eq!(differences(&argv, &words("/usr/bin/wrapper agent")), None);
        assert_eq!(differences(&argv, &words("ruby puppet agent x")), None);
        assert_eq!(differences(&argv, &[]), None);
    }

    #[test]
    fn an_unreadable_configuration_may_ask_for_splay() {
        let argv = words("ruby puppet agent -o --no-daemonize");
        let line = rewrite(&argv, &parse(&argv).expect("agent"), &Conf::unreadable());
        assert!(line.contains(&b"--no-splay".to_vec()));
    }

    proptest! {
        #[test]
        fn rewriting_again_changes_nothing(
            tail in proptest::collection::vec("(--(no-)?(onetime|daemonize|splay|noop|report)|-[Dotv]{1,3}|--test|--server|--tags|a|--)", 0..8),
            conf in "(\\[(main|agent)\\]\n)?((splay|daemonize|onetime)=(true|false)\n)?",
        ) {
            let argv: Vec<Vec<u8>> = ["ruby", "puppet", "agent"].iter().map(|s| s.as_bytes().to_vec())
                .chain(tail.into_iter().map(String::into_bytes)).collect();
            let conf = Conf::parse(conf.as_bytes());
            let invocation = parse(&argv).expect("an agent");
            let once = rewrite(&argv, &invocation, &conf);
            let read = parse(&once).expect("still an agent");
            let explained = differences(&argv, &once);
            prop_assert!(explained.is_some(), "{:?} {:?}", argv, once);
            prop_assert_eq!(explained == Some(Vec::new()), argv == once);
            if !invocation.test {
                prop_assert_ne!(read.flag("daemonize"), Some(true));
                prop_assert_ne!(read.flag("splay"), Some(true));
            }
            prop_assert!(!is_daemon(&read, &conf));
            prop_assert_eq!(rewrite(&once, &read, &conf), once);
        }
    }
}
