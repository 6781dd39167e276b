//! `again-fleet story`: all runs that an origin caused, on all nodes.

/// A story as text, JSON and a graph.
mod draw;
/// A story as an SVG image.
mod svg;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use again_base::layout::{Look, complain, say};
use again_base::sys::clock::moment;

use super::service::{Conversation, PATIENCE, socket};
use super::{Exit, Problem};
use crate::ask::{Answer, Question};
use crate::cli;
use crate::policy::story::Story;
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::name::{Id, Node};
use crate::wire::outcome::Entry;
use crate::wire::trigger::Trigger;

/// Pause between two reads.
const TURN: Duration = Duration::from_secs(2);
/// Number of reads in a row that must show a finished story: the last triggers of a run are
/// published a moment after its end.
const LOOKS: u32 = 2;
/// Time for the service to read a story: etcd takes some seconds to sort many keys.
const READING: Duration = Duration::from_secs(30);
/// Time without a change after which following ends.
const IDLE: Duration = Duration::from_secs(3600);

/// A story as read at one time.
#[derive(Default)]
struct Known {
    /// The story; `None` if no node has published any of it.
    story: Option<Story>,
    /// Part of the story that was read, in words, if it was not read completely.
    part: Option<String>,
    /// Part of all stories that was read to find the newest, if they were not read completely: a
    /// newer one may be missing.
    others: Option<String>,
}

impl Known {
    fn is_complete(&self) -> bool {
        self.part.is_none()
    }

    /// Whether the story is complete and finished.
    fn is_over(&self) -> bool {
        self.is_complete() && self.story.as_ref().is_some_and(Story::is_over)
    }

    /// Warning about parts that may be missing.
    fn warning(&self) -> Option<String> {
        let part = self.part.iter();
        let part = part.map(|words| format!("this story may not be complete: {words}"));
        let others = self.others.iter();
        let others = others.map(|words| format!("a newer story may be missing: {words}"));
        let all: Vec<String> = part.chain(others).collect();
        (!all.is_empty()).then(|| format!("again-fleet: warning: {}", all.join("; ")))
    }
}

/// Shows a story.
///
/// # Errors
/// There is no story, or the service cannot be queried.
pub fn main(flags: &Flags, around: &Surroundings, args: &cli::Story) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let known = look(&settings, args.id.as_ref())?;
    if args.follow {
        return follow(&settings, args, known);
    }
    if let (Some(_), Some(warning)) = (&known.story, known.warning()) {
        complain(&warning);
    }
    match &known.story {
        Some(story) if args.svg => say(svg::svg(story).trim_end())?,
        Some(story) if args.dot => say(draw::dot(story).trim_end())?,
        Some(story) => show(story, args.json, known.is_complete())?,
        None => return Err(Problem::Failed(nothing(args.id.as_ref(), known.part))),
    }
    Ok(Exit::Done)
}

fn show(story: &Story, json: bool, is_complete: bool) -> Result<(), Problem> {
    if json {
        say(&draw::json(story, is_complete).to_string())?;
        return Ok(());
    }
    for line in draw::lines(story, &Look::of_this_process(), moment().wall) {
        say(&line)?;
    }
    Ok(())
}

fn nothing(id: Option<&Id>, part: Option<String>) -> String {
    let what = match id {
        Some(id) => format!("no node has told anything of {id}"),
        None => "no node has told any story".to_owned(),
    };
    if let Some(part) = part {
        return format!("{what} in what was read, which is not everything: {part}");
    }
    format!(
        "{what}: stories are kept for a day, and 'again-fleet check' tells whether the backend is reached"
    )
}

