//! Reads what earlier versions wrote: they kept prose where this version keeps kinds.

use super::entry::{Entry, FIRST, KINDS, What};
use super::record::Record;
use crate::model::Outcome;

/// Gives an entry of the history what its version lacks.
pub fn entry(mut entry: Entry) -> Entry {
    if entry.version >= KINDS {
        return entry;
    }
    // A rerun was run 2 at least; run 1 was a converge driver's own first.
    if matches!(entry.what, What::Started | What::Ended) && entry.run <= 1 {
        entry.kind = FIRST.to_owned();
    }
    match entry.what {
        What::Ended => {
            let (word, evidence) = entry.reason.split_once(" (").unwrap_or((&entry.reason, ""));
            entry.outcome = Outcome::of_kind(word);
            entry.reason = evidence.strip_suffix(')').unwrap_or(evidence).to_owned();
        }
        What::Refused => (entry.kind, entry.reason) = refusal(&entry.reason),
        _ => {}
    }
    entry
}

/// Gives a record what its version lacks.
pub fn record(mut record: Record) -> Record {
    if let Some(refused) = record.refused.as_mut().filter(|r| r.kind.is_empty()) {
        (refused.kind, refused.reason) = refusal(&refused.reason);
    }
    record
}

/// Kind and cause of a refusal's line. A line began with its outcome, and a cause with
/// what no other cause begins with; an operator's reason came after that.
fn refusal(line: &str) -> (String, String) {
    let (outcome, cause) = ["refused", "error", "nothing to do"]
        .into_iter()
        .find_map(|outcome| Some((outcome, line.strip_prefix(outcome)?.strip_prefix(": ")?)))
        .unwrap_or(("refused", line));
    let kind = [
        ("the cap is reached:", "cap"),
        ("again is disabled (", "disabled"),
        ("a noop run is never run again", "noop"),
    ]
    .into_iter()
    .find_map(|(begins, kind)| cause.starts_with(begins).then_some(kind))
    .unwrap_or(outcome);
    (kind.to_owned(), cause.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_old_refusal_is_told_by_how_it_begins() {
        for (line, kind, cause) in [
            (
                "refused: the cap is reached: 1 of",
                "cap",
                "the cap is reached: 1 of",
            ),
            (
                "the cap is reached: 1 of",
                "cap",
                "the cap is reached: 1 of",
            ),
            (
                "refused: again is disabled (the cap is reached: x); 'again",
                "disabled",
                "again is disabled (the cap is reached: x); 'again",
            ),
            (
                "nothing to do: a noop run is never run again (x)",
                "noop",
                "a noop run is never run again (x)",
            ),
            ("error: no puppet run", "error", "no puppet run"),
            ("refused: stdin", "refused", "stdin"),
        ] {
            assert_eq!(refusal(line), (kind.to_owned(), cause.to_owned()));
        }
    }
}
