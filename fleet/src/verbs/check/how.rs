//! PURE: findings from the state that the service reports.

use again_base::model::{Span, Walltime};

use super::backend::MAKE_ROOM;
use super::finding::Finding;
use crate::ask::{Failure, How, Reason};
use crate::policy::term;
use crate::settings::Settings;
use crate::step::model::StoredShown;
use crate::verbs::clock;

/// Findings about the service, its outbox, what the backend allows, and the clock.
pub fn judge(how: &How, settings: &Settings, now: Walltime) -> Vec<Finding> {
    let mut found = vec![service(how, now), link(how, now)];
    let is_allowed = |failure: &Failure| failure.reason != Reason::Rights;
    if how.failures.iter().all(is_allowed) {
        let what = "the backend has denied the service nothing";
        found.push(Finding::ok("permissions", what));
    }
    found.extend(how.failures.iter().map(failure));
    found.extend([outbox(how, now), clocks(how.ahead, settings.skew)]);
    found.extend(how.selections.iter().map(|one| selection(one, how, now)));
    let others = how
        .outbox
        .selections
        .saturating_sub(how.selections.len() as u64);
    if others > 0 {
        let what = format!("{others} more stored selections wait");
        found.push(Finding::ok("outbox", what));
    }
    found.extend(how.set_back.map(|number| set_back(number, now)));
    found.extend(
        how.names
            .iter()
            .map(|what| Finding::warning("names", what.clone(), FEWER_NAMES)),
    );
    if let Some(why) = &how.executor {
        found.push(Finding::error(
            "executor",
            format!("the executor did not answer the service when it was asked last: {why}"),
            "'journalctl -u again-fleet-executor' tells why",
        ));
    }
    if how.rejected > 0 {
        let (count, since) = (how.rejected, clock(at(how.began), now));
        found.push(Finding::warning(
            "backend",
            format!(
                "rejected since {since}, as not signed by its sender or not accepted here: {count}"
            ),
            "'journalctl -u again-fleet' names each, and why",
        ));
    }
    for slot in &how.slots {
        found.push(Finding::warning(
            "slots",
            slot.clone(),
            "have the service reach the backend: a run that begins then has a slot again",
        ));
    }
    for token in &how.tokens {
        found.push(Finding::warning(
            "locks",
            token.clone(),
            "see 'again-fleet locks reset' in again-fleet(8)",
        ));
    }
    let is_same = settings.certname().is_ok_and(|name| *name == how.node)
        && settings.namespace == how.namespace;
    if !is_same {
        let How {
            node, namespace, ..
        } = how;
        found.push(Finding::error(
            "settings",
            format!("the service goes by other ones: it is {node} of fleet '{namespace}'"),
            "'systemctl restart again-fleet' has it read them",
        ));
    }
    found
}

/// Remedy for a sender that uses too many names.
pub const FEWER_NAMES: &str =
    "use the same name for triggers that replace each other, or a shorter ttl";

/// Finding about a clock that was set back.
fn set_back(number: u64, now: Walltime) -> Finding {
    let (last, here) = (term::shown(at(number)), term::shown(now));
    Finding::warning(
        "clock",
        format!("it was set back: the last trigger was sent at {last}, it is now {here}"),
        "if the clock is right now, nothing needs to be done, and this disappears when it has come that far; otherwise set it",
    )
}

fn at(millis: u64) -> Walltime {
    Walltime::from_millis(millis)
}

fn service(how: &How, now: Walltime) -> Finding {
    let since = clock(at(how.began), now);
    let ours = env!("CARGO_PKG_VERSION");
    let what = format!("version {} has run since {since}", how.version);
    if how.version == ours {
        return Finding::ok("service", what);
    }
    Finding::warning(
        "service",
        format!("{what}, and this program is version {ours}"),
        "'systemctl restart again-fleet' starts the new one",
    )
}

fn link(how: &How, now: Walltime) -> Finding {
    let link = &how.link;
    let (backend, since) = (&link.backend, clock(at(link.since), now));
    if link.is_up {
        return Finding::ok(
            "link",
            format!("the service reaches {backend} since {since}"),
        );
    }
    let why = match link.why.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    Finding::error(
        "link",
        format!("the service has not reached {backend} since {since}{why}"),
        "what is fired is kept, and sent when it is back",
    )
}

