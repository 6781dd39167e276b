//! PURE: a story as an SVG image: a tree, and a time line with the wait and the run of each step.
//!
//! Names and reasons are from other nodes; they are escaped. Times of wrong clocks are drawn at the
//! edge.

use again_base::layout::{Tone, plural};
use again_base::model::{Span, Walltime};
use again_base::sys::localtime::local;
use again_base::sys::terminal::clean;

use super::draw::{by, counts, details, tone};
use crate::policy::story::{State, Step, Story, nodes};

/// Width of the image in pixels, the unit of all following constants.
const WIDTH: u64 = 960;
/// Left edge of the tree.
const TREE: usize = 12;
/// Largest width of the tree's branches, whatever its depth.
const BRANCHES: usize = 150;
/// Left edge of the states.
const STATES: usize = 330;
/// Left and right edge of the time line.
const TIMES: [u64; 2] = [430, 930];
/// Top of the first row, and height of each row.
const ROWS: [usize; 2] = [70, 20];
/// Width of a character, with some space.
const CHARACTER: usize = 8;
/// Largest number of lines of the axis.
const MOST_LINES: u64 = 6;
/// Distances between the lines of the axis, in milliseconds; larger ones are doubled from the last.
const APART: [u64; 17] = [
    200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
    1_800_000, 3_600_000, 7_200_000, 21_600_000,
];

/// On a row of its own, because it does not fit after the counts.
const LEGEND: &str = "a line waits, a bar runs, a dot is told; what is dashed or pale goes on";

