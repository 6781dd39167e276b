//! `again-fleet slots`: the nodes that hold or wait for a slot; and `again-fleet release`.

use std::time::Instant;

use again_base::layout::{Look, Tone, complain, say};
use again_base::model::Walltime;
use again_base::sys::clock::walltime;
use again_base::sys::localtime::utc;
use again_base::sys::terminal::clean;
use serde_json::{Value, json};

use super::service::{Conversation, PATIENCE, done, socket};
use super::{Exit, Problem, clock};
use crate::ask::{Answer, Question};
use crate::cli::{Release, Slots};
use crate::policy::slots::{Line, Standing};
use crate::settings::{self, Flags, Surroundings};

/// Shows the slots.
///
/// # Errors
/// The service cannot be queried, or has no connection to the backend.
pub fn main(flags: &Flags, around: &Surroundings, args: &Slots) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let until = Instant::now() + PATIENCE;
    let question = Question::Slots(args.group.clone());
    let mut conversation = Conversation::begin(&socket(&settings), &question, until)?;
    let mut all: Vec<Standing> = Vec::new();
    conversation.each(until, |answer| match answer {
        Answer::Slot(slot, revision) => {
            let slot = *slot;
            all.push(Standing { slot, revision });
            true
        }
        _ => false,
    })?;
    let groups = Line::all(all.iter().collect());
    if args.json {
        let groups: Vec<Value> = groups.iter().map(json).collect();
        let version = env!("CARGO_PKG_VERSION");
        let all = json!({"schema": 1, "version": version, "groups": groups});
        say(&all.to_string())?;
        return Ok(Exit::Done);
    }
    if groups.is_empty() {
        complain("again-fleet: nobody runs or waits for a slot");
    }
    let (look, now) = (Look::of_this_process(), walltime());
    for line in &groups {
        let (limit, count) = (line.limit, line.run);
        let name = clean(line.nodes[0].slot.group.as_str());
        let heading = format!("{name}: {} of {limit} slots taken", count.min(limit));
        say(&look.paint(Tone::Heading, &heading))?;
        for (place, one) in line.nodes.iter().enumerate() {
            let (tone, state) = match line.may_run(place) {
                true => (Tone::Good, "runs"),
                false => (Tone::Attention, "waits"),
            };
            let since = clock(Walltime::from_millis(one.slot.since), now);
            let (state, why) = (look.paint(tone, state), clean(&one.slot.why));
            let node = &one.slot.node;
            say(&format!(
                "  {:>3}  {node}  {state} since {since}, {why}",
                place + 1
            ))?;
        }
    }
    Ok(Exit::Done)
}

fn json(line: &Line<'_>) -> Value {
    let node = |(place, one): (usize, &&Standing)| {
        let slot = &one.slot;
        json!({
            "node": slot.node,
            "place": place + 1,
            "runs": line.may_run(place),
            "since": utc(Walltime::from_millis(slot.since)),
            "why": slot.why,
            "limit": slot.limit,
        })
    };
    let nodes: Vec<Value> = line.nodes.iter().enumerate().map(node).collect();
    let group = line.nodes.first().map(|one| &one.slot.group);
    json!({"group": group, "limit": line.limit, "nodes": nodes})
}

/// Removes a node from the queue of a group.
///
/// # Errors
/// This node may not release it, the node is not in the queue, or the backend refuses.
pub fn release(flags: &Flags, around: &Surroundings, args: &Release) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let (group, node) = (args.group.clone(), args.node.clone());
    done(&settings, &Question::Release { group, node })?;
    let (group, node) = (&args.group, &args.node);
    say(&format!(
        "again-fleet: {node} has no place in group '{group}' any more; a run that has begun there goes on"
    ))?;
    Ok(Exit::Done)
}