/// Finding about a failure of the service's work.
fn failure(failure: &Failure) -> Finding {
    let (about, todo) = match failure.reason {
        Reason::Rights => (
            "permissions",
            "enrol this node's certificate with the backend, or fix its rights there",
        ),
        Reason::Room => ("backend", MAKE_ROOM),
        Reason::Events => (
            "backend",
            "send fewer events ('events' of the class), or remove other data from the backend",
        ),
        Reason::Size => (
            "backend",
            "publish less, or raise the limit: --max-request-bytes of etcd, max_payload of NATS",
        ),
        Reason::Metrics => (
            "metrics",
            "make room for the state directory; it must belong to the service's user",
        ),
    };
    Finding::error(about, failure.what.clone(), todo)
}

fn outbox(how: &How, now: Walltime) -> Finding {
    let waiting = &how.outbox;
    if let Some(why) = &waiting.not_kept {
        return Finding::error(
            "outbox",
            format!("what is fired cannot be kept: {why}"),
            "make room for the state directory: a trigger that cannot be sent at once is lost",
        );
    }
    let oldest = waiting.oldest.map_or_else(String::new, |oldest| {
        format!(", the oldest of {}", clock(at(oldest), now))
    });
    Finding::ok(
        "outbox",
        format!(
            "{} triggers{oldest} wait for their nodes, and {} results to be sent",
            waiting.triggers, waiting.results
        ),
    )
}

/// Finding about a stored selection.
fn selection(one: &StoredShown, how: &How, now: Walltime) -> Finding {
    let StoredShown {
        id, name, selects, ..
    } = one;
    let (backend, until) = (&how.link.backend, clock(at(one.until), now));
    Finding::ok(
        "outbox",
        format!(
            "'{name}' (id {id}) waits until {until} to be sent to nodes with {selects}, selected when {backend} shows all nodes"
        ),
    )
}

