//! `again explain`: what would be run again and why, or why not. Changes nothing.

use anyhow::{Result, bail};

use super::say;
use crate::cli::{Explain, Global};
use crate::layout::quoted;
use crate::model::{Exit, Kind, Span};
use crate::policy::judge::{Case, Verdict, judge};
use crate::puppet::ancestry::Seen;
use crate::puppet::live;
use crate::puppet::rerun::differences;
use crate::request::observe::{Observation, parent, user_of};
use crate::request::{Place, Plan, Request, case, driver_above, place};
use crate::state::order::Order;
use crate::state::record::Record;
use crate::state::store::{Disabled, Store};
use crate::sys::attributes::SignalState;
use crate::sys::clock::moment;
use crate::sys::process::{is_alive, split_block};
use crate::sys::{clock, process, user};

/// Explains: goes the way of a request as far as the judgement, and shows it.
///
/// # Errors
/// What could not be looked at.
pub fn main(global: &Global, args: &Explain, signals: SignalState) -> Result<Exit> {
    let request = Request::new(global, &args.run, signals)?;
    let from = args.pid.unwrap_or_else(parent);
    if process::stat(from).is_err() {
        bail!("there is no such process (pid {from})");
    }
    let seen = request.observe(from)?;
    let store = Store::existing(&request.settings.state_dir);
    let now = moment();
    let plan = seen.plan.as_ref().ok();
    let record = plan
        .map(|plan| store.read(&plan.target))
        .transpose()?
        .flatten();
    let driver = driver_above(&request, &seen);
    let case = case(
        &request,
        &seen,
        driver.as_ref(),
        &store,
        record.as_ref(),
        &now,
    );
    let mut out = vec!["processes, the nearest first:".to_owned()];
    out.extend(tree(&seen));
    out.extend(seen.why.as_ref().map(|why| format!("the run: {why}")));
    if let Some(plan) = plan {
        let new = || Record::new(&plan.target, plan.order.kind, request.around.uid);
        let record = record.unwrap_or_else(new);
        out.extend(what(&seen, plan));
        out.extend(when(&request, &seen, &place(&seen, &store, &record, &now)));
        out.extend(blockers(&plan.order, &record, store.disabled().as_ref()));
        out.extend(refusers(&case, store.disabled().as_ref()));
    }
    if let Some((driver, true)) = &driver {
        out.push(format!(
            "driver: 'again converge' (pid {}) would take the request, and run its own command again in the foreground, without jitter unless some is set",
            driver.process.pid
        ));
    }
    let (verdict, exit) = match judge(&case) {
        Verdict::Schedule { not_before } if not_before > Span::ZERO => (
            format!("would be scheduled once the cap allows it, in {not_before}"),
            Exit::Success,
        ),
        Verdict::Schedule { .. } => ("would be scheduled".to_owned(), Exit::Success),
        Verdict::Refuse(refusal) => (refusal.to_string(), refusal.exit()),
    };
    out.push(format!("verdict: {verdict}"));
    // Another user's command line may hold what a terminal acts on.
    let lines = out.iter().flat_map(|lines| lines.split('\n'));
    let plain: Vec<String> = lines
        .map(|line| line.replace(char::is_control, " "))
        .collect();
    say(&plain.join("\n"))?;
    Ok(exit)
}

/// The processes, with a mark at the one that is taken for the run.
fn tree(seen: &Observation) -> Vec<String> {
    let now = clock::boottime();
    let line = |(at, s): (usize, &Seen)| {
        let words = split_block(&s.cmdline);
        let words = words.iter().filter(|word| !word.is_empty());
        let words: Vec<String> = words
            .map(|word| String::from_utf8_lossy(word).trim().to_owned())
            .collect();
        let mut title: String = words.join(" ").chars().take(100).collect();
        if title.is_empty() {
            title = String::from_utf8_lossy(&s.comm).into_owned();
        }
        let age = Span::from_secs(now.since(s.identity.started()).secs());
        let mark = if seen.run == Some(at) {
            "  <- the run"
        } else {
            ""
        };
        let (pid, user) = (s.identity.pid, user_of(s.identity.pid));
        format!("  {pid} {title} ({user}, up {age}){mark}")
    };
    seen.chain.iter().enumerate().map(line).collect()
}

fn words(line: &[Vec<u8>]) -> String {
    let words = line
        .iter()
        .map(|word| quoted(&String::from_utf8_lossy(word)));
    words.collect::<Vec<_>>().join(" ")
}

