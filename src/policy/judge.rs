//! Whether a request is granted: everything that was observed goes in, a verdict comes out.

use super::cap::{Cap, Use};
use super::time::Span;
use crate::exit::Exit;
use crate::state::record::OnCap;

/// What was found above us, as far as the judgement needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Above {
    /// A puppet run.
    Run {
        /// Its pid.
        pid: i32,
        /// Its user, if that is not ours.
        other_user: Option<String>,
        /// What says that `noop` is on, if it is.
        noop: Option<&'static str>,
        /// It reads its manifest from here.
        input: Input,
        /// Its working directory, if that was deleted.
        directory_gone: Option<String>,
    },
    /// A run whose agent daemon has gone, with no other in its place.
    Orphan {
        /// Its pid.
        pid: i32,
    },
    /// A run whose command line was overwritten.
    Retitled {
        /// Its pid.
        pid: i32,
    },
    /// An agent daemon, with no run between it and us.
    DaemonItself {
        /// Its pid.
        pid: i32,
    },
    /// No puppet at all; the names of our ancestors, the nearest first.
    Nothing(Vec<String>),
    /// Somebody named a command, and no run is above us.
    Command,
}

/// Where `puppet apply` has its manifest from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Not from standard input.
    NotRead,
    /// A regular file, which can be opened again.
    File,
    /// Something that can be read once only, as /proc names it.
    Once(String),
}

/// All that a request is judged by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What is above us.
    pub above: Above,
    /// The reason of `again disable`, if it is in force.
    pub disabled: Option<String>,
    /// The cap.
    pub cap: Cap,
    /// How much of it is used.
    pub usage: Use,
    /// What to do at the cap.
    pub on_cap: OnCap,
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Granted. At the cap under `on_cap = wait`: not before this much time has passed.
    Schedule {
        /// Time until the cap allows another rerun; zero if it does now.
        not_before: Span,
    },
    /// Not granted.
    Refuse(Refusal),
}

/// Why not, in a line for people, and the exit status that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// `refused`, `nothing to do` or `error`.
    pub outcome: &'static str,
    /// Cause, evidence in brackets, and what to do next.
    pub cause: String,
    /// The exit status.
    pub exit: Exit,
}

impl Refusal {
    fn error(cause: String) -> Self {
        Refusal {
            outcome: "error",
            cause,
            exit: Exit::Failure,
        }
    }

    fn refused(cause: String) -> Self {
        Refusal {
            outcome: "refused",
            cause,
            exit: Exit::Success,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.outcome, self.cause)
    }
}

/// What is above a request that a converge driver takes: the driver runs its own
/// command again, so that neither puppet's command line nor its directory is
/// needed.
pub fn under_driver(above: Above) -> Above {
    match above {
        Above::Run {
            pid,
            other_user,
            noop,
            input,
            ..
        } => Above::Run {
            pid,
            other_user,
            noop,
            input,
            directory_gone: None,
        },
        _ => Above::Command,
    }
}

/// Judges a request.
pub fn judge(case: &Case) -> Verdict {
    if let Some(refusal) = refusal_by_run(&case.above) {
        return Verdict::Refuse(refusal);
    }
    if let Some(reason) = &case.disabled {
        let reason = if reason.is_empty() {
            "no reason given"
        } else {
            reason
        };
        return Verdict::Refuse(Refusal::refused(format!(
            "again is disabled ({reason}); 'again enable' allows reruns"
        )));
    }
    judge_cap(case)
}

