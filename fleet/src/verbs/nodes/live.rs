//! PURE: the nodes that need attention, their order, and their changes.

use std::cmp::Reverse;

use again_base::layout::{Look, Tone, plural};
use again_base::model::{Span, Walltime};
use again_base::sys::terminal::clean;

use super::super::clock;
use super::roster::{Columns, Entry, Roster, Row};
use crate::policy::select::Selection;
use crate::policy::slots::{Line, Standing};
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::name::{Name, Node};
use crate::wire::outcome::Outcome;

/// State of all nodes.
#[derive(Debug, Default)]
pub struct Live {
    roster: Roster,
}

/// A waiting node: its entry in the queue, and its position.
type Wait<'l> = (&'l Standing, usize);

/// All waiting nodes, sorted by name.
struct Waits<'l>(Vec<Wait<'l>>);

/// Reason why a node needs attention, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    Failed,
    Gone,
    AtTheCap,
    Disabled,
    Waits,
    Pending,
    Runs,
}

/// State of a node as far as it is reported line by line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stand {
    is_alive: bool,
    running: Option<u64>,
    last: Option<(Outcome, Option<u64>)>,
    disabled: bool,
    pending: u32,
    is_at_the_cap: bool,
    waits: Option<Name>,
}

/// State of each node, sorted by name.
pub type Stands = Vec<(Node, Stand)>;

/// Number of reasons.
const KINDS: usize = Why::Runs as usize + 1;

impl Live {
    /// Sets or removes the inventory of a node. Returns whether it has changed, other than by a new
    /// signature of the same content of a connected node.
    pub fn tells(&mut self, key: &Key, told: Option<Inventory>) -> bool {
        let mut is_new = true;
        self.change(key, |one| {
            is_new = match (&one.told, &told) {
                (Some(before), Some(told)) => !one.is_alive() || !before.tells_the_same(told),
                _ => true,
            };
            (one.told, one.is_liar) = (told, false);
        });
        is_new
    }

    /// Marks a node whose inventory is not signed by it.
    pub fn lies(&mut self, key: &Key) {
        self.change(key, |one| (one.told, one.is_liar) = (None, true));
    }

    /// Updates which nodes are connected; whether that has changed.
    pub fn judge(&mut self, now: Walltime, skew: Span) -> bool {
        self.roster.judge(now, skew)
    }

