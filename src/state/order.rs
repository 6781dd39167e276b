//! The private part of a timer: the command to run again. Only the owner can read it.

use serde::{Deserialize, Serialize};

use super::newer::{self, Versioned};
use crate::puppet::paths::Paths;
use again_base::model::{Bytes, Identity, Kind, LogLimits, Span, Stuck};
use again_base::sys::attributes::Attributes;

/// Data that a waiter needs while it waits; kept small.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The state directory.
    pub state_dir: Bytes,
    /// The target's id.
    pub target: String,
    /// The timer's name.
    pub name: String,
    /// The timer's token.
    pub token: String,
    /// Run that has to end before the rerun starts.
    pub run: Option<Identity>,
    /// Earlier runs that requested a rerun under the same name and also have to end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Identity>,
}

/// Command, environment and settings of a rerun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The record's version.
    pub version: u32,
    /// Kind of run.
    pub kind: Kind,
    /// Program paths, tried in order.
    pub programs: Vec<Bytes>,
    /// Command line.
    pub arguments: Vec<Bytes>,
    /// Working directory.
    pub directory: Bytes,
    /// Environment, `NAME=VALUE` each. Not stored on disk with `save_environment = false`.
    pub environment: Option<Vec<Bytes>>,
    /// Process attributes: umask, limits, signals and so on.
    pub attributes: Attributes,
    /// File to reopen as standard input; `None` means /dev/null.
    pub input: Option<Bytes>,
    /// Puppet's command line, if `arguments` is a wrapper that is assumed to run it (the setting
    /// `command`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wraps: Option<Vec<Bytes>>,
    /// Manifest that must exist when the rerun starts.
    pub manifest: Option<Bytes>,
    /// Paths of Puppet's own files.
    pub paths: Paths,
    /// Agent daemon whose run requested the rerun, if any.
    pub daemon: Option<Identity>,
    /// Action for a run that holds the agent's lock for too long.
    pub stuck: Stuck,
    /// Whether the rerun waits for a slot of the fleet.
    pub slots: bool,
    /// Time before a shutdown during which the rerun is held.
    pub hold_before_shutdown: Span,
    /// Directory for the logs of reruns.
    pub log_dir: Bytes,
    /// Limits on the number and size of the logs that are kept.
    pub logs: LogLimits,
}

impl Versioned for Order {
    fn version(&self) -> u32 {
        self.version
    }
}

/// Command line of a target, which its owner can see even when nothing is pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLine {
    /// Arguments, the program first.
    pub arguments: Vec<Bytes>,
    /// Working directory.
    pub directory: Bytes,
}

impl CommandLine {
    /// Parses the last line of `text`, which is an order or a command line stored by itself.
    pub fn read(text: &[u8]) -> Option<Self> {
        let line = text.trim_ascii_end().rsplit(|&b| b == b'\n').next()?;
        serde_json::from_slice(line).ok()
    }
}

/// Writes the ticket and the order as two lines of JSON.
///
/// # Errors
/// Errors of serde_json, which these types do not provoke.
pub fn encode(ticket: &Ticket, order: &Order) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(ticket)?;
    text.push(b'\n');
    serde_json::to_writer(&mut text, order)?;
    text.push(b'\n');
    Ok(text)
}

/// Reads back what [`encode`] wrote.
///
/// # Errors
/// A sentence that says what is wrong with the text; a truncated text is an error.
pub fn decode(text: &[u8]) -> Result<(Ticket, Order), String> {
    let mut lines = text.split_inclusive(|&b| b == b'\n');
    let mut line = |what: &str| match lines.next().and_then(|line| line.strip_suffix(b"\n")) {
        Some(line) => Ok(line),
        None => Err(format!("{what} is cut short")),
    };
    let ticket: Ticket =
        serde_json::from_slice(line("the ticket")?).map_err(|e| format!("ticket: {e}"))?;
    let order = newer::read(line("the order")?).map_err(|e| format!("order: {e}"))?;
    Ok((ticket, order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..12).prop_map(Bytes)
    }

    fn orders() -> impl Strategy<Value = (Ticket, Order)> {
        (
            bytes(),
            proptest::collection::vec(bytes(), 0..4),
            proptest::option::of(proptest::collection::vec(bytes(), 0..4)),
            "\\PC{0,12}",
            any::<(i32, u64)>(),
        )
            .prop_map(|(one, many, environment, name, (pid, start))| {
                let ticket = Ticket {
                    state_dir: one.clone(),
                    target: "0123".into(),
                    name,
                    token: "t".into(),
                    run: Some(Identity { pid, start }),
                    others: vec![Identity { pid, start }],
                };
                let order = Order {
                    version: 1,
                    kind: Kind::Apply,
                    programs: many.clone(),
                    arguments: many,
                    directory: one.clone(),
                    environment,
                    attributes: Attributes::default(),
                    input: None,
                    wraps: None,
                    manifest: Some(one.clone()),
                    paths: Paths::default(),
                    daemon: None,
                    stuck: Stuck::End,
                    slots: true,
                    hold_before_shutdown: Span::from_secs(60),
                    log_dir: one,
                    logs: LogLimits::default(),
                };
                (ticket, order)
            })
    }

    proptest! {
        #[test]
        fn decode_undoes_encode((ticket, order) in orders()) {
            let text = encode(&ticket, &order).expect("json");
            prop_assert_eq!(decode(&text), Ok((ticket, order)));
        }

        #[test]
        fn any_truncation_is_an_error((ticket, order) in orders(), cut in any::<proptest::sample::Index>()) {
            let text = encode(&ticket, &order).expect("json");
            prop_assert!(decode(&text[..cut.index(text.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&text);
        }
    }
}
