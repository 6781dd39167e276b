//! `again-fleet trigger`: sends a trigger to other nodes, and prints the results.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use again_base::layout::{Look, complain, say};
use again_base::model::{Span, Walltime};
use again_base::sys::clock::moment;
use again_base::sys::localtime::utc;
use serde_json::{Value, json};

use super::nodes::Roster;
use super::progress::ProgressTable;
use super::reply::Reply;
use super::run::{self, Run};
use super::screen::Screen;
use super::service::{Conversation, Heard, PATIENCE, socket};
use super::waiting;
use super::{Exit, Problem, named};
use crate::ask::{Answer, MOST_TARGETS, Question};
use crate::cli::Trigger;
use crate::policy::fire::Request;
use crate::settings::{self, Flags, Settings, Surroundings};
use crate::wire::lineage::{Cause, Lineage};
use crate::wire::name::{Id, Node};
use crate::wire::shown;
use crate::wire::trigger::{MOST_DELTA, MOST_TTL, check_rolling};

/// Default name of a trigger; a newer one of the same name replaces it.
const NAME: &str = "again";
/// Interval between updates of the progress bar.
const TURN: Duration = Duration::from_secs(1);

/// Facts about the targets before the service is asked.
#[derive(Default)]
struct Known {
    /// Targets that are not connected.
    away: Vec<Node>,
    /// Reason why no node is known.
    no_nodes: Option<String>,
    /// Reason why the service is not asked.
    unreachable: Option<String>,
}

/// Sends a trigger.
///
/// # Errors
/// The arguments are wrong, or the service cannot be asked.
pub fn main(flags: &Flags, around: &Surroundings, args: &Trigger) -> Result<Exit, Problem> {
    let settings = settings::settings(flags, around)?;
    let run = run(args, &settings)?;
    let mut targets: BTreeSet<Node> = args.to.iter().cloned().collect();
    let mut request = request(args, &settings, run.as_ref())?;
    if let Some(said) = run.and_then(|run| run.noop) {
        say(&format!(
            "again-fleet: not fired: a noop run changes nothing, on no node ({said})"
        ))?;
        return Ok(Exit::Done);
    }
    // `--wait` needs the service.
    let recent = (!args.wait).then(|| waiting::recent(&settings)).flatten();
    let mut known = select(args, &settings, &mut request, &mut targets, recent)?;
    if targets.is_empty() && !request.is_open {
        return nobody(args, &request.id);
    }
    if targets.len() > MOST_TARGETS {
        let count = targets.len();
        let what = format!("{count} nodes are too many at once: {MOST_TARGETS} are allowed");
        return Err(Problem::Usage(what));
    }
    request.targets = targets.iter().cloned().collect();
    let began = Instant::now();
    if request.is_deferred() {
        targets.clear();
    }
    let question = Question::Fire {
        request: request.clone(),
        wait: args.wait,
    };
    let asked = match known.unreachable.take() {
        Some(why) => Err(Problem::Unreachable(why)),
        None => ask(&settings, &question, Instant::now() + PATIENCE),
    };
    match asked {
        Err(Problem::Unreachable(why)) => {
            let reply = waiting::leave(&settings, &question, &request, &why, args.json)?;
            known.say(args.json)?;
            if args.json {
                say_json(&request.id, args, &reply, None, &known.away)?;
            }
            // The outcome will not be known here.
            Ok(if args.wait {
                Exit::NotInTime
            } else {
                Exit::Done
            })
        }
        Err(other) => Err(other),
        Ok((conversation, mut reply)) => {
            reply.expect(&targets);
            let asked = (conversation, reply);
            answered(args, &request, asked, &known, began)
        }
    }
}

/// Prints the service's answer, and waits for the outcomes.
fn answered(
    args: &Trigger,
    request: &Request,
    (mut conversation, reply): (Conversation, Reply),
    known: &Known,
    began: Instant,
) -> Result<Exit, Problem> {
    let (id, ends) = (request.id.clone(), request.ttl + request.delta);
    let is_deferred = request.is_deferred();
    let mut progress = ProgressTable::new(&reply);
    if !args.json {
        lines(&reply, &id, is_deferred)?;
    }
    known.say(args.json)?;
    // There is no wait for nodes that are selected later.
    let waits = args.wait && !reply.targets.is_empty();
    if waits {
        let until = began + Duration::from_nanos(ends.nanos());
        let screen = Screen::new(args.json);
        wait(&mut conversation, &mut progress, screen, (began, until))?;
        if !args.json {
            close(&progress, span(began))?;
            if progress.exit() == Exit::NotInTime {
                say(&format!(
                    "again-fleet: 'again-fleet story {id}' tells what becomes of it"
                ))?;
            }
        }
    }
    if args.json {
        let waited = waits.then_some(&progress);
        say_json(&id, args, &reply, waited, &known.away)?;
    }
    let error = reply.error().map(|error| format!("not fired {error}"));
    let errors: Vec<String> = error.into_iter().chain(reply.not_stored()).collect();
    for error in &errors {
        complain(&format!("again-fleet: error: {error}"));
    }
    Ok(match (args.wait, errors.as_slice()) {
        (true, _) if waits && reply.not_stored().is_none() => progress.exit(),
        (_, [_, ..]) => Exit::Failed,
        (true, []) => Exit::NotInTime,
        (false, []) => Exit::Done,
    })
}

