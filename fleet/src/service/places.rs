//! The leases under which this node's places among those that share slots stand in the engine.

use std::cell::RefCell;
use std::rc::Rc;

use rand::RngExt;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::few::Few;
use crate::engine::watch::{self, Watch};
use crate::engine::{Engine, Error, Value};
use crate::policy::slots::Lease;

/// What a watch tells, and the watch's number.
pub type Seen = (u64, watch::Event);

/// A watch that may be another one, or none, from one moment to the next.
#[derive(Default)]
pub struct More {
    wanted: RefCell<(u64, Option<String>)>,
    /// Has it list again.
    pub again: Notify,
}

impl More {
    /// From now on the watch of this number, below this prefix.
    pub fn want(&self, number: u64, prefix: Option<String>) {
        self.wanted.replace((number, prefix));
        self.again.notify_one();
    }

    /// Tells what it tells.
    pub async fn watched<E: Engine>(&self, engine: &E, tell: UnboundedSender<Seen>) {
        loop {
            let (number, prefix) = self.wanted.borrow().clone();
            let Some(prefix) = prefix else {
                self.again.notified().await;
                continue;
            };
            let mut watch = Watch::new(engine, prefix, rand::rng().random());
            while self.wanted.borrow().0 == number {
                tokio::select! {
                    event = watch.next() => { let _ = tell.send((number, event)); }
                    () = self.again.notified() => watch.list_again(),
                }
            }
        }
    }
}

/// What is done with a place.
#[derive(Debug, Clone)]
pub enum Act {
    /// A first write where nothing stands then, under a new lease. The answer has its revision, and the number of the lease in place of
    /// bytes.
    Enter,
    /// The second one, in its place; the answer has its revision.
    Sign {
        /// The revision of the first.
        first: u64,
        /// Of the place.
        lease: Lease,
        /// What is written.
        bytes: Vec<u8>,
    },
    /// To keep alive the lease of an earlier connection.
    Resume(Lease),
    /// To end it, and with it the place.
    Leave(Lease),
}

/// The leases that are kept alive, by their numbers.
pub struct Leases<L>(Rc<RefCell<Few<Lease, Rc<L>>>>);

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
    /// Does something with a place.
    ///
    /// # Errors
    /// The engine's; a conflict means that the place, or its lease, is not there any more.
    pub async fn act<E: Engine<Lease = L>>(
        self,
        engine: &E,
        key: String,
        act: Act,
    ) -> Result<Vec<Value>, Error> {
        let mut value = Value::new(key, Vec::new(), 0);
        let gone = || Error::Conflict;
        match act {
            Act::Enter => {
                let lease = engine.grant().await?;
                value.revision = enter(engine, &value.key, &lease).await?;
                let number = engine.number(&lease);
                value.bytes = number.to_be_bytes().to_vec();
                self.keep(number, lease);
            }
            Act::Sign {
                first,
                lease,
                bytes,
            } => {
                let lease = self.0.borrow().get(&lease).cloned().ok_or_else(gone)?;
                value.revision = engine.replace(&value.key, &bytes, first, &lease).await?;
            }
            Act::Resume(number) => {
                let lease = engine.lease(number).ok_or_else(gone)?;
                match engine.renew(&lease).await {
                    // A member that has only just become the leader may not know yet of a lease; what stands under it goes with it.
                    Err(Error::Conflict) if stands(engine, &value.key).await? => {}
                    renewed => renewed?,
                }
                self.keep(number, lease);
            }
            Act::Leave(number) => {
                self.0.borrow_mut().remove(&number);
                if let Some(lease) = engine.lease(number) {
                    engine.revoke(lease).await?;
                }
            }
        }
        Ok(vec![value])
    }

    fn keep(&self, number: Lease, lease: L) {
        self.0.borrow_mut().insert(number, Rc::new(lease));
    }

    /// Keeps all alive that live; whoever watches sees that the others are gone.
    ///
    /// # Errors
    /// The engine is not there.
    pub async fn renew<E: Engine<Lease = L>>(&self, engine: &E) -> Result<(), Error> {
        let all: Vec<_> = self
            .0
            .borrow()
            .0
            .iter()
            .map(|(_, l)| Rc::clone(l))
            .collect();
        for lease in all {
            match engine.renew(&lease).await {
                Ok(()) | Err(Error::Denied(_) | Error::Conflict) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Whether something stands there.
async fn stands<E: Engine>(engine: &E, key: &str) -> Result<bool, Error> {
    let found = engine.list(key).await?.values;
    Ok(found.iter().any(|value| value.key == key))
}

/// The first write; what this node has left there, or somebody else has put there, goes.
async fn enter<E: Engine>(engine: &E, key: &str, lease: &E::Lease) -> Result<u64, Error> {
    match engine.create(key, b"", lease).await {
        Err(Error::Conflict) => {
            let mut found = engine.list(key).await?.values;
            found.retain(|value| value.key == key);
            for value in found {
                engine.remove(key, value.revision).await?;
            }
            engine.create(key, b"", lease).await
        }
        created => created,
    }
}
