//! Lineage of a trigger: its origins, and the nodes that it has passed since.

use again_base::schema::origin::origins_of_job;
pub use again_base::schema::origin::{Cause, MOST_HOPS, MOST_ORIGINS, Origin};
use serde::{Deserialize, Serialize};

use super::{Malformed, body};

/// All origins of a trigger, in order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lineage(pub Vec<Origin>);

impl Lineage {
    /// Checks the bounds: at least one origin, none twice, a path for each.
    ///
    /// # Errors
    /// A sentence that says which bound is exceeded.
    pub fn check(&self) -> Result<(), Malformed> {
        body::at_most("origins", self.0.len(), MOST_ORIGINS)?;
        if self.0.is_empty() {
            return Err(Malformed::new("the lineage has no origin"));
        }
        if !self.0.is_sorted_by(|a, b| a.id < b.id) {
            return Err(Malformed::new(
                "the origins of the lineage are not in order",
            ));
        }
        for origin in &self.0 {
            body::at_most("hops", origin.hops(), MOST_HOPS)?;
            if origin.path.is_empty() {
                return Err(Malformed::new(
                    "an origin of the lineage has passed no node",
                ));
            }
        }
        Ok(())
    }

    /// Lineage in the id of an agent's job (`--job-id`), `TOKEN//ID/CAUSE/NODE/NODE//ID/...`; empty
    /// unless it is a run of `again` that other nodes requested.
    ///
    /// # Errors
    /// The id has this form, but is invalid.
    pub fn of_job(job: &str) -> Result<Self, Malformed> {
        let origins = origins_of_job(job)?;
        if origins.is_empty() {
            return Ok(Lineage::default());
        }
        let lineage = Lineage(origins);
        lineage.check()?;
        Ok(lineage)
    }

    /// Most hops of any origin.
    pub fn hops(&self) -> usize {
        self.0.iter().map(Origin::hops).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::name::Node;

    /// As `again` writes it; the test of its base has the same text.
    const WAYS: &str = "//00000000000000000000000000000002/kick/db1//00000000000000000000000000000001/kick/web1/lb1.test";

    #[test]
    fn a_job_tells_where_it_comes_from() {
        let token = "0a".repeat(8);
        let read = |job: &str| Lineage::of_job(job);
        let lineage = read(&format!("{token}{WAYS}")).expect("a lineage");
        let shown: Vec<(&str, Cause, Vec<&str>)> = lineage
            .0
            .iter()
            .map(|one| {
                (
                    &one.id.as_str()[30..],
                    one.cause,
                    one.path.iter().map(Node::as_str).collect(),
                )
            })
            .collect();
        let expected = [
            ("01", Cause::Kick, vec!["web1", "lb1.test"]),
            ("02", Cause::Kick, vec!["db1"]),
        ];
        assert_eq!(shown, expected);
        // Nobody's, somebody else's, and one of a run that no other node asked for.
        for job in ["", "17", "https://ci/job/17", &token] {
            assert_eq!(read(job), Ok(Lineage::default()), "{job}");
        }
        let id = "0".repeat(32);
        for ways in [
            "//".to_owned(),
            "//x/kick/a".to_owned(),
            format!("//{id}"),
            format!("//{id}/kick"),
            format!("//{id}/whim/a"),
            format!("//{id}/kick/"),
            format!("//{id}/kick/a*"),
            format!("//{id}/kick/a//{id}/kick/b"),
            format!("//{id}/kick{}", "/a".repeat(MOST_HOPS + 1)),
        ] {
            let job = format!("{token}{ways}");
            assert!(read(&job).is_err(), "{job}");
        }
    }
}
