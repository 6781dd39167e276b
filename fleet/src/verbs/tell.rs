//! `again-fleet tell`: a run publishes the node's inventory when its catalog is known, and its
//! outcome when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, stdin};

use again_base::sys::clock::walltime;
use serde::Deserialize;
use serde_json::Value;

use super::service::done;
use super::{Exit, Problem, run};
use crate::ask::Question;
use crate::cli::Tell;
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::inventory::{Inventory, MOST_TEXT};
use crate::wire::outcome::{self, Outcome};

/// Longest input, in bytes.
const LONGEST: u64 = 1 << 20;

/// The run's description of the node, from standard input.
#[derive(Deserialize)]
struct Said {
    facts: BTreeMap<String, Value>,
    classes: BTreeSet<String>,
    environment: String,
    puppet: String,
}

/// Publishes an inventory or an outcome.
///
/// # Errors
/// The input is invalid, or the service has not stored it.
pub fn main(flags: &Flags, around: &Surroundings, args: &Tell) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let question = match &args.end {
        Some(end) => {
            let mut outcomes = Outcome::ALL.iter();
            let outcome = outcomes.find(|one| one.to_string() == *end);
            let unknown = || Problem::Usage(format!("no run ends as {end}"));
            Question::Ended(*outcome.ok_or_else(unknown)?)
        }
        None => {
            let run = run::above(&settings.helper).map_err(Problem::Failed)?;
            let run = run.unwrap_or_default();
            if run.noop.is_some() {
                return Ok(Exit::Done);
            }
            Question::Tell(Box::new(inventory(&settings, said()?, &run)?))
        }
    };
    done(&settings, &question)?;
    Ok(Exit::Done)
}

fn said() -> Result<Said, Problem> {
    let mut text = Vec::new();
    stdin().take(LONGEST).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|e| {
        let why = crate::wire::shown(&e.to_string());
        Problem::Usage(format!("standard input does not tell of a node: {why}"))
    })
}

/// Inventory to publish. Structured facts are left out, and long values are cut.
fn inventory(settings: &Settings, said: Said, run: &run::Run) -> Result<Inventory, Problem> {
    let fact = |(name, value): (String, Value)| {
        let value = match value {
            Value::String(text) => text,
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some((name, outcome::cut(&value, MOST_TEXT)))
    };
    let now = walltime().millis();
    Ok(Inventory {
        node: settings.certname()?.clone(),
        at: now,
        serial: 0,
        facts: said.facts.into_iter().filter_map(fact).collect(),
        classes: said.classes,
        environment: said.environment,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        puppet: said.puppet,
        running: Some(now),
        last: None,
        ended: None,
        pending: 0,
        disabled: run.is_disabled,
        cap: run.cap,
        tokens: BTreeMap::new(),
        resets: BTreeMap::new(),
    })
}