fn refusal_by_run(above: &Above) -> Option<Refusal> {
    let wrapper = "set 'command' in /etc/again.toml, or ask with 'again run -- COMMAND'";
    match above {
        Above::Command => None,
        Above::Nothing(parents) => Some(Refusal::error(format!(
            "no puppet run above this process (parents: {}); run 'again converge -- puppet …' or 'again run -- COMMAND'",
            if parents.is_empty() {
                "none that can be seen".to_owned()
            } else {
                parents.join(", ")
            }
        ))),
        Above::DaemonItself { pid } => Some(Refusal::error(format!(
            "the puppet agent daemon is above this process, but no run of it (pid {pid}); ask from inside a run, or with 'again run -- COMMAND'"
        ))),
        Above::Orphan { pid } => Some(Refusal::refused(format!(
            "the agent daemon that started this run has gone, and the command line with it; no other lives in its place (run pid {pid}); start the agent, or run it once by hand"
        ))),
        Above::Retitled { pid } => Some(Refusal::error(format!(
            "the command line of this run was overwritten by a title, as 'bundle exec' does (run pid {pid}); {wrapper}"
        ))),
        Above::Run {
            pid,
            other_user,
            noop,
            input,
            directory_gone,
        } => {
            if *pid == 1 {
                return Some(Refusal::refused(
                    "this run is the first process of a container, which ends with it (run pid 1); run 'again converge -- puppet …' as the container's command".into(),
                ));
            }
            if let Some(user) = other_user {
                return Some(Refusal::error(format!(
                    "this run belongs to another user, whose environment cannot be read ({user}, run pid {pid}); take 'user' away from the Exec"
                )));
            }
            if let Some(said) = noop {
                return Some(Refusal {
                    outcome: "nothing to do",
                    cause: format!("a noop run is never run again ({said}, run pid {pid})"),
                    exit: Exit::Success,
                });
            }
            if let Input::Once(what) = input {
                return Some(Refusal::refused(format!(
                    "the manifest came from standard input, which cannot be read again ({what}); give puppet apply a file, or '< FILE'"
                )));
            }
            directory_gone.as_ref().map(|directory| {
                Refusal::refused(format!(
                    "the run's working directory was deleted ({directory}); start puppet in one that stays"
                ))
            })
        }
    }
}

fn judge_cap(case: &Case) -> Verdict {
    if !case.usage.is_reached() {
        return Verdict::Schedule {
            not_before: Span::ZERO,
        };
    }
    match case.on_cap {
        OnCap::Wait if case.cap.max_runs > 0 => Verdict::Schedule {
            not_before: case.usage.frees_in,
        },
        on_cap => {
            let mut refusal = Refusal::refused(cap_reached(case.cap, case.usage));
            if on_cap != OnCap::Skip {
                refusal.exit = Exit::Failure;
            }
            Verdict::Refuse(refusal)
        }
    }
}