/// Shows a story and its changes until it is finished.
fn follow(settings: &Settings, args: &cli::Story, mut now: Known) -> Result<Exit, Problem> {
    let mut wanted = args.id.clone();
    if wanted.is_none() && now.story.is_none() {
        return Err(Problem::Failed(nothing(None, now.part)));
    }
    let mut shown: Option<(States, bool)> = None;
    let (mut looks, mut changed, mut has_warned) = (0, Instant::now(), false);
    loop {
        if let (Some(warning), false) = (now.warning(), has_warned) {
            complain(&warning);
            has_warned = true;
        }
        if let Some(story) = &now.story {
            wanted = Some(story.id.clone());
            let new = (draw::states(story), now.is_complete());
            if shown.as_ref() != Some(&new) {
                match &shown {
                    Some((states, _)) if !args.json => news(states, &new.0)?,
                    _ => show(story, args.json, now.is_complete())?,
                }
                shown = Some(new);
                changed = Instant::now();
            }
        }
        looks = if now.is_over() { looks + 1 } else { 0 };
        if looks >= LOOKS {
            return Ok(Exit::Done);
        }
        if changed.elapsed() > IDLE {
            let rest = match now.is_complete() {
                true => "not everything is over",
                false => "not everything was read",
            };
            complain(&format!(
                "again-fleet: nothing has changed for an hour; {rest}"
            ));
            return Ok(Exit::NotInTime);
        }
        std::thread::sleep(TURN);
        now = look(settings, wanted.as_ref())?;
    }
}

type States = BTreeMap<(Node, Id), String>;

/// Prints a line for each step that has changed.
fn news(known: &States, now: &States) -> Result<(), Problem> {
    for (step, state) in now {
        if known.get(step) != Some(state) {
            say(&format!("again-fleet: {state}"))?;
        }
    }
    Ok(())
}

/// Reads a story. The id may be that of a trigger that is part of a story.
fn look(settings: &Settings, wanted: Option<&Id>) -> Result<Known, Problem> {
    let read = |origin: Option<&Id>, wanted: Option<&Id>| {
        let (entries, on_the_way, part) = ask(settings, origin)?;
        let now = moment().wall.millis();
        let times = [now, now.saturating_add(settings.skew.millis())];
        let story = Story::of(entries, on_the_way, wanted, times);
        let others = None;
        Ok::<_, Problem>(Known {
            story,
            part,
            others,
        })
    };
    let mut known = read(wanted, wanted)?;
    if known.story.is_none() && wanted.is_some() {
        known = read(None, wanted)?;
    }
    // A read of the story's own id returns fewer entries than one of all stories.
    let id = known.story.as_ref().map(|story| story.id.clone());
    if let Some(id) = id.filter(|id| !known.is_complete() && wanted != Some(id)) {
        let own = read(Some(&id), Some(&id))?;
        if own.story.is_some() {
            let others = known.part.filter(|_| wanted.is_none());
            known = Known { others, ..own };
        }
    }
    Ok(known)
}

/// Entries, triggers on their way, and the part that was read if it was not everything.
type Read = (Vec<Entry>, Vec<Trigger>, Option<String>);

fn ask(settings: &Settings, origin: Option<&Id>) -> Result<Read, Problem> {
    let question = Question::Story(origin.cloned());
    let begun = Instant::now() + PATIENCE;
    let mut conversation = Conversation::begin(&socket(settings), &question, begun)?;
    let (mut entries, mut on_the_way, mut part) = (Vec::new(), Vec::new(), None);
    loop {
        match conversation.answer(Instant::now() + READING, READING)? {
            Answer::Entry(entry) => entries.push(*entry),
            Answer::OnTheWay(trigger) => on_the_way.push(*trigger),
            Answer::Incomplete(words) => part = Some(words),
            Answer::End => return Ok((entries, on_the_way, part)),
            Answer::NotSeen(why) => {
                return Err(Problem::Failed(format!(
                    "what the nodes have told cannot be read: {why}; 'again-fleet check' tells what to do"
                )));
            }
            _ => return Err(conversation.problem("answered something else than was asked")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::story::tests::entry;

    #[test]
    fn story_of_which_a_part_was_read_is_not_over() {
        let known = |part: Option<&str>| Known {
            story: Story::of(vec![entry(1, "a b", 1, 2, None)], vec![], None, [3; 2]),
            part: part.map(str::to_owned),
            others: Some("only the newest 9 values".to_owned()),
        };
        assert!(known(None).is_over());
        assert!(!known(Some("only the newest 9 values")).is_over());
        assert!(!Known::default().is_over());
    }
}
