//! Simulates many nodes that request a rerun at the same time, with the program's own policy.
//!
//! The server compiles one catalog per node and run, `capacity` of them a second, in order of
//! arrival. As servers are usually sized, that is twice what the fleet needs for one run every half
//! hour. `policy::delay` and `policy::cap` decide when a node's rerun is due and whether the cap
//! allows it, as in the program itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::path::Path;

use again::policy::cap::usage;
use again_base::delay;
use again_base::model::{Boottime, Cap, Moment, Span, Walltime};
use again_test_support::now;
use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::numbers::{Samples, Table, many, quick, short, verdict};
use crate::plots::{plot, write};
use crate::runs::{ruby_words, scratch};

/// Default of `splaylimit`, Puppet's run interval.
const SPLAYLIMIT: f64 = 1800.0;
const MAX_JITTER: Span = Span::from_secs(300);

/// Distribution of the time between the end of the delta and the rerun.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Spread {
    /// No delay.
    Fixed,
    /// Delay of `again`.
    Again,
    /// Delay up to this fraction of the delta.
    Part(f64),
    /// Delay of `puppet agent --splay`.
    Splay,
}

impl Spread {
    /// Draws the delay in seconds for the `rerun`th rerun of a chain.
    fn draw(self, delta: Span, rerun: u32, dice: &mut StdRng) -> f64 {
        let seconds = |range: Span, dice: &mut StdRng| delay::draw(range, dice).secs_f64();
        match self {
            Spread::Fixed => 0.0,
            Spread::Again => seconds(delay::jitter_range(delta, None, MAX_JITTER, rerun), dice),
            Spread::Part(part) => dice.random_range(0.0..=delta.secs_f64() * part),
            Spread::Splay => dice.random_range(0.0..=SPLAYLIMIT),
        }
    }
}

/// Load of a server during a herd.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// Number of arrivals in each second.
    arrivals: BTreeMap<u64, u64>,
    /// Times in the queue, in seconds.
    waits: Samples,
    /// Maximum length of the queue.
    queue: usize,
    /// Time at which the last catalog was compiled, in seconds.
    done: f64,
}

impl Seen {
    fn peak(&self) -> u64 {
        self.arrivals.values().copied().max().unwrap_or(0)
    }
}

/// Server that compiles catalogs in order of arrival, each in the same time.
#[derive(Debug)]
struct Server {
    takes: f64,
    free: f64,
    /// Start times of the compilations for the waiting nodes.
    begins: VecDeque<f64>,
    waits: Vec<f64>,
    seen: Seen,
}

