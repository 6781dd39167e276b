//! Leases of this node's entries in the backend: its entries in the queues for slots, and its
//! entries at the keys of locks.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::small_map::SmallMap;
use crate::backend::{Backend, Change, Error, Feed, Value};
use crate::policy::slots::Lease;
use crate::wire::name::Name;

/// Longest pause before the next read of a queue after a failure; the actual pause is random.
const PAUSE: Duration = Duration::from_secs(3);
/// Longest time between two reads of a queue without a failure, because old etcds do not report
/// every removal. The actual time is random.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// Queue in which this node has an entry.
#[derive(Debug, Clone)]
pub struct Line {
    /// Group of the queue.
    pub group: Name,
    /// Prefix of the queue's keys.
    pub prefix: String,
    /// Revision of this node's entry: later entries do not matter.
    pub revision: u64,
    /// Approximate number of entries that this node wants to see.
    pub most: usize,
    /// Whether the queue was read before. Then the next read waits a random time, so that nodes
    /// that see the queue become short do not all read it at the same time.
    pub is_known: bool,
}

/// Observation of a queue.
#[derive(Debug)]
pub enum Seen {
    /// Oldest entries of this group up to this node's entry, and whether they are all of them.
    Line(Name, Vec<Value>, bool),
    /// Key whose value was removed.
    Gone(String),
    /// Error that ends the observation for the moment.
    Lost(Error),
}

/// Queues that are observed, which may be replaced at any time.
#[derive(Default)]
pub struct Looks {
    wanted: RefCell<(u64, String, Vec<Line>)>,
    again: Notify,
}

impl Looks {
    /// Replaces the queues. Reports carry this number; all keys begin with the prefix.
    pub fn want(&self, number: u64, prefix: String, lines: Vec<Line>) {
        self.wanted.replace((number, prefix, lines));
        self.again.notify_one();
    }

    /// Observes the queues, and reports their entries and removals.
    pub async fn look<E: Backend>(&self, backend: &E, tell: impl Fn(u64, Seen)) {
        loop {
            let (number, prefix, lines) = self.wanted.borrow().clone();
            let looking = async {
                if let Err(e) = look(backend, &prefix, lines, |seen| tell(number, seen)).await {
                    tell(number, Seen::Lost(e));
                    sleep(drawn(Duration::ZERO, PAUSE)).await;
                }
            };
            tokio::select! {
                () = looking => {}
                () = self.again.notified() => {}
            }
        }
    }
}

/// Lists the queues, then reports removals until the next list is due.
async fn look<E: Backend>(
    backend: &E,
    prefix: &str,
    lines: Vec<Line>,
    tell: impl Fn(Seen),
) -> Result<(), Error> {
    if lines.is_empty() {
        return std::future::pending().await;
    }
    if lines.iter().all(|line| line.is_known) {
        sleep(drawn(Duration::ZERO, PAUSE)).await;
    }
    let mut after = u64::MAX;
    for line in lines {
        let (revision, most) = (line.revision, line.most);
        let list = backend.oldest(&line.prefix, revision, most).await?;
        after = after.min(list.revision);
        let is_all = list.values.len() < most;
        tell(Seen::Line(line.group, list.values, is_all));
    }
    let mut feed = backend.follow_removals(prefix, after).await?;
    let until = Instant::now() + drawn(LOOK_AGAIN / 2, LOOK_AGAIN);
    while let Ok(change) = timeout_at(until, feed.next()).await {
        if let Change::Removed { key, .. } = change? {
            tell(Seen::Gone(key));
        }
    }
    Ok(())
}

fn drawn(least: Duration, most: Duration) -> Duration {
    rand::rng().random_range(least..=most)
}

/// First write of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// Revision of the write.
    pub first: u64,
    /// Lease under which the entry is stored.
    pub lease: Lease,
}

/// Change of an entry.
#[derive(Debug, Clone)]
pub enum Act {
    /// Keep the lease alive, which may be from an earlier connection.
    Resume(Lease),
    /// Revoke the lease, and with it the entry.
    Leave(Lease),
    /// Remove the first write of another node, if it still has this revision.
    Clear(u64),
    /// Remove the entry of another node, which is dead.
    Evict {
        /// Revision of the entry.
        revision: u64,
        /// Key of the node's beats, and its revision.
        beat: (String, u64),
    },
}

/// Leases of entries, by their numbers.
pub struct Leases<L>(Rc<RefCell<SmallMap<Lease, Rc<L>>>>);

impl<L> Clone for Leases<L> {
    fn clone(&self) -> Self {
        Leases(Rc::clone(&self.0))
    }
}

