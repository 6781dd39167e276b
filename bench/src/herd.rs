//! Many nodes that ask for a rerun at the same time, simulated with the program's own policy.
//!
//! The server compiles one catalog per node and run, `capacity` of them a second, in the order in which they arrive. As
//! servers are sized, that is twice what the fleet needs for one run every half hour. What a node does, when it asks and
//! what it is told, is decided by `policy::delay` and `policy::cap`, as in the program itself.

use std::collections::{BTreeMap, BinaryHeap};
use std::io::Write as _;
use std::path::Path;

use again::policy::cap::{Cap, Moment, usage};
use again::policy::delay;
use again::policy::time::{Boottime, Span, Walltime};
use anyhow::{Context, Result, ensure};
use plotters::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::numbers::{Samples, Table, many, quick, short, verdict};
use crate::stage::Stage;
use crate::start::{as_exec_does, words};

/// `splaylimit` is Puppet's run interval unless it is set.
const SPLAYLIMIT: f64 = 1800.0;
const MAX_JITTER: Span = Span::from_secs(300);

/// How long a node waits before its rerun, once the delta is over.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Spread {
    /// Not at all.
    Fixed,
    /// As `again` does.
    Again,
    /// Up to this part of the delta.
    Part(f64),
    /// As `puppet agent --splay` does.
    Splay,
}

impl Spread {
    /// Seconds, for the `rerun`th of a chain.
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

/// What a server saw of a herd.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// Arrivals in each second.
    arrivals: BTreeMap<u64, u64>,
    /// Seconds in the queue.
    waits: Samples,
    /// The most that waited at once.
    queue: usize,
    /// When the last catalog was there.
    done: f64,
}

impl Seen {
    fn peak(&self) -> u64 {
        self.arrivals.values().copied().max().unwrap_or(0)
    }
}

/// One server, first come, first served.
fn serve(mut arrivals: Vec<f64>, capacity: f64) -> Seen {
    arrivals.sort_by(f64::total_cmp);
    let mut seen = Seen::default();
    let mut free = 0.0_f64;
    let mut leaving = std::collections::VecDeque::new();
    let mut waits = Vec::with_capacity(arrivals.len());
    for at in arrivals {
        *seen.arrivals.entry(at as u64).or_default() += 1;
        let begins = free.max(at);
        free = begins + 1.0 / capacity;
        waits.push(begins - at);
        while leaving.front().is_some_and(|left| *left <= at) {
            leaving.pop_front();
        }
        leaving.push_back(begins);
        seen.queue = seen.queue.max(leaving.len());
        seen.done = free;
    }
    seen.waits = waits.into_iter().collect();
    seen
}

fn capacity(nodes: usize) -> f64 {
    2.0 * nodes as f64 / 1800.0
}

/// All runs end within a second, and ask for a rerun after `delta`.
fn at_once(nodes: usize, delta: Span, spread: Spread) -> Seen {
    let mut dice = StdRng::seed_from_u64(nodes as u64);
    let arrivals = (0..nodes)
        .map(|_| dice.random_range(0.0..1.0) + delta.secs_f64() + spread.draw(delta, 1, &mut dice))
        .collect();
    serve(arrivals, capacity(nodes))
}

/// An orchestrator starts the nodes, a hundred at a time, the next one when one has ended; a run takes 20 to 60 s, and
/// asks for the next at its end.
fn orchestrated(nodes: usize, spread: Spread) -> Seen {
    let mut dice = StdRng::seed_from_u64(nodes as u64);
    // Ends of the runs under way, in milliseconds; a heap of the earliest.
    let mut under_way = BinaryHeap::new();
    let mut arrivals = Vec::with_capacity(nodes);
    for nth in 0..nodes {
        let start = if nth < 100 {
            0
        } else {
            under_way.pop().map_or(0, |std::cmp::Reverse(at)| at)
        };
        let end: u64 = start + dice.random_range(20_000..60_000);
        under_way.push(std::cmp::Reverse(end));
        let delta = Span::ZERO;
        arrivals.push(end as f64 / 1000.0 + spread.draw(delta, 1, &mut dice));
    }
    serve(arrivals, capacity(nodes))
}

/// What keeps a node from running for ever.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Brake {
    None,
    Cap,
    CapAndBackoff,
}

