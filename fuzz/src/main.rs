//! Every parser of what others write, under libFuzzer: the first byte chooses the parser, the rest is its input.
//! What a parser takes must also survive what is done with it next.
#![no_main]

/// What again-fleet reads: from the network, from its other half, and of its operator.
mod fleet;

use std::path::{Path, PathBuf};

use again::policy::cap;
use again::policy::converge::{Ask, Drive, Until};
use again::policy::hurry::{hurry, release};
use again::policy::resume;
use again::puppet::ancestry::{Seen, find_run};
use again::puppet::paths::{self, Layout, Paths, Setup};
use again::puppet::rerun::{is_daemon, rewrite};
use again::puppet::summary::Summary;
use again::puppet::{environment, locks};
use again::state::change::Change;
use again::state::driver::{self, Driver, Handed};
use again::state::history::{Entry, What};
use again::state::order::{decode, encode};
use again::state::record::Record;
use again::state::reruns::Rerun;
use again::state::store::{Disabled, parse_record};
use again::sys::unit::is_a_units_cgroup;
use again_base::delay;
use again_base::model::{Boottime, Identity, Moment, Outcome, Refusal, Span, Walltime};
use again_base::puppet::cmdline::{Invocation, parse};
use again_base::puppet::conf::Conf;
use again_base::puppet::options::Application;
use again_base::schema::origin::{Taken, Word};
use again_base::sys::attributes::parse_limits;
use again_base::sys::localtime;
use again_base::sys::process::{parse_stat, parse_status, split_block};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((which, text)) = data.split_first() else {
        return;
    };
    match which % 18 {
        0 => command_line(text),
        1 => ancestors(text),
        2 => environ(text),
        3 => lock(text),
        4 => conf(text),
        5 => drop(Summary::parse(text).outcome()),
        6 => record(text),
        7 => order(text),
        8 => settings(text),
        9 => proc_files(text),
        10 => driver(text),
        11 => fleet::handed_over(text),
        12 => fleet::key(text),
        13 => fleet::envelope(text),
        14 => fleet::body(text),
        15 => fleet::settings(text),
        16 => fleet::asked(text),
        _ => word(text),
    }
});

fn command_line(text: &[u8]) {
    let argv = split_block(text);
    let Some(invocation) = parse(&argv) else {
        return;
    };
    let conf = Conf::default();
    let once = rewrite(&argv, &invocation, &conf);
    // What is run again is a run again, and asks for the same.
    let again = parse(&once).expect("a rewritten command line is one");
    assert!(!is_daemon(&again, &conf), "{once:?}");
    assert_eq!(rewrite(&once, &again, &conf), once);
    let layout = paths::layout(Path::new("/usr/bin/ruby"), None, |_| false);
    paths(Some(&invocation), &conf, &layout);
    let _ = (
        invocation.manifest(),
        invocation.reads_standard_input(),
        paths::conf_file(Some(&invocation), &layout),
    );
}

fn paths(invocation: Option<&Invocation>, conf: &Conf, layout: &Layout) {
    let setup = Setup {
        invocation: invocation.cloned(),
        conf: conf.clone(),
        layout: layout.clone(),
    };
    drop(setup.paths(&Paths::default(), &Paths::default()));
}

fn ancestors(text: &[u8]) {
    let seen = |(n, line): (usize, &[u8])| Seen {
        identity: Identity {
            pid: n as i32 + 1,
            start: 1,
        },
        comm: line.iter().copied().take(15).collect(),
        cmdline: line.to_vec(),
        exe: line
            .first()
            .filter(|b| **b % 2 == 0)
            .map(|_| PathBuf::from("/usr/bin/ruby3.1")),
    };
    let chain: Vec<Seen> = text.split(|b| *b == b'\n').enumerate().map(seen).collect();
    let _ = find_run(&chain, |_, invocation| {
        is_daemon(invocation, &Conf::default())
    });
}

fn environ(text: &[u8]) {
    let whole = environment::is_whole(text);
    let entries = environment::without_ours(split_block(text));
    if whole {
        assert!(entries.iter().all(|entry| entry.contains(&b'=')));
    }
    drop(environment::restored(entries, Some(b"/root"), b"root"));
}

fn lock(text: &[u8]) {
    assert!(locks::parse_pid(text).is_none_or(|pid| pid > 0));
    let _ = (locks::disabled_message(text), locks::may_hold(text, text));
}

fn conf(text: &[u8]) {
    let conf = Conf::parse(text);
    let layout = paths::layout(
        Path::new("/opt/puppetlabs/puppet/bin/ruby"),
        Some(Path::new("/home/x")),
        |_| false,
    );
    paths(None, &conf, &layout);
    let _ = (
        conf.flag(Application::Agent, "splay"),
        conf.is_without("daemonize"),
    );
}

