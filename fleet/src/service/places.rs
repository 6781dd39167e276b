//! The leases under which this node's places among those that share slots, and the locks that it holds, stand in the backend.

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

/// After what has failed, within which the moment for the next look is drawn.
const PAUSE: Duration = Duration::from_secs(3);
/// Within which it is looked anew though nothing has failed: old etcds lose some of what they should tell.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// A line in which this node stands.
#[derive(Debug, Clone)]
pub struct Line {
    /// The group.
    pub group: Name,
    /// As the keys of it begin.
    pub prefix: String,
    /// This node's place: who stands behind it is nothing to it.
    pub revision: u64,
    /// About how many it wants to know of.
    pub most: usize,
    /// Whether it was looked at before: all who see that it has become short look again, and not at once.
    pub is_known: bool,
}

/// What is seen.
#[derive(Debug)]
pub enum Seen {
    /// The first of those that stand in this group up to this node's place, and whether those are all.
    Line(Name, Vec<Value>, bool),
    /// Nothing stands there any more.
    Gone(String),
    /// It cannot look at present.
    Lost(Error),
}

/// The lines that are looked at, which may be others, or none, from one moment to the next.
#[derive(Default)]
pub struct Looks {
    wanted: RefCell<(u64, String, Vec<Line>)>,
    again: Notify,
}

impl Looks {
    /// From now on these, by this number; all their keys begin with the prefix.
    pub fn want(&self, number: u64, prefix: String, lines: Vec<Line>) {
        self.wanted.replace((number, prefix, lines));
        self.again.notify_one();
    }

    /// Tells what is seen.
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

/// Lists them, and tells from there what goes, for a while.
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

/// The first write of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// Its revision.
    pub first: u64,
    /// The lease under which it stands.
    pub lease: Lease,
}

/// What is done with a place.
#[derive(Debug, Clone)]
pub enum Act {
    /// To keep its lease alive, which may be that of an earlier connection.
    Resume(Lease),
    /// To end it, and with it the place.
    Leave(Lease),
    /// To remove the first write of another node, of this revision.
    Clear(u64),
    /// To remove the place of another node, which is dead.
    Evict {
        /// The place's revision.
        revision: u64,
        /// The node's key for beats, and its revision there.
        beat: (String, u64),
    },
}

/// The leases under which places stand, by their numbers.
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
    /// Makes the first write of a place under a new lease.
    ///
    /// # Errors
    /// The backend's; a conflict means that something stands there, and that the key is not this node's own.
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

    /// Makes the second write of a place. Its revision.
    ///
    /// # Errors
    /// As [`Leases::act`].
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

    /// Does something with a place.
    ///
    /// # Errors
    /// The backend's; a conflict means that the place, or its lease, is not there any more.
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
                    // A member that has only just become the leader may not know yet of a lease; what stands under it goes with it.
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

/// Whether something stands there.
async fn stands<E: Backend>(backend: &E, key: &str) -> Result<bool, Error> {
    let found = backend.list(key).await?.values;
    Ok(found.iter().any(|value| value.key == key))
}

/// The first write. At a key of this node's own, what it has left there, or somebody else has put there, goes.
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
