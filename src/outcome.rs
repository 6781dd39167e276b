//! How reruns ended, by what they left behind.

use crate::policy::cap::Moment;
use crate::puppet::summary::Summary;
use crate::state::history::{Entry, What};
use crate::state::record::{Ended, Record, Running, VERSION};
use crate::state::store::Store;
use crate::sys::process::Identity;

/// Takes reruns that have ended out of the record, and notes how they ended.
pub fn settle(store: &Store, record: &mut Record, now: &Moment) {
    for ended in ended(record, now) {
        let rerun = &ended.rerun;
        store.forget_rerun(rerun.process);
        store.note(&Entry {
            version: VERSION,
            at: ended.noticed.clone(),
            what: What::Ended,
            target: record.id.clone(),
            timer: rerun.timer.clone(),
            token: rerun.token.clone(),
            chain: rerun.chain.clone(),
            run: rerun.run,
            reason: format!("{} ({})", ended.outcome, ended.evidence),
        });
        record.last = Some(ended);
    }
}

/// Takes reruns that have ended out of the record, oldest first.
pub fn ended(record: &mut Record, now: &Moment) -> Vec<Ended> {
    let ended = record.take_ended(&now.boot, Identity::is_alive);
    let how = |rerun: Running| {
        let (outcome, evidence) = judge(&rerun);
        Ended {
            rerun,
            outcome,
            evidence,
            noticed: now.clone(),
        }
    };
    ended.into_iter().map(how).collect()
}

/// How a rerun ended: by Puppet's own summary if that was written since it started.
pub fn judge(rerun: &Running) -> (String, String) {
    let unknown = |why: &str| ("unknown".to_owned(), why.to_owned());
    let Some(path) = &rerun.lastrunfile else {
        return unknown("it is not known where its summary would be");
    };
    let Ok(text) = std::fs::read(path) else {
        return unknown(&format!("there is no summary {path}"));
    };
    let summary = Summary::parse(&text);
    match (summary.last_run(), summary.outcome()) {
        // Puppet gives whole seconds.
        (Some(at), Some((outcome, numbers))) if at >= rerun.started.wall.millis() / 1000 => {
            (outcome.to_string(), format!("{numbers}, by {path}"))
        }
        (Some(_), _) => unknown(&format!("it wrote no summary; {path} is older")),
        (None, _) => unknown(&format!("{path} is not a summary")),
    }
}
