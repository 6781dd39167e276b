//! Test suite for all backends: memory, a real etcd and a real nats-server, with TLS certificates
//! of a Puppet CA. Each case is a test of each backend.

#[path = "../support/ca.rs"]
mod ca;
/// Behaviour of every backend.
mod cases;
/// TLS with limited servers, and the messages when it fails.
mod encryption;
/// Faults that only a server can have.
mod faults;
/// Values that other clients write.
mod hostile;
#[path = "../support/memory.rs"]
mod in_memory;
#[path = "../support/operator.rs"]
mod operator;
#[path = "../support/pause.rs"]
mod pause;
#[path = "../support/relay.rs"]
mod relay;
/// Operations that a server denies to a node.
mod rights;
#[path = "../support/servers.rs"]
mod servers;

use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use again_fleet::backend::etcd::Etcd;
use again_fleet::backend::nats::Nats;
use again_fleet::backend::{Backend, Error, Times};

use in_memory::Memory;
use servers::{Kind, Server, tls};

/// Backend with an empty fleet in it.
trait Stage {
    type Backend: Backend;
    /// Whether the backend removes a value when its ttl is over; otherwise its reader must check
    /// the time in it.
    const ENDS_VALUES: bool;
    /// Whether a key keeps its queue position while its lease is renewed.
    const HAS_PLACES: bool = true;

    /// Whether a single server answers: of several clients that create one key at the same time
    /// only one succeeds, and a list contains everything that was confirmed.
    fn speaks_for_all(&self) -> bool {
        true
    }

    /// Returns another client.
    async fn client(&self) -> Self::Backend;

    /// Returns a key or a prefix of the fleet.
    fn key(&self, below: &str) -> String;
}

/// Times for a busy machine: a lease short enough to wait for, and a longer time limit for calls
/// than the service has, because a cluster elects leaders meanwhile.
const TIMES: Times = Times {
    call: Duration::from_secs(20),
    lease: Duration::from_secs(5),
};

struct InMemory(Memory);

impl Stage for InMemory {
    type Backend = Memory;
    const ENDS_VALUES: bool = true;

    async fn client(&self) -> Memory {
        self.0.clone()
    }

    fn key(&self, below: &str) -> String {
        format!("again/v1/test/{below}")
    }
}

/// Separate namespace on a server.
struct OnServer<'s> {
    server: &'s Server,
    namespace: String,
    is_member: bool,
}

impl OnServer<'_> {
    fn new(server: &Server) -> OnServer<'_> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        OnServer {
            server,
            namespace,
            is_member: false,
        }
    }

    async fn etcd(&self, node: &str) -> Etcd {
        assert_eq!(self.server.kind, Kind::Etcd);
        Etcd::new(&[self.server.address()], Some(&tls(node)), TIMES)
            .await
            .expect("a client")
    }

    /// Connects, with retries as in the service: a cluster of three on a busy machine may be
    /// electing a leader.
    async fn nats(&self, node: &str) -> Nats {
        self.nats_with(node, TIMES).await
    }

    async fn nats_with(&self, node: &str, times: Times) -> Nats {
        let mut more = 5;
        loop {
            match self.try_nats(node, times.clone()).await {
                Err(Error::Unreachable(_)) if more > 0 => more -= 1,
                connected => return connected.expect("a client"),
            }
        }
    }

    async fn try_nats(&self, node: &str, times: Times) -> Result<Nats, Error> {
        assert_eq!(self.server.kind, Kind::Nats);
        let namespace = self.namespace.parse().expect("a namespace");
        let name = node.parse().expect("a certname");
        let servers = [self.server.address()];
        Nats::connect(&servers, Some(&tls(node)), &name, namespace, times).await
    }
}

struct OnEtcd<'s>(OnServer<'s>);
struct OnNats<'s>(OnServer<'s>);

impl Stage for OnEtcd<'_> {
    type Backend = Etcd;
    const ENDS_VALUES: bool = true;

    async fn client(&self) -> Etcd {
        self.0.etcd("web1.test").await
    }

    fn key(&self, below: &str) -> String {
        format!("again/v1/{}/{below}", self.0.namespace)
    }
}