impl Known {
    /// Warns if no node is known, and names the targets that are not connected.
    fn say(&self, is_json: bool) -> Result<(), Problem> {
        if let Some(why) = &self.no_nodes {
            complain(&format!("again-fleet: warning: no node is known: {why}"));
        }
        if !is_json && !self.away.is_empty() {
            let away = named(&self.away);
            say(&format!(
                "again-fleet: not there now, and started when it is back in that time: {away}"
            ))?;
        }
        Ok(())
    }
}

/// The run that sends the trigger: the one that calls this command, or the one of the report.
fn run(args: &Trigger, settings: &Settings) -> Result<Option<Run>, Problem> {
    let Some(job) = &args.job_id else {
        return run::above(&settings.helper).map_err(Problem::Failed);
    };
    let lineage = Lineage::of_job(job)
        .map_err(|e| Problem::Usage(format!("the job id tells no way of its run: {e}")))?;
    Ok(Some(Run {
        noop: None,
        lineage,
        is_disabled: false,
        cap: None,
    }))
}

/// Adds the selected nodes to the targets. Without a selection, no node is queried. The selection
/// stays open if not all nodes are known; a rolling run is deferred then.
fn select(
    args: &Trigger,
    settings: &Settings,
    request: &mut Request,
    targets: &mut BTreeSet<Node>,
    recent: Option<String>,
) -> Result<Known, Problem> {
    let mut known = Known {
        unreachable: recent,
        ..Known::default()
    };
    let selection = args.select.selection();
    if selection.is_of_all() {
        return Ok(known);
    }
    request.selection = Some(selection.criteria());
    request.is_open = true;
    if known.unreachable.is_some() {
        return Ok(known);
    }
    let roster = match Roster::of(settings) {
        Ok(roster) => roster,
        Err(Problem::Failed(why)) => {
            known.no_nodes = Some(why);
            return Ok(known);
        }
        Err(Problem::Unreachable(why)) => {
            known.unreachable = Some(why);
            return Ok(known);
        }
        Err(other) => return Err(other),
    };
    roster.warn(&selection);
    request.is_open = !roster.is_complete(moment().wall);
    if request.is_deferred() {
        return Ok(known);
    }
    let firing = args
        .on_behalf
        .as_ref()
        .map_or_else(|| settings.certname(), Ok)?;
    // A node triggers itself only if it is named.
    let selected = roster.selected(&selection).filter(|node| *node != firing);
    targets.extend(selected.cloned());
    let away = targets.iter().filter(|node| roster.is_away(node));
    known.away.extend(away.cloned());
    Ok(known)
}

/// Reports that no node is selected, which is not a failure.
fn nobody(args: &Trigger, id: &Id) -> Result<Exit, Problem> {
    if args.json {
        say_json(id, args, &Reply::default(), None, &[])?;
    } else {
        say(
            "again-fleet: nobody is selected: no node but this one meets the conditions, and nothing is fired",
        )?;
    }
    Ok(Exit::Done)
}

/// Request to the service, without targets yet.
fn request(args: &Trigger, settings: &Settings, run: Option<&Run>) -> Result<Request, Problem> {
    let usage = |what: String| Err(Problem::Usage(what));
    if let Some(backend) = args.backend.filter(|backend| *backend != settings.backend) {
        let is = settings.backend;
        return usage(format!(
            "this node's backend is {is}, not {backend}; set backend in the settings, or ask for {is}"
        ));
    }
    let (delta, ttl) = (
        args.delta.unwrap_or_default(),
        args.ttl.unwrap_or(match &args.parallel {
            Some(_) => Span::from_nanos(MOST_TTL * 1_000_000),
            None => settings.ttl,
        }),
    );
    let (parallel, stop_after) = (number(&args.parallel)?, number(&args.stop_after_failures)?);
    check_rolling(parallel, stop_after).map_err(|e| Problem::Usage(e.to_string()))?;
    if delta.millis() > MOST_DELTA {
        return usage(format!("a delta of {delta} is too long: 1d is allowed"));
    }
    if !(1..=MOST_TTL).contains(&ttl.millis()) {
        return usage(format!("a ttl of {ttl} is not from 1s to 1d"));
    }
    let name = args.name.clone();
    let me = settings.certname()?;
    Ok(Request {
        id: Id::from_bits(rand::random()),
        targets: Vec::new(),
        name: name.map_or_else(|| NAME.parse(), Ok)?,
        cause: match (&args.on_behalf, run) {
            (Some(_), _) => Cause::Kick,
            (None, Some(_)) => Cause::Refresh,
            (None, None) => Cause::Person,
        },
        on_behalf: args.on_behalf.clone().filter(|node| node != me),
        run: run.map(|run| run.lineage.clone()).unwrap_or_default(),
        delta,
        ttl,
        parallel,
        stop_after,
        selection: None,
        is_open: false,
    })
}

