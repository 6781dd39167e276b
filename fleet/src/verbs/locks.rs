//! `again-fleet locks`: holders of the locks, and resets of their tokens; and `again-fleet move`.

use std::thread;
use std::time::{Duration, Instant};

use again_base::layout::{Look, Tone, complain, say};
use again_base::model::Walltime;
use again_base::sys::clock::walltime;
use again_base::sys::localtime::utc;
use again_base::sys::terminal::clean;
use serde_json::{Value, json};

use super::nodes::Roster;
use super::service::{Conversation, PATIENCE, done, socket};
use super::{Exit, Problem, clock};
use crate::ask::{Answer, Question};
use crate::cli::{self, Locks, LocksCommand, Move};
use crate::policy::lock::next_number;
use crate::policy::presence::Presence;
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::lock::{Lock, Published, Reset};
use crate::wire::name::{Name, Node};

/// Longest wait until a lock has moved: that of a lock whose holder's service is down.
const LONGEST: Duration = Duration::from_secs(75);
/// Longest wait for a node that is about to acquire a lock.
const SOON: Duration = Duration::from_secs(2);
/// Pause between two queries.
const PAUSE: Duration = Duration::from_millis(200);

/// Longest wait for connected candidates to apply a reset.
const RESET: Duration = Duration::from_secs(10);

/// A lock with its holder, and the reason if the holder is not certain.
type Held = (Lock, String);

/// Tokens that this node ignores, and the candidates that publish them.
type Ignored = Vec<(Name, Node, u64)>;

/// All locks with their holders.
fn all(settings: &Settings, own: bool) -> Result<Vec<Held>, Problem> {
    all_and_ignored(settings, own).map(|(locks, _)| locks)
}

fn all_and_ignored(settings: &Settings, own: bool) -> Result<(Vec<Held>, Ignored), Problem> {
    let until = Instant::now() + PATIENCE;
    let mut conversation = Conversation::begin(&socket(settings), &Question::Locks(own), until)?;
    let (mut locks, mut ignored) = (Vec::<Held>::new(), Vec::new());
    conversation.each(until, |answer| {
        match answer {
            // The state in the backend follows this node's own state and replaces it.
            Answer::Lock(word, why) => {
                locks.retain(|(one, _)| one.lock != word.lock);
                locks.push((*word, why));
            }
            Answer::IgnoredToken { lock, node, token } => ignored.push((lock, node, token)),
            _ => return false,
        }
        true
    })?;
    Ok((locks, ignored))
}

/// Shows the locks.
///
/// # Errors
/// The service cannot be queried, or has no connection to the backend.
pub fn main(flags: &Flags, around: &Surroundings, args: &Locks) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    if let Some(LocksCommand::Reset(args)) = &args.command {
        return reset(&settings, args);
    }
    let until = Instant::now() + SOON;
    let (mut locks, mut ignored) = all_and_ignored(&settings, args.own)?;
    // A run that begins while the service starts or the holder changes should see the new holder.
    let is_open = |locks: &[Held]| locks.iter().any(|(_, why)| !why.is_empty());
    while args.own && is_open(&locks) && Instant::now() < until {
        thread::sleep(PAUSE);
        (locks, ignored) = all_and_ignored(&settings, true)?;
    }
    if args.json {
        let me = settings.certname()?;
        let mut shown = serde_json::Map::new();
        for held in &locks {
            shown.insert(held.0.lock.to_string(), json(held, &ignored, me));
        }
        let version = env!("CARGO_PKG_VERSION");
        let all = json!({"schema": 1, "version": version, "locks": shown});
        say(&all.to_string())?;
        return Ok(Exit::Done);
    }
    if locks.is_empty() {
        complain("again-fleet: there are no locks");
    }
    let nodes = match args.own {
        true => None,
        false => Some(Roster::of(&settings)?),
    };
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
            let is_away = nodes.as_ref().is_some_and(|nodes| nodes.is_away(node));
            let mut state = String::from(if is_away { "  away" } else { "" });
            if let Some(token) = ignored_of(&ignored, word, node) {
                state += &format!("  its token {token} is ignored");
            }
            say(&format!("  {node}{}", look.paint(Tone::Attention, &state)))?;
        }
    }
    Ok(Exit::Done)
}

