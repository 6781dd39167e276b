//! How a run ended.

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

super::words::shown_words! {
    /// How a catalog run went, as records, history and JSON name it.
    pub enum Outcome {
        /// It changed something.
        Changed = "changed",
        /// It changed nothing.
        Unchanged = "unchanged",
        /// It failed.
        Failed = "failed",
        /// It succeeded; whether it changed anything is not known.
        Succeeded = "succeeded",
        /// A signal ended it.
        Killed = "killed",
        /// It did not take place: another run of the agent was under way.
        Skipped = "skipped",
        /// Its traces do not tell.
        Unknown = "unknown",
    }
}

impl Outcome {
    /// The outcome that a stable word names.
    pub fn of_kind(word: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|outcome| outcome.kind() == word)
    }

    /// Whether it is a failure.
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
