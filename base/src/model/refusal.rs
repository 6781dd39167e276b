//! Reasons to refuse a request, and reasons to hold a timer that is due.

use super::exit::Exit;
use super::place::Foreign;
use super::run::{Cap, Use};

/// Reason to refuse a request, with its evidence; [`std::fmt::Display`] puts both into one line
/// with the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The request has no Puppet run among its ancestors.
    NoRun {
        /// Names of the ancestors, the nearest first.
        parents: Vec<String>,
    },
    /// The request has an agent daemon among its ancestors, but no run of it in between.
    DaemonItself {
        /// Pid of the daemon.
        pid: i32,
    },
    /// The agent daemon that started the run has exited, and no other one runs.
    Orphan {
        /// Pid of the run.
        pid: i32,
    },
    /// The run's command line was overwritten.
    Retitled {
        /// Pid of the run.
        pid: i32,
    },
    /// The run is the first process of a container.
    FirstProcess,
    /// The run, or the process that names a command, is in a chroot.
    Chroot {
        /// Pid of the run; `None` if a command was named.
        pid: Option<i32>,
    },
    /// The run is in a container that may end with its process 1.
    ContainerEnds {
        /// Process 1 of the container.
        init: String,
        /// Pid of the run; `None` if a command was named.
        pid: Option<i32>,
    },
    /// The run belongs to another user.
    OtherUser {
        /// User of the run.
        user: String,
        /// Pid of the run.
        pid: i32,
    },
    /// The run is a noop run.
    Noop {
        /// Option or setting that makes it a noop run.
        said: &'static str,
        /// Pid of the run; `None` if a command was named outside any run.
        pid: Option<i32>,
    },
    /// The manifest came from a pipe.
    StandardInput {
        /// Standard input as /proc names it.
        what: String,
    },
    /// The manifest, or Puppet's configuration, is a descriptor of the run that cannot be read
    /// again, or a FIFO.
    ReadOnce {
        /// Name of the file as it was given.
        name: String,
        /// Kind of the file, or the text of its link in /proc.
        what: String,
    },
    /// The run's working directory was deleted.
    DirectoryGone {
        /// Path of the directory.
        directory: String,
    },
    /// The converge driver that started the run was killed.
    DriverGone {
        /// Pid of the driver.
        pid: i32,
    },
    /// A timer of this name is pending on another machine or in another pid namespace; its run is
    /// visible only there.
    Elsewhere {
        /// Name of the timer.
        name: String,
        /// Name quoted for a shell.
        argument: String,
        /// Place where it is pending.
        whose: Foreign,
        /// Id of its chain.
        chain: String,
    },
    /// `again disable` is in force.
    Disabled {
        /// Reason that the operator gave; may be empty.
        reason: String,
    },
    /// The cap is reached.
    Cap {
        /// Cap that is reached.
        cap: Cap,
        /// Amount of the cap that is used.
        usage: Use,
        /// Whether the request fails (`on_cap = fail`).
        fails: bool,
    },
}

