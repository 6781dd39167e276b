//! Decides whether a request is granted, from everything that was observed.

use again_base::model::{Cap, OnCap, Refusal, Span, Use};

/// Facts that may prevent a rerun, about the run above a request or about a command that was named
/// outside any run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Pid of the run; none outside any run.
    pub pid: Option<i32>,
    /// Whether the run is in a chroot.
    pub chroot: bool,
    /// Process 1 of its container, if the container may end with it.
    pub container: Option<String>,
    /// User of the run, if different from the caller.
    pub other_user: Option<String>,
    /// Source that says that `noop` is on, if it is.
    pub noop: Option<&'static str>,
    /// Source of the manifest.
    pub input: Input,
    /// Manifest or configuration that can be read only once: its name, and its type.
    pub once: Option<(String, String)>,
    /// Working directory, if it was deleted.
    pub directory_gone: Option<String>,
}

/// Source from which `puppet apply` reads its manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Input {
    /// The manifest does not come from standard input.
    #[default]
    NotRead,
    /// A regular file, which can be reopened.
    File,
    /// A source that can be read only once, as /proc names it.
    Once(String),
}

/// Facts that decide a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Obstacle to a rerun under any settings, if any.
    pub obstacle: Option<Refusal>,
    /// Reason of `again disable`, if it is in force.
    pub disabled: Option<String>,
    /// Cap that applies.
    pub cap: Cap,
    /// Use of the cap.
    pub usage: Use,
    /// Action when the cap is reached.
    pub on_cap: OnCap,
}

/// Decision on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The request is granted. At the cap under `on_cap = wait`: not before this much time has
    /// passed.
    Schedule {
        /// Time until the cap allows another rerun; zero if it does now.
        not_before: Span,
    },
    /// The request is refused.
    Refuse(Refusal),
}

/// Obstacle to a rerun, if any.
pub fn obstacle(facts: &Facts) -> Option<Refusal> {
    let Facts {
        pid,
        chroot,
        container,
        other_user,
        noop,
        input,
        once,
        directory_gone,
    } = facts.clone();
    let once = once.map(|(name, what)| Refusal::ReadOnce { name, what });

    let ends = container.map(|init| Refusal::ContainerEnds { init, pid });
    match (pid, other_user, noop, input) {
        (Some(1), ..) => Some(Refusal::FirstProcess),
        (Some(pid), Some(user), ..) => Some(Refusal::OtherUser { user, pid }),
        (_, _, None, _) if chroot => Some(Refusal::Chroot { pid }),
        (_, _, None, _) if ends.is_some() => ends,
        (_, _, Some(said), _) => Some(Refusal::Noop { said, pid }),
        (_, _, _, Input::Once(what)) => Some(Refusal::StandardInput { what }),
        _ => once.or(directory_gone.map(|directory| Refusal::DirectoryGone { directory })),
    }
}

/// Whether an obstacle also prevents a request to a converge driver. A driver runs its own command
/// again, and needs neither Puppet's command line nor its directory.
pub fn stops_driver(obstacle: &Refusal) -> bool {
    !matches!(
        obstacle,
        Refusal::NoRun { .. }
            | Refusal::DaemonItself { .. }
            | Refusal::Orphan { .. }
            | Refusal::Retitled { .. }
            | Refusal::DirectoryGone { .. }
            | Refusal::Chroot { .. }
            | Refusal::ContainerEnds { .. }
    )
}

