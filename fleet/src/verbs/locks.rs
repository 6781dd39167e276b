//! `again-fleet locks`: which node holds which lock; and `again-fleet pass`.

use std::thread;
use std::time::{Duration, Instant};

use again::layout::{Look, Tone, complain, say};
use again::model::Walltime;
use again::sys::clock::walltime;
use again::sys::localtime::utc;
use again::sys::terminal::clean;
use serde_json::{Value, json};

use super::service::{Conversation, PATIENCE, done, socket};
use super::{Exit, Problem, clock};
use crate::ask::{Answer, Question};
use crate::cli::{Locks, Pass};
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::lock::Lock;
use crate::wire::name::Node;

/// How long it may take until a lock has gone on: as long as what a service that is away holds.
const LONGEST: Duration = Duration::from_secs(75);
/// How long somebody is waited for who is about to hold one.
const SOON: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Who holds a lock, or why that is not certain.
type Held = (Lock, String);

/// All locks, and the nodes whose services are there.
fn all(settings: &Settings, own: bool) -> Result<(Vec<Held>, Vec<Node>), Problem> {
    let until = Instant::now() + PATIENCE;
    let mut conversation = Conversation::begin(&socket(settings), &Question::Locks(own), until)?;
    let (mut locks, mut alive) = (Vec::<Held>::new(), Vec::new());
    conversation.each(until, |answer| {
        match answer {
            // What the engine says comes after what this node knows.
            Answer::Lock(word, why) => {
                locks.retain(|(one, _)| one.lock != word.lock);
                locks.push((*word, why));
            }
            Answer::Alive(node) => alive.push(node),
            _ => return false,
        }
        true
    })?;
    Ok((locks, alive))
}

/// Shows them.
///
/// # Errors
/// The service could not be asked, or does not see the engine.
pub fn main(flags: &Flags, around: &Surroundings, args: &Locks) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let until = Instant::now() + SOON;
    let (mut locks, mut alive) = all(&settings, args.own)?;
    // A run that begins as the service does, or as the holder changes, need not miss it.
    let is_open = |locks: &[Held]| locks.iter().any(|(_, why)| !why.is_empty());
    while args.own && is_open(&locks) && Instant::now() < until {
        thread::sleep(PAUSE);
        (locks, alive) = all(&settings, true)?;
    }
    if args.json {
        let me = settings.certname()?;
        let mut shown = serde_json::Map::new();
        for held in &locks {
            shown.insert(held.0.lock.to_string(), json(held, me));
        }
        let version = env!("CARGO_PKG_VERSION");
        let all = json!({"schema": 1, "version": version, "locks": shown});
        say(&all.to_string())?;
        return Ok(Exit::Done);
    }
    if locks.is_empty() {
        complain("again-fleet: there are no locks");
    }
    let (look, now) = (Look::of_this_process(), walltime());
    for (word, why) in &locks {
        let name = look.paint(Tone::Heading, &clean(word.lock.as_str()));
        let line = if why.is_empty() {
            let since = clock(Walltime::from_millis(word.since), now);
            let node = look.paint(Tone::Good, word.node.as_str());
            format!("{node} holds it since {since}, with token {}", word.token)
        } else {
            look.paint(Tone::Attention, &clean(why))
        };
        say(&format!("{name}: {line}"))?;
        for node in &word.candidates {
            let is_away = !args.own && !alive.contains(node);
            let state = if is_away { "  away" } else { "" };
            say(&format!("  {node}{}", look.paint(Tone::Attention, state)))?;
        }
    }
    Ok(Exit::Done)
}

fn json((word, why): &Held, me: &Node) -> Value {
    let is_sure = why.is_empty();
    let since = is_sure.then(|| utc(Walltime::from_millis(word.since)));
    json!({
        "holder": is_sure.then_some(&word.node),
        "token": is_sure.then_some(word.token),
        "since": since,
        "is_mine": is_sure && word.node == *me,
        "candidates": word.candidates,
        "why": (!is_sure).then_some(why),
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
    let (locks, alive) = all(&settings, false)?;
    let held = locks.into_iter().find(|(one, _)| one.lock == *lock);
    let (word, why) = held.ok_or_else(|| failed("nobody holds such a lock".to_owned()))?;
    let (holder, token) = (word.node.clone(), word.token);
    let why = match () {
        () if !why.is_empty() => why,
        () if holder == *node => {
            say(&format!(
                "again-fleet: {node} holds the lock '{lock}' already"
            ))?;
            return Ok(Exit::Done);
        }
        () if !word.candidates.contains(node) => format!("{node} is no candidate"),
        () if !alive.contains(node) => format!("{node} is away: its service is not connected"),
        () => String::new(),
    };
    if !why.is_empty() {
        return Err(failed(why));
    }
    let to = Some(node.clone());
    done(&settings, &Question::Pass(Box::new(Lock { to, ..word })))?;
    let until = Instant::now() + LONGEST;
    while Instant::now() < until {
        let (locks, _) = all(&settings, false)?;
        let mut newer = locks.iter().filter(|(one, _)| one.token > token);
        if let Some((word, _)) = newer.find(|(one, _)| one.lock == *lock) {
            let Lock {
                node: now, token, ..
            } = word;
            if now != node {
                return Err(failed(format!("{now} holds it now")));
            }
            say(&format!(
                "again-fleet: {node} holds the lock '{lock}', with token {token}"
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