impl Refusal {
    /// Stable word for the refusal in the history and in metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Refusal::NoRun { .. } => "no-run",
            Refusal::DaemonItself { .. } => "daemon-itself",
            Refusal::Orphan { .. } => "orphan",
            Refusal::Retitled { .. } => "retitled",
            Refusal::FirstProcess => "first-process",
            Refusal::Chroot { .. } => "chroot",
            Refusal::ContainerEnds { .. } => "container-ends",
            Refusal::OtherUser { .. } => "other-user",
            Refusal::Noop { .. } => "noop",
            Refusal::StandardInput { .. } => "standard-input",
            Refusal::ReadOnce { .. } => "read-once",
            Refusal::DirectoryGone { .. } => "directory-gone",
            Refusal::DriverGone { .. } => "driver-gone",
            Refusal::Elsewhere { .. } => "elsewhere",
            Refusal::Disabled { .. } => "disabled",
            Refusal::Cap { cap, .. } if cap.is_total => "cap-total",
            Refusal::Cap { .. } => "cap",
        }
    }

    /// Exit status of the request: success if a rerun is not wanted, failure if it is not possible,
    /// so that Puppet's report shows it.
    pub const fn exit(&self) -> Exit {
        match self {
            Refusal::Noop { .. } | Refusal::Disabled { .. } | Refusal::Cap { fails: false, .. } => {
                Exit::Success
            }
            _ => Exit::Failure,
        }
    }

    /// First words of the request's line: `refused`, `nothing to do` or `error`.
    pub fn outcome(&self) -> &'static str {
        outcome_of(self.kind())
    }

    /// Cause, evidence in brackets, and remedy.
    pub fn cause(&self) -> String {
        match self {
            Refusal::NoRun { parents } => {
                let parents = match parents.as_slice() {
                    [] => "none that can be seen".to_owned(),
                    parents => parents.join(", "),
                };
                format!(
                    "no puppet run above this process (parents: {parents}); run 'again converge -- puppet …' or 'again run -- COMMAND'"
                )
            }
            Refusal::DaemonItself { pid } => format!(
                "this process is below the puppet agent daemon, but not inside one of its runs (pid {pid}); ask from inside a run, or with 'again run -- COMMAND'"
            ),
            Refusal::Orphan { pid } => format!(
                "the agent daemon that started this run has gone and no other has taken its place, so the command line is lost (run pid {pid}); start the agent, or run it once by hand"
            ),
            Refusal::Retitled { pid } => format!(
                "a title has overwritten the command line of this run, as 'bundle exec' does (run pid {pid}); set 'command' in /etc/again.toml, or ask with 'again run -- COMMAND'"
            ),
            Refusal::FirstProcess => "this run is the first process of a container, which ends with it (run pid 1); run 'again converge -- puppet …' as the container's command".to_owned(),
            Refusal::Chroot { pid } => match pid {
                Some(pid) => format!(
                    "this run is in a chroot, which a waiter would keep busy (run pid {pid}); run 'again converge -- puppet …' in it"
                ),
                None => "this process is in a chroot, which a waiter would keep busy (a command was named); run 'again converge -- COMMAND' in it".to_owned(),
            },
            Refusal::ContainerEnds { init, pid } => {
                let (what, command) = match pid {
                    Some(pid) => (format!("run pid {pid}"), "puppet …"),
                    None => ("a command was named".to_owned(), "COMMAND"),
                };
                format!(
                    "this container may end with its process 1, {init} ({what}); run 'again converge -- {command}', or set container = \"stays\" in /etc/again.toml"
                )
            }
            Refusal::OtherUser { user, pid } => format!(
                "this run belongs to another user, and its environment cannot be read ({user}, run pid {pid}); remove 'user' from the Exec"
            ),
            Refusal::Noop { said, pid } => match pid {
                Some(pid) => format!("a noop run is never run again ({said}, run pid {pid})"),
                None => format!(
                    "a noop run changes nothing and is not started ({said}, for the command that was named)"
                ),
            },
            Refusal::StandardInput { what } => format!(
                "the manifest came from standard input, which cannot be read again ({what}); give puppet apply a file, or '< FILE'"
            ),
            Refusal::ReadOnce { name, what } => format!(
                "{name} cannot be read again by a rerun ({what}); give puppet a file that keeps its name"
            ),
            Refusal::DirectoryGone { directory } => format!(
                "the run's working directory was deleted ({directory}); start puppet in a directory that stays"
            ),
            Refusal::DriverGone { pid } => format!(
                "the 'again converge' that started this run was killed, so no process can start another run (pid {pid}); start 'again converge' again"
            ),
            Refusal::Elsewhere { name, argument, whose, chain } => format!(
                "a timer '{name}' of {} is pending (chain {chain}); give this request another --name, or clear that timer by: again stop {argument}",
                whose.kind()
            ),
            Refusal::Disabled { reason } => format!(
                "again is disabled ({}); 'again enable' allows reruns",
                given(reason)
            ),
            Refusal::Cap { cap, .. } if cap.max_runs == 0 => {
                let key = if cap.is_total { "max_runs_total" } else { "max_runs" };
                format!("{key} is 0, which allows no rerun (0 of at most 0 used); set it to 1 or more")
            }
            Refusal::Cap { cap, usage, .. } if cap.is_total => format!(
                "the cap over all targets is reached: {} of at most {} reruns within {} (the next is possible in {}); see 'again history' for the requests with ever new command lines, raise max_runs_total, or 'again reset'",
                usage.counted(), cap.max_runs, cap.window, usage.frees_in
            ),
            Refusal::Cap { cap, usage, .. } => format!(
                "the cap is reached: {} of at most {} reruns within {} (the next is possible in {}); this target does not settle: see 'again history', raise max_runs, or 'again reset'",
                usage.counted(), cap.max_runs, cap.window, usage.frees_in
            ),
        }
    }
}