fn record(text: &[u8]) {
    let now = Moment {
        boot: "b".into(),
        uptime: Boottime::from_nanos(u64::MAX / 2),
        wall: Walltime::from_millis(1_795_219_387_045),
        ..Moment::default()
    };
    let _ = (
        serde_json::from_slice::<Rerun>(text),
        serde_json::from_slice::<Disabled>(text),
    );
    let _ = serde_json::from_slice::<Entry>(text).map(|entry| entry.text());
    let _ = parse_record(text, "0123456789abcdef");
    let Ok(mut record) = serde_json::from_slice::<Record>(text) else {
        return;
    };
    for timer in record.timers.values() {
        let usage = cap::usage(timer.cap, record.moments(), &now);
        let refusal = Refusal::Cap {
            cap: timer.cap,
            usage,
            fails: true,
        };
        let _ = refusal.to_string();
        let range = delay::jitter_range(timer.delta, None, Span::from_secs(300), timer.run);
        let due = resume::due(&timer.wait(&now), &now, range);
        let _ = (
            localtime::utc(now.wall + due.since(now.uptime)),
            timer.delta.to_string(),
        );
        let _ = (
            hurry(timer.pending(), true, true, now.uptime),
            release(timer.pending(), now.uptime),
        );
        let _ = (
            localtime::local(timer.requested.wall),
            record.next_number(&timer.chain, timer.run),
        );
    }
    let runs = record.take_runs(|_| true);
    record.take_back(&runs);
    let _ = record.take_runs(|_| true);
    // Written and read, it is the same.
    let written = serde_json::to_vec(&record).expect("JSON");
    assert_eq!(
        serde_json::from_slice::<Record>(&written).expect("read"),
        record
    );
}

fn order(text: &[u8]) {
    if let Ok((ticket, order)) = decode(text) {
        let written = encode(&ticket, &order).expect("JSON");
        assert_eq!(decode(&written), Ok((ticket, order)));
    }
}

fn settings(text: &[u8]) {
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = again::config::check(text);
        let _ = text.parse::<Span>();
    }
}

fn proc_files(text: &[u8]) {
    let _ = parse_stat(text);
    let text = String::from_utf8_lossy(text);
    let _ = (parse_status(&text), parse_limits(&text));
    let _ = is_a_units_cgroup(&text);
}

/// What again-fleet passes on of the triggers of other nodes.
fn word(text: &[u8]) {
    let Ok(Ok(word)) = std::str::from_utf8(text).map(Word::parse) else {
        return;
    };
    let mut lineage = word.lineage(word.triggers.to_vec());
    let once = lineage.clone();
    lineage.join(once.clone());
    assert_eq!(lineage, once);
    let mut all = Vec::new();
    for at in 0..40 {
        let at = Boottime::from_nanos(at);
        let taken = Taken {
            from: at,
            ready: at,
            lineage: once.clone(),
        };
        let _ = Taken::add(&mut all, taken);
    }
    assert!(all.len() <= 16 && lineage.told().is_some());
}

/// What a driver shows of itself, and a request on its way to one.
fn driver(text: &[u8]) {
    if let Ok(driver) = serde_json::from_slice::<Driver>(text) {
        let written = serde_json::to_vec(&driver).expect("JSON");
        assert_eq!(
            serde_json::from_slice::<Driver>(&written).expect("read"),
            driver
        );
        drop(Change::of_driver(
            &driver,
            What::Closed,
            driver.began.clone(),
        ));
        let chain: Vec<Identity> = driver.child.into_iter().chain([driver.process]).collect();
        let known = [true, false].map(|alive| (driver.clone(), alive)).to_vec();
        let found = driver::above(known, &chain, &driver.boot);
        assert_eq!(found.is_some(), driver.child.is_some());
    }
    if let Ok(handed) = serde_json::from_slice::<Handed>(text) {
        let written = serde_json::to_vec(&handed).expect("JSON");
        assert_eq!(
            serde_json::from_slice::<Handed>(&written).expect("read"),
            handed
        );
        let mut drive = Drive::new(Until::Requests, 2, None, None);
        let now = Boottime::from_nanos(u64::MAX / 2);
        drive.begin(now);
        let ask = Ask {
            name: handed.name,
            token: handed.token,
            delta: handed.delta,
            jitter: delay::draw(handed.jitter.unwrap_or(Span::ZERO), &mut rand::rng()),
            base: handed.base,
            requested: handed.requested.uptime,
        };
        let _ = drive.ask(ask, now);
        drive.end(Outcome::Succeeded, None);
        let _ = drive.next(now);
    }
}
