//! The command line that runs a run again.

use super::cmdline::{Application, Invocation};
use super::conf::Conf;

/// What is known of how the run was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// By itself: `puppet apply`, or a one-off agent.
    OneOff,
    /// By an agent daemon, whose command line it is.
    ByDaemon,
}

/// The command line for one prompt foreground run of the same configuration.
///
/// `apply` and `agent --test` are run as they were. A daemon's becomes a one-off
/// run. Otherwise only what is needed is added: `--no-daemonize` where it would
/// go to the background (the default), `--no-splay` where it would splay, which
/// the configuration file may ask for too. Rewriting twice changes nothing more.
pub fn rewrite(
    argv: &[Vec<u8>],
    invocation: &Invocation,
    started: Started,
    conf: &Conf,
) -> Vec<Vec<u8>> {
    let mut line = argv.to_vec();
    if invocation.application == Application::Apply || invocation.test {
        return line;
    }
    let mut added: Vec<&[u8]> = Vec::new();
    let by_daemon = started == Started::ByDaemon;
    if by_daemon && invocation.onetime != Some(true) {
        added.push(b"--onetime");
    }
    let daemonizes = invocation
        .daemonize
        .unwrap_or_else(|| by_daemon || conf.flag("daemonize") != Some(false));
    if daemonizes {
        added.push(b"--no-daemonize");
    }
    let splays = invocation.splay.unwrap_or_else(|| {
        by_daemon || conf.flag("splay") != Some(false) && !conf.is_without("splay")
    });
    if splays {
        added.push(b"--no-splay");
    }
    line.splice(
        invocation.end..invocation.end,
        added.into_iter().map(<[u8]>::to_vec),
    );
    for at in invocation.daemonize_words.iter().rev() {
        line.remove(*at);
    }
    line
}

/// A word that a rerun's command line has and the run's has not, or the other way round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Whether the rerun has it.
    pub added: bool,
    /// The word.
    pub word: Vec<u8>,
    /// Why.
    pub why: &'static str,
}

/// What [`rewrite`] did to a command line. `None` if `line` is not its work, but
/// another command in its place.
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
                    added: false,
                    why: "a rerun stays in the foreground",
                    word: left.next()?.clone(),
                });
            }
            (_, Some(word)) if why_added(word).is_some() => found.push(Difference {
                added: true,
                why: why_added(word)?,
                word: right.next()?.clone(),
            }),
            _ => return None,
        }
    }
}

fn why_added(word: &[u8]) -> Option<&'static str> {
    match word {
        b"--onetime" => Some("one run of the daemon's configuration; the daemon is left alone"),
        b"--no-daemonize" => Some("it would go to the background"),
        b"--no-splay" => Some("it would wait at random once more, after our own jitter"),
        _ => None,
    }
}

/// Whether the run goes on as a daemon that starts runs, rather than being one.
pub fn is_daemon(invocation: &Invocation, conf: &Conf) -> bool {
    invocation.application == Application::Agent
        && !invocation.test
        && !invocation
            .onetime
            .unwrap_or_else(|| conf.flag("onetime") == Some(true))
}

#[cfg(test)]
mod tests {
    use super::super::cmdline::parse;
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ').map(|w| w.as_bytes().to_vec()).collect()
    }

    fn again(line: &str, started: Started, conf: &str) -> String {
        let argv = words(&format!("ruby puppet {line}"));
        let invocation = parse(&argv).expect(line);
        let line = rewrite(&argv, &invocation, started, &Conf::parse(conf.as_bytes()));
        let text: Vec<_> = line.iter().map(|w| String::from_utf8_lossy(w)).collect();
        text[2..].join(" ")
    }

    #[test]
    fn one_off_runs_get_only_what_they_need() {
        for (line, conf, expected) in [
            ("apply -e x", "", "apply -e x"),
            ("apply --splay x.pp", "", "apply --splay x.pp"),
            ("agent --test --splay", "", "agent --test --splay"),
            ("agent -t", "[main]\nsplay=true", "agent -t"),
            ("agent --onetime", "", "agent --onetime --no-daemonize"),
            (
                "agent --onetime --no-daemonize",
                "",
                "agent --onetime --no-daemonize",
            ),
            (
                "agent --onetime",
                "[agent]\ndaemonize=false",
                "agent --onetime",
            ),
            (
                "agent -o --no-daemonize --splay",
                "",
                "agent -o --no-daemonize --splay --no-splay",
            ),
            (
                "agent -o --no-daemonize",
                "[main]\nsplay = true",
                "agent -o --no-daemonize --no-splay",
            ),
            (
                "agent -o --no-daemonize --no-splay",
                "[main]\nsplay = true",
                "agent -o --no-daemonize --no-splay",
            ),
            (
                "agent -D -o --verbose --",
                "",
                "agent -o --verbose --no-daemonize --",
            ),
        ] {
            assert_eq!(again(line, Started::OneOff, conf), expected, "{line}");
        }
    }

    #[test]
    fn a_daemons_run_becomes_one_run() {
        for (line, expected) in [
            ("agent", "agent --onetime --no-daemonize --no-splay"),
            (
                "agent --no-daemonize",
                "agent --no-daemonize --onetime --no-splay",
            ),
            (
                "agent --daemonize --verbose",
                "agent --verbose --onetime --no-daemonize --no-splay",
            ),
            (
                "agent --tags --daemonize",
                "agent --tags --onetime --no-daemonize --no-splay",
            ),
        ] {
            assert_eq!(again(line, Started::ByDaemon, ""), expected, "{line}");
        }
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
        let line = rewrite(
            &argv,
            &parse(&argv).expect("agent"),
            Started::OneOff,
            &Conf::unreadable(),
        );
        assert_eq!(line.last().map(Vec::as_slice), Some(&b"--no-splay"[..]));
    }

    proptest! {
        #[test]
        fn rewriting_again_changes_nothing(
            tail in proptest::collection::vec("(--(no-)?(onetime|daemonize|splay|noop|report)|-[Dotv]{1,3}|--test|--server|--tags|a|--)", 0..8),
            by_daemon in any::<bool>(),
            conf in "(\\[(main|agent)\\]\n)?((splay|daemonize|onetime)=(true|false)\n)?",
        ) {
            let argv: Vec<Vec<u8>> = ["ruby", "puppet", "agent"].iter().map(|s| s.as_bytes().to_vec())
                .chain(tail.into_iter().map(String::into_bytes)).collect();
            let conf = Conf::parse(conf.as_bytes());
            let started = if by_daemon { Started::ByDaemon } else { Started::OneOff };
            let invocation = parse(&argv).expect("an agent");
            let once = rewrite(&argv, &invocation, started, &conf);
            let read = parse(&once).expect("still an agent");
            let explained = differences(&argv, &once);
            prop_assert!(explained.is_some(), "{:?} {:?}", argv, once);
            prop_assert_eq!(explained == Some(Vec::new()), argv == once);
            if !invocation.test {
                prop_assert_ne!(read.daemonize, Some(true));
                prop_assert_ne!(read.splay, Some(true));
                if by_daemon {
                    prop_assert!(!is_daemon(&read, &conf));
                }
            }
            if is_daemon(&read, &conf) {
                return Ok(());
            }
            prop_assert_eq!(rewrite(&once, &read, Started::OneOff, &conf), once);
        }
    }
}