/// Colours with enough contrast on light and dark backgrounds.
const STYLE: &str = "<style>
svg{color:#1f2328;background:#fff;font:12px monospace}
text,rect,circle{fill:currentColor}
path{stroke:currentColor;fill:none}
.row{fill-opacity:0}
.row:hover{fill-opacity:.08}
.open{stroke-dasharray:3 3;fill-opacity:.3}
.tree,.axis{opacity:.5}
.good{color:#1a7f37}
.attention{color:#9a6700}
.bad{color:#cf222e}
@media(prefers-color-scheme:dark){
svg{color:#e6edf3;background:#0d1117}
.good{color:#3fb950}
.attention{color:#d29922}
.bad{color:#f85149}
}
</style>
";

/// A self-contained SVG image: a row for each step, and the time from left to right.
pub fn svg(story: &Story) -> String {
    let canvas = Canvas::of(story);
    let (steps, nodes) = (story.steps.len(), nodes(story));
    let height = canvas.middle(steps + 3);
    let origin = story.node.as_str();
    let heading = format!(
        "begun by {} on {}, {}",
        by(story.cause),
        clean(origin),
        local(Walltime::from_millis(story.at))
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n{STYLE}"
    );
    out.push_str(&text(TREE, 20, &format!("story {}", story.id)));
    out.push_str(&text(TREE, 38, &heading));
    out.push_str(&canvas.axis());
    out.push_str(&canvas.name(0, 0, origin));
    for (n, step) in story.steps.iter().enumerate() {
        out.push_str(&canvas.row(n, step));
    }
    let words = format!(
        "{steps} trigger{} for {nodes} node{}: {}",
        plural(steps),
        plural(nodes),
        counts(story)
    );
    out.push_str(&text(TREE, canvas.middle(steps + 1) + 4, &words));
    out.push_str(&text(TREE, canvas.middle(steps + 2) + 4, LEGEND));
    out + "</svg>\n"
}

/// Coordinates of a story.
struct Canvas {
    /// Time of the origin, in milliseconds since 1970.
    at: u64,
    /// Time from the origin to the last known event, in milliseconds; at least 1000.
    long: u64,
    /// Depth of the tree.
    deep: usize,
    /// Number of steps.
    steps: usize,
}

impl Canvas {
    fn of(story: &Story) -> Canvas {
        // Without clocks that are ahead, which would compress all other times.
        let is_sure = |step: &&Step| step.clock.is_none_or(|off| off < 0);
        let last = |step: &Step| match step.state {
            State::Known(_, at) => at,
            State::OnTheWay(_) => step.fired,
        };
        let last = story.steps.iter().filter(is_sure).map(last).max();
        Canvas {
            at: story.at,
            long: last.unwrap_or(0).saturating_sub(story.at).max(1000),
            deep: story.steps.iter().map(|step| step.depth).max().unwrap_or(0) + 1,
            steps: story.steps.len(),
        }
    }

    /// Vertical centre of a row; row 0 is the origin's.
    fn middle(&self, row: usize) -> usize {
        ROWS[0] + row * ROWS[1]
    }

    /// Left edge of a node of this depth; depth 0 is the origin's.
    fn indent(&self, depth: usize) -> usize {
        TREE + depth * BRANCHES / self.deep.max(10)
    }

    /// Horizontal position of a time. Times outside the range, from wrong clocks, are at the edge.
    fn x(&self, at: u64) -> u64 {
        let [from, to] = TIMES;
        let after = at.saturating_sub(self.at).min(self.long);
        let x = u128::from(after) * u128::from(to - from) / u128::from(self.long);
        from + u64::try_from(x).unwrap_or(to - from)
    }

    /// Vertical lines, each labelled with the time since the origin.
    fn axis(&self) -> String {
        let doubled = |far: &u64| far.checked_mul(2);
        let more = std::iter::successors(APART.last().copied(), doubled);
        let mut apart = APART.into_iter().chain(more);
        let apart = apart.find(|far| self.long / far <= MOST_LINES);
        let apart = apart.unwrap_or(self.long);
        let (above, below) = (ROWS[0] - 10, self.middle(self.steps) + 10);
        let mut out = String::new();
        for line in 0..=self.long / apart {
            let after = line * apart;
            let x = self.x(self.at.saturating_add(after));
            let label = Span::from_nanos(after.saturating_mul(1_000_000));
            out.push_str(&format!(
                "<path class=\"axis\" d=\"M{x} {above}V{below}\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">+{label}</text>\n",
                above - 4,
            ));
        }
        out
    }

    fn name(&self, row: usize, depth: usize, node: &str) -> String {
        let x = self.indent(depth);
        let most = (STATES - x) / CHARACTER - 1;
        let node = clean(node);
        let shown: String = if node.chars().count() > most {
            node.chars()
                .take(most.saturating_sub(1))
                .chain(['\u{2026}'])
                .collect()
        } else {
            node
        };
        text(x, self.middle(row) + 4, &shown)
    }

    fn row(&self, n: usize, step: &Step) -> String {
        let (row, depth) = (n + 1, step.depth + 1);
        let (y, high) = (self.middle(row), ROWS[1]);
        let from = self.middle(step.parent.map_or(0, |parent| parent + 1)) + 8;
        let (below, to) = (self.indent(depth - 1) + 4, self.indent(depth) - 3);
        let open = if step.untold.is_empty() { "" } else { " open" };
        let tone = match tone(step.state) {
            Tone::Good => "good",
            Tone::Bad => "bad",
            Tone::Attention => "attention",
            Tone::Plain | Tone::Heading => "plain",
        };
        let (node, word) = (clean(step.target.as_str()), step.state.word());
        let all = escaped(&format!("{node}: {word}: {}", details(step)));
        format!(
            "<g><title>{all}</title><rect class=\"row\" x=\"0\" y=\"{}\" width=\"{WIDTH}\" height=\"{high}\"/>\n\
             <path class=\"tree{open}\" d=\"M{below} {from}V{y}H{to}\"/>{}<g class=\"{tone}\">{}{}</g></g>\n",
            y - high / 2,
            self.name(row, depth, step.target.as_str()),
            text(STATES, y + 4, &word),
            self.times(step, y)
        )
    }

    /// Line of the wait and bar of the run of a step.
    fn times(&self, step: &Step, y: usize) -> String {
        let x = |at: u64| self.x(at);
        let line = |class: &str, [from, to]: [u64; 2]| {
            let line = format!("<path{class} d=\"M{from} {y}H{to}\"/>");
            if from < to { line } else { String::new() }
        };
        let bar = |class: &str, [from, to]: [u64; 2]| {
            let (wide, y) = (to.saturating_sub(from).max(2), y - 5);
            format!("<rect{class} x=\"{from}\" y=\"{y}\" width=\"{wide}\" height=\"10\"/>")
        };
        const OPEN: &str = " class=\"open\"";
        let (fired, right, is_over) = (x(step.fired), TIMES[1], step.is_over());
        let began = step.ran.as_ref().and_then(|ran| ran.began).map(x);
        let ended = step.ran.as_ref().and_then(|ran| ran.ended).map(x);
        let told = match step.state {
            State::Known(_, at) => Some(x(at)),
            State::OnTheWay(_) => None,
        };
        let (shown, last) = match (began, ended.or(told.filter(|_| is_over)), told) {
            (Some(began), Some(end), _) => (
                line("", [fired, began]) + &bar("", [began, end]),
                end.max(began),
            ),
            (Some(began), None, _) => {
                (line("", [fired, began]) + &bar(OPEN, [began, right]), right)
            }
            (None, Some(at), _) | (None, None, Some(at)) => {
                let dot = format!("<circle cx=\"{at}\" cy=\"{y}\" r=\"4\"/>");
                (line("", [fired, at]) + &dot, at.max(fired))
            }
            (None, None, None) => (String::new(), fired),
        };
        match is_over {
            true => shown,
            false => shown + &line(OPEN, [last, right]),
        }
    }
}

fn text(x: usize, y: usize, text: &str) -> String {
    format!("<text x=\"{x}\" y=\"{y}\">{}</text>\n", escaped(text))
}

/// Text with escaped markup.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::story::tests::{entries, entry};
    use crate::wire::outcome::{Entry, Outcome};
    use proptest::prelude::*;

    fn story(entries: Vec<Entry>) -> Story {
        Story::of(entries, vec![], None, [1 << 41; 2]).expect("a story")
    }

    #[test]
    fn each_run_has_its_place_in_the_tree_and_in_time() {
        let mut refused = entry(2, "a b c", 1_005_000, 1_006_000, None);
        refused.told.outcome = Outcome::Refused;
        refused.told.why = "<nobody> & \"all\"".to_owned();
        let gap = entry(4, "a x y", 1_001_000, 1_010_000, None);
        let first = entry(1, "a b", 1_000_000, 1_009_000, Some(1_004_000));
        let mut begun = entry(5, "a z", 1_002_000, 1_003_000, Some(1_003_000));
        begun.told.outcome = Outcome::Started;
        begun.told.ran.as_mut().expect("a run").ended = None;
        let mut held = entry(6, "a v", 1_007_000, 1_008_000, None);
        held.told.outcome = Outcome::Held;
        let story = story(vec![gap, refused, first, begun, held]);
        let drawn = svg(&story);
        let (_, body) = drawn.split_once("</style>\n").expect("its style");
        let at = |millis: u64| local(Walltime::from_millis(millis));
        let line = |x: u64, label: &str| {
            format!(
                "<path class=\"axis\" d=\"M{x} 60V180\"/><text x=\"{x}\" y=\"56\" text-anchor=\"middle\">{label}</text>\n"
            )
        };
        let row = |title: &str, y: u64, tree: &str, node: &str, rest: &str| {
            format!(
                "<g><title>{title}</title><rect class=\"row\" x=\"0\" y=\"{y}\" width=\"960\" height=\"20\"/>\n<path class=\"tree{tree}\"/>{node}\n<g class=\"{rest}</g></g>\n"
            )
        };
        let axis = ["+0s", "+2s", "+4s", "+6s", "+8s", "+10s"];
        let axis: Vec<String> = (0..)
            .zip(axis)
            .map(|(n, l)| line(430 + 100 * n, l))
            .collect();
        let expected = [
            format!("<text x=\"12\" y=\"20\">story {}</text>\n", story.id),
            format!("<text x=\"12\" y=\"38\">begun by a person on a, {}</text>\n", at(1_000_000)),
            axis.concat(),
            "<text x=\"12\" y=\"74\">a</text>\n".to_owned(),
            row(
                &format!(
                    "b: changed: 'again' fired {}; began {}, took 5s; output: again log c-1",
                    at(1_000_000), at(1_004_000)
                ),
                80,
                "\" d=\"M16 78V90H24",
                "<text x=\"27\" y=\"94\">b</text>",
                "good\"><text x=\"330\" y=\"94\">changed</text>\n<path d=\"M430 90H630\"/><rect x=\"630\" y=\"85\" width=\"250\" height=\"10\"/>",
            ),
            row(
                &format!(
                    "c: refused: 'again' fired {}; told {}; &lt;nobody&gt; &amp; &quot;all&quot;",
                    at(1_005_000), at(1_006_000)
                ),
                100,
                "\" d=\"M31 98V110H39",
                "<text x=\"42\" y=\"114\">c</text>",
                "bad\"><text x=\"330\" y=\"114\">refused</text>\n<path d=\"M680 110H730\"/><circle cx=\"730\" cy=\"110\" r=\"4\"/>",
            ),
            row(
                &format!(
                    "y: changed: 'again' fired {} by x; after x, of which nothing is told; told {}",
                    at(1_001_000), at(1_010_000)
                ),
                120,
                " open\" d=\"M16 78V130H24",
                "<text x=\"27\" y=\"134\">y</text>",
                "good\"><text x=\"330\" y=\"134\">changed</text>\n<path d=\"M480 130H930\"/><circle cx=\"930\" cy=\"130\" r=\"4\"/>",
            ),
            row(
                &format!(
                    "z: started: 'again' fired {}; began {}; output: again log c-5",
                    at(1_002_000), at(1_003_000)
                ),
                140,
                "\" d=\"M16 78V150H24",
                "<text x=\"27\" y=\"154\">z</text>",
                "plain\"><text x=\"330\" y=\"154\">started</text>\n<path d=\"M530 150H580\"/><rect class=\"open\" x=\"580\" y=\"145\" width=\"350\" height=\"10\"/>",
            ),
            row(
                &format!("v: held: 'again' fired {}; told {}", at(1_007_000), at(1_008_000)),
                160,
                "\" d=\"M16 78V170H24",
                "<text x=\"27\" y=\"174\">v</text>",
                "attention\"><text x=\"330\" y=\"174\">held</text>\n<path d=\"M780 170H830\"/><circle cx=\"830\" cy=\"170\" r=\"4\"/><path class=\"open\" d=\"M830 170H930\"/>",
            ),
            "<text x=\"12\" y=\"194\">5 triggers for 5 nodes: 2 changed, 1 held, 1 refused, 1 started</text>\n<text x=\"12\" y=\"214\">a line waits, a bar runs, a dot is told; what is dashed or pale goes on</text>\n</svg>\n".to_owned(),
        ];
        fits(&drawn);
        for (drawn, expected) in body.lines().zip(expected.concat().lines()) {
            assert_eq!(drawn, expected);
        }
        assert_eq!(body, expected.concat());
        assert!(drawn.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"230\" viewBox=\"0 0 960 230\">\n<style>"));
    }

    /// No text but a title, which is no part of the picture, goes on beyond the edge.
    fn fits(svg: &str) {
        for text in svg.split("<text x=\"").skip(1) {
            let (x, rest) = text.split_once('"').expect("a place");
            let (rest, words) = rest.split_once('>').expect("words");
            let words = words.split('<').next().expect("words");
            let half = if rest.contains("middle") { 2 } else { 1 };
            let wide = words.chars().count() * CHARACTER / half;
            let end = x.parse::<usize>().expect("a number") + wide;
            assert!(end as u64 <= WIDTH, "{words} ends at {end}");
        }
    }

    #[test]
    fn what_xml_does_not_have_is_shown_by_its_number() {
        for c in '\0'..=char::MAX {
            let text = text(0, 0, &clean(&c.to_string()));
            let is_xml = |c: char| {
                let is_other = ('\u{fffe}'..='\u{ffff}').contains(&c);
                c == '\n' || !c.is_control() && !is_other
            };
            assert!(text.chars().all(is_xml), "{c:?}");
        }
    }

    /// All tags of what is well-formed; nothing of what is not.
    fn tags(svg: &str) -> Option<Vec<&str>> {
        let (mut tags, mut open, mut rest) = (Vec::new(), Vec::new(), svg);
        while let Some((text, more)) = rest.split_once('<') {
            let (tag, more) = more.split_once('>')?;
            let mut marks = text.split('&').skip(1);
            let known = ["amp;", "lt;", "gt;", "quot;"];
            if !marks.all(|mark| known.iter().any(|one| mark.starts_with(one)))
                || text.contains(['>', '"']) && open.last() != Some(&"style")
                || tag.matches('"').count() % 2 == 1
            {
                return None;
            }
            tags.push(tag);
            let name = tag.split(' ').next()?;
            match name.strip_prefix('/') {
                Some(name) if open.pop() != Some(name) => return None,
                None if !tag.ends_with('/') => open.push(name),
                _ => {}
            }
            rest = more;
        }
        (open.is_empty() && rest == "\n").then_some(tags)
    }

    #[test]
    fn what_is_not_well_formed_is_noticed() {
        assert_eq!(tags("<a b=\"c\">&lt;</a>\n"), Some(vec!["a b=\"c\"", "/a"]));
        for bad in [
            "<a>\n",
            "</a>\n",
            "<a><b></a></b>\n",
            "<a>&</a>\n",
            "<a b=\">\"/>\n",
            "<a>>\n</a>\n",
        ] {
            assert_eq!(tags(bad), None, "{bad}");
        }
    }

    proptest! {
        /// Nothing that comes over the network can leave its place.
        #[test]
        fn hostile_names_stay_in_their_place(all in entries(), name in "[\\PC]{1,20}|[\"\\\\<>&;{}'/ -]{1,20}", why in "\\PC{0,30}|.{0,30}|[<>&\"/a]{0,30}") {
            let name = name.replace(char::is_control, " ");
            let mut hostile = all.clone();
            for one in &mut hostile {
                one.told.name = name.chars().take(30).collect::<String>().parse().expect("a name");
                one.told.why = crate::wire::outcome::words(&why);
            }
            let (plain, hostile) = (svg(&story(all)), svg(&story(hostile)));
            prop_assert!(!hostile.chars().any(|c| c.is_control() && c != '\n'));
            prop_assert!(tags(&hostile).is_some(), "{}", hostile);
            prop_assert_eq!(tags(&plain), tags(&hostile));
        }

        /// Whatever the clocks say, everything is on the page.
        #[test]
        fn no_clock_leaves_the_page(all in entries(), times in prop::collection::vec(any::<[u64; 4]>(), 40), far in 0..64u32) {
            let mut hostile = all.clone();
            for (one, [fired, told, began, ended]) in hostile.iter_mut().zip(times) {
                (one.told.number, one.told.at) = (fired >> far, told >> far);
                if let Some(ran) = &mut one.told.ran {
                    (ran.began, ran.ended) = (Some(began >> far), Some(ended >> far));
                }
            }
            let drawn = svg(&story(hostile));
            let all = tags(&drawn).expect("well-formed");
            let of = |tag: &str, name: &str| -> u64 {
                let value = tag.split_once(&format!(" {name}=\"")).map_or("0", |(_, rest)| rest);
                value.split('"').next().expect("a value").parse().expect("a number")
            };
            let shapes = all.iter().filter(|tag| !tag.starts_with("svg") && !tag.starts_with('/'));
            for tag in shapes {
                let way = tag.split_once(" d=\"M").map_or("", |(_, way)| way.trim_end_matches(['"', '/']));
                let way = way.split([' ', 'V', 'H']).filter(|number| !number.is_empty());
                let most = way.map(|number| number.parse::<u64>().expect("a number")).max();
                prop_assert!(most.is_none_or(|most| most <= 70 + 42 * 20 + 960), "{}", tag);
                prop_assert!(of(tag, "x") + of(tag, "width") <= WIDTH && of(tag, "cx") <= TIMES[1], "{}", tag);
            }
        }
    }
}
