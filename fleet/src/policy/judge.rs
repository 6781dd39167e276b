//! Verdict of a target on one trigger.
//!
//! Triggers are judged twice: by the service, so that only triggers from accepted signers reach the
//! root process; and by the executor, as root, with the replay ledger.

use again_base::model::{Moment, Span, Walltime};

use super::accept::{Accept, Extensions};
use super::lineage::{self, TooFar};
use super::lock::{self, Lock};
use super::replay::ReplayLedger;
use super::term;
use crate::identity::Signer;
use crate::wire::lineage::Lineage;
use crate::wire::name::Node;
use crate::wire::outcome::Outcome;
use crate::wire::trigger::{Ask, Trigger};

/// Settings of a node that its verdicts depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// This node.
    pub me: Node,
    /// Signers that the node accepts.
    pub accept: Accept,
    /// Maximum difference between the clocks of two nodes.
    pub skew: Span,
    /// Maximum number of hops of an origin.
    pub hop_limit: usize,
    /// Locks for which the node is a candidate.
    pub locks: Vec<Lock>,
}

/// Trigger whose signature is valid, and its signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// Certname of the signer.
    pub signer: Node,
    /// Trusted extensions of the signer's certificate.
    pub extensions: Extensions,
    /// Trigger that was signed.
    pub trigger: Trigger,
}

impl Signed {
    /// Trigger with its verified signer; without one, since the backend is trusted, the sender
    /// counts as the signer.
    pub fn new(signer: Option<Signer>, trigger: Trigger) -> Signed {
        let signer = signer.unwrap_or_else(|| Signer {
            node: trigger.sender.clone(),
            extensions: Extensions::new(),
        });
        Signed {
            signer: signer.node,
            extensions: signer.extensions,
            trigger,
        }
    }
}

/// Reason why a value is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// Trigger for another node, or with a sender that did not sign it. No status is published.
    Foreign(String),
    /// Trigger of a signer that this node does not accept. The rejection is published, but not
    /// recorded.
    Refused(String),
}

/// Checks that a trigger is for this node, and that its sender signed it and is accepted.
///
/// # Errors
/// The trigger is not admitted.
pub fn admit(rules: &Rules, signed: &Signed) -> Result<(), Unfit> {
    let Signed {
        signer,
        extensions,
        trigger,
    } = signed;
    if trigger.target != rules.me {
        let target = &trigger.target;
        return Err(Unfit::Foreign(format!("{signer} signed it for {target}")));
    }
    if trigger.sender != *signer {
        let sender = &trigger.sender;
        return Err(Unfit::Foreign(format!(
            "{signer} signed it in the name of {sender}"
        )));
    }
    // No node can sign a trigger with such a name: it is created from an event of this node and a
    // rule that selects the event. The executor accepts it only if a run has left the event in the
    // spool.
    if trigger.name.is_of_a_rule() && *signer == rules.me {
        return Ok(());
    }
    if trigger.on_behalf.is_none() && lock::is_change(&rules.locks, &trigger.name, signer) {
        return Ok(());
    }
    rules
        .accept
        .judge(&rules.me, signer, extensions, trigger.on_behalf.as_ref())
        .map_err(|why| Unfit::Refused(why.to_string()))
}

/// Verdict on a trigger that was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Run Puppet, with this lineage.
    Take(Lineage),
    /// Hold the trigger and judge it again later.
    Held(String),
    /// Do not run Puppet; the outcome is to be recorded.
    Settled(Outcome, String),
    /// The same trigger has an outcome already.
    Known(Outcome, String),
    /// The number is too low; the value is the highest number.
    Superseded(u64),
}

/// Maximum by which a number ahead of the clock may exceed the recorded one: a sender whose clock
/// was set back continues from there.
const FEW: u64 = 16;

