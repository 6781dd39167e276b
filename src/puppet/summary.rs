//! Puppet's last_run_summary.yaml, and the outcome in it.

use std::collections::BTreeMap;

use again_base::model::Outcome;

/// Scalars of a summary, by `section.key`.
///
/// Puppet writes two levels, with an indent of two spaces (lib/puppet/transaction/report.rb,
/// `raw_summary`); anything else is ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary(BTreeMap<String, String>);

impl Summary {
    /// Parses the text of a summary.
    pub fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut section = String::new();
        let mut scalars = BTreeMap::new();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let unquoted = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
            let depth = key.len() - key.trim_start().len();
            if depth == 0 {
                section = unquoted(key);
            } else if depth == 2 {
                scalars.insert(format!("{section}.{}", unquoted(key)), unquoted(value));
            }
        }
        Summary(scalars)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.parse().ok()
    }

    /// End of the run, in seconds since 1970.
    pub fn last_run(&self) -> Option<u64> {
        self.number("time.last_run")
    }

    /// Duration of the run according to Puppet, in seconds: to get a catalog and to apply it. Not
    /// every version counts the time to load Puppet and the facts.
    pub fn took(&self) -> Option<f64> {
        let seconds = |key: &str| -> Option<f64> { self.0.get(key)?.parse().ok() };
        let took = seconds("time.total")? + seconds("time.config_retrieval").unwrap_or(0.0);
        (0.0..1e9).contains(&took).then_some(took)
    }

    /// Whether a catalog was applied completely. Both times are written at the end of a transaction
    /// (lib/puppet/transaction.rb, lib/puppet/configurer.rb). A failed compilation or a run that is
    /// ended early does not reach that, and counts no failed resource at all.
    fn is_whole(&self) -> bool {
        ["time.catalog_application", "time.transaction_evaluation"]
            .iter()
            .any(|key| self.0.contains_key(*key))
    }

    /// Whether the run had no catalog to apply.
    pub fn is_without_catalog(&self) -> bool {
        let version = self.0.get("version.config").map(String::as_str);
        !self.is_whole() && matches!(version, None | Some("" | "~" | "null"))
    }

    /// Outcome in the summary, with the numbers that show it. `None` for a text that is not a
    /// summary.
    pub fn outcome(&self) -> Option<(Outcome, String)> {
        self.last_run()?;
        if !self.is_whole() {
            let what = match self.is_without_catalog() {
                true => "no catalog was applied",
                false => "it was cut short, and its catalog not applied to the end",
            };
            return Some((Outcome::Failed, what.into()));
        }
        let failed = self.number("resources.failed").unwrap_or(0);
        let restarts = self.number("resources.failed_to_restart").unwrap_or(0);
        let events = self.number("events.failure").unwrap_or(0);
        if failed + restarts + events > 0 {
            return Some((
                Outcome::Failed,
                format!(
                    "{failed} resource{} failed, {restarts} failed to restart",
                    plural(failed)
                ),
            ));
        }
        let changed = self.number("resources.changed").unwrap_or(0);
        Some(if changed > 0 {
            (
                Outcome::Changed,
                format!("{changed} resource{} changed", plural(changed)),
            )
        } else {
            (Outcome::Unchanged, "no resource changed".into())
        })
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "---\nversion:\n  config: 1700000000\n  puppet: 7.23.0\nresources:\n  changed: 2\n  failed: 0\n  failed_to_restart: 0\ntime:\n  config_retrieval: 0.1\n  catalog_application: 0.2\n  last_run: 1700000001\nevents:\n  failure: 0\n";

    #[test]
    fn tells_the_outcomes_apart() {
        let outcome = |text: &str| Summary::parse(text.as_bytes()).outcome().map(|(o, _)| o);
        assert_eq!(outcome(GOOD), Some(Outcome::Changed));
        assert_eq!(
            outcome(&GOOD.replace("changed: 2", "changed: 0")),
            Some(Outcome::Unchanged)
        );
        assert_eq!(
            outcome(&GOOD.replace("failed: 0", "failed: 1")),
            Some(Outcome::Failed)
        );
        assert_eq!(outcome(""), None);
        // A run that got TERM while it applied its catalog.
        assert_eq!(
            outcome(&GOOD.replace("  catalog_application: 0.2\n", "")),
            Some(Outcome::Failed)
        );
        // What Puppet leaves behind when the catalog does not compile.
        let failed = "---\nversion:\n  config:\n  puppet: 7.23.0\nresources:\n  failed: 0\ntime:\n  total: 0.1\n  last_run: 1700000001\n";
        assert_eq!(outcome(failed), Some(Outcome::Failed));
        assert!(Summary::parse(failed.as_bytes()).is_without_catalog());
        let cut_short = GOOD.replace("  catalog_application: 0.2\n", "");
        for text in [GOOD, &cut_short] {
            assert!(
                !Summary::parse(text.as_bytes()).is_without_catalog(),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn total(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Summary::parse(&text).outcome();
        }
    }
}