/// What would be run, and how that differs from what the run was started with.
fn what(seen: &Observation, plan: &Plan) -> Vec<String> {
    let order = &plan.order;
    let line: Vec<Vec<u8>> = order.arguments.iter().map(|a| a.0.clone()).collect();
    let mut out = vec![
        format!(
            "target: {}, {} of {}",
            plan.target,
            order.kind,
            user::name(user::effective())
        ),
        format!("would run: {}", words(&line)),
    ];
    match differences(&plan.original, &line) {
        Some(none) if none.is_empty() && seen.run.is_none() => {
            out.push("  the command as it was named".to_owned());
        }
        Some(none) if none.is_empty() => {
            out.push("  the same command line as the run's".to_owned());
        }
        Some(some) => out.extend(some.iter().map(|difference| {
            let how = if difference.added {
                "added"
            } else {
                "taken away"
            };
            let word = words(std::slice::from_ref(&difference.word));
            format!("  {how} {word}: {}", difference.why)
        })),
        None => out.push(format!(
            "  in place of: {} ('command' in the settings, or -- COMMAND)",
            words(&plan.original)
        )),
    }
    let program = order.programs.iter().find(|p| p.path().exists());
    out.push(format!(
        "  program: {}",
        program.map_or_else(|| "not found".to_owned(), |p| p.lossy())
    ));
    out.push(format!("  in the directory: {}", order.directory.lossy()));
    let input = order.input.as_ref();
    out.push(format!(
        "  with {} environment variables, umask {:04o}, nice level {}, standard input {}",
        order.environment.as_ref().map_or(0, Vec::len),
        order.attributes.umask.unwrap_or(0o022),
        order.attributes.nice.unwrap_or(0),
        input.map_or_else(|| "/dev/null".to_owned(), |p| p.lossy()),
    ));
    out
}

/// Its place in the chain, and its time.
fn when(request: &Request<'_>, seen: &Observation, place: &Place) -> Vec<String> {
    let which = if place.run == 1 { "it" } else { "the rerun" };
    let from = match (seen.run_identity(), request.run.start_timer_now) {
        (None, _) => "from now".to_owned(),
        (Some(run), true) => format!("from now, and the end of the run (pid {})", run.pid),
        (Some(run), false) => format!("after the run has ended (pid {})", run.pid),
    };
    let (delta, range) = (request.delta(), request.jitter_range(place.run));
    vec![
        format!("chain: {}, {which} would be run {}", place.chain, place.run),
        "would wait for:".to_owned(),
        format!("  its time: {delta} and up to {range} of jitter, {from}"),
    ]
}

/// What a rerun that were due now would have to wait for.
fn blockers(order: &Order, record: &Record, disabled: Option<&Disabled>) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(rerun) = record.running.iter().find(|run| is_alive(run.process)) {
        out.push(format!(
            "  a rerun that is under way: run {} of chain {}, pid {}",
            rerun.run, rerun.chain, rerun.process.pid
        ));
    }
    if let Some(path) = &order.paths.agent_catalog_run_lockfile
        && order.kind != Kind::Command
    {
        let holder = live::lock_holder(&order.paths);
        let held = holder.map_or_else(
            || "not held".to_owned(),
            |who| format!("held by pid {}", who.pid),
        );
        out.push(format!("  the agent's lock: {held} ({})", path.lossy()));
    }
    if disabled.is_some() {
        out.push("  again enable".to_owned());
    }
    if let Some(path) = &order.paths.agent_disabled_lockfile
        && let Some(reason) = live::agent_disabled(&order.paths)
        && order.kind.is_agent()
    {
        out.push(format!(
            "  puppet agent --enable: it is disabled, {reason:?} ({})",
            path.lossy()
        ));
    }
    out
}

/// What refuses requests, and whether it would refuse this one.
fn refusers(case: &Case, disabled: Option<&Disabled>) -> Vec<String> {
    let Case { cap, usage, .. } = case;
    let reached = if usage.is_reached() {
        format!("; reached, the next is possible in {}", usage.frees_in)
    } else {
        String::new()
    };
    let state = disabled.map_or_else(|| "it is not in force".to_owned(), super::disable::state);
    vec![
        "would be refused by:".to_owned(),
        format!(
            "  the cap: {} of {} reruns within {} used{reached}",
            usage.used, cap.max_runs, cap.window
        ),
        format!("  again disable: {state}"),
    ]
}
