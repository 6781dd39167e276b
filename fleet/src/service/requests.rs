//! Requests that commands have left on disk while this service did not answer.

use std::collections::BTreeSet;
use std::io;
use tracing::warn;

use again_base::model::{Span, Walltime};

use crate::ask;
use crate::policy::fire::Request;
use crate::spool;
use crate::spool::requests::MOST;
use crate::wire::name::Id;

/// Requests on disk, and which of them are done.
#[derive(Debug)]
pub struct Requests {
    spool: spool::requests::Requests,
    /// Requests that were sent or dropped, until the executor has removed their files.
    pub done: BTreeSet<Id>,
    /// Last warning about the directory.
    warning: String,
}

impl Requests {
    /// Requests in this directory.
    pub fn new(spool: spool::requests::Requests) -> Requests {
        Requests {
            spool,
            done: BTreeSet::new(),
            warning: String::new(),
        }
    }

    /// Requests that are not done, oldest first. Problems with the directory are logged once.
    pub fn waiting(&mut self) -> Vec<Id> {
        let found = self.spool.listing();
        let path = self.spool.path().display();
        let warning = match &found {
            Ok(found) if !found.others.is_empty() => {
                let count = found.others.len();
                format!(
                    "entries of {path} that are not requests are ignored ({count}); remove them"
                )
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                format!("requests that wait on disk cannot be read: {path}: {e}")
            }
            _ => String::new(),
        };
        if !warning.is_empty() && warning != self.warning {
            warn!("{warning}");
        }
        self.warning = warning;
        let Ok(found) = found else {
            return Vec::new();
        };
        let is_complete = found.count() < MOST;
        let waiting: BTreeSet<&Id> = found.files.iter().map(|(_, id)| id).collect();
        self.done.retain(|id| !is_complete || waiting.contains(id));
        let ids = found.files.into_iter().map(|(_, id)| id);
        ids.filter(|id| !self.done.contains(id)).collect()
    }

    /// Reads a request, whose time to live is reduced by its age; none if the executor has removed
    /// it, or it cannot be read at the moment.
    ///
    /// # Errors
    /// Reason why the request is to be dropped.
    pub fn read(&self, id: &Id, now: Walltime) -> Result<Option<Request>, String> {
        let (bytes, at) = match self.spool.read(id) {
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(e.to_string()),
            Err(_) => return Ok(None),
            Ok(read) => read,
        };
        let request = ask::read_fire(&bytes).map_err(|e| e.to_string())?;
        if request.id != *id {
            return Err("its id is another one".to_owned());
        }
        let left = request.ttl.nanos().saturating_sub(now.since(at).nanos());
        let ttl = Span::from_nanos(left);
        // A time to live has whole milliseconds.
        if ttl.millis() == 0 {
            return Err(format!("'{}' has expired", request.name));
        }
        Ok(Some(Request { ttl, ..request }))
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
        let rest = |seconds| {
            let ttl = Span::from_secs(seconds);
            Ok(Some(Request { ttl, ..one.clone() }))
        };
        assert_eq!(after(0), rest(3600));
        assert_eq!(after(600), rest(3000));
        assert_eq!(after(3600), Err("'again' has expired".to_owned()));
        // Written in the future, as by a clock that was set back.
        assert_eq!(requests.read(&id, Walltime::from_millis(0)), rest(3600));
        let dropped = requests.read(&other, at);
        assert_eq!(dropped, Err("its id is another one".to_owned()));
        requests.done.insert(id.clone());
        assert_eq!(requests.waiting(), std::slice::from_ref(&other));
        assert!(requests.done.contains(&id));
        spool.remove(&[id], at).expect("removed");
        assert_eq!(requests.waiting(), [other]);
        assert!(requests.done.is_empty());
    }
}
