//! Requests that wait on disk for the service of this node.

use std::os::unix::net::UnixDatagram;

use again_base::layout::{complain, plural, say};
use again_base::model::{Span, Walltime};
use again_base::sys::clock::{moment, walltime};
use again_base::sys::localtime::utc;
use serde_json::{Value, json};

use super::{Exit, Problem, clock, named};
use crate::ask::{self, Question};
use crate::policy::fire::Request;
use crate::settings::Settings;
use crate::spool::requests::{Listing, Requests};

/// Age of a request up to which others go to disk without waiting for the service.
const RECENT: Span = Span::from_secs(60);
/// The socket in the directory of sockets at which the service is woken.
const WAKEUP: &str = "events";

/// Why the service is not asked: it did not answer a command shortly before. Nothing if it is to be asked.
pub fn recent(settings: &Settings) -> Option<String> {
    let now = walltime();
    let found = Requests::beside(&settings.spool_dir).listing().ok()?;
    let is_recent = |at: Walltime| at <= now && now.since(at) < RECENT;
    let is_busy = found.files.iter().any(|(at, _)| is_recent(*at));
    let is_root = rustix::process::geteuid().is_root();
    (is_busy && !found.is_full(is_root)).then(|| "other requests wait already".to_owned())
}

/// How many requests wait and since when, in words, with the directory; nothing if none does.
pub fn count(requests: &Requests, found: &Listing) -> Option<String> {
    let (oldest, _) = found.files.first()?;
    let (count, path) = (found.files.len(), requests.path().display());
    let since = clock(*oldest, moment().wall);
    let (s, verb) = (plural(count), if count == 1 { "waits" } else { "wait" });
    Some(format!(
        "{count} request{s} {verb} in {path} for the service, the oldest since {since}"
    ))
}

/// The error of a command that cannot wait on disk; it names what does.
pub fn error(settings: &Settings, why: String) -> Problem {
    let requests = Requests::beside(&settings.spool_dir);
    let found = requests.listing().ok();
    Problem::Failed(match found.and_then(|found| count(&requests, &found)) {
        Some(count) => {
            format!("{why}; {count}: to cancel one, remove the file that has its id as name")
        }
        None => why,
    })
}

/// Leaves a request on disk, wakes the service, and says so.
///
/// # Errors
/// It cannot be left.
pub fn leave(
    settings: &Settings,
    question: &Question,
    request: &Request,
    why: &str,
    is_json: bool,
) -> Result<Value, Problem> {
    let requests = Requests::beside(&settings.spool_dir);
    let bytes = ask::ask(question)?;
    requests.leave(&request.id, &bytes).map_err(|e| {
        let path = requests.path().display();
        Problem::Failed(format!("{why}; it cannot wait on disk: {path}: {e}"))
    })?;
    // It is read at the next beat in any case.
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to(&[0], settings.run_dir.join(WAKEUP));
    }
    let (id, now) = (&request.id, moment().wall);
    let until = now + request.ttl;
    if !is_json {
        let at = clock(until, now);
        let to = match (&request.targets[..], request.is_open) {
            (targets, false) => format!(" to {}", named(targets)),
            ([], true) => " to the nodes that it selects".to_owned(),
            (targets, true) => format!(" to {} and the nodes that it selects", named(targets)),
        };
        say(&format!(
            "again-fleet: waiting on disk for the service of this node; sent until {at}{to} (id {id})"
        ))?;
    }
    complain(&format!("again-fleet: warning: {why}"));
    let target = |node| json!({"node": node, "fired": "waiting", "outcome": null, "why": null});
    let targets: Vec<Value> = request.targets.iter().map(target).collect();
    Ok(json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "engine": settings.engine.to_string(),
        "engine_away": null,
        "until": utc(until),
        "selection": null,
        "not_passed_on": [],
        "targets": targets,
        "id": id,
        "name": request.name,
        "away": [],
    }))
}

/// How a command ends whose request waits: nobody hears what becomes of it.
pub fn exit(waits: bool) -> Exit {
    if waits { Exit::NotInTime } else { Exit::Done }
}
