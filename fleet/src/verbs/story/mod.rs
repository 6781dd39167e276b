//! `again-fleet story`: what followed from an origin, over all nodes.

/// How a story looks.
mod draw;
/// How a story looks as a picture of its own.
mod svg;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use again::layout::{Look, complain, say};
use again::sys::clock::moment;

use super::service::{Conversation, Heard, PATIENCE, socket};
use super::{Exit, Problem};
use crate::ask::{Answer, Question};
use crate::cli;
use crate::policy::story::Story;
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::name::{Id, Node};
use crate::wire::outcome::Entry;
use crate::wire::trigger::Trigger;

/// How often it is asked for news.
const TURN: Duration = Duration::from_secs(2);
/// How often in a row nothing may be left to come: what a run has fired last is told a moment after its end.
const LOOKS: u32 = 2;
/// How long nothing may change until nobody waits any more.
const IDLE: Duration = Duration::from_secs(3600);

/// Tells a story.
///
/// # Errors
/// Nobody has told any, or the service could not be asked.
pub fn main(flags: &Flags, around: &Surroundings, args: &cli::Story) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let story = look(&settings, args.id.as_ref())?;
    if args.follow {
        return follow(&settings, args, story);
    }
    match &story {
        Some(story) if args.svg => say(svg::svg(story).trim_end())?,
        Some(story) if args.dot => say(draw::dot(story).trim_end())?,
        Some(story) => show(story, args.json)?,
        None => return Err(Problem::Failed(nothing(args.id.as_ref()))),
    }
    Ok(Exit::Done)
}

fn show(story: &Story, json: bool) -> Result<(), Problem> {
    if json {
        say(&draw::json(story).to_string())?;
        return Ok(());
    }
    for line in draw::lines(story, &Look::of_this_process(), moment().wall) {
        say(&line)?;
    }
    Ok(())
}

fn nothing(id: Option<&Id>) -> String {
    let what = match id {
        Some(id) => format!("no node has told anything of {id}"),
        None => "no node has told any story".to_owned(),
    };
    format!(
        "{what}: stories are kept for a day, and 'again-fleet check' tells whether the engine is reached"
    )
}

/// Shows a story, and then whatever changes in it, until nothing is left to come.
fn follow(
    settings: &Settings,
    args: &cli::Story,
    mut story: Option<Story>,
) -> Result<Exit, Problem> {
    let mut wanted = args.id.clone();
    if wanted.is_none() && story.is_none() {
        return Err(Problem::Failed(nothing(None)));
    }
    let mut known: Option<BTreeMap<(Node, Id), String>> = None;
    let (mut looks, mut changed) = (0, Instant::now());
    loop {
        if let Some(story) = &story {
            wanted = Some(story.id.clone());
            let now = draw::states(story);
            if known.as_ref() != Some(&now) {
                match &known {
                    Some(known) if !args.json => news(known, &now)?,
                    _ => show(story, args.json)?,
                }
                known = Some(now);
                changed = Instant::now();
            }
            looks = if story.is_over() { looks + 1 } else { 0 };
            if looks >= LOOKS {
                return Ok(Exit::Done);
            }
        }
        if changed.elapsed() > IDLE {
            complain("again-fleet: nothing has changed for an hour; not everything is over");
            return Ok(Exit::NotInTime);
        }
        std::thread::sleep(TURN);
        story = look(settings, wanted.as_ref())?;
    }
}

type States = BTreeMap<(Node, Id), String>;

/// A line for all that is other than it was.
fn news(known: &States, now: &States) -> Result<(), Problem> {
    for (step, state) in now {
        if known.get(step) != Some(state) {
            say(&format!("again-fleet: {state}"))?;
        }
    }
    Ok(())
}

/// The story as it is known now. An id may be that of a trigger which is a part of it.
fn look(settings: &Settings, wanted: Option<&Id>) -> Result<Option<Story>, Problem> {
    let told = |origin: Option<&Id>| {
        let (entries, on_the_way) = ask(settings, origin)?;
        let now = moment().wall.millis();
        let times = [now, now.saturating_add(settings.skew.millis())];
        Ok::<_, Problem>(Story::of(entries, on_the_way, wanted, times))
    };
    match (told(wanted)?, wanted) {
        (None, Some(_)) => told(None),
        (story, _) => Ok(story),
    }
}

fn ask(settings: &Settings, origin: Option<&Id>) -> Result<(Vec<Entry>, Vec<Trigger>), Problem> {
    let question = Question::Story(origin.cloned());
    let until = || Instant::now() + PATIENCE;
    let mut conversation = Conversation::begin(&socket(settings), &question, until())?;
    let (mut entries, mut on_the_way) = (Vec::new(), Vec::new());
    loop {
        match conversation.next(until())? {
            Heard::Answer(Answer::Entry(entry)) => entries.push(*entry),
            Heard::Answer(Answer::OnTheWay(trigger)) => on_the_way.push(*trigger),
            Heard::Answer(Answer::End) => return Ok((entries, on_the_way)),
            Heard::Answer(Answer::NotSeen(why)) => {
                return Err(Problem::Failed(format!(
                    "what the nodes have told cannot be read: {why}; 'again-fleet check' tells what to do"
                )));
            }
            Heard::Answer(Answer::Refused(why)) => {
                return Err(conversation.problem(&format!("refuses: {why}")));
            }
            Heard::Answer(_) => {
                return Err(conversation.problem("answered something else than was asked"));
            }
            Heard::Silence => {
                let seconds = PATIENCE.as_secs();
                let what = format!(
                    "has not answered within {seconds} s; 'again-fleet check' tells how it is"
                );
                return Err(conversation.problem(&what));
            }
            Heard::End => return Err(conversation.problem("ended before it had answered")),
        }
    }
}
