//! Executor. The service, which is not root, passes on triggers that it accepts. The executor
//! verifies all of them again, from their signatures alone, and passes them to `again`. The command
//! that runs is a setting of this node. An event that matched a rule is verified in the same way;
//! if the rule names a program, its call is stored on disk instead.
//!
//! A trigger that is to be accepted is stored before the request to `again`, and recorded in the
//! replay ledger afterwards. If this program is killed in between, the next process first passes
//! the stored trigger on again: `again` knows its number.

/// Outcomes of triggers.
mod became;
/// Program that makes the calls.
pub mod caller;
/// Waiting calls of programs.
pub mod calls;
/// Ends of waiters and runs.
mod ends;
/// Events that matched a rule.
mod event;
/// Requests to `again`.
mod helper;
/// Ledger on disk.
mod ledger;
/// Cap and triggers in the records of `again`.
mod observation;
/// Content of a request to `again`.
mod order;
/// Share of the cap for each node.
mod share;
/// Socket of the executor.
pub mod socket;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use tracing::{error, info, warn};

use again_base::model::Moment;
use again_base::sys::clock;

use crate::handover::Answer;
use crate::identity::Untrusted;
use crate::identity::authority::Authority;
use crate::identity::verifier::Verifier;
use crate::policy::judge::{Rules, Signed, Unfit, Verdict, admit, judge};
use crate::policy::pace::Pace;
use crate::policy::rule::Rule;
use crate::settings::{self, Flags, Settings, Surroundings, Trust};
use crate::spool::requests::Requests;
use crate::spool::{RunEvents, Spool};
use crate::wire::name::Id;
use crate::wire::outcome::{self, Outcome};
use crate::wire::rule_match::RuleMatch;
use crate::wire::trigger::Trigger;
use calls::{Call, Calls, MOST_OF_A_RULE, NotPut};
use event::Happened;
use helper::Done;
use ledger::Ledger;
use order::{Taken, orders};

/// Executor of triggers.
pub struct Executor {
    flags: Flags,
    around: Surroundings,
    ledger: Option<Ledger>,
    calls: Option<Calls>,
    /// Last error when files were marked or removed; the same error is logged once.
    trouble: Option<String>,
}

impl Executor {
    /// Executor with these flags. It opens the ledger and the calls when they are first needed.
    pub fn new(flags: Flags, around: Surroundings) -> Self {
        Executor {
            flags,
            around,
            ledger: None,
            calls: None,
            trouble: None,
        }
    }

    /// Answer to each of these values, in the same order. A value that cannot be judged now is
    /// held.
    pub fn answer(&mut self, values: &[Vec<u8>]) -> Vec<Answer> {
        let answers = self.try_to_answer(values).unwrap_or_else(|why| {
            error!("nothing is taken: {why}");
            vec![said(Outcome::Held, &why); values.len()]
        });
        debug_assert_eq!(answers.len(), values.len());
        answers
    }

