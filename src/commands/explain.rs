//! `again explain`: the command that would be run again and why, or why not. Changes nothing.

use crate::cli::{Explain, Global};
use crate::policy::judge::{Case, Verdict, judge};
use crate::puppet::ancestry::Seen;
use crate::puppet::live;
use crate::puppet::rerun::differences;
use crate::request::asked::Request;
use crate::request::case::case;
use crate::request::driver;
use crate::request::observe::{Observation, observe, parent};
use crate::request::order::Plan;
use crate::request::place::{self, Place};
use crate::state::order::Order;
use crate::state::record::Record;
use crate::state::store::Store;
use crate::sys::{shutdown, tree};
use again_base::layout::{megabytes, quoted, say_clean};
use again_base::model::{Bytes, Exit, Identity, Kind, Process, Span};
use again_base::sys::attributes::SignalState;
use again_base::sys::clock::{boottime, moment};
use again_base::sys::process::{self, is_alive, split_block};
use again_base::sys::user;
use anyhow::{Result, bail};

/// Observes and judges as a request does, and shows the result.
///
/// # Errors
/// The failed observation.
pub fn main(global: &Global, args: &Explain, signals: SignalState) -> Result<Exit> {
    let request = Request::new(global, &args.run, signals)?;
    let from = args.pid.unwrap_or_else(parent);
    if process::stat(from).is_err() {
        bail!("there is no such process (pid {from})");
    }
    let seen = observe(from, &request)?;
    let store = Store::existing(&request.settings.state_dir);
    let now = moment();
    let plan = seen.plan.as_ref().ok();
    let record = plan.map(|plan| store.read(&plan.target)).transpose()?;
    let record = record.flatten();
    let driver = driver::above(&request, &seen);
    let (taker, known) = (driver.as_ref(), record.as_ref());
    let case = case(&request, &seen, taker, &store, known, &now);
    let mut out = vec!["processes, the nearest first:".to_owned()];
    let tree = seen.chain.iter().enumerate();
    out.extend(tree.map(|(at, process)| in_tree(process, seen.run == Some(at))));
    out.extend(seen.why.as_ref().map(|why| format!("the run: {why}")));
    if let Some(plan) = plan {
        let new = || Record::new(&plan.target, plan.order.kind, request.around.uid);
        let record = record.unwrap_or_else(new);
        let Place { chain, run, .. } = place::find(&seen, &store, &record, &now);
        let who = seen.run.map_or("it", |_| "the rerun");
        out.extend(what(&seen, plan));
        out.push(format!("chain: {chain}, {who} would be run {run}"));
        out.push("would wait for:".to_owned());
        out.push(time(&request, &seen, run));
        out.extend(blockers(&plan.order, &record, case.disabled.is_some()));
        out.push("would be refused by:".to_owned());
        out.extend(refusers(&case, &store));
    }
    if let Some((driver, true)) = &driver {
        out.push(format!(
            "driver: 'again converge' (pid {}) would take the request, and run its own command again in the foreground, without jitter unless some is set",
            driver.process.pid
        ));
    }
    let mut exit = Exit::Success;
    out.push(match judge(&case) {
        Verdict::Schedule {
            not_before: Span::ZERO,
        } => "verdict: would be scheduled".to_owned(),
        Verdict::Schedule { not_before } => {
            format!("verdict: would be scheduled once the cap allows it, in {not_before}")
        }
        Verdict::Refuse(refusal) => {
            exit = refusal.exit();
            format!("verdict: {refusal}")
        }
    });
    for line in out.iter().flat_map(|lines| lines.split('\n')) {
        // Another user's command line may contain control characters.
        say_clean(line)?;
    }
    Ok(exit)
}

/// Line for one of the processes, with a mark at the one that counts as the run.
fn in_tree(seen: &Seen, is_run: bool) -> String {
    let pid = seen.identity.pid;
    let lossy = |word: &Vec<u8>| String::from_utf8_lossy(word).trim().to_owned();
    let mut words = split_block(&seen.cmdline);
    words.retain(|word| !word.is_empty());
    if words.is_empty() {
        words.push(seen.comm.clone());
    }
    let words: Vec<String> = words.iter().map(lossy).collect();
    let line: String = words.join(" ").chars().take(100).collect();
    let user = process::status(pid).map_or("?".into(), |status| user::name(status.euid));
    let age = Span::from_secs(boottime().since(seen.identity.started()).secs());
    let mark = if is_run { "  <- the run" } else { "" };
    format!("  {pid} {line} ({user}, up {age}){mark}")
}

fn words(line: &[Vec<u8>]) -> String {
    let words = line
        .iter()
        .map(|word| quoted(&String::from_utf8_lossy(word)));
    words.collect::<Vec<_>>().join(" ")
}

/// Command that would be run, and its differences from the command line of the run.
fn what(seen: &Observation, plan: &Plan) -> Vec<String> {
    let order = &plan.order;
    let line: Vec<Vec<u8>> = order.arguments.iter().map(|a| a.0.clone()).collect();
    let user = user::name(user::effective());
    let mut out = vec![
        format!("target: {}, {} of {user}", plan.target, order.kind),
        format!("would run: {}", words(&line)),
    ];
    match differences(&plan.original, &line) {
        Some(none) if none.is_empty() => {
            let of_run = "  the same command line as the run's";
            let same = seen.run.map_or("  the command as it was named", |_| of_run);
            out.push(same.to_owned());
        }
        Some(some) => out.extend(some.iter().map(|difference| {
            let word = words(std::slice::from_ref(&difference.word));
            format!("  {} {word}: {}", difference.how, difference.why)
        })),
        None => out.push(format!(
            "  in place of: {} ('command' in the settings, or -- COMMAND)",
            words(&plan.original)
        )),
    }
    out.extend(wrappers(seen));
    out.extend(plan.manifest.iter().map(|(name, path)| {
        format!("  manifest: {path}, which the run knows as {name}; a rerun does not")
    }));
    let mut programs = order.programs.iter();
    let program = programs.find(|program| program.path().exists());
    let program = program.map_or("not found".into(), Bytes::lossy);
    let input = order
        .input
        .as_ref()
        .map_or("/dev/null".into(), Bytes::lossy);
    out.extend([
        format!("  program: {program}"),
        format!("  in the directory: {}", order.directory.lossy()),
        format!(
            "  with {} environment variables, umask {:04o}, nice level {}, standard input {input}",
            order.environment.as_ref().map_or(0, Vec::len),
            order.attributes.umask.unwrap_or(0o022),
            order.attributes.nice.unwrap_or(0),
        ),
    ]);
    out
}

