//! PURE: requests to `again` for triggers that are accepted together.

use again_base::model::Span;
use again_base::schema::origin::{self, Word};

use crate::policy::lineage::merged;
use crate::policy::pace::{self, Pace};
use crate::wire::lineage::Lineage;
use crate::wire::trigger::Trigger;

/// Trigger that is to be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Index of the trigger among those that were passed in.
    pub at: usize,
    /// Trigger as its sender signed it.
    pub trigger: Trigger,
    /// Lineage without the origins beyond the limit on hops.
    pub lineage: Lineage,
}

/// Request to `again`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order<'a> {
    /// Minimum wait of the run, in whole seconds.
    pub delta: Span,
    /// Argument of `--origin`: the origins, the jitter and the triggers.
    pub word: Word,
    /// Triggers of the request.
    pub members: Vec<&'a Taken>,
}

/// Requests for these triggers: one for those with the shortest delta, and one for all others. A
/// run that is early enough for the first is too early for the others, and `again` keeps one due
/// time and a later one.
pub fn orders<'a>(taken: &'a [Taken], pace: &Pace, skew: Span) -> Vec<Order<'a>> {
    let soonest = taken.iter().map(delta).min();
    let (soon, later): (Vec<&Taken>, Vec<&Taken>) =
        taken.iter().partition(|one| Some(delta(one)) == soonest);
    let groups = [soon, later].into_iter().filter(|group| !group.is_empty());
    groups.map(|group| order(group, pace, skew)).collect()
}

fn order<'a>(members: Vec<&'a Taken>, pace: &Pace, skew: Span) -> Order<'a> {
    let delta = members
        .iter()
        .map(|one| delta(one))
        .max()
        .unwrap_or_default();
    // The trigger with the shortest jitter decides when the run starts for all.
    let jitter = members
        .iter()
        .map(|one| pace::range(pace, delta, one.trigger.together(), one.lineage.hops()))
        .min();
    let origins = merged(members.iter().map(|one| &one.lineage));
    let numbered = members
        .iter()
        .map(|one| numbered(&one.trigger, skew))
        .collect();
    Order {
        delta,
        word: Word::new(origins.0, jitter.unwrap_or_default(), numbered),
        members,
    }
}

/// Trigger with the number by which `again` recognizes it. The clocks may differ by `skew`.
fn numbered(trigger: &Trigger, skew: Span) -> origin::Trigger {
    origin::Trigger {
        id: trigger.id.clone(),
        sender: trigger.sender.clone(),
        name: trigger.name.clone(),
        number: trigger.number,
        until: trigger.expires() + skew,
    }
}

/// Delta in whole seconds, the unit of `again`, rounded up.
fn delta(one: &Taken) -> Span {
    Span::from_secs(one.trigger.delta.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::name::Id;
    use crate::wire::trigger::tests::trigger;
    use proptest::prelude::*;

    fn taken(at: usize, delta: u64, targets: u32, hops: usize) -> Taken {
        let mut trigger = Trigger {
            delta,
            targets,
            number: at as u64,
            ..trigger()
        };
        trigger.lineage.0[0].path = vec![trigger.sender.clone(); hops];
        trigger.lineage.0[0].id = Id::from_bits(at as u128);
        let lineage = trigger.lineage.clone();
        Taken {
            at,
            trigger,
            lineage,
        }
    }

    fn asked(taken: &[Taken]) -> Vec<(u64, u64, Vec<usize>)> {
        let orders = orders(taken, &Pace::default(), Span::from_secs(300));
        let shown = orders.iter().map(|order| {
            (
                order.delta.secs(),
                order.word.jitter().millis(),
                order.members.iter().map(|one| one.at).collect(),
            )
        });
        shown.collect()
    }

    #[test]
    fn what_may_run_together_is_asked_for_once() {
        assert_eq!(asked(&[]), []);
        assert_eq!(
            asked(&[taken(0, 0, 1, 1), taken(1, 0, 1000, 1), taken(2, 0, 1, 3)]),
            [(0, 0, vec![0, 1, 2])]
        );
        let orders = [
            taken(0, 60_000, 1, 1),
            taken(1, 0, 1, 1),
            taken(2, 1, 2, 1),
            taken(3, 120_000, 1, 2),
        ];
        assert_eq!(asked(&orders), [(0, 0, vec![1]), (120, 0, vec![0, 2, 3])]);
    }

    #[test]
    fn many_targets_and_many_hops_wait_longer() {
        assert_eq!(asked(&[taken(0, 0, 3, 1)]), [(0, 100, vec![0])]);
        assert_eq!(asked(&[taken(0, 0, 1, 2)]), [(0, 2000, vec![0])]);
        assert_eq!(
            asked(&[taken(0, 0, 1, 5), taken(1, 0, 1, 4)]),
            [(0, 4000, vec![0, 1])]
        );
    }

    #[test]
    fn the_word_has_all_numbers_and_origins() {
        let both = [taken(0, 0, 1, 1), taken(1, 0, 1, 1)];
        let orders = orders(&both, &Pace::default(), Span::from_secs(300));
        let word = &orders[0].word;
        let numbers: Vec<u64> = word.triggers.iter().map(|one| one.number).collect();
        assert_eq!((numbers, word.origins.len()), (vec![0, 1], 2));
        assert_eq!(
            word.triggers[0].until.millis(),
            1_000_000 + 3_600_000 + 300_000
        );
    }

    proptest! {
        /// Nobody runs early, nobody is left out, and two requests are enough.
        #[test]
        fn never_early(wanted in prop::collection::vec((0..5_u64, 1..9_u32, 1..9_usize), 1..9)) {
            let taken: Vec<Taken> = wanted.iter().enumerate().map(|(at, (delta, targets, hops))| taken(at, delta * 700, *targets, *hops)).collect();
            let orders = orders(&taken, &Pace::default(), Span::ZERO);
            prop_assert!(orders.len() <= 2);
            let mut members = Vec::new();
            for order in &orders {
                for one in &order.members {
                    prop_assert!(order.delta.millis() >= one.trigger.delta);
                    members.push(one.at);
                }
            }
            prop_assert!(orders.is_sorted_by(|a, b| a.delta < b.delta));
            members.sort_unstable();
            prop_assert_eq!(members, (0..taken.len()).collect::<Vec<_>>());
            // The first one is not late for the sake of others.
            prop_assert_eq!(orders[0].delta.secs(), taken.iter().map(|one| one.trigger.delta.div_ceil(1000)).min().unwrap_or(0));
        }
    }
}
