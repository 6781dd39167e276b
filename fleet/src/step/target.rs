//! The half that runs.
//!
//! A register is handed to those who take, who record it; then it is told, and removed at the revision that was judged. What
//! cannot be taken yet stays in the engine and is judged again.

use std::collections::BTreeMap;

use again::model::{Moment, Span, Walltime};

use super::letters;
use super::model::{
    Action, Answer, Content, Draft, Found, Letter, LetterId, Place, Register, Sight, Stage, State,
    TURN, result_key,
};
use crate::policy::books::Which;
use crate::policy::judge::{self, Signed, Unfit};
use crate::policy::term::Term;
use crate::wire::lineage::Lineage;
use crate::wire::name::Id;
use crate::wire::outcome::{self, Outcome, Ran, Stopped, Told};
use crate::wire::trigger::{Ask, Trigger};

/// How long what is held waits to be judged again, if nothing changes before.
const LOOK_AGAIN: Span = Span::from_secs(60);
/// How long until those who take are asked again, or the engine, after either failed.
const RETRY: Span = Span::from_secs(2);
/// How many strangers are told at a time that they are refused; they must not fill the outbox.
const MOST_REFUSALS: usize = 100;
/// How many origins that were stopped are remembered.
const MOST_STOPPED: usize = 1000;
/// How long a run that was taken may be away until nobody is told any more how it ended.
const LONGEST_RUN: Span = Span::from_secs(86_400);
/// How often that is looked at.
const LOOK_AT_RUNS: Span = Span::from_secs(3600);
/// How long another reason for the same outcome waits to be told: one that names the clock changes all the time.
const SAY_AGAIN: Span = Span::from_secs(600);

/// Registers stand in the engine. Those that come together are handed over together. An engine that began anew comes to the same
/// revisions.
pub(super) fn seen(state: &mut State, sights: Vec<Sight>, now: &Moment, out: &mut Vec<Action>) {
    for sight in sights {
        let known = state.registers.get(&sight.place);
        let is_known = known.is_some_and(|known| {
            let is_same = known.revision == sight.revision && known.found == sight.found;
            is_same && !matches!(known.found, Found::Unclear(_))
        });
        if !is_known {
            let register = Register {
                revision: sight.revision,
                found: sight.found,
                stage: Stage::New,
            };
            state
                .registers
                .insert(sight.place.clone(), Box::new(register));
            look(state, &sight.place, now, out);
        }
    }
    hand_over(state, out);
}

/// A register is gone.
pub(super) fn gone(state: &mut State, place: &Place) {
    state.registers.remove(place);
}

/// Sorts out what those who take need not see.
fn look(state: &mut State, place: &Place, now: &Moment, out: &mut Vec<Action>) {
    let Some(register) = state.registers.get(place) else {
        return;
    };
    let (sender, name) = place;
    let unfit = match &register.found {
        Found::Good(signed) if (&signed.trigger.sender, &signed.trigger.name) != (sender, name) => {
            Unfit::Foreign(format!("{} signed it for another place", signed.signer))
        }
        Found::Good(signed) => match judge::admit(&state.rules, signed) {
            Ok(()) => return queue(state, place, now, out),
            Err(unfit) => unfit,
        },
        Found::Bad(why) => Unfit::Foreign(why.clone()),
        Found::Unclear(why) => {
            out.push(Action::Note(format!(
                "'{name}' of {sender} cannot be judged: {why}"
            )));
            hold(state, place, LOOK_AGAIN, now);
            return;
        }
    };
    match unfit {
        Unfit::Foreign(why) => {
            out.push(Action::TurnedAway(format!(
                "'{name}' of {sender} is not from there: {why}"
            )));
        }
        Unfit::Refused(why) => {
            out.push(Action::TurnedAway(format!(
                "'{name}' of {sender} is refused: {why}"
            )));
            // Who has fired is told.
            if let Found::Good(Signed { trigger, .. }) = register.found.clone()
                && !name.is_of_a_rule()
                && refusals(state) < MOST_REFUSALS
            {
                let news = News {
                    lineage: &trigger.lineage,
                    outcome: Outcome::Refused,
                    why: &why,
                    ran: None,
                    above: None,
                    until: trigger.expires() + state.rules.skew,
                    again: true,
                };
                tell(state, &Which::from(&trigger), &news, now, out);
            }
        }
    }
    remove(state, place, out);
}

