//! Why a driver ends: its exit status and its last word.

use crate::layout::plural;
use crate::model::{BY_SIGNAL, End, Exit, Span};
use crate::policy::converge::{Drive, Finish, Until};

/// Why a driver ends.
#[derive(Debug)]
pub enum Ending {
    /// As the policy decided.
    Finish(Finish),
    /// By a signal.
    Signal(i32),
    /// An operator wanted no further run.
    Stopped,
    /// A run was ended because the time was over.
    TimedOut,
    /// The command could not be executed, and the exit status that says so.
    NotExecuted(String, Exit),
    /// What went wrong on our side.
    Error(anyhow::Error),
}

impl From<anyhow::Error> for Ending {
    fn from(error: anyhow::Error) -> Self {
        Ending::Error(error)
    }
}

impl From<std::io::Error> for Ending {
    fn from(error: std::io::Error) -> Self {
        Ending::Error(error.into())
    }
}

/// What a driver has done by its end.
#[derive(Debug)]
pub struct Done<'a> {
    /// Its runs and pending timers.
    pub drive: &'a Drive,
    /// When it would have been content.
    pub until: Until,
    /// Its limit of time.
    pub timeout: Option<Span>,
    /// Its limit of runs.
    pub max_runs: u32,
    /// How the process of the last run ended.
    pub last: Option<End>,
    /// How long all of it took.
    pub took: Span,
}

impl Ending {
    /// The exit status, and how it all ended in words.
    pub fn verdict(&self, done: &Done<'_>) -> (i32, String) {
        const NOT: i32 = Exit::NotConverged as i32;
        let run = done.drive.runs();
        let so_far = format!("({run} run{} in {})", plural(run as usize), done.took);
        let timeout = done.timeout.unwrap_or(Span::ZERO);
        let mut advice = "";
        let (status, what) = match self {
            Ending::Finish(Finish::Converged) => {
                let why = match done.until {
                    Until::Requests => "nothing asks for more",
                    Until::Clean => "the last run changed nothing, and nothing asks for more",
                };
                (0, format!("converged: {why}"))
            }
            Ending::Finish(Finish::Failed) => {
                let (status, how) = match done.last {
                    Some(End::Signal(n)) => (BY_SIGNAL + n, format!("was killed by signal {n}")),
                    _ => (Exit::Failure as i32, "failed".to_owned()),
                };
                (status, format!("failed: run {run} {how}"))
            }
            Ending::Finish(Finish::Unclear) => (
                Exit::Failure as i32,
                "failed: whether the last run changed anything cannot be known: it wrote no summary that was found, and has no --detailed-exitcodes; use --until requests".to_owned(),
            ),
            Ending::Finish(Finish::Cap) => {
                advice = "; it does not settle, or needs a higher --max-runs";
                let (most, why) = (done.max_runs, done.pending());
                (NOT, format!("not converged: the cap of {most} runs is reached, {why}"))
            }
            Ending::Finish(Finish::Timeout) => (
                NOT,
                format!(
                    "not converged: no further run can start within the timeout of {timeout}, {}",
                    done.pending()
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
}

impl Done<'_> {
    /// What still asks for a run.
    fn pending(&self) -> String {
        let names: Vec<String> = self
            .drive
            .timers()
            .keys()
            .map(|n| format!("'{n}'"))
            .collect();
        if self.drive.runs() == 0 {
            "not even a first one".to_owned()
        } else if names.is_empty() {
            "the last run changed something".to_owned()
        } else {
            format!("still asked for by {}", names.join(", "))
        }
    }
}
