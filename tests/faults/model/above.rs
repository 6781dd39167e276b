//! Processes above a request, as the request observes them.

use std::path::Path;

use again::puppet::ancestry::Seen;
use again::puppet::paths::Paths;
use again::request::observe::Observation;
use again::request::order::Plan;
use again::state::files;
use again::state::newer::VERSION;
use again::state::order::Order;
use again::state::record::Running;
use again_base::model::{Bytes, Identity, Kind, LogLimits, Moment, Stuck};
use again_base::schema::origin::Lineage;
use again_base::sys::attributes::Attributes;

use super::TARGETS;
use super::world::Run;

/// Returns the observation of a request: a run of the target above it, or a person's shell.
pub fn observation(run: Option<&Run>, target: usize, state_dir: &Path) -> Observation {
    let seen = |identity| Seen {
        identity,
        comm: b"puppet".to_vec(),
        cmdline: b"puppet\0apply\0".to_vec(),
        exe: None,
    };
    let word = |text: &str| Bytes::from(Path::new(text));
    let order = Order {
        version: VERSION,
        kind: Kind::Apply,
        programs: vec![word("/bin/true")],
        arguments: vec![word("true")],
        directory: word("/"),
        environment: Some(Vec::new()),
        attributes: Attributes::default(),
        wraps: None,
        manifest: None,
        input: None,
        paths: Paths::default(),
        daemon: None,
        stuck: Stuck::default(),
        slots: false,
        hold_before_shutdown: again_base::model::Span::ZERO,
        log_dir: state_dir.join("log").as_path().into(),
        logs: LogLimits::default(),
    };
    Observation {
        chain: run.map(|run| seen(run.process)).into_iter().collect(),
        run: run.map(|_| 0),
        found: run.map(|_| 0),
        why: None,
        plan: Ok(Plan {
            target: TARGETS[target].into(),
            original: Vec::new(),
            detailed: false,
            run_timeout: None,
            run_does_it: run.is_some_and(|run| run.does_job),
            manifest: None,
            order,
            obstacle: None,
        }),
    }
}

/// Returns a rerun that keeps no log.
pub fn running(process: Identity, started: Moment) -> Running {
    Running {
        process,
        token: files::token(),
        chain: "elsewhere".into(),
        run: 2,
        timer: "again".into(),
        started,
        log: String::new(),
        log_lost: None,
        log_limit: 0,
        lastrunfile: None,
        stopped: None,
        observer: None,
        lineage: Lineage::default(),
        before_start: None,
    }
}