/// What is part of a rolling run waits for its turn, unless that came before, or its time is over: whoever takes it says what is so.
fn queue(state: &mut State, place: &Place, now: &Moment, out: &mut Vec<Action>) {
    let skew = state.rules.skew;
    let Some(register) = state.registers.get_mut(place) else {
        return;
    };
    let (Some(left), Found::Good(signed)) = (register.left(skew, now), &register.found) else {
        return;
    };
    let trigger = &signed.trigger;
    if trigger.at_once == 0 || trigger.ask != Ask::Run {
        return;
    }
    let which = Which::from(trigger);
    let letter = state.letters.get(&LetterId::Told(which.clone()));
    match letter.map(|letter| &letter.content) {
        Some(Content::Told { told, .. }) if told.outcome == Outcome::Halted => {
            let (outcome, why, trigger) = (told.outcome, told.why.clone(), trigger.clone());
            let answer = Answer {
                which,
                outcome,
                why,
                above: None,
            };
            return settle(state, answer, &trigger, now, out);
        }
        Some(Content::Told { told, .. }) if told.outcome != Outcome::Held || told.why == TURN => {
            return;
        }
        _ => {}
    }
    register.stage = Stage::Waits;
    out.push(Action::Queue(which, trigger.at_once));
    state.wake_at(now.uptime + left);
}

fn hold(state: &mut State, place: &Place, pause: Span, now: &Moment) {
    let until = now.uptime + pause;
    if let Some(register) = state.registers.get_mut(place) {
        register.stage = Stage::Held(until);
        state.wake_at(until);
    }
}

/// Has a register removed, unless the engine is lost: the next one may hold something else at this revision, and what it holds is
/// judged anew.
fn remove(state: &mut State, place: &Place, out: &mut Vec<Action>) {
    // An event is there for all nodes.
    if place.1.is_of_a_rule() {
        state.registers.remove(place);
        return;
    }
    if let Some(register) = state.registers.get_mut(place) {
        register.stage = Stage::Leaving;
        if state.is_linked {
            out.push(Action::Remove {
                place: place.clone(),
                revision: register.revision,
            });
        }
    }
}

/// Hands over all that is new, unless something is in hand already.
pub(super) fn hand_over(state: &mut State, out: &mut Vec<Action>) {
    if state.handed.is_some() {
        return;
    }
    let (mut places, mut handed) = (Vec::new(), BTreeMap::new());
    for (place, register) in &mut state.registers {
        if let (Stage::New, Found::Good(signed)) = (register.stage, &register.found) {
            register.stage = Stage::Handed;
            places.push((place.clone(), register.revision));
            handed.insert(
                Which::from(&signed.trigger),
                Box::new(signed.trigger.clone()),
            );
        }
    }
    if !places.is_empty() {
        state.handed = Some(handed);
        out.push(Action::HandOver(places));
    }
}

/// Those who take have answered. What they did not speak of is handed over again.
pub(super) fn answered(
    state: &mut State,
    answers: Vec<Answer>,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let mut handed = state.handed.take().unwrap_or_default();
    for answer in answers {
        if let Some(trigger) = handed.remove(&answer.which) {
            settle(state, answer, &trigger, now, out);
        }
    }
    retry(state, handed, now);
    hand_over(state, out);
}

/// What was judged is told, and removed or held.
pub(super) fn settle(
    state: &mut State,
    answer: Answer,
    trigger: &Trigger,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let place = (trigger.sender.clone(), trigger.name.clone());
    let releases = answer.outcome.releases();
    // A newer one may stand there by now.
    let stands = state
        .registers
        .get(&place)
        .is_some_and(|register| register.is(&answer.which));
    let until = trigger.expires() + state.rules.skew;
    let news = News {
        lineage: &trigger.lineage,
        outcome: answer.outcome,
        why: &answer.why,
        ran: None,
        above: answer.above,
        until,
        again: releases,
    };
    tell(state, &answer.which, &news, now, out);
    if stands && releases {
        remove(state, &place, out);
    } else if stands {
        hold(state, &place, LOOK_AGAIN, now);
    }
}

/// Those who take gave no answer. What they recorded they know by its number.
pub(super) fn not_handed(state: &mut State, why: &str, now: &Moment, out: &mut Vec<Action>) {
    let handed = state.handed.take().unwrap_or_default();
    out.push(Action::Note(format!(
        "{} triggers cannot be taken: {why}",
        handed.len()
    )));
    retry(state, handed, now);
}

fn retry(state: &mut State, handed: BTreeMap<Which, Box<Trigger>>, now: &Moment) {
    for which in handed.into_keys() {
        let place = (which.sender.clone(), which.name.clone());
        if state
            .registers
            .get(&place)
            .is_some_and(|register| register.is(&which))
        {
            hold(state, &place, RETRY, now);
        }
    }
}

/// The engine can be reached, perhaps another one, whose revisions mean something else.
pub(super) fn reached(state: &mut State) {
    state.registers.clear();
}

