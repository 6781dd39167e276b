//! A driver's exit status and its last message.

use super::driving::{Driving, Ending};
use crate::policy::converge::{Drive, Finish, Until};
use again_base::layout::plural;
use again_base::model::{BY_SIGNAL, Boottime, End, Exit, Span};

/// Exit status, and the verdict in words.
pub fn verdict(driving: &Driving<'_>, ending: &Ending, now: Boottime) -> (i32, String) {
    const NOT: i32 = Exit::NotConverged as i32;
    let run = driving.drive.runs();
    let so_far = format!(
        "({run} run{} in {})",
        plural(run as usize),
        now.since(driving.record.began.uptime)
    );
    let timeout = driving.args.timeout.unwrap_or(Span::ZERO);
    let mut advice = "";
    let (status, what) = match ending {
        Ending::Finish(Finish::Converged) => {
            let why = match driving.args.until {
                Until::Requests => "nothing asks for more",
                Until::Clean => "the last run changed nothing, and nothing asks for more",
            };
            (0, format!("converged: {why}"))
        }
        Ending::Finish(Finish::Failed) => {
            let (status, how) = match driving.last {
                Some(End::Signal(n)) => (BY_SIGNAL + n, format!("was killed by signal {n}")),
                _ => (Exit::Failure as i32, "failed".to_owned()),
            };
            (status, format!("failed: run {run} {how}"))
        }
        Ending::Finish(Finish::Unclear) => (
            Exit::Failure as i32,
            "failed: nothing tells whether the last run changed anything: no summary of it was found, and it has no --detailed-exitcodes; use --until requests".to_owned(),
        ),
        Ending::Finish(Finish::Cap) => {
            advice = "; it does not settle, or needs a higher --max-runs";
            let (most, why) = (driving.record.max_runs, pending(&driving.drive));
            (NOT, format!("not converged: the cap of {most} runs is reached, {why}"))
        }
        Ending::Finish(Finish::Timeout) => (
            NOT,
            format!(
                "not converged: no further run can start within the timeout of {timeout}, {}",
                pending(&driving.drive)
            ),
        ),
        Ending::TimedOut => (
            NOT,
            format!("not converged: run {run} was ended at the timeout of {timeout}"),
        ),
        Ending::Signal(signal) => (BY_SIGNAL + signal, format!("ended by signal {signal}")),
        Ending::Stopped => (
            BY_SIGNAL + nix::libc::SIGTERM,
            "ended by 'again stop'".to_owned(),
        ),
        Ending::NotExecuted(reason, exit) => return (*exit as i32, format!("error: {reason}")),
        Ending::Error(e) => return (Exit::Failure as i32, format!("error: {e:#}")),
    };
    (status, format!("{what} {so_far}{advice}"))
}

/// Reason for another run that is still pending, in words.
fn pending(drive: &Drive) -> String {
    let names: Vec<String> = drive.timers().keys().map(|n| format!("'{n}'")).collect();
    if drive.runs() == 0 {
        "not even a first one".to_owned()
    } else if drive.is_without_catalog() {
        "the last run applied no catalog".to_owned()
    } else if names.is_empty() {
        "the last run changed something".to_owned()
    } else {
        format!("still asked for by {}", names.join(", "))
    }
}