impl Stage for OnNats<'_> {
    type Backend = Nats;
    const ENDS_VALUES: bool = false;
    const HAS_PLACES: bool = false;

    fn speaks_for_all(&self) -> bool {
        !self.0.is_member
    }

    async fn client(&self) -> Nats {
        self.0.nats("web1.test").await
    }

    fn key(&self, below: &str) -> String {
        format!("again/v1/{}/{below}", self.0.namespace)
    }
}

/// Server that the cases share; it ends with this program.
fn shared(kind: Kind) -> &'static Server {
    static SERVERS: [OnceLock<Server>; 2] = [OnceLock::new(), OnceLock::new()];
    SERVERS[kind as usize].get_or_init(|| Server::start(kind))
}

/// Member of the cluster that the cases share; each of the three in turn.
fn shared_member(kind: Kind) -> &'static Server {
    static CLUSTERS: [OnceLock<[Server; 3]>; 2] = [OnceLock::new(), OnceLock::new()];
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let members = CLUSTERS[kind as usize].get_or_init(|| Server::cluster(kind));
    &members[NUMBER.fetch_add(1, Ordering::Relaxed) as usize % 3]
}

/// Prints the releases that this suite has tested.
#[test]
fn releases() {
    for kind in [Kind::Etcd, Kind::Nats] {
        let words = servers::program(kind);
        let output = Command::new(&words[0])
            .args(&words[1..])
            .arg("--version")
            .output()
            .expect("a server");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        let release = said.lines().next().unwrap_or_default();
        assert!(
            release.contains(": v2.") || release.contains(": 3."),
            "{words:?}: {said}"
        );
        println!("{release}");
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let bounded = async {
        tokio::time::timeout(Duration::from_secs(1200), test)
            .await
            .expect("it hangs")
    };
    runtime.block_on(bounded);
}

/// Runs a test on a member of the cluster, which is started before.
fn run_on(kind: Kind, test: impl AsyncFnOnce(&'static Server)) {
    let member = shared_member(kind);
    run(test(member));
}

macro_rules! cases {
    ($($case:ident,)*) => {
        mod memory {
            use super::*;
            $(#[test] fn $case() { run(async { cases::$case(&InMemory(Memory::new(TIMES))).await }) })*
        }
        mod etcd {
            use super::*;
            $(#[test] fn $case() { run(async { cases::$case(&OnEtcd(OnServer::new(shared(Kind::Etcd)))).await }) })*
        }
        mod nats {
            use super::*;
            $(#[test] fn $case() { run(async { cases::$case(&OnNats(OnServer::new(shared(Kind::Nats)))).await }) })*
        }
        mod etcd_of_three {
            use super::*;
            $(#[test] fn $case() { run_on(Kind::Etcd, async |server| cases::$case(&OnEtcd(OnServer::new(server))).await) })*
        }
        mod nats_of_three {
            use super::*;
            $(#[test] fn $case() { run_on(Kind::Nats, async |server| cases::$case(&OnNats(OnServer { is_member: true, ..OnServer::new(server) })).await) })*
        }
    };
}

cases! {
    what_is_put_is_listed,
    a_newer_value_takes_the_place_of_an_older,
    a_neighbours_keys_are_not_below_a_prefix,
    key_without_a_slash_at_its_end_is_listed_and_followed_alone,
    only_the_revision_that_was_read_is_removed,
    key_that_is_there_again_is_not_told_as_gone,
    a_key_is_created_where_none_is,
    of_many_that_create_one_wins,
    a_feed_tells_what_came_after_a_revision,
    a_feed_tells_what_comes_once_and_in_order,
    a_feed_may_be_left_and_taken_up,
    a_lease_takes_its_keys_along,
    a_renewed_lease_lives,
    a_lease_that_has_ended_is_not_renewed,
    a_place_is_replaced_once_and_kept_by_its_lease,
    place_is_removed_only_while_place_and_beat_are_unchanged,
    those_before_a_place_are_listed_in_their_order_and_who_goes_is_told,
    a_value_outlives_its_ttl_by_little_or_is_kept,
    what_is_too_large_is_said_and_nothing_breaks,
    a_long_list_is_whole,
    latest_lists_the_newest_values_up_to_a_limit,
    latest_lists_one_segment_below_any_other,
    get_leaves_out_what_is_missing_or_too_long,
    a_watch_tells_everything_and_then_what_changes,
    a_watch_tells_removals_that_no_feed_told,
}