/// Judges a trigger that was admitted.
pub fn judge(rules: &Rules, replays: &ReplayLedger, trigger: &Trigger, now: &Moment) -> Verdict {
    let seen = replays.seen(&trigger.sender, &trigger.name);
    let highest = seen
        .map_or(0, |seen| seen.number)
        .max(replays.floor(trigger));
    let is_waiting = seen.is_some_and(|seen| seen.is_waiting(trigger));
    if !is_waiting && let Some(known) = known(replays, trigger, highest) {
        return known;
    }
    let limit = now.wall + rules.skew;
    let is_ahead = Walltime::from_millis(trigger.number) > limit;
    let verdict = match fresh(rules, replays, trigger, now) {
        Verdict::Held(why) => return Verdict::Held(why),
        verdict if !is_ahead || trigger.number <= highest.saturating_add(FEW) => verdict,
        // An outcome that is not recorded has no effect either.
        Verdict::Settled(outcome @ (Outcome::Expired | Outcome::TooLate), why) => {
            return Verdict::Known(outcome, why);
        }
        _ => return Verdict::Held(ahead("numbered", trigger.number, trigger, now)),
    };
    let is_taken = matches!(verdict, Verdict::Take(_));
    match replays.lacks_room(trigger, is_taken, now) {
        Some(why) => Verdict::Held(why),
        None => verdict,
    }
}

/// Recorded outcome of a trigger, or of its id. Each id takes effect only once, whatever its
/// number.
fn known(replays: &ReplayLedger, trigger: &Trigger, highest: u64) -> Option<Verdict> {
    let seen = replays.seen(&trigger.sender, &trigger.name);
    if let Some(seen) = seen.filter(|seen| seen.is(trigger)) {
        return Some(Verdict::Known(seen.outcome, seen.why.clone()));
    }
    if trigger.ask == Ask::Run
        && let Some((outcome, why)) = replays.outcome(trigger)
    {
        return Some(Verdict::Known(outcome, why.to_owned()));
    }
    (trigger.number <= highest).then_some(Verdict::Superseded(highest))
}

/// Judges a trigger that is not recorded.
fn fresh(rules: &Rules, replays: &ReplayLedger, trigger: &Trigger, now: &Moment) -> Verdict {
    let was_taken = matches!(replays.outcome(trigger), Some((Outcome::Taken, _)));
    if trigger.ask == Ask::Cancel && was_taken {
        return Verdict::Settled(Outcome::TooLate, "it had been taken".to_owned());
    }
    if now.wall >= trigger.expires() + rules.skew {
        let (fired, ttl) = (
            term::shown(trigger.fired()),
            Span::from_nanos(trigger.ttl * 1_000_000),
        );
        let here = term::shown(now.wall);
        let why = format!("fired at {fired} for {ttl}, here it is {here}");
        return Verdict::Settled(Outcome::Expired, why);
    }
    if trigger.ask == Ask::Cancel {
        return Verdict::Settled(Outcome::Cancelled, String::new());
    }
    if let Some(why) = fired_ahead(rules, trigger, now) {
        return Verdict::Held(why);
    }
    let within = lineage::within(&trigger.lineage, &rules.me, rules.hop_limit);
    if within.lineage.0.is_empty() {
        let ways: Vec<String> = within.too_far.iter().map(TooFar::to_string).collect();
        return Verdict::Settled(Outcome::Refused, ways.join("; "));
    }
    Verdict::Take(within.lineage)
}

/// Reason for holding a trigger whose time is in the future: its sender's clock is ahead of this
/// one by more than the skew.
pub fn fired_ahead(rules: &Rules, trigger: &Trigger, now: &Moment) -> Option<String> {
    let is_ahead = trigger.fired() > now.wall + rules.skew;
    is_ahead.then(|| ahead("fired", trigger.at, trigger, now))
}

/// Message about a time of the sender's clock, in milliseconds, that is ahead of this node's clock.
fn ahead(what: &str, millis: u64, trigger: &Trigger, now: &Moment) -> String {
    let time = term::shown(Walltime::from_millis(millis));
    let (sender, here) = (&trigger.sender, term::shown(now.wall));
    format!("{what} at {time} by the clock of {sender}, here it is {here}")
}

#[cfg(test)]
mod tests {
    use super::super::lineage::tests::{lineage, node};
    use super::super::replay::MOST_NAMES;
    use super::super::term::tests::moment;
    use super::*;
    use crate::wire::name::Id;
    use crate::wire::trigger::MOST_TTL;
    use crate::wire::trigger::tests::trigger;
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    const SKEW: Span = Span::from_secs(300);