/// Finding about the clock: its difference to the other nodes' clocks, compared with the skew.
fn clocks(ahead: Option<i64>, skew: Span) -> Finding {
    let Some(ahead) = ahead else {
        return Finding::ok("clock", "nothing is known of the clocks of others");
    };
    let apart = Span::from_nanos(ahead.unsigned_abs().saturating_mul(1_000_000));
    let side = if ahead < 0 { "behind" } else { "ahead of" };
    let what = format!("{apart} {side} the other nodes'");
    let todo = "have the clocks of all nodes set over the network, by chrony or systemd-timesyncd";
    if apart > skew {
        let what = format!(
            "{what}, more than the skew of {skew}: what is fired here is held or refused elsewhere"
        );
        Finding::error("clock", what, todo)
    } else if apart.times(2) > skew {
        Finding::warning(
            "clock",
            format!("{what}; a skew of {skew} is allowed"),
            todo,
        )
    } else {
        Finding::ok("clock", what)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Grade;
    use super::*;
    use crate::ask::{Link, Waiting};
    use crate::settings::{Backend, Flags, Surroundings, settings};

    const NOW: u64 = 1_795_219_387_045;

    fn how() -> How {
        How {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: "web1".parse().expect("a certname"),
            namespace: "default".parse().expect("a namespace"),
            began: NOW,
            link: Link {
                backend: Backend::Etcd,
                is_up: true,
                since: NOW,
                why: String::new(),
            },
            failures: Vec::new(),
            outbox: Waiting {
                triggers: 0,
                selections: 0,
                results: 2,
                oldest: None,
                not_kept: None,
            },
            executor: None,
            rejected: 0,
            slots: Vec::new(),
            tokens: Vec::new(),
            ahead: Some(20),
            set_back: None,
            selections: Vec::new(),
            names: Vec::new(),
        }
    }

    fn set() -> Settings {
        let around = Surroundings {
            environment: vec![("AGAIN_FLEET_CERTNAME".into(), "web1".into())],
            root: "/nonexistent".into(),
            program: "/usr/bin/again-fleet".into(),
        };
        settings(&Flags::default(), &around).expect("settings")
    }

    /// The findings that are not good, in words.
    fn bad(change: impl FnOnce(&mut How)) -> Vec<(Grade, String)> {
        let mut how = how();
        change(&mut how);
        let found = judge(&how, &set(), Walltime::from_millis(NOW));
        let bad = found.into_iter().filter(|one| one.grade != Grade::Ok);
        bad.map(|one| (one.grade, format!("{}: {}", one.about, one.what)))
            .collect()
    }

    #[test]
    fn what_is_well_is_well() {
        assert_eq!(bad(|_| ()), []);
        assert_eq!(bad(|how| how.ahead = None), []);
    }

    #[test]
    fn each_fault_is_found() {
        let one = |change: fn(&mut How)| match &bad(change)[..] {
            [(grade, words)] => (*grade, words.clone()),
            other => panic!("{other:?}"),
        };
        let (grade, words) = one(|how| how.version = "0.0.9".to_owned());
        assert!(
            grade == Grade::Warning && words.contains("version 0.0.9"),
            "{words}"
        );
        let (grade, words) = one(|how| {
            how.link.is_up = false;
            how.link.why = "connection refused".to_owned();
        });
        assert_eq!(grade, Grade::Error);
        assert!(
            words.starts_with("link: the service has not reached etcd since "),
            "{words}"
        );
        assert!(words.ends_with(" (connection refused)"), "{words}");
        for (reason, about) in [
            (Reason::Rights, "permissions"),
            (Reason::Room, "backend"),
            (Reason::Events, "backend"),
            (Reason::Size, "backend"),
            (Reason::Metrics, "metrics"),
        ] {
            let what = "it fails".to_owned();
            let found = bad(|how| how.failures = vec![Failure { reason, what }]);
            assert_eq!(found, [(Grade::Error, format!("{about}: it fails"))]);
        }
        let (_, words) = one(|how| how.outbox.not_kept = Some("no space left".to_owned()));
        assert_eq!(words, "outbox: what is fired cannot be kept: no space left");
        let (_, words) = one(|how| how.executor = Some("no answer".to_owned()));
        assert!(words.ends_with("asked last: no answer"), "{words}");
        let (grade, words) = one(|how| how.rejected = 3);
        assert!(
            grade == Grade::Warning && words.ends_with("not accepted here: 3"),
            "{words}"
        );
        let (grade, words) = one(|how| how.slots = vec!["it has ended".to_owned()]);
        assert_eq!((grade, &*words), (Grade::Warning, "slots: it has ended"));
        let (grade, words) = one(|how| how.tokens = vec!["it is ignored".to_owned()]);
        assert_eq!((grade, &*words), (Grade::Warning, "locks: it is ignored"));
        let (grade, words) = one(|how| how.set_back = Some(NOW + 3_600_000));
        assert_eq!(grade, Grade::Warning);
        assert!(
            words.starts_with("clock: it was set back: the last trigger was sent at 2026-11-21"),
            "{words}"
        );
        let (grade, words) = one(|how| how.names = vec!["lb1 has too many".to_owned()]);
        assert_eq!(
            (grade, &*words),
            (Grade::Warning, "names: lb1 has too many")
        );
        let (_, words) = one(|how| how.node = "web2".parse().expect("a certname"));
        assert!(words.contains("it is web2 of fleet 'default'"), "{words}");
    }

    /// The skew is five minutes.
    #[test]
    fn the_clock_is_judged_by_the_skew() {
        let grade = |ahead| clocks(Some(ahead), Span::from_secs(300)).grade;
        assert_eq!((grade(0), grade(150_000)), (Grade::Ok, Grade::Ok));
        assert_eq!(
            (grade(151_000), grade(-300_000)),
            (Grade::Warning, Grade::Warning)
        );
        assert_eq!(
            (grade(300_001), grade(i64::MIN)),
            (Grade::Error, Grade::Error)
        );
        let words = clocks(Some(-3_600_000), Span::from_secs(300)).what;
        assert!(
            words.starts_with("1h behind the other nodes', more than the skew of 5m"),
            "{words}"
        );
    }
}
