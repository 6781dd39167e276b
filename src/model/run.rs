//! What a run, a request and a timer are described by.

use serde::{Deserialize, Serialize};

use super::Span;

/// What kind of run a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `puppet apply`.
    Apply,
    /// A one-off `puppet agent`.
    Agent,
    /// A run of the agent daemon; its rerun is a one-off.
    Daemon,
    /// A command that somebody named.
    Command,
}

impl Kind {
    /// As records and JSON name it.
    pub const fn kind(self) -> &'static str {
        match self {
            Kind::Apply => "apply",
            Kind::Agent => "agent",
            Kind::Daemon => "daemon",
            Kind::Command => "command",
        }
    }

    /// Whether it is a run of the agent, which takes the agent's lock.
    pub const fn is_agent(self) -> bool {
        matches!(self, Kind::Agent | Kind::Daemon)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Apply => "puppet apply",
            Kind::Agent | Kind::Daemon => "puppet agent",
            Kind::Command => "command",
        })
    }
}

/// What to do when the cap is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnCap {
    /// Refuse, exit 1.
    Fail,
    /// Schedule for the moment the window allows.
    Wait,
    /// Refuse, exit 0.
    Skip,
}

/// From when on delta counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// The end of the requesting run.
    End,
    /// The moment of the request.
    Request,
}

/// At most so many reruns in any window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// The most reruns that may start within any window.
    pub max_runs: u32,
    /// The length of the window.
    pub window: Span,
}

/// How much of a cap is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Reruns that started within the window.
    pub used: u32,
    /// How long until another may start; zero if one may start now.
    pub frees_in: Span,
}

impl Use {
    /// Whether no further rerun may start now.
    pub fn is_reached(&self) -> bool {
        self.frees_in > Span::ZERO
    }
}

/// What a pending timer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum TimerState {
    /// The run that asked has to end first.
    #[serde(rename = "waiting for the run")]
    ForRun,
    /// It waits for its time.
    #[serde(rename = "waiting")]
    Waiting,
    /// It is due, and starts once no other run is in its way.
    #[serde(rename = "due")]
    Due,
    /// It is due, and an operator or a service holds it.
    #[serde(rename = "held")]
    Held,
    /// Its waiter is dead.
    #[serde(rename = "dead")]
    Dead,
}

impl TimerState {
    /// The stable word for it.
    pub const fn kind(self) -> &'static str {
        match self {
            TimerState::ForRun => "waiting for the run",
            TimerState::Waiting => "waiting",
            TimerState::Due => "due",
            TimerState::Held => "held",
            TimerState::Dead => "dead",
        }
    }
}

impl std::fmt::Display for TimerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_json() {
        for kind in [Kind::Apply, Kind::Agent, Kind::Daemon, Kind::Command] {
            let json = serde_json::to_string(&kind).expect("json");
            assert_eq!(json, format!("\"{}\"", kind.kind()));
            assert_eq!(kind.is_agent(), kind.to_string() == "puppet agent");
        }
        for state in [
            TimerState::ForRun,
            TimerState::Waiting,
            TimerState::Due,
            TimerState::Held,
            TimerState::Dead,
        ] {
            let json = serde_json::to_string(&state).expect("json");
            assert_eq!(json, format!("\"{state}\""));
        }
        assert_eq!(Kind::Apply.to_string(), "puppet apply");
        assert_eq!(Kind::Command.to_string(), "command");
    }

    #[test]
    fn a_cap_is_reached_while_nothing_may_start() {
        let mut usage = Use::default();
        assert!(!usage.is_reached());
        usage.frees_in = Span::from_nanos(1);
        assert!(usage.is_reached());
    }
}
