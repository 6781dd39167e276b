//! The command line. No environment, files or clock here.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::policy::converge::Until;
use again_base::model::{OnCap, Span};

/// Run the same puppet command line again, once the current run has ended.
///
/// A Puppet manifest calls it from inside a run (notify => Exec['again']). A person
/// calls it to see what is pending, and to stop it.
#[derive(Debug, Parser)]
#[command(
    name = "again",
    version,
    override_usage = "again [run] [OPTIONS] [-- COMMAND...]
       again COMMAND [OPTIONS]",
    disable_help_subcommand = true
)]
pub struct Cli {
    /// The options that every command takes.
    #[command(flatten)]
    pub global: Global,
    /// Without a command, `run` is meant.
    #[command(flatten)]
    pub run: Run,
    /// The command.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// `again run` by itself: the same options, without the other commands.
#[derive(Debug, Parser)]
#[command(disable_help_flag = true, disable_version_flag = true)]
struct Request {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    run: Run,
}

impl Cli {
    /// Parses a plain request, which Puppet waits for: building all the other commands takes a
    /// third of the request's time. `None` for everything else, including invalid words.
    pub fn request(arguments: &[OsString]) -> Option<Self> {
        let words = arguments
            .get(1..)
            .filter(|words| words.first().is_some_and(|word| word == "run"))?;
        let Request { global, run } = Request::try_parse_from(words).ok()?;
        Some(Cli {
            global,
            run: Run::default(),
            command: Some(Command::Run(Box::new(run))),
        })
    }

    /// Parses `again fleet …`, whose options belong to the other program, even if they have the
    /// names of ours. `None` for everything else.
    pub fn fleet(arguments: &[OsString]) -> Option<Self> {
        let words = arguments.get(1..)?.split_first();
        let (_, words) = words.filter(|(first, _)| *first == "fleet")?;
        Some(Cli {
            global: Global::default(),
            run: Run::default(),
            command: Some(Command::Fleet(Fleet {
                words: words.to_vec(),
            })),
        })
    }
}

/// Parses a whole number.
fn number<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse()
        .map_err(|_| "write a whole number of a sensible size")
}

/// Whether a word is the name of a command.
pub fn is_command(word: &OsStr) -> bool {
    Cli::command().find_subcommand(word).is_some()
}

/// Command with the name nearest to a mistyped word, if one is near.
pub fn meant(word: &str) -> Option<String> {
    let commands = Cli::command();
    let names = commands.get_subcommands().map(clap::Command::get_name);
    let likeness = |name: &&str| strsim::jaro(word, name);
    let nearest = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&nearest) > 0.7).then(|| nearest.to_owned())
}

/// Options that every command takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// State directory [default: /var/lib/again, or ~/.local/state/again]
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Directory for the output of reruns [default: /var/log/again, or 'log' in the state directory]
    #[arg(long, global = true, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Settings [default: /etc/again.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say more; twice for still more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask for a rerun of the puppet run above this process, or of COMMAND
    Run(Box<Run>),
    /// Show what is pending, what runs, and how the last rerun ended
    Status(Status),
    /// Cancel pending timers: those named, or all
    Stop(Stop),
    /// Bring pending timers forward: those named, or all
    Now(Names),
    /// Refuse requests and hold pending timers until 'again enable'
    Disable(Disable),
    /// Grant requests again, and let held timers go on
    Enable,
    /// Forget the reruns that count towards the cap
    Reset(Reset),
    /// Show every request and what became of it
    History(History),
    /// Show the output of a rerun
    Log(Log),
    /// Write metrics for node_exporter's textfile collector
    Metrics,
    /// Explain what a request would run again and why, or why not; changes nothing
    Explain(Box<Explain>),
    /// Run COMMAND in the foreground, again and again until nothing asks for more
    Converge(Converge),
    /// Give new waiters to pending timers whose waiters have died; for the boot unit
    Resume,
    /// Run again-fleet: what a change on this node starts on others
    #[command(disable_help_flag = true)]
    Fleet(Fleet),
}

