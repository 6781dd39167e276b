//! Origins of a trigger, and the limit on their hops.
//!
//! Every origin keeps its own path. So a circle ends after its own hops, and does not block other
//! origins of the same trigger.

use std::fmt;

use again_base::schema::origin;

use crate::wire::lineage::{Cause, Lineage, MOST_HOPS, Origin};
use crate::wire::name::{Id, Node};

/// Default number of hops that an origin may make.
pub const HOP_LIMIT: usize = 10;

/// Merged origins of several lineages, each once, with its longest known path, so that no hop is
/// lost. If there are too many, those with the fewest hops stay, so that a circle displaces no
/// other origin.
pub fn merged<'a>(all: impl IntoIterator<Item = &'a Lineage>) -> Lineage {
    merged_with(None, all)
}

/// Merged origins as in [`merged`], but the origin `first` always stays. It displaces at most one
/// other.
pub fn merged_with<'a>(first: Option<&Id>, all: impl IntoIterator<Item = &'a Lineage>) -> Lineage {
    let origins = all.into_iter().flat_map(|lineage| &lineage.0);
    Lineage(origin::merged(first, origins))
}

/// Origin that has exceeded the limit on hops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooFar {
    /// Id of the origin.
    pub id: Id,
    /// Maximum number of hops.
    pub limit: usize,
    /// Nodes of the circle, from the target to the node that sent; all nodes of the path if there
    /// is no circle.
    pub nodes: Vec<Node>,
    /// Whether the path is a circle.
    pub is_circle: bool,
}

/// Output such as `lb1 -> web1 -> lb1 ...`. ASCII only: Puppet fails an Exec whose output it cannot
/// decode, and under cron it decodes nothing else.
impl fmt::Display for TooFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over {} hops: ", self.limit)?;
        for node in &self.nodes {
            write!(f, "{node} -> ")?;
        }
        if self.is_circle {
            write!(f, "{} ...", self.nodes[0])
        } else {
            f.write_str("...")
        }
    }
}

/// Lineage, separated by the limit on hops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Within {
    /// Origins within the limit; may be empty.
    pub lineage: Lineage,
    /// Origins beyond the limit.
    pub too_far: Vec<TooFar>,
}

/// Lineage that a run on `firing` passes to `target`: the origins of the triggers that caused the
/// run, with one more hop; or a new origin if no trigger caused it.
pub fn next_hop(
    run: &Lineage,
    new: (&Id, Cause),
    firing: &Node,
    target: &Node,
    limit: usize,
) -> Within {
    let mut next = run.clone();
    if next.0.is_empty() {
        next.0.push(Origin {
            id: new.0.clone(),
            cause: new.1,
            path: Vec::new(),
        });
    }
    for origin in &mut next.0 {
        origin.path.push(firing.clone());
    }
    let mut within = within(&next, target, limit);
    within.lineage = merged([&within.lineage]);
    within
}

/// Separates the origins of a lineage by the limit on hops.
pub fn within(lineage: &Lineage, target: &Node, limit: usize) -> Within {
    let limit = limit.min(MOST_HOPS);
    let (may, may_not) = lineage
        .0
        .iter()
        .partition::<Vec<&Origin>, _>(|origin| origin.hops() <= limit);
    Within {
        lineage: Lineage(may.into_iter().cloned().collect()),
        too_far: may_not
            .into_iter()
            .map(|origin| too_far(origin, target, limit))
            .collect(),
    }
}

