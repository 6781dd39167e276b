//! The command line. No environment, files or clock here.

use std::path::PathBuf;

use again_base::model::Span;
use again_base::settings::choice;
use clap::{Args, Parser, Subcommand};

use crate::policy::select::{Condition, Selection};
use crate::settings::Backend;
use crate::wire::lock::MOST_TOKEN;
use crate::wire::name::{Id, Name, Node};

/// Run Puppet on other nodes when something changes on this one.
///
/// Puppet calls it from inside a run (the resource type trigger); systemd starts its services; a person calls it to see
/// what is going on in the fleet.
#[derive(Debug, Parser)]
#[command(name = "again-fleet", version, disable_help_subcommand = true)]
pub struct Cli {
    /// The options that every command takes.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Settings [default: /etc/again-fleet.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// State directory [default: /var/lib/again-fleet]
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Carry triggers between this node and its fleet; started by again-fleet.service
    Serve,
    /// Have Puppet run on other nodes; called by the resource type trigger, or by a person
    Trigger(Trigger),
    /// Take back a trigger that its node has not taken yet
    Cancel(Cancel),
    /// Tell what followed from a firing, over all nodes, as a tree
    Story(Story),
    /// Show what runs of Puppet did on all nodes, the moment it happens
    Events(Events),
    /// Show who is there, and what each node tells of itself
    Nodes(Nodes),
    /// Remove a node that is gone for good from what is shown and selected
    Forget(Forget),
    /// Wait until this run may start: one of a bounded number in the fleet; for Puppet's prerun_command
    Slot(Slot),
    /// Show who runs and who waits, of those that share slots
    Slots(Slots),
    /// Take away a node's place among those that share slots
    Release(Release),
    /// Show which node holds which lock
    Locks(Locks),
    /// Move a lock to another candidate
    Move(Move),
    /// See whether this node can fire and be fired at, and what to do where it cannot
    Check(Check),
    /// Make certificates for nodes that have no Puppet server
    Ca(Ca),
    /// Verify triggers that the service hands over, and have them run; started by again-fleet-executor.socket
    Executor(Executor),
    /// Call the programs of rules; started by again-fleet-calls.path
    #[command(hide = true)]
    Call(Executor),
    /// Tell the fleet of this node; called by the resource type again_inventory
    #[command(hide = true)]
    Tell(Tell),
}