    fn try_to_answer(&mut self, values: &[Vec<u8>]) -> Result<Vec<Answer>, String> {
        // Read anew each time, so that changes by an operator or the CA take effect immediately.
        let case = Case::new(&self.flags, &self.around)?;
        let ledger = match &mut self.ledger {
            Some(ledger) => ledger,
            none => none.insert(Ledger::open(&case.settings.state_dir)?),
        };
        let now = clock::moment();
        ledger.forget(&now);
        case.finish(ledger, &now)?;
        let mut answers = Vec::with_capacity(values.len());
        let mut taken = Vec::new();
        let mut judged = case.judge_all(ledger, values, &now);
        let before = ledger.shares().clone();
        let mut shares = before.clone();
        share::limit(&case.settings, &mut shares, runs(&mut judged), now.wall);
        ledger.set_shares(shares);
        for judged in judged {
            answers.push(match judged {
                Err(answer) => answer,
                Ok((
                    Came {
                        trigger,
                        call: Some(call),
                        ..
                    },
                    Verdict::Take(_),
                )) => {
                    let answer = put(&mut self.calls, &case.settings, &call);
                    if answer.outcome == Outcome::Called {
                        ledger.record(&trigger, Outcome::Called, "", case.rules.skew, &now);
                    }
                    answer
                }
                Ok((Came { trigger, .. }, Verdict::Take(lineage))) => {
                    let at = answers.len();
                    taken.push(Taken {
                        at,
                        trigger,
                        lineage,
                    });
                    said(Outcome::Held, "")
                }
                Ok((_, Verdict::Settled(outcome, why) | Verdict::Known(outcome, why))) => {
                    said(outcome, &why)
                }
                Ok((_, Verdict::Held(why))) => said(Outcome::Held, &why),
                Ok((Came { trigger, .. }, Verdict::Superseded(above))) => Answer {
                    above: Some(above),
                    ..said(Outcome::Superseded, &superseded(&trigger, above))
                },
            });
        }
        if let Err(why) = ledger.begin(taken.iter().map(|one| one.trigger.clone()).collect()) {
            ledger.set_shares(before);
            return Err(why);
        }
        for (at, answer) in case.pass_on(ledger, &taken, &now) {
            answers[at] = answer;
        }
        Ok(answers)
    }

    /// Answers about accepted triggers, from the history of `again`, and pidfds of the processes
    /// whose ends change these answers.
    pub fn became(&self, ids: &[Id]) -> (Vec<Answer>, Vec<OwnedFd>) {
        let settings = settings::settings(&self.flags, &self.around).map_err(|e| e.to_string());
        // In this order, nothing is missed: a process that ends after the status was read is held,
        // and earlier ends are in the history.
        let held = settings.as_ref().ok().map(held);
        let known = settings.and_then(|settings| helper::history(&settings));
        let known = known.unwrap_or_else(|why| {
            warn!("what became of triggers is not known: {why}");
            String::new()
        });
        let became = became::became(&known);
        let answer = |id| became.get(id).cloned();
        let answers = ids.iter().map(answer);
        let mut answers: Vec<Answer> = answers
            .map(|one| one.unwrap_or_else(|| said(Outcome::Taken, "")))
            .collect();
        let Some(Ok(held)) = held else {
            for answer in &mut answers {
                answer.is_unwatched = !answer.outcome.is_final();
            }
            return (answers, Vec::new());
        };
        let pidfds = ends::pidfds(held, ids, &mut answers);
        (answers, pidfds)
    }

    /// Marks the files of runs whose events are all published, and removes those that were marked
    /// more than an hour ago. Removes the requests that have these ids.
    pub fn mark(&mut self, runs: &[Id]) {
        let settings = settings::settings(&self.flags, &self.around).map_err(|e| e.to_string());
        let marked = settings.and_then(|settings| {
            let requests = Requests::beside(&settings.spool_dir);
            let removed = requests.remove(runs, clock::walltime());
            let removed = removed.map_err(|e| format!("{}: {e}", requests.path().display()));
            let spool = Spool(settings.spool_dir);
            let marked = spool
                .mark(runs)
                .and_then(|()| spool.clear(clock::walltime()));
            let marked = marked.map_err(|e| format!("{}: {e}", spool.path().display()));
            marked.and(removed)
        });
        let trouble = marked.err();
        if let Some(why) = trouble.as_ref().filter(|_| trouble != self.trouble) {
            warn!("cannot remove files of published events and sent requests: {why}");
        }
        self.trouble = trouble;
    }

    /// Saves the ledger and removes marked files before the process ends.
    pub fn rest(&mut self) {
        if let Some(Err(why)) = self.ledger.as_mut().map(Ledger::save) {
            warn!("{why}");
        }
        self.mark(&[]);
    }
}

fn log(outcome: Outcome, line: &str) {
    match outcome.is_bad() {
        true => warn!("{line}"),
        false => info!("{line}"),
    }
}

fn said(outcome: Outcome, why: &str) -> Answer {
    let why = outcome::words(why);
    Answer {
        outcome,
        why,
        ran: None,
        is_unwatched: false,
        above: None,
    }
}