/// The token that this node ignores from a candidate, if any.
fn ignored_of(ignored: &Ignored, word: &Lock, of: &Node) -> Option<u64> {
    let mut ignored = ignored.iter();
    let found = ignored.find(|(lock, node, _)| *lock == word.lock && node == of);
    found.map(|(_, _, token)| *token)
}

fn json((word, why): &Held, ignored: &Ignored, me: &Node) -> Value {
    let candidates = word.candidates.iter();
    let ignored = candidates.filter_map(|node| Some((node, ignored_of(ignored, word, node)?)));
    let ignored: Vec<Value> = ignored
        .map(|(node, token)| json!({"node": node, "token": token}))
        .collect();
    let is_sure = why.is_empty();
    let since = is_sure.then(|| utc(Walltime::from_millis(word.since)));
    json!({
        "holder": is_sure.then_some(&word.node),
        "token": is_sure.then_some(word.token),
        "since": since,
        "is_mine": is_sure && word.node == *me,
        "candidates": word.candidates,
        "ignored": ignored,
        "why": (!is_sure).then_some(why),
    })
}

/// A candidate of a lock.
#[derive(Debug)]
struct Candidate {
    /// Token and reset that the candidate publishes.
    published: Published,
    /// Whether the candidate's service is connected, or may be.
    may_be_there: bool,
}

/// Nodes that publish a token of a lock.
fn candidates(settings: &Settings, lock: &Name) -> Result<Vec<Candidate>, Problem> {
    let now = walltime();
    let until = Instant::now() + PATIENCE;
    let mut conversation = Conversation::begin(&socket(settings), &Question::Nodes, until)?;
    let (mut found, mut away) = (Vec::new(), None);
    conversation.each(until, |answer| {
        match answer {
            Answer::Node(told) if told.tokens.contains_key(lock.as_str()) => {
                let at = Walltime::from_millis(told.at);
                found.push(Candidate {
                    may_be_there: Presence::of(at, now, settings.skew) != Presence::Gone,
                    published: Published {
                        token: told.token(lock),
                        reset: told.reset(lock),
                        serial: told.order(),
                        node: told.node.clone(),
                    },
                });
            }
            Answer::Node(_) | Answer::Ignored(_) | Answer::Missing { .. } => {}
            Answer::Stored { why, .. } => away = Some(why),
            _ => return false,
        }
        true
    })?;
    if let Some(why) = away {
        return Err(Problem::Failed(why));
    }
    Ok(found)
}

/// Numbers of a lock's resets that are stored, or that candidates have applied.
fn numbers(
    settings: &Settings,
    lock: &Name,
    candidates: &[Candidate],
) -> Result<Vec<(Node, u64)>, Problem> {
    let taken = candidates.iter();
    let taken = taken.map(|one| (one.published.node.clone(), one.published.reset));
    let mut numbers: Vec<_> = taken.collect();
    let (until, question) = (Instant::now() + PATIENCE, Question::Resets(lock.clone()));
    let mut conversation = Conversation::begin(&socket(settings), &question, until)?;
    conversation.each(until, |answer| {
        let Answer::Reset(reset) = answer else {
            return false;
        };
        numbers.push((reset.node, reset.number));
        true
    })?;
    Ok(numbers)
}

/// Candidates that have not applied a reset.
fn without(number: u64, candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    let candidates = candidates.iter();
    candidates.filter(move |one| one.published.reset < number)
}

/// Whether a candidate has not applied a reset although it has published something since, and so is
/// connected.
fn ignores(number: u64, before: &[Published], now: &[Candidate]) -> bool {
    without(number, now).any(|Candidate { published, .. }| {
        let was = before.iter().find(|was| was.node == published.node);
        was.is_none_or(|was| was.serial < published.serial)
    })
}