    /// Sets or removes a node's entry in a slot queue.
    pub fn stands(&mut self, key: &Key, standing: Option<Standing>) {
        let Key::Slot { group, .. } = key else {
            return;
        };
        self.change(key, |one| {
            one.slots.retain(|one| one.slot.group != *group);
            one.slots.extend(standing);
        });
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Entry)) {
        let (Key::Node(node) | Key::Slot { node, .. }) = key else {
            return;
        };
        // A removed node stays here with nothing to show: a name takes little memory.
        change(self.roster.nodes.entry(node.clone()).or_default());
    }

    /// The nodes that wait for a slot.
    fn waits(&self) -> Waits<'_> {
        let mut all = Vec::new();
        for one in self.roster.nodes.values() {
            all.extend(&one.slots);
        }
        let mut waits = Vec::new();
        for line in Line::all(all) {
            for (place, one) in line.nodes.into_iter().enumerate().skip(line.run) {
                waits.push((one, place));
            }
        }
        // If a node waits in several groups, the first group by name is shown.
        waits.sort_by(|(one, _), (other, _)| one.slot.node.cmp(&other.slot.node));
        waits.dedup_by(|(other, _), (one, _)| one.slot.node == other.slot.node);
        Waits(waits)
    }

    /// `3 nodes: 2 alive, 1 gone, 1 running`.
    pub fn counts(&self, selection: &Selection) -> String {
        let waits = self.waits();
        const LIARS: usize = 8;
        let (mut all, mut counts) = (0, [0; LIARS + 1]);
        for (node, one) in self.roster.meant(selection) {
            all += 1;
            let told = one.told.as_ref();
            let is = |what: fn(&Inventory) -> bool| told.is_some_and(what);
            let each = [
                one.is_alive(),
                !one.is_alive(),
                one.is_alive() && is(|told| told.running.is_some()),
                waits.get(node).is_some(),
                is(|told| told.pending > 0),
                is(|told| told.disabled),
                is(|told| told.last == Some(Outcome::Failed)),
                is(|told| told.last == Some(Outcome::Unknown)),
            ];
            for (count, is) in counts.iter_mut().zip(each) {
                *count += usize::from(is);
            }
        }
        let words = [
            "alive",
            "gone",
            "running",
            "waiting for a slot",
            "pending",
            "disabled",
            "failed last",
            "unknown last",
            "not believed",
        ];
        let mut text = format!("{all} node{}: {} alive", plural(all), counts[0]);
        counts[LIARS] = self.roster.nodes.values().filter(|one| one.is_liar).count();
        for (count, word) in counts.iter().zip(words).skip(1) {
            if *count > 0 {
                text.push_str(&format!(", {count} {word}"));
            }
        }
        text
    }

    /// The nodes that need attention, newest first for each reason, and the number of nodes not
    /// shown; at most `most` lines.
    pub fn lines(
        &self,
        selection: &Selection,
        most: usize,
        columns: &mut Columns,
        look: &Look,
        now: Walltime,
    ) -> Vec<String> {
        let waits = self.waits();
        let (mut all, mut counts) = (0, [0; KINDS]);
        let mut worth: Vec<(Why, Reverse<u64>, &Node, &Entry)> = Vec::new();
        for (node, one) in self.roster.meant(selection) {
            all += 1;
            if let Some((why, at)) = why(one, waits.get(node)) {
                worth.push((why, Reverse(at), node, one));
                counts[why as usize] += 1;
            }
        }
        worth.sort_unstable_by_key(|(why, at, node, _)| (*why, *at, *node));
        // One line for the heading, one for the rest.
        let room = most.saturating_sub(2);
        let mut rooms = shared(counts, room);
        let (quiet, mut left_out) = (all - worth.len(), 0);
        let row = |node: &Node, one: &Entry| -> Row {
            let mut row = one.row(node, now, false);
            if let Some((standing, place)) = waits.get(node) {
                let since = clock(Walltime::from_millis(standing.slot.since), now);
                let (group, place) = (clean(standing.slot.group.as_str()), place + 1);
                let [.., (tone, words)] = &mut row;
                let and = if words.is_empty() { "" } else { ", " };
                words.push_str(&format!(
                    "{and}waits since {since}, place {place} in {group}"
                ));
                *tone = Tone::Attention;
            }
            row
        };
        let mut rows = Vec::new();
        for (why, _, node, one) in worth {
            let room = &mut rooms[why as usize];
            match room.checked_sub(1) {
                Some(less) => {
                    *room = less;
                    rows.push(row(node, one));
                }
                None => left_out += 1,
            }
        }
        let mut lines = match rows.is_empty() {
            true => Vec::new(),
            false => columns.table(rows, look),
        };
        let rest = match (left_out, quiet) {
            (0, 0) => return lines,
            (0, quiet) => format!("and {quiet} more that {} quiet", are(quiet)),
            (left, 0) => format!("and {left} more for which there is no room here"),
            (left, quiet) => format!(
                "and {left} more for which there is no room here, and {quiet} that {} quiet",
                are(quiet)
            ),
        };
        lines.push(rest);
        lines.truncate(most);
        lines
    }

    /// State of each node.
    pub fn each(&self, selection: &Selection) -> Stands {
        let waits = self.waits();
        let stand = |(node, one): (&Node, &Entry)| {
            let told = one.told.as_ref();
            let stand = Stand {
                is_alive: one.is_alive(),
                running: told
                    .and_then(|told| told.running)
                    .filter(|_| one.is_alive()),
                last: told.and_then(|told| Some((told.last?, told.ended))),
                disabled: told.is_some_and(|told| told.disabled),
                pending: told.map_or(0, |told| told.pending),
                is_at_the_cap: told.is_some_and(is_at_the_cap),
                waits: waits.get(node).map(|(one, _)| one.slot.group.clone()),
            };
            (node.clone(), stand)
        };
        let meant = self.roster.meant(selection).into_iter();
        meant.map(stand).collect()
    }
}