/// The engine answered a removal.
pub(super) fn removed(
    state: &mut State,
    place: &Place,
    revision: u64,
    answer: &Result<(), String>,
    now: &Moment,
) {
    let Some(register) = state.registers.get_mut(place) else {
        return;
    };
    // An answer about another register is none about this one.
    if register.revision != revision || register.stage != Stage::Leaving {
        return;
    }
    if answer.is_ok() {
        state.registers.remove(place);
    } else {
        let again = now.uptime + RETRY;
        register.stage = Stage::Settled(again);
        state.wake_at(again);
    }
}

/// Something became of a trigger that was taken.
pub(super) fn ran(
    state: &mut State,
    which: &Which,
    lineage: &Lineage,
    (outcome, why, ran): (Outcome, String, Option<Ran>),
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let news = News {
        lineage,
        outcome,
        why: &why,
        ran,
        above: None,
        until: now.wall,
        again: false,
    };
    tell(state, which, &news, now, out);
}

/// Origins were stopped at the hop limit, here or further on. Those who sent them here are told, and tell those before them: at
/// once where a run has ended already, else when it does.
pub(super) fn stopped(
    state: &mut State,
    stopped: impl IntoIterator<Item = Stopped>,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    for one in stopped {
        let came_here = state.letters.iter().filter_map(|(id, letter)| match id {
            LetterId::Told(which) if letter.content.comes_from(&one.origin) => Some(which.clone()),
            _ => None,
        });
        let came_here: Vec<Which> = came_here.collect();
        if came_here.is_empty() || state.stopped.contains_key(&one.origin) {
            continue;
        }
        if state.stopped.len() >= MOST_STOPPED {
            state.stopped.clear();
        }
        state.stopped.insert(one.origin, one.way);
        for which in came_here {
            tell_anew(state, &which, now, out);
        }
    }
}

/// Tells what became of a trigger once more, with the ways that were stopped since.
fn tell_anew(state: &mut State, which: &Which, now: &Moment, out: &mut Vec<Action>) {
    let id = LetterId::Told(which.clone());
    let Some(letter) = state.letters.get(&id) else {
        return;
    };
    let (version, term) = (letter.version + 1, letter.term.clone());
    let Content::Told { mut told, lineage } = letter.content.clone() else {
        return;
    };
    if !told.outcome.is_final() {
        return;
    }
    told.stopped = ways(state, &lineage);
    let draft = Draft {
        letter: id,
        version,
        content: Content::Told { told, lineage },
        term,
    };
    letters::write(state, vec![draft], now, out);
    only_newest(state, which);
}

/// The ways of these origins that were stopped.
fn ways(state: &State, lineage: &Lineage) -> Vec<Stopped> {
    let stopped = lineage.0.iter().filter_map(|origin| {
        let way = state.stopped.get(&origin.id)?.clone();
        let origin = origin.id.clone();
        Some(Stopped { origin, way })
    });
    stopped.collect()
}

/// Looks at all that is held again.
pub(super) fn look_again(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    wake_held(state, true, now, out);
}

/// Looks again at what is due.
pub(super) fn tick(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    wake_held(state, false, now, out);
}

fn wake_held(state: &mut State, all: bool, now: &Moment, out: &mut Vec<Action>) {
    let places: Vec<Place> = state.registers.keys().cloned().collect();
    for place in places {
        let Some(register) = state.registers.get_mut(&place) else {
            continue;
        };
        match register.stage {
            Stage::Held(until) if all || until <= now.uptime => {
                register.stage = Stage::New;
                look(state, &place, now, out);
            }
            Stage::Settled(until) if until <= now.uptime => remove(state, &place, out),
            Stage::Held(until) | Stage::Settled(until) => state.wake_at(until),
            Stage::Waits if all => {
                register.stage = Stage::New;
                look(state, &place, now, out);
            }
            Stage::Waits => match register.left(state.rules.skew, now) {
                Some(left) => state.wake_at(now.uptime + left),
                None => register.stage = Stage::New,
            },
            Stage::New | Stage::Handed | Stage::Leaving => {}
        }
    }
    hand_over(state, out);
}

/// How far along an outcome is: what is later is told, what is earlier is not told any more.
fn rank(outcome: Outcome) -> u8 {
    match outcome {
        // That a lower number comes again says nothing of what became of it the first time.
        Outcome::Held | Outcome::Refused | Outcome::Superseded => 0,
        Outcome::Taken => 1,
        Outcome::Started => 2,
        _ => 3,
    }
}

/// What there is to tell of a trigger.
pub(super) struct News<'a> {
    pub lineage: &'a Lineage,
    pub outcome: Outcome,
    pub why: &'a str,
    pub ran: Option<Ran>,
    /// The number above which it would have been taken, if it is superseded.
    pub above: Option<u64>,
    /// How long the sender may ask again by putting the same number.
    pub until: Walltime,
    /// Whether it asks again.
    pub again: bool,
}

