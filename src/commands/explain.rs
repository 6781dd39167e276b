//! `again explain`: what would be run again and why, or why not. Changes nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use anyhow::{Result, bail};

use super::say;
use crate::cli::{Explain, Global};
use crate::config::{self, Surroundings};
use crate::model::{Exit, Kind, Refusal, Span};
use crate::observe::{self, Observation};
use crate::policy::cap;
use crate::policy::delay;
use crate::policy::judge::{Case, Verdict, judge, under_driver};
use crate::puppet::live;
use crate::puppet::rerun::differences;
use crate::state::order::Order;
use crate::state::record::Record;
use crate::state::store::{Disabled, Store};
use crate::sys::attributes::SignalState;
use crate::sys::clock::moment;
use crate::sys::process::is_alive;
use crate::sys::{clock, process, user};
use crate::target;

/// Explains.
///
/// # Errors
/// What could not be looked at.
pub fn main(global: &Global, args: &Explain, signals: SignalState) -> Result<Exit> {
    let around = Surroundings::of_this_process();
    let settings = config::settings(global, &args.run, &around)?;
    let from = args.pid.unwrap_or_else(observe::parent);
    if process::stat(from).is_err() {
        bail!("there is no such process (pid {from})");
    }
    let seen = observe::observe(
        from,
        &args.run.command,
        &config::given_paths(&args.run),
        &settings,
        &around,
        signals,
    )?;
    let mut out = vec!["processes, the nearest first:".to_owned()];
    out.extend(tree(&seen));
    out.extend(seen.why.as_ref().map(|why| format!("the run: {why}")));
    let store = Store::existing(&settings.state_dir);
    let now = moment();
    let record = seen
        .order
        .as_ref()
        .map(|order| target::id(order, around.uid))
        .map(|id| store.read(&id).map(|record| (id, record)))
        .transpose()?;
    let starts = record
        .as_ref()
        .and_then(|(_, record)| record.as_ref())
        .map_or_else(Vec::new, |record| record.moments().cloned().collect());
    let usage = cap::usage(settings.cap, &starts, &now);
    if let (Some(order), Some((id, record))) = (&seen.order, &record) {
        out.extend(plan(&seen, order, id));
        let known = record
            .clone()
            .unwrap_or_else(|| Record::new(id, order.kind, around.uid));
        let place = super::run::place(&seen, &store, &known, &now);
        out.push(format!(
            "chain: {}, the rerun would be run {}",
            place.chain, place.run
        ));
        let delta = args.run.delta.unwrap_or(Span::ZERO);
        let range = delay::jitter_range(delta, settings.jitter, settings.max_jitter, place.run - 1);
        let from = match (seen.run_identity(), args.run.start_timer_now) {
            (None, _) => "from now".to_owned(),
            (Some(run), true) => format!("from now, and the end of the run (pid {})", run.pid),
            (Some(run), false) => format!("after the run has ended (pid {})", run.pid),
        };
        out.push("would wait for:".to_owned());
        out.push(format!(
            "  its time: {delta} and up to {range} of jitter, {from}"
        ));
        out.extend(blockers(order, &known, store.disabled()));
        out.push("would be refused by:".to_owned());
        out.push(format!(
            "  the cap: {} of {} reruns within {} used{}",
            usage.used,
            settings.cap.max_runs,
            settings.cap.window,
            if usage.is_reached() {
                format!("; reached, the next is possible in {}", usage.frees_in)
            } else {
                String::new()
            }
        ));
        out.push(match store.disabled() {
            Some(disabled) => format!("  again disable: {}", super::disable::state(&disabled)),
            None => "  again disable: it is not in force".to_owned(),
        });
    }
    let driver =
        super::handover::driver_above(&store, &seen, &now).filter(|_| args.run.command.is_empty());
    if let Some((driver, true)) = &driver {
        out.push(format!(
            "driver: 'again converge' (pid {}) would take the request, and run its own command again in the foreground, without jitter unless some is set",
            driver.process.pid
        ));
    }
    let judged = judge(&Case {
        above: if driver.is_some() {
            under_driver(seen.above.clone())
        } else {
            seen.above.clone()
        },
        disabled: store.disabled().map(|disabled| disabled.reason),
        cap: settings.cap,
        usage,
        on_cap: settings.on_cap,
    });
    let verdict = match &driver {
        Some((driver, false)) => Verdict::Refuse(Refusal::DriverGone {
            pid: driver.process.pid,
        }),
        _ => judged,
    };
    let exit = match verdict {
        Verdict::Schedule { not_before } if not_before > Span::ZERO => {
            out.push(format!(
                "verdict: would be scheduled once the cap allows it, in {not_before}"
            ));
            Exit::Success
        }
        Verdict::Schedule { .. } => {
            out.push("verdict: would be scheduled".to_owned());
            Exit::Success
        }
        Verdict::Refuse(refusal) => {
            out.push(format!("verdict: {refusal}"));
            refusal.exit()
        }
    };
    // Another user's command line may hold what a terminal acts on.
    let out: Vec<String> = out
        .iter()
        .flat_map(|lines| lines.split('\n'))
        .map(|line| line.replace(char::is_control, " "))
        .collect();
    say(&out.join("\n"))?;
    Ok(exit)
}