/// First words of the line about a refusal of this kind.
pub fn outcome_of(kind: &str) -> &'static str {
    match kind {
        "no-run" | "daemon-itself" | "retitled" | "other-user" | "error" => "error",
        "noop" => "nothing to do",
        _ => "refused",
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.outcome(), self.cause())
    }
}

/// Reason, or `no reason given` if it is empty.
fn given(reason: &str) -> &str {
    if reason.is_empty() {
        "no reason given"
    } else {
        reason
    }
}

/// Reason to hold a timer that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// `again disable`, with its reason.
    Again(String),
    /// `puppet agent --disable`, with its reason.
    Agent(String),
    /// An announced shutdown, with its time or other known details.
    Shutdown(String),
}

impl Hold {
    /// Stable word for the reason.
    pub const fn kind(&self) -> &'static str {
        match self {
            Hold::Again(_) => "again-disabled",
            Hold::Agent(_) => "agent-disabled",
            Hold::Shutdown(_) => "shutdown",
        }
    }
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, reason) = match self {
            Hold::Again(reason) => ("again is disabled", reason),
            Hold::Agent(reason) => ("the puppet agent is disabled", reason),
            Hold::Shutdown(when) => {
                return write!(
                    f,
                    "a shutdown is announced {when}; 'again now' does not wait for it"
                );
            }
        };
        match reason.as_str() {
            "" => f.write_str(what),
            reason => write!(f, "{what}: {reason}"),
        }
    }
}

/// Run that did a timer's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Satisfied {
    /// A run of the same target, which is on record.
    OnRecord,
    /// The agent run that holds the agent's lock.
    ByAgent {
        /// Pid of the agent run.
        pid: i32,
    },
    /// A run of the converge driver.
    ByDriver {
        /// Number of the run.
        run: u32,
    },
}

