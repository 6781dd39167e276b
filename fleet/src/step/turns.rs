//! Order in which senders are served: they take turns, so that one with many triggers delays
//! another by at most one request to the executor.

use std::collections::BTreeMap;

use super::model::{Action, Found, Handed, Place, Stage, State};
use crate::handover::MOST_TOGETHER;
use crate::policy::replay::TriggerKey;
use crate::wire::name::Node;

impl State {
    /// Trigger at a place, and its evidence for the executor.
    pub fn evidence(&self, place: &Place) -> Option<Handed> {
        let register = self.registers.get(place)?;
        let trigger = register.trigger()?;
        Some((TriggerKey::from(trigger), register.evidence.clone()))
    }

    /// Number of the trigger at a place.
    pub fn number(&self, place: &Place) -> Option<u64> {
        self.registers.get(place)?.trigger().map(|one| one.number)
    }
}

/// Sends new triggers to the executor, as many as one request may have, unless a request is under
/// way.
pub(super) fn hand_over(state: &mut State, out: &mut Vec<Action>) {
    if state.handed.is_some() {
        return;
    }
    let (mut places, mut handed) = (Vec::new(), BTreeMap::new());
    for place in next(state) {
        if let Some(register) = state.registers.get_mut(&place)
            && let Found::Good(signed) = &register.found
        {
            register.stage = Stage::Handed;
            let trigger = signed.trigger.clone();
            places.push((place, register.revision));
            handed.insert(TriggerKey::from(&trigger), Box::new(trigger));
        }
    }
    if !places.is_empty() {
        state.served = places.last().map(|((sender, _), _)| sender.clone());
        state.handed = Some(handed);
        out.push(Action::HandOver(places));
    }
}

/// Next values: one of each sender in turn, beginning after the sender that was served last; of
/// each sender the lowest numbers first.
fn next(state: &State) -> Vec<Place> {
    let mut senders: BTreeMap<&Node, Vec<(u64, &Place)>> = BTreeMap::new();
    for (place, register) in &state.registers {
        if let (Stage::New, Found::Good(signed)) = (register.stage, &register.found) {
            let waiting = senders.entry(&place.0).or_default();
            waiting.push((signed.trigger.number, place));
        }
    }
    for waiting in senders.values_mut() {
        waiting.sort_unstable();
    }
    let is_later = |sender: &Node| state.served.as_ref().is_none_or(|served| sender > served);
    let (later, earlier): (Vec<_>, Vec<_>) =
        senders.iter().partition(|(sender, _)| is_later(sender));
    let order: Vec<&Vec<(u64, &Place)>> =
        later.into_iter().chain(earlier).map(|one| one.1).collect();
    let rounds = (0..MOST_TOGETHER).flat_map(|round| {
        let of_a_round = order.iter().filter_map(move |waiting| waiting.get(round));
        of_a_round.map(|(_, place)| (*place).clone())
    });
    rounds.take(MOST_TOGETHER).collect()
}

#[cfg(test)]
mod tests {
    use super::super::model::{Register, State};
    use super::*;
    use crate::handover::Evidence;
    use crate::policy::accept::Accept;
    use crate::policy::judge::{Rules, Signed};
    use crate::policy::lineage::tests::node;
    use crate::policy::term::tests::moment;
    use crate::wire::trigger::Trigger;
    use crate::wire::trigger::tests::trigger;
    use again_base::model::Span;
    use proptest::prelude::*;

    /// A service with this number of triggers of each sender.
    fn state(of_each: &[usize]) -> State {
        let rules = Rules {
            me: node("lb1"),
            accept: Accept::default(),
            skew: Span::from_secs(300),
            hop_limit: 3,
            locks: vec![],
        };
        let mut state = State::new(rules, Default::default(), [], &moment("a", 0, 0));
        for (sender, count) in of_each.iter().enumerate() {
            for n in 0..*count {
                let trigger = Trigger {
                    sender: node(&format!("n{sender:02}")),
                    name: n.to_string().parse().expect("a name"),
                    // The names of the newest come first.
                    number: (10_000 - n) as u64,
                    ..trigger()
                };
                let place = (trigger.sender.clone(), trigger.name.clone());
                let signed = Signed {
                    signer: trigger.sender.clone(),
                    extensions: Default::default(),
                    trigger,
                };
                let register = Register {
                    revision: 1,
                    found: Found::Good(signed),
                    evidence: Evidence::Register(Vec::new()),
                    stage: Stage::New,
                };
                state.registers.insert(place, Box::new(register));
            }
        }
        state
    }

    /// Senders and numbers of the next hand-over, which is answered.
    fn served(state: &mut State) -> Vec<(Place, u64)> {
        let mut out = Vec::new();
        hand_over(state, &mut out);
        let handed = state.handed.take().unwrap_or_default();
        assert!(handed.len() <= MOST_TOGETHER);
        let places = match out.pop() {
            Some(Action::HandOver(places)) => places,
            other => panic!("{other:?}"),
        };
        let number = |place: &Place| {
            let which = handed
                .keys()
                .find(|which| which.name == place.1 && which.sender == place.0);
            which.expect("handed").number
        };
        let numbers: Vec<(Place, u64)> = places
            .into_iter()
            .map(|(place, _)| (place.clone(), number(&place)))
            .collect();
        for (place, _) in &numbers {
            state.registers.remove(place);
        }
        numbers
    }

    #[test]
    fn sender_with_thousands_of_triggers_delays_another_by_one_hand_over() {
        let mut state = state(&[5000, 0]);
        assert_eq!(served(&mut state).len(), MOST_TOGETHER);
        let other = self::state(&[0, 1]).registers;
        state.registers.extend(other);
        let next = served(&mut state);
        assert!(
            next.iter().any(|((sender, _), _)| *sender == node("n01")),
            "{next:?}"
        );
    }

    proptest! {
        /// Whatever the senders have: each of them is in one of as many hand-overs as it takes to name all of them, and of each
        /// sender the lowest numbers come first.
        #[test]
        fn everyone_is_served_by_turns(of_each in prop::collection::vec(1..80_usize, 1..70)) {
            let mut state = state(&of_each);
            let mut seen = std::collections::BTreeMap::new();
            let rounds = of_each.len().div_ceil(MOST_TOGETHER);
            for round in 0.. {
                if state.registers.is_empty() {
                    break;
                }
                for ((sender, _), number) in served(&mut state) {
                    let before = seen.insert(sender, number);
                    prop_assert!(before.is_none_or(|before| before < number));
                }
                prop_assert!(round + 1 < rounds || seen.len() == of_each.len());
            }
        }
    }
}