/// Reason why a trigger is superseded.
fn superseded(trigger: &Trigger, above: u64) -> String {
    format!("its number {} is not above {above}", trigger.number)
}

fn refused(why: &str) -> Answer {
    warn!("refused: {why}");
    said(Outcome::Refused, why)
}

/// Answer to a value that is not trusted.
fn untrusted(untrusted: &Untrusted) -> Answer {
    let why = untrusted.to_string();
    match untrusted.is_ours() {
        true => said(Outcome::Held, &why),
        false => refused(&why),
    }
}

/// Waiters and runs of this node.
///
/// # Errors
/// The status cannot be read; the reason was logged.
fn held(settings: &Settings) -> Result<Vec<ends::Held>, ()> {
    let asked = clock::boottime();
    let status = helper::status(settings);
    let processes = status.and_then(|status| ends::processes(&status).map_err(|e| e.to_string()));
    let processes = processes.map_err(|why| {
        warn!("cannot read 'again status --json', results may be late: {why}");
    })?;
    Ok(ends::hold(processes, asked))
}

/// Triggers that would start a run now.
fn runs(judged: &mut [Result<(Came, Verdict), Answer>]) -> Vec<(&Trigger, &mut Verdict)> {
    let judged = judged.iter_mut().filter_map(|one| one.as_mut().ok());
    let runs =
        judged.filter(|(came, verdict)| came.call.is_none() && matches!(verdict, Verdict::Take(_)));
    runs.map(|(came, verdict)| (&came.trigger, verdict))
        .collect()
}

/// Stores a call. Returns the answer about its event.
fn put(calls: &mut Option<Calls>, settings: &Settings, call: &Call) -> Answer {
    let opened = match calls {
        Some(calls) => Ok(calls),
        none => Calls::open(&settings.state_dir).map(|calls| none.insert(calls)),
    };
    let done = opened
        .map_err(NotPut::Failed)
        .and_then(|calls| calls.put(call));
    let (rule, node) = (&call.rule, &call.event.node);
    let (outcome, why) = match done {
        Ok(()) => (Outcome::Called, format!("{} is called", call.command[0])),
        Err(NotPut::Full) => (
            Outcome::Held,
            format!("{MOST_OF_A_RULE} calls of its rule wait already"),
        ),
        Err(NotPut::Failed(why)) => (Outcome::Held, why),
    };
    let n = call.event.event.n;
    log(
        outcome,
        &format!("{outcome}: rule '{rule}', event {n} of {node}: {why}"),
    );
    said(outcome, &why)
}

/// Verified content of a value.
struct Came {
    trigger: Trigger,
    /// Call that is made instead of a run.
    call: Option<Call>,
    /// Event that the trigger comes from, if it is one of this node. A run must have left it in the
    /// spool.
    own: Option<Happened>,
}

/// Settings and state for judging one request.
struct Case {
    settings: Settings,
    rules: Rules,
    authority: Option<Authority>,
    reactions: Vec<Rule>,
    /// Run that was looked up last, and the events that it left in the spool.
    last_run: RefCell<Option<(Id, Option<RunEvents>)>>,
}

impl Case {
    fn new(flags: &Flags, around: &Surroundings) -> Result<Case, String> {
        let settings = settings::settings(flags, around).map_err(|e| e.to_string())?;
        let rules = settings.rules().map_err(|e| e.to_string())?;
        let authority = match settings.trust {
            Trust::Backend => None,
            Trust::Puppet => Some(settings.authority().map_err(|e| e.to_string())?),
        };
        Ok(Case {
            reactions: settings.reactions().map_err(|e| e.to_string())?,
            last_run: RefCell::default(),
            settings,
            rules,
            authority,
        })
    }

