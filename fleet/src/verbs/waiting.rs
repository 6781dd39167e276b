//! Requests that wait on disk for the service of this node.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;

use again_base::layout::{complain, plural, say};
use again_base::model::Span;
use again_base::sys::clock::{moment, walltime};

use super::reply::{Fired, Reply};
use super::{Problem, clock};
use crate::ask::{self, Question, Summary};
use crate::policy::fire::Request;
use crate::settings::Settings;
use crate::spool::requests::{Listing, Requests};
use crate::wire::name::Id;

/// Age of a request up to which others go to disk without waiting for the service.
const RECENT: Span = Span::from_secs(60);
/// Name of the service's wakeup socket in the directory of sockets.
const WAKEUP: &str = "events";

/// Reason not to ask the service: it did not answer a command of this user shortly before. `None`
/// if it should be asked.
pub fn recent(settings: &Settings) -> Option<String> {
    let now = walltime();
    let requests = Requests::beside(&settings.spool_dir);
    let found = requests.listing().ok()?;
    let user = rustix::process::geteuid();
    let is_own = |id: &Id| {
        let meta = std::fs::symlink_metadata(requests.path().join(id.as_str()));
        meta.is_ok_and(|meta| meta.uid() == user.as_raw())
    };
    let mut files = found.files.iter();
    let is_away = files.any(|(at, id)| *at <= now && now.since(*at) < RECENT && is_own(id));
    (is_away && !found.is_full())
        .then(|| "the service did not answer a command less than a minute ago".to_owned())
}

/// Number of waiting requests, their age and directory, in words; `None` if there are none.
pub fn count(requests: &Requests, found: &Listing) -> Option<String> {
    let (oldest, _) = found.files.first()?;
    let (count, path) = (found.files.len(), requests.path().display());
    let since = clock(*oldest, moment().wall);
    let (s, verb) = (plural(count), if count == 1 { "waits" } else { "wait" });
    Some(format!(
        "{count} request{s} {verb} in {path} for the service, the oldest since {since}"
    ))
}

/// Leaves a request on disk, wakes the service, and prints that. Returns the result for each
/// target.
///
/// # Errors
/// The request cannot be stored.
pub fn leave(
    settings: &Settings,
    question: &Question,
    request: &Request,
    why: &str,
    is_json: bool,
) -> Result<Reply, Problem> {
    let requests = Requests::beside(&settings.spool_dir);
    let bytes = ask::ask(question)?;
    requests.leave(&request.id, &bytes).map_err(|e| {
        let path = requests.path().display();
        let todo = format!("; the class makes it, or 'install -d -m 2750 -g again-fleet {path}'");
        let is_missing = e.kind() == ErrorKind::NotFound;
        let todo = Some(todo).filter(|_| is_missing).unwrap_or_default();
        Problem::Failed(format!("{why}; it cannot wait on disk: {path}: {e}{todo}"))
    })?;
    // Without the wakeup, the service reads the request at its next heartbeat.
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to(&[0], settings.run_dir.join(WAKEUP));
    }
    let (id, now) = (&request.id, moment().wall);
    let until = now + request.ttl;
    if !is_json {
        let at = clock(until, now);
        say(&format!(
            "again-fleet: waiting on disk for the service of this node; sent until {at} (id {id})"
        ))?;
    }
    complain(&format!("again-fleet: warning: {why}"));
    let targets = request.targets.iter();
    Ok(Reply {
        targets: targets.map(|node| (node.clone(), Fired::Waiting)).collect(),
        summary: Some(Summary {
            backend: settings.backend,
            away: None,
            until: until.millis(),
            selection: None,
        }),
        ..Reply::default()
    })
}