    fn rules() -> Rules {
        Rules {
            me: node("lb1"),
            accept: Accept {
                from: vec!["web*".parse().expect("a pattern")],
                on_behalf: vec![],
            },
            skew: SKEW,
            hop_limit: 3,
            locks: vec![],
        }
    }

    fn signed(change: impl FnOnce(&mut Signed)) -> Signed {
        let mut signed = Signed {
            signer: node("web1"),
            extensions: Extensions::new(),
            trigger: trigger(),
        };
        change(&mut signed);
        signed
    }

    /// In milliseconds after the trigger was fired.
    fn at(millis: i64) -> Moment {
        let wall = trigger().at.saturating_add_signed(millis);
        moment("a", 50_000_000_u64.saturating_add_signed(millis), wall)
    }

    fn verdict(replays: &ReplayLedger, trigger: &Trigger, millis: i64) -> Verdict {
        judge(&rules(), replays, trigger, &at(millis))
    }

    #[test]
    fn what_was_not_sent_to_here_by_its_signer_does_not_come_in() {
        let admitted = |change: fn(&mut Signed)| admit(&rules(), &signed(change));
        assert_eq!(admitted(|_| ()), Ok(()));
        // Another target's register, copied here.
        let error = admitted(|s| s.trigger.target = node("lb2"));
        assert_eq!(
            error,
            Err(Unfit::Foreign("web1 signed it for lb2".to_owned()))
        );
        let error = admitted(|s| s.signer = node("web2"));
        assert_eq!(
            error,
            Err(Unfit::Foreign(
                "web2 signed it in the name of web1".to_owned()
            ))
        );
        let error = admitted(|s| {
            s.signer = node("db1");
            s.trigger.sender = node("db1");
        });
        assert_eq!(
            error,
            Err(Unfit::Refused("accept does not list db1".to_owned()))
        );
        let error = admitted(|s| s.trigger.on_behalf = Some(node("web2")));
        assert!(matches!(error, Err(Unfit::Refused(_))));
    }

    #[test]
    fn a_candidate_of_a_lock_says_that_it_has_another_holder_and_nothing_else() {
        let mut rules = rules();
        rules.locks = vec![super::lock::tests::lock(&["lb1", "db1"], &[])];
        let admitted = |name: &str, signer: &str, on_behalf: Option<&str>| {
            admit(
                &rules,
                &signed(|s| {
                    s.signer = node(signer);
                    s.trigger.sender = node(signer);
                    s.trigger.name = name.parse().expect("a name");
                    s.trigger.on_behalf = on_behalf.map(node);
                }),
            )
        };
        assert_eq!(admitted("lock db", "db1", None), Ok(()));
        // Itself too; no other lock, no other trigger, no other node, and in nobody's name.
        assert_eq!(admitted("lock db", "lb1", None), Ok(()));
        for (name, signer, on_behalf) in [
            ("lock other", "db1", None),
            ("db", "db1", None),
            ("lock db", "db2", None),
            ("lock db", "db1", Some("web1")),
        ] {
            let refused = admitted(name, signer, on_behalf);
            assert!(matches!(refused, Err(Unfit::Refused(_))), "{name} {signer}");
        }
    }

    #[test]
    fn a_trigger_is_taken_in_its_time() {
        let replays = ReplayLedger::default();
        let take = Verdict::Take(trigger().lineage);
        let hour = 3_600_000;
        for millis in [-300_000, 0, hour, hour + 299_999] {
            assert_eq!(verdict(&replays, &trigger(), millis), take, "{millis}");
        }
        assert!(matches!(
            verdict(&replays, &trigger(), -300_001),
            Verdict::Held(_)
        ));
        let late = verdict(&replays, &trigger(), hour + 300_000);
        assert!(
            matches!(late, Verdict::Settled(Outcome::Expired, _)),
            "{late:?}"
        );
    }