/// Number of nodes; 0 if there is no word.
fn number(word: &Option<String>) -> Result<u32, Problem> {
    let Some(word) = word else { return Ok(0) };
    let number = word.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Problem::Usage(format!("'{}' is not a number of nodes", shown(word))))
}

/// Sends a request and reads the result for each target.
///
/// # Errors
/// The service did not answer completely in time.
pub(super) fn ask(
    settings: &Settings,
    question: &Question,
    until: Instant,
) -> Result<(Conversation, Reply), Problem> {
    let mut conversation = Conversation::begin(&socket(settings), question, until)?;
    let mut reply = Reply::default();
    while reply.summary.is_none() {
        let answer = conversation.answer(until, PATIENCE)?;
        if reply.hear(answer).is_some() {
            return Err(conversation.problem("answered something else than was asked"));
        }
    }
    Ok((conversation, reply))
}

fn lines(reply: &Reply, id: &Id, is_deferred: bool) -> Result<(), Problem> {
    let now = moment().wall;
    let selection = reply.selection(is_deferred, now);
    for line in reply.lines("", now).into_iter().chain(selection) {
        say(&format!("again-fleet: {line} (id {id})"))?;
    }
    if let Some(warning) = reply.warning() {
        complain(&format!("again-fleet: warning: {warning}"));
    }
    Ok(())
}

/// Reads the outcome of each target until all are final or the time is over.
pub(super) fn wait(
    conversation: &mut Conversation,
    progress: &mut ProgressTable,
    screen: Screen,
    (began, until): (Instant, Instant),
) -> Result<(), Problem> {
    let heard = loop {
        if progress.is_over() {
            break Ok(());
        }
        screen.bar(&progress.bar(span(began)));
        let turn = until.min(Instant::now() + TURN);
        match conversation.next(turn) {
            Ok(Heard::Answer(Answer::Progress { target, news, .. })) => {
                if let Some(line) = progress.hear(&target, news) {
                    screen.line(&line)?;
                }
            }
            Ok(Heard::Answer(Answer::End)) => break Ok(()),
            Ok(Heard::Answer(_)) => {
                break Err(conversation.problem("answered something else than was asked"));
            }
            Ok(Heard::Silence) if Instant::now() >= until => break Ok(()),
            Ok(Heard::Silence) => {}
            Ok(Heard::End) => {
                break Err(conversation
                    .problem("ended; what it fired goes on, and nobody tells what becomes of it"));
            }
            Err(e) => break Err(e),
        }
    };
    screen.clear();
    heard
}

/// Prints the table and the summary.
fn close(progress: &ProgressTable, took: Span) -> Result<(), Problem> {
    let look = Look::of_this_process();
    for row in progress.table(&look) {
        say(&row)?;
    }
    let verdict = look.paint(progress.tone(), &progress.verdict(took));
    Ok(say(&format!("again-fleet: {verdict}"))?)
}

pub(super) fn span(began: Instant) -> Span {
    Span::from_nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn say_json(
    id: &Id,
    args: &Trigger,
    reply: &Reply,
    progress: Option<&ProgressTable>,
    away: &[Node],
) -> Result<(), Problem> {
    let name = args.name.as_ref().map_or(NAME, |name| name.as_str());
    let mut all = reply_json(reply, progress);
    all["id"] = json!(id);
    all["name"] = json!(name);
    all["away"] = json!(away);
    Ok(say(&all.to_string())?)
}

/// Results and outcomes of all targets, as JSON.
pub(super) fn reply_json(reply: &Reply, progress: Option<&ProgressTable>) -> Value {
    let targets: Vec<Value> = reply
        .targets
        .iter()
        .map(|(node, fired)| {
            let (fired, mut why) = fired.json();
            let (outcome, told) =
                progress.map_or((Value::Null, Value::Null), |progress| progress.json(node));
            if why.is_null() {
                why = told;
            }
            json!({"node": node, "fired": fired, "outcome": outcome, "why": why})
        })
        .collect();
    let summary = reply.summary.as_ref();
    json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "backend": summary.map(|summary| &summary.backend),
        "backend_away": summary.and_then(|summary| summary.away.as_ref()),
        "until": summary.map(|summary| utc(Walltime::from_millis(summary.until))),
        "selection": summary.and_then(|summary| summary.selection.as_ref()),
        "not_passed_on": reply.left_out,
        "targets": targets,
    })
}
