//! The commands of `again-fleet` that Puppet and people run.

/// `again-fleet ca`.
pub mod ca;
/// `again-fleet cancel`.
pub mod cancel;
/// `again-fleet check`.
pub mod check;
/// `again-fleet events`.
pub mod events;
/// `again-fleet locks` and `again-fleet move`.
pub mod locks;
/// `again-fleet nodes` and `again-fleet forget`.
pub mod nodes;
/// Outcomes of the targets while a command waits.
mod progress;
/// The service's answer to a trigger.
mod reply;
/// The Puppet run that a command is called from.
mod run;
/// Progress on a terminal while a command waits.
mod screen;
/// A command's conversation with the service.
mod service;
/// `again-fleet slot`.
pub mod slot;
/// `again-fleet slots` and `again-fleet release`.
pub mod slots;
/// `again-fleet story`.
pub mod story;
/// `again-fleet tell`.
pub mod tell;
/// `again-fleet trigger`.
pub mod trigger;
/// Requests that wait on disk for the service.
mod waiting;
/// A command's own watch of the backend.
mod watching;

use std::fmt;
use std::io;

use again_base::model::{Usage, Walltime};
use again_base::sys::localtime;

use crate::wire::Malformed;
use crate::wire::name::Node;

/// Exit status of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or not done for a reason that is not a failure.
    Done = 0,
    /// An error, or a part that failed or was refused.
    Failed = 1,
    /// The command line or the settings are wrong.
    Usage = 2,
    /// With `--wait`: not done in time.
    NotInTime = 75,
}

/// Reason why a command failed.
#[derive(Debug)]
pub enum Problem {
    /// The command line or a setting is wrong.
    Usage(String),
    /// The command failed.
    Failed(String),
    /// The service does not answer.
    Unreachable(String),
    /// Standard output was closed by its reader.
    NobodyReads,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Usage(what) | Problem::Failed(what) | Problem::Unreachable(what) => {
                f.write_str(what)
            }
            Problem::NobodyReads => f.write_str("nobody reads standard output"),
        }
    }
}

impl From<Usage> for Problem {
    fn from(e: Usage) -> Self {
        Problem::Usage(e.0)
    }
}

impl From<Malformed> for Problem {
    fn from(e: Malformed) -> Self {
        Problem::Failed(e.to_string())
    }
}

impl From<io::Error> for Problem {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Problem::NobodyReads,
            _ => Problem::Failed(e.to_string()),
        }
    }
}

/// Largest number of nodes that a line names.
const MOST_NAMED: usize = 20;

/// `3 nodes: a, b, c`.
fn named<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> String {
    let all: Vec<&str> = nodes.into_iter().map(Node::as_str).collect();
    let count = all.len();
    let shown = all[..count.min(MOST_NAMED)].join(", ");
    let more = match count.saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let s = again_base::layout::plural(count);
    format!("{count} node{s}: {shown}{more}")
}

/// A local time for people: `14:32` today, `2026-11-23 14:32` on another day.
fn clock(at: Walltime, now: Walltime) -> String {
    let (at, now) = (localtime::local(at), localtime::local(now));
    let (Some((day, time)), Some((today, _))) = (at.split_once(' '), now.split_once(' ')) else {
        return at;
    };
    let minute = time.rsplit_once(':').map_or(time, |(minute, _)| minute);
    if day == today {
        minute.to_owned()
    } else {
        format!("{day} {minute}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_are_not_all_named() {
        let nodes = |count: usize| -> Vec<Node> {
            let name = |n: usize| format!("n{n}").parse().expect("a certname");
            (0..count).map(name).collect()
        };
        assert_eq!(named(&nodes(1)), "1 node: n0");
        assert_eq!(named(&nodes(2)), "2 nodes: n0, n1");
        let many = named(&nodes(23));
        assert!(many.starts_with("23 nodes: n0, ") && many.ends_with(", n19 and 3 more"));
    }

    #[test]
    fn a_time_of_today_has_no_date() {
        let now = Walltime::from_millis(1_795_219_387_045);
        let local = localtime::local(now);
        assert_eq!(clock(now, now), local[11..16]);
        let later = Walltime::from_millis(now.millis() + 86_400_000);
        assert_eq!(clock(later, now), localtime::local(later)[..16]);
    }
}