/// The line that says why no further rerun starts, and what to do.
pub fn cap_reached(cap: Cap, usage: Use) -> String {
    format!(
        "the cap is reached: {} of at most {} reruns within {} (the next is possible in {}); this target does not settle: see 'again history', raise max_runs, or 'again reset'",
        usage.used, cap.max_runs, cap.window, usage.frees_in
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_driver_needs_no_puppet_but_obeys_noop() {
        let verdict = |above| judge(&case(under_driver(above)));
        let granted = Verdict::Schedule {
            not_before: Span::ZERO,
        };
        assert_eq!(verdict(Above::Nothing(Vec::new())), granted);
        assert_eq!(verdict(Above::Retitled { pid: 7 }), granted);
        assert_eq!(verdict(run()), granted);
        let noop = Above::Run {
            pid: 42,
            other_user: None,
            noop: Some("--noop"),
            input: Input::NotRead,
            directory_gone: None,
        };
        assert!(matches!(verdict(noop), Verdict::Refuse(_)));
    }

    const CAP: Cap = Cap {
        max_runs: 10,
        window: Span::from_secs(3600),
    };

    fn run() -> Above {
        Above::Run {
            pid: 42,
            other_user: None,
            noop: None,
            input: Input::NotRead,
            directory_gone: None,
        }
    }

    fn case(above: Above) -> Case {
        Case {
            above,
            disabled: None,
            cap: CAP,
            usage: Use {
                used: 0,
                frees_in: Span::ZERO,
            },
            on_cap: OnCap::Fail,
        }
    }

    fn full(on_cap: OnCap) -> Case {
        Case {
            usage: Use {
                used: 10,
                frees_in: Span::from_secs(60),
            },
            on_cap,
            ..case(run())
        }
    }

    #[test]
    fn grants_a_plain_request() {
        for above in [run(), Above::Command] {
            assert_eq!(
                judge(&case(above)),
                Verdict::Schedule {
                    not_before: Span::ZERO
                }
            );
        }
    }

    #[test]
    fn every_refusal_names_cause_evidence_and_remedy() {
        let with = |change: fn(&mut Above)| {
            let mut above = run();
            change(&mut above);
            above
        };
        let cases = [
            (
                Above::Nothing(vec!["bash".into()]),
                "error",
                Exit::Failure,
                "converge",
            ),
            (
                Above::DaemonItself { pid: 7 },
                "error",
                Exit::Failure,
                "pid 7",
            ),
            (Above::Orphan { pid: 7 }, "refused", Exit::Success, "pid 7"),
            (
                Above::Retitled { pid: 7 },
                "error",
                Exit::Failure,
                "command",
            ),
            (
                with(|a| {
                    if let Above::Run { pid, .. } = a {
                        *pid = 1
                    }
                }),
                "refused",
                Exit::Success,
                "again converge",
            ),
            (
                with(|a| {
                    if let Above::Run { other_user, .. } = a {
                        *other_user = Some("root".into())
                    }
                }),
                "error",
                Exit::Failure,
                "user",
            ),
            (
                with(|a| {
                    if let Above::Run { noop, .. } = a {
                        *noop = Some("--noop")
                    }
                }),
                "nothing to do",
                Exit::Success,
                "--noop",
            ),
            (
                with(|a| {
                    if let Above::Run { input, .. } = a {
                        *input = Input::Once("pipe:[1]".into())
                    }
                }),
                "refused",
                Exit::Success,
                "pipe:[1]",
            ),
            (
                with(|a| {
                    if let Above::Run { directory_gone, .. } = a {
                        *directory_gone = Some("/x".into())
                    }
                }),
                "refused",
                Exit::Success,
                "/x",
            ),
        ];
        for (above, outcome, exit, word) in cases {
            let Verdict::Refuse(refusal) = judge(&case(above)) else {
                panic!("granted: {word}")
            };
            assert_eq!((refusal.outcome, refusal.exit), (outcome, exit));
            assert!(refusal.cause.contains(word), "{refusal}");
            assert!(refusal.cause.contains('(') && !refusal.cause.contains('\n'));
        }
    }

    #[test]
    fn the_cap_fails_waits_or_skips() {
        assert_eq!(
            judge(&full(OnCap::Wait)),
            Verdict::Schedule {
                not_before: Span::from_secs(60)
            }
        );
        for (on_cap, exit) in [(OnCap::Fail, Exit::Failure), (OnCap::Skip, Exit::Success)] {
            let Verdict::Refuse(refusal) = judge(&full(on_cap)) else {
                panic!("granted")
            };
            assert_eq!(refusal.exit, exit);
            assert!(refusal.cause.contains("10 of at most 10 reruns within 1h"));
        }
    }

    #[test]
    fn a_cap_of_none_is_never_waited_for() {
        let mut case = full(OnCap::Wait);
        case.cap.max_runs = 0;
        assert!(matches!(judge(&case), Verdict::Refuse(_)));
    }

    proptest! {
        /// Nothing gets past a noop run, another user's, or a cap that is reached.
        #[test]
        fn never_grants_what_must_not_be(
            noop in any::<bool>(),
            other in any::<bool>(),
            disabled in any::<bool>(),
            used in 0..20u32,
            frees in 0..100u64,
            on_cap in proptest::sample::select(vec![OnCap::Fail, OnCap::Wait, OnCap::Skip]),
        ) {
            let case = Case {
                above: Above::Run {
                    pid: 42,
                    other_user: other.then(|| "root".into()),
                    noop: noop.then_some("--noop"),
                    input: Input::NotRead,
                    directory_gone: None,
                },
                disabled: disabled.then(String::new),
                cap: CAP,
                usage: Use { used, frees_in: Span::from_secs(frees) },
                on_cap,
            };
            match judge(&case) {
                Verdict::Schedule { not_before } => {
                    prop_assert!(!noop && !other && !disabled);
                    prop_assert!(frees == 0 || on_cap == OnCap::Wait);
                    prop_assert_eq!(not_before, Span::from_secs(frees));
                }
                Verdict::Refuse(refusal) => {
                    prop_assert!(noop || other || disabled || frees > 0);
                    prop_assert!(!refusal.cause.contains('\n'));
                }
            }
        }
    }

    #[test]
    fn disabled_goes_before_the_cap_and_names_its_reason() {
        let mut case = full(OnCap::Fail);
        case.disabled = Some("maintenance".into());
        let Verdict::Refuse(refusal) = judge(&case) else {
            panic!("granted")
        };
        assert_eq!(refusal.exit, Exit::Success);
        assert!(refusal.cause.contains("(maintenance)"));
    }
}