    #[test]
    fn a_wrong_clock_is_named() {
        let replays = ReplayLedger::default();
        assert_eq!(
            verdict(&replays, &trigger(), -600_000),
            Verdict::Held("fired at 1970-01-01 00:16:40 UTC by the clock of web1, here it is 1970-01-01 00:06:40 UTC".to_owned())
        );
        let late = Verdict::Settled(
            Outcome::Expired,
            "fired at 1970-01-01 00:16:40 UTC for 1h, here it is 1970-01-01 02:16:40 UTC"
                .to_owned(),
        );
        assert_eq!(verdict(&replays, &trigger(), 7_200_000), late);
    }

    #[test]
    fn a_number_counts_once() {
        let mut replays = ReplayLedger::default();
        replays.enter(&trigger(), Outcome::Taken, &at(0));
        let known = |outcome, why: &str| Verdict::Known(outcome, why.to_owned());
        assert_eq!(verdict(&replays, &trigger(), 1), known(Outcome::Taken, ""));
        // Also when it would have expired by now.
        assert_eq!(
            verdict(&replays, &trigger(), 7_200_000),
            known(Outcome::Taken, "")
        );
        let older = Trigger {
            number: 999_999,
            at: 999_999,
            id: Id::from_bits(6),
            ..trigger()
        };
        let superseded = Verdict::Superseded(1_000_000);
        assert_eq!(verdict(&replays, &older, 1), superseded);
        // The number counts, and not what bears it.
        let other = Trigger {
            id: Id::from_bits(8),
            ..trigger()
        };
        assert_eq!(verdict(&replays, &other, 1), superseded);
        let newer = Trigger {
            number: 1_000_001,
            ..other
        };
        assert_eq!(
            verdict(&replays, &newer, 1),
            Verdict::Take(trigger().lineage)
        );
        // Another name, or another sender, has numbers of its own.
        let other = Trigger {
            name: "b".parse().expect("a name"),
            ..older.clone()
        };
        assert_eq!(
            verdict(&replays, &other, 1),
            Verdict::Take(trigger().lineage)
        );
        let other = Trigger {
            sender: node("web2"),
            ..older
        };
        assert_eq!(
            verdict(&replays, &other, 1),
            Verdict::Take(trigger().lineage)
        );
    }

    /// With whatever number or name.
    #[test]
    fn an_id_counts_once() {
        let mut replays = ReplayLedger::default();
        let again = |number| Trigger {
            number,
            name: "b".parse().expect("a name"),
            ..trigger()
        };
        let known = |outcome| Verdict::Known(outcome, String::new());
        for outcome in [Outcome::Cancelled, Outcome::Taken] {
            replays.enter(&trigger(), outcome, &at(0));
            assert_eq!(verdict(&replays, &again(1_000_001), 1), known(outcome));
            replays = ReplayLedger::default();
        }
        // It has not been acted on while it waits.
        replays.enter(&trigger(), Outcome::Held, &at(0));
        let take = Verdict::Take(trigger().lineage);
        assert_eq!(verdict(&replays, &trigger(), 1), take);
        assert_eq!(verdict(&replays, &again(1_000_001), 1), take);
        // Another sender has ids of its own.
        replays.enter(&trigger(), Outcome::Taken, &at(0));
        let other = Trigger {
            sender: node("web2"),
            ..again(5)
        };
        assert_eq!(verdict(&replays, &other, 1), take);
    }

    #[test]
    fn what_has_been_forgotten_does_not_come_again() {
        let mut replays = ReplayLedger::default();
        replays.enter(&trigger(), Outcome::Taken, &at(0));
        replays.forget(&at(i64::try_from(MOST_TTL).expect("small") + 300_000));
        let again = verdict(&replays, &trigger(), 1000);
        assert_eq!(again, Verdict::Superseded(1_000_000));
    }