/// Every run asks for the next, for an hour; a run takes 30 s. Arrivals in each minute, and all of them.
fn never_settles(nodes: usize, brake: Brake) -> (Vec<u64>, u64) {
    let mut dice = StdRng::seed_from_u64(nodes as u64);
    let cap = Cap {
        max_runs: 10,
        window: Span::from_secs(3600),
    };
    let moment = |seconds: f64| Moment {
        boot: "b".into(),
        uptime: Boottime::from_nanos((seconds * 1e9) as u64),
        wall: Walltime::from_millis((seconds * 1e3) as u64),
    };
    let mut minutes = vec![0; 60];
    for _ in 0..nodes {
        let mut at = dice.random_range(0.0..1.0);
        let mut starts: Vec<Moment> = Vec::new();
        let mut rerun = 0;
        loop {
            at += 30.0;
            rerun += 1;
            // Refused, with a failed Exec in the report; the next regular run is another chain.
            if brake != Brake::None && usage(cap, &starts, &moment(at)).is_reached() {
                break;
            }
            let place = if brake == Brake::CapAndBackoff {
                rerun
            } else {
                1
            };
            let range = delay::jitter_range(Span::ZERO, None, MAX_JITTER, place);
            at += delay::draw(range, &mut dice).secs_f64();
            if at >= 3600.0 {
                break;
            }
            starts.push(moment(at));
            minutes[(at / 60.0) as usize] += 1;
        }
    }
    let sum = minutes.iter().sum();
    (minutes, sum)
}

/// In a run: asks, and ends. As a rerun: stamps.
pub fn stand_in(stage: &Path, again: &str, began: u64, rest: &str) -> Result<()> {
    let nth = std::env::args().nth(2).context("a manifest")?;
    let name = Path::new(&nth).file_stem().context("a name")?.to_owned();
    let file = if std::env::var_os("AGAIN_RUN").is_some() {
        "stamps"
    } else {
        let request: Vec<&str> = [again, "run"]
            .into_iter()
            .chain(rest.split_whitespace())
            .collect();
        let cost = as_exec_does(&words(&request))?;
        ensure!(cost.status == 0, "{}", cost.output);
        "ends"
    };
    let at = if file == "ends" {
        crate::start::now()
    } else {
        began
    };
    let mut out = std::fs::File::options()
        .append(true)
        .create(true)
        .open(stage.join(file))?;
    out.write_all(format!("{at} {}\n", name.to_string_lossy()).as_bytes())?;
    Ok(())
}