    fn verifier(&self) -> Verifier<'_> {
        Verifier {
            namespace: &self.settings.namespace,
            authority: self.authority.as_ref(),
        }
    }

    /// Passes on triggers that an earlier process had begun with. A trigger that can no longer be
    /// accepted is recorded as accepted if `again` shows it, and dropped otherwise.
    fn finish(&self, ledger: &mut Ledger, now: &Moment) -> Result<(), String> {
        let (mut taken, mut late) = (Vec::new(), Vec::new());
        for (at, trigger) in ledger.begun().iter().enumerate() {
            let trigger = trigger.clone();
            match judge(&self.rules, ledger.replays(), &trigger, now) {
                Verdict::Take(lineage) => taken.push(Taken {
                    at,
                    trigger,
                    lineage,
                }),
                _ => late.push(trigger),
            }
        }
        if !late.is_empty() {
            let shown = helper::status(&self.settings)? + &helper::history(&self.settings)?;
            let mut shares = ledger.shares().clone();
            // An id has 32 random digits, which no other part of these texts has.
            late.retain(|trigger| {
                let is_shown = shown.contains(trigger.id.as_str());
                if !is_shown {
                    shares.remove(trigger);
                }
                is_shown
            });
            ledger.set_shares(shares);
        }
        for trigger in late {
            ledger.record(&trigger, Outcome::Taken, "", self.rules.skew, now);
        }
        self.pass_on(ledger, &taken, now);
        match ledger.begun() {
            [] => Ok(()),
            _ => Err(
                "it is not known whether the helper has on record what it was asked for".to_owned(),
            ),
        }
    }

    /// Verdict on each value, or the answer to it. Triggers with lower numbers are judged first. A
    /// trigger that is to be accepted is recorded as waiting, so that the floor of a removed name
    /// does not reject it.
    fn judge_all(
        &self,
        ledger: &mut Ledger,
        values: &[Vec<u8>],
        now: &Moment,
    ) -> Vec<Result<(Came, Verdict), Answer>> {
        let mut keys = BTreeSet::new();
        let came = values.iter().map(|value| {
            let came = self.admitted(value)?;
            let Trigger { sender, name, .. } = &came.trigger;
            // Each key has one value. The outcome of a second one depends on that of the first.
            match keys.insert((sender.clone(), name.clone())) {
                true => Ok(came),
                false => Err(said(
                    Outcome::Held,
                    "another one of its name was handed over with it",
                )),
            }
        });
        let came: Vec<Result<Came, Answer>> = came.collect();
        let mut judged: Vec<(usize, _)> = came.into_iter().enumerate().collect();
        judged.sort_by_key(|(_, came)| came.as_ref().ok().map(|came| came.trigger.number));
        let judged = judged.into_iter().map(|(at, came)| {
            let judged = came.and_then(|came| {
                let verdict = self.judge(ledger, &came, now)?;
                Ok((came, verdict))
            });
            (at, judged)
        });
        let judged: BTreeMap<usize, _> = judged.collect();
        judged.into_values().collect()
    }

    /// Judges a trigger, and records the verdict.
    fn judge(&self, ledger: &mut Ledger, came: &Came, now: &Moment) -> Result<Verdict, Answer> {
        let trigger = &came.trigger;
        let verdict = judge(&self.rules, ledger.replays(), trigger, now);
        if let (Verdict::Take(_), Some(own)) = (&verdict, &came.own) {
            self.is_left(own)?;
        }
        let skew = self.rules.skew;
        match &verdict {
            Verdict::Take(_) => ledger.record(trigger, Outcome::Held, "", skew, now),
            Verdict::Settled(outcome, why) => ledger.record(trigger, *outcome, why, skew, now),
            Verdict::Known(..) | Verdict::Superseded(_) | Verdict::Held(_) => {}
        }
        // A copy of a trigger that has an outcome is logged as such.
        let (already, outcome, why) = match &verdict {
            Verdict::Settled(outcome, why) => ("", *outcome, why.clone()),
            Verdict::Known(outcome, why) => ("already ", *outcome, why.clone()),
            Verdict::Superseded(above) => {
                let why = superseded(trigger, *above);
                ("already ", Outcome::Superseded, why)
            }
            Verdict::Take(_) | Verdict::Held(_) => return Ok(verdict),
        };
        let Trigger {
            sender,
            name,
            number,
            ..
        } = trigger;
        log(
            outcome,
            &format!("{already}{outcome}: '{name}' of {sender}, number {number}: {why}"),
        );
        Ok(verdict)
    }

    /// Verified trigger in a value, if this node accepts its signer.
    fn admitted(&self, value: &[u8]) -> Result<Came, Answer> {
        if RuleMatch::is(value) {
            return self.happened(value);
        }
        let opened = self.verifier().open(value);
        let (signer, trigger) = opened.map_err(|why| untrusted(&why))?;
        self.accepted(Signed::new(signer, trigger), None)
    }

    fn accepted(&self, signed: Signed, call: Option<Call>) -> Result<Came, Answer> {
        match admit(&self.rules, &signed) {
            Ok(()) => Ok(Came {
                trigger: signed.trigger,
                call,
                own: None,
            }),
            Err(Unfit::Foreign(why) | Unfit::Refused(why)) => Err(refused(&why)),
        }
    }

    /// Trigger that an event becomes under a rule. The service has this node's certificate, so this
    /// node's signature is not evidence of what its own runs have done.
    fn happened(&self, value: &[u8]) -> Result<Came, Answer> {
        let happened = Happened::open(&self.verifier(), value).map_err(|why| untrusted(&why))?;
        let (rules, namespace) = (&self.reactions, &self.settings.namespace);
        let triggered = happened.trigger(namespace, &self.rules.me, rules);
        let (signed, call) = triggered.map_err(|why| untrusted(&why))?;
        let came = self.accepted(signed, call)?;
        let is_own = happened.batch.node == self.rules.me;
        Ok(Came {
            own: is_own.then_some(happened),
            ..came
        })
    }

    /// Checks that a run of this node has left an event in the spool. The error is the answer to
    /// the event.
    fn is_left(&self, own: &Happened) -> Result<(), Answer> {
        let spool = Spool(self.settings.spool_dir.clone());
        let (path, run, n) = (spool.path().display(), &own.batch.run, own.event.n);
        let mut last = self.last_run.borrow_mut();
        if last.as_ref().is_none_or(|(of, _)| of != run) {
            let events = spool.events(run).map_err(|e| {
                let why = format!("events cannot be read in {path}: {e}");
                said(Outcome::Held, &why)
            })?;
            *last = Some((run.clone(), events));
        }
        let left = last.as_ref().and_then(|(_, events)| events.as_ref());
        match left.is_some_and(|left| own.is_of(left)) {
            true => Ok(()),
            false => Err(refused(&format!(
                "no run has left event {n} of run {run} in {path}"
            ))),
        }
    }

    /// Sends requests for these triggers to `again`, and records those that `again` has recorded.
    /// Returns the answer to each.
    fn pass_on(&self, ledger: &mut Ledger, taken: &[Taken], now: &Moment) -> Vec<(usize, Answer)> {
        let pace = Pace {
            spread: self.settings.spread,
            ..Pace::default()
        };
        let mut answers = Vec::new();
        let mut unknown = Vec::new();
        let mut shares = ledger.shares().clone();
        for order in orders(taken, &pace, self.rules.skew) {
            let done = helper::ask(&self.settings, &order);
            for one in order.members {
                let (outcome, why) = match &done {
                    Done::Recorded(why) => {
                        ledger.record(&one.trigger, Outcome::Taken, why, self.rules.skew, now);
                        (Outcome::Taken, why)
                    }
                    Done::Refused(why) => {
                        shares.remove(&one.trigger);
                        (Outcome::Held, why)
                    }
                    Done::Unknown(why) => {
                        unknown.push(one.trigger.clone());
                        (Outcome::Held, why)
                    }
                };
                let Trigger {
                    sender,
                    name,
                    number,
                    ..
                } = &one.trigger;
                log(
                    outcome,
                    &format!("{outcome}: '{name}' of {sender}, number {number}: {why}"),
                );
                answers.push((one.at, said(outcome, why)));
            }
        }
        ledger.set_shares(shares);
        ledger.end(unknown);
        answers
    }
}
