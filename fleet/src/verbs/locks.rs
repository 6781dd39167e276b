//! `again-fleet locks`: which node holds which lock; and `again-fleet pass`.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use again::layout::{Look, Tone, complain, say};
use again::model::Walltime;
use again::sys::clock::walltime;
use again::sys::localtime::utc;
use serde_json::{Value, json};

use super::service::{Conversation, PATIENCE, done, socket};
use super::{Exit, Problem, clean, clock};
use crate::ask::{Answer, Held, Question};
use crate::cli::{Locks, Pass};
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::name::{Name, Node};

/// How long it may take until a lock has gone on: as long as what a service that is away holds.
const LONGEST: Duration = Duration::from_secs(75);
/// How long somebody is waited for who is about to hold one.
const SOON: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// All locks, and the nodes whose services are there.
struct All {
    locks: BTreeMap<Name, Box<Held>>,
    alive: BTreeSet<Node>,
}

fn all(settings: &Settings, own: bool) -> Result<All, Problem> {
    let until = Instant::now() + PATIENCE;
    let question = Question::Locks { own };
    let mut conversation = Conversation::begin(&socket(settings), &question, until)?;
    let mut all = All {
        locks: BTreeMap::new(),
        alive: BTreeSet::new(),
    };
    conversation.each(until, |answer| {
        match answer {
            // What the engine says comes after what this node knows.
            Answer::Lock(held) => drop(all.locks.insert(held.lock.clone(), held)),
            Answer::Alive(node) => drop(all.alive.insert(node)),
            _ => return false,
        }
        true
    })?;
    Ok(all)
}

/// Shows them.
///
/// # Errors
/// The service could not be asked, or does not see the engine.
pub fn main(flags: &Flags, around: &Surroundings, args: &Locks) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let until = Instant::now() + SOON;
    let mut found = all(&settings, args.own)?;
    // A run that begins as the service does, or as the holder changes, need not miss it.
    while args.own
        && found.locks.values().any(|held| held.holder.is_none())
        && Instant::now() < until
    {
        thread::sleep(PAUSE);
        found = all(&settings, true)?;
    }
    let All { locks, alive } = found;
    if args.json {
        let locks: serde_json::Map<String, Value> = locks
            .iter()
            .map(|(name, held)| (name.to_string(), json(held)))
            .collect();
        let version = env!("CARGO_PKG_VERSION");
        let all = json!({"schema": 1, "version": version, "locks": locks});
        say(&all.to_string())?;
        return Ok(Exit::Done);
    }
    if locks.is_empty() {
        complain("again-fleet: there are no locks");
    }
    let (look, now) = (Look::of_this_process(), walltime());
    for (name, held) in &locks {
        let name = look.paint(Tone::Heading, &clean(name.as_str()));
        let line = match (&held.holder, held.token, held.since) {
            (Some(node), Some(token), Some(since)) => {
                let since = clock(Walltime::from_millis(since), now);
                let node = look.paint(Tone::Good, node.as_str());
                format!("{node} holds it since {since}, with token {token}")
            }
            _ => look.paint(Tone::Attention, &clean(&held.why)),
        };
        say(&format!("{name}: {line}"))?;
        for node in &held.candidates {
            let is_away = !args.own && !alive.contains(node);
            let state = if is_away { "  away" } else { "" };
            say(&format!("  {node}{}", look.paint(Tone::Attention, state)))?;
        }
    }
    Ok(Exit::Done)
}

fn json(held: &Held) -> Value {
    let why = Some(&held.why).filter(|why| !why.is_empty());
    json!({
        "holder": held.holder,
        "token": held.token,
        "since": held.since.map(|since| utc(Walltime::from_millis(since))),
        "is_mine": held.is_mine,
        "candidates": held.candidates,
        "why": why,
    })
}

/// Has a lock go on to another candidate.
///
/// # Errors
/// This node may not, nobody holds it, the other one cannot, or it did not come to that.
pub fn pass(flags: &Flags, around: &Surroundings, args: &Pass) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let (lock, node) = (&args.lock, &args.node);
    let failed =
        |why: String| Problem::Failed(format!("the lock '{lock}' is not passed on: {why}"));
    let All { mut locks, alive } = all(&settings, false)?;
    let held = locks.remove(lock);
    let held = held.ok_or_else(|| failed("nobody holds such a lock".to_owned()))?;
    let (Some(holder), Some(token)) = (held.holder, held.token) else {
        return Err(failed(held.why));
    };
    if holder == *node {
        say(&format!(
            "again-fleet: {node} holds the lock '{lock}' already"
        ))?;
        return Ok(Exit::Done);
    }
    if !held.candidates.contains(node) {
        return Err(failed(format!("{node} is no candidate")));
    }
    if !alive.contains(node) {
        return Err(failed(format!(
            "{node} is away: its service is not connected"
        )));
    }
    let (lock_name, to) = (lock.clone(), node.clone());
    done(
        &settings,
        &Question::Pass {
            lock: lock_name,
            token,
            to,
        },
    )?;
    let until = Instant::now() + LONGEST;
    while Instant::now() < until {
        let now = all(&settings, false)?.locks.remove(lock);
        if let Some((Some(holder), Some(newer))) = now.map(|held| (held.holder, held.token))
            && newer > token
        {
            if holder != *node {
                return Err(failed(format!("{holder} holds it now")));
            }
            say(&format!(
                "again-fleet: {node} holds the lock '{lock}', with token {newer}"
            ))?;
            return Ok(Exit::Done);
        }
        thread::sleep(PAUSE);
    }
    let seconds = LONGEST.as_secs();
    Err(failed(format!(
        "{holder} did not give it up to {node} within {seconds} s; see whether 'operators' there lists this node"
    )))
}
