//! Words for runs, requests and timers.

use serde::{Deserialize, Serialize};

use super::time::Span;

super::words::words! {
    /// Kind of run that a target is.
    pub enum Kind {
        /// `puppet apply`.
        Apply = "apply",
        /// A one-off `puppet agent`.
        Agent = "agent",
        /// A run of the agent daemon; its rerun is a one-off.
        Daemon = "daemon",
        /// A command that was named on the command line or in the settings.
        Command = "command",
    }
}

impl Kind {
    /// Whether it is a run of Puppet.
    pub const fn is_puppet(self) -> bool {
        !matches!(self, Kind::Command)
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

/// Behaviour when the cap is reached.
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

/// Action on a run that outlives its time and blocks a timer that is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Stuck {
    /// Show it.
    #[default]
    Report,
    /// End it: TERM, then KILL.
    End,
}

/// Limits of the stored output of reruns. 0 bytes means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Most logs of one target (`keep_logs`).
    pub keep: u32,
    /// Most bytes of one log, once its rerun has ended (`max_log_size`).
    pub each: u64,
    /// Most bytes of all logs together (`max_logs_size`).
    pub all: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits {
            keep: 20,
            each: 16 << 20,
            all: 256 << 20,
        }
    }
}

/// Moment from which delta counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// The end of the requesting run.
    End,
    /// The moment of the request.
    Request,
}

/// Most reruns in any window of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// Most reruns that may start within any window.
    pub max_runs: u32,
    /// Length of the window.
    pub window: Span,
    /// Whether it is the cap over all targets together.
    #[serde(skip)]
    pub is_total: bool,
}

/// Amount of a cap that is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Reruns that started within the window.
    pub used: u32,
    /// Number of these starts that another machine made.
    pub foreign: u32,
    /// Number of these starts that are dated later than this machine's wall clock.
    pub ahead: u32,
    /// Time until another rerun may start; zero if one may start now.
    pub frees_in: Span,
}

impl Use {
    /// Number of starts: `3`, or `3 (1 of another machine)` if other machines made some.
    pub fn counted(&self) -> String {
        let used = self.used;
        match (self.foreign, self.ahead) {
            (0, _) => used.to_string(),
            (foreign, 0) => format!("{used} ({foreign} of another machine)"),
            (foreign, ahead) => format!(
                "{used} ({foreign} of another machine, {ahead} dated later than this machine's \
                 clock; check both clocks, or run 'again reset')"
            ),
        }
    }

    /// Whether no further rerun may start now.
    pub fn is_reached(&self) -> bool {
        self.frees_in > Span::ZERO
    }
}

super::words::shown_words! {
    /// State of a pending timer.
    pub enum TimerState {
        /// The run that requested it has to end first.
        ForRun = "waiting for the run",
        /// Waits until it is due.
        Waiting = "waiting",
        /// Due: it starts when no other run blocks it.
        Due = "due",
        /// Due, but an operator or a service holds it.
        Held = "held",
        /// The timer's waiter is dead.
        Dead = "dead",
        /// The timer belongs to another machine or pid namespace.
        Foreign = "foreign",
    }
}

super::words::words! {
    /// Obstacle of a timer.
    pub enum Obstacle {
        /// The timer's own waiter, which a signal has stopped.
        Waiter = "waiter",
        /// The run that requested the timer.
        Run = "run",
        /// Another rerun of the target.
        Rerun = "rerun",
        /// A run that holds Puppet's lock.
        AgentLock = "agent lock",
        /// A process that holds the lock of the target's record.
        RecordLock = "record lock",
        /// Other nodes, which hold all slots of the fleet.
        Slot = "slot",
        /// Another obstacle, which only the waiter's text describes.
        Other = "other",
    }
}

super::words::words! {
    /// State of a converge driver.
    pub enum DriverState {
        /// The driver's command runs.
        Running = "running",
        /// The driver waits for a timer, or is about to start or to end.
        Waiting = "waiting",
        /// The driver's next run is due, but is held.
        Held = "held",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_json() {
        for kind in Kind::ALL {
            let json = serde_json::to_string(&kind).expect("json");
            assert_eq!(json, format!("\"{}\"", kind.kind()));
            assert_eq!(kind.is_agent(), kind.to_string() == "puppet agent");
        }
        for state in TimerState::ALL {
            let json = serde_json::to_string(&state).expect("json");
            assert_eq!(json, format!("\"{state}\""));
        }
        assert_eq!(DriverState::Held.kind(), "held");
        assert_eq!(Kind::Apply.to_string(), "puppet apply");
        assert_eq!(Kind::Command.to_string(), "command");
    }

    #[test]
    fn a_cap_is_reached_while_nothing_may_start() {
        let mut usage = Use::default();
        assert!(!usage.is_reached());
        usage.frees_in = Span::from_nanos(1);
        assert_eq!(usage.counted(), "0");
        (usage.used, usage.foreign) = (3, 1);
        assert_eq!(usage.counted(), "3 (1 of another machine)");
        assert!(usage.is_reached());
    }
}