/// `again run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Request options")]
pub struct Run {
    /// Wait at least this long after the run has ended (seconds, or 90s 2m 1h 1d)
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub delta: Option<Span>,
    /// Add a random wait of up to this much [default: a quarter of delta, at least 2s]
    #[arg(long, value_name = "DURATION")]
    pub jitter: Option<Span>,
    /// Count delta from now rather than from the end of the run
    #[arg(long)]
    pub start_timer_now: bool,
    /// Name of the timer; a newer request of the same name replaces the older one [default: again]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The requesting resource, for status and history to show
    #[arg(long, value_name = "REFERENCE", hide_short_help = true)]
    pub resource: Option<OsString>,
    /// Cap: at most this many reruns of the target within the window [default: 10]
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    pub max_runs: Option<u32>,
    /// Cap over all targets together: at most this many reruns within the window [default: three times --max-runs]
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    pub max_runs_total: Option<u32>,
    /// The cap's window [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = crate::policy::cap::window)]
    pub window: Option<Span>,
    /// At the cap: fail (exit 1), wait until the window allows it, or skip (exit 0) [default: fail]
    #[arg(long, value_name = "WHAT", value_enum, hide_possible_values = true)]
    pub on_cap: Option<OnCap>,
    /// The triggers of other nodes that this is for, as again-fleet writes them; needs a COMMAND
    #[arg(long, value_name = "WORD", hide = true, requires = "command")]
    pub origin: Option<OsString>,
    /// Puppet's setting of that name, in the requesting run
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub agent_catalog_run_lockfile: Option<PathBuf>,
    /// Puppet's setting of that name, in the requesting run
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub agent_disabled_lockfile: Option<PathBuf>,
    /// Puppet's setting of that name, in the requesting run
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub lastrunfile: Option<PathBuf>,
    /// Puppet's setting of that name, in the agent's daemon
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub pidfile: Option<PathBuf>,
    /// Run this instead of the run's own command line
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `again status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Write JSON, as described in again-json(5)
    #[arg(long)]
    pub json: bool,
    /// Only the target of the puppet run above this process
    #[arg(long)]
    pub this_run: bool,
    /// Show it again when it changes, until interrupted
    #[arg(long)]
    pub watch: bool,
}

/// `again stop`.
#[derive(Debug, Args)]
pub struct Stop {
    /// Names of timers; without any, all of them
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Also end reruns that are under way (TERM, after 10 seconds KILL)
    #[arg(long)]
    pub run: bool,
}

/// `again now`.
#[derive(Debug, Args)]
pub struct Names {
    /// Names of timers; without any, all of them
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
}

/// `again disable`.
#[derive(Debug, Args)]
pub struct Disable {
    /// The reason, for status and refusals to show
    #[arg(value_name = "REASON")]
    pub reason: Vec<String>,
}

/// `again reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// Only this target: its id, or the beginning of it
    #[arg(long, value_name = "ID")]
    pub target: Option<String>,
}

/// `again history`.
#[derive(Debug, Args)]
pub struct History {
    /// Write a line of JSON for each event, as described in again-json(5)
    #[arg(long)]
    pub json: bool,
    /// Only the newest N chains [default: 10; with --json all]
    #[arg(short = 'n', value_name = "N", value_parser = number::<std::num::NonZeroUsize>)]
    pub newest: Option<std::num::NonZeroUsize>,
    /// Only this chain: its id, or the beginning of it
    #[arg(long, value_name = "ID")]
    pub chain: Option<String>,
}

/// `again log`.
#[derive(Debug, Args)]
pub struct Log {
    /// Which: CHAIN, CHAIN-N, or N of the newest chain [default: the newest]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Go on until the rerun has ended
    #[arg(short, long)]
    pub follow: bool,
}

/// `again converge`: runs COMMAND in the foreground until nothing asks for more.
///
/// For first boot, images, kickstart, CI and containers. This process takes the
/// requests of Exec['again'] and 'again run' inside COMMAND: it waits for as long as they
/// ask, and runs COMMAND again, unchanged. COMMAND has standard input, output and
/// error to itself; messages of this process go to standard error.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Exit status: 0 converged; 1 the last run failed; 2 wrong usage; 75 not converged within the cap or the timeout; 126 COMMAND cannot be executed; 127 COMMAND was not found; 128+n ended by signal n. After a failed run that asked for more, the command runs again."
)]
pub struct Converge {
    /// At most this many runs, the first included [default: max_runs of the settings, 10]
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    pub max_runs: Option<u32>,
    /// Give up after this long; a run under way then gets TERM, and 10 seconds later KILL
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<Span>,
    /// After a run of Puppet that applied no catalog, such as for want of its server, run again this much later; such runs do not count for --max-runs
    #[arg(long, value_name = "DELTA", requires = "timeout")]
    pub retry: Option<Span>,
    /// requests: until nothing asks for more; clean: until a run also changes nothing, by Puppet's summary or --detailed-exitcodes (a catalog with a bare notify is never clean)
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        default_value = "requests",
        hide_possible_values = true
    )]
    pub until: Until,
    /// The command, run exactly as it is given
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `again fleet`.
#[derive(Debug, Args)]
pub struct Fleet {
    /// What again-fleet is given, unread
    #[arg(
        value_name = "WORD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<OsString>,
}

/// `again explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Look at this process and its parents, rather than at the caller
    #[arg(long, value_name = "PID", value_parser = number::<i32>)]
    pub pid: Option<i32>,
    /// The request to judge
    #[command(flatten)]
    pub run: Run,
}
