//! Determines which of our ancestors is the puppet run.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use again_base::model::Identity;
use again_base::puppet::cmdline::{Invocation, is_ruby_name, parse};
use again_base::sys::process::base_name;
use again_base::sys::process::split_block;

/// Process as it was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Process by pid and start time.
    pub identity: Identity,
    /// Short name of the process.
    pub comm: Vec<u8>,
    /// Raw command line block.
    pub cmdline: Vec<u8>,
    /// Path of the executable, if we may see it.
    pub exe: Option<PathBuf>,
}

/// Command line of Puppet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Words of the command line.
    pub argv: Vec<Vec<u8>>,
    /// Meaning of the words.
    pub invocation: Invocation,
}

impl Line {
    /// Parses words. `None` if they are not Puppet's.
    pub fn parse(argv: Vec<Vec<u8>>) -> Option<Self> {
        let invocation = parse(&argv)?;
        Some(Line { argv, invocation })
    }
}

/// Result of the search for a run above us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A run.
    Run {
        /// Index of the run's process.
        at: usize,
        /// Command line that it was started with (its daemon's, if it has one).
        line: Box<Line>,
        /// Index of the daemon that started it.
        daemon: Option<usize>,
    },
    /// A run whose daemon has ended, so that its command line is unknown.
    Orphan {
        /// Index of the run's process.
        at: usize,
    },
    /// A run that shows a title instead of its command line, as bundler sets it.
    Retitled {
        /// Index of the run's process.
        at: usize,
    },
    /// An agent daemon, with none of its runs in between.
    DaemonItself {
        /// Index of the daemon.
        at: usize,
    },
    /// No process is Puppet's.
    Nothing,
}

impl Found {
    fn run(at: usize, line: Line, daemon: Option<usize>) -> Self {
        let line = Box::new(line);
        Found::Run { at, line, daemon }
    }

    /// Reason why that process and no other counts as the run, in a line for people. `daemon` is
    /// the pid of the daemon whose command line is used; None for a run without a daemon.
    pub fn why(&self, daemon: Option<i32>) -> Option<String> {
        Some(match (self, daemon) {
            (Found::Run { line, .. }, None) => format!(
                "its command line is that of {}, and nothing nearer is a puppet run",
                line.invocation.application
            ),
            (Found::Run { .. }, Some(pid)) => format!(
                "its parent (pid {pid}) has the command line of a puppet agent daemon, which forks a child for each run"
            ),
            (Found::Orphan { .. }, Some(pid)) => format!(
                "it has the title of a daemon's run; that daemon has gone, and the one that lives now (pid {pid}) has the command line"
            ),
            (Found::Retitled { .. }, _) => {
                "its title is that of a puppet run under bundler, and what to run is set".to_owned()
            }
            _ => return None,
        })
    }
}

/// Beginning of the title of a daemon's run in every language that had one (lib/puppet/agent.rb;
/// translated until 6.9, hence only of use for the orphan).
const TITLE: &[u8] = b"puppet agent: ";

/// Finds the nearest run.
///
/// A process whose command line is that of a puppet agent daemon, or is not a command line at all,
/// is a run if its parent is such a daemon: the daemon forks a child for each run and gives it a
/// title (lib/puppet/agent.rb).
pub fn find_run(chain: &[Seen], is_daemon: impl Fn(&Seen, &Invocation) -> bool) -> Found {
    let is_daemon = |at: usize, line: &Line| is_daemon(&chain[at], &line.invocation);
    for (at, seen) in chain.iter().enumerate() {
        let daemon = chain.get(at + 1).and_then(read);
        let by_daemon = daemon.filter(|line| is_daemon(at + 1, line));
        match (read(seen), by_daemon) {
            (Some(line), _) if !is_daemon(at, &line) => {
                return Found::run(at, line, None);
            }
            (Some(_), None) => return Found::DaemonItself { at },
            (own, Some(line)) if own.is_some() || is_titled(seen, &chain[at + 1]) => {
                return Found::run(at, line, Some(at + 1));
            }
            (None, _) if seen.cmdline.starts_with(TITLE) && runs_ruby(seen) => {
                return Found::Orphan { at };
            }
            (None, _) if is_bundled(seen) => return Found::Retitled { at },
            _ => {}
        }
    }
    Found::Nothing
}

/// Command line of a process, if it is Puppet's.
pub fn read(seen: &Seen) -> Option<Line> {
    let line = Line::parse(split_block(&seen.cmdline))?;
    // A script named ruby or a link named puppet is not Puppet.
    let is_ruby = |exe: &PathBuf| is_ruby_name(base_name(exe.as_os_str().as_bytes()));
    let is_puppet = line.invocation.script == 0 || seen.exe.as_ref().is_none_or(is_ruby);
    is_puppet.then_some(line)
}

/// Whether a process is a fork of the daemon: the same program, with a title.
fn is_titled(seen: &Seen, daemon: &Seen) -> bool {
    let same_program = match (&seen.exe, &daemon.exe) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => runs_ruby(seen),
    };
    same_program && (seen.cmdline.starts_with(TITLE) || is_one_text(&seen.cmdline))
}

/// Whether a command line is a title: a single text, followed by padding.
fn is_one_text(cmdline: &[u8]) -> bool {
    let mut parts = cmdline.splitn(2, |&b| b == 0);
    let title = parts.next().unwrap_or_default();
    let is_padding = |rest: &[u8]| rest.iter().all(|b| *b == 0 || *b == b' ');
    title.contains(&b' ') && parts.next().is_none_or(is_padding)
}

