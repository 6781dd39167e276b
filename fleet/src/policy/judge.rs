//! What a target makes of one register.
//!
//! It is asked twice: by the service, which lets nothing come near root that nobody accepted could have sent; and by the one
//! who takes, as root, with the books.

use again::model::{Moment, Span};

use super::accept::{Accept, Extensions};
use super::books::Books;
use super::lineage::{self, TooFar};
use super::lock::{self, Lock};
use super::term;
use crate::wire::lineage::Lineage;
use crate::wire::name::Node;
use crate::wire::outcome::Outcome;
use crate::wire::trigger::{Ask, Trigger};

/// What a node was set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The node.
    pub me: Node,
    /// Whom it listens to.
    pub accept: Accept,
    /// How far the clocks of two nodes may be apart.
    pub skew: Span,
    /// How many hops an origin may make.
    pub hop_limit: usize,
    /// The locks for which it is a candidate.
    pub locks: Vec<Lock>,
}

/// A trigger whose signature holds, and who signed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The certname of the signer.
    pub signer: Node,
    /// What else its certificate says.
    pub extensions: Extensions,
    /// What it signed.
    pub trigger: Trigger,
}

/// Why a register does not come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// It was not sent to here by whom it names. Nobody is told.
    Foreign(String),
    /// It was, but this node does not listen to the sender, who is told. Nothing is remembered of it.
    Refused(String),
}

/// Whether somebody sent this register here whom this node listens to.
///
/// # Errors
/// It does not come in, for this reason.
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
    // Nobody can sign a trigger of such a name: it comes from an event of this node, and a rule that wants that. The executor takes it only
    // if a run has left the event in the spool.
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

/// What is to be done with a trigger that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Run Puppet for it, with this lineage.
    Take(Lineage),
    /// Not yet; judge it again.
    Held(String),
    /// It will not be run; to be remembered.
    Settled(Outcome, String),
    /// This very number was settled before, or a higher one was.
    Known(Outcome, String),
}