    /// A copy that is judged later would be taken otherwise.
    #[test]
    fn number_that_is_ahead_is_held_unless_it_is_directly_above_a_recorded_one() {
        let mut replays = ReplayLedger::default();
        let ahead = |number, ask| Trigger {
            ask,
            number,
            id: Id::from_bits(number.into()),
            ..trigger()
        };
        let (limit, words) = (
            1_300_000,
            "numbered at 1970-01-01 00:21:40 UTC by the clock of web1",
        );
        for ask in [Ask::Run, Ask::Cancel] {
            let held = verdict(&replays, &ahead(limit + 1, ask), 0);
            let Verdict::Held(why) = held else {
                panic!("{held:?}");
            };
            assert!(why.starts_with(words), "{why}");
        }
        let take = Verdict::Take(trigger().lineage);
        assert_eq!(verdict(&replays, &ahead(limit, Ask::Run), 0), take);
        // Of what has expired nothing is recorded.
        let hour = 3_600_000;
        let late = verdict(&replays, &ahead(u64::MAX, Ask::Run), hour + 300_000);
        assert!(
            matches!(late, Verdict::Known(Outcome::Expired, _)),
            "{late:?}"
        );
        // The clock was set back since.
        replays.enter(&ahead(limit, Ask::Run), Outcome::Taken, &at(0));
        let judged = |number| verdict(&replays, &ahead(number, Ask::Run), -200_000);
        assert_eq!(judged(limit + FEW), take);
        assert!(matches!(judged(limit + FEW + 1), Verdict::Held(_)));
    }

    #[test]
    fn nothing_is_taken_at_or_below_a_floor_but_what_waits_already() {
        let mut replays = ReplayLedger::default();
        let named = |n: u64| Trigger {
            name: n.to_string().parse().expect("a name"),
            number: 1_000_000 + n,
            id: Id::from_bits(n.into()),
            ..trigger()
        };
        replays.enter(&named(1), Outcome::Held, &at(0));
        for n in 2..=MOST_NAMES as u64 + 1 {
            replays.enter(&named(n), Outcome::Cancelled, &at(0));
        }
        let take = Verdict::Take(trigger().lineage);
        assert_eq!(verdict(&replays, &named(1), 1), take);
        for n in [0, 2] {
            let late = verdict(&replays, &named(n), 1);
            assert_eq!(late, Verdict::Superseded(1_000_002));
        }
        assert_eq!(verdict(&replays, &named(5000), 1), take);
    }

    #[test]
    fn a_cancel_comes_in_time_or_too_late() {
        let mut replays = ReplayLedger::default();
        let back = |number| Trigger {
            ask: Ask::Cancel,
            number,
            ..trigger()
        };
        let settled = |outcome, why: &str| Verdict::Settled(outcome, why.to_owned());
        assert_eq!(
            verdict(&replays, &back(1_000_001), 1),
            settled(Outcome::Cancelled, "")
        );
        replays.enter(&trigger(), Outcome::Taken, &at(0));
        let too_late = settled(Outcome::TooLate, "it had been taken");
        assert_eq!(verdict(&replays, &back(1_000_001), 1), too_late);
        assert_eq!(verdict(&replays, &back(1_000_001), 7_200_000), too_late);
        // Of the newer one only; the older one's run is none of it.
        let newer = Trigger {
            id: Id::from_bits(8),
            ..back(1_000_002)
        };
        assert_eq!(
            verdict(&replays, &newer, 1),
            settled(Outcome::Cancelled, "")
        );
    }

    #[test]
    fn hops_are_counted_here_too() {
        let ways = |ways| Trigger {
            lineage: lineage(ways),
            ..trigger()
        };
        let replays = ReplayLedger::default();
        let refused = verdict(&replays, &ways(&["1: web1 lb1 x web1"]), 1);
        let why = "over 3 hops: lb1 -> x -> web1 -> lb1 ...".to_owned();
        assert_eq!(refused, Verdict::Settled(Outcome::Refused, why));
        let taken = verdict(&replays, &ways(&["1: web1 lb1 x web1", "2: web1"]), 1);
        assert_eq!(taken, Verdict::Take(lineage(&["2: web1"])));
    }

    #[test]
    fn a_sender_with_too_many_names_waits() {
        let mut replays = ReplayLedger::default();
        let named = |n: usize| Trigger {
            name: n.to_string().parse().expect("a name"),
            id: Id::from_bits(n as u128),
            ..trigger()
        };
        for n in 0..MOST_NAMES {
            replays.enter(&named(n), Outcome::Held, &at(0));
        }
        let new = named(MOST_NAMES);
        assert!(matches!(verdict(&replays, &new, 1), Verdict::Held(_)));
        let back = Trigger {
            ask: Ask::Cancel,
            ..new
        };
        assert!(matches!(verdict(&replays, &back, 1), Verdict::Held(_)));
    }