/// `again-fleet trigger`.
#[derive(Debug, Args)]
pub struct Trigger {
    /// The nodes, by certname
    #[arg(long, value_name = "NODE", num_args = 1.., required_unless_present_any = ["facts", "class", "environment"])]
    pub to: Vec<Node>,
    /// Nodes besides these, by what they tell of themselves now; not this one
    #[command(flatten)]
    pub select: Select,
    /// The name of the trigger: fired again before a node has taken it, the newer one takes its place [default: again]
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// How long each node waits at least before it runs
    #[arg(long, value_name = "DURATION")]
    pub delta: Option<Span>,
    /// How many of the nodes run at a time; the next begins when one has told how it ended [default: all]
    #[arg(long, value_name = "NUMBER")]
    pub parallel: Option<String>,
    /// Once so many of them have failed, those that have not begun do not
    #[arg(long, value_name = "NUMBER", requires = "parallel")]
    pub stop_after_failures: Option<String>,
    /// How long a node that is away may take it [default: ttl of the settings, an hour; with --parallel a day]
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<Span>,
    /// Wait until each node has told how its run ended, at most for the ttl and the delta
    #[arg(long)]
    pub wait: bool,
    /// Fire on behalf of this node, whose report asks for it; called by the report processor kick
    #[arg(long = "for", value_name = "NODE")]
    pub on_behalf: Option<Node>,
    /// The job id in that report, empty for none, by which it is known where the run comes from
    #[arg(long, value_name = "JOB", requires = "on_behalf")]
    pub job_id: Option<String>,
    /// Fire over this backend or not at all: etcd or nats
    #[arg(long, value_name = "BACKEND", value_parser = choice::<Backend>)]
    pub backend: Option<Backend>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which nodes, by what they tell of themselves.
#[derive(Debug, Args)]
pub struct Select {
    /// Nodes with such a fact: role=haproxy, role!=db, 'uptime>10', 'uptime<10', 'hostname=~^web'; all of several
    #[arg(long = "where", value_name = "FACT=VALUE", num_args = 1..)]
    pub facts: Vec<Condition>,
    /// Nodes whose last catalog had this class, or one of these
    #[arg(long, value_name = "CLASS", num_args = 1..)]
    pub class: Vec<String>,
    /// Nodes of this environment
    #[arg(long, value_name = "ENVIRONMENT")]
    pub environment: Option<String>,
}

impl Select {
    /// The same, without the command line.
    pub fn selection(&self) -> Selection {
        Selection {
            facts: self.facts.clone(),
            classes: self.class.clone(),
            environment: self.environment.clone(),
        }
    }
}

/// `again-fleet nodes`.
#[derive(Debug, Args)]
pub struct Nodes {
    /// Those only
    #[command(flatten)]
    pub select: Select,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Go on showing what changes, until it is interrupted: those first that need a look
    #[arg(long, conflicts_with = "json")]
    pub follow: bool,
}

/// `again-fleet forget`.
#[derive(Debug, Args)]
pub struct Forget {
    /// The node
    #[arg(value_name = "NODE")]
    pub node: Node,
}

/// `again-fleet tell`.
#[derive(Debug, Args)]
pub struct Tell {
    /// How this run ends: changed, unchanged or failed [default: it begins, and standard input has an object of JSON with facts, classes, environment and puppet]
    #[arg(long, value_name = "OUTCOME", value_parser = ["changed", "unchanged", "failed"])]
    pub end: Option<String>,
}

/// `again-fleet cancel`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").args(["id", "to"]).required(true))]
pub struct Cancel {
    /// The id that 'again-fleet trigger' has said
    #[arg(value_name = "ID")]
    pub id: Option<Id>,
    /// All that is on its way from here to this node
    #[arg(long, value_name = "NODE")]
    pub to: Option<Node>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `again-fleet story`.
#[derive(Debug, Args)]
pub struct Story {
    /// The id that 'again-fleet trigger' has said [default: the newest story]
    #[arg(value_name = "ID")]
    pub id: Option<Id>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print a picture for Graphviz
    #[arg(long, conflicts_with_all = ["json", "follow"])]
    pub dot: bool,
    /// Print a picture of its own, as SVG, with the time from left to right
    #[arg(long, conflicts_with_all = ["dot", "json", "follow"])]
    pub svg: bool,
    /// Go on printing what changes, until nothing more is to come
    #[arg(long)]
    pub follow: bool,
}

/// `again-fleet events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Go on printing what happens, until it is interrupted
    #[arg(long)]
    pub follow: bool,
    /// Of this node only
    #[arg(long, value_name = "NODE")]
    pub node: Option<Node>,
    /// Of resources of this type only: Service
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Failures only
    #[arg(long)]
    pub failed: bool,
    /// Print JSON, a line for each
    #[arg(long)]
    pub json: bool,
    /// Print the metrics of runs that have ended as Graphite reads them, below this name
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "puppet", conflicts_with_all = ["json", "kind", "failed"])]
    pub graphite: Option<String>,
}

/// `again-fleet slot`.
#[derive(Debug, Args)]
pub struct Slot {
    /// The group whose slots are meant [default: slots_group of the settings; without, nothing is waited for]
    #[arg(long, value_name = "GROUP")]
    pub group: Option<Name>,
    /// How long to wait at most [default: slots_max_wait of the settings, 30 minutes]
    #[arg(long, value_name = "DURATION")]
    pub max_wait: Option<Span>,
    /// Print a line of JSON for each change
    #[arg(long)]
    pub json: bool,
}