/// Tells what became of a trigger, if that is new or asked for again.
pub(super) fn tell(
    state: &mut State,
    which: &Which,
    news: &News,
    now: &Moment,
    out: &mut Vec<Action>,
) {
    let id = LetterId::Told(which.clone());
    let why = outcome::words(news.why);
    let (mut version, mut until, mut ran) = (1, news.until, news.ran.clone());
    if let Some(letter) = state.letters.get_mut(&id)
        && let Content::Told { told, .. } = &letter.content
    {
        ran = ran.or_else(|| told.ran.clone());
        let is_same = (told.outcome, told.above) == (news.outcome, news.above)
            && told.ran == ran
            && (told.why == why
                || ![&*told.why, &why].contains(&TURN)
                    && now.wall.since(Walltime::from_millis(told.at)) < SAY_AGAIN);
        if is_same || rank(news.outcome) < rank(told.outcome) {
            if news.again {
                letter.left = letter.content.keys();
                only_newest(state, which);
                letters::send(state, &id, now, out);
            }
            return;
        }
        (version, until) = (letter.version + 1, until.max(letter.term.until));
    } else if !has_room(state, out) {
        let (outcome, name, sender) = (news.outcome, &which.name, &which.sender);
        out.push(Action::Note(format!(
            "too many results wait: '{name}' of {sender} is {outcome}, which is not told"
        )));
        return;
    }
    let told = Told {
        id: which.id.clone(),
        number: which.number,
        sender: which.sender.clone(),
        target: state.rules.me.clone(),
        name: which.name.clone(),
        outcome: news.outcome,
        why,
        at: now.wall.millis(),
        stopped: ways(state, news.lineage),
        ran,
        above: news.above,
    };
    let draft = Draft {
        letter: id,
        version,
        content: Content::Told {
            told,
            lineage: news.lineage.clone(),
        },
        term: Term {
            began: now.clone(),
            until,
        },
    };
    letters::write(state, vec![draft], now, out);
    only_newest(state, which);
}

/// Leaves the result register to the highest number of a sender and name that does not wait; what is older is told in the story
/// only.
fn only_newest(state: &mut State, which: &Which) {
    let id = |number, bits| {
        LetterId::Told(Which {
            number,
            id: Id::from_bits(bits),
            ..which.clone()
        })
    };
    let of_the_name = id(0, 0)..=id(u64::MAX, u128::MAX);
    // A trigger that is ahead of the clock may wait while one with a lower number is taken.
    let waits = |letter: &Letter| matches!(&letter.content, Content::Told { told, .. } if told.outcome == Outcome::Held);
    let all = state.letters.range(of_the_name.clone());
    let newest = all.max_by_key(|(id, letter)| (!waits(letter), *id));
    let newest = newest.map(|(id, _)| id.clone());
    for (id, letter) in state.letters.range_mut(of_the_name) {
        if let Content::Told { told, .. } = &letter.content
            && newest.as_ref() != Some(id)
            // The sender, whose clock may have been set back, has to hear that.
            && told.above.is_none()
        {
            letter.left.remove(&result_key(told));
        }
    }
}

/// Lets go of what was told, once the engine has it and nobody can ask again. What still runs is told when it ends.
pub(super) fn end(state: &mut State, now: &Moment, out: &mut Vec<Action>) {
    let goes_on = |letter: &Letter| {
        matches!(&letter.content, Content::Told { told, .. }
            if told.goes_on() && now.wall.since(Walltime::from_millis(told.at)) < LONGEST_RUN)
    };
    drop_told(state, out, |letter| {
        letter.term.is_over(now) && !goes_on(letter)
    });
    let mut letters = state.letters.values();
    if letters.any(|letter| letter.term.is_over(now) && goes_on(letter)) {
        state.wake_at(now.uptime + LOOK_AT_RUNS);
    }
}

/// Whether there is room for another result. If not, what the engine has is forgotten early: who asks again is answered by
/// those who take.
fn has_room(state: &mut State, out: &mut Vec<Action>) -> bool {
    if state.told >= letters::MOST {
        drop_told(state, out, |_| true);
    }
    state.told < letters::MOST
}

/// How many strangers are being told that they were refused.
fn refusals(state: &State) -> usize {
    let is_refusal = |letter: &&Letter| matches!(&letter.content, Content::Told { told, .. } if told.outcome == Outcome::Refused);
    state
        .letters
        .values()
        .filter(is_refusal)
        .take(MOST_REFUSALS)
        .count()
}

fn drop_told(state: &mut State, out: &mut Vec<Action>, is_meant: impl Fn(&Letter) -> bool) {
    let before = state.letters.len();
    state.letters.retain(|id, letter| {
        let goes = letter.is_told() && letter.left.is_empty() && is_meant(letter);
        if goes {
            out.push(Action::Forget {
                letter: id.clone(),
                number: None,
            });
        }
        !goes
    });
    state.told -= before - state.letters.len();
}