/// The processes, with a mark at the one that is taken for the run.
fn tree(seen: &Observation) -> Vec<String> {
    let now = clock::boottime();
    seen.chain
        .iter()
        .enumerate()
        .map(|(at, s)| {
            let words: Vec<String> = process::split_block(&s.cmdline)
                .iter()
                .filter(|word| !word.is_empty())
                .map(|word| String::from_utf8_lossy(word).trim().to_owned())
                .collect();
            let line: String = words.join(" ").chars().take(100).collect();
            let age = now.since(s.identity.started()).nanos() / 1_000_000_000;
            let age = Span::from_secs(age);
            let mark = if seen.run == Some(at) {
                "  <- the run"
            } else {
                ""
            };
            format!(
                "  {} {} ({}, up {age}){mark}",
                s.identity.pid,
                if line.is_empty() {
                    String::from_utf8_lossy(&s.comm).into_owned()
                } else {
                    line
                },
                observe::user_of(s.identity.pid),
            )
        })
        .collect()
}

fn words(line: &[Vec<u8>]) -> String {
    line.iter()
        .map(|word| crate::layout::quoted(&OsString::from_vec(word.clone()).to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn plan(seen: &Observation, order: &Order, id: &str) -> Vec<String> {
    let line: Vec<Vec<u8>> = order.arguments.iter().map(|a| a.0.clone()).collect();
    let mut out = vec![
        format!(
            "target: {id}, {} of {}",
            order.kind,
            user::name(user::effective())
        ),
        format!("would run: {}", words(&line)),
    ];
    match differences(&seen.original, &line) {
        Some(none) if none.is_empty() && seen.run.is_none() => {
            out.push("  the command as it was named".to_owned());
        }
        Some(none) if none.is_empty() => {
            out.push("  the same command line as the run's".to_owned());
        }
        Some(some) => out.extend(some.iter().map(|difference| {
            format!(
                "  {} {}: {}",
                if difference.added {
                    "added"
                } else {
                    "taken away"
                },
                words(std::slice::from_ref(&difference.word)),
                difference.why
            )
        })),
        None => out.push(format!(
            "  in place of: {} ('command' in the settings, or -- COMMAND)",
            words(&seen.original)
        )),
    }
    let program = order.programs.iter().find(|p| p.path().exists());
    out.push(format!(
        "  program: {}",
        program.map_or_else(|| "not found".to_owned(), |p| p.lossy())
    ));
    out.push(format!("  in the directory: {}", order.directory.lossy()));
    out.push(format!(
        "  with {} environment variables, umask {:04o}, nice level {}, standard input {}",
        order.environment.as_ref().map_or(0, Vec::len),
        order.attributes.umask.unwrap_or(0o022),
        order.attributes.nice.unwrap_or(0),
        order
            .input
            .as_ref()
            .map_or_else(|| "/dev/null".to_owned(), |p| p.lossy()),
    ));
    out
}

/// What a rerun that were due now would have to wait for.
fn blockers(order: &Order, record: &Record, disabled: Option<Disabled>) -> Vec<String> {
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
        out.push(match live::lock_holder(&order.paths) {
            Some(who) => format!(
                "  the agent's lock: held by pid {} ({})",
                who.pid,
                path.lossy()
            ),
            None => format!("  the agent's lock: not held ({})", path.lossy()),
        });
    }
    if disabled.is_some() {
        out.push("  again enable".to_owned());
    }
    if let Some(path) = &order.paths.agent_disabled_lockfile
        && let Some(reason) = live::agent_disabled(&order.paths)
        && matches!(order.kind, Kind::Agent | Kind::Daemon)
    {
        out.push(format!(
            "  puppet agent --enable: it is disabled, {reason:?} ({})",
            path.lossy()
        ));
    }
    out
}
