//! How a run ended.

use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// How a catalog run went, as records, history and JSON name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It changed something.
    Changed,
    /// It changed nothing.
    Unchanged,
    /// It succeeded; whether it changed anything is not known.
    Succeeded,
    /// It failed.
    Failed,
    /// It did not take place: another run of the agent was under way.
    Skipped,
    /// A signal ended it.
    Killed,
    /// What it left behind does not tell.
    Unknown,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Outcome; 7] = [
        Outcome::Changed,
        Outcome::Unchanged,
        Outcome::Failed,
        Outcome::Succeeded,
        Outcome::Killed,
        Outcome::Skipped,
        Outcome::Unknown,
    ];

    /// The stable word for it.
    pub const fn kind(self) -> &'static str {
        match self {
            Outcome::Changed => "changed",
            Outcome::Unchanged => "unchanged",
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Skipped => "skipped",
            Outcome::Killed => "killed",
            Outcome::Unknown => "unknown",
        }
    }

    /// The outcome that a stable word names.
    pub fn of_kind(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.kind() == word)
    }

    /// Whether it is a failure.
    pub const fn is_failure(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::Killed)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_word_of_its_own_which_is_also_its_json() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::of_kind(outcome.kind()), Some(outcome));
            let json = serde_json::to_string(&outcome).expect("json");
            assert_eq!(json, format!("\"{outcome}\""));
        }
        assert_eq!(Outcome::of_kind("else"), None);
        let failures = Outcome::ALL.into_iter().filter(|o| o.is_failure());
        assert!(failures.eq([Outcome::Failed, Outcome::Killed]));
    }
}