/// `web1: running`, for each node whose state has changed.
pub fn news(before: &[(Node, Stand)], now: &[(Node, Stand)]) -> Vec<String> {
    let (nobody, mut lines) = (Stand::default(), Vec::new());
    for (node, now) in now {
        let words = now.since(stand(before, node).unwrap_or(&nobody));
        if !words.is_empty() {
            lines.push(format!("{node}: {}", words.join(", ")));
        }
    }
    for (node, _) in before {
        if stand(now, node).is_none() {
            lines.push(format!("{node}: not there any more"));
        }
    }
    lines
}

fn stand<'s>(all: &'s [(Node, Stand)], node: &Node) -> Option<&'s Stand> {
    let at = all.binary_search_by(|(one, _)| one.cmp(node)).ok()?;
    Some(&all[at].1)
}

impl<'l> Waits<'l> {
    fn get(&self, node: &Node) -> Option<&Wait<'l>> {
        let at = self.0.binary_search_by(|(one, _)| one.slot.node.cmp(node));
        self.0.get(at.ok()?)
    }
}

impl Stand {
    /// Changes since the state `before`, in words.
    fn since(&self, before: &Stand) -> Vec<String> {
        let mut words = Vec::new();
        let mut say = |is_new: bool, word: String| {
            if is_new {
                words.push(word);
            }
        };
        let there = if self.is_alive { "alive" } else { "gone" };
        say(self.is_alive != before.is_alive, there.to_owned());
        if let Some(group) = &self.waits {
            let group = clean(group.as_str());
            say(
                self.waits != before.waits,
                format!("waits for a slot of {group}"),
            );
        }
        if let Some((outcome, _)) = &self.last {
            say(self.last != before.last, outcome.to_string());
        }
        let begins = self.running.is_some() && self.running != before.running;
        say(begins, "running".to_owned());
        let disabled = if self.disabled { "disabled" } else { "enabled" };
        say(self.disabled != before.disabled, disabled.to_owned());
        let is_more = self.pending != before.pending && self.pending > 0;
        say(is_more, format!("{} pending", self.pending));
        let is_at_the_cap = self.is_at_the_cap && !before.is_at_the_cap;
        say(is_at_the_cap, "at the cap".to_owned());
        words
    }
}

fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

fn is_at_the_cap(told: &Inventory) -> bool {
    told.cap.is_some_and(|(most, used)| used >= most)
}

/// Reason why a node needs attention, and its time.
fn why(one: &Entry, wait: Option<&Wait<'_>>) -> Option<(Why, u64)> {
    let waits = wait.map(|(standing, _)| (Why::Waits, standing.slot.since));
    let Some(told) = &one.told else {
        return waits;
    };
    if told.last.is_some_and(Outcome::counts_as_failed) {
        return Some((Why::Failed, told.ended.unwrap_or(told.at)));
    }
    if !one.is_alive() {
        return Some((Why::Gone, told.at));
    }
    // Not the time of the signature, which is renewed all the time.
    let at = told.running.or(told.ended).unwrap_or(0);
    if is_at_the_cap(told) {
        return Some((Why::AtTheCap, at));
    }
    if told.disabled {
        return Some((Why::Disabled, at));
    }
    let pending = (told.pending > 0).then_some((Why::Pending, at));
    let runs = told.running.map(|since| (Why::Runs, since));
    waits.or(pending).or(runs)
}