/// Programs that run another one below them, and whose effect the rerun lacks.
const WRAPPERS: [&str; 15] = [
    "flock",
    "timeout",
    "time",
    "sudo",
    "doas",
    "su",
    "runuser",
    "chronic",
    "strace",
    "ltrace",
    "script",
    "systemd-inhibit",
    "unshare",
    "firejail",
    "proot",
];

/// Wrappers around the run, which its rerun lacks.
fn wrappers(seen: &Observation) -> Option<String> {
    const SHELLS: [&str; 6] = ["sh", "dash", "bash", "ash", "ksh", "zsh"];
    let comm = |seen: &Seen| String::from_utf8_lossy(&seen.comm).into_owned();
    let above = seen
        .chain
        .iter()
        .skip(seen.run? + 1)
        .map(|process| (comm(process), process));
    let around = above.take_while(|(comm, _)| {
        WRAPPERS.contains(&comm.as_str()) || SHELLS.contains(&comm.as_str())
    });
    let wrappers: Vec<_> = around
        .filter(|(comm, _)| WRAPPERS.contains(&comm.as_str()))
        .collect();
    let named: Vec<String> = wrappers
        .iter()
        .map(|(comm, process)| format!("{comm} (pid {})", process.identity.pid))
        .collect();
    let (outermost, _) = wrappers.last()?;
    Some(format!(
        "  without {} around it: to have the rerun in it too, set command = [\"{outermost}\", …] in /etc/again.toml",
        named.join(" and ")
    ))
}

fn time(request: &Request<'_>, seen: &Observation, number: u32) -> String {
    let from = match (seen.run_identity(), request.run.start_timer_now) {
        (None, _) => "from now".to_owned(),
        (Some(run), true) => format!("from now, and the end of the run (pid {})", run.pid),
        (Some(run), false) => format!("after the run has ended (pid {})", run.pid),
    };
    let (delta, range) = (request.delta(), request.jitter_range(number));
    format!("  its time: {delta} and up to {range} of jitter, {from}")
}

/// Obstacles to a rerun if it were due now.
fn blockers(order: &Order, record: &Record, is_disabled: bool) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(rerun) = record.running.iter().find(|run| is_alive(run.process)) {
        out.push(format!(
            "  a rerun that is under way: run {} of chain {}, pid {}",
            rerun.run, rerun.chain, rerun.process.pid
        ));
        out.extend(tree_lines(rerun.process));
    }
    if let Some(path) = &order.paths.agent_catalog_run_lockfile
        && order.kind != Kind::Command
    {
        let holder = live::lock_holder(&order.paths);
        let held = holder.map_or("not held".into(), |who| format!("held by pid {}", who.pid));
        out.push(format!("  the agent's lock: {held} ({})", path.lossy()));
    }
    if is_disabled {
        out.push("  again enable".to_owned());
    }
    out.extend(shutdown::hold(order.hold_before_shutdown).map(|hold| format!("  {hold}")));
    if order.slots {
        out.push("  a slot of the fleet: 'again fleet slot'".to_owned());
    }
    if let Some(path) = &order.paths.agent_disabled_lockfile
        && let Some(reason) = live::agent_disabled(&order.paths)
        && order.kind.is_agent()
    {
        let path = path.lossy();
        out.push(format!(
            "  puppet agent --enable: it is disabled, {reason:?} ({path})"
        ));
    }
    out
}

/// Processes of a rerun, each below its parent.
fn tree_lines(rerun: Identity) -> Vec<String> {
    const MOST: usize = 30;
    let tree = tree::scan(&[rerun]);
    let all = tree.below(rerun.pid);
    let line = |(depth, process): &(usize, &Process)| {
        let indent = "  ".repeat(2 + (*depth).min(MOST));
        let command: String = process.command.chars().take(100).collect();
        let (pid, age, cpu) = (process.pid, process.age, process.cpu);
        let memory = megabytes(process.memory);
        format!("{indent}{pid} {command} (up {age}, {cpu} of CPU time, {memory})")
    };
    let mut lines: Vec<String> = all.iter().take(MOST).map(line).collect();
    if all.len() > MOST {
        lines.push(format!("    and {} more", all.len() - MOST));
    }
    lines
}

/// Reasons to refuse requests, whether or not they apply to this one.
fn refusers(case: &Case, store: &Store) -> [String; 2] {
    let Case { cap, usage, .. } = case;
    let (most, window, used, next) = (cap.max_runs, cap.window, usage.used, usage.frees_in);
    let mut by_cap = format!("  the cap: {used} of {most} reruns within {window} used");
    if usage.is_reached() {
        by_cap.push_str(&format!("; reached, the next is possible in {next}"));
    }
    let disabled = store.disabled().as_ref().map(super::disable::state);
    let disabled = disabled.unwrap_or_else(|| "it is not in force".to_owned());
    [by_cap, format!("  again disable: {disabled}")]
}