/// Decides a request.
pub fn judge(case: &Case) -> Verdict {
    if let Some(obstacle) = &case.obstacle {
        return Verdict::Refuse(obstacle.clone());
    }
    if let Some(reason) = &case.disabled {
        let reason = reason.clone();
        return Verdict::Refuse(Refusal::Disabled { reason });
    }
    judge_cap(case)
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

    const CAP: Cap = Cap {
        max_runs: 10,
        window: Span::from_secs(3600),
        is_total: false,
    };

    fn case() -> Case {
        Case {
            obstacle: None,
            disabled: None,
            cap: CAP,
            usage: Use::default(),
            on_cap: OnCap::Fail,
        }
    }

    fn full(on_cap: OnCap) -> Case {
        Case {
            usage: Use {
                foreign: 0,
                ahead: 0,
                used: 10,
                frees_in: Span::from_secs(60),
            },
            on_cap,
            ..case()
        }
    }

    #[test]
    fn grants_a_plain_request() {
        let not_before = Span::ZERO;
        assert_eq!(judge(&case()), Verdict::Schedule { not_before });
        let pid = Some(42);
        for input in [Input::NotRead, Input::File] {
            let facts = Facts {
                pid,
                input,
                ..Facts::default()
            };
            assert_eq!(obstacle(&facts), None);
        }
    }

    /// Each goes before those behind it.
    #[test]
    fn each_obstacle_is_refused_with_its_evidence() {
        let mut facts = Facts {
            pid: Some(1),
            chroot: true,
            container: Some("bash".into()),
            other_user: Some("root".into()),
            noop: Some("--noop"),
            input: Input::Once("pipe:[1]".into()),
            once: Some(("/dev/fd/3".into(), "pipe:[1]".into())),
            directory_gone: Some("/x".into()),
        };
        let mut stands = |change: fn(&mut Facts), refusal: Refusal| {
            change(&mut facts);
            assert_eq!(obstacle(&facts), Some(refusal.clone()));
            let obstacle = Some(refusal.clone());
            assert_eq!(
                judge(&Case {
                    obstacle,
                    ..full(OnCap::Wait)
                }),
                Verdict::Refuse(refusal)
            );
        };
        stands(|_| {}, Refusal::FirstProcess);
        let (user, pid) = ("root".into(), 42);
        stands(|f| f.pid = Some(42), Refusal::OtherUser { user, pid });
        let (said, pid) = ("--noop", Some(42));
        stands(|f| f.other_user = None, Refusal::Noop { said, pid });
        stands(|f| f.pid = None, Refusal::Noop { said, pid: None });
        let in_chroot = |f: &mut Facts| (f.pid, f.noop) = (Some(42), None);
        stands(in_chroot, Refusal::Chroot { pid: Some(42) });
        let named = |f: &mut Facts| f.pid = None;
        stands(named, Refusal::Chroot { pid: None });
        let (init, pid) = ("bash".into(), None);
        stands(|f| f.chroot = false, Refusal::ContainerEnds { init, pid });
        let what = "pipe:[1]".into();
        stands(|f| f.container = None, Refusal::StandardInput { what });
        let (name, what) = ("/dev/fd/3".into(), "pipe:[1]".into());
        stands(|f| f.input = Input::File, Refusal::ReadOnce { name, what });
        let directory = "/x".into();
        stands(|f| f.once = None, Refusal::DirectoryGone { directory });
    }

    #[test]
    fn a_driver_needs_no_puppet_but_obeys_noop() {
        let (pid, said) = (7, "--noop");
        for (refusal, stops) in [
            (
                Refusal::NoRun {
                    parents: Vec::new(),
                },
                false,
            ),
            (Refusal::DaemonItself { pid }, false),
            (Refusal::Orphan { pid }, false),
            (Refusal::Retitled { pid }, false),
            (
                Refusal::DirectoryGone {
                    directory: "/x".into(),
                },
                false,
            ),
            (
                Refusal::Noop {
                    said,
                    pid: Some(pid),
                },
                true,
            ),
            (
                Refusal::OtherUser {
                    user: "root".into(),
                    pid,
                },
                true,
            ),
            (
                Refusal::StandardInput {
                    what: "pipe:[1]".into(),
                },
                true,
            ),
            (Refusal::DriverGone { pid }, true),
            (Refusal::FirstProcess, true),
        ] {
            assert_eq!(stops_driver(&refusal), stops, "{refusal:?}");
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
            let facts = Facts {
                pid: Some(42),
                other_user: other.then(|| "root".into()),
                noop: noop.then_some("--noop"),
                ..Facts::default()
            };
            let case = Case {
                obstacle: obstacle(&facts),
                disabled: disabled.then(String::new),
                cap: CAP,
                usage: Use { used, foreign: 0, ahead: 0, frees_in: Span::from_secs(frees) },
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