/// Resets the tokens of a lock, and waits for the candidates that may be connected to apply the
/// reset.
///
/// # Errors
/// This node may not reset the lock, a node holds it, or it has no candidates.
fn reset(settings: &Settings, args: &cli::Reset) -> Result<Exit, Problem> {
    let (lock, token) = (&args.lock, args.token);
    let failed = |why: String| Problem::Failed(format!("the lock '{lock}' is not reset: {why}"));
    let locks = all(settings, false)?;
    let mut held = locks.iter().filter(|(_, why)| why.is_empty());
    if let Some((word, _)) = held.find(|(word, _)| word.lock == *lock) {
        let holder = &word.node;
        return Err(failed(format!(
            "{holder} holds it; stop again-fleet.service on all its candidates, wait a minute, and reset it from another node"
        )));
    }
    let before = candidates(settings, lock)?;
    if before.is_empty() {
        return Err(failed("no node is a candidate for it".to_owned()));
    }
    let known = numbers(settings, lock, &before)?;
    let number = next_number(walltime().millis(), settings.skew.millis(), &known);
    let number = number.map_err(failed)?;
    let before: Vec<Published> = before.into_iter().map(|one| one.published).collect();
    let reset = Reset {
        lock: lock.clone(),
        node: settings.certname()?.clone(),
        token,
        number,
        before: before.clone(),
    };
    done(settings, &Question::Reset(Box::new(reset)))?;
    let until = Instant::now() + RESET;
    let now = loop {
        let now = candidates(settings, lock)?;
        let is_over = !without(number, &now).any(|one| one.may_be_there);
        if is_over || Instant::now() >= until {
            break now;
        }
        thread::sleep(PAUSE);
    };
    let late = without(number, &now).map(|one| one.published.node.to_string());
    let late: Vec<String> = late.collect();
    let next = token + 1;
    say(&match late.len() < now.len() {
        true => format!("again-fleet: the next token of the lock '{lock}' is {next}"),
        false => format!(
            "again-fleet: the reset of the lock '{lock}' is stored; the next token is {next} once its candidates have taken it"
        ),
    })?;
    if !late.is_empty() {
        let late = late.join(", ");
        say(&format!(
            "not reset yet: {late}; run 'again-fleet check' there"
        ))?;
    }
    say("also reset the last token stored by whatever compares tokens")?;
    Ok(match ignores(number, &before, &now) {
        true => Exit::Failed,
        false => Exit::Done,
    })
}

/// Moves a lock to another candidate.
///
/// # Errors
/// This node may not move the lock, no node holds it, the other node is not a candidate, or the
/// lock did not move in time.
pub fn move_lock(flags: &Flags, around: &Surroundings, args: &Move) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let (lock, node) = (&args.lock, &args.node);
    let failed =
        |why: String| Problem::Failed(format!("the lock '{lock}' is not passed on: {why}"));
    let locks = all(&settings, false)?;
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
        () => String::new(),
    };
    if !why.is_empty() {
        return Err(failed(why));
    }
    // According to this node's clock, which may be wrong.
    if Roster::of(&settings)?.is_away(node) {
        complain(&format!(
            "again-fleet: warning: {node} does not count as connected; if it is away, another candidate takes the lock '{lock}'"
        ));
    }
    let to = Some(node.clone());
    done(&settings, &Question::Move(Box::new(Lock { to, ..word })))?;
    let until = Instant::now() + LONGEST;
    while Instant::now() < until {
        let locks = all(&settings, false)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_that_publishes_without_a_reset_ignores_it() {
        let published = |reset, serial| Published {
            node: "n1".parse().expect("a certname"),
            token: 9,
            reset,
            serial,
        };
        let before = [published(0, 30)];
        for (reset, serial, is_ignored) in [
            (0, 30, false),
            (0, 31, true),
            (4, 31, true),
            (5, 31, false),
            (6, 31, false),
        ] {
            let now = [Candidate {
                published: published(reset, serial),
                may_be_there: false,
            }];
            assert_eq!(ignores(5, &before, &now), is_ignored, "{now:?}");
        }
    }
}