/// Judges a trigger that came in.
pub fn judge(rules: &Rules, books: &Books, trigger: &Trigger, now: &Moment) -> Verdict {
    let seen = books.seen(&trigger.sender, &trigger.name);
    if let Some(seen) = seen.filter(|seen| seen.number == trigger.number) {
        return Verdict::Known(seen.outcome, seen.why.clone());
    }
    if let Some(seen) = seen.filter(|seen| seen.number > trigger.number) {
        let why = format!("number {} came before {}", seen.number, trigger.number);
        return Verdict::Known(Outcome::Superseded, why);
    }
    let taken = seen.and_then(|seen| seen.taken.as_ref());
    if trigger.ask == Ask::Cancel && taken == Some(&trigger.id) {
        return Verdict::Settled(Outcome::TooLate, "it had been taken".to_owned());
    }
    if books.time(now) >= trigger.expires() + rules.skew {
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
    if trigger.fired() > now.wall + rules.skew {
        let (fired, here) = (term::shown(trigger.fired()), term::shown(now.wall));
        return Verdict::Held(format!(
            "fired at {fired} by the clock of {}, here it is {here}",
            trigger.sender
        ));
    }
    fit(rules, books, trigger)
}

/// Judges a new trigger whose time is now.
fn fit(rules: &Rules, books: &Books, trigger: &Trigger) -> Verdict {
    let within = lineage::within(&trigger.lineage, &rules.me, rules.hop_limit);
    if within.lineage.0.is_empty() {
        let ways: Vec<String> = within.too_far.iter().map(TooFar::to_string).collect();
        return Verdict::Settled(Outcome::Refused, ways.join("; "));
    }
    if !books.has_room(&trigger.sender, &trigger.name) {
        let sender = &trigger.sender;
        return Verdict::Held(format!(
            "{sender} uses too many names; wait until some have expired"
        ));
    }
    Verdict::Take(within.lineage)
}

#[cfg(test)]
mod tests {
    use super::super::books::Which;
    use super::super::lineage::tests::{lineage, node};
    use super::super::term::tests::moment;
    use super::*;
    use crate::wire::name::Id;
    use crate::wire::trigger::MOST_TTL;
    use crate::wire::trigger::tests::trigger;
    use again::model::Walltime;
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

    fn verdict(books: &Books, trigger: &Trigger, millis: i64) -> Verdict {
        judge(&rules(), books, trigger, &at(millis))
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
        let books = Books::default();
        let take = Verdict::Take(trigger().lineage);
        let hour = 3_600_000;
        for millis in [-300_000, 0, hour, hour + 299_999] {
            assert_eq!(verdict(&books, &trigger(), millis), take, "{millis}");
        }
        assert!(matches!(
            verdict(&books, &trigger(), -300_001),
            Verdict::Held(_)
        ));
        let late = verdict(&books, &trigger(), hour + 300_000);
        assert!(
            matches!(late, Verdict::Settled(Outcome::Expired, _)),
            "{late:?}"
        );
    }

    #[test]
    fn a_wrong_clock_is_named() {
        let books = Books::default();
        assert_eq!(
            verdict(&books, &trigger(), -600_000),
            Verdict::Held("fired at 1970-01-01 00:16:40 UTC by the clock of web1, here it is 1970-01-01 00:06:40 UTC".to_owned())
        );
        let late = Verdict::Settled(
            Outcome::Expired,
            "fired at 1970-01-01 00:16:40 UTC for 1h, here it is 1970-01-01 02:16:40 UTC"
                .to_owned(),
        );
        assert_eq!(verdict(&books, &trigger(), 7_200_000), late);
    }

    #[test]
    fn a_number_counts_once() {
        let mut books = Books::default();
        books.enter(&Which::from(&trigger()), Outcome::Taken, "", SKEW, &at(0));
        let known = |outcome, why: &str| Verdict::Known(outcome, why.to_owned());
        assert_eq!(verdict(&books, &trigger(), 1), known(Outcome::Taken, ""));
        // Also when it would have expired by now.
        assert_eq!(
            verdict(&books, &trigger(), 7_200_000),
            known(Outcome::Taken, "")
        );
        let older = Trigger {
            number: 999_999,
            at: 999_999,
            ..trigger()
        };
        assert_eq!(
            verdict(&books, &older, 1),
            known(Outcome::Superseded, "number 1000000 came before 999999")
        );
        let newer = Trigger {
            number: 1_000_001,
            ..trigger()
        };
        assert_eq!(verdict(&books, &newer, 1), Verdict::Take(trigger().lineage));
        // Another name, or another sender, has numbers of its own.
        let other = Trigger {
            name: "b".parse().expect("a name"),
            ..older.clone()
        };
        assert_eq!(verdict(&books, &other, 1), Verdict::Take(trigger().lineage));
        let other = Trigger {
            sender: node("web2"),
            ..older
        };
        assert_eq!(verdict(&books, &other, 1), Verdict::Take(trigger().lineage));
    }

    #[test]
    fn what_has_been_forgotten_has_expired() {
        let mut books = Books::default();
        books.enter(&Which::from(&trigger()), Outcome::Taken, "", SKEW, &at(0));
        books.forget(&at(i64::try_from(MOST_TTL).expect("small") + 300_000));
        let again = verdict(&books, &trigger(), 1000);
        assert!(
            matches!(again, Verdict::Settled(Outcome::Expired, _)),
            "{again:?}"
        );
    }

    #[test]
    fn a_cancel_comes_in_time_or_too_late() {
        let mut books = Books::default();
        let back = |number| Trigger {
            ask: Ask::Cancel,
            number,
            ..trigger()
        };
        let settled = |outcome, why: &str| Verdict::Settled(outcome, why.to_owned());
        assert_eq!(
            verdict(&books, &back(1_000_001), 1),
            settled(Outcome::Cancelled, "")
        );
        // A clock that is behind holds nothing up: what is not to be run cannot come too early.
        assert_eq!(
            verdict(&books, &back(1_000_001), -900_000),
            settled(Outcome::Cancelled, "")
        );
        books.enter(&Which::from(&trigger()), Outcome::Taken, "", SKEW, &at(0));
        let too_late = settled(Outcome::TooLate, "it had been taken");
        assert_eq!(verdict(&books, &back(1_000_001), 1), too_late);
        assert_eq!(verdict(&books, &back(1_000_001), 7_200_000), too_late);
        // Of the newer one only; the older one's run is none of it.
        let newer = Trigger {
            id: Id::from_bits(8),
            ..back(1_000_002)
        };
        assert_eq!(verdict(&books, &newer, 1), settled(Outcome::Cancelled, ""));
    }

    #[test]
    fn hops_are_counted_here_too() {
        let ways = |ways| Trigger {
            lineage: lineage(ways),
            ..trigger()
        };
        let books = Books::default();
        let refused = verdict(&books, &ways(&["1: web1 lb1 x web1"]), 1);
        let why = "over 3 hops: lb1 -> x -> web1 -> lb1 ...".to_owned();
        assert_eq!(refused, Verdict::Settled(Outcome::Refused, why));
        let taken = verdict(&books, &ways(&["1: web1 lb1 x web1", "2: web1"]), 1);
        assert_eq!(taken, Verdict::Take(lineage(&["2: web1"])));
    }

    #[test]
    fn a_sender_with_too_many_names_waits() {
        let mut books = Books::default();
        for n in 0..super::super::books::MOST_NAMES {
            let name = n.to_string().parse().expect("a name");
            let which = Which {
                name,
                ..Which::from(&trigger())
            };
            books.enter(&which, Outcome::Taken, "", SKEW, &at(0));
        }
        assert!(matches!(verdict(&books, &trigger(), 1), Verdict::Held(_)));
    }

    #[derive(Debug, Clone)]
    enum Turn {
        /// One of the triggers comes, for the first time or again.
        Comes(prop::sample::Index),
        /// Time passes.
        Passes(u64),
        /// The clock is set by so much.
        Jumps(i64),
        /// The machine starts anew.
        Reboots,
        /// The books are gone through.
        Forgets,
    }

    fn turns() -> impl Strategy<Value = Vec<Turn>> {
        let day = i64::try_from(MOST_TTL).expect("small");
        let turn = prop_oneof![
            6 => any::<prop::sample::Index>().prop_map(Turn::Comes),
            3 => prop_oneof![0..10_000_u64, 0..2 * MOST_TTL].prop_map(Turn::Passes),
            1 => (-2 * day..2 * day).prop_map(Turn::Jumps),
            1 => Just(Turn::Reboots),
            1 => Just(Turn::Forgets),
        ];
        prop::collection::vec(turn, 1..60)
    }

    proptest! {
        /// Whatever comes how often in whatever order, and whatever the clock does: no number is taken twice, and none after a
        /// higher one.
        #[test]
        fn nothing_is_taken_twice(
            fired in prop::collection::vec((0..MOST_TTL, 0..=MOST_TTL, any::<bool>()), 1..6), turns in turns(),
        ) {
            let base = 100 * MOST_TTL;
            let triggers: Vec<Trigger> = fired.into_iter().enumerate().map(|(n, (at, ttl, back))| Trigger {
                ask: if back { Ask::Cancel } else { Ask::Run },
                id: Id::from_bits(n as u128),
                at: base + at, number: base + MOST_TTL + n as u64, ttl, ..trigger()
            }).collect();
            let (mut books, mut now, mut boots) = (Books::default(), moment("0", 0, base), 0);
            let mut highest = 0;
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
                    Turn::Forgets => books.forget(&now),
                    Turn::Comes(which) => {
                        let trigger = which.get(&triggers);
                        let outcome = match judge(&rules(), &books, trigger, &now) {
                            Verdict::Take(_) => {
                                prop_assert!(trigger.number > highest, "{} after {highest}", trigger.number);
                                prop_assert!(trigger.fired() <= now.wall + SKEW && now.wall < trigger.expires() + SKEW);
                                highest = trigger.number;
                                Outcome::Taken
                            }
                            Verdict::Settled(outcome, _) => outcome,
                            Verdict::Held(_) | Verdict::Known(..) => continue,
                        };
                        books.enter(&Which::from(trigger), outcome, "", SKEW, &now);
                    }
                }
            }
        }
    }
}
