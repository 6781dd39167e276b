//! Backend that loses calls and answers according to a plan.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use again_fleet::backend::{Backend, Change, Error, Feed, Limit, List, Value};

/// Kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Backend::list`] and [`Backend::latest`].
    List,
    /// [`Backend::follow`].
    Follow,
    /// [`Feed::next`].
    Next,
    /// [`Backend::put`].
    Put,
    /// [`Backend::create`].
    Create,
    /// [`Backend::remove`] and [`Backend::remove_while`].
    Remove,
    /// [`Backend::grant`], [`Backend::renew`] and [`Backend::revoke`].
    Lease,
}

impl Call {
    /// Whether the call changes the store.
    fn writes(self) -> bool {
        matches!(self, Call::Put | Call::Create | Call::Remove | Call::Lease)
    }
}

/// Fate of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The call succeeds.
    None,
    /// The call never arrives, and the caller knows it.
    Unreachable,
    /// The call never arrives, and the caller does not know whether it did.
    Lost,
    /// The call succeeds, but its answer never arrives.
    Unanswered,
    /// The call is carried out after this delay.
    Late(Duration),
}

/// Function that decides the fate of each call.
pub type Plan = Rc<RefCell<dyn FnMut(Call) -> Fault>>;

/// Client whose calls follow a plan.
#[derive(Clone)]
pub struct Faulty<E> {
    backend: E,
    plan: Plan,
}

impl<E> Faulty<E> {
    /// Wraps a client of a backend, with a plan.
    pub fn new(backend: E, plan: Plan) -> Self {
        Faulty { backend, plan }
    }
}

/// Carries out a call according to the plan.
async fn call<T>(
    plan: &Plan,
    what: Call,
    done: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let lost = || {
        let why = "no answer".to_owned();
        if what.writes() {
            Error::Unknown(why)
        } else {
            Error::Unreachable(why)
        }
    };
    let fault = (plan.borrow_mut())(what);
    match fault {
        Fault::None => done.await,
        Fault::Unreachable => Err(Error::Unreachable("no way there".to_owned())),
        Fault::Lost => Err(lost()),
        Fault::Unanswered => {
            let _ = done.await;
            Err(lost())
        }
        Fault::Late(by) => {
            sleep(by).await;
            done.await
        }
    }
}

impl<E: Backend> Backend for Faulty<E> {
    type Feed = Following<E::Feed>;
    type Lease = E::Lease;

    async fn list(&self, prefix: &str) -> Result<List, Error> {
        call(&self.plan, Call::List, self.backend.list(prefix)).await
    }

    async fn latest(&self, prefix: &str, limit: Limit) -> Result<List, Error> {
        let latest = self.backend.latest(prefix, limit);
        call(&self.plan, Call::List, latest).await
    }

    async fn follow(&self, prefix: &str, after: u64) -> Result<Self::Feed, Error> {
        let feed = call(&self.plan, Call::Follow, self.backend.follow(prefix, after)).await?;
        Ok(Following {
            feed,
            plan: Rc::clone(&self.plan),
        })
    }

    async fn put(&self, key: &str, bytes: &[u8], ttl: Option<Duration>) -> Result<u64, Error> {
        call(&self.plan, Call::Put, self.backend.put(key, bytes, ttl)).await
    }

    async fn create(&self, key: &str, bytes: &[u8], lease: &E::Lease) -> Result<u64, Error> {
        call(
            &self.plan,
            Call::Create,
            self.backend.create(key, bytes, lease),
        )
        .await
    }

    const HAS_PLACES: bool = E::HAS_PLACES;

    async fn oldest(&self, prefix: &str, until: u64, most: usize) -> Result<List, Error> {
        let oldest = self.backend.oldest(prefix, until, most);
        call(&self.plan, Call::List, oldest).await
    }

    async fn get(&self, keys: &[String], longest: usize) -> Result<Vec<Value>, Error> {
        let get = self.backend.get(keys, longest);
        call(&self.plan, Call::List, get).await
    }

    async fn follow_removals(&self, prefix: &str, after: u64) -> Result<Self::Feed, Error> {
        self.follow(prefix, after).await
    }

    async fn replace(
        &self,
        key: &str,
        bytes: &[u8],
        revision: u64,
        lease: &E::Lease,
    ) -> Result<u64, Error> {
        let replaced = self.backend.replace(key, bytes, revision, lease);
        call(&self.plan, Call::Create, replaced).await
    }

    async fn put_unless(&self, key: &str, bytes: &[u8], other: &str) -> Result<u64, Error> {
        let put = self.backend.put_unless(key, bytes, other);
        call(&self.plan, Call::Put, put).await
    }

    fn number(&self, lease: &E::Lease) -> i64 {
        self.backend.number(lease)
    }

    fn lease(&self, number: i64) -> Option<E::Lease> {
        self.backend.lease(number)
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<(), Error> {
        call(&self.plan, Call::Remove, self.backend.remove(key, revision)).await
    }

    async fn remove_while(
        &self,
        key: &str,
        revision: u64,
        other: (&str, u64),
    ) -> Result<(), Error> {
        let removed = self.backend.remove_while(key, revision, other);
        call(&self.plan, Call::Remove, removed).await
    }

    async fn grant(&self) -> Result<E::Lease, Error> {
        call(&self.plan, Call::Lease, self.backend.grant()).await
    }

    async fn renew(&self, lease: &E::Lease) -> Result<(), Error> {
        call(&self.plan, Call::Lease, self.backend.renew(lease)).await
    }

    fn newest(&self, prefix: &str) -> Option<u64> {
        self.backend.newest(prefix)
    }

    async fn revoke(&self, lease: E::Lease) -> Result<(), Error> {
        call(&self.plan, Call::Lease, self.backend.revoke(lease)).await
    }
}

/// Feed of changes, with faults according to the plan.
pub struct Following<F> {
    feed: F,
    plan: Plan,
}

impl<F: Feed> Feed for Following<F> {
    async fn next(&mut self) -> Result<Change, Error> {
        let change = self.feed.next().await?;
        // After any fault, a feed that has lost one change yields no more.
        match (self.plan.borrow_mut())(Call::Next) {
            Fault::None | Fault::Late(_) => Ok(change),
            _ => Err(Error::Unreachable("the connection broke".to_owned())),
        }
    }
}