    #[derive(Debug, Clone)]
    enum Turn {
        /// One of the triggers comes, for the first time or again; it may have to wait here.
        Comes(prop::sample::Index, bool),
        /// Time passes.
        Passes(u64),
        /// The clock is set by so much.
        Jumps(i64),
        /// The machine starts anew.
        Reboots,
        /// The replays are gone through.
        Forgets,
    }

    fn turns() -> impl Strategy<Value = Vec<Turn>> {
        let day = i64::try_from(MOST_TTL).expect("small");
        let turn = prop_oneof![
            6 => any::<(prop::sample::Index, bool)>().prop_map(|(which, waits)| Turn::Comes(which, waits)),
            3 => prop_oneof![0..10_000_u64, 0..2 * MOST_TTL].prop_map(Turn::Passes),
            1 => (-2 * day..2 * day).prop_map(Turn::Jumps),
            1 => Just(Turn::Reboots),
            1 => Just(Turn::Forgets),
        ];
        prop::collection::vec(turn, 1..60)
    }

    proptest! {
        /// Whatever comes how often in whatever order, and whatever the clock does: no number is taken twice, and none after a higher one
        /// of its name. No id is, unless the clock was set back since expired ones were forgotten. What was taken is not cancelled.
        #[test]
        fn nothing_is_taken_twice(
            fired in prop::collection::vec((0..MOST_TTL, 0..=MOST_TTL, 0..3_u64, 0..3_u128, any::<bool>()), 1..8), turns in turns(),
        ) {
            let base = 100 * MOST_TTL;
            let triggers: Vec<Trigger> = fired.into_iter().map(|(at, ttl, above, id, back)| Trigger {
                ask: if back { Ask::Cancel } else { Ask::Run },
                id: Id::from_bits(id),
                name: (id % 2).to_string().parse().expect("a name"),
                at: base + at, number: base + at + above, ttl, ..trigger()
            }).collect();
            let (mut replays, mut now, mut boots) = (ReplayLedger::default(), moment("0", 0, base), 0);
            let (mut highest, mut taken) = (BTreeMap::new(), BTreeSet::new());
            let mut forgotten = Walltime::default();
            for turn in turns {
                match turn {
                    Turn::Passes(millis) => {
                        now.uptime = now.uptime + Span::from_nanos(millis * 1_000_000);
                        now.wall = now.wall + Span::from_nanos(millis * 1_000_000);
                    }
                    Turn::Jumps(millis) => now.wall = Walltime::from_millis(now.wall.millis().saturating_add_signed(millis)),
                    Turn::Reboots => {
                        boots += 1;
                        now = moment(&boots.to_string(), 0, now.wall.millis());
                    }
                    Turn::Forgets => {
                        forgotten = forgotten.max(now.wall);
                        let _ = replays.forget(&now);
                    }
                    Turn::Comes(which, waits) => {
                        let trigger = which.get(&triggers);
                        let outcome = match judge(&rules(), &replays, trigger, &now) {
                            Verdict::Take(_) if waits => Outcome::Held,
                            Verdict::Take(_) => {
                                let before = highest.insert(trigger.name.clone(), trigger.number);
                                prop_assert!(before.is_none_or(|before| before < trigger.number), "after {before:?}");
                                let is_new = taken.insert(trigger.id.clone());
                                prop_assert!(is_new || now.wall < forgotten, "{} again", trigger.id);
                                prop_assert!(trigger.fired() <= now.wall + SKEW && now.wall < trigger.expires() + SKEW);
                                Outcome::Taken
                            }
                            Verdict::Settled(outcome, _) => {
                                prop_assert!(outcome != Outcome::Cancelled || !taken.contains(&trigger.id));
                                outcome
                            }
                            Verdict::Held(_) | Verdict::Known(..) | Verdict::Superseded(_) => continue,
                        };
                        replays.enter(trigger, outcome, &now);
                    }
                }
            }
        }
    }
}
