//! Whether a request is granted: everything that was observed goes in, a verdict comes out.

use crate::model::{Cap, OnCap, Refusal, Span, Use};

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
        let reason = reason.clone();
        return Verdict::Refuse(Refusal::Disabled { reason });
    }
    judge_cap(case)
}

fn refusal_by_run(above: &Above) -> Option<Refusal> {
    match above.clone() {
        Above::Command => None,
        Above::Nothing(parents) => Some(Refusal::NoRun { parents }),
        Above::DaemonItself { pid } => Some(Refusal::DaemonItself { pid }),
        Above::Orphan { pid } => Some(Refusal::Orphan { pid }),
        Above::Retitled { pid } => Some(Refusal::Retitled { pid }),
        Above::Run { pid: 1, .. } => Some(Refusal::FirstProcess),
        Above::Run {
            pid,
            other_user,
            noop,
            input,
            directory_gone,
        } => match (other_user, noop, input) {
            (Some(user), _, _) => Some(Refusal::OtherUser { user, pid }),
            (_, Some(said), _) => Some(Refusal::Noop { said, pid }),
            (_, _, Input::Once(what)) => Some(Refusal::StandardInput { what }),
            _ => directory_gone.map(|directory| Refusal::DirectoryGone { directory }),
        },
    }
}

fn judge_cap(case: &Case) -> Verdict {
    let Case {
        cap, usage, on_cap, ..
    } = *case;
    if !usage.is_reached() {
        return Verdict::Schedule {
            not_before: Span::ZERO,
        };
    }
    match on_cap {
        OnCap::Wait if cap.max_runs > 0 => Verdict::Schedule {
            not_before: usage.frees_in,
        },
        on_cap => Verdict::Refuse(Refusal::Cap {
            cap,
            usage,
            fails: on_cap != OnCap::Skip,
        }),
    }
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
    fn each_obstacle_is_refused_with_its_evidence() {
        let with = |change: fn(&mut Above)| {
            let mut above = run();
            change(&mut above);
            above
        };
        let cases = [
            (
                Above::Nothing(vec!["bash".into()]),
                Refusal::NoRun {
                    parents: vec!["bash".into()],
                },
            ),
            (
                Above::DaemonItself { pid: 7 },
                Refusal::DaemonItself { pid: 7 },
            ),
            (Above::Orphan { pid: 7 }, Refusal::Orphan { pid: 7 }),
            (Above::Retitled { pid: 7 }, Refusal::Retitled { pid: 7 }),
            (
                with(|a| {
                    if let Above::Run { pid, .. } = a {
                        *pid = 1
                    }
                }),
                Refusal::FirstProcess,
            ),
            (
                with(|a| {
                    if let Above::Run { other_user, .. } = a {
                        *other_user = Some("root".into())
                    }
                }),
                Refusal::OtherUser {
                    user: "root".into(),
                    pid: 42,
                },
            ),
            (
                with(|a| {
                    if let Above::Run { noop, .. } = a {
                        *noop = Some("--noop")
                    }
                }),
                Refusal::Noop {
                    said: "--noop",
                    pid: 42,
                },
            ),
            (
                with(|a| {
                    if let Above::Run { input, .. } = a {
                        *input = Input::Once("pipe:[1]".into())
                    }
                }),
                Refusal::StandardInput {
                    what: "pipe:[1]".into(),
                },
            ),
            (
                with(|a| {
                    if let Above::Run { directory_gone, .. } = a {
                        *directory_gone = Some("/x".into())
                    }
                }),
                Refusal::DirectoryGone {
                    directory: "/x".into(),
                },
            ),
        ];
        for (above, refusal) in cases {
            assert_eq!(judge(&case(above)), Verdict::Refuse(refusal));
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
        for (on_cap, fails) in [(OnCap::Fail, true), (OnCap::Skip, false)] {
            let case = full(on_cap);
            let (cap, usage) = (case.cap, case.usage);
            let refusal = Refusal::Cap { cap, usage, fails };
            assert_eq!(judge(&case), Verdict::Refuse(refusal));
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
                    prop_assert!(!refusal.to_string().contains('\n'));
                }
            }
        }
    }

    #[test]
    fn disabled_goes_before_the_cap_and_names_its_reason() {
        let mut case = full(OnCap::Fail);
        case.disabled = Some("maintenance".into());
        let reason = "maintenance".into();
        assert_eq!(judge(&case), Verdict::Refuse(Refusal::Disabled { reason }));
    }
}