/// Real waiters against the draws of the simulation: the largest distance between the two distributions, which chance
/// keeps below 0.23 in 99 of 100 cases (Kolmogorov and Smirnov, 50 values).
fn real_waiters(table: &mut Table) -> Result<()> {
    let count = many(50, 5);
    let (delta, range) = (2.0, 4.0);
    let stage = Stage::new()?;
    for nth in 0..count {
        let run = stage
            .run(&format!("w{nth:02}"), "herd --delta 2 --jitter 4")?
            .status()?;
        ensure!(run.success(), "a run failed");
    }
    let end = crate::start::now() + 60_000_000_000;
    while stage.text("stamps").lines().count() < count {
        ensure!(crate::start::now() < end, "not all reruns came");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let read = |file: &str| -> BTreeMap<String, f64> {
        let text = stage.text(file);
        text.lines()
            .filter_map(|line| {
                let (at, name) = line.split_once(' ')?;
                Some((name.to_owned(), at.parse::<u64>().ok()? as f64 / 1e9))
            })
            .collect()
    };
    let (ends, starts) = (read("ends"), read("stamps"));
    let mut drawn: Vec<f64> = ends
        .iter()
        .filter_map(|(name, end)| Some(starts.get(name)? - end - delta))
        .collect();
    drawn.sort_by(f64::total_cmp);
    let least = *drawn.first().context("none")?;
    let n = drawn.len() as f64;
    let distance = drawn
        .iter()
        .enumerate()
        .map(|(at, value)| {
            let part = (value / range).clamp(0.0, 1.0);
            (part - at as f64 / n)
                .abs()
                .max(((at + 1) as f64 / n - part).abs())
        })
        .fold(0.0, f64::max);
    table.add(
        &format!("{count} real waiters against the simulated draws: distance of the distributions"),
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

/// Counts over time, as steps.
fn plot(
    path: &Path,
    title: &str,
    axes: [&str; 2],
    lines: &[(&str, Vec<(f64, f64)>)],
    log: bool,
) -> Result<()> {
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let right = all().map(|p| p.0).fold(0.0, f64::max);
    let top = all().map(|p| p.1).fold(1.0, f64::max) * 1.3;
    let left = all().map(|p| p.0).fold(right, f64::min);
    let root = SVGBackend::new(path, (800, 360)).into_drawing_area();
    root.fill(&WHITE)?;
    let colours = [
        RGBColor(200, 50, 40),
        RGBColor(30, 100, 200),
        RGBColor(60, 150, 60),
    ];
    macro_rules! draw {
        ($range:expr) => {{
            let mut chart = ChartBuilder::on(&root)
                .caption(title, ("sans-serif", 18))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(60)
                .build_cartesian_2d(left..right, $range)?;
            chart
                .configure_mesh()
                .x_desc(axes[0])
                .y_desc(axes[1])
                .light_line_style(WHITE)
                .draw()?;
            for ((name, points), colour) in lines.iter().zip(colours) {
                chart
                    .draw_series(LineSeries::new(
                        points.iter().copied(),
                        colour.stroke_width(2),
                    ))?
                    .label(*name)
                    .legend(move |(x, y)| {
                        PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                    });
            }
            chart
                .configure_series_labels()
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK)
                .draw()?;
        }};
    }
    if log {
        draw!((0.8..top).log_scale());
    } else {
        draw!(0.0..top);
    }
    root.present()?;
    Ok(())
}

pub fn measure(table: &mut Table) -> Result<()> {
    let delta = Span::from_secs(120);
    let sizes: &[usize] = if quick() {
        &[1000]
    } else {
        &[1000, 10_000, 100_000]
    };
    for &nodes in sizes {
        let of = |spread| {
            let seen = at_once(nodes, delta, spread);
            format!(
                "{} a second; queue {}, waits {} s; all done after {} s",
                short(seen.peak() as f64),
                short(seen.queue as f64),
                short(seen.waits.median()),
                short(seen.done),
            )
        };
        table.add(
            &format!(
                "{} nodes ask within a second, delta 120, {} catalogs a second: peak",
                short(nodes as f64),
                short(capacity(nodes))
            ),
            &of(Spread::Again),
            &format!("fixed delay: {}", of(Spread::Fixed)),
            &format!("splay: {}", of(Spread::Splay)),
            "",
        );
    }
    // A small cluster on a server that is there for ten thousand: what the jitter itself costs.
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
            &format!("jitter of {name} of delta 120"),
            &format!(
                "10,000 nodes: peak {} a second, done after {} s",
                short(all.peak() as f64),
                short(all.done)
            ),
            "",
            &format!(
                "40 nodes: peak {} a second, done after {} s",
                short(few.peak() as f64),
                short(few.done)
            ),
            "",
        );
    }
    let (ours, fixed, splay) = (
        orchestrated(10_000, Spread::Again),
        orchestrated(10_000, Spread::Fixed),
        orchestrated(10_000, Spread::Splay),
    );
    let of = |seen: &Seen| {
        format!(
            "peak {} a second, queue {}, done after {} s",
            short(seen.peak() as f64),
            short(seen.queue as f64),
            short(seen.done)
        )
    };
    table.add(
        "10,000 nodes started a hundred at a time, each asks once, delta 0",
        &of(&ours),
        &format!("fixed: {}", of(&fixed)),
        &format!("splay: {}", of(&splay)),
        "",
    );
    let brakes =
        [Brake::CapAndBackoff, Brake::None, Brake::Cap].map(|brake| never_settles(1000, brake));
    table.add(
        "1,000 nodes with a manifest that never settles, delta 0: reruns in an hour, in the worst minute",
        &format!("{}; {}", short(brakes[0].1 as f64), short(*brakes[0].0.iter().max().context("minutes")? as f64)),
        &format!("no brake: {}; {}", short(brakes[1].1 as f64), short(*brakes[1].0.iter().max().context("minutes")? as f64)),
        &format!("cap alone: {}; {}", short(brakes[2].1 as f64), short(*brakes[2].0.iter().max().context("minutes")? as f64)),
        "",
    );
    real_waiters(table)?;
    if let Some(to) = std::env::var_os("PLOTS") {
        let to = Path::new(&to);
        let nodes = 10_000;
        let line = |name, spread| {
            let seen = at_once(nodes, delta, spread);
            // A hundredth, so that a step of the log scale starts from the bottom.
            let points = (115..=240)
                .map(|second| {
                    (
                        second as f64,
                        seen.arrivals.get(&second).map_or(0.8, |n| *n as f64),
                    )
                })
                .collect();
            (name, points)
        };
        plot(
            &to.join("herd.svg"),
            "10,000 nodes ask for a rerun within one second, delta 120",
            ["seconds after the request", "arrivals in that second"],
            &[
                line("fixed delay", Spread::Fixed),
                line("again", Spread::Again),
                line("splay", Spread::Splay),
            ],
            true,
        )?;
        let line = |name, at: usize| {
            let points = brakes[at].0.iter().enumerate();
            (
                name,
                points
                    .map(|(minute, n)| (minute as f64, *n as f64))
                    .collect(),
            )
        };
        plot(
            &to.join("never-settles.svg"),
            "1,000 nodes with a manifest that never settles",
            ["minutes", "reruns in that minute"],
            &[
                line("no brake", 1),
                line("again: cap and backoff", 0),
                line("cap alone", 2),
            ],
            false,
        )?;
    }
    Ok(())
}
