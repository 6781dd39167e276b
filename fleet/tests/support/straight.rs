//! Direct access to a backend, without a service: any client with a certificate may list, put and
//! remove keys.

use std::time::Duration;

use again_fleet::backend::etcd::Etcd;
use again_fleet::backend::nats::Nats;
use again_fleet::backend::{Backend, Change, Error, Feed, Times, Value};
use again_fleet::wire::Malformed;
use again_fleet::wire::body::Content;
use again_fleet::wire::envelope::Envelope;
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::outcome::TriggerStatus;
use again_fleet::wire::trigger::Trigger;
use tokio::runtime::{Builder, Runtime};

use crate::fired::sealed_as;
use crate::servers::{Kind, Server, tls};

pub struct Straight {
    store: Store,
    runtime: Runtime,
}

enum Store {
    Etcd(Box<Etcd>),
    Nats(Box<Nats>),
}

impl Straight {
    /// Connects as this node.
    pub fn at(server: &Server, node: &str) -> Straight {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (addresses, tls) = ([server.address()], tls(node));
        // Longer than a service waits, for a busy machine.
        let times = Times {
            call: Duration::from_secs(60),
            ..Times::default()
        };
        let store = runtime.block_on(async {
            match server.kind {
                Kind::Etcd => {
                    let etcd = Etcd::new(&addresses, Some(&tls), times).await;
                    Store::Etcd(Box::new(etcd.expect("etcd")))
                }
                Kind::Nats => {
                    let (name, fleet) = (node.parse().expect("a certname"), "test".parse());
                    let fleet = fleet.expect("a namespace");
                    let nats = Nats::connect(&addresses, Some(&tls), &name, fleet, times).await;
                    Store::Nats(Box::new(nats.expect("nats-server")))
                }
            }
        });
        Straight { store, runtime }
    }

    /// Lists the values below this prefix.
    pub fn list(&self, below: &str) -> Vec<Value> {
        self.look(below).expect("a list")
    }

    /// Lists the values below this prefix; may fail while a member is down.
    pub fn look(&self, below: &str) -> Result<Vec<Value>, Error> {
        let prefix = format!("again/v1/test/{below}");
        let list = self.runtime.block_on(async {
            match &self.store {
                Store::Etcd(etcd) => etcd.list(&prefix).await,
                Store::Nats(nats) => nats.list(&prefix).await,
            }
        });
        Ok(list?.values)
    }

    /// Returns everything that was written since this etcd started, including removed values.
    #[allow(dead_code, reason = "for the room of the verbs")]
    pub fn ever(&self) -> Vec<Value> {
        let end = self.put("end", b"").expect("put");
        let mut values = Vec::new();
        self.runtime.block_on(async {
            let Store::Etcd(etcd) = &self.store else {
                panic!("NATS keeps the last value alone");
            };
            let mut feed = etcd.follow("again/", 0).await.expect("a feed");
            loop {
                match feed.next().await.expect("a change") {
                    Change::Put(value) if value.revision >= end => return values,
                    Change::Put(value) => values.push(value),
                    Change::Removed { .. } => {}
                }
            }
        })
    }

    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<u64, Error> {
        let key = format!("again/v1/test/{key}");
        self.runtime.block_on(async {
            match &self.store {
                Store::Etcd(etcd) => etcd.put(&key, bytes, None).await,
                Store::Nats(nats) => nats.put(&key, bytes, None).await,
            }
        })
    }

    /// Dates a node's published inventory back by an hour, as if it had not been connected since.
    #[allow(dead_code, reason = "not every suite that uses this file ages a node")]
    pub fn ages(&self, node: &str) {
        let key = format!("node/{}", node.replace('.', "="));
        let mut told = read::<Inventory>(&self.list(&key)[0].bytes);
        told.at -= 3_600_000;
        self.put(&key, &sealed_as(node, &told)).expect("put");
    }

    /// Renews a lease, whichever node holds it.
    #[allow(dead_code, reason = "for the room of the services")]
    pub fn renew(&self, lease: i64) -> Result<(), Error> {
        self.runtime.block_on(async {
            let Store::Etcd(etcd) = &self.store else {
                panic!("leases of NATS have no numbers");
            };
            let lease = etcd.lease(lease).expect("a lease");
            etcd.renew(&lease).await
        })
    }

    /// Puts these values under one key, all at the same time.
    #[allow(dead_code, reason = "the room of the verbs puts one at a time")]
    pub fn put_together(&self, key: &str, values: &[Vec<u8>]) {
        let key = format!("again/v1/test/{key}");
        let all = values.iter().map(async |bytes| match &self.store {
            Store::Etcd(etcd) => etcd.put(&key, bytes, None).await,
            Store::Nats(nats) => nats.put(&key, bytes, None).await,
        });
        let done = self.runtime.block_on(futures_util::future::join_all(all));
        assert!(done.iter().all(Result::is_ok), "{done:?}");
    }

    /// Puts each of these values under its key, several at the same time.
    #[allow(dead_code, reason = "the room of the verbs puts one at a time")]
    pub fn put_all(&self, values: &[(String, Vec<u8>)]) {
        let one = |(key, bytes): &(String, Vec<u8>)| {
            let (key, bytes) = (format!("again/v1/test/{key}"), bytes.clone());
            async move {
                match &self.store {
                    Store::Etcd(etcd) => etcd.put(&key, &bytes, None).await,
                    Store::Nats(nats) => nats.put(&key, &bytes, None).await,
                }
            }
        };
        for some in values.chunks(64) {
            let done = futures_util::future::join_all(some.iter().map(one));
            let done = self.runtime.block_on(done);
            assert!(done.iter().all(Result::is_ok), "{done:?}");
        }
    }

    /// Returns the statuses of this node's triggers that are stored in the backend.
    #[allow(dead_code, reason = "the room of the verbs reads no results")]
    pub fn told(&self, sender: &str) -> Vec<TriggerStatus> {
        let values = self.list(&format!("result/{}/", sender.replace('.', "=")));
        values.iter().map(|value| read(&value.bytes)).collect()
    }

    /// Returns the triggers for this node that are stored in the backend.
    pub fn triggers(&self, target: &str) -> Vec<Trigger> {
        let values = self.list(&format!("to/{}/", target.replace('.', "=")));
        values.iter().map(|value| read(&value.bytes)).collect()
    }
}

/// Reads the content of an envelope without checking the signature.
pub fn read<T: Content>(bytes: &[u8]) -> T {
    let namespace = "test".parse().expect("a namespace");
    let envelope = Envelope::parse(bytes).expect("an envelope");
    let opened = envelope.open::<T, (), Malformed>(&namespace, |_| Ok(()));
    opened.expect("what it should be").1
}
