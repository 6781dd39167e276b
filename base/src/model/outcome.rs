//! End and outcome of a run.

/// End of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Exit with this status.
    Exit(i32),
    /// Death by this signal.
    Signal(i32),
}

super::words::shown_words! {
    /// Outcome of a catalog run, as records, history and JSON name it.
    pub enum Outcome {
        /// The run changed something.
        Changed = "changed",
        /// The run changed nothing.
        Unchanged = "unchanged",
        /// The run failed.
        Failed = "failed",
        /// The run succeeded; whether it changed anything is not known.
        Succeeded = "succeeded",
        /// A signal ended the run.
        Killed = "killed",
        /// The run was skipped: another run of the agent was under way.
        Skipped = "skipped",
        /// The outcome cannot be determined.
        Unknown = "unknown",
    }
}

impl Outcome {
    /// Outcome with this stable word.
    pub fn of_kind(word: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|outcome| outcome.kind() == word)
    }

    /// Whether the outcome is a failure.
    pub const fn is_failure(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::Killed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_word_of_its_own_which_is_also_its_json() {
        for outcome in Outcome::ALL.iter().copied() {
            assert_eq!(Outcome::of_kind(outcome.kind()), Some(outcome));
            let json = serde_json::to_string(&outcome).expect("json");
            assert_eq!(json, format!("\"{outcome}\""));
        }
        assert_eq!(Outcome::of_kind("else"), None);
        let failures = Outcome::ALL.iter().copied().filter(|o| o.is_failure());
        assert!(failures.eq([Outcome::Failed, Outcome::Killed]));
    }
}
