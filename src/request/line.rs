//! The messages that answer a request.

use super::asked::Request;
use super::observe::Observation;
use crate::puppet::live;
use crate::state::driver::{Driver, Handed};
use crate::state::order::Order;
use crate::state::record::Timer;
use crate::sys::mounts;
use crate::sys::shutdown;
use crate::waiter::start::Armed;
use again_base::layout::quoted;
use again_base::model::{Base, Cap, Hold, Kind, Span, Use};
use again_base::schema::origin::Lineage;
use again_base::sys::clock::boottime;
use again_base::sys::process::{base_name, split_block};

/// Message for a request that a waiter serves.
pub fn scheduled(
    request: &Request<'_>,
    name: &str,
    seen: &Observation,
    armed: &Armed,
    order: &Order,
    range: Span,
    (cap, usage): (Cap, Use),
) -> String {
    let (timer, kind) = (&armed.timer, order.kind);
    let all = if cap.is_total { " of all targets" } else { "" };
    let from = match (timer.base, timer.waits_for) {
        (_, None) => "from now".to_owned(),
        (Base::Request, Some(run)) => {
            format!("from now, and after this run has ended (pid {})", run.pid)
        }
        (Base::End, Some(run)) => format!("after this run has ended (pid {})", run.pid),
    };
    // A command that is named outside any run has not run before.
    let runs = match timer.run == 1 || kind == Kind::Command {
        true => "runs",
        false => "runs again",
    };
    let mut line = format!(
        "again: scheduled: {kind} {runs} {} {from} (timer '{name}', run {} of chain {}, {} of at most {} reruns{all} within {} used); see it by: again status; cancel it by: again stop {}",
        between(timer.delta, range),
        timer.run,
        timer.chain,
        usage.counted(),
        cap.max_runs,
        cap.window,
        as_argument(name),
    );
    if armed.replaced.is_some() {
        line.push_str("; it replaces the pending timer of that name");
        let runs: Vec<String> = timer
            .runs()
            .skip(1)
            .map(|who| who.pid.to_string())
            .collect();
        if !runs.is_empty() {
            let pids = runs.join(", ");
            line.push_str(&format!(
                " and waits for the run that asked for it too (pid {pids})"
            ));
        }
    }
    if kind.is_agent()
        && let Some(reason) = live::agent_disabled(&order.paths)
    {
        line.push_str(&format!("; held as long as {}", Hold::Agent(reason)));
    }
    if let Some(hold) = shutdown::hold(order.hold_before_shutdown) {
        line.push_str(&format!("; held as long as {hold}"));
    }
    if let Some(why) = &armed.scope_failed {
        line.push_str(&format!(
            "; without a systemd scope of its own it ends with the unit it is in ({})",
            why.replace('\n', " ")
        ));
    }
    if mounts::has_private_tmp() {
        line.push_str(match mounts::may_mount() {
            true => "; its /tmp is the unit's own (PrivateTmp): the rerun gets an empty one",
            false => "; its /tmp goes with the unit (PrivateTmp), and without CAP_SYS_ADMIN the rerun gets no other: set PrivateTmp=no",
        });
    }
    if request.run.command.is_empty()
        && let Some(pid) = unknown_driver(seen)
    {
        line.push_str(&format!(
            "; 'again converge' above it (pid {pid}) does not take it: it keeps its state in another directory than {}, or is not in a run",
            request.settings.state_dir.display()
        ));
    }
    line
}

/// Message for a request that a driver has accepted.
pub fn taken_by_driver(driver: &Driver, handed: &Handed) -> String {
    let from = match handed.base {
        Base::End => "after this run has ended",
        Base::Request => "from now, and after this run has ended",
    };
    let last = if driver.run >= driver.max_runs {
        "; it may start no further run, so this request will not be served"
    } else {
        ""
    };
    format!(
        "again: scheduled: taken by 'again converge' (pid {}), which runs its command again {} {from} (timer '{}', run {} of chain {}, at most {} runs){last}",
        driver.process.pid,
        between(handed.delta, handed.jitter.unwrap_or(Span::ZERO)),
        handed.name,
        driver.run.saturating_add(1),
        driver.chain,
        driver.max_runs
    )
}

/// Message for triggers that join a pending timer.
pub fn goes_with(name: &str, timer: &Timer, lineage: &Lineage) -> String {
    let told = lineage.told().unwrap_or_default();
    let due = timer.due.map(|due| due.since(boottime()).to_string());
    format!(
        "again: scheduled: {told} goes with the pending timer '{name}', due in {} (run {} of chain {}); see it by: again status; cancel it by: again stop {}",
        due.as_deref().unwrap_or("a while"),
        timer.run,
        timer.chain,
        as_argument(name),
    )
}

/// Wait of a timer and the triggers that it is for, for the history.
pub fn wait(request: &Request<'_>, timer: &Timer, lineage: &Lineage) -> String {
    let mut wait = format!("delta {}, jitter {}", request.delta(), timer.jitter);
    if timer.put_off > Span::ZERO {
        wait.push_str(&format!(", put off {} by the cap", timer.put_off));
    }
    if let Some(resource) = &timer.resource {
        wait.push_str(&format!(", by {resource}"));
    }
    if let Some(told) = lineage.told() {
        wait.push_str(&format!(", for {told}"));
    }
    wait
}

fn between(least: Span, range: Span) -> String {
    if range == Span::ZERO {
        least.to_string()
    } else {
        format!("{least} to {}", least + range)
    }
}

/// Name of a timer, quoted as an argument of `again stop`.
pub(super) fn as_argument(name: &str) -> String {
    let dashes = if name.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(name))
}

/// Pid of an `again converge` above us that no record here knows: it has another state directory,
/// and will not see the request.
fn unknown_driver(seen: &Observation) -> Option<i32> {
    let is_driver = |cmdline: &[u8]| {
        let words = split_block(cmdline);
        let mut own = words.iter().take_while(|word| *word != b"--");
        words
            .first()
            .is_some_and(|word| base_name(word) == b"again")
            && own.any(|word| word == b"converge")
    };
    let driver = seen
        .chain
        .iter()
        .find(|ancestor| is_driver(&ancestor.cmdline))?;
    Some(driver.identity.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_typed_as_it_is_shown() {
        for (name, typed) in [
            ("again", "again"),
            ("peers joined", "'peers joined'"),
            ("it's", "'it'\\''s'"),
            ("-dash", "-- -dash"),
        ] {
            assert_eq!(as_argument(name), typed);
        }
    }
}