fn too_far(origin: &Origin, target: &Node, limit: usize) -> TooFar {
    // The last round of the circle begins where the path last reached the target.
    let turn = origin.path.iter().rposition(|node| node == target);
    TooFar {
        id: origin.id.clone(),
        limit,
        nodes: origin.path[turn.unwrap_or(0)..].to_vec(),
        is_circle: turn.is_some(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::lineage::MOST_ORIGINS;
    use proptest::prelude::*;

    pub fn node(text: &str) -> Node {
        text.parse().expect("a certname")
    }

    /// A lineage: numbers of origins, and their ways, `1: a b c`.
    pub fn lineage(ways: &[&str]) -> Lineage {
        let origin = |way: &&str| {
            let (id, path) = way.split_once(": ").expect("an id and a way");
            Origin {
                id: Id::from_bits(id.parse().expect("a number")),
                cause: Cause::Refresh,
                path: path.split_whitespace().map(node).collect(),
            }
        };
        Lineage(ways.iter().map(origin).collect())
    }

    fn fired(run: &[&str], firing: &str, target: &str, limit: usize) -> Within {
        let id = Id::from_bits(99);
        next_hop(
            &lineage(run),
            (&id, Cause::Kick),
            &node(firing),
            &node(target),
            limit,
        )
    }

    #[test]
    fn a_run_that_nothing_started_is_an_origin() {
        let within = fired(&[], "web1", "lb1", 10);
        assert_eq!(
            within.lineage.0,
            [Origin {
                cause: Cause::Kick,
                ..lineage(&["99: web1"]).0.remove(0)
            }]
        );
        assert_eq!(within.too_far, []);
    }

    #[test]
    fn every_origin_makes_one_hop() {
        let within = fired(&["1: web1", "2: a b"], "lb1", "db1", 10);
        assert_eq!(within.lineage, lineage(&["1: web1 lb1", "2: a b lb1"]));
    }

    #[test]
    fn the_longest_way_counts() {
        let merged = merged([
            &lineage(&["1: a b c", "2: a"]),
            &lineage(&["1: c", "2: b", "3: d"]),
        ]);
        assert_eq!(merged, lineage(&["1: a b c", "2: b", "3: d"]));
    }

    #[test]
    fn a_circle_is_named_from_the_target_on() {
        let within = fired(&["1: web1 lb1 web1"], "lb1", "web1", 3);
        assert_eq!(within.lineage, Lineage::default());
        assert_eq!(
            within.too_far[0].to_string(),
            "over 3 hops: web1 -> lb1 -> web1 ..."
        );
        let within = fired(&["1: x a b c a b"], "c", "a", 6);
        assert_eq!(
            within.too_far[0].to_string(),
            "over 6 hops: a -> b -> c -> a ..."
        );
        // A node that triggers itself.
        let within = fired(&["1: a"], "a", "a", 1);
        assert_eq!(within.too_far[0].to_string(), "over 1 hops: a -> a ...");
    }

    #[test]
    fn a_long_line_is_not_called_a_circle() {
        let within = fired(&["1: a b"], "c", "d", 2);
        assert_eq!(
            within.too_far[0].to_string(),
            "over 2 hops: a -> b -> c -> ..."
        );
    }

    #[test]
    fn one_circle_blocks_no_other_trigger() {
        let within = fired(&["1: web1 lb1 web1", "2: db1"], "lb1", "web1", 3);
        assert_eq!(within.lineage, lineage(&["2: db1 lb1"]));
        assert_eq!(within.too_far.len(), 1);
        assert_eq!(within.too_far[0].id, Id::from_bits(1));
    }

    #[test]
    fn no_limit_is_beyond_what_can_be_written() {
        let long = format!("1: {}", "a b ".repeat(10));
        assert_eq!(fired(&[&long], "c", "d", 1000).too_far[0].limit, MOST_HOPS);
    }

    fn any_lineage() -> impl Strategy<Value = Lineage> {
        let way = proptest::collection::vec("[a-c]", 1..6);
        proptest::collection::btree_map(0..20_u128, way, 0..12).prop_map(|ways| {
            let text = |(id, way): (u128, Vec<String>)| format!("{id}: {}", way.join(" "));
            let texts: Vec<String> = ways.into_iter().map(text).collect();
            lineage(&texts.iter().map(String::as_str).collect::<Vec<_>>())
        })
    }

    proptest! {
        #[test]
        fn merging_has_no_order_and_no_effect_twice(one in any_lineage(), other in any_lineage()) {
            let both = merged([&one, &other]);
            prop_assert_eq!(&both, &merged([&other, &one]));
            prop_assert_eq!(&both, &merged([&both, &both]));
            prop_assert!(both.0.is_empty() || both.check().is_ok());
        }

        /// Nothing is invented, no hop is lost on what stays, and what does not fit had no fewer hops.
        #[test]
        fn merging_loses_no_hop(one in any_lineage(), other in any_lineage()) {
            let both = merged([&one, &other]);
            let all: Vec<&Origin> = one.0.iter().chain(&other.0).collect();
            let most = both.hops();
            for origin in &both.0 {
                prop_assert!(all.contains(&origin));
            }
            for origin in all {
                match both.0.iter().find(|kept| kept.id == origin.id) {
                    Some(kept) => prop_assert!(kept.hops() >= origin.hops()),
                    None => {
                        let ways = one.0.iter().chain(&other.0).filter(|o| o.id == origin.id);
                        prop_assert!(ways.map(Origin::hops).max() >= Some(most));
                        prop_assert_eq!(both.0.len(), MOST_ORIGINS);
                    }
                }
            }
        }

        /// What goes on can be written, ends with the node that fires, and has one hop more; nothing else is left out
        /// than what went too far or does not fit.
        #[test]
        fn what_goes_on_keeps_its_hops(run in any_lineage(), limit in 1..8_usize) {
            let id = Id::from_bits(99);
            let within = next_hop(&run, (&id, Cause::Refresh), &node("x"), &node("a"), limit);
            for origin in &within.lineage.0 {
                prop_assert!(origin.hops() <= limit);
                prop_assert_eq!(origin.path.last(), Some(&node("x")));
                let before = run.0.iter().find(|o| o.id == origin.id);
                prop_assert_eq!(before.map_or(0, Origin::hops) + 1, origin.hops());
            }
            let far = run.0.iter().filter(|o| o.hops() >= limit).count();
            prop_assert_eq!(within.too_far.len(), far);
            let may = run.0.len().max(1) - far;
            prop_assert_eq!(within.lineage.0.len(), may.min(MOST_ORIGINS));
        }

        /// A trigger that is passed on again and again ends, whatever else it meets on its way.
        #[test]
        fn every_way_ends(met in proptest::collection::vec(any_lineage(), 30), limit in 1..20_usize) {
            let id = Id::from_bits(99);
            let mut run = lineage(&["50: a"]);
            let mut hops = 1;
            for other in &met {
                let within = next_hop(&merged([&run, other]), (&id, Cause::Refresh), &node("x"), &node("a"), limit);
                match within.lineage.0.iter().find(|origin| origin.id == Id::from_bits(50)) {
                    Some(origin) => prop_assert_eq!(origin.hops(), hops + 1),
                    None => break,
                }
                hops += 1;
                run = within.lineage;
            }
            prop_assert!(hops <= limit);
        }
    }
}
