//! What a trigger carries of its past: where everything began, and the nodes that it passed since.

use serde::{Deserialize, Serialize};

use super::name::{Id, Node};
use super::{Malformed, body};

/// How many origins a trigger may carry.
pub const MOST_ORIGINS: usize = 8;
/// The highest hop limit that can be set.
pub const MOST_HOPS: usize = 20;

words! {
    /// What began a story.
    pub enum Cause {
        /// A resource was refreshed in a run of Puppet's.
        Refresh = "refresh",
        /// A report asked for it.
        Kick = "kick",
        /// A person did.
        Person = "person",
        /// Something happened in a run that nobody asked for, and met a rule.
        Event = "event",
        /// A lock has another holder.
        Lock = "lock",
    }
}

/// An origin as it stands in the id of a job.
fn origin(text: &str) -> Result<Origin, Malformed> {
    let mut words = text.split('/');
    let id = words.next().unwrap_or_default().parse()?;
    let cause = words.next().unwrap_or_default();
    let known = Cause::ALL.iter().find(|one| one.to_string() == cause);
    let cause =
        *known.ok_or_else(|| Malformed::new(format!("'{}' is no cause", super::shown(cause))))?;
    let path = words.map(str::parse).collect::<Result<_, _>>()?;
    Ok(Origin { id, cause, path })
}

/// One beginning, and the way from there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Its id.
    pub id: Id,
    /// What it was.
    pub cause: Cause,
    /// The nodes that fired since: the node where it began first, the sender of this trigger last. Their number is that of
    /// the hops.
    pub path: Vec<Node>,
}

impl Origin {
    /// How many hops it has made, with the one of this trigger.
    pub fn hops(&self) -> usize {
        self.path.len()
    }
}

/// All origins of a trigger, in order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lineage(pub Vec<Origin>);

impl Lineage {
    /// Whether it keeps to its bounds: one origin at least, none twice, a path for each.
    ///
    /// # Errors
    /// A sentence that says which bound it breaks.
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

    /// What the id of an agent's job (`--job-id`) tells of the run: nothing, unless it is one of `again`'s that other nodes asked
    /// for, `TOKEN//ID/CAUSE/NODE/NODE//ID/...`.
    ///
    /// # Errors
    /// It is one, but cannot be read.
    pub fn of_job(job: &str) -> Result<Self, Malformed> {
        let mut parts = job.split("//");
        let is_ours =
            |token: &str| !token.is_empty() && token.bytes().all(|b| b.is_ascii_hexdigit());
        if !parts.next().is_some_and(is_ours) {
            return Ok(Lineage::default());
        }
        let mut origins = parts.map(origin).collect::<Result<Vec<_>, _>>()?;
        if origins.is_empty() {
            return Ok(Lineage::default());
        }
        origins.sort();
        let lineage = Lineage(origins);
        lineage.check()?;
        Ok(lineage)
    }

    /// The most hops that an origin has made.
    pub fn hops(&self) -> usize {
        self.0.iter().map(Origin::hops).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the helper writes it; its own test has the same text.
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
