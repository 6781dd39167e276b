//! Requests that commands have left on disk while this service did not answer.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use tracing::warn;

use again_base::layout::plural;
use again_base::model::{Span, Walltime};

use crate::ask;
use crate::policy::fire::Request;
use crate::spool;
use crate::wire::name::Id;

/// What waits, and what of it is done.
#[derive(Debug)]
pub struct Requests {
    spool: spool::requests::Requests,
    /// Requests that were sent or dropped, as long as the executor has not removed their files.
    done: BTreeSet<Id>,
    /// Entries that are not requests, which were counted in the log.
    refused: BTreeSet<OsString>,
    /// Last error of the directory.
    error: Option<String>,
}

/// What is to be done about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Send this, for the rest of its time.
    Send(Request),
    /// Drop it, for this reason.
    Drop(String),
    /// Nothing now: the executor has removed it, or it cannot be read at the moment.
    Nothing,
}

impl Requests {
    /// Those of this directory.
    pub fn new(spool: spool::requests::Requests) -> Requests {
        Requests {
            spool,
            done: BTreeSet::new(),
            refused: BTreeSet::new(),
            error: None,
        }
    }

    /// Requests that are not done, oldest first. Logs once what is wrong with the directory.
    pub fn waiting(&mut self) -> Vec<Id> {
        let found = match self.spool.listing() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(e) => {
                let path = self.spool.path().display();
                let why = format!("requests that wait on disk cannot be read: {path}: {e}");
                if self.error.as_ref() != Some(&why) {
                    warn!("{why}");
                }
                self.error = Some(why);
                return Vec::new();
            }
            Ok(found) => found,
        };
        self.error = None;
        if found.others.difference(&self.refused).next().is_some() {
            let (count, path) = (found.others.len(), self.spool.path().display());
            let s = plural(count);
            warn!(
                "{path} has entries that are not requests ({count} file{s}, links or directories); remove directories among them"
            );
        }
        let is_complete = !found.is_full(true);
        self.refused = found.others;
        let waiting: BTreeSet<&Id> = found.files.iter().map(|(_, id)| id).collect();
        self.done.retain(|id| !is_complete || waiting.contains(id));
        let ids = found.files.into_iter().map(|(_, id)| id);
        ids.filter(|id| !self.done.contains(id)).collect()
    }

    /// What is to be done about a file.
    pub fn read(&self, id: &Id, now: Walltime) -> Found {
        let (bytes, at) = match self.spool.read(id) {
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Found::Drop(e.to_string()),
            Err(_) => return Found::Nothing,
            Ok(read) => read,
        };
        match ask::spooled(&bytes) {
            Err(e) => Found::Drop(e.to_string()),
            Ok(request) if request.id != *id => Found::Drop("its id is another one".to_owned()),
            Ok(request) => aged(request, now.since(at)),
        }
    }

    /// Notes that a request is done.
    pub fn finish(&mut self, id: Id) {
        self.done.insert(id);
    }

    /// Requests whose files the executor is to remove.
    pub fn done(&self) -> Vec<Id> {
        self.done.iter().cloned().collect()
    }
}

/// What is to be done about a request that has waited for this time.
fn aged(request: Request, waited: Span) -> Found {
    let left = request.ttl.nanos().saturating_sub(waited.nanos());
    let ttl = Span::from_nanos(left);
    // A ttl has whole milliseconds.
    match ttl.millis() {
        0 => Found::Drop(format!("'{}' has expired", request.name)),
        _ => Found::Send(Request { ttl, ..request }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Question;
    use crate::policy::fire::tests::request;

    #[test]
    fn request_is_sent_for_the_rest_of_its_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = spool::requests::Requests::beside(&dir.path().join("spool"));
        std::fs::create_dir(spool.path()).expect("made");
        let one = request(&[]);
        let question = Question::Fire {
            request: one.clone(),
            wait: true,
        };
        let bytes = ask::ask(&question).expect("a question");
        let (id, other) = (one.id.clone(), Id::from_bits(1));
        spool.leave(&id, &bytes).expect("left");
        spool.leave(&other, &bytes).expect("left");
        let (_, at) = spool.read(&id).expect("read");
        let mut requests = Requests::new(spool.clone());
        assert_eq!(requests.waiting().len(), 2);
        let after = |seconds| requests.read(&id, at + Span::from_secs(seconds));
        let rest = |seconds| Request {
            ttl: Span::from_secs(seconds),
            ..one.clone()
        };
        assert_eq!(after(0), Found::Send(rest(3600)));
        assert_eq!(after(600), Found::Send(rest(3000)));
        assert_eq!(after(3600), Found::Drop("'again' has expired".to_owned()));
        // Written in the future, as by a clock that was set back.
        assert_eq!(
            requests.read(&id, Walltime::from_millis(0)),
            Found::Send(rest(3600))
        );
        let dropped = requests.read(&other, at);
        assert_eq!(dropped, Found::Drop("its id is another one".to_owned()));
        requests.finish(id.clone());
        assert_eq!(requests.waiting(), std::slice::from_ref(&other));
        assert_eq!(requests.done(), std::slice::from_ref(&id));
        spool.remove(&[id], at).expect("removed");
        assert_eq!(requests.waiting(), [other]);
        assert!(requests.done().is_empty());
    }
}