fn runs_ruby(seen: &Seen) -> bool {
    match &seen.exe {
        Some(exe) => is_ruby_name(base_name(exe.as_os_str().as_bytes())),
        None => is_ruby_name(&seen.comm) || seen.comm.starts_with(b"puppet"),
    }
}

/// Whether a process is puppet in `bundle exec`, which loads puppet into its own process and writes
/// a title of all the words, joined by spaces (bundler/cli/exec.rb): the words cannot be told
/// apart.
fn is_bundled(seen: &Seen) -> bool {
    runs_ruby(seen) && is_one_text(&seen.cmdline) && titled_words(&seen.cmdline).is_some()
}

/// Words of such a title, as far as they can be told apart.
pub fn titled_words(cmdline: &[u8]) -> Option<Line> {
    let words = cmdline
        .split(|&b| b == b' ' || b == 0)
        .filter(|word| !word.is_empty());
    Line::parse(words.map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(exe: &str, cmdline: &str) -> Seen {
        Seen {
            identity: Identity { pid: 1, start: 1 },
            comm: b"x".to_vec(),
            cmdline: cmdline.replace('|', "\0").into_bytes(),
            exe: (!exe.is_empty()).then(|| PathBuf::from(exe)),
        }
    }

    const RUBY: &str = "/usr/bin/ruby3.1";

    fn find(chain: &[Seen]) -> Found {
        find_run(chain, |_, i| {
            crate::puppet::rerun::is_daemon(i, &again_base::puppet::conf::Conf::default())
        })
    }

    #[test]
    fn an_apply_behind_shells_and_wrappers() {
        let chain = [
            seen("/usr/bin/dash", "sh|-c|again > /dev/null|"),
            seen("/usr/bin/timeout", "timeout|5|sh|"),
            seen(RUBY, "/usr/bin/ruby|/usr/bin/puppet|apply|x.pp|"),
            seen(RUBY, "/usr/bin/ruby|/usr/bin/puppet|agent|--onetime|"),
        ];
        assert!(matches!(
            find(&chain),
            Found::Run {
                at: 2,
                daemon: None,
                ..
            }
        ));
        let why = find(&chain).why(None);
        assert!(why.is_some_and(|why| why.contains("that of puppet apply, and nothing nearer")));
    }

    #[test]
    fn why_it_is_the_run_is_told_where_there_is_one() {
        for (found, daemon, begins) in [
            (
                Found::Orphan { at: 0 },
                Some(7),
                "it has the title of a daemon's run",
            ),
            (
                Found::Retitled { at: 0 },
                None,
                "its title is that of a puppet run under bundler",
            ),
        ] {
            assert!(
                found.why(daemon).is_some_and(|why| why.starts_with(begins)),
                "{found:?}"
            );
        }
        for found in [
            Found::Nothing,
            Found::Orphan { at: 0 },
            Found::DaemonItself { at: 0 },
        ] {
            assert_eq!(found.why(None), None, "{found:?}");
        }
    }

    #[test]
    fn a_daemons_run_under_whatever_title() {
        let daemon = seen(RUBY, "/usr/bin/ruby|/usr/bin/puppet|agent|--no-daemonize|");
        for title in [
            "puppet agent: applying configuration||||",
            "puppet agent: applying configuration      ",
            "puppet agent: 設定を適用しています|",
            "エージェント: 適用 中|||",
            "/usr/bin/ruby|/usr/bin/puppet|agent|--no-daemonize|",
        ] {
            let found = find(&[seen(RUBY, title), daemon.clone()]);
            assert!(
                matches!(
                    found,
                    Found::Run {
                        at: 0,
                        daemon: Some(1),
                        ..
                    }
                ),
                "{title}"
            );
        }
        assert_eq!(
            find(std::slice::from_ref(&daemon)),
            Found::DaemonItself { at: 0 }
        );
        // A shell below the daemon is not a run of it.
        let found = find(&[seen("/usr/bin/dash", "sh -c x"), daemon]);
        assert_eq!(found, Found::DaemonItself { at: 1 });
    }

    #[test]
    fn a_run_without_its_daemon_or_its_words_is_told_apart() {
        let init = seen("/usr/lib/systemd/systemd", "/sbin/init|");
        let orphan = seen(RUBY, "puppet agent: applying configuration|");
        assert_eq!(find(&[orphan, init]), Found::Orphan { at: 0 });
        let bundled = seen(RUBY, "/usr/bin/puppet apply a b.pp|||");
        assert_eq!(find(&[bundled]), Found::Retitled { at: 0 });
    }

    #[test]
    fn what_merely_looks_like_puppet_is_not() {
        for (exe, cmdline) in [
            ("/usr/bin/vim", "vim|/usr/bin/puppet|apply|"),
            ("/usr/bin/dash", "/usr/bin/ruby|/usr/bin/puppet|apply|x|"),
            ("/usr/bin/perl", "puppet agent: applying configuration|"),
            (RUBY, "/usr/bin/ruby|/usr/bin/puppet|config|print|"),
        ] {
            assert_eq!(find(&[seen(exe, cmdline)]), Found::Nothing, "{cmdline}");
        }
    }

    proptest! {
        #[test]
        fn total(lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..4)) {
            let chain: Vec<Seen> = lines.into_iter().map(|cmdline| Seen { cmdline, ..seen(RUBY, "") }).collect();
            let _ = find(&chain);
        }
    }
}