impl<L> Default for Leases<L> {
    fn default() -> Self {
        Leases(Rc::default())
    }
}

impl<L> Leases<L> {
    /// Makes the first write of an entry under a new lease.
    ///
    /// # Errors
    /// Any error of the backend; a conflict means that the key has a value and is not this node's
    /// own.
    pub async fn enter<E: Backend<Lease = L>>(
        self,
        backend: &E,
        key: String,
        is_own: bool,
    ) -> Result<Entered, Error> {
        let lease = backend.grant().await?;
        match enter(backend, &key, &lease, is_own).await {
            Ok(first) => {
                let number = backend.number(&lease);
                self.0.borrow_mut().insert(number, Rc::new(lease));
                let lease = number;
                Ok(Entered { first, lease })
            }
            Err(e) => {
                let _ = backend.revoke(lease).await;
                Err(e)
            }
        }
    }

    /// Makes the second write of an entry, and returns its revision.
    ///
    /// # Errors
    /// Any error of [`Leases::act`].
    pub async fn sign<E: Backend<Lease = L>>(
        self,
        backend: &E,
        key: String,
        Entered { first, lease }: Entered,
        bytes: Vec<u8>,
    ) -> Result<u64, Error> {
        let lease = self.0.borrow().get(&lease).cloned();
        let lease = lease.ok_or(Error::Conflict)?;
        backend.replace(&key, &bytes, first, &lease).await
    }

    /// Changes an entry.
    ///
    /// # Errors
    /// Any error of the backend; a conflict means that the entry or its lease no longer exists.
    pub async fn act<E: Backend<Lease = L>>(
        self,
        backend: &E,
        key: String,
        act: Act,
    ) -> Result<(), Error> {
        match act {
            Act::Resume(number) => {
                let kept = self.0.borrow().get(&number).cloned();
                let lease = kept.or_else(|| backend.lease(number).map(Rc::new));
                let lease = lease.ok_or(Error::Conflict)?;
                match backend.renew(&lease).await {
                    // A member that has just become the leader may not know the lease yet. If the
                    // lease had ended, its key would be gone.
                    Err(Error::Conflict) if stands(backend, &key).await? => {
                        return Err(Error::Unknown("it does not know the lease yet".to_owned()));
                    }
                    renewed => renewed?,
                }
                self.0.borrow_mut().insert(number, lease);
                Ok(())
            }
            Act::Clear(revision) => backend.remove(&key, revision).await,
            Act::Evict {
                revision,
                beat: (beat, at),
            } => backend.remove_while(&key, revision, (&beat, at)).await,
            Act::Leave(number) => {
                self.0.borrow_mut().remove(&number);
                match backend.lease(number) {
                    Some(lease) => backend.revoke(lease).await,
                    None => Ok(()),
                }
            }
        }
    }
}

/// Whether the key has a value.
async fn stands<E: Backend>(backend: &E, key: &str) -> Result<bool, Error> {
    let found = backend.list(key).await?.values;
    Ok(found.iter().any(|value| value.key == key))
}

/// Makes the first write. If the key is this node's own, an existing value is removed first.
async fn enter<E: Backend>(
    backend: &E,
    key: &str,
    lease: &E::Lease,
    is_own: bool,
) -> Result<u64, Error> {
    match backend.create(key, b"", lease).await {
        Err(Error::Conflict) if is_own => {
            let mut found = backend.list(key).await?.values;
            found.retain(|value| value.key == key);
            for value in found {
                backend.remove(key, value.revision).await?;
            }
            backend.create(key, b"", lease).await
        }
        created => created,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Times;
    use crate::backend::faulty::{Call, Fault, Faulty, Plan};
    use crate::backend::memory::Memory;

    /// The backend has made the place, and nobody has heard of it.
    #[tokio::test(start_paused = true)]
    async fn the_lease_of_a_place_that_nobody_knows_of_is_given_back() {
        let memory = Memory::new(Times::default());
        let plan: Plan = Rc::new(RefCell::new(|call| match call {
            Call::Create => Fault::Unanswered,
            _ => Fault::None,
        }));
        let backend = Faulty::new(memory.clone(), plan);
        let entered = Leases::default().enter(&backend, "slot/g/a".to_owned(), true);
        assert!(matches!(entered.await, Err(Error::Unknown(_))));
        assert_eq!(memory.list("slot/").await.expect("listed").values, []);
        let entered = Leases::default().enter(&memory, "slot/g/a".to_owned(), true);
        assert!(entered.await.is_ok());
        assert_eq!(memory.list("slot/").await.expect("listed").values.len(), 1);
    }
}