/// Number of rows for each reason: as many as it needs, or an equal share, so that many nodes of
/// one reason do not hide the others.
fn shared(counts: [usize; KINDS], room: usize) -> [usize; KINDS] {
    let mut kinds: [usize; KINDS] = std::array::from_fn(|kind| kind);
    kinds.sort_unstable_by_key(|kind| (counts[*kind], *kind));
    let (mut rooms, mut left) = (counts, room);
    for (n, kind) in kinds.into_iter().enumerate() {
        rooms[kind] = counts[kind].min(left / (KINDS - n));
        left -= rooms[kind];
    }
    rooms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::select::tests::node as told;
    use crate::wire::slot::tests::slot;
    use again_base::layout::frame::Frame;

    const LOOK: Look = Look {
        width: None,
        colour: false,
    };
    const NOW: Walltime = Walltime::from_millis(1_795_219_387_045);

    fn all() -> Selection {
        Selection::default()
    }

    impl Live {
        /// A node tells this.
        fn is(&mut self, name: &str, change: impl FnOnce(&mut Inventory)) {
            let mut one = told(&[("role", "x")]);
            one.node = name.parse().expect("a certname");
            (one.at, one.last, one.ended) = (NOW.millis(), Some(Outcome::Changed), Some(1));
            change(&mut one);
            self.tells(&Key::Node(one.node.clone()), Some(one));
            self.judge(NOW, Span::ZERO);
        }

        /// What a node tells is old.
        fn goes(&mut self, name: &str) {
            let node: Node = name.parse().expect("a certname");
            let told = self.roster.nodes[&node].told.clone();
            let told = told.map(|told| Inventory { at: 1, ..told });
            self.tells(&Key::Node(node), told);
            self.judge(NOW, Span::ZERO);
        }

        /// A node stands in a line with so many slots.
        fn stands_at(&mut self, name: &str, revision: u64, limit: u32) {
            let slot = slot(name, revision - 1, limit);
            let (group, node) = (slot.group.clone(), slot.node.clone());
            let standing = Standing::new(slot, revision, revision - 1, 2);
            self.stands(&Key::Slot { group, node }, standing);
        }

        fn frame(&self, most: usize) -> Vec<String> {
            let mut lines = vec![self.counts(&all())];
            lines.extend(self.lines(&all(), most, &mut Columns::default(), &LOOK, NOW));
            lines
        }
    }

    fn fleet() -> Live {
        let mut live = Live::default();
        for n in 1..=9 {
            live.is(&format!("n{n}"), |_| {});
        }
        let now = NOW.millis();
        live.is("n1", |one| one.running = Some(now - 2000));
        live.is("n2", |one| one.running = Some(now - 1000));
        live.is("n3", |one| one.pending = 2);
        live.is("n4", |one| one.disabled = true);
        live.is("n5", |one| one.cap = Some((5, 5)));
        live.is("n6", |one| {
            (one.last, one.ended, one.running) = (Some(Outcome::Failed), Some(now), Some(now));
        });
        live.goes("n7");
        live.stands_at("n2", 4, 1);
        live.stands_at("n8", 6, 1);
        live
    }

    #[test]
    fn what_needs_a_look_comes_first_and_the_newest_of_it() {
        let at = |millis: u64| clock(Walltime::from_millis(millis), NOW);
        let (now, old) = (at(NOW.millis()), at(1));
        let row = |node: &str, there: &str, last: &str, words: &str| {
            let there_wide = format!("gone, told {old}").len();
            let last_wide = format!("changed {old}").len();
            format!("{node:4}  {there:there_wide$}  production   {last:last_wide$}  {words}")
                .trim_end()
                .to_owned()
        };
        let changed = format!("changed {old}");
        let expected = [
            "9 nodes: 8 alive, 1 gone, 3 running, 1 waiting for a slot, 1 pending, 1 disabled, 1 failed last".to_owned(),
            row("NODE", "THERE", "LAST RUN", "NOW").replace("production ", "ENVIRONMENT"),
            row("n6", "alive", &format!("failed {now}"), &format!("running since {now}")),
            row("n7", &format!("gone, told {old}"), &changed, ""),
            row("n5", "alive", &changed, "cap 5/5"),
            row("n4", "alive", &changed, "disabled"),
            row("n8", "alive", &changed, &format!("waits since {old}, place 2 in puppetserver")),
            row("n3", "alive", &changed, "2 pending"),
            row("n2", "alive", &changed, &format!("running since {now}")),
            row("n1", "alive", &changed, &format!("running since {now}")),
            "and 1 more that is quiet".to_owned(),
        ];
        assert_eq!(fleet().frame(20), expected);
        let conditions = Selection {
            environment: Some("other".to_owned()),
            ..all()
        };
        assert_eq!(fleet().counts(&conditions), "0 nodes: 0 alive");
    }

    #[test]
    fn many_of_one_kind_hide_no_other() {
        let mut live = fleet();
        for n in 10..60 {
            live.is(&format!("n{n}"), |one| one.disabled = true);
        }
        let frame = live.frame(12);
        assert_eq!(frame.len(), 13, "{frame:#?}");
        let nodes: Vec<&str> = frame[2..12].iter().map(|line| &line[..3]).collect();
        let kinds = [
            "n6 ", "n7 ", "n5 ", "n10", "n11", "n12", "n8 ", "n3 ", "n2 ", "n1 ",
        ];
        assert_eq!(nodes, kinds);
        assert_eq!(
            frame[12],
            "and 48 more for which there is no room here, and 1 that is quiet"
        );
        for most in 0..60 {
            assert!(live.frame(most).len() <= 1 + most, "{most}");
        }
    }

    #[test]
    fn each_change_is_a_line() {
        let mut live = Live::default();
        let mut before = Stands::new();
        let mut told = |live: &Live| {
            let now = live.each(&all());
            let lines = news(&before, &now);
            before = now;
            lines
        };
        live.is("web1", |_| {});
        assert_eq!(told(&live), ["web1: alive, changed"]);
        assert_eq!(told(&live), [""; 0]);
        live.is("web1", |one| (one.running, one.pending) = (Some(2), 1));
        assert_eq!(told(&live), ["web1: running, 1 pending"]);
        // Another time, or another fact: nothing that is told.
        live.is("web1", |one| {
            (one.at, one.running, one.pending) = (NOW.millis() - 1, Some(2), 1);
            one.facts.clear();
        });
        assert_eq!(told(&live), [""; 0]);
        live.is("web1", |one| one.ended = Some(3));
        assert_eq!(told(&live), ["web1: changed"]);
        live.is("web1", |one| {
            (one.ended, one.disabled, one.cap) = (Some(3), true, Some((5, 5)))
        });
        assert_eq!(told(&live), ["web1: disabled, at the cap"]);
        live.is("web1", |one| one.ended = Some(3));
        assert_eq!(told(&live), ["web1: enabled"]);
        live.stands_at("web2", 4, 1);
        live.stands_at("web1", 6, 1);
        assert_eq!(told(&live), ["web1: waits for a slot of puppetserver"]);
        // What was running there when it went is not told.
        live.is("web1", |one| (one.ended, one.running) = (Some(3), Some(9)));
        live.goes("web1");
        assert_eq!(told(&live), ["web1: gone"]);
        live.tells(&Key::Node("web1".parse().expect("a certname")), None);
        assert_eq!(told(&live), ["web1: not there any more"]);
        assert_eq!(live.counts(&all()), "0 nodes: 0 alive");
    }

    #[test]
    fn what_a_node_has_not_signed_is_not_shown_but_counted() {
        let mut live = fleet();
        let key = Key::Node("n6".parse().expect("a certname"));
        live.lies(&key);
        let counts = live.counts(&all());
        assert!(
            counts.starts_with("8 nodes: 7 alive, 1 gone, 2 running, "),
            "{counts}"
        );
        assert!(counts.ends_with(", 1 not believed"), "{counts}");
        live.is("n6", |_| {});
        assert!(!live.counts(&all()).contains("believed"));
    }

    /// Over ssh: of 10,000 nodes three change, and next to nothing is sent.
    #[test]
    fn few_changes_are_few_bytes() {
        let mut live = Live::default();
        let now = NOW.millis();
        for n in 0..10_000_u64 {
            let name = format!("n{n:05}.example.com");
            live.is(&name, |one| {
                one.disabled = n % 2 == 0;
                one.running = (n % 100 == 1).then_some(now - n);
            });
        }
        let mut columns = Columns::default();
        let mut frame = Frame::default();
        let mut show = |live: &Live| {
            let mut lines = vec![live.counts(&all())];
            lines.extend(live.lines(&all(), 48, &mut columns, &LOOK, NOW));
            frame.show(lines, 200).len()
        };
        let first = show(&live);
        assert!((2000..8000).contains(&first), "{first} bytes");
        // The last that runs of those that are shown, one that is disabled, and one that is quiet.
        live.is("n02201.example.com", |one| {
            (one.running, one.cap) = (Some(now - 2201), Some((5, 1)));
        });
        live.is("n00000.example.com", |one| {
            (one.disabled, one.pending) = (true, 1);
        });
        live.is("n00003.example.com", |one| one.ended = Some(2));
        let changed = show(&live);
        assert!((1..700).contains(&changed), "{changed} bytes");
        assert_eq!(show(&live), 0);
    }
}
