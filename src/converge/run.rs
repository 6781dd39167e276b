//! One run of a driver, from its start to the verdict.

use anyhow::{Context, Result};

use super::attend::attend;
use super::driving::{Driving, Ending};
use super::known::Verdict;
use crate::policy::converge::{Because, Timer};
use crate::state::change::Change;
use crate::state::history::{FIRST, What};
use crate::state::reruns::Rerun;
use crate::sys::foreground::Held;
use again_base::model::{End, Exit, Moment, Satisfied};
use again_base::sys::clock::moment;

/// Name of the timer for a run that no timer requested.
const NO_TIMER: &str = "converge";

/// Run that has begun.
struct Begun {
    number: u32,
    started: Moment,
    /// Timer that requested the run, and the token of its request.
    timer: String,
    token: String,
    asked_by: String,
}

impl Begun {
    /// Change that the run caused.
    fn change(&self, driving: &Driving<'_>, what: What, at: Moment) -> Change {
        let mut change = Change::of_driver(&driving.record, what, at);
        change.entry.timer.clone_from(&self.timer);
        change.entry.token.clone_from(&self.token);
        change.entry.run = self.number;
        if self.number == 1 {
            FIRST.clone_into(&mut change.entry.kind);
        }
        change
    }
}

/// Does one run, from its start to the verdict.
///
/// # Errors
/// The reason why the driver ends with this run.
pub fn run(driving: &mut Driving<'_>, because: &Because) -> Result<(), Ending> {
    let started = moment();
    let done = driving.drive.begin(started.uptime);
    let begun = begin(driving, because, &done, started);
    let held = fork(driving, &begun)?;
    let child = held.process;
    let change = begun.change(driving, What::Started, begun.started.clone());
    driving.store.note(&change.because(&begun.asked_by).entry);
    for (name, other) in done.iter().filter(|(name, _)| *name != begun.timer) {
        let reason = Satisfied::ByDriver { run: begun.number }.to_string();
        driving.note_timer(name, other, What::Satisfied, &reason);
    }
    if let Err(e) = held.release() {
        driving
            .store
            .forget_rerun(child, driving.record.began.place);
        let reason = format!("cannot execute {}: {e}", driving.command.name());
        let change = begun.change(driving, What::Failed, moment());
        driving.store.note(&change.because(&reason).entry);
        let exit = match e.kind() {
            std::io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::CannotExecute,
        };
        return Err(Ending::NotExecuted(reason, exit));
    }
    let (end, ending) = attend(driving, child)?;
    driving
        .store
        .forget_rerun(child, driving.record.began.place);
    driving.record.child = None;
    conclude(driving, begun, end);
    ending.map_or(Ok(()), Err)
}

/// Announces and prepares a run.
fn begin(
    driving: &mut Driving<'_>,
    because: &Because,
    done: &[(String, Timer)],
    started: Moment,
) -> Begun {
    let number = driving.drive.runs();
    driving.record.run = number;
    let most = driving.drive.most();
    let command = driving.command.shown();
    let line = format!("run {number} of at most {most}: {command}");
    driving.screen.say(&line);
    driving.log(&line);
    driving.known.begin();
    if let Some(input) = &mut driving.input {
        input.rewind();
    }
    let asking = done
        .iter()
        .find(|(name, _)| matches!(because, Because::Due(due) if due == name));
    let (timer, token) = match asking {
        Some((name, timer)) => (name.clone(), timer.token.clone()),
        None => (NO_TIMER.to_owned(), driving.record.token.clone()),
    };
    Begun {
        number,
        started,
        timer,
        token,
        asked_by: asked_by(because, done),
    }
}

/// Reason for the start of a run, for the table.
fn asked_by(because: &Because, done: &[(String, Timer)]) -> String {
    match because {
        Because::First => "-".to_owned(),
        Because::NotClean => "--until clean".to_owned(),
        Because::Busy => "the run before was skipped".to_owned(),
        Because::NoCatalog => "--retry: no catalog was applied".to_owned(),
        Because::Due(_) => done
            .iter()
            .map(|(name, timer)| format!("'{name}' in run {}", timer.asked_by))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Forks the process of the run, and records it before it can send requests.
fn fork(driving: &mut Driving<'_>, begun: &Begun) -> Result<Held> {
    let number = begun.number.to_string();
    let marks = [
        ("AGAIN_CHAIN", driving.record.chain.as_str()),
        ("AGAIN_RUN", &number),
        ("AGAIN_TIMER", &begun.timer),
    ];
    let marks = if begun.number > 1 { &marks[..] } else { &[] };
    let held = driving.command.fork(marks);
    let held = held.context("cannot start a process")?;
    let child = held.process;
    driving.record.child = Some(child);
    let on_record = driving.publish().and_then(|()| {
        driving.store.note_rerun(&Rerun {
            process: child,
            boot: driving.record.boot.clone(),
            place: driving.record.began.place,
            target: driving.record.target.clone(),
            chain: driving.record.chain.clone(),
            run: begun.number,
            timer: begun.timer.clone(),
            daemon: None,
            running: None,
        })
    });
    if let Err(e) = on_record {
        // The process waits for us, and ends if it is not released.
        drop(held);
        driving
            .store
            .forget_rerun(child, driving.record.began.place);
        return Err(e);
    }
    Ok(held)
}

/// Takes the requests of the run, and reports its verdict.
fn conclude(driving: &mut Driving<'_>, begun: Begun, end: End) {
    let ended = moment();
    let asked = driving.take_requests(ended.uptime);
    let Verdict {
        outcome,
        evidence,
        no_catalog,
    } = driving.known.judge(end, &begun.started);
    driving
        .drive
        .end(outcome, no_catalog.then_some(ended.uptime));
    let took = ended.uptime.since(begun.started.uptime);
    let change = begun.change(driving, What::Ended, ended);
    driving.store.note(&change.ended(outcome, &evidence).entry);
    let asks = match asked.as_slice() {
        [] => "nothing new asked for".to_owned(),
        names => format!("asked for again by {}", names.join(", ")),
    };
    let number = begun.number;
    let line = format!(
        "run {number} {} after {took} ({evidence}); {asks}",
        outcome.kind()
    );
    driving.screen.say_outcome(&line, outcome);
    driving.log(&line);
    let (at, asked_by) = (begun.started.wall, &begun.asked_by);
    driving.screen.row(number, at, took, outcome, asked_by);
    driving.last = Some(end);
    // Readers of the record see the pending timers; nothing else depends on it.
    if let Err(e) = driving.publish() {
        tracing::warn!("{e:#}");
    }
}
