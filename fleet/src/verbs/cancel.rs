//! `again-fleet cancel`: cancels triggers that their targets have not accepted yet.

use std::time::{Duration, Instant};

use again_base::layout::{Look, complain, say};
use again_base::sys::clock::moment;
use serde_json::json;

use super::progress::ProgressTable;
use super::screen::Screen;
use super::service::PATIENCE;
use super::trigger::{ask, reply_json, wait};
use super::{Exit, Problem, named};
use crate::ask::Question;
use crate::cli::Cancel;
use crate::settings::{self, Flags, Surroundings};
use crate::step::model::Back;

/// Time to wait for the targets to report whether they were in time. A later report changes
/// nothing: the trigger is cancelled anyway.
const TARGETS: Duration = Duration::from_secs(5);

/// Cancels triggers.
///
/// # Errors
/// The service cannot be asked.
pub fn main(flags: &Flags, around: &Surroundings, args: &Cancel) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let what = match (&args.id, &args.to) {
        (Some(id), _) => Back::Id(id.clone()),
        (None, Some(node)) => Back::To(node.clone()),
        (None, None) => {
            let what = "say what to take back: the id of a trigger, or --to NODE";
            return Err(Problem::Usage(what.to_owned()));
        }
    };
    let began = Instant::now();
    let about = match &what {
        Back::Id(id) => format!("with the id {id}"),
        Back::To(node) => format!("for {node}"),
    };
    let question = Question::TakeBack { what, wait: true };
    let (mut conversation, reply) = ask(&settings, &question, began + PATIENCE)?;
    let mut progress = ProgressTable::of_cancels(&reply);
    let is_selection = reply.is_selection_cancelled();
    if is_selection && !args.json {
        let what = match &args.id {
            Some(_) => "the stored selection is removed".to_owned(),
            None => format!("no stored selection is sent any more {about}"),
        };
        say(&format!("again-fleet: {what}"))?;
    }
    if reply.targets.is_empty() && is_selection {
        if args.json {
            say(&reply_json(&reply, None).to_string())?;
        }
        return Ok(Exit::Done);
    }
    if reply.targets.is_empty() {
        let nothing = format!(
            "nothing to take back: no trigger {about} is on its way from here; what a node has taken is its own"
        );
        if args.json {
            say(&reply_json(&reply, Some(&progress)).to_string())?;
        }
        complain(&format!("again-fleet: {nothing}"));
        return Ok(Exit::Failed);
    }
    if !args.json {
        for line in reply.lines("the cancellation is ", moment().wall) {
            say(&format!("again-fleet: {line}"))?;
        }
    }
    // Reports within so short a time are printed together.
    let screen = Screen::new(true);
    let until = Instant::now() + TARGETS;
    wait(&mut conversation, &mut progress, screen, (began, until))?;
    if args.json {
        let mut all = reply_json(&reply, Some(&progress));
        all["open"] = json!(progress.open());
        say(&all.to_string())?;
    } else {
        let look = Look::of_this_process();
        for row in progress.table(&look) {
            say(&row)?;
        }
        let open = progress.open();
        if !open.is_empty() {
            let open = named(&open);
            say(&format!(
                "again-fleet: not known yet of {open}; what is not taken by then is taken back when the node is there"
            ))?;
        }
    }
    if let Some(error) = reply.error() {
        complain(&format!("again-fleet: error: not taken back {error}"));
        return Ok(Exit::Failed);
    }
    Ok(progress.exit())
}