impl Server {
    fn new(capacity: f64) -> Server {
        Server {
            takes: 1.0 / capacity,
            free: 0.0,
            begins: VecDeque::new(),
            waits: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Adds an arrival, which is not before earlier ones; returns when its catalog is compiled.
    fn arrive(&mut self, at: f64) -> f64 {
        *self.seen.arrivals.entry(at as u64).or_default() += 1;
        let begins = self.free.max(at);
        self.free = begins + self.takes;
        self.waits.push(begins - at);
        while self.begins.front().is_some_and(|left| *left <= at) {
            self.begins.pop_front();
        }
        self.begins.push_back(begins);
        self.seen.queue = self.seen.queue.max(self.begins.len());
        self.seen.done = self.free;
        self.free
    }

    fn seen(mut self) -> Seen {
        self.seen.waits = self.waits.into_iter().collect();
        self.seen
    }
}

/// Serves nodes whose arrivals do not depend on the queue.
fn serve(mut arrivals: Vec<f64>, capacity: f64) -> Seen {
    arrivals.sort_by(f64::total_cmp);
    let mut server = Server::new(capacity);
    for at in arrivals {
        server.arrive(at);
    }
    server.seen()
}

fn capacity(nodes: usize) -> f64 {
    2.0 * nodes as f64 / 1800.0
}

/// Simulates runs that all end within a second, and request a rerun after `delta`.
fn at_once(nodes: usize, delta: Span, spread: Spread) -> Seen {
    let mut dice = StdRng::seed_from_u64(nodes as u64);
    let arrivals = (0..nodes)
        .map(|_| dice.random_range(0.0..1.0) + delta.secs_f64() + spread.draw(delta, 1, &mut dice))
        .collect();
    serve(arrivals, capacity(nodes))
}

/// Time in seconds in which one core of the server compiles one catalog.
const COMPILES: f64 = 3.0;
/// Number of concurrent runs per core of the server: for each one that compiles, the rest apply the
/// catalogs that they have.
const PER_CORE: usize = 10;

/// Simulates the same with slots: a run waits for one before it requests its catalog, and holds it
/// until it ends.
fn with_slots(nodes: usize, delta: Span, per_core: usize) -> Seen {
    let mut dice = StdRng::seed_from_u64(nodes as u64);
    let spread = Spread::Again;
    let mut due: Vec<f64> = (0..nodes)
        .map(|_| dice.random_range(0.0..1.0) + delta.secs_f64() + spread.draw(delta, 1, &mut dice))
        .collect();
    due.sort_by(f64::total_cmp);
    let capacity = capacity(nodes);
    let slots = (capacity * COMPILES).ceil() as usize * per_core;
    let mut server = Server::new(capacity);
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    // Times in nanoseconds at which the slots become free.
    let mut free: BinaryHeap<Reverse<u64>> = (0..slots).map(|_| Reverse(0)).collect();
    for due in due {
        let at = free.pop().map_or(0, |Reverse(at)| at);
        let begins = due.max(at as f64 / 1e9);
        free.push(Reverse(nanos(server.arrive(begins) + RUN)));
    }
    server.seen()
}

/// Simulates an orchestrator that starts the nodes, a hundred at a time, the next one when one has
/// ended; a run takes 20 to 60 s, and requests the next at its end.
fn orchestrated(nodes: usize, spread: Spread) -> Seen {
    let mut dice = StdRng::seed_from_u64(nodes as u64);
    // Ends of the current runs in milliseconds, as a heap with the earliest first.
    let mut under_way = BinaryHeap::new();
    let mut arrivals = Vec::with_capacity(nodes);
    for nth in 0..nodes {
        let start = if nth < 100 {
            0
        } else {
            under_way.pop().map_or(0, |Reverse(at)| at)
        };
        let end: u64 = start + dice.random_range(20_000..60_000);
        under_way.push(Reverse(end));
        let delta = Span::ZERO;
        arrivals.push(end as f64 / 1000.0 + spread.draw(delta, 1, &mut dice));
    }
    serve(arrivals, capacity(nodes))
}

/// Policy of a node whose every run requests the next.
#[derive(Debug, Clone, Copy)]
struct Habit {
    spread: Spread,
    /// Whether the cap applies: ten reruns in an hour.
    cap: bool,
    /// Whether the jitter doubles from the fourth rerun of a chain on.
    doubles: bool,
}

impl Habit {
    const AGAIN: Habit = Habit::new(Spread::Again, true, true);
    const CAP_ALONE: Habit = Habit::new(Spread::Again, true, false);
    const FIXED: Habit = Habit::new(Spread::Fixed, false, false);
    const SPLAY: Habit = Habit::new(Spread::Splay, false, false);

    const fn new(spread: Spread, cap: bool, doubles: bool) -> Habit {
        Habit {
            spread,
            cap,
            doubles,
        }
    }
}

const HOUR: f64 = 3600.0;
/// Duration of a run in seconds after it has its catalog.
const RUN: f64 = 30.0;

/// Result of a manifest that never settles.
struct Unsettled {
    seen: Seen,
    /// Seconds until a node's tenth rerun began, for the nodes that reached it.
    tenth: Samples,
    /// Times at which the cap refused, for each node.
    refused: Samples,
}

impl Unsettled {
    /// Returns the number of reruns in each minute of the hour.
    fn minutes(&self) -> Vec<u64> {
        let mut minutes = vec![0; 60];
        for (second, count) in &self.seen.arrivals {
            minutes[(second / 60) as usize] += count;
        }
        minutes
    }
}

/// Simulates an hour in which every run requests the next with delta 0; it has its catalog when the
/// server has compiled it, and ends 30 s later. The first runs, which request the first reruns,
/// begin within a second and have their catalogs.
fn never_settles(nodes: usize, capacity: f64, habit: Habit) -> Unsettled {
    struct Node {
        starts: Vec<Moment>,
        rerun: u32,
    }
    let cap = Cap {
        max_runs: 10,
        window: Span::from_secs(3600),
        is_total: false,
    };
    let moment = |seconds: f64| Moment {
        boot: "b".into(),
        uptime: Boottime::from_nanos((seconds * 1e9) as u64),
        wall: Walltime::from_millis((seconds * 1e3) as u64),
        ..Moment::default()
    };
    let mut dice = StdRng::seed_from_u64(nodes as u64);
    let mut server = Server::new(capacity);
    let (mut tenth, mut refused) = (Vec::new(), Vec::new());
    let mut all: Vec<Node> = Vec::new();
    // Next event, the end of a run or the arrival of a rerun, in nanoseconds.
    let mut next = BinaryHeap::new();
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    for node in 0..nodes {
        let end = dice.random_range(0.0..1.0) + RUN;
        next.push(Reverse((nanos(end), node, false)));
        all.push(Node {
            starts: Vec::new(),
            rerun: 0,
        });
    }
    while let Some(Reverse((at, of, arrives))) = next.pop() {
        let at = at as f64 / 1e9;
        if at >= HOUR {
            break;
        }
        let node = &mut all[of];
        if arrives {
            if habit.cap {
                node.starts.push(moment(at));
            }
            if node.rerun == 10 {
                tenth.push(at);
            }
            let end = server.arrive(at) + RUN;
            next.push(Reverse((nanos(end), of, false)));
            continue;
        }
        // The cap refuses it, with a failed Exec in the report; the next regular run is another
        // chain.
        if habit.cap && usage(cap, &node.starts, &moment(at)).is_reached() {
            refused.push(at);
            continue;
        }
        node.rerun += 1;
        let place = if habit.doubles { node.rerun } else { 1 };
        let begins = at + habit.spread.draw(Span::ZERO, place, &mut dice);
        next.push(Reverse((nanos(begins), of, true)));
    }
    Unsettled {
        seen: server.seen(),
        tenth: tenth.into_iter().collect(),
        refused: refused.into_iter().collect(),
    }
}

/// Returns the largest distance between two sorted distributions (Kolmogorov and Smirnov).
fn distance(some: &[f64], others: &[f64]) -> f64 {
    let part =
        |of: &[f64], value: f64| of.partition_point(|v| *v <= value) as f64 / of.len() as f64;
    let all = some.iter().chain(others);
    all.map(|value| (part(some, *value) - part(others, *value)).abs())
        .fold(0.0, f64::max)
}

/// Compares real waiters with draws of the policy that the simulation uses. With 50 values of the
/// same distribution, the distance to 10,000 is below 0.23 in 99 of 100 cases.
fn real_waiters(table: &mut Table) -> Result<()> {
    let count = many(50, 5);
    let (delta, jitter) = (Span::from_secs(2), Span::from_secs(4));
    let scratch = scratch();
    let (helper, stamps, ends) = (
        scratch.at("bin/helper"),
        scratch.at("stamps"),
        scratch.at("ends"),
    );
    for nth in 0..count {
        let name = format!("w{nth:02}");
        // A command of its own is a target of its own. The run becomes the program that records its
        // end.
        let request = ["run", "--delta", "2", "--jitter", "4", "--"];
        let manifest = format!(
            "ask({}) == 0 or exit(1)\nexec({})",
            ruby_words(&[&request[..], &[&helper, "stamp", &stamps, &name]].concat()),
            ruby_words(&[&helper, "stamp", &ends, &name]),
        );
        let run = scratch.apply(&name, &manifest).status()?;
        ensure!(run.success(), "a run failed");
    }
    let end = now() + 60_000_000_000;
    while scratch.stamps().len() < count {
        ensure!(now() < end, "not all reruns came");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let read = |file: &str| -> BTreeMap<String, f64> {
        let stamps = scratch.stamps_in(file).into_iter();
        stamps
            .map(|stamp| (stamp.words.concat(), stamp.at as f64 / 1e9))
            .collect()
    };
    let (ends, starts) = (read("ends"), read("stamps"));
    let mut drawn: Vec<f64> = ends
        .iter()
        .filter_map(|(name, end)| Some(starts.get(name)? - end - delta.secs_f64()))
        .collect();
    drawn.sort_by(f64::total_cmp);
    let least = *drawn.first().context("none")?;
    let mut dice = StdRng::seed_from_u64(1);
    let range = delay::jitter_range(delta, Some(jitter), MAX_JITTER, 1);
    let mut simulated: Vec<f64> = (0..10_000)
        .map(|_| delay::draw(range, &mut dice).secs_f64())
        .collect();
    simulated.sort_by(f64::total_cmp);
    let distance = distance(&drawn, &simulated);
    table.add(
        &format!(
            "{count} real waiters, delta 2, jitter 4, against {} draws of the policy: distance of the distributions",
            short(simulated.len() as f64)
        ),
        &short(distance),
        "",
        "",
        &verdict(
            "≤ 0.23, none early",
            (quick() || distance <= 0.23) && least >= 0.0,
        ),
    );
    Ok(())
}

/// Returns the sizes of the simulated fleets, the columns of the table.
fn sizes() -> &'static [usize] {
    if quick() {
        &[1000]
    } else {
        &[1000, 10_000, 100_000]
    }
}

fn add(table: &mut Table, what: &str, columns: [String; 3]) {
    let [ours, fixed, splay] = columns;
    table.add(what, &ours, &fixed, &splay, "");
}

const SPREADS: [Spread; 3] = [Spread::Again, Spread::Fixed, Spread::Splay];

/// Adds the rows for requests within a second, and for runs that an orchestrator has started.
fn once(table: &mut Table, delta: Span) {
    let of = |seen: Seen| {
        format!(
            "{} a second; queue {}, waits {} s; all done after {} s",
            short(seen.peak() as f64),
            short(seen.queue as f64),
            short(seen.waits.median()),
            short(seen.done),
        )
    };
    for &nodes in sizes() {
        let what = format!(
            "{} nodes ask within a second, delta 120, {} catalogs a second: peak",
            short(nodes as f64),
            short(capacity(nodes))
        );
        let columns = SPREADS.map(|spread| of(at_once(nodes, delta, spread)));
        add(table, &what, columns);
    }
    for &nodes in sizes() {
        let what = format!(
            "{} nodes started a hundred at a time, each asks once, delta 0, {} catalogs a second: peak",
            short(nodes as f64),
            short(capacity(nodes))
        );
        let columns = SPREADS.map(|spread| of(orchestrated(nodes, spread)));
        add(table, &what, columns);
    }
}

/// Adds the rows with slots, beside the same fleets without.
fn slots(table: &mut Table, delta: Span) {
    let of = |seen: &Seen| {
        format!(
            "queue {}, waits there {} s; all catalogs after {} s",
            short(seen.queue as f64),
            short(seen.waits.median()),
            short(seen.done),
        )
    };
    let cores = |nodes| short((capacity(nodes) * COMPILES).ceil());
    for &nodes in sizes() {
        let what = format!(
            "{} nodes ask within a second, delta 120, {} cores: with {PER_CORE} slots for each core; without",
            short(nodes as f64),
            cores(nodes)
        );
        let with = of(&with_slots(nodes, delta, PER_CORE));
        let [jitter, _, splay] = SPREADS.map(|spread| of(&at_once(nodes, delta, spread)));
        table.add(&what, &with, &format!("jitter alone: {jitter}"), &splay, "");
    }
    for per_core in [1, 2, 5, PER_CORE, 15, 20, 50] {
        let seen = with_slots(10_000, delta, per_core);
        let what = format!(
            "{per_core} slots for each core, 10,000 nodes, {} cores",
            cores(10_000)
        );
        table.add(&what, &of(&seen), "", "", "");
    }
}

/// Adds the rows for a small cluster on a server for ten thousand nodes: the cost of the jitter
/// itself.
fn jitters(table: &mut Table, delta: Span) {
    for (name, spread) in [
        ("a quarter (default)", Spread::Again),
        ("an eighth", Spread::Part(0.125)),
        ("a half", Spread::Part(0.5)),
        ("the whole", Spread::Part(1.0)),
    ] {
        let mut dice = StdRng::seed_from_u64(1);
        let small: Vec<f64> = (0..40)
            .map(|_| delta.secs_f64() + spread.draw(delta, 1, &mut dice))
            .collect();
        let few = serve(small, capacity(10_000));
        let all = at_once(10_000, delta, spread);
        table.add(
            &format!("jitter of {name} of delta 120, on the server of 10,000"),
            &format!(
                "10,000 nodes: peak {} a second, done after {} s; 40 nodes: peak {}, done after {} s",
                short(all.peak() as f64),
                short(all.done),
                short(few.peak() as f64),
                short(few.done)
            ),
            "",
            "",
            "",
        );
    }
}

/// Adds the rows for a manifest that never settles, on all nodes and on a tenth of them.
fn unsettled(table: &mut Table) {
    let habits = [Habit::AGAIN, Habit::FIXED, Habit::SPLAY];
    for (part, name) in [(10, "a tenth of "), (1, "")] {
        for &nodes in sizes() {
            let ask = nodes / part;
            let of = |habit| {
                let came = never_settles(ask, capacity(nodes), habit);
                let refused = came.refused.len();
                let stopped = match refused {
                    0 => "none stopped".to_owned(),
                    _ if refused == ask => {
                        format!("all stopped after {} s", short(came.refused.most()))
                    }
                    _ => format!("{} stopped", short(refused as f64)),
                };
                format!(
                    "{} in the hour, {} in its last quarter; queue {}, waits {} s; {stopped}",
                    short(came.seen.arrivals.values().sum::<u64>() as f64),
                    short(came.minutes()[45..].iter().sum::<u64>() as f64),
                    short(came.seen.queue as f64),
                    short(came.seen.waits.median()),
                )
            };
            let what = format!(
                "a manifest that never settles on {name}{} nodes, delta 0, {} catalogs a second: reruns",
                short(nodes as f64),
                short(capacity(nodes))
            );
            add(table, &what, habits.map(of));
        }
    }
    let of = |habit| {
        let came = never_settles(1000, f64::INFINITY, habit);
        let minutes = came.minutes();
        let last = minutes.iter().rposition(|count| *count > 0).unwrap_or(0);
        let tenth = match came.tenth.len() {
            1000 => format!(
                "{} s, at the latest {} s",
                came.tenth.text("").trim_end(),
                short(came.tenth.most())
            ),
            some => format!("not in the hour but for {some}"),
        };
        format!(
            "{}, {} in the worst minute, the last in minute {}; the tenth {tenth}",
            short(minutes.iter().sum::<u64>() as f64),
            short(minutes.iter().copied().max().unwrap_or(0) as f64),
            last + 1,
        )
    };
    add(
        table,
        "on 1,000 nodes, with a server that is never the limit: reruns in the hour; a node's tenth begins after",
        habits.map(of),
    );
    table.add(
        "the same, with a jitter that does not double",
        &of(Habit::CAP_ALONE),
        "",
        "",
        "",
    );
}

/// Writes the plotted series, and the plots.
fn plots(to: &Path, delta: Span) -> Result<()> {
    let herd = to.join("herd");
    let line = |name, spread| {
        let seen = at_once(10_000, delta, spread);
        let count = |second| seen.arrivals.get(&second).copied().unwrap_or(0);
        (name, (115..=240).map(|at| (at, count(at))).collect())
    };
    write(
        &herd.with_extension("csv"),
        "second",
        &[
            line("fixed delay", Spread::Fixed),
            line("again", Spread::Again),
            line("splay", Spread::Splay),
        ],
    )?;
    plot(
        &herd,
        "10,000 nodes ask for a rerun within one second, delta 120",
        ["seconds after the request", "arrivals in that second"],
        [false, true],
    )?;
    let never = to.join("never-settles");
    let line = |name, habit| {
        let minutes = never_settles(1000, f64::INFINITY, habit).minutes();
        (name, (0..).zip(minutes).collect())
    };
    write(
        &never.with_extension("csv"),
        "minute",
        &[
            line("fixed delay without a cap", Habit::FIXED),
            line("again: cap and a jitter that doubles", Habit::AGAIN),
            line("cap and a jitter that does not", Habit::CAP_ALONE),
            line("splay without a cap", Habit::SPLAY),
        ],
    )?;
    plot(
        &never,
        "1,000 nodes with a manifest that never settles, a server that is never the limit",
        ["minutes", "reruns in that minute"],
        [false, false],
    )
}

pub fn measure(table: &mut Table) -> Result<()> {
    let delta = Span::from_secs(120);
    once(table, delta);
    slots(table, delta);
    jitters(table, delta);
    unsettled(table);
    real_waiters(table)?;
    if let Some(to) = std::env::var_os("PLOTS") {
        plots(Path::new(&to), delta)?;
    }
    Ok(())
}
