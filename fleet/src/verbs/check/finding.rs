//! PURE: the result of a check, with a remedy.

use std::fmt;

use again_base::layout::{Look, Tone};

/// Result of a check of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The checked thing.
    pub about: &'static str,
    /// Severity of the result.
    pub grade: Grade,
    /// State of the thing, in words.
    pub what: String,
    /// Remedy, if one is needed.
    pub todo: Option<String>,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Works.
    Ok,
    /// Works, but needs attention.
    Warning,
    /// Does not work.
    Error,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Grade::Ok => "ok",
            Grade::Warning => "warning",
            Grade::Error => "error",
        })
    }
}

impl Grade {
    fn tone(self) -> Tone {
        match self {
            Grade::Ok => Tone::Good,
            Grade::Warning => Tone::Attention,
            Grade::Error => Tone::Bad,
        }
    }
}

impl Finding {
    /// A finding without a problem.
    pub fn ok(about: &'static str, what: impl Into<String>) -> Self {
        Finding {
            about,
            grade: Grade::Ok,
            what: what.into(),
            todo: None,
        }
    }

    /// A finding about something that works but needs this remedy.
    pub fn warning(about: &'static str, what: impl Into<String>, todo: impl Into<String>) -> Self {
        Finding {
            grade: Grade::Warning,
            todo: Some(todo.into()),
            ..Finding::ok(about, what)
        }
    }

    /// A finding about something that does not work and needs this remedy.
    pub fn error(about: &'static str, what: impl Into<String>, todo: impl Into<String>) -> Self {
        Finding {
            grade: Grade::Error,
            ..Finding::warning(about, what, todo)
        }
    }

    /// Line for a terminal or a log.
    pub fn line(&self, look: &Look) -> String {
        let todo = self.todo.as_ref();
        let todo = todo.map_or_else(String::new, |todo| format!("; {todo}"));
        let label = format!("{:<8} {:<12} ", self.grade, self.about);
        look.entry(&label, self.grade.tone(), &format!("{}{todo}", self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look {
        width: None,
        colour: false,
    };

    #[test]
    fn a_finding_is_a_line_with_what_to_do() {
        assert_eq!(
            Finding::ok("again", "again 0.1.0").line(&PLAIN),
            "ok       again        again 0.1.0"
        );
        assert_eq!(
            Finding::error("executor", "nobody listens", "start it").line(&PLAIN),
            "error    executor     nobody listens; start it"
        );
        assert!(Grade::Error > Grade::Warning && Grade::Warning > Grade::Ok);
    }
}