/// `again-fleet slots`.
#[derive(Debug, Args)]
pub struct Slots {
    /// Of this group only
    #[arg(value_name = "GROUP")]
    pub group: Option<Name>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `again-fleet release`.
#[derive(Debug, Args)]
pub struct Release {
    /// The group
    #[arg(value_name = "GROUP")]
    pub group: Name,
    /// The node
    #[arg(value_name = "NODE")]
    pub node: Node,
}

/// `again-fleet locks`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true, args_conflicts_with_subcommands = true)]
pub struct Locks {
    /// Command other than showing the locks
    #[command(subcommand)]
    pub command: Option<LocksCommand>,
    /// Only those for which this node is a candidate, as its service knows them, without asking the backend
    #[arg(long)]
    pub own: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Command of `again-fleet locks` other than showing the locks.
#[derive(Debug, Subcommand)]
pub enum LocksCommand {
    /// Reset the tokens of a lock that nobody holds
    Reset(Reset),
}

/// `again-fleet locks reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// The lock
    #[arg(value_name = "NAME")]
    pub lock: Name,
    /// The token that counts as the last one: the next holder has one more
    #[arg(value_name = "TOKEN", value_parser = clap::value_parser!(u64).range(..MOST_TOKEN))]
    pub token: u64,
}

/// `again-fleet move`.
#[derive(Debug, Args)]
pub struct Move {
    /// The lock
    #[arg(value_name = "LOCK")]
    pub lock: Name,
    /// The candidate that is to hold it
    #[arg(value_name = "NODE")]
    pub node: Node,
}

/// `again-fleet check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `again-fleet ca`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct Ca {
    /// Directory of the CA
    #[arg(long, value_name = "DIR", default_value = "/etc/again-fleet-ca")]
    pub dir: PathBuf,
    /// The command.
    #[command(subcommand)]
    pub command: CaCommand,
}

/// The commands of `again-fleet ca`.
#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Make a CA in a new directory
    Create,
    /// Make a key and a certificate for each node, to be copied there
    Sign {
        /// Certnames of the nodes
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<Node>,
    },
    /// Revoke the certificates of nodes
    Revoke {
        /// Certnames of the nodes
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<Node>,
    },
}

/// `again-fleet executor`.
#[derive(Debug, Args)]
pub struct Executor {
    /// End when nobody has asked for so long
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub idle: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (words, parts) in [
            (&["trigger"][..], &["--to <NODE>"][..]),
            (&["trigger", "--to", "a/b"], &["'a/b'", "is no certname"]),
            (&["trigger", "--too", "a"], &["'--too'", "similar"]),
            (
                &["trigger", "--to", "a", "--backend", "x"],
                &["'x' is not one of etcd, nats"],
            ),
            (
                &["trigger", "--where", "role"],
                &["'role' is no condition on a fact"],
            ),
            (&["cancel"], &["ID|--to <NODE>"]),
            (&["cancel", "xyz"], &["'xyz' is no id"]),
            (&["chek"], &["'chek'"]),
        ] {
            let words = [&["again-fleet"], words].concat();
            let error = Cli::try_parse_from(&words).expect_err("wrong");
            let line = again_base::layout::misread(&error, "again-fleet");
            assert!(!line.contains('\n'), "{line}");
            assert!(line.ends_with("; see 'again-fleet --help'"), "{line}");
            for part in parts {
                assert!(line.contains(part), "{line:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn nodes_may_be_named_in_both_ways() {
        let of = |words: &[&str]| match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Trigger(trigger)) => trigger.to.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(of(&["x", "trigger", "--to", "a", "b", "--wait"]), 2);
        assert_eq!(of(&["x", "trigger", "--to=a", "--to=b", "--json"]), 2);
    }
}