impl std::fmt::Display for Satisfied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Satisfied::OnRecord => {
                f.write_str("a run of this target started after the timer's delta")
            }
            Satisfied::ByAgent { pid } => {
                write!(
                    f,
                    "the agent run with pid {pid} started after the timer's delta"
                )
            }
            Satisfied::ByDriver { run } => {
                write!(f, "run {run} started after the timer's delta")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Span;

    fn cap(fails: bool) -> Refusal {
        Refusal::Cap {
            cap: Cap {
                max_runs: 10,
                window: Span::from_secs(3600),
                is_total: false,
            },
            usage: Use {
                foreign: 0,
                ahead: 0,
                used: 10,
                frees_in: Span::from_secs(60),
            },
            fails,
        }
    }

    /// Each with how its line begins, its exit status, and a word of its evidence or remedy.
    #[test]
    fn every_refusal_names_cause_evidence_and_remedy() {
        use Refusal::*;
        let word = |text: &str| text.to_owned();
        let (parents, user) = (vec![word("bash")], word("root"));
        let (reason, what) = (String::new(), word("pipe:[1]"));
        let directory = word("/x");
        let said = "--noop";
        let elsewhere = Elsewhere {
            name: word("a b"),
            argument: word("'a b'"),
            whose: Foreign::Machine,
            chain: word("c"),
        };
        let all = [
            (NoRun { parents }, "error", Exit::Failure, "(parents: bash)"),
            (DaemonItself { pid: 7 }, "error", Exit::Failure, "(pid 7)"),
            (Orphan { pid: 7 }, "refused", Exit::Failure, "(run pid 7)"),
            (Retitled { pid: 7 }, "error", Exit::Failure, "'command'"),
            (FirstProcess, "refused", Exit::Failure, "again converge"),
            (
                Chroot { pid: Some(7) },
                "refused",
                Exit::Failure,
                "again converge",
            ),
            (
                ContainerEnds {
                    init: word("tini"),
                    pid: Some(7),
                },
                "refused",
                Exit::Failure,
                "its process 1, tini (run pid 7); run 'again converge -- puppet …'",
            ),
            (OtherUser { user, pid: 7 }, "error", Exit::Failure, "(root"),
            (
                Noop { said, pid: Some(7) },
                "nothing to do",
                Exit::Success,
                "(--noop, run pid 7)",
            ),
            (
                Noop { said, pid: None },
                "nothing to do",
                Exit::Success,
                "not started (--noop",
            ),
            (StandardInput { what }, "refused", Exit::Failure, "pipe:[1]"),
            (
                ReadOnce {
                    name: word("/dev/fd/3"),
                    what: word("pipe:[2]"),
                },
                "refused",
                Exit::Failure,
                "/dev/fd/3 cannot be read again by a rerun (pipe:[2])",
            ),
            (
                DirectoryGone { directory },
                "refused",
                Exit::Failure,
                "(/x)",
            ),
            (DriverGone { pid: 7 }, "refused", Exit::Failure, "(pid 7)"),
            (elsewhere, "refused", Exit::Failure, "again stop 'a b'"),
            (
                Disabled { reason },
                "refused",
                Exit::Success,
                "(no reason given)",
            ),
            (
                cap(true),
                "refused",
                Exit::Failure,
                "10 of at most 10 reruns within 1h (the next is possible in 1m)",
            ),
            (cap(false), "refused", Exit::Success, "again reset"),
        ];
        let mut kinds: Vec<&str> = all.iter().map(|(refusal, ..)| refusal.kind()).collect();
        kinds.dedup();
        assert_eq!(kinds.len(), 16, "{kinds:?}");
        for (refusal, outcome, exit, word) in all {
            let line = refusal.to_string();
            assert_eq!((refusal.outcome(), refusal.exit()), (outcome, exit));
            assert!(line.starts_with(outcome) && line.contains(word), "{line}");
            assert!(line.contains('(') && !line.contains('\n'), "{line}");
        }
        let nobody = NoRun {
            parents: Vec::new(),
        };
        assert!(nobody.cause().contains("none that can be seen"));
        let reason = word("maintenance");
        assert!(Disabled { reason }.cause().contains("(maintenance)"));
    }

    #[test]
    fn the_run_that_did_the_job_is_named() {
        for (by, word) in [
            (Satisfied::OnRecord, "a run of this target"),
            (Satisfied::ByAgent { pid: 7 }, "with pid 7"),
            (Satisfied::ByDriver { run: 3 }, "run 3 "),
        ] {
            assert!(by.to_string().contains(word), "{by}");
        }
    }

    #[test]
    fn what_holds_says_why_where_that_is_known() {
        let text = |hold: Hold| (hold.kind(), hold.to_string());
        assert_eq!(
            text(Hold::Again("x".into())),
            ("again-disabled", "again is disabled: x".into())
        );
        assert_eq!(
            text(Hold::Agent(String::new())),
            ("agent-disabled", "the puppet agent is disabled".into())
        );
        let (kind, said) = text(Hold::Shutdown("by pid 7".into()));
        assert_eq!(kind, "shutdown");
        assert!(said.starts_with("a shutdown is announced by pid 7; "));
    }
}
