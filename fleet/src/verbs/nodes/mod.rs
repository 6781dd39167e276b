//! `again-fleet nodes`: the nodes of the fleet and their state; and `again-fleet forget`.

/// `--follow`: watches the backend and shows changes.
mod follow;
/// Nodes that need attention.
mod live;
/// Nodes and their inventories.
mod roster;

use std::time::Instant;

use again_base::layout::{Look, complain, plural, say};
use again_base::sys::clock::walltime;
use again_base::sys::localtime::utc;
use serde_json::{Value, json};

use self::roster::Columns;
pub use self::roster::Roster;
use super::service::{Conversation, PATIENCE, done, socket};
use super::{Exit, Problem};
use crate::ask::Question;
use crate::cli::{Forget, Nodes};
use crate::policy::select::Selection;
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::shown;

impl Roster {
    /// The nodes that the service of this node reads in the backend, or its last inventory.
    ///
    /// # Errors
    /// The service cannot be queried, or neither has a connection to the backend nor a last
    /// inventory.
    pub fn of(settings: &Settings) -> Result<Roster, Problem> {
        let until = Instant::now() + PATIENCE;
        let mut conversation = Conversation::begin(&socket(settings), &Question::Nodes, until)?;
        let mut roster = Roster::default();
        conversation.each(until, |answer| roster.hear(answer))?;
        roster.judge(walltime(), settings.skew);
        Ok(roster)
    }

    /// Warns of nodes with incomplete information, and of each fact that the conditions of a
    /// selection need and no node publishes.
    pub fn warn(&self, selection: &Selection) {
        for warning in self.warnings(walltime()) {
            complain(&format!("again-fleet: warning: {warning}"));
        }
        for fact in self.unpublished(selection) {
            complain(&format!(
                "again-fleet: warning: no node publishes the fact '{}'; name it in published_facts of common::again::fleet",
                shown(fact)
            ));
        }
    }
}

/// Shows the nodes.
///
/// # Errors
/// The service cannot be queried, or neither has a connection to the backend nor a last inventory.
pub fn main(flags: &Flags, around: &Surroundings, args: &Nodes) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let selection = args.select.selection();
    if args.follow {
        return follow::main(&settings, selection);
    }
    let roster = Roster::of(&settings)?;
    roster.warn(&selection);
    let (meant, is_stored) = (roster.meant(&selection), roster.stored.is_some());
    if args.json {
        let nodes = meant.iter().map(|(node, one)| one.json(node, is_stored));
        let nodes: Vec<Value> = nodes.collect();
        let stored = roster.stored.as_ref();
        let stored = stored.map(|(at, why)| json!({"at": utc(*at), "why": why}));
        let (version, warnings) = (env!("CARGO_PKG_VERSION"), roster.warnings(walltime()));
        let all = json!({"schema": 1, "version": version, "stored": stored, "warnings": warnings, "ignored": roster.ignored(), "nodes": nodes});
        say(&all.to_string())?;
        return Ok(Exit::Done);
    }
    if meant.is_empty() {
        let all = roster.meant(&Selection::default()).len();
        let s = plural(all);
        complain(&format!(
            "again-fleet: none of {all} node{s} meets the conditions"
        ));
        return Ok(Exit::Done);
    }
    let now = walltime();
    let rows = meant.iter();
    let rows = rows.map(|(node, one)| one.row(node, now, is_stored));
    for line in Columns::default().table(rows.collect(), &Look::of_this_process()) {
        say(&line)?;
    }
    Ok(Exit::Done)
}

/// Removes the inventory of a node.
///
/// # Errors
/// The node is connected or has published nothing, or the backend refuses.
pub fn forget(flags: &Flags, around: &Surroundings, args: &Forget) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    done(&settings, &Question::Forget(args.node.clone()))?;
    let node = &args.node;
    say(&format!(
        "again-fleet: {node} is forgotten, until it is there again"
    ))?;
    Ok(Exit::Done)
}
